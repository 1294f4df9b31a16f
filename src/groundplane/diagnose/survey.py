"""A survey: what the API server showed of a cluster, and what it did not show.

One shape for every origin: read live (:func:`live`), from documents in files or an archive (:meth:`Survey.of`). All of
the administrator's commands judge surveys, so that a check answers the same offline as live. Objects are the API's
JSON, less what nobody reads (:data:`KINDS` says what of which kind), so that thousands of nodes fit. What could not be
read stands in :attr:`Survey.unread` with the reason, and is never taken for empty. Nothing here judges.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from ..cluster import errors, kinds, permissions
from ..cluster.kinds import Kind

if TYPE_CHECKING:
    from ..cluster.client import Client

Object = dict[str, Any]
OPERATOR_NAMESPACE: Final = "gpu-operator"

_POD_SPEC: Final = frozenset(
    (
        *("nodeName", "nodeSelector", "affinity", "tolerations", "runtimeClassName", "schedulerName", "resourceClaims"),
        *("priorityClassName", "containers", "initContainers", "volumes", "restartPolicy", "serviceAccountName"),
        *("terminationGracePeriodSeconds", "schedulingGates", "hostUsers", "hostNetwork"),
    )
)
_CONTAINER: Final = frozenset(("name", "image", "command", "args", "env", "resources", "ports"))


def _plain(thing: Object) -> None:
    """What is of no use in any object."""
    metadata = thing.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
        annotations = metadata.get("annotations")
        if isinstance(annotations, dict):
            annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)


_ALIKE: Final[Mapping[str, tuple[str, ...]]] = {
    "metadata": ("labels", "ownerReferences"),
    "spec": ("containers", "initContainers", "volumes", "tolerations", "affinity", "nodeSelector"),
}
"""What thousands of pods have alike, by the part that it is in."""


def _share(thing: Object, shared: dict[bytes, Any]) -> None:
    """Have objects with equal parts hold one and the same; nobody changes a surveyed object."""
    for part, names in _ALIKE.items():
        inner = thing.get(part)
        if not isinstance(inner, dict):
            continue
        for name in names:
            if value := inner.get(name):
                inner[name] = shared.setdefault(msgspec.json.encode(value), value)


def _node(thing: Object) -> None:
    _plain(thing)
    status = thing.get("status")
    if isinstance(status, dict):
        status.pop("images", None)


def _pod(thing: Object) -> None:
    _plain(thing)
    spec = thing.get("spec")
    if not isinstance(spec, dict):
        return
    for name in [name for name in spec if name not in _POD_SPEC]:
        del spec[name]
    for part in ("containers", "initContainers"):
        for container in spec.get(part) or ():
            for name in [name for name in container if name not in _CONTAINER]:
                del container[name]


class Read(NamedTuple):
    """How a kind is read: ``own`` in the operator's namespace only, with a field selector, and what is left out."""

    kind: Kind
    own: bool = False
    fields: str = ""
    reduce: Callable[[Object], None] = _plain


VALIDATING_WEBHOOK: Final = Kind(
    "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)
MUTATING_WEBHOOK: Final = Kind(
    "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
)
RESOURCE_QUOTA: Final = Kind("", "v1", "ResourceQuota", "resourcequotas", True)
GPU_CLUSTER: Final = Kind("nvidia.com", "v1alpha1", "GPUCluster", "gpuclusters", False)
COMPUTE_DOMAIN: Final = Kind("resource.nvidia.com", "v1beta1", "ComputeDomain", "computedomains", True)

KINDS: Final[Mapping[str, Read]] = {
    read.kind.plural: read
    for read in (
        Read(kinds.NODE, reduce=_node),
        Read(kinds.POD, reduce=_pod),
        Read(kinds.NAMESPACE),
        Read(kinds.CLUSTER_POLICY),
        Read(kinds.NVIDIA_DRIVER),
        Read(kinds.DAEMON_SET, own=True),
        Read(kinds.DEPLOYMENT, own=True),
        Read(kinds.CONTROLLER_REVISION, own=True),
        Read(kinds.JOB, own=True),
        Read(kinds.CONFIG_MAP, own=True),
        Read(kinds.SERVICE, own=True),
        Read(kinds.CORE_EVENT),
        Read(kinds.CRD),
        Read(kinds.RUNTIME_CLASS),
        Read(kinds.PDB),
        Read(kinds.NODE_FEATURE),
        Read(kinds.NODE_FEATURE_RULE),
        Read(kinds.RESOURCE_CLAIM),
        Read(kinds.RESOURCE_SLICE),
        Read(kinds.SERVICE_MONITOR),
        Read(kinds.CLUSTER_VERSION),
        Read(VALIDATING_WEBHOOK),
        Read(MUTATING_WEBHOOK),
        Read(RESOURCE_QUOTA),
        Read(GPU_CLUSTER),
        Read(COMPUTE_DOMAIN),
        Read(kinds.SECRET, fields="type=helm.sh/release.v1"),
    )
}
"""What can be surveyed, by plural. Secrets are Helm's releases only; commands never print or save them as they are."""


class Survey(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What was seen of a cluster."""

    version: str = ""
    """``gitVersion`` of the API server; empty if it was not told."""
    server: str = ""
    namespace: str = OPERATOR_NAMESPACE
    """The operator's."""
    at: float = 0.0
    """When the cluster was read, Unix seconds of the reader's clock."""
    objects: Mapping[str, tuple[Object, ...]] = {}
    """By plural, ordered by namespace and name. A plural that is missing was not read: see :attr:`unread`."""
    absent: frozenset[str] = frozenset()
    """Kinds that the cluster does not know, such as ``clusterpolicies`` before the definition is installed."""
    unread: Mapping[str, str] = {}
    """By plural, why it could not be read: a sentence that names the permission that lacks, or the server's answer."""

    def of_kind(self, plural: str) -> tuple[Object, ...]:
        """The objects of a kind; empty too if it was not read, which :meth:`knows` tells."""
        return self.objects.get(plural, ())

    def knows(self, plural: str) -> bool:
        """Whether a kind was read, or is not served at all: then "there is none" is a fact."""
        return plural in self.objects or plural in self.absent

    @cached_property
    def pods_by_node(self) -> Mapping[str, list[Object]]:
        """Pods by the node that they are bound to."""
        found: dict[str, list[Object]] = {}
        for pod in self.of_kind("pods"):
            node = (pod.get("spec") or {}).get("nodeName")
            if node:
                found.setdefault(node, []).append(pod)
        return found

    @classmethod
    def of(
        cls,
        documents: Iterable[Object],
        *,
        version: str = "",
        namespace: str = OPERATOR_NAMESPACE,
        at: float = 0.0,
        read: Iterable[str] = (),
        unread: Mapping[str, str] | None = None,
    ) -> Self:
        """A survey of documents as ``kubectl get -o yaml`` prints them (Lists are taken apart).

        ``read`` names kinds that were looked for even if no document is of one. Kinds that are in no document and not
        in ``read`` are unread. Documents are reduced in place.
        """
        found: dict[str, list[Object]] = {plural: [] for plural in read}
        for document in _items(documents):
            known = _BY_NAME.get((str(document.get("apiVersion") or "").partition("/")[0], str(document.get("kind"))))
            if known is not None and isinstance(document.get("metadata"), dict):
                known.reduce(document)
                found.setdefault(known.kind.plural, []).append(document)
        told = dict(unread or {})
        lacking = {
            plural: told.get(plural, "it was not captured") for plural in KINDS if plural not in found or plural in told
        }
        return cls(
            version=version,
            namespace=namespace,
            at=at,
            objects={plural: _ordered(items) for plural, items in found.items()},
            unread=lacking,
        )


_BY_NAME: Final = {
    (read.kind.group if read.kind.group else read.kind.version, read.kind.kind): read for read in KINDS.values()
}


def _items(documents: Iterable[Object]) -> Iterable[Object]:
    for document in documents:
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            kind = str(document["kind"]).removesuffix("List")
            head = {"kind": kind, "apiVersion": document.get("apiVersion")} if kind else {}
            yield from _items([{**head, **item} for item in items if isinstance(item, dict)])
        else:
            yield document


def _ordered(items: Iterable[Object]) -> tuple[Object, ...]:
    def key(item: Object) -> tuple[str, str]:
        metadata = item["metadata"]
        return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")

    return tuple(sorted(items, key=key))


PAGE: Final = 500
"""Objects of an answer; a listing of thousands is read in pages so that memory holds one page of raw text."""
ANSWER_S: Final = 30.0
"""A server that says nothing for so long when it is asked for its version will not answer anything."""
_OBJECT: Final = msgspec.json.Decoder(Object)


async def live(
    client: "Client",
    plurals: Iterable[str],
    *,
    namespace: str = OPERATOR_NAMESPACE,
    tell: Callable[[str, int], None] = lambda _plural, _count: None,
    within_s: float | None = None,
) -> Survey:
    """Survey a cluster: one listing a kind, all at once; ``tell`` hears of each kind that has been read.

    A kind that may not be read, whose server does not answer, or whose answer takes more than ``within_s`` seconds,
    ends in :attr:`Survey.unread`. Raises :class:`~groundplane.cluster.errors.Unauthorized` and
    :class:`~groundplane.cluster.errors.ConnectionLost` when nothing at all can be read.
    """
    wanted = list(dict.fromkeys(plurals))
    version = await _version(client, min(ANSWER_S, within_s or ANSWER_S))
    results = await asyncio.gather(
        *(_in_time(KINDS[plural].kind, _read(client, KINDS[plural], namespace, tell), within_s) for plural in wanted)
    )
    objects: dict[str, tuple[Object, ...]] = {}
    absent: set[str] = set()
    unread: dict[str, str] = {}
    for plural, result in zip(wanted, results, strict=True):
        if isinstance(result, str):
            unread[plural] = result
        elif result is None:
            absent.add(plural)
        else:
            objects[plural] = result
    return Survey(
        version=version,
        server=client.config.server,
        namespace=namespace,
        at=client.now(),
        objects=objects,
        absent=frozenset(absent),
        unread=unread,
    )


async def _in_time(
    kind: Kind, reading: Awaitable[tuple[Object, ...] | str | None], within_s: float | None
) -> tuple[Object, ...] | str | None:
    try:
        async with asyncio.timeout(within_s):
            return await reading
    except TimeoutError:
        return f"{kind.resource} could not be read: no end of the answer within {within_s:g} s"


async def _version(client: "Client", within_s: float) -> str:
    """The server's version; empty if it may not be asked. It is also the proof that there is a server at all."""
    try:
        async with asyncio.timeout(within_s):
            answer = await client.raw("GET", "/version")
    except TimeoutError:
        raise errors.ConnectionLost(f"{client.config.server} said nothing for {within_s:g} s") from None
    except (errors.Unauthorized, errors.ConnectionLost):
        raise
    except errors.ClusterError:
        return ""
    try:
        return str(msgspec.json.decode(answer).get("gitVersion") or "")
    except (msgspec.DecodeError, AttributeError):
        return ""


async def _read(
    client: "Client", read: Read, namespace: str, tell: Callable[[str, int], None]
) -> tuple[Object, ...] | str | None:
    """The objects; None if the kind is not served, a sentence if it cannot be read."""
    items: list[Object] = []
    more = ""
    place = namespace if read.own else None
    shared: dict[bytes, Any] = {}
    try:
        while True:
            part = await client.page(
                read.kind, place, fields=read.fields or None, limit=PAGE, more=more, view=msgspec.Raw
            )
            for raw in part.items:  # one at a time, so that memory never holds a page of whole objects
                item = _OBJECT.decode(raw)
                item.setdefault("apiVersion", read.kind.api_version)
                item.setdefault("kind", read.kind.kind)
                read.reduce(item)
                _share(item, shared)
                items.append(item)
            more = part.more
            if not more:
                break
    except errors.NotFound:
        return None
    except errors.Unauthorized:
        raise
    except errors.ClusterError as error:
        return _reason(read.kind, error)
    tell(read.kind.plural, len(items))
    return _ordered(items)


def _reason(kind: Kind, error: errors.ClusterError) -> str:
    if lacking := permissions.missing(error):
        return permissions.tell(permissions.Denied(permission) for permission in lacking)
    return f"{kind.resource} could not be read: {error}"
