"""Byte code made beforehand: the image's root is read-only, and a program that starts should not compile.

The image's own interpreter compiles. The files are of the unchecked kind (PEP 552): they depend on the source's text
alone, so they are the same in each build, and nothing compares times at start-up.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .interpreter import Interpreter

_PROCESSES = 4
"""How many processes share the work, whatever the machine has: it decides the result."""


def compile_tree(python: Interpreter, folders: Iterable[Path], root: Path) -> None:
    """Compile what lies in some folders below `root`; files name their sources by the path they have in the image.

    Which files a process compiles, and in which order, depends on the folders alone, as byte code may depend on it.
    """
    entries = [entry for folder in folders for entry in sorted(folder.iterdir()) if _is_source(entry)]
    shares = [share for number in range(_PROCESSES) if (share := entries[number::_PROCESSES])]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(lambda share: _compile(python, share, root), shares))


def _is_source(entry: Path) -> bool:
    return entry.suffix == ".py" or (entry.is_dir() and entry.name != "__pycache__" and any(entry.rglob("*.py")))


def _compile(python: Interpreter, entries: Sequence[Path], root: Path) -> None:
    python.run(
        "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/", *entries,
        what=f"compiling {entries[0].relative_to(root)} and {len(entries) - 1} others",
    )  # fmt: skip
