"""What operands are granted suffices for the programs in them: a node from bare to validated, all exporters on."""

import asyncio
from typing import Any

from groundplane.api import names
from groundplane.lab import layers, resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE, Lab
from groundplane.lab.demo import data
from groundplane.lab.nodes import GpuSpec, NodeSpec

PATIENCE_S = 90.0
NODE_STATUS = "nvidia-node-status-exporter"


async def test_nothing_is_refused_to_the_programs_of_a_node() -> None:
    policy = data("guide-baseline.yaml")
    policy["spec"]["nodeStatusExporter"] = {**policy["spec"].get("nodeStatusExporter", {}), "enabled": True}
    policy["spec"]["dcgmExporter"]["enablePodLabels"] = True
    policy["spec"]["validator"]["plugin"] = {"env": [{"name": "WITH_WORKLOAD", "value": "true"}]}
    async with Lab([NodeSpec("gpu", (GpuSpec("H100", 2),))], rbac=True) as lab:
        await lab.apply([policy])
        await lab.wait_ready(timeout_s=PATIENCE_S)

        def row() -> layers.NodeRow:
            (only,) = layers.judge(lab.api.list(resources.NODES)["items"], lab.api.list(resources.PODS)["items"])
            return only

        await lab.wait_until(lambda: row().healthy and row().gpus == 2, timeout_s=PATIENCE_S, what="a healthy node")
        pods = {
            pod["metadata"]["labels"]["app"]: pod
            for pod in lab.api.list(resources.PODS, OPERATOR_NAMESPACE)["items"]
            if "app" in (pod["metadata"].get("labels") or {})
        }
        for app in ("nvidia-cuda-validator", "nvidia-device-plugin-validator"):
            assert pods[app]["status"]["phase"] == "Succeeded"
        container = pods["nvidia-device-plugin-validator"]["spec"]["initContainers"][0]
        assert container["resources"]["limits"] == {names.GPU_RESOURCE: "1"}
        wanted = {
            f'gpu_operator_node_{name}_ready{{node="gpu"}} 1.0' for name in ("driver", "toolkit", "cuda", "plugin")
        }
        wanted.add('gpu_operator_node_driver_validation{node="gpu"} 1.0')
        wanted.add('gpu_operator_node_device_plugin_devices_total{node="gpu"} 2.0')
        async with asyncio.timeout(PATIENCE_S):  # it looks every half a minute
            while missing := wanted - set((await figures(lab, pods[NODE_STATUS], 8000)).splitlines()):
                print("not there yet:", missing)
                await asyncio.sleep(0.1)
        exporter = await figures(lab, pods["nvidia-dcgm-exporter"], 9400)
        assert exporter.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2
        refused = [f"{each.verb} {each.resource}" for each in lab.faults.requests if each.code == 403]
        done = {(each.verb, each.resource) for each in lab.faults.requests if each.code in (200, 201)}
    assert refused == []
    assert done >= {("create", "pods"), ("get", "daemonsets"), ("list", "daemonsets")}, "what the validator asks for"


async def figures(lab: Lab, pod: dict[str, Any], port: int) -> str:
    async with lab.client() as client:
        path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod['metadata']['name']}:{port}/proxy/metrics"
        return (await client.raw("GET", path)).decode()
