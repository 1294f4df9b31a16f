"""What the state machine looks at, made of what the API server told: for the controller and for a plan alike.

The views come from informers or from plain listings; what costs a request is asked for here, and only for the nodes in
whose state it matters. Deciding is the state machine's part.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...api import names
from ...api.release import Release
from ...cluster import kinds
from ...cluster.client import Client
from ...cluster.errors import ClusterError
from ...cluster.eviction import Pod
from ...cluster.views import NodeView, PodView
from .. import handover, readiness
from ..owned import deleting
from ..readiness import RevisionView
from . import bynode, machine, scope
from .bynode import DriverPodView
from .model import DaemonSetFacts, Decision, DriverPod, GpuPod, NodeFacts, PodDeletion, Policy, ValidatorPod
from .scope import Scope
from .states import State
from .work import Works

LOOKS_IN_FLIGHT: Final = 16
LOOKS_TOGETHER: Final = 16
"""From so many nodes on whose pods a pass has to look at, all pods are listed once."""
VALIDATED: Final = frozenset({State.POD_RESTART_REQUIRED, State.VALIDATION_REQUIRED})
"""States in which a node's validators are looked at."""

Jobs = Mapping[str, tuple[str, ...]]
"""Pods that are waited for (``namespace/name``), by node."""
Held = Mapping[str, "tuple[GpuPod, ...] | ClusterError"]
"""GPU pods by node, or why they could not be listed."""


def daemon_sets(
    live: Iterable[Mapping[str, Any]],
    selector: tuple[str, str],
    pods: Iterable[DriverPodView],
    revisions: Iterable[RevisionView],
    unready: Collection[str] = (),
) -> dict[str, DaemonSetFacts]:
    """The driver DaemonSets among ``live``, by UID.

    ``unready`` are the nodes that are not Ready.
    """
    key, value = selector
    count, away, waiting, known = Counter[str](), Counter[str](), Counter[str](), list(revisions)
    for (uid, name), number in bynode.owners(pods).items():
        count[uid] += number
        away[uid] += number if name in unready else 0
        waiting[uid] += number if not name else 0
    found = {}
    for each in live:
        meta, status = each["metadata"], each.get("status") or {}
        labels = meta.get("labels") or {}
        if labels.get(key) != value or deleting(each):
            continue
        drivers = (owner["name"] for owner in meta.get("ownerReferences") or () if _is_driver(owner))
        found[str(meta["uid"])] = DaemonSetFacts(
            name=meta["name"],
            uid=meta["uid"],
            desired=status.get("desiredNumberScheduled", 0),
            pods=count[meta["uid"]],
            unready=away[meta["uid"]],
            waiting=waiting[meta["uid"]],
            revision=readiness.newest_revision(meta["name"], meta["uid"], known),
            digest=bynode.config_digest(each["spec"]["template"].get("spec") or {}),
            driver=next(drivers, ""),
            precompiled=labels.get(names.PRECOMPILED) == "true",
        )
    return found


def _is_driver(owner: Mapping[str, Any]) -> bool:
    return bool(owner.get("kind") == kinds.NVIDIA_DRIVER.kind)


def unready(views: Iterable[NodeView]) -> frozenset[str]:
    """The nodes that are not Ready."""
    return frozenset(view.name for view in views if view.status.conditions)


def node(
    view: NodeView,
    pods: Iterable[DriverPod],
    sets: Mapping[str, DaemonSetFacts],
    *,
    jobs: Jobs | None,
    gpu_pods: "tuple[GpuPod, ...] | ClusterError | None",
    validators: Sequence[ValidatorPod],
    unread: str = "",
) -> NodeFacts:
    """One node."""
    state = view.labels.get(names.UPGRADE_STATE, "")
    if isinstance(gpu_pods, ClusterError):
        unread, gpu_pods = str(gpu_pods), None
    return msgspec.structs.replace(
        bare(view),
        driver_pods=tuple([pod for pod in pods if pod.orphan or pod.daemon_set in sets]),
        jobs=jobs.get(view.name, ()) if jobs is not None else None,
        gpu_pods=gpu_pods,
        validators=tuple(validators) if state in VALIDATED else None,
        unread=unread,
    )


def orphans(about: Scope, release: Release, pods: Iterable[DriverPodView], views: Iterable[NodeView]) -> list[Decision]:
    """Nodes whose driver ClusterPolicy has left to an NVIDIADriver are marked for their upgrade, before all else (3.9).

    Where the NVIDIADriver is not upgraded, the label would only be taken off again.
    """
    if release is Release.V26_3 or about.selector != scope.BY_COMPONENT:
        return []
    seen = [
        handover.DriverPod(
            node=pod.spec.nodeName,
            component=names.DRIVER_COMPONENT,
            owned=bool(pod.metadata.ownerReferences),
            running=pod.status.phase == "Running",
        )
        for pod in pods
    ]
    by_name = {view.name: view for view in views}
    marked = handover.to_mark(seen, {name: view.labels for name, view in by_name.items()}, about.machines)
    return [machine.orphaned(bare(by_name[name])) for name in marked]


def bare(view: NodeView) -> NodeFacts:
    """A node without what is on it."""
    return NodeFacts(
        name=view.name,
        labels=view.labels,
        annotations=view.annotations,
        resource_version=view.metadata.resourceVersion,
        unschedulable=view.spec.unschedulable,
        ready=not view.status.conditions,
    )


async def jobs(client: Client, about: Scope, views: Iterable[NodeView]) -> tuple[Jobs | None, str]:
    """The pods that nodes wait for, and why they could not be listed; one request a selector."""
    waiting = [view for view in views if view.labels.get(names.UPGRADE_STATE) == State.WAIT_FOR_JOBS_REQUIRED]
    found: dict[str, list[str]] = {}
    for selector in sorted({policy_of(about, view).jobs_selector for view in waiting} - {""}):
        try:
            listing = await client.list(kinds.POD, labels=selector, view=PodView)
        except ClusterError as error:
            return None, f"the pods of waitForCompletion.podSelector {selector!r} cannot be listed: {error}"
        here = {view.name for view in waiting if policy_of(about, view).jobs_selector == selector}
        for pod in listing.items:
            if pod.phase in ("Running", "Pending") and pod.node_name in here:
                found.setdefault(pod.node_name, []).append(f"{pod.metadata.namespace}/{pod.name}")
    return {name: tuple(sorted(some)) for name, some in found.items()}, ""


async def gpu_pods(works: Works, about: Scope, views: Iterable[NodeView]) -> Held:
    """The GPU pods of nodes that are to be freed of them and where nothing is under way yet."""
    limit = asyncio.Semaphore(LOOKS_IN_FLIGHT)
    found: dict[str, tuple[GpuPod, ...] | ClusterError] = {}
    wanted: dict[str, PodDeletion] = {}
    for view in views:
        here = view.labels.get(names.UPGRADE_STATE) == State.POD_DELETION_REQUIRED
        rules = policy_of(about, view).pod_deletion if here else None
        if rules is not None and works.of(view.name, State.POD_DELETION_REQUIRED) is None:
            wanted[view.name] = rules
    listed: Mapping[str, Sequence[Pod]] | None = None
    if len(wanted) >= LOOKS_TOGETHER:
        try:
            listed = await works.candidates(wanted)
        except ClusterError as error:
            return dict.fromkeys(wanted, error)

    async def look(name: str, rules: PodDeletion) -> None:
        async with limit:
            try:
                found[name] = await works.gpu_pods(name, rules, None if listed is None else listed.get(name, ()))
            except ClusterError as error:
                found[name] = error

    async with asyncio.TaskGroup() as group:
        for name, rules in wanted.items():
            group.create_task(look(name, rules))
    return found


_NOT_UPGRADED: Final = Policy(pod_deletion=None)


def policy_of(about: Scope, view: NodeView) -> Policy:
    """The policy by which a node is upgraded; one that looks at nothing where it is not."""
    found = about.machines.get("") or about.machines.get(view.labels.get(names.DRIVER_OWNER, ""))
    return found or _NOT_UPGRADED
