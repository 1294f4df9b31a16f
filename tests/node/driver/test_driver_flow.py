"""`driver-manager uninstall_driver`, step by step (contracts/driver-lifecycle.md 5.3, 5.4)."""

import asyncio
from collections.abc import Awaitable, Callable
from signal import SIGTERM

import pytest
from node.driver.driverworld import DRIVER, JOBS, ME, OPERANDS, PID, STATE, World
from node.fakeprocess import until

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.faults import Rule
from groundplane.node.driver import guidance, labels
from groundplane.node.driver.host import IN_USE
from groundplane.node.process import Listed

V26_3, V26_7 = Release.V26_3, Release.V26_7
BOTH = pytest.mark.parametrize("release", [V26_3, V26_7], ids=["26.3", "26.7"])
Make = Callable[..., Awaitable[World]]


def healthy(world: World) -> None:
    """Nothing is paused, nobody is kept off."""
    assert {world.labels[key] for key in OPERANDS} == {"true"}
    assert not [value for value in world.labels.values() if labels.PAUSED in value]
    assert not world.cordoned
    assert names.DRIVER_MANAGER_CORDONED not in world.annotations


# --- step 1 -----------------------------------------------------------------------------------------------------------


@BOTH
async def test_1_a_driver_of_the_host_keeps_the_container_off(make: Make, release: Release) -> None:
    world = await make(release)
    world.load(*DRIVER)
    world.host_driver = "580.95.05"
    assert await world.run() == 1
    assert world.labels[names.DEPLOY_DRIVER] == "pre-installed"
    assert 60.0 in world.slept
    assert "driver is pre-installed on host" in world.log and "580.95.05" in world.log
    assert world.gate.acts == ["label driver=pre-installed"]
    assert world.loaded() == set(DRIVER)


async def test_1_a_broken_driver_of_the_host_is_none(make: Make) -> None:
    world = await make()
    world.process = world.new()
    assert await world.run() == 0


# --- the whole way ----------------------------------------------------------------------------------------------------


@BOTH
async def test_6_to_13_the_driver_goes(make: Make, release: Release) -> None:
    world = await make(release)
    world.load(*DRIVER, digest="old")
    world.load("nouveau")
    world.job("train")
    world.job("cpu-only", resource="cpu")
    assert await world.run() == 0, world.log
    assert world.writes() == ["pause", "cordon", "evict train", "uncordon", "restore"]
    assert world.pods() == {"cpu-only"}
    assert world.loaded() == set() and world.mounted() == []
    assert world.file(PID) is None
    assert world.file(STATE) is None  # 5.6: the record of a driver that is no more
    modules = [act.split()[1] for act in world.gate.acts if act.startswith("rmmod")]
    assert modules == ["nvidia_modeset", "nvidia_uvm", "nvidia", "nouveau"]
    assert world.gate.acts[-1] == "rmmod nouveau" and world.gate.acts.index("restore") < len(world.gate.acts) - 1
    healthy(world)


async def test_operands_are_gone_before_anything_else_happens(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    seen: list[set[str]] = []
    world.tell = lambda act: seen.append(world.pods("gpu-operator"))
    assert await world.run() == 0
    assert seen and all(not found & set(OPERANDS.values()) for found in seen)
    assert names.DEPLOY_DRIVER in world.labels and world.labels[names.DEPLOY_DRIVER] == "true"
    assert world.labels[names.DEPLOY_NODE_STATUS_EXPORTER] == "true"


async def test_an_operand_that_does_not_go_is_named_after_five_minutes(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.stuck, world.pace = {"nvidia-dcgm"}, 2000.0
    assert await world.run() == 1
    assert "timed out after 300 s waiting for pods of app=nvidia-dcgm to go: gpu-operator/nvidia-dcgm" in world.log
    assert world.slept.count(5.0) > 3
    assert world.loaded() == set(DRIVER)
    healthy(world)


async def test_third_parties_are_waited_for_by_their_node_selector(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.change(labels={names.DEPLOY_CLIENT: "true"})
    world.pod("theirs", namespace=JOBS, nodeSelector={names.DEPLOY_CLIENT: "true"})
    world.stuck, world.pace = {"theirs"}, 2000.0
    assert await world.run() == 1
    assert f"DaemonSets with nodeSelector {names.DEPLOY_CLIENT} to go: jobs/theirs" in world.log
    world.stuck = set()
    assert await world.run() == 0
    assert world.labels[names.DEPLOY_CLIENT] == "true" and not world.pods()


async def test_pods_that_cannot_be_listed_are_a_failure(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.faults.add(Rule("list", "pods"))
    assert await world.run() == 1
    healthy(world)


# --- step 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "on"), [("true", True), ("false", False), ("True", False), ("", False), (None, False)]
)
async def test_2_the_policy_is_on_for_true_alone(make: Make, value: str | None, on: bool) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    if value is not None:
        world.policy(value)
    world.job("train")
    assert await world.run(ENABLE_AUTO_DRAIN="true") == 0
    assert world.pods() == ({"train"} if on else set())
    assert ("cordon" in world.writes()) is not on
    assert world.log.count(guidance.SUPERSEDED) == (2 if on else 0)
    healthy(world)


async def test_2_a_node_that_is_not_there(make: Make) -> None:
    world = await make()
    world.load(*DRIVER)
    assert await world.run(NODE_NAME="other") == 1
    assert "other" in world.log and not world.gate.acts


# --- step 3 -----------------------------------------------------------------------------------------------------------


async def test_3_nothing_loaded_evicts_nobody(make: Make) -> None:
    world = await make()
    world.load("nouveau", digest="stale")
    world.job("train")
    assert await world.run() == 0, world.log
    assert world.writes() == ["restore"]
    assert world.pods() == {"train"}
    assert world.mounted() == [] and world.file(PID) is None and world.file(STATE) is None and not world.loaded()
    healthy(world)


async def test_3_in_26_3_operands_are_paused_all_the_same(make: Make) -> None:
    world = await make(V26_3)
    assert await world.run() == 0
    assert world.writes() == ["pause", "cordon", "uncordon", "restore"]
    assert world.mounted() == []
    healthy(world)


async def test_3_heals_what_a_run_before_the_reboot_left(make: Make) -> None:
    world = await make()
    world.change(
        cordon=True,
        labels=dict.fromkeys(OPERANDS, labels.PAUSED),
        annotations={names.DRIVER_MANAGER_CORDONED: "true"},
    )
    assert await world.run() == 0
    healthy(world)


# --- step 5 -----------------------------------------------------------------------------------------------------------

KEEP = [
    # stored digest, environment: kept
    ("new", {}, True),
    ("  new \n", {}, True),
    ("old", {}, False),
    (None, {}, False),
    ("", {}, False),
    ("new", {"FORCE_REINSTALL": "true"}, False),
    ("new", {"DRIVER_CONFIG_DIGEST": ""}, False),
    ("", {"DRIVER_CONFIG_DIGEST": ""}, False),
    ("new", {"DRIVER_CONFIG_DIGEST": "unset"}, False),
]


@BOTH
@pytest.mark.parametrize(("stored", "env", "kept"), KEEP)
async def test_5_the_loaded_driver_is_kept(
    make: Make, release: Release, stored: str | None, env: dict[str, str], kept: bool
) -> None:
    world = await make(release)
    world.load(*DRIVER, digest=stored)
    world.job("train")
    assert await world.run(**env) == 0, world.log
    assert (world.loaded() == set(DRIVER)) is kept
    assert world.pods() == ({"train"} if kept else set())
    assert world.writes() == (
        ["pause", "restore"] if kept else ["pause", "cordon", "evict train", "uncordon", "restore"]
    )
    assert (world.file(STATE) is not None) is kept
    assert world.mounted() == [] and world.file(PID) is None
    healthy(world)


async def test_5_a_record_that_cannot_be_read_keeps_nothing(make: Make) -> None:
    world = await make()
    world.load(*DRIVER)
    world.process.root.mkdir(STATE)
    assert await world.run() == 1  # a folder is nothing that a driver has written, nor is it removed
    assert "cannot be read" in world.log
    healthy(world)


async def test_5_keeping_lets_a_node_go_that_a_killed_run_had_cordoned(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="new")
    world.change(cordon=True, annotations={names.DRIVER_MANAGER_CORDONED: "true"})
    assert await world.run() == 0
    healthy(world)


# --- step 6 -----------------------------------------------------------------------------------------------------------

REFUSED = [
    # a GPU pod, environment: evicted
    ({"owner": ""}, {}, False),
    ({"owner": ""}, {"DRAIN_USE_FORCE": "true"}, True),
    ({"volumes": [{"name": "v", "emptyDir": {}}]}, {}, False),
    ({"volumes": [{"name": "v", "emptyDir": {}}]}, {"DRAIN_DELETE_EMPTYDIR_DATA": "true"}, True),
    ({"owner": "DaemonSet"}, {}, False),
    ({"phase": "Succeeded", "owner": ""}, {}, True),
    ({"phase": "Pending"}, {}, True),
]


@pytest.mark.parametrize(("pod", "env", "evicted"), REFUSED)
async def test_6_all_gpu_pods_or_none(make: Make, pod: dict[str, object], env: dict[str, str], evicted: bool) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    world.api.create(resources.DAEMON_SETS, {"metadata": {"name": "d"}, "spec": spec}, JOBS)
    world.job("train")
    world.job("odd", **pod)
    assert await world.run(**env) == (0 if evicted else 1), world.log
    assert world.pods() == (set() if evicted else {"train", "odd"})
    if not evicted:
        assert "cannot proceed until all GPU pods are drained from the node" in world.log and "jobs/odd" in world.log
        assert world.writes() == ["pause", "cordon", "uncordon", "restore"]
    healthy(world)


async def test_6_the_time_for_eviction_runs_out(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.job("train")
    world.stuck = {"train"}
    assert await world.run(DRAIN_TIMEOUT_SECONDS="5m") == 1
    assert "timed out after 300 s" in world.log and 300.0 in world.slept
    healthy(world)


async def test_6a_drains_the_node_if_eviction_is_refused(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.job("bare", owner="")
    world.job("cpu", resource="cpu")
    assert await world.run(ENABLE_AUTO_DRAIN="true") == 1
    assert "node gpu-node-1 cannot be drained: jobs/bare" in world.log and world.pods() == {"bare", "cpu"}
    healthy(world)


async def test_6a_the_drain_has_its_selector(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.job("bare", owner="")
    world.job("cpu", resource="cpu")
    assert await world.run(ENABLE_AUTO_DRAIN="true", DRAIN_POD_SELECTOR_LABEL="drain=yes") == 0, world.log
    assert world.pods() == {"bare", "cpu"}


CLAIMS = [
    # driver of the claim, admin access, evicted in 26.7
    ("gpu.nvidia.com", False, True),
    ("gpu.nvidia.com", True, True),
    ("compute-domain.nvidia.com", False, False),
    (None, False, False),
]


@BOTH
@pytest.mark.parametrize(("driver", "admin", "evicted"), CLAIMS)
async def test_6_claims(make: Make, release: Release, driver: str | None, admin: bool, evicted: bool) -> None:
    world = await make(release)
    world.load(*DRIVER, digest="old")
    world.pod("holder", namespace=JOBS, owner="Job", **world.claim("c", driver, admin=admin))
    assert await world.run() == 0, world.log
    assert ("holder" not in world.pods()) is (evicted and release is V26_7)


async def test_6_a_claim_that_is_not_there_is_no_gpu_and_one_unreadable_a_failure(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.pod("holder", namespace=JOBS, owner="Job", resourceClaims=[{"name": "g", "resourceClaimName": "gone"}])
    world.faults.add(Rule("get", "resourceclaims", answer=500))
    assert await world.run() == 1
    healthy(world)
    assert await world.run() == 0, world.log
    assert world.pods() == {"holder"}


# --- step 7, 5.4 ------------------------------------------------------------------------------------------------------

PLUGIN = "nvidia-dra-driver-kubelet-plugin"


def with_dra(world: World) -> None:
    world.change(labels={names.DEPLOY_DRA_DRIVER: "true", names.DEPLOY_DRA_VALIDATOR: "true"})
    world.pod(PLUGIN, PLUGIN, nodeSelector={names.DEPLOY_DRA_DRIVER: "true"})


async def test_7_the_dra_plugin_goes_last(make: Make) -> None:
    world = await make()
    with_dra(world)
    world.load(*DRIVER, digest="old")
    world.pod("holder", namespace=JOBS, owner="Job", **world.claim("c"))
    assert await world.run() == 0, world.log
    paused = f"label dra-driver={labels.PAUSED}"
    assert world.writes() == ["pause", "cordon", "evict holder", paused, "uncordon", "restore"]
    assert world.gate.acts.index(paused) < world.gate.acts.index("rmmod nvidia")
    assert world.labels[names.DEPLOY_DRA_DRIVER] == world.labels[names.DEPLOY_DRA_VALIDATOR] == "true"
    assert PLUGIN not in world.pods("gpu-operator")
    healthy(world)


@pytest.mark.parametrize("state", ["nothing loaded", "kept"])
async def test_3_and_5a_the_dra_plugin_does_not_outlive_the_root(make: Make, state: str) -> None:
    world = await make()
    with_dra(world)
    if state == "kept":
        world.load(*DRIVER, digest="new")
    world.tell = lambda act: gone.append(PLUGIN not in world.pods("gpu-operator"))
    gone: list[bool] = []
    assert await world.run() == 0, world.log
    assert gone and all(gone)
    healthy(world)


async def test_7_claims_that_are_held_are_named(make: Make) -> None:
    world = await make()
    with_dra(world)
    world.load(*DRIVER, digest="old")
    world.policy()
    world.pod("holder", namespace=JOBS, owner="Job", **world.claim("c"))
    world.pod("finished", namespace=JOBS, owner="Job", phase="Succeeded", **world.claim("d"))
    assert await world.run() == 1
    assert "still hold claims of GPUs: jobs/holder; end them" in world.log
    assert world.loaded() == set(DRIVER) and PLUGIN in world.pods("gpu-operator")
    healthy(world)


async def test_6_with_dra_gpu_pods_are_evicted_before_a_drain_could_strand_them(make: Make) -> None:
    world = await make()
    with_dra(world)
    world.load(*DRIVER, digest="old")
    world.job("train")
    assert await world.run(ENABLE_GPU_POD_EVICTION="false", ENABLE_AUTO_DRAIN="true") == 0, world.log
    assert "evict train" in world.writes()
    healthy(world)


# --- step 8, 5.5 ------------------------------------------------------------------------------------------------------


@BOTH
async def test_8_a_driver_in_use_is_a_failure_that_lists_who_uses_what(make: Make, release: Release) -> None:
    world = await make(release)
    world.uses = {"nvidia_uvm": 3}
    world.load(*DRIVER, "gdrdrv", digest="old")
    assert await world.run() == 1
    assert IN_USE == "Could not unload NVIDIA driver kernel modules, driver is in use"
    assert IN_USE in world.log
    assert "Module nvidia_uvm is in use" in world.log
    assert any(line.split()[3:6] == ["nvidia_uvm", "16384", "3"] for line in world.log.splitlines()), world.log
    assert world.loaded() == {"nvidia", "nvidia_uvm"}  # all were tried
    assert world.file(STATE) is None  # what is loaded is no longer what was recorded
    healthy(world)


async def test_8_says_which_processes_use_the_driver(make: Make) -> None:
    world = await make()
    world.uses = {"nvidia_uvm": 1}
    world.load(*DRIVER, digest="old")
    world.job("train")
    world.listed = [Listed(41, ("/usr/bin/dcgmi", "daemon")), Listed(42, ("bash",)), Listed(43, ())]
    for pid, target in ((41, "/dev/nvidia0"), (41, "/dev/nvidiactl"), (42, "/dev/null")):
        world.process.root.symlink(f"/proc/{pid}/fd/{len(target)}", target)
    assert await world.run(ENABLE_GPU_POD_EVICTION="false") == 1
    assert "pods of this node that hold GPUs: jobs/train" in world.log
    assert "processes that have the driver's devices open: 41 (/usr/bin/dcgmi daemon)\n" in world.log


async def test_8_a_driver_of_which_nothing_went_stays_the_recorded_one(make: Make) -> None:
    world = await make()
    world.uses = dict.fromkeys(DRIVER, 1)
    world.load(*DRIVER, digest="old")
    assert await world.run() == 1
    assert world.file(STATE) == "old\n" and world.loaded() == set(DRIVER)
    assert await world.run(DRIVER_CONFIG_DIGEST="old") == 0


async def test_8_drains_and_tries_once_more(make: Make) -> None:
    world = await make()
    world.uses = {"nvidia_uvm": 1}
    world.load(*DRIVER, digest="old")
    world.pod("hidden", namespace=JOBS, owner="Job", runtimeClassName=None)
    world.tell = lambda _: world.uses.update(nvidia_uvm=int("hidden" in world.pods()))
    assert await world.run(ENABLE_AUTO_DRAIN="true") == 0, world.log
    assert world.pods() == set() and world.loaded() == set()
    healthy(world)


async def test_8_a_root_that_stays_mounted_is_a_failure(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.stuck = {f"{names.DRIVER_ROOT}/dev", names.DRIVER_ROOT}
    assert await world.run() == 1
    assert f"{names.DRIVER_ROOT}/dev: umount: {names.DRIVER_ROOT}/dev: target is busy." in world.log
    healthy(world)


# --- step 9 and 10 ----------------------------------------------------------------------------------------------------


def device(world: World, address: str, vendor: str, driver: str = "", kind: str = "0x030200") -> None:
    folder = f"/sys/bus/pci/devices/{address}"
    world.process.write_kernel(f"{folder}/vendor", f"{vendor}\n")
    world.process.write_kernel(f"{folder}/class", f"{kind}\n")
    if driver:
        world.process.kernel.mkdir(f"/sys/bus/pci/drivers/{driver}")
        world.process.kernel.symlink(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")


async def test_9_gpus_come_back_from_virtual_machines(make: Make) -> None:
    world = await make()
    device(world, "0000:0a:00.0", "0x10de", "vfio-pci")
    assert await world.run() == 0
    assert world.process.kernel.read_text("/sys/bus/pci/drivers/vfio-pci/unbind") == "0000:0a:00.0"


async def test_9_a_gpu_that_does_not_come_back_is_a_failure(make: Make) -> None:
    world = await make()
    device(world, "0000:0a:00.0", "0x10de", "vfio-pci")
    world.process.kernel.mkdir("/sys/bus/pci/drivers/vfio-pci/unbind")
    assert await world.run() == 1
    assert "0000:0a:00.0 cannot be taken from vfio-pci" in world.log
    healthy(world)


@pytest.mark.parametrize("on_host", [False, True])
async def test_10_waits_for_mofed_for_ever(make: Make, on_host: bool) -> None:
    world = await make()
    device(world, "0000:0b:00.0", "0x15b3", kind="0x020000")
    env = {"GPU_DIRECT_RDMA_ENABLED": "true", "USE_HOST_MOFED": str(on_host).lower()}
    task = asyncio.ensure_future(world.run(**env))
    await until(lambda: world.log.count("waiting for MOFED to be installed") > 70)  # more than five minutes
    assert "GPUDirectRDMA is enabled, validating MOFED driver installation" in world.log
    assert not task.done()
    if on_host:
        world.load("mlx5_core")
    else:
        world.process.write("/run/mellanox/drivers/.driver-ready", "")
    assert await task == 0
    healthy(world)


@pytest.mark.parametrize(("vendor", "enabled"), [("0x15b3", "false"), ("0x10de", "true")])
async def test_10_does_not_wait_where_there_is_nothing_to_wait_for(make: Make, vendor: str, enabled: str) -> None:
    world = await make()
    device(world, "0000:0b:00.0", vendor)
    assert await world.run(GPU_DIRECT_RDMA_ENABLED=enabled) == 0
    assert "waiting for MOFED" not in world.log


# --- steps 11 and 13, and the failure path ----------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["done", "failed"])
async def test_11_a_node_that_a_person_cordoned_stays_so(make: Make, outcome: str) -> None:
    world = await make()
    world.uses = {"nvidia_uvm": int(outcome == "failed")}
    world.load(*DRIVER, digest="old")
    world.change(cordon=True)
    assert await world.run() == int(outcome == "failed")
    assert world.cordoned and "uncordon" not in world.writes()
    assert names.DRIVER_MANAGER_CORDONED not in world.annotations


async def test_11_uncordoning_that_fails_is_only_said(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.tell = lambda act: world.faults.rules or world.faults.add(Rule("patch", "nodes"))
    assert await world.run() == 0
    assert "still cordoned" in world.log
    assert world.cordoned and world.annotations[names.DRIVER_MANAGER_CORDONED] == "true"
    assert await world.run() == 0
    healthy(world)


@pytest.mark.parametrize(("state", "stays"), [(None, False), ("upgrade-done", False), ("pod-restart-required", True)])
async def test_11_the_policy_was_turned_on_after_a_kill(make: Make, state: str | None, stays: bool) -> None:
    world = await make()
    world.change(cordon=True, annotations={names.DRIVER_MANAGER_CORDONED: "true"})
    world.policy()
    if state:
        world.change(labels={names.UPGRADE_STATE: state})
    assert await world.run() == 0
    assert world.cordoned is stays


async def test_13_nouveau_that_stays_is_an_error(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.uses = {"nouveau": 1}
    world.load("nouveau")
    assert await world.run() == 1
    assert "Module nouveau is in use" in world.log
    healthy(world)


GUIDANCE = [
    # policy on, eviction, auto-drain: what is said
    (True, "true", "true", "nvidia.com/gpu-driver-upgrade-state=upgrade-required"),
    (True, "false", "false", "nvidia.com/gpu-driver-upgrade-state=upgrade-required"),
    (False, "false", "false", "neither evicting GPU pods nor draining the node is enabled"),
    (False, "true", "false", ""),
]


@pytest.mark.parametrize(("policy", "evict", "drain", "said"), GUIDANCE)
async def test_failure_path(make: Make, policy: bool, evict: str, drain: str, said: str) -> None:
    world = await make()
    world.uses = {"nvidia_uvm": 1}
    world.load(*DRIVER, digest="old")
    world.job("train")
    world.stuck = {"nothing"}
    if policy:
        world.policy()
    assert await world.run(ENABLE_GPU_POD_EVICTION=evict, ENABLE_AUTO_DRAIN=drain) == 1
    texts = {each for *_, each in GUIDANCE if each}
    assert {text for text in texts if text in world.log} == ({said} if said else set())
    assert ("cordon" in world.writes()) is (not policy and evict == "true")
    if policy:
        assert "pods of this node that hold GPUs: jobs/train" in world.log and f"label node {ME} " in world.log
    healthy(world)


@pytest.mark.parametrize("failures", [6, 7])
async def test_labels_are_written_up_to_seven_times(make: Make, failures: int) -> None:
    world = await make()
    world.load(*DRIVER, digest="new")
    world.faults.add(Rule("patch", "nodes", times=failures))
    assert await world.run() == (0 if failures == 6 else 1)
    delays = [each for each in world.slept if each not in (5.0, 120.0)][:6]
    jitter = [delay / base for delay, base in zip(delays, (1, 2, 4, 8, 16, 32), strict=True)]
    assert all(1.0 <= each <= 1.2 for each in jitter), jitter
    healthy(world)


async def test_a_value_too_long_to_be_paused_is_named(make: Make) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.change(labels={"example.com/agent": "x" * 50})
    assert await world.run(NODE_LABEL_FOR_GPU_POD_EVICTION="example.com/agent") == 1
    assert "label example.com/agent has the value" in world.log
    assert world.labels["example.com/agent"] == "x" * 50
    healthy(world)


@pytest.mark.parametrize("moment", ["operands", "eviction", "mofed"])
async def test_being_ended_lets_all_go_on(make: Make, moment: str) -> None:
    world = await make()
    world.load(*DRIVER, digest="old")
    world.job("train")
    device(world, "0000:0b:00.0", "0x15b3")
    world.stuck = {"operands": {"nvidia-dcgm"}, "eviction": {"train"}, "mofed": set()}[moment]
    task = asyncio.ensure_future(world.run(GPU_DIRECT_RDMA_ENABLED="true"))
    told = {"operands": "app=nvidia-dcgm", "eviction": "evicting pods", "mofed": "waiting for MOFED"}[moment]
    await until(lambda: told in world.log)
    world.process.send(SIGTERM)
    assert await task == 1
    assert "received SIGTERM" in world.log
    healthy(world)
