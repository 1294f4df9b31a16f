"""Evictions and drains that an upgrade has under way, one task a node.

The state machine begins them and hears of their end in a later pass, as :class:`~.model.Work`. They outlive no process:
one that starts anew begins again (contracts/driver-lifecycle.md 3.12). What a failure means for the node is decided
by the state machine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from ...api.release import Release
from ...cluster import eviction, gpupods, kinds
from ...cluster.client import Client
from ...cluster.errors import ClusterError
from ...cluster.eviction import EvictionError, Pod
from .model import Drain, GpuPod, PodDeletion, Work
from .states import State

log = logging.getLogger(__name__)

PAGE: Final = 500


class Works:
    """What is under way, by node. ``ended(node)`` is called when something has come to its end.

    ``heard`` is told of each that went well and of each that the API server refused.
    """

    def __init__(
        self,
        client: Client,
        release: Release,
        *,
        sleep: Callable[[float], Awaitable[None]],
        ended: Callable[[str], None],
        heard: Callable[[ClusterError | None], object] = lambda _: None,
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._ended = ended
        self._heard = heard
        self._claims = gpupods.ClaimReader(client) if release is not Release.V26_3 else None
        self._held: dict[str, Sequence[Pod]] = {}
        """GPU pods as a pass has just listed them, for the eviction that it may begin."""
        self._found: dict[str, Work] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def all(self) -> dict[str, Work]:
        """Everything that is under way or has ended and was not forgotten."""
        return self._found

    def of(self, node: str, state: State) -> Work | None:
        """The work that was begun for a node in a state."""
        work = self._found.get(node)
        return work if work is not None and work.state is state else None

    def forget(self, node: str) -> None:
        """Nobody waits for the node's work any more; what still runs is left off, what it did stays done."""
        self._found.pop(node, None)
        task = self._tasks.pop(node, None)
        if task is not None:
            task.cancel()

    def forget_all_but(self, wanted: Callable[[str, Work], bool]) -> None:
        """Forget the work of nodes that have gone, or are in another state."""
        for node, work in list(self._found.items()):
            if not wanted(node, work):
                self.forget(node)

    async def aclose(self) -> None:
        """End everything."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._found.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- GPU pods -----------------------------------------------------------------------------------------------------

    async def candidates(self, nodes: Collection[str]) -> Mapping[str, Sequence[Pod]]:
        """The pods of some nodes that may hold a GPU, by node, from one listing of all pods. Raises ClusterError.

        A listing by node costs the API server about as much, once for every node.
        """
        found: dict[str, list[Pod]] = {}
        more = ""
        while True:
            part = await self._client.page(kinds.POD, limit=PAGE, more=more, view=Pod)
            for pod in part.items:
                if pod.spec.nodeName in nodes and gpupods.may_hold(pod):
                    found.setdefault(pod.spec.nodeName, []).append(pod)
            more = part.more
            if not more:
                return found

    async def gpu_pods(
        self, node: str, rules: PodDeletion, candidates: Sequence[Pod] | None = None
    ) -> tuple[GpuPod, ...]:
        """The pods of a node that hold a GPU, and which of them the rules keep (3.11). Raises ClusterError.

        ``candidates`` are looked at if given, else all pods of the node.
        """
        held = self._held[node] = await self._holders(node, candidates)
        choice = await eviction.chosen(self._client, held, _rules(rules))
        kept = {each.pod.key: each.reason for each in choice.kept}
        return tuple(GpuPod(str(pod), kept.get(pod.key, "")) for pod in held)

    async def _holders(self, node: str, candidates: Sequence[Pod] | None = None) -> Sequence[Pod]:
        pods = await eviction.pods_on(self._client, node) if candidates is None else candidates
        claims = await self._claims.of(pods) if self._claims is not None else None
        return gpupods.to_upgrade(pods, claims)

    # --- work ---------------------------------------------------------------------------------------------------------

    def evict(self, node: str, rules: PodDeletion) -> None:
        """Begin to evict the node's GPU pods: all of them, or none if one may not go."""
        self._begin(node, State.POD_DELETION_REQUIRED, lambda: self._evict(node, rules))

    def drain(self, node: str, rules: Drain) -> None:
        """Begin to drain the node."""
        allowed = eviction.Rules(force=rules.force, delete_empty_dir=rules.delete_empty_dir)
        self._begin(
            node,
            State.DRAIN_REQUIRED,
            lambda: eviction.drain(
                self._client,
                node,
                allowed,
                labels=rules.selector,
                timeout_s=rules.timeout_s,
                sleep=self._sleep,
                tell=_teller(node),
            ),
        )

    async def _evict(self, node: str, rules: PodDeletion) -> None:
        held = self._held.pop(node, None)
        choice = await eviction.chosen(self._client, await self._holders(node) if held is None else held, _rules(rules))
        if choice.kept:
            raise EvictionError("not every GPU pod may be evicted: " + "; ".join(map(str, choice.kept)))
        await eviction.evict(
            self._client, node, choice.deletable, timeout_s=rules.timeout_s, sleep=self._sleep, tell=_teller(node)
        )

    def _begin(self, node: str, state: State, work: Callable[[], Awaitable[None]]) -> None:
        self.forget(node)
        self._found[node] = Work(state=state)
        self._tasks[node] = asyncio.create_task(self._run(node, state, work), name=f"{state} {node}")

    async def _run(self, node: str, state: State, work: Callable[[], Awaitable[None]]) -> None:
        failure = ""
        try:
            await work()
            self._heard(None)
        except EvictionError as error:
            failure = str(error)
        except ClusterError as error:
            failure = str(error)
            self._heard(error)
        except Exception as error:  # whatever it is, the node must not wait for it for ever
            log.exception("node %s: %s failed", node, state)
            failure = repr(error)
        self._found[node] = Work(state=state, done=True, failure=failure)
        self._tasks.pop(node, None)
        self._ended(node)


def _rules(rules: PodDeletion) -> eviction.Rules:
    return eviction.Rules(force=rules.force, delete_empty_dir=rules.delete_empty_dir)


def _teller(node: str) -> Callable[[str], None]:
    return lambda text: log.info("node %s: %s", node, text)
