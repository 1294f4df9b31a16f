"""`mps-control-daemon mount-shm`: the shared memory in which MPS clients and servers meet.

Source: contracts/device-plugin-gfd.md 6. The mount is made by the system's `mount` and reaches the host by the
propagation of the volume; it is made anew each time, so that its size is right.
"""

import re
from pathlib import Path
from typing import Final

from ..process import Process
from . import paths

MEMORY_INFO: Final = "/proc/meminfo"
FALLBACK_SIZE: Final = "65536k"
_OPTIONS: Final = ("rw", "nosuid", "nodev", "noexec", "relatime")
_MOST_LAYERS: Final = 16


class MountError(RuntimeError):
    """The shared memory cannot be mounted; the text holds the command and what it said."""


def size(meminfo: str) -> str:
    """Half of the machine's memory, in the unit in which `/proc/meminfo` has it, as tmpfs takes it."""
    total = re.search(r"^MemTotal:\s*([0-9]+)\s*([A-Za-z])?", meminfo, re.MULTILINE)
    if total is None:
        return FALLBACK_SIZE
    return f"{int(total[1]) // 2}{total[2] or ''}"


def options(meminfo: str) -> str:
    """The mount's options."""
    return ",".join((*_OPTIONS, f"size={size(meminfo)}"))


async def mount(process: Process) -> None:
    """Mount it, in place of what is mounted there. Raises :class:`MountError`."""
    folder = process.path(paths.SHM)
    await _unmount(process, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MountError(f"{paths.SHM}: {error.strerror or error}") from error
    chosen = options(_memory_info(process))
    await _run(process, "mount", "-t", "tmpfs", "-o", chosen, "shm", paths.SHM)
    process.log.info(f"mounted shared memory at {paths.SHM} ({chosen})")


async def _unmount(process: Process, folder: Path) -> None:
    """Take away all that is mounted on a folder: a former run may have been killed, or run twice."""
    for _ in range(_MOST_LAYERS):
        if not _is_mounted(folder):
            return
        await _run(process, "umount", paths.SHM)
    raise MountError(f"{paths.SHM} is still a mount point after {_MOST_LAYERS} times umount")


def _is_mounted(folder: Path) -> bool:
    return folder.is_mount()


def _memory_info(process: Process) -> str:
    try:
        return process.kernel.read_text(MEMORY_INFO)
    except OSError as error:
        process.log.warning(f"{MEMORY_INFO}: {error.strerror or error}; the shared memory gets {FALLBACK_SIZE}")
        return ""


async def _run(process: Process, *command: str) -> None:
    try:
        done = await process.execute(command)
    except OSError as error:
        raise MountError(f"{' '.join(command)}: {error.strerror or error}") from error
    if done.code != 0:
        raise MountError(f"{' '.join(command)}: exit code {done.code}: {' '.join((done.err or done.out).split())}")
