"""What we keep of an object in a cache: slim msgspec Structs, decoded straight from the API server's bytes.

msgspec skips every field that a view does not name, so a node's 20 images never become Python objects. Label and
annotation keys that decide nothing here are dropped while decoding, and what stays is interned: 5,000 nodes share one
copy of each key and of each common value. Our own few objects (DaemonSets and the like) are not slimmed; they are kept
as plain dicts. What the values mean is left to the operator.
"""

import datetime
import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import field
from msgspec.structs import force_setattr

from ..api import names

_EMPTY: dict[str, str] = {}
_NFD_KEPT = frozenset(
    value for value in vars(names).values() if isinstance(value, str) and value.startswith(names.NFD_PREFIX)
) | frozenset(names.PCI_GPU_LABELS)
_DOMAIN_PREFIX = names.DOMAIN + "/"


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    """Who made the object; ``controller`` marks the one that manages it."""

    uid: str = ""
    kind: str = ""
    name: str = ""
    apiVersion: str = ""
    controller: bool | None = None


class Meta(msgspec.Struct, frozen=True, gc=False):
    """``metadata`` of an object, without managedFields. Times are RFC 3339 text, in UTC."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    ownerReferences: tuple[OwnerReference, ...] = ()

    @property
    def deleting(self) -> bool:
        """Deletion was asked for; the object waits for its finalizers or its grace period."""
        return self.deletionTimestamp is not None


class MetaView(msgspec.Struct, frozen=True, gc=False):
    """An object of any kind, metadata only: the API server is asked for no more."""

    metadata_only: ClassVar[bool] = True
    metadata: Meta = Meta()


class NodeMeta(msgspec.Struct, frozen=True, gc=False):
    """``metadata`` of a node; labels and annotations hold only keys that matter here (see :func:`relevant`)."""

    name: str = ""
    uid: str = ""
    resourceVersion: str = ""
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    has_nfd: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "has_nfd", any(key.startswith(names.NFD_PREFIX) for key in self.labels))
        force_setattr(self, "labels", relevant(self.labels))
        force_setattr(self, "annotations", relevant(self.annotations))

    @property
    def namespace(self) -> str:
        """Nodes live in no namespace."""
        return ""

    @property
    def deleting(self) -> bool:
        """Deletion was asked for."""
        return self.deletionTimestamp is not None


class NodeMetaView(msgspec.Struct, frozen=True, gc=False):
    """A node's metadata, as the API server answers a patch of its labels."""

    metadata_only: ClassVar[bool] = True
    metadata: NodeMeta = field(default_factory=NodeMeta)


class NodeInfo(msgspec.Struct, frozen=True, gc=False):
    """``status.nodeInfo``: what the kubelet says of its machine."""

    containerRuntimeVersion: str = ""
    kernelVersion: str = ""
    osImage: str = ""
    architecture: str = ""
    kubeletVersion: str = ""


class NodeCondition(msgspec.Struct, frozen=True, gc=False):
    """A condition of a node, without its times."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""

    @property
    def troubled(self) -> bool:
        """The node is not Ready: the one condition that is kept, and only then."""
        return self.type == "Ready" and self.status != "True"


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """``status`` of a node, without images and addresses; of its conditions only why it is not Ready."""

    nodeInfo: NodeInfo = NodeInfo()
    conditions: tuple[NodeCondition, ...] = ()


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    """``spec`` of a node."""

    unschedulable: bool = False


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """A node as the operator sees it."""

    metadata: NodeMeta = field(default_factory=NodeMeta)
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    def __post_init__(self) -> None:
        force_setattr(self, "spec", _shared(self.spec))
        troubles = tuple(each for each in self.status.conditions if each.troubled)
        force_setattr(self, "status", _shared(NodeStatus(self.status.nodeInfo, troubles)))

    @property
    def name(self) -> str:
        """The node's name."""
        return self.metadata.name

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that matter here; read-only."""
        return self.metadata.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations that matter here; read-only."""
        return self.metadata.annotations

    @property
    def has_nfd(self) -> bool:
        """Any label of node feature discovery was there, kept here or not."""
        return self.metadata.has_nfd

    @property
    def not_ready(self) -> str:
        """Why the node is not Ready, empty for one that is or has not said yet."""
        return "; ".join(f"{each.reason}: {each.message}" for each in self.status.conditions)

    @property
    def container_runtime(self) -> str:
        """``status.nodeInfo.containerRuntimeVersion``, e.g. ``containerd://2.1.4``; empty before the kubelet said."""
        return self.status.nodeInfo.containerRuntimeVersion


class GpuNodeStatus(NodeStatus, frozen=True, gc=False):
    """``status`` of a node with the amounts of NVIDIA's resources that it has and offers."""

    capacity: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] = field(default_factory=dict)


class GpuNodeView(NodeView, frozen=True, gc=False):
    """A node as the operator sees it that diagnoses too: the GPUs on offer are kept."""

    status: GpuNodeStatus = field(default_factory=GpuNodeStatus)

    def __post_init__(self) -> None:
        status = self.status
        NodeView.__post_init__(self)
        info, troubles = self.status.nodeInfo, self.status.conditions
        kept = GpuNodeStatus(info, troubles, _amounts(status.capacity), _amounts(status.allocatable))
        force_setattr(self, "status", kept)


class PodSpec(msgspec.Struct, frozen=True, gc=False):
    """``spec`` of a pod: where it runs."""

    nodeName: str = ""


class ContainerStatus(msgspec.Struct, frozen=True, gc=False):
    """One container's readiness."""

    ready: bool = False


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    """``status`` of a pod: its phase and its containers' readiness."""

    phase: str = ""
    containerStatuses: tuple[ContainerStatus, ...] = ()


class PodView(msgspec.Struct, frozen=True, gc=False):
    """A pod as the operator sees it."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.metadata.name

    @property
    def labels(self) -> Mapping[str, str]:
        """The pod's labels; read-only."""
        return self.metadata.labels

    @property
    def owner_uid(self) -> str:
        """UID of the first owner reference, empty without one (contracts/control-plane.md 4.2, step 5)."""
        return self.metadata.ownerReferences[0].uid if self.metadata.ownerReferences else ""

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""
        return self.status.phase

    @property
    def ready(self) -> bool:
        """Every container is Ready; a pod whose containers the kubelet has not reported is not."""
        return bool(self.status.containerStatuses) and all(c.ready for c in self.status.containerStatuses)

    @property
    def node_name(self) -> str:
        """The node it is bound to, empty while unscheduled."""
        return self.spec.nodeName

    @property
    def deleting(self) -> bool:
        """Deletion was asked for."""
        return self.metadata.deleting


S = TypeVar("S", bound=msgspec.Struct)
_SHARED: dict[Any, Any] = {}
_SHARED_LIMIT = 4096


def _shared(value: S) -> S:
    """One copy of an equal immutable Struct: a fleet has few kinds of machines."""
    if len(_SHARED) >= _SHARED_LIMIT:
        _SHARED.clear()
    found: S = _SHARED.setdefault(value, value)
    return found


_AMOUNTS: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}


def _amounts(resources: Mapping[str, str]) -> dict[str, str]:
    """NVIDIA's among the resources of a node; nodes with the same hold one copy, which nobody changes."""
    kept = {name: amount for name, amount in resources.items() if name.startswith(_DOMAIN_PREFIX)}
    if len(_AMOUNTS) >= _SHARED_LIMIT:
        _AMOUNTS.clear()
    return _AMOUNTS.setdefault(tuple(kept.items()), kept) if kept else _EMPTY


def relevant(pairs: Mapping[str, str]) -> dict[str, str]:
    """The labels or annotations that matter here, interned.

    Kept are all of ``nvidia.com/`` (and of its subdomains, as GPU features use them) and the keys of node feature
    discovery that ``api/names.py`` names.
    """
    kept = {}
    for key, value in pairs.items():
        known = _KEYS.get(key)
        if known is None:
            known = _judge(key)
        if known:
            kept[known] = sys.intern(value)
    return kept or _EMPTY


_KEYS: dict[str, str] = {}
"""Every key seen so far: the interned key if it matters, empty if not. A fleet has a few hundred of them."""
_KEYS_LIMIT = 10_000


_ALSO: set[str] = set()
"""Keys that matter because somebody selects nodes by them (:func:`keep`)."""


def keep(keys: Iterable[str]) -> bool:
    """Keep these keys of nodes too, from now on; says whether any was dropped until now.

    Nodes that were decoded before lack them: list them again then (:meth:`.informer.Informer.refresh`).
    """
    news = {key for key in keys if key not in _ALSO and not _matters(key)}
    for key in news:
        _ALSO.add(key)
        _KEYS.pop(key, None)
    return bool(news)


def _judge(key: str) -> str:
    if len(_KEYS) >= _KEYS_LIMIT:
        _KEYS.clear()
    found = _KEYS[key] = sys.intern(key) if _matters(key) else ""
    return found


def _matters(key: str) -> bool:
    if key in _ALSO:
        return True
    if key.startswith(names.NFD_PREFIX):
        return key in _NFD_KEPT
    domain = key.partition("/")[0]
    return key.startswith(_DOMAIN_PREFIX) or domain.endswith("." + names.DOMAIN)


def parse_time(text: str | None) -> datetime.datetime | None:
    """An API timestamp (RFC 3339) as an aware datetime; None for None or empty text."""
    return msgspec.convert(text, datetime.datetime) if text else None


def earlier(one: str, other: str) -> bool:
    """Whether a resourceVersion of an object is earlier than another; they are numbers in all API servers there are."""
    return one.isdecimal() and other.isdecimal() and int(one) < int(other)
