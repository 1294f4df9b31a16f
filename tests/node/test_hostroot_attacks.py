"""Writing a file in one step: what others see of it meanwhile."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from groundplane.node import hostroot


@pytest.mark.parametrize("nameless", [True, False])
def test_a_file_has_no_name_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, nameless: bool
) -> None:
    """A runtime may read whatever is in a folder of its configurations."""
    seen: list[list[str]] = []
    texts: list[str] = []
    real_fsync, real_open = os.fsync, os.open

    def fsync(handle: int) -> None:
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
        real_fsync(handle)

    def no_tmpfile(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no such thing here")
        return real_open(path, flags, *rest, **more)

    (tmp_path / "file.conf").write_text("old")
    monkeypatch.setattr(os, "fsync", fsync)
    if not nameless:
        monkeypatch.setattr(os, "open", no_tmpfile)
    hostroot.write_atomic(tmp_path / "file.conf", "new", mode=0o640, finish=lambda made: texts.append(made.read_text()))
    assert texts == ["new"]
    assert len(seen[0]) == (1 if nameless else 2)
    assert [path.name for path in tmp_path.iterdir()] == ["file.conf"]
    assert (tmp_path / "file.conf").read_text() == "new"
    assert (tmp_path / "file.conf").stat().st_mode & 0o7777 == 0o640


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(made: Path) -> None:
        raise OSError(errno.EPERM, "no", str(made))

    (tmp_path / "file.conf").write_text("old")
    with pytest.raises(OSError, match="no"):
        hostroot.write_atomic(tmp_path / "file.conf", "new", finish=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["file.conf"]
    assert (tmp_path / "file.conf").read_text() == "old"
