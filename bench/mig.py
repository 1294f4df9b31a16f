"""How long MIG layouts take on a node of eight GPUs: `python -m bench.mig`.

Planning is pure: which GPU instances a layout needs, and where each goes, for eight GPUs one after the other; also for
layouts that do not fit, where every place has to be ruled out. Asserting and applying are the whole way on simulated
GPUs, whose file is written anew, and flushed to disk, for each call of the driver.
"""

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from groundplane.node.devices import profiles, simulated
from groundplane.node.devices.mig import InstanceProfile
from groundplane.node.devices.model import Profile
from groundplane.node.mig import change, compare, layout, planner, state
from groundplane.node.mig.errors import PlanError
from groundplane.node.ownprocess import OwnProcess

from . import table

LIMIT_MS = 10.0
GPUS = 8
ROUNDS = 200
PLANNED: Mapping[str, tuple[str, str]] = {
    "7 alike": ("H100-SXM5-80GB", "1g.10gb:7"),
    "mixed": ("H100-SXM5-80GB", "3g.40gb:1 2g.20gb:1 1g.10gb:2"),
    "order matters": ("A100-SXM4-40GB", "3g.20gb:1 1g.5gb:4"),
    "compute instances": ("H100-SXM5-80GB", "1c.3g.40gb:4 2c.3g.40gb:1"),
    "attributes": ("RTX-PRO-6000", "1g.24gb+gfx:1 1g.24gb:1 1g.24gb+me:1 1g.24gb-me:1"),
    "does not fit": ("H100-SXM5-80GB", "3g.40gb:1 1g.20gb:2 1g.10gb:1"),
    "one too many": ("H100-SXM5-80GB", "1g.10gb:8"),
}


def _wanted(text: str) -> dict[Profile, int]:
    return {profiles.parse(name): int(count) for name, count in (part.split(":") for part in text.split())}


def _offered(folder: Path, model: str) -> tuple[InstanceProfile, ...]:
    source = _source(folder, model, 1)
    with source:
        control = source.mig()
        return state.offered(control, control.gpus()[0])


def _source(folder: Path, model: str, count: int) -> simulated.SimulatedSource:
    file = folder / "devices.yaml"
    simulated.Machine.create(file, simulated.describe("bench", [model] * count, "580.126.20"))
    return simulated.SimulatedSource(file, library=lambda: True, loaded=lambda: True)


def _times_ms(work: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return times


def _plan(offered: tuple[InstanceProfile, ...], wanted: Mapping[Profile, int]) -> int:
    planned = 0
    for _ in range(GPUS):
        with contextlib.suppress(PlanError):
            planned += len(planner.plan(offered, wanted))
    return planned


def _planning(folder: Path) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, (model, text) in PLANNED.items():
        offered, wanted = _offered(folder, model), _wanted(text)
        instances = _plan(offered, wanted)
        times = sorted(_times_ms(lambda offered=offered, wanted=wanted: _plan(offered, wanted), ROUNDS))  # type: ignore[misc]
        median, p99 = statistics.median(times), times[int(len(times) * 0.99) - 1]
        rows.append([name, model, text, instances, median, p99, p99 / LIMIT_MS])
    return rows


class _NoHooks:
    """Nothing runs around a change."""

    async def run(self, name: str) -> None:
        """Do nothing."""


async def _whole_way(folder: Path) -> list[list[object]]:
    rows: list[list[object]] = []
    source = _source(folder, "H100-SXM5-80GB", GPUS)
    process = OwnProcess(["bench"], {})

    async def smi(arguments: object) -> object:
        raise RuntimeError(f"nvidia-smi {arguments} is not needed on simulated GPUs")

    with source:
        world = change.World(source.mig(), smi, lambda _: None, process.log.warning)  # type: ignore[arg-type]
        for text in ("1g.10gb:7", "3g.40gb:1 2g.20gb:1 1g.10gb:2", "7g.80gb:1"):
            one = layout.Entry(devices=None, enabled=True, instances=_wanted(text))
            began = time.perf_counter()
            await change.run(change.LayoutChange(world, (one,)), _NoHooks(), mode_only=False)  # type: ignore[arg-type]
            applied = (time.perf_counter() - began) * 1000
            asserted = _times_ms(lambda one=one: compare.config((one,), state.read(world.control)), 20)  # type: ignore[misc]
            rows.append([text, applied, statistics.median(asserted)])
    return rows


def main() -> int:
    """Measure, and print; 1 when planning is slower than its limit."""
    with tempfile.TemporaryDirectory() as name:
        planning = _planning(Path(name))
        whole = asyncio.run(_whole_way(Path(name)))
    table.show(
        f"Planning a MIG layout for {GPUS} GPUs, limit {LIMIT_MS:g} ms",
        ("layout", "model", "instances wanted", "planned", "ms", "p99 ms", "p99 / limit"),
        planning,
        f"{ROUNDS} rounds; {table.machine()}",
    )
    table.show(
        f"The whole way on {GPUS} simulated H100",
        ("instances wanted", "apply ms", "assert ms"),
        whole,
        "applied over the layout of the row above, the first from MIG off; each call of the driver writes the file",
    )
    return int(any(float(str(row[5])) > LIMIT_MS for row in planning))


if __name__ == "__main__":
    sys.exit(main())
