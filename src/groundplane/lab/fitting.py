"""Whether a pod fits on a node: pure rules on what the node offers and what its pods take of it.

Labels, taints and cordons, host ports, pod counts and resources are judged here, in kube-scheduler's order and words;
what needs the pods of other nodes is `topology`'s.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from . import amounts, placement
from .controllers.objects import Doc, Key, Obj

NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
TAINTED = "node(s) had untolerated taint(s)"
CORDONED = "node(s) were unschedulable"
NO_PORTS = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY = "Too many pods"

Port = tuple[str, str, int]


@dataclass(slots=True)
class NodeState:
    """What a node offers and what of it is taken. `node` is None for one that is gone while its pods are not."""

    node: Obj | None = None
    allocatable: amounts.Amounts = field(default_factory=dict)
    used: amounts.Amounts = field(default_factory=dict)
    ports: Counter[Port] = field(default_factory=Counter)
    pods: dict[Key, "Load"] = field(default_factory=dict)


class Load(NamedTuple):
    """What one pod takes of its node."""

    requests: amounts.Amounts
    ports: tuple[Port, ...]

    @classmethod
    def of(cls, spec: Doc) -> "Load":
        """What a pod of this spec takes."""
        return cls(amounts.pod_requests(spec), host_ports(spec))


class Refusal(NamedTuple):
    """Why a pod cannot run on a node; `resolvable` if it could once pods of the node are gone."""

    reasons: tuple[str, ...]
    resolvable: bool = True


def host_ports(spec: Doc) -> tuple[Port, ...]:
    """The (protocol, address, port) triples a pod opens on its node."""
    return tuple(
        (port.get("protocol") or "TCP", port.get("hostIP") or "0.0.0.0", int(port["hostPort"]))
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    )


def ports_clash(wanted: Iterable[Port], taken: Mapping[Port, int]) -> bool:
    """Whether a wanted host port is taken, on the same address or because one of both is the wildcard."""
    return any(
        protocol == other_protocol and number == other_number and (address == other or "0.0.0.0" in (address, other))
        for protocol, address, number in wanted
        for (other_protocol, other, other_number), count in taken.items()
        if count > 0
    )


def shortages(load: Load, state: NodeState) -> Refusal | None:
    """What a node lacks for a pod, as the scheduler says it; a resource that is asked for as zero is never short."""
    reasons = [TOO_MANY] if len(state.pods) + 1 > state.allocatable.get("pods", 0) else []
    resolvable = True
    for name, wanted in sorted(load.requests.items()):
        offered = state.allocatable.get(name, 0)
        if wanted > 0 and wanted > offered - state.used.get(name, 0):
            reasons.append(f"Insufficient {name}")
            resolvable &= wanted <= offered
    return Refusal(tuple(reasons), resolvable) if reasons else None


def refusal(spec: Doc, load: Load, state: NodeState) -> Refusal | None:
    """Why a pod cannot run on a node, leaving other pods' affinity aside; None if it can."""
    node = state.node
    if node is None:
        return Refusal((NOT_SELECTED,), resolvable=False)
    if placement.cordoned(node) and placement.first_untolerated(
        spec, (placement.UNSCHEDULABLE_TAINT,), (placement.NO_SCHEDULE,)
    ):
        return Refusal((CORDONED,), resolvable=False)
    if placement.first_untolerated(spec, placement.taints_of(node), (placement.NO_SCHEDULE, placement.NO_EXECUTE)):
        return Refusal((TAINTED,), resolvable=False)
    if not placement.node_selected(spec, node):
        return Refusal((NOT_SELECTED,), resolvable=False)
    if load.ports and ports_clash(load.ports, state.ports):
        return Refusal((NO_PORTS,))
    return shortages(load, state)


def changed(state: NodeState, *, without: Collection[Key] = (), plus: Mapping[Key, Load] | None = None) -> NodeState:
    """A node's state as it would be without some of its pods and with some others."""
    pods = {key: load for key, load in state.pods.items() if key not in without}
    pods.update(plus or {})
    used: amounts.Amounts = {}
    ports: Counter[Port] = Counter()
    for load in pods.values():
        amounts.add(used, load.requests)
        ports.update(load.ports)
    return NodeState(state.node, state.allocatable, used, ports, pods)
