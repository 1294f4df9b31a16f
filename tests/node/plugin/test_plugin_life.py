"""The plugin's life, end to end over real sockets (contracts/device-plugin-gfd.md 2.1, 3, 12)."""

import asyncio
import shutil
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest
from node.fakeprocess import until
from node.plugin.fakekubelet import FakeKubelet

from groundplane.api.release import Release
from groundplane.node.devices.simulated import GpuEntry, Mig
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.plugin import server

GPU = "nvidia.com/gpu"
H100 = "H100-SXM5-80GB"
QUICK = 100.0
"""Seconds of the program a real second, where it has to wait for its retry."""


def says(node: Any, text: str) -> Callable[[], bool]:
    return lambda: text in node.process.stderr


async def test_3_registration(node: Any) -> None:
    await node.kubelet.start()
    node.run()
    plugin = await node.kubelet.plugin()
    assert plugin.request.version == "v1beta1"
    assert plugin.request.endpoint == "nvidia-gpu.sock"
    assert plugin.request.resource_name == GPU
    assert plugin.request.options.pre_start_required is False
    assert plugin.request.options.get_preferred_allocation_available is True
    assert plugin.health == dict.fromkeys(node.uuids, "Healthy")
    options = await plugin.stub.GetDevicePluginOptions(wire.Empty())
    assert options == plugin.request.options
    assert await plugin.stub.PreStartContainer(wire.PreStartContainerRequest()) == wire.PreStartContainerResponse()
    assert node.sockets() == ["nvidia-gpu.sock"]
    assert '"migStrategy": "none"' in node.process.stderr  # the effective configuration is logged


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_3_signals_that_end(node: Any, number: signal.Signals) -> None:
    await node.kubelet.start()
    task = node.run()
    plugin = await node.kubelet.plugin()
    node.process.send(number)
    assert await asyncio.wait_for(task, 20) == 0
    assert node.sockets() == []
    await until(lambda: not plugin.connected, "the end of the stream")


async def test_3_the_kubelet_starts_anew(node: Any) -> None:
    await node.kubelet.start()
    node.run()
    await node.kubelet.plugin()
    node.machine.xid(0, 79)
    await node.kubelet.stop()
    await node.kubelet.start()
    plugin = await node.kubelet.plugin(number=2)
    assert plugin.health == dict.fromkeys(node.uuids, "Healthy")  # a new cycle tells health anew (section 5)


async def test_3_a_kubelet_socket_that_vanishes_changes_nothing_until_it_is_back(node: Any) -> None:
    await node.kubelet.start()
    node.run()
    plugin = await node.kubelet.plugin()
    await node.kubelet.vanish()
    assert (await plugin.allocate(node.uuids[0])).envs["NVIDIA_VISIBLE_DEVICES"] == node.uuids[0]
    await node.kubelet.start(clean=False)
    await node.kubelet.plugin(number=2)


async def test_3_the_kubelets_folder_is_made_anew(node: Any) -> None:
    await node.kubelet.start()
    node.run()
    await node.kubelet.plugin()
    await node.kubelet.stop()
    shutil.rmtree(node.plugins)
    node.plugins.mkdir()
    await node.kubelet.start()
    await node.kubelet.plugin(number=2)


async def test_3_the_kubelet_comes_after_the_plugin(node: Any) -> None:
    node.run()
    await until(says(node, "the kubelet's socket"))
    assert "trying again in 30 s" in node.process.stderr
    assert node.sockets() == []  # nobody is served who could not be registered
    await node.kubelet.start()
    await node.kubelet.plugin()


async def test_3_an_own_socket_that_disappears_is_made_again(node: Any) -> None:
    await node.kubelet.start()
    node.run()
    await node.kubelet.plugin()
    (node.plugins / "nvidia-gpu.sock").unlink()
    await node.kubelet.plugin(number=2)
    assert node.sockets() == ["nvidia-gpu.sock"]


async def test_3_sighup_reads_the_configuration_again(node: Any) -> None:
    node.process.write("/config/config.yaml", "version: v1\n")
    await node.kubelet.start()
    node.run(CONFIG_FILE="/config/config.yaml")
    await node.kubelet.plugin()
    node.process.write(
        "/config/config.yaml",
        "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}",
    )
    node.process.send(signal.SIGHUP)
    plugin = await node.kubelet.plugin("nvidia.com/gpu.shared")
    assert plugin.request.endpoint == "nvidia-gpu.shared.sock"
    assert set(plugin.health) == {f"{uuid}::{number}" for uuid in node.uuids for number in (0, 1)}
    assert node.sockets() == ["nvidia-gpu.shared.sock"]


async def test_3_sighup_finds_new_devices(node: Any) -> None:
    node.gpus()
    await node.kubelet.start()
    task = node.run()
    await until(says(node, "No devices found. Waiting indefinitely."))
    assert node.kubelet.registered == []
    assert not task.done()
    node.gpus(H100)
    node.process.send(signal.SIGHUP)
    assert list((await node.kubelet.plugin()).health) == node.uuids


async def test_3_a_refused_registration_is_tried_again(node: Any) -> None:
    node.kubelet.refuse = "not today"
    await node.kubelet.start()
    node.run(pace=QUICK)
    await until(says(node, "not today"))
    node.kubelet.refuse = ""
    await node.kubelet.plugin()
    assert "trying again in 30 s" in node.process.stderr


async def test_3_a_kubelet_that_does_not_answer_is_tried_again(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DIAL_S", 0.2)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(node.kubelet.socket))  # nobody listens: as left behind by a kubelet that was killed
        node.run()
        await until(says(node, "cannot be registered with the kubelet"))
        assert node.sockets() == []
        await node.kubelet.start()
        await node.kubelet.plugin()


@pytest.mark.parametrize("what", ["file", "socket"])
async def test_3_a_stale_socket_is_replaced(node: Any, what: str) -> None:
    await node.kubelet.start()
    stale = node.plugins / "nvidia-gpu.sock"
    if what == "file":
        stale.write_text("stale")
    else:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(stale))
    node.run()
    await node.kubelet.plugin()


async def test_1_2_no_kubelet_socket_means_no_registration(node: Any) -> None:
    await node.kubelet.start()
    node.run(KUBELET_SOCKET="")
    await until(says(node, "serving nvidia.com/gpu"))
    await node.kubelet.stop()
    await node.kubelet.start()
    await until(lambda: node.process.stderr.count("serving nvidia.com/gpu") == 2)  # its own socket was removed
    assert node.kubelet.registered == []


async def test_3_the_plugins_folder_is_fixed_wherever_the_kubelets_socket_is(node: Any) -> None:
    other = FakeKubelet(node.process.path("/k/kubelet.sock"), node.plugins)
    await other.start()
    task = node.run("--kubelet-socket=/k/kubelet.sock")
    await other.plugin()
    assert node.sockets() == ["nvidia-gpu.sock"]
    await other.stop()
    await other.start(clean=False)
    await other.plugin(number=2)
    node.process.send(signal.SIGTERM)
    assert await asyncio.wait_for(task, 20) == 0
    await other.stop()


# --- two instances ----------------------------------------------------------------------------------------------------


async def test_two_instances_do_not_fight(node: Any) -> None:
    await node.kubelet.start()
    first_task = node.run(pace=QUICK)
    first = node.process
    await node.kubelet.plugin()
    second_task = node.run(pace=QUICK)
    await node.kubelet.plugin(number=2)
    await until(lambda: "this one stands by" in first.stderr)
    await until(lambda: first.stderr.count("this one stands by") == 3)  # it looks, and lets the other be
    assert len(node.kubelet.registered) == 2
    second = node.kubelet.registered[1]
    assert second.connected
    first.send(signal.SIGTERM)
    assert await asyncio.wait_for(first_task, 20) == 0
    assert node.sockets() == ["nvidia-gpu.sock"]  # the second's socket is not removed by the first
    assert (await second.allocate(node.uuids[0])).envs["NVIDIA_VISIBLE_DEVICES"] == node.uuids[0]
    assert not second_task.done()


async def test_the_instance_that_stands_by_takes_over_when_the_other_has_gone(node: Any) -> None:
    await node.kubelet.start()
    node.run()
    first = node.process
    await node.kubelet.plugin()
    second_task = node.run()
    await node.kubelet.plugin(number=2)
    await until(lambda: "this one stands by" in first.stderr)
    node.process.send(signal.SIGTERM)
    assert await asyncio.wait_for(second_task, 20) == 0
    await node.kubelet.plugin(number=3)


async def test_the_instance_that_stands_by_notices_one_that_was_killed(node: Any) -> None:
    await node.kubelet.start()
    node.run(pace=QUICK)
    await node.kubelet.plugin()
    taken = node.plugins / "nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        made = node.plugins / "other.sock"
        dead.bind(str(made))
        made.replace(taken)
    await node.kubelet.plugin(number=2)
    assert "this one stands by" in node.process.stderr


# --- errors at start --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("library", "loaded"), [(False, False), (True, False)])
async def test_3_no_driver_with_fail_on_init_error(node: Any, library: bool, loaded: bool) -> None:
    node.library, node.loaded = library, loaded
    assert await asyncio.wait_for(node.run(), 20) == 1
    assert "failed to initialize NVML" in node.process.stderr


async def test_3_no_driver_without_fail_on_init_error_until_it_comes(node: Any) -> None:
    node.loaded = False
    await node.kubelet.start()
    task = node.run(FAIL_ON_INIT_ERROR="false")
    await until(says(node, "waiting indefinitely"))
    assert node.sockets() == []
    node.process.send(signal.SIGHUP)
    await until(lambda: node.process.stderr.count("waiting indefinitely") == 2)
    node.loaded = True
    node.process.send(signal.SIGHUP)
    await node.kubelet.plugin()
    assert not task.done()


async def test_3_a_signal_ends_the_wait_for_a_driver(node: Any) -> None:
    node.loaded = False
    task = node.run("--fail-on-init-error=false")
    await until(says(node, "waiting indefinitely"))
    node.process.send(signal.SIGTERM)
    assert await asyncio.wait_for(task, 20) == 0


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_gpu_that_cannot_be_read_ends_the_program(node: Any, fail: str) -> None:
    node.machine.lose(0, xid=None)
    assert await asyncio.wait_for(node.run(FAIL_ON_INIT_ERROR=fail), 20) == 1
    assert "the GPUs cannot be enumerated" in node.process.stderr
    assert "ERROR_GPU_IS_LOST" in node.process.stderr


INVALID = [
    ({"DEVICE_LIST_STRATEGY": "envvar,nonsense"}, "invalid strategy: nonsense"),
    ({"DEVICE_LIST_STRATEGY": ""}, "invalid strategy: "),
    ({"DEVICE_ID_STRATEGY": "name"}, "invalid device ID strategy: name"),
    ({"DEVICE_DISCOVERY_STRATEGY": "vfio"}, "vfio"),
    ({"MIG_STRATEGY": ""}, "unknown MIG strategy: "),
    ({"FAIL_ON_INIT_ERROR": "yes"}, "FAIL_ON_INIT_ERROR"),
    ({"SHARED_DEVICES_ALLOCATION_POLICY": "spread"}, "spread"),
    ({"IMEX_CHANNEL_IDS": "0,1"}, "invalid IMEX channel IDs [0, 1]"),
    ({"CONFIG_FILE": "/none.yaml"}, "/none.yaml cannot be read"),
    ({"CONFIG_FILE": "/c", "CONFIG": "version: v2"}, "unknown version: v2"),
    ({"CONFIG_FILE": "/c", "CONFIG": "sharing: {timeSlicing: {}}"}, "no resources specified"),
    ({"CONFIG_FILE": "/c", "CONFIG": "a: ["}, "neither YAML nor JSON"),
    (
        {"CONFIG_FILE": "/c", "CONFIG": "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"},
        "using MPS requires --mps-root to be specified",
    ),
    (
        {
            "CONFIG_FILE": "/c",
            "MPS_ROOT": "/run/nvidia/mps",
            "MIG_STRATEGY": "mixed",
            "CONFIG": "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
        },
        "mixed",
    ),
    ({"DP_HEALTH_RECOVERY_PERIOD": "5"}, "DP_HEALTH_RECOVERY_PERIOD"),
]


@pytest.mark.parametrize(("env", "text"), INVALID, ids=[text for _, text in INVALID])
async def test_1_3_start_errors(node: Any, env: dict[str, str], text: str) -> None:
    node.process.write("/c", env.get("CONFIG", ""))
    node.kubelet.refuse = "there must be no registration"
    task = node.run(**{"FAIL_ON_INIT_ERROR": "false", **env})
    assert await asyncio.wait_for(task, 20) == 1
    assert text in node.process.stderr
    assert node.sockets() == []


async def test_1_unknown_keys_are_passed_over(node: Any) -> None:
    node.process.write("/c", "version: v1\nnonsense: {a: 1}\nflags: {plugin: {colour: red}, gfd: {oneshot: true}}\n")
    await node.kubelet.start()
    node.run(CONFIG_FILE="/c")
    await node.kubelet.plugin()


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations", "envvar,cdi-cri"])
@pytest.mark.parametrize("fail", ["true", "false"])
async def test_1_3_cdi_needs_the_library(node: Any, strategy: str, fail: str) -> None:
    node.library = False
    task = node.run(DEVICE_LIST_STRATEGY=strategy, FAIL_ON_INIT_ERROR=fail)
    assert await asyncio.wait_for(task, 20) == 1
    assert "needs NVML: no libnvidia-ml.so.1 below /driver-root" in node.process.stderr


# --- MIG (2.1) --------------------------------------------------------------------------------------------------------


def mig(*instances: str) -> GpuEntry:
    return GpuEntry(H100, mig=Mig(enabled=True, instances=instances))


MIG_STATES: list[tuple[tuple[str | GpuEntry, ...], str, dict[str, int] | str]] = [
    ((H100, H100), "none", {"gpu": 2}),
    ((H100, H100), "single", {"gpu": 2}),
    ((H100, H100), "mixed", {"gpu": 2}),
    ((mig("1g.10gb", "1g.10gb"), mig("1g.10gb")), "none", {"gpu": 2}),
    ((mig("1g.10gb", "1g.10gb"), mig("1g.10gb")), "single", {"gpu": 3}),
    ((mig("1g.10gb", "2g.20gb"), mig("1g.10gb")), "mixed", {"mig-1g.10gb": 2, "mig-2g.20gb": 1}),
    ((mig("1g.10gb+me"),), "mixed", {"mig-1g.10gb.me": 1}),
    ((mig("1g.10gb"), H100), "none", {"gpu": 2}),
    ((mig("1g.10gb"), H100), "single", "all devices on the node must have the same MIG setting"),
    ((mig("1g.10gb"), H100), "mixed", {"gpu": 1, "mig-1g.10gb": 1}),
    ((mig("1g.10gb"), mig()), "none", {"gpu": 2}),
    ((mig("1g.10gb"), mig()), "single", "device 1 has no MIG devices configured"),
    ((mig("1g.10gb"), mig()), "mixed", {"mig-1g.10gb": 1}),
    ((mig("1g.10gb", "2g.20gb"),), "single", "more than one MIG device type present on node"),
    ((mig("1g.10gb", "2g.20gb"),), "none", {"gpu": 1}),
]


@pytest.mark.parametrize(("gpus", "strategy", "expected"), MIG_STATES)
async def test_2_1_mig_strategies(node: Any, gpus: Any, strategy: str, expected: dict[str, int] | str) -> None:
    node.gpus(*gpus)
    node.grant_mig_access()
    await node.kubelet.start()
    task = node.run(MIG_STRATEGY=strategy, FAIL_ON_INIT_ERROR="false")
    if isinstance(expected, str):
        assert await asyncio.wait_for(task, 20) == 1
        assert expected in node.process.stderr
        return
    for name, count in expected.items():
        plugin = await node.kubelet.plugin(f"nvidia.com/{name}")
        assert len(plugin.health) == count
        assert plugin.request.endpoint == f"nvidia-{name}.sock"
    assert len(node.kubelet.registered) == len(expected)


async def test_2_mig_without_the_kernels_grant_ends_the_program(node: Any) -> None:
    node.gpus(mig("1g.10gb"))
    assert await asyncio.wait_for(node.run(MIG_STRATEGY="single"), 20) == 1
    assert "access is missing" in node.process.stderr


async def test_3_one_resource_that_cannot_be_served_starts_the_whole_set_again(node: Any) -> None:
    node.gpus(H100, mig("1g.10gb"))
    node.grant_mig_access()
    await node.kubelet.start()
    (node.plugins / "nvidia-mig-1g.10gb.sock").mkdir()  # no socket can take its place
    node.run(MIG_STRATEGY="mixed", pace=QUICK)
    await until(says(node, "nvidia.com/mig-1g.10gb cannot be served"))
    (node.plugins / "nvidia-mig-1g.10gb.sock").rmdir()
    await node.kubelet.plugin("nvidia.com/mig-1g.10gb")
    await until(lambda: any(plugin.connected for plugin in node.kubelet.of(GPU)))
    assert node.sockets() == ["nvidia-gpu.sock", "nvidia-mig-1g.10gb.sock"]


# --- other machines (2) -----------------------------------------------------------------------------------------------


async def test_2_7_wsl_has_one_device(node: Any) -> None:
    node.process.write("/usr/lib/wsl/lib/libdxcore.so", "")
    await node.kubelet.start()
    node.run(PASS_DEVICE_SPECS="true")
    plugin = await node.kubelet.plugin()
    assert plugin.health == {"all": "Healthy"}
    answer = await plugin.allocate("all")
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert [device.host_path for device in answer.devices] == ["/dev/dxg"]
    assert await plugin.prefer(["all"], [], 1) == ["all"]
    node.machine.xid(0, 79)
    assert plugin.unhealthy == set()


@pytest.mark.parametrize("how", ["files", "family", "flag", "name"])
async def test_2_8_tegra_has_one_device(node: Any, how: str) -> None:
    node.library = node.loaded = how == "name"
    env = {}
    if how == "files":
        node.process.write("/etc/nv_tegra_release", "")
    elif how == "family":
        node.process.write_kernel("/sys/devices/soc0/family", "Tegra\n")
    elif how == "flag":
        env["DEVICE_DISCOVERY_STRATEGY"] = "tegra"
    else:
        node.gpus(GpuEntry(H100, name="Orin (nvgpu)"))
    await node.kubelet.start()
    node.run(**env)
    plugin = await node.kubelet.plugin()
    assert plugin.health == {"tegra": "Healthy"}
    assert (await plugin.allocate("tegra")).envs["NVIDIA_VISIBLE_DEVICES"] == "tegra"


async def test_2_1_tegra_files_beside_nvml_mean_nvml(node: Any) -> None:
    node.process.write("/etc/nv_tegra_release", "")
    await node.kubelet.start()
    node.run()
    assert list((await node.kubelet.plugin()).health) == node.uuids


async def test_2_9_numa_nodes(node: Any) -> None:
    gpus = node.machine.read().inventory.gpus
    node.process.write_kernel(f"{gpus[0].sysfs}/numa_node", "1\n")
    node.process.write_kernel(f"{gpus[1].sysfs}/numa_node", "-1\n")
    node.process.write("/c", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")
    await node.kubelet.start()
    node.run(CONFIG_FILE="/c")
    plugin = await node.kubelet.plugin()
    numa = {name: [each.ID for each in device.topology.nodes] for name, device in plugin.lists[0].items()}
    assert numa == {
        f"{gpus[0].uuid}::0": [1],
        f"{gpus[0].uuid}::1": [1],
        f"{gpus[1].uuid}::0": [],
        f"{gpus[1].uuid}::1": [],
    }
    assert not plugin.lists[0][f"{gpus[1].uuid}::0"].HasField("topology")


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "verdicts"),
    [
        ([1, 2, 3, 4, 5, 6], [False, False, False, False, False, True]),
        ([1, 2, 3, 4, 5, 3606], [False] * 6),
        ([1, 2, 3, 4, 5, 3605], [False] * 5 + [True]),
        ([5000, 5001, 5002, 5003, 5004, 5005], [False] * 6),
        ([5000, 5001, 5002, 5003, 5004, 5005, 5006], [False] * 6 + [True]),
    ],
)
def test_3_crash_counting(times: list[float], verdicts: list[bool]) -> None:
    crashes = server.Crashes(0)
    assert [crashes.note(time) for time in times] == verdicts


async def test_3_a_server_that_crashes_is_started_again_but_not_for_ever(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[Any] = []
    make = server.grpc.aio.server

    def made(*args: Any, **kwargs: Any) -> Any:
        servers.append(make(*args, **kwargs))
        return servers[-1]

    await node.kubelet.start()
    monkeypatch.setattr(server.grpc.aio, "server", made)
    task = node.run()
    for crash in range(1, 7):
        await node.kubelet.plugin(number=crash)
        await servers[-1].stop(None)
    assert await asyncio.wait_for(task, 20) == 1
    assert "ended by itself more than 5 times" in node.process.stderr
    assert node.sockets() == []


@pytest.mark.parametrize("release", list(Release))
async def test_13_both_releases_serve(node: Any, release: Release) -> None:
    await node.kubelet.start()
    node.run(release=release)
    await node.kubelet.plugin()


# --- what a person is told --------------------------------------------------------------------------------------------


async def test_1_5_settings_that_are_not_honoured_are_told(node: Any) -> None:
    node.process.write("/c", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 1}]}}")
    await node.kubelet.start()
    node.run(CONFIG_FILE="/c")
    await node.kubelet.plugin()
    assert "choosing devices is not supported" in node.process.stderr


async def test_hooks_that_are_disabled_are_told_to_be_none(node: Any) -> None:
    await node.kubelet.start()
    node.add_driver()
    node.run(DEVICE_LIST_STRATEGY="cdi-cri", CDI_DISABLE_HOOKS="all", GROUNDPLANE_NULL_DEVICES="true")
    await node.kubelet.plugin()
    assert "hooks to leave out have no effect" in node.process.stderr


async def test_2_7_wsl_without_gpus_offers_nothing(node: Any) -> None:
    node.process.write("/usr/lib/wsl/lib/libdxcore.so", "")
    node.gpus()
    node.run()
    await until(says(node, "No devices found. Waiting indefinitely."))
    assert node.sockets() == []


async def test_3_a_server_that_does_not_answer_itself_is_not_registered(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_arguments: Any) -> Any:
        await asyncio.Event().wait()

    answer = server.Service.GetDevicePluginOptions
    monkeypatch.setattr(server, "DIAL_S", 0.2)
    monkeypatch.setattr(server.Service, "GetDevicePluginOptions", silent)
    await node.kubelet.start()
    node.run(pace=QUICK)
    await until(says(node, "nvidia.com/gpu does not answer on"))
    assert node.kubelet.registered == []
    assert node.sockets() == []
    monkeypatch.setattr(server.Service, "GetDevicePluginOptions", answer)
    monkeypatch.setattr(server, "DIAL_S", 5.0)
    await node.kubelet.plugin()
