"""The doctor: evidence in, verdict out; what ``engine`` concludes by signatures, and what the layers add to it.

Added here: operands that wait without a known reason are never passed over, healthy nodes of the pool are compared with
the sick ones, and each node's layers are judged for the tree. Pure; evidence comes from ``collect``, ``texts``,
``archive`` or a document, and gives the same answer from each (contracts/admin-workflow.md 11, A106-A111).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from . import compare, engine, findings, layers, pods, signatures
from . import evidence as seen
from .engine import WAITING, Cause, Verdict
from .evidence import Evidence, Object
from .findings import Finding, Layer, Outcome, Severity
from .layers import LayerState, State
from .signatures import Signature


def diagnose(evidence: Evidence, known: Iterable[Signature] | None = None) -> Verdict:
    """The verdict on the evidence by the known signatures, ours unless given.

    Every failure is in it: as a cause, as a consequence, or unmatched. A pod that waits for no known reason is one.
    """
    verdict = engine.judge(evidence, signatures.builtin() if known is None else known)
    views = layers.views(evidence)
    told = {node for each in _everything(verdict) for node in each.nodes}
    waiting = [finding for node, view in views.items() if node not in told for finding in _waiting(view)]
    waits = told | {node for each in waiting for node in each.nodes}
    waiting += [each for each in verdict.coming if waits.isdisjoint(each.nodes)]
    waiting += list(_waiting_of_cluster(evidence, verdict))
    unmatched = tuple(findings.grouped([*verdict.unmatched, *waiting]))
    healthy = [node for node in views if node not in told and not any(node in each.nodes for each in waiting)]
    causes = tuple(_compared(cause, evidence, healthy) for cause in verdict.causes)
    return msgspec.structs.replace(verdict, causes=causes, unmatched=unmatched, coming=())


def _everything(verdict: Verdict) -> Iterator[Finding]:
    """All failures of a verdict: causes, what follows from them, and those without a signature."""
    for cause in verdict.causes:
        yield cause.finding
        yield from cause.consequences
    yield from verdict.unmatched


def _compared(cause: Cause, evidence: Evidence, healthy: Sequence[str]) -> Cause:
    finding = cause.finding
    if not finding.nodes or not healthy:
        return cause
    found = compare.differences(evidence, finding.nodes, healthy)
    if not found:
        return cause
    return msgspec.structs.replace(cause, finding=finding.about(finding.nodes, (*found, *finding.evidence)))


def of_pod(verdict: Verdict, evidence: Evidence, pod: Object) -> Verdict:
    """What of a verdict can concern a pod: its node's and the cluster's; all of it for a pod that is on no node."""
    node = evidence.place(seen.node_of(pod))
    if not node:
        return verdict

    def near(finding: Finding) -> bool:
        return not finding.nodes or node in finding.nodes

    return Verdict(
        causes=tuple(cause for cause in verdict.causes if near(cause.finding)),
        unmatched=tuple(filter(near, verdict.unmatched)),
        unknown=verdict.unknown,
        notes=tuple(filter(near, verdict.notes)),
    )


# --- What waits -------------------------------------------------------------------------------------------------------


def _waiting(view: layers.View) -> Iterator[Finding]:
    """The lowest operand of a node that is not ready although nothing is known to fail there."""
    lowest = next(layers.waiting(view), None)
    if lowest is not None:
        yield _waiting_finding(view.node, *lowest)


def _waiting_of_cluster(evidence: Evidence, verdict: Verdict) -> Iterator[Finding]:
    """Pods of no node that wait although nothing else fails: operands, and workloads that want a GPU."""
    if verdict.causes or verdict.unmatched:
        return
    for pod in evidence.of_kind("Pod"):
        if evidence.place(seen.node_of(pod)) or pods.ready(pod):
            continue
        layer = pods.layer_of(pod) or Layer.WORKLOAD
        if layer is not Layer.WORKLOAD or pods.wants_gpu(pod):
            yield _waiting_finding("", layer, pod)


def _waiting_finding(node: str, layer: Layer, pod: Object) -> Finding:
    name, space = seen.name(pod), seen.namespace(pod)
    status = pod.get("status") or {}
    said = "; ".join(_states(pod)) or f"phase {status.get('phase') or 'unknown'}"
    since = f", since {status['startTime']}" if status.get("startTime") else ""
    return Finding(
        id=WAITING,
        layer=layer,
        outcome=Outcome.WARN,
        title=f"{seen.labels(pod).get('app') or 'a pod'} is not ready, and nothing is known to fail",
        node=node,
        severity=Severity.WARNING,
        evidence=(findings.Evidence(source=f"status of pod {space}/{name}{since}", excerpt=said),),
        cause="it starts, or waits for what is not there; known failures were looked for and not found",
        confirm=f"kubectl describe pod -n {space} {name}; kubectl logs -n {space} {name} --all-containers --tail=50",
        fix=("wait if it was just created, else read what it waits for",),
    )


def _states(pod: Object) -> Iterator[str]:
    for each in pods.statuses(pod):
        state = each.get("state") or {}
        how = next(iter(state), "waiting")
        over = (state.get("terminated") or {}).get("exitCode") == 0
        if over or (each.get("ready") and how == "running"):
            continue
        reason = (state.get(how) or {}).get("reason")
        yield f"{each.get('name')}: {reason or how}"


# --- Layers -----------------------------------------------------------------------------------------------------------


def standing(verdict: Verdict, evidence: Evidence) -> dict[str, tuple[LayerState, ...]]:
    """How the layers of each GPU node stand, by node, in order."""
    failing: dict[str, dict[Layer, str]] = {}
    waiting: dict[str, dict[Layer, str]] = {}
    for finding in _everything(verdict):
        told = waiting if finding.id == WAITING else failing
        for node in finding.nodes:
            told.setdefault(node, {}).setdefault(finding.layer, finding.title)
    found = layers.views(evidence)
    return {
        node: layers.of_node(found[node], failing.get(node, {}), waiting.get(node, {}))
        for node in sorted(found, key=findings.natural)
    }


def operator(verdict: Verdict, evidence: Evidence) -> LayerState:
    """How the operator's layer stands."""
    mine = (each.title for each in _everything(verdict) if each.layer is Layer.OPERATOR and each.id != WAITING)
    return layers.of_cluster(evidence, next(mine, ""))


def lowest(states: Sequence[LayerState]) -> LayerState | None:
    """The lowest layer that fails or only starts; None if there is none such."""
    return next((each for each in states if each.state in (State.FAILING, State.STARTING)), None)


def report(verdict: Verdict, evidence: Evidence) -> dict[str, Any]:
    """The verdict as plain values: summary, findings, causes with what follows from them, and the nodes' layers."""
    rows = verdict.findings
    found = findings.report(rows)
    found["healthy"] = verdict.healthy
    found["causes"] = [_cause(cause) for cause in verdict.causes]
    found["operator"] = _layer(operator(verdict, evidence))
    found["nodes"] = [
        {"name": node, "layers": {each.layer.value: _layer(each) for each in states}}
        for node, states in standing(verdict, evidence).items()
    ]
    return found


def _cause(cause: Cause) -> Mapping[str, Any]:
    return {
        "id": cause.finding.id,
        "layer": cause.finding.layer.value,
        "title": cause.finding.title,
        "nodes": list(cause.finding.nodes),
        "symptom": cause.symptom,
        "consequences": findings.report(cause.consequences)["findings"],
    }


def _layer(state: LayerState) -> Mapping[str, str]:
    return {"state": state.state.value, "why": state.why, "healthyMeans": layers.CRITERIA[state.layer]}
