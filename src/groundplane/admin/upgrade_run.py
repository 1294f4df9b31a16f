"""Making an upgrade, or a rollback: the plan of its steps, their work, and going on after an interruption.

contracts/admin-workflow.md 9.4 and 10. What is to be done is fixed in a :class:`Run` before anything changes, and kept
beside the journal, as a cluster that is half upgraded would be planned for differently: a run that was killed at any
step goes on by what it had decided. Steps can be repeated. Judging beforehand is ``upgrades`` and ``rollbacks``.
"""

import asyncio
import hashlib
import os
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ..api import names
from ..cluster import errors, kinds
from ..diagnose import survey as surveys
from ..diagnose.findings import Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object, Survey
from ..node.hostroot import write_atomic
from . import (
    baseline,
    canary,
    cudatest,
    drift,
    helm,
    install,
    plans,
    releases,
    savepoint,
    trees,
    upgrade_checks,
    upgrade_watch,
    verify,
)
from .hops import Version

if TYPE_CHECKING:
    from ..cluster.client import Client
    from .upgrades import UpgradePlan

POLL_S: Final = 2.0
PULLS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName"})
"""Reasons of waiting containers whose image does not come by itself."""
MANAGER: Final = "groundplane-upgrade"
_BEGAN: Final = "helm began"
Kind = Literal["upgrade", "rollback"]
Tell = Callable[[str], None]


class RunError(Exception):
    """A step could not be done; the message says which, why, and how to go on."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, decided before anything changes. Holds values, and so secrets: kept for its owner only."""

    kind: Kind
    asked: str
    """Tells what a person asked for apart: a run goes on by the same words only."""
    plan: plans.Plan
    name: str
    namespace: str
    source: str
    target: str
    folder: str
    """Of the savepoint."""
    chart: tuple[str, ...] = ()
    values: dict[str, Any] = {}
    revision: int = 0
    """The one in force before; of a rollback, the one to go to."""
    ours: bool = False
    hooks: bool = True
    definitions: tuple[dict[str, Any], ...] = ()
    canary: str = ""
    held: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    expected: upgrade_watch.Expected = upgrade_watch.Expected()

    @property
    def where(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class Limits(msgspec.Struct, frozen=True):
    """How long is waited, in seconds, and for the CUDA test where; ``drivers_s`` counts from the last progress."""

    helm_s: int = 1800
    drivers_s: float = 3600.0
    cuda: bool = True
    cuda_options: cudatest.Options = cudatest.Options()
    metrics: bool = True
    recover: bool = False


# --- What is kept -------------------------------------------------------------------------------------------------


def place(server: str, namespace: str, name: str = "") -> Path:
    """The folder of a release's runs and savepoints."""
    cluster = hashlib.sha256(server.encode()).hexdigest()[:8]
    return plans.home("upgrade", f"{cluster}-{namespace}-{name}")


def begin(run: Run, server: str) -> plans.Journal:
    """Fix what is to be done; its journal. Raises :class:`plans.JournalError` if another run was interrupted."""
    folder = place(server, run.namespace, run.name)
    journal = plans.Journal(folder / "journal.json", run.plan)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(folder / "run.json", msgspec.json.encode(run), mode=0o600)
    return journal


def interrupted(server: str, namespace: str, name: str) -> Run | None:
    """The run of a release that has begun and is not at its end; None if there is none.

    Raises :class:`plans.JournalError` for a record that is none.
    """
    folder = place(server, namespace, name)
    if not (folder / "run.json").exists() or not (folder / "journal.json").exists():
        return None
    try:
        return msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError) as error:
        raise plans.JournalError(
            f"{folder / 'run.json'} is no record of a run: {error}; look at it, then remove it"
        ) from None


def resumed(found: Run, asked: str, server: str) -> Run:
    """The interrupted run, if the same is asked for again. Raises :class:`plans.JournalError`."""
    if found.asked == asked:
        return found
    folder = place(server, found.namespace, found.name)
    raise plans.JournalError(
        f"{found.plan.title} was interrupted: finish it with the same arguments, or give it up by removing "
        f"{folder / 'journal.json'}"
    )


def end(server: str, run: Run) -> None:
    """The run is at its end; savepoints stay."""
    (place(server, run.namespace, run.name) / "run.json").unlink(missing_ok=True)


def fingerprint(*words: Any) -> str:
    """Tells what is asked for apart without keeping it."""
    return hashlib.sha256(msgspec.json.encode([*words], order="sorted")).hexdigest()[:16]


# --- The plan -----------------------------------------------------------------------------------------------------


def of_plan(made: "UpgradePlan", survey: Survey, asked: str, limits: Limits) -> Run:
    """What an upgrade will do."""
    wanted, revision = made.wanted, made.revision
    assert wanted.chart is not None
    held = canary.to_hold(survey, wanted.canary) if wanted.canary else canary.held(survey)
    first = canary.chosen(survey, wanted.canary) if wanted.canary else ()
    folder = place(survey.server, revision.namespace, revision.name) / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    hook = trees.get(trees.merge(made.defaults, made.values), "operator.upgradeCRD", True) is not False
    by_hand = not (wanted.hooks and hook)
    definitions = made.charts.definitions
    title = f"Upgrade {revision.where} from {made.source} to {wanted.target}"
    steps = _steps(made, folder, held, first, definitions if by_hand else (), limits)
    facts = {"server": survey.server, "release": revision.where, "target": str(wanted.target), "asked": asked}
    return Run(
        kind="upgrade",
        asked=asked,
        plan=plans.Plan(title=title, steps=steps, facts=facts, notes=(f"values and state before: {folder}",)),
        name=revision.name,
        namespace=revision.namespace,
        source=str(made.source),
        target=str(wanted.target),
        folder=str(folder),
        chart=tuple(wanted.chart),
        values=dict(made.values),
        revision=revision.revision,
        ours=made.ours,
        hooks=wanted.hooks,
        definitions=tuple(definitions),
        canary=wanted.canary,
        held=held,
        first=first,
        expected=upgrade_watch.Expected(
            upgrade_watch.generations(survey),
            bool(made.pools) and all(pool.effect for pool in made.pools),
            made.policy is not None,
        ),
    )


def _steps(
    made: "UpgradePlan",
    folder: Path,
    held: tuple[str, ...],
    first: tuple[str, ...],
    definitions: tuple[Object, ...],
    limits: Limits,
) -> tuple[plans.Step, ...]:
    revision, wanted = made.revision, made.wanted
    back = f"helm rollback {revision.name} {revision.revision} --namespace {revision.namespace} (groundplane rollback)"
    steps = [snapshot_step(folder, revision.namespace, revision.name)]
    if first and held:
        steps.append(
            plans.Step(
                id="hold",
                title=f"Hold the drivers of {len(held)} nodes that are not {wanted.canary}",
                changes=f"label {names.UPGRADE_SKIP}=true of {upgrade_checks.some(held)}",
                undo="the label is removed when the canaries are well",
            )
        )
    if definitions:
        steps.append(
            plans.Step(
                id="crds",
                title=f"Apply the chart's {len(definitions)} definitions",
                changes="custom resource definitions; they are never taken back",
                commands=("helm show crds CHART | kubectl apply --server-side --force-conflicts -f -",),
            )
        )
    steps.append(
        plans.Step(
            id="helm",
            title=f"Upgrade the chart to {wanted.chart} with the merged values",
            changes="the release's objects; the operator then renders its operands anew",
            commands=(_command(made, folder, limits),),
            undo=back,
        )
    )
    if first and held:
        title = f"Watch and test the drivers of {len(first)} canary nodes"
        steps.append(plans.Step(id="canary", title=title))
    if held:
        what = f"removes label {names.UPGRADE_SKIP} of {upgrade_checks.some(held)}"
        why = "" if first else "an upgrade with canaries that was given up has left it"
        steps.append(plans.Step(id="let-go", title=f"Let {len(held)} nodes go", changes=what, why=why))
    return (*steps, *last_steps(limits, made.reloaded, definitions=True))


def snapshot_step(folder: Path, namespace: str, name: str) -> plans.Step:
    """A88."""
    return plans.Step(
        id="snapshot",
        title="Keep values, custom resources, history, nodes and a baseline",
        changes=f"{folder} on this machine, for its owner only",
        commands=(
            f"helm get values {name} --namespace {namespace} -o yaml",
            "kubectl get clusterpolicies,nvidiadrivers -o yaml",
            f"helm history {name} --namespace {namespace}",
            f"groundplane baseline save DIR --namespace {namespace}",
        ),
    )


def last_steps(limits: Limits, reloaded: tuple[str, ...], *, definitions: bool) -> tuple[plans.Step, ...]:
    """What is looked at when the chart is changed."""
    watched = "kubectl get nodes -L nvidia.com/gpu-driver-upgrade-state"
    steps = [
        plans.Step(
            id="drivers",
            title=f"Watch the drivers of {len(reloaded)} nodes being replaced" if reloaded else "Watch the operands",
            changes="the operator takes GPU pods off each node, unloads its driver and loads the new"
            if reloaded
            else "",
            commands=(watched,),
            repeat=True,
        ),
        *(
            [plans.Step(id="definitions", title="Compare the definitions with the chart's", repeat=True)]
            if definitions
            else []
        ),
        plans.Step(id="verify", title="Verify", commands=("groundplane verify",), repeat=True),
    ]
    if limits.cuda:
        steps.append(
            plans.Step(
                id="cuda",
                title="Run the CUDA test on every GPU node",
                changes="a pod on each GPU node, which is deleted again",
                commands=("groundplane cuda-test",),
                repeat=True,
            )
        )
    return (*steps, plans.Step(id="drift", title="Compare with what was kept before", repeat=True))


def _command(made: "UpgradePlan", folder: Path, limits: Limits) -> str:
    chart = made.wanted.chart
    assert chart is not None
    words = ["helm", "upgrade", made.revision.name, *install.reference(chart)]
    words += ["--namespace", made.revision.namespace, "--values", str(folder / "merged-values.yaml"), "--reset-values"]
    words += ["--disable-openapi-validation", *([] if made.wanted.hooks else ["--no-hooks"])]
    return shlex.join([*words, "--wait", "--timeout", f"{limits.helm_s}s"])


# --- The work -----------------------------------------------------------------------------------------------------


class Work:
    """The steps of a run on a cluster. ``findings`` are what the last steps have found."""

    def __init__(
        self, client: "Client", maker: helm.Helm, run: Run, journal: plans.Journal, limits: Limits, tell: Tell
    ) -> None:
        self._client, self._maker = client, maker
        self._run, self._journal, self._limits, self._tell = run, journal, limits, tell
        self._watch = upgrade_watch.Watch()
        self.found: dict[str, list[Finding]] = {}
        self.steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "snapshot": self.snapshot,
            "hold": self.hold,
            "crds": self.crds,
            "helm": self.helm,
            "canary": self.canary,
            "let-go": lambda: canary.let_go(client, run.held),
            "drivers": self.drivers,
            "definitions": self.definitions,
            "verify": self.verify,
            "cuda": self.cuda,
            "drift": self.drift,
        }

    @property
    def findings(self) -> list[Finding]:
        """Of all steps."""
        return [finding for found in self.found.values() for finding in found]

    async def _look(self, plurals: Iterable[str]) -> Survey:
        return await surveys.live(self._client, plurals, namespace=self._run.namespace)

    async def snapshot(self) -> str:
        """A88, A93: keep what is."""
        run = self._run
        taken = await baseline.take(
            self._client, namespace=run.namespace, metrics=self._limits.metrics, smi=self._limits.metrics
        )
        seen = await self._look(("secrets", "clusterpolicies", "nvidiadrivers", "nodes", "pods"))
        folder = Path(run.folder)
        savepoint.save(folder, seen, run.where, run.source, run.target, taken)
        if run.values:
            write_atomic(folder / "merged-values.yaml", _yaml(run.values), mode=0o600)
        self.found["snapshot"] = list(health(taken))
        self._tell(f"kept in {folder}")
        return str(folder)

    async def hold(self) -> list[str]:
        """A89: hold all but the canaries, which an earlier run may have held."""
        held = set(canary.held(await self._look(("nodes",))))
        await canary.let_go(self._client, sorted(held & set(self._run.first)))
        return await canary.hold(self._client, self._run.held)

    async def crds(self) -> list[str]:
        """A97: apply the chart's definitions."""
        done = []
        for each in self._run.definitions:
            await self._client.apply(kinds.CRD, each, field_manager=MANAGER, force=True)
            done.append(str(each["metadata"]["name"]))
        return done

    async def helm(self) -> dict[str, Any]:
        """A96, A103: change the release, unless it is as wanted already."""
        found = releases.history(await self._look(("secrets",)))
        last = found.last(self._run.where)
        if last is not None and self._is_done(last):
            return {"revision": last.revision, "status": last.status}
        if last is not None and last.status in releases.PENDING:
            await self._clear(last, found)
        self._journal.note(_BEGAN, {"pid": os.getpid(), "host": os.uname().nodename, "after": self._after(last)})
        work = asyncio.ensure_future(self._change())
        try:
            await self._with_hooks_watched(work)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        last = releases.history(await self._look(("secrets",))).last(self._run.where)
        return {"revision": last.revision, "status": last.status} if last is not None else {}

    def _after(self, last: releases.Revision | None) -> int:
        """The newest revision before this run touched the release; of an earlier attempt if there was one."""
        note = self._journal.done.get(_BEGAN)
        if isinstance(note, Mapping):
            return int(note.get("after") or 0)
        return last.revision if last is not None else 0

    def _is_done(self, last: releases.Revision) -> bool:
        if self._run.kind == "upgrade":
            return install.is_done(self._wanted(), last)
        note = self._journal.done.get(_BEGAN)
        began = int(note.get("after") or 0) if isinstance(note, Mapping) else None
        rolled = last.description.lower().endswith(f"rollback to {self._run.revision}")
        return began is not None and last.revision > began and last.status == "deployed" and rolled

    def _wanted(self) -> install.Wanted:
        run = self._run
        chart = helm.Chart(*run.chart)
        return install.Wanted(chart, run.values, run.name, run.namespace, self._limits.helm_s)

    async def _clear(self, last: releases.Revision, found: releases.History) -> None:
        """A pending release: of an earlier attempt of this run, or with consent, it is cleared first."""
        if not (self._limits.recover or install.began(self._journal)):
            raise helm.ReleasePending(f"release {self._run.where} is {last.status}")
        told = await install.recover(self._maker, self._wanted(), found) if self._run.chart else await self._back(found)
        self._tell(told)

    async def _back(self, found: releases.History) -> str:
        deployed = found.deployed(self._run.where)
        if deployed is None:
            return ""
        run = self._run
        await self._maker.rollback(run.name, run.namespace, deployed.revision, timeout_s=self._limits.helm_s)
        return f"release {run.where} was pending: back to revision {deployed.revision}"

    async def _change(self) -> None:
        run, limits = self._run, self._limits
        if run.kind == "rollback":
            await self._maker.rollback(run.name, run.namespace, run.revision, timeout_s=limits.helm_s)
            return
        chart = helm.Chart(*run.chart)
        await self._maker.upgrade(
            chart, run.name, run.namespace, run.values, timeout_s=limits.helm_s, hooks=run.hooks
        )  # fmt: skip

    async def _with_hooks_watched(self, work: "asyncio.Future[None]") -> None:
        """Wait for Helm; a hook whose image cannot be pulled is said at once, and not waited for (9.4)."""
        twice = ""
        while not work.done():
            await asyncio.wait({work}, timeout=POLL_S)
            if work.done():
                break
            try:
                seen = await self._look(("pods", "jobs"))
            except errors.ClusterError as error:
                self._tell(f"hooks cannot be looked at: {error}")
                continue
            stuck = hook_stuck(seen)
            if stuck and stuck == twice:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                raise RunError(f"{stuck}. {_HOOK_FIX}")
            twice = stuck
        try:
            await work
        except (helm.TimedOut, helm.HookFailed):
            await self._doctor()
            raise

    async def canary(self) -> None:
        """A89: the canaries' drivers, and the CUDA test on them."""
        await self._until_settled(self._run.first)
        if self._limits.cuda:
            options = msgspec.structs.replace(self._limits.cuda_options, nodes=self._run.first)
            found = await cudatest.cuda_test(self._client, options, self._tell)
            failed = [each for each in found if each.outcome is Outcome.FAIL]
            if failed:
                raise RunError(
                    f"the canaries are not well: {failed[0].title}. The other {len(self._run.held)} nodes keep their "
                    f"drivers (label {names.UPGRADE_SKIP}). Mend it and run the same command again, or go back: "
                    "groundplane rollback run"
                )

    async def drivers(self) -> None:
        """A99 to A102: until every node's driver is replaced."""
        rows = await self._until_settled(())
        self.found["drivers"] = list(upgrade_watch.judge(rows, automatic=self._run.expected.automatic))

    async def _until_settled(self, only: tuple[str, ...]) -> list[upgrade_watch.Row]:
        told: dict[str, str] = {}
        progressed = time.monotonic()
        while True:
            seen = await self._look(upgrade_watch.KINDS)
            rows = self._watch.look(seen, time.time(), automatic=self._run.expected.automatic)
            if self._told(rows, only, told):
                progressed = time.monotonic()
            left = list(upgrade_watch.waits(seen, rows, self._run.expected, only))
            failed = [row for row in rows if row.failed and (not only or row.node in only)]
            if not left:
                return rows
            if failed or time.monotonic() - progressed > self._limits.drivers_s:
                await self._doctor(tuple(row.node for row in failed))
                why = f"{failed[0]} failed" if failed else f"no progress for {self._limits.drivers_s:.0f} s"
                raise RunError(
                    f"the drivers are not replaced: {why}; {upgrade_checks.some(left)}. When the cause is mended, run "
                    "the same command again: it goes on here"
                )
            await asyncio.sleep(POLL_S)

    def _told(self, rows: list[upgrade_watch.Row], only: tuple[str, ...], told: dict[str, str]) -> bool:
        """Tell of nodes whose state or reason is new; whether one was."""
        news = False
        for row in rows:
            said = f"{row.state} {row.why}"
            if (not only or row.node in only) and told.get(row.node) != said:
                told[row.node], news = said, True
                self._tell(f"  {row}")
        if news:
            self._tell(f"  {upgrade_watch.summary(rows)}")
        return news

    async def _doctor(self, nodes: tuple[str, ...] = ()) -> None:
        from ..diagnose import collect, doctor, tree

        evidence = await collect.examine(self._client, namespace=self._run.namespace, nodes=nodes)
        for line in tree.lines(doctor.diagnose(evidence), evidence):
            self._tell(line)

    async def definitions(self) -> None:
        """A97, after."""
        seen = await self._look(("customresourcedefinitions",))
        wanted = [each for each in self._run.definitions if str(each["metadata"]["name"]).endswith("nvidia.com")]
        self.found["definitions"] = list(upgrade_checks.stale(seen, tuple(wanted)))

    async def verify(self) -> None:
        """A98: all of verify."""
        seen = await self._look(verify.KINDS)
        wanted = None if self._run.ours else Version.parse(self._run.target)
        self.found["verify"] = verify.verify(seen, wanted=wanted)

    async def cuda(self) -> None:
        """A98: the CUDA test."""
        self.found["cuda"] = await cudatest.cuda_test(self._client, self._limits.cuda_options, self._tell)

    async def drift(self) -> None:
        """A98: what is not as it was, but for what was planned."""
        before = baseline.load(Path(self._run.folder) / "baseline")
        now = await baseline.take(
            self._client, namespace=self._run.namespace, metrics=self._limits.metrics, smi=self._limits.metrics
        )
        self.found["drift"] = [planned(each) for each in drift.drift(before, now)]


_HOOK_FIX: Final = (
    "The upgrade stands until it can. Make the image reachable (mirror, pull secret, proxy) and run the same command "
    "again; or, where nothing helps, --no-hooks: groundplane then applies the definitions itself"
)


def hook_stuck(survey: Survey) -> str:
    """What is said of a hook's job whose image cannot be pulled; empty if there is none."""
    jobs = {
        str(each["metadata"]["name"])
        for each in survey.of_kind("jobs")
        if "helm.sh/hook" in (each["metadata"].get("annotations") or {})
    }
    for pod in survey.of_kind("pods"):
        owners = {
            str(each.get("name")) for each in pod["metadata"].get("ownerReferences") or () if each.get("kind") == "Job"
        }
        if pod["metadata"].get("namespace") != survey.namespace or not owners & jobs:
            continue
        status = pod.get("status") or {}
        for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            waiting = (each.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in PULLS:
                node = (pod.get("spec") or {}).get("nodeName") or "no node"
                said = f": {waiting['message']}" if waiting.get("message") else ""
                return (
                    f"hook job {', '.join(sorted(owners & jobs))} cannot pull {each.get('image')} on {node} "
                    f"({waiting['reason']}{said})"
                )
    return ""


PLANNED: Final = frozenset((number, Layer.OPERATOR) for number in ("A80", "A81", "A83", "A84"))
"""What an upgrade changes by what it is, of drift's checks: values, custom resources, images, definitions."""


def planned(finding: Finding) -> Finding:
    """A finding of drift after an upgrade: what the upgrade is for is no warning."""
    drivers = any(word in finding.title.lower() for word in ("driver", "cuda", "label"))
    if finding.outcome is not Outcome.WARN or not ((finding.id, finding.layer) in PLANNED or drivers):
        return finding
    return msgspec.structs.replace(
        finding, outcome=Outcome.PASS, severity=None, title=f"as planned: {finding.title}", fix=(), confirm=""
    )  # fmt: skip


_SICK: Final[Mapping[str, str]] = {
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "rows could not be remapped",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "rows wait for a reset to be remapped",
    "DCGM_FI_DEV_RETIRED_PENDING": "pages wait for a reset to be retired",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable memory errors since the driver was loaded",
    "DCGM_FI_DEV_XID_ERRORS": "an Xid was reported",
}
"""Counters that are 0 on a GPU that is well."""


def health(taken: baseline.Baseline) -> Iterable[Finding]:
    """A93: GPUs that are not well already, before anything is changed."""
    told = False
    for node, gpus in taken.parts.health.items():
        for gpu, counters in gpus.items():
            for name, text in _SICK.items():
                if counters.get(name):
                    told = True
                    said = Evidence(f"node/{node} {gpu} {name}", str(counters[name]))
                    yield upgrade_checks.finding("A93", Outcome.WARN, f"before the upgrade: {text}", said, node=node)
    if not taken.knows("health"):
        reasons = "; ".join(taken.coverage["health"].reasons)
        yield upgrade_checks.finding("A93", Outcome.UNKNOWN, "counters of GPUs could not be read", cause=reasons)
    elif not told:
        title = "no GPU had errors before the upgrade"
        yield upgrade_checks.finding("A93", Outcome.PASS, title)


def _yaml(values: Mapping[str, Any]) -> bytes:
    import yaml

    return str(yaml.dump(dict(values), Dumper=yaml.CSafeDumper, sort_keys=True, allow_unicode=True)).encode()
