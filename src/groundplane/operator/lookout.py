"""When to look for the causes of what is not ready, and the few requests that takes.

Pods are not watched: five thousand nodes have tens of thousands of them. A state that stays not ready for some seconds
is looked into: one page of its pods that do not run, and at most once the events of one of them. It is looked into
again ever more rarely while it stays so. What is ready costs nothing. The judgement is ``causes.py``'s.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..cluster import kinds
from ..cluster.client import Client
from ..cluster.errors import ClusterError
from . import causes, denials
from .causes import Cause, EventView, Pod
from .clock import Clock
from .denials import Denials
from .rollouts import selector_of

log = logging.getLogger(__name__)

PATIENCE_S: Final = 10.0
"""A state may be not ready for this long before anybody asks why."""
AGAIN_MAX_S: Final = 300.0
STATES_MAX: Final = 4
"""States looked into at a time: later ones mostly wait for earlier ones."""
SELECTORS_MAX: Final = 2
PAGE: Final = 50
PAGES_MAX: Final = 4
NODE_PATIENCE_S: Final = 30.0
"""A node may be not Ready for this long, as in a restart of its kubelet, before it is told."""


class Found(msgspec.Struct, frozen=True):
    """The cause of a state that is not ready, and the sentence about it."""

    state: str
    cause: Cause
    text: str

    def __str__(self) -> str:
        return f"{self.state}: {self.text}"


class _Case(msgspec.Struct):
    """A state that is not ready: when to look next, how long after that, and what was found."""

    due: float
    again_s: float = PATIENCE_S
    found: Found | None = None


class Lookout:
    """The states that are not ready, and the nodes."""

    def __init__(self, client: Client, namespace: str, *, clock: Clock, denials: Denials) -> None:
        self._client = client
        self._namespace = namespace
        self._now = clock.monotonic
        self._denials = denials
        self._cases: dict[str, _Case] = {}
        self._unready_since: dict[str, float] = {}

    async def look(
        self, suspects: Mapping[str, Sequence[Mapping[str, Any]]], unready: Mapping[str, str]
    ) -> tuple[Found, ...]:
        """What is known of the causes of ``suspects``: the DaemonSets that are not ready, by state, in apply order.

        Asks the API server where it is time to. ``unready`` says why nodes are not Ready, by name.
        """
        now = self._now()
        self._cases = {state: self._cases.get(state) or _Case(now + PATIENCE_S) for state in suspects}
        for state in list(suspects)[:STATES_MAX]:
            case = self._cases[state]
            if case.due <= now:
                case.found = await self._investigate(state, suspects[state], unready)
                case.again_s = min(case.again_s * 2.0, AGAIN_MAX_S)
                case.due = now + case.again_s
        return tuple(case.found for case in self._cases.values() if case.found is not None)

    @property
    def waits(self) -> bool:
        """Something is yet to be looked at, or told, for the first time; looking again at the same is no news."""
        now = self._now()
        first = any(case.again_s == PATIENCE_S for case in list(self._cases.values())[:STATES_MAX])
        return first or any(at + NODE_PATIENCE_S > now for at in self._unready_since.values())

    def next_s(self) -> float | None:
        """Seconds until something is due to be looked at, ``None`` while nothing is."""
        due = [case.due for case in list(self._cases.values())[:STATES_MAX]]
        now = self._now()
        due += [at + NODE_PATIENCE_S for at in self._unready_since.values() if at + NODE_PATIENCE_S > now]
        return max(min(due) - now, 0.1) if due else None

    def nodes(self, unready: Mapping[str, str]) -> dict[str, str]:
        """The nodes among ``unready`` that have been so for a while."""
        now = self._now()
        self._unready_since = {name: self._unready_since.get(name, now) for name in unready}
        return {name: unready[name] for name, at in self._unready_since.items() if now - at >= NODE_PATIENCE_S}

    # --- one state ----------------------------------------------------------------------------------------------------

    async def _investigate(
        self, state: str, daemon_sets: Iterable[Mapping[str, Any]], unready: Mapping[str, str]
    ) -> Found | None:
        pods: list[Pod] = []
        try:
            for selector in sorted({selector_of(each) for each in daemon_sets})[:SELECTORS_MAX]:
                pods += await self._stopped(selector)
            told = causes.summary(_by_cause(pods, unready))
            if told is not None and not told[0].blocks:
                told = await self._sandbox(pods) or told
        except ClusterError as error:
            self._denials.note(denials.LOOKOUT, error)
            log.info("%s: why it is not ready cannot be looked up: %s", state, error)
            return None
        self._denials.note(denials.LOOKOUT, None)
        return Found(state, *told) if told is not None else None

    async def _stopped(self, selector: str) -> list[Pod]:
        """Some pods behind a selector that do not run; those that have never run come first."""
        fields = "status.phase!=Running,status.phase!=Succeeded"
        part = await self._client.page(kinds.POD, self._namespace, labels=selector, fields=fields, limit=PAGE, view=Pod)
        if part.items:
            return part.items
        more = ""
        for _ in range(PAGES_MAX):
            part = await self._client.page(
                kinds.POD, self._namespace, labels=selector, limit=PAGE * 10, more=more, view=Pod
            )
            found = [pod for pod in part.items if not pod.running]
            more = part.more
            if found or not more:
                return found[:PAGE]
        return []

    async def _sandbox(self, pods: Iterable[Pod]) -> tuple[Cause, str] | None:
        """What the events of the oldest pod say that has not come as far as a container."""
        waiting = [pod for pod in pods if pod.spec.nodeName and not pod.running and not pod.sandboxed]
        oldest = min(waiting, key=lambda pod: (pod.metadata.creationTimestamp or "", pod.metadata.name), default=None)
        if oldest is None:
            return None
        fields = f"involvedObject.uid={oldest.metadata.uid},type=Warning"
        part = await self._client.page(kinds.EVENT, self._namespace, fields=fields, limit=PAGE, view=EventView)
        cause = causes.of_events(part.items)
        return causes.summary({cause: [pod.spec.nodeName for pod in waiting]}) if cause is not None else None


def _by_cause(pods: Iterable[Pod], unready: Mapping[str, str]) -> dict[Cause, list[str]]:
    found: dict[Cause, list[str]] = {}
    for pod in pods:
        cause = causes.of_pod(pod, unready)
        if cause is not None:
            found.setdefault(cause, []).append(pod.spec.nodeName)
    return found


def telling(found: Sequence[Found]) -> tuple[Found, ...]:
    """What of it a person should read: all that blocks, or the first of what is only on its way."""
    blocking = tuple(each for each in found if each.cause.blocks)
    return blocking or tuple(found[:1])
