"""What the operator would do, without doing it: for ``groundplane plan`` and ``groundplane render --nodes``.

The same functions as in the loops decide here; only the facts come from plain listings or from documents in a file.
Nothing in this module writes to a cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..api import names
from ..api.clusterpolicy import ClusterPolicy
from ..api.release import Release
from ..cluster import kinds
from ..cluster.apply import Key
from ..cluster.client import Client
from ..cluster.errors import NotFound
from ..cluster.kinds import Kind
from ..cluster.views import MetaView, NodeMeta, NodeView
from ..operands import stack
from ..operands.facts import ClusterFacts, Owner, references
from ..operands.stack import Rendered
from . import caches, decide, election, labels, openshift, runtime
from .caches import KeysView
from .fleet import Fleet
from .labels import NodeChange
from .owned import OwnedObjects
from .policy import candidate, decode, refusals

Action = Literal["create", "update", "delete"]


class PlanError(Exception):
    """No plan can be made; the message says what is missing."""


class ObjectChange(msgspec.Struct, frozen=True):
    """One object that would be written or deleted. ``paths`` are the fields that differ in the live one."""

    action: Action
    state: str
    key: Key
    object: dict[str, Any]
    paths: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """What a pass would do now, in order. ``problems`` would end it; ``waiting`` says what it would wait for."""

    policy: str
    objects: tuple[ObjectChange, ...] = ()
    nodes: tuple[NodeChange, ...] = ()
    problems: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing would change."""
        return not (self.objects or self.nodes)


class Offline(msgspec.Struct, frozen=True):
    """A policy rendered for nodes from a file: the facts after labelling, the states, and the label changes."""

    facts: ClusterFacts
    rendered: tuple[Rendered, ...]
    nodes: tuple[NodeChange, ...]
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


# --- without a cluster ------------------------------------------------------------------------------------------------


def node_views(documents: Iterable[Mapping[str, Any]]) -> list[NodeView]:
    """Nodes from Node, NodeList or List documents. Raises :class:`PlanError` naming the document that is none."""
    views: list[NodeView] = []
    for number, document in enumerate(documents, 1):
        kind = document.get("kind")
        if kind in ("NodeList", "List"):
            views += node_views({"kind": "Node", **item} for item in document.get("items") or ())
        elif kind == "Node":
            views.append(_node_view(document, number))
        else:
            raise PlanError(f"document {number} of the nodes file is a {kind!r}, expected Node, NodeList or List")
    return views


def _node_view(document: Mapping[str, Any], number: int) -> NodeView:
    try:
        view = msgspec.convert(_without_nulls(document), NodeView)
    except msgspec.ValidationError as error:
        raise PlanError(f"document {number} of the nodes file is no Node: {error}") from error
    if not view.name:
        raise PlanError(f"document {number} of the nodes file: a Node needs metadata.name")
    return view


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def labelled(node: NodeView, change: NodeChange | None) -> NodeView:
    """``node`` as it will be; of NFD's labels only those that decide something are left."""
    if change is None:
        return node
    meta = node.metadata
    fresh = NodeMeta(
        name=meta.name,
        uid=meta.uid,
        resourceVersion=meta.resourceVersion,
        labels=_merged(meta.labels, change.labels),
        annotations=_merged(meta.annotations, change.annotations),
    )
    return NodeView(metadata=fresh, spec=node.spec, status=node.status)


def _merged(have: Mapping[str, str], change: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**have, **change}.items() if value is not None}


def fleet_of(nodes: Iterable[NodeView], policy: ClusterPolicy, release: Release) -> tuple[Fleet, list[NodeChange]]:
    """The fleet once its nodes are labelled, and the changes that get it there."""
    want, fleet, changes = labels.label_policy(policy.spec, release), Fleet(), []
    for node in nodes:
        change = labels.node_changes(node, want)
        fleet.update(node.name, labelled(node, change))
        if change is not None:
            changes.append(change)
    return fleet, changes


def offline(
    policy: ClusterPolicy,
    nodes: Sequence[NodeView],
    *,
    namespace: str,
    release: Release,
    default_images: Mapping[str, str] | None = None,
    service_monitor_crd: bool = False,
    config_maps: Mapping[str, tuple[str, ...] | None] | None = None,
    secrets: Mapping[str, tuple[str, ...] | None] | None = None,
) -> Offline:
    """Render ``policy`` as for a cluster of ``nodes``.

    A policy from a file has no uid yet; its objects then carry no ownerReference, which an API server would refuse.
    """
    fleet, changes = fleet_of(nodes, policy, release)
    facts = ClusterFacts(
        namespace=namespace,
        release=release,
        runtime=runtime.detect(fleet.summary.runtimes),
        nodes=fleet.summary.nodes,
        service_monitor_crd=service_monitor_crd,
        default_images=default_images or {},
        config_maps=config_maps or {},
        secrets=secrets or {},
        owner=Owner(name=policy.metadata.name, uid=uid) if (uid := policy.metadata.uid) else None,
    )
    rendered = stack.render(policy.spec, facts)
    problems = [*refusals(policy.spec, release).values(), *(str(each.error) for each in rendered if each.error)]
    return Offline(facts, tuple(rendered), tuple(changes), tuple(problems))


# --- against a cluster ------------------------------------------------------------------------------------------------


class _Listed:
    """A listing as a source of owned objects."""

    def __init__(self, objects: Iterable[dict[str, Any]]) -> None:
        self._objects = {(obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj for obj in objects}

    def get(self, name: str, namespace: str = "") -> dict[str, Any] | None:
        return self._objects.get((namespace, name))

    def values(self) -> Iterable[dict[str, Any]]:
        return self._objects.values()


async def live(
    client: Client,
    *,
    namespace: str,
    release: Release,
    default_images: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
) -> Report:
    """What would change in the cluster if ``document``, else the policy in force there, were carried out.

    Raises :class:`PlanError` without any policy, and what the client raises.
    """
    stored = {str(each["metadata"]["name"]): each for each in (await client.list(kinds.CLUSTER_POLICY)).items}
    document = document or stored.get(election.active(map(candidate, stored.values())) or "")
    if document is None:
        raise PlanError("the cluster has no ClusterPolicy: create one, or give one with -f")
    decoded = decode(document)
    if decoded.policy is None:
        return Report(_name(document), problems=(decoded.problem,))
    policy = decoded.policy
    nodes = (await client.list(kinds.NODE, view=NodeView)).items
    fleet, changes = fleet_of(nodes, policy, release)
    served = await _served(client)
    owner = Owner(name=policy.metadata.name, uid=_uid(stored.get(policy.metadata.name)))
    facts = await _facts(client, policy, fleet, served, owner, namespace, release, default_images or {})
    store = await _owned(client, namespace, served)
    refused = refusals(policy.spec, release)
    if problem := refused.pop("", ""):
        return Report(policy.metadata.name, nodes=tuple(changes), problems=(problem,))
    about = decide.context(policy.spec, facts, store, served.__contains__)
    steps = decide.steps(stack.render(policy.spec, facts), about, refused)
    return Report(
        policy=policy.metadata.name,
        objects=tuple(change for step in steps for change in _changes(step)),
        nodes=tuple(changes),
        problems=tuple(f"{step.state}: {step.error}" for step in steps if step.error),
        waiting=tuple(f"{step.state}: {why}" for step in steps for why in step.waiting),
    )


def _changes(step: decide.Step) -> Iterable[ObjectChange]:
    for deletion in step.deletions:
        yield ObjectChange("delete", step.state, Key.of(deletion.obj), dict(deletion.obj))
    for write in step.writes:
        yield ObjectChange("create" if write.new else "update", step.state, Key.of(write.obj), write.obj, write.drift)


def _name(document: Mapping[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("name", ""))


def _uid(document: Mapping[str, Any] | None) -> str:
    return str(document["metadata"].get("uid", "")) if document else ""


async def _served(client: Client) -> set[Kind]:
    """The kinds of operand objects and of OpenShift that the cluster has."""
    crds = (await client.list(kinds.CRD, page=caches.CRD_PAGE, view=MetaView)).items
    installed = {crd.metadata.name for crd in crds}
    found = {kind for crd, kind in caches.WITH_CRD.items() if crd in installed}
    if kinds.CLUSTER_VERSION.resource in installed:
        found |= {kinds.CLUSTER_VERSION, kinds.PROXY, kinds.IMAGE_STREAM}
    return found | set(caches.ALWAYS)


async def _facts(
    client: Client,
    policy: ClusterPolicy,
    fleet: Fleet,
    served: set[Kind],
    owner: Owner,
    namespace: str,
    release: Release,
    default_images: Mapping[str, str],
) -> ClusterFacts:
    version = proxy = stream = None
    if kinds.CLUSTER_VERSION in served:
        version = await _find(client, kinds.CLUSTER_VERSION, openshift.CLUSTER_VERSION, openshift.ClusterVersionView)
        proxy = await _find(client, kinds.PROXY, openshift.PROXY, openshift.ProxyView)
        stream = await _find(
            client, kinds.IMAGE_STREAM, openshift.IMAGE_STREAM, openshift.ImageStreamView, openshift.NAMESPACE
        )
    wanted = references(policy.spec)
    return ClusterFacts(
        namespace=namespace,
        release=release,
        runtime=runtime.detect(fleet.summary.runtimes, openshift=version is not None),
        nodes=fleet.summary.nodes,
        service_monitor_crd=kinds.SERVICE_MONITOR in served,
        default_images=default_images,
        config_maps={name: await _keys(client, kinds.CONFIG_MAP, name, namespace) for name in wanted.config_maps},
        secrets={name: await _keys(client, kinds.SECRET, name, namespace) for name in wanted.secrets},
        openshift=openshift.facts(version, stream),
        proxies=openshift.proxies(proxy),
        owner=owner,
    )


async def _find(client: Client, kind: Kind, name: str, view: type[Any], namespace: str | None = None) -> Any:
    try:
        return await client.get(kind, name, namespace, view=view)
    except NotFound:
        return None


async def _keys(client: Client, kind: Kind, name: str, namespace: str) -> tuple[str, ...] | None:
    found = await _find(client, kind, name, KeysView, namespace)
    return found.keys if found is not None else None


async def _owned(client: Client, namespace: str, served: Iterable[Kind]) -> OwnedObjects:
    """Our objects, and every ServiceAccount in the namespace."""
    store = OwnedObjects()
    for kind in sorted(served, key=lambda kind: kind.resource):
        if kind in (kinds.CLUSTER_VERSION, kinds.PROXY, kinds.IMAGE_STREAM):
            continue
        selector = None if kind is kinds.SERVICE_ACCOUNT else names.STATE_LABEL
        where = namespace if kind.namespaced else None
        store.sources[kind] = _Listed((await client.list(kind, where, labels=selector)).items)
    return store
