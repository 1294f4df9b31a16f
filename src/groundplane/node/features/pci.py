"""NVIDIA's devices on the PCI bus, as sysfs shows them. What they mean is left to ``vgpu``, ``vfio``, ``machine``."""

from collections.abc import Iterator
from typing import Final

from ..hostroot import HostRoot

DEVICES: Final = "/sys/bus/pci/devices"
_VENDOR: Final = b"0x10de"


class PciError(OSError):
    """The PCI bus cannot be read; the message names the file and the reason."""


def nvidia(kernel: HostRoot) -> Iterator[str]:
    """The sysfs folders of all PCI devices of NVIDIA, by address. Raises :class:`PciError` if there is no PCI bus."""
    try:
        addresses = sorted(entry.name for entry in kernel.path(DEVICES).iterdir())
    except OSError as error:
        raise PciError(f"{DEVICES} cannot be read: {error.strerror}; is /sys mounted?") from error
    for address in addresses:  # a large machine has hundreds
        folder = f"{DEVICES}/{address}"
        try:
            vendor = (kernel.path(folder) / "vendor").read_bytes()
        except OSError:
            continue
        if vendor.strip() == _VENDOR:
            yield folder


def value(kernel: HostRoot, file: str) -> str | None:
    """The one value that a file of sysfs holds; None where it cannot be read."""
    try:
        return kernel.read_text(file).strip()
    except (OSError, UnicodeDecodeError):
        return None


def class_of(kernel: HostRoot, folder: str) -> str | None:
    """A device's class, such as ``0x030200``; None where it cannot be read."""
    found = value(kernel, f"{folder}/class")
    return found.lower() if found else None
