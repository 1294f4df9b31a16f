"""Files of a driver root that mean harm: a pipe in place of a library, a cache of the loader that is none."""

import os
import struct
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.cdi import drivers, elf, ldcache
from groundplane.node.cdi.options import Mode, Wanted
from groundplane.node.cdi.roots import Roots


def test_a_pipe_is_no_library_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libcuda.so.1")
    assert elf.read(tmp_path / "libcuda.so.1") is None


def cache(*paths: bytes, number: int | None = None) -> bytes:
    count = len(paths) if number is None else number
    header = struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", count, 0)
    place, entries = 48 + 24 * len(paths), b""
    for path in paths:
        entries += struct.pack("<iIIIQ", 0x0303, place, place, 0, 0)
        place += len(path) + 1
    return header + entries + b"".join(path + b"\0" for path in paths)


def test_endless_names_are_no_paths() -> None:
    assert ldcache.libraries(cache(b"/" + b"x" * (1 << 20), b"/lib/a.so")) == ("/lib/a.so",)


@pytest.mark.parametrize("kind", ["pipe", "folder", "long", "loop", "entries", "nowhere"])
def test_a_cache_that_is_none_is_told_of(tmp_path: Path, kind: str) -> None:
    process = FakeProcess(tmp_path, ("nvidia-ctk",), {})
    place = process.root.mkdir("/etc") / "ld.so.cache"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "long":
        place.write_bytes(b"")
        os.truncate(place, ldcache.MAX_SIZE + 1)
    elif kind == "loop":
        place.symlink_to("ld.so.cache")
    elif kind == "entries":
        process.root.symlink("/loop", "loop")
        place.write_bytes(cache(b"/loop/libcuda.so.1", b"/gone/libcuda.so.1", b"/" + b"y" * 300 + b"/libcuda.so.1"))
    else:
        place.write_bytes(cache(b"/lib/libcuda.so.1", number=1 << 31))
    found = drivers.DriverFiles(process, Wanted(mode=Mode.NVML, roots=Roots.of("/")))
    assert found.libraries("libcuda.so.1") == []
    assert "ld.so.cache" in process.stderr


def test_names_that_are_no_text_and_links_in_a_ring_are_left_out(tmp_path: Path) -> None:
    process = FakeProcess(tmp_path, ("nvidia-ctk",), {})
    folder = process.root.mkdir("/usr/lib64")
    (folder / "libnvidia-a.so.1").write_bytes(b"")
    (folder / os.fsdecode(b"libnvidia-\xff.so.1")).write_bytes(b"")
    (folder / "libnvidia-ring.so.1").symlink_to("libnvidia-ring.so.1")
    (folder / "libnvidia-b.so.1").symlink_to("libnvidia-a.so.1")
    found = drivers.DriverFiles(process, Wanted(mode=Mode.NVML, roots=Roots.of("/")))
    assert found.libraries("libnvidia-*.so.1") == ["/usr/lib64/libnvidia-a.so.1"]
    assert list(found.links("/usr/lib64")) == [("libnvidia-b.so.1", "/usr/lib64/libnvidia-a.so.1")]
    assert "/usr/lib64/libnvidia-?.so.1 is left out: its name is not UTF-8 text" in process.stderr
    assert "/usr/lib64/libnvidia-ring.so.1 is left out" in process.stderr
