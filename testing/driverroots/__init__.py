"""Roots as drivers leave them: the files of NVIDIA's drivers 535 to 590 on Ubuntu, on RHEL and in a driver's container.

:func:`make` puts one into a folder. What is made has the real names, links and places (as the distributions' packages
and NVIDIA's installer have them, on x86-64) but no content: libraries are the smallest ELF files that have a SONAME,
all else is a line of text. The tables are in :mod:`.files`.
"""

import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from . import elf, files

VERSIONS: Final = ("535.261.03", "550.163.01", "570.172.08", "580.95.05", "590.48.01")


class Kind(enum.Enum):
    """Who installed the driver: Ubuntu's or RHEL's packages, or NVIDIA's installer in a driver's container."""

    UBUNTU = "ubuntu"
    RHEL = "rhel"
    CONTAINER = "container"


class Entry(NamedTuple):
    """A file below the root, or a link if ``target`` is given."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    target: str = ""


def make(root: Path, version: str, kind: Kind) -> None:
    """Put a driver's files below a folder, which need not be empty."""
    for entry in entries(version, kind):
        real = root / entry.path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        if entry.target:
            real.symlink_to(entry.target)
            continue
        real.write_bytes(entry.content)
        real.chmod(entry.mode)


def entries(version: str, kind: Kind) -> Iterator[Entry]:
    """All files of a driver, links to folders first."""
    layout = files.LAYOUTS[kind.value]
    major = int(version.partition(".")[0])
    yield from (Entry(path, target=target) for path, target in layout.folder_links)
    yield from _libraries(layout, version, major)
    yield from _modules(layout, version)
    for name in files.BINARIES:
        yield Entry(f"/usr/bin/{name}", f"#!/bin/sh\n# {name} {version}\n".encode(), 0o755)
    for name in files.FIRMWARE:
        yield Entry(f"/usr/lib/firmware/nvidia/{version}/{name}", f"{name} {version}\n".encode())
    for config in files.CONFIGS:
        if config.since <= major and kind.value in config.kinds:
            yield Entry(config.path, f"{os.path.basename(config.path)} {version}\n".encode())  # noqa: PTH119
    for path in layout.sockets:
        yield Entry(path)


def _libraries(layout: files.Layout, version: str, major: int) -> Iterator[Entry]:
    for library in files.LIBRARIES:
        if not library.since <= major <= library.until:
            continue
        own = f"{library.stem}.{library.version or version}"
        soname = f"{library.stem}.{library.soname}" if library.soname else own
        folder = f"{layout.libraries}/{library.folder}".rstrip("/")
        yield Entry(f"{folder}/{own}", elf.library(soname), 0o755)
        if soname != own:
            yield Entry(f"{folder}/{soname}", target=own)
        if library.plain and (layout.all_plain or library.stem in files.ALWAYS_PLAIN):
            yield Entry(f"{folder}/{library.stem}", target=own if library.plain == "own" else soname)
    yield Entry(f"{layout.libraries}/gbm/nvidia-drm_gbm.so", target="../libnvidia-allocator.so.1")


def _modules(layout: files.Layout, version: str) -> Iterator[Entry]:
    yield Entry(f"{layout.xorg_drivers}/nvidia_drv.so", elf.library("nvidia_drv.so"), 0o755)
    own = f"libglxserver_nvidia.so.{version}"
    yield Entry(f"{layout.xorg_extensions}/{own}", elf.library("libglxserver_nvidia.so"), 0o755)
    yield Entry(f"{layout.xorg_extensions}/libglxserver_nvidia.so", target=own)
