"""Stand-in for the driver container (`nvidia-driver`): replaced by nothing, it is NVIDIA's own.

Loads simulated modules, offers the driver's files at /run/nvidia/driver and unloads all on its end
(contracts/driver-lifecycle.md 6.2, 6.3, 6.8).
"""

import re

from ...api import names
from ...node.hostroot import HostRoot
from .. import driverfiles
from ..host import HostError
from ..programs import ContainerContext
from . import common
from .driver_manager import PID_FILE, STATE_FILE, clear

DAEMONS_STATUS = names.VALIDATIONS_DIR + "/.driver-daemons-status"
INSTALL_S = 20.0
"""Cluster seconds that building and installing the driver takes."""

_FULL_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+")
_EXTRAS = {"nvidia-gds-driver": "nvidia_fs", "nvidia-gdrcopy-driver": "gdrdrv"}


def version_of(image: str) -> str:
    """The driver version in an image's tag: `580.126.20-ubuntu24.04`, or a branch, `580-<kernel>-ubuntu24.04`."""
    tag = image.rpartition(":")[2]
    found = _FULL_VERSION.match(tag)
    return found[0] if found and found.end() == len(tag.split("-")[0]) else tag.split("-")[0] + ".00"


async def run(ctx: ContainerContext) -> int:
    """`nvidia-driver init`, `reload_nvidia_peermem`, `probe_nvidia_peermem`."""
    action = ctx.argv[1] if len(ctx.argv) > 1 else ""
    verb = {"init": _init, "reload_nvidia_peermem": _peermem, "probe_nvidia_peermem": _probe_peermem}.get(action)
    if verb is None:
        ctx.error(f"nvidia-driver: unknown command {action!r}; expected init")
        return 1
    return await verb(ctx)


async def _init(ctx: ContainerContext) -> int:
    host, version = ctx.host, version_of(str(ctx.container.spec["image"]))
    if host.has_host_driver():
        ctx.error("NVIDIA driver is already installed on the host; the driver container cannot run beside it")
        return 1
    if not host.gpus:
        ctx.error("No NVIDIA GPU detected on this node")
        return 1
    ctx.write(PID_FILE, "1\n")
    ctx.write(DAEMONS_STATUS, "NotReady\n")
    digest, state = ctx.env.get("DRIVER_CONFIG_DIGEST", ""), ctx.path(STATE_FILE)
    same = bool(digest) and state.exists() and state.read_text().strip() == digest and host.driver_version == version
    if same:
        ctx.log("The loaded driver has the wanted configuration: fast path")
    else:
        common.unload_modules(ctx)
        ctx.log(f"Installing NVIDIA driver version {version} for Linux kernel version {host.kernel}")
        if await ctx.stopped(INSTALL_S):
            return 0
        ctx.log("Loading NVIDIA driver kernel modules...")
        for module in common.LOAD_ORDER:
            host.load_module(module, version=version)
            ctx.log(f"+ modprobe {module}")
        host.create_device_nodes()
    root = HostRoot(ctx.path(names.DRIVER_ROOT), durable=False)
    driverfiles.write(root, version, driverfiles.CONTAINER_LIBRARIES)
    ctx.symlink(names.DRIVER_ROOT + "/dev", "/dev")
    ctx.log("Mounting NVIDIA driver rootfs...")
    ctx.write(STATE_FILE, digest + "\n")
    ctx.write(DAEMONS_STATUS, "Ready\n")
    ctx.log("Done, now waiting for signal")
    await ctx.stopped()
    return await _end(ctx)


async def _end(ctx: ContainerContext) -> int:
    ctx.log("Caught signal, unloading NVIDIA driver kernel modules...")
    try:
        common.unload_modules(ctx)
    except HostError as error:
        ctx.error(f"Could not unload NVIDIA driver kernel modules, driver is in use: {error}")
        return 1
    clear(ctx)
    return 0


async def _peermem(ctx: ContainerContext) -> int:
    while not (ctx.host.loaded("mlx5_core") or ctx.exists("/run/mellanox/drivers/.driver-ready")):
        ctx.log("waiting for mellanox ofed and nvidia drivers to be installed")
        if await ctx.stopped(10.0):
            return 0
    while not ctx.host.loaded("nvidia"):
        if await ctx.stopped(10.0):
            return 0
    ctx.host.load_module("nvidia_peermem")
    ctx.log("successfully loaded nvidia-peermem module")
    await ctx.stopped()
    return 0


async def _probe_peermem(ctx: ContainerContext) -> int:
    if ctx.host.loaded("mlx5_core") and not ctx.host.loaded("nvidia_peermem"):
        ctx.log("nvidia-peermem module is not loaded")
        return 1
    return 0


async def extra(ctx: ContainerContext) -> int:
    """`nvidia-gds-driver install` and `nvidia-gdrcopy-driver install`."""
    module = _EXTRAS[ctx.argv[0].rsplit("/", 1)[-1]]
    if not ctx.host.loaded("nvidia"):
        ctx.error("the NVIDIA driver is not loaded; its modules are needed first")
        return 1
    ctx.host.load_module(module)
    ctx.log(f"loaded {module}")
    await ctx.stopped()
    ctx.host.unload_module(module)
    return 0
