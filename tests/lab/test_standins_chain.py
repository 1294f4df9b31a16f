"""The whole stack on simulated nodes: what the operator renders, run by kubelets, from bare nodes to a CUDA check."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.kubelet_bench import Bench, bench

from groundplane.api import codec, names
from groundplane.lab import nodes, resources
from groundplane.lab.controllers import Controllers
from groundplane.lab.scheduler import Scheduler
from groundplane.operands import facts, stack

POLICIES = Path(__file__).parents[1] / "data" / "clusterpolicy"
NS = "gpu-operator"
GPU_LABELS = {
    names.GPU_PRESENT: "true",
    names.DEPLOY_DRIVER: "true",
    names.DEPLOY_TOOLKIT: "true",
    names.DEPLOY_DEVICE_PLUGIN: "true",
    names.DEPLOY_GFD: "true",
    names.DEPLOY_DCGM_EXPORTER: "true",
    names.DEPLOY_OPERATOR_VALIDATOR: "true",
    names.DEPLOY_MIG_MANAGER: "true",
}


def rendered(variant: str) -> list[dict[str, Any]]:
    loaded = codec.load_cluster_policy(yaml.safe_load((POLICIES / f"26.7.0-{variant}.yaml").read_text()))
    node = facts.GpuNode(name="n1", kernel="6.8.0-60-generic", os_id="ubuntu", os_version="24.04")
    owner = facts.Owner(name="cluster-policy", uid="00000000-0000-0000-0000-000000000001")
    found = stack.render(loaded.policy.spec, facts.ClusterFacts(namespace=NS, nodes=(node,), owner=owner))
    assert not [state.error for state in found if state.error]
    return [dict(document) for state in found if state.enabled for document in state.objects]


def install(b: Bench, documents: list[dict[str, Any]], without: str = "") -> None:
    b.namespace(NS)
    b.others += [
        asyncio.create_task(Controllers(b.api, b.clock).run()),
        asyncio.create_task(Scheduler(b.api, b.clock).run()),
    ]
    for document in documents:
        meta = document["metadata"]
        meta.pop("ownerReferences", None)
        if without and meta["name"] == without and document["kind"] == "DaemonSet":
            continue
        resource = b.api.of_kind(document["kind"], document["apiVersion"])
        b.api.create(resource, document, meta.get("namespace"))


def cuda_pod(b: Bench, name: str = "check", node: str = "n1") -> None:
    spec = {"name": "check", "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"}
    b.pod(name, {**spec, "resources": {"limits": {names.GPU_RESOURCE: "1"}}}, node=node, restartPolicy="Never")


def allocatable(b: Bench, node: str = "n1") -> int:
    status = b.kubelets[node].node_document().get("status", {})
    return int(status.get("allocatable", {}).get(names.GPU_RESOURCE, 0))


def pods_of(b: Bench, app: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = b.api.list(resources.PODS, NS, labels=f"app={app}")["items"]
    return items


def all_ready(b: Bench, app: str) -> bool:
    pods = pods_of(b, app)
    return bool(pods) and all(
        any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))
        for pod in pods
    )


H100 = (nodes.GpuSpec("H100", 2),)


@pytest.mark.parametrize("variant", ["default", "nri"])
async def test_bare_node_to_cuda_check(variant: str) -> None:
    async with bench(speed=300, served=True) as b:
        kubelet = b.node(gpus=H100, labels=GPU_LABELS)
        install(b, rendered(variant))
        await b.until(lambda: all_ready(b, "nvidia-operator-validator"), "a validated node")
        assert allocatable(b) == 2
        labels = kubelet.node_document()["metadata"]["labels"]
        await b.until(lambda: kubelet.node_document()["metadata"]["labels"].get(names.GPU_PRODUCT), "labels")
        labels = kubelet.node_document()["metadata"]["labels"]
        assert labels[names.GPU_PRODUCT] == "NVIDIA-H100-80GB-HBM3"
        assert labels["nvidia.com/gpu.count"] == "2"
        ready = kubelet.host.root.read_text("/run/nvidia/validations/driver-ready").splitlines()
        assert ready[0] == "IS_HOST_DRIVER=false"
        cuda_pod(b)
        await b.until(lambda: b.status("check").get("phase") == "Succeeded", "the CUDA check")
        assert b.log("check").count("sums are right") == 1
        assert b.log("check").endswith("Test PASSED\nDone\n")
        await b.until(lambda: all_ready(b, "nvidia-dcgm-exporter"), "telemetry")
        exporter = pods_of(b, "nvidia-dcgm-exporter")[0]["metadata"]["name"]
        status, text = await kubelet.http_get(NS, exporter, 9400, "/metrics")
        assert status == 200
        for gpu in kubelet.host.gpus:
            assert f'UUID="{gpu.uuid}"' in text


async def test_host_driver_is_taken_over() -> None:
    async with bench(speed=300, served=True) as b:
        kubelet = b.node(gpus=H100, labels=GPU_LABELS, host_driver="580.126.20")
        install(b, rendered("default"))
        await b.until(lambda: all_ready(b, "nvidia-operator-validator"), "a validated node")
        await b.until(
            lambda: kubelet.node_document()["metadata"]["labels"][names.DEPLOY_DRIVER] == "pre-installed", "the label"
        )
        await b.until(lambda: not pods_of(b, "nvidia-driver-daemonset"), "no driver pod")
        ready = kubelet.host.root.read_text("/run/nvidia/validations/driver-ready").splitlines()
        assert ready[0] == "IS_HOST_DRIVER=true"


@pytest.mark.parametrize(
    ("missing", "waits"),
    [
        ("nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset"),
        ("nvidia-container-toolkit-daemonset", "nvidia-operator-validator"),
        ("nvidia-device-plugin-daemonset", "nvidia-operator-validator"),
    ],
)
async def test_a_missing_layer_holds_back_the_upper_ones(missing: str, waits: str) -> None:
    async with bench(speed=300, served=True) as b:
        b.node(gpus=H100, labels=GPU_LABELS)
        install(b, rendered("default"), without=missing)
        await b.until(lambda: pods_of(b, waits), "the waiting pod")
        if missing != "nvidia-driver-daemonset":
            await b.until(lambda: all_ready(b, "nvidia-driver-daemonset"), "the driver")
        await b.clock.sleep(300)
        assert not all_ready(b, waits)
        assert not all_ready(b, "nvidia-operator-validator")
        cuda_pod(b)
        await b.until(lambda: b.status("check").get("phase") == "Failed", "the rejected pod")
        assert b.status("check")["reason"] == "UnexpectedAdmissionError"


async def test_plugin_end_and_kubelet_restart() -> None:
    async with bench(speed=300, served=True) as b:
        kubelet = b.node(gpus=H100, labels=GPU_LABELS)
        install(b, rendered("default"))
        await b.until(lambda: all_ready(b, "nvidia-operator-validator") and allocatable(b) == 2, "a validated node")
        cuda = {"name": "main", "image": "cuda", "command": ["sh", "-c", "vectorAdd; sleep infinity"]}
        limits = {"resources": {"limits": {names.GPU_RESOURCE: "2"}}}
        b.pod("holder", {**cuda, **limits})
        await b.until(lambda: b.ready("holder"), "the holder")
        await b.stop()
        b.start()
        await b.until(lambda: b.ready("holder") and allocatable(b) == 2, "the plugin to be back")
        cuda_pod(b, "second")
        await b.until(lambda: b.status("second").get("phase") == "Failed", "no GPU left")
        assert "Requested: 1, Available: 0" in b.status("second")["message"]
        label = {"metadata": {"labels": {names.DEPLOY_DEVICE_PLUGIN: "false"}}}
        b.api.patch(resources.NODES, "n1", label, type="merge")
        await b.until(lambda: allocatable(b) == 0, "the plugin to go")
        assert kubelet.node_document()["status"]["capacity"][names.GPU_RESOURCE] in ("2", "0")
