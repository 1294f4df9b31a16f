"""The plugin's answers as the kubelet gets them (contracts/device-plugin-gfd.md 4, 5, 6, 12)."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from node.fakeprocess import until

from groundplane.api.release import Release
from groundplane.node.devices.simfile import Links
from groundplane.node.devices.simulated import GpuEntry, Mig
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.plugin import imex
from groundplane.node.process import Completed

GPU = "nvidia.com/gpu"
H100 = "H100-SXM5-80GB"
SHARED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n"
MPS = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"


async def started(node: Any, config: str = "", **options: Any) -> Any:
    """The registered plugin of the only resource."""
    if config:
        node.process.write("/c", config)
        options["CONFIG_FILE"] = "/c"
    if not node.kubelet.registered:
        await node.kubelet.start()
    node.run(**options)
    return await node.kubelet.plugin()


WITH_CDI = {"DEVICE_LIST_STRATEGY": "cdi-cri", "GROUNDPLANE_NULL_DEVICES": "true"}


async def started_with_cdi(node: Any, **options: Any) -> Any:
    """The registered plugin of the only resource, on a machine that has what CDI specs need."""
    node.add_driver()
    return await started(node, **{**WITH_CDI, **options})


# --- ListAndWatch (4.1) and health (5) --------------------------------------------------------------------------------


async def test_4_1_every_stream_gets_every_update(node: Any) -> None:
    plugin = await started(node)
    lists: list[list[dict[str, str]]] = [[], [], []]

    async def follow(into: list[dict[str, str]]) -> None:
        async for answer in plugin.stub.ListAndWatch(wire.Empty()):
            into.append({device.ID: device.health for device in answer.devices})  # noqa: PERF401 - one by one

    followers = [asyncio.create_task(follow(each)) for each in lists]
    one, two = node.uuids
    await until(lambda: all(lists))
    node.machine.xid(0, 79)
    await until(lambda: all(len(each) == 2 for each in lists))
    late: list[dict[str, str]] = []
    followers.append(asyncio.create_task(follow(late)))
    await until(lambda: late)
    node.machine.xid(1, 48)
    await until(lambda: all(len(each) == 3 for each in lists) and len(late) == 2)
    assert lists[0] == lists[1] == lists[2]
    assert lists[0] == [
        {one: "Healthy", two: "Healthy"},
        {one: "Unhealthy", two: "Healthy"},
        {one: "Unhealthy", two: "Unhealthy"},
    ]
    assert late == lists[0][1:]  # a new stream begins with the present health
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)


async def test_4_1_health_changes_while_nobody_listens(node: Any) -> None:
    plugin = await started(node)
    await plugin.close()
    for number in range(5):
        node.machine.xid(number % 2, 79)
    await until(lambda: node.process.stderr.count("is Unhealthy") == 2)
    node.process.send(signal.SIGHUP)
    again = await node.kubelet.plugin(number=2)
    assert again.unhealthy == set()


async def test_5_all_replicas_of_a_failed_gpu_are_unhealthy(node: Any) -> None:
    plugin = await started(node, SHARED)
    assert len(plugin.health) == 6
    node.machine.xid(1, 79)
    await until(lambda: plugin.unhealthy)
    assert plugin.unhealthy == {f"{node.uuids[1]}::{number}" for number in range(3)}


async def test_5_the_mig_device_that_is_hit(node: Any) -> None:
    node.gpus(GpuEntry(H100, mig=Mig(enabled=True, instances=("1g.10gb", "1g.10gb", "2g.20gb"))))
    node.grant_mig_access()
    await node.kubelet.start()
    node.run(MIG_STRATEGY="mixed")
    small = await node.kubelet.plugin("nvidia.com/mig-1g.10gb")
    large = await node.kubelet.plugin("nvidia.com/mig-2g.20gb")
    devices = node.machine.read().inventory.gpus[0].mig_devices
    node.machine.xid(0, 94, gi=devices[1].gi, ci=devices[1].ci)
    hit = {devices[1].uuid}
    await until(lambda: small.unhealthy | large.unhealthy == hit)
    node.machine.xid(0, 79)
    await until(lambda: small.unhealthy | large.unhealthy == {device.uuid for device in devices})


async def test_5_recovery_is_told(node: Any) -> None:
    plugin = await started(node, pace=200, DP_HEALTH_RECOVERY_PERIOD="20s")
    node.machine.xid(0, 79)
    await until(lambda: [len(each) for each in plugin.lists] and len(plugin.lists) == 3)
    assert [sum(each.health == "Unhealthy" for each in told.values()) for told in plugin.lists] == [0, 1, 0]


async def test_a_gpu_that_disappears_is_offered_no_more_but_its_request_is_answered(node: Any) -> None:
    plugin = await started(node, pace=100)
    uuid = node.uuids[0]
    node.machine.lose(0, xid=None)
    answer = await plugin.allocate(uuid)  # unhealthy ids are not refused (4.3)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == uuid
    await until(lambda: plugin.unhealthy == {uuid})


# --- Allocate (4.3) ---------------------------------------------------------------------------------------------------


async def test_4_3_errors_have_status_unknown_and_the_contracts_text(node: Any) -> None:
    plugin = await started(node, SHARED.replace("timeSlicing: {", "timeSlicing: {failRequestsGreaterThanOne: true, "))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.allocate("GPU-none")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    text = 'invalid allocation request for "nvidia.com/gpu": invalid request: '
    assert caught.value.details() == f"{text}unknown device: GPU-none"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.allocate(*(f"{uuid}::0" for uuid in node.uuids))
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == f"{text}maximum request size for shared resources is 1; found 2"


async def test_4_several_containers_in_one_request(node: Any) -> None:
    plugin = await started(node)
    request = wire.AllocateRequest(
        container_requests=[wire.ContainerAllocateRequest(devices_ids=[uuid]) for uuid in node.uuids]
    )
    answer = await plugin.stub.Allocate(request)
    assert [each.envs["NVIDIA_VISIBLE_DEVICES"] for each in answer.container_responses] == node.uuids


async def test_12_15_replicas_of_one_gpu_are_named_once(node: Any) -> None:
    plugin = await started(node, SHARED, PASS_DEVICE_SPECS="true")
    uuid = node.uuids[0]
    answer = await plugin.allocate(f"{uuid}::0", f"{uuid}::2")
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert [device.container_path for device in answer.devices] == ["/dev/nvidia0"]


async def test_4_4_control_nodes_that_are_there(node: Any) -> None:
    node.process.write("/dev/nvidiactl", "")
    plugin = await started(node, PASS_DEVICE_SPECS="true")
    answer = await plugin.allocate(node.uuids[1])
    assert [device.container_path for device in answer.devices] == ["/dev/nvidiactl", "/dev/nvidia1"]


# --- GetPreferredAllocation (4.2) -------------------------------------------------------------------------------------


async def test_4_2_aligned_by_nvlinks(node: Any) -> None:
    node.gpus(*[H100] * 4, nvlinks=(Links((0, 3), 4), Links((1, 2), 2)))
    plugin = await started(node)
    uuids = node.uuids
    assert set(await plugin.prefer(uuids, [], 2)) == {uuids[0], uuids[3]}
    assert set(await plugin.prefer(uuids, [uuids[1]], 2)) == {uuids[1], uuids[2]}
    assert set(await plugin.prefer(uuids[:3], [], 2)) == {uuids[1], uuids[2]}
    assert await plugin.prefer(uuids, [], 0) == []
    assert await plugin.prefer(uuids[:1], [], 2) == []


async def test_4_2_an_unknown_gpu_is_an_error(node: Any) -> None:
    plugin = await started(node)
    with pytest.raises(grpc.aio.AioRpcError, match="unknown device: GPU-none"):
        await plugin.prefer([*node.uuids, "GPU-none"], [], 1)


async def test_4_2_a_topology_that_cannot_be_told_is_an_error(node: Any) -> None:
    plugin = await started(node)
    node.machine.fail_library("ERROR_UNKNOWN")
    with pytest.raises(grpc.aio.AioRpcError, match=r"how the GPUs are connected cannot be told: .*ERROR_UNKNOWN"):
        await plugin.prefer(node.uuids, [], 2)


@pytest.mark.parametrize(("policy", "counts"), [("distributed", {2, 1}), ("packed", {3})])
async def test_4_2_greedy_policies(node: Any, policy: str, counts: set[int]) -> None:
    plugin = await started(node, SHARED, SHARED_DEVICES_ALLOCATION_POLICY=policy)
    chosen = await plugin.prefer(list(plugin.health), [], 3)
    found = [sum(name.startswith(uuid) for name in chosen) for uuid in node.uuids]
    assert {count for count in found if count} == counts


async def test_13_the_older_release_has_no_policy(node: Any) -> None:
    plugin = await started(node, SHARED, SHARED_DEVICES_ALLOCATION_POLICY="packed", release=Release.V26_3)
    chosen = await plugin.prefer(list(plugin.health), [], 2)
    assert len({name.partition("::")[0] for name in chosen}) == 2


async def test_4_2_greedy_for_mig_devices(node: Any) -> None:
    node.gpus(GpuEntry(H100, mig=Mig(enabled=True, instances=("1g.10gb",) * 3)))
    node.grant_mig_access()
    plugin = await started(node, MIG_STRATEGY="single")
    chosen = await plugin.prefer(node.migs, [node.migs[2]], 2)
    assert chosen[0] == node.migs[2]
    assert len(set(chosen)) == 2
    with pytest.raises(grpc.aio.AioRpcError, match="not enough available devices to satisfy allocation"):
        await plugin.prefer(node.migs, [], 4)


# --- MPS (6) ----------------------------------------------------------------------------------------------------------


class Daemon:
    """The control program of an MPS daemon that may be away."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.there = False
        self.asked: list[str] = []

    def __call__(self, _argv: Any, env: Any, stdin: str) -> Completed:
        self.asked.append(f"{env['CUDA_MPS_PIPE_DIRECTORY']} {stdin.strip()}")
        return Completed(0, "50.0\n", "") if self.there else Completed(1, "", "Cannot find MPS control daemon process")

    def run(self, config: str, **options: Any) -> Any:
        self.node.process.write("/c", config)
        task = self.node.run(CONFIG_FILE="/c", MPS_ROOT="/run/nvidia/mps", **options)
        self.node.process.commands["nvidia-cuda-mps-control"] = self
        return task


async def test_6_the_plugin_waits_for_the_daemon(node: Any) -> None:
    await node.kubelet.start()
    daemon = Daemon(node)
    daemon.run(MPS, pace=100)
    await until(lambda: len(daemon.asked) >= 2)
    assert "error waiting for MPS daemon" in node.process.stderr
    assert "/mps/nvidia.com/gpu/pipe" in node.process.stderr
    assert "trying again in 30 s" in node.process.stderr
    assert node.sockets() == []
    daemon.there = True
    plugin = await node.kubelet.plugin()
    assert set(daemon.asked) == {"/mps/nvidia.com/gpu/pipe get_default_active_thread_percentage"}
    answer = await plugin.allocate(f"{node.uuids[0]}::1")
    assert dict(answer.envs) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe",
        "NVIDIA_VISIBLE_DEVICES": node.uuids[0],
    }
    assert [(mount.host_path, mount.container_path) for mount in answer.mounts] == [
        ("/run/nvidia/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe"),
        ("/run/nvidia/mps/shm", "/dev/shm"),
    ]
    with pytest.raises(grpc.aio.AioRpcError, match="maximum request size for shared resources is 1; found 2"):
        await plugin.allocate(*(f"{uuid}::0" for uuid in node.uuids))


async def test_6_a_resource_that_is_not_shared_waits_for_no_daemon(node: Any) -> None:
    await node.kubelet.start()
    daemon = Daemon(node)
    daemon.run(MPS.replace("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"))
    plugin = await node.kubelet.plugin()
    assert daemon.asked == []
    assert dict((await plugin.allocate(node.uuids[0])).envs) == {"NVIDIA_VISIBLE_DEVICES": node.uuids[0]}


async def test_6_mig_devices_are_not_shared_by_mps(node: Any) -> None:
    node.gpus(GpuEntry(H100, mig=Mig(enabled=True, instances=("1g.10gb",))))
    node.grant_mig_access()
    task = Daemon(node).run(MPS, MIG_STRATEGY="single", FAIL_ON_INIT_ERROR="false")
    assert await asyncio.wait_for(task, 20) == 1
    assert "not supported for MIG devices" in node.process.stderr


# --- IMEX (4.6) -------------------------------------------------------------------------------------------------------


@pytest.fixture
def character_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file count as a character device, which not every machine lets a test make."""
    monkeypatch.setattr(imex.stat, "S_ISCHR", lambda _mode: True)


CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"


@pytest.mark.usefixtures("character_devices")
@pytest.mark.parametrize("root", ["", "/driver-root"])
async def test_4_6_a_channel_that_is_there(node: Any, root: str) -> None:
    node.process.write(root + CHANNEL, "")
    plugin = await started(node, IMEX_CHANNEL_IDS="0", IMEX_REQUIRED="true", PASS_DEVICE_SPECS="true")
    answer = await plugin.allocate(node.uuids[0])
    assert answer.envs["NVIDIA_IMEX_CHANNELS"] == "0"
    assert answer.devices[-1].container_path == CHANNEL


async def test_4_6_a_simulated_channel_counts_whatever_it_is(node: Any) -> None:
    node.process.write(CHANNEL, "")
    plugin = await started_with_cdi(node, IMEX_CHANNEL_IDS="0")
    answer = await plugin.allocate(node.uuids[0])
    assert answer.cdi_devices[1].name == "k8s.device-plugin.nvidia.com/imex-channel=0"
    assert "k8s.device-plugin.nvidia.com/imex-channel=0" in names(node)


@pytest.mark.parametrize("there", ["nothing", "file"])
async def test_4_6_a_channel_that_is_missing(node: Any, there: str) -> None:
    if there == "file":
        node.process.write(CHANNEL, "")  # no character device
    plugin = await started(node, IMEX_CHANNEL_IDS="0")
    assert "NVIDIA_IMEX_CHANNELS" not in (await plugin.allocate(node.uuids[0])).envs
    assert "channel0 does not exist" in node.process.stderr


async def test_4_6_a_channel_that_is_missing_has_no_name(node: Any) -> None:
    plugin = await started_with_cdi(node, IMEX_CHANNEL_IDS="0", DEVICE_LIST_STRATEGY="envvar,cdi-cri")
    answer = await plugin.allocate(node.uuids[0])
    assert "NVIDIA_IMEX_CHANNELS" not in answer.envs
    assert len(answer.cdi_devices) == 1
    assert names(node) == sorted(f"k8s.device-plugin.nvidia.com/gpu={uuid}" for uuid in node.uuids)


async def test_4_6_a_required_channel_that_is_missing(node: Any) -> None:
    task = node.run(IMEX_CHANNEL_IDS="0", IMEX_REQUIRED="true", FAIL_ON_INIT_ERROR="false")
    assert await asyncio.wait_for(task, 20) == 1
    assert "requested IMEX channel channel0 does not exist" in node.process.stderr


# --- CDI specs (4.5) --------------------------------------------------------------------------------------------------


def specs(node: Any) -> dict[str, Any]:
    folder: Path = node.process.path("/var/run/cdi")
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*")} if folder.exists() else {}


def names(node: Any) -> list[str]:
    found = [f"{spec['kind']}={device['name']}" for spec in specs(node).values() for device in spec["devices"]]
    return sorted(found)


async def test_4_5_the_names_handed_out_are_those_written(node: Any) -> None:
    plugin = await started_with_cdi(node, DEVICE_LIST_STRATEGY="cdi-annotations,cdi-cri")
    answer = await plugin.allocate(*node.uuids)
    assert sorted(device.name for device in answer.cdi_devices) == names(node)
    assert list(specs(node)) == ["k8s.device-plugin.nvidia.com-gpu.json"]
    assert not answer.envs


async def test_4_5_no_cdi_strategy_writes_nothing(node: Any) -> None:
    await started(node)
    assert specs(node) == {}


async def test_4_5_a_new_cycle_writes_the_specs_anew(node: Any) -> None:
    await started_with_cdi(node)
    before = names(node)
    node.gpus(H100, H100, H100)
    node.add_driver()
    node.process.send(signal.SIGHUP)
    await node.kubelet.plugin(number=2)
    assert len(names(node)) == 3
    assert set(before) < set(names(node))
    node.gpus()
    node.process.send(signal.SIGHUP)
    await until(lambda: "No devices found" in node.process.stderr)
    assert specs(node) == {}  # no device stays on offer that is not there


async def test_4_5_a_spec_that_cannot_be_written_ends_the_program(node: Any) -> None:
    node.process.write("/var/run/cdi", "a file where the folder should be")
    node.add_driver()
    task = node.run(**WITH_CDI, FAIL_ON_INIT_ERROR="false")
    assert await asyncio.wait_for(task, 20) == 1
    assert "the CDI spec cannot be written" in node.process.stderr


async def test_4_5_a_spec_that_cannot_be_made_ends_the_program(node: Any) -> None:
    task = node.run(**WITH_CDI)
    assert await asyncio.wait_for(task, 20) == 1
    assert "the CDI spec cannot be made: failed to determine driver version" in node.process.stderr
    assert specs(node) == {}


async def test_4_5_an_unknown_way_for_libraries_ends_the_program(node: Any) -> None:
    task = node.run(CDI_LIBRARIES="magic")
    assert await asyncio.wait_for(task, 20) == 1
    assert "magic (expected one of hookless, hooks)" in node.process.stderr
    assert "environment variable CDI_LIBRARIES" in node.process.stderr
