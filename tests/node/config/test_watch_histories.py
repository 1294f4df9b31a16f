"""Whatever happens to a watched path, its reader is told to look (contract 3, last paragraph)."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groundplane.node import watch

FOLDERS = ("a", "a/b", "a/b/c", "x", "x/c", "link", "link/c")
FILES = ("a/b/c/f", "a/b/c/g", "x/c/f", "x/c/g", "a/b/f")
FREE = ("y", "a/z", "x/y")
"""Names that nothing has at first, so that renaming to them succeeds."""
MOVES = st.tuples(st.sampled_from(FOLDERS + FILES + FREE), st.sampled_from(FOLDERS + FILES + FREE + FREE))
START = (
    *(("mkdir", "a/b/c"), ("mkdir", "x/c"), ("write", "a/b/c/f"), ("write", "x/c/f"), ("write", "x/c/g")),
    ("link", ("link", "a/b")),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("mkdir"), st.sampled_from(FOLDERS)),
        st.tuples(st.just("remove"), st.sampled_from(FOLDERS + FILES)),
        st.tuples(st.just("write"), st.sampled_from(FILES)),
        st.tuples(st.just("move"), MOVES),
        st.tuples(st.just("move"), st.tuples(st.sampled_from(FOLDERS), st.sampled_from(FREE))),
        st.tuples(st.just("move"), st.tuples(st.sampled_from(FREE), st.sampled_from(FOLDERS))),
        st.tuples(st.just("link"), st.sampled_from((("a/b", "../x"), ("link", "a/b"), ("link", "x"), ("a", "x")))),
        st.tuples(st.just("wait"), st.just("")),
    ),
    max_size=12,
)


def do(root: Path, what: str, where: str | tuple[str, str], number: int) -> None:
    """A step of a history; one that the file system refuses does nothing."""
    first = root / (where if isinstance(where, str) else where[0])
    try:
        if what == "mkdir":
            first.mkdir(parents=True)
        elif what == "remove":
            shutil.rmtree(first) if first.is_dir() and not first.is_symlink() else first.unlink()
        elif what == "write":
            first.write_text(str(number))
        elif what == "move":
            first.rename(root / where[1])
        elif what == "link":
            new = root / "new"
            new.symlink_to(where[1])
            new.replace(first)
    except OSError:
        (root / "new").unlink(missing_ok=True)


def look(path: Path) -> dict[str, str] | str | None:
    """What a reader cares for."""
    try:
        if path.is_dir():
            return {each.name: each.read_text() if each.is_file() else "" for each in path.iterdir()}
        return path.read_text()
    except OSError:
        return None


async def follow(changes: watch.Changes, path: Path, seen: list[object]) -> None:
    async for _ in changes:
        seen[0] = look(path)


async def history(steps: list[tuple[str, str]], watched: str) -> None:
    root = Path(tempfile.mkdtemp(prefix="gpw"))
    path = root / watched
    for number, (what, where) in enumerate(START):
        do(root, what, where, -number)
    try:
        async with watch.paths(path) as changes:
            assert not changes.polled
            seen: list[object] = [look(path)]
            reader = asyncio.ensure_future(follow(changes, path, seen))
            for number, (what, where) in enumerate(steps):
                do(root, what, where, number)
                if what == "wait":
                    await asyncio.sleep(0.001)
            deadline = asyncio.get_running_loop().time() + 10
            while seen[0] != (now := look(path)):
                assert asyncio.get_running_loop().time() < deadline, f"saw {seen[0]}, there is {now}"
                await asyncio.sleep(0.001)
            reader.cancel()
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("watched", ["a/b/c", "a/b/c/f", "link/c", "link"])
@settings(max_examples=60, deadline=None)
@example(steps=[("move", ("a", "y"))])
@example(steps=[("move", ("a/b", "y"))])
@example(steps=[("move", ("a", "y")), ("wait", ""), ("move", ("y", "a")), ("wait", ""), ("write", "a/b/c/g")])
@example(steps=[("remove", "a"), ("wait", ""), ("mkdir", "a/b/c"), ("write", "a/b/c/f")])
@example(steps=[("link", ("link", "x")), ("wait", ""), ("write", "x/c/g")])
@example(steps=[("remove", "link"), ("link", ("link", "a/b")), ("remove", "a/b/c/f")])
@given(steps=STEPS)
def test_what_was_seen_last_is_what_is_there(watched: str, steps: list[tuple[str, str]]) -> None:
    asyncio.run(history(steps, watched))
