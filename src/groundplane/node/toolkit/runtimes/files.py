"""Configuration files of the container runtime: read whole and strictly, written in one step or not at all.

A link is followed and stays; mode, owner and extended attributes (SELinux' label) are kept. Every error names the file
and says what to do. What the text means is left to `documents`.
"""

import codecs
import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from ...hostroot import write_atomic
from ...process import Process
from ..settings import RuntimeConfigError

NEW_MODE: Final = 0o644
MAX_SIZE: Final = 4 << 20
"""Bytes of the largest file that is taken for a configuration."""
_REMEDIES: Final = {
    errno.EROFS: "it is on a read-only file system: mount it writable, or use the NRI plugin, which needs no such file",
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EACCES: "give this program the right to write there",
    errno.EPERM: "the file or its folder may not be changed (is it immutable, chattr +i?)",
    errno.ENOTDIR: "a part of its path is a file: name another path",
}


class Found(msgspec.Struct, frozen=True):
    """A configuration file as it is: its path, the real one behind it, and its text; None if it does not exist."""

    path: str
    real: Path
    text: str | None


def read(process: Process, path: str) -> Found:
    """Read a file; one that does not exist has no text. RuntimeConfigError if it is no UTF-8 text file."""
    try:
        real = process.path(path)
        folder, _, name = path.rstrip("/").rpartition("/")
        if not os.path.lexists(real) and (process.path(folder or "/") / name).is_symlink():
            target = (process.path(folder or "/") / name).readlink()
            raise RuntimeConfigError(
                f"{path} is a symbolic link to {target}, which does not exist here: "
                f"give the path of the file itself as the runtime's configuration file"
            )
        if real.is_dir():
            raise RuntimeConfigError(f"{path} is a folder: give the path of the runtime's configuration file")
        if real.exists() and not real.is_file():
            raise RuntimeConfigError(f"{path} is not a regular file: give the path of a configuration file")
        data = content(real, MAX_SIZE + 1)
        if len(data) > MAX_SIZE:
            raise RuntimeConfigError(
                f"{path} is longer than {MAX_SIZE >> 20} MiB, which no configuration is: is it the right file?"
            )
    except (FileNotFoundError, NotADirectoryError):
        return Found(path, real, None)
    except OSError as error:
        raise RuntimeConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    return Found(path, real, _decoded(data, path))


def content(real: Path, most: int = -1) -> bytes:
    """A regular file's content, or its beginning; nothing is waited for. OSError."""
    handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(real))
        data: bytes | None = file.read(most)
    if data is None:  # a file of the kernel's, which has something to say only later
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(real))
    return data


def _decoded(data: bytes, path: str) -> str:
    if data.startswith(codecs.BOM_UTF8):
        raise RuntimeConfigError(f"{path} begins with a byte order mark, which the runtime cannot read: take it out")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RuntimeConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None


def write(process: Process, found: Found, text: str | None) -> None:
    """Replace a file that was read, make it, or (None) remove it. RuntimeConfigError; the file is whole then."""
    try:
        if text is None:
            found.real.unlink(missing_ok=True)
            return
        found.real.parent.mkdir(parents=True, exist_ok=True)
        replace(process, found.real, text)
    except OSError as error:
        raise RuntimeConfigError(_failure(found.path, "removed" if text is None else "written", error)) from None


def _failure(path: str, what: str, error: OSError) -> str:
    remedy = _REMEDIES.get(error.errno or 0, "see to it and try again")
    return f"{path} cannot be {what}: {error.strerror or error}; it is as it was. {remedy[:1].upper()}{remedy[1:]}"


def replace(process: Process, real: Path, text: str) -> None:
    """Replace a file in one step, with the mode, owner and attributes of the one that is there. OSError."""
    try:
        status = real.stat()
    except FileNotFoundError:
        write_atomic(real, text, mode=NEW_MODE, durable=process.kernel.durable)
        return

    def finish(made: Path) -> None:
        made_status = made.stat()
        if (made_status.st_uid, made_status.st_gid) != (status.st_uid, status.st_gid):
            os.chown(made, status.st_uid, status.st_gid)
            made.chmod(status.st_mode & 0o7777)
        for name in os.listxattr(real):
            with contextlib.suppress(OSError):  # attributes that the kernel alone sets
                os.setxattr(made, name, os.getxattr(real, name))

    mode = status.st_mode & 0o7777
    write_atomic(real, text, mode=mode, durable=process.kernel.durable, finish=finish)


def remove_empty(folder: str) -> None:
    """Remove a folder, a real path, unless something is in it or it cannot be removed."""
    with contextlib.suppress(OSError):
        Path(folder).rmdir()
