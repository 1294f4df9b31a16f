"""The ReplicaSet controller: as many pods of one template as wanted, the least useful ones removed first."""

from ..resources import REPLICA_SETS
from . import objects
from .cache import same
from .loop import Loop
from .objects import Key, Obj
from .shared import PodControl, Shared, from_template

BURST = 500
"""Pods created or deleted before other work gets its turn."""


def removal_order(pod: Obj) -> tuple[bool, bool, bool, str, str]:
    """Sort key, first to be removed first: unbound, not running, not ready, then the youngest."""
    created, name = objects.created(pod)
    youngest_first = "".join(chr(0x10FFFF - ord(letter)) for letter in created)
    return bool(objects.node_name(pod)), objects.phase(pod) == "Running", objects.ready(pod), youngest_first, name


class ReplicaSetController:
    """Keeps every ReplicaSet's pods."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._sets = shared.owned(REPLICA_SETS)
        self._control = PodControl(shared, shared.events("replicaset-controller"), REPLICA_SETS)
        self._by_uid: dict[str, Key] = {}
        self.loop: Loop[Key] = Loop("replicaset", self._reconcile, shared.clock)
        self._sets.subscribe(self._set_changed)
        shared.pods.subscribe(self._pod_changed)

    def _set_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None and new is None:
            self._by_uid.pop(objects.uid(old), None)
        if new is not None and not same(old, new, "metadata.generation", "metadata.deletionTimestamp"):
            self._by_uid[objects.uid(new)] = objects.key(new)
            self.loop.add(objects.key(new))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        for pod in (old, new):
            key = self._by_uid.get(objects.controller_uid(pod)) if pod is not None else None
            if key is not None:
                self.loop.add(key)
        if new is not None and not objects.controller_uid(new):
            for replica_set in self._sets.in_namespace(new["metadata"].get("namespace") or ""):
                self.loop.add(objects.key(replica_set))

    def _reconcile(self, key: Key) -> None:
        replica_set = self._sets.at(key)
        if replica_set is None:
            return
        pods = [pod for pod in self._pods(replica_set) if objects.active(pod)]
        if not objects.deleting(replica_set):
            self._scale(replica_set, pods)
        self._report(replica_set)

    def _pods(self, replica_set: Obj) -> list[Obj]:
        pods = self._shared.pods
        candidates = [
            *pods.by_owner[objects.uid(replica_set)],
            *(pod for pod in pods.orphans[replica_set["metadata"]["namespace"]] if objects.active(pod)),
        ]
        return self._shared.claim(pods, replica_set, REPLICA_SETS, replica_set["spec"]["selector"], candidates)

    def _scale(self, replica_set: Obj, pods: list[Obj]) -> None:
        missing = int(replica_set["spec"].get("replicas", 1)) - len(pods)
        if abs(missing) > BURST:
            self.loop.add(objects.key(replica_set))
        for _ in range(min(missing, BURST)):
            prefix = replica_set["metadata"]["name"] + "-"
            if self._control.create(replica_set, from_template(replica_set["spec"]["template"], prefix)) is None:
                return
        if missing < 0:
            for pod in sorted(pods, key=removal_order)[: min(-missing, BURST)]:
                self._control.delete(replica_set, pod)

    def _report(self, replica_set: Obj) -> None:
        present = self._sets.at(objects.key(replica_set))
        if present is None:
            return
        pods = [pod for pod in self._shared.pods.by_owner[objects.uid(present)] if objects.active(pod)]
        wait_s = present["spec"].get("minReadySeconds") or 0
        until = [objects.until_available(pod, wait_s, self._shared.clock) for pod in pods]
        later = [seconds for seconds in until if seconds]
        if later:
            self.loop.add_after(objects.key(present), min(later))
        template_labels = ((present["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
        counts = {
            "fullyLabeledReplicas": sum(template_labels.items() <= objects.labels(pod).items() for pod in pods),
            "readyReplicas": sum(objects.ready(pod) for pod in pods),
            "availableReplicas": until.count(0.0),
        }
        status = {
            "replicas": len(pods),
            **{name: count for name, count in counts.items() if count},
            "observedGeneration": int(present["metadata"].get("generation") or 0),
        }
        conditions = (present.get("status") or {}).get("conditions")
        self._shared.set_status(REPLICA_SETS, present, {**status, **({"conditions": conditions} if conditions else {})})
