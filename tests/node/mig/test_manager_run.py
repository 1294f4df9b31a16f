"""Runs of nvidia-mig-manager from end to end, and every way in which they fail (3.3 to 3.7, 9)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from node.fakeprocess import until
from node.mig.managerworld import APPS, NAMESPACE, ON, Unit, World
from node.mig.migworld import Killed

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.faults import Rule
from groundplane.node.devices.simulated import GpuEntry, Mig
from groundplane.node.mig.manager import operands

A100, H100, T4 = "A100-SXM4-40GB", "H100-SXM5-80GB", "T4"
PAUSED = dict.fromkeys(ON, operands.PAUSED)
Make = Callable[..., Awaitable[World]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes the world of a test."""
    servers: list[Any] = []
    worlds: list[World] = []

    async def made(*gpus: Any, release: Release = Release.DEFAULT, pace: float = 2000.0) -> World:
        world = World(tmp_path, *(gpus or (H100,)), release=release)
        world.pace = pace
        servers.append(await world.serve())
        worlds.append(world)
        return world

    yield made
    for world in worlds:
        if world.running is not None and not world.running.done():
            await world.kill()
    for server in servers:
        await server.close()


async def test_3_5_a_layout_is_applied_in_its_order(make: Make) -> None:
    world = await make(pace=20.0)
    for label, app in APPS.items():
        world.pod(label.rpartition(".")[2], app)
    for app in (*operands.WORKLOADS, operands.VALIDATOR):
        world.pod(app, app)
    world.pod("elsewhere", operands.VALIDATOR, node="gpu-node-2")
    world.pod("user", "training")
    world.ask("small")
    world.start()
    await world.comes_to("pending")
    await until(lambda: world.labels.items() >= PAUSED.items(), "paused operands")
    for label in APPS:
        assert world.state == "pending"
        world.end(label.rpartition(".")[2])
    await world.comes_to("success")
    assert world.labels.items() >= ON.items()
    assert world.configs() == [{"1g.10gb": 4}]
    assert world.pods() == {"elsewhere", "user"}
    assert await world.stop() == 0


async def test_3_5_what_is_asked_of_the_cluster_and_the_host_in_order(make: Make) -> None:
    world = await make()
    for app in (*operands.WORKLOADS, operands.VALIDATOR):
        world.pod(app, app)
    world.process.write("/host/etc/systemd/system/nvidia-mig-manager.service.d/override.conf", "old")
    world.ask("small")
    states: list[tuple[str, str]] = []
    acts: list[str] = []

    def note(_: object, new: Any, __: object) -> None:
        labels = new["metadata"]["labels"]
        states.append((labels.get(names.MIG_CONFIG_STATE, ""), labels[names.DEPLOY_DEVICE_PLUGIN]))

    world.api.on_change(resources.NODES, note)
    mark = len(world.faults.requests)
    world.on_command = lambda command: acts.append(command) if "show" not in command else None
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await world.comes_to("success")
    assert list(dict.fromkeys(states)) == [
        ("pending", "true"),
        ("pending", operands.PAUSED),
        ("success", "true"),
    ]
    asked = [
        f"{each.verb} {each.resource} {each.name}".strip()
        for each in list(world.faults.requests)[mark:]
        if each.user_agent == "mig" and each.verb != "watch"
    ]
    assert asked == [
        "list nodes",
        "get nodes gpu-node-1",
        *["patch nodes gpu-node-1"] * 2,
        *["list pods"] * 5,
        *("list pods", "delete pods nvidia-cuda-validator"),
        *("list pods", "delete pods nvidia-device-plugin-validator"),
        *("list pods", "delete pods nvidia-operator-validator"),
        "get nodes gpu-node-1",
        "patch nodes gpu-node-1",
    ]
    assert acts == [
        "systemctl daemon-reload",
        *(f"systemctl stop {name}.service" for name in ("nvsm", "kubelet")),
        *(f"systemctl --no-block start {name}.service" for name in ("kubelet", "dcgm", "nvsm")),
    ]


async def test_3_4_what_is_applied_already_succeeds_at_once_and_labels_are_restored(make: Make) -> None:
    world = await make(GpuEntry(H100, mig=Mig(True, ("1g.10gb",) * 4)))
    world.pod("validator", operands.VALIDATOR)
    world.ask("small")
    world.start()
    await world.comes_to("success")
    assert world.pods() == {"validator"}
    assert world.labels.items() >= ON.items()
    assert all(body.verb != "delete" for body in world.faults.requests)
    assert world.faults.count("patch", "nodes", user_agent="mig") == 1


@pytest.mark.parametrize(
    ("gpus", "value", "first", "left"),
    [
        ((H100, H100), "first-only", {"1g.10gb": 4}, "GPU 1 "),
        ((H100, A100), "h100-only", {"1g.10gb": 7}, "GPU 1 "),
        ((H100, T4), "h100-only", {"1g.10gb": 7}, "GPU 1 "),
    ],
)
async def test_1_11_2_gpus_that_the_layout_is_not_about_are_told_and_left_alone(
    make: Make, gpus: tuple[str, ...], value: str, first: dict[str, int], left: str
) -> None:
    world = await make(*gpus)
    world.ask(value)
    world.start()
    await world.comes_to("success")
    assert world.configs() == [first, {}]
    told = [line for line in world.process.stderr.splitlines() if "matched by no entry" in line]
    assert len(told) == 1
    assert left in told[0]
    await world.stop()
    patches = world.faults.count("patch", "nodes", user_agent="mig")
    world.start()  # it is as wanted: nothing is paused again
    await world.comes_to("success")
    await until(lambda: world.faults.count("patch", "nodes", user_agent="mig") > patches, "labels restored")
    assert world.configs() == [first, {}]
    assert not [line for line in world.process.stderr.splitlines() if "pausing" in line]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nope", "validating the layout: selected mig-config not present: 'nope'"),
        ("too-much", "validating the layout: GPU 0"),
        ("third-only", "validating the layout: assertion failure: selected configuration not currently applied (GPU 0"),
    ],
)
async def test_3_4_what_can_never_be_fails_and_touches_nothing(make: Make, value: str, words: str) -> None:
    world = await make(H100, H100)
    world.ask(value)
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await world.comes_to("failed")
    assert world.failure.startswith(words)
    assert (world.done, world.configs()) == ([], [{}, {}])
    assert world.deploy() == ON
    assert world.faults.count("patch", "nodes", user_agent="mig") == 1
    await world.logs("trying again in 60 s, or at once when label nvidia.com/mig.config is set to another layout")
    world.ask("small")
    await world.comes_to("success")
    assert not world.failure


async def test_a_file_that_is_missing_fails_and_is_read_again(make: Make) -> None:
    world = await make()
    world.ask("small")
    world.start(CONFIG_FILE="/other.yaml")
    await world.comes_to("failed")
    assert world.failure.startswith("validating the layout: config file /other.yaml cannot be read")
    world.process.write("/other.yaml", (world.folder / "root/mig-parted-config/config.yaml").read_text())
    await world.comes_to("success")


# --- the loop: 3.3 ----------------------------------------------------------------------------------------------------


async def test_3_3_an_empty_label_triggers_nothing(make: Make) -> None:
    world = await make(GpuEntry(H100, mig=Mig(True, ("1g.10gb",))))
    world.start()
    await until(lambda: world.faults.count("watch", "nodes", user_agent="mig"), "a watch")
    world.ask("")
    world.change(labels={"other": "label"})
    await asyncio.sleep(0.1)
    assert (world.state, world.configs()) == ("", [{"1g.10gb": 1}])
    assert world.faults.count("patch", "nodes", user_agent="mig") == 0
    world.ask("small")
    await world.comes_to("success")
    world.ask(None)
    await asyncio.sleep(0.1)
    assert (world.state, world.configs()) == ("success", [{"1g.10gb": 4}])


async def test_3_3_values_that_arrive_during_a_run_collapse_to_the_newest(make: Make) -> None:
    world = await make(pace=20.0)
    world.pod("plugin", operands.APPS[0])
    world.ask("small")
    world.start()
    await until(lambda: world.labels.items() >= PAUSED.items(), "paused operands")
    for value in ("nope", "all-disabled", "large"):
        world.ask(value)
    world.end("plugin")
    await until(lambda: world.configs() == [{"3g.40gb": 2}], "the newest layout")
    await world.comes_to("success")
    assert "nope" not in world.process.stderr
    assert "'all-disabled'" not in world.process.stderr


async def test_3_3_a_label_that_becomes_empty_during_a_run_is_not_applied(make: Make) -> None:
    world = await make(pace=20.0)
    world.pod("plugin", operands.APPS[0])
    world.ask("small")
    world.start()
    await until(lambda: world.labels.items() >= PAUSED.items(), "paused operands")
    world.ask("")
    world.end("plugin")
    await world.comes_to("success")
    await asyncio.sleep(0.1)
    assert (world.state, world.configs()) == ("success", [{"1g.10gb": 4}])


async def test_3_3_a_failed_run_is_tried_again_and_at_once_when_the_label_is_set_anew(make: Make) -> None:
    world = await make(GpuEntry(H100, mig=Mig(True, ("1g.10gb",)), busy=True))
    world.ask("small")
    world.start()
    await world.comes_to("failed")
    assert "IN_USE" in world.failure
    assert world.failure.startswith("applying the layout: GPU 0")
    assert world.configs() == [{"1g.10gb": 1}]
    assert world.deploy() == ON
    await world.logs("trying again in 120 s")
    world.edit_gpu(busy=False)
    await world.comes_to("success")
    world.edit_gpu(busy=True)
    world.ask("large")
    await world.comes_to("failed")
    await world.logs("trying again in 1800 s")
    world.edit_gpu(busy=False)
    world.ask("")
    await asyncio.sleep(0.05)
    world.ask("large")
    await world.comes_to("success")


# --- 3.6 and 9: every failure restores --------------------------------------------------------------------------------


async def test_9_1_a_timeout_while_pausing_restores_labels_and_fails(make: Make) -> None:
    world = await make()
    world.change(labels={names.DEPLOY_DCGM: "false"})
    world.pod("stuck", operands.APPS[2])
    world.ask("small")
    world.start()
    await world.comes_to("failed")
    assert world.failure.startswith(
        "waiting for operands to end: timed out after 300 s waiting for pods of app=nvidia-dcgm-exporter to go: "
        f"{NAMESPACE}/stuck"
    )
    assert world.deploy() == {**ON, names.DEPLOY_DCGM: "false"}
    world.end("stuck")
    await world.comes_to("success")


async def test_9_2_what_must_be_restored_is_per_run(make: Make) -> None:
    world = await make()
    world.ask("small")
    world.start()
    await world.comes_to("success")
    world.pod("stuck", operands.APPS[0])
    world.ask("large")
    await world.comes_to("failed")
    assert world.deploy() == ON


@pytest.mark.parametrize("release", [Release.V26_3, Release.V26_7])
async def test_3_6_third_parties_with_the_client_label(make: Make, release: Release) -> None:
    world = await make(release=release)
    world.change(labels={names.DEPLOY_CLIENT: "true"})
    world.pod("theirs", namespace="default", nodeSelector={names.DEPLOY_CLIENT: "true"})
    world.pod("other", namespace="default", nodeSelector={"a": "b"})
    world.ask("small")
    world.start()
    if release is Release.V26_3:
        await world.comes_to("success")
        assert world.faults.count("list", "pods", user_agent="mig") == 7
        return
    await until(lambda: world.labels.get(names.DEPLOY_CLIENT) == operands.PAUSED, "a paused client")
    await world.comes_to("failed")
    assert f"DaemonSets with nodeSelector {names.DEPLOY_CLIENT} to go: default/theirs" in world.failure
    assert world.labels[names.DEPLOY_CLIENT] == "true"
    world.end("theirs", "default")
    await world.comes_to("success")
    assert world.labels[names.DEPLOY_CLIENT] == "true"


@pytest.mark.parametrize(
    ("rule", "step"),
    [
        (Rule("list", "pods", answer=403), "waiting for operands to end"),
        (Rule("delete", "pods", name="nvidia-cuda-validator", answer=403), "deleting pods that use GPUs"),
        (Rule("delete", "pods", name="nvidia-operator-validator", answer=403), "deleting the validator's pods"),
    ],
)
async def test_3_6_failures_of_the_api_server_restore_and_fail(make: Make, rule: Rule, step: str) -> None:
    world = await make()
    for app in (*operands.WORKLOADS, operands.VALIDATOR):
        world.pod(app, app)
    world.faults.add(rule)
    world.ask("small")
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await world.comes_to("failed")
    assert world.failure.startswith(f"{step}: ")
    assert world.deploy() == ON
    assert world.record() == []
    assert all(world.units[name].active == "active" for name in ("nvsm.service", "kubelet.service"))
    await world.comes_to("success")
    assert world.pods() == set()


async def test_3_6_labels_that_cannot_be_read_are_not_written(make: Make) -> None:
    world = await make(pace=20.0)
    world.pod("plugin", operands.APPS[0])
    world.ask("small")
    world.start()
    await until(lambda: world.labels.items() >= PAUSED.items(), "paused operands")
    world.faults.add(Rule("list", "pods", answer=403))
    rule = world.faults.add(Rule("get", "nodes", answer=403, times=None))
    await world.comes_to("failed")
    assert world.labels.items() >= PAUSED.items()
    world.ask("")
    await world.logs("operands or host services are still paused; trying again")
    world.faults.remove(rule)
    await until(lambda: world.deploy() == ON, "restored operands")


# --- host services: 3.7 -----------------------------------------------------------------------------------------------


async def test_3_7_services_are_stopped_in_order_and_started_in_reverse(make: Make) -> None:
    world = await make()
    stopped: list[str] = []
    world.on_command = lambda command: stopped.extend(world.record()) if "show" not in command else None
    world.ask("small")
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await world.comes_to("success")
    assert world.done == [
        "systemctl stop nvsm.service",
        "systemctl stop kubelet.service",
        "systemctl --no-block start kubelet.service",
        "systemctl --no-block start dcgm.service",
        "systemctl --no-block start nvsm.service",
    ]
    assert world.record() == []
    assert set(stopped) == {"nvsm.service", "dcgm.service", "kubelet.service"}
    world.done.clear()
    world.ask("large")
    await until(lambda: world.configs() == [{"3g.40gb": 2}], "the next layout")
    await world.comes_to("success")
    assert "systemctl stop kubelet.service" not in world.done


@pytest.mark.parametrize(
    ("command", "step"),
    [
        ("systemctl stop kubelet.service", "stopping host services"),
        ("systemctl --no-block start dcgm.service", "starting host services"),
    ],
)
async def test_3_7_failures_of_services_end_in_failed_and_all_others_run(make: Make, command: str, step: str) -> None:
    world = await make()
    world.failing = {command}
    world.ask("small")
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await world.comes_to("failed")
    assert world.failure.startswith(f"{step}: {command} (below /host): exit status 1: {command} is told to fail")
    assert world.deploy() == ON
    assert world.units["nvsm.service"].active == "active"
    assert world.record() == (["dcgm.service"] if "start" in command else [])
    world.failing.clear()
    await world.comes_to("success")
    await until(lambda: world.units["dcgm.service"].active == "active", "the service")
    assert world.record() == []


async def test_services_are_left_alone_unless_asked(make: Make) -> None:
    world = await make()
    world.process.write("/gpu-clients/clients.yaml", "nonsense")
    world.ask("small")
    world.start()
    await world.comes_to("success")
    assert world.done == []
    world.ask("large")
    await until(lambda: world.configs() == [{"3g.40gb": 2}], "the layout")
    await world.stop()
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await world.comes_to("success")
    world.ask("small")
    await world.comes_to("failed")
    assert world.failure.startswith("reading the list of host services: GPU clients file /gpu-clients/clients.yaml")


async def test_3_5_the_hosts_own_service_is_told(make: Make) -> None:
    world = await make()
    file = "/host/etc/systemd/system/nvidia-mig-manager.service.d/override.conf"
    real = world.process.write(file, "old")
    world.ask("small")
    world.start()
    await world.comes_to("success")
    assert real.read_text() == '[Service]\nEnvironment="MIG_PARTED_SELECTED_CONFIG=small"\n'
    assert real.stat().st_mode & 0o777 == 0o600
    assert world.done == ["systemctl daemon-reload"]


# --- reboot: 3.4 ------------------------------------------------------------------------------------------------------


async def test_3_4_mode_that_cannot_be_changed_reboots_once(make: Make) -> None:
    world = await make(GpuEntry(A100, busy=True), pace=200.0)
    world.ask("small-a100")
    layouts = world.folder / "root/mig-parted-config/config.yaml"
    layouts.write_text(
        layouts.read_text() + "  small-a100:\n  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}\n"
    )
    world.start(WITH_REBOOT="true")
    await world.comes_to("rebooting")
    await until(lambda: "reboot" in world.done, "the reboot")
    assert world.deploy() == PAUSED
    await world.kill()
    assert (world.state, world.deploy()) == ("rebooting", PAUSED)
    # it comes back, and the mode is as it was: no second reboot, also not when it is tried again, or started again
    world.start(WITH_REBOOT="true")
    await world.comes_to("failed")
    assert "is not rebooted for it again" in world.failure
    assert world.deploy() == ON
    await world.logs("trying again in 120 s")
    await world.stop()
    world.start(WITH_REBOOT="true")
    await world.logs("trying again in 60 s")
    assert world.done == ["reboot"]
    # somebody asks again: it may be rebooted once more, and this time that helps
    world.ask("nope")
    await until(lambda: "'nope'" in world.failure, "another layout's failure")
    world.ask("small-a100")
    await world.comes_to("rebooting")
    await until(lambda: world.done == ["reboot"] * 2, "the second reboot")
    await world.kill()
    world.edit_gpu(busy=False, mig=Mig(True))
    world.pod("validator", operands.VALIDATOR)
    world.start(WITH_REBOOT="true")
    await world.comes_to("success")
    assert (world.deploy(), world.pods(), world.done) == (ON, set(), ["reboot"] * 2)
    assert names.MIG_CONFIG_REBOOTED not in world.metadata.get("annotations", {})


async def test_3_4_without_its_label_there_is_no_reboot(make: Make) -> None:
    world = await make(GpuEntry(A100, busy=True), pace=20.0)
    world.pod("plugin", operands.APPS[0])
    world.ask("all-enabled")
    layouts = world.folder / "root/mig-parted-config/config.yaml"
    layouts.write_text(layouts.read_text() + "  all-enabled:\n  - {devices: all, mig-enabled: true, mig-devices: {}}\n")
    world.start(WITH_REBOOT="true")
    await until(lambda: world.labels.items() >= PAUSED.items(), "paused operands")
    world.faults.add(Rule("patch", "nodes", answer=403))
    world.end("plugin")
    await world.comes_to("failed")
    assert world.failure.startswith("setting the state before the reboot: ")
    assert (world.done, world.deploy()) == ([], ON)


@pytest.mark.parametrize("fails", [True, False])
async def test_3_4_a_reboot_that_does_not_come_fails(make: Make, fails: bool) -> None:
    world = await make(GpuEntry(A100, busy=True))
    layouts = world.folder / "root/mig-parted-config/config.yaml"
    layouts.write_text(layouts.read_text() + "  all-enabled:\n  - {devices: all, mig-enabled: true, mig-devices: {}}\n")
    world.failing = {"reboot"} if fails else set()
    world.ask("all-enabled")
    world.start(WITH_REBOOT="true")
    await world.comes_to("failed")
    assert world.failure.startswith(
        "rebooting the node: " + ("reboot (below /host): exit" if fails else "the host was")
    )
    assert world.deploy() == ON


async def test_without_reboot_the_layout_is_applied_all_the_same_and_fails(make: Make) -> None:
    world = await make(GpuEntry(A100, busy=True))
    layouts = world.folder / "root/mig-parted-config/config.yaml"
    layouts.write_text(layouts.read_text() + "  all-enabled:\n  - {devices: all, mig-enabled: true, mig-devices: {}}\n")
    world.ask("all-enabled")
    world.start()
    await world.comes_to("failed")
    assert world.failure.startswith("applying the layout: cannot reset GPU 0")
    assert "changing MIG mode: cannot reset GPU 0" in world.process.stderr
    assert (world.done, world.deploy()) == ([], ON)


# --- 9 #4, and the end ------------------------------------------------------------------------------------------------


async def test_9_4_success_is_said_only_if_the_layout_holds_at_the_end(make: Make) -> None:
    world = await make()

    def lose(command: str) -> None:
        if "start kubelet" in command:  # what is started breaks the layout again
            world.edit_gpu(mig=Mig(True, ("1g.10gb",)))

    world.on_command = lose
    world.ask("small")
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await world.comes_to("failed")
    assert world.failure.startswith(
        "comparing the GPUs with the layout at the end: assertion failure: selected configuration not currently applied"
    )
    assert "wanted is 1g.10gb: 4" in world.failure
    assert world.deploy() == ON
    world.on_command = lambda _: None
    await world.comes_to("success")


async def test_a_manager_that_is_ended_in_mid_run_lets_operands_go_on(make: Make) -> None:
    world = await make(pace=20.0)
    world.pod("stuck", operands.APPS[0])
    world.ask("small")
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    await until(lambda: world.labels.items() >= PAUSED.items(), "paused operands")
    assert await world.stop() == 0
    assert (world.state, world.deploy()) == ("failed", ON)
    assert world.failure == "waiting for operands to end: the MIG manager was ended; it will go on when it runs again"


async def test_a_manager_that_is_ended_while_it_undoes_a_run_brings_that_to_its_end(make: Make) -> None:
    world = await make()
    world.failing = {"systemctl stop kubelet.service"}

    def end(command: str) -> None:
        if "start nvsm" in command:
            world.process.send(SIGTERM)

    world.on_command = end
    world.ask("small")
    world.start(WITH_SHUTDOWN_HOST_GPU_CLIENTS="true")
    assert world.running is not None
    assert await asyncio.wait_for(world.running, 20) == 0
    assert (world.state, world.deploy(), world.record()) == ("failed", ON, [])
    assert world.failure.startswith("stopping host services")


async def test_what_a_killed_run_has_paused_goes_on_though_the_label_is_gone(make: Make) -> None:
    world = await make(pace=20.0)
    world.pod("stuck", operands.APPS[0])
    world.ask("small")
    world.start()
    await until(lambda: world.labels.items() >= PAUSED.items(), "paused operands")
    await world.kill()
    world.ask("")
    assert (world.state, world.deploy()) == ("pending", PAUSED)
    world.start()
    await world.comes_to("failed")
    assert world.deploy() == ON


async def test_a_kill_at_every_step_is_healed_by_the_next_start(make: Make) -> None:
    world = await make()
    env = {"WITH_SHUTDOWN_HOST_GPU_CLIENTS": "true"}
    acts = 0
    while True:
        acts += 1
        for app in (*operands.WORKLOADS, operands.VALIDATOR):
            world.end(app)
            world.pod(app, app)
        world.edit_gpu(mig=Mig())
        world.units["nvsm.service"] = Unit()
        world.units["dcgm.service"] = Unit("failed")
        world.change(
            labels={**ON, names.MIG_CONFIG: "small", names.MIG_CONFIG_STATE: None},
        )
        world.gate.at = acts
        world.start(**env)
        assert world.running is not None
        while not world.running.done() and world.state != "success":
            await asyncio.sleep(0.005)
        if world.state == "success" and not world.running.done():
            break
        with pytest.raises(Killed):
            await world.running
        world.revive()
        world.start(**env)
        await world.comes_to("success")
        where = f"killed after {acts} acts"
        assert world.deploy() == ON, where
        assert world.configs() == [{"1g.10gb": 4}], where
        assert (world.record(), world.pods()) == ([], set()), where
        assert all(world.units[name].active == "active" for name in ("nvsm.service", "kubelet.service")), where
        assert await world.stop() == 0
    assert acts > 25
