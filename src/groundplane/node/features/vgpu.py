"""Whether this machine is a guest whose GPU is virtual, from PCI configuration space.

A virtual GPU has a vendor specific capability that is signed ``VF`` and holds records; one of them names the driver of
the hypervisor (contracts/device-plugin-gfd.md 8). Making labels of it is left to ``labels``.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..hostroot import HostRoot
from . import pci
from .labels import Vgpu

CONFIG_BYTES: Final = 256
"""Conventional configuration space; a reader without CAP_SYS_ADMIN gets the first 64 of it only."""
_STATUS, _HAS_CAPABILITIES = 0x06, 0x10
_FIRST_CAPABILITY: Final = 0x34
_VENDOR_SPECIFIC: Final = 0x09
_BROKEN: Final = 0xFF
_SIGNED, _FIRST_RECORD = slice(3, 5), 5
_HOST_DRIVER: Final = 0
_TEXT_BYTES: Final = 10


class Record(NamedTuple):
    """A record of the capability: what it is, and its content."""

    id: int
    content: bytes


def read(kernel: HostRoot) -> Vgpu | None:
    """What the configuration space of NVIDIA's devices says; None where it cannot be read."""
    try:
        folders = list(pci.nvidia(kernel))
    except pci.PciError:
        return None
    readable = True
    for folder in folders:
        config = _config(kernel, folder)
        readable = readable and config is not None
        capability = vgpu_capability(config) if config is not None else None
        if capability is not None:
            return Vgpu(present=True, host=host_driver(capability))
    return Vgpu(present=False) if readable else None


def _config(kernel: HostRoot, folder: str) -> bytes | None:
    try:
        config = kernel.path(f"{folder}/config").read_bytes()
    except OSError:
        return None
    return config[:CONFIG_BYTES] if len(config) >= CONFIG_BYTES else None


def vgpu_capability(config: bytes) -> bytes | None:
    """The capability that makes a device a virtual GPU, from 256 bytes of configuration space; None for others."""
    return next((each for each in _vendor_capabilities(config) if each[_SIGNED] == b"VF"), None)


def _vendor_capabilities(config: bytes) -> Iterator[bytes]:
    """The vendor specific capabilities, in the order of the chain, which ends at a broken or repeated link too."""
    if not config[_STATUS] & _HAS_CAPABILITIES:
        return
    seen: set[int] = set()
    at = config[_FIRST_CAPABILITY]
    while at and at not in seen and at + 3 <= len(config) and config[at] != _BROKEN:
        seen.add(at)
        if config[at] == _VENDOR_SPECIFIC:
            yield config[at : at + config[at + 2]]
        at = config[at + 1]


def host_driver(capability: bytes) -> tuple[str, str] | None:
    """Version and branch of the hypervisor's driver, such as ``460.16`` and ``r460_00``; None if no record has them."""
    for record in _records(capability):
        if record.id == _HOST_DRIVER:
            version, branch = record.content[:_TEXT_BYTES], record.content[_TEXT_BYTES : 2 * _TEXT_BYTES]
            return (_text(version), _text(branch)) if len(branch) == _TEXT_BYTES else None
    return None


def _records(capability: bytes) -> Iterator[Record]:
    """The records, each with a byte for its kind and one for its length, which counts both."""
    at = _FIRST_RECORD
    while at + 2 <= len(capability):
        kind, length = capability[at], capability[at + 1]
        if kind == _HOST_DRIVER:  # fixed content: its length is not relied upon
            yield Record(kind, capability[at + 2 :])
            return
        if length < 2:
            return
        yield Record(kind, capability[at + 2 : at + length])
        at += length


def _text(field: bytes) -> str:
    return field.strip(b"\0").decode("ascii", "replace")
