"""The objects that are ours, as they are in the cluster, minus what our own last writes have made stale.

A pass compares what it renders with this store. Between a write and its echo on the watch the cached object is known to
be out of date: it is in flight, and no pass judges or writes it again. An object whose deletion was asked for counts as
being deleted until the watch says what became of it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from ..api import names
from ..cluster.apply import Key
from ..cluster.informer import Change
from ..cluster.kinds import NVIDIA_DRIVER, Kind

Object = Mapping[str, Any]

ECHO_S: Final = 5.0
"""How long a write's echo is waited for. A write that changed nothing has none; after this the cache is believed."""


class Source(Protocol):
    """The part of an informer that the store reads."""

    def get(self, name: str, namespace: str = "") -> dict[str, Any] | None:
        """One object."""

    def values(self) -> Iterable[dict[str, Any]]:
        """All objects."""


class _Awaited(msgspec.Struct, frozen=True):
    """A write whose echo has not come: the digest it stored, the version it replaced, and when to stop waiting."""

    digest: str
    before: str
    until: float


def state_of(obj: Object) -> str:
    """The operand state that an object is labelled with, empty for an object that is not ours."""
    return str((obj["metadata"].get("labels") or {}).get(names.STATE_LABEL, ""))


def of_a_driver(obj: Object) -> bool:
    """It belongs to an NVIDIADriver, which looks after it; a ClusterPolicy leaves it alone (contract 2.5)."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(each.get("kind") == NVIDIA_DRIVER.kind for each in owners if _group(each) == NVIDIA_DRIVER.group)


def _group(reference: Mapping[str, Any]) -> str:
    return str(reference.get("apiVersion", "")).rpartition("/")[0]


def deleting(obj: Object) -> bool:
    """Deletion was asked for and is not complete."""
    return bool(obj["metadata"].get("deletionTimestamp"))


class OwnedObjects:
    """What exists, by identity. ``sources`` may grow and shrink as CRDs come and go."""

    def __init__(self) -> None:
        self.sources: dict[Kind, Source] = {}
        self._awaited: dict[Key, _Awaited] = {}
        self._deleted: dict[Key, dict[str, Any]] = {}

    def get(self, key: Key) -> dict[str, Any] | None:
        """The object, labelled ours or not, as far as its kind is watched."""
        if key in self._deleted:
            return self._deleted[key]
        source = self.sources.get(key.kind)
        return source.get(key.name, key.namespace) if source else None

    def of_kind(self, kind: Kind) -> list[dict[str, Any]]:
        """All objects of a kind that are ours."""
        source = self.sources.get(kind)
        found = source.values() if source else ()
        return [self._deleted.get(Key.of(obj), obj) for obj in found if state_of(obj)]

    def ours(self) -> list[dict[str, Any]]:
        """All objects that are ours."""
        return [obj for kind in self.sources for obj in self.of_kind(kind)]

    def in_flight(self, key: Key) -> bool:
        """Whether a write of ours is not yet in the cache."""
        return key in self._awaited

    def writing(self, obj: Object, now: float) -> None:
        """Our (stamped) ``obj`` is about to be written; ``now`` is in seconds of a monotonic clock.

        To be called before the request, as its echo may come before its answer.
        """
        key = Key.of(obj)
        live = self.get(key)
        self._awaited[key] = _Awaited(_digest(obj), _version(live) if live else "", now + ECHO_S)

    def not_written(self, key: Key) -> None:
        """The write failed: no echo will come."""
        self._awaited.pop(key, None)

    def removing(self, obj: Object) -> None:
        """The deletion of ``obj`` is about to be asked for: from now on it counts as being deleted.

        To be called before the request, as its echo may come before its answer, and would then be waited for in vain.
        For the same reason an object that the watch has shown to be gone, or replaced, is not waited for.
        """
        key, meta = Key.of(obj), obj["metadata"]
        source = self.sources.get(key.kind)
        live = source.get(key.name, key.namespace) if source else None
        if live is not None and live["metadata"].get("uid") == meta.get("uid"):
            gone = {**obj, "metadata": {**meta, "deletionTimestamp": meta.get("deletionTimestamp") or "now"}}
            self._deleted[key] = gone

    def not_removed(self, key: Key) -> None:
        """The deletion failed: no echo will come."""
        self._deleted.pop(key, None)

    def heard(self, change: Change[dict[str, Any]]) -> None:
        """A watch reported a change: it may be the echo of a write or a deletion."""
        key = Key.of(change.object)
        self._deleted.pop(key, None)
        awaited = self._awaited.get(key)
        if awaited is None:
            return
        new = change.new
        if new is None or (_digest(new) == awaited.digest and _version(new) != awaited.before):
            del self._awaited[key]

    def expire(self, now: float) -> float | None:
        """Stop waiting for echoes that are overdue; seconds until the next one is, ``None`` without any."""
        for key in [key for key, awaited in self._awaited.items() if awaited.until <= now]:
            del self._awaited[key]
        return min((awaited.until - now for awaited in self._awaited.values()), default=None)


def _digest(obj: Object) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(names.LAST_APPLIED_HASH, ""))


def _version(obj: Object) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))
