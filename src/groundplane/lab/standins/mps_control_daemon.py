"""Stand-in for mps-control-daemon: replaced by groundplane's node/plugin (MPS)."""

from ..programs import ContainerContext
from . import common


async def run(ctx: ContainerContext) -> int:
    """`mps-control-daemon mount-shm`, or the daemon itself."""
    if ctx.argv[1:] == ("mount-shm",):
        ctx.path("/mps/shm").mkdir(parents=True, exist_ok=True)
        ctx.log("prepared /mps/shm")
        return 0
    if not common.sees_driver(ctx):
        ctx.error("the NVIDIA driver is not loaded or its libraries are not in this container")
        return 1
    ctx.log("waiting for a configuration with MPS sharing")
    await ctx.stopped()
    return 0
