"""Driver upgrades with the shipped operator: the lab's scenario, small, and what may go wrong, one by one."""

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import pytest
from e2e.world import POLICY, World, policy_document

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.api import Api
from groundplane.lab.clock import LabClock
from groundplane.lab.cluster import OPERATOR_NAMESPACE, OPERATOR_USER_AGENT
from groundplane.lab.scenarios import driver_upgrade, objects
from groundplane.lab.scenarios.upgradewatch import Limits, UpgradeWatch
from groundplane.operator.upgrade.states import State

Document = dict[str, Any]

S = State
NODES = ("gpu-a", "gpu-b", "gpu-c")
DONE = dict.fromkeys(NODES, S.DONE.value)
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
PATIENCE_S = 60.0
SECOND, THIRD = "590.44.01", "595.91.07"
ONE = {"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": "50%"}
ALL = {"autoUpgrade": True, "maxParallelUpgrades": 0, "maxUnavailable": "100%"}
WAITS = {"waitForCompletion": {"podSelector": "wait=for-it", "timeoutSeconds": 0}}


class Fleet:
    """Three nodes without programs and a watch on their states."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = world.lab.api
        self.watch = UpgradeWatch(Limits(parallel=0, unavailable=len(NODES)))
        self.watch.follow(self.api)

    # --- doing --------------------------------------------------------------------------------------------------------

    def edit(self, **driver: Any) -> None:
        """Change fields of ``spec.driver``."""
        for field, value in driver.items():
            self.world.edit_policy(POLICY, "driver", field, value)

    def pod(self, name: str, node: str, **labels: str) -> None:
        """A pod of nobody's that runs on a node until it is deleted."""
        spec = {"nodeName": node, "containers": [{"name": "c", "image": objects.IMAGE}]}
        meta = {"name": name, "namespace": "default", "labels": labels}
        self.api.create(resources.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")

    def annotate(self, node: str, changes: Mapping[str, str | None]) -> None:
        """Set or remove annotations of a node."""
        patch = {"metadata": {"annotations": dict(changes)}}
        self.api.patch(resources.NODES, node, patch, type="merge", manager="kubectl-annotate")

    # --- looking ------------------------------------------------------------------------------------------------------

    async def until(self, done: Any, what: str) -> None:
        """Wait until ``done()`` holds."""
        await self.world.lab.wait_until(done, timeout_s=PATIENCE_S, what=f"{what}; states {self.watch.paths}")

    async def comes_to(self, **wanted: str) -> None:
        """Wait until nodes are in states; a name has ``_`` for ``-``."""
        nodes = {name.replace("_", "-"): state for name, state in wanted.items()}
        await self.until(lambda: all(self.state(node) == state for node, state in nodes.items()), f"nodes in {nodes}")

    async def all_run(self, version: str, nodes: tuple[str, ...] = NODES) -> None:
        """Wait until drivers of a version run on nodes, and these are done."""

        def done() -> bool:
            states = [self.state(node) for node in nodes]
            return states == [S.DONE] * len(nodes) and all(self.version(node) == version for node in nodes)

        await self.until(done, f"{version} on {nodes}")

    def node(self, name: str) -> Document:
        """A node."""
        return self.api.get(resources.NODES, name)

    def state(self, name: str) -> str:
        """A node's state."""
        return self.watch.state(name)

    def cordoned(self) -> list[str]:
        """The nodes that are not schedulable."""
        return [name for name in NODES if self.api.find(resources.NODES, name) and self._is_cordoned(name)]

    def _is_cordoned(self, name: str) -> bool:
        return bool(self.node(name)["spec"].get("unschedulable"))

    def unready(self) -> list[str]:
        """The nodes that are not Ready."""
        return [
            name
            for name in NODES
            for each in self.node(name)["status"]["conditions"]
            if each["type"] == "Ready" and each["status"] != "True"
        ]

    def driver(self, node: str) -> Document | None:
        """The driver pod that runs on a node."""
        for pod in self.api.list(resources.PODS, OPERATOR_NAMESPACE, fields=f"spec.nodeName={node}")["items"]:
            meta = pod["metadata"]
            if meta["labels"].get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT:
                return None if meta.get("deletionTimestamp") else dict(pod)
        return None

    def version(self, node: str) -> str:
        """The version of the driver on a node; empty while there is none."""
        pod = self.driver(node)
        image = pod["spec"]["containers"][0]["image"] if pod else ""
        return str(image).rpartition(":")[2].partition("-")[0]

    def events(self, node: str) -> list[tuple[str, str]]:
        """Type and message of what the upgrade has said about a node."""
        events = self.api.list(resources.EVENTS, "default")["items"]
        found = [each for each in events if each["reason"] == "GPUDriverUpgrade"]
        return [(each["type"], each["message"]) for each in found if each["involvedObject"]["name"] == node]

    async def said(self, node: str, *texts: str, type: str = "Normal") -> None:
        """Wait for an event about a node that has all texts."""

        def done() -> bool:
            return any(kind == type and all(text in said for text in texts) for kind, said in self.events(node))

        await self.until(done, f"an event about {node} with {texts}, there are {self.events(node)}")

    def condition(self) -> tuple[str, str]:
        """Reason and message of the policy's condition that upgrades are held up; empty without it."""
        policy = self.api.get(self.api.resource("clusterpolicies", group=names.GROUP), POLICY)
        for each in policy.get("status", {}).get("conditions") or ():
            if each["type"] == "DriverUpgradeHeldUp" and each["status"] == "True":
                return each["reason"], each["message"]
        return "", ""

    async def held_up(self, reason: str, *texts: str) -> None:
        """Wait until the policy says that upgrades are held up."""

        def done() -> bool:
            found = self.condition()
            return found[0] == reason and all(text in found[1] for text in texts)

        await self.until(done, f"condition {reason} with {texts}, it is {self.condition()}")


async def start(world: World, **upgrade: Any) -> Fleet:
    """Three nodes whose driver is up to date."""
    for name in NODES:
        world.join(name, "plain")
    document = policy_document(file="26.3.3-default.yaml" if world.release is Release.V26_3 else "26.7.0-default.yaml")
    document["spec"]["driver"]["version"] = "580.126.20"
    document["spec"]["driver"]["upgradePolicy"] = copy.deepcopy(upgrade or ONE)
    await world.create_policy(document)
    world.start_operator()
    await world.at_rest()
    fleet = Fleet(world)
    assert fleet.watch.states() == DONE
    return fleet


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


async def amid(world: World, node: str = "gpu-a", **more: Any) -> Fleet:
    """A fleet whose first node waits for a pod in the middle of its upgrade, and so the others for a slot."""
    fleet = await start(world, **{**ONE, **WAITS, **more})
    fleet.pod("job", node, wait="for-it")
    fleet.edit(version=SECOND)
    await fleet.comes_to(**{node.replace("-", "_"): S.WAIT_FOR_JOBS_REQUIRED})
    return fleet


def release_job(fleet: Fleet) -> None:
    """The pod that is waited for ends."""
    fleet.api.delete(resources.PODS, "job", "default", grace_period_s=0)


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
