"""The lab's small judge of layers, by tables of nodes and pods."""

from typing import Any

import pytest

from groundplane.api import names
from groundplane.lab import layers
from groundplane.lab.layers import State

GPU_LABEL = {names.PCI_GPU_LABELS[0]: "true"}


def node(labels: dict[str, str] | None = None, gpus: int = 0, name: str = "n1") -> dict[str, Any]:
    allocatable = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"metadata": {"name": name, "labels": labels or {}}, "status": {"allocatable": allocatable}}


def pod(app: str, *, ready: bool = True, waiting: str | None = None, on: str = "n1") -> dict[str, Any]:
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"state": {"waiting": {"reason": waiting}} if waiting else {"running": {}}}],
    }
    return {"metadata": {"name": app, "labels": {"app": app}}, "spec": {"nodeName": on}, "status": status}


def only(labels: dict[str, str], pods: list[dict[str, Any]], gpus: int = 0) -> layers.NodeRow:
    (row,) = layers.judge([node(GPU_LABEL | labels, gpus)], pods)
    return row


def test_a_node_without_a_gpu_has_no_layers() -> None:
    (row,) = layers.judge([node()], [])
    assert set(row.layers.values()) == {State.ABSENT}
    assert not row.has_gpu
    assert row.healthy


@pytest.mark.parametrize("key", names.PCI_GPU_LABELS)
def test_any_of_the_three_pci_labels_makes_a_gpu_node(key: str) -> None:
    (row,) = layers.judge([node({key: "true"})], [])
    assert row.has_gpu
    assert not row.healthy


@pytest.mark.parametrize(
    ("labels", "pods", "expected"),
    [
        ({}, [pod("nvidia-driver-daemonset")], State.WAITING),
        ({names.DEPLOY_DRIVER: "true"}, [], State.WAITING),
        ({names.DEPLOY_DRIVER: "true"}, [pod("nvidia-driver-daemonset", ready=False)], State.WAITING),
        ({names.DEPLOY_DRIVER: "true"}, [pod("nvidia-driver-daemonset")], State.HEALTHY),
        ({names.DEPLOY_DRIVER: "true"}, [pod("nvidia-driver-daemonset", waiting="CrashLoopBackOff")], State.FAILED),
        ({names.DEPLOY_DRIVER: "true"}, [pod("nvidia-driver-daemonset", waiting="ImagePullBackOff")], State.FAILED),
        ({names.DEPLOY_DRIVER: "true"}, [pod("nvidia-driver-daemonset", on="n2")], State.WAITING),
        ({names.DEPLOY_DRIVER: "pre-installed"}, [], State.HEALTHY),
    ],
)
def test_driver_layer(labels: dict[str, str], pods: list[dict[str, Any]], expected: State) -> None:
    assert only(labels, pods).layers["driver"] is expected


@pytest.mark.parametrize("key", [names.DEPLOY_OPERANDS, names.DEPLOY_TOOLKIT])
def test_what_a_person_keeps_off_a_node_is_not_waited_for(key: str) -> None:
    row = only({key: "false", names.GPU_PRODUCT: "left over"}, [])
    assert row.layers["hardware"] is State.HEALTHY
    assert row.layers["runtime"] is State.ABSENT
    others = {state for layer, state in row.layers.items() if layer not in ("hardware", "runtime")}
    assert (others == {State.ABSENT}) is (key == names.DEPLOY_OPERANDS)


@pytest.mark.parametrize(("gpus", "expected"), [(0, State.WAITING), (8, State.HEALTHY)])
def test_the_plugin_layer_needs_gpus_on_offer(gpus: int, expected: State) -> None:
    row = only({names.DEPLOY_DEVICE_PLUGIN: "true"}, [pod("nvidia-device-plugin-daemonset")], gpus)
    assert row.layers["device plugin"] is expected
    assert row.gpus == gpus


def test_the_labels_layer_is_the_product_label() -> None:
    assert only({}, []).layers["labels"] is State.WAITING
    row = only({names.GPU_PRODUCT: "NVIDIA-L40S"}, [])
    assert row.layers["labels"] is State.HEALTHY
    assert row.product == "NVIDIA-L40S"


def test_rows_are_ordered_by_name_and_keep_pods_apart() -> None:
    labels = GPU_LABEL | {names.DEPLOY_TOOLKIT: "true"}
    rows = layers.judge(
        [node(labels, name="b"), node(labels, name="a")], [pod("nvidia-container-toolkit-daemonset", on="b")]
    )
    assert [row.name for row in rows] == ["a", "b"]
    assert [row.layers["runtime"] for row in rows] == [State.WAITING, State.HEALTHY]


@pytest.mark.parametrize(("layer", "component"), list(layers.COMPONENTS.items()))
def test_a_layer_that_the_active_policy_switches_off_is_not_waited_for(layer: str, component: str) -> None:
    ignored = {"spec": {}, "status": {"state": "ignored"}}
    off = {"spec": {component: {"enabled": False}}, "status": {"state": "ready"}}
    (row,) = layers.judge([node(GPU_LABEL)], [], [ignored, off])
    assert row.layers[layer] is State.ABSENT
    assert row.layers["validated"] is State.WAITING
    (row,) = layers.judge([node(GPU_LABEL)], [], [{"spec": {component: {"enabled": True}}}])
    assert row.layers[layer] is State.WAITING


def test_a_host_driver_counts_although_the_component_is_off() -> None:
    policy = {"spec": {"driver": {"enabled": False}}}
    (row,) = layers.judge([node(GPU_LABEL | {names.DEPLOY_DRIVER: "pre-installed"})], [], [policy])
    assert row.layers["driver"] is State.HEALTHY
