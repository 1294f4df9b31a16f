"""Short ways to say what a node, its driver pods and its machine look like, for tests of the upgrade state machine."""

from collections.abc import Mapping, Sequence
from typing import Any

from groundplane.api import names
from groundplane.operator.upgrade import machine
from groundplane.operator.upgrade.model import (
    DaemonSetFacts,
    Decision,
    DriverPod,
    GpuPod,
    NodeFacts,
    Pass,
    Policy,
    Snapshot,
    ValidatorPod,
    Work,
)
from groundplane.operator.upgrade.states import State

NOW = 1_000_000
OLD, NEW = "old", "new"
UNLIMITED = Policy(max_parallel=0, max_unavailable=None)

VALID = (ValidatorPod("gpu-operator/validator", True),)
INVALID = (ValidatorPod("gpu-operator/validator", False),)


def driver(**changes: Any) -> DriverPod:
    """A driver pod that runs and is up to date."""
    facts = {"namespace": "gpu-operator", "name": "driver-x", "uid": "pod-x", "daemon_set": "ds", "hash": NEW}
    return DriverPod(**{**facts, **changes})


def node(
    state: State | str = State.UNKNOWN,
    *pods: DriverPod,
    name: str = "n",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **facts: Any,
) -> NodeFacts:
    """A node in a state, with driver pods, by default one that is up to date."""
    all_labels = {**({names.UPGRADE_STATE: str(state)} if state else {}), **(labels or {})}
    return NodeFacts(
        name=name,
        labels=all_labels,
        annotations=annotations or {},
        driver_pods=facts.pop("driver_pods", pods or (driver(name=f"driver-{name}", uid=f"pod-{name}"),)),
        **facts,
    )


def daemon_set(nodes: Sequence[NodeFacts], **changes: Any) -> DaemonSetFacts:
    """The DaemonSet of the nodes' pods; it has as many as it wants."""
    owned = sum(pod.daemon_set == "ds" for each in nodes for pod in each.driver_pods)
    return DaemonSetFacts(
        **{"name": "nvidia-driver-daemonset", "uid": "ds", "revision": NEW}
        | {"desired": owned, "pods": owned}
        | changes
    )


def run(
    *nodes: NodeFacts,
    policy: Policy = UNLIMITED,
    now: int = NOW,
    work: Mapping[str, Work] | None = None,
    **daemon_set_changes: Any,
) -> Pass:
    """One pass."""
    sets = {"ds": daemon_set(nodes, **daemon_set_changes)}
    return machine.decide(Snapshot(now=now, policy=policy, nodes=nodes, daemon_sets=sets, work=work or {}))


def one(facts: NodeFacts, work: Work | None = None, **how: Any) -> Decision:
    """The decision on a single node."""
    return run(facts, work={facts.name: work} if work else {}, **how).decisions[0]


def gpu(*kept: str) -> tuple[GpuPod, ...]:
    """GPU pods, each with why it may not be evicted, empty if it may."""
    return tuple(GpuPod(f"default/gpu-{number}", why) for number, why in enumerate(kept))
