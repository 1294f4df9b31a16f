"""A rollback's plan and its end as findings A103 to A105: what can be done, what Helm does not reverse, what stays."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Survey
from . import releases
from .rollback import Line

if TYPE_CHECKING:
    from .rollbacks import RollbackPlan

_LAYERS: Final[Mapping[str, Layer]] = {
    "driver pods": Layer.DRIVER,
    "loaded kernel modules": Layer.DRIVER,
    "host files": Layer.RUNTIME,
    "RuntimeClass": Layer.RUNTIME,
    "node labels": Layer.LABELS,
    "MIG geometry": Layer.DRIVER,
    "kernel, initramfs": Layer.KERNEL,
    "container runtime": Layer.RUNTIME,
    "firmware": Layer.HARDWARE,
    "evicted workloads": Layer.WORKLOAD,
}
"""Layers of the boundary by the layer of the stack; others are the operator's."""
_FIRST: Final = ("custom resources of new kinds",)
"""What has to be gone before Helm runs."""
_LOOK: Final[Mapping[str, str]] = {
    "host files": "--exec looks at nodes by commands in operand pods, --node-pods by short-lived pods",
    "MIG geometry": "--baseline PATH compares with a baseline of before the upgrade",
    "kernel, initramfs": "--baseline PATH compares with a baseline of before the upgrade",
    "container runtime": "--baseline PATH compares with a baseline of before the upgrade",
    "firmware": "--baseline PATH compares with a baseline of before the upgrade (groundplane baseline save)",
}
"""How a layer that nobody has looked at can be looked at."""


def go(findings: Iterable[Finding]) -> bool:
    """Whether a rollback can be made: nothing has failed. What is not known is for a person to weigh."""
    return all(each.outcome is not Outcome.FAIL for each in findings)


def of_plan(made: "RollbackPlan", survey: Survey) -> Iterator[Finding]:
    """Everything that a plan has to say."""
    yield from _of_release(made, survey)
    yield from _of_preconditions(made)
    yield from _of_drivers(made)
    yield from of_boundary(made.boundary)
    yield Finding(id="A105", layer=Layer.OPERATOR, outcome=Outcome.PASS, title="--write FILE writes the plan by layers")


def _of_release(made: "RollbackPlan", survey: Survey) -> Iterator[Finding]:
    last, running = made.way.history[0], made.way.running
    said = Evidence(f"Helm release {running.where}", f"revision {last.revision}, {last.status}")
    fixes: tuple[str, ...] = ()
    outcome, title = Outcome.PASS, f"release {running.where} can be rolled back"
    if last.status in releases.PENDING and made.recover:
        title = f"release {running.where} is {last.status} of a run that was interrupted: the rollback ends that"
    elif last.status in releases.PENDING:
        outcome = Outcome.FAIL
        title = f"release {running.where} is {last.status}: a run of Helm is under way, or was ended in the middle"
        fixes = (
            "see that no helm is running any more for this release",
            f"groundplane rollback run {made.way.wanted.revision} --recover then goes on",
        )
    elif last.status == "failed":
        outcome = Outcome.WARN
        title = f"the last change of release {running.where} (revision {last.revision}) has failed"
        fixes = ("look why: helm history, groundplane doctor",)
    yield _finding("A103", outcome, title, said, fix=fixes)
    others = [each for each in releases.history(survey).releases if each != running.where]
    if others:
        title = f"there are more releases of the chart: {', '.join(others)}"
        yield _finding("A103", Outcome.FAIL, title, fix=("take one away: groundplane uninstall",))


def _of_preconditions(made: "RollbackPlan") -> Iterator[Finding]:
    outcomes = {True: Outcome.PASS, False: Outcome.FAIL, None: Outcome.UNKNOWN}
    looks = {
        "pull": "--node-pods has every GPU node ask for each; the list: --images",
        "buil": "--exec or --node-pods looks for the kernel's headers on every node",
    }
    for check in made.preconditions.checks:
        fix = check.fix
        if check.met is None:
            fix = next((text for word, text in looks.items() if word in check.name), "")
        said = Evidence("rollback", check.text)
        title = check.name if check.met else f"{'not met' if check.met is False else 'not known'}: {check.name}"
        yield _finding("A103", outcomes[check.met], title, said, fix=(fix,) if fix else ())


def _of_drivers(made: "RollbackPlan") -> Iterator[Finding]:
    if not made.reloaded:
        return
    if made.standstill:
        yield _finding(
            "A103",
            Outcome.FAIL,
            "drivers would not be replaced",
            Evidence("nodes", made.standstill),
            layer=Layer.DRIVER,
        )
    if made.policy is None:
        title = "the older revision replaces no drivers by itself: delete the driver pod of each node"
        fix = ("kubectl delete pod --selector app.kubernetes.io/component=nvidia-driver, node by node",)
        yield _finding("A103", Outcome.WARN, title, layer=Layer.DRIVER, fix=fix)
    for each in made.estimate.blocked:
        said = Evidence(f"pod/{each.pod}", "; ".join(each.blockers))
        title = "a pod that has to leave cannot: the driver of its node is not replaced as long as it is there"
        yield _finding("A103", Outcome.WARN, title, said, layer=Layer.WORKLOAD, node=each.node)


def of_boundary(lines: Iterable[Line], *, after: bool = False) -> Iterator[Finding]:
    """A104: a finding for each layer. What only Helm brings back, and what is nothing to do, passes."""
    for line in lines:
        outcome = _outcome(line, after=after)
        cause = f"by Helm: {line.reverts}; {line.helm}" if outcome is not Outcome.PASS else ""
        evidence = tuple(Evidence(line.layer, each) for each in line.found or ())
        fix: tuple[str, ...] = (line.tool,) if line.found else ()
        if line.found is None:
            fix = (*(text for name, text in _LOOK.items() if line.layer.startswith(name)),)
        yield _finding(
            "A104",
            outcome,
            f"{line.layer}: {_said(line, after=after)}",
            *evidence,
            layer=next((it for name, it in _LAYERS.items() if line.layer.startswith(name)), Layer.OPERATOR),
            cause=cause,
            fix=fix,
        )


def _outcome(line: Line, *, after: bool) -> Outcome:
    if line.found is None:
        return Outcome.UNKNOWN
    if not line.found:
        return Outcome.PASS
    return Outcome.FAIL if line.layer in _FIRST and not after else Outcome.WARN


def _said(line: Line, *, after: bool) -> str:
    if line.found is None:
        return "not looked at"
    if not line.found:
        return "nothing is left" if after else "nothing to do"
    return f"{len(line.found)} {'left' if after else 'to know of'}"


def _finding(
    number: str,
    outcome: Outcome,
    title: str,
    *evidence: Evidence,
    layer: Layer = Layer.OPERATOR,
    node: str = "",
    cause: str = "",
    fix: tuple[str, ...] = (),
) -> Finding:
    action = Action.CHANGE_CONFIG if outcome in (Outcome.FAIL, Outcome.WARN) else Action.NONE
    return Finding(
        id=number,
        layer=layer,
        outcome=outcome,
        title=title,
        evidence=evidence,
        node=node,
        cause=cause,
        fix=fix,
        action=action,
    )
