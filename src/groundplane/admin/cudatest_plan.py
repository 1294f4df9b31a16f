"""The CUDA test's pods: which node gets one, what it asks for, and what stands in the way before anything is created.

Pure (contracts/admin-workflow.md 7). A pod is bound to its node by affinity, so that scheduler, device plugin and
kubelet are tested too; it asks for the resource that the node really offers, and fits Pod Security's restricted
standard.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from ..api import names
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object, Survey
from .expected import has_gpu, labels_of, name_of
from .plans import Plan, Step
from .verify_view import finding

KINDS: Final = ("nodes", "pods")
"""The kinds of a survey from which a test is planned."""
SAMPLE_IMAGE: Final = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0-ubuntu22.04"
SMI_IMAGE: Final = "nvcr.io/nvidia/cuda:12.8.1-base-ubuntu24.04"
SMI: Final = ("sh", "-c", "nvidia-smi && nvidia-smi -L")
APP: Final = "groundplane-cuda-test"
RUN_LABEL: Final = "groundplane.dev/cuda-test"
"""On a test's pod: the run that it is of."""
EXPIRES: Final = "groundplane.dev/expires"
"""On a test's pod: when its run is over for certain (Unix seconds of the runner); a later run then deletes it."""
MARGIN_S: Final = 120.0
"""Seconds beyond a pod's time limit after which its run counts as dead."""
MINOR_COMPATIBLE_SINCE: Final = 11
"""First CUDA major version whose programs run on drivers of an older minor version of the same major."""
_CUDA: Final = re.compile(r"cuda[:\-]?(\d+)\.(\d+)")

What = Literal["vectoradd", "nvidia-smi"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is tested, and how."""

    namespace: str = "default"
    image: str = SAMPLE_IMAGE
    smi_image: str = SMI_IMAGE
    smi: bool = True
    """Also run nvidia-smi, and compare what it says with the node's labels."""
    nodes: tuple[str, ...] = ()
    """Only these; all GPU nodes by default."""
    all_gpus: bool = False
    """Ask for all that a node offers, rather than one GPU."""
    pull_secrets: tuple[str, ...] = ()
    parallel: int = 16
    """Nodes at once."""
    timeout_s: float = 300.0
    """Seconds that one pod may take, from its creation to its end."""
    keep: bool = False
    """Leave the pods where they are."""
    run: str = ""
    """Name of the run, part of its pods' names; lower-case letters and digits."""


class NodeTest(msgspec.Struct, frozen=True):
    """One node's test."""

    node: str
    limits: Mapping[str, str]
    taints: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = {}
    number: int = 0


class Planned(msgspec.Struct, frozen=True):
    """The tests, and what is said already: of nodes that cannot be tested, and of images."""

    tests: tuple[NodeTest, ...]
    findings: tuple[Finding, ...]
    plan: Plan


def planned(survey: Survey, options: Options) -> Planned:
    """What a run will do. Raises ValueError for a node that is asked for and not there."""
    nodes = {name_of(node): node for node in survey.of_kind("nodes")}
    if unknown := [name for name in options.nodes if name not in nodes]:
        raise ValueError(f"no such node: {', '.join(unknown)}; see kubectl get nodes")
    chosen = [
        node for name, node in nodes.items() if (name in options.nodes if options.nodes else has_gpu(labels_of(node)))
    ]
    tests: list[NodeTest] = []
    found: list[Finding] = []
    if not survey.knows("nodes"):
        found.append(_say("A72", Outcome.UNKNOWN, "nodes could not be read", cause=survey.unread.get("nodes", "")))
    elif not chosen:
        found.append(
            _say(
                "A72",
                Outcome.FAIL,
                "no node has a GPU that is known",
                layer=Layer.OPERATOR,
                fix=("groundplane verify",),
            )
        )
    for number, node in enumerate(chosen):
        held = _held(survey.pods_by_node.get(name_of(node), ()))
        test = _test(node, held, options, number)
        if isinstance(test, Finding):
            found.append(test)
            continue
        tests.append(test)
        found += (said for image in _images(options) if (said := cuda_fits(image, test)) is not None)
    return Planned(tuple(tests), tuple(found), _plan(tests, found, options))


def _say(number: str, outcome: Outcome, title: str, *said: Evidence, **more: Any) -> Finding:
    return finding(number, outcome, title, *said, **more)


def _images(options: Options) -> tuple[str, ...]:
    return (options.image, options.smi_image) if options.smi else (options.image,)


def resources(amounts: Mapping[str, Any]) -> dict[str, int]:
    """NVIDIA's resources of which a node offers some: whole GPUs first, then as they are called."""
    found = {
        name: int(amount)
        for name, amount in amounts.items()
        if name.startswith((names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX)) and str(amount).isdigit() and int(amount)
    }
    return dict(sorted(found.items(), key=lambda each: (not each[0].startswith(names.GPU_RESOURCE), each[0])))


def _held(pods: Iterable[Object]) -> Mapping[str, dict[str, int]]:
    """What pods of a node hold of each resource, by ``namespace/name``."""
    found: dict[str, dict[str, int]] = {}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        for container in (pod.get("spec") or {}).get("containers") or ():
            for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                if name.startswith((names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX)) and str(amount).isdigit():
                    mine = found.setdefault(name, {})
                    pod_name = f"{pod['metadata'].get('namespace')}/{name_of(pod)}"
                    mine[pod_name] = mine.get(pod_name, 0) + int(amount)
    return found


def _test(node: Object, held: Mapping[str, dict[str, int]], options: Options, number: int) -> NodeTest | Finding:
    """A node's test; a finding for one that cannot be tested, with what stands in the way."""
    name = name_of(node)
    offers = resources((node.get("status") or {}).get("allocatable") or {})
    if not offers:
        return _say(
            "A72",
            Outcome.FAIL,
            "a GPU node offers no GPU, so that no test can be scheduled on it",
            Evidence(f"node/{name} allocatable", "no resource of NVIDIA's"),
            node=name,
            layer=Layer.DEVICE_PLUGIN,
            confirm=f"kubectl get node {name} -o jsonpath='{{.status.allocatable}}'",
            fix=("groundplane verify says what stands in the way",),
        )
    free = {each: amount - sum(held.get(each, {}).values()) for each, amount in offers.items()}
    wanted = _wanted(offers, free, labels_of(node), options)
    if short := {each: amount for each, amount in wanted.items() if free[each] < amount}:
        holders = [pod for each in short for pod in held.get(each, {})]
        shown = ", ".join(holders[:5]) + (f" and {len(holders) - 5} more" if len(holders) > 5 else "")
        return _say(
            "A72",
            Outcome.UNKNOWN,
            "not tested: the node's GPUs are in use",
            Evidence(f"node/{name}", "; ".join(f"{each}: {free[each]} of {offers[each]} free" for each in short)),
            node=name,
            cause=f"held by {shown}",
            confirm=f"kubectl describe node {name}",
            fix=("run the test when the pods have ended",),
        )
    taints = tuple((node.get("spec") or {}).get("taints") or ())
    return NodeTest(name, {each: str(amount) for each, amount in wanted.items()}, taints, labels_of(node), number)


def _wanted(
    offers: Mapping[str, int], free: Mapping[str, int], labels: Mapping[str, str], options: Options
) -> dict[str, int]:
    """What the pod asks for: one of what is free, or all; of a shared GPU never more than one, which may be refused."""
    if not options.all_gpus:
        return {next((each for each in offers if free[each] > 0), next(iter(offers))): 1}
    return {each: 1 if _shared(each, labels) else amount for each, amount in offers.items()}


def _shared(resource: str, labels: Mapping[str, str]) -> bool:
    replicas = labels.get(f"{resource.removesuffix('.shared')}.replicas", "1")
    return resource.endswith(".shared") or (replicas.isdigit() and int(replicas) > 1)


def cuda_of(image: str) -> tuple[int, int] | None:
    """The CUDA version that an image's name or tag tells."""
    found = _CUDA.search(image.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None


def cuda_fits(image: str, test: NodeTest) -> Finding | None:
    """A79: whether the driver of a node runs programs of an image's CUDA; None if one of the two is not told."""
    needs = cuda_of(image)
    told = [test.labels.get(f"{names.CUDA_RUNTIME_VERSION}.{part}", "") for part in ("major", "minor")]
    if needs is None or not all(part.isdigit() for part in told):
        return _say("A79", Outcome.SKIP, "the CUDA version of the image or of the driver is not told", node=test.node)
    has = (int(told[0]), int(told[1]))
    said = (
        Evidence("image", f"{image}: CUDA {needs[0]}.{needs[1]}"),
        Evidence(f"node/{test.node} {names.CUDA_RUNTIME_VERSION}", f"{has[0]}.{has[1]}"),
    )
    if needs <= has:
        return _say("A79", Outcome.PASS, "the driver runs programs of the image's CUDA", *said, node=test.node)
    if needs[0] == has[0] >= MINOR_COMPATIBLE_SINCE:
        title = "the image's CUDA is newer than the driver's: it runs by minor-version compatibility"
        return _say("A79", Outcome.PASS, title, *said, node=test.node)
    return _say(
        "A79",
        Outcome.FAIL,
        "the image's CUDA is newer than the driver runs",
        *said,
        node=test.node,
        layer=Layer.DRIVER,
        fix=("use an image of an older CUDA (--image), or upgrade the driver",),
        action=Action.UPGRADE_COMPONENT,
    )


# --- pods -------------------------------------------------------------------------------------------------------------


def pod_name(test: NodeTest, what: What, options: Options) -> str:
    """A pod's name, the same whenever the same run is planned."""
    return f"cuda-test-{options.run}-{test.number}{'-smi' if what == 'nvidia-smi' else ''}"


def manifest(test: NodeTest, what: What, options: Options, now: float | None = None) -> Object:
    """The pod of a node's test."""
    expires = (time.time() if now is None else now) + options.timeout_s + MARGIN_S
    annotations = {} if options.keep else {EXPIRES: str(int(expires))}
    smi = what == "nvidia-smi"
    container: Object = {
        "name": what,
        "image": options.smi_image if smi else options.image,
        "resources": {"limits": dict(test.limits)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if smi:
        container["command"] = list(SMI)
    fields = [{"key": "metadata.name", "operator": "In", "values": [test.node]}]
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": int(options.timeout_s),
        "automountServiceAccountToken": False,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}
            }
        },
        "tolerations": [_toleration(taint) for taint in test.taints],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(test, what, options),
            "namespace": options.namespace,
            "labels": {"app": APP, RUN_LABEL: options.run},
            "annotations": annotations,
        },
        "spec": spec,
    }


def _toleration(taint: Mapping[str, Any]) -> Object:
    return {
        key: value
        for key, value in (("key", taint.get("key")), ("operator", "Exists"), ("effect", taint.get("effect")))
        if value
    }


def _plan(tests: list[NodeTest], found: list[Finding], options: Options) -> Plan:
    pods = len(tests) * (2 if options.smi else 1)
    left = len({finding.node for finding in found if finding.id == "A72" and finding.node})
    steps = [
        Step(
            id="vectoradd",
            title=f"run vectorAdd on {len(tests)} nodes, {options.parallel} at once",
            changes=f"creates {len(tests)} pods in namespace {options.namespace}, each with a GPU of its node",
            undo="the pods are deleted at the end, also after a failure" if not options.keep else "",
        )
    ]
    if options.smi:
        steps.append(Step(id="nvidia-smi", title="run nvidia-smi likewise, where vectorAdd has passed"))
    notes = [f"image {image}" for image in _images(options)]
    notes += [f"{left} nodes are not tested"] if left else []
    return Plan(
        title=f"CUDA test: {pods} pods on {len(tests)} nodes",
        steps=tuple(steps),
        notes=tuple(notes),
        facts={"namespace": options.namespace, "nodes": [{"node": t.node, "limits": dict(t.limits)} for t in tests]},
    )


def left_over(pods: Iterable[Object], run: str, now: float, *, everything: bool = False) -> Iterator[Object]:
    """Pods of earlier runs that are over for certain (``everything``: of any other run, those that were kept too)."""
    for pod in pods:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            continue
        expires = (metadata.get("annotations") or {}).get(EXPIRES, "")
        old = expires.isdigit() and int(expires) < now
        if labels_of(pod).get("app") == APP and labels_of(pod).get(RUN_LABEL) != run and (everything or old):
            yield pod
