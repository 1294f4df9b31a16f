"""The driver container's lock: at most one instance works on a node.

It is a lock of the kernel on the file with the instance's number, and a row of the simulated `/proc/locks`, where a
stale process of the host shows too. Source: contracts/driver-lifecycle.md 6.3, step 1.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Final

from ...api import names
from ..programs import ContainerContext

LOCKS: Final = "/proc/locks"
FIRST_PID: Final = 1
"""What a container's main program is called in its own PID namespace."""


class LockedError(RuntimeError):
    """Another instance has the lock."""


def row(pid: int, inode: int) -> str:
    """A held lock as the kernel lists it."""
    return f"1: FLOCK  ADVISORY  WRITE {pid} 00:17:{inode} 0 EOF"


@contextlib.contextmanager
def held(ctx: ContainerContext, pid: int = FIRST_PID) -> Iterator[None]:
    """Hold the lock inside the block. Raises :class:`LockedError`."""
    file = ctx.path(names.DRIVER_PID_FILE)
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError from None
        if _listed(ctx, os.fstat(handle).st_ino):
            raise LockedError
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{pid}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _listed(ctx: ContainerContext, inode: int) -> bool:
    root = ctx.host.root
    lines = root.read_text(LOCKS).splitlines() if root.exists(LOCKS) else []
    return any(line.split()[5].rpartition(":")[2] == str(inode) for line in lines)
