"""HostRoot: host paths never leave the root, whatever the links and dots."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node import hostroot

PARTS = st.sampled_from(["a", "b", "up", "abs", "loop", "..", ".", "", "missing"])


@pytest.fixture(scope="module")
def tree() -> "os.PathLike[str]":
    folder = Path(tempfile.mkdtemp(prefix="gp-"))
    base = folder / "root"
    (base / "a" / "b").mkdir(parents=True)
    (base / "up").symlink_to("../../../..")
    (base / "a" / "abs").symlink_to("/a/b")
    (base / "abs").symlink_to(str(folder))
    (base / "loop").symlink_to("loop")
    return base


@given(parts=st.lists(PARTS, max_size=8), absolute=st.booleans(), follow=st.booleans())
def test_never_escapes(tree: Path, parts: list[str], absolute: bool, follow: bool) -> None:
    root = hostroot.HostRoot(tree)
    path = ("/" if absolute else "") + "/".join(parts)
    try:
        real = root.path(path, follow=follow)
    except hostroot.HostPathError as error:
        assert "loop" in path
        assert "loop" in str(error)
        return
    assert real == root.base or root.base in real.parents
    if follow:
        assert Path(os.path.realpath(real)).is_relative_to(root.base)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("../../etc/passwd", "/etc/passwd"),
        ("/a/abs/c", "/a/b/c"),
        ("/up/a", "/a"),
        ("a/./b//x", "/a/b/x"),
    ],
)
def test_resolution(tree: Path, path: str, expected: str) -> None:
    root = hostroot.HostRoot(tree)
    assert root.host_path(root.path(path)) == expected


def test_last_link_is_kept_without_follow(tree: Path) -> None:
    root = hostroot.HostRoot(tree)
    assert root.host_path(root.path("/a/abs", follow=False)) == "/a/abs"


def test_link_loop_and_nul_are_refused(tree: Path) -> None:
    root = hostroot.HostRoot(tree)
    with pytest.raises(hostroot.HostPathError, match="symbolic links"):
        root.path("/loop")
    with pytest.raises(hostroot.HostPathError, match="NUL"):
        root.path("/a\0b")


def test_write_is_atomic_and_sets_the_mode(tmp_path: Path) -> None:
    root = hostroot.HostRoot(tmp_path)
    real = root.write_atomic("/etc/deep/file.conf", "one\n")
    root.write_atomic("/etc/deep/file.conf", b"two\n", mode=0o600)
    assert root.read_text("/etc/deep/file.conf") == "two\n"
    assert real.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in real.parent.iterdir()] == ["file.conf"]


def test_remove(tmp_path: Path) -> None:
    root = hostroot.HostRoot(tmp_path)
    root.write_atomic("/run/x/file", "")
    root.symlink("/link", "/run/x")
    assert root.remove("/link")
    assert root.exists("/run/x/file")
    assert root.remove("/run")
    assert not root.remove("/run")
    with pytest.raises(hostroot.HostPathError, match="whole host root"):
        root.remove("/")


def test_glob_within_components(tmp_path: Path) -> None:
    root = hostroot.HostRoot(tmp_path)
    for name in ("/run/v/a-ready", "/run/v/b-ready", "/run/v/.hidden-ready", "/run/w/c-ready"):
        root.write_atomic(name, "")
    assert root.glob("/run/v/*-ready") == ["/run/v/a-ready", "/run/v/b-ready"]
    assert root.glob("/run/*/c-*") == ["/run/w/c-ready"]
    assert root.glob("/nothing/*") == []
