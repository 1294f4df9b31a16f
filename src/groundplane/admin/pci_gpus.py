"""The architecture of an NVIDIA GPU by its PCI device id: what is known of it before any driver or label.

Ids are given out in blocks, a chip at a time; the blocks here are those of the public PCI id database in which chips of
one architecture, and no other, have been seen. An id that is in none of them says nothing.
"""

from typing import Final

_BLOCKS: Final = (
    (0x1340, 0x13FF, "maxwell"),
    (0x1400, 0x143F, "maxwell"),
    (0x1600, 0x167F, "maxwell"),
    (0x17C0, 0x17FF, "maxwell"),
    (0x15F0, 0x15FF, "pascal"),
    (0x1B00, 0x1D7F, "pascal"),
    (0x1D80, 0x1DFF, "volta"),
    (0x1E00, 0x1FFF, "turing"),
    (0x2180, 0x21FF, "turing"),
    (0x20B0, 0x20FF, "ampere"),
    (0x2200, 0x22FF, "ampere"),
    (0x2400, 0x25FF, "ampere"),
    (0x2320, 0x233F, "hopper"),
    (0x2340, 0x234F, "grace_hopper"),
    (0x2680, 0x28FF, "ada"),
    (0x2900, 0x29FF, "blackwell"),
    (0x2B80, 0x2E7F, "blackwell"),
    (0x3180, 0x31FF, "blackwell"),
)
"""First and last id of a block, and the support matrix's name of the architecture."""


def architecture(device: str) -> str:
    """The support matrix's name of the architecture of a device id such as ``20b0``; empty if it is in no block."""
    try:
        number = int(device, 16)
    except ValueError:
        return ""
    return next((name for first, last, name in _BLOCKS if first <= number <= last), "")
