"""Python packages of the image: the wheels that `requirements.lock` names by digest, and groundplane's own.

pip, run by the image's interpreter, chooses and checks the wheels, so they fit it whatever Python builds the image. A
wheel is then laid out here: it is a zip archive, and nothing in it needs to run.
"""

import hashlib
import importlib.util
import os
import stat
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from . import tools
from .errors import ImageError
from .interpreter import Interpreter

_SKIPPED_DATA = ("scripts", "headers", "data")
_PRUNED = ("tests", "test", "testing")
"""Folders of packages that hold their own tests; see `_is_wanted`."""


def download(lock: Path, python: Interpreter, folder: Path) -> list[Path]:
    """The wheels of a hash-locked requirements file for an interpreter, from a folder below `folder` or else by pip.

    ImageError if one cannot be had or has another digest, or if a package has no wheel.
    """
    key = hashlib.sha256(lock.read_bytes() + python.run("-VV", what="starting the image's Python").encode())
    target = folder / key.hexdigest()[:16]
    done = target / ".complete"
    if not done.exists():
        target.mkdir(parents=True, exist_ok=True)
        options = ["--only-binary=:all:", "--require-hashes", "--no-deps", "--disable-pip-version-check", "--quiet"]
        python.run(
            "-m", "pip", "download", *options, "--dest", target, "--requirement", lock,
            what=f"downloading the wheels of {lock.name}",
            remedy="is the package index reachable? pip's own settings (PIP_INDEX_URL, pip.conf) are used",
            env={"PYTHONPATH": str(_pip()), "PIP_NO_INPUT": "1"},
        )  # fmt: skip
        done.touch()
    return sorted(target.glob("*.whl"))


def _pip() -> Path:
    """The folder that holds the building Python's pip, which is pure Python and runs on any."""
    found = importlib.util.find_spec("pip")
    if found is None or not found.submodule_search_locations:
        raise ImageError(f"{sys.executable} has no pip; run {sys.executable} -m ensurepip, or use the project's .venv")
    return Path(found.submodule_search_locations[0]).parent


def own(tree: Path, folder: Path, epoch: int) -> Path:
    """Build groundplane's wheel from a source tree with the build backend of the running Python."""
    if importlib.util.find_spec("hatchling") is None:
        lock = "requirements-build.lock"
        raise ImageError(f"{sys.executable} has no hatchling; run pip install --require-hashes -r {lock}")
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    tools.run(
        command, cwd=tree, what="building groundplane's wheel", env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    )
    found = sorted(folder.glob("groundplane-*.whl"))
    if len(found) != 1:
        raise ImageError(f"hatchling made {len(found)} wheels in {folder}, expected one")
    return found[0]


def lay_out(wheels: Iterable[Path], site: Path) -> None:
    """Unpack wheels into a folder of packages. ImageError if two have the same file or a name leaves the folder."""
    site.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = None if entry.is_dir() else _place(PurePosixPath(entry.filename))
                if name is not None:
                    _write(archive, entry, wheel, site / name)


def _place(path: PurePosixPath) -> PurePosixPath | None:
    """Where a wheel's file belongs, or None if the image does without it."""
    parts = path.parts
    if path.is_absolute() or ".." in parts:
        raise ImageError(f"a wheel has a file {path} that does not belong in it")
    if parts[0].endswith(".data"):
        return None if parts[1] in _SKIPPED_DATA else _place(PurePosixPath(*parts[2:]))
    return path if _is_wanted(parts) else None


def _is_wanted(parts: tuple[str, ...]) -> bool:
    tested = len(parts) > 2 and any(part in _PRUNED for part in parts[1:-1])
    compiled_sources = parts[-1].endswith((".c", ".h", ".pyx", ".pxd", ".pyi", ".cpp"))
    return not tested and not compiled_sources


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, wheel: Path, target: Path) -> None:
    if target.exists():
        raise ImageError(f"{wheel.name} has {entry.filename}, which another wheel has too")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(archive.read(entry))
    if (entry.external_attr >> 16) & stat.S_IXUSR:
        target.chmod(0o755)
