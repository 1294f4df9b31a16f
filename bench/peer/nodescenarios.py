"""The machines on which the device plugin and GPU features are compared with NVIDIA's, and how they are described."""

import random
from itertools import combinations
from typing import Any

from groundplane.node.devices.simfile import Description, GpuEntry, Instance, Links, Mig, Topology, describe

DRIVER = "580.65.06"
H100, A100, A30, PRO = "H100-SXM5-80GB", "A100-SXM4-40GB", "A30", "RTX-PRO-6000"
STRATEGIES = ("none", "single", "mixed")


def gpus(*models: str | GpuEntry, driver: str = DRIVER, **more: Any) -> Description:
    """A machine with these GPUs."""
    return describe("peer", models, driver, **more)


def cut(model: str, *instances: str | Instance) -> GpuEntry:
    """A GPU in MIG mode."""
    return GpuEntry(model, mig=Mig(enabled=True, instances=instances))


def shared(kind: str = "timeSlicing", replicas: object = 4, name: str = "nvidia.com/gpu", **flags: bool | None) -> str:
    """A configuration file that shares a resource; a flag that is None is not in it."""
    words = "".join(f"    {key}: {str(value).lower()}\n" for key, value in flags.items() if value is not None)
    entry = f"    resources:\n    - name: {name}\n      replicas: {replicas}\n"
    return f"version: v1\nsharing:\n  {kind}:\n{words}{entry}"


def table(text: str) -> list[tuple[str, str]]:
    """The lines of a table, ``name | text`` each; ``\\n`` and ``\\t`` in the text are what they are in Go or Python."""
    rows = [line.partition(" | ") for line in text.strip().splitlines()]
    return [(name.strip(), rest.strip().replace("\\n", "\n").replace("\\t", "\t")) for name, _, rest in rows]


SEVEN = cut(A100, *["1g.5gb"] * 7)
_THIRDS = (Instance("3g.40gb", compute=("1c.3g.40gb", "2c.3g.40gb")), Instance("3g.40gb", compute=("1c.3g.40gb",) * 2))
MACHINES: dict[str, Description] = {
    "one H100": gpus(H100),
    "two H100": gpus(H100, H100),
    "four T4": gpus(*["T4"] * 4),
    "DGX station": gpus(*["A100-SXM4-80GB"] * 2, "DGX-DISPLAY", *["A100-SXM4-80GB"] * 2),
    "minors are not indices": gpus(GpuEntry("L4", minor=3), GpuEntry("L4", minor=0), GpuEntry("L4", minor=9)),
    "no GPU": gpus(),
    "display only": gpus("DGX-DISPLAY"),
    "MIG off": gpus(A100, A100),
    "MIG uniform": gpus(SEVEN, SEVEN),
    "MIG and not": gpus(SEVEN, A100),
    "MIG and another model": gpus(SEVEN, "T4"),
    "MIG empty": gpus(cut(A100), cut(A100)),
    "MIG one empty": gpus(SEVEN, cut(A100)),
    "MIG empty and not": gpus(cut(A100), A100),
    "MIG several types": gpus(cut(H100, "1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb")),
    "MIG double memory": gpus(cut(H100, "1g.20gb", "1g.20gb", "1g.20gb")),
    "MIG whole": gpus(cut(H100, "7g.80gb")),
    "MIG A30": gpus(cut(A30, "2g.12gb", "2g.12gb"), cut(A30, "2g.12gb", "2g.12gb")),
    "MIG part compute": gpus(cut(H100, _THIRDS[0])),
    "MIG part compute and whole": gpus(cut(H100, _THIRDS[1], "3g.40gb")),
    "MIG same size, two models": gpus(cut("A100-SXM4-80GB", "1g.10gb"), cut(H100, "1g.10gb")),
    "MIG graphics": gpus(cut(PRO, "1g.24gb+gfx", "1g.24gb-me", "1g.24gb+me", "1g.24gb")),
    "MIG all media": gpus(cut(PRO, "1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me")),
    "MIG of two models": gpus(cut(A100, "1g.5gb"), cut(H100, "1g.10gb")),
}

_HYBRID = "01 02 033 044 122 13 155 233 26 37 45 46 477 566 57 677"
"""NVLinks of a DGX-1: a GPU, and one that is linked to it, named once a link."""
_LINKS = 18


def dgx1() -> Description:
    """Eight V100 in a hybrid cube mesh."""
    links = tuple(Links((int(word[0]), int(word[1])), len(word) - 1) for word in _HYBRID.split())
    return gpus(*["V100-SXM2-32GB"] * 8, nvlinks=links)


def random_machine(seed: int) -> Description:
    """Some GPUs with NVLinks and a topology by chance."""
    chance = random.Random(seed)
    count = chance.randint(2, 8)
    groups: dict[str, tuple[tuple[int, ...], ...]] = {}
    for level in ("same_board", "single_switch", "multiple_switches", "host_bridge", "same_node"):
        if chance.random() < 0.6:
            order = chance.sample(range(count), count)
            size = chance.randint(2, count)
            groups[level] = tuple(tuple(order[at : at + size]) for at in range(0, count - 1, size))
    left = [_LINKS] * count
    links = []
    for pair in combinations(range(count), 2):
        number = chance.randint(1, 4)
        if chance.random() < 0.4 and all(left[at] >= number for at in pair):
            links.append(Links(pair, number))
            for at in pair:
                left[at] -= number
    return gpus(*[H100] * count, topology=Topology(**groups), nvlinks=tuple(links))
