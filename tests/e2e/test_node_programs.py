"""The shipped device plugin, GPU features and config manager under the operator, on the lab's nodes: what pods get.

contracts/device-plugin-gfd.md; the sections are named at the tests. The same on real nodes: tests/real.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc.aio
import pytest
from podresources import by_pod

from groundplane.api import names
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE as NS
from groundplane.lab.cluster import Lab, data
from groundplane.lab.nodes import GpuSpec, NodeSpec
from groundplane.node import kubeletapi
from groundplane.node.kubeletapi.stubs import podresources_pb2 as wire
from groundplane.node.kubeletapi.stubs import podresources_pb2_grpc as rpc

PATIENCE_S = 60.0
NODE = "gpu-1"
PLUGIN = "nvidia-device-plugin-daemonset"
Document = dict[str, Any]


class Stack:
    """A lab whose one node has the whole stack."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.kubelet = lab._pool[NODE]
        self.machine = self.kubelet.host.machine
        self.uuids = [gpu.uuid for gpu in self.kubelet.host.gpus]

    async def until(self, what: str, done: Any) -> None:
        await self.lab.wait_until(done, timeout_s=PATIENCE_S, what=what)

    def offered(self, key: str = "allocatable") -> dict[str, int]:
        status = self.kubelet.node_document().get("status", {})
        return {name: int(value) for name, value in status.get(key, {}).items() if name.startswith("nvidia.com/")}

    def labels(self) -> dict[str, str]:
        return dict(self.kubelet.node_document()["metadata"]["labels"])

    def edit(self, **spec: Any) -> None:
        policies = self.lab.api.resource("clusterpolicies", group=names.GROUP)
        self.lab.api.patch(policies, "cluster-policy", {"spec": spec}, type="merge")

    def label_node(self, key: str, value: str | None) -> None:
        self.lab.api.patch(resources.NODES, NODE, {"metadata": {"labels": {key: value}}}, type="merge")

    async def pod(self, name: str, limits: Mapping[str, int], script: str) -> str:
        """Run a pod to its end and return its log."""
        container = {"name": "main", "image": "cuda", "command": ["sh", "-c", script]}
        container["resources"] = {"limits": {key: str(count) for key, count in limits.items()}}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}}
        document["spec"] = {"restartPolicy": "Never", "containers": [container]}
        self.lab.api.create(resources.PODS, document, "default")

        def phase() -> str:
            found = self.lab.api.get(resources.PODS, name, "default")
            return str(found.get("status", {}).get("phase", ""))

        await self.until(f"pod {name} to end", lambda: phase() in ("Succeeded", "Failed"))
        found = self.lab.api.get(resources.PODS, name, "default")
        assert phase() == "Succeeded", found["status"].get("message", found["status"])
        return self.kubelet.process("default", name, "").log.text

    async def pod_resources(self) -> dict[str, dict[str, list[str]]]:
        """The devices of each pod by resource, as the pod-resources API tells them."""
        path = self.kubelet.host.root.path(kubeletapi.POD_RESOURCES_SOCKET)
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            answer = await rpc.PodResourcesListerStub(channel).List(wire.ListPodResourcesRequest())
        return by_pod(answer)


@contextlib.asynccontextmanager
async def stack(gpus: GpuSpec, offers: Mapping[str, int], **spec: Any) -> AsyncIterator[Stack]:
    """The guide's policy, with changes, on one node, until it is ready and offers these resources."""
    policy = data("guide-baseline.yaml")
    for section, value in spec.items():
        policy["spec"][section] = {**policy["spec"].get(section, {}), **value}
    async with Lab([NodeSpec(NODE, gpus=(gpus,))]) as lab:
        made = Stack(lab)
        await lab.apply([policy])
        await lab.wait_ready(timeout_s=PATIENCE_S)
        await made.until(f"the node to offer {dict(offers)}", lambda: made.offered() == dict(offers))
        yield made


async def test_a_pod_gets_its_gpus_and_the_books_agree() -> None:
    """4.4 with CDI: the runtime injects what the plugin named; 11: pod-resources says the same."""
    async with stack(GpuSpec("H100", 4), {names.GPU_RESOURCE: 4}) as made:
        log = await made.pod("two", {names.GPU_RESOURCE: 2}, "nvidia-smi -L; env")
        given = [uuid for uuid in made.uuids if uuid in log]
        assert len(given) == 2
        assert "NVIDIA_VISIBLE_DEVICES=" + ",".join(given) not in log, "by CDI alone, no variable is added"
        holder = {"name": "main", "image": "cuda", "command": ["sleep", "infinity"]}
        holder["resources"] = {"limits": {names.GPU_RESOURCE: "3"}}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "holder", "namespace": "default"}}
        made.lab.api.create(resources.PODS, {**document, "spec": {"containers": [holder]}}, "default")
        await made.until(
            "the holder to run",
            lambda: made.lab.api.get(resources.PODS, "holder", "default").get("status", {}).get("phase") == "Running",
        )
        held = sorted((await made.pod_resources())["holder"][names.GPU_RESOURCE])
        assert len(set(held)) == 3 and set(held) <= set(made.uuids)
        seen = bytearray()
        await made.kubelet.exec("default", "holder", "", ["nvidia-smi", "-L"], None, seen.extend, seen.extend)
        assert sorted(uuid for uuid in made.uuids if uuid in seen.decode()) == held


async def test_a_sick_gpu_is_taken_off_the_offer_and_comes_back() -> None:
    """5: an Xid that counts; a default-ignored one does not; recovery when it is asked for, and by a new start."""
    async with stack(GpuSpec("H100", 2), {names.GPU_RESOURCE: 2}) as made:
        made.machine.xid(0, 43)
        made.machine.xid(0, 79)
        await made.until("one GPU less", lambda: made.offered() == {names.GPU_RESOURCE: 1})
        assert made.offered("capacity") == {names.GPU_RESOURCE: 2}
        log = await made.pod("one", {names.GPU_RESOURCE: 1}, "nvidia-smi -L")
        assert made.uuids[1] in log and made.uuids[0] not in log
        made.edit(devicePlugin={"env": [{"name": "DP_HEALTH_RECOVERY_PERIOD", "value": "30s"}]})
        await made.until("a new plugin offers both", lambda: made.offered() == {names.GPU_RESOURCE: 2})
        made.machine.xid(1, 79)
        await made.until("one GPU less", lambda: made.offered() == {names.GPU_RESOURCE: 1})
        await made.until("the GPU has recovered", lambda: made.offered() == {names.GPU_RESOURCE: 2})


SHARED = """
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""
RENAMED = SHARED.replace(
    "    resources:", "    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:"
)


async def test_sharing_is_chosen_by_the_nodes_label() -> None:
    """1.5, 4.3 and 7: a named configuration a node, the label changes it, and the features tell it (8)."""
    plain: Document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "configs", "namespace": NS}}
    configs = {**plain, "data": {"shared": SHARED, "renamed": RENAMED}}
    async with stack(GpuSpec("A100", 2), {names.GPU_RESOURCE: 2}) as made:
        made.lab.api.create(resources.CONFIG_MAPS, configs, NS)
        made.edit(devicePlugin={"config": {"name": "configs", "default": "shared"}})
        await made.until("four times as many", lambda: made.offered() == {names.GPU_RESOURCE: 8})
        await made.until("labels of sharing", lambda: made.labels().get("nvidia.com/gpu.replicas") == "4")
        assert made.labels()[names.GPU_PRODUCT] == "NVIDIA-A100-SXM4-80GB-SHARED"
        assert made.labels()["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
        await made.pod("shares", {names.GPU_RESOURCE: 3}, "nvidia-smi -L")
        made.label_node(names.DEVICE_PLUGIN_CONFIG, "renamed")
        await made.until("the renamed resource", lambda: made.offered().get("nvidia.com/gpu.shared") == 8)
        await made.until(
            "the unshared name's label", lambda: made.labels()[names.GPU_PRODUCT] == "NVIDIA-A100-SXM4-80GB"
        )
        made.label_node(names.DEVICE_PLUGIN_CONFIG, None)
        await made.until("the default again", lambda: made.offered().get(names.GPU_RESOURCE) == 8)


async def test_mig_devices_are_resources_of_their_own() -> None:
    """2.11, 2.12 and 8.1: mixed strategy; a new layout is offered after a restart of the programs."""
    layout = ("1g.10gb", "1g.10gb", "3g.40gb")
    offers = {"nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-3g.40gb": 2}
    kept = {"mig": {"strategy": "mixed"}, "migManager": {"enabled": False}}  # whose default layout would have none
    async with stack(GpuSpec("H100", 2, mig_devices=layout), offers, **kept) as made:
        await made.until("MIG labels", lambda: made.labels().get("nvidia.com/mig-3g.40gb.count") == "2")
        assert made.labels()["nvidia.com/mig-1g.10gb.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
        assert made.labels()["nvidia.com/mig.strategy"] == "mixed"
        await made.pod("slice", {"nvidia.com/mig-1g.10gb": 1}, "nvidia-smi -L")
        event = made.kubelet.host.machine.read()
        (first, *_) = [device for _, device in event.placed() if str(device.profile) == "1g.10gb"]
        made.machine.xid(0, 79, gi=first.gi, ci=first.ci)
        await made.until("one slice less", lambda: made.offered() == {**offers, "nvidia.com/mig-1g.10gb": 3})


@pytest.mark.parametrize("named", [True, False])
async def test_a_wrong_configuration_is_told_and_nothing_is_offered_by_it(named: bool) -> None:
    """1.3, 7: a label that names no configuration; a configuration that is no configuration."""
    plain: Document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "configs", "namespace": NS}}
    async with stack(GpuSpec("T4", 1), {names.GPU_RESOURCE: 1}) as made:
        made.lab.api.create(resources.CONFIG_MAPS, {**plain, "data": {"wrong": "version: v7\n", "right": SHARED}}, NS)
        made.edit(devicePlugin={"config": {"name": "configs", "default": "right"}})
        await made.until("sharing", lambda: made.offered() == {names.GPU_RESOURCE: 4})
        made.label_node(names.DEVICE_PLUGIN_CONFIG, "nowhere" if named else "wrong")
        container, words = ("config-manager", "nowhere") if named else ("nvidia-device-plugin", "unknown version: v7")

        def told() -> bool:
            pods = made.lab.api.list(resources.PODS, NS, labels=f"app={PLUGIN}")["items"]
            logs = [made.kubelet.process(NS, pod["metadata"]["name"], container).log.text for pod in pods]
            return any(words in log for log in logs)

        await made.until("the cause in the log", told)
        made.label_node(names.DEVICE_PLUGIN_CONFIG, "right")
        await made.until("sharing again", lambda: made.offered() == {names.GPU_RESOURCE: 4})


MPS = SHARED.replace("timeSlicing", "mps").replace("replicas: 4", "replicas: 3")


async def test_mps_daemons_come_up_and_clients_reach_them() -> None:
    """6: the daemon's node label, its folders, what a client's container gets; one replica a request (1.5)."""
    plain: Document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "configs", "namespace": NS}}
    async with stack(GpuSpec("A100", 2), {names.GPU_RESOURCE: 2}) as made:
        made.lab.api.create(resources.CONFIG_MAPS, {**plain, "data": {"mps": MPS}}, NS)
        made.edit(devicePlugin={"config": {"name": "configs", "default": "mps"}})
        await made.until("the daemon's label", lambda: made.labels().get("nvidia.com/mps.capable") == "true")
        await made.until("three times as many", lambda: made.offered() == {names.GPU_RESOURCE: 6})
        assert made.kubelet.host.root.exists("/run/nvidia/mps/.ready")
        pipe = "/mps/nvidia.com/gpu/pipe"
        log = await made.pod("client", {names.GPU_RESOURCE: 1}, f"env; ls {pipe} /dev/shm")
        assert f"CUDA_MPS_PIPE_DIRECTORY={pipe}" in log
        assert "nvidia-cuda-mps-control.pid" in log
        with pytest.raises(AssertionError, match="maximum request size for shared resources is 1; found 2"):
            await made.pod("greedy", {names.GPU_RESOURCE: 2}, "true")


async def test_a_mig_layout_by_label_changes_what_is_offered_and_back() -> None:
    """contracts/mig-exporter-validator.md 3.4, 3.5: by the node's label, through the shipped MIG manager."""
    async with stack(GpuSpec("H100", 2), {names.GPU_RESOURCE: 2}, mig={"strategy": "mixed"}) as made:

        def state() -> str:
            return made.labels().get(names.MIG_CONFIG_STATE, "")

        await made.until("the default layout", lambda: state() == "success")
        made.label_node(names.MIG_CONFIG, "all-1g.10gb")
        await made.until("14 slices on offer", lambda: made.offered().get("nvidia.com/mig-1g.10gb") == 14)
        await made.until("success", lambda: state() == "success")
        assert made.offered().get(names.GPU_RESOURCE, 0) == 0
        paused = {key: value for key, value in made.labels().items() if "paused-for-mig-change" in value}
        assert not paused, "what was paused for the change runs again"
        log = await made.pod("slice", {"nvidia.com/mig-1g.10gb": 1}, "cat /usr/lib64/libcuda.so.1")
        assert "simulated" in log
        made.label_node(names.MIG_CONFIG, "no-such-layout")
        await made.until("the refusal", lambda: state() == "failed")
        assert made.offered()["nvidia.com/mig-1g.10gb"] == 14, "nothing was touched"
        made.label_node(names.MIG_CONFIG, "all-disabled")
        await made.until("whole GPUs again", lambda: made.offered().get(names.GPU_RESOURCE) == 2)
        await made.until("success again", lambda: state() == "success")
