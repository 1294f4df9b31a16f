"""GPUs of a Tegra: what containers get is told by the platform's lists (contracts/toolkit-cdi.md 3.8, mode csv).

A line of a list is ``<dev|dir|lib|sym>, <path>``. Nodes belong to the one device, all else to every container.
"""

import fnmatch
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ..devices.model import Inventory
from ..devices.source import DeviceError, Source
from ..process import Process
from .drivers import DriverFiles
from .hooks import Hooks
from .libraries import Placing, folders_of
from .model import ContainerEdits, Mount
from .nodes import Nodes
from .options import GenerateError, Wanted

FOLDER: Final = "/etc/nvidia-container-runtime/host-files-for-container.d"
FILES: Final = tuple(f"{FOLDER}/{name}.csv" for name in ("devices", "drivers", "l4t"))
"""The lists that are read if no others are named."""
COMPAT_ROOT: Final = "/usr/local/cuda/compat_orin"
_RELEASE: Final = "/etc/nv_tegra_release"
_KINDS: Final = frozenset({"dev", "dir", "lib", "sym"})
_ORIN: Final = "Orin (nvgpu)"
_MAX_LINKS: Final = 40


class Entry(NamedTuple):
    """A line of a list."""

    kind: str
    path: str


def parse(text: str) -> Iterator[Entry]:
    """The lines of a list; those of another form are skipped."""
    for line in text.splitlines():
        kind, comma, path = (part.strip() for part in line.partition(","))
        if comma and kind in _KINDS and path:
            yield Entry(kind, path)


def entries(process: Process, wanted: Wanted) -> list[Entry]:
    """The lines of all lists, without links that are to be ignored. Raises :class:`GenerateError` if there are none."""
    found: list[Entry] = []
    for name in wanted.csv_files or FILES:
        try:
            listed = list(parse(process.path(name).read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            process.log.warning(f"{name} cannot be read: {error}; what it lists is left out")
            continue
        if not listed:
            process.log.warning(f"{name} lists nothing")
        found += listed
    if not found:
        raise GenerateError(f"none of {', '.join(wanted.csv_files or FILES)} lists anything: is this a Tegra?")
    return [each for each in found if each.kind != "sym" or not _ignored(each.path, wanted.csv_ignore_patterns)]


def _ignored(path: str, patterns: Iterable[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(posixpath.basename(path), pattern[3:])
        if pattern.startswith("**/")
        else fnmatch.fnmatchcase(path, pattern) and pattern.count("/") == path.count("/")
        for pattern in patterns
    )


def device(nodes: Nodes, listed: Iterable[Entry]) -> ContainerEdits:
    """What the device gives: the nodes that the lists name and that are there."""
    return nodes.edits(nodes.matching(each.path for each in listed if each.kind == "dev"))


def common(
    files: DriverFiles,
    placing: Placing,
    hooks: Hooks,
    listed: Sequence[Entry],
    compat: Sequence[str],
    *,
    hookless: bool,
) -> ContainerEdits:
    """What every container gets; ``compat`` are the arguments of the compatibility hook, none for no such hook."""
    folders = [path for each in listed if each.kind == "dir" for path in files.find(("/",), each.path, folder=True)]
    libraries = [path for each in listed if each.kind == "lib" for path in _resolved(files, each.path)]
    linked = [path for each in listed if each.kind == "sym" for path in _resolved(files, each.path)]
    links = [link for each in listed if each.kind == "sym" for link in _chain(files, each.path)]
    release = files.find(("/",), _RELEASE)
    paths = list(dict.fromkeys((*folders, *libraries, *linked, *release)))
    mounts = [placing.mount(path) for path in paths]
    if hookless:
        mounts += _by_names(placing, files, libraries, links)
    return ContainerEdits(
        mounts=tuple(mounts),
        hooks=(
            *hooks.create_symlinks(placing.links(libraries)),
            *hooks.create_symlinks(links),
            *(hooks.enable_cuda_compat(*compat) if compat else ()),
            *hooks.update_ldcache(folders_of(paths)),
        ),
    )


def compat(source: Source, wanted: Wanted) -> tuple[str, ...]:
    """Arguments of the compatibility hook; none where the library does not tell the CUDA version."""
    try:
        inventory: Inventory = source.inventory()
    except DeviceError:
        return ()
    version = inventory.cuda_version
    args = [f"--host-cuda-version={version // 1000}.{version % 1000 // 10}"]
    if any(_ORIN in gpu.name for gpu in inventory.gpus):
        args.append(f"--cuda-compat-container-root={wanted.csv_compat_root or COMPAT_ROOT}")
    return tuple(args)


def _resolved(files: DriverFiles, path: str) -> Iterator[str]:
    yield from (files.real(each) for each in files.find(("/",), path))


def _chain(files: DriverFiles, path: str) -> Iterator[str]:
    """Links ``target::path`` from a link to where it leads, as each says."""
    for _ in range(_MAX_LINKS):
        target = files.link(path)
        if not target:
            return
        yield f"{target}::{path}"
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _by_names(placing: Placing, files: DriverFiles, libraries: Iterable[str], links: Iterable[str]) -> Iterator[Mount]:
    yield from placing.by_names(libraries)
    for link in links:
        path = link.partition("::")[2]
        if files.there(path):
            yield placing.mount(files.real(path), path)
