"""Stand-in for the programs for virtual machines (vfio, vGPU, Kata, CC): replaced by node rooms to come.

Each checks what it needs of the simulated host, marks what it would do and waits.
"""

from ...api import names
from ..programs import ContainerContext

VFIO = "/sys/bus/pci/drivers/vfio-pci"


async def vfio_manage(ctx: ContainerContext) -> int:
    """`vfio-manage bind --all` and `unbind --all`."""
    action = ctx.argv[1] if len(ctx.argv) > 1 else ""
    if action not in ("bind", "unbind"):
        ctx.error(f"vfio-manage: unknown command {action!r}; expected bind or unbind")
        return 1
    if action == "bind" and ctx.host.loaded("nvidia"):
        ctx.error("vfio-manage: the NVIDIA driver holds the GPUs; unload it first")
        return 1
    for gpu in ctx.host.gpus:
        if action == "bind":
            ctx.host.root.write_atomic(f"{VFIO}/{gpu.pci_address}", "")
        else:
            ctx.host.root.remove(f"{VFIO}/{gpu.pci_address}")
        ctx.log(f"{action} {gpu.pci_address}")
    return 0


async def vgpu_manager(ctx: ContainerContext) -> int:
    """The vGPU manager's `nvidia-driver init`."""
    if not ctx.host.gpus:
        ctx.error("No NVIDIA GPU detected on this node")
        return 1
    ctx.host.load_module("nvidia_vgpu_vfio")
    await ctx.stopped()
    ctx.host.unload_module("nvidia_vgpu_vfio")
    return 0


async def vgpu_device_manager(ctx: ContainerContext) -> int:
    """Makes one vGPU device for each GPU."""
    if not ctx.host.loaded("nvidia_vgpu_vfio"):
        ctx.error("the vGPU manager is not loaded")
        return 1
    for gpu in ctx.host.gpus:
        ctx.host.root.write_atomic(f"/sys/bus/mdev/devices/{gpu.uuid.removeprefix('GPU-')}", "")
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
