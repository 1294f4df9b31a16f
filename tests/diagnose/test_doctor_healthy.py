"""Healthy nodes of every kind give the doctor nothing to say, under NVIDIA's own operator too; starting ones wait."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from verify_world import World

from groundplane.diagnose import collect, doctor, tree
from groundplane.diagnose.engine import Verdict
from groundplane.diagnose.findings import Layer, Outcome
from groundplane.diagnose.layers import State
from groundplane.diagnose.survey import Survey


def offer(node: dict[str, Any], resources: dict[str, str], **labels: str) -> None:
    status = node.setdefault("status", {})
    for part in ("capacity", "allocatable"):
        kept = {name: amount for name, amount in status.get(part, {}).items() if not name.startswith("nvidia.com/")}
        status[part] = kept | resources
    node["metadata"]["labels"] |= {f"nvidia.com/{name.replace('__', '.')}": value for name, value in labels.items()}


KINDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "whole GPUs": lambda node: None,
    "NVSwitch system": lambda node: offer(
        node, {"nvidia.com/gpu": "8"}, gpu__product="NVIDIA-H100-80GB-HBM3", gpu__count="8", gpu__machine="DGXH100"
    ),
    "time-slicing": lambda node: offer(
        node, {"nvidia.com/gpu": "32"}, gpu__replicas="4", **{"gpu__sharing-strategy": "time-slicing"}
    ),
    "time-slicing, renamed": lambda node: offer(
        node,
        {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "32"},
        gpu__replicas="4",
        **{"gpu__sharing-strategy": "time-slicing"},
    ),
    "MPS": lambda node: offer(
        node, {"nvidia.com/gpu": "16"}, gpu__replicas="2", mps__capable="true", **{"gpu__sharing-strategy": "mps"}
    ),
    "MIG single": lambda node: offer(
        node,
        {"nvidia.com/gpu": "56"},
        mig__capable="true",
        mig__strategy="single",
        mig__config="all-1g.10gb",
        mig__config__state="success",
    ),
    "MIG mixed": lambda node: offer(
        node,
        {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "14", "nvidia.com/mig-3g.40gb": "4"},
        mig__capable="true",
        mig__strategy="mixed",
        mig__config="all-balanced",
        mig__config__state="success",
    ),
    "devices for VMs": lambda node: offer(
        node,
        {"nvidia.com/gpu": "0", "nvidia.com/GH100_H100_SXM5_80GB": "8"},
        gpu__workload__config="vm-passthrough",
    ),
}


def nodes_of(survey: Survey) -> list[dict[str, Any]]:
    return list(survey.of_kind("nodes"))


def judged(survey: Survey) -> Verdict:
    return doctor.diagnose(collect.of_survey(survey))


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_healthy_node_gives_no_finding(kind: str) -> None:
    survey = World().survey()
    KINDS[kind](nodes_of(survey)[0])
    verdict = judged(survey)
    said = [*(each.finding for each in verdict.causes), *verdict.unmatched]
    assert [(each.id, each.title, each.nodes) for each in said] == []
    assert [each.id for each in verdict.notes if each.outcome in (Outcome.FAIL, Outcome.WARN)] == []


def test_what_was_seen_of_a_node_is_told_when_it_breaks() -> None:
    """The table above is no proof if nothing could be found in this world."""
    world = World()
    survey = world.survey()
    pods = [each for each in survey.of_kind("pods") if each["spec"].get("nodeName") == "gpu-1"]
    driver = next(each for each in pods if each["metadata"]["labels"].get("app") == "nvidia-driver-daemonset")
    for status in driver["status"]["containerStatuses"]:
        status |= {"ready": False, "restartCount": 9, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    for each in driver["status"].get("conditions", ()):
        each["status"] = "False" if each["type"] in ("Ready", "ContainersReady") else each["status"]
    verdict = judged(survey)
    found = [*(each.finding for each in verdict.causes), *verdict.unmatched]
    assert [(each.layer.value, each.nodes) for each in found] == [("L2", ("gpu-1",))]


NOW = 1_790_000_000.0


def starting(app: str, age_s: float, restarts: int = 0) -> Survey:
    """A world in which an operand's pod of one node was made some time ago and is not ready."""
    survey = msgspec.structs.replace(World().survey(), at=NOW)
    pod = next(
        each
        for each in survey.of_kind("pods")
        if each["spec"].get("nodeName") == "gpu-1" and each["metadata"]["labels"].get("app") == app
    )
    made = datetime.fromtimestamp(NOW - age_s, UTC)
    pod["metadata"]["creationTimestamp"] = made.strftime("%Y-%m-%dT%H:%M:%SZ")
    pod["status"]["phase"] = "Pending"
    for status in pod["status"]["containerStatuses"]:
        status |= {"ready": False, "restartCount": restarts, "state": {"waiting": {"reason": "ContainerCreating"}}}
    for each in pod["status"].get("conditions", ()):
        each["status"] = "False" if each["type"] in ("Ready", "ContainersReady") else each["status"]
    return survey


@pytest.mark.parametrize("app", ["nvidia-driver-daemonset", "nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter"])
def test_an_operand_that_starts_waits_and_is_no_cause(app: str) -> None:
    verdict = judged(starting(app, age_s=240))
    assert verdict.causes == ()
    assert [(each.id, each.outcome, each.nodes) for each in verdict.unmatched] == [
        ("waiting", Outcome.WARN, ("gpu-1",))
    ]


@pytest.mark.parametrize(
    ("age_s", "restarts", "known", "expected"),
    [
        (1500, 0, True, "waiting"),
        (1500, 1, True, "S02"),
        (3600, 0, True, "S02"),
        (1500, 0, False, "S02"),
    ],
    ids=["its build takes long", "it failed once", "it had its time", "nobody knows for how long"],
)
def test_a_driver_that_had_its_time_or_failed_is_a_cause(
    age_s: float, restarts: int, known: bool, expected: str
) -> None:
    survey = starting("nvidia-driver-daemonset", age_s, restarts)
    verdict = judged(survey if known else msgspec.structs.replace(survey, at=0.0))
    assert [each.id for each in (*(cause.finding for cause in verdict.causes), *verdict.unmatched)] == [expected]


# --- Nodes that come up -----------------------------------------------------------------------------------------------


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(NOW - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_gpu_1(survey: Survey, *apps: str) -> list[dict[str, Any]]:
    """The pods of operands on a node."""
    on_it = [each for each in survey.of_kind("pods") if each["spec"].get("nodeName") == "gpu-1"]
    return [each for each in on_it if each["metadata"]["labels"].get("app") in apps]


def ready_since(pod: dict[str, Any], seconds: float) -> None:
    for each in pod["status"]["conditions"]:
        each["lastTransitionTime"] = ago(seconds)


def without_labels(survey: Survey) -> None:
    next(each for each in nodes_of(survey) if each["metadata"]["name"] == "gpu-1")["metadata"]["labels"].pop(
        "nvidia.com/gpu.product"
    )


def told(verdict: Verdict) -> list[tuple[str, tuple[str, ...]]]:
    said = [*(each.finding for each in verdict.causes), *verdict.unmatched]
    return [(each.id, each.nodes) for each in said]


@pytest.mark.parametrize(("seconds", "restarts", "expected"), [(30, 0, "waiting"), (30, 1, "S46"), (120, 0, "S46")])
def test_labels_that_discovery_has_not_brought_yet_are_waited_for(seconds: float, restarts: int, expected: str) -> None:
    survey = msgspec.structs.replace(World().survey(), at=NOW)
    without_labels(survey)
    for pod in of_gpu_1(survey, "gpu-feature-discovery"):
        ready_since(pod, seconds)
        pod["status"]["containerStatuses"][0]["restartCount"] = restarts
    assert told(judged(survey)) == [(expected, ("gpu-1",))]


def sandbox_failed(pod: dict[str, Any]) -> dict[str, Any]:
    """The event of a pod whose sandbox the runtime could not make."""
    meta = pod["metadata"]
    about = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta.get("uid")}
    message = 'failed to get sandbox runtime: no runtime for "nvidia" is configured'
    return {"involvedObject": about, "type": "Warning", "message": message, "lastTimestamp": ago(40)}


@pytest.mark.parametrize(("seconds", "expected"), [(30, "waiting"), (600, "S04")])
def test_a_pod_that_is_tried_again_once_the_toolkit_is_ready_waits(seconds: float, expected: str) -> None:
    survey = starting("nvidia-device-plugin-daemonset", age_s=200)
    (plugin,) = of_gpu_1(survey, "nvidia-device-plugin-daemonset")
    for toolkit in of_gpu_1(survey, "nvidia-container-toolkit-daemonset"):
        ready_since(toolkit, seconds)
    plugin["status"]["containerStatuses"] = []
    survey = msgspec.structs.replace(survey, objects={**survey.objects, "events": (sandbox_failed(plugin),)})
    assert told(judged(survey)) == [(expected, ("gpu-1",))]


@pytest.mark.parametrize(("seconds", "expected"), [(30, ["waiting"]), (600, ["S09", "unmatched"])])
def test_a_validator_fails_while_what_it_validates_comes_up(seconds: float, expected: list[str]) -> None:
    survey = starting("nvidia-operator-validator", age_s=200, restarts=2)
    (validator,) = of_gpu_1(survey, "nvidia-operator-validator")
    for toolkit in of_gpu_1(survey, "nvidia-container-toolkit-daemonset"):
        ready_since(toolkit, seconds)
    crashing = {"name": "toolkit-validation", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    validator["status"]["initContainerStatuses"] = [crashing]
    assert [name for name, _ in told(judged(survey))] == expected


@pytest.mark.parametrize(
    ("node_s", "policy_s", "expected"), [(60, 9e6, "waiting"), (9e6, 60, "waiting"), (9e6, 9e6, "S05")]
)
def test_a_node_without_operands_is_waited_for_when_it_or_the_policy_is_new(
    node_s: float, policy_s: float, expected: str
) -> None:
    survey = msgspec.structs.replace(World().survey(), at=NOW)
    node = next(each for each in nodes_of(survey) if each["metadata"]["name"] == "gpu-1")
    offer(node, {"nvidia.com/gpu": "0"})
    node["metadata"]["creationTimestamp"] = ago(node_s)
    for policy in survey.of_kind("clusterpolicies"):
        policy["metadata"]["creationTimestamp"] = ago(policy_s)
    pods = tuple(each for each in survey.of_kind("pods") if each["spec"].get("nodeName") != "gpu-1")
    survey = msgspec.structs.replace(survey, objects={**survey.objects, "pods": pods})
    assert told(judged(survey)) == [(expected, ("gpu-1",))]


def node_ready(survey: Survey, status: str, seconds: float) -> dict[str, Any]:
    """The node gpu-1, whose Ready condition is so since then; what it runs has been there for long."""
    node = next(each for each in nodes_of(survey) if each["metadata"]["name"] == "gpu-1")
    node["status"]["conditions"] = [{"type": "Ready", "status": status, "lastTransitionTime": ago(seconds)}]
    return node


@pytest.mark.parametrize(
    ("seconds", "how", "expected"),
    [
        (120, {"running": {}}, "waiting"),
        (120, {"waiting": {"reason": "CrashLoopBackOff"}}, "S02"),
        (7200, {"running": {}}, "S02"),
    ],
)
def test_a_node_that_was_booted_starts_its_operands_anew(seconds: float, how: dict[str, Any], expected: str) -> None:
    survey = starting("nvidia-driver-daemonset", age_s=9e6, restarts=1)
    node_ready(survey, "True", seconds)
    (driver,) = of_gpu_1(survey, "nvidia-driver-daemonset")
    driver["status"]["containerStatuses"][0]["state"] = how
    assert told(judged(survey))[0] == (expected, ("gpu-1",))


@pytest.mark.parametrize("age_s", [600, 9e6])
def test_a_node_that_is_not_ready_is_told_as_such_and_not_by_its_pods(age_s: float) -> None:
    survey = msgspec.structs.replace(World().survey(), at=NOW)
    node_ready(survey, "Unknown", 120)
    for pod in survey.of_kind("pods"):
        if pod["spec"].get("nodeName") == "gpu-1":
            pod["metadata"]["creationTimestamp"] = ago(age_s)
            for each in pod["status"]["conditions"]:
                each["status"] = "False" if each["type"] in ("Ready", "ContainersReady") else each["status"]
    assert told(judged(survey)) == [("NR01", ("gpu-1",))]


@pytest.mark.parametrize("label", ["nvidia.com/gpu.deploy.operands", "nvidia.com/gpu.deploy.device-plugin"])
def test_a_node_on_which_no_gpu_is_to_be_offered_gives_no_finding(label: str) -> None:
    survey = msgspec.structs.replace(World().survey(), at=NOW)
    node = node_ready(survey, "True", 9e6)
    node["metadata"]["labels"][label] = "false"
    node["status"]["allocatable"]["nvidia.com/gpu"] = "0"  # as the kubelet says until it forgets the resource
    gone = of_gpu_1(survey, "nvidia-device-plugin-daemonset")
    pods = tuple(each for each in survey.of_kind("pods") if each not in gone)
    survey = msgspec.structs.replace(survey, objects={**survey.objects, "pods": pods})
    assert collect.sick_nodes(survey) == []
    assert told(judged(survey)) == []


def test_a_layer_whose_operand_starts_is_told_as_such() -> None:
    young = collect.of_survey(starting("nvidia-driver-daemonset", age_s=240))
    said = tree.lines(doctor.diagnose(young), young)
    assert said[0] == "Nothing is known to fail, and not all is ready: 2 GPU nodes, 1 not well"
    assert "Not ready yet" in said and "Failures that no signature accounts for" not in said
    assert any(line.strip().startswith("gpu-1") and "L2 wait  L3 -" in line for line in said)
    old = collect.of_survey(starting("nvidia-dcgm-exporter", age_s=3600))
    said = tree.lines(doctor.diagnose(old), old)
    assert any(line.strip().startswith("gpu-1") and "L8 FAIL" in line for line in said)


@pytest.mark.parametrize("young", [True, False])
def test_labels_that_discovery_has_not_written_yet_are_waited_for(young: bool) -> None:
    survey = starting("nvidia-device-plugin-daemonset", age_s=60 if young else 3600)
    del nodes_of(survey)[0]["metadata"]["labels"]["nvidia.com/gpu.product"]
    assert [cause.finding.id for cause in judged(survey).causes] == ([] if young else ["S46"])


def told_by_the_policy(state: str, message: str) -> Survey:
    world = World()
    world.policy["status"]["state"] = state
    survey = msgspec.structs.replace(world.survey(), at=NOW)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "ClusterPolicy", "name": world.policy["metadata"]["name"]},
        "type": "Warning",
        "reason": "PodSandboxFailed",
        "message": message,
        "lastTimestamp": datetime.fromtimestamp(NOW - 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return msgspec.structs.replace(survey, objects={**survey.objects, "events": (event,)})


SANDBOX = 'the pod cannot be started on 1 node (gpu-2): no runtime for "nvidia" is configured'


@pytest.mark.parametrize(
    ("state", "nodes", "expected"),
    [("notReady", [], ["S04"]), ("ready", [], []), ("notReady", ["gpu-1"], []), ("notReady", ["gpu-2"], ["S04"])],
    ids=["it is not ready", "it is again", "another node is judged", "that node is judged"],
)
def test_what_the_operator_said_counts_while_it_holds(state: str, nodes: list[str], expected: list[str]) -> None:
    survey = told_by_the_policy(state, SANDBOX)
    verdict = doctor.diagnose(collect.of_survey(survey, nodes=nodes))
    assert [cause.finding.id for cause in verdict.causes] == expected


def operator_pod(ready: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpu-operator-x", "namespace": "gpu-operator", "labels": {"app": "gpu-operator"}},
        "spec": {"containers": [{"name": "gpu-operator"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("pods", "policies", "state", "why"),
    [
        ([], True, State.HEALTHY, "it has looked at ClusterPolicy cluster-policy, which is ready"),
        ([operator_pod("True")], True, State.HEALTHY, "it has looked at ClusterPolicy cluster-policy, which is ready"),
        ([operator_pod("False")], True, State.FAILING, "pod gpu-operator-x is not ready"),
        ([operator_pod("True")], False, State.UNKNOWN, ""),
    ],
)
def test_the_operators_layer_is_the_clusters(
    pods: list[dict[str, Any]], policies: bool, state: State, why: str
) -> None:
    survey = World().survey()
    objects = {**survey.objects, "pods": (*survey.of_kind("pods"), *pods)}
    if not policies:
        objects["clusterpolicies"] = ()
    seen = collect.of_survey(msgspec.structs.replace(survey, objects=objects))
    verdict = doctor.diagnose(seen)
    found = doctor.operator(verdict, seen)
    assert (found.layer, found.state, found.why) == (Layer.OPERATOR, state, why)
    assert doctor.report(verdict, seen)["operator"]["state"] == state.value
    last = [line for line in tree.lines(verdict, seen, everything=True) if line.startswith("  cluster  ")]
    assert [line.split()[1] for line in last] == ["L9"]
