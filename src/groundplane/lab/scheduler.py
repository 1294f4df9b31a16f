"""The scheduler: binds pods to nodes that have what they ask for.

Considered are `nodeSelector`, node affinity (required and preferred), required pod affinity and anti-affinity, taints,
cordons, host ports, pod counts and resources, extended ones included. Pods of higher priority come first, and make room
for themselves among pods of lower priority. A pod that fits nowhere is looked at again when something changes that may
let it: a node, or a pod that went. Not considered: preferred pod affinity, topology spread, volumes. Pure rules are in
`fitting`, `topology`, `preemption`, `placement` and `amounts`.
"""

import asyncio
import heapq
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from . import amounts, fitting, placement, preemption
from .api import Api
from .clock import LabClock
from .controllers import objects
from .controllers.cache import Cache, PodCache, same
from .controllers.events import NORMAL, WARNING, EventRecorder
from .controllers.objects import Doc, Key, Obj
from .fitting import Load, NodeState
from .resources import NAMESPACES, NODES, POD_DISRUPTION_BUDGETS, PODS
from .status import StatusError
from .topology import Topology, required_terms

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
ELSEWHERE = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
CONFLICT = "pod affinity terms conflict. not found"
"""Terms that name no common node. The last two words are another plugin's, which kube-scheduler lets through."""


class Search(NamedTuple):
    """What a look at the nodes found: those that fit, why the others do not, and how many were out of the question."""

    fits: list[str]
    refused: dict[str, fitting.Refusal]
    elsewhere: int = 0
    conflict: bool = False


def verdict(total: int, reasons: Mapping[str, int]) -> str:
    """The scheduler's sentence on a pod that fits nowhere."""
    told = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{total} nodes are available: {told}."


def refusal_text(total: int, search: Search) -> str:
    """The sentence that a search without success ends in."""
    reasons = _histogram(search.refused.values())
    if search.elsewhere:
        reasons[ELSEWHERE] += search.elsewhere
    return verdict(total, reasons)


def _histogram(refusals: Iterable[fitting.Refusal]) -> Counter[str]:
    return Counter(reason for refusal in refusals for reason in refusal.reasons)


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
        self._budgets = Cache(api, POD_DISRUPTION_BUDGETS)
        self._nominated: defaultdict[str, dict[Key, Load]] = defaultdict(dict)
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
        self._note_nomination(key, old, new)
        if new is None or objects.node_name(new) or objects.finished(new) or objects.deleting(new):
            self._forget(key)
        elif not same(old, new, "metadata.labels", "spec") and self._ours(new):
            self._enqueue(key)

    def _note_nomination(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        """Keep in mind the room that waiting pods have been promised."""
        before, after = _nomination(old), _nomination(new)
        if before and before != after:
            self._nominated[before].pop(key, None)
            if not self._nominated[before]:
                del self._nominated[before]
            if new is None or not objects.node_name(new):
                self._retry(before)
        if after and new is not None:
            self._nominated[after][key] = Load.of(new["spec"])

    def _ours(self, pod: Obj) -> bool:
        return (pod["spec"].get("schedulerName") or NAME) == NAME

    def _occupy(self, node: str, key: Key, pod: Obj) -> None:
        state = self._nodes.setdefault(node, NodeState())
        if key in state.pods:
            return
        load = state.pods[key] = Load.of(pod["spec"])
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
        load = Load.of(spec)
        search = self._search(pod, load)
        if not search.fits:
            self._refuse(key, pod, load, search)
            return
        nominated = _nomination(pod)
        ranked = min(search.fits, key=lambda each: self._rank(spec, load, each))
        name = nominated if nominated in search.fits else ranked
        self._api.bind(key[1], key[0], name)
        if self._record_bindings:
            text = f"Successfully assigned {key[0]}/{key[1]} to {name}"
            self._tell(pod, NORMAL, "Scheduled", "Binding", text)

    def _refuse(self, key: Key, pod: Obj, load: Load, search: Search) -> None:
        """Say why a pod fits nowhere, and make room for it if that is possible."""
        self._wait_for_change(key, placement.pinned_nodes(pod["spec"]))
        total, text, nominated = len(self._order), NO_NODES, _nomination(pod)
        victims: Sequence[Obj] = ()
        if total and search.conflict:
            text = f"0/{total} nodes are available: {CONFLICT}"
        elif total:
            said, nominated, victims = self._preemption(pod, load, search)
            text = f"{refusal_text(total, search)} preemption: {said}"
        if self._set_unscheduled(pod, "Unschedulable", text, nominated):
            self._tell(pod, WARNING, "FailedScheduling", "Scheduling", text)
        for victim in victims:
            self._evict(victim, pod, nominated)

    def _search(self, pod: Obj, load: Load) -> Search:
        """Look at the nodes that a pod may run on."""
        pinned = placement.pinned_nodes(pod["spec"])
        found = Search([], {})
        if pinned is not None:
            candidates = [name for name in sorted(pinned) if name in self._nodes and self._nodes[name].node is not None]
            found = Search([], {}, elsewhere=len(self._order) - len(candidates), conflict=not pinned)
        else:
            candidates = [*self._order[self._next_start :], *self._order[: self._next_start]]
        for looked_at, name in enumerate(candidates, 1):
            refusal = self._why_not(pod, load, name)
            if refusal is not None:
                found.refused[name] = refusal
                continue
            found.fits.append(name)
            if len(found.fits) >= ENOUGH and pinned is None:
                self._next_start = (self._next_start + looked_at) % len(self._order)
                break
        return found

    def _why_not(
        self, pod: Obj, load: Load, name: str, without: frozenset[Key] = frozenset()
    ) -> fitting.Refusal | None:
        """Why a pod does not fit on a node, beside what is promised there to pods that are not less important."""
        state = self._nodes[name]
        promised = self._promised(pod, name)
        if without or promised:
            state = fitting.changed(state, without=without, plus=promised)
        refusal = fitting.refusal(pod["spec"], load, state)
        if refusal is not None or state.node is None:
            return refusal
        return self._topology.refusal(pod, state.node, without)

    def _promised(self, pod: Obj, node: str) -> dict[Key, Load]:
        waiting = self._nominated.get(node)
        if not waiting:
            return {}
        own, priority = objects.key(pod), preemption.priority_of(pod)
        others = {key: self._pods.at(key) for key in waiting if key != own}
        return {
            key: waiting[key]
            for key, other in others.items()
            if other is not None and preemption.priority_of(other) >= priority
        }

    # --- preemption ---------------------------------------------------------------------------------------------------

    def _preemption(self, pod: Obj, load: Load, search: Search) -> tuple[str, str, Sequence[Obj]]:
        """What preemption can do for a pod: the scheduler's words, the node it is promised, and the pods that go."""
        nominated = _nomination(pod)
        if pod["spec"].get("preemptionPolicy") == "Never":
            return preemption.NEVER, nominated, ()
        if self._preempting(pod, search):
            return preemption.UNDER_WAY, nominated, ()
        candidates, refusals = self._candidates(pod, load, search)
        if candidates:
            chosen = preemption.best(candidates)
            count = len(chosen.victims)
            said = f"found a potential placement for pod on node {chosen.node}, preempting {count} victims"
            return said, chosen.node, chosen.victims
        total = len(self._order)
        reasons = _histogram(refusals)
        if total > len(refusals):
            reasons[preemption.NOT_HELPFUL] += total - len(refusals)
        return verdict(total, reasons), "", ()

    def _preempting(self, pod: Obj, search: Search) -> bool:
        """Whether pods that this one preempted are still going."""
        node = _nomination(pod)
        refusal = search.refused.get(node)
        if not node or node not in self._nodes or (refusal is not None and not refusal.resolvable):
            return False
        return any(_preempted(victim) for victim in self._less_important(pod, node))

    def _less_important(self, pod: Obj, node: str) -> list[Obj]:
        priority = preemption.priority_of(pod)
        present = (self._pods.at(key) for key in self._nodes[node].pods)
        return [other for other in present if other is not None and preemption.priority_of(other) < priority]

    def _candidates(
        self, pod: Obj, load: Load, search: Search
    ) -> tuple[list[preemption.Candidate], list[fitting.Refusal]]:
        """The nodes that can be freed for a pod, and the refusals of those that pods could leave in vain."""
        candidates: list[preemption.Candidate] = []
        refusals: list[fitting.Refusal] = []
        budgets, enough = list(self._budgets), preemption.enough_candidates(len(self._order))
        for name, refusal in search.refused.items():
            if not refusal.resolvable:
                continue

            def without(keys: frozenset[Key], name: str = name) -> fitting.Refusal | None:
                return self._why_not(pod, load, name, keys)

            found = preemption.victims_on(name, self._less_important(pod, name), without, budgets)
            if isinstance(found, preemption.Candidate):
                candidates.append(found)
                if len(candidates) >= enough:
                    break
            else:
                refusals.append(found)
        return candidates, refusals

    def _evict(self, victim: Obj, pod: Obj, node: str) -> None:
        """Delete a pod that has to make room, unless it is going already."""
        namespace, name = objects.key(victim)
        present = self._pods.at((namespace, name))
        if present is None or objects.deleting(present):
            return
        status = present.get("status") or {}
        why = {
            "type": "DisruptionTarget",
            "status": "True",
            "observedGeneration": int(present["metadata"].get("generation") or 0),
            "reason": preemption.REASON,
            "message": f"{NAME}: preempting to accommodate a higher priority pod",
        }
        conditions = objects.set_conditions(status.get("conditions") or (), why, self._clock.timestamp())
        changed = {**present, "status": {**status, "conditions": conditions}}
        self._api.update(PODS, changed, subresource="status", manager=MANAGER)
        self._api.delete(PODS, name, namespace, preconditions={"uid": objects.uid(present)})
        text = f"Preempted by pod {objects.uid(pod)} on node {node}"
        self._tell(present, NORMAL, "Preempted", "Preempting", text)

    def _tell(self, pod: Obj, kind: str, reason: str, action: str, text: str) -> None:
        self._recorder.event(objects.object_reference(pod, "v1", "Pod"), kind, reason, text, action=action)

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

    def _set_unscheduled(self, pod: Obj, reason: str, message: str, nominated: str = "") -> bool:
        """Say in a pod's status why it is not scheduled and which node it is promised; False if it says so already."""
        known = objects.condition(pod, "PodScheduled")
        same_words = known is not None and (known.get("reason"), known.get("message")) == (reason, message)
        if same_words and _nomination(pod) == nominated:
            return False
        status = {name: value for name, value in (pod.get("status") or {}).items() if name != "nominatedNodeName"}
        if nominated:
            status["nominatedNodeName"] = nominated
        said = {
            "type": "PodScheduled",
            "status": "False",
            "observedGeneration": int(pod["metadata"].get("generation") or 0),
            "reason": reason,
            "message": message,
        }
        conditions = objects.set_conditions(status.get("conditions") or (), said, self._clock.timestamp())
        changed = {**pod, "status": {**status, "conditions": conditions}}
        self._api.update(PODS, changed, subresource="status", manager=MANAGER)
        return True


def _nomination(pod: Doc | None) -> str:
    """The node that a waiting pod has been promised, "" if none."""
    if pod is None or objects.node_name(pod) or objects.deleting(pod) or objects.finished(pod):
        return ""
    return str((pod.get("status") or {}).get("nominatedNodeName") or "")


def _preempted(pod: Doc) -> bool:
    found = objects.condition(pod, "DisruptionTarget")
    return objects.deleting(pod) and found is not None and found.get("reason") == preemption.REASON
