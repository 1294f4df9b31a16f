"""The scheduler: binds pods to nodes that have what they ask for.

Considered are `nodeSelector`, node affinity (required and preferred), required pod affinity and anti-affinity, taints,
cordons, host ports, pod counts and resources, extended ones included. Pods of higher priority come first; running pods
are never preempted. A pod that fits nowhere is looked at again when something changes that may let it: a node, or a
pod that went. Not considered: preferred pod affinity, topology spread, volumes. Pure rules are in `placement` and
`amounts`.
"""

import asyncio
import heapq
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from . import amounts, placement
from .api import Api
from .clock import LabClock
from .controllers import objects
from .controllers.cache import Cache, PodCache, same
from .controllers.events import NORMAL, WARNING, EventRecorder
from .controllers.objects import Doc, Key, Obj
from .resources import NAMESPACES, NODES, PODS
from .status import StatusError

log = logging.getLogger(__name__)

NAME = "default-scheduler"
MANAGER = "kube-scheduler"
TURN_S = 0.005
"""Real seconds of work after which other tasks get a turn."""
ENOUGH = 100
"""Nodes that fit after which no more are looked at; the search goes on from there for the next pod."""
RETRY_S = 1.0
"""Cluster seconds after which a pod that could not be bound is tried again."""

NO_NODES = "no nodes available to schedule pods"
NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
ELSEWHERE = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
CORDONED = "node(s) were unschedulable"
NO_PORTS = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY = "Too many pods"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"

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


def shortages(load: Load, state: NodeState) -> list[str]:
    """What a node lacks for a pod, as the scheduler says it; a resource that is asked for as zero is never short."""
    reasons = [TOO_MANY] if len(state.pods) + 1 > state.allocatable.get("pods", 0) else []
    for name, wanted in sorted(load.requests.items()):
        if wanted > 0 and wanted > state.allocatable.get(name, 0) - state.used.get(name, 0):
            reasons.append(f"Insufficient {name}")
    return reasons


def node_reasons(spec: Doc, load: Load, state: NodeState) -> list[str]:
    """Why a pod cannot run on a node, leaving other pods' affinity aside; empty if it can."""
    node = state.node
    if node is None:
        return [NOT_SELECTED]
    if placement.cordoned(node) and placement.first_untolerated(
        spec, (placement.UNSCHEDULABLE_TAINT,), (placement.NO_SCHEDULE,)
    ):
        return [CORDONED]
    taint = placement.first_untolerated(spec, placement.taints_of(node), (placement.NO_SCHEDULE, placement.NO_EXECUTE))
    if taint is not None:
        return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}"]
    if not placement.node_selected(spec, node):
        return [NOT_SELECTED]
    if load.ports and ports_clash(load.ports, state.ports):
        return [NO_PORTS]
    return shortages(load, state)


def verdict(total: int, reasons: Mapping[str, int]) -> str:
    """The scheduler's sentence on a pod that fits nowhere."""
    if not total:
        return NO_NODES
    told = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{total} nodes are available: {told}."


def required_terms(spec: Doc, kind: str) -> Sequence[Doc]:
    """The required terms of `podAffinity` or `podAntiAffinity`."""
    affinity = (spec.get("affinity") or {}).get(kind) or {}
    terms: Sequence[Doc] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    return terms


class Topology:
    """Which bound pods are in which topology domain: nodes by label value, and pods that keep others away."""

    def __init__(self, nodes: Mapping[str, NodeState], pods: PodCache, namespaces: Cache) -> None:
        self._nodes = nodes
        self._pods = pods
        self._namespaces = namespaces
        self._domains: dict[str, defaultdict[str, set[str]]] = {}
        self._keeping_away: dict[str, dict[Key, Obj]] = {}
        self._away_keys: Counter[str] = Counter()

    def node_changed(self, name: str, old: Obj | None, new: Obj | None) -> None:
        """Note a node's labels."""
        for key, domains in self._domains.items():
            before = placement.node_labels(old).get(key) if old is not None else None
            after = placement.node_labels(new).get(key) if new is not None else None
            if before is not None and before != after:
                domains[before].discard(name)
            if after is not None:
                domains[after].add(name)

    def pod_bound(self, node: str, pod: Obj) -> None:
        """Note a pod that runs on a node, if it keeps others away."""
        terms = required_terms(pod["spec"], "podAntiAffinity")
        if terms:
            self._keeping_away.setdefault(node, {})[objects.key(pod)] = pod
            self._away_keys.update(term["topologyKey"] for term in terms)

    def pod_gone(self, node: str, key: Key) -> None:
        """Forget a pod."""
        found = self._keeping_away.get(node)
        pod = found.pop(key, None) if found is not None else None
        if pod is not None:
            self._away_keys.subtract(term["topologyKey"] for term in required_terms(pod["spec"], "podAntiAffinity"))
        if found is not None and not found:
            del self._keeping_away[node]

    def reasons(self, pod: Obj, node: Obj) -> list[str]:
        """Why other pods keep a pod off a node, or are missing there."""
        if self._kept_away(pod, node):
            return [EXISTING_ANTI_AFFINITY]
        spec = pod["spec"]
        if any(self._matches_in_domain(term, pod, node) for term in required_terms(spec, "podAntiAffinity")):
            return [ANTI_AFFINITY]
        terms = required_terms(spec, "podAffinity")
        if not all(self._affinity_holds(term, pod, node) for term in terms):
            return [AFFINITY]
        return []

    def _kept_away(self, pod: Obj, node: Obj) -> bool:
        if not self._keeping_away:
            return False
        labels = placement.node_labels(node)
        for name in self._neighbours(labels):
            for other in self._keeping_away.get(name, {}).values():
                for term in required_terms(other["spec"], "podAntiAffinity"):
                    there = self._nodes[name].node
                    key = term["topologyKey"]
                    same_domain = there is not None and labels.get(key) == placement.node_labels(there).get(key)
                    if same_domain and key in labels and self._selects(term, other, pod):
                        return True
        return False

    def _neighbours(self, labels: placement.Labels) -> set[str]:
        """The nodes that share a domain, of any key a keeping-away pod uses, with a node of these labels."""
        names: set[str] = set()
        for key, uses in self._away_keys.items():
            if uses and key in labels:
                names |= self._domain(key)[labels[key]] & self._keeping_away.keys()
        return names

    def _domain(self, key: str) -> defaultdict[str, set[str]]:
        found = self._domains.get(key)
        if found is None:
            found = self._domains[key] = defaultdict(set)
            for name, state in self._nodes.items():
                value = placement.node_labels(state.node).get(key) if state.node is not None else None
                if value is not None:
                    found[value].add(name)
        return found

    def _affinity_holds(self, term: Doc, pod: Obj, node: Obj) -> bool:
        """A term also holds for the first pod of a group that is to stick together: it matches its own term."""
        if term["topologyKey"] not in placement.node_labels(node):
            return False
        if self._matches_in_domain(term, pod, node):
            return True
        return self._selects(term, pod, pod) and not self._matches_anywhere(term, pod)

    def _matches_in_domain(self, term: Doc, pod: Obj, node: Obj) -> bool:
        value = placement.node_labels(node).get(term["topologyKey"])
        if value is None:
            return False
        return any(
            self._selects(term, pod, other)
            for name in self._domain(term["topologyKey"])[value]
            for other in self._bound(name)
        )

    def _matches_anywhere(self, term: Doc, pod: Obj) -> bool:
        return any(self._selects(term, pod, other) for name in self._nodes for other in self._bound(name))

    def _bound(self, node: str) -> Iterator[Obj]:
        for key in self._nodes[node].pods:
            pod = self._pods.at(key)
            if pod is not None:
                yield pod

    def _selects(self, term: Doc, owner: Obj, other: Obj) -> bool:
        """Whether a term of `owner` is about `other`."""
        namespace = other["metadata"]["namespace"]
        named = term.get("namespaces") or ()
        by_label = term.get("namespaceSelector")
        if by_label is not None:
            found = self._namespaces.get(namespace)
            inside = namespace in named or (found is not None and placement.selects(by_label, objects.labels(found)))
        else:
            inside = namespace in (named or (owner["metadata"]["namespace"],))
        return inside and placement.selects(term.get("labelSelector"), objects.labels(other))


class Scheduler:
    """Schedules the pods of one API server while `run` runs.

    `record_bindings` writes the Scheduled event of every pod, as kube-scheduler does; thousands of nodes start faster
    without.
    """

    def __init__(self, api: Api, clock: LabClock, *, record_bindings: bool = True) -> None:
        self._api = api
        self._clock = clock
        self._record_bindings = record_bindings
        self._recorder = EventRecorder(api, clock, NAME)
        self._nodes: dict[str, NodeState] = {}
        self._order: list[str] = []
        self._next_start = 0
        self._queue: list[tuple[int, int, Key]] = []
        self._queued: set[Key] = set()
        self._sequence = 0
        self._homeless: dict[Key, None] = {}
        self._waiting_for: defaultdict[str, dict[Key, None]] = defaultdict(dict)
        self._wake = asyncio.Event()
        self._pods = PodCache(api)
        self._topology = Topology(self._nodes, self._pods, Cache(api, NAMESPACES))
        Cache(api, NODES).subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    @property
    def idle(self) -> bool:
        """Whether no pod is waiting to be looked at."""
        return not self._queue

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            turn_ends = time.monotonic() + TURN_S
            while self._queue:
                self._take_next()
                if time.monotonic() >= turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + TURN_S

    # --- what changes -------------------------------------------------------------------------------------------------

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        some = new if new is not None else old
        if some is None:
            return
        name = some["metadata"]["name"]
        state = self._nodes.setdefault(name, NodeState())
        self._topology.node_changed(name, old, new)
        state.node = new
        if new is None:
            self._order.remove(name)
            if not state.pods:
                del self._nodes[name]
        elif old is None:
            self._order.append(name)
        if new is None or same(
            old, new, "metadata.labels", "spec.taints", "spec.unschedulable", "status.allocatable", "status.capacity"
        ):
            return
        status = new.get("status") or {}
        state.allocatable = amounts.amounts(status.get("allocatable") or status.get("capacity"))
        self._retry(name)

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        some = new if new is not None else old
        if some is None:
            return
        key = objects.key(some)
        before = objects.node_name(old) if old is not None and not objects.finished(old) else ""
        after = objects.node_name(new) if new is not None and not objects.finished(new) else ""
        if before and before != after:
            self._vacate(before, key)
        if after and before != after and new is not None:
            self._occupy(after, key, new)
        if new is None or objects.node_name(new) or objects.finished(new) or objects.deleting(new):
            self._forget(key)
        elif not same(old, new, "metadata.labels", "spec") and self._ours(new):
            self._enqueue(key)

    def _ours(self, pod: Obj) -> bool:
        return (pod["spec"].get("schedulerName") or NAME) == NAME

    def _occupy(self, node: str, key: Key, pod: Obj) -> None:
        state = self._nodes.setdefault(node, NodeState())
        if key in state.pods:
            return
        load = state.pods[key] = Load(amounts.pod_requests(pod["spec"]), host_ports(pod["spec"]))
        amounts.add(state.used, load.requests)
        state.ports.update(load.ports)
        self._topology.pod_bound(node, pod)
        if self._homeless:
            self._retry_affine()

    def _vacate(self, node: str, key: Key) -> None:
        state = self._nodes.get(node)
        load = state.pods.pop(key, None) if state is not None else None
        if state is None or load is None:
            return
        amounts.add(state.used, {name: -value for name, value in load.requests.items()})
        state.ports.subtract(load.ports)
        self._topology.pod_gone(node, key)
        if state.node is None and not state.pods:
            del self._nodes[node]
        self._retry(node)

    # --- the queue ----------------------------------------------------------------------------------------------------

    def _enqueue(self, key: Key) -> None:
        pod = self._pods.at(key)
        if key in self._queued or pod is None:
            return
        self._forget(key)
        self._sequence += 1
        self._queued.add(key)
        heapq.heappush(self._queue, (-int(pod["spec"].get("priority") or 0), self._sequence, key))
        self._wake.set()

    def _forget(self, key: Key) -> None:
        """Take a pod off the list of those that wait for a change."""
        self._homeless.pop(key, None)
        pod = self._pods.at(key)
        for name in (placement.pinned_nodes(pod["spec"]) or ()) if pod is not None else ():
            waiting = self._waiting_for.get(name)
            if waiting is not None:
                waiting.pop(key, None)
                if not waiting:
                    del self._waiting_for[name]

    def _wait_for_change(self, key: Key, pinned: frozenset[str] | None) -> None:
        if pinned is None:
            self._homeless[key] = None
        for name in pinned or ():
            self._waiting_for[name][key] = None

    def _retry(self, node: str) -> None:
        for key in [*self._homeless, *self._waiting_for.pop(node, {})]:
            self._enqueue(key)

    def _retry_affine(self) -> None:
        """Look again at pods that wait for another pod to be near."""
        for key in list(self._homeless):
            pod = self._pods.at(key)
            if pod is not None and required_terms(pod["spec"], "podAffinity"):
                self._enqueue(key)

    # --- one pod ------------------------------------------------------------------------------------------------------

    def _take_next(self) -> None:
        _, _, key = heapq.heappop(self._queue)
        self._queued.discard(key)
        pod = self._pods.at(key)
        if pod is None or objects.node_name(pod) or objects.deleting(pod) or objects.finished(pod):
            return
        try:
            self._schedule(key, pod)
        except StatusError as error:
            log.info("scheduler: %s/%s: %s; will be tried again", *key, error.message)
            self._clock.call_later(RETRY_S, lambda: self._enqueue(key))
        except Exception:
            log.exception("scheduler: %s/%s failed; will be tried again", *key)
            self._clock.call_later(RETRY_S, lambda: self._enqueue(key))

    def _schedule(self, key: Key, pod: Obj) -> None:
        spec = pod["spec"]
        if spec.get("schedulingGates"):
            text = "Scheduling is blocked due to non-empty scheduling gates"
            self._set_unscheduled(pod, "SchedulingGated", text)
            return
        pinned = placement.pinned_nodes(spec)
        load = Load(amounts.pod_requests(spec), host_ports(spec))
        fitting, reasons = self._search(pod, load, pinned)
        if not fitting:
            self._wait_for_change(key, pinned)
            text = verdict(len(self._order), reasons)
            if self._set_unscheduled(pod, "Unschedulable", text):
                self._recorder.event(objects.object_reference(pod, "v1", "Pod"), WARNING, "FailedScheduling", text)
            return
        name = min(fitting, key=lambda each: self._rank(spec, load, each))
        self._api.bind(key[1], key[0], name)
        if self._record_bindings:
            text = f"Successfully assigned {key[0]}/{key[1]} to {name}"
            self._recorder.event(objects.object_reference(pod, "v1", "Pod"), NORMAL, "Scheduled", text)

    def _search(self, pod: Obj, load: Load, pinned: frozenset[str] | None) -> tuple[list[str], Counter[str]]:
        """The nodes that fit, and how many nodes do not for each reason."""
        reasons: Counter[str] = Counter()
        fitting: list[str] = []
        if pinned is not None:
            candidates = [name for name in sorted(pinned) if name in self._nodes and self._nodes[name].node is not None]
            elsewhere = len(self._order) - len(candidates)
            if elsewhere:
                reasons[ELSEWHERE] = elsewhere
        else:
            candidates = [*self._order[self._next_start :], *self._order[: self._next_start]]
        for looked_at, name in enumerate(candidates, 1):
            why = self._why_not(pod, load, self._nodes[name])
            reasons.update(why)
            if not why:
                fitting.append(name)
                if len(fitting) >= ENOUGH and pinned is None:
                    self._next_start = (self._next_start + looked_at) % len(self._order)
                    break
        return fitting, reasons

    def _why_not(self, pod: Obj, load: Load, state: NodeState) -> list[str]:
        reasons = node_reasons(pod["spec"], load, state)
        if reasons or state.node is None:
            return reasons
        return self._topology.reasons(pod, state.node)

    def _rank(self, spec: Doc, load: Load, name: str) -> tuple[int, int, float, int, str]:
        """Sort key, best node first: preferred, without soft taints, least used, fewest pods, name."""
        state = self._nodes[name]
        assert state.node is not None
        soft = 0
        for taint in placement.taints_of(state.node):
            soft += placement.first_untolerated(spec, (taint,), (placement.PREFER_NO_SCHEDULE,)) is not None
        shares = [
            (state.used.get(resource, 0) + load.requests.get(resource, 0)) / state.allocatable[resource]
            for resource in ("cpu", "memory")
            if state.allocatable.get(resource)
        ]
        return -placement.preferred_node_weight(spec, state.node), soft, sum(shares), len(state.pods), name

    def _set_unscheduled(self, pod: Obj, reason: str, message: str) -> bool:
        """Say in the pod's status why it is not scheduled; False if it says so already."""
        known = objects.condition(pod, "PodScheduled")
        if known is not None and (known.get("reason"), known.get("message")) == (reason, message):
            return False
        status = pod.get("status") or {}
        said = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        conditions = objects.set_conditions(status.get("conditions") or (), said, self._clock.timestamp())
        changed = {**pod, "status": {**status, "conditions": conditions}}
        self._api.update(PODS, changed, subresource="status", manager=MANAGER)
        return True
