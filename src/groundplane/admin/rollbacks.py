"""A rollback's plan for one cluster: which revision, the boundary filled in, whether it can be done, what it costs.

contracts/admin-workflow.md 10. Pure: a survey comes in, what is to be said comes out. The table and its rules are
``rollback``'s, drivers and workloads ``upgrades``' and ``disruption``'s, what objects hold ``rollback_content``'s;
printing is ``rollback_view``'s, carrying the plan out ``rollback_run``'s.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ..diagnose.evidence import NodeFacts
from ..diagnose.findings import Finding, grouped
from ..diagnose.survey import Object, Survey
from ..operator.upgrade.model import Policy
from . import (
    baseline,
    disruption,
    images,
    preflight_inputs,
    preflight_platform,
    releases,
    rollback,
    rollback_content,
    rollback_findings,
    rollback_seen,
    trees,
    upgrade_render,
    upgrades,
)
from .baseline import Baseline
from .disruption import Effect, Estimate, Pool
from .hops import Catalogue, Version
from .inquiry import Inquiry
from .matrix import Matrix
from .releases import Revision
from .rollback import CrdChanges, Line, Preconditions, Rollback
from .rollback_content import Change
from .snapshot import Snapshot
from .values_file import ValuesFile

KINDS: Final = tuple(
    dict.fromkeys(
        (
            *upgrades.KINDS,
            *baseline.PLURALS,
            *rollback_seen.PLURALS.values(),
        )
    )
)
"""What a plan reads, by plural."""


class RollbackError(Exception):
    """There is nothing that could be gone back to; the message says why, and what to do."""


class Way(NamedTuple):
    """From which revision to which."""

    running: Revision
    wanted: Revision
    history: tuple[Revision, ...]
    """All of the release, newest first."""

    @property
    def pending(self) -> bool:
        """Whether Helm is, or was killed, in the middle of a change."""
        return self.history[0].status in releases.PENDING


_RESTORABLE: Final = ("superseded", "deployed")


def way(survey: Survey, revision: int | Version | None = None, release: str = "") -> Way:
    """The way back: to a revision, to the newest complete one of a release, or of all before the one in force.

    After a change that failed, or was ended in the middle, that one counts as running: the way back leads to what was
    deployed before it. ``release`` is ``namespace/name``, of the only one by default. Raises :class:`RollbackError`.
    """
    history = history_of(survey, release)
    running = history[0]
    if all(each.status != "deployed" for each in history):
        raise RollbackError(
            f"release {running.where} was never deployed completely (it is {running.status}): finish it with "
            "groundplane install, or take it away with groundplane uninstall"
        )
    return Way(running, _wanted(history, running, revision), history)


def history_of(survey: Survey, release: str = "") -> tuple[Revision, ...]:
    """The revisions of a release, newest first. Raises :class:`RollbackError`."""
    found = releases.history(survey)
    if found.unread:
        raise RollbackError(f"the release's history is not known: {found.unread}")
    if not found.revisions:
        broken = f" ({'; '.join(found.broken)})" if found.broken else ""
        raise RollbackError(f"no release of chart {releases.CHART} is in the cluster{broken}: there is no way back")
    try:
        return found.of(found.meant(release))
    except releases.ReleaseError as error:
        raise RollbackError(str(error)) from None


def _wanted(history: tuple[Revision, ...], running: Revision, revision: int | Version | None) -> Revision:
    there = listed(history)
    if isinstance(revision, Version):
        return _of_release(history, running, revision)
    if revision is not None:
        found = next((each for each in history if each.revision == revision), None)
        if found is None:
            raise RollbackError(f"release {running.where} has no revision {revision}; it has {there}")
        if found is running:
            raise RollbackError(f"revision {revision} is in force already; there are {there}")
        if found.status not in _RESTORABLE:
            raise RollbackError(f"revision {revision} is {found.status}, and was never complete; there are {there}")
        return found
    before = [each for each in history if each.revision < running.revision and each.status in _RESTORABLE]
    if not before:
        raise RollbackError(
            f"release {running.where} has no complete revision before {running.revision}, which is in force; there are "
            f"{there}. groundplane install or helm upgrade with the older chart is the way left"
        )
    return before[0]


def _of_release(history: tuple[Revision, ...], running: Revision, release: Version) -> Revision:
    if release > (version := version_of(running)):
        raise RollbackError(
            f"{release} is newer than {version}, which runs: that is an upgrade: groundplane upgrade plan "
            f"--to {release}"
        )
    found = [
        each
        for each in history
        if each.revision < running.revision and each.status in _RESTORABLE and each.behaves_like == release
    ]
    if not found:
        raise RollbackError(f"release {running.where} has no complete revision of {release}; it has {listed(history)}")
    return found[0]


def listed(history: tuple[Revision, ...]) -> str:
    """Revisions in one line, newest first."""
    return ", ".join(f"{each.revision} ({each.chart_version}, {each.status})" for each in history)


# --- The plan ---------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What is known beside the survey: what nodes show from inside, and a baseline of before the upgrade."""

    node_facts: Mapping[str, NodeFacts] = {}
    node_unread: Mapping[str, str] = {}
    was: Baseline | None = None
    now: Baseline | None = None
    """As it is, with what GPUs told; made of the survey where there is none."""
    recover: bool = False
    """A person has said that no Helm runs any more for a release that is pending."""


class RollbackPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is said of a rollback before it is made."""

    way: Way
    source: Version
    """The release that runs."""
    target: Version
    """The one to go back to."""
    changes: tuple[Change, ...]
    pools: tuple[Pool, ...]
    estimate: Estimate
    policy: Policy | None
    """How the older operator replaces drivers; None if it does not by itself."""
    standstill: str
    """Why drivers would not be replaced at all; empty if they would."""
    crds: CrdChanges
    needed: images.Needed
    snapshot: rollback.Snapshot
    boundary: tuple[Line, ...]
    preconditions: Preconditions
    recover: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def go(self) -> bool:
        """Whether it can be made: nothing fails."""
        return rollback_findings.go(self.findings)

    @property
    def reloaded(self) -> tuple[str, ...]:
        """The nodes whose driver is installed anew."""
        return tuple(sorted(node for pool in self.pools if pool.effect is Effect.RELOAD for node in pool.nodes))


def plan(survey: Survey, way: Way, matrix: Matrix, known: Known = Known()) -> RollbackPlan:  # noqa: B008 - a constant
    """The plan of a rollback. Raises :class:`RollbackError`."""
    source, target = version_of(way.running), version_of(way.wanted)
    after = upgrade_render.documents(way.wanted.manifest)
    pools = upgrades.pools_of(
        survey, (upgrade_render.documents(way.running.manifest), source), (after, target), way.wanted
    )
    policy = _policy(after, target)
    reloaded = {node for pool in pools if pool.effect is Effect.RELOAD for node in pool.nodes}
    estimate = upgrades.estimate_of(survey, reloaded, policy, target)
    needed = preflight_platform.needed(_inquiry(survey, way.wanted, target, matrix))
    snapshot = seen(survey, way, pools, estimate, known)
    made = RollbackPlan(
        way=way,
        source=source,
        target=target,
        changes=rollback_content.changes(survey, way.running, way.wanted),
        pools=pools,
        estimate=estimate,
        policy=policy,
        standstill=_standstill(survey, pools, reloaded, policy),
        crds=rollback.crd_changes(target, source),
        needed=needed,
        snapshot=snapshot,
        boundary=rollback.boundary(Rollback(source, target, snapshot)),
        preconditions=_preconditions(survey, way, target, pools, needed, matrix, known),
        recover=known.recover,
    )
    return msgspec.structs.replace(made, findings=tuple(grouped(rollback_findings.of_plan(made, survey))))


def version_of(revision: Revision) -> Version:
    """The release that a revision behaves like. Raises :class:`RollbackError`."""
    try:
        return upgrades.source_of(revision)
    except upgrades.UpgradeError as error:
        raise RollbackError(str(error)) from None


def _policy(objects: list[Object], target: Version) -> Policy | None:
    found = next((each for each in objects if each.get("kind") == upgrade_render.POLICY), None)
    return upgrades.policy_in(found, target) if found is not None else None


def _standstill(survey: Survey, pools: tuple[Pool, ...], reloaded: set[str], policy: Policy | None) -> str:
    if not reloaded or policy is None or policy.max_unavailable is None:
        return ""
    managed = {node for pool in pools if pool.new for node in pool.nodes}
    nodes = [each for each in survey.of_kind("nodes") if each["metadata"]["name"] in managed]
    return disruption.standstill(nodes, policy.max_unavailable)


def _inquiry(survey: Survey, revision: Revision, target: Version, matrix: Matrix) -> Inquiry:
    """Preflight's inquiry for the older release under its own values, to know the images that it needs."""
    tree = trees.merge(upgrades.old_defaults(revision, target), revision.values)
    file = ValuesFile(f"revision {revision.revision}", tree, {})
    return preflight_inputs.inquiry_of(preflight_inputs.Wanted(matrix, str(target), (file,)), survey)


# --- What is there ----------------------------------------------------------------------------------------------------


def seen(
    survey: Survey, way: Way, pools: tuple[Pool, ...], estimate: Estimate, known: Known, *, after: bool = False
) -> rollback.Snapshot:
    """What the cluster shows of each layer. ``after``: the older revision is in force, and nothing is to be evicted."""
    old = way.wanted
    target = version_of(old)
    schemas = rollback_content.old_schemas(old, upgrade_render.behaving_as(target))
    readable = survey.knows("nodes") and survey.knows("pods")
    gone = rollback_seen.evicted(estimate.holders, survey) if after else rollback_seen.to_evict(estimate.holders)
    now = known.now or (baseline.of_survey(survey) if survey.knows("nodes") else None)
    values = trees.merge(upgrades.old_defaults(old, target), old.values)
    return rollback.Snapshot(
        edited=rollback_content.edits(survey, old if after else way.running),
        pools=pools if survey.knows("nodes") else None,
        estimate=estimate if readable else None,
        rejected=rollback_content.rejected(survey, old, schemas),
        definitions=rollback_seen.definitions(survey),
        custom=rollback_seen.custom(survey),
        nodes=survey.of_kind("nodes") if survey.knows("nodes") else None,
        host_files=rollback_seen.host_files(known.node_facts, survey),
        runtime_class=rollback_seen.runtime_class(survey),
        nri=bool(trees.get(values, "cdi.nriPluginEnabled")),
        evicted=gone if readable else None,
        **rollback_seen.pairs(known.was, now),
    )


# --- The four preconditions -------------------------------------------------------------------------------------------


def _preconditions(
    survey: Survey,
    way: Way,
    target: Version,
    pools: tuple[Pool, ...],
    needed: images.Needed,
    matrix: Matrix,
    known: Known,
) -> Preconditions:
    chosen = rollback.Revision(way.wanted.revision, target.number, way.wanted.status)
    references = sorted({each.reference for each in needed.images})
    return rollback.preconditions(
        target,
        (chosen,),
        rollback_seen.images(references, known.node_facts),
        dict(_drivers(survey, pools, needed, known)) if survey.knows("nodes") else None,
        upgrades.kubernetes(survey),
        Catalogue.of(matrix),
        _system(survey),
    )


def _system(survey: Survey) -> str | None:
    """The GPU nodes' operating system as the matrix names it, if they have one in common."""
    snapshot = Snapshot.of_survey(survey)
    keys = {snapshot.os_key(node) for node in snapshot.candidates}
    return keys.pop() if len(keys) == 1 else None


def _drivers(
    survey: Survey, pools: tuple[Pool, ...], needed: images.Needed, known: Known
) -> Iterator[tuple[str, str | None]]:
    """Why the old driver cannot be built on a node's kernel, for each node that gets one; None: not known."""
    kernels = {
        each["metadata"]["name"]: str(((each.get("status") or {}).get("nodeInfo") or {}).get("kernelVersion") or "?")
        for each in survey.of_kind("nodes")
    }
    for pool in pools:
        if not pool.new:
            continue
        for node in pool.nodes:
            facts = known.node_facts[node].facts if node in known.node_facts else {}
            if pool.effect is Effect.NONE or pool.before == pool.after:
                yield node, ""  # this very driver is what the node has now
            else:
                yield node, buildable(facts, kernels.get(node, "?"), pool.after)


def buildable(facts: Mapping[str, Any], kernel: str, image: str) -> str | None:
    """Why a driver cannot be had on a kernel: empty if it can, None if nobody has looked.

    A precompiled driver's image names its kernel; another is built, with headers and without Secure Boot.
    """
    tag = image.rpartition(":")[2]
    if kernel != "?" and f"-{kernel}-" in tag:
        return ""
    if facts.get("secure_boot") is True:
        return f"Secure Boot is on: a driver built for {kernel} is not signed, and not loaded"
    headers = str(facts.get("headers") or "")
    if headers in ("installed", "available"):
        return ""
    if headers == "absent":
        return f"the headers of {kernel} are neither installed nor in the node's repositories"
    return None
