"""NVIDIA's PCI devices and the drivers that give them to virtual machines, over sysfs.

A device is unbound here only from a driver of the vfio family: taking it from another while it is used would hang.
Whether it should be given away is left to the programs.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from .hostroot import HostRoot

DEVICES: Final = "/sys/bus/pci/devices"
DRIVERS: Final = "/sys/bus/pci/drivers"
VENDOR: Final = "0x10de"
VGA: Final = "0x0300"
GPU_CLASSES: Final = (VGA, "0x0302")
"""PCI classes of GPUs: VGA and 3D controllers."""
SWITCH_CLASS: Final = "0x0680"
"""PCI class of NVSwitches."""
_CONSUMER: Final = "consumer:pci:"


class VfioError(Exception):
    """Devices cannot be bound or unbound; the text names each and says why."""


class Device(msgspec.Struct, frozen=True):
    """A PCI device: its address, its class as sysfs writes it, and the driver that has it, if one has."""

    address: str
    kind: str
    driver: str = ""

    @property
    def path(self) -> str:
        """Its folder in sysfs."""
        return f"{DEVICES}/{self.address}"

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.kind.startswith(GPU_CLASSES)

    @property
    def switch(self) -> bool:
        """Whether it is an NVSwitch."""
        return self.kind.startswith(SWITCH_CLASS)

    @property
    def passed_through(self) -> bool:
        """Whether a driver of the vfio family has it: ``vfio-pci``, or one for a certain device, as
        ``nvgrace_gpu_vfio_pci``."""
        return "vfio" in self.driver


def devices(kernel: HostRoot) -> Iterator[Device]:
    """NVIDIA's PCI devices, by address."""
    for folder in kernel.glob(f"{DEVICES}/*"):
        found = device(kernel, folder.rpartition("/")[2])
        if found is not None:
            yield found


def device(kernel: HostRoot, address: str) -> Device | None:
    """The device at an address; None if there is none, or none of NVIDIA's."""
    try:
        vendor, kind = (kernel.read_text(f"{DEVICES}/{address}/{name}").strip() for name in ("vendor", "class"))
    except OSError:  # it is not there, or gone meanwhile
        return None
    return Device(address, kind, driver_of(kernel, address)) if vendor == VENDOR else None


def driver_of(kernel: HostRoot, address: str) -> str:
    """The name of the driver that has a device, or nothing."""
    link = kernel.path(f"{DEVICES}/{address}/driver", follow=False)
    try:
        return link.readlink().name
    except OSError:
        return ""


def companion(kernel: HostRoot, gpu: Device) -> str:
    """The address of the device that comes with a graphics card, such as its sound, and must go where it goes."""
    if not gpu.kind.startswith(VGA):
        return ""
    links = (each.rpartition("/")[2] for each in kernel.glob(f"{gpu.path}/{_CONSUMER}*"))
    addresses = (name.removeprefix(_CONSUMER) for name in links)
    return next((address for address in addresses if kernel.exists(f"{DEVICES}/{address}")), "")


def unbind(kernel: HostRoot, gpu: Device) -> bool:
    """Take a device, and its companion, from a driver of the vfio family; whether one had it. OSError.

    Which driver it is for is left to the kernel again.
    """
    freed = False
    for address in filter(None, (gpu.address, companion(kernel, gpu))):
        driver = driver_of(kernel, address)
        override = f"{DEVICES}/{address}/driver_override"
        if kernel.exists(override) and "vfio" in kernel.read_text(override):
            _write(kernel, override, "\n")
        if "vfio" in driver:
            _write(kernel, f"{DRIVERS}/{driver}/unbind", address)
            freed = True
    return freed


def bind(kernel: HostRoot, gpu: Device, driver: str) -> bool:
    """Give a device, and its companion, to a driver that is loaded; whether another had one of them. OSError."""
    moved = False
    for address in filter(None, (gpu.address, companion(kernel, gpu))):
        present = driver_of(kernel, address)
        if present == driver:
            continue
        _write(kernel, f"{DEVICES}/{address}/driver_override", driver)
        if present:
            _write(kernel, f"{DRIVERS}/{present}/unbind", address)
        _write(kernel, f"{DRIVERS}/{driver}/bind", address)
        moved = True
    return moved


def unbind_all(kernel: HostRoot, *, switches: bool = False) -> list[str]:
    """Take all GPUs (and NVSwitches) from drivers of the vfio family; addresses of those that one had.

    Raises :class:`VfioError` when all have been tried and some cannot be.
    """
    freed, wrong = [], []
    for each in devices(kernel):
        if not (each.gpu or (switches and each.switch)):
            continue
        try:
            if unbind(kernel, each):
                freed.append(each.address)
        except OSError as error:
            wrong.append(f"{each.address} cannot be taken from {each.driver}: {error.strerror or error}")
    if wrong:
        raise VfioError("; ".join(wrong))
    return freed


def _write(kernel: HostRoot, path: str, text: str) -> None:
    """Write to a file of sysfs, in place: it is an order to the kernel."""
    kernel.path(path).write_text(text, encoding="ascii")
