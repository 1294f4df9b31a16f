"""Which nodes are suspected, what a verdict is told as, and that it is the doctor's own."""

from typing import Any

import msgspec
import pytest

from groundplane.api import names
from groundplane.cluster.views import GpuNodeView, PodView
from groundplane.diagnose import doctor
from groundplane.diagnose.evidence import Event, Evidence
from groundplane.operator.diagnosis import reading
from groundplane.operator.diagnosis.figures import NODES_MOST, Figures
from groundplane.operator.diagnosis.picture import Ill, Picture, judged

GPU = {names.GPU_PRESENT: "true", names.GPU_PRODUCT: "NVIDIA-A100"}
HAS = {"nvidia.com/gpu": "8", "cpu": "64"}


def node(name: str, labels: dict[str, str] | None = None, **status: Any) -> GpuNodeView:
    ready = {"type": "Ready", "status": status.pop("ready", "True")}
    document = {
        "metadata": {"name": name, "labels": GPU if labels is None else labels},
        "spec": {"unschedulable": status.pop("unschedulable", False)},
        "status": {"capacity": HAS, "allocatable": HAS, "conditions": [ready], **status},
    }
    return msgspec.convert(document, GpuNodeView)


@pytest.mark.parametrize(
    ("seen", "suspicious"),
    [
        (node("n"), False),
        (node("n", {}), False),
        (node("n", {}, ready="False"), False),
        (node("n", ready="False"), True),
        (node("n", ready="Unknown"), True),
        (node("n", unschedulable=True), False),
        (node("n", allocatable={"nvidia.com/gpu": "7"}), True),
        (node("n", allocatable={}, capacity={}), True),
        (node("n", {names.GPU_PRESENT: "true"}), True),
        (node("n", {**GPU, names.MIG_CONFIG_STATE: "failed"}), True),
        (node("n", {**GPU, names.UPGRADE_STATE: "upgrade-failed"}), True),
        (node("n", {**GPU, names.UPGRADE_STATE: "upgrade-done"}), False),
        (node("n", {**GPU, f"{names.DEPLOY_PREFIX}dcgm": "paused-for-driver-upgrade"}), True),
        (node("n", {**GPU, f"{names.DEPLOY_PREFIX}dcgm": "true"}), False),
    ],
)
def test_a_node_is_suspected_by_what_it_says(seen: GpuNodeView, suspicious: bool) -> None:
    assert reading.suspected({"n": seen}, [], []) == ({"n"} if suspicious else set())


def warning(name: str, reason: str = "XidError") -> dict[str, Any]:
    return {"involvedObject": {"kind": "Node", "name": name}, "reason": reason, "message": "x"}


def test_a_node_is_suspected_by_its_pods_and_by_warnings_about_it_but_not_by_our_own() -> None:
    nodes = {name: node(name) for name in ("a", "b", "c")} | {"cpu": node("cpu", {})}
    pods = [msgspec.convert({"spec": {"nodeName": each}}, PodView) for each in ("a", "", "gone", "cpu")]
    warnings = [warning("b"), warning("cpu"), warning("gone"), {"involvedObject": None}]
    own = [warning("c", reason) for reason in sorted(names.DIAGNOSIS_REASONS)]
    assert reading.suspected(nodes, pods, [*warnings, *own]) == {"a", "b", "cpu"}


@pytest.mark.parametrize(
    ("states", "stuck"),
    [
        ([""], False),
        (["upgrade-required", "upgrade-done"], False),
        (["upgrade-required", "upgrade-failed"], True),
        (["upgrade-required", "drain-required", "upgrade-failed"], False),
    ],
)
def test_an_upgrade_that_does_not_get_on(states: list[str], stuck: bool) -> None:
    nodes = {str(at): node(str(at), {**GPU, names.UPGRADE_STATE: state}) for at, state in enumerate(states)}
    assert reading.upgrade_stuck(nodes) is stuck


# --- Pictures ---------------------------------------------------------------------------------------------------------


def operand(app: str, place: str, ready: bool, **state: Any) -> dict[str, Any]:
    container = {"name": app, "ready": ready, "restartCount": 0, "state": state or {"running": {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{app}-{place}", "namespace": "gpu-operator", "labels": {"app": app}},
        "spec": {"nodeName": place, "containers": [{"name": app}]},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [container],
        },
    }


def machine(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": GPU},
        "status": {"capacity": HAS, "allocatable": HAS, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_a_picture_is_the_doctors_verdict() -> None:
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    broken = {"waiting": {"reason": "CreateContainerError"}}
    pods = [
        operand("nvidia-dcgm-exporter", "well", ready=True),
        operand("nvidia-dcgm-exporter", "waits", ready=False, **waiting),
        operand("nvidia-device-plugin-daemonset", "fails", ready=False, **broken),
        operand("nvidia-dcgm-exporter", "pulls", ready=False, waiting={"reason": "ImagePullBackOff"}),
    ]
    event = Event(
        message='Failed to pull image "nvcr.io/nvidia/k8s/dcgm-exporter:4": not found',
        reason="Failed",
        type="Warning",
        kind="Pod",
        name="nvidia-dcgm-exporter-pulls",
        namespace="gpu-operator",
    )
    evidence = Evidence(objects=(*map(machine, ("well", "waits", "fails", "pulls")), *pods), events=(event,))
    picture = judged(evidence)
    assert {node: (ill.layer, ill.cause) for node, ill in picture.nodes.items()} == {
        "fails": ("L5", "unmatched"),
        "pulls": ("L8", "P07"),
    }
    assert {node: (ill.layer, ill.cause) for node, ill in picture.waiting.items()} == {"waits": ("L8", "waiting")}
    assert picture.cluster == ()
    (cause,) = doctor.diagnose(evidence).causes
    told = picture.nodes["pulls"]
    assert (told.title, told.fix, told.confirm) == (cause.finding.title, cause.finding.fix[0], cause.finding.confirm)
    assert dict(told.layers)["L8"] is True and dict(told.layers)["L5"] is False
    assert judged(Evidence(objects=(machine("well"), pods[0]))) == Picture()


def test_series_are_bounded_and_all_sick_nodes_are_counted() -> None:
    figures = Figures(60.0)
    figures.sick = {
        f"n{number:04d}": Ill("L2", "S15", "critical", "t", layers=(("L2", True),)) for number in range(900)
    }
    figures.cluster = (Ill("L9", "S55", "critical", "features"),)
    found = {family.name: family.samples for family in figures.collect()}
    assert len(found["groundplane_node_layer_failing"]) == len(found["groundplane_node_cause"]) == NODES_MOST
    (sick,) = found["groundplane_diagnosis_sick_nodes"]
    causes = {each.labels["cause"]: each.value for each in found["groundplane_diagnosis_cause_nodes"]}
    assert sick.value == 900 and causes == {"S15": 900, "S55": 0}
