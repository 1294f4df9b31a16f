"""Faults of the API server, for tests: rules that make matching requests fail, and the log of all requests.

Rules are consulted by `lab/http.py` before a request is carried out. Nothing here waits or answers by itself.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import msgspec

ANSWERS = ("reset", "hang", "lost")
_LOG_LIMIT = 500_000


class Rule(msgspec.Struct):
    """Requests to fail.

    `verb` is get, list, watch, create, update, patch, delete or deletecollection, `resource` a plural, either "*" for
    any. `answer` is an HTTP status, or "reset" (the connection breaks before the request is carried out), "lost" (it
    is carried out, then the connection breaks), or "hang" (no answer until the client gives up). For watches, 410 is
    sent in the stream. `times` is how many requests fail (None: all), `retry_after` seconds are sent with the status,
    and `user_agent` must be part of the client's.
    """

    verb: str
    resource: str
    name: str | None = None
    times: int | None = 1
    answer: int | str = 500
    retry_after: int | None = None
    user_agent: str | None = None
    subresource: str | None = None
    namespace: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.answer, str) and self.answer not in ANSWERS:
            raise ValueError(f"answer {self.answer!r} is not an HTTP status nor one of {', '.join(ANSWERS)}")

    def matches(self, request: Request) -> bool:
        """Whether the rule still applies and is about this request."""
        return (
            self.times != 0
            and self.verb in ("*", request.verb)
            and self.resource in ("*", request.resource)
            and self.name in (None, request.name)
            and self.namespace in (None, request.namespace)
            and self.subresource in (None, request.subresource)
            and (self.user_agent is None or self.user_agent in request.user_agent)
        )


class Request(msgspec.Struct):
    """One request as logged. `code` is 0 while it is under way and where the connection was broken."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    user_agent: str = ""
    path: str = ""
    code: int = 0


class Faults:
    """The rules in force, the log of requests, and a way to break open watches."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.requests: collections.deque[Request] = collections.deque(maxlen=_LOG_LIMIT)
        self._streams: dict[Callable[[], None], str] = {}

    def add(self, rule: Rule) -> Rule:
        """Put a rule in force; returns it, for `remove`."""
        self.rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Take a rule back; fine if it is used up."""
        self.rules = [item for item in self.rules if item is not rule]

    def clear(self) -> None:
        """Take all rules back."""
        self.rules.clear()

    def match(self, request: Request) -> Rule | None:
        """Return the first rule that applies to a request, and count it."""
        for rule in self.rules:
            if rule.matches(request):
                if rule.times is not None:
                    rule.times -= 1
                return rule
        return None

    def log(self, request: Request) -> None:
        """Append to the log."""
        self.requests.append(request)

    def count(
        self, verb: str | None = None, resource: str | None = None, *, user_agent: str | None = None,
        name: str | None = None,
    ) -> int:  # fmt: skip
        """Return how many logged requests match; None matches all, `user_agent` is a part of it."""
        return sum(
            verb in (None, item.verb)
            and resource in (None, item.resource)
            and name in (None, item.name)
            and (user_agent is None or user_agent in item.user_agent)
            for item in self.requests
        )

    def opened(self, resource: str, cut: Callable[[], None]) -> None:
        """Note an open watch and how to break its connection."""
        self._streams[cut] = resource

    def closed(self, cut: Callable[[], None]) -> None:
        """Forget a watch that ended."""
        self._streams.pop(cut, None)

    def drop_watches(self, resource: str | None = None) -> int:
        """Break the connections of the open watches of a resource, or of all; returns how many."""
        chosen = [cut for cut, held in self._streams.items() if resource in (None, held)]
        for cut in chosen:
            cut()
        return len(chosen)
