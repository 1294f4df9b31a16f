"""The containers beside the driver's: GPUDirect RDMA, GPUDirect Storage and GDRCopy.

Source: contracts/driver-lifecycle.md 6.4 (end), 6.9 and 6.10.
"""

from typing import Final

from ...api import names
from ..host import HostError
from ..kernelmodules import DRIVER_VERSION
from ..programs import ContainerContext
from . import modules

POLL_S: Final = 10.0
PEERMEM: Final = "nvidia_peermem"
MOFED_READY: Final = "/run/mellanox/drivers/.driver-ready"
DRIVER_READY: Final = names.VALIDATIONS_DIR + "/.driver-ctr-ready"
EXTRAS: Final = {"nvidia-gds-driver": "nvidia_fs", "nvidia-gdrcopy-driver": "gdrdrv"}
GDS_OPEN_FROM: Final = (2, 17, 5)
"""The version of GPUDirect Storage from which it needs open modules."""


def _mofed(ctx: ContainerContext) -> bool:
    return ctx.host.loaded("mlx5_core") if ctx.flag("USE_HOST_MOFED") else ctx.exists(MOFED_READY)


async def reload_peermem(ctx: ContainerContext) -> int:
    """Wait for the network's driver and the GPUs', load nvidia_peermem if it is not, and stay."""
    while not (_mofed(ctx) and ctx.exists(DRIVER_READY)):
        ctx.log("waiting for mellanox ofed and nvidia drivers to be installed")
        if await ctx.stopped(POLL_S):
            return 1
    if ctx.host.loaded(PEERMEM):
        ctx.log("nvidia-peermem module already loaded, skipping modprobe")
    elif not _modprobe_peermem(ctx):
        return 1
    await ctx.stopped()
    return 1


def _modprobe_peermem(ctx: ContainerContext) -> bool:
    """Load the module as the driver's own modules were; whether it is there then."""
    module = ctx.path(names.DRIVER_ROOT + modules.file(ctx.host.kernel, modules.PEERMEM))
    given = ctx.path(f"{modules.PARAMETERS}/{modules.PEERMEM}.conf")
    words = modules.words(given.read_text()) if given.is_file() else []
    try:
        if not module.is_file() or not ctx.host.loaded("nvidia"):
            raise HostError(f"modprobe: FATAL: Module nvidia-peermem not found in {names.DRIVER_ROOT}/lib/modules")
        build = modules.Build(ctx.host.driver_version or "", False, module.read_text(), {modules.PEERMEM: words})
        modules.insert(ctx.host, build, modules.PEERMEM)
    except HostError as error:
        ctx.error(f"{error}\nfailed to load nvidia-peermem module")
        return False
    ctx.log("successfully loaded nvidia-peermem module, now waiting for signal")
    return True


def probe_peermem(ctx: ContainerContext) -> int:
    """Fails only where the network's driver is there and the module is not."""
    if not ctx.host.loaded("mlx5_core"):
        ctx.log("MOFED drivers are not ready, skipping probe to avoid container restarts...")
        return 0
    if not ctx.host.loaded(PEERMEM):
        ctx.log("nvidia-peermem module is not loaded")
        return 1
    return 0


async def extra(ctx: ContainerContext) -> int:
    """`nvidia-gds-driver install` and `nvidia-gdrcopy-driver install`: build and load a module, and stay."""
    module = EXTRAS.get(ctx.argv[0].rsplit("/", 1)[-1], "") or EXTRAS[ctx.container.image.entrypoint[0]]
    problem = _problem(ctx, module)
    if problem:
        ctx.error(problem)
        return 1
    ctx.host.load_module(module, signer="")
    ctx.log(f"loaded {module}")
    await ctx.stopped()
    ctx.host.unload_module(module)
    return 0


def _problem(ctx: ContainerContext, module: str) -> str:
    """Why a module cannot be built on this host, or an empty text."""
    if not ctx.host.loaded("nvidia"):
        return "the NVIDIA driver is not loaded; its modules are needed first"
    if module == "nvidia_fs" and _needs_open(str(ctx.container.spec["image"])):
        shown = ctx.host.root.path(DRIVER_VERSION)
        if shown.is_file() and "Open Kernel Module" not in shown.read_text():
            return "GPUDirect Storage needs the open kernel modules; set driver.kernelModuleType to open"
    return ""


def _needs_open(reference: str) -> bool:
    tag = reference.rpartition(":")[2].partition("-")[0]
    numbers = tag.split(".")
    return len(numbers) == 3 and all(n.isdecimal() for n in numbers) and tuple(map(int, numbers)) >= GDS_OPEN_FROM
