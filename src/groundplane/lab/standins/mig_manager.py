"""Stand-in for nvidia-mig-manager: replaced by groundplane's node/mig.

Applies the one layout that needs no change on a node without MIG instances (`all-disabled`) and reports it; any other
is reported as failed (contracts/mig-exporter-validator.md 3.4).
"""

from ...api import names
from ..programs import ContainerContext
from . import common

STATE = "nvidia.com/mig.config.state"
POLL_S = 5.0


async def run(ctx: ContainerContext) -> int:
    """`nvidia-mig-manager`."""
    if not common.sees_driver(ctx):
        ctx.error("NVML cannot be loaded: the driver is not loaded or its libraries are not in this container")
        return 1
    while True:
        labels = common.node_labels(ctx)
        wanted = labels.get(names.MIG_CONFIG, "")
        state = "" if not wanted else "success" if wanted == "all-disabled" else "failed"
        if state and labels.get(STATE) != state:
            if state == "failed":
                ctx.error(f"layout {wanted!r} cannot be applied: the lab's MIG manager knows all-disabled only")
            common.set_node_labels(ctx, {STATE: state}, "nvidia-mig-manager")
            ctx.log(f"MIG configuration {wanted}: {state}")
        if await ctx.stopped(POLL_S):
            return 0
