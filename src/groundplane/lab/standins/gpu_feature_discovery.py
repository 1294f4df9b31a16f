"""Stand-in for gpu-feature-discovery: replaced by groundplane's node/features.

Writes the usual labels straight to the node (contracts/device-plugin-gfd.md 8); sharing, MIG strategies, vGPU and the
NodeFeature object are left to the real program.
"""

import re
from collections import Counter

from ..host import SimulatedHost
from ..programs import ContainerContext
from . import common

SLEEP_S = 60.0
MANAGER = "gpu-feature-discovery"
_FAMILIES = {7: "turing", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
_CUDA = {580: (13, 0), 590: (13, 1), 595: (13, 2), 570: (12, 8), 550: (12, 4), 535: (12, 2)}


def family(compute: tuple[int, int]) -> str:
    """The architecture's name by compute capability."""
    if compute[0] == 7 and compute[1] < 5:
        return "volta"
    if compute[0] == 8 and compute[1] >= 9:
        return "ada-lovelace"
    return _FAMILIES.get(compute[0], "undefined")


def sanitise(text: str) -> str:
    """A product name as a label value."""
    return "-".join(re.sub(r"[^A-Za-z0-9_. -]", "", text).split())


def labels(host: SimulatedHost, timestamp: int) -> dict[str, str]:
    """The labels of a node; with several models, those of the one with most GPUs (then by name)."""
    version = host.driver_version
    if version is None or not host.gpus:
        return {}
    counts = Counter(gpu.model.product for gpu in host.gpus)
    product = min(counts, key=lambda name: (-counts[name], name))
    model = next(gpu.model for gpu in host.gpus if gpu.model.product == product)
    parts = [*version.split("."), "", ""][:3]
    branch = int(parts[0])
    cuda = _CUDA[max((known for known in _CUDA if known <= branch), default=min(_CUDA))]
    modes = {gpu.model.pci_class for gpu in host.gpus}
    found = {
        "gfd.timestamp": str(timestamp),
        "gpu.machine": sanitise(host.root.read_text("/sys/class/dmi/id/product_name")),
        "cuda.driver-version.major": parts[0],
        "cuda.driver-version.minor": parts[1],
        "cuda.driver-version.revision": parts[2],
        "cuda.driver-version.full": version,
        "cuda.driver.major": parts[0],
        "cuda.driver.minor": parts[1],
        "cuda.driver.rev": parts[2],
        "cuda.runtime-version.major": str(cuda[0]),
        "cuda.runtime-version.minor": str(cuda[1]),
        "cuda.runtime-version.full": f"{cuda[0]}.{cuda[1]}",
        "cuda.runtime.major": str(cuda[0]),
        "cuda.runtime.minor": str(cuda[1]),
        "mig.capable": str(any(gpu.model.mig for gpu in host.gpus)).lower(),
        "mps.capable": "false",
        "gpu.product": sanitise(product),
        "gpu.count": str(counts[product]),
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.memory": str(model.memory_mib),
        "gpu.family": family(model.compute),
        "gpu.compute.major": str(model.compute[0]),
        "gpu.compute.minor": str(model.compute[1]),
        "gpu.mode": {"0x030200": "compute", "0x030000": "graphics"}[modes.pop()] if len(modes) == 1 else "unknown",
    }
    return {f"nvidia.com/{key}": value for key, value in found.items()}


async def run(ctx: ContainerContext) -> int:
    """`gpu-feature-discovery`."""
    if not common.sees_driver(ctx):
        ctx.error("failed to initialize NVML: libnvidia-ml.so.1 not found or driver not loaded")
        return 1
    started = int(ctx.clock.now().timestamp())
    strategy = ctx.env.get("MIG_STRATEGY", "none")
    while True:
        wanted = labels(ctx.host, started)
        if strategy != "none" and wanted:
            wanted["nvidia.com/mig.strategy"] = strategy
        changed = ctx.container.publish_labels(MANAGER, wanted)
        if changed:
            ctx.log(f"wrote {changed} labels")
        if await ctx.stopped(SLEEP_S):
            return 0
