"""An upgrade's plan as findings: what hops, values, drivers, workloads and the way back have to say, in one shape.

contracts/admin-workflow.md 1 and 9.2. Each part is judged where it is made (``hops``, ``values``, ``disruption``,
``rollback``); here it only gets the number of its check, a layer and an outcome, so that the plan has one order, one
exit code and one go or no-go. Findings of the target's platform come from preflight.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome, Severity
from .disruption import Effect, Estimate, Holder, Pool
from .hops import Catalogue, Path, Step, StepKind
from .rollback import Preconditions
from .value_changes import Level
from .values import Notice, Review

_STEPS: Final[Mapping[StepKind, Outcome]] = {
    "operator": Outcome.PASS,
    "kubernetes": Outcome.WARN,
    "outside": Outcome.WARN,
    "blocked": Outcome.FAIL,
}
_LEVELS: Final[Mapping[Level, tuple[Outcome, Severity]]] = {
    Level.BREAKS: (Outcome.WARN, Severity.CRITICAL),
    Level.WARN: (Outcome.WARN, Severity.WARNING),
    Level.INFO: (Outcome.PASS, Severity.INFO),
}
_EFFECTS: Final[Mapping[Effect, tuple[Outcome, str]]] = {
    Effect.NONE: (Outcome.PASS, "the driver stays as it is"),
    Effect.RESTART: (Outcome.PASS, "the driver restarts in place, its kernel modules stay loaded"),
    Effect.RELOAD: (Outcome.WARN, "the driver is installed anew: GPU pods leave and the kernel modules are unloaded"),
}


def go(findings: Iterable[Finding]) -> bool:
    """Whether an upgrade can be made: nothing has failed. Warnings and what is not known are for a person to weigh."""
    return all(each.outcome is not Outcome.FAIL for each in findings)


def of_path(path: Path, steps: Sequence[Step], catalogue: Catalogue) -> Iterator[Finding]:
    """A85: the hops with the upgrades of the cluster between them, in order, and how long their releases live."""
    for number, step in enumerate(steps, 1):
        title = f"step {number} of {len(steps)}: {step}"
        action = Action.NONE if step.kind == "operator" else Action.UPGRADE_COMPONENT
        yield Finding(id="A85", layer=Layer.OPERATOR, outcome=_STEPS[step.kind], title=title, action=action)
    if path.action == "none":
        title = f"{path.target} runs already: nothing to do"
        yield Finding(id="A85", layer=Layer.OPERATOR, outcome=Outcome.PASS, title=title)
    for note in path.notes:
        yield Finding(id="A85", layer=Layer.OPERATOR, outcome=Outcome.WARN, title=note)
    for which, version in (("source", path.source), ("target", path.target)):
        word = catalogue.lifecycle(version)
        outcome = Outcome.WARN if which == "target" and word != "supported" else Outcome.PASS
        evidence = (Evidence(f"support matrix of {catalogue.as_of}", f"{version.family}: {word}"),)
        title = f"the {which} {version} is {word}"
        yield Finding(id="A86", layer=Layer.OPERATOR, outcome=outcome, title=title, evidence=evidence)


def of_values(review: Review) -> Iterator[Finding]:
    """A95: each notice of the values, worst first."""
    for notice in review.notices:
        yield _of_notice(notice)


def _of_notice(notice: Notice) -> Finding:
    outcome, severity = _LEVELS[notice.level]
    if notice.kind == "refused":
        outcome = Outcome.FAIL
    elif not notice.certain and outcome is Outcome.WARN:
        outcome = Outcome.UNKNOWN
    source = f"chart {notice.release}" if notice.release is not None else "values"
    return Finding(
        id="A95",
        layer=Layer.OPERATOR,
        outcome=outcome,
        severity=severity,
        title=f"{notice.path}: {notice.text}",
        evidence=(Evidence(source, notice.path),),
        fix=(notice.fix,) if notice.fix else (),
        action=Action.NONE if outcome is Outcome.PASS else Action.CHANGE_CONFIG,
    )


def of_pools(pools: Iterable[Pool]) -> Iterator[Finding]:
    """A99: what becomes of the driver, by node pool."""
    for pool in pools:
        outcome, title = _EFFECTS[pool.effect]
        images = () if pool.before == pool.after else (Evidence("driver image", f"{pool.before} -> {pool.after}"),)
        why = tuple(Evidence(f"DaemonSet {pool.new or pool.old}", line) for line in pool.why)
        found = Finding(id="A99", layer=Layer.DRIVER, outcome=outcome, title=title)
        yield found.about(pool.nodes, (*images, *why))


def of_workloads(estimate: Estimate, standstill: str = "") -> Iterator[Finding]:
    """A90: the pods that have to leave, by node, and what holds them; ``standstill``: why no node would begin."""
    if standstill:
        fix = ("bring these nodes back, or raise driver.upgradePolicy.maxUnavailable",)
        yield Finding(id="A90", layer=Layer.DRIVER, outcome=Outcome.FAIL, title=standstill, fix=fix)
    by_node: dict[str, list[Holder]] = defaultdict(list)
    for holder in estimate.holders:
        by_node[holder.node].append(holder)
    for node, holders in by_node.items():
        yield _of_node(node, holders)
    if estimate.idle:
        idle = Finding(id="A90", layer=Layer.WORKLOAD, outcome=Outcome.PASS, title="no pod has to leave")
        yield idle.about(estimate.idle, ())


def _of_node(node: str, holders: Sequence[Holder]) -> Finding:
    blocked = [each for each in holders if each.blockers]
    title = "pods have to leave, and some cannot" if blocked else "pods have to leave"
    return Finding(
        id="A90",
        layer=Layer.WORKLOAD,
        outcome=Outcome.FAIL if blocked else Outcome.WARN,
        title=title,
        node=node,
        evidence=tuple(Evidence(f"pod {each.pod}", _described(each)) for each in holders),
        fix=("end these pods by hand, or let driver.upgradePolicy permit it",) if blocked else (),
        action=Action.CHECK_WORKLOAD,
    )


def _described(holder: Holder) -> str:
    parts = [holder.controller or "bare: nothing makes it anew"]
    parts += ["has an emptyDir, which is lost"] * holder.empty_dir
    return "; ".join((*parts, *holder.blockers))


def of_preconditions(preconditions: Preconditions) -> Iterator[Finding]:
    """A91: whether the way back is open."""
    outcomes = {True: Outcome.PASS, False: Outcome.FAIL, None: Outcome.UNKNOWN}
    for check in preconditions.checks:
        yield Finding(
            id="A91",
            layer=Layer.OPERATOR,
            outcome=outcomes[check.met],
            title=check.name,
            evidence=(Evidence("rollback", check.text),),
            fix=(check.fix,) if check.fix else (),
        )
