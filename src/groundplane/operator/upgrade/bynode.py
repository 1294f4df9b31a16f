"""Driver pods and validator pods as an upgrade pass looks at them: slim views, sorted by node as they come and go.

A pass over 5,000 nodes must not sort 10,000 pods again: the indexes here are kept up to date pod by pod. What the facts
mean is the state machine's business.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import field
from msgspec.structs import force_setattr

from ...api import names
from ...cluster.informer import Change, Informer
from ...cluster.views import Meta, PodView
from ..readiness import REVISION_HASH_LABEL, is_running
from .model import DriverPod, ValidatorPod

VALIDATORS: Final = f"app={names.VALIDATOR_APP}"
"""The selector of validator pods, in any namespace (contracts/driver-lifecycle.md 3.8)."""


class _Variable(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    value: str | None = None


class _Container(msgspec.Struct, frozen=True, gc=False):
    env: tuple[_Variable, ...] = ()


class _Spec(msgspec.Struct, frozen=True, gc=False):
    """``spec`` of a driver pod: where it runs, and its configuration's digest in place of its containers."""

    nodeName: str = ""
    initContainers: tuple[_Container, ...] = ()
    containers: tuple[_Container, ...] = ()
    digest: str = ""

    def __post_init__(self) -> None:
        found = (
            variable.value
            for container in (*self.initContainers, *self.containers)
            for variable in container.env
            if variable.name == names.DRIVER_CONFIG_DIGEST and variable.value
        )
        force_setattr(self, "digest", next(found, self.digest))
        force_setattr(self, "initContainers", ())
        force_setattr(self, "containers", ())


class _ContainerStatus(msgspec.Struct, frozen=True, gc=False):
    ready: bool = False
    restartCount: int = 0


class _Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    containerStatuses: tuple[_ContainerStatus, ...] = ()
    initContainerStatuses: tuple[_ContainerStatus, ...] = ()


class DriverPodView(msgspec.Struct, frozen=True, gc=False):
    """A driver pod as the API server tells it."""

    metadata: Meta = Meta()
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = _Status()

    def facts(self) -> DriverPod:
        """The pod as the state machine looks at it (contracts/driver-lifecycle.md 3.3, 3.7)."""
        meta, status = self.metadata, self.status
        unready = (each for each in (*status.initContainerStatuses, *status.containerStatuses) if not each.ready)
        return DriverPod(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            daemon_set=meta.ownerReferences[0].uid if meta.ownerReferences else "",
            hash=meta.labels.get(REVISION_HASH_LABEL, ""),
            phase=status.phase,
            ready=bool(status.containerStatuses) and all(each.ready for each in status.containerStatuses),
            terminating=meta.deleting,
            restarts=max((each.restartCount for each in unready), default=0),
            digest=self.spec.digest,
        )


F = TypeVar("F")
V = TypeVar("V", DriverPodView, PodView)


class ByNode(Generic[V, F]):
    """Facts of pods, by their node. ``changed(node)`` is called when a node's facts are other ones than before."""

    def __init__(self, informer: Informer[V], facts: Callable[[V], F], changed: Callable[[str], None]) -> None:
        self.informer: Informer[V] = informer
        self._facts: Callable[[V], F] = facts
        self._changed = changed
        self._found: defaultdict[str, dict[str, F]] = defaultdict(dict)
        informer.subscribe(self._heard)

    def on(self, node: str) -> tuple[F, ...]:
        """The facts of one node's pods; pods that wait for a node are on none."""
        return tuple(self._found[node].values()) if node in self._found else ()

    @property
    def nodes(self) -> Collection[str]:
        """The nodes that have such pods."""
        return self._found.keys()

    def _heard(self, change: Change[V]) -> None:
        old, new = change.old, change.new
        node = new.spec.nodeName if new is not None else ""
        if old is not None and old.spec.nodeName and (new is None or node != old.spec.nodeName):
            self._drop(old.spec.nodeName, old.metadata.uid)
        if new is None or not node:
            return
        facts = self._facts(new)
        if self._found[node].get(new.metadata.uid) != facts:
            self._found[node][new.metadata.uid] = facts
            self._changed(node)

    def _drop(self, node: str, uid: str) -> None:
        self._found[node].pop(uid, None)
        if not self._found[node]:
            del self._found[node]
        self._changed(node)


def config_digest(pod_spec: Mapping[str, Any]) -> str:
    """``DRIVER_CONFIG_DIGEST`` of a pod's spec: the first that is not empty, init containers first (3.7)."""
    return msgspec.convert(pod_spec, _Spec).digest


def validator(pod: PodView) -> ValidatorPod:
    """A validator pod as the state machine looks at it (contracts/driver-lifecycle.md 3.8)."""
    return ValidatorPod(pod.name, is_running(pod))


def owners(pods: Iterable[DriverPodView]) -> Counter[tuple[str, str]]:
    """How many pods each DaemonSet, by UID, is the first owner of, by node; no node for those not placed (3.2)."""
    return Counter(
        (pod.metadata.ownerReferences[0].uid, pod.spec.nodeName) for pod in pods if pod.metadata.ownerReferences
    )
