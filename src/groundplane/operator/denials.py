"""The permissions that the operator lacks at this moment, wherever it met a refusal.

Watches, node patches, object writes, status writes and events all report here, by *place*; a place that works again
takes its report back. From here the policy's condition and event, ``/readyz`` and a metric are told, so that a person
who looks at any of them reads the same list. Who tries again, and when, is left to those who were refused.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from ..cluster import permissions
from ..cluster.errors import ClusterError
from ..cluster.permissions import Denied

log = logging.getLogger(__name__)

DIAGNOSIS: Final = "diagnosis of nodes"
DRIVER_OWNERS: Final = "nodes of NVIDIADrivers"
DRIVER_STATUS: Final = "status of NVIDIADrivers"
EVENTS: Final = "events"
EVICTIONS: Final = "evictions"
LEASE: Final = "lease"
LEFTOVERS: Final = "leftovers"
LOOKOUT: Final = "pods and events"
NODES: Final = "nodes"
OBJECTS: Final = "objects"
STATUS: Final = "status"
UPGRADES: Final = "driver upgrades"
UNSAID: Final = frozenset({DIAGNOSIS, DRIVER_STATUS, EVENTS, EVICTIONS, LEASE, LEFTOVERS, LOOKOUT, STATUS})
"""Places whose refusal does not touch the stack: told in ``/readyz``, the log and the metric, not in the conditions."""

REMEDY: Final = (
    "Grant this to the operator's ClusterRole or Role (the Helm chart's are named \"gpu-operator\" and hold all it "
    "needs; helm upgrade restores them). The operator goes on by itself"
)


class Denials:
    """What is refused now, by place."""

    def __init__(self) -> None:
        self._found: dict[str, frozenset[Denied]] = {}
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called when a permission is missing that was not, or no longer."""
        self._listeners.append(listener)

    def note(self, place: str, error: ClusterError | None, about: str = "") -> bool:
        """A request from ``place`` ended, with ``error`` or well. Says whether a permission was missing."""
        missing = permissions.missing(error)
        if missing or error is None:
            self.set(place, [Denied(permission, about) for permission in missing])
        return bool(missing)

    def set(self, place: str, denied: Iterable[Denied]) -> None:
        """All that is refused at ``place``; nothing takes its report back."""
        now = frozenset(denied)
        before = self._found.get(place, frozenset())
        if now == before:
            return
        for each in sorted(now - before):
            log.warning("%s: forbidden: %s %s", place, each.permission, each.about)
        if not now:
            log.info("%s: nothing is forbidden any more", place)
            del self._found[place]
        else:
            self._found[place] = now
        for listener in self._listeners:
            listener()

    def present(self, *, but: Collection[str] = ()) -> frozenset[Denied]:
        """What is refused now, except at the places ``but``."""
        return frozenset().union(*(denied for place, denied in self._found.items() if place not in but))

    def at(self, place: str) -> frozenset[Denied]:
        """What is refused at one place."""
        return self._found.get(place, frozenset())

    @property
    def count(self) -> int:
        """How many different permissions are missing."""
        return len({each.permission for each in self.present()})


def tell(denied: Iterable[Denied]) -> str:
    """The refusals as one text that ends with what to do; empty without any."""
    text = permissions.tell(denied)
    return f"{text}. {REMEDY}" if text else ""
