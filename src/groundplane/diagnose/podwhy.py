"""Why a pod has no GPU: its request, the scheduler's choice, its RuntimeClass, its container, step by step.

A walk from the pod down to the node, each step a finding; the node's own layers are the doctor's part
(contracts/admin-workflow.md A111; signatures S04, S06, S08, S41, S48 to S50). Pure, on evidence of any origin. The
first step that fails is what to begin with; a step that could not be looked at is unknown.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from . import evidence as seen
from . import findings, pods
from .evidence import Evidence, Object
from .findings import Action, Finding, Layer, Outcome
from .match import number

NODES_TOLD: Final = 5
DEFAULT_SCHEDULER: Final = "default-scheduler"


class PodNotSeenError(LookupError):
    """The pod is not in the evidence."""


def find(evidence: Evidence, namespace: str, name: str) -> Object:
    """The pod of that name. Raises :class:`PodNotSeenError` with what is there instead."""
    there = [each for each in evidence.of_kind("Pod") if seen.name(each) == name]
    for pod in there:
        if seen.namespace(pod) == namespace:
            return pod
    others = ", ".join(sorted(seen.namespace(each) for each in there))
    also = f"; one of that name is in {others}" if others else ""
    full = "; ".join(f"ResourceQuota {quota} refuses new pods: {said}" for quota, said in _used_up(evidence, namespace))
    also += f"; {full}" if full else ""
    raise PodNotSeenError(f"there is no pod {namespace}/{name}{also} (kubectl get pods -n {namespace})")


def walk(evidence: Evidence, pod: Object) -> list[Finding]:
    """The steps in their order."""
    return [finding for step in _STEPS for finding in step(evidence, pod)]


def _finding(
    step: str,
    layer: Layer,
    outcome: Outcome,
    title: str,
    *,
    pod: Object,
    saw: str = "",
    source: str = "",
    cause: str = "",
    fix: Sequence[str] = (),
    docs: str = "",
) -> Finding:
    called = f"{seen.namespace(pod)}/{seen.name(pod)}"
    quotes = (findings.Evidence(source=source or f"pod {called}", excerpt=saw),) if saw else ()
    bad = outcome in (Outcome.FAIL, Outcome.WARN)
    return Finding(
        id=step,
        layer=layer,
        outcome=outcome,
        title=title,
        evidence=quotes,
        cause=cause,
        fix=tuple(fix),
        confirm=f"kubectl describe pod -n {seen.namespace(pod)} {seen.name(pod)}" if bad else "",
        action=Action.CHECK_WORKLOAD if bad else Action.NONE,
        docs=docs,
    )


# --- The request ------------------------------------------------------------------------------------------------------


def _request(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    spec = pod.get("spec") or {}
    asked = {str(each.get("name")): pods.gpu_request(each) for each in pods.containers(pod) if pods.gpu_request(each)}
    if not asked:
        if claims := spec.get("resourceClaims"):
            yield _finding(
                "pod-request", Layer.WORKLOAD, Outcome.PASS, "the pod claims devices", pod=pod, saw=str(claims)
            )
            return
        yield _finding(
            "pod-request",
            Layer.WORKLOAD,
            Outcome.FAIL,
            "the pod asks for no GPU",
            pod=pod,
            saw="no container has a limit of nvidia.com/*",
            cause="without a limit the device plugin gives it none; a RuntimeClass alone does not either",
            fix=("add resources.limits: nvidia.com/gpu: 1 to the container that uses the GPU",),
        )
        return
    wrong = [*_wrong_forms(pod)]
    yield from wrong
    if not wrong:
        said = "; ".join(f"{container}: {_amounts(amounts)}" for container, amounts in asked.items())
        yield _finding(
            "pod-request", Layer.WORKLOAD, Outcome.PASS, "the pod asks for GPUs as limits", pod=pod, saw=said
        )


def _amounts(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {amount}" for name, amount in sorted(amounts.items()))


def _wrong_forms(pod: Object) -> Iterator[Finding]:
    for container in pods.containers(pod):
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        for resource, amount in pods.gpu_request(container).items():
            value = number(amount)
            saw = f"{container.get('name')}: {resource}: {amount}"
            if value is None or value != int(value):
                yield _finding(
                    "pod-request",
                    Layer.WORKLOAD,
                    Outcome.FAIL,
                    "an amount of GPUs is no whole number",
                    pod=pod,
                    saw=saw,
                    cause="parts of a GPU are not given as fractions",
                    fix=("ask for whole numbers; for parts of GPUs use MIG resources or sharing (time-slicing, MPS)",),
                )
            elif resource not in limits:
                yield _finding(
                    "pod-request",
                    Layer.WORKLOAD,
                    Outcome.FAIL,
                    "GPUs are requested, not limited",
                    pod=pod,
                    saw=saw,
                    cause="extended resources must be given as limits; a request alone is refused or has no effect",
                    fix=(f"write resources.limits: {resource}: {amount}",),
                    docs="A111",
                )


def _wanted(pod: Object) -> dict[str, float]:
    """What the pod needs of each of NVIDIA's resources on one node: init containers run before the others."""
    spec = pod.get("spec") or {}
    both: list[dict[str, float]] = []
    for part, add in (("containers", True), ("initContainers", False)):
        total: dict[str, float] = {}
        for each in spec.get(part) or ():
            for resource, amount in pods.gpu_request(each).items():
                value = number(amount) or 0.0
                total[resource] = total.get(resource, 0.0) + value if add else max(total.get(resource, 0.0), value)
        both.append(total)
    return {resource: max(each.get(resource, 0.0) for each in both) for resource in {**both[0], **both[1]}}


def _offered(node: Object) -> dict[str, float]:
    amounts = ((node.get("status") or {}).get("allocatable") or {}).items()
    return {name: value for name, amount in amounts if name.startswith("nvidia.com/") and (value := number(amount))}


def _resource(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    """Whether some node has such a resource, and as many as one pod asks for."""
    nodes = list(evidence.of_kind("Node"))
    if not nodes:
        if not seen.node_of(pod):
            yield _finding("pod-resource", Layer.WORKLOAD, Outcome.UNKNOWN, "what nodes offer was not seen", pod=pod)
        return
    offers: dict[str, float] = {}
    for node in nodes:
        for name, amount in _offered(node).items():
            offers[name] = max(offers.get(name, 0.0), amount)
    for resource, amount in sorted(_wanted(pod).items()):
        most = offers.get(resource, 0.0)
        if most >= amount:
            title = "nodes have the resource that is asked for"
            saw = f"{resource}: {amount:g} asked for, up to {most:g} on a node"
            yield _finding("pod-resource", Layer.WORKLOAD, Outcome.PASS, title, pod=pod, saw=saw, source="nodes")
            continue
        there = _amounts({name: f"{each:g}" for name, each in offers.items()}) or "no resource of NVIDIA's"
        other = sorted(name for name in offers if name != resource)
        yield _finding(
            "pod-resource",
            Layer.WORKLOAD if offers else Layer.DEVICE_PLUGIN,
            Outcome.FAIL,
            "no node has so many of the resource" if most else "no node has the resource that is asked for",
            pod=pod,
            saw=f"{resource}: {amount:g} is asked for; nodes offer at most {there}",
            source="nodes' allocatable",
            cause="sharing and MIG give resources other names" if other else "no device plugin offers GPUs yet",
            fix=(f"ask for {other[0]}",)
            if other and not most
            else ("ask for fewer, or see what groundplane doctor says",),
            docs="S41, S48",
        )


# --- The scheduler ----------------------------------------------------------------------------------------------------


def _scheduling(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    spec = pod.get("spec") or {}
    if node := seen.node_of(pod):
        yield _finding("pod-scheduled", Layer.WORKLOAD, Outcome.PASS, "the pod is on a node", pod=pod, saw=node)
        return
    if gates := spec.get("schedulingGates"):
        waits = ", ".join(str(each.get("name")) for each in gates)
        cause = "who set the gates has to take them away (quota systems such as Kueue do)"
        title = "the pod is held back by scheduling gates"
        yield _finding("pod-gates", Layer.WORKLOAD, Outcome.FAIL, title, pod=pod, saw=waits, cause=cause)
    scheduler = str(spec.get("schedulerName") or DEFAULT_SCHEDULER)
    if scheduler != DEFAULT_SCHEDULER:
        yield _finding(
            "pod-scheduler",
            Layer.WORKLOAD,
            Outcome.WARN,
            "another scheduler places the pod",
            pod=pod,
            saw=f"schedulerName: {scheduler}",
            cause="it has rules of its own, and if it does not run the pod waits for ever",
            fix=(f"look whether {scheduler} runs and what it says",),
        )
    yield from _told(evidence, pod)
    yield from _against(evidence, pod)


def _told(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    said = [
        str(each.get("message")) for each in conditions if each.get("type") == "PodScheduled" and each.get("message")
    ]
    key = (seen.namespace(pod), seen.name(pod))
    said += [each.message for each in evidence.events if (each.namespace, each.name) == key and "Sched" in each.reason]
    if said:
        title = "the scheduler finds no node"
        yield _finding(
            "pod-events", Layer.WORKLOAD, Outcome.FAIL, title, pod=pod, saw=said[-1], source="the scheduler", docs="S06"
        )


def _against(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    """What keeps the pod off each node that has what it asks for."""
    wanted = _wanted(pod)
    able = [
        node
        for node in evidence.of_kind("Node")
        if wanted and all(_offered(node).get(resource, 0.0) >= amount for resource, amount in wanted.items())
    ]
    if not able:
        return
    used = _in_use(evidence)
    why: dict[str, list[str]] = {}
    for node in able:
        reason = _refusal(node, pod, wanted, used.get(seen.name(node), {}))
        why.setdefault(reason, []).append(seen.name(node))
    free = why.pop("", [])
    for reason, nodes in sorted(why.items()):
        some = ", ".join(nodes[:NODES_TOLD]) + (
            f" and {len(nodes) - NODES_TOLD} more" if len(nodes) > NODES_TOLD else ""
        )
        title, fix, number_of = _REFUSALS[reason.split(":")[0]]
        outcome = Outcome.WARN if free else Outcome.FAIL
        yield _finding(
            "pod-placement",
            Layer.WORKLOAD,
            outcome,
            title,
            pod=pod,
            saw=f"{reason.partition(': ')[2]} ({some})",
            source="nodes that have the GPUs",
            fix=(fix,),
            docs=number_of,
        )
    if free:
        saw = ", ".join(free[:NODES_TOLD])
        title = "nodes could take the pod by GPUs, taints and selectors; something else keeps it off"
        yield _finding("pod-placement", Layer.WORKLOAD, Outcome.WARN, title, pod=pod, saw=saw, source="nodes")


_REFUSALS: Final = {
    "cordoned": ("nodes with GPUs are cordoned", "uncordon the node when its work is done", "S48"),
    "selector": (
        "the pod's node selector or affinity fits no node with GPUs",
        "correct nodeSelector or affinity, or label the nodes",
        "S06",
    ),
    "taint": ("the pod does not tolerate the GPU nodes' taints", "add the toleration to the pod", "S49"),
    "in use": ("all GPUs are in use", "wait or free GPUs, add nodes, ask for fewer", "S48"),
}


def _refusal(node: Object, pod: Object, wanted: Mapping[str, float], used: Mapping[str, float]) -> str:
    """Why a node does not take a pod, a word of :data:`_REFUSALS` first; empty if nothing is against it."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return "cordoned: kubectl cordon, or an upgrade of the driver"
    if missing := _unselected(node, pod):
        return f"selector: {missing}"
    tolerations = [each for each in (pod.get("spec") or {}).get("tolerations") or () if isinstance(each, Mapping)]
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(
            _tolerates(each, taint) for each in tolerations
        ):
            return f"taint: {taint.get('key')}={taint.get('value') or ''}:{taint.get('effect')}"
    offered = _offered(node)
    for resource, amount in wanted.items():
        if offered.get(resource, 0.0) - used.get(resource, 0.0) < amount:
            return f"in use: {resource}: {amount:g} asked for, fewer are free"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


_OPERATORS: Final[Mapping[str, Callable[[str | None, Sequence[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: (number(value) or 0) > (number(values[0]) or 0) if values else False,
    "Lt": lambda value, values: (
        value is not None and (number(value) or 0) < (number(values[0]) or 0) if values else False
    ),
}


def _unselected(node: Object, pod: Object) -> str:
    """The first demand of the pod's selector or affinity that a node does not meet; empty if it meets them."""
    labels = seen.labels(node)
    spec = pod.get("spec") or {}
    for label, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(label) != value:
            return f"nodeSelector {label}={value}"
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = affinity.get("nodeSelectorTerms") or []
    unmet = [_unmet(labels, term) for term in terms]
    return unmet[0] if unmet and all(unmet) else ""


def _unmet(labels: Mapping[str, str], term: Mapping[str, Any]) -> str:
    for demand in term.get("matchExpressions") or ():
        fits = _OPERATORS.get(str(demand.get("operator")))
        values = [str(each) for each in demand.get("values") or ()]
        if fits is not None and not fits(labels.get(str(demand.get("key"))), values):
            return f"affinity {demand.get('key')} {demand.get('operator')} {', '.join(values)}".rstrip()
    return ""


def _in_use(evidence: Evidence) -> dict[str, dict[str, float]]:
    """What pods have of NVIDIA's resources, by node."""
    found: dict[str, dict[str, float]] = {}
    for pod in evidence.of_kind("Pod"):
        node = seen.node_of(pod)
        if node and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            mine = found.setdefault(node, {})
            for resource, amount in _wanted(pod).items():
                mine[resource] = mine.get(resource, 0.0) + amount
    return found


def _quota(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    """A quota that is used up refuses pods when they are made; one that is there was let in, its siblings are not."""
    if seen.node_of(pod):
        return
    for name, said in _used_up(evidence, seen.namespace(pod)):
        yield _finding(
            "pod-quota",
            Layer.WORKLOAD,
            Outcome.WARN,
            "the namespace's quota of GPUs is used up",
            pod=pod,
            saw=said,
            source=f"ResourceQuota {name}",
            cause="further pods of the namespace are refused when they are made",
            fix=("free GPUs in the namespace, or raise the quota",),
        )


def _used_up(evidence: Evidence, namespace: str) -> Iterator[tuple[str, str]]:
    """Quotas of GPUs that are used up: name, and what they say."""
    for quota in evidence.of_kind("ResourceQuota"):
        if seen.namespace(quota) != namespace:
            continue
        status = quota.get("status") or {}
        used = status.get("used") or {}
        for key, amount in (status.get("hard") or {}).items():
            most, now = number(amount), number(used.get(key)) or 0.0
            if "nvidia.com/" in key and most is not None and now >= most:
                yield seen.name(quota), f"{key}: {now:g} of {most:g} used"


# --- On the node ------------------------------------------------------------------------------------------------------


def _runtime_class(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    wanted = (pod.get("spec") or {}).get("runtimeClassName")
    classes = {seen.name(each) for each in evidence.of_kind("RuntimeClass")}
    if not wanted or (not classes and not any(True for _ in evidence.of_kind("Node"))):
        return
    if wanted in classes:
        title = "the RuntimeClass that the pod asks for is there"
        yield _finding("pod-runtime", Layer.RUNTIME, Outcome.PASS, title, pod=pod, saw=str(wanted))
        return
    yield _finding(
        "pod-runtime",
        Layer.RUNTIME,
        Outcome.FAIL,
        "the pod asks for a RuntimeClass that does not exist",
        pod=pod,
        saw=f"runtimeClassName: {wanted}; there are {', '.join(sorted(classes)) or 'none'}",
        cause="with CDI no RuntimeClass is needed, and the operator may not have made one",
        fix=("take runtimeClassName out of the pod, or name one that is there",),
        docs="S04, A109",
    )


_HIDING: Final = frozenset({"none", "void", ""})


def _visible(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    for container in pods.containers(pod):
        env = {
            str(each.get("name")): each.get("value") for each in container.get("env") or () if isinstance(each, Mapping)
        }
        said = env.get("NVIDIA_VISIBLE_DEVICES", "all")
        if not pods.gpu_request(container) or said is None:
            continue
        if str(said) in _HIDING:
            yield _finding(
                "pod-devices",
                Layer.WORKLOAD,
                Outcome.FAIL,
                "the container hides its GPU from itself",
                pod=pod,
                saw=f"{container.get('name')}: NVIDIA_VISIBLE_DEVICES={said}",
                cause="the variable of the pod's specification takes the place of what the device plugin sets",
                fix=("take NVIDIA_VISIBLE_DEVICES out of the pod's specification",),
            )


_CUDA_TAG: Final = re.compile(r"(?:cuda[^:@]*:|cuda[-_]?)v?([0-9]{2})\.([0-9]{1,2})(?![0-9])")
_DRIVER_CUDA: Final = (
    ("nvidia.com/cuda.runtime-version.major", "nvidia.com/cuda.runtime-version.minor"),
    ("nvidia.com/cuda.runtime.major", "nvidia.com/cuda.runtime.minor"),
)


def _cuda(evidence: Evidence, pod: Object) -> Iterator[Finding]:
    labels = evidence.node_labels(seen.node_of(pod)) or {}
    have = next(
        (
            (int(labels[major]), int(labels[minor]))
            for major, minor in _DRIVER_CUDA
            if str(labels.get(major)).isdigit() and str(labels.get(minor)).isdigit()
        ),
        None,
    )
    if have is None:
        return
    for container in pods.containers(pod):
        image = str(container.get("image") or "")
        tag = _CUDA_TAG.search(image)
        if not tag or not pods.gpu_request(container):
            continue
        wants = (int(tag[1]), int(tag[2]))
        said = f"{image}; the driver supports CUDA {have[0]}.{have[1]}"
        if wants[0] > have[0]:
            yield _finding(
                "pod-cuda",
                Layer.WORKLOAD,
                Outcome.FAIL,
                "the image's CUDA is newer than the driver",
                pod=pod,
                saw=said,
                cause="a driver runs programs of its own major release of CUDA and of older ones",
                fix=("use an older image, or a newer driver",),
                docs="S08",
            )
        else:
            title = "the driver supports the image's CUDA"
            yield _finding("pod-cuda", Layer.WORKLOAD, Outcome.PASS, title, pod=pod, saw=said)


_STEPS: Final = (_request, _resource, _scheduling, _quota, _runtime_class, _visible, _cuda)
