"""When causes are looked for, what it costs, and what the policy then says."""

from collections.abc import Callable
from typing import Any

import pytest
from operator_harness import NS, Cluster

from groundplane.api import names

DRIVER = "nvidia-driver-daemonset"
Status = dict[str, Any]

NO_IMAGE: Status = {
    "phase": "Pending",
    "containerStatuses": [
        {
            "name": "nvidia-driver-ctr",
            "image": "nvcr.io/nvidia/driver:1",
            "state": {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}},
        }
    ],
}
CREATING: Status = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
CRASHING: Status = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "nvidia-driver-ctr",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
        }
    ],
}


def stuck(cluster: Cluster, status: Status, name: str = DRIVER) -> None:
    """A DaemonSet whose pods do not become ready, with one pod a node that says why."""

    def unready(obj: dict[str, Any]) -> None:
        obj["status"] = {**obj["status"], "numberUnavailable": 2, "numberAvailable": 0}

    live = cluster.api.get("daemonsets", name, NS)
    assert live is not None
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": live["metadata"]["uid"]}]
    for node in list(cluster.api.all("nodes")):
        labels = {**live["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": "r1"}
        cluster.api.add(
            "pods",
            f"{name}-{node}",
            NS,
            metadata={"labels": labels, "ownerReferences": owner},
            spec={"nodeName": node},
            status=status,
        )
    cluster.api.edit("daemonsets", name, unready, NS)


def heal(cluster: Cluster, name: str = DRIVER) -> None:
    def ready(obj: dict[str, Any]) -> None:
        obj["status"] = {**obj["status"], "numberUnavailable": 0, "numberAvailable": 2}

    for pod in [each for each in cluster.api.all("pods") if each.startswith(name)]:
        cluster.api.edit(
            "pods",
            pod,
            lambda obj: obj.update(status={"phase": "Running", "containerStatuses": [{"ready": True}]}),
            NS,
        )
    cluster.api.edit("daemonsets", name, ready, NS)


def message(cluster: Cluster) -> str:
    return str(cluster.condition().get("message", ""))


def told(cluster: Cluster, reason: str) -> list[dict[str, Any]]:
    return [each for each in cluster.api.all("events").values() if each["reason"] == reason]


async def up(cluster: Cluster) -> None:
    cluster.nodes(2)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    cluster.api.forget_writes()


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (NO_IMAGE, "ImagePullFailed", "image nvcr.io/nvidia/driver:1 cannot be pulled on 2 nodes (gpu-000, gpu-001)"),
        (CRASHING, "ContainerCrashing", "container nvidia-driver-ctr ends with exit code 3 on 2 nodes"),
    ],
)
async def test_the_cause_stands_after_the_states_and_in_an_event(
    cluster: Cluster, status: Status, reason: str, text: str
) -> None:
    await up(cluster)
    stuck(cluster, status)
    await cluster.until(lambda: message(cluster) == "states not ready: [state-driver]")
    assert cluster.api.requests["get", "pods"] == 0, "nothing is looked at before its time"
    await cluster.until(lambda: f"state-driver: {text}" in message(cluster))
    assert message(cluster).startswith("states not ready: [state-driver]; ")
    await cluster.until(lambda: told(cluster, reason))
    assert told(cluster, reason)[0]["type"] == "Warning"
    heal(cluster)
    await cluster.ready()
    cluster.api.forget_writes()
    await cluster.quiet()
    assert cluster.api.requests["get", "pods"] == 0


async def test_it_is_looked_into_ever_more_rarely(cluster: Cluster) -> None:
    await up(cluster)
    stuck(cluster, NO_IMAGE)
    await cluster.until(lambda: cluster.api.requests["get", "pods"] >= 4)
    assert len(told(cluster, "ImagePullFailed")) == 1
    assert told(cluster, "ImagePullFailed")[0]["count"] == 1
    looks = cluster.api.requests["get", "pods"]
    await cluster.until(lambda: cluster.api.requests["get", "pods"] > looks)
    assert cluster.operator is not None


async def test_a_pod_without_a_sandbox_is_explained_by_its_events(cluster: Cluster) -> None:
    await up(cluster)
    cluster.api.add(
        "events", "e", NS, type="Warning", reason="FailedCreatePodSandBox", message='no runtime for "nvidia"'
    )
    stuck(cluster, CREATING)
    said = 'the pod cannot be started (FailedCreatePodSandBox) on 2 nodes (gpu-000, gpu-001): no runtime for "nvidia"'
    await cluster.until(lambda: said in message(cluster))


async def test_without_the_right_to_look_the_states_are_told_all_the_same(cluster: Cluster) -> None:
    await up(cluster)
    refusal = 'User "u" cannot list resource "pods" in API group "" in the namespace "gpu-operator"'
    cluster.api.forbid("get", "pods", refusal)
    stuck(cluster, NO_IMAGE)
    assert cluster.operator is not None
    operator = cluster.operator
    await cluster.until(lambda: operator.metrics.get("missing_permissions") == 1)
    assert message(cluster) == "states not ready: [state-driver]"


def not_ready(message: str) -> Callable[[dict[str, Any]], None]:
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": message}

    def change(obj: dict[str, Any]) -> None:
        obj["status"]["conditions"] = [{"type": "MemoryPressure", "status": "False"}, condition]

    return change


async def test_a_gpu_node_that_stays_not_ready_is_a_condition_of_its_own(cluster: Cluster) -> None:
    await up(cluster)
    cluster.node("cpu", gpu=False)
    why = "container runtime network not ready: NetworkPluginNotReady"
    for name in ("gpu-000", "cpu"):
        cluster.api.edit("nodes", name, not_ready(why))
    await cluster.until(lambda: cluster.condition("GPUNodesNotReady"))
    condition = cluster.condition("GPUNodesNotReady")
    assert (condition["status"], condition["reason"]) == ("True", "NodeNotReady")
    assert condition["message"].endswith(f"gpu-000 (KubeletNotReady: {why})")
    assert cluster.condition("Ready")["status"] == "True", "what runs, runs"
    await cluster.until(lambda: told(cluster, "GPUNodesNotReady"))
    assert cluster.labels("gpu-000")[names.GPU_PRESENT] == "true"
    cluster.api.edit("nodes", "gpu-000", lambda obj: obj["status"].pop("conditions"))
    await cluster.until(lambda: not cluster.condition("GPUNodesNotReady"))


async def test_many_nodes_that_are_not_ready_are_counted(cluster: Cluster) -> None:
    cluster.nodes(7)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    for name in list(cluster.api.all("nodes")):
        cluster.api.edit("nodes", name, not_ready("no network"))
    await cluster.until(lambda: "and 4 more" in cluster.condition("GPUNodesNotReady").get("message", ""))
    for name in list(cluster.api.all("nodes")):
        cluster.api.remove("nodes", name)
    await cluster.until(lambda: not cluster.condition("GPUNodesNotReady"))


async def test_a_driver_on_a_node_that_is_not_ready_is_told_so(cluster: Cluster) -> None:
    await up(cluster)
    for name in ("gpu-000", "gpu-001"):
        cluster.api.edit("nodes", name, not_ready("no network"))
    stuck(cluster, CREATING)
    said = "state-driver: the node is not Ready on 2 nodes (gpu-000, gpu-001): KubeletNotReady: no network"
    await cluster.until(lambda: said in message(cluster))
