"""Node labelling as a controller of its own: one node, one key, one patch (contracts/control-plane.md 3).

``labels.py`` decides what a node should carry. Here each node whose relevant labels changed is looked at once, all
nodes side by side under a limit, and written only when there is a difference. A refused or lost write is repeated for
that node alone. The patch names the version of the node that was judged, so that a person's ``=false`` which arrived in
between is never overwritten: the API server answers 409 and the node is judged anew. A permission that is missing is
missing for all nodes: one node a time finds out whether it has been granted, the others wait.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from ..api import names
from ..cluster import kinds
from ..cluster.client import Client, PatchType
from ..cluster.errors import ClusterError, NotFound
from ..cluster.informer import Change, Informer
from ..cluster.queue import Controller, Requeue
from ..cluster.views import NodeMetaView, NodeView, earlier
from . import denials as places
from . import labels, triggers
from .clock import Clock
from .denials import Denials
from .fleet import Fleet
from .labels import LabelPolicy
from .retries import Backoff, Guard

log = logging.getLogger(__name__)

PATCH_TYPE: Final = PatchType.STRATEGIC
"""Of labels it says the same as a merge patch, and takes kube-apiserver a tenth less time: no detour through JSON."""


class NodeStore:
    """Every node as last heard of: from the watch, or from the answer to our own patch when that is newer.

    Without the latter, an unrelated event between our write and its echo would have us write the same again.
    """

    def __init__(self, informer: Informer[NodeView]) -> None:
        self.fleet = Fleet()
        self._informer = informer
        self._answers: dict[str, NodeView] = {}
        self._listeners: list[Callable[[str, NodeView | None, NodeView | None], None]] = []
        self._summary_listeners: list[Callable[[], None]] = []

    def start(self) -> None:
        """Listen to the informer; those known already are reported at once."""
        self._informer.subscribe(self._heard)

    def get(self, name: str) -> NodeView | None:
        """The node, ``None`` when it is gone."""
        return self._answers.get(name) or self._informer.get(name)

    def names(self) -> list[str]:
        """The names of all nodes."""
        return [node.name for node in self._informer.values()]

    def on_change(self, listener: Callable[[str, NodeView | None, NodeView | None], None]) -> None:
        """Have ``listener(name, old, new)`` called for every node that comes, changes or goes."""
        self._listeners.append(listener)

    def on_summary(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called when the fleet's summary changes."""
        self._summary_listeners.append(listener)

    def answered(self, node: NodeView, *, tell: bool = False) -> None:
        """The API server has stored ``node`` for us; the watch may have told of a later version or its end already.

        With ``tell`` what was written is news for other listeners: the echo will not tell them.
        """
        heard = self._informer.get(node.name)
        if heard is None or not _older(heard, node):
            return
        before = self.get(node.name)
        self._answers[node.name] = node
        self._sum_up(node.name, node)
        for listener in self._listeners if tell else ():
            listener(node.name, before, node)

    def _heard(self, change: Change[NodeView]) -> None:
        seen = change.new or change.old
        if seen is None:
            return
        name = seen.name
        answer = self._answers.get(name)
        if answer is not None and change.new is not None:
            if _older(change.new, answer):
                return
            if _same_version(change.new, answer):  # the echo of our own write: known, and nothing to look at
                del self._answers[name]
                return
        self._answers.pop(name, None)
        self._sum_up(name, change.new)
        for listener in self._listeners:
            listener(name, answer or change.old, change.new)

    def _sum_up(self, name: str, node: NodeView | None) -> None:
        if self.fleet.update(name, node):
            for listener in self._summary_listeners:
                listener()


def _same_version(one: NodeView, other: NodeView) -> bool:
    return one.metadata.uid == other.metadata.uid and one.metadata.resourceVersion == other.metadata.resourceVersion


def _older(one: NodeView, other: NodeView) -> bool:
    """Whether ``one`` is an earlier version of the same node."""
    a, b = one.metadata, other.metadata
    return a.uid == b.uid and earlier(a.resourceVersion, b.resourceVersion)


PROBE_S: Final = 2.0
"""How long the others wait for the one write that finds out whether nodes may be written again."""
_ALL: Final = "*"
"""Not a node: the key under which refusals for want of a permission are counted."""


class NodeLabelling:
    """Keeps the labels and the upgrade annotation of every node as the policy wants them."""

    def __init__(
        self,
        client: Client,
        store: NodeStore,
        *,
        clock: Clock,
        in_flight: int,
        on_settled: Callable[[], None],
        denials: Denials | None = None,
        guard: Guard = lambda reconcile: reconcile,
    ) -> None:
        self._client = client
        self._store = store
        self._want: LabelPolicy | None = None
        self._waiting: set[str] = set()
        self._rest = asyncio.Event()
        self._rest.set()
        self._backoff: Backoff[str] = Backoff()
        self._warned: dict[str, str] = {}
        self._on_settled = on_settled
        self._denials = denials or Denials()
        self._now = clock.monotonic
        self._refused_until = 0.0
        self._controller = Controller(
            "nodes", guard(self._reconcile), workers=in_flight, clock=clock.monotonic, sleep=clock.sleep
        )

    @property
    def settled(self) -> bool:
        """Every node that wants a look has had at least a first one; failed ones are repeated meanwhile."""
        return not self._waiting

    async def wait_settled(self) -> None:
        """Until :attr:`settled`."""
        await self._rest.wait()

    @property
    def idle(self) -> bool:
        """No node is being looked at or waits for another try."""
        return self._controller.queue.idle

    def want(self, policy: LabelPolicy | None) -> None:
        """The labels to keep from now on; ``None`` when there is no usable policy: then no node is touched."""
        if policy == self._want:
            return
        self._want = policy
        self._refused_until = 0.0
        self._denials.note(places.NODES, None)
        if policy is not None:
            for name in self._store.names():
                self._add(name)

    def start(self) -> None:
        """Listen to the nodes."""
        self._store.on_change(self._node_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    def _node_changed(self, name: str, old: NodeView | None, new: NodeView | None) -> None:
        if new is None:
            self._forget(name)
        elif self._want is not None and triggers.needs_labelling(old, new):
            self._add(name)

    def _add(self, name: str) -> None:
        self._waiting.add(name)
        self._rest.clear()
        self._controller.add(name)

    def _forget(self, name: str) -> None:
        self._backoff.succeeded(name)
        self._warned.pop(name, None)

    async def _reconcile(self, name: str) -> Requeue | None:
        try:
            wait = await self._label(name)
        except NotFound:
            self._forget(name)
            return None
        except ClusterError as error:
            if self._denials.note(places.NODES, error, f"node {name}"):
                return self._refused(error)
            wish = self._backoff.failed(name, error)
            log.warning("node %s: labels not written, again in %.1f s: %s", name, wish.after_s, error)
            return wish
        finally:
            self._looked_at(name)
        self._backoff.succeeded(name)
        return wait

    def _refused(self, error: ClusterError) -> Requeue:
        """No node can be written until somebody grants the permission: all wait, and one of them tries again."""
        wish = self._backoff.failed(_ALL, error)
        self._refused_until = self._now() + wish.after_s
        return wish

    def _hold(self) -> Requeue | None:
        """How long a write must wait, if the last one was refused; when that time is over one write goes first."""
        if not self._refused_until:
            return None
        wait_s = self._refused_until - self._now()
        if wait_s > 0:
            return Requeue(wait_s)
        self._refused_until = self._now() + PROBE_S
        return None

    async def _label(self, name: str) -> Requeue | None:
        node, want = self._store.get(name), self._want
        if node is None or want is None or node.metadata.deleting:
            return None
        self._warn(node, want)
        change = labels.node_changes(node, want)
        if change is None:
            return None
        if (held := self._hold()) is not None:
            return held
        body = change.patch(node.metadata.resourceVersion)
        stored = await self._client.patch(
            kinds.NODE, name, body, type=PATCH_TYPE, field_manager=names.FIELD_MANAGER, view=NodeMetaView
        )
        log.debug("node %s: labels %s, annotations %s", name, change.labels, change.annotations)
        if self._refused_until:
            self._permitted()
        self._store.answered(msgspec.structs.replace(node, metadata=stored.metadata))
        return None

    def _permitted(self) -> None:
        """A node was written again after a refusal: the others need not wait any longer."""
        self._refused_until = 0.0
        self._backoff.succeeded(_ALL)
        self._denials.note(places.NODES, None)
        for name in self._store.names():
            self._controller.add(name)

    def _warn(self, node: NodeView, want: LabelPolicy) -> None:
        """Say once what is wrong with a node's own labels."""
        problem = labels.workload_problem(node, want)
        if problem and self._warned.get(node.name) != problem:
            log.warning("node %s: %s", node.name, problem)
        if problem:
            self._warned[node.name] = problem
        else:
            self._warned.pop(node.name, None)

    def _looked_at(self, name: str) -> None:
        if name in self._waiting:
            self._waiting.discard(name)
            if not self._waiting:
                self._rest.set()
                self._on_settled()
