"""What a shared library says of itself: the name that it is loaded by, and the machine it is for.

Only that is read, and little of the file. What a library's other names are, and where it is mounted, is decided
elsewhere.
"""

import io
import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_MAGIC: Final = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MACHINES: Final = {62: "x86_64", 183: "aarch64"}
_MAX_HEADERS: Final = 1 << 12
_MAX_DYNAMIC: Final = 1 << 20
_MAX_NAME: Final = 255


class _Layout(NamedTuple):
    """Where things are in a file of one class: header, program header and dynamic entry, as :mod:`struct` has them.

    Of the header: offset, size and number of program headers; of a program header: type, offset, address, file size.
    """

    header: str
    program: str
    program_fields: tuple[int, int, int, int]
    dynamic: str


_LAYOUTS: Final = {
    1: _Layout("16xHHIIIIIHHH", "IIIIIIII", (0, 1, 2, 4), "iI"),
    2: _Layout("16xHHIQQQIHHH", "IIQQQQQQ", (0, 2, 3, 5), "qQ"),
}
_ORDERS: Final = {1: "<", 2: ">"}


class _Segment(NamedTuple):
    type: int
    offset: int
    address: int
    size: int


class Library(NamedTuple):
    """A library. ``soname`` is empty if it has none that could be a file's name; ``machine`` as ``uname -m`` has it,
    empty for others than x86_64 and aarch64."""

    soname: str
    machine: str


def read(path: Path) -> Library | None:
    """What a library says of itself; None if it is no whole ELF file (a pipe is not waited for). Raises OSError."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            return _read(file) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (struct.error, LookupError, ValueError):
        return None


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _read(file: BinaryIO) -> Library | None:
    start = file.read(64)
    if start[:4] != _MAGIC:
        return None
    layout, order = _LAYOUTS[start[4]], _ORDERS[start[5]]
    (machine,) = struct.unpack_from(f"{order}18xH", start)
    return Library(_soname(file, start, layout, order), _MACHINES.get(machine, ""))


def _soname(file: BinaryIO, start: bytes, layout: _Layout, order: str) -> str:
    segments = _segments(file, start, layout, order)
    dynamic = next((each for each in segments if each.type == _PT_DYNAMIC), None)
    if dynamic is None:
        return ""
    strings, name = _dynamic(file, dynamic, order + layout.dynamic)
    if name is None:
        return ""
    text, end, _ = _piece(file, _offset(segments, strings) + name, _MAX_NAME + 1).partition(b"\0")
    found = text.decode() if end else ""
    return found if found.isprintable() and "/" not in found and found not in (".", "..") else ""


def _segments(file: BinaryIO, start: bytes, layout: _Layout, order: str) -> list[_Segment]:
    *_, offset, _sections, _flags, _size, entry, number = struct.unpack_from(order + layout.header, start)
    if number > _MAX_HEADERS:
        raise ValueError("too many program headers")
    table = _piece(file, offset, entry * number)
    rows = (struct.unpack_from(order + layout.program, table, entry * index) for index in range(number))
    return [_Segment(*(row[field] for field in layout.program_fields)) for row in rows]


def _dynamic(file: BinaryIO, segment: _Segment, form: str) -> tuple[int, int | None]:
    """The address of the strings, and where among them the name is."""
    data = _piece(file, segment.offset, min(segment.size, _MAX_DYNAMIC))
    found: dict[int, int] = {}
    for tag, value in struct.iter_unpack(form, data[: len(data) // struct.calcsize(form) * struct.calcsize(form)]):
        if tag == _DT_NULL:
            break
        found.setdefault(tag, value)
    return found.get(_DT_STRTAB, 0), found.get(_DT_SONAME)


def _offset(segments: list[_Segment], address: int) -> int:
    for each in segments:
        if each.type == _PT_LOAD and each.address <= address < each.address + each.size:
            return address - each.address + each.offset
    raise ValueError("the strings are in no segment")


def _piece(file: BinaryIO, offset: int, size: int) -> bytes:
    if offset > file.seek(0, io.SEEK_END):
        raise ValueError("a table is behind the end of the file")
    file.seek(offset)
    return file.read(size)
