"""The kubelet's events: one object for equal events of a pod, with a count."""

import itertools
from collections.abc import Mapping
from typing import Any

from .. import resources
from ..api import Api
from ..clock import LabClock
from ..status import StatusError

COMPONENT = "kubelet"
REMEMBERED = 2_000
"""Events that can still be counted up; of older ones a new object is made."""


class EventSink:
    """Writes events about pods and the node. An event that the API refuses is dropped: it must not stop a pod."""

    def __init__(self, api: Api, clock: LabClock, node: str) -> None:
        self._api = api
        self._clock = clock
        self._node = node
        self._known: dict[tuple[str, ...], tuple[str, int]] = {}
        self._numbers = itertools.count(1)
        self.dropped = 0

    def pod(
        self, pod: Mapping[str, Any], reason: str, message: str, *, warning: bool = False, container: str = ""
    ) -> None:
        """Record an event about a pod, or one of its containers."""
        meta = pod["metadata"]
        about = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        }
        if container:
            about["fieldPath"] = f"spec.containers{{{container}}}"
        self._record(about, meta["namespace"], reason, message, warning)

    def node(self, uid: str, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event about the node."""
        about = {"kind": "Node", "apiVersion": "v1", "name": self._node, "uid": uid}
        self._record(about, "default", reason, message, warning)

    def _record(self, about: dict[str, str], namespace: str, reason: str, message: str, warning: bool) -> None:
        key = (about.get("uid", ""), about.get("fieldPath", ""), reason, message)
        now = self._clock.timestamp()
        try:
            if key in self._known:
                name, count = self._known[key]
                change = {"count": count + 1, "lastTimestamp": now}
                self._api.patch(resources.EVENTS, name, change, ns=namespace, type="merge", manager=COMPONENT)
                self._known[key] = (name, count + 1)
                return
            name = f"{about['name']}.{self._node}.{next(self._numbers):x}"
            self._api.create(
                resources.EVENTS,
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": name, "namespace": namespace},
                    "involvedObject": about,
                    "reason": reason,
                    "message": message,
                    "type": "Warning" if warning else "Normal",
                    "source": {"component": COMPONENT, "host": self._node},
                    "firstTimestamp": now,
                    "lastTimestamp": now,
                    "count": 1,
                    "reportingComponent": COMPONENT,
                    "reportingInstance": self._node,
                },
                namespace,
                manager=COMPONENT,
            )
            self._known[key] = (name, 1)
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        except StatusError:
            self._known.pop(key, None)
            self.dropped += 1
