"""Files that generators read: a library's ELF headers, the loader's cache."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.cdi.loadercache import AARCH64, I386, X86_64, cache

from groundplane.node.cdi import elf, ldcache
from testing.driverroots import elf as made


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-glcore.so.580.95.05", ""])
def test_a_library_tells_its_soname_and_machine(tmp_path: Path, soname: str, machine: str) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(made.library(soname, machine))
    assert elf.read(path) == elf.Library(soname, machine)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
@pytest.mark.parametrize("flags", [[], ["-Wl,-soname,libx.so.7"], ["-Wl,-z,norelro", "-Wl,-soname,libx.so.7"]])
def test_a_compiled_library_is_read_as_binutils_read_it(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "x.so"
    command = ["gcc", "-shared", "-x", "c", "/dev/null", *flags, "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    found = elf.read(path)
    assert found is not None
    assert found.soname == ("libx.so.7" if flags else "")


@pytest.mark.parametrize(
    "content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01", b"\x7fELF\x09\x09" + bytes(80)]
)
def test_what_is_no_library_tells_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    assert elf.read(path) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", ".", "a\nb", "x" * 300])
def test_a_name_that_is_no_files_name_is_no_soname(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(made.library(name))
    assert elf.read(path) == elf.Library("", "x86_64")


_WHOLE = made.library("libcuda.so.1")


@given(
    changes=st.lists(st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)), max_size=8), cut=st.integers(0)
)
def test_a_damaged_library_is_read_or_not_but_never_a_failure(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(_WHOLE)
    for at, value in changes:
        content[at] = value
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(bytes(content[: len(content) - cut % len(content)]))
    found = elf.read(path)
    assert found is None or "/" not in found.soname


# --- the loader's cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [None, 0, 1, 2, 3])
def test_64_bit_libraries_are_listed_once_in_order(old: int | None) -> None:
    data = cache(
        (X86_64, "/usr/lib/libb.so.1"),
        (I386, "/usr/lib32/libb.so.1"),
        (AARCH64, "/usr/lib/liba.so"),
        (0x0300, "/no/elf"),
        (X86_64, "/usr/lib/libb.so.1"),
        old=old,
    )
    assert ldcache.libraries(data) == ("/usr/lib/libb.so.1", "/usr/lib/liba.so")


@pytest.mark.skipif(shutil.which("ldconfig") is None, reason="no ldconfig")
def test_the_cache_that_ldconfig_writes_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libcuda.so.580.1").write_bytes(made.library("libcuda.so.1"))
    subprocess.run(["ldconfig", "-C", str(tmp_path / "cache"), "-f", "/dev/null", str(folder)], check=True)
    found = ldcache.libraries((tmp_path / "cache").read_bytes())
    assert f"{folder}/libcuda.so.1" in found


@pytest.mark.parametrize(
    "data", [b"", b"x" * 100, b"ld.so-1.7.0\0", cache((X86_64, "/a"))[:60], cache((X86_64, "/a"))[:30]]
)
def test_what_is_no_cache_is_an_error(data: bytes) -> None:
    with pytest.raises(ldcache.LdCacheError):
        ldcache.libraries(data)


@given(data=st.binary(max_size=200))
def test_any_content_is_a_cache_or_that_error(data: bytes) -> None:
    for content in (data, b"glibc-ld.so.cache1.1" + data, b"ld.so-1.7.0\0" + data):
        with contextlib.suppress(ldcache.LdCacheError):
            assert all(path.startswith("/") for path in ldcache.libraries(content))
