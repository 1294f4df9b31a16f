"""Everything the operator watches, and the tasks that keep the watches going.

One table says which kinds; those whose CRD may be missing (Prometheus, OpenShift) are watched from the moment it is
installed. No watch is wider than it must be: our own objects by label, pods by the selector of a DaemonSet that needs
them, a referenced ConfigMap or Secret by its name and without its values.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import field

from ..api import names
from ..cluster import kinds, views
from ..cluster.client import Client
from ..cluster.errors import ClusterError, NotFound
from ..cluster.informer import Change, Informer
from ..cluster.kinds import Kind
from ..cluster.views import Meta, MetaView, NodeView, PodView
from . import openshift
from .clock import Clock
from .denials import Denials
from .owned import OwnedObjects
from .readiness import RevisionView

V = TypeVar("V")

GPU_CLUSTER: Final = kinds.register(Kind("nvidia.com", "v1alpha1", "GPUCluster", "gpuclusters", False))

ALWAYS: Final = (
    kinds.DAEMON_SET,
    kinds.SERVICE,
    kinds.CONFIG_MAP,
    kinds.SERVICE_ACCOUNT,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    kinds.CLUSTER_ROLE,
    kinds.CLUSTER_ROLE_BINDING,
    kinds.RUNTIME_CLASS,
)
"""Kinds of operand objects that every cluster has."""

WITH_CRD: Final = {kind.resource: kind for kind in (kinds.SERVICE_MONITOR, kinds.PROMETHEUS_RULE, kinds.SCC)}
"""Kinds of operand objects that exist only with their CRD, by the CRD's name."""

FACTS: Final = (GPU_CLUSTER, kinds.CLUSTER_VERSION, kinds.PROXY, kinds.IMAGE_STREAM)
"""Kinds that exist only with their CRD and decide what is rendered for a policy, beside nodes and CRDs."""

CRD_PAGE: Final = 25
"""CRDs are large documents of which we keep a name."""


class KeysView(msgspec.Struct):
    """A ConfigMap or a Secret without its values: only its keys are kept, sorted."""

    metadata: Meta = Meta()
    data: dict[str, str] = field(default_factory=dict)
    binaryData: dict[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.keys = tuple(sorted({*self.data, *self.binaryData, *self.keys}))
        self.data, self.binaryData = {}, {}


class Trouble(msgspec.Struct, frozen=True):
    """A collection that cannot be followed, and why."""

    kind: Kind
    error: ClusterError

    def __str__(self) -> str:
        return f"{self.kind.resource} cannot be read: {self.error}"


class Caches:
    """The operator's informers. ``changed`` is called when something that a pass may depend on has changed.

    A collection that may not be read does not hold up the others: :attr:`blind` and :attr:`unreadable` say what a pass
    must not judge, ``denials`` hears of the missing permissions.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        clock: Clock,
        denials: Denials | None = None,
        node_view: type[NodeView] = NodeView,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._denials = denials or Denials()
        self._tasks: dict[Informer[Any], list[asyncio.Task[None]]] = {}
        self._troubles: dict[Informer[Any], ClusterError | None] = {}
        self._listeners: list[Callable[[], None]] = []
        self._driver_listeners: list[Callable[[], None]] = []
        self._daemon_set_listeners: list[Callable[[Any, Any], None]] = []
        self.objects = OwnedObjects()
        self.nodes: Informer[NodeView] = self._make(kinds.NODE, node_view)
        self.policies: Informer[dict[str, Any]] = self._make(kinds.CLUSTER_POLICY, dict)
        self.namespaces = self._make(kinds.NAMESPACE, MetaView, fields=f"metadata.name={namespace}")
        self.crds = self._make(kinds.CRD, MetaView, page=CRD_PAGE)
        self.revisions = self._make(kinds.CONTROLLER_REVISION, RevisionView, here=True)
        self.optional: dict[Kind, Informer[Any]] = {}
        self._owned = {kind: self._make_owned(kind) for kind in ALWAYS}
        self._first: tuple[Informer[Any], ...] = (self.policies, self.crds, self.nodes)
        """What node labelling must know."""
        self._base: tuple[Informer[Any], ...] = (*self._first, self.namespaces, self.revisions, *self._owned.values())

    # --- what is known ------------------------------------------------------------------------------------------------

    def served(self, kind: Kind) -> bool:
        """Whether objects of ``kind`` can exist in this cluster."""
        return kind in self._owned or kind in self.optional

    @property
    def cluster_version(self) -> openshift.ClusterVersionView | None:
        """OpenShift's ClusterVersion."""
        found: openshift.ClusterVersionView | None = self._one(kinds.CLUSTER_VERSION, openshift.CLUSTER_VERSION)
        return found

    @property
    def proxy(self) -> openshift.ProxyView | None:
        """OpenShift's cluster-wide proxy."""
        found: openshift.ProxyView | None = self._one(kinds.PROXY, openshift.PROXY)
        return found

    @property
    def image_stream(self) -> openshift.ImageStreamView | None:
        """The driver toolkit's imagestream."""
        found: openshift.ImageStreamView | None = self._one(
            kinds.IMAGE_STREAM, openshift.IMAGE_STREAM, openshift.NAMESPACE
        )
        return found

    @property
    def gpu_clusters(self) -> list[str]:
        """Names of the GPUClusters."""
        informer = self.optional.get(GPU_CLUSTER)
        return sorted(view.metadata.name for view in informer.values()) if informer else []

    @property
    def drivers(self) -> list[dict[str, Any]] | None:
        """The NVIDIADrivers by name, None while they are not known; none where their CRD is not installed."""
        informer = self.optional.get(kinds.NVIDIA_DRIVER)
        if informer is None:
            return [] if self.crds.synced else None
        return sorted(informer.values(), key=lambda each: str(each["metadata"]["name"])) if informer.synced else None

    @property
    def blind(self) -> list[Trouble]:
        """What rendering must know and cannot: without it nothing may be decided, not even that an object can go."""
        facts = [self.crds, self.nodes, *(self.optional[kind] for kind in FACTS if kind in self.optional)]
        return [_trouble(informer) for informer in facts if informer.trouble and not informer.synced]

    @property
    def unread_drivers(self) -> list[Trouble]:
        """Why it is not known which NVIDIADrivers there are."""
        informer = self.optional.get(kinds.NVIDIA_DRIVER)
        return [_trouble(informer)] if informer and informer.trouble and not informer.synced else []

    @property
    def unreadable(self) -> dict[Kind, Trouble]:
        """Kinds of our objects whose live state is not known: they can be neither compared nor pruned."""
        owned = {**self._owned, **{kind: self.optional[kind] for kind in WITH_CRD.values() if kind in self.optional}}
        return {kind: _trouble(informer) for kind, informer in owned.items() if informer.trouble}

    @property
    def unsynced(self) -> list[str]:
        """What every cluster has and has not been listed yet, each with the reason where there is one."""
        return [
            f"{each.kind.resource}: {each.last_error or 'being listed'}{_hint(each)}"
            for each in self._base
            if not each.synced or isinstance(each.last_error, NotFound)
        ]

    def _one(self, kind: Kind, name: str, namespace: str = "") -> Any:
        informer = self.optional.get(kind)
        return informer.get(name, namespace) if informer else None

    # --- making informers ---------------------------------------------------------------------------------------------

    def _make(self, kind: Kind, view: type[Any], *, here: bool = False, **rest: Any) -> Informer[Any]:
        if here:
            rest["namespace"] = self._namespace
        return Informer(self._client, kind, view, sleep=self._clock.sleep, clock=self._clock.monotonic, **rest)

    def _make_owned(self, kind: Kind) -> Informer[dict[str, Any]]:
        """Our objects of a kind, by label; ServiceAccounts all, as one that exists already is left as it is (4.1)."""
        everything = kind is kinds.SERVICE_ACCOUNT
        informer = self._make(kind, dict, here=kind.namespaced, labels=None if everything else names.STATE_LABEL)
        informer.subscribe(self._object_changed)
        self.objects.sources[kind] = informer
        return informer

    def pods_behind(self, selector: str) -> Informer[PodView]:
        """An informer for the pods of a selector, not started."""
        return self._make(kinds.POD, PodView, here=True, labels=selector)

    def pods_as(self, view: type[V], selector: str, *, here: bool) -> Informer[V]:
        """An informer for the pods of a selector as another view, not started; ``here``: in our namespace only."""
        informer: Informer[V] = self._make(kinds.POD, view, here=here, labels=selector)
        return informer

    def keys_of(self, kind: Kind, name: str) -> Informer[KeysView]:
        """An informer for the keys of one ConfigMap or Secret, not started."""
        return self._make(kind, KeysView, here=True, fields=f"metadata.name={name}")

    # --- running ------------------------------------------------------------------------------------------------------

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called for news about anything but nodes, policies and drivers.

        Of DaemonSets it is called only if more than their status moved; :meth:`on_daemon_set` tells all.
        """
        self._listeners.append(changed)

    def on_daemon_set(self, changed: Callable[[Any, Any], None]) -> None:
        """Have ``changed(old, new)`` called for every change of a DaemonSet of ours."""
        self._daemon_set_listeners.append(changed)

    def on_drivers(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called for news about NVIDIADrivers."""
        self._driver_listeners.append(changed)

    def notify(self) -> None:
        """Something that a pass may depend on has changed."""
        for listener in self._listeners:
            listener()

    def start(self, informer: Informer[Any], then: Callable[[], None] | None = None) -> None:
        """Run an informer until :meth:`stop` or :meth:`aclose`; ``then`` is called once it has listed everything."""
        name = f"watch {informer.kind.resource}"
        informer.on_trouble(lambda: self._troubled(informer))
        self._tasks[informer] = [asyncio.create_task(informer.run(), name=name)]
        if then is not None:
            self._tasks[informer].append(asyncio.create_task(_once_synced(informer, then), name=name))

    def stop(self, informer: Informer[Any]) -> None:
        """End an informer."""
        self._denials.set(_place(informer), ())
        self._troubles.pop(informer, None)
        for task in self._tasks.pop(informer, ()):
            task.cancel()

    async def open_first(self) -> None:
        """Start watching what node labelling must know, and wait until it may begin: the nodes are still coming in."""
        self.crds.subscribe(self._crd_changed)
        for informer in self._first:
            self.start(informer)
        await self.policies.wait_settled()
        await self.crds.wait_settled()
        if GPU_CLUSTER in self.optional:
            await self.optional[GPU_CLUSTER].wait_settled()

    async def open(self) -> None:
        """Start watching all else, and wait until everything has been listed once, or refuses to be."""
        self.namespaces.subscribe(lambda _: self.notify())
        for informer in self._base:
            if informer not in self._tasks:
                self.start(informer)
        for informer in self._base:
            await informer.wait_settled()
        for informer in list(self.optional.values()):
            await informer.wait_settled()

    async def aclose(self) -> None:
        """End every informer."""
        tasks = [task for running in self._tasks.values() for task in running]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _troubled(self, informer: Informer[Any]) -> None:
        """An informer has begun or ceased to fail; a hiccup is not news."""
        trouble = informer.trouble
        if informer not in self._tasks or str(self._troubles.get(informer) or "") == str(trouble or ""):
            return
        self._troubles[informer] = trouble
        self._denials.note(_place(informer), trouble)
        self.notify()

    # --- news ---------------------------------------------------------------------------------------------------------

    def _object_changed(self, change: Change[dict[str, Any]]) -> None:
        self.objects.heard(change)
        if kinds.of(change.object) is not kinds.DAEMON_SET:
            self.notify()
            return
        for listener in self._daemon_set_listeners:
            listener(change.old, change.new)
        if change.old is None or change.new is None or _more_than_readiness(change.old, change.new):
            self.notify()

    def _crd_changed(self, change: Change[MetaView]) -> None:
        name = change.object.metadata.name
        for kind, make in self._optional_kinds(name).items():
            if change.new is not None and kind not in self.optional:
                self.optional[kind] = informer = make()
                self.start(informer, self._tell_drivers if kind is kinds.NVIDIA_DRIVER else None)
            elif change.new is None and kind in self.optional:
                self.stop(self.optional.pop(kind))
                self.objects.sources.pop(kind, None)
                self._tell_drivers()
        self.notify()

    def _optional_kinds(self, crd: str) -> dict[Kind, Callable[[], Informer[Any]]]:
        """What to watch once CRD ``crd`` is there."""
        if crd in WITH_CRD:
            kind = WITH_CRD[crd]
            return {kind: lambda: self._make_owned(kind)}
        if crd == GPU_CLUSTER.resource:
            return {GPU_CLUSTER: lambda: self._heeded(GPU_CLUSTER, MetaView)}
        if crd == kinds.NVIDIA_DRIVER.resource:
            return {kinds.NVIDIA_DRIVER: self._make_drivers}
        if crd == kinds.CLUSTER_VERSION.resource:
            return {
                kinds.CLUSTER_VERSION: lambda: self._heeded(kinds.CLUSTER_VERSION, openshift.ClusterVersionView),
                kinds.PROXY: lambda: self._heeded(kinds.PROXY, openshift.ProxyView),
                kinds.IMAGE_STREAM: lambda: self._heeded(
                    kinds.IMAGE_STREAM,
                    openshift.ImageStreamView,
                    namespace=openshift.NAMESPACE,
                    fields=f"metadata.name={openshift.IMAGE_STREAM}",
                ),
            }
        return {}

    def _make_drivers(self) -> Informer[dict[str, Any]]:
        informer: Informer[dict[str, Any]] = self._make(kinds.NVIDIA_DRIVER, dict)
        informer.subscribe(self._driver_changed)
        return informer

    def _driver_changed(self, change: Change[dict[str, Any]]) -> None:
        """Nodes are selected by labels of the user's choice: those that no driver asked for until now are not kept."""
        spec = (change.new or {}).get("spec")
        selector = spec.get("nodeSelector") if isinstance(spec, dict) else None
        if isinstance(selector, dict) and views.keep(selector):
            self.nodes.refresh()
        self._tell_drivers()

    def _tell_drivers(self) -> None:
        for listener in self._driver_listeners:
            listener()

    def _heeded(self, kind: Kind, view: type[Any], **rest: Any) -> Informer[Any]:
        informer = self._make(kind, view, **rest)
        informer.subscribe(lambda _: self.notify())
        return informer


def _hint(informer: Informer[Any]) -> str:
    """What to do about a resource that the API server does not serve."""
    if not isinstance(informer.last_error, NotFound) or informer.kind is not kinds.CLUSTER_POLICY:
        return ""
    return "; its CRD is missing or does not serve v1: groundplane crds | kubectl apply --server-side -f -"


def _place(informer: Informer[Any]) -> str:
    return f"watch {informer.scope}"


def _trouble(informer: Informer[Any]) -> Trouble:
    if informer.trouble is None:
        raise ValueError(f"{informer.kind.resource} is well")
    return Trouble(informer.kind, informer.trouble)


async def _once_synced(informer: Informer[Any], then: Callable[[], None]) -> None:
    await informer.wait_synced()
    then()


def _more_than_readiness(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a pass may have something to do about a DaemonSet, beyond judging its readiness."""
    from ..operands.driver_cleanup import idle  # see policy.py: no operand is needed before the first pass

    bookkeeping = ("resourceVersion", "managedFields")
    before = {key: value for key, value in old["metadata"].items() if key not in bookkeeping}
    after = {key: value for key, value in new["metadata"].items() if key not in bookkeeping}
    return before != after or old.get("spec") != new.get("spec") or idle(old) != idle(new)
