"""What one pass of driver upgrades costs at 5,000 nodes: `python -m bench.upgrade`.

Only the decision is measured, which is pure: what is, a snapshot as the operator fills it from its caches, goes in, and
what to do comes out. Time is the processor's, as a pass waits for nothing. Peak memory is what the pass allocates on
top of the snapshot.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping

from groundplane.api import names
from groundplane.operator.upgrade import machine
from groundplane.operator.upgrade.model import (
    DaemonSetFacts,
    DriverPod,
    GpuPod,
    NodeFacts,
    Pass,
    Policy,
    Snapshot,
    ValidatorPod,
)
from groundplane.operator.upgrade.states import State

from . import table

NODES = 5_000
LIMIT_MS, LIMIT_MIB = 500.0, 100.0
ROUNDS = 7
NOW = 1_800_000_000

Phase = Callable[[int], tuple[str, str]]
"""The state of the node of a number, and the revision its driver pod is of."""

_WAY = (State.CORDON_REQUIRED, State.POD_DELETION_REQUIRED, State.POD_RESTART_REQUIRED, State.VALIDATION_REQUIRED)
PHASES: Mapping[str, Phase] = {
    "quiet: all done": lambda number: (State.DONE, "new"),
    "first pass: no label yet": lambda number: ("", "new"),
    "template changed: all to be upgraded": lambda number: (State.DONE, "old"),
    "all wait for a slot": lambda number: (State.UPGRADE_REQUIRED, "old"),
    "amid: 500 in progress, 2,000 done, the rest waits": lambda number: (
        (_WAY[number % 4], "old")
        if number < 500
        else (State.DONE, "new")
        if number < 2_500
        else (State.UPGRADE_REQUIRED, "old")
    ),
    "all move at once": lambda number: (_WAY[number % 4], "new"),
}


def snapshot(phase: Phase) -> Snapshot:
    """A fleet in one phase of an upgrade."""
    daemon_set = DaemonSetFacts(name="driver", uid="ds", desired=NODES, pods=NODES, revision="new", digest="7")
    nodes = []
    for number in range(NODES):
        state, revision = phase(number)
        pod = DriverPod(namespace="g", name=f"driver-{number}", uid=f"u-{number}", daemon_set="ds", hash=revision)
        facts = NodeFacts(
            name=f"node-{number}",
            labels={names.UPGRADE_STATE: state} if state else {},
            resource_version=str(number),
            driver_pods=(pod,),
            gpu_pods=(GpuPod(f"team/train-{number}"),),
            validators=(ValidatorPod(f"g/validator-{number}", number % 2 == 0),),
        )
        nodes.append(facts)
    policy = Policy(max_parallel=0, max_unavailable="25%")
    return Snapshot(now=NOW, policy=policy, nodes=nodes, daemon_sets={"ds": daemon_set})


def measured(phase: Phase) -> tuple[Pass, float, float]:
    """The pass, the processor milliseconds of the slowest of some rounds, and the MiB that one allocates at most."""
    facts = snapshot(phase)
    slowest = 0.0
    for _ in range(ROUNDS):
        began = time.process_time()
        found = machine.decide(facts)
        slowest = max(slowest, time.process_time() - began)
    tracemalloc.start()
    found = machine.decide(facts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found, slowest * 1000, peak / 2**20


def main() -> int:
    """Print the figures; 1 when a pass exceeds its limit."""
    rows = []
    for name, phase in PHASES.items():
        found, took_ms, peak_mib = measured(phase)
        moves = sum(each.to is not None for each in found.decisions)
        rows.append((name, moves, took_ms, took_ms / LIMIT_MS, peak_mib))
    table.show(
        f"One pass over {NODES:,} nodes, limit {LIMIT_MS:g} ms and {LIMIT_MIB:g} MiB",
        ("phase", "nodes that move", "CPU ms", "ms / limit", "peak MiB"),
        rows,
        f"slowest of {ROUNDS} rounds; {table.machine()}",
    )
    return int(any(float(str(row[2])) > LIMIT_MS or float(str(row[4])) > LIMIT_MIB for row in rows))


if __name__ == "__main__":
    sys.exit(main())
