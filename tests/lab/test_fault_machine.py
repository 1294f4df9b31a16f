"""What faults change at a simulated machine, and what programs and the kubelet meet then."""

from pathlib import Path

import pytest
from lab.kubelet_bench import bench, container

from groundplane.lab.faultbook import machine
from groundplane.lab.host import K3S_FILE, SimulatedHost
from groundplane.lab.nodes import GpuSpec, NodeSpec
from groundplane.lab.programs import ContainerContext
from groundplane.node.hostroot import HostRoot

VERSION = "595.91.07"
GPUS = (GpuSpec("A100", 2),)
NVIDIA = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\n'


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> SimulatedHost:
    folder: Path = tmp_path_factory.mktemp("h")
    return SimulatedHost(HostRoot(folder), NodeSpec("n1", gpus=GPUS, host_driver=VERSION))


def buses(host: SimulatedHost) -> list[str]:
    return [device["address"] for device in host.pci_devices()]


def test_a_machine_without_its_gpus_has_none_on_its_bus(host: SimulatedHost) -> None:
    before = buses(host)
    machine.off_the_machine(host)
    assert before and not buses(host) and not host.machine.read().cards
    machine.on_the_machine(host)
    assert buses(host) == before and len(host.machine.read().cards) == len(host.gpus)


def test_a_machine_with_k3s_runs_its_containerd(host: SimulatedHost) -> None:
    host.root.write_atomic(machine.RUNTIME_FILE, f"version = 3\n{NVIDIA}")
    host.restart_runtime()
    assert "nvidia" in host.runtime_handlers
    machine.k3s(host)
    assert "nvidia" not in host.runtime_handlers
    host.root.write_atomic(K3S_FILE, f"version = 3\n{NVIDIA}")
    host.restart_runtime()
    assert "nvidia" in host.runtime_handlers
    machine.no_k3s(host)
    assert "nvidia" in host.runtime_handlers


def test_device_rules_stay_where_the_links_are(host: SimulatedHost) -> None:
    host.reload_units()
    assert host.rules_dropped == 0
    machine.drop_rules(host)
    machine.drop_rules(host)
    assert host.rules_dropped == 2
    machine.links(host)
    host.reload_units()
    assert host.rules_dropped == 2


async def test_the_node_says_which_kubelet_it_has() -> None:
    async with bench() as b:
        kubelet = b.node()

        def version() -> str:
            return str(kubelet.node_document().get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))

        await b.until(version, "the node")
        assert "k3s" not in version()
        machine.k3s(kubelet.host)
        await b.until(lambda: version().endswith("+k3s1"), "the other kubelet")


async def test_containers_that_run_lose_their_gpu_and_new_ones_have_it() -> None:
    async with bench() as b:
        host = b.node(gpus=GPUS, host_driver=VERSION).host
        b.pod("plain", container(script="trap 'exit 0' TERM; sleep 1000000 & wait"))
        await b.until(lambda: b.ready("plain"), "a pod")
        process = b.kubelets["n1"].process("default", "plain", "")
        process.container.gpus = host.gpus[:1]
        process.container.driver_injected = True
        assert (await b.exec("plain", "nvidia-smi", "-L"))[0] == 0
        machine.drop_rules(host)
        code, said = await b.exec("plain", "nvidia-smi", "-L")
        assert (code, said) == (255, "Failed to initialize NVML: Unknown Error\n")
        process.container.device_rules = host.rules_dropped
        assert (await b.exec("plain", "nvidia-smi", "-L"))[0] == 0


async def test_a_command_off_the_path_is_not_found() -> None:
    async with bench() as b:
        host = b.node().host
        b.pod(
            "p",
            container(script="sleep 1000000", volumeMounts=[{"name": "host", "mountPath": "/host"}]),
            volumes=[{"name": "host", "hostPath": {"path": "/"}}],
        )
        await b.until(lambda: b.ready("p"), "the pod")
        dump = ("chroot", "/host", "containerd", "config", "dump")
        assert (await b.exec("p", *dump))[0] == 0
        machine.off_path("containerd")(host)
        code, said = await b.exec("p", *dump)
        assert code == 127 and "No such file or directory" in said
        machine.off_path(None)(host)
        assert (await b.exec("p", *dump))[0] == 0


async def test_what_needs_more_memory_than_there_is_is_killed() -> None:
    async def eats(_ctx: ContainerContext) -> int:
        raise MemoryError

    async with bench() as b:
        b.programs.add_image("hungry", ("eat",), {"eat": eats})
        b.node()
        b.pod("p", container() | {"image": "registry.lab/hungry:1"}, restartPolicy="Never")
        await b.until(lambda: b.status("p").get("phase") == "Failed", "the end")
        ended = b.status("p")["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
