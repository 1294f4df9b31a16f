"""Stand-in for the DCGM host engine (`nv-hostengine`): replaced by nothing, it is NVIDIA's image; listens on 5555."""

from .. import driverfiles
from ..programs import ContainerContext

PORT = 5555
LIBRARIES = tuple(
    driverfiles.library(name, driverfiles.CONTAINER_LIBRARIES) for name in ("libnvidia-ml.so", "libcuda.so")
)
"""Below the root of a driver's container."""


async def run(ctx: ContainerContext) -> int:
    """Serve as long as the driver is there."""
    if not _sees_driver(ctx):
        ctx.error(
            "DCGM initialization error: the NVIDIA driver is not loaded or its libraries are not in this container"
        )
        return 1
    ctx.serve(PORT)
    ctx.log(f"Started host engine version 4.5.3 using port number: {PORT} (simulated)")
    await ctx.stopped()
    return 0


def _sees_driver(ctx: ContainerContext) -> bool:
    """Whether the process can load the driver's libraries: injected, or below the mounted driver root."""
    if not ctx.host.loaded("nvidia"):
        return False
    if ctx.container.driver_injected or ctx.host.has_host_driver():
        return True
    return any(ctx.exists(f"/driver-root{path}") for path in LIBRARIES)
