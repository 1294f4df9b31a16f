"""Why a pod has no GPU: each step fails for its own reason, and for no other."""

from typing import Any

import pytest

from groundplane.diagnose import podwhy
from groundplane.diagnose.evidence import Evidence
from groundplane.diagnose.findings import Finding, Outcome

GPU = "nvidia.com/gpu"
LABELS = {"nvidia.com/gpu.present": "true", "nvidia.com/cuda.runtime.major": "12", "nvidia.com/cuda.runtime.minor": "8"}


def node(name: str = "gpu-1", offers: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    amounts = {GPU: "2"} if offers is None else offers
    meta = {"name": name, "labels": dict(LABELS)}
    return {"kind": "Node", "metadata": meta, "spec": spec, "status": {"allocatable": amounts, "capacity": amounts}}


def pod(
    resources: dict[str, Any] | None = None,
    *,
    name: str = "job",
    on: str = "",
    image: str = "x",
    env: Any = (),
    **spec: Any,
) -> dict[str, Any]:
    asked = {"limits": {GPU: "1"}} if resources is None else resources
    container = {"name": "main", "image": image, "resources": asked, "env": list(env)}
    spec = {"containers": [container], **({"nodeName": on} if on else {}), **spec}
    phase = "Running" if on else "Pending"
    meta = {"name": name, "namespace": "team"}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


def runtime_class(name: str) -> dict[str, Any]:
    return {"kind": "RuntimeClass", "metadata": {"name": name}}


def quota(used: str) -> dict[str, Any]:
    status = {"hard": {f"requests.{GPU}": "2"}, "used": {f"requests.{GPU}": used}}
    return {"kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "team"}, "status": status}


def walk(mine: dict[str, Any], *others: dict[str, Any]) -> list[Finding]:
    evidence = Evidence(objects=(mine, *others))
    return podwhy.walk(evidence, podwhy.find(evidence, "team", "job"))


TAINT = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
        }
    }
}
HIDDEN = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
CASES = {
    "no request": (pod({}), [node()], "the pod asks for no GPU"),
    "a request alone": (pod({"requests": {GPU: "1"}}), [node()], "GPUs are requested, not limited"),
    "a fraction": (pod({"limits": {GPU: "0.5"}}), [node()], "an amount of GPUs is no whole number"),
    "another resource": (
        pod({"limits": {"nvidia.com/mig-1g.5gb": 1}}),
        [node()],
        "no node has the resource that is asked",
    ),
    "too many": (pod({"limits": {GPU: "4"}}), [node()], "no node has so many of the resource"),
    "no plugin": (pod(), [node(offers={})], "no node has the resource that is asked for"),
    "renamed by sharing": (pod(), [node(offers={"nvidia.com/gpu.shared": "8"})], "no node has the resource"),
    "taint": (pod(), [node(taints=TAINT)], "does not tolerate the GPU nodes' taints"),
    "selector": (pod(nodeSelector={"zone": "b"}), [node()], "node selector or affinity fits no node"),
    "affinity": (pod(affinity=AFFINITY), [node()], "node selector or affinity fits no node"),
    "cordoned": (pod(), [node(unschedulable=True)], "nodes with GPUs are cordoned"),
    "in use": (pod(), [node(), pod({"limits": {GPU: "2"}}, name="other", on="gpu-1")], "all GPUs are in use"),
    "quota": (pod(), [node(), quota("2")], "quota of GPUs is used up"),
    "gates": (pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]), [node()], "held back by scheduling gates"),
    "scheduler": (pod(schedulerName="volcano"), [node()], "another scheduler places the pod"),
    "runtime class": (pod(on="gpu-1", runtimeClassName="nvidia"), [node()], "RuntimeClass that does not exist"),
    "hidden": (pod(on="gpu-1", env=HIDDEN), [node()], "hides its GPU"),
    "cuda": (pod(on="gpu-1", image="nvcr.io/nvidia/cuda:13.0.1-base"), [node()], "CUDA is newer than the driver"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_reason_is_told(case: str) -> None:
    mine, others, title = CASES[case]
    bad = [each for each in walk(mine, *others) if each.outcome in (Outcome.FAIL, Outcome.WARN)]
    assert any(title in each.title for each in bad), [each.title for each in bad]
    first = next(each for each in bad if title in each.title)
    assert first.confirm == "kubectl describe pod -n team job"


WELL = {
    "on a node": (pod(on="gpu-1"), [node()]),
    "tolerated": (pod(on="gpu-1", tolerations=[{"key": GPU, "operator": "Exists"}]), [node(taints=TAINT)]),
    "with a RuntimeClass": (pod(on="gpu-1", runtimeClassName="nvidia"), [node(), runtime_class("nvidia")]),
    "older CUDA": (pod(on="gpu-1", image="nvidia/cuda:11.8.0-base"), [node()]),
    "newer minor CUDA": (pod(on="gpu-1", image="nvidia/cuda:12.9.0-base"), [node()]),
    "quota left": (pod(on="gpu-1"), [node(), quota("1")]),
    "visible": (pod(on="gpu-1", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]), [node()]),
}


@pytest.mark.parametrize("case", WELL)
def test_what_is_right_is_not_blamed(case: str) -> None:
    mine, others = WELL[case]
    assert {each.outcome for each in walk(mine, *others)} == {Outcome.PASS}


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": GPU, "value": "present"},
        {"key": GPU, "operator": "Exists", "effect": "NoSchedule"},
    ],
)
def test_tolerations_that_fit(toleration: dict[str, Any]) -> None:
    told = [
        each.title for each in walk(pod(tolerations=[toleration]), node(taints=TAINT)) if each.outcome is Outcome.FAIL
    ]
    assert told == []


@pytest.mark.parametrize(
    "toleration",
    [{"key": GPU}, {"key": "other", "operator": "Exists"}, {"key": GPU, "operator": "Exists", "effect": "NoExecute"}],
)
def test_tolerations_that_do_not(toleration: dict[str, Any]) -> None:
    told = [
        each.title for each in walk(pod(tolerations=[toleration]), node(taints=TAINT)) if each.outcome is Outcome.FAIL
    ]
    assert told == ["the pod does not tolerate the GPU nodes' taints"]


def test_what_the_scheduler_said_is_quoted() -> None:
    mine = pod()
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    mine["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    assert message in [piece.excerpt for each in walk(mine, node()) for piece in each.evidence]


def test_a_pod_that_is_elsewhere_is_named() -> None:
    with pytest.raises(podwhy.PodNotSeenError, match="no pod default/job; one of that name is in team"):
        podwhy.find(Evidence(objects=(pod(),)), "default", "job")


def test_a_quota_that_refuses_the_pod_is_named() -> None:
    with pytest.raises(
        podwhy.PodNotSeenError, match=r"ResourceQuota gpus refuses new pods: requests.nvidia.com/gpu: 2"
    ):
        podwhy.find(Evidence(objects=(quota("2"),)), "team", "job")
