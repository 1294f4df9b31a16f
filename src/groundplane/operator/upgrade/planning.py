"""What the next upgrade pass would do, and why each node waits, without doing it: for ``groundplane driver plan``.

The facts come from plain listings of a cluster, or of documents in a file; deciding is the state machine's, as in the
controller. Evictions that an operator has under way are not known here: their nodes are shown as about to be begun.
Nothing in this module writes.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ...api import names, nvidiadriver
from ...api.clusterpolicy import ClusterPolicySpec, UpgradePolicy
from ...api.release import Release
from ...cluster import kinds
from ...cluster.client import Client
from ...cluster.errors import NotFound
from ...cluster.kinds import Kind
from ...cluster.views import NodeView, PodView
from .. import driverstore, election
from ..policy import candidate, decode
from ..readiness import RevisionView
from . import bynode, machine, observed, scope
from .bynode import DriverPodView
from .model import Counts, Decision
from .scope import Scope
from .work import Works

F = TypeVar("F")


class PlanError(Exception):
    """No plan can be made; the message says why."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One node: the state that it is in, the one that it goes to (empty: it stays), and in words what is done or waited
    for."""

    node: str
    driver: str
    state: str
    to: str
    what: tuple[str, ...]
    cordoned: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The next pass. ``off`` says why there is none, ``problems`` what an administrator has to look at."""

    release: str
    off: str
    rows: tuple[Row, ...]
    counts: Mapping[str, Counts]
    problems: tuple[str, ...]


async def plan(client: Client, *, namespace: str, release: Release, now: int) -> Plan:
    """Plan the next pass of a cluster, or of whatever answers listings like one. ``now``: Unix seconds.

    Raises :class:`PlanError`, and what the client raises.
    """
    spec = await _policy(client)
    policies, unreadable = await _drivers(client)
    live = await _listed(client, kinds.DAEMON_SET, namespace)
    about = scope.of(spec, policies, release, driver_toolkit=_by_toolkit(live), unreadable=unreadable)
    views = (await client.list(kinds.NODE, view=NodeView)).items
    pods = await _pods(client, about, namespace)
    revisions = (await client.list(kinds.CONTROLLER_REVISION, namespace, view=RevisionView)).items
    away = observed.unready(views)
    sets = observed.daemon_sets(live, about.selector, pods, revisions, away) if about.machines else {}
    validators = (await client.list(kinds.POD, labels=bynode.VALIDATORS, view=PodView)).items
    by_node = _by_node((pod.spec.nodeName, pod.facts()) for pod in pods)
    validators_by_node = _by_node((pod.node_name, bynode.validator(pod)) for pod in validators)
    concerned = [view for view in views if names.UPGRADE_STATE in view.labels or view.name in by_node]
    works = Works(client, release, sleep=asyncio.sleep, ended=lambda _node: None)
    jobs, unread = await observed.jobs(client, about, concerned)
    held = await observed.gpu_pods(works, about, concerned)
    facts = [
        observed.node(
            view,
            by_node.get(view.name, ()),
            sets,
            jobs=jobs,
            gpu_pods=held.get(view.name),
            validators=validators_by_node.get(view.name, ()),
            unread=unread,
        )
        for view in concerned
    ]
    outcome = scope.decide(about, now, facts, sets)
    marked = {each.node: each for each in observed.orphans(about, release, pods, concerned)}
    decisions = [marked.get(each.node, each) for each in outcome.decisions]
    if about.off:
        left = [observed.bare(view) for view in views if names.UPGRADE_STATE not in view.labels and _has_gpu(view)]
        decisions += machine.left_cordoned(left)
    owner = {view.name: view.labels.get(names.DRIVER_OWNER, "") for view in views}
    cordoned = {view.name for view in views if view.spec.unschedulable}
    return Plan(
        release=release.value,
        off=about.off,
        rows=tuple(_row(each, owner[each.node], each.node in cordoned) for each in decisions),
        counts={name: each.counts for name, each in outcome.passes.items()},
        problems=tuple(each.message for each in outcome.problems),
    )


def _has_gpu(view: NodeView) -> bool:
    return view.labels.get(names.GPU_PRESENT) == "true"


def _row(decision: Decision, driver: str, cordoned: bool) -> Row:
    what = [event.message for event in decision.events]
    if decision.waits_for:
        what.append(f"waits: {decision.waits_for}")
    if decision.problem is not None:
        what.append(f"problem: {decision.problem.message}")
    state = "(unknown value)" if decision.state is None else decision.state.value
    to = "" if decision.to is None else decision.to.value or "(no state)"
    actions = [type(action).__name__ for action in decision.actions]
    return Row(node=decision.node, driver=driver, state=state, to=to, what=(*actions, *what), cordoned=cordoned)


async def _policy(client: Client) -> ClusterPolicySpec | None:
    stored = {str(each["metadata"]["name"]): each for each in await _listed(client, kinds.CLUSTER_POLICY)}
    active = election.active(map(candidate, stored.values()))
    if active is None:
        return None
    decoded = decode(stored[active])
    if decoded.policy is None:
        raise PlanError(f"ClusterPolicy {active} cannot be read, so no driver is upgraded: {decoded.problem}")
    return decoded.policy.spec


async def _drivers(client: Client) -> tuple[dict[str, UpgradePolicy], dict[str, str]]:
    """The upgrade policies of the NVIDIADrivers that stay, and why others cannot be read."""
    known = map(driverstore.decode, await _listed(client, kinds.NVIDIA_DRIVER))
    there = [each for each in known if not each.deleting]
    found = {each.name: nvidiadriver.upgrade_policy(each.driver.spec) for each in there if each.driver is not None}
    unreadable = {each.name: each.problem for each in there if each.driver is None}
    return found, unreadable


async def _listed(client: Client, kind: Kind, namespace: str | None = None) -> list[dict[str, Any]]:
    """Objects of a kind; none where the API server does not know it."""
    try:
        listing = await client.list(kind, namespace)
    except NotFound:
        return []
    return [{"apiVersion": kind.api_version, "kind": kind.kind, **each} for each in listing.items]


def _by_toolkit(daemon_sets: Sequence[Mapping[str, Any]]) -> bool:
    """Whether OpenShift's driver toolkit builds the drivers that are there."""
    key, value = scope.BY_TOOLKIT
    return any((each["metadata"].get("labels") or {}).get(key) == value for each in daemon_sets)


async def _pods(client: Client, about: Scope, namespace: str) -> list[DriverPodView]:
    if not about.machines:
        return []
    return (await client.list(kinds.POD, namespace, labels="=".join(about.selector), view=DriverPodView)).items


def _by_node(facts: Iterable[tuple[str, F]]) -> dict[str, list[F]]:
    found: dict[str, list[F]] = {}
    for node, fact in facts:
        if node:
            found.setdefault(node, []).append(fact)
    return found
