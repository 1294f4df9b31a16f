"""Node lifecycle: a node's conditions become taints, and taints move pods.

A node that is not ready, unreachable, under pressure or cordoned is tainted; when its lease grows old it counts as
unreachable. Pods that do not tolerate a NoExecute taint are deleted at once, those that tolerate it for a time after
it. Nothing is polled: a timer is set for the moment a lease or a toleration ends.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import placement
from ..clock import parse_rfc3339
from ..resources import LEASES, NODES, PODS
from . import objects
from .cache import same
from .events import NORMAL
from .loop import Loop
from .objects import Doc, Key, Obj
from .shared import Shared

LEASE_NAMESPACE = "kube-node-lease"
GRACE_S = 40.0
"""Age at which a node's lease says that nobody is there, in cluster seconds."""
GRACE_REAL_S = 5.0
"""And at least this many real seconds: a lab that runs fast must not lose its nodes because the machine was busy."""

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class Rule(NamedTuple):
    """A condition, the status that taints, and the taint with its effects."""

    condition: str
    status: str
    taint: str
    effects: Sequence[str]


RULES: Sequence[Rule] = (
    Rule("Ready", "False", NOT_READY, ("NoSchedule", "NoExecute")),
    Rule("Ready", "Unknown", UNREACHABLE, ("NoSchedule", "NoExecute")),
    Rule("MemoryPressure", "True", "node.kubernetes.io/memory-pressure", ("NoSchedule",)),
    Rule("DiskPressure", "True", "node.kubernetes.io/disk-pressure", ("NoSchedule",)),
    Rule("PIDPressure", "True", "node.kubernetes.io/pid-pressure", ("NoSchedule",)),
    Rule("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable", ("NoSchedule",)),
)
OURS = frozenset((*(rule.taint for rule in RULES), UNSCHEDULABLE))
_UNKNOWN_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def wanted_taints(node: Doc) -> list[tuple[str, str]]:
    """The (key, effect) pairs that a node's conditions and cordon call for."""
    wanted: list[tuple[str, str]] = []
    for rule in RULES:
        found = objects.condition(node, rule.condition)
        if found is not None and found.get("status") == rule.status:
            wanted.extend((rule.taint, effect) for effect in rule.effects)
    if placement.cordoned(node):
        wanted.append((UNSCHEDULABLE, placement.NO_SCHEDULE))
    return wanted


def with_taints(taints: Iterable[Doc], wanted: Sequence[tuple[str, str]], now: str) -> list[Obj]:
    """A node's taints with ours set to what is wanted; others, and the age of those that stay, are kept."""
    kept = [dict(each) for each in taints if each["key"] not in OURS or (each["key"], each["effect"]) in wanted]
    present = {(each["key"], each["effect"]) for each in kept}
    added: list[Obj] = [
        {"key": key, "effect": effect, "timeAdded": now} for key, effect in wanted if (key, effect) not in present
    ]
    return kept + added


def tolerated_s(pod: Doc, taints: Sequence[Doc]) -> float | None:
    """How many seconds a pod puts up with these taints' NoExecute ones: 0 not at all, None for ever."""
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    shortest: float | None = None
    for taint in taints:
        if taint.get("effect") != placement.NO_EXECUTE:
            continue
        matching = [each for each in tolerations if placement.tolerates(each, taint)]
        if not matching:
            return 0.0
        limits = [each["tolerationSeconds"] for each in matching if each.get("tolerationSeconds") is not None]
        for limit in limits:
            shortest = max(0.0, limit if shortest is None else min(shortest, limit))
    return shortest


class NodeLifecycleController:
    """Taints nodes by their conditions, and notices nodes that fell silent."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._nodes = shared.cache(NODES)
        self._leases = shared.cache(LEASES)
        self._recorder = shared.events("node-controller")
        self.loop: Loop[str] = Loop("node-lifecycle", self._reconcile, shared.clock)
        self._nodes.subscribe(self._node_changed)
        self._leases.subscribe(self._lease_changed)

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        """Heartbeats change the conditions' times only: they are no reason to look."""
        if new is None or (
            old is not None and same(old, new, "spec.taints") and wanted_taints(old) == wanted_taints(new)
        ):
            return
        self.loop.add(new["metadata"]["name"])

    def _lease_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is None and new is not None and new["metadata"].get("namespace") == LEASE_NAMESPACE:
            self.loop.add(new["metadata"]["name"])

    def _reconcile(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        node = self._check_lease(node)
        spec = node.get("spec") or {}
        taints = list(spec.get("taints") or ())
        wanted = with_taints(taints, wanted_taints(node), self._shared.clock.timestamp())
        if wanted != taints:
            changed = {key: value for key, value in spec.items() if key != "taints"}
            self._shared.update(NODES, {**node, "spec": {**changed, **({"taints": wanted} if wanted else {})}})
        ready = objects.condition(node, "Ready")
        if ready is not None and ready.get("status") == "Unknown":
            self._pods_not_ready(name)

    def _check_lease(self, node: Obj) -> Obj:
        name = node["metadata"]["name"]
        lease = self._leases.get(name, LEASE_NAMESPACE)
        renewed = ((lease or {}).get("spec") or {}).get("renewTime")
        if not renewed:
            return node
        grace = max(GRACE_S, GRACE_REAL_S * self._shared.clock.speed)
        left = grace - (self._shared.clock.now() - parse_rfc3339(renewed)).total_seconds()
        if left > 0:
            self.loop.add_after(name, left)
            return node
        ready = objects.condition(node, "Ready")
        if ready is not None and ready.get("status") == "Unknown":
            self.loop.add_after(name, grace)
            return node
        self.loop.add_after(name, grace)
        return self._silent(node)

    def _silent(self, node: Obj) -> Obj:
        now = self._shared.clock.timestamp()
        status = dict(node.get("status") or {})
        conditions: list[Obj] = list(status.get("conditions") or ())
        for kind in _UNKNOWN_CONDITIONS:
            unknown = {
                "type": kind,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
            }
            conditions = objects.set_conditions(conditions, unknown, now)
        about = objects.object_reference(node, "v1", "Node")
        text = f"Node {node['metadata']['name']} status is now: NodeNotReady"
        self._recorder.event(about, NORMAL, "NodeNotReady", text)
        return self._shared.set_status(NODES, node, {**status, "conditions": conditions})

    def _pods_not_ready(self, name: str) -> None:
        """Say of a silent node's pods that they are not ready; the kubelet of any other speaks for itself."""
        now = self._shared.clock.timestamp()
        for pod in self._shared.pods.by_node[name]:
            if objects.ready(pod):
                status = pod["status"]
                not_ready = {"type": "Ready", "status": "False"}
                conditions = objects.set_conditions(status["conditions"], not_ready, now)
                self._shared.set_status(PODS, pod, {**status, "conditions": conditions})


class TaintEviction:
    """Deletes pods from nodes whose NoExecute taints they do not tolerate, or no longer.

    A toleration's seconds run from when the taint was first seen here: what `timeAdded` says does not matter.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._nodes = shared.cache(NODES)
        self._recorder = shared.events("taint-eviction-controller")
        self._since: dict[str, float] = {}
        self.loop: Loop[Key] = Loop("taint-eviction", self._reconcile, shared.clock)
        self._nodes.subscribe(self._node_changed)
        shared.pods.subscribe(self._pod_changed)

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        executing = any(node is not None and _executing(node) for node in (old, new))
        if new is None or not executing or same(old, new, "spec.taints"):
            return
        for pod in self._shared.pods.by_node[new["metadata"]["name"]]:
            self.loop.add(objects.key(pod))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None and old is not None:
            self._since.pop(objects.uid(old), None)
        if new is None or same(old, new, "spec.nodeName", "spec.tolerations"):
            return
        node = self._nodes.get(objects.node_name(new))
        if node is not None and _executing(node):
            self.loop.add(objects.key(new))

    def _reconcile(self, key: Key) -> None:
        pod = self._shared.pods.at(key)
        node = self._nodes.get(objects.node_name(pod)) if pod is not None else None
        if pod is None or node is None or objects.deleting(pod):
            return
        limit = tolerated_s(pod, placement.taints_of(node))
        if limit is None:
            self._since.pop(objects.uid(pod), None)
            return
        now = self._shared.clock.monotonic()
        left = self._since.setdefault(objects.uid(pod), now) + limit - now
        if left > 0:
            self.loop.add_after(key, left)
            return
        about = objects.object_reference(pod, "v1", "Pod")
        self._recorder.event(about, NORMAL, "TaintManagerEviction", f"Marking for deletion Pod {'/'.join(key)}")
        self._disrupt(pod)
        self._shared.delete(PODS, pod)

    def _disrupt(self, pod: Obj) -> None:
        status = pod.get("status") or {}
        why = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
        }
        conditions = objects.set_conditions(status.get("conditions") or (), why, self._shared.clock.timestamp())
        self._shared.set_status(PODS, pod, {**status, "conditions": conditions})


def _executing(node: Doc) -> bool:
    return any(taint.get("effect") == placement.NO_EXECUTE for taint in placement.taints_of(node))
