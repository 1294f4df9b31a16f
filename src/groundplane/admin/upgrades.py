"""An upgrade's plan for one cluster: hops, values, drivers, workloads, images, and the way back, with go or no-go.

contracts/admin-workflow.md 9.2. Pure: a survey and the charts' values come in, what is to be said comes out; each part
is judged by its own module (``hops``, ``values``, ``disruption``, ``rollback``, ``preflight``) and brought together
here. Carrying the plan out is ``upgrade_run``'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ..cluster.eviction import Rules
from ..cluster.gpupods import Claim
from ..diagnose.evidence import NodeFacts
from ..diagnose.findings import Finding, Outcome, Severity, grouped
from ..diagnose.survey import Object, Survey
from ..operator.policy import decode
from ..operator.upgrade import scope
from ..operator.upgrade.model import Policy
from . import (
    chart,
    disruption,
    helm,
    hops,
    images,
    lookups,
    preflight,
    preflight_inputs,
    preflight_platform,
    releases,
    rollback,
    trees,
    upgrade_checks,
    upgrade_findings,
    upgrade_render,
    values,
)
from .disruption import Effect, Estimate, Pool
from .hops import Catalogue, Version
from .inquiry import Inquiry
from .matrix import Matrix
from .releases import Revision
from .rollback import CrdChanges, Preconditions, Rollback
from .snapshot import Snapshot
from .trees import Tree
from .value_changes import Cluster
from .values import Review
from .values_file import ValuesFile
from .versions import Minor, minor

KINDS: Final = (
    *("nodes", "pods", "namespaces", "clusterpolicies", "nvidiadrivers", "daemonsets", "deployments", "configmaps"),
    *("controllerrevisions", "jobs", "events", "customresourcedefinitions", "poddisruptionbudgets", "resourceclaims"),
    *("runtimeclasses", "secrets", "clusterversions"),
    *("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
)
"""What a plan reads, by plural: nineteen listings."""
MERGED: Final = "merged values"


class UpgradeError(Exception):
    """There is nothing that a plan could be made for; the message says why, and what to do."""


class Wanted(NamedTuple):
    """What is asked for.

    ``release`` is ``namespace/name``, empty for the only one. ``overrides`` are values over those of the release,
    ``keep`` paths that stay as they are. ``canary`` is the label (``key=value``) of the nodes that go first. Without
    ``hooks`` the chart's hooks do not run.
    """

    target: Version
    matrix: Matrix
    release: str = ""
    chart: helm.Chart | None = None
    overrides: Tree = {}
    keep: tuple[str, ...] = ()
    canary: str = ""
    hooks: bool = True
    chart_files: tuple[str, ...] = ()


class Charts(NamedTuple):
    """What is known of the target's chart: its own values, and its objects under some values; None: not at hand.

    ``definitions`` are the CRDs that it brings.
    """

    defaults: Tree | None = None
    rendered: Sequence[Object] | None = None
    definitions: tuple[Object, ...] = ()


class UpgradePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is said of an upgrade before it is made."""

    wanted: Wanted
    revision: Revision
    """The one in force."""
    source: Version
    path: hops.Path
    steps: tuple[hops.Step, ...]
    review: Review
    values: Mapping[str, Any]
    """The merged values file: what is different from the target's defaults, and nothing else. May hold secrets."""
    defaults: Mapping[str, Any]
    """The target chart's own."""
    pools: tuple[Pool, ...]
    estimate: Estimate
    policy: Policy | None
    """How drivers are upgraded; None if that is switched off."""
    crds: CrdChanges
    needed: images.Needed
    components: tuple[tuple[str, str, str], ...]
    """What changes of the release's components: name, version before, version after."""
    boundary: tuple[rollback.Line, ...]
    preconditions: Preconditions
    charts: Charts
    findings: tuple[Finding, ...]

    @property
    def go(self) -> bool:
        """Whether it can be made."""
        return upgrade_findings.go(self.findings)

    @property
    def ours(self) -> bool:
        """Whether the release's chart is groundplane's."""
        return self.revision.maker == releases.OURS

    @property
    def reloaded(self) -> tuple[str, ...]:
        """The nodes whose driver is installed anew."""
        return tuple(sorted(node for pool in self.pools if pool.effect is Effect.RELOAD for node in pool.nodes))


# --- What runs ----------------------------------------------------------------------------------------------------


def running(survey: Survey, release: str = "") -> Revision:
    """The revision in force. Raises :class:`UpgradeError` if there is none, or several and none was named."""
    found = releases.history(survey)
    if found.unread:
        raise UpgradeError(f"the installed release is not known: {found.unread}")
    if not found.revisions:
        broken = f" ({'; '.join(found.broken)})" if found.broken else ""
        raise UpgradeError(
            f"no release of chart {releases.CHART} is in the cluster{broken}: groundplane install makes one"
        )
    try:
        where = found.meant(release)
    except releases.ReleaseError as error:
        raise UpgradeError(str(error)) from None
    last = found.deployed(where)
    if last is None:
        newest = found.last(where)
        status = newest.status if newest is not None else "unknown"
        raise UpgradeError(
            f"release {where} was never deployed completely (it is {status}): finish it with groundplane install, or "
            "take it away with groundplane uninstall"
        )
    return last


def source_of(revision: Revision) -> Version:
    """The release that a revision behaves like. Raises :class:`UpgradeError`."""
    if revision.behaves_like is not None:
        return revision.behaves_like
    if revision.maker == releases.OURS:
        return chart.releases()[-1]
    raise UpgradeError(f"{revision.where} is chart {revision.chart_version}, which is no release such as v26.3.3")


def kubernetes(survey: Survey) -> Minor | None:
    """The cluster's minor version: the API server's, else the newest kubelet's; None if neither is known."""
    told = minor(survey.version)
    if told is not None:
        return told
    kubelets = ((each.get("status") or {}).get("nodeInfo") or {} for each in survey.of_kind("nodes"))
    return max((it for each in kubelets if (it := minor(str(each.get("kubeletVersion") or "")))), default=None)


def facts_of(survey: Survey, matrix: Matrix) -> Cluster:
    """What value changes ask of a cluster."""
    nodes = survey.of_kind("nodes")
    gpus = [lookups.gpu_of(each["metadata"].get("labels") or {}) for each in nodes]
    known = matrix.gpu.architectures
    found = {each.architecture: known[each.architecture] for each in gpus if each and each.architecture in known}
    taints = [taint.get("key") for each in nodes for taint in (each.get("spec") or {}).get("taints") or ()]
    version = kubernetes(survey)
    return Cluster(
        gpus=found or None,
        kubernetes=version,
        master_taints="node-role.kubernetes.io/master" in taints if survey.knows("nodes") else None,
        device_classes=_device_classes(survey, version),
    )


def _device_classes(survey: Survey, version: Minor | None) -> bool | None:
    """Served from 1.34 by default, and before only where an administrator has switched it on."""
    if "resourceclaims" in survey.objects:
        return True
    if "resourceclaims" in survey.absent and version is not None:
        return None if (1, 32) <= version < (1, 34) else False
    return None


def old_defaults(revision: Revision, source: Version) -> Tree:
    """The defaults of the chart that runs: as Helm has stored them, with those of the release that ours is like."""
    if revision.maker == releases.OURS or not revision.defaults:
        return trees.merge(chart.defaults(source), revision.defaults)
    return revision.defaults


def new_defaults(wanted: Wanted, ours: bool, defaults: Tree | None) -> Tree:
    """The target chart's own values; without the chart, those that groundplane knows of the release."""
    if defaults is None or ours:
        return trees.merge(chart.defaults(wanted.target), defaults or {})
    return defaults


# --- The plan -----------------------------------------------------------------------------------------------------


def plan(
    wanted: Wanted,
    survey: Survey,
    charts: Charts = Charts(),  # noqa: B008 - a constant
    node_facts: Mapping[str, NodeFacts] | None = None,
    node_unread: Mapping[str, str] | None = None,
) -> UpgradePlan:
    """The plan of an upgrade. Raises :class:`UpgradeError` and :class:`~.hops.VersionError`."""
    revision, review, values_made = merged(wanted, survey, charts.defaults)
    source, ours = source_of(revision), revision.maker == releases.OURS
    catalogue = Catalogue.of(wanted.matrix)
    cluster, system = kubernetes(survey), _system(survey)
    path = catalogue.path(source, wanted.target, system)
    if path.action == "rollback":
        raise UpgradeError(
            f"{wanted.target} is older than {source}, which runs: that is a rollback, groundplane rollback plan"
        )
    steps = hops.interleave(catalogue, path, cluster, system) if cluster is not None else ()
    old = old_defaults(revision, source)
    new = new_defaults(wanted, ours, charts.defaults)
    pools = _pools(survey, revision, source, wanted.target, trees.merge(new, values_made), charts.rendered)
    policy = upgrade_policy(survey, wanted.target, trees.merge(new, values_made), charts.rendered)
    estimate = _estimate(survey, pools, policy, wanted.target)
    inquiry = _inquiry(wanted, survey, values_made, node_facts, node_unread)
    crds = rollback.crd_changes(source, wanted.target)
    conditions = rollback.preconditions(source, (_line(revision, source),), None, None, cluster, catalogue, system)
    made = UpgradePlan(
        wanted=wanted,
        revision=revision,
        source=source,
        path=path,
        steps=steps,
        review=review,
        values=values_made,
        defaults=new,
        pools=pools,
        estimate=estimate,
        policy=policy,
        crds=crds,
        needed=preflight_platform.needed(inquiry),
        components=_components(wanted.matrix, source, wanted.target),
        boundary=rollback.boundary(Rollback(wanted.target, source, _way_back(survey, revision, pools, estimate, old))),
        preconditions=conditions,
        charts=charts,
        findings=(),
    )
    found = grouped(_findings(made, survey, charts, inquiry, catalogue))
    return msgspec.structs.replace(made, findings=tuple(found))


def _findings(
    made: UpgradePlan, survey: Survey, charts: Charts, inquiry: Inquiry, catalogue: Catalogue
) -> Iterator[Finding]:
    yield from upgrade_findings.of_path(made.path, made.steps, catalogue)
    yield from upgrade_checks.of_plan(made, survey, charts, inquiry)
    yield from upgrade_findings.of_values(made.review)
    yield from upgrade_findings.of_pools(made.pools)
    yield from upgrade_findings.of_workloads(made.estimate, _standstill(made, survey))
    yield from map(_not_yet, upgrade_findings.of_preconditions(made.preconditions))
    found = preflight.preflight(inquiry)
    yield upgrade_checks.of_platform(made, found)
    yield from preflight.folded(found)


def _not_yet(finding: Finding) -> Finding:
    """A way back that is closed is a warning before an upgrade: it is a failure of the rollback only."""
    if finding.outcome is not Outcome.FAIL:
        return finding
    return msgspec.structs.replace(finding, outcome=Outcome.WARN, severity=Severity.CRITICAL)


def merged(wanted: Wanted, survey: Survey, defaults: Tree | None) -> tuple[Revision, Review, dict[str, Any]]:
    """The revision in force, its overrides through the upgrade, and the merged values. Raises :class:`UpgradeError`."""
    revision = running(survey, wanted.release)
    source, ours = source_of(revision), revision.maker == releases.OURS
    old, new = old_defaults(revision, source), new_defaults(wanted, ours, defaults)
    review = reviewed(wanted, revision, old, new, facts_of(survey, wanted.matrix))
    return revision, review, _with_release(review.overrides, wanted.target) if ours else review.overrides


def reviewed(wanted: Wanted, revision: Revision, old: Tree, new: Tree, cluster: Cluster) -> Review:
    """The release's overrides through the upgrade; of ours, which release it is like is no override but the target."""
    mine = trees.layer(revision.values, wanted.overrides)
    if revision.maker == releases.OURS:
        mine = trees.without(mine, {("operator", "release")})
    known = values.Releases.of(wanted.matrix, source_of(revision), wanted.target)
    return values.review(mine, old, new, known, cluster, wanted.keep)


def _with_release(overrides: Tree, target: Version) -> dict[str, Any]:
    return trees.put(overrides, ("operator", "release"), target.number)


def _inquiry(
    wanted: Wanted,
    survey: Survey,
    overrides: Mapping[str, Any],
    node_facts: Mapping[str, NodeFacts] | None,
    node_unread: Mapping[str, str] | None,
) -> Inquiry:
    file = ValuesFile(MERGED, dict(overrides), {})
    asked = preflight_inputs.Wanted(wanted.matrix, str(wanted.target), (file,))
    return preflight_inputs.inquiry_of(asked, survey, node_facts, node_unread)


def _system(survey: Survey) -> str | None:
    """The GPU nodes' operating system as the matrix names it, if they have one in common."""
    snapshot = Snapshot.of_survey(survey)
    keys = {snapshot.os_key(node) for node in snapshot.candidates}
    return keys.pop() if len(keys) == 1 else None


def _line(revision: Revision, version: Version | None) -> rollback.Revision:
    return rollback.Revision(revision.revision, version.number if version is not None else "", revision.status)


def lines(history: Sequence[Revision]) -> tuple[rollback.Revision, ...]:
    """A release's history as rollbacks see it: by the release that each revision behaves like."""
    return tuple(_line(each, each.behaves_like or _ours(each)) for each in history)


def _ours(revision: Revision) -> Version | None:
    return chart.releases()[-1] if revision.maker == releases.OURS else None


def _components(matrix: Matrix, source: Version, target: Version) -> tuple[tuple[str, str, str], ...]:
    before, after = (matrix.releases.get(str(each)) for each in (source, target))
    one = {**before.components, "driver": before.driver.default} if before is not None else {}
    other = {**after.components, "driver": after.driver.default} if after is not None else {}
    return tuple(
        (name, one.get(name, "-"), other.get(name, "-"))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    )


# --- Drivers and workloads ----------------------------------------------------------------------------------------


def _pools(
    survey: Survey,
    revision: Revision,
    source: Version,
    target: Version,
    computed: Tree,
    rendered: Sequence[Object] | None,
) -> tuple[Pool, ...]:
    stored = upgrade_render.documents(revision.manifest)
    before = stored if _has_policy(stored) else [*survey.of_kind("clusterpolicies"), *survey.of_kind("deployments")]
    after = list(rendered) if rendered is not None and _has_policy(rendered) else [upgrade_render.policy_of(computed)]
    return pools_of(survey, (before, source), (after, target), revision)


def pools_of(
    survey: Survey,
    before: tuple[Sequence[Object], Version],
    after: tuple[Sequence[Object], Version],
    revision: Revision,
) -> tuple[Pool, ...]:
    """What becomes of each node's driver when the objects of one release take the place of another's."""
    sets = []
    for objects, version in (before, after):
        seen = upgrade_render.planned(survey, objects)
        sets.append(upgrade_render.driver_sets(seen, version, upgrade_render.chart_label(revision, version))[0])
    return disruption.by_pool(sets[0], sets[1], survey.of_kind("nodes"), before[1], after[1])


def _has_policy(objects: Sequence[Object]) -> bool:
    return any(each.get("kind") == upgrade_render.POLICY for each in objects)


def upgrade_policy(survey: Survey, target: Version, computed: Tree, rendered: Sequence[Object] | None) -> Policy | None:
    """How the target upgrades drivers; None if it does not by itself."""
    policies = [each for each in rendered or () if each.get("kind") == upgrade_render.POLICY]
    return policy_in(policies[0] if policies else upgrade_render.policy_of(computed), target)


def policy_in(document: Object, release: Version) -> Policy | None:
    """How an operator upgrades drivers by a ClusterPolicy; None if it does not by itself."""
    decoded = decode(document)
    if decoded.policy is None:
        return None
    given = decoded.policy.spec.driver.upgradePolicy
    if not given.autoUpgrade:
        return None
    return scope.policy(given, upgrade_render.behaving_as(release))


def _estimate(survey: Survey, pools: Sequence[Pool], policy: Policy | None, target: Version) -> Estimate:
    nodes = {node for pool in pools if pool.effect is Effect.RELOAD for node in pool.nodes}
    return estimate_of(survey, nodes, policy, target)


def estimate_of(survey: Survey, nodes: set[str], policy: Policy | None, release: Version) -> Estimate:
    """Which pods have to leave some nodes for their drivers."""
    drain = policy is not None and policy.drain.enable
    deletion = policy.pod_deletion if policy is not None else None
    rules = Rules()
    if policy is not None and drain:
        rules = Rules(policy.drain.force, policy.drain.delete_empty_dir)
    elif deletion is not None:
        rules = Rules(deletion.force, deletion.delete_empty_dir)
    claims = None
    if release >= disruption.IN_PLACE_SINCE and survey.knows("resourceclaims"):
        claims = {_key(each): msgspec.convert(each, Claim) for each in survey.of_kind("resourceclaims")}
    budgets = survey.of_kind("poddisruptionbudgets")
    return disruption.estimate(nodes, survey.of_kind("pods"), budgets, rules, claims=claims, drain=drain)


def _key(thing: Object) -> tuple[str, str]:
    return str(thing["metadata"].get("namespace") or ""), str(thing["metadata"]["name"])


def _standstill(made: UpgradePlan, survey: Survey) -> str:
    if made.policy is None:
        return ""
    managed = {node for pool in made.pools if pool.new for node in pool.nodes}
    if not set(made.reloaded):
        return ""
    nodes = [each for each in survey.of_kind("nodes") if each["metadata"]["name"] in managed]
    return disruption.standstill(nodes, made.policy.max_unavailable) if made.policy.max_unavailable is not None else ""


def _way_back(
    survey: Survey, revision: Revision, pools: Sequence[Pool], estimate: Estimate, old: Tree
) -> rollback.Snapshot:
    """What is known of the rollback that would undo this upgrade: the same drivers, the other way."""
    back = tuple(
        pool._replace(old=pool.new, new=pool.old, before=pool.after, after=pool.before, why=()) for pool in pools
    )
    return rollback.Snapshot(
        edited=tuple(upgrade_render.edited(survey, revision)),
        pools=back,
        estimate=estimate,
        nri=bool(trees.get(trees.merge(old, revision.values), "cdi.nriPluginEnabled")),
    )
