"""The cache of the C library's loader, ``/etc/ld.so.cache``: which 64-bit libraries it lists.

The format is glibc's: since 2.2 a table headed ``glibc-ld.so.cache1.1``, before which the older table (headed
``ld.so-1.7.0``) may stand. Offsets count from the head of the table. Finding libraries is left to :mod:`.drivers`.
"""

import struct
from typing import Final

PATH: Final = "/etc/ld.so.cache"
_OLD_MAGIC: Final = b"ld.so-1.7.0\0"
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_OLD_ENTRY: Final = 12
_HEADER: Final = struct.Struct("<20sII20x")
_ENTRY: Final = struct.Struct("<iIIIQ")
_ALIGNMENT: Final = 8
_MAX_PATH: Final = 4096
MAX_SIZE: Final = 16 << 20
"""Bytes of the largest file that is taken for a cache: some hundred times as much as usual ones have."""
_ELF: Final = 0x0001
_WIDE: Final = frozenset({0x0300, 0x0500, 0x0A00})
"""Architectures whose libraries are of 64 bits: x86-64, ppc64le, aarch64."""


class LdCacheError(ValueError):
    """The file is no cache of the loader, or is cut off."""


def libraries(data: bytes) -> tuple[str, ...]:
    """Paths of the 64-bit libraries in a cache's content, in its order, each once. Raises :class:`LdCacheError`."""
    table = data[_table(data) :]
    try:
        magic, number, _strings = _HEADER.unpack_from(table)
        if magic != _MAGIC:
            raise LdCacheError("it has no table of glibc 2.2 or newer")
        entries = [_ENTRY.unpack_from(table, _HEADER.size + _ENTRY.size * index) for index in range(number)]
    except struct.error as error:
        raise LdCacheError(f"it is cut off: {error}") from None
    found = (
        _text(table, path) for flags, _, path, _, _ in entries if flags & 0xFF & _ELF and (flags & 0xFF00) in _WIDE
    )
    return tuple(dict.fromkeys(path for path in found if path.startswith("/")))


def _table(data: bytes) -> int:
    if not data.startswith(_OLD_MAGIC):
        return 0
    if len(data) < len(_OLD_MAGIC) + 4:
        raise LdCacheError("it is cut off")
    (number,) = struct.unpack_from("<I", data, len(_OLD_MAGIC))
    end = len(_OLD_MAGIC) + 4 + int(number) * _OLD_ENTRY
    return end + -end % _ALIGNMENT


def _text(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset, offset + _MAX_PATH)
    return table[offset:end].decode("utf-8", "replace") if 0 <= offset < end else ""
