"""The smallest shared libraries that loaders and tools take for one: they have a SONAME, and no symbol."""

import struct
from typing import Final

_HEADER, _PROGRAM, _SECTION = 64, 56, 64
_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_STRTAB, _SHT_DYNAMIC = 3, 6
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_SYMBOL = 24
_SYMBOLS: Final = bytes(_SYMBOL) + struct.pack("<IIII", 1, 1, 0, 0)
"""The symbol that every table begins with, and a hash table of no others."""
_SECTION_NAMES: Final = b"\0.dynstr\0.dynamic\0.shstrtab\0"
MACHINES: Final = {"x86_64": 62, "aarch64": 183}


def library(soname: str, machine: str = "x86_64") -> bytes:
    """A shared library of 64 bits, little-endian; an empty SONAME is left out."""
    strings = b"\0" + soname.encode() + b"\0"
    tags = [(_DT_SONAME, 1)] if soname else []
    strings_at = _HEADER + 2 * _PROGRAM
    symbols_at = _aligned(strings_at + len(strings))
    dynamic_at = symbols_at + len(_SYMBOLS)
    entries = [
        *tags,
        *((_DT_HASH, symbols_at + _SYMBOL), (_DT_SYMTAB, symbols_at), (_DT_SYMENT, _SYMBOL)),
        *((_DT_STRTAB, strings_at), (_DT_STRSZ, len(strings)), (_DT_NULL, 0)),
    ]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    names_at = dynamic_at + len(dynamic)
    sections_at = _aligned(names_at + len(_SECTION_NAMES))
    sections = b"".join(
        (
            bytes(_SECTION),
            _section(1, _SHT_STRTAB, strings_at, len(strings)),
            _section(9, _SHT_DYNAMIC, dynamic_at, len(dynamic), link=1, entry=16),
            _section(18, _SHT_STRTAB, names_at, len(_SECTION_NAMES)),
        )
    )
    size = sections_at + len(sections)
    content = bytearray(size)
    content[:_HEADER] = _header(machine, sections_at)
    content[_HEADER : _HEADER + 2 * _PROGRAM] = struct.pack(
        "<IIQQQQQQ", _PT_LOAD, 6, 0, 0, 0, size, size, 4096
    ) + struct.pack("<IIQQQQQQ", _PT_DYNAMIC, 6, *[dynamic_at] * 3, len(dynamic), len(dynamic), 8)
    parts = {
        strings_at: strings,
        symbols_at: _SYMBOLS,
        dynamic_at: dynamic,
        names_at: _SECTION_NAMES,
        sections_at: sections,
    }
    for at, part in parts.items():
        content[at : at + len(part)] = part
    return bytes(content)


def _header(machine: str, sections_at: int) -> bytes:
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    return ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, MACHINES[machine], 1, 0, _HEADER, sections_at, 0, _HEADER, _PROGRAM, 2, _SECTION, 4, 3
    )


def _section(name: int, kind: int, at: int, size: int, *, link: int = 0, entry: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, 2, at, at, size, link, 0, 8, entry)


def _aligned(offset: int) -> int:
    return offset + -offset % 8
