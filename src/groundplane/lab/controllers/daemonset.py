"""The DaemonSet controller: one pod on every node it selects, kept at the present template, counted in the status.

Work is by node: an event about a pod or a node makes only that node of the DaemonSets concerned dirty, and the status
comes from running sums, so that an event costs the same at 5 and at 5,000 nodes. Pods are bound by the scheduler
through an affinity to the node's name. Revisions are kept in `revisions`, node rules in `scheduler.predicates`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .. import placement
from ..resources import CONTROLLER_REVISIONS, DAEMON_SETS, NODES
from . import objects, revisions
from .cache import same
from .events import NORMAL, WARNING
from .loop import TURN_S, Loop
from .objects import Doc, Key, Obj
from .shared import PodControl, Shared, from_template

GENERATION_LABEL = "pod-template-generation"
GENERATION_ANNOTATION = "deprecated.daemonset.template.generation"
STATUS_PAUSE_S = 0.1
"""Real seconds between two status writes of one DaemonSet; the last state is always written."""
FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 900.0
"""Between two attempts to replace failed pods on a node, in cluster seconds."""

_TOLERATIONS: Sequence[tuple[str, str]] = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_HOST_NETWORK_TOLERATION = ("node.kubernetes.io/network-unavailable", "NoSchedule")


class Tally(NamedTuple):
    """What one node adds to a DaemonSet's status; `serving` leaves out pods that are being deleted."""

    desired: int = 0
    current: int = 0
    misscheduled: int = 0
    ready: int = 0
    available: int = 0
    updated: int = 0
    serving: int = 0
    surging: int = 0


NOTHING = Tally()


@dataclass(slots=True)
class Backoff:
    """Failures of a node's daemon pods and when, in cluster time, the next replacement is due."""

    failures: int
    due: float


@dataclass(slots=True)
class Progress:
    """What the controller knows of one DaemonSet: derived from the caches, rebuilt when the DaemonSet is new."""

    uid: str
    generation: int = -1
    history_seen: bool = False
    spec: Obj = field(default_factory=dict)
    revision: Obj = field(default_factory=dict)
    dirty: dict[str, None] = field(default_factory=dict)
    orphans: bool = True
    pods: dict[str, dict[Key, None]] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    sums: Tally = NOTHING
    hashes: Counter[str] = field(default_factory=Counter)
    stale_serving: dict[str, Key] = field(default_factory=dict)
    stale_down: dict[str, Key] = field(default_factory=dict)
    backoffs: dict[str, Backoff] = field(default_factory=dict)
    alarms: dict[str, float] = field(default_factory=dict)
    status_written: float = 0.0

    def count(self, node: str, tally: Tally) -> None:
        """Replace what a node adds to the sums."""
        before = self.tallies.pop(node, NOTHING)
        if tally != NOTHING:
            self.tallies[node] = tally
        if tally != before:
            self.sums = Tally(*(total - old + new for total, old, new in zip(self.sums, before, tally, strict=True)))


def daemon_spec(spec: Doc) -> Obj:
    """A DaemonSet's pod spec with the tolerations that every daemon pod gets."""
    wanted = [*_TOLERATIONS, *([_HOST_NETWORK_TOLERATION] if spec.get("hostNetwork") else [])]
    tolerations = [dict(each) for each in spec.get("tolerations") or ()]
    for taint, effect in wanted:
        toleration = {"key": taint, "operator": "Exists", "effect": effect}
        if toleration not in tolerations:
            tolerations.append(toleration)
    return {**spec, "tolerations": tolerations}


def pinned(spec: Doc, node: str) -> Obj:
    """A pod spec bound to one node by required affinity to its name, in place of any required node affinity."""
    affinity = spec.get("affinity") or {}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    node_affinity = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
    }
    return {**spec, "affinity": {**affinity, "nodeAffinity": node_affinity}}


def target_node(pod: Doc) -> str:
    """The node a daemon pod is for: bound to it, or pinned to it by affinity; "" if neither."""
    bound = objects.node_name(pod)
    if bound:
        return bound
    names = placement.pinned_nodes(pod["spec"])
    return next(iter(names)) if names is not None and len(names) == 1 else ""


def oldest_first(pod: Doc) -> tuple[bool, str, str]:
    """Sort key of a node's daemon pods: bound ones first, then the oldest, ties by name."""
    return not objects.node_name(pod), *objects.created(pod)


def rolling_limits(daemon_set: Doc, desired: int) -> tuple[int, int] | None:
    """How many nodes may be without a serving pod, and how many may run two, during an update; None for OnDelete."""
    strategy = daemon_set["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return None
    rolling = strategy.get("rollingUpdate") or {}
    surge = objects.percent_or_int(rolling.get("maxSurge", 0), desired, round_up=True)
    unavailable = objects.percent_or_int(rolling.get("maxUnavailable", 1), desired, round_up=True)
    return (unavailable if surge or unavailable else 1), surge


class DaemonSetController:
    """Keeps every DaemonSet's pods."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._sets = shared.owned(DAEMON_SETS)
        self._nodes = shared.cache(NODES)
        self._recorder = shared.events("daemonset-controller")
        self._control = PodControl(shared, self._recorder, DAEMON_SETS)
        self._progress: dict[Key, Progress] = {}
        self._by_uid: dict[str, Key] = {}
        self.loop: Loop[Key] = Loop("daemonset", self._reconcile, shared.clock)
        self._sets.subscribe(self._set_changed)
        self._nodes.subscribe(self._node_changed)
        shared.pods.subscribe(self._pod_changed)
        shared.cache(CONTROLLER_REVISIONS).subscribe(self._revision_changed)

    # --- marking dirty ------------------------------------------------------------------------------------------------

    def _set_changed(self, old: Obj | None, new: Obj | None) -> None:
        some = new if new is not None else old
        if some is None or same(old, new, "metadata.generation", "metadata.deletionTimestamp", "metadata.uid"):
            return
        key = objects.key(some)
        known = self._progress.get(key)
        if known is not None and (new is None or known.uid != objects.uid(new)):
            self._by_uid.pop(known.uid, None)
            del self._progress[key]
        if new is not None:
            self._begin(key, new)
        self.loop.add(key)

    def _begin(self, key: Key, daemon_set: Obj) -> None:
        if key in self._progress:
            return
        progress = self._progress[key] = Progress(objects.uid(daemon_set))
        self._by_uid[progress.uid] = key
        for pod in self._shared.pods.by_owner[progress.uid]:
            self._place(progress, None, pod)

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        some = new if new is not None else old
        if some is None or same(old, new, "metadata.labels", "spec.taints"):
            return
        name = some["metadata"]["name"]
        for key, progress in self._progress.items():
            progress.dirty[name] = None
            if new is not None and self._needed_on(key, progress, new):
                self.loop.add(key)

    def _needed_on(self, key: Key, progress: Progress, node: Obj) -> bool:
        """Whether a changed node is a reason to look at a DaemonSet now.

        Only one that lacks its pod, has one too many, or may put a misplaced one right. All else is counted when
        something else happens, as kube-controller-manager does: the status of a node that went or was tainted is late.
        """
        should_run, may_stay = placement.daemon_fit(progress.spec, node)
        pods = (self._shared.pods.at(pod) for pod in progress.pods.get(node["metadata"]["name"], ()))
        if not any(pod is not None and objects.node_name(pod) for pod in pods):
            return should_run
        daemon_set = self._sets.at(key)
        status = (daemon_set.get("status") or {}) if daemon_set is not None else {}
        return not may_stay or bool(status.get("numberMisscheduled"))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        owner_before = objects.controller_uid(old) if old is not None else ""
        owner_after = objects.controller_uid(new) if new is not None else ""
        if owner_before and owner_before != owner_after:
            self._pod_event(owner_before, old, None)
            old = None
        if owner_after:
            self._pod_event(owner_after, old, new)
        elif new is not None:
            self._orphan_seen(new)

    def _pod_event(self, owner: str, old: Obj | None, new: Obj | None) -> None:
        key = self._by_uid.get(owner)
        if key is None:
            return
        self._place(self._progress[key], old, new)
        self.loop.add(key)

    def _place(self, progress: Progress, old: Obj | None, new: Obj | None) -> None:
        for pod, change in ((old, -1), (new, 1)):
            if pod is None:
                continue
            node, pod_key = target_node(pod), objects.key(pod)
            progress.dirty[node] = None
            progress.hashes[objects.labels(pod).get(revisions.HASH_LABEL, "")] += change
            if change > 0:
                progress.pods.setdefault(node, {})[pod_key] = None
            elif pod_key in progress.pods.get(node, {}):
                del progress.pods[node][pod_key]
                if not progress.pods[node]:
                    del progress.pods[node]

    def _orphan_seen(self, pod: Obj) -> None:
        labels = objects.labels(pod)
        for key, progress in self._progress.items():
            if key[0] != pod["metadata"].get("namespace"):
                continue
            daemon_set = self._sets.at(key)
            if daemon_set is not None and placement.selects(daemon_set["spec"].get("selector"), labels):
                progress.orphans = True
                self.loop.add(key)

    def _revision_changed(self, old: Obj | None, new: Obj | None) -> None:
        for revision in (old, new):
            key = self._by_uid.get(objects.controller_uid(revision)) if revision is not None else None
            if key is not None and not same(old, new, "revision", "data", "metadata.labels"):
                self._progress[key].history_seen = False
                self.loop.add(key)

    # --- reconciling --------------------------------------------------------------------------------------------------

    def _reconcile(self, key: Key) -> None:
        daemon_set, progress = self._sets.at(key), self._progress.get(key)
        if daemon_set is None or progress is None or objects.deleting(daemon_set):
            return
        if progress.orphans:
            progress.orphans = False
            self._adopt(daemon_set)
        daemon_set = self._look_at_template(key, daemon_set, progress)
        self._settle_some(daemon_set, progress)
        if progress.dirty:
            self.loop.add(key)
            return
        self._roll(daemon_set, progress)
        if not progress.dirty:
            revisions.trim(self._shared, daemon_set, progress.revision, self._hashes_in_use(progress))
        self._report(key, progress)

    def _settle_some(self, daemon_set: Obj, progress: Progress) -> None:
        """Settle dirty nodes for one turn's time; a node that fails stays dirty."""
        turn_ends = time.monotonic() + TURN_S
        while progress.dirty and time.monotonic() < turn_ends:
            node = next(iter(progress.dirty))
            del progress.dirty[node]
            try:
                self._settle(daemon_set, progress, node)
            except BaseException:
                progress.dirty[node] = None
                raise

    def _hashes_in_use(self, progress: Progress) -> set[str]:
        return {digest for digest, pods in progress.hashes.items() if pods > 0}

    def _adopt(self, daemon_set: Obj) -> None:
        orphans = self._shared.pods.orphans[daemon_set["metadata"]["namespace"]]
        selector = daemon_set["spec"].get("selector")
        self._shared.claim(self._shared.pods, daemon_set, DAEMON_SETS, selector, orphans)

    def _look_at_template(self, key: Key, daemon_set: Obj, progress: Progress) -> Obj:
        generation = int(daemon_set["metadata"].get("generation") or 0)
        if progress.generation != generation:
            progress.spec = daemon_spec(daemon_set["spec"]["template"]["spec"])
            progress.history_seen = False
            progress.backoffs.clear()
        if not progress.history_seen:
            before = revisions.hash_of(progress.revision) if progress.revision else ""
            progress.revision, daemon_set = revisions.current(self._shared, daemon_set)
            progress.history_seen = True
            if revisions.hash_of(progress.revision) != before:
                progress.dirty.update(dict.fromkeys([*progress.tallies, *progress.pods]))
        if progress.generation != generation:
            progress.generation = generation
            progress.dirty.update(dict.fromkeys(node["metadata"]["name"] for node in self._nodes))
        return daemon_set

    # --- one node -----------------------------------------------------------------------------------------------------

    def _settle(self, daemon_set: Obj, progress: Progress, node_name: str) -> None:
        node = self._nodes.get(node_name)
        should_run, may_stay = (False, False) if node is None else placement.daemon_fit(progress.spec, node)
        pods = self._claimed(daemon_set, progress, node_name)
        if not may_stay:
            self._clear(daemon_set, pods, node)
        elif pods:
            self._weed(daemon_set, progress, node_name, pods)
        elif should_run:
            self._create(daemon_set, progress, node_name)
        if node is None:
            self._forget(progress, node_name)
        else:
            self._count(daemon_set, progress, node_name, should_run)

    def _forget(self, progress: Progress, node_name: str) -> None:
        progress.count(node_name, NOTHING)
        progress.stale_serving.pop(node_name, None)
        progress.stale_down.pop(node_name, None)
        progress.backoffs.pop(node_name, None)

    def _claimed(self, daemon_set: Obj, progress: Progress, node_name: str) -> list[Obj]:
        selector, present = daemon_set["spec"].get("selector"), self._present(progress, node_name)
        return sorted(
            self._shared.claim(self._shared.pods, daemon_set, DAEMON_SETS, selector, present), key=oldest_first
        )

    def _present(self, progress: Progress, node_name: str) -> list[Obj]:
        """The pods of a node that count: not those that have ended and are being deleted."""
        found = (self._shared.pods.at(key) for key in progress.pods.get(node_name, ()))
        return [pod for pod in found if pod is not None and not (objects.finished(pod) and objects.deleting(pod))]

    def _clear(self, daemon_set: Obj, pods: Sequence[Obj], node: Obj | None) -> None:
        """Delete a node's pods; those bound to a vanished node are the pod garbage collector's."""
        for pod in pods:
            if node is not None or not objects.node_name(pod):
                self._control.delete(daemon_set, pod)

    def _create(self, daemon_set: Obj, progress: Progress, node_name: str) -> None:
        labels = {revisions.HASH_LABEL: revisions.hash_of(progress.revision)}
        generation = (daemon_set["metadata"].get("annotations") or {}).get(GENERATION_ANNOTATION)
        if generation:
            labels[GENERATION_LABEL] = generation
        pod = from_template(daemon_set["spec"]["template"], daemon_set["metadata"]["name"] + "-", labels=labels)
        self._control.create(daemon_set, {**pod, "spec": pinned(progress.spec, node_name)})

    def _weed(self, daemon_set: Obj, progress: Progress, node_name: str, pods: Sequence[Obj]) -> None:
        """Delete ended pods, and all but the oldest running pod (of each template while surging)."""
        running: dict[bool, Obj] = {}
        surge = (rolling_limits(daemon_set, progress.sums.desired) or (0, 0))[1] > 0
        for pod in pods:
            if objects.deleting(pod):
                continue
            if objects.finished(pod):
                self._replace_ended(daemon_set, progress, node_name, pod)
            elif running.setdefault(surge and self._is_updated(progress, pod), pod) is not pod:
                self._control.delete(daemon_set, pod)
        new, old = running.get(True), running.get(False)
        if new is not None and old is not None and self._available(daemon_set, node_name, new):
            self._control.delete(daemon_set, old)

    def _replace_ended(self, daemon_set: Obj, progress: Progress, node_name: str, pod: Obj) -> None:
        failed = objects.phase(pod) == "Failed"
        if failed and self._backs_off(daemon_set, progress, node_name):
            return
        where = f"daemon pod {'/'.join(objects.key(pod))} on node {node_name}"
        about = self._control.reference(daemon_set)
        if failed:
            self._recorder.event(about, WARNING, "FailedDaemonPod", f"Found failed {where}, will try to kill it")
        else:
            self._recorder.event(about, NORMAL, "SucceededDaemonPod", f"Found succeeded {where}, will try to delete it")
        self._control.delete(daemon_set, pod)

    def _backs_off(self, daemon_set: Obj, progress: Progress, node_name: str) -> bool:
        """Whether a failed pod of this node has to wait for its replacement; otherwise notes that it is replaced."""
        now = self._shared.clock.monotonic()
        backoff = progress.backoffs.get(node_name)
        if backoff is not None and backoff.due > now:
            self._later(daemon_set, node_name, backoff.due - now)
            return True
        stale = backoff is None or now - backoff.due > 2 * LAST_BACKOFF_S
        failures = 1 if stale or backoff is None else backoff.failures + 1
        pause = min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures - 1, 16))
        progress.backoffs[node_name] = Backoff(failures, now + pause)
        return False

    @property
    def pending(self) -> bool:
        """Whether a node will be looked at again, or a status written, without anything having to change."""
        return bool(self.loop.timers) or any(progress.alarms for progress in self._progress.values())

    def _later(self, daemon_set: Obj, node_name: str, seconds: float) -> None:
        """Look at a node again in this many cluster seconds; of several appointments the earliest holds."""
        key = objects.key(daemon_set)
        progress = self._progress[key]
        due = self._shared.clock.monotonic() + seconds
        if progress.alarms.get(node_name, due + 1) <= due:
            return
        progress.alarms[node_name] = due

        def ring() -> None:
            if progress.alarms.get(node_name) == due:
                del progress.alarms[node_name]
            progress.dirty[node_name] = None
            self.loop.add(key)

        self._shared.clock.call_later(seconds, ring)

    def _available(self, daemon_set: Obj, node_name: str, pod: Obj) -> bool:
        left = objects.until_available(pod, daemon_set["spec"].get("minReadySeconds") or 0, self._shared.clock)
        if left:
            self._later(daemon_set, node_name, left)
        return left == 0

    def _is_updated(self, progress: Progress, pod: Obj) -> bool:
        return objects.labels(pod).get(revisions.HASH_LABEL) == revisions.hash_of(progress.revision)

    def _count(self, daemon_set: Obj, progress: Progress, node_name: str, should_run: bool) -> None:
        pods = sorted(self._present(progress, node_name), key=oldest_first)
        progress.stale_serving.pop(node_name, None)
        progress.stale_down.pop(node_name, None)
        if not should_run:
            progress.count(node_name, Tally(misscheduled=1) if pods else NOTHING)
            return
        if not pods:
            progress.count(node_name, Tally(desired=1))
            return
        standing = [pod for pod in pods if not objects.deleting(pod)]
        serving = any(self._available(daemon_set, node_name, pod) for pod in standing)
        updated = [self._is_updated(progress, pod) for pod in standing]
        if standing and not any(updated):
            stale = progress.stale_serving if serving else progress.stale_down
            stale[node_name] = objects.key(standing[0])
        oldest = pods[0]
        progress.count(
            node_name,
            Tally(
                desired=1,
                current=1,
                ready=int(objects.ready(oldest)),
                available=int(self._available(daemon_set, node_name, oldest)),
                updated=int(self._is_updated(progress, oldest)),
                serving=int(serving),
                surging=int(any(updated) and not all(updated)),
            ),
        )

    # --- the whole set ------------------------------------------------------------------------------------------------

    def _roll(self, daemon_set: Obj, progress: Progress) -> None:
        """Take the next step of a rolling update: replace stale pods as far as the limits let it."""
        if not progress.stale_serving and not progress.stale_down:
            return
        limits = rolling_limits(daemon_set, progress.sums.desired)
        if limits is None:
            return
        unavailable, surge = limits
        if surge:
            spare = max(0, surge - progress.sums.surging)
            for node in [*progress.stale_down, *islice(progress.stale_serving, spare)]:
                self._create(daemon_set, progress, node)
            return
        spare = max(0, unavailable - (progress.sums.desired - progress.sums.serving))
        for node in [*progress.stale_down, *islice(progress.stale_serving, spare)]:
            pod = self._shared.pods.at(progress.stale_down.get(node) or progress.stale_serving[node])
            if pod is not None:
                self._control.delete(daemon_set, pod)

    def _report(self, key: Key, progress: Progress) -> None:
        wait = progress.status_written + STATUS_PAUSE_S - time.monotonic()
        present = self._sets.at(key)
        if present is None:
            return
        status = self._status(present, progress)
        if status == (present.get("status") or {}):
            return
        observed = (present.get("status") or {}).get("observedGeneration")
        if wait > 0 and observed == status["observedGeneration"]:
            self.loop.add_after(key, wait * self._shared.clock.speed)
            return
        progress.status_written = time.monotonic()
        self._shared.set_status(DAEMON_SETS, present, status)

    def _status(self, daemon_set: Obj, progress: Progress) -> Obj:
        sums = progress.sums
        optional = {
            "updatedNumberScheduled": sums.updated,
            "numberAvailable": sums.available,
            "numberUnavailable": sums.desired - sums.available,
        }
        before = daemon_set.get("status") or {}
        return {
            "currentNumberScheduled": sums.current,
            "numberMisscheduled": sums.misscheduled,
            "desiredNumberScheduled": sums.desired,
            "numberReady": sums.ready,
            "observedGeneration": progress.generation,
            **{name: value for name, value in optional.items() if value},
            **{name: before[name] for name in ("collisionCount", "conditions") if before.get(name)},
        }
