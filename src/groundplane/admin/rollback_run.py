"""Making a rollback: its steps and their work; what is looked at when Helm is done (contracts/admin-workflow.md 10).

An upgrade's run the other way (``upgrade_run``): the same savepoint before, the same watching and verifying after, and
resumed in the same way. At the end the boundary is looked at again, since Helm takes back no more than objects.
"""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..api import names
from ..cluster import errors
from ..diagnose.findings import Finding, Layer, Outcome
from ..diagnose.survey import Survey
from . import (
    baseline,
    canary,
    helm,
    install,
    nodelook,
    plans,
    releases,
    rollback,
    rollback_findings,
    rollback_seen,
    rollbacks,
    savepoint,
    upgrade_run,
    upgrade_watch,
    upgrades,
)
from .disruption import Effect, Holder, Pool
from .hops import Version
from .upgrade_run import Limits, Run

if TYPE_CHECKING:
    from .rollbacks import RollbackPlan, Way

LOOK_STEP: Final = "boundary"


def of_plan(made: "RollbackPlan", survey: Survey, asked: str, limits: Limits) -> Run:
    """What a rollback will do."""
    running, wanted = made.way.running, made.way.wanted
    folder = upgrade_run.place(survey.server, running.namespace, running.name) / time.strftime(
        "%Y%m%dT%H%M%SZ", time.gmtime()
    )
    held = canary.held(survey)
    title = f"Roll {running.where} back from {made.source} to {made.target} (revision {wanted.revision})"
    facts = {"server": survey.server, "release": running.where, "revision": wanted.revision, "asked": asked}
    steps = _steps(made.way, folder, held, made.reloaded, limits)
    return Run(
        kind="rollback",
        asked=asked,
        plan=plans.Plan(title=title, steps=steps, facts=facts, notes=(f"values and state before: {folder}",)),
        name=running.name,
        namespace=running.namespace,
        source=str(made.source),
        target=str(made.target),
        folder=str(folder),
        revision=wanted.revision,
        ours=running.maker == releases.OURS,
        held=held,
        expected=upgrade_watch.Expected(upgrade_watch.generations(survey), False, made.policy is not None),
    )


def _steps(
    way: "Way", folder: Path, held: tuple[str, ...], reloaded: tuple[str, ...], limits: Limits
) -> tuple[plans.Step, ...]:
    running, wanted = way.running, way.wanted
    words = ["helm", "rollback", running.name, str(wanted.revision), "--namespace", running.namespace]
    steps = [
        upgrade_run.snapshot_step(folder, running.namespace, running.name),
        plans.Step(
            id="helm",
            title=f"Roll the release back to revision {wanted.revision} ({wanted.chart_version})",
            changes="the release's objects; the older operator then renders its operands anew. Definitions stay",
            commands=(shlex.join([*words, "--wait", "--timeout", f"{limits.helm_s}s"]),),
            undo=f"groundplane rollback run {running.revision}"
            if running.status == "deployed"
            else "the upgrade, once more",
        ),
    ]
    if held:
        title = f"Let {len(held)} nodes go that an interrupted upgrade holds"
        steps.append(plans.Step(id="let-go", title=title, changes="their label that keeps drivers from being replaced"))
    steps += upgrade_run.last_steps(limits, reloaded, definitions=False)
    at = next(number for number, step in enumerate(steps) if step.id == "verify")
    steps.insert(
        at + 1,
        plans.Step(
            id=LOOK_STEP,
            title="Look at what Helm does not take back",
            why="definitions, nodes, host files and workloads are not objects of the chart",
            repeat=True,
        ),
    )
    return tuple(steps)


class Work(upgrade_run.Work):
    """The steps of a rollback on a cluster."""

    ways: tuple[nodelook.Way, ...] = (nodelook.Way.EXEC,)
    """How nodes are looked into for what is left there; operand pods, as the run changes the cluster anyway."""
    image: str = ""
    """Of inspector pods, where these are allowed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.steps[LOOK_STEP] = self.boundary

    async def _clear(self, last: releases.Revision, _found: releases.History) -> None:
        """A pending release needs no clearing of its own: the rollback ends it, without the way over another state."""
        if not (self._limits.recover or install.began(self._journal)):
            raise helm.ReleasePending(f"release {self._run.where} is {last.status}")
        self._tell(f"release {self._run.where} is {last.status} of a run that was interrupted: the rollback ends that")

    async def boundary(self) -> None:
        """A104, after: every layer of the boundary on this cluster as it is now."""
        seen = await self._look(rollbacks.KINDS)
        nodes = [str(each["metadata"]["name"]) for each in seen.of_kind("nodes") if _has_gpu(each)]
        looked = nodelook.NodeLook()
        try:
            looked = await nodelook.look(
                self._client, nodes, namespace=self._run.namespace, ways=self.ways, image=self.image
            )
        except errors.ClusterError as error:
            self._tell(f"nodes could not be looked into: {error}")
        now = None
        was = before(seen.server, self._run)
        if was is not None:
            now = await baseline.take(
                self._client, namespace=self._run.namespace, metrics=self._limits.metrics, smi=self._limits.metrics
            )
        known = rollbacks.Known(looked.facts, looked.unread, was, now)
        self.found[LOOK_STEP] = list(after(seen, self._run, known, self._watch.look(seen, time.time())))


def _has_gpu(node: dict[str, Any]) -> bool:
    return (node["metadata"].get("labels") or {}).get(names.GPU_PRESENT) == "true"


def before(server: str, run: Run) -> baseline.Baseline | None:
    """The baseline of before the upgrade that was taken back, if it was made from here; else of before the rollback."""
    return kept(server, run.where, run.source) or _baseline(Path(run.folder))


def kept(server: str, where: str, release: str) -> baseline.Baseline | None:
    """The baseline of before the upgrade to ``release``, if it was made from this machine."""
    namespace, _, name = where.partition("/")
    folder = savepoint.newest(upgrade_run.place(server, namespace, name), release)
    return _baseline(folder) if folder is not None else None


def _baseline(folder: Path) -> baseline.Baseline | None:
    try:
        return baseline.load(folder / "baseline")
    except (baseline.BaselineError, OSError):
        return None  # then layers that only a baseline tells of are unknown


def after(survey: Survey, run: Run, known: rollbacks.Known, rows: list[upgrade_watch.Row]) -> list[Finding]:
    """The boundary when Helm is done: what is left, a finding for each layer."""
    try:
        history = rollbacks.history_of(survey, run.where)
    except rollbacks.RollbackError as error:
        return [
            Finding(id="A104", layer=Layer.OPERATOR, outcome=Outcome.UNKNOWN, title="what is left", cause=str(error))
        ]
    deployed = next((each for each in history if each.status == "deployed"), history[0])
    way = rollbacks.Way(deployed, deployed, history)
    target = Version.parse(run.target)
    behind = tuple(row.node for row in rows if not (row.current or row.host or row.skipped))
    pools = (Pool("", "", behind, Effect.RELOAD, (), "the driver of before", "the older one"),) if behind else ()
    loaded = upgrades.estimate_of(survey, set(behind), None, target)
    snapshot = rollbacks.seen(survey, way, pools, loaded, known, after=True)
    snapshot = _with_evicted(snapshot, survey, run)
    lines = rollback.boundary(rollback.Rollback(Version.parse(run.source), target, snapshot, after=True))
    return list(rollback_findings.of_boundary(lines, after=True))


def _with_evicted(snapshot: rollback.Snapshot, survey: Survey, run: Run) -> rollback.Snapshot:
    """With the pods that held a GPU before and are gone, as the savepoint has them; unknown without it."""
    try:
        kept = savepoint.load(Path(run.folder)).workloads
    except savepoint.SavepointError:
        return msgspec.structs.replace(snapshot, evicted=None)
    holders = [Holder(each.pod, each.node, each.controller, True, False, ()) for each in kept]
    return msgspec.structs.replace(snapshot, evicted=rollback_seen.evicted(holders, survey))
