"""Stand-in for the DCGM host engine (`nv-hostengine`): replaced by nothing, it is NVIDIA's image; listens on 5555."""

from ..programs import ContainerContext
from . import common

PORT = 5555


async def run(ctx: ContainerContext) -> int:
    """Serve as long as the driver is there."""
    if not common.sees_driver(ctx):
        ctx.error(
            "DCGM initialization error: the NVIDIA driver is not loaded or its libraries are not in this container"
        )
        return 1
    ctx.serve(PORT)
    ctx.log(f"Started host engine version 4.5.3 using port number: {PORT} (simulated)")
    await ctx.stopped()
    return 0
