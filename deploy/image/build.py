"""Putting the image together: base, dependencies and application, each a folder, then a layer.

The base (Debian packages) and the dependencies (locked wheels) change rarely, so their layers are kept in the cache,
keyed by everything they are made of; the application's is made each time.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from deploy import golang, hostprogram
from groundplane.node.metrics import settings
from groundplane.node.toolkit.settings import HOST_PROGRAM

from . import archive, compiled, contents, debian, interpreter, launcher, tools, wheels
from .archive import Layer
from .errors import ImageError
from .interpreter import Interpreter

TREE = Path(__file__).resolve().parents[2]
"""The project's source tree."""

_OLD = 946_684_800
"""Time of the files in the layers that do not come from this tree: 2000-01-01, so that they stay the same."""

_LAYERS_KEPT = 8
_SIZE_LIMIT = 200_000_000
"""Most bytes of all layers unpacked."""


@dataclass(frozen=True)
class Parts:
    """The folders of the image's three layers, in order, and what was put into them."""

    base: Path
    dependencies: Path
    application: Path
    packages: tuple[debian.Package, ...]
    python: Interpreter
    version: str

    @property
    def folders(self) -> tuple[Path, Path, Path]:
        """The folders in the order of the layers."""
        return self.base, self.dependencies, self.application


def epoch(tree: Path = TREE) -> int:
    """The image's time in seconds since 1970: SOURCE_DATE_EPOCH, or that of the tree's last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        tools.need("git")
        given = tools.run(
            ["git", "-C", tree, "log", "-1", "--format=%ct"],
            what="asking for the last commit's time",
            remedy="outside a git checkout set SOURCE_DATE_EPOCH",
        )
    try:
        return int(given)
    except ValueError as error:
        raise ImageError(f"SOURCE_DATE_EPOCH is {given!r}; give seconds since 1970") from error


def revision(tree: Path = TREE) -> str:
    """The tree's commit, with `-modified` if files of the image differ from it; empty outside a checkout."""
    if not (tree / ".git").exists() or shutil.which("git") is None:
        return ""
    head = tools.run(["git", "-C", tree, "rev-parse", "HEAD"], what="asking for the commit").strip()
    paths = ["src", "native", "deploy", "pyproject.toml", "requirements.lock"]
    changed = tools.run(["git", "-C", tree, "status", "--porcelain", "--", *paths], what="asking for changes").strip()
    return head + ("-modified" if changed else "")


# --- the three folders -----------------------------------------------------------------------------------------------


@contextmanager
def assembled(tree: Path = TREE) -> Iterator["Assembly"]:
    """A folder in which the image is put together; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="groundplane-image-") as folder:
        yield Assembly(tree, Path(folder))


class Assembly:
    """Makes the folders of the layers. Compiling is done on demand, since a cached layer needs none."""

    def __init__(self, tree: Path, work: Path) -> None:
        self._tree = tree
        cache = tools.cache_folder()
        packages = debian.select(work)
        files = debian.fetch(packages, cache / "debs")
        base, dependencies, application = (work / name for name in ("base", "dependencies", "application"))
        debian.unpack(files, base)
        debian.prune(base)
        debian.settle(base, packages)
        python = Interpreter(base)
        applets = tools.run(python.command("busybox", "--list"), what="listing busybox' applets").split()
        debian.link_busybox(base, applets)
        locked = wheels.download(tree / "requirements.lock", python, cache / "wheels")
        wheels.lay_out(locked, dependencies / python.packages)
        own = wheels.own(tree, work / "own", epoch(tree))
        wheels.lay_out([own], application / python.packages)
        _install_launcher(application)
        _install_host_program(application, tree)
        _install_counters(application)
        self.parts = Parts(base, dependencies, application, tuple(packages), python, own.name.split("-")[1])
        self._check_libraries()

    def _check_libraries(self) -> None:
        lacking = debian.unresolved(self.parts.base, self.parts.dependencies)
        if lacking:
            raise ImageError("libraries are missing from the image (contents.LEFT_OUT?):\n" + "\n".join(lacking))

    def compile_base(self) -> None:
        """Compile Python's library."""
        compiled.compile_tree(self.parts.python, [self.parts.python.library], self.parts.base)

    def compile_dependencies(self) -> None:
        """Compile the locked packages."""
        self._compile(self.parts.dependencies)

    def compile_application(self) -> None:
        """Compile groundplane."""
        self._compile(self.parts.application)

    def _compile(self, folder: Path) -> None:
        compiled.compile_tree(self.parts.python, [folder / self.parts.python.packages], folder)


def _install_launcher(root: Path) -> None:
    path = root / launcher.PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(launcher.source())
    path.chmod(0o755)
    for name, target in launcher.links().items():
        link = root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _install_host_program(root: Path, tree: Path) -> None:
    """Put the host's program where the toolkit takes it from."""
    try:
        built = hostprogram.host_program(debian.architecture(), source=tree / "native")
    except golang.UnavailableError as error:
        raise ImageError(str(error)) from error
    path = root / HOST_PROGRAM.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(built, path)
    path.chmod(0o755)


def _install_counters(root: Path) -> None:
    """The exporter's counters files, where operands name them and people look for them."""
    for name, text in settings.files().items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_tree(target: Path, tree: Path = TREE) -> None:
    """Write the folders of the three layers into a folder, for other builders (deploy/image/Containerfile)."""
    if target.exists() and any(target.iterdir()):
        raise ImageError(f"folder {target} is not empty; name a new one")
    with assembled(tree) as assembly:
        for step in (assembly.compile_base, assembly.compile_dependencies, assembly.compile_application):
            step()
        for folder in assembly.parts.folders:
            shutil.copytree(folder, target / folder.name, symlinks=True, dirs_exist_ok=True)


# --- layers and image ------------------------------------------------------------------------------------------------


def image(name: str | None = None, *, tree: Path = TREE, layers_folder: Path, fresh: bool = False) -> archive.Image:
    """Build the image. Finished layers are put into `layers_folder`, which must outlive the result.

    With `fresh` no layer is taken from the cache (downloads are). `name` is the image's reference, by default
    `groundplane:<version>`.
    """
    time = epoch(tree)
    with assembled(tree) as assembly:
        parts = assembly.parts
        kept = None if fresh else tools.cache_folder() / "layers"
        base_key = _key([*map(str, parts.packages), *_sources()])
        dependencies_key = _key([base_key, (tree / "requirements.lock").read_text()])
        layers = (
            _layer(parts.base, base_key, _OLD, layers_folder, kept, assembly.compile_base),
            _layer(parts.dependencies, dependencies_key, _OLD, layers_folder, kept, assembly.compile_dependencies),
            _layer(parts.application, "application", time, layers_folder, None, assembly.compile_application),
        )
        created = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        unpacked = sum(part.unpacked for part in layers)
        if unpacked > _SIZE_LIMIT:
            raise ImageError(f"the image is {unpacked} bytes, more than {_SIZE_LIMIT}; see deploy/image/contents.py")
        labels = _labels(parts, created, revision(tree))
        reference = name or f"groundplane:{parts.version}"
        return archive.Image((reference,), layers, debian.architecture(), created, _config(labels), labels)


def for_nodes(image: archive.Image) -> archive.Image:
    """The same image for operands, which run as root where their pods say nothing: `<name>-node`, with the same tag.

    Its pods name the program to run; without a command it is the device plugin, as of NVIDIA's image of that name.
    """
    (reference,) = image.references
    name, colon, tag = reference.rpartition(":")
    config = {**image.config, "User": "0:0", "Entrypoint": ["/usr/bin/nvidia-device-plugin"]}
    return replace(image, references=(f"{name}-node{colon}{tag}",), config=config)


def _config(labels: dict[str, str]) -> dict[str, object]:
    return {
        "User": f"{contents.USER}:{contents.USER}",
        "Env": [f"{key}={value}" for key, value in contents.ENVIRONMENT.items()],
        "Entrypoint": ["/usr/bin/gpu-operator"],
        "WorkingDir": "/",
        "Labels": labels,
    }


def _labels(parts: Parts, created: str, commit: str) -> dict[str, str]:
    os_release = (parts.base / "usr/lib/os-release").read_text()
    base = next(
        line.partition("=")[2].strip('"') for line in os_release.splitlines() if line.startswith("PRETTY_NAME=")
    )
    labels = {
        "org.opencontainers.image.title": "groundplane",
        "org.opencontainers.image.description": "Operator and node programs of the NVIDIA GPU stack",
        "org.opencontainers.image.version": parts.version,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "groundplane.base": base,
        "groundplane.base.packages": " ".join(f"{package.name}={package.version}" for package in parts.packages),
        "groundplane.python": parts.python.version,
    }
    return labels | ({"org.opencontainers.image.revision": commit} if commit else {})


def _key(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _sources() -> list[str]:
    """The text of the modules that decide what is in the layers of the base and the dependencies."""
    modules = (archive, compiled, contents, debian, interpreter, wheels)
    return [Path(str(module.__file__)).read_text() for module in modules]


def _layer(root: Path, key: str, time: int, target: Path, kept: Path | None, prepare: Callable[[], None]) -> Layer:
    """Make a layer of a folder, or take it from the folder of kept ones."""
    folder = target if kept is None else kept
    folder.mkdir(parents=True, exist_ok=True)
    record, file = folder / f"{key}.json", folder / f"{key}.tar.gz"
    if kept is not None and record.exists() and file.exists():
        os.utime(record)
        return Layer(file, **json.loads(record.read_text()))
    prepare()
    made = archive.layer(root, file, time)
    if kept is not None:
        record.write_text(json.dumps({name: value for name, value in asdict(made).items() if name != "path"}))
        _forget(kept)
    return made


def _forget(kept: Path) -> None:
    """Remove all but the latest used layers from the cache."""
    records = sorted(kept.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for record in records[_LAYERS_KEPT:]:
        record.with_suffix(".tar.gz").unlink(missing_ok=True)
        record.unlink(missing_ok=True)
