"""What an upgrade's plan has to say beside hops, values, drivers and workloads: checks A86 to A102, one function each.

Pure. A function gets the plan as far as it is made, the survey, what is known of the target's chart, and preflight's
inquiry for the target; it gives findings. What only the run can tell (A98) is told by ``upgrade_run``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..api import names
from ..diagnose import findings
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome, natural
from ..diagnose.survey import Object, Survey
from ..operator import schema_check
from ..operator.upgrade import states
from ..operator.upgrade.states import State
from . import canary, lookups, preflight, releases, trees
from .checks import CHECKS
from .inquiry import Inquiry

if TYPE_CHECKING:
    from .upgrades import Charts, UpgradePlan

AGAIN: Final = (
    "groundplane doctor finds the cause",
    f"then begin the node again: kubectl label --overwrite node NODE {names.UPGRADE_STATE}=upgrade-required",
)
"""What to do about a node whose upgrade has failed."""
NAMED: Final = 10
"""So many things are named in a line."""


def finding(number: str, outcome: Outcome, title: str, *evidence: Evidence, **more: Any) -> Finding:
    """A finding of a check, in its row's layer."""
    return Finding(
        id=number,
        layer=more.pop("layer", CHECKS[number].layer),
        outcome=outcome,
        title=title,
        evidence=evidence,
        **more,
    )


def some(things: Any) -> str:
    """Names, cut where there are many."""
    return findings.some(list(things), NAMED)


Check = Callable[["UpgradePlan", Survey, "Charts", Inquiry], Iterator[Finding]]


def of_plan(made: "UpgradePlan", survey: Survey, charts: "Charts", inquiry: Inquiry) -> Iterator[Finding]:
    """Every check's findings, in the order of their numbers."""
    for check in CHECKS_OF_PLAN:
        yield from check(made, survey, charts, inquiry)


def _kubernetes(made: "UpgradePlan", _survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    if made.path.hops and not made.steps:
        title = "the cluster's Kubernetes is not known: which hops fit it cannot be said"
        fix = ("give what kubectl version -o json prints, or nodes, in the snapshot",)
        yield finding("A85", Outcome.UNKNOWN, title, fix=fix)
    if len(made.path.hops) > 1:
        first = made.path.hops[0]
        title = f"{len(made.path.hops)} hops: upgrade run makes one at a time"
        yield finding("A85", Outcome.WARN, title, fix=(f"groundplane upgrade run --to {first.target}",))


def _components(made: "UpgradePlan", _survey: Survey, _charts: "Charts", inquiry: Inquiry) -> Iterator[Finding]:
    """A86: what the release brings, and what is known to be wrong with its driver."""
    row = inquiry.target.row
    if row is None:
        title = f"{made.wanted.target} is not in the support matrix: its components and known faults are not known"
        yield finding("A86", Outcome.UNKNOWN, title, fix=("give a newer one (--matrix)",))
        return
    changed = [f"{name} {before} -> {after}" for name, before, after in made.components]
    title = f"{len(changed)} components change" if changed else "no component changes"
    yield finding("A86", Outcome.PASS, title, *(Evidence("support matrix", each) for each in changed))
    driver = inquiry.settings.driver_version or row.driver.default
    for fault in lookups.known_faults(made.wanted.matrix, driver) if inquiry.settings.driver else ():
        said = Evidence(f"support matrix {fault.row}", fault.reason)
        yield finding("A86", Outcome.WARN, f"driver {driver} has a known fault", said, fix=fault.fix)
    if row.driver.recommended and row.driver.recommended != driver and inquiry.settings.driver:
        title = f"the chart installs driver {driver}; NVIDIA has come to recommend {row.driver.recommended}"
        yield finding("A86", Outcome.PASS, title, Evidence("support matrix", row.driver.recommended_note or "-"))


def of_platform(made: "UpgradePlan", found: Sequence[Finding]) -> Finding:
    """A87: whether the platform fits the target, as one line over preflight's own findings."""
    failed = sorted({each.id for each in found if each.outcome is Outcome.FAIL}, key=natural)
    blind = sum(each.outcome is Outcome.UNKNOWN for each in found)
    if failed:
        title = f"preflight for {made.wanted.target} fails: {', '.join(failed)}"
        return finding("A87", Outcome.FAIL, title, fix=("mend what these findings name, below",))
    more = f"; {blind} checks could not be made" if blind else ""
    return finding("A87", Outcome.PASS, f"nothing of the platform is known not to work with {made.wanted.target}{more}")


def _exported(_made: "UpgradePlan", survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A88: whether what is to be kept can be read."""
    wanted = ("secrets", "clusterpolicies", "nodes")
    lacking = [survey.unread.get(each, each) for each in wanted if not survey.knows(each)]
    if lacking:
        title = "values, ClusterPolicy or nodes cannot be read, and so not be kept before the upgrade"
        yield finding("A88", Outcome.UNKNOWN, title, cause="; ".join(lacking))
    else:
        yield finding("A88", Outcome.PASS, "values, ClusterPolicy, history and nodes can be kept before the upgrade")


def _canary(made: "UpgradePlan", survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A89: the nodes that go first."""
    if not made.wanted.canary:
        if len(made.reloaded) > 1:
            title = f"no canary pool: drivers of {len(made.reloaded)} nodes are replaced in one go"
            fix = ("--canary-label KEY=VALUE upgrades the drivers of these nodes first, and tests them",)
            yield finding("A89", Outcome.WARN, title, fix=fix)
        else:
            yield finding("A89", Outcome.SKIP, "a canary pool needs drivers of several nodes that are replaced")
        return
    chosen = canary.chosen(survey, made.wanted.canary)
    if not chosen:
        title = f"no GPU node has the label {made.wanted.canary}"
        yield finding("A89", Outcome.FAIL, title, confirm=f"kubectl get nodes -l {made.wanted.canary}")
        return
    if not set(canary.managed(survey)) - set(chosen):
        yield finding("A89", Outcome.WARN, f"every GPU node has the label {made.wanted.canary}: none comes after them")
        return
    yield finding("A89", Outcome.PASS, f"{len(chosen)} nodes go first: {some(chosen)}")


def _images(made: "UpgradePlan", _survey: Survey, _charts: "Charts", inquiry: Inquiry) -> Iterator[Finding]:
    """A92: whether nodes can pull the target's images; tags that mirrors may lack."""
    if inquiry.node_facts:
        for each in preflight.run(CHECKS["A33"], inquiry):
            yield finding(
                "A92", each.outcome, each.title, *each.evidence, cause=each.cause, fix=each.fix, node=each.node
            )
    else:
        title = f"{len(made.needed.images)} images are needed; nobody has tried to pull them"
        fix = ("--node-pods has every GPU node try", "the list is in the plan: --images")
        yield finding("A92", Outcome.UNKNOWN, title, fix=fix)
    before = lookups.Target.of(made.wanted.matrix, str(made.source))
    for key in sorted({each.system for each in made.needed.images if each.component == "driver"}):
        verdict = inquiry.target.image_tag_change(before, key)
        if verdict.outcome is Outcome.WARN:
            yield finding("A92", Outcome.WARN, verdict.reason, fix=verdict.fix)


def _defaults(made: "UpgradePlan", _survey: Survey, charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A94: whether the target chart's own values are at hand."""
    if charts.defaults is not None:
        yield finding("A94", Outcome.PASS, f"the target chart's own values are at hand: {made.wanted.chart}")
        return
    title = f"the chart of {made.wanted.target} was not at hand: names and defaults are those that groundplane knows"
    fix = ("give it (--chart, --repository) to compare with its own values",)
    yield finding("A94", Outcome.WARN, title, fix=fix)


def _release(made: "UpgradePlan", survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A96: whether Helm would take a change now."""
    last = releases.history(survey).last(made.revision.where)
    status = last.status if last is not None else ""
    number = last.revision if last is not None else 0
    said = Evidence(f"Helm release {made.revision.where}", f"revision {number}, {status}")
    if status in releases.PENDING:
        title = f"release {made.revision.where} is {status}: Helm refuses any change"
        fix = (
            "see that no helm is running any more for this release",
            f"groundplane upgrade run --recover goes back to revision {made.revision.revision} first (helm rollback "
            f"{made.revision.name} {made.revision.revision} --namespace {made.revision.namespace})",
        )
        yield finding("A96", Outcome.FAIL, title, said, fix=fix)
    elif status != "deployed":
        title = f"the last change of release {made.revision.where} is {status}"
        yield finding("A96", Outcome.WARN, title, said, fix=("look why: helm history, groundplane doctor",))
    else:
        yield finding("A96", Outcome.PASS, f"release {made.revision.where} can be upgraded", said)
    others = [each for each in releases.history(survey).releases if each != made.revision.where]
    if others:
        title = f"there are more releases of the chart: {', '.join(others)}"
        yield finding("A96", Outcome.FAIL, title, fix=("take one away: groundplane uninstall",))


def _definitions(made: "UpgradePlan", survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A97: whether definitions come up to date before the operator does."""
    changes = [f"changes {each}" for each in made.crds.changed] + [f"adds {each}" for each in made.crds.added]
    said = [Evidence("definitions", each) for each in changes]
    hook = trees.get(trees.merge(made.defaults, made.values), "operator.upgradeCRD", True)
    custom = trees.get(trees.merge(made.defaults, made.values), "gpuCluster.deployCR", False)
    if not made.wanted.hooks and custom:
        title = "--no-hooks with a GPUCluster: its definition comes by the hook, and it cannot be made without"
        yield finding("A97", Outcome.FAIL, title, fix=("leave --no-hooks away",))
    elif not made.wanted.hooks:
        title = "the chart's hooks do not run: groundplane applies the chart's definitions before Helm"
        yield finding("A97", Outcome.WARN, title, *said, fix=("for a hook whose image cannot be pulled only",))
    elif hook is False:
        title = "operator.upgradeCRD is off: groundplane applies the chart's definitions before Helm"
        yield finding("A97", Outcome.WARN, title, *said)
    else:
        text = f"{len(changes)} definitions change" if changes else "no definition is known to change"
        yield finding("A97", Outcome.PASS, f"{text}: the chart's hook brings them before the operator", *said)
    if made.crds.by_hand:
        title = f"no hook brings {', '.join(made.crds.by_hand)}: apply them by hand if you use them"
        yield finding("A97", Outcome.PASS, title)
    if not survey.knows("customresourcedefinitions"):
        cause = survey.unread.get("customresourcedefinitions", "")
        yield finding("A97", Outcome.UNKNOWN, "definitions could not be read", cause=cause)


def _drivers(made: "UpgradePlan", _survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A99: whether the operator replaces drivers by itself."""
    if made.reloaded and made.policy is None:
        title = "driver.upgradePolicy.autoUpgrade is off: nodes keep their driver until their driver pod is deleted"
        fix = ("switch it on, or delete driver pods node by node after the upgrade",)
        yield finding("A99", Outcome.WARN, title, fix=fix)


def _states(_made: "UpgradePlan", survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A100, A101: upgrades of drivers that are under way, or have failed, before this one."""
    if not survey.knows("nodes"):
        yield finding("A100", Outcome.UNKNOWN, "nodes could not be read", cause=survey.unread.get("nodes", ""))
        return
    found = states_of(survey)
    failed = sorted(node for node, state in found.items() if state is State.FAILED)
    busy = sorted(node for node, state in found.items() if state not in states.AT_REST and state is not State.FAILED)
    if failed:
        for node in failed:
            yield finding("A101", Outcome.FAIL, "the node's last driver upgrade has failed", node=node, fix=AGAIN)
    else:
        yield finding("A101", Outcome.PASS, "no node's driver upgrade has failed")
    if busy:
        fix = ("wait until it is over: groundplane driver plan",)
        for node in busy:
            title = "a driver upgrade is under way"
            yield finding("A100", Outcome.WARN, title, Evidence(f"node/{node}", str(found[node])), node=node, fix=fix)
    else:
        yield finding("A100", Outcome.PASS, "no driver upgrade is under way")


def states_of(survey: Survey) -> Mapping[str, State | None]:
    """The upgrade state of every node that has one; None for a value that no release writes."""
    found: dict[str, State | None] = {}
    for node in survey.of_kind("nodes"):
        value = (node["metadata"].get("labels") or {}).get(names.UPGRADE_STATE)
        if value is not None:
            found[node["metadata"]["name"]] = states.parse(value)
    return found


def _host_drivers(made: "UpgradePlan", survey: Survey, _charts: "Charts", _inquiry: Inquiry) -> Iterator[Finding]:
    """A102: drivers that are not the operator's."""
    hosts = host_drivers(made, survey)
    if hosts:
        title = "the driver is the host's: it is not upgraded"
        fix = ("upgrade it with the node image, if the release asks for a newer one",)
        found = Finding(id="A102", layer=Layer.DRIVER, outcome=Outcome.WARN, title=title, fix=fix)
        yield found.about(hosts, ())
    else:
        yield finding("A102", Outcome.PASS, "every GPU node's driver is the operator's")


def host_drivers(made: "UpgradePlan", survey: Survey) -> tuple[str, ...]:
    """GPU nodes whose driver is not the operator's."""
    unmanaged = {node for pool in made.pools if not pool.new for node in pool.nodes}
    return tuple(sorted(unmanaged | {_name(node) for node in survey.of_kind("nodes") if _preinstalled(node)}))


def _preinstalled(node: Object) -> bool:
    return (node["metadata"].get("labels") or {}).get(names.DEPLOY_DRIVER) == "pre-installed"


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


CHECKS_OF_PLAN: Final[tuple[Check, ...]] = (
    _kubernetes,
    _components,
    _exported,
    _canary,
    _images,
    _defaults,
    _release,
    _definitions,
    _drivers,
    _states,
    _host_drivers,
)


# --- Definitions --------------------------------------------------------------------------------------------------


def stale(live: Survey, wanted: tuple[Object, ...]) -> Iterator[Finding]:
    """A97, after: whether the definitions of the cluster have every field of the target's."""
    served = {_name(each): each for each in live.of_kind("customresourcedefinitions")}
    if not live.knows("customresourcedefinitions"):
        cause = live.unread.get("customresourcedefinitions", "")
        yield finding("A97", Outcome.UNKNOWN, "definitions could not be read", cause=cause)
        return
    bad = False
    for each in wanted:
        if each.get("kind") != "CustomResourceDefinition":
            continue
        there = served.get(_name(each))
        fields = [f"no {_name(each)}"] if there is None else list(_missing(each, there))
        if fields:
            bad = True
            title = f"definition {_name(each)} is not the target's: {some(fields)}"
            fix = ("apply the chart's definitions: helm show crds CHART | kubectl apply --server-side -f -",)
            yield finding("A97", Outcome.FAIL, title, fix=fix, action=Action.UPGRADE_COMPONENT)
    if not bad and wanted:
        yield finding("A97", Outcome.PASS, "the definitions have every field of the target's")


def _missing(wanted: Object, live: Object) -> Iterator[str]:
    there = {each.get("name"): each for each in (live.get("spec") or {}).get("versions") or ()}
    for version in (wanted.get("spec") or {}).get("versions") or ():
        found = there.get(version.get("name"))
        if found is None:
            yield f"version {version.get('name')}"
            continue
        known, there_now = ((each.get("schema") or {}).get("openAPIV3Schema") or {} for each in (version, found))
        yield from schema_check.missing(known, there_now)
