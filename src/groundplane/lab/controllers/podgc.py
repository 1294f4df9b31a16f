"""Pod garbage collection: pods that no kubelet will ever finish are removed.

Those are pods bound to a node that has been gone for a while, and pods being deleted that were never bound.
"""

from ..resources import NODES, PODS
from . import objects
from .loop import Loop
from .objects import Key, Obj
from .shared import Shared

QUARANTINE_S = 40.0
"""How long a node must be gone, in cluster seconds, before its pods are removed."""


class PodGarbageCollector:
    """Removes pods whose node vanished."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._nodes = shared.cache(NODES)
        self._gone_since: dict[str, float] = {}
        self.loop: Loop[str | Key] = Loop("pod-garbage-collector", self._reconcile, shared.clock)
        self._nodes.subscribe(self._node_changed)
        shared.pods.subscribe(self._pod_changed)

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is None and new is not None:
            self._gone_since.pop(new["metadata"]["name"], None)
        elif new is None and old is not None:
            self.loop.add(old["metadata"]["name"])

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            return
        name = objects.node_name(new)
        if name and name not in self._gone_since and self._nodes.get(name) is None:
            self.loop.add(name)
        elif not name and objects.deleting(new):
            self.loop.add(objects.key(new))

    def _reconcile(self, what: str | Key) -> None:
        if isinstance(what, str):
            self._node_gone(what)
            return
        pod = self._shared.pods.at(what)
        if pod is not None and not objects.node_name(pod) and objects.deleting(pod):
            self._remove(pod)

    def _node_gone(self, name: str) -> None:
        if self._nodes.get(name) is not None:
            return
        pods = self._shared.pods.by_node[name]
        if not pods:
            self._gone_since.pop(name, None)
            return
        now = self._shared.clock.monotonic()
        left = self._gone_since.setdefault(name, now) + QUARANTINE_S - now
        if left > 0:
            self.loop.add_after(name, left)
            return
        for pod in pods:
            self._mark(pod)
        self._gone_since.pop(name, None)

    def _mark(self, pod: Obj) -> None:
        if not objects.finished(pod):
            status = pod.get("status") or {}
            why = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
            }
            conditions = objects.set_conditions(status.get("conditions") or (), why, self._shared.clock.timestamp())
            pod = self._shared.set_status(PODS, pod, {**status, "phase": "Failed", "conditions": conditions})
        self._remove(pod)

    def _remove(self, pod: Obj) -> None:
        self._shared.delete(PODS, pod, grace_period_s=0)
