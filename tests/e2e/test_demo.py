"""The demo's story, and that the CUDA check fails, naming the layer, when a layer is not there."""

from typing import Any

import pytest

from groundplane.lab import demo, layers, nodes, resources
from groundplane.lab.cluster import Lab

PATIENCE_S = 120.0


def ignore(_snapshot: demo.Snapshot) -> None:
    """Draw nothing."""


async def test_the_story_ends_with_gpus_on_offer_and_a_passed_check_on_every_gpu_node() -> None:
    specs = nodes.parse(demo.data("demo-nodes.yaml"), "demo-nodes.yaml")
    seen: list[demo.Snapshot] = []
    async with Lab(specs) as lab:
        outcome = await demo.run(lab, seen.append, timeout_s=PATIENCE_S)
        driver_pods = {
            pod["spec"]["nodeName"]
            for pod in lab.api.list(resources.PODS, labels="app=nvidia-driver-daemonset")["items"]
        }
    assert outcome.passed
    assert {row.name: row.gpus for row in outcome.rows} == {"cpu-a": 0, "gpu-a": 8, "gpu-b": 8, "gpu-c": 4}
    assert {row.name: row.product for row in outcome.rows if row.has_gpu} == {
        "gpu-a": "NVIDIA-H100-80GB-HBM3",
        "gpu-b": "NVIDIA-H100-80GB-HBM3",
        "gpu-c": "NVIDIA-L40S",
    }
    assert driver_pods == {"gpu-a", "gpu-b"}, "the node with a driver on its host gets no driver container"
    assert set(outcome.layer_seconds) == set(layers.LAYERS)
    assert {check.node for check in outcome.checks} == {"gpu-a", "gpu-b", "gpu-c"}
    assert all("PASSED" in check.log and "GPU-" in check.log for check in outcome.checks)
    assert seen[0].rows != seen[-1].rows


async def test_the_story_does_not_end_well_when_an_image_is_missing() -> None:
    spec = nodes.parse(
        {"nodes": [{"name": "gpu", "gpus": [{"model": "T4"}], "missingImages": ["nvcr.io/nvidia/driver"]}]}, "test"
    )
    last: list[demo.Snapshot] = []
    async with Lab(spec) as lab:
        outcome = await demo.run(lab, last.append, timeout_s=4.0)
    assert not outcome.passed
    assert "from the bottom" in outcome.problem
    assert outcome.ready_seconds is None
    assert outcome.checks == []
    (row,) = last[-1].rows
    assert row.layers["driver"] is layers.State.FAILED
    assert row.layers["device plugin"] is layers.State.WAITING
    assert row.gpus == 0


@pytest.mark.parametrize(
    ("gpus", "host_driver", "layer"),
    [([], None, "hardware"), ([{"model": "T4"}], None, "driver"), ([{"model": "T4"}], "580.126.20", "runtime")],
)
async def test_the_check_names_the_lowest_missing_layer(
    gpus: list[dict[str, Any]], host_driver: str | None, layer: str
) -> None:
    spec = nodes.parse({"nodes": [{"name": "bare", "gpus": gpus, "hostDriver": host_driver}]}, "test")
    pod = demo.cuda_check_pod("bare")
    del pod["spec"]["containers"][0]["resources"]  # no plugin offers a GPU there, so nothing could be asked for
    async with Lab(spec, operator=False) as lab:
        await lab.apply([pod])

        def phase() -> str:
            found = lab.api.get(resources.PODS, "cuda-check-bare", "default")
            return str(found.get("status", {}).get("phase"))

        await lab.wait_until(lambda: phase() in ("Failed", "Succeeded"), timeout_s=PATIENCE_S, what="the check's end")
        async with lab.client() as client:
            log = "".join([line async for line in client.logs("cuda-check-bare", "default")])
        assert phase() == "Failed"
    assert f"layer '{layer}'" in log


async def test_a_runtime_class_of_another_name_reaches_the_gpu_all_the_same() -> None:
    spec = nodes.parse({"nodes": [{"name": "gpu", "gpus": [{"model": "T4"}]}]}, "test")
    policy = demo.data("guide-baseline.yaml")
    policy["spec"]["operator"]["runtimeClass"] = "accelerated"
    async with Lab(spec) as lab:
        await lab.apply([policy])
        await lab.wait_ready(timeout_s=PATIENCE_S)

        def row() -> layers.NodeRow:
            (only,) = layers.judge(lab.api.list(resources.NODES)["items"], lab.api.list(resources.PODS)["items"])
            return only

        await lab.wait_until(lambda: row().healthy and row().gpus == 1, timeout_s=PATIENCE_S, what="a healthy node")
        names = {item["metadata"]["name"] for item in lab.api.list(resources.RUNTIME_CLASSES)["items"]}
    assert names == {"accelerated", "nvidia-cdi", "nvidia-legacy"}
