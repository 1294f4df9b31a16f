"""Stand-in for the programs for virtual machines (vGPU, Kata, CC): replaced by node rooms to come.

Each checks what it needs of the simulated host, marks what it would do and waits.
"""

from ...api import names
from ...node.hostroot import HostRoot
from .. import driver, driverfiles
from ..programs import ContainerContext

PCI = "/sys/bus/pci/devices"
MDEV_PARENTS = "/sys/class/mdev_bus"
MDEV_DEVICES = "/sys/bus/mdev/devices"
VGPU_MODULES = ("nvidia", "nvidia_vgpu_vfio")


async def vgpu_manager(ctx: ContainerContext) -> int:
    """The vGPU manager's `nvidia-driver init`: its modules and files, and GPUs that can be parents of vGPU devices."""
    host = ctx.host
    if not host.gpus:
        ctx.error("No NVIDIA GPU detected on this node")
        return 1
    version, root = driver.version_of(str(ctx.container.spec["image"])), HostRoot(ctx.path(names.DRIVER_ROOT))
    for module in VGPU_MODULES:
        host.load_module(module, version=version)
    driverfiles.write(root, version, driverfiles.CONTAINER_LIBRARIES)
    for gpu in host.gpus:
        host.root.symlink(f"{MDEV_PARENTS}/{gpu.pci_address}", f"../../bus/pci/devices/{gpu.pci_address}")
    await ctx.stopped()
    for gpu in host.gpus:
        host.root.remove(f"{MDEV_PARENTS}/{gpu.pci_address}")
    driverfiles.remove(root, driverfiles.CONTAINER_LIBRARIES)
    for module in reversed(VGPU_MODULES):
        host.unload_module(module)
    return 0


async def vgpu_device_manager(ctx: ContainerContext) -> int:
    """Makes one vGPU device for each GPU."""
    if not ctx.host.loaded("nvidia_vgpu_vfio"):
        ctx.error("the vGPU manager is not loaded")
        return 1
    for gpu in ctx.host.gpus:
        name = gpu.uuid.removeprefix("GPU-")
        ctx.host.root.mkdir(f"{PCI}/{gpu.pci_address}/{name}")
        ctx.host.root.symlink(f"{MDEV_DEVICES}/{name}", f"../../pci/devices/{gpu.pci_address}/{name}")
    await ctx.stopped()
    return 0


async def cc_manager(ctx: ContainerContext) -> int:
    """Reports confidential computing as off."""
    ctx.write(names.VALIDATIONS_DIR + "/.cc-manager-ctr-ready", "")
    await ctx.stopped()
    ctx.remove(names.VALIDATIONS_DIR + "/.cc-manager-ctr-ready")
    return 0


async def idle(ctx: ContainerContext) -> int:
    """A device plugin for virtual machines or the Kata manager: present, without devices of its own."""
    ctx.log("running without devices (simulated)")
    await ctx.stopped()
    return 0
