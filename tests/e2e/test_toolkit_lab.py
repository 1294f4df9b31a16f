"""The shipped container toolkit under the operator, on the lab's nodes: each way by which pods come to their GPUs.

contracts/toolkit-cdi.md; the sections are named at the tests. The same on real containerd: tests/real.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from groundplane.api import names
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE as NS
from groundplane.lab.cluster import Lab, data
from groundplane.lab.nodes import GpuSpec, NodeSpec, RuntimeSpec

PATIENCE_S = 60.0
NODE = "gpu-1"
TOOLKIT = "nvidia-container-toolkit-daemonset"
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
CONFIGS = {
    "containerd": "/etc/containerd/config.toml",
    "cri-o": "/etc/crio/config.toml",
    "docker": "/etc/docker/daemon.json",
}


@contextlib.asynccontextmanager
async def stack(runtime: str = "containerd", **spec: Any) -> AsyncIterator[Lab]:
    """The guide's policy, with changes, on one node with this runtime, until every layer is validated."""
    policy = data("guide-baseline.yaml")
    for section, value in spec.items():
        policy["spec"][section] = {**policy["spec"].get(section, {}), **value}
    async with Lab([NodeSpec(NODE, gpus=(GpuSpec("H100", 2),), runtime=RuntimeSpec(runtime))]) as lab:
        await lab.apply([policy])
        await lab.wait_ready(timeout_s=PATIENCE_S)
        await lab.wait_until(lambda: offered(lab) == "2", timeout_s=PATIENCE_S, what="the node's GPUs on offer")
        yield lab


def offered(lab: Lab) -> str:
    status = lab._pool[NODE].node_document().get("status", {})
    return str(status.get("allocatable", {}).get(names.GPU_RESOURCE, "0"))


def host(lab: Lab) -> Any:
    return lab._pool[NODE].host


async def log_of(lab: Lab, name: str, script: str, **spec: Any) -> str:
    """Run a pod with one GPU to its end; its log."""
    container = {"name": "main", "image": "cuda", "command": ["sh", "-c", script]}
    container["resources"] = {"limits": {names.GPU_RESOURCE: "1"}}  # type: ignore[assignment]
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}}
    document["spec"] = {"restartPolicy": "Never", "containers": [container], **spec}
    lab.api.create(resources.PODS, document, "default")

    def phase() -> str:
        return str(lab.api.get(resources.PODS, name, "default").get("status", {}).get("phase", ""))

    await lab.wait_until(lambda: phase() in ("Succeeded", "Failed"), timeout_s=PATIENCE_S, what=f"pod {name} to end")
    text = lab._pool[NODE].process("default", name, "").log.text
    assert phase() == "Succeeded", text
    return str(text)


@pytest.mark.parametrize("runtime", ["containerd", "cri-o", "docker"])
async def test_each_runtime_is_configured_and_gets_its_configuration_back(runtime: str) -> None:
    """5.3 to 5.6: handlers while the toolkit runs; afterwards what a person had."""
    async with stack(runtime) as lab:
        machine = host(lab)
        assert set(machine.runtime_handlers) >= HANDLERS
        assert machine.runtime_handlers["nvidia"] == "/usr/local/nvidia/toolkit/nvidia-container-runtime"
        assert "management.nvidia.com/gpu=all" in machine.cdi_devices()
        log = await log_of(lab, "one", "nvidia-smi -L; cat /usr/lib64/libcuda.so.1")
        assert log.count("UUID: GPU-") == 1
        assert "\nsimulated " in log
        policies = lab.api.resource("clusterpolicies", group=names.GROUP)
        change = {"spec": {"toolkit": {"enabled": False}}}
        lab.api.patch(policies, "cluster-policy", change, type="merge")

        def gone() -> bool:
            return not lab.api.list(resources.PODS, NS, labels=f"app={TOOLKIT}")["items"]

        await lab.wait_until(gone, timeout_s=PATIENCE_S, what="the toolkit to go")
        stay = HANDLERS if runtime == "cri-o" else set()  # 5.4: CRI-O is not restarted
        assert set(machine.runtime_handlers) & HANDLERS == stay
        text = machine.root.read_text(CONFIGS[runtime]) if machine.root.exists(CONFIGS[runtime]) else ""
        assert "nvidia" not in text


async def test_with_nri_nothing_is_configured() -> None:
    """7: annotations lead to devices, over the plugin's socket; the runtime's configuration is left alone."""
    async with stack(cdi={"enabled": True, "nriPluginEnabled": True}) as lab:
        kubelet = lab._pool[NODE]
        assert kubelet.nri.plugins() == ("10-nvidia-toolkit",)
        assert not set(kubelet.host.runtime_handlers) & HANDLERS
        assert not kubelet.host.root.exists("/etc/containerd/conf.d")
        assert "UUID: GPU-" in await log_of(lab, "one", "nvidia-smi -L")
        await lab.wait_until(lambda: bool(kubelet.nri.plugins()), timeout_s=PATIENCE_S, what="the plugin")
        (toolkit,) = lab.api.list(resources.PODS, NS, labels=f"app={TOOLKIT}")["items"]
        lab.api.delete(resources.PODS, toolkit["metadata"]["name"], NS)
        await lab.wait_until(lambda: not kubelet.nri.plugins(), timeout_s=PATIENCE_S, what="the plugin to leave")
        await lab.wait_until(lambda: bool(kubelet.nri.plugins()), timeout_s=PATIENCE_S, what="the next one")


async def test_without_cdi_the_runtime_finds_devices_by_the_environment() -> None:
    """6.1, 6.2: mode jit-cdi, from the spec that the toolkit laid beside the shim's configuration."""
    async with stack(cdi={"enabled": False}) as lab:
        log = await log_of(lab, "one", "nvidia-smi -L; cat /usr/lib64/libcuda.so.1", runtimeClassName="nvidia")
        assert log.count("UUID: GPU-") == 1
        assert "\nsimulated " in log
