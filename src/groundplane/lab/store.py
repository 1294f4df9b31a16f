"""Versioned storage: what etcd and the watch cache are to a real API server.

Objects are immutable documents with a revision each and their JSON encoded once. Every write appends an event to the
history of its resource; watches read from there, lists of past revisions are rebuilt from there, and what falls out of
the (bounded) history is compacted. No rules of the API live here: names, conflicts and defaults are `lab/api.py`'s.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from . import status

Id = tuple[str, str]
Key = tuple[str, str]
Document = dict[str, Any]
Listener = Callable[["Event"], None]

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
_encode = msgspec.json.Encoder().encode


class Stored:
    """One version of one object. `key` is (namespace, name); `document` must never be changed."""

    __slots__ = ("_raw", "document", "key", "revision")

    def __init__(self, key: Key, document: Document, revision: int) -> None:
        self.key = key
        self.document = document
        self.revision = revision
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The document as JSON, encoded at most once."""
        if self._raw is None:
            self._raw = _encode(self.document)
        return self._raw


class Event:
    """One change: what the object became (`new`; for a deletion its last state) and what it was."""

    __slots__ = ("_lines", "key", "new", "old", "revision", "type")

    def __init__(self, type: str, new: Stored, old: Stored | None, revision: int) -> None:
        self.type = type
        self.new = new
        self.old = old
        self.key = new.key
        self.revision = revision
        self._lines: dict[str, bytes] = {}

    def line(self, type: str) -> bytes:
        """Return the watch line that reports this change as `type`, encoded once for all watchers."""
        line = self._lines.get(type)
        if line is None:
            line = self._lines[type] = b'{"type":"' + type.encode() + b'","object":' + self.new.raw + b"}\n"
        return line


class Table:
    """All objects of one resource, with its history and listeners."""

    def __init__(self, limit: int) -> None:
        self.spaces: dict[str, dict[str, Stored]] = {}
        self.history: collections.deque[Event] = collections.deque()
        self.limit = limit
        self.compacted = 0
        self.listeners: list[Listener] = []
        self.on_drop: list[Callable[[], None]] = []

    def get(self, key: Key) -> Stored | None:
        """Return the object or None."""
        space = self.spaces.get(key[0])
        return space.get(key[1]) if space is not None else None

    def values(self, namespace: str | None) -> Iterator[Stored]:
        """Yield the objects of one namespace, or of all when None; in no particular order."""
        spaces: Iterable[dict[str, Stored]] = (
            self.spaces.values() if namespace is None else filter(None, (self.spaces.get(namespace),))
        )
        for space in spaces:
            yield from space.values()

    def remember(self, event: Event) -> None:
        """Append to the history; forget the oldest beyond the limit."""
        self.history.append(event)
        while len(self.history) > self.limit:
            self.compacted = self.history.popleft().revision


class Store:
    """All tables and the one revision counter they share.

    `history` is how many changes of each resource are kept for watches and past lists.
    """

    def __init__(self, *, history: int = 20_000, first_revision: int = 1) -> None:
        self.revision = first_revision
        self._history = history
        self._tables: dict[Id, Table] = {}

    def table(self, resource: Id) -> Table:
        """Return the table of a resource, made on first use."""
        table = self._tables.get(resource)
        if table is None:
            table = self._tables[resource] = Table(self._history)
        return table

    def drop(self, resource: Id) -> None:
        """Forget a resource that is no longer served, and end what follows it: those in `Table.on_drop` are called."""
        table = self._tables.pop(resource, None)
        for end in tuple(table.on_drop) if table is not None else ():
            end()

    def get(self, resource: Id, namespace: str, name: str) -> Stored | None:
        """Return the stored object or None."""
        return self.table(resource).get((namespace, name))

    def next_revision(self) -> int:
        """Take the next revision."""
        self.revision += 1
        return self.revision

    def put(self, resource: Id, key: Key, document: Document, revision: int) -> Stored:
        """Store a document (its resourceVersion must be `revision`) and tell the listeners."""
        table = self.table(resource)
        space = table.spaces.setdefault(key[0], {})
        old = space.get(key[1])
        new = Stored(key, document, revision)
        space[key[1]] = new
        self._announce(table, Event(MODIFIED if old else ADDED, new, old, revision))
        return new

    def remove(self, resource: Id, key: Key, last: Document, revision: int) -> Stored:
        """Remove an object; `last` is its final state as watches report it, with resourceVersion `revision`."""
        table = self.table(resource)
        old = table.spaces[key[0]].pop(key[1])
        if not table.spaces[key[0]]:
            del table.spaces[key[0]]
        new = Stored(key, last, revision)
        self._announce(table, Event(DELETED, new, old, revision))
        return new

    def _announce(self, table: Table, event: Event) -> None:
        table.remember(event)
        for listener in tuple(table.listeners):
            listener(event)

    def sorted(self, resource: Id, namespace: str | None, revision: int | None = None) -> list[Stored]:
        """Return the objects ordered by key, now or as of `revision`; 410 when that is compacted."""
        table = self.table(resource)
        if revision is None or revision >= self.revision:
            return sorted(table.values(namespace), key=_key)
        if revision < table.compacted:
            raise status.gone("The resourceVersion for the provided list is too old.")
        found = {item.key: item for item in table.values(namespace)}
        for event in reversed(table.history):
            if event.revision <= revision:
                break
            if namespace is not None and event.key[0] != namespace:
                continue
            if event.old is None:
                found.pop(event.key, None)
            else:
                found[event.key] = event.old
        return sorted(found.values(), key=_key)

    def since(self, resource: Id, revision: int) -> list[Event]:
        """Return the events after `revision`, oldest first; 410 when they are compacted."""
        table = self.table(resource)
        if revision < table.compacted:
            raise status.too_old(revision, table.compacted)
        recent: list[Event] = []
        for event in reversed(table.history):
            if event.revision <= revision:
                break
            recent.append(event)
        recent.reverse()
        return recent

    def compact(self, resource: Id | None = None) -> None:
        """Forget the history of one resource, or of all: older watches and continue tokens get 410."""
        tables = self._tables.values() if resource is None else (self.table(resource),)
        for table in tables:
            table.history.clear()
            table.compacted = self.revision


def _key(item: Stored) -> Key:
    return item.key
