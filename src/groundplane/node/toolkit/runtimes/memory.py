"""What was there before: a file in which the toolkit remembers the runtime's configuration as it found it.

It is written before the configuration is, so that a program that is killed at any point knows at its next start what is
its own. A file whose text is one that was written is as it was before, with what was remembered; one that a person has
changed meanwhile is that, less what was written. Paths are those that the process sees.
"""

from typing import Final

import msgspec

from ...process import Process
from ..settings import RuntimeConfigError
from . import files

VERSION: Final = 1


class Kept(msgspec.Struct, frozen=True):
    """A file: its text before (None: it did not exist), and what has been or may have been written, newest last."""

    before: str | None
    written: tuple[str, ...]


class State(msgspec.Struct, frozen=True):
    """All that is remembered. ``default`` is the runtime's default handler before."""

    version: int = VERSION
    runtime: str = ""
    default: str = ""
    files: dict[str, Kept] = {}
    folders: tuple[str, ...] = ()
    """Folders that were made, to be removed if they are empty."""


class Memory:
    """The state file; none is kept if its path is empty."""

    def __init__(self, process: Process, path: str) -> None:
        self._process = process
        self._path = path
        self.state: State | None = self._load()

    def _load(self) -> State | None:
        if not self._path:
            return None
        try:
            state = msgspec.json.decode(files.content(self._process.path(self._path)), type=State)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RuntimeConfigError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._process.log.warning(f"{self._path} is not what was written there, and is not used: {error}")
            return None
        if state.version != VERSION:
            self._process.log.warning(f"{self._path} is of another version ({state.version}), and is not used")
            return None
        return state

    def kept(self, path: str) -> Kept | None:
        """What is remembered of a file."""
        return self.state.files.get(path) if self.state else None

    def save(self, state: State) -> None:
        """Remember a state. RuntimeConfigError; what was remembered before is still there then."""
        if state == self.state:
            return
        if self._path:
            found = files.Found(self._path, self._process.path(self._path), None)
            files.write(self._process, found, msgspec.json.encode(state).decode())
        self.state = state

    def forget(self) -> None:
        """Remember nothing. RuntimeConfigError."""
        if self._path:
            files.write(self._process, files.Found(self._path, self._process.path(self._path), None), None)
        self.state = None
