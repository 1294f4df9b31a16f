"""Status files: what a component that was validated leaves behind, for the operands that wait for it.

contracts/mig-exporter-validator.md 6.2. A file is there only as long as its component's last validation was a success:
it is deleted before one begins, and made in one step after it. The folder may hold anybody's links; none is followed.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from ..hostroot import HostPathError, write_atomic
from ..process import Process
from .errors import ValidationError

WORKLOAD_TYPE: Final = "workload-type"
DRIVER_CONTAINER: Final = ".driver-ctr-ready"
"""The driver container's; it is read where that container writes it, wherever our own files are."""
CC_MANAGER_CONTAINER: Final = ".cc-manager-ctr-ready"

_REMEDIES: Final = {
    errno.ENOSPC: "make room on that file system",
    errno.EDQUOT: "make room on that file system",
    errno.EROFS: "mount the folder read-write",
    errno.EACCES: "run as uid 0, privileged where the host confines containers",
    errno.EPERM: "run as uid 0, privileged where the host confines containers",
    errno.ENOENT: "its parent folder must exist: mount it from the host",
    errno.ENOTDIR: "something else than a folder is on its path: remove that",
}


class StatusFiles:
    """The folder of the status files."""

    def __init__(self, process: Process, folder: str) -> None:
        self._process = process
        self._folder = folder

    def prepare(self, *, empty: bool) -> None:
        """Make the folder if it is missing, or empty it. Raises :class:`~.errors.ValidationError`."""
        real = self._real()
        if real == self._process.path("/"):
            raise ValidationError(
                f"{self._folder or '/'} is the whole file system; name a folder for status files in it"
            )
        try:
            real.mkdir(mode=0o755, exist_ok=True)
            for entry in list(real.iterdir()) if empty else ():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
        except OSError as error:
            raise _failed(f"prepare the folder of status files {self._folder}", error) from error

    def delete(self, *names: str) -> None:
        """Delete files, if they are there. Raises :class:`~.errors.ValidationError`."""
        for name in names:
            try:
                (self._real() / name).unlink(missing_ok=True)
            except OSError as error:
                raise _failed(f"delete status file {self._folder}/{name}", error) from error

    def write(self, name: str, content: str = "") -> None:
        """Make a file, in one step. Raises :class:`~.errors.ValidationError`."""
        try:
            write_atomic(self._real() / name, content, durable=self._process.kernel.durable)
        except OSError as error:
            raise _failed(f"write status file {self._folder}/{name}", error) from error

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return os.path.lexists(self._real() / name)

    def _real(self) -> Path:
        try:
            return self._process.path(self._folder)
        except HostPathError as error:
            raise ValidationError(f"the folder of status files cannot be found: {error}") from error


def _failed(what: str, error: OSError) -> ValidationError:
    remedy = _REMEDIES.get(error.errno or 0)
    return ValidationError(f"cannot {what}: {error.strerror or error}" + (f"; {remedy}" if remedy else ""))
