"""What a person reads under "Events" in ``kubectl describe``: core/v1 Events, recorded without getting in the way.

:meth:`EventRecorder.event` only queues. A background task writes: an event that repeats bumps the count of the one
that is there, an object that produces too many is cut short, and a server that refuses events costs a log line. Only a
missing permission is waited out, as it hides what happened from whoever has yet to grant it. What is worth an event is
the caller's to say.
"""

import asyncio
import datetime
import itertools
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from . import errors, kinds, permissions
from .client import Client, Retry
from .lease import utc_now

log = logging.getLogger(__name__)

MESSAGE_MAX: Final = 1024
"""The API server refuses longer messages."""
BURST: Final = 25
REFILL_S: Final = 300.0
"""An object may produce 25 events at once and then one in five minutes, as client-go's recorder allows."""
QUEUE_MAX: Final = 10_000
"""So many events wait to be written; an upgrade of a large fleet has bursts of one a node."""
WARNINGS_ONLY: Final = QUEUE_MAX // 10
"""The last places are for warnings."""
REMEMBERED_MAX: Final = 4096
REFUSED = Retry(first_s=1.0, max_s=30.0)
"""How long a recorder that lacks the permission waits before it tries the same event again."""
DRAIN_S: Final = 5.0
"""How long closing waits for the queue to be written."""
CLUSTER_SCOPED_NAMESPACE: Final = "default"
"""The API server takes events about cluster-scoped objects in this namespace only."""


class Reference(msgspec.Struct, frozen=True):
    """The object that an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "Reference":
        """The reference to an object with apiVersion, kind and metadata."""
        meta = obj["metadata"]
        return cls(
            str(obj["apiVersion"]),
            str(obj["kind"]),
            str(meta["name"]),
            str(meta.get("namespace") or ""),
            str(meta.get("uid") or ""),
            str(meta.get("resourceVersion") or ""),
        )


class _Note(msgspec.Struct, frozen=True):
    """One call of :meth:`EventRecorder.event`."""

    about: Reference
    type: str
    reason: str
    message: str
    at: datetime.datetime

    @property
    def same(self) -> tuple[str, ...]:
        """Equal for notes that count as one event."""
        ref = self.about
        return (ref.api_version, ref.kind, ref.namespace, ref.name, ref.uid, self.type, self.reason, self.message)


class _Written(msgspec.Struct):
    """An event that is in the cluster."""

    name: str
    namespace: str
    count: int


class _Bucket(msgspec.Struct):
    """What an object may still produce."""

    tokens: float
    filled_at: float


class EventRecorder:
    """Records events of ``component``. Use it as an async context manager: it owns the task that writes.

    ``namespace`` is for objects of namespaced kinds whose reference names none. ``now`` is the wall clock, ``clock`` a
    monotonic one, in seconds, ``sleep`` that one's way to wait. ``heard`` is told how each write ended. ``dropped``
    counts what was not written: over the rate, over the queue, or refused.
    """

    def __init__(
        self,
        client: Client,
        component: str,
        namespace: str,
        *,
        instance: str = "",
        now: Callable[[], datetime.datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        heard: Callable[[errors.ClusterError | None], object] = lambda _: None,
    ) -> None:
        self.dropped = 0
        self._sleep = sleep
        self._heard = heard
        self._refused = False
        self._full = False
        self._client = client
        self._component = component
        self._namespace = namespace
        self._instance = instance
        self._now = now
        self._clock = clock
        self._serial = itertools.count()
        self._queue: asyncio.Queue[_Note] = asyncio.Queue(QUEUE_MAX)
        self._known: OrderedDict[tuple[str, ...], _Written] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, ...], _Bucket] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EventRecorder":
        self._task = asyncio.create_task(self.run(), name=f"events-{self._component}")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.wait_for(self._queue.join(), 0 if self._refused else DRAIN_S)
        except TimeoutError:
            log.warning("%d events were not written in time", self._queue.qsize())
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def event(
        self, obj_ref: Reference | Mapping[str, Any], type: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Queue an event about an object (a reference or the object itself). Never blocks, never raises."""
        try:
            about = obj_ref if isinstance(obj_ref, Reference) else Reference.of(obj_ref)
            if type != "Warning" and self._queue.qsize() >= QUEUE_MAX - WARNINGS_ONLY:
                raise asyncio.QueueFull
            self._queue.put_nowait(_Note(about, type, reason, _cut(message), self._now()))
            self._full = self._full and self._queue.qsize() > QUEUE_MAX // 2
        except asyncio.QueueFull:
            self.dropped += 1
            level = logging.DEBUG if self._full else logging.WARNING
            log.log(level, "event %s (%s) dropped, as %d wait to be written", reason, message, self._queue.qsize())
            self._full = True
        except (KeyError, TypeError) as error:
            self.dropped += 1
            log.warning("event %s (%s) dropped: %r", reason, message, error)

    def adopt(self, event: Mapping[str, Any]) -> None:
        """Take an Event that an earlier process recorded for ours: the same once more counts as its repetition."""
        about, meta = event.get("involvedObject") or {}, event["metadata"]
        namespace = str(about.get("namespace") or "")
        reference = Reference(
            str(about.get("apiVersion") or ""),
            str(about.get("kind") or ""),
            str(about.get("name") or ""),
            namespace,
            str(about.get("uid") or ""),
        )
        kind, reason, message = (str(event.get(part) or "") for part in ("type", "reason", "message"))
        note = _Note(reference, kind, reason, message, self._now())
        written = _Written(str(meta["name"]), str(meta["namespace"]), int(event.get("count") or 1))
        _remember(self._known, note.same, written)

    async def run(self) -> None:
        """Write what was queued, until cancelled. Only needed without the context manager."""
        while True:
            note = await self._queue.get()
            try:
                await self._permitted(note)
            except errors.ClusterError as error:
                self.dropped += 1
                log.warning("event %s about %s %s: %s", note.reason, note.about.kind, note.about.name, error)
            except Exception:
                self.dropped += 1
                log.exception("event %s about %s %s failed", note.reason, note.about.kind, note.about.name)
            finally:
                self._queue.task_done()

    async def _permitted(self, note: _Note) -> None:
        """Record a note, as often as it takes until somebody grants the permission; other refusals are final."""
        if not self._allowed(note.about):
            self.dropped += 1
            return
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._record(note)
            except errors.ClusterError as error:
                self._heard(error)
                self._refused = bool(permissions.missing(error))
                if not self._refused:
                    raise
            else:
                self._refused = False
                self._heard(None)
                return
            await self._sleep(REFUSED.delay(attempt, None, random.random))

    async def _record(self, note: _Note) -> None:
        known = self._known.get(note.same)
        if known is not None and await self._bump(note, known):
            return
        body = self._body(note)
        await self._client.create(kinds.CORE_EVENT, body)
        meta = body["metadata"]
        _remember(self._known, note.same, _Written(meta["name"], meta["namespace"], 1))

    async def _bump(self, note: _Note, known: _Written) -> bool:
        """Count one more; False if the event has expired meanwhile (the API server keeps them for an hour)."""
        change = {"count": known.count + 1, "lastTimestamp": _stamp(note.at)}
        try:
            await self._client.patch(kinds.CORE_EVENT, known.name, change, namespace=known.namespace)
        except errors.NotFound:
            return False
        known.count += 1
        self._known.move_to_end(note.same)
        return True

    def _allowed(self, about: Reference) -> bool:
        key = (about.api_version, about.kind, about.namespace, about.name)
        now = self._clock()
        bucket = self._buckets.get(key) or _Bucket(float(BURST), now)
        bucket.tokens = min(float(BURST), bucket.tokens + (now - bucket.filled_at) / REFILL_S)
        bucket.filled_at = now
        _remember(self._buckets, key, bucket)
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True

    def _body(self, note: _Note) -> dict[str, Any]:
        about, stamp = note.about, _stamp(note.at)
        namespace = self._namespace_of(about)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self._name(note), "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "namespace": namespace if self._namespaced(about) else "",
                "uid": about.uid,
                "resourceVersion": about.resource_version,
            },
            "type": note.type,
            "reason": note.reason,
            "message": note.message,
            "source": {"component": self._component, "host": self._instance},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }

    def _name(self, note: _Note) -> str:
        """Unique also where several events fall into one tick of the clock."""
        return f"{note.about.name}.{int(note.at.timestamp() * 1e6):x}{next(self._serial) & 0xFFF:03x}"

    def _namespace_of(self, about: Reference) -> str:
        if about.namespace:
            return about.namespace
        return self._namespace if self._namespaced(about) else CLUSTER_SCOPED_NAMESPACE

    def _namespaced(self, about: Reference) -> bool:
        if about.namespace:
            return True
        try:
            return kinds.of({"apiVersion": about.api_version, "kind": about.kind}).namespaced
        except kinds.UnknownKind:
            return False


def _remember(memory: OrderedDict[tuple[str, ...], Any], key: tuple[str, ...], value: object) -> None:
    """Keep the most recently used entries."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > REMEMBERED_MAX:
        memory.popitem(last=False)


def _stamp(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cut(message: str) -> str:
    data = message.encode()
    if len(data) <= MESSAGE_MAX:
        return message
    return data[: MESSAGE_MAX - 3].decode("utf-8", "ignore") + "..."
