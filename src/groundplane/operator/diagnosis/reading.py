"""What the operator reads for a diagnosis: of what is well, only what it watches anyway; of what is not, all of it.

Its caches say which DaemonSets lack ready pods and which nodes offer fewer GPUs than they have; three small listings
add pods that do not run, DaemonSets of others and warnings about nodes. Only of nodes that are suspected by these are
object and pods read, then the Events and logs that the doctor would read. So a healthy cluster of any size costs three
requests a look, and a broken one in proportion to what is broken in it. Containers are never entered. What is read
amounts to the same evidence as a survey of the whole cluster gives of these nodes, less workloads in other namespaces.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

import msgspec

from ...api import names
from ...cluster import errors, kinds, permissions
from ...cluster.client import Client
from ...cluster.events import CLUSTER_SCOPED_NAMESPACE
from ...cluster.kinds import Kind
from ...cluster.permissions import Denied
from ...cluster.views import NodeView, PodView
from ...diagnose import collect, watching
from ...diagnose import survey as surveys
from ...diagnose.evidence import Evidence
from ...diagnose.survey import Object, Survey
from .. import denials
from ..caches import Caches
from ..denials import Denials
from ..rollouts import selector_of

log = logging.getLogger(__name__)

NODES_MOST: Final = 500
"""Nodes that are looked at closely; more are counted only."""
AT_ONCE: Final = 8
"""Requests at a time, so that reconciliation always has connections left."""
COMPANIONS: Final = 2
"""Nodes without suspicion that are read with the others: what no node is named for is not any one node's then."""
LOGS_KEPT_S: Final = 300.0
PAGE: Final = 500
PAGES_MOST: Final = 20
NAMELESS_MOST: Final = 50
"""Pods without a node, and nodes of a cluster that has no GPU nodes, that are read."""
_STOPPED: Final = "status.phase!=Running,status.phase!=Succeeded"
_WARNED: Final = "involvedObject.kind=Node,type=Warning"
_KILLED: Final = "reason=Killing"
_PAUSED: Final = "paused-for-driver-upgrade"


class Seen(msgspec.Struct, frozen=True):
    """What a look has found."""

    evidence: Evidence | None = None
    """None where nothing is suspected: then all is well."""
    unseen: frozenset[str] = frozenset()
    """Suspected nodes that were not looked at for their number."""


class Reader:
    """Reads one look after the other; logs are kept between them."""

    def __init__(self, client: Client, caches: Caches, namespace: str, denied: Denials) -> None:
        self._client = client
        self._caches = caches
        self._namespace = namespace
        self._denials = denied
        self._logs = watching.KnownLogs(client, LOGS_KEPT_S)
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._refused: set[Denied] = set()
        self._unread: dict[str, str] = {}
        self._told: tuple[str, ...] = ()

    async def look(self, known: Set[str]) -> Seen:
        """What is to be judged now; nodes ``known`` to be sick are looked at until they are well, before others.

        Raises :class:`~..cluster.errors.ClusterError` where nodes or pods cannot be read: then nothing can be said.
        """
        self._refused, self._unread = set(), {}
        try:
            return await self._look(known)
        finally:
            self._denials.set(denials.DIAGNOSIS, self._refused)

    async def earlier(self) -> list[Object]:
        """The Events about nodes and the cluster that earlier diagnoses have left; none if they may not be read."""
        reasons = sorted(names.DIAGNOSIS_REASONS)
        wanted = [
            self._perhaps(kinds.CORE_EVENT, CLUSTER_SCOPED_NAMESPACE, fields=f"reason={each}") for each in reasons
        ]
        return [event for found in await asyncio.gather(*wanted) for event in found]

    async def _look(self, known: Set[str]) -> Seen:
        nodes = {node.name: node for node in self._caches.nodes.values()}
        sets = [*self._own_sets(), *await self._perhaps(kinds.DAEMON_SET, labels=f"!{names.STATE_LABEL}")]
        stopped = await self._views(_STOPPED)
        stopped += await self._hidden(sets, stopped)
        warnings = await self._perhaps(kinds.CORE_EVENT, CLUSTER_SCOPED_NAMESPACE, fields=_WARNED)
        suspects = await asyncio.to_thread(suspected, nodes, stopped, warnings) | (known & nodes.keys())
        without_node = any(not pod.node_name for pod in stopped)
        nothing_labelled = bool(self._caches.policies) and not any(map(_has_gpu, nodes.values()))
        stuck = await asyncio.to_thread(upgrade_stuck, nodes)
        if not suspects and not without_node and not nothing_labelled and not stuck:
            return Seen()
        chosen = sorted(suspects, key=lambda name: (name not in known, name))
        looked, unseen = chosen[:NODES_MOST], frozenset(chosen[NODES_MOST:])
        survey = await self._survey(nodes, looked, nothing_labelled, without_node, sets, warnings)
        facts = {"gpu_nodes": sum(map(_has_gpu, nodes.values())), "upgrade_stuck": stuck}
        return Seen(await self._evidence(survey, facts), unseen)

    def _own_sets(self) -> list[Object]:
        return list(self._caches.objects.sources[kinds.DAEMON_SET].values())

    # --- What does not run --------------------------------------------------------------------------------------------

    async def _views(self, fields: str = "", labels: str = "", enough: int | None = None) -> list[PodView]:
        """Pods of our namespace that are not ready; with ``enough``, the listing ends when so many are found."""
        found: list[PodView] = []
        more = ""
        for _ in range(PAGES_MOST):
            part = await self._client.page(
                kinds.POD,
                self._namespace,
                labels=labels or None,
                fields=fields or None,
                limit=PAGE,
                more=more,
                view=PodView,
            )
            found += [pod for pod in part.items if not pod.ready and pod.phase != "Succeeded" and not pod.deleting]
            more = part.more
            if not more or (enough is not None and len(found) >= enough):
                break
        return found

    async def _hidden(self, sets: Iterable[Object], stopped: Iterable[PodView]) -> list[PodView]:
        """Pods that run and are not ready: looked for where a DaemonSet lacks more than are known to be stopped."""
        owners = [pod.owner_uid for pod in stopped]
        found: list[PodView] = []
        for each in sets:
            status = each.get("status") or {}
            lacking = status.get("desiredNumberScheduled", 0) - status.get("numberReady", 0)
            here = owners.count(each["metadata"].get("uid", ""))
            if lacking > here:
                found += await self._views(labels=selector_of(each), enough=lacking)
        return found

    # --- The survey ---------------------------------------------------------------------------------------------------

    async def _survey(
        self,
        nodes: Mapping[str, NodeView],
        suspects: list[str],
        nothing_labelled: bool,
        without_node: bool,
        sets: list[Object],
        warnings: list[Object],
    ) -> Survey:
        company = [name for name in sorted(nodes) if name not in suspects and _has_gpu(nodes[name])][:COMPANIONS]
        wanted = [*suspects, *company]
        read = await asyncio.gather(*map(self._node, wanted))
        machines = [each for found, _ in read for each in found]
        pods = [each for _, found in read for each in found]
        if nothing_labelled:
            machines += await self._list(kinds.NODE, None, most=NAMELESS_MOST)
            pods += await self._list(kinds.POD, self._namespace, most=PAGE)
        elif without_node:
            pods += await self._list(
                kinds.POD, self._namespace, fields=f"spec.nodeName=,{_STOPPED}", most=NAMELESS_MOST
            )
        events = [
            *warnings,
            *await self._perhaps(kinds.CORE_EVENT, fields="type=Warning"),
            *await self._perhaps(kinds.CORE_EVENT, fields=_KILLED),
        ]
        classes = await self._perhaps(kinds.RUNTIME_CLASS, None)
        version: Object = {"apiVersion": kinds.CLUSTER_VERSION.api_version, "kind": "ClusterVersion", "metadata": {}}
        objects: dict[str, tuple[Object, ...]] = {
            "nodes": _once(machines),
            "pods": _once(pods),
            "events": tuple(events),
            "daemonsets": tuple(sets),
            "clusterpolicies": tuple(self._caches.policies.values()),
            "nvidiadrivers": tuple(self._caches.drivers or ()),
            "runtimeclasses": tuple(classes),
            "clusterversions": (version,) if self._caches.cluster_version else (),
        }
        objects = {plural: each for plural, each in objects.items() if each or plural not in self._unread}
        return Survey(namespace=self._namespace, at=self._client.now(), objects=objects, unread=self._unread)

    async def _node(self, name: str) -> tuple[list[Object], list[Object]]:
        """A node, and its pods in our namespace; nothing of a node that has gone meanwhile."""
        async with self._gate:
            machine = await self._list(kinds.NODE, None, fields=f"metadata.name={name}")
            pods = await self._list(kinds.POD, self._namespace, fields=f"spec.nodeName={name}")
        return machine, pods if machine else []

    async def _evidence(self, survey: Survey, facts: Mapping[str, Any]) -> Evidence:
        """The evidence in the survey and the logs that go with it; ``facts`` of the whole cluster count."""
        wishes = collect.wanted_logs(survey)
        logs, missing = await self._logs.of(survey, wishes.wanted)
        evidence = collect.of_survey(survey, logs=logs, missing=[*wishes.left_out, *missing])
        if evidence.missing and evidence.missing != self._told:
            log.info("diagnosing without: %s", "; ".join(evidence.missing))
        self._told = evidence.missing
        return msgspec.structs.replace(evidence, context={**evidence.context, **facts})

    # --- Listings -----------------------------------------------------------------------------------------------------

    async def _list(
        self, kind: Kind, namespace: str | None, *, most: int = PAGE * PAGES_MOST, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """Objects as a survey has them, page by page."""
        reduce = surveys.KINDS[kind.plural].reduce
        found: list[Object] = []
        more = ""
        while True:
            part = await self._client.page(
                kind, namespace, labels=labels or None, fields=fields or None, limit=min(PAGE, most), more=more
            )
            for each in part.items:
                reduce(each)
                found.append(each)
            more = part.more
            if not more or len(found) >= most:
                return found

    async def _perhaps(
        self, kind: Kind, namespace: str | None = "", *, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """The same of what a diagnosis can do without; what could not be read is told as unknown."""
        place = self._namespace if namespace == "" else namespace
        try:
            return await self._list(kind, place, labels=labels, fields=fields)
        except errors.ApiError as error:
            lacking = permissions.missing(error)
            self._refused |= {Denied(each, "for the diagnosis of nodes") for each in lacking}
            self._unread[kind.plural] = permissions.tell(map(Denied, lacking)) if lacking else f"{kind.plural}: {error}"
            return []


# --- Suspicion --------------------------------------------------------------------------------------------------------


def suspected(nodes: Mapping[str, NodeView], stopped: Iterable[PodView], warnings: Iterable[Object]) -> set[str]:
    """Nodes of which something may be wrong: by what they say, by pods on them, by warnings about them; pure."""
    found = {name for name, node in nodes.items() if _has_gpu(node) and _suspicious(node)}
    found |= {pod.node_name for pod in stopped}
    for event in warnings:
        name = str((event.get("involvedObject") or {}).get("name") or "")
        if event.get("reason") not in names.DIAGNOSIS_REASONS and name in nodes and _has_gpu(nodes[name]):
            found.add(name)
    return found & nodes.keys()


def _suspicious(node: NodeView) -> bool:
    """Whether a node's object alone shows a failure; to what the doctor suspects, labels that are a cause are added."""
    paused = any(value.startswith(_PAUSED) for key, value in node.labels.items() if key.startswith(names.DEPLOY_PREFIX))
    return paused or not node.labels.get(names.GPU_PRODUCT) or collect.suspicious(document(node))


def upgrade_stuck(nodes: Mapping[str, NodeView]) -> bool:
    """Whether drivers wait for an upgrade that does not get on, as the doctor sees it."""
    if not any(node.labels.get(names.UPGRADE_STATE) for node in nodes.values()):
        return False
    return collect.upgrade_stuck(Survey(objects={"nodes": tuple(map(document, nodes.values()))}))


def document(node: NodeView) -> Object:
    """What a view knows of a node, in the shape of its object."""
    status: dict[str, Any] = {
        "conditions": [{"type": each.type, "status": each.status} for each in node.status.conditions]
    }
    for part in ("capacity", "allocatable"):
        status[part] = getattr(node.status, part, {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": node.labels},
        "spec": {"unschedulable": node.spec.unschedulable},
        "status": status,
    }


def _has_gpu(node: NodeView) -> bool:
    return node.labels.get(names.GPU_PRESENT) == "true"


def _once(objects: Iterable[Object]) -> tuple[Object, ...]:
    """Each object once, in the order of a survey."""
    found = {((each["metadata"].get("namespace") or ""), each["metadata"]["name"]): each for each in objects}
    return tuple(found[key] for key in sorted(found))
