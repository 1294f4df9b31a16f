"""Caches of the C library's loader, as `ldconfig` writes them."""

import struct

X86_64, I386, AARCH64 = 0x0303, 0x0003, 0x0A03


def cache(*entries: tuple[int, str], old: int | None = None) -> bytes:
    """A cache as glibc writes it, with the older table before the newer if a number of its entries is given."""
    strings, placed = bytearray(), []
    start = 48 + 24 * len(entries)
    for flags, path in entries:
        key = start + len(strings)
        strings += path.rpartition("/")[2].encode() + b"\0"
        placed.append((flags, key, start + len(strings)))
        strings += path.encode() + b"\0"
    table = struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(entries), len(strings))
    table += b"".join(struct.pack("<iIIIQ", flags, key, value, 0, 0) for flags, key, value in placed) + strings
    if old is None:
        return table
    head = b"ld.so-1.7.0\0" + struct.pack("<I", old) + bytes(12 * old)
    return head + bytes(-len(head) % 8) + table
