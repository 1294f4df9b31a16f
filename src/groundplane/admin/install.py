"""Installing: what is judged before Helm runs, the plan, and the work of its steps (contracts/admin-workflow.md 2, 6).

Judging is pure: a survey, the rendered chart and what is there already come in, findings A51 to A62 come out. The work
is in order of the plan, each step repeatable, so that an interrupted run goes on where it was; a run that was killed
inside Helm has left a pending release, which the next one of the same plan takes away first. Preflight, verify and the
layers of nodes are other modules'.
"""

import asyncio
import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..cluster import errors, kinds
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Survey
from . import chart as charts
from . import helm, plans, releases, snapshot, trees, value_changes
from .hops import Version
from .releases import Revision

if TYPE_CHECKING:
    from ..cluster.client import Client
    from .propose import Setting

Document = dict[str, Any]

MANAGER: Final = "groundplane-install"
PSA: Final = "pod-security.kubernetes.io/"
OURS_ALREADY: Final = "app.kubernetes.io/managed-by"
_BEGAN: Final = "helm began"
"""Noted in the journal before Helm is called: a pending release is then known to be of this plan."""


class Wanted(NamedTuple):
    """What is to be installed, where and how."""

    chart: helm.Chart
    values: Mapping[str, Any]
    release: str = "gpu-operator"
    namespace: str = "gpu-operator"
    timeout_s: int = 1200
    label: str = "auto"
    """``auto``: the namespace is labelled where it enforces less than privileged; ``always``; ``never``."""
    recover: bool = False
    value_files: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """``namespace/name`` of the release."""
        return f"{self.namespace}/{self.release}"

    @property
    def digest(self) -> str:
        """Tells values apart without showing them."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def is_ours(self, defaults: Mapping[str, Any]) -> bool:
        """Whether it is groundplane's chart, which is told which release to be like."""
        return "release" in (defaults.get("operator") or {})

    def behaves_like(self, defaults: Mapping[str, Any]) -> Version | None:
        """The release of NVIDIA's that the chart is, or is told to be like; ours is like the newest by default."""
        told = trees.get(trees.merge(defaults, self.values), "operator.release")
        if self.is_ours(defaults) and not told:
            return charts.releases()[-1]
        try:
            return Version.parse(str(told or self.chart.version))
        except ValueError:
            return None


class Seen(NamedTuple):
    """What is known before anything is changed."""

    survey: Survey
    defaults: Mapping[str, Any]
    rendered: Sequence[Document]
    there: Mapping[tuple[str, str, str], Document | None]
    """The rendered objects as they are in the cluster; a key that lacks could not be looked at."""
    proposed: "Sequence[Setting]" = ()
    """The values that preflight's checks ask for on this cluster."""


def key(document: Mapping[str, Any]) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    meta = document.get("metadata") or {}
    return str(document.get("kind")), str(meta.get("namespace") or ""), str(meta.get("name"))


def is_hook(document: Mapping[str, Any]) -> bool:
    """Whether Helm runs it beside the release's objects."""
    return "helm.sh/hook" in ((document.get("metadata") or {}).get("annotations") or {})


# --- Judging ----------------------------------------------------------------------------------------------------------


def judge(wanted: Wanted, seen: Seen, *, resumes: bool = False) -> list[Finding]:
    """Findings A51 to A62 of what is to be installed; a failing one stops the installation."""
    return [
        _pinned(wanted),
        _endpoint(wanted),
        _finding("A56", Outcome.PASS, f"the chart is there: {wanted.chart}"),
        _namespace(wanted, seen.survey),
        *_pod_security(wanted, seen.survey),
        _foreign(wanted, seen.survey),
        _values(wanted, seen),
        _reasons(wanted, seen),
        _saved(wanted, seen),
        *_refused(wanted, seen),
        *_owned(wanted, seen),
        _finding("A61", Outcome.PASS, "what Helm waits for is no validation: layers and verify follow, always"),
        _state(wanted, seen.survey, resumes),
    ]


def without_chart(wanted: Wanted, error: helm.HelmError) -> list[Finding]:
    """What can be said where the chart cannot be had: no version of that number, or nothing that answers (A56)."""
    problem = str(Exception.__str__(error))
    advice = error.fix or "give a version that the repository has, or --chart with a folder, a .tgz or oci://..."
    missing = _finding("A56", Outcome.FAIL, f"the chart is not to be had: {wanted.chart}", cause=problem, fix=(advice,))
    return [_pinned(wanted), _endpoint(wanted), missing]


def unvalidated(wanted: Wanted, problem: str) -> Finding:
    """Helm's part is done, and the nodes' is not: that is no installation (A61)."""
    title = f"release {wanted.where} is deployed, and the nodes' layers did not come up"
    fix = ("see what the doctor says, then run the same command to go on",)
    return _finding("A61", Outcome.FAIL, title, cause=problem, fix=fix, action=Action.NONE)


def _finding(number: str, outcome: Outcome, title: str, *evidence: Evidence, **more: Any) -> Finding:
    if outcome in (Outcome.FAIL, Outcome.WARN):
        more.setdefault("action", Action.CHANGE_CONFIG)
    return Finding(id=number, layer=Layer.OPERATOR, outcome=outcome, title=title, evidence=evidence, **more)


def _pinned(wanted: Wanted) -> Finding:
    if not wanted.chart.version:
        return _finding("A51", Outcome.FAIL, f"{wanted.chart} has no version", fix=("give --version",))
    return _finding("A51", Outcome.PASS, f"the chart is pinned: {wanted.chart}")


def _endpoint(wanted: Wanted) -> Finding:
    chart = wanted.chart
    if chart.is_local:
        return _finding("A52", Outcome.PASS, "the chart is on this machine: no repository is asked")
    if chart.repository.startswith("http://"):
        title = f"the chart comes from {chart.repository} unencrypted: who is in between can replace it"
        return _finding("A52", Outcome.WARN, title, fix=("give an https:// or oci:// address, or a local chart",))
    return _finding("A52", Outcome.PASS, f"the chart comes from {chart.repository or chart.reference}")


def _of_namespace(wanted: Wanted, survey: Survey) -> Document | None:
    found = (each for each in survey.of_kind("namespaces") if each["metadata"]["name"] == wanted.namespace)
    return next(found, None)


def _namespace(wanted: Wanted, survey: Survey) -> Finding:
    if not survey.knows("namespaces"):
        return _finding("A53", Outcome.UNKNOWN, "namespaces could not be read", cause=survey.unread["namespaces"])
    namespace = _of_namespace(wanted, survey)
    if namespace is None:
        return _finding("A53", Outcome.PASS, f"namespace {wanted.namespace} will be made")
    if (namespace.get("status") or {}).get("phase") == "Terminating":
        return _finding(
            "A53",
            Outcome.FAIL,
            f"namespace {wanted.namespace} is being deleted: nothing can be made in it",
            confirm=f"kubectl get namespace {wanted.namespace} -o yaml",
            fix=("wait until it is gone; finalizers of what is left in it may hold it",),
        )
    return _finding("A53", Outcome.PASS, f"namespace {wanted.namespace} is there")


def _labels(namespace: Document | None) -> Mapping[str, str]:
    return ((namespace or {}).get("metadata") or {}).get("labels") or {}


def needs_label(wanted: Wanted, survey: Survey) -> bool:
    """Whether the namespace gets the Pod Security label (A54)."""
    level = _labels(_of_namespace(wanted, survey)).get(f"{PSA}enforce", "")
    if wanted.label == "always":
        return level != "privileged"
    return wanted.label == "auto" and level not in ("", "privileged")


def _pod_security(wanted: Wanted, survey: Survey) -> Iterator[Finding]:
    labels = _labels(_of_namespace(wanted, survey))
    level = labels.get(f"{PSA}enforce", "")
    told = Evidence(f"namespace {wanted.namespace} label {PSA}enforce", level or "not set")
    if level not in ("", "privileged") and not needs_label(wanted, survey):
        title = f"namespace {wanted.namespace} enforces Pod Security {level}: operands are privileged and refused"
        advice = "leave --pod-security away, or give --pod-security always"
        yield _finding("A54", Outcome.FAIL, title, told, fix=(advice,))
    else:
        title = "will be labelled to let" if needs_label(wanted, survey) else "lets"
        yield _finding("A54", Outcome.PASS, f"namespace {wanted.namespace} {title} privileged pods in", told)
    for mode in ("warn", "audit"):
        if (soft := labels.get(PSA + mode, "privileged")) != "privileged":
            title = f"namespace {wanted.namespace} has Pod Security {mode}={soft}: every operand pod will be told of"
            fix = (f"kubectl label --overwrite namespace {wanted.namespace} {PSA}{mode}=privileged",)
            yield _finding("A54", Outcome.WARN, title, Evidence(f"label {PSA}{mode}", soft), fix=fix)


def _foreign(wanted: Wanted, survey: Survey) -> Finding:
    if not survey.knows("pods"):
        return _finding("A55", Outcome.UNKNOWN, "pods could not be read", cause=survey.unread["pods"])
    strangers = sorted(
        each["metadata"]["name"]
        for each in survey.of_kind("pods")
        if each["metadata"].get("namespace") == wanted.namespace and not _is_operators(each, wanted.release)
    )
    if strangers:
        evidence = Evidence(f"pods of namespace {wanted.namespace}", ", ".join(strangers[:10]))
        title = (
            f"{len(strangers)} pods in namespace {wanted.namespace} are not the operator's: they may be privileged too"
        )
        fix = ("give the operator a namespace of its own, or move them",)
        return _finding("A55", Outcome.WARN, title, evidence, fix=fix)
    return _finding("A55", Outcome.PASS, f"nothing but the operator in namespace {wanted.namespace}")


def _is_operators(pod: Document, release: str) -> bool:
    from ..diagnose import pods

    labels = pod["metadata"].get("labels") or {}
    known = pods.layer_of(pod) is not None or labels.get("app.kubernetes.io/instance") == release
    return known or any("nvidia" in str(value) or "gpu-operator" in str(value) for value in labels.values())


GUIDES: Final = frozenset(
    {"driver.enabled", "toolkit.enabled", "nfd.enabled", "cdi.enabled", "mig.strategy", "driver.kernelModuleType"}
)
"""The settings that a values file always has, also where they are the chart's own (A57)."""
_OURS: Final = "operator.release"
"""Which release groundplane's chart is like: part of the version rather than a setting."""


def _values(wanted: Wanted, seen: Seen) -> Finding:
    same = [
        dotted
        for path, value in trees.leaves(wanted.values)
        if value is not None
        and trees.same(value, trees.get(seen.defaults, path))
        and (dotted := trees.dotted(path)) not in GUIDES
    ]
    if same:
        title = f"{len(same)} values are what the chart has anyway: later releases cannot change them for you"
        evidence = Evidence("values", ", ".join(same[:10]))
        return _finding("A57", Outcome.WARN, title, evidence, fix=("leave them out",))
    count = sum(1 for _ in trees.leaves(wanted.values))
    return _finding("A57", Outcome.PASS, f"{count} values, none of which the chart has anyway")


def _reasons(wanted: Wanted, seen: Seen) -> Finding:
    """A58: every further value, with the check that asks for it."""
    further = [path for path, _ in trees.leaves(wanted.values) if trees.dotted(path) not in {*GUIDES, _OURS}]
    known = {trees.parse(each.path): each for each in seen.proposed}
    told = {path: next((each for at, each in known.items() if path[: len(at)] == at), None) for path in further}
    evidence = [
        Evidence(f"values {trees.dotted(path)}", f"{each.why} ({each.check})")
        for path, each in told.items()
        if each is not None
    ]
    unasked = [trees.dotted(path) for path, each in told.items() if each is None]
    if unasked:
        title = f"no check asks for {len(unasked)} of the values: keep them for a reason of yours only"
        evidence.append(Evidence("values without a check", ", ".join(unasked[:10])))
        fix = (
            "leave them out, or note why they are there; groundplane preflight --fix-values FILE shows what is needed",
        )
        return _finding("A58", Outcome.WARN, title, *evidence, fix=fix)
    return _finding(
        "A58", Outcome.PASS, f"{len(further)} further values, each with the check that asks for it", *evidence
    )


def _saved(wanted: Wanted, seen: Seen) -> Finding:
    if not seen.defaults:
        title = "the chart has no values of its own: there is nothing to compare later releases with"
        return _finding("A59", Outcome.WARN, title, fix=("see whether it is the operator's chart (--chart)",))
    return _finding("A59", Outcome.PASS, f"the chart's own values will be kept in {defaults_file(wanted)}")


def _refused(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    release = wanted.behaves_like(seen.defaults)
    if release is None:
        title = "it is not known which release the chart is like: what it refuses is not checked first"
        yield _finding("A60", Outcome.UNKNOWN, title)
        return
    merged = trees.merge(seen.defaults, wanted.values)
    refusals = value_changes.refused(merged, release, value_changes.NOTHING_KNOWN)
    for refusal in refusals:
        problem, _, remedy = refusal.text.partition(": ")
        fix = (remedy,) if remedy else ()
        title = f"the chart of {release} refuses: {problem}"
        yield _finding("A60", Outcome.FAIL, title, Evidence("values", ", ".join(refusal.paths)), fix=fix)
    if not refusals:
        yield _finding("A60", Outcome.PASS, f"the chart of {release} accepts the values")


def _owned(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    others = [
        f"{kind} {space + '/' if space else ''}{name}"
        for (kind, space, name), live in seen.there.items()
        if live is not None and not _is_releases(live, wanted)
    ]
    if others:
        title = f"{len(others)} objects of the chart are there already and belong to no release {wanted.where}"
        fix = (
            "remove the release that owns them (groundplane uninstall), or these objects if nothing owns them",
            f"or give them to this release: annotations meta.helm.sh/release-name={wanted.release} and "
            f"meta.helm.sh/release-namespace={wanted.namespace}, label {OURS_ALREADY}=Helm",
        )
        yield _finding("A60", Outcome.FAIL, title, Evidence("cluster", ", ".join(others[:10])), fix=fix)


def _is_releases(live: Document, wanted: Wanted) -> bool:
    notes = (live.get("metadata") or {}).get("annotations") or {}
    named = (notes.get("meta.helm.sh/release-namespace"), notes.get("meta.helm.sh/release-name"))
    return named == (wanted.namespace, wanted.release)


def _state(wanted: Wanted, survey: Survey, resumes: bool) -> Finding:
    history = releases.history(survey)
    if history.unread:
        return _finding("A62", Outcome.UNKNOWN, "Helm's releases could not be looked for", cause=history.unread)
    others = [each for each in history.releases if each != wanted.where]
    if others:
        fix = (f"uninstall {others[0]} first, or install as that release (--namespace, --name)",)
        title = f"the operator is installed as {', '.join(others)}: two in one cluster take each other's nodes away"
        return _finding("A62", Outcome.FAIL, title, fix=fix)
    last = history.last(wanted.where)
    if last is None:
        return _finding("A62", Outcome.PASS, f"no release {wanted.where} yet")
    said = Evidence(f"Helm release {wanted.where}", f"revision {last.revision}, {last.status}, {last.chart_version}")
    if last.status in releases.PENDING:
        if wanted.recover or resumes:
            title = f"release {wanted.where} is {last.status} of a run that was interrupted: it is cleared first"
            return _finding("A62", Outcome.PASS, title, said)
        error = helm.ReleasePending(f"release {wanted.where} is {last.status}")
        return _finding("A62", Outcome.FAIL, f"release {wanted.where} is {last.status}", said, fix=(error.fix,))
    if is_done(wanted, last) or last.status in ("failed", "uninstalled"):
        return _finding("A62", Outcome.PASS, f"release {wanted.where} is {last.status}", said)
    fix = ("groundplane upgrade plan shows the way to another chart or other values",)
    return _finding("A62", Outcome.FAIL, f"release {wanted.where} is there with another chart or values", said, fix=fix)


def is_done(wanted: Wanted, last: Revision | None) -> bool:
    """Whether the release in force is what is wanted."""
    return (
        last is not None
        and last.status == "deployed"
        and last.chart_version == wanted.chart.version
        and trees.same(last.values, wanted.values)
    )


# --- What it changes --------------------------------------------------------------------------------------------------


def difference(seen: Seen) -> list[str]:
    """What Helm will make, and what is there and differs: kinds, names and paths, never values."""
    lines: list[str] = []
    for document in seen.rendered:
        if is_hook(document):
            continue
        kind, space, name = key(document)
        what = f"{kind} {space + '/' if space else ''}{name}"
        if key(document) not in seen.there:
            lines.append(f"? {what} (could not be looked at)")
            continue
        live = seen.there[key(document)]
        if live is None:
            lines.append(f"+ {what}")
        elif paths := _changed(document, live):
            more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
            lines.append(f"~ {what}: {', '.join(paths[:5])}{more}")
    return sorted(lines)


def _changed(document: Document, live: Document) -> list[str]:
    left_out = ("apiVersion", "kind", "status")
    return [
        trees.dotted(path)
        for path, value in trees.leaves({name: each for name, each in document.items() if name not in left_out})
        if not trees.same(value, trees.get(live, path))
    ]


async def look(client: "Client", wanted: Wanted, rendered: Iterable[Document]) -> dict[tuple[str, str, str], Any]:
    """The rendered objects as they are in the cluster; those that may not be read are left out."""
    limit = asyncio.Semaphore(8)
    found: dict[tuple[str, str, str], Any] = {}

    async def one(document: Document) -> None:
        try:
            kind = kinds.of(document)
            namespace = document["metadata"].get("namespace") or (wanted.namespace if kind.namespaced else None)
            async with limit:
                found[key(document)] = await client.get(kind, document["metadata"]["name"], namespace)
        except errors.NotFound:
            found[key(document)] = None
        except (errors.Forbidden, kinds.UnknownKind):
            return  # told as an object that could not be looked at

    await asyncio.gather(*(one(each) for each in rendered if not is_hook(each)))
    return found


# --- The plan and its work --------------------------------------------------------------------------------------------


def plan(wanted: Wanted, survey: Survey, maker: str) -> plans.Plan:
    """What will be done, with the commands that a person would type."""
    space, label = wanted.namespace, needs_label(wanted, survey)
    steps = [
        plans.Step(
            id="namespace",
            title=f"Make namespace {space}",
            changes=f"namespace {space}" + (f", label {PSA}enforce=privileged" if label else ""),
            commands=(
                f"kubectl create namespace {space} --dry-run=client -o yaml | kubectl apply -f -",
                *((f"kubectl label --overwrite namespace {space} {PSA}enforce=privileged",) if label else ()),
            ),
            undo=f"kubectl delete namespace {space}",
        ),
        plans.Step(
            id="defaults",
            title="Save the chart's own values",
            changes=f"{defaults_file(wanted)} on this machine",
            commands=(shlex.join(["helm", "show", "values", *reference(wanted.chart)]) + " > FILE",),
        ),
        plans.Step(
            id="helm",
            title=f"Install {wanted.chart} as {wanted.where} ({maker})",
            changes="the objects below; the operator then labels nodes and starts its operands on those with GPUs",
            commands=(command(wanted),),
            undo=f"groundplane uninstall --namespace {space} --name {wanted.release}",
        ),
        plans.Step(id="layers", title="Wait for the layers of every node", repeat=True),
        plans.Step(
            id="verify",
            title="Verify",
            why="Helm waits for the chart's own objects only: that says nothing about GPUs",
            commands=(f"groundplane verify --namespace {space}",),
            repeat=True,
        ),
    ]
    facts = {"server": survey.server, "release": wanted.where, "chart": list(wanted.chart), "values": wanted.digest}
    return plans.Plan(title=f"Install {wanted.chart} as {wanted.where}", steps=tuple(steps), facts=facts)


def reference(chart: helm.Chart) -> list[str]:
    """The words by which a helm command names a chart."""
    repository = ["--repo", chart.repository] if chart.repository else []
    return [chart.reference, *repository, *([] if chart.is_local else ["--version", chart.version])]


def command(wanted: Wanted) -> str:
    """The ``helm install`` that a person would type; values by their files, never by what is in them."""
    words = ["helm", "install", wanted.release, *reference(wanted.chart), "--namespace", wanted.namespace]
    for file in wanted.value_files:
        words += ["--values", file]
    for each in wanted.sets:
        words += ["--set", each.partition("=")[0] + "=..."]
    return shlex.join([*words, "--wait", "--timeout", f"{wanted.timeout_s}s"])


def defaults_file(wanted: Wanted) -> Path:
    """Where the chart's own values are kept (A59)."""
    chart = hashlib.sha256("\0".join(wanted.chart).encode()).hexdigest()[:8]
    return plans.home("defaults", f"{wanted.namespace}-{wanted.release}-{wanted.chart.version}-{chart}.json")


def journal_file(wanted: Wanted, server: str) -> Path:
    """Where a run is recorded, until it is at its end."""
    cluster = hashlib.sha256(server.encode()).hexdigest()[:8]
    return plans.home("install", f"{cluster}-{wanted.namespace}-{wanted.release}.json")


class AlreadyRunsError(Exception):
    """Another process is in the middle of the same installation."""


def began(journal: plans.Journal) -> bool:
    """Whether an earlier run of this plan was inside Helm. Raises :class:`AlreadyRunsError` if it still is."""
    note = journal.done.get(_BEGAN)
    if not isinstance(note, Mapping):
        return False
    pid = note.get("pid")
    if note.get("host") == os.uname().nodename and pid != os.getpid() and Path(f"/proc/{pid}").exists():
        raise AlreadyRunsError(f"process {pid} is installing the same: wait for it, or end it")
    return True


async def make_namespace(client: "Client", wanted: Wanted, *, label: bool) -> None:
    """Make the namespace, if it lacks, and label it; again changes nothing (A53, A54)."""
    body: Document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": wanted.namespace}}
    if label:
        body["metadata"]["labels"] = {f"{PSA}enforce": "privileged"}
    await client.apply(kinds.NAMESPACE, body, field_manager=MANAGER)


def save_defaults(wanted: Wanted, defaults: Mapping[str, Any]) -> str:
    """Keep the chart's own values on this machine; where (A59)."""
    from ..node.hostroot import write_atomic

    path = defaults_file(wanted)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"chart": list(wanted.chart), "values": defaults}, default=str).encode(), mode=0o600)
    return str(path)


async def recover(maker: helm.Helm, wanted: Wanted, history: releases.History) -> str:
    """Clear a pending release: back to what was deployed, or away if nothing ever was. What was done, in words."""
    last = history.last(wanted.where)
    if last is None or last.status not in releases.PENDING:
        return ""
    deployed = history.deployed(wanted.where)
    if deployed is not None:
        await maker.rollback(wanted.release, wanted.namespace, deployed.revision, timeout_s=wanted.timeout_s)
        return f"release {wanted.where} was {last.status}: back to revision {deployed.revision}"
    await maker.uninstall(wanted.release, wanted.namespace, timeout_s=wanted.timeout_s, missing_ok=True)
    return f"release {wanted.where} was {last.status} and never deployed: taken away"


async def install(maker: helm.Helm, wanted: Wanted, survey: Survey, journal: plans.Journal) -> dict[str, Any]:
    """Install, unless the release is what is wanted already; what became of it (A60, A62)."""
    history = releases.history(survey)
    last = history.last(wanted.where)
    if last is not None and is_done(wanted, last):
        return {"revision": last.revision, "status": last.status}
    pending = last is not None and last.status in releases.PENDING
    if pending and not (wanted.recover or began(journal)):
        raise helm.ReleasePending(f"release {wanted.where} is {last.status if last else ''}")
    if pending:
        await recover(maker, wanted, history)
        if history.deployed(wanted.where) is not None:
            raise helm.ReleaseExists(f"release {wanted.where} is back at what was deployed before")
    elif last is not None:  # failed: nothing of it is in force
        await maker.uninstall(wanted.release, wanted.namespace, timeout_s=wanted.timeout_s, missing_ok=True)
    journal.note(_BEGAN, {"pid": os.getpid(), "host": os.uname().nodename, "at": time.time()})
    done = await maker.install(
        wanted.chart, wanted.release, wanted.namespace, wanted.values, timeout_s=wanted.timeout_s
    )
    return {"revision": done.revision, "status": done.status}


KINDS: Final = (*snapshot.KINDS, "secrets")
"""What is read before an installation, by plural."""
