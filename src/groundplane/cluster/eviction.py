"""Taking pods off a node by the eviction API, under the rules of ``kubectl drain``.

:func:`choose` says which pods may go (pure), :func:`evict` asks for them to go and waits until they have, :func:`drain`
is both for a whole node. Budgets are honoured: what a PodDisruptionBudget holds back is asked for again until the time
is over. Which pods should go, and what a failure means, is left to the caller (contracts/driver-lifecycle.md 3.11).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import field

from . import errors, kinds
from .views import Meta, MetaView, OwnerReference

if TYPE_CHECKING:
    from .client import Client

AGAIN_S: Final = 5.0
"""After this an eviction that was held back is asked for again, as kubectl does."""
RELIST_S: Final = 1.0
"""Pause before pods are listed again whose watch has broken off."""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a pod that only shows a static pod of the kubelet's."""

_FINISHED: Final = ("Succeeded", "Failed")

Sleep = Callable[[float], Awaitable[None]]
Key = tuple[str, str]
"""Namespace and name."""


class EvictionError(Exception):
    """Pods cannot be taken off a node; the text names each and says what keeps it."""


class Resources(msgspec.Struct, frozen=True):
    """What a container asks for: quantities as written, by resource name."""

    limits: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)


class Container(msgspec.Struct, frozen=True):
    """A container of a pod."""

    resources: Resources = Resources()


class Volume(msgspec.Struct, frozen=True):
    """A volume; ``emptyDir`` is there if its content goes with the pod."""

    emptyDir: dict[str, Any] | None = None


class ClaimReference(msgspec.Struct, frozen=True):
    """An entry of ``spec.resourceClaims`` or of ``status.resourceClaimStatuses``."""

    name: str = ""
    resourceClaimName: str | None = None


class Spec(msgspec.Struct, frozen=True):
    """``spec`` of a pod, as far as it decides whether the pod may go."""

    nodeName: str = ""
    nodeSelector: dict[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resourceClaims: tuple[ClaimReference, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """``status`` of a pod, as far as it decides whether the pod may go."""

    phase: str = ""
    resourceClaimStatuses: tuple[ClaimReference, ...] = ()


class Pod(msgspec.Struct, frozen=True):
    """A pod that may be evicted."""

    metadata: Meta = Meta()
    spec: Spec = Spec()
    status: Status = Status()

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def finished(self) -> bool:
        """Its containers have ended for good."""
        return self.status.phase in _FINISHED

    @property
    def controller(self) -> OwnerReference | None:
        """What would make the pod anew."""
        return next((owner for owner in self.metadata.ownerReferences if owner.controller), None)

    @property
    def daemon_set(self) -> Key | None:
        """The DaemonSet that manages the pod, if one does."""
        owner = self.controller
        return (self.metadata.namespace, owner.name) if owner is not None and owner.kind == "DaemonSet" else None


class Rules(msgspec.Struct, frozen=True):
    """What may be lost: ``force`` pods that nobody makes anew, ``delete_empty_dir`` what is in emptyDir volumes."""

    force: bool = False
    delete_empty_dir: bool = False


class Kept(NamedTuple):
    """A pod that stays, and why."""

    pod: Pod
    reason: str

    def __str__(self) -> str:
        return f"{self.pod} ({self.reason})"


class Choice(NamedTuple):
    """Pods by what the rules say of them.

    ``deletable`` may go; ``ignored`` are DaemonSets' and static pods, which no drain minds; ``refused`` may not go and
    make a drain fail.
    """

    deletable: tuple[Pod, ...]
    ignored: tuple[Kept, ...]
    refused: tuple[Kept, ...]

    @property
    def kept(self) -> tuple[Kept, ...]:
        """All that stay. Where all or none are to go, any of these means none."""
        return (*self.ignored, *self.refused)


def choose(pods: Iterable[Pod], rules: Rules, gone: Collection[Key] = ()) -> Choice:
    """Which pods may go. ``gone`` are DaemonSets of pods that are no more: :func:`missing_daemon_sets` tells them."""
    deletable, ignored, refused = [], [], []
    for pod in pods:
        if reason := _ignored(pod, gone):
            ignored.append(Kept(pod, reason))
        elif reason := _refused(pod, rules, gone):
            refused.append(Kept(pod, reason))
        else:
            deletable.append(pod)
    return Choice(tuple(deletable), tuple(ignored), tuple(refused))


def _ignored(pod: Pod, gone: Collection[Key]) -> str:
    owner = pod.daemon_set
    if owner is not None and not pod.finished and owner not in gone:
        return f"managed by DaemonSet {owner[1]}, which would start it again at once"
    if MIRROR in pod.metadata.annotations:
        return "a static pod, which the kubelet starts by itself"
    return ""


def _refused(pod: Pod, rules: Rules, gone: Collection[Key]) -> str:
    if pod.finished:
        return ""
    if pod.daemon_set in gone and not rules.force:
        return "its DaemonSet is no more, so nothing makes it anew: force permits it"
    if not rules.delete_empty_dir and any(volume.emptyDir is not None for volume in pod.spec.volumes):
        return "it has an emptyDir volume, whose content would be lost: deleteEmptyDir permits it"
    if not rules.force and pod.controller is None:
        return "it has no controller, so nothing makes it anew: force permits it"
    return ""


# --- the API server ---------------------------------------------------------------------------------------------------


async def pods_on(client: "Client", node: str, labels: str | None = None) -> list[Pod]:
    """The pods on a node, of all namespaces, in order of their names."""
    found = await client.list(kinds.POD, labels=labels or None, fields=f"spec.nodeName={node}", view=Pod)
    return sorted(found.items, key=lambda pod: pod.key)


async def missing_daemon_sets(client: "Client", pods: Iterable[Pod]) -> frozenset[Key]:
    """The DaemonSets by which pods are managed, and that are no more. Raises ClusterError."""

    async def missing(key: Key) -> bool:
        try:
            await client.get(kinds.DAEMON_SET, key[1], key[0], view=MetaView)
        except errors.NotFound:
            return True
        return False

    keys = sorted({pod.daemon_set for pod in pods if pod.daemon_set is not None and not pod.finished})
    found = await asyncio.gather(*map(missing, keys))
    return frozenset(key for key, gone in zip(keys, found, strict=True) if gone)


async def chosen(client: "Client", pods: Sequence[Pod], rules: Rules) -> Choice:
    """:func:`choose`, with the DaemonSets looked up. Raises ClusterError."""
    return choose(pods, rules, await missing_daemon_sets(client, pods))


async def cordon(client: "Client", node: str, *, on: bool = True) -> None:
    """Keep new pods off a node, or let them come again. Raises ClusterError."""
    from .client import PatchType

    body = {"spec": {"unschedulable": on or None}}
    await client.patch(kinds.NODE, node, body, type=PatchType.STRATEGIC, view=MetaView)


async def drain(
    client: "Client",
    node: str,
    rules: Rules,
    *,
    labels: str | None = None,
    timeout_s: float = 0.0,
    sleep: Sleep = asyncio.sleep,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Take all pods off a node that its label selector names; DaemonSets' and static pods stay.

    The node is not cordoned here. Raises :class:`EvictionError`, before any pod is touched if one may not go, and
    ClusterError.
    """
    choice = await chosen(client, await pods_on(client, node, labels), rules)
    if choice.refused:
        raise EvictionError(f"node {node} cannot be drained: {_named(choice.refused)}")
    await evict(client, node, choice.deletable, timeout_s=timeout_s, sleep=sleep, tell=tell)


async def evict(
    client: "Client",
    node: str,
    pods: Iterable[Pod],
    *,
    timeout_s: float = 0.0,
    sleep: Sleep = asyncio.sleep,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Evict pods of a node, and wait until they are gone.

    Each has its own grace period. ``timeout_s`` (0: no limit) counts for all together; ``sleep`` waits for seconds of
    the caller's clock; ``tell`` is told what holds a pod back. Raises :class:`EvictionError` if the time is over, which
    takes nothing back, and ClusterError if the API server refuses an eviction for another reason than a budget.
    """
    this = _Eviction(client, node, {pod.metadata.uid: pod for pod in pods}, sleep, tell)
    if not this.waiting:
        return
    work = [asyncio.ensure_future(each) for each in this.tasks()]
    limit = [asyncio.ensure_future(sleep(timeout_s))] if timeout_s > 0 else []
    try:
        running = {*work, *limit}
        while this.waiting:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if this.waiting and not running.issuperset(limit):
                raise EvictionError(f"timed out after {timeout_s:g} s; still on node {node}: {this.left()}")
    finally:
        for task in (*work, *limit):
            task.cancel()
        await asyncio.gather(*work, *limit, return_exceptions=True)


class _Eviction:
    """Evictions under way; ``waiting`` are the pods that are not gone yet, by UID."""

    def __init__(
        self, client: "Client", node: str, waiting: dict[str, Pod], sleep: Sleep, tell: Callable[[str], None]
    ) -> None:
        self.waiting = waiting
        self._client = client
        self._node = node
        self._sleep = sleep
        self._tell = tell
        self._held: dict[str, str] = {}

    def tasks(self) -> list[Awaitable[None]]:
        return [*(self._ask(pod) for pod in self.waiting.values()), self._watch()]

    def left(self) -> str:
        """What is waited for, for a person."""
        pods = sorted(self.waiting.items(), key=lambda item: item[1].key)
        return _named(Kept(pod, self._held.get(uid) or "evicted, but not gone yet") for uid, pod in pods)

    async def _ask(self, pod: Pod) -> None:
        """Ask for a pod to go until that is granted."""
        uid = pod.metadata.uid
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        while uid in self.waiting:
            try:
                await self._client.create(
                    kinds.POD, body, pod.metadata.namespace, name=pod.metadata.name, subresource="eviction"
                )
            except (errors.NotFound, errors.Conflict):
                # The pod is gone, which the watch tells; or another has its name, or a budget that this server was
                # counting with has just gone or changed, which it says in the same words.
                pass
            except errors.ClusterError as error:
                if not _passing(error):
                    raise
                self._hold(pod, str(error))
            else:
                self._held.pop(uid, None)
                return
            await self._sleep(AGAIN_S)

    def _hold(self, pod: Pod, reason: str) -> None:
        if self._held.get(pod.metadata.uid) != reason:
            self._held[pod.metadata.uid] = reason
            self._tell(f"pod {pod} is not evicted yet, trying again every {AGAIN_S:g} s: {reason}")

    async def _watch(self) -> None:
        """Take note of pods that are gone, until all are."""
        fields = f"spec.nodeName={self._node}"
        while self.waiting:
            found = await self._client.list(kinds.POD, fields=fields, view=MetaView)
            there = {pod.metadata.uid for pod in found.items}
            for uid in [uid for uid in self.waiting if uid not in there]:
                del self.waiting[uid]
            try:
                await self._follow(fields, found.resource_version)
            except (errors.Gone, errors.ConnectionLost, errors.ServerError, errors.TooManyRequests):
                await self._sleep(RELIST_S)

    async def _follow(self, fields: str, version: str) -> None:
        if not self.waiting:
            return
        async for event in self._client.watch(kinds.POD, resource_version=version, fields=fields, view=MetaView):
            if event.type == "DELETED" and event.object is not None:
                self.waiting.pop(event.object.metadata.uid, None)
            if not self.waiting:
                return


def _passing(error: errors.ClusterError) -> bool:
    """Whether an eviction may be granted later: a budget, a server too busy or away, a namespace that is ending."""
    if isinstance(error, errors.TooManyRequests | errors.ConnectionLost):
        return True
    if isinstance(error, errors.ServerError):
        return error.code in (502, 503, 504)
    causes = error.details.get("causes") if isinstance(error, errors.Forbidden) else None
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes or () if isinstance(cause, dict))


def _named(kept: Iterable[Kept]) -> str:
    return "; ".join(map(str, kept))
