"""The toolkit's pid file: whoever holds its lock is the one toolkit of this node (contracts/toolkit-cdi.md 4.4.1).

The file is opened as it is and written only once its lock is held, so that a second toolkit leaves the first one's
number alone. Who ends removes the file while it still holds the lock, and who gets a lock looks whether its file is
still the one at the path: a lock on a removed file is none.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MAX_TRIES: Final = 100
_BUSY: Final = frozenset({errno.EAGAIN, errno.EACCES})


class LockError(RuntimeError):
    """There is another toolkit, or the pid file cannot be made."""


@contextlib.contextmanager
def held(path: Path, shown: str) -> Iterator[None]:
    """Hold the pid file for as long as the block lasts; then it is gone. ``shown`` is its path as a person knows it.

    Raises :class:`LockError`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(path)
    except BlockingIOError:
        raise LockError(
            f"unable to get flock on pidfile {shown}: an instance of the NVIDIA toolkit container is already running "
            f"on this node{_whose(path)}; end it first"
        ) from None
    except OSError as error:
        raise LockError(f"unable to create pidfile {shown}: {error.strerror or error}") from None
    try:
        _write(handle, shown)
        yield
    finally:
        with contextlib.suppress(OSError):  # a file that stays, on a disk that has become read-only, locks nobody out
            path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path) -> int:
    """A handle of the file that is at the path, locked. BlockingIOError if another has the lock."""
    for _ in range(_MAX_TRIES):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):  # such as the null device behind a link: it must stay
                raise OSError(errno.EINVAL, "there is something that is not a regular file; give another path")
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, path):
                return handle
        except OSError as error:
            os.close(handle)
            if error.errno in _BUSY:
                raise BlockingIOError from error
            raise
        os.close(handle)
    raise OSError(f"the file was replaced {_MAX_TRIES} times while its lock was asked for")


def _write(handle: int, shown: str) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise LockError(f"unable to write PID to pidfile {shown}: {error.strerror or error}") from None


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _whose(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return f" (process {text})" if text.isdecimal() else ""
