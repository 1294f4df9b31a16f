"""NVIDIA's PCI devices and the drivers that give them to virtual machines, over sysfs.

A device is unbound here only from a driver of the vfio family: taking it from another while it is used would hang.
Whether it should be given away is left to the programs. On a machine whose GPUs are simulated there is no kernel that
obeys: the links by which sysfs shows who has a device are changed here.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from .cdi.roots import simulated
from .hostroot import HostRoot
from .process import Process

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


def passes_through(driver: str) -> bool:
    """Whether a driver is of the vfio family: ``vfio-pci``, or a certain device's, as ``nvgrace_gpu_vfio_pci``."""
    return "vfio" in driver


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


def unbind(process: Process, gpu: Device) -> bool:
    """Take a device, and its companion, from a driver of the vfio family; whether one had it. OSError.

    Which driver it is for is left to the kernel again.
    """
    kernel, freed = process.kernel, False
    for address in filter(None, (gpu.address, companion(kernel, gpu))):
        driver = driver_of(kernel, address)
        override = f"{DEVICES}/{address}/driver_override"
        if kernel.exists(override) and passes_through(kernel.read_text(override)):
            _write(kernel, override, "\n")
        if passes_through(driver):
            _order(process, "unbind", address, driver)
            freed = True
    return freed


def bind(process: Process, gpu: Device, driver: str) -> bool:
    """Give a device, and its companion, to a driver that is loaded; whether another had one of them. OSError."""
    kernel, moved = process.kernel, False
    for address in filter(None, (gpu.address, companion(kernel, gpu))):
        present = driver_of(kernel, address)
        if present == driver:
            continue
        _write(kernel, f"{DEVICES}/{address}/driver_override", driver)
        if present:
            _order(process, "unbind", address, present)
        _order(process, "bind", address, driver)
        moved = True
    return moved


def unbind_all(process: Process, *, switches: bool = False) -> list[str]:
    """Take all GPUs (and NVSwitches) from drivers of the vfio family; addresses of those that one had.

    Raises :class:`VfioError` when all have been tried and some cannot be.
    """
    freed, wrong = [], []
    for each in devices(process.kernel):
        if not (each.gpu or (switches and each.switch)):
            continue
        try:
            if unbind(process, each):
                freed.append(each.address)
        except OSError as error:
            wrong.append(f"{each.address} cannot be taken from {each.driver}: {error.strerror or error}")
    if wrong:
        raise VfioError("; ".join(wrong))
    return freed


async def driver_name(process: Process, module: str, host_root: str) -> str:
    """The name in sysfs of a module's driver; the module is loaded with the host's ``modprobe`` if there is none.

    The driver's name may have dashes where the module's has underscores. Raises :class:`VfioError` and OSError.
    """
    if (known := _known(process.kernel, module)) is not None:
        return known
    if simulated(process):
        process.kernel.mkdir(f"{DRIVERS}/{module}")
        return module
    chroot = () if host_root in ("", "/") else ("chroot", host_root)
    done = await process.execute((*chroot, "modprobe", module))
    if done.code:
        said = (done.err or done.out).strip() or f"modprobe ended with {done.code}"
        raise VfioError(f"module {module} cannot be loaded: {said}")
    if (known := _known(process.kernel, module)) is None:
        raise VfioError(f"module {module} is loaded, but there is no such driver in {DRIVERS}")
    return known


def _known(kernel: HostRoot, module: str) -> str | None:
    names = (module, module.replace("_", "-"))
    return next((name for name in names if kernel.is_dir(f"{DRIVERS}/{name}")), None)


def _order(process: Process, what: str, address: str, driver: str) -> None:
    """Have the kernel take a device from a driver, or give it to one; it waits for who uses the device. OSError."""
    if not simulated(process):
        _write(process.kernel, f"{DRIVERS}/{driver}/{what}", address)
        return
    link = f"{DEVICES}/{address}/driver"
    process.kernel.remove(link)
    if what == "bind":
        process.kernel.symlink(link, f"../../drivers/{driver}")


def _write(kernel: HostRoot, path: str, text: str) -> None:
    """Write to a file of sysfs, in place: it is an order to the kernel."""
    kernel.path(path).write_text(text, encoding="ascii")
