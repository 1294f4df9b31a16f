"""When the operator looks, and what it does with what it sees: metrics at once, Events when a second look agrees.

It looks every so often, sooner when something in the caches has changed for the worse or waits to be confirmed. Nothing
that goes wrong here touches reconciliation: a look that fails is counted, logged and done again at the next time.
"""

import asyncio
import logging
from typing import Any, Final

from ...api import names
from ...cluster.client import Client
from ...cluster.errors import ClusterError
from ...cluster.events import EventRecorder, Reference
from ...cluster.informer import Change
from ...cluster.views import GpuNodeStatus, NodeView
from .. import election
from ..caches import Caches
from ..clock import Clock
from ..denials import Denials
from ..settings import Settings
from . import news
from .figures import Figures
from .picture import Picture, judged
from .reading import Reader

log = logging.getLogger(__name__)

PAUSE_S: Final = 10.0
"""At least so much lies between two looks."""


class Diagnosis:
    """The doctor, looking on. :meth:`run` works until it is cancelled."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        settings: Settings,
        *,
        clock: Clock,
        events: EventRecorder,
        denied: Denials,
    ) -> None:
        self.figures = Figures(settings.diagnosis_interval_s)
        self._client = client
        self._caches = caches
        self._interval_s = settings.diagnosis_interval_s
        self._clock = clock
        self._events = events
        self._reader = Reader(client, caches, settings.namespace, denied)
        self._memory: news.Memory | None = None
        self._worse = asyncio.Event()

    async def run(self) -> None:
        """Look on until cancelled."""
        self._caches.on_daemon_set(self._set_changed)
        unsubscribe = self._caches.nodes.subscribe(self._node_changed)
        try:
            while True:
                await self._clock.sleep(PAUSE_S)
                self._worse.clear()
                if not await self._safely():
                    await self._pause()
        finally:
            unsubscribe()

    async def _safely(self) -> bool:
        """Look once, whatever happens; says whether a second look should follow soon."""
        try:
            return await self.look()
        except ClusterError as error:
            log.warning("nodes could not be diagnosed: %s", error)
        except Exception:
            log.exception("the diagnosis of nodes failed")
        self.figures.failures += 1
        return False

    async def _pause(self) -> None:
        """Until the next look is due, or something has changed for the worse."""
        due = asyncio.create_task(self._clock.sleep(max(0.0, self._interval_s - PAUSE_S)))
        worse = asyncio.create_task(self._worse.wait())
        try:
            await asyncio.wait({due, worse}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            due.cancel()
            worse.cancel()

    async def look(self) -> bool:
        """Look once and tell; says whether something is to be confirmed. Raises what reading raises."""
        began = self._clock.monotonic()
        if self._memory is None:
            earlier = await self._reader.earlier()
            for event in earlier:
                self._events.adopt(event)
            self._memory = news.restored(earlier)
        seen = await self._reader.look(self._memory.told.keys())
        picture = Picture() if seen.evidence is None else await asyncio.to_thread(judged, seen.evidence)
        now = self._clock.now().timestamp()
        present = {node.name for node in self._caches.nodes.values()}
        step = news.step(self._memory, picture, now, present=present, unseen=seen.unseen)
        self._memory = step.memory
        for note in step.notes:
            self._record(note)
        figures = self.figures
        figures.sick, figures.cluster, figures.unseen = step.sick, picture.cluster, len(seen.unseen)
        figures.last_success_s, figures.duration_s = now, self._clock.monotonic() - began
        return step.unsure

    # --- Events -------------------------------------------------------------------------------------------------------

    def _record(self, note: news.Note) -> None:
        about = self._node(note.node) if note.node else self._policy()
        if about is not None:
            self._events.event(about, note.type, note.reason, note.message)

    def _node(self, name: str) -> Reference | None:
        view = self._caches.nodes.get(name)
        if view is None:
            return None
        return Reference("v1", "Node", name, uid=view.metadata.uid, resource_version=view.metadata.resourceVersion)

    def _policy(self) -> Reference | None:
        """The ClusterPolicy in force; without any there is no object to say it of."""
        found = {str(each["metadata"]["name"]): each for each in self._caches.policies.values()}
        chosen = election.active(
            election.Candidate(str(each["metadata"].get("creationTimestamp") or ""), name)
            for name, each in found.items()
        )
        return Reference.of(found[chosen]) if chosen else None

    # --- What changes for the worse -----------------------------------------------------------------------------------

    def _set_changed(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        if old is not None and new is not None and _ready(new) < _ready(old):
            self._worse.set()

    def _node_changed(self, change: Change[NodeView]) -> None:
        if change.old is not None and change.new is not None and _sicker(change.old, change.new):
            self._worse.set()


def _ready(daemon_set: dict[str, Any]) -> int:
    return int((daemon_set.get("status") or {}).get("numberReady") or 0)


def _sicker(old: NodeView, new: NodeView) -> bool:
    """Whether a node has ceased to be Ready, offers fewer GPUs or other ones, or failed to change them."""
    failed = any(old.labels.get(label) != new.labels.get(label) for label in _STATES)
    return (not old.not_ready and bool(new.not_ready)) or failed or (_offers(old) not in ({}, _offers(new)))


def _offers(node: NodeView) -> dict[str, str]:
    return node.status.allocatable if isinstance(node.status, GpuNodeStatus) else {}


_STATES: Final = (names.MIG_CONFIG_STATE, names.UPGRADE_STATE)
