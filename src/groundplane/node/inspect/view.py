"""How the inspection reads: files of the node below its root, of bounded size, whatever is in them.

A file that is not there says nothing; one that is there and cannot be read is told in :attr:`View.missing`. The node's
``/proc`` and ``/sys`` are those below its root, else those that the container itself shows: the kernel is the same.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..hostroot import HostPathError, HostRoot

LIMIT: Final = 1 << 20
"""Bytes that are read of a file unless more is asked for."""
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ESRCH})


class View:
    """One look at one node: where its files are, what was found, and what could not be looked at.

    ``host`` is None in a container that has not got the node's root; then only the kernel is seen.
    """

    def __init__(self, host: HostRoot | None, kernel: HostRoot) -> None:
        self.host = host
        self.kernel = host if host is not None and host.is_dir("/proc") and host.is_dir("/sys/bus") else kernel
        self.facts: dict[str, Any] = {}
        self.missing: dict[str, str] = {}

    def tell(self, fact: str, value: Any) -> None:
        """A fact; None says that there is nothing to tell."""
        if value is not None:
            self.facts[fact] = value

    def lacks(self, what: str, why: str) -> None:
        """Something could not be looked at; the first reason counts."""
        self.missing.setdefault(what, why)

    def text(self, path: str, *, limit: int = LIMIT) -> str | None:
        """A file of the node; None if there is none, or it cannot be read (which is told)."""
        if self.host is None:
            return None
        return _decoded(self.data(self.host, path, limit=limit))

    def of_kernel(self, path: str, *, limit: int = LIMIT) -> str | None:
        """A file of ``/proc`` or ``/sys``, without space around it."""
        found = _decoded(self.data(self.kernel, path, limit=limit))
        return found.strip() if found is not None else None

    def data(self, root: HostRoot, path: str, *, limit: int = LIMIT) -> bytes | None:
        """The bytes of a regular file, as many as are wanted; None as for :meth:`text`."""
        try:
            return content(root.path(path), limit)
        except OSError as error:
            if error.errno not in _ABSENT:
                self.lacks(path, error.strerror or str(error))
            return None

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder on the node."""
        try:
            return self.host is not None and self.host.exists(path)
        except OSError as error:
            self.lacks(path, error.strerror or str(error))
            return False

    def files(self, pattern: str) -> list[str]:
        """Those of :meth:`glob` that are regular files, which can be opened without waiting for anybody."""
        return [path for path in self.glob(pattern) if self.host is not None and self.host.is_file(path)]

    def glob(self, pattern: str) -> list[str]:
        """The node's paths that match a pattern; none where a folder cannot be read (which is told)."""
        if self.host is None:
            return []
        try:
            return self.host.glob(pattern)
        except OSError as error:
            self.lacks(pattern, error.strerror or str(error))
            return []

    def names(self, folder: str) -> list[str] | None:
        """What a folder holds; None if there is none, or it cannot be read (which is told)."""
        if self.host is None:
            return None
        try:
            return sorted(entry.name for entry in self.host.path(folder).iterdir())
        except OSError as error:
            if error.errno not in _ABSENT:
                self.lacks(folder, error.strerror or str(error))
            return None

    def lines(self, pattern: str) -> Iterator[tuple[str, str]]:
        """(path, line) of the files that match, without comments and empty lines."""
        for path in self.glob(pattern):
            for line in (self.text(path) or "").splitlines():
                if (words := line.partition("#")[0].strip()) and not words.startswith("//"):
                    yield path, words

    def link(self, path: str) -> str | None:
        """What a symbolic link points to; None if there is none."""
        if self.host is None:
            return None
        try:
            return str(self.host.path(path, follow=False).readlink())
        except (OSError, HostPathError):
            return None

    def modified(self, path: str) -> float | None:
        """When a file was last written, in seconds since 1970; None if there is none."""
        if self.host is None:
            return None
        try:
            return self.host.path(path).stat().st_mtime
        except OSError:
            return None


def content(real: Path, limit: int = LIMIT) -> bytes:
    """The first bytes of a file, without waiting for a pipe or a device. Raises OSError; EINVAL if it is no file."""
    handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        found = bytearray()
        while len(found) < limit and (piece := os.read(handle, min(limit - len(found), 1 << 20))):
            found += piece
        return bytes(found)
    finally:
        os.close(handle)


def _decoded(data: bytes | None) -> str | None:
    return data.decode("utf-8", "replace").replace("\0", "") if data is not None else None
