"""Stand-in for the CUDA check (`vectorAdd`): replaced by groundplane's node/validate (CUDA check).

Runs only if every layer below it is there on the simulated host, and otherwise names the lowest one that is missing.
The vector addition itself is done in Python and marked as simulated.
"""

import asyncio
from collections.abc import Iterator

from ..programs import ContainerContext

ELEMENTS = 4_096


def missing_layer(ctx: ContainerContext) -> tuple[str, str] | None:
    """The lowest layer that is missing and what to look at, or None."""
    host = ctx.host
    offered = ctx.container.driver_injected or host.injects()
    checks = (
        (bool(host.gpus), "hardware", "the node has no NVIDIA GPU on its PCI bus"),
        (host.loaded("nvidia"), "driver", "the kernel module nvidia is not loaded; see the driver pod of this node"),
        (offered, "runtime", "the container runtime cannot inject GPUs; see the container toolkit's pod"),
        (bool(ctx.devices), "device plugin", "this container was given no GPU; request nvidia.com/gpu in its limits"),
        (ctx.container.driver_injected, "runtime", "the driver's libraries were not injected into this container"),
    )
    return next(((layer, text) for good, layer, text in checks if not good), None)


def add(size: int) -> Iterator[tuple[float, float]]:
    """Each element's sum and what it must be."""
    for index in range(size):
        left, right = index * 0.5, index * 0.25
        yield left + right, index * 0.75


async def run(ctx: ContainerContext) -> int:
    """`vectorAdd`."""
    missing = missing_layer(ctx)
    if missing:
        layer, text = missing
        ctx.error(f"Failed to run the CUDA check: layer {layer!r}: {text}")
        return 1
    for gpu in ctx.devices:
        await asyncio.sleep(0)
        wrong = sum(1 for got, expected in add(ELEMENTS) if abs(got - expected) > 1e-5)
        verdict = "PASSED" if not wrong else f"FAILED ({wrong} wrong elements)"
        name = f"GPU {gpu.index} {gpu.uuid} {gpu.model.product}"
        ctx.log(f"{name}: vector addition of {ELEMENTS} elements {verdict} (simulated)")
        if wrong:
            return 1
    ctx.log("Test PASSED")
    return 0
