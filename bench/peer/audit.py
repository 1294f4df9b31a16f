"""What each user asked of the API server, counted from its audit log (JSON lines, level Metadata).

One request has one audit ID and up to three lines (received, answer begun, answer complete); it counts once, when its
first line is there. So an open watch counts as soon as it is opened.
"""

import datetime
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

LEASE_AND_WATCHES = frozenset({("get", "leases"), ("create", "leases"), ("update", "leases"), ("patch", "leases")})
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class User(msgspec.Struct):
    """``user`` of an audit event."""

    username: str = ""


class Reference(msgspec.Struct):
    """``objectRef`` of an audit event."""

    resource: str = ""
    subresource: str = ""
    name: str = ""


class Event(msgspec.Struct):
    """One line of the log; ``objectRef`` is absent from what concerns no resource, such as discovery."""

    auditID: str
    verb: str = ""
    requestURI: str = ""
    user: User = msgspec.field(default_factory=User)
    objectRef: Reference | None = None
    requestReceivedTimestamp: datetime.datetime | None = None

    @property
    def resource(self) -> str:
        """Resource and subresource as RBAC writes them, ``nodes/status``; the path where there is none."""
        ref = self.objectRef
        if ref is None or not ref.resource:
            return self.requestURI.partition("?")[0]
        return f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource


Requests = Counter[tuple[str, str]]
"""How many requests, by (verb, resource). Server-side apply is the verb ``patch``."""

_EVENT = msgspec.json.Decoder(Event)


def events(lines: Iterable[bytes], user: str) -> list[Event]:
    """The requests of ``user``, each once, in the order of the log. Raises :class:`msgspec.DecodeError`."""
    name = user.encode()
    seen: dict[str, Event] = {}
    for line in lines:
        if name in line:
            event = _EVENT.decode(line)
            if event.user.username == user:
                seen.setdefault(event.auditID, event)
    return list(seen.values())


def count(found: Iterable[Event]) -> Requests:
    """The requests by verb and resource."""
    return Requests((event.verb, event.resource) for event in found)


def writes(requests: Requests) -> int:
    """How many of them change something."""
    return sum(number for (verb, _), number in requests.items() if verb in WRITES)


def beyond_quiet(requests: Requests) -> Requests:
    """What a program must not ask in a quiet cluster: all but watches and the leader's lease."""
    return Requests(
        {key: number for key, number in requests.items() if key[0] != "watch" and key not in LEASE_AND_WATCHES}
    )


def node_writes(found: Iterable[Event]) -> Counter[str]:
    """Writes to each node, its status included."""
    return Counter(
        event.objectRef.name
        for event in found
        if event.objectRef is not None and event.objectRef.resource == "nodes" and event.verb in WRITES
    )


def first(found: Iterable[Event], verb: str = "", resource: str = "") -> datetime.datetime | None:
    """When the first request arrived, of a verb and a resource where they are given; ``None`` without any."""
    times = [
        event.requestReceivedTimestamp
        for event in found
        if event.requestReceivedTimestamp and verb in ("", event.verb) and resource in ("", event.resource)
    ]
    return min(times, default=None)


class Log:
    """A growing audit log, read piece by piece: each :meth:`new` gives one user's requests since the last."""

    def __init__(self, path: Path, user: str) -> None:
        self._path = path
        self._user = user
        self._offset = 0
        self._ids: set[str] = set()

    def new(self) -> list[Event]:
        """Requests whose first line was written since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        fresh = [event for event in events(whole.split(b"\n"), self._user) if event.auditID not in self._ids]
        self._ids.update(event.auditID for event in fresh)
        return fresh
