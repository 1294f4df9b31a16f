"""Watches: a queue of changes of one resource, filtered by namespace and selectors.

A change that makes an object start or stop matching the selectors is reported as ADDED or DELETED, as the API server's
watch cache does. The queue is filled synchronously at commit; the consumer awaits it.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable
from typing import Any

from . import store
from .resources import Resource
from .selectors import FieldSelector, LabelSelector
from .store import Document, Event, Table

QUEUE_LIMIT = 100_000
"""Undelivered changes after which a watch is ended; the client then lists again."""


def _departure(event: Event) -> Event:
    """Return the deletion that tells of an object's leaving the selection: its last state in it, at the new version."""
    assert event.old is not None
    last = event.old.document
    meta = {**last["metadata"], "resourceVersion": str(event.revision)}
    gone = store.Stored(event.key, {**last, "metadata": meta}, event.revision)
    return Event(store.DELETED, gone, event.old, event.revision)


class Watch:
    """An asynchronous iterator of (type, object). Close it, or use it as a context manager."""

    def __init__(
        self,
        table: Table,
        resource: Resource,
        namespace: str | None,
        labels: LabelSelector,
        fields: FieldSelector,
        past: Iterable[Event] = (),
        skip_to: int = 0,
    ) -> None:
        self.resource = resource
        self.overflowed = False
        self._table = table
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._skip_to = skip_to
        self._queue: collections.deque[tuple[str, Event]] = collections.deque()
        self._ready = asyncio.Event()
        self._closed = False
        for event in past:
            self._offer(event)
        table.listeners.append(self._offer)
        table.on_drop.append(self.close)

    def _offer(self, event: Event) -> None:
        if self._namespace is not None and event.key[0] != self._namespace:
            return
        if event.revision <= self._skip_to:
            return
        kind = self._kind_of(event)
        if kind is None:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self.overflowed = True
            self.close()
            return
        self._queue.append((kind, event if kind == event.type or kind != store.DELETED else _departure(event)))
        self._ready.set()

    def _matches(self, document: Document) -> bool:
        return self._labels.matches(document["metadata"].get("labels")) and self._fields.matches(document)

    def _kind_of(self, event: Event) -> str | None:
        if not self._labels and not self._fields:
            return event.type
        now = event.type != store.DELETED and self._matches(event.new.document)
        before = event.old is not None and self._matches(event.old.document)
        if now:
            return store.MODIFIED if before else store.ADDED
        return store.DELETED if before else None

    def take(self) -> list[tuple[str, Event]]:
        """Return everything queued, without waiting."""
        found = list(self._queue)
        self._queue.clear()
        self._ready.clear()
        return found

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until something is queued or the watch is closed; False after `timeout_s`."""
        if self._queue or self._closed:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    @property
    def pending(self) -> bool:
        """Whether changes are queued."""
        return bool(self._queue)

    @property
    def closed(self) -> bool:
        """Whether no more changes will be queued."""
        return self._closed

    def close(self) -> None:
        """Stop; what is queued can still be taken."""
        if not self._closed:
            self._closed = True
            self._table.listeners.remove(self._offer)
            self._table.on_drop.remove(self.close)
            self._ready.set()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> tuple[str, dict[str, Any]]:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        kind, event = self._queue.popleft()
        return kind, event.new.document

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
