"""Commands on the host, run below its root with ``chroot``; none may go on for ever."""

import errno
from collections.abc import Mapping, Sequence
from typing import Final

from ...hostroot import HostRoot
from ...process import Completed, Process
from ..hooks import LIMIT_S, within
from .errors import ManagerError

_NOT_IGNORED: Final = {"SYSTEMD_IGNORE_CHROOT": "1"}
"""Keeps systemctl from doing nothing, with exit status 0, where it takes the host's root for a chroot."""


class Host:
    """The host: its files, and its commands."""

    def __init__(self, process: Process, root: str) -> None:
        self._process = process
        self._root = root
        self.log = process.log

    @property
    def files(self) -> HostRoot:
        """The host's file system."""
        return HostRoot(self._process.path(self._root))

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Replace a file of the host. Raises :class:`~.errors.ManagerError`, and the file is as it was then."""
        try:
            self.files.write_atomic(path, text, mode=mode)
        except OSError as error:
            where = f"{self._root.rstrip('/')}{path}"
            raise ManagerError(
                f"{where} cannot be written, and is as it was: {error.strerror or error}; is its file system full, or "
                "mounted read-only?"
            ) from error

    async def run(self, *argv: str) -> str:
        """Run a command of the host's systemd; what it printed. Raises :class:`~.errors.ManagerError`."""
        return await command(self._process, self._root, argv, _NOT_IGNORED)


async def command(process: Process, root: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run a command below a root (``/`` and none: right here); what it printed.

    Raises :class:`~.errors.ManagerError` if it fails, is not there, or has not ended after 600 s.
    """
    shown = " ".join(argv)
    chroot = () if root in ("", "/") else ("chroot", root)
    where = f" (below {root})" if chroot else ""
    try:
        done: Completed | None = await within(process, LIMIT_S, process.execute((*chroot, *argv), env=env))
    except OSError as error:
        reason = "it is not there" if error.errno == errno.ENOENT else error.strerror or error
        raise ManagerError(f"{shown}{where} cannot be run: {error.filename or argv[0]}: {reason}") from error
    if done is None:
        raise ManagerError(
            f"{shown}{where} was ended after {LIMIT_S:g} s; does it wait for something that waits for us?"
        )
    if done.code:
        printed = (done.out + done.err).strip()
        raise ManagerError(f"{shown}{where}: exit status {done.code}{f': {printed}' if printed else ''}")
    return done.out
