"""Driver upgrades with the shipped operator: the lab's scenario, small, and what may go wrong, one by one."""

import asyncio
from typing import Any

import pytest
from e2e.upgrading import ALL, DONE, NODES, ONE, SECOND, THIRD, WAITS, amid, release_job, start
from e2e.world import POLICY, World, policy_document

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.api import Api
from groundplane.lab.clock import LabClock
from groundplane.lab.cluster import OPERATOR_NAMESPACE, OPERATOR_USER_AGENT, Lab
from groundplane.lab.nodes import GpuSpec, NodeSpec
from groundplane.lab.scenarios import driver_upgrade, objects
from groundplane.lab.scenarios.upgradewatch import Limits, UpgradeWatch
from groundplane.operator.upgrade.states import State

S = State
FULL = [
    S.DONE,
    S.UPGRADE_REQUIRED,
    S.CORDON_REQUIRED,
    S.WAIT_FOR_JOBS_REQUIRED,
    S.POD_DELETION_REQUIRED,
    S.POD_RESTART_REQUIRED,
    S.VALIDATION_REQUIRED,
    S.UNCORDON_REQUIRED,
    S.DONE,
]
SHORT = [S.DONE, S.UPGRADE_REQUIRED, S.POD_RESTART_REQUIRED, S.VALIDATION_REQUIRED, S.UNCORDON_REQUIRED, S.DONE]

# --- the scenario -----------------------------------------------------------------------------------------------------


async def test_the_scenario_ends_as_it_must() -> None:
    cast = driver_upgrade.Cast.of(12)
    async with driver_upgrade.lab(cast, 240.0) as lab:
        outcome = await driver_upgrade.run(lab, cast, lambda _: None)
    assert outcome.problems == ()
    told = [each.text for each in outcome.happened]

    def says(*texts: str) -> str:
        found = [each for each in told if all(text in each for text in texts)]
        assert found, (texts, told)
        return found[-1]

    assert set(outcome.states.values()) == {S.DONE}
    assert outcome.cordoned == (cast.cordoned,)
    assert outcome.maxima.in_progress <= cast.first_limits.parallel
    assert outcome.maxima.unavailable <= cast.later_limits.unavailable
    assert len({cast.fails, cast.held, cast.held_long, cast.endless, cast.skipped, cast.cordoned}) == 6
    paths = outcome.paths
    assert paths[cast.held][-9:] == FULL
    assert paths[cast.cordoned][-8:] == [*FULL[:-2], S.DONE]
    assert paths[cast.fails][-4:] == [S.POD_RESTART_REQUIRED, S.FAILED, S.UNCORDON_REQUIRED, S.DONE]
    failed = paths[cast.held_long].index(S.FAILED)
    assert paths[cast.held_long][failed - 2 : failed] == [S.POD_DELETION_REQUIRED, S.DRAIN_REQUIRED]
    assert paths[cast.held_long][failed + 1 :] == FULL[1:]
    assert S.DRAIN_REQUIRED not in paths[cast.endless]
    says(cast.held, "PodDisruptionBudget held holds")
    says("Could not resolve Linux kernel version")
    says("the operator is killed while")
    says("it is started again", "no node moved")
    for node in cast.reboots:
        says(node, driver_upgrade.NEW_KERNEL)
    says(cast.skipped, S.UPGRADE_REQUIRED, "it is skipped")
    says(cast.cordoned, "no upgrade will undo that")
    says("the ClusterPolicy is ready")


def test_a_story_needs_nodes_enough_for_its_parts() -> None:
    with pytest.raises(ValueError, match="needs 12 nodes or more, not 11"):
        driver_upgrade.Cast.of(11)
    assert len(driver_upgrade.Cast.of(100).all) == 100


def test_the_watch_tells_when_a_limit_is_not_kept() -> None:
    api = Api(clock=LabClock(1.0))
    for name in NODES:
        document = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
        api.create(resources.NODES, document)
    watch = UpgradeWatch(Limits(parallel=1, unavailable=1))
    watch.follow(api)
    for name in NODES[:2]:
        change = {"metadata": {"labels": {names.UPGRADE_STATE: S.DRAIN_REQUIRED}}, "spec": {"unschedulable": True}}
        api.patch(resources.NODES, name, change, type="merge")
    assert watch.broken == [
        "gpu-b is in progress as number 2 of at most 1",
        "gpu-b is unavailable as number 2 of at most 1",
    ]
    assert (watch.maxima.in_progress, watch.maxima.unavailable) == (2, 2)


# --- the way of a node ------------------------------------------------------------------------------------------------


async def test_one_after_the_other_with_few_requests() -> None:
    async with World() as world:
        fleet = await start(world)
        fleet.watch.limits = Limits(parallel=1, unavailable=2)
        log = world.lab.faults.requests
        log.clear()
        fleet.edit(version=SECOND)
        await fleet.all_run(SECOND)
        assert {node: fleet.watch.paths[node] for node in NODES} == dict.fromkeys(NODES, FULL)
        assert (fleet.watch.maxima.in_progress, fleet.watch.broken) == (1, [])
        assert fleet.cordoned() == []
        for node in NODES:
            writes = [each for each in log if OPERATOR_USER_AGENT in each.user_agent and each.name == node]
            assert len(writes) <= 9, [(each.verb, each.resource) for each in writes]
        about = [
            each
            for each in log
            if OPERATOR_USER_AGENT in each.user_agent
            and (each.resource == "nodes" or (each.resource == "pods" and each.verb != "watch"))
        ]
        assert len(about) <= 12 * len(NODES), [(each.verb, each.resource, each.name) for each in about]


@pytest.mark.parametrize("release", list(Release))
async def test_a_change_of_labels_evicts_nobody_where_the_release_knows(release: Release) -> None:
    """3.7: the driver is the same, so 26.7 replaces its pods only; 26.3 evicts."""
    async with World(release=release) as world:
        fleet = await start(world, **ALL)
        await world.lab.apply([objects.deployment("user", node="gpu-a")])
        patch = {"status": {"allocatable": {names.GPU_RESOURCE: "8"}, "capacity": {names.GPU_RESOURCE: "8"}}}
        fleet.api.patch(resources.NODES, "gpu-a", patch, type="merge", subresource="status", manager="kubelet")

        def user() -> list[str]:
            pods = fleet.api.list(resources.PODS, "default")["items"]
            return [pod["metadata"]["uid"] for pod in pods if pod.get("status", {}).get("phase") == "Running"]

        await fleet.until(lambda: len(user()) == 1, "the workload to run")
        before, driver = user(), fleet.driver("gpu-a")
        assert driver is not None
        world.edit_policy(POLICY, "daemonsets", "labels", {"helm.sh/chart": "gpu-operator-v26.7.1"})

        def replaced() -> bool:
            now = fleet.driver("gpu-a")
            return now is not None and now["metadata"]["uid"] != driver["metadata"]["uid"]

        await fleet.until(lambda: replaced() and fleet.watch.states() == DONE, "new pods on all nodes")
        short = release is Release.V26_7
        assert fleet.watch.paths["gpu-a"] == (SHORT if short else FULL)
        await fleet.until(lambda: len(user()) == 1, "the workload to be back")
        assert (user() == before) is short
        assert fleet.cordoned() == []


async def test_an_upgrade_that_was_asked_for_goes_all_the_way() -> None:
    async with World() as world:
        fleet = await start(world)
        fleet.annotate("gpu-b", {names.UPGRADE_REQUESTED: "true"})
        await fleet.until(lambda: fleet.watch.upgraded("gpu-b"), "gpu-b to be upgraded")
        assert fleet.watch.paths["gpu-b"] == FULL
        assert fleet.watch.paths["gpu-a"] == fleet.watch.paths["gpu-c"] == [S.DONE]
        assert names.UPGRADE_REQUESTED not in fleet.node("gpu-b")["metadata"]["annotations"]
        await fleet.said("gpu-b", "upgrade-done -> upgrade-required", "an upgrade was requested")


@pytest.mark.parametrize("release", list(Release))
async def test_a_node_with_the_skip_label_is_left_until_it_is_gone(release: Release) -> None:
    async with World(release=release) as world:
        fleet = await start(world, **ALL)
        world.label("gpu-b", {names.UPGRADE_SKIP: "true"})
        fleet.edit(version=SECOND)
        await fleet.all_run(SECOND, ("gpu-a", "gpu-c"))
        assert fleet.state("gpu-b") == S.UPGRADE_REQUIRED
        assert fleet.cordoned() == []
        world.label("gpu-b", {names.UPGRADE_SKIP: None})
        await fleet.all_run(SECOND)


# --- changes in the middle --------------------------------------------------------------------------------------------


async def test_switched_off_in_the_middle_labels_go_and_cordons_stay() -> None:
    """3.12: and after it is switched on again the node stays cordoned, until a person takes that back."""
    async with World() as world:
        fleet = await amid(world)
        await fleet.comes_to(gpu_a=S.WAIT_FOR_JOBS_REQUIRED, gpu_b=S.UPGRADE_REQUIRED, gpu_c=S.UPGRADE_REQUIRED)
        fleet.edit(upgradePolicy={**ONE, **WAITS, "autoUpgrade": False})
        await fleet.comes_to(**dict.fromkeys(("gpu_a", "gpu_b", "gpu_c"), ""))
        await fleet.said("gpu-a", "stays cordoned", "kubectl uncordon gpu-a", type="Warning")
        assert fleet.cordoned() == ["gpu-a"]
        await fleet.until(
            lambda: names.DRIVER_UPGRADE_ENABLED not in fleet.node("gpu-a")["metadata"].get("annotations", {}),
            "the driver managers to be told",
        )
        release_job(fleet)
        fleet.edit(upgradePolicy={**ONE, **WAITS})
        await fleet.all_run(SECOND)
        assert fleet.cordoned() == ["gpu-a"]


async def test_a_second_change_is_picked_up_on_the_way() -> None:
    async with World() as world:
        fleet = await amid(world)
        fleet.edit(version=THIRD)
        release_job(fleet)
        await fleet.all_run(THIRD)
        assert fleet.watch.paths["gpu-a"] == FULL, "once is enough"
        assert fleet.cordoned() == []


async def test_a_node_that_goes_and_comes_again_holds_up_nobody() -> None:
    async with World() as world:
        fleet = await amid(world)
        world.leave("gpu-a")
        await fleet.all_run(SECOND, ("gpu-b", "gpu-c"))
        world.join("gpu-a", "plain")
        await fleet.all_run(SECOND)
        assert fleet.cordoned() == []


async def test_the_operator_may_die_in_the_middle() -> None:
    async with World() as world:
        fleet = await amid(world)
        await world.kill_operator()
        release_job(fleet)
        world.start_operator()
        await fleet.all_run(SECOND)
        assert {node: fleet.watch.paths[node] for node in NODES} == dict.fromkeys(NODES, FULL)
        assert fleet.cordoned() == []


async def test_a_node_that_was_cordoned_before_stays_so() -> None:
    async with World() as world:
        fleet = await start(world)
        fleet.api.patch(resources.NODES, "gpu-c", {"spec": {"unschedulable": True}}, type="merge", manager="kubectl")
        fleet.edit(version=SECOND)
        await fleet.all_run(SECOND)
        assert fleet.watch.paths["gpu-c"] == [*FULL[:-2], S.DONE]
        assert fleet.cordoned() == ["gpu-c"]
        assert names.UPGRADE_INITIAL_STATE not in fleet.node("gpu-c")["metadata"]["annotations"]


# --- bad input --------------------------------------------------------------------------------------------------------


async def test_a_label_of_nonsense_holds_up_its_node_only() -> None:
    async with World() as world:
        fleet = await start(world)
        world.label("gpu-a", {names.UPGRADE_STATE: "banana"})
        fleet.edit(version=SECOND)
        await fleet.all_run(SECOND, ("gpu-b", "gpu-c"))
        await fleet.held_up("UnknownUpgradeState", "node gpu-a", f"{names.UPGRADE_STATE}=banana")
        await fleet.said("gpu-a", "banana", "is no state of a driver upgrade", type="Warning")
        assert fleet.version("gpu-a") == "580.126.20"
        world.label("gpu-a", {names.UPGRADE_STATE: S.UPGRADE_REQUIRED})
        await fleet.all_run(SECOND)
        await fleet.until(lambda: fleet.condition() == ("", ""), "the condition to go")


async def test_a_limit_that_is_no_number_is_named_and_who_has_started_goes_on() -> None:
    async with World() as world:
        fleet = await amid(world)
        fleet.edit(upgradePolicy={**ONE, **WAITS, "maxUnavailable": "many"})
        await fleet.held_up("InvalidUpgradePolicy", "maxUnavailable", "'many'")
        release_job(fleet)
        await fleet.all_run(SECOND, ("gpu-a",))
        assert [fleet.state(node) for node in NODES[1:]] == [S.UPGRADE_REQUIRED] * 2
        assert fleet.cordoned() == []
        fleet.edit(upgradePolicy=ONE)
        await fleet.all_run(SECOND)
        await fleet.until(lambda: fleet.condition() == ("", ""), "the condition to go")


async def test_a_node_that_is_not_ready_stops_nobody_else() -> None:
    """A DaemonSet wants no pod where a node is not Ready, and the pod that is there stays: no reason to hold all."""
    async with World() as world:
        fleet = await start(world, **{**ONE, "maxUnavailable": 2})
        down = asyncio.create_task(world.lab.hollow.reboot("gpu-c", takes_s=3600.0))
        await fleet.until(lambda: len(fleet.unready()) == 1, "the node to be down")
        fleet.edit(version=SECOND)
        await fleet.all_run(SECOND, ("gpu-a", "gpu-b"))
        assert fleet.condition() == ("", "")
        down.cancel()


async def test_a_selector_that_is_none_is_named_and_keeps_no_node_cordoned_for_ever() -> None:
    bad = {**ONE, "waitForCompletion": {"podSelector": "a in (", "timeoutSeconds": 0}}
    async with World() as world:
        fleet = await start(world)
        fleet.edit(version=SECOND, upgradePolicy=bad)
        await fleet.comes_to(gpu_a=S.WAIT_FOR_JOBS_REQUIRED)
        await fleet.held_up("FactsMissing", "node gpu-a", "a in (")
        fleet.edit(upgradePolicy=ONE)
        await fleet.all_run(SECOND)
        assert fleet.cordoned() == []


async def test_limits_that_let_nobody_start_say_so() -> None:
    """maxUnavailable 0 with upgrades on is a contradiction that the administrator has to solve; nothing is cordoned."""
    async with World() as world:
        fleet = await start(world)
        fleet.edit(version=SECOND, upgradePolicy={**ONE, "maxUnavailable": 0})
        await fleet.comes_to(**dict.fromkeys(("gpu_a", "gpu_b", "gpu_c"), S.UPGRADE_REQUIRED.value))
        await fleet.held_up("NoNodeMayStart", "maxUnavailable 0")
        assert fleet.cordoned() == []
        fleet.edit(upgradePolicy=ONE)
        await fleet.all_run(SECOND)


# --- kernels ----------------------------------------------------------------------------------------------------------

OLD_KERNEL, MISSING_KERNEL = "6.8.0-60-generic", "6.11.0-29-generic"


async def test_a_precompiled_driver_that_there_is_not_for_a_kernel_holds_up_its_node_only() -> None:
    """6.6: a DaemonSet a kernel. A node that boots another kernel goes over to its, past the state machine (3.9)."""
    image = "nvcr.io/nvidia/driver"
    nodes = [
        NodeSpec("fine", gpus=(GpuSpec("H100"),), kernel=OLD_KERNEL),
        NodeSpec(
            "lacks",
            gpus=(GpuSpec("H100"),),
            kernel=MISSING_KERNEL,
            missing_images=(f"{image}:595-{MISSING_KERNEL}-ubuntu24.04",),
        ),
    ]
    document = policy_document()
    document["spec"]["driver"] |= {"usePrecompiled": True, "version": "595"}
    document["spec"]["migManager"]["enabled"] = False
    async with Lab(nodes, speed=120.0, operator_on_cluster_time=True) as lab:
        api = lab.api

        def pods(node: str) -> list[dict[str, Any]]:
            labels = f"{names.COMPONENT_LABEL}={names.DRIVER_COMPONENT}"
            found = api.list(resources.PODS, OPERATOR_NAMESPACE, labels=labels, fields=f"spec.nodeName={node}")
            return list(found["items"])

        def up(node: str, kernel: str) -> bool:
            """Whether a driver for a kernel is ready on a node, and the node is done."""
            ready = [
                kernel in pod["spec"]["containers"][0]["image"]
                for pod in pods(node)
                for each in pod["status"].get("conditions") or ()
                if each["type"] == "Ready" and each["status"] == "True"
            ]
            return ready == [True] and api.get(resources.NODES, node)["metadata"]["labels"].get(
                names.UPGRADE_STATE
            ) == str(S.DONE)

        def condition() -> str:
            policy = api.get(api.resource("clusterpolicies", group=names.GROUP), POLICY)
            conditions = policy.get("status", {}).get("conditions") or ()
            return "; ".join(each["message"] for each in conditions if each["status"] == "True")

        await lab.apply([document])
        await lab.wait_until(lambda: up("fine", OLD_KERNEL), timeout_s=60.0, what="the node whose driver there is")
        image_named = f"{image}:595-{MISSING_KERNEL}-ubuntu24.04"
        await lab.wait_until(
            lambda: "ImagePull" in condition() and image_named in condition() and "(lacks)" in condition(),
            timeout_s=60.0,
            what=f"a condition that names the image and the node; it is {condition()!r}",
        )
        assert not api.get(resources.NODES, "lacks")["spec"].get("unschedulable")
        old = {pod["metadata"]["ownerReferences"][0]["name"] for pod in pods("lacks")}
        await lab.reboot_node("lacks", kernel=OLD_KERNEL)
        await lab.wait_until(lambda: up("lacks", OLD_KERNEL), timeout_s=60.0, what="the driver for the new kernel")
        new = {pod["metadata"]["ownerReferences"][0]["name"] for pod in pods("lacks")}
        assert new != old
        assert new == {pod["metadata"]["ownerReferences"][0]["name"] for pod in pods("fine")}
        await lab.wait_until(lambda: lab.policy_state() == "ready", timeout_s=60.0, what="the policy to be ready")
        left = api.list(resources.DAEMON_SETS, OPERATOR_NAMESPACE)["items"]
        assert old.isdisjoint(each["metadata"]["name"] for each in left), "no node runs its kernel any more"
