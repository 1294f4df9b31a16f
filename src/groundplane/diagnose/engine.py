"""Judging evidence: what is broken on each node, the one cause of it, and what merely follows.

Rules (contracts/admin-workflow.md 11): layers are walked from the bottom up; the lowest confirmed failure of a node is
its cause, what is above it a consequence; without GPU nodes the operator's layer comes first, as nothing else was
deployed; nodes with one cause are one finding. Nothing is guessed: a signature needs its proof and nothing against it,
pods that fail for no known reason are reported as such, and what could not be looked at is ``unknown``. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..api import names
from . import evidence as seen
from . import findings, pods
from .evidence import Evidence, Object
from .findings import Action, Finding, Layer, Outcome, Severity
from .match import Match, Scope, container_statuses, match, number, scopes
from .redact import redacted
from .signatures import Signature

LAST_LINES: Final = 20
"""Lines of a failing container's log that are shown."""


WAITING: Final = "waiting"
"""Id of what is told of what is not ready though nothing is known to fail."""
RESTARTS: Final = 3
"""Restarts after which a container that is not ready counts as failing though it runs."""


class Cause(msgspec.Struct, frozen=True):
    """What is to be treated, and what else was found where it is."""

    finding: Finding
    consequences: tuple[Finding, ...] = ()
    """Confirmed on the same nodes too; to be looked at again when the cause is gone."""
    symptom: bool = False
    """It says what is broken, not why: the failures in :attr:`Verdict.unmatched` tell more."""


class Verdict(msgspec.Struct, frozen=True):
    """What evidence says."""

    causes: tuple[Cause, ...] = ()
    """The lowest first; the first is what to begin with."""
    unmatched: tuple[Finding, ...] = ()
    """Failures that no signature accounts for."""
    unknown: tuple[Finding, ...] = ()
    """What could not be judged, each with what to run next."""
    notes: tuple[Finding, ...] = ()
    """Circumstances that are no failure."""
    coming: tuple[Finding, ...] = ()
    """What is not there yet on nodes that come up; ``doctor`` tells it where nothing else is told."""

    @property
    def findings(self) -> list[Finding]:
        """All that is to be told, in order; consequences are within their causes."""
        return findings.grouped(
            [*(cause.finding for cause in self.causes), *self.unmatched, *self.unknown, *self.notes]
        )

    @property
    def healthy(self) -> bool:
        """Whether everything was looked at and nothing fails."""
        return not (self.causes or self.unmatched or self.unknown)


def judge(evidence: Evidence, signatures: Iterable[Signature]) -> Verdict:
    """The verdict on the evidence by these signatures."""
    ordered = _order(signatures)
    shares = scopes(evidence)
    operator_first = not _has_gpu_nodes(evidence) or evidence.context.get("brings_up") in _NOT_UP
    now = seen.moment(evidence.context.get("at"))
    causes: list[Cause] = []
    unmatched: list[Finding] = []
    notes: list[Finding] = []
    coming: list[Finding] = []
    for scope in shares.values():
        rising = pods.coming_up(scope.objects.get("Pod", ()), now, _born(scope))
        matches = [found for signature in ordered if (found := match(signature, scope)) is not None]
        mine, told = _judged([each for each in matches if not _settles(each.signature, rising)], operator_first)
        causes += mine
        notes += told
        unmatched += _unmatched(scope, mine, rising)
        coming += [_awaited(each) for each in matches if _settles(each.signature, rising)]
    causes = _across(_grouped(causes), operator_first)
    return Verdict(
        causes=tuple(causes),
        unmatched=tuple(findings.grouped(unmatched)),
        unknown=tuple(_unknown(evidence, anything=bool(causes or unmatched or notes))),
        notes=tuple(findings.grouped(notes)),
        coming=tuple(coming),
    )


def _born(scope: Scope) -> float | None:
    """When a node's operands began to come up at the latest: it, or a policy, was made, or it became Ready again."""
    if not scope.node:
        return None
    nodes = scope.objects.get("Node", ())
    things = [*nodes, *scope.whole.objects.get("ClusterPolicy", ())]
    moments = [(each.get("metadata") or {}).get("creationTimestamp") for each in things]
    moments += [
        condition.get("lastTransitionTime")
        for node in nodes
        for condition in (node.get("status") or {}).get("conditions") or ()
        if condition.get("type") == "Ready" and condition.get("status") == "True"
    ]
    known = [found for each in moments if (found := seen.moment(each)) is not None]
    return max(known, default=None)


def _settles(signature: Signature, rising: Layer | None) -> bool:
    """Whether what a signature shows is how a node looks that comes up, from this layer on."""
    return signature.awaits is not None and rising is not None and rising <= signature.awaits


def _awaited(found: Match) -> Finding:
    """What is not as it should be yet, on a node that comes up."""
    return msgspec.structs.replace(
        _finding(found),
        id=WAITING,
        outcome=Outcome.WARN,
        severity=Severity.WARNING,
        title=f"{found.signature.title}; its operands have only just been started",
        cause="normal for a moment while a node comes up, a failure if it stays",
        fix=("wait a minute or two, and look again",),
        action=Action.NONE,
    )


def _order(signatures: Iterable[Signature]) -> list[Signature]:
    return sorted(signatures, key=lambda each: each.layer)


# --- One node ---------------------------------------------------------------------------------------------------------


def _judged(matches: Sequence[Match], operator_first: bool) -> tuple[list[Cause], list[Finding]]:
    """The cause among what fits one scope, if any, and what is only to be noted."""
    failures = [each for each in matches if each.signature.severity is not Severity.INFO]
    infos = [each for each in matches if each.signature.severity is Severity.INFO]
    explained = {name for each in infos for name in each.signature.explains}
    told = [each for each in failures if each.signature.id in explained]
    failures = [each for each in failures if each.signature.id not in explained]
    root = _root(failures, operator_first)
    if root is None and told:  # a circumstance that somebody has to act on
        root = next(each for each in infos if each.signature.explains)
        infos.remove(root)
    notes = [_finding(each) for each in infos]
    if root is None:
        return [], notes
    others = [_finding(each) for each in (*failures, *told) if each is not root]
    cause = Cause(_finding(root, failed=True), tuple(findings.ordered(others)), root.signature.symptom)
    return [cause], notes


def _root(failures: Sequence[Match], operator_first: bool) -> Match | None:
    """The lowest of what tells a cause, unless it lies above what a symptom can come from; else the lowest symptom."""
    telling = [each for each in failures if not each.signature.symptom]
    symptoms = [each for each in failures if each.signature.symptom]

    def depth(found: Match) -> tuple[int, int]:
        signature = found.signature
        return rank(signature.layer, operator_first), -signature.severity.rank

    lowest = min(telling, key=depth, default=None)
    symptom = min(symptoms, key=depth, default=None)
    if lowest is None or symptom is None:
        return lowest or symptom
    reached = rank(lowest.signature.layer, operator_first) <= rank(symptom.signature.reach, False)
    return lowest if reached else symptom


def rank(layer: Layer, operator_first: bool) -> int:
    """How low a layer is; with ``operator_first`` the operator's is below all others."""
    return -1 if operator_first and layer is Layer.OPERATOR else tuple(Layer).index(layer)


def _finding(found: Match, failed: bool = False) -> Finding:
    signature = found.signature
    info = signature.severity is Severity.INFO
    outcome = Outcome.FAIL if signature.severity.rank >= Severity.CRITICAL.rank else Outcome.WARN
    return Finding(
        id=signature.id,
        layer=signature.layer,
        outcome=Outcome.PASS if info and not failed else outcome,
        title=signature.title,
        node=found.node,
        severity=signature.severity,
        evidence=found.quotes,
        cause=signature.cause,
        confirm=signature.confirm,
        fix=tuple(signature.fix),
        action=signature.action,
        docs=signature.source,
    )


# --- The cluster ------------------------------------------------------------------------------------------------------


def _grouped(causes: Iterable[Cause]) -> list[Cause]:
    """Nodes with one cause as one, with the consequences of all of them."""
    causes = list(causes)
    result = []
    for finding in findings.grouped(cause.finding for cause in causes):
        mine = [
            cause
            for cause in causes
            if cause.finding.id == finding.id and set(cause.finding.nodes) <= set(finding.nodes)
        ]
        same = [cause for cause in mine if bool(cause.finding.nodes) == bool(finding.nodes)]
        follows = findings.grouped(each for cause in same for each in cause.consequences)
        result.append(Cause(finding, tuple(follows), same[0].symptom))
    return result


def _across(causes: Sequence[Cause], operator_first: bool) -> list[Cause]:
    """Causes in order, where what is wrong with pods of no node follows from what is wrong with nodes.

    A pod that finds no GPU is a consequence of a node whose driver is broken; an operator that has too little memory is
    a cause of its own, and so is anything of the cluster below the nodes' causes.
    """
    if operator_first:
        causes = _nothing_is_up(causes)
    of_nodes = [cause for cause in causes if cause.finding.nodes]
    lowest = min((rank(cause.finding.layer, False) for cause in of_nodes), default=None)
    result = list(of_nodes)
    follows: list[Finding] = []
    for cause in causes:
        if cause.finding.nodes:
            continue
        own = cause.finding.layer is Layer.OPERATOR
        if lowest is None or own or rank(cause.finding.layer, False) < lowest:
            result.append(cause)
        else:
            follows += [cause.finding, *cause.consequences]
    result.sort(key=lambda cause: (rank(cause.finding.layer, operator_first), cause.finding.key))
    if follows:
        at = next(index for index, cause in enumerate(result) if cause.finding.nodes)
        all_of_it = findings.grouped([*result[at].consequences, *follows])
        result[at] = msgspec.structs.replace(result[at], consequences=tuple(all_of_it))
    return result


def _nothing_is_up(causes: Sequence[Cause]) -> list[Cause]:
    """What nodes lack follows from that which keeps the operator from bringing anything up, where that is known."""
    first = next((each for each in causes if each.finding.layer is Layer.OPERATOR and not each.symptom), None)
    if first is None:
        return list(causes)
    follows = [each for each in causes if each.symptom and each.finding.layer is not Layer.OPERATOR]
    told = [piece for each in follows for piece in (each.finding, *each.consequences)]
    whole = Cause(first.finding, tuple(findings.grouped([*first.consequences, *told])))
    return [whole if each is first else each for each in causes if each not in follows]


_NOT_UP: Final = ("nothing", "operator")
"""What may be there to bring the stack up, and does not."""


def _has_gpu_nodes(evidence: Evidence) -> bool:
    """Whether the cluster has GPU nodes; also where nobody looked."""
    told = number(evidence.context.get("gpu_nodes"))
    if told is not None:
        return told > 0
    nodes = [each for node in evidence.node_names if (each := evidence.node_labels(node)) is not None]
    complete = any(True for _ in evidence.of_kind("Node"))
    return not complete or any(_is_gpu_node(labels) for labels in nodes)


def _is_gpu_node(labels: Mapping[str, str]) -> bool:
    return labels.get(names.GPU_PRESENT) == "true" or any(labels.get(each) == "true" for each in names.PCI_GPU_LABELS)


# --- What no signature knows ------------------------------------------------------------------------------------------

_WAITS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits without having failed."""
_NEAREST: Final[tuple[tuple[str, Layer], ...]] = (
    ("k8s-driver-manager|nvidia-driver|vgpu-manager|nvidia-peermem|nvidia-fs|gdrcopy|driver-toolkit", Layer.DRIVER),
    ("driver-validation", Layer.DRIVER),
    ("fabricmanager", Layer.FABRIC),
    ("toolkit|runtime", Layer.RUNTIME),
    ("cuda-valid", Layer.RUNTIME),
    ("device-plugin|plugin-validation|config-manager|mps", Layer.DEVICE_PLUGIN),
    ("feature-discovery|mig", Layer.LABELS),
    ("dcgm|exporter", Layer.TELEMETRY),
    ("gpu-operator|node-feature|nfd|upgrade-crd", Layer.OPERATOR),
)
"""The layer of a container or pod by its name, the first that fits; others are workloads."""


def nearest(pod: str, container: str) -> Layer:
    """The layer that a failing container is nearest to; its own name tells more than its pod's."""
    for name in (container, pod):
        for pattern, layer in _NEAREST:
            if re.search(pattern, name):
                return layer
    return Layer.WORKLOAD


def _unmatched(scope: Scope, causes: Sequence[Cause], rising: Layer | None) -> Iterator[Finding]:
    """Failing containers of a scope that its cause does not account for: those below it, and with a symptom its own.

    Validators fail as long as what they validate comes up, from ``rising`` on: that is no failure.
    """
    below = [rank(cause.finding.layer, False) + cause.symptom for cause in causes]
    limit = min(below, default=len(Layer))
    for pod in scope.objects.get("Pod", ()):
        since = rising if pods.validates(pod) else None
        for container, how, layer in _failing(pod):
            if how == _UNSCHEDULED and any(cause.finding.layer is Layer.WORKLOAD for cause in causes):
                continue  # that is what the cause says
            if rank(layer, False) < limit and (since is None or layer < since):
                yield _unmatched_finding(scope, pod, container, how, layer)


_UNSCHEDULED: Final = "cannot be scheduled"


def _failing(pod: Object) -> Iterator[tuple[str, str, Layer]]:
    """A pod's failing containers: name, how, nearest layer; the pod itself where none of them says more."""
    status = pod.get("status") or {}
    pod_name = seen.name(pod)
    told = False
    for each in container_statuses(pod):
        if how := _how(each):
            container = str(each.get("name") or "")
            told = True
            yield container, how, nearest(pod_name, container)
    if told:
        return
    phase = status.get("phase")
    if phase in ("Failed", "Unknown"):
        yield "", f"phase {phase} {status.get('reason') or ''}".strip(), nearest(pod_name, "")
    scheduled = (each for each in status.get("conditions") or () if each.get("type") == "PodScheduled")
    if any(each.get("status") == "False" for each in scheduled):
        yield "", _UNSCHEDULED, Layer.WORKLOAD


def _how(container: Mapping[str, Any]) -> str:
    """How a container fails; empty if it does not."""
    state = container.get("state") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    if isinstance(waiting, Mapping) and (waiting.get("reason") or "") not in _WAITS:
        return str(waiting["reason"])
    if isinstance(ended, Mapping) and ended.get("exitCode") not in (0, None):
        return f"{ended.get('reason') or 'ended'}, exit code {ended['exitCode']}"
    restarts = number(container.get("restartCount")) or 0
    again = restarts >= RESTARTS and container.get("ready") is False
    return f"restarted {restarts:.0f} times, not ready" if again else ""


def _unmatched_finding(scope: Scope, pod: Object, container: str, how: str, layer: Layer) -> Finding:
    name, space = seen.name(pod), seen.namespace(pod)
    target = f"-n {space} {name}" if space else name
    logs = [
        findings.Evidence(source=f"log of {space}/{name}/{log.container}, its end", excerpt=_tail(log.text))
        for log in scope.evidence.logs
        if log.pod == name and log.namespace in ("", space) and log.container in ("", container)
    ]
    status = findings.Evidence(source=f"status of pod {space}/{name}", excerpt=f"{container}: {how}".lstrip(": "))
    see = f"kubectl logs {target} -c {container} --previous" if container else f"kubectl describe pod {target}"
    return Finding(
        id="unmatched",
        layer=layer,
        outcome=Outcome.FAIL,
        title=f"{container or 'a pod'} fails, and no known signature fits",
        node=scope.node,
        severity=Severity.CRITICAL,
        evidence=(status, *logs),
        cause="not known",
        confirm=see if logs or not container else f"kubectl describe pod {target}; {see}",
        action=Action.NONE if logs else Action.CHECK_WORKLOAD,
    )


def _tail(text: str) -> str:
    return redacted("\n".join(text.rstrip().split("\n")[-LAST_LINES:]))


def _unknown(evidence: Evidence, anything: bool) -> Iterator[Finding]:
    for sentence in evidence.missing:
        yield _unknown_finding("could not be looked at", sentence, _LOOK if "--node-pods" in sentence else _GATHER)
    if anything:
        return
    if any(True for _ in evidence.of_kind("Pod")) or any(True for _ in evidence.of_kind("Node")):
        return
    if evidence.logs or evidence.kernel or evidence.events or evidence.context or evidence.nodes or evidence.labels:
        yield _unknown_finding("no known signature in what was given", "no pod's state was seen", "groundplane doctor")
    else:
        yield _unknown_finding("nothing was given to judge", "the evidence is empty", "groundplane doctor")


_LOOK: Final = "groundplane doctor --node-pods"
_GATHER: Final = "groundplane must-gather"


def _unknown_finding(title: str, why: str, run: str) -> Finding:
    return Finding(
        id="unknown",
        layer=Layer.OPERATOR,
        outcome=Outcome.UNKNOWN,
        title=title,
        evidence=(findings.Evidence(source="evidence", excerpt=redacted(why)),),
        cause="not known",
        confirm=run,
    )
