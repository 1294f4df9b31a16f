"""Byte code made beforehand: the image's root is read-only, and a program that starts should not compile.

The image's own interpreter compiles. The files are of the unchecked kind (PEP 552): they depend on the source's text
alone, so they are the same in each build, and nothing compares times at start-up.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .interpreter import Interpreter


def compile_tree(python: Interpreter, folders: Iterable[Path], root: Path) -> None:
    """Compile what lies in some folders below `root`; files name their sources by the path they have in the image.

    Each entry of a folder is compiled by a process of its own, so that what else is compiled cannot change the result.
    """
    chunks = [entry for folder in folders for entry in sorted(folder.iterdir()) if _is_source(entry)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(lambda entry: _compile(python, entry, root), chunks))


def _is_source(entry: Path) -> bool:
    return entry.suffix == ".py" or (entry.is_dir() and entry.name != "__pycache__" and any(entry.rglob("*.py")))


def _compile(python: Interpreter, entry: Path, root: Path) -> None:
    python.run(
        "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/", entry,
        what=f"compiling {entry.relative_to(root)}",
    )  # fmt: skip
