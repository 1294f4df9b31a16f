"""Nodes that hand GPUs to virtual machines: which driver has the GPUs, and what it has made of them.

contracts/mig-exporter-validator.md 6.3: each check applies only to the nodes with its workload configuration. What is
looked at are the machine's PCI devices and mediated devices, as sysfs shows them.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from ...api import names
from ...api.release import Release
from ..hostroot import HostPathError, HostRoot
from . import driver
from .context import Context
from .errors import NotReady, ValidationError
from .settings import VM_PASSTHROUGH, VM_VGPU, WORKLOADS
from .smi import TOOL
from .status import WORKLOAD_TYPE

DEVICES: Final = "/sys/bus/pci/devices"
MDEV_PARENTS: Final = "/sys/class/mdev_bus"
MDEV_DEVICES: Final = "/sys/bus/mdev/devices"
VFIO_DRIVERS: Final = ("vfio-pci", "nvgrace_gpu_vfio_pci")
READY_S: Final = 300.0
"""How long the vGPU manager's devices are waited for."""
_VENDOR: Final = "0x10de"
_GPU_CLASSES: Final = ("0x0300", "0x0302")


class PciDevice(msgspec.Struct, frozen=True):
    """One PCI device of NVIDIA: its address, class, the driver it is bound to (or empty), and its virtual functions."""

    address: str
    kind: str
    driver: str = ""
    total_vfs: int = 0
    vfs: int = 0
    virtual: bool = False
    """It is a virtual function itself."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, and a physical one."""
        return self.kind.startswith(_GPU_CLASSES) and not self.virtual


def nvidia_devices(kernel: HostRoot) -> Iterator[PciDevice]:
    """NVIDIA's devices on the PCI bus, by address. OSError if there is no bus to look at."""
    for address in sorted(entry.name for entry in kernel.path(DEVICES).iterdir()):
        folder = f"{DEVICES}/{address}"
        if _value(kernel, f"{folder}/vendor") != _VENDOR:
            continue
        bound = kernel.path(f"{folder}/driver").name  # a link, if there is one
        yield PciDevice(
            address,
            _value(kernel, f"{folder}/class"),
            "" if bound == "driver" else bound,
            _number(_value(kernel, f"{folder}/sriov_totalvfs")),
            _number(_value(kernel, f"{folder}/sriov_numvfs")),
            kernel.exists(f"{folder}/physfn"),
        )


def _value(kernel: HostRoot, file: str) -> str:
    try:
        return kernel.read_text(file).strip().lower()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def gpus(context: Context) -> list[PciDevice]:
    """The machine's GPUs. Raises :class:`~.errors.NotReady`."""
    try:
        return [device for device in nvidia_devices(context.process.kernel) if device.is_gpu]
    except OSError as error:
        raise NotReady(f"{DEVICES} cannot be read: {error.strerror or error}", "the machine's /sys") from error


# --- which nodes ------------------------------------------------------------------------------------------------------


async def workload(context: Context) -> str:
    """The node's workload configuration, which is also written beside the status files."""
    label = (await context.labels("the workload configuration")).get(names.WORKLOAD_CONFIG)
    if label in WORKLOADS:
        kind = str(label)
    else:
        kind = context.settings.default_workload
        found = f"{label!r} is no workload configuration" if label is not None else "there is none"
        context.note("workload", f"Label {names.WORKLOAD_CONFIG}: {found}; using the default, {kind}")
    context.status.write(WORKLOAD_TYPE, kind + "\n")
    return kind


async def passes_through(context: Context) -> bool:
    """Whether the node hands whole GPUs to virtual machines."""
    return await _is(context, VM_PASSTHROUGH)


async def has_vgpus(context: Context) -> bool:
    """Whether the node hands virtual GPUs to virtual machines."""
    return await _is(context, VM_VGPU)


async def _is(context: Context, wanted: str) -> bool:
    kind = await workload(context)
    if kind != wanted:
        context.note("sandbox", f"The node's workload configuration is {kind}: this concerns {wanted} only")
    return kind == wanted


# --- checks -----------------------------------------------------------------------------------------------------------


async def vfio_pci(context: Context) -> None:
    """Every GPU is bound to a driver that hands it to virtual machines."""
    found = gpus(context)
    if not found:
        context.process.log.warning(f"There is no NVIDIA GPU in {DEVICES}: nothing to validate")
    others = [f"{gpu.address} ({gpu.driver or 'no driver'})" for gpu in found if gpu.driver not in VFIO_DRIVERS]
    if others:
        raise NotReady(
            f"GPUs that are not bound to {' or '.join(VFIO_DRIVERS)}: {', '.join(others)}",
            "the VFIO manager's pod on this node, which binds them",
        )


async def vgpu_manager(context: Context) -> bool:
    """The vGPU manager is loaded and has made its devices; whether it is the host's own."""
    tool = driver.host_tool(context.process)
    command = ("chroot", names.DRIVER_ROOT, TOOL) if tool is None else ("chroot", driver.HOST, tool)
    context.process.out(await context.smi.run(command))
    process = context.process
    began = process.monotonic()
    while (missing := _vgpu_missing(context)) is not None:
        context.note("vgpu", f"The vGPU manager's devices are not there yet: {missing}")
        if process.monotonic() - began + context.settings.interval_s > READY_S:
            raise ValidationError(f"{missing}, {READY_S:g} s after the vGPU manager was there; see the log of its pod")
        await process.sleep(context.settings.interval_s)
    return tool is not None


def _vgpu_missing(context: Context) -> str | None:
    """What of the vGPU manager's devices is missing."""
    found = gpus(context)
    total, there = sum(gpu.total_vfs for gpu in found), sum(gpu.vfs for gpu in found)
    if context.process.release is Release.V26_3 or any(gpu.vfs > 0 for gpu in found):
        return None if there == total else f"{there} of {total} virtual functions are enabled"
    parents = list(_mdev(context.process.kernel, MDEV_PARENTS, ""))
    return None if parents else "no GPU is a parent of mediated devices, nor has it virtual functions"


async def vgpu_devices(context: Context) -> None:
    """There is a vGPU."""
    found = list(_mdev(context.process.kernel, MDEV_DEVICES, "/.."))
    if not found:
        raise NotReady("there are no vGPU devices", "the vGPU device manager's pod on this node, which makes them")
    context.note("vgpu", f"There are {len(found)} vGPU devices")


def _mdev(kernel: HostRoot, folder: str, parent: str) -> Iterator[str]:
    """Entries of a folder of sysfs that are NVIDIA's, or whose ``parent`` is; links are the kernel's, into the tree."""
    for path in kernel.glob(f"{folder}/*"):
        try:
            device = kernel.host_path(kernel.path(path))
        except HostPathError:
            continue
        if _value(kernel, f"{device}{parent}/vendor") == _VENDOR:
            yield path
