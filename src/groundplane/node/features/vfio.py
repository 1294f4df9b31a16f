"""GPUs that were handed to virtual machines: bound to vfio-pci, so that no driver of NVIDIA's can be asked about them.

What is known of them comes from the PCI bus alone (contracts/device-plugin-gfd.md 8.2).
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ..devices.model import Gpu, Inventory
from ..hostroot import HostRoot
from . import pci

UNKNOWN_VERSION: Final = "unknown.unknown.unknown"
NO_COMPUTE: Final = (-1, -1)
_DRIVER: Final = "vfio-pci"
_GPU_CLASSES: Final = ("0x0300", "0x0302")
_BARS: Final = 6
_TYPE_MASK, _TYPE_64_BIT = 0x6, 0x4

DATABASES: Final = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/usr/share/pci.ids")
"""Where distributions put the PCI id database."""
_NVIDIA_IN_DATABASE: Final = "10de"
WITHOUT_DATABASE: Final = {
    "1db4": "GV100GL [Tesla V100 PCIe 16GB]",
    "1db5": "GV100GL [Tesla V100 SXM2 32GB]",
    "1db6": "GV100GL [Tesla V100 PCIe 32GB]",
    "1eb8": "TU104GL [Tesla T4]",
    "20b0": "GA100 [A100 SXM4 40GB]",
    "20b2": "GA100 [A100 SXM4 80GB]",
    "20b5": "GA100 [A100 PCIe 80GB]",
    "20b7": "GA100GL [A30 PCIe]",
    "20f1": "GA100 [A100 PCIe 40GB]",
    "2235": "GA102GL [A40]",
    "2236": "GA102GL [A10]",
    "2330": "GH100 [H100 SXM5 80GB]",
    "2331": "GH100 [H100 PCIe]",
    "2335": "GH100 [H200 SXM 141GB]",
    "26b5": "AD102GL [L40]",
    "26b9": "AD102GL [L40S]",
    "27b8": "AD104GL [L4]",
    "2901": "GB100 [B200]",
}
"""The database's names of common data centre GPUs, for a node (or an image) that has no database."""


def inventory(kernel: HostRoot, path: Callable[[str], Path], roots: Iterable[str] = ("/",)) -> Inventory:
    """The GPUs bound to vfio-pci. The PCI id database is looked for in ``roots``, by ``path``.

    Raises :class:`~.pci.PciError` if there is no PCI bus.
    """
    folders = [folder for folder in pci.nvidia(kernel) if _is_handed_over(kernel, folder)]
    names = _names(path, roots) if folders else {}
    gpus = tuple(_gpu(kernel, folder, index, names) for index, folder in enumerate(folders))
    return Inventory(UNKNOWN_VERSION, 0, gpus)


def _is_handed_over(kernel: HostRoot, folder: str) -> bool:
    bound = kernel.path(f"{folder}/driver")
    return bound.name == _DRIVER and (pci.class_of(kernel, folder) or "").startswith(_GPU_CLASSES)


def _gpu(kernel: HostRoot, folder: str, index: int, names: dict[str, str]) -> Gpu:
    address = folder.rpartition("/")[2]
    device = (pci.value(kernel, f"{folder}/device") or "").lower().removeprefix("0x")
    return Gpu(
        index=index,
        uuid=address,  # nobody can be asked for the UUID
        minor=index,
        name=names.get(device) or WITHOUT_DATABASE.get(device) or f"Device {device}",
        bus_id=f"0000{address}" if len(address.partition(":")[0]) == 4 else address,
        memory_bytes=addressable_bytes(pci.value(kernel, f"{folder}/resource") or ""),
        compute=NO_COMPUTE,
    )


def addressable_bytes(resource: str) -> int:
    """The memory that the 64-bit BARs of a device address, in bytes, rounded up to a power of two; 0 for none.

    ``resource`` is sysfs' file of that name: a line with first address, last address and flags a region, BARs first.
    """
    total = 0
    for line in resource.splitlines()[:_BARS]:
        first, last, flags = (int(number, 16) for number in line.split())
        if flags & _TYPE_MASK == _TYPE_64_BIT:
            total += last - first + 1
    return 1 << (total - 1).bit_length() if total else 0


def _names(path: Callable[[str], Path], roots: Iterable[str]) -> dict[str, str]:
    """Names of NVIDIA's devices by id, from the first database that can be read; none where there is no database."""
    for root in roots:
        for file in DATABASES:
            try:
                text = path(f"{root.rstrip('/')}{file}").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            return names_in(text)
    return {}


def names_in(database: str) -> dict[str, str]:
    """Names of NVIDIA's devices by id, from the text of a PCI id database.

    A vendor has a line of its own, its devices follow with one tab before them, their subsystems with two.
    """
    found: dict[str, str] = {}
    ours = False
    for line in database.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith("\t"):
            if ours:
                break
            ours = line.lower().startswith(f"{_NVIDIA_IN_DATABASE} ")
        elif ours and not line.startswith("\t\t"):
            device, _, name = line.strip().partition(" ")
            found[device.lower()] = name.strip()
    return found
