"""Follow a log file that somebody else writes, from its beginning, and print it.

The writer keeps its file open, which inotify tells nothing of but by an event for each write; so the file is looked at
once a second.
"""

import codecs
import os
from pathlib import Path
from typing import BinaryIO, Final

from ..process import Process

EVERY_S: Final = 1.0
_CHUNK: Final = 1 << 20


class Tail:
    """One file, that need not be there yet; one that is replaced or cut short is read from its beginning."""

    def __init__(self, process: Process, path: Path) -> None:
        self._process = process
        self._path = path
        self._inode = 0
        self._offset = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    async def run(self) -> None:
        """Print what is there and what comes, until cancelled."""
        while True:
            self.catch_up()
            await self._process.sleep(EVERY_S)

    def catch_up(self) -> None:
        """Print what has come since the last time."""
        try:
            with self._path.open("rb") as file:
                self._read(file)
        except FileNotFoundError:
            return
        except OSError as error:
            self._process.log.warning(f"{self._path}: {error.strerror or error}")

    def _read(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset = status.st_ino, 0
        file.seek(self._offset)
        while data := file.read(_CHUNK):
            self._offset += len(data)
            self._process.out(self._decode(data))
