"""``groundplane doctor`` on labs: healthy clusters of every kind, a broken node, one that is followed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.admin import nodelook
from groundplane.api import names
from groundplane.lab import driverfaults
from groundplane.lab.cluster import Lab
from groundplane.lab.nodes import GpuSpec, NodeSpec, RuntimeSpec, Taint

POLICIES = Path(__file__).parents[1] / "data" / "clusterpolicy"
PATIENCE_S = 60.0
OPERANDS = {"nvidia-driver-daemonset", "nvidia-dcgm-exporter", "nvidia-operator-validator", "nvidia-mig-manager"}
"""Pods of a node with H100s that is up, among others."""


def policy(variant: str = "default", **more: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((POLICIES / f"26.7.0-{variant}.yaml").read_text())
    document["spec"] |= more
    return document


async def doctor(lab: Lab, folder: Path, *argv: str) -> tuple[int, str]:
    """The command as a process on the lab."""
    environment = {**os.environ, "KUBECONFIG": str(lab.kubeconfig(folder / "kubeconfig"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "groundplane.cli.main", "doctor", *argv),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


def settled(lab: Lab) -> Callable[[], bool]:
    """Whether all is up: the policy is ready, every GPU node labelled and offering, every pod at its goal."""

    def done() -> bool:
        nodes = [lab.api.find(lab.api.resource("nodes"), name) or {} for name in lab.gpu_nodes()]
        offering = all(any(key.startswith("nvidia.com/") for key in node["status"]["allocatable"]) for node in nodes)
        labels = [node["metadata"]["labels"] for node in nodes]
        known = all(names.GPU_PRODUCT in each for each in labels)
        sliced = [node for node in nodes if node["metadata"]["labels"].get(names.MIG_CONFIG) == "all-1g.10gb"]
        known &= all(any(key.startswith(names.MIG_RESOURCE_PREFIX) for key in offers(node)) for node in sliced)
        pods = lab.api.list(lab.api.resource("pods"))["items"]
        return lab.policy_state() == "ready" and offering and known and bool(pods) and all(map(well, pods))

    return done


def offers(node: dict[str, Any]) -> dict[str, str]:
    return {key: amount for key, amount in node["status"]["allocatable"].items() if amount != "0"}


def well(pod: dict[str, Any]) -> bool:
    if pod["status"].get("phase") == "Succeeded":
        return True
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


HEALTHY = {
    "containerd, several models, a CPU node": (
        policy(),
        [
            NodeSpec("a", (GpuSpec("H100", 2),)),
            NodeSpec("b", (GpuSpec("T4"),)),
            NodeSpec("t", (GpuSpec("A30"),), taints=(Taint("nvidia.com/gpu", "NoSchedule"),)),
            NodeSpec("cpu"),
        ],
    ),
    "CRI-O": (policy(), [NodeSpec("a", (GpuSpec("A100"),), runtime=RuntimeSpec("cri-o", "1.33.0"))]),
    "the host's driver": (policy("host-driver"), [NodeSpec("a", (GpuSpec("A100"),), host_driver="580.95.05")]),
    "MIG mixed": (
        policy("mig-mixed"),
        [NodeSpec("a", (GpuSpec("A100", 1),), labels={"nvidia.com/mig.config": "all-1g.10gb"})],
    ),
    "NRI": (policy("nri"), [NodeSpec("a", (GpuSpec("H100"),))]),
}


@pytest.mark.parametrize("kind", HEALTHY)
async def test_a_healthy_cluster_gives_no_finding(kind: str, tmp_path: Path) -> None:
    wanted, nodes = HEALTHY[kind]
    async with Lab(nodes) as lab:
        await lab.apply([wanted])
        await lab.wait_until(settled(lab), timeout_s=PATIENCE_S, what="the stack")
        code, text = await doctor(lab, tmp_path, "-o", "json")
    found = json.loads(text)
    assert (code, found["causes"]) == (0, []), text
    assert [each["title"] for each in found["findings"] if each["outcome"] not in ("pass", "skip")] == []
    assert [node["name"] for node in found["nodes"]] == sorted(spec.name for spec in nodes if spec.gpus)


@pytest.fixture(scope="module")
def broken_specs() -> list[NodeSpec]:
    return [
        NodeSpec("gpu-1", (GpuSpec("H100"),)),
        NodeSpec("gpu-2", (GpuSpec("H100"),), kernel="6.8.0-99-generic"),
        NodeSpec("cpu-1"),
    ]


@pytest.fixture
async def broken(broken_specs: list[NodeSpec]) -> AsyncIterator[Lab]:
    async with Lab(broken_specs) as lab:
        driverfaults.fault("no-kernel-headers").inject(lab.host("gpu-2"))
        await lab.apply([policy()])

        def shows() -> bool:
            pods = lab.api.list(lab.api.resource("pods"), labels="app=nvidia-driver-daemonset")["items"]
            mine = [pod for pod in pods if pod["spec"].get("nodeName") == "gpu-2"]
            statuses = [each for pod in mine for each in pod["status"].get("containerStatuses", [])]
            others = lab.api.find(lab.api.resource("nodes"), "gpu-1") or {}
            return (
                any(each.get("restartCount", 0) > 0 for each in statuses)
                and names.GPU_PRODUCT in others["metadata"]["labels"]
            )

        await lab.wait_until(shows, timeout_s=PATIENCE_S, what="the fault to show")
        yield lab


async def test_the_lowest_layer_of_a_broken_node_is_the_cause(broken: Lab, tmp_path: Path) -> None:
    code, text = await doctor(broken, tmp_path, "-o", "json", "--html", str(tmp_path / "page.html"))
    async with asyncio.timeout(PATIENCE_S):
        while {each["layers"]["L8"]["state"] for each in json.loads(text)["nodes"]} != {"healthy", "not reached"}:
            code, text = await doctor(broken, tmp_path, "-o", "json", "--html", str(tmp_path / "page.html"))
    found = json.loads(text)
    cause = found["causes"][0]
    assert (code, cause["id"], cause["layer"], cause["nodes"]) == (3, "S10", "L1", ["gpu-2"])
    finding = next(each for each in found["findings"] if each["id"] == "S10")
    assert finding["evidence"][0]["source"].startswith("compared with healthy nodes of the pool (gpu-1")
    assert "kernel is 6.8.0-99-generic here, 6.8.0-60-generic there" in finding["evidence"][0]["excerpt"]
    states = {node["name"]: node["layers"] for node in found["nodes"]}
    assert states["gpu-2"]["L0"]["state"] == "healthy" and states["gpu-2"]["L1"]["state"] == "failing"
    assert states["gpu-2"]["L5"]["state"] == "not reached" and states["gpu-1"]["L5"]["state"] == "healthy"
    assert "no headers for the running kernel" in (tmp_path / "page.html").read_text()

    code, text = await doctor(broken, tmp_path)
    lines = text.splitlines()
    assert code == 3 and "\x1b" not in text
    assert next(line for line in lines if line.startswith("CAUSE")).endswith("[S10]")
    assert "| Could not resolve Linux kernel version" in text and "  confirm  apt-cache policy" in text

    code, text = await doctor(broken, tmp_path, "--node", "gpu-1")
    assert code == 0, text
    code, text = await doctor(broken, tmp_path, "--node", "gpu-9")
    assert code == 4 and "there is no node gpu-9" in text

    code, text = await doctor(broken, tmp_path, "--node", "gpu-2")
    assert "--node-pods looks without one" in text and "run groundplane doctor --node-pods" in text
    code, text = await doctor(broken, tmp_path, "--node", "gpu-2", "--node-pods", "--node-image", "groundplane:1", "-a")
    assert code == 3 and "[S10]" in text
    assert "could not be looked at" not in text and "L0 ok  L1 FAIL" in text
    pods = broken.api.list(broken.api.resource("pods"), "gpu-operator")["items"]
    assert not [pod for pod in pods if nodelook.LABEL in (pod["metadata"].get("labels") or {})]

    code, text = await doctor(broken, tmp_path, "--pod", "default/none")
    assert code == 1 and "there is no pod default/none" in text


async def test_a_pod_that_waits_is_explained(broken: Lab, tmp_path: Path) -> None:
    container = {"name": "main", "image": "nvidia/cuda", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job", "namespace": "default"}}
    await broken.apply([{**pod, "spec": {"containers": [container]}}])
    code, text = await doctor(broken, tmp_path, "--pod", "job")
    assert code == 3
    assert "Why has pod default/job no GPU?" in text and "no node has so many of the resource" in text


async def test_a_cluster_is_followed_until_interrupted(broken: Lab, tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(broken.kubeconfig(tmp_path / "kubeconfig"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "groundplane.cli.main", "doctor", "--watch"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _until(process.stdout, "[S10]")
            driverfaults.fault("no-kernel-headers").cure(broken.host("gpu-2"))
            await _until(process.stdout, "Nothing fails: 2 GPU nodes")
            process.send_signal(signal.SIGINT)
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 1  # as click ends what a person interrupts


async def _until(stream: asyncio.StreamReader, text: str) -> None:
    while line := (await stream.readline()).decode():
        if text in line:
            return
    raise AssertionError(f"{text} was never printed")
