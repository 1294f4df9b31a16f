"""Work folders and cgroups of clusters, made so that leftovers can be told.

A cluster that is stopped removes its own. What one that was killed left behind is removed by the next that starts: a
folder is in use as long as a process holds the lock in it, and a cgroup as long as it holds processes.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from . import cgroups

PREFIX = "groundplane-cluster-"
CGROUP = "/groundplane"
KEEP_VARIABLE = "GROUNDPLANE_KEEP"
"""Set, folders with all logs stay when a cluster ends, for a person to read."""


_LOCK = ".in-use"
_held: dict[Path, int] = {}


def make() -> Path:
    """A fresh work folder, in use until `remove` or the end of this process; leftovers are removed first."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _held[folder] = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(_held[folder], fcntl.LOCK_EX)
    return folder


def remove(folder: Path) -> None:
    """Remove a work folder, unless $GROUNDPLANE_KEEP asks to keep it."""
    if (held := _held.pop(folder, None)) is not None:
        os.close(held)
    if not os.environ.get(KEEP_VARIABLE):
        shutil.rmtree(folder, ignore_errors=True)


def cgroup(folder: Path) -> str:
    """The cgroup below which the nodes of the cluster in this folder are."""
    return f"{CGROUP}/{os.getpid()}-{folder.name}"


def remove_leftovers() -> None:
    """Remove the folders and cgroups of clusters whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        if not _in_use(folder):
            remove(folder)
    with contextlib.suppress(OSError):  # no cgroups here: then there are none of ours
        for hierarchy in cgroups.hierarchies():
            for group in hierarchy.glob(f"{CGROUP.strip('/')}/*/"):
                if not Path(f"/proc/{group.name.partition('-')[0]}").exists():
                    cgroups.remove(f"{CGROUP}/{group.name}", patience_s=0)


def _in_use(folder: Path) -> bool:
    """Whether a process holds the lock; a folder that is just being made, or not ours to open, counts as in use."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
