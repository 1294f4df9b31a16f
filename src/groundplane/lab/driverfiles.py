"""The files of a simulated driver: what its programs and the container toolkit look for, named as the real ones are.

The contents are a line each, but for nvidia-smi, which starts the lab's stand-in for it.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..node.hostroot import HostRoot

DRIVER_BIN: Final = "/usr/lib/groundplane/driver/bin"
"""Where groundplane's image has the executables that come with a driver; no other image has the folder."""
SMI: Final = "/usr/bin/nvidia-smi"
HOST_LIBRARIES: Final = "/usr/lib/x86_64-linux-gnu"
"""Where a driver on the host keeps its libraries."""
CONTAINER_LIBRARIES: Final = "/usr/lib64"
"""Where a driver's container keeps them, below its root."""

_LIBRARIES: Final = {
    "libcuda.so": "1",
    "libnvidia-ml.so": "1",
    "libnvidia-ptxjitcompiler.so": "1",
    "libnvidia-nvvm.so": "4",
    "libnvidia-cfg.so": "1",
}
"""Libraries, each with the number by which programs load it."""
_PROGRAMS: Final = (SMI, "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-cuda-mps-control")


class File(NamedTuple):
    """One file; a link if ``target`` is given."""

    path: str
    text: str = ""
    mode: int = 0o644
    target: str = ""


def tree(version: str, libraries: str) -> Iterator[File]:
    """All files of a driver whose libraries are in a folder."""
    for path in _PROGRAMS:
        yield File(path, _program(path, version), 0o755)
    for name, number in _LIBRARIES.items():
        yield File(f"{libraries}/{name}.{version}", f"simulated {version}\n", 0o755)
        yield File(f"{libraries}/{name}.{number}", target=f"{name}.{version}")
    yield File(f"{libraries}/libcuda.so", target="libcuda.so.1")
    yield File(f"/lib/firmware/nvidia/{version}/gsp_ga10x.bin", f"simulated {version}\n")


def library(name: str, libraries: str) -> str:
    """The path by which programs load a library."""
    return f"{libraries}/{name}.{_LIBRARIES[name]}"


def versions(root: HostRoot, libraries: str) -> list[str]:
    """The versions of the drivers whose libraries are in a folder below a root."""
    start = f"{libraries}/libnvidia-ml.so."
    found = (path.removeprefix(start) for path in root.glob(f"{start}*"))
    return [version for version in found if "." in version]


def write(root: HostRoot, version: str, libraries: str) -> None:
    """Put a driver's files below a root; those of another version go."""
    remove(root, libraries)
    for file in tree(version, libraries):
        if file.target:
            root.symlink(file.path, file.target)
        else:
            root.write_atomic(file.path, file.text, mode=file.mode)


def remove(root: HostRoot, libraries: str) -> None:
    """Remove every file of a driver."""
    for name in _LIBRARIES:
        for path in root.glob(f"{libraries}/{name}*"):
            root.remove(path)
    for path in (*_PROGRAMS, "/lib/firmware/nvidia"):
        root.remove(path)


def _program(path: str, version: str) -> str:
    name = path.rpartition("/")[2]
    start = f'exec {DRIVER_BIN}/nvidia-smi "$@"\n' if path == SMI else f"echo '{name} is simulated' >&2; exit 1\n"
    return f"#!/bin/sh\n# simulated {version}\n{start}"
