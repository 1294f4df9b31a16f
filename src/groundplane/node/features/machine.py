"""Facts of the machine that labels need besides its GPUs: its type, and what PCI says of them."""

from collections.abc import Callable
from typing import Final

from ..devices.model import Inventory
from ..process import Process
from . import pci
from .labels import UNKNOWN, sanitise

_OF_KERNEL: Final = ("/sys/", "/proc/")


def machine_type(process: Process, file: str, warn: Callable[[str], None]) -> str:
    """What a file says that the machine is, as a label's value; ``unknown`` without a file, or if it is unreadable."""
    if not file:
        return UNKNOWN
    try:
        place = process.kernel.path(file) if file.startswith(_OF_KERNEL) else process.path(file)
        return sanitise(place.read_text(encoding="utf-8", errors="replace").strip())
    except OSError as error:
        warn(f"the machine's type is unknown: cannot read {file}: {error}")
        return UNKNOWN


def pci_classes(process: Process, inventory: Inventory) -> tuple[str | None, ...]:
    """The PCI class of each GPU; None for one that is no PCI device, or cannot be read."""
    return tuple(pci.class_of(process.kernel, gpu.sysfs) if gpu.bus_id else None for gpu in inventory.gpus)
