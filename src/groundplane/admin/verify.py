"""Whether an installed GPU stack is what it should be, on every node (contracts/admin-workflow.md 6.4).

Pure: a survey goes in, and if somebody looked, what was found on nodes and what exporters answered; findings come out.
No statement rests on the ClusterPolicy's own word alone. The checks are a table here; those of pods are in
``verify_pods``, those of GPUs, labels and metrics in ``verify_gpus``. Works for NVIDIA's operator and for ours.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..api.release import Release
from ..cluster import kinds
from ..diagnose import evidence
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object, Survey
from ..operator import schema_check
from . import verify_gpus, verify_pods
from .expected import expected, in_force, name_of
from .hops import Version
from .metricslook import Page
from .releases import History, Revision, history
from .verify_view import PENDING_ADVICE, View, finding, version_told

KINDS: Final = (
    *("nodes", "pods", "clusterpolicies", "nvidiadrivers", "daemonsets", "deployments", "controllerrevisions"),
    *("configmaps", "events", "customresourcedefinitions", "secrets"),
)
"""The kinds of a survey that verify reads, by plural: eleven listings, each in pages of a thousand."""


class Check(NamedTuple):
    """A check: its numbers' first, what it is about, and the kinds without which it cannot be made."""

    id: str
    layer: Layer
    title: str
    needs: tuple[str, ...]
    run: Callable[[View], Iterable[Finding]]


def verify(
    survey: Survey,
    *,
    wanted: Version | None = None,
    node_facts: Mapping[str, evidence.NodeFacts] | None = None,
    metrics: Mapping[str, Page] | None = None,
) -> list[Finding]:
    """Every check of section 6.4 but the CUDA test.

    Args:
        survey: of the kinds :data:`KINDS`; what lacks ends in ``unknown`` with the reason.
        wanted: the release that should be installed; without it, any that is deployed is right.
        node_facts: what was found on nodes themselves, by node.
        metrics: exporters' pages by node, of those that were asked; None: nobody asked.
    """
    return judge(look(survey, wanted=wanted, node_facts=node_facts, metrics=metrics))


def judge(view: View) -> list[Finding]:
    """Every check's findings; of those whose kinds could not be read, that and why."""
    survey = view.survey
    found: list[Finding] = []
    for check in CHECKS:
        lacking = [survey.unread.get(plural, "it was not read") for plural in check.needs if not survey.knows(plural)]
        if lacking:
            title = f"{check.title}: could not be looked at"
            why = "; ".join(dict.fromkeys(lacking))
            found.append(Finding(id=check.id, layer=check.layer, outcome=Outcome.UNKNOWN, title=title, cause=why))
            continue
        found += check.run(view)
    return [*found, _waiting(view, found)]


def about(view: View) -> dict[str, Any]:
    """What was looked at, as plain values."""
    last = view.history.last()
    told = version_told(view.survey)
    return {
        "cluster": {
            "server": view.survey.server,
            "kubernetes": view.survey.version,
            "nodes": len(view.survey.of_kind("nodes")),
            "gpuNodes": len(view.expected.nodes),
        },
        "namespace": view.survey.namespace,
        "installed": f"{last.where} {last.chart_version} ({last.status})" if last else f"{told}" if told else "",
        "rules": str(view.expected.release),
    }


def look(
    survey: Survey,
    *,
    wanted: Version | None = None,
    node_facts: Mapping[str, evidence.NodeFacts] | None = None,
    metrics: Mapping[str, Page] | None = None,
) -> View:
    """What the checks look at: the survey, and what should be there by policy and release."""
    found = history(survey)
    release, assumed = release_of(survey, found, wanted)
    return View(
        survey=survey,
        expected=expected(survey, release),
        history=found,
        assumed=assumed,
        wanted=wanted,
        node_facts=node_facts or {},
        metrics=metrics,
    )


def release_of(survey: Survey, found: History, wanted: Version | None = None) -> tuple[Release, str]:
    """The release whose rules count: the installed one's, else the wanted one's; and a note if it had to be assumed."""
    last = found.deployed() or found.last()
    candidates = [last.behaves_like if last else None, version_told(survey), wanted]
    for version in candidates:
        if version is None:
            continue
        try:
            return Release.parse(version.number), ""
        except ValueError:
            return Release.DEFAULT, f"release {version} is judged by the rules of {Release.DEFAULT}, the nearest known"
    return Release.DEFAULT, f"no release could be told; the rules of {Release.DEFAULT} are applied"


# --- the release ------------------------------------------------------------------------------------------------------


def _release(view: View) -> Iterator[Finding]:
    """A62: the release is deployed, at the wanted chart."""
    found = view.history
    if view.assumed:
        yield finding("A62", Outcome.UNKNOWN, view.assumed)
    for broken in found.broken:
        yield finding("A62", Outcome.WARN, "a Secret of Helm's is no release", cause=broken)
    if not found.releases:
        yield _without_helm(view)
        return
    if len(found.releases) > 1:
        yield finding(
            "A62",
            Outcome.FAIL,
            f"{len(found.releases)} releases of the chart are installed",
            *(Evidence(f"Helm release {where}", _revision(found.last(where))) for where in found.releases),
            cause="two operators fight over the same cluster-wide objects",
            confirm="helm list -A --filter gpu-operator",
            fix=("uninstall all but one: helm uninstall NAME -n NAMESPACE",),
            action=Action.CHANGE_CONFIG,
        )
    for where in found.releases:
        yield _one_release(view, where)


def _revision(revision: Revision | None) -> str:
    if revision is None:
        return "nothing"
    return f"{revision.status}, revision {revision.revision}, chart {revision.chart}-{revision.chart_version}"


def _one_release(view: View, where: str) -> Finding:
    last = view.history.last(where)
    assert last is not None, "of_releases names only releases with a revision"
    said = Evidence(f"Helm release {where}", _revision(last))
    confirm = f"helm status {last.name} -n {last.namespace}"
    if last.status != "deployed":
        advice = PENDING_ADVICE.get(last.status, ("see why: helm history, then repeat the install or upgrade",))
        return finding(
            "A62",
            Outcome.FAIL,
            f"the release is {last.status}, not deployed",
            said,
            cause=last.description,
            confirm=confirm,
            fix=advice,
            action=Action.CHANGE_CONFIG,
        )
    runs = last.behaves_like
    if view.wanted is not None and runs != view.wanted:
        return finding(
            "A62",
            Outcome.FAIL,
            f"the release is {runs or last.chart_version}, wanted is {view.wanted}",
            said,
            confirm=confirm,
            fix=(f"groundplane upgrade plan --to {view.wanted}",),
            action=Action.UPGRADE_COMPONENT,
        )
    return finding("A62", Outcome.PASS, f"release {where} is deployed: {last.chart_version}", said)


def _without_helm(view: View) -> Finding:
    operator = view.operator
    if operator is None:
        return finding(
            "A62",
            Outcome.WARN if view.tended else Outcome.FAIL,
            "no release of the chart, and no Deployment of the operator",
            cause="an operator that runs elsewhere has carried out the ClusterPolicy"
            if view.tended
            else "the operator is not installed, or not in this namespace",
            confirm=f"helm list -A; kubectl get deployments -n {view.survey.namespace}",
            fix=("give the operator's namespace with --namespace, or install: groundplane install",),
            action=Action.CHANGE_CONFIG,
        )
    version = version_told(view.survey)
    image = operator["spec"]["template"]["spec"]["containers"][0].get("image", "")
    said = Evidence(f"Deployment {name_of(operator)}", f"image {image}")
    if view.wanted is not None and version is not None and version != view.wanted:
        title = f"the operator is of release {version}, wanted is {view.wanted}"
        return finding("A62", Outcome.FAIL, title, said, action=Action.UPGRADE_COMPONENT)
    title = "no Helm release: the operator was installed in another way" + (f", {version}" if version else "")
    return finding("A62", Outcome.WARN if view.wanted and not version else Outcome.PASS, title, said)


def _waiting(view: View, found: Iterable[Finding]) -> Finding:
    """A61: that Helm has waited says nothing of the operands; what the checks found does."""
    bad = [each for each in found if each.outcome is Outcome.FAIL]
    last = view.history.last()
    deployed = last is not None and last.status == "deployed"
    if not bad:
        return finding("A61", Outcome.PASS, "the stack was looked at itself, beyond what Helm waits for")
    cause = (
        "Helm says deployed, but waits for the chart's own objects only: the operator and node feature discovery"
        if deployed
        else "the operator's own word and Helm's are no validation"
    )
    ids = sorted({each.id for each in bad})
    title = f"the stack is not validated: {len(bad)} checks failed"
    return finding("A61", Outcome.FAIL, title, cause=cause, fix=(f"see {', '.join(ids)}, the lowest layer first",))


# --- definitions ------------------------------------------------------------------------------------------------------


def _definitions(view: View) -> Iterator[Finding]:
    """V2: the definitions in the cluster have every field of the release."""
    documents = {name_of(each): each for each in view.survey.of_kind("customresourcedefinitions")}
    for kind in (kinds.CLUSTER_POLICY, kinds.NVIDIA_DRIVER):
        document = documents.get(kind.resource)
        if document is None:
            if kind is kinds.CLUSTER_POLICY or view.uses_drivers:
                yield finding(
                    "V2",
                    Outcome.FAIL,
                    f"there is no CustomResourceDefinition {kind.resource}",
                    confirm=f"kubectl get crd {kind.resource}",
                    fix=("groundplane crds | kubectl apply --server-side --force-conflicts -f -",),
                    action=Action.CHANGE_CONFIG,
                )
            continue
        yield _definition(view, kind, document)


def _definition(view: View, kind: kinds.Kind, document: Object) -> Finding:
    fields, source = list(_dropped(view, kind, document)), f"CustomResourceDefinition {kind.resource}"
    if not fields:
        return finding("V2", Outcome.PASS, f"{source} has every field of {view.expected.release}")
    used = [path for path in fields if view.sets(kind, path)]
    shown = ", ".join(fields[: schema_check.FIELDS_MAX])
    more = len(fields) - schema_check.FIELDS_MAX
    return finding(
        "V2",
        Outcome.FAIL,
        f"{source} lacks {len(fields)} fields of {view.expected.release}",
        Evidence(source, shown + (f" and {more} more" if more > 0 else "")),
        *([Evidence("values of the release", f"set fields that are dropped: {', '.join(used)}")] if used else []),
        cause="Helm does not update definitions; the API server drops fields that it does not know without a word",
        confirm=f"kubectl explain {kind.plural}.spec",
        fix=(schema_check.REMEDY,),
        action=Action.UPGRADE_COMPONENT,
    )


def _dropped(view: View, kind: kinds.Kind, document: Object) -> Iterator[str]:
    """Fields of the chart's definition, where Helm has kept it, else of ours, that the live one does not have."""
    from ..api import crd  # half a megabyte of schema, needed here only

    def schema(each: Object) -> Mapping[str, Any] | None:
        versions = [
            version for version in each.get("spec", {}).get("versions") or () if version.get("name") == kind.version
        ]
        return (versions[0].get("schema") or {}).get("openAPIV3Schema") or {} if versions else None

    live = schema(document)
    if live is None:
        yield f"version {kind.version}"
        return
    stored = next((each for each in view.chart_definitions if name_of(each) == kind.resource), None)
    known = schema(stored) if stored is not None else None
    if known is None:
        ours = kind is kinds.CLUSTER_POLICY
        known = crd.cluster_policy_schema() if ours else crd.nvidia_driver_schema(view.expected.release)
    yield from schema_check.missing(known, live)


# --- the operator's own word ------------------------------------------------------------------------------------------

HOLLOW_REASONS: Final = {
    "NoGPUNodes": "no node has a GPU that node feature discovery knows",
    "NFDLabelsMissing": "no node has labels of node feature discovery",
}
"""Reasons with which a policy is ready and nothing is deployed (6.3)."""


def _policy(view: View) -> Iterator[Finding]:
    """A65 and A66: what the policy says of itself; never enough, and told with its reasons when it is not ready."""
    document = in_force(view.survey)
    if document is None:
        yield finding(
            "A65",
            Outcome.FAIL,
            "there is no ClusterPolicy",
            cause="without one the operator deploys nothing",
            confirm="kubectl get clusterpolicies",
            fix=("install the chart, which makes one, or apply one",),
            action=Action.CHANGE_CONFIG,
        )
        return
    others = [each for each in view.survey.of_kind("clusterpolicies") if each is not document]
    for problem in view.expected.problems:
        yield finding(
            "A65",
            Outcome.FAIL,
            "a part of the policy cannot be carried out",
            Evidence(f"ClusterPolicy {name_of(document)}", problem),
            fix=("mend the field that is named",),
            action=Action.CHANGE_CONFIG,
        )
    for other in others:
        yield finding(
            "A65",
            Outcome.WARN,
            "a second ClusterPolicy is ignored",
            Evidence(f"ClusterPolicy {name_of(other)}", f"state {(other.get('status') or {}).get('state', 'none')}"),
            cause=f"ClusterPolicy {name_of(document)} is older and counts",
            fix=(f"delete the one that is not wanted: kubectl delete clusterpolicy {name_of(other)}",),
            action=Action.CHANGE_CONFIG,
        )
    yield from _readiness("ClusterPolicy", document)
    for driver in view.survey.of_kind("nvidiadrivers") if view.uses_drivers else ():
        yield from _readiness("NVIDIADriver", driver)


def _readiness(kind: str, document: Object) -> Iterator[Finding]:
    status = document.get("status") or {}
    where = f"{kind} {name_of(document)}"
    state = str(status.get("state") or "")
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready")
    confirm = f"kubectl describe {kind.lower()} {name_of(document)}"
    said = [Evidence(where, f"state {state or 'not set'}"), *_conditions(where, conditions.values())]
    if why := _not_ready(document, state, ready):
        yield finding("A65", Outcome.FAIL, f"{where} is not ready: {why}", *said[:1], confirm=confirm)
        yield _reasons(where, conditions, said, confirm)
        return
    reason = str((ready or {}).get("reason", ""))
    if reason in HOLLOW_REASONS:
        yield finding(
            "A65",
            Outcome.FAIL,
            f"{where} says ready, with nothing deployed ({reason})",
            *said,
            cause=HOLLOW_REASONS[reason],
            confirm="kubectl get nodes -L feature.node.kubernetes.io/pci-10de.present,nvidia.com/gpu.present",
            fix=("see that node feature discovery runs on every GPU node, and that its labels are there",),
            action=Action.CHANGE_CONFIG,
        )
        return
    yield finding("A65", Outcome.PASS, f"{where} is ready", *said)
    yield finding("A66", Outcome.PASS, f"{where} has no condition that tells of a fault")


def _not_ready(document: Object, state: str, ready: Object | None) -> str:
    """Why it is not, by state, condition and generation; empty if all three say ready."""
    generation = int(document["metadata"].get("generation") or 0)
    seen = (ready or {}).get("observedGeneration") or (document.get("status") or {}).get("observedGeneration")
    if state != "ready":
        return f"its state is {state or 'not set: no operator has looked at it'}"
    if ready is not None and ready.get("status") != "True":
        return f"its state is ready, its condition Ready is {ready.get('status')}"
    if seen and generation and int(seen) < generation:
        return f"its status is of generation {seen}, its spec of {generation}: the last change has not been carried out"
    return ""


def _conditions(where: str, conditions: Iterable[Object]) -> list[Evidence]:
    return [
        Evidence(where, f"{each.get('type')}={each.get('status')} {each.get('reason', '')}: {each.get('message', '')}")
        for each in conditions
    ]


_ADVICE: Final = {
    "OperandNotReady": "see the operands that are named: A63, A64 and A67 say which pods, and why",
    "DriverNotReady": "see the driver's pods: A64 says what they wait for",
    "NFDLabelsMissing": "install node feature discovery, or see why it does not label the nodes",
    "ReconcileFailed": "read the operator's log: kubectl logs -n gpu-operator deployment/gpu-operator",
    "PrerequisiteNotMet": "mend what the message names",
    "ConflictingNodeSelector": "two NVIDIADrivers select one node: make their node selectors exclude each other",
}
"""What to do, by a condition's reason (6.3)."""


def _reasons(where: str, conditions: Mapping[str, Object], said: list[Evidence], confirm: str) -> Finding:
    bad = [each for each in conditions.values() if (each.get("type") == "Error") == (each.get("status") == "True")]
    reasons = list(dict.fromkeys(str(each.get("reason") or "") for each in bad if each.get("reason")))
    if not reasons:
        title = f"{where} does not say why it is not ready"
        return finding("A66", Outcome.FAIL, title, confirm=confirm, fix=(_ADVICE["ReconcileFailed"],))
    return finding(
        "A66",
        Outcome.FAIL,
        f"{where} is not ready: {', '.join(reasons)}",
        *said[1:],
        cause="; ".join(str(each["message"]) for each in bad if each.get("message")),
        confirm=confirm,
        fix=tuple(dict.fromkeys(_ADVICE[reason] for reason in reasons if reason in _ADVICE)),
    )


# --- events -----------------------------------------------------------------------------------------------------------


def _events(view: View) -> Iterator[Finding]:
    """V4: no warnings about operands since the install; those of a pod's start are over once it is ready."""
    over = 0
    for event in view.warnings:
        if view.is_over(event):
            over += 1
            continue
        about = event.get("involvedObject") or {}
        said = f"{event.get('reason')}: {event.get('message')} ({event.get('count') or 1} times)"
        yield finding(
            "V4",
            Outcome.WARN,
            f"warnings about {view.operand_word(about)}: {event.get('reason')}",
            Evidence(f"{about.get('kind')} {about.get('name')}", said),
            node=view.node_of(about),
            confirm=f"kubectl get events -n {view.survey.namespace} --field-selector type=Warning",
        )
    if over == len(view.warnings):
        told = f"; {over} are over, their pods are ready" if over else ""
        yield finding("V4", Outcome.PASS, f"no warnings about operands since the install{told}")


CHECKS: Final = (
    Check("A62", Layer.OPERATOR, "release", ("secrets", "deployments"), _release),
    Check("V2", Layer.OPERATOR, "definitions", ("customresourcedefinitions",), _definitions),
    Check("A65", Layer.OPERATOR, "ClusterPolicy", ("clusterpolicies",), _policy),
    Check("V1", Layer.OPERATOR, "GPU nodes", ("nodes", "clusterpolicies"), verify_pods.gpu_nodes),
    Check("A63", Layer.OPERATOR, "components", ("nodes", "pods", "daemonsets", "deployments"), verify_pods.components),
    Check("A64", Layer.OPERATOR, "pods", ("nodes", "pods", "daemonsets"), verify_pods.pods),
    Check("A64", Layer.OPERATOR, "validators", ("nodes", "pods", "daemonsets"), verify_pods.validators),
    Check("A67", Layer.OPERATOR, "DaemonSets", ("daemonsets", "pods", "controllerrevisions"), verify_pods.daemon_sets),
    Check("A68", Layer.DEVICE_PLUGIN, "allocatable GPUs", ("nodes",), verify_gpus.allocatable),
    Check("A69", Layer.DEVICE_PLUGIN, "capacity", ("nodes",), verify_gpus.capacity),
    Check("A70", Layer.LABELS, "labels of GPUs", ("nodes", "pods"), verify_gpus.labels),
    Check("A71", Layer.LABELS, "label families", ("nodes",), verify_gpus.families),
    Check("V3", Layer.TELEMETRY, "metrics", ("nodes", "pods"), verify_gpus.metrics),
    Check("V4", Layer.OPERATOR, "events", ("events", "pods"), _events),
)
"""In the order in which a person would look; contracts/admin-workflow.md 6.4 names each (V1 to V4 are ours)."""
