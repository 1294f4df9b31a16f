"""Following a cluster for the doctor: evidence anew whenever something changes, at the cost of watches.

Each kind is listed once and watched; logs are read again only of containers whose state changed. So looking on for
hours asks the API server for little more than looking once. What evidence is made of a survey is ``collect``'s.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..cluster import errors, permissions
from ..cluster.informer import Informer
from . import collect
from . import survey as surveys
from .evidence import Evidence, Log
from .survey import KINDS, Survey

if TYPE_CHECKING:
    from ..cluster.client import Client

WATCHED: Final = ("nodes", "pods", "events", "clusterpolicies", "nvidiadrivers", "daemonsets", "deployments")
"""What is followed; the rest of what the doctor reads hardly ever changes, and is read once."""
QUIET_S: Final = 1.0
"""Changes come in bursts: evidence is made once they have paused so long, or after :data:`PATIENCE_S`."""
PATIENCE_S: Final = 5.0
FIRST_S: Final = 30.0
"""How long the first listings may take before what is there is judged."""


class Watching:
    """A cluster that is followed, as an async context manager; :meth:`evidence` gives evidence after evidence."""

    def __init__(
        self, client: "Client", *, namespace: str = surveys.OPERATOR_NAMESPACE, nodes: Sequence[str] = ()
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._nodes = tuple(nodes)
        self._changed = asyncio.Event()
        self._logs = KnownLogs(client)
        self._first: Survey | None = None
        self._informers = {plural: self._informer(plural) for plural in WATCHED}
        self._tasks: list[asyncio.Task[None]] = []

    def _informer(self, plural: str) -> Informer[dict[str, Any]]:
        read = KINDS[plural]
        fields = "type=Warning" if plural == "events" else read.fields or None
        place = self._namespace if read.own else None
        informer = Informer(self._client, read.kind, dict, namespace=place, fields=fields)
        informer.subscribe(lambda _: self._changed.set())
        informer.on_trouble(self._changed.set)
        return informer

    async def __aenter__(self) -> "Watching":
        """Begin to follow. Raises what :func:`~.survey.live` raises."""
        others = [plural for plural in collect.KINDS if plural not in WATCHED]
        self._first = await surveys.live(self._client, others, namespace=self._namespace)
        self._tasks = [asyncio.create_task(informer.run()) for informer in self._informers.values()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def evidence(self) -> AsyncIterator[Evidence]:
        """The evidence now, and again after each burst of changes; without end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await asyncio.gather(*(informer.wait_settled() for informer in self._informers.values()))
        while True:
            self._changed.clear()
            yield await self._look()
            await self._changed.wait()
            until = time.monotonic() + PATIENCE_S
            while self._changed.is_set() and time.monotonic() < until:
                self._changed.clear()
                await asyncio.sleep(QUIET_S)

    async def _look(self) -> Evidence:
        survey = self._survey()
        wishes = collect.wanted_logs(survey, nodes=self._nodes)
        logs, missing = await self._logs.of(survey, wishes.wanted)
        missing = [*wishes.left_out, *missing]
        return collect.of_survey(survey, logs=logs, nodes=self._nodes, missing=missing)

    def _survey(self) -> Survey:
        assert self._first is not None  # entered
        objects = dict(self._first.objects)
        absent, unread = set(self._first.absent), dict(self._first.unread)
        for plural, informer in self._informers.items():
            if informer.synced:
                objects[plural] = tuple(each for _, each in sorted(informer.items()))
            elif isinstance(informer.last_error, errors.NotFound):
                absent.add(plural)
            else:
                unread[plural] = _reason(plural, informer.last_error)
        return Survey(
            version=self._first.version,
            server=self._first.server,
            namespace=self._namespace,
            at=self._client.now(),
            objects=objects,
            absent=frozenset(absent),
            unread=unread,
        )


class KnownLogs:
    """Logs that are read again only when their container's state has changed, or after ``keep_s`` seconds."""

    def __init__(self, client: "Client", keep_s: float = math.inf) -> None:
        self._client = client
        self._keep_s = keep_s
        self._logs: dict[tuple[Any, ...], tuple[float, Log]] = {}

    async def of(self, survey: Survey, wishes: Sequence[collect.Wish]) -> tuple[list[Log], list[str]]:
        """The logs, and sentences about those that could not be read, as :func:`~.collect.read_logs` has them."""
        states, now = _states(survey), time.monotonic()
        known = {key: each for key, each in self._logs.items() if now - each[0] < self._keep_s}
        keys = {wish: (*wish, states.get((wish.namespace, wish.pod, wish.container))) for wish in wishes}
        read, missing = await collect.read_logs(self._client, [each for each in keys if keys[each] not in known])
        fresh = {(log.namespace, log.pod, log.container, log.previous): log for log in read}
        for wish, key in keys.items():
            if log := fresh.get((wish.namespace, wish.pod, wish.container, wish.previous)):
                known[key] = now, log
        self._logs = {key: known[key] for key in keys.values() if key in known}
        return [log for _, log in self._logs.values()], missing


def _reason(plural: str, error: errors.ClusterError | None) -> str:
    if lacking := permissions.missing(error):
        return permissions.tell(permissions.Denied(each) for each in lacking)
    return f"{plural} could not be read: {error or 'no answer yet'}"


def _states(survey: Survey) -> dict[tuple[str, str, str], str]:
    """What a container's log depends on, by namespace, pod and container: its run and how it stands."""
    found = {}
    for pod in survey.of_kind("pods"):
        metadata = pod.get("metadata") or {}
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            key = (str(metadata.get("namespace")), str(metadata.get("name")), str(status.get("name")))
            found[key] = f"{metadata.get('uid')} {status.get('restartCount')} {sorted(status.get('state') or {})}"
        for status in (pod.get("status") or {}).get("initContainerStatuses") or ():
            key = (str(metadata.get("namespace")), str(metadata.get("name")), str(status.get("name")))
            found[key] = f"{metadata.get('uid')} {status.get('restartCount')} {sorted(status.get('state') or {})}"
    return found
