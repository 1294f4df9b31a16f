"""Unix sockets at long paths: an address has room for 107 bytes, which a folder of the lab or of a test may exceed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_ADDRESS: Final = 107
"""Bytes of the longest path that is an address by itself (`sun_path`, without the NUL at its end)."""


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """An address for the socket at a path, good while the context is open; a long one leads through its open folder.

    Raises:
        OSError: the folder cannot be opened.
    """
    if len(os.fsencode(path)) <= MAX_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
