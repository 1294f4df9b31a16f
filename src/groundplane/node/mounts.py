"""Mounts of the program's own mount namespace: which there are below a folder, and taking them all away.

They are unmounted lazily (``umount -l``), the newest first: what still uses a file there keeps it, and nobody else sees
it. On a machine whose GPUs are simulated, files that stand for a mounted root go too.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .cdi.roots import simulated
from .process import Process

MOUNTINFO: Final = "/proc/self/mountinfo"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class MountError(Exception):
    """A folder still has mounts; the text names them and says why."""


def points(text: str, folder: str) -> Iterator[str]:
    """The mount points at and below a folder, in the order of ``/proc/self/mountinfo``, whose text is given."""
    top = folder.rstrip("/")
    for line in text.splitlines():
        words = line.split(" ")
        point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), words[4]) if len(words) > 4 else ""
        if point == top or point.startswith(f"{top}/"):
            yield point


async def unmount(process: Process, folder: str) -> list[str]:
    """Unmount all that is mounted at and below a folder; which mounts those were. A folder that is not there has none.

    Raises :class:`MountError` and OSError.
    """
    if not process.path(folder).exists():
        return []
    found = _mounted(process, folder)
    reasons = {}
    for point in reversed(found):
        if reason := await _unmount(process, point):
            reasons[point] = reason
    if left := _mounted(process, folder):  # one that went with another is no failure
        told = "; ".join(f"{point}: {reasons.get(point, 'mounted anew')}" for point in dict.fromkeys(left))
        raise MountError(f"{folder} cannot be unmounted: {told}")
    if simulated(process):
        _empty(process.path(folder))
    return found


def _empty(folder: Path) -> None:
    """Remove what is in a folder; the folder itself stays, as other containers have it mounted."""
    for entry in list(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


async def _unmount(process: Process, point: str) -> str:
    """Unmount one; why it cannot be."""
    try:
        done = await process.execute(("umount", "-l", point))
    except OSError as error:
        return f"umount cannot be run: {error}"
    return (done.err or done.out).strip() or f"umount ended with {done.code}" if done.code else ""


def _mounted(process: Process, folder: str) -> list[str]:
    try:
        text = process.path(MOUNTINFO).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        if simulated(process):  # such a machine's containers need not have a /proc
            return []
        raise
    return list(points(text, folder))
