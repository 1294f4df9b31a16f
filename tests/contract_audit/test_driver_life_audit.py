"""The driver's life held against its contracts by their text alone: what was found wrong, under the shipped operator.

contracts/driver-lifecycle.md (sections are named at the tests) and contracts/control-plane.md 2 ("2.x").
"""

import copy

import pytest
from e2e.driver_cluster import NODES, TEAM, TEAMS, Document, driver, start, states
from e2e.world import POLICY, World, policy_document

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE
from groundplane.lab.resources import Resource

PATIENCE_S = 40.0
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
UNREADABLE = {"driverType": 7, "upgradePolicy": "yes"}


def crds(world: World) -> Resource:
    return world.lab.api.resource("customresourcedefinitions", group="apiextensions.k8s.io")


def accept_anything(world: World) -> None:
    """Replace the CRD of NVIDIADriver by one without a schema, as an older or a hand-made one may be."""
    document = copy.deepcopy(world.lab.api.get(crds(world), "nvidiadrivers.nvidia.com"))
    for version in document["spec"]["versions"]:
        version["schema"] = {"openAPIV3Schema": ANYTHING}
    world.lab.api.update(crds(world), document)


def images(world: World) -> set[str]:
    """The driver images that run."""
    pods = world.lab.api.list(resources.PODS, OPERATOR_NAMESPACE)["items"]
    drivers = (names.COMPONENT_LABEL, names.DRIVER_COMPONENT)
    return {pod["spec"]["containers"][0]["image"] for pod in pods if drivers in pod["metadata"]["labels"].items()}


def marked(world: World) -> set[str]:
    """The nodes whose driver manager leaves eviction to the operator."""
    nodes = world.lab.api.list(resources.NODES)["items"]
    return {
        node["metadata"]["name"]
        for node in nodes
        if names.DRIVER_UPGRADE_ENABLED in (node["metadata"].get("annotations") or {})
    }


def node_patches(world: World) -> int:
    return world.lab.faults.count("patch", "nodes", user_agent="gpu-operator")


def condition(world: World, kind: str) -> Document:
    policy = world.lab.api.get(world.lab.api.resource("clusterpolicies", group=names.GROUP), POLICY)
    return next((each for each in policy["status"]["conditions"] if each["type"] == kind), {})


async def upgraded(world: World, version: str) -> None:
    """Wait until every node has the driver, and nothing is left of its upgrade."""

    def done() -> bool:
        nodes = world.lab.api.list(resources.NODES)["items"]
        return (
            {image.rpartition(":")[2].partition("-")[0] for image in images(world)} == {version}
            and set(states(world).values()) == {"upgrade-done"}
            and not any(node["spec"].get("unschedulable") for node in nodes)
        )

    await world.lab.wait_until(done, timeout_s=PATIENCE_S, what=f"driver {version} on every node")


# --- owners (2.3) -----------------------------------------------------------------------------------------------------


async def test_2_3_nodes_lose_their_owner_with_the_last_driver() -> None:
    async with World() as world:
        cluster = await start(world)
        await cluster.create(driver("main", default=True))
        assert marked(world) == set(NODES)
        await cluster.delete("main")
        assert cluster.owners() == {}
        assert marked(world) == set()
        assert set(states(world).values()) == {""}


async def test_2_3_nodes_lose_their_owner_with_the_crd_and_get_it_back() -> None:
    async with World() as world:
        cluster = await start(world)
        await cluster.create(driver("main", default=True))
        document = world.lab.api.get(crds(world), "nvidiadrivers.nvidia.com")
        world.lab.api.delete(crds(world), "nvidiadrivers.nvidia.com")
        await world.at_rest()
        assert cluster.owners() == {}
        fresh = {
            key: document["metadata"][key] for key in ("name", "labels", "annotations") if key in document["metadata"]
        }
        world.lab.api.create(crds(world), {**document, "metadata": fresh, "status": {}})
        await world.at_rest()
        await cluster.create(driver("main", default=True))
        assert cluster.owners() == dict.fromkeys(NODES, "main")
        assert cluster.status("main")[0] == "ready"


async def test_2_3_a_restart_finds_the_labels_of_a_driver_that_went_meanwhile() -> None:
    async with World() as world:
        cluster = await start(world)
        await cluster.create(driver("main", default=True))
        await world.kill_operator()
        world.lab.api.delete(world.lab.api.resource("nvidiadrivers", group=names.GROUP), "main")
        world.start_operator()
        await world.at_rest()
        assert cluster.owners() == {}


# --- drivers that are put off (2.2, 2.5) ------------------------------------------------------------------------------


@pytest.mark.parametrize("release", Release)
async def test_2_5_handed_back_the_driver_says_that_its_pods_stay_and_may_be_taken_up_again(release: Release) -> None:
    async with World(release=release) as world:
        cluster = await start(world)
        await cluster.create(driver("main", **({"default": True} if release is Release.V26_7 else {})))
        before = cluster.drivers_on(), cluster.owners()
        world.edit_policy(POLICY, "driver", "useNvidiaDriverCRD", False)
        await world.at_rest()
        state, reason, message = cluster.status("main")
        assert (state, reason) == ("disabled", "Reconciled")
        assert "its driver pods stay" in message
        assert (cluster.drivers_on(), cluster.owners()) == before, "no objects are touched"
        assert world.lab.policy_state() == "notReady"
        world.edit_policy(POLICY, "driver", "useNvidiaDriverCRD", True)
        await world.at_rest()
        assert (cluster.drivers_on(), cluster.owners()) == before
        assert cluster.status("main")[0] == world.lab.policy_state() == "ready"


async def test_2_5_handed_back_for_good_nothing_of_the_driver_is_left() -> None:
    async with World() as world:
        cluster = await start(world)
        await cluster.create(driver("main", default=True))
        world.edit_policy(POLICY, "driver", "useNvidiaDriverCRD", False)
        await world.at_rest()
        await cluster.delete("main")
        assert cluster.owners() == {}
        assert cluster.drivers_on() == {node: [POLICY] for node in NODES}
        assert world.lab.policy_state() == "ready"


async def test_2_2_beside_a_gpu_cluster_the_driver_says_why_it_is_left_alone() -> None:
    async with World() as world:
        cluster = await start(world)
        await cluster.create(driver("main", default=True))
        kind = {"plural": "gpuclusters", "singular": "gpucluster", "kind": "GPUCluster", "listKind": "GPUClusterList"}
        version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANYTHING}}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "gpuclusters.nvidia.com"},
            "spec": {"group": "nvidia.com", "scope": "Cluster", "names": kind, "versions": [version]},
        }
        await world.lab.apply([definition])
        await world.at_rest()
        other = {"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster", "metadata": {"name": "gc"}, "spec": {}}
        await world.lab.apply([other])
        await world.at_rest()
        before = cluster.drivers_on(), cluster.owners(), images(world)
        await cluster.edit("main", version="581.1")
        state, reason, message = cluster.status("main")
        assert (state, reason) == ("notReady", "ReconcileFailed")
        assert "GPUCluster 'gc'" in message
        assert (cluster.drivers_on(), cluster.owners(), images(world)) == before
        world.lab.api.delete(world.lab.api.resource("gpuclusters", group=names.GROUP), "gc")
        await upgraded(world, "581.1")
        await world.at_rest()
        assert cluster.status("main")[0] == "ready"


# --- drivers that cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", Release)
async def test_1_2_the_policys_drivers_are_upgraded_whatever_nvidiadrivers_there_are(release: Release) -> None:
    async with World(release=release) as world:
        cluster = await start(world, crd=False)
        accept_anything(world)
        await cluster.create({**driver("bad"), "spec": UNREADABLE})
        world.edit_policy(POLICY, "driver", "version", "596.1")
        await upgraded(world, "596.1")


async def test_1_3_an_nvidiadriver_that_cannot_be_read_holds_up_no_other_and_is_told() -> None:
    """Its own nodes stay as they are, and keep their mark; no node changes hands."""
    async with World() as world:
        cluster = await start(world, TEAMS)
        await cluster.create(driver("rest", default=True), driver("red", nodeSelector={TEAM: "red"}))
        owners, runs = cluster.owners(), cluster.drivers_on()
        accept_anything(world)
        world.label("gpu-a", {names.UPGRADE_STATE: "validation-required"})
        nvidiadrivers = world.lab.api.resource("nvidiadrivers", group=names.GROUP)
        live = world.lab.api.get(nvidiadrivers, "red")
        world.lab.api.update(nvidiadrivers, {**live, "spec": UNREADABLE})
        await world.at_rest()
        assert cluster.status("red")[1] == "ReconcileFailed"
        assert "spec.driverType" in cluster.status("red")[2]
        assert "red" in cluster.status("rest")[2]
        assert (cluster.owners(), cluster.drivers_on()) == (owners, runs)
        assert marked(world) == set(NODES), "what is not known is not taken back"
        held = condition(world, "DriverUpgradeHeldUp")
        assert held["reason"] == "NVIDIADriverUnreadable"
        assert "NVIDIADriver red cannot be read" in held["message"]
        world.label("gpu-b", {names.UPGRADE_STATE: "upgrade-required"})
        await world.lab.wait_until(
            lambda: states(world)["gpu-b"] == "upgrade-done", timeout_s=PATIENCE_S, what="a node of the other driver"
        )


# --- orphans (3.9) ----------------------------------------------------------------------------------------------------


async def test_3_9_an_orphan_whose_driver_is_not_upgraded_is_not_marked_over_and_over() -> None:
    """1.3 takes the label off again at once: marking it would go on for ever."""
    async with World() as world:
        cluster = await start(world, TEAMS, crd=False)
        off = {"autoUpgrade": False}
        await cluster.create(driver("on", default=True), driver("red", nodeSelector={TEAM: "red"}, upgradePolicy=off))
        world.edit_policy(POLICY, "driver", "useNvidiaDriverCRD", True)
        await world.at_rest()
        assert cluster.drivers_on() == {"gpu-a": ["(orphan)"], "gpu-b": ["on"], "gpu-c": ["on"]}
        assert states(world) == {"gpu-a": "", "gpu-b": "upgrade-done", "gpu-c": "upgrade-done"}
        patches = node_patches(world)
        await world.lab.clock.sleep(150.0)
        assert node_patches(world) == patches
        await cluster.edit("red", upgradePolicy={"autoUpgrade": True})
        await world.lab.wait_until(
            lambda: cluster.drivers_on() == {"gpu-a": ["red"], "gpu-b": ["on"], "gpu-c": ["on"]},
            timeout_s=PATIENCE_S,
            what="the orphan to be replaced once it may be",
        )


# --- events (3.13) ----------------------------------------------------------------------------------------------------


async def test_3_13_a_node_that_stays_where_it_is_gets_one_event_and_no_pass_after_pass() -> None:
    """Every repeat would cost a request, and take an event from the few that a node may produce."""
    async with World() as world:
        cluster = await start(world, crd=False)
        world.label("gpu-b", {names.UPGRADE_STATE: "banana"})

        def told() -> list[Document]:
            events = world.lab.api.list(resources.EVENTS)["items"]
            return [each for each in events if each["involvedObject"]["name"] == "gpu-b" and each["type"] == "Warning"]

        await world.lab.wait_until(lambda: bool(told()), timeout_s=PATIENCE_S, what="the event")
        await world.at_rest()
        before = world.lab.faults.count(user_agent="gpu-operator")
        for _ in range(3):  # what others do starts passes, which find the same
            await world.lab.clock.sleep(20.0)
            world.label("gpu-a", {names.UPGRADE_SKIP: "true"})
            await world.lab.clock.sleep(20.0)
            world.label("gpu-a", {names.UPGRADE_SKIP: None})
        await world.at_rest()
        (event,) = told()
        assert (event["reason"], event["source"]["component"]) == ("GPUDriverUpgrade", "nvidia-gpu-operator")
        assert (event["metadata"]["namespace"], event["count"]) == ("default", 1)
        assert world.lab.faults.count(user_agent="gpu-operator") == before
        held = condition(world, "DriverUpgradeHeldUp")
        assert held["reason"] == "UnknownUpgradeState"
        assert cluster.drivers_on() == {node: [POLICY] for node in NODES}


async def test_3_13_that_a_driver_pod_is_being_replaced_is_no_problem_to_tell() -> None:
    async with World() as world:
        await start(world, crd=False)
        reasons: set[str] = set()

        def watch(*_: object) -> None:
            reasons.add(condition(world, "DriverUpgradeHeldUp").get("reason", ""))

        world.lab.api.on_change(world.lab.api.resource("clusterpolicies", group=names.GROUP), watch)
        world.edit_policy(POLICY, "driver", "version", "596.1")
        await upgraded(world, "596.1")
        await world.at_rest()
        assert reasons == {""}


async def test_3_13_a_driver_pod_that_cannot_be_deleted_has_an_event_of_its_own() -> None:
    async with World() as world:
        await start(world, crd=False)
        world.fault("delete", "pods", 500, 3)
        world.edit_policy(POLICY, "driver", "version", "596.1")
        await upgraded(world, "596.1")
        await world.at_rest()
        events = world.lab.api.list(resources.EVENTS)["items"]
        told = [each for each in events if each["involvedObject"]["kind"] == "Pod" and each["type"] == "Warning"]
        assert told
        assert {(each["reason"], each["metadata"]["namespace"]) for each in told} == {
            ("GPUDriverUpgrade", OPERATOR_NAMESPACE)
        }
        assert all(each["involvedObject"]["name"].startswith("nvidia-driver-daemonset-") for each in told)
        assert all("Cannot delete the driver pod" in each["message"] for each in told)


# --- the annotation (2, 3.3) ------------------------------------------------------------------------------------------


async def test_2_a_restart_takes_no_mark_off_a_node_before_the_drivers_are_known() -> None:
    """A driver manager that found it missing in that moment would evict by itself."""
    async with World() as world:
        cluster = await start(world)
        await cluster.create(driver("main", default=True))
        assert marked(world) == set(NODES)
        lost: set[str] = set()

        def watch(*_: object) -> None:
            lost.update(set(NODES) - marked(world))

        await world.kill_operator()
        world.lab.api.on_change(resources.NODES, watch)
        world.fault("list", "nvidiadrivers", 500, 3)
        world.start_operator()
        await world.at_rest()
        await world.lab.wait_until(
            lambda: bool(world.lab.operator and world.lab.operator.idle), timeout_s=PATIENCE_S, what="the operator"
        )
        assert lost == set()
        assert cluster.status("main")[0] == "ready"


# --- GPU pods (3.11) --------------------------------------------------------------------------------------------------


async def test_3_11_the_pods_of_many_nodes_are_listed_once_and_each_node_is_judged_by_its_own() -> None:
    """A listing by node costs the API server about as much as one of all nodes."""
    many = [f"gpu-{number:02d}" for number in range(20)]
    async with World() as world:
        for name in many:
            world.join(name, "plain")
        await world.create_policy(policy_document())
        world.edit_policy(
            POLICY, "driver", "upgradePolicy", {"autoUpgrade": True, "maxParallelUpgrades": 0, "maxUnavailable": "100%"}
        )
        world.start_operator()
        await world.at_rest()
        for name, node, limits in (("user", many[3], {"nvidia.com/gpu": "1"}), ("other", many[4], {})):
            container = {"name": "c", "image": "i", "resources": {"limits": limits}}
            body = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
            world.lab.api.create(resources.PODS, {"apiVersion": "v1", "kind": "Pod", **body}, "default")
        await world.at_rest()
        before = world.lab.faults.count("list", "pods", user_agent="gpu-operator")
        world.edit_policy(POLICY, "driver", "version", "596.1")
        expected = {**dict.fromkeys(many, "upgrade-done"), many[3]: "upgrade-failed"}
        await world.lab.wait_until(
            lambda: states(world, many) == expected and len(images(world)) == 2,
            timeout_s=PATIENCE_S,
            what="all but the node whose GPU pod may not go",
        )
        assert world.lab.faults.count("list", "pods", user_agent="gpu-operator") - before < len(many)
        left = {each["metadata"]["name"] for each in world.lab.api.list(resources.PODS, "default")["items"]}
        assert left == {"user", "other"}


async def test_3_11_a_failed_node_is_told_in_the_policys_conditions_as_long_as_it_stays_cordoned() -> None:
    """Events are forgotten after an hour; which nodes take the slots must not be (user-facing problem 3)."""
    async with World() as world:
        await start(world, crd=False)
        container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        body = {"metadata": {"name": "user"}, "spec": {"nodeName": "gpu-a", "containers": [container]}}
        world.lab.api.create(resources.PODS, {"apiVersion": "v1", "kind": "Pod", **body}, "default")
        world.edit_policy(POLICY, "driver", "version", "596.1")
        await world.lab.wait_until(
            lambda: condition(world, "DriverUpgradeHeldUp").get("reason") == "DriverUpgradeFailed",
            timeout_s=PATIENCE_S,
            what="the failed node to be told",
        )
        message = condition(world, "DriverUpgradeHeldUp")["message"]
        assert message.startswith("node gpu-a: its upgrade failed: ")
        assert "kubectl label node gpu-a --overwrite" in message
        assert states(world) == {"gpu-a": "upgrade-failed", "gpu-b": "upgrade-required", "gpu-c": "upgrade-required"}
        world.lab.api.delete(resources.PODS, "user", "default", grace_period_s=0)
        world.label("gpu-a", {names.UPGRADE_STATE: "upgrade-required"})
        await upgraded(world, "596.1")
        await world.lab.wait_until(
            lambda: condition(world, "DriverUpgradeHeldUp") == {}, timeout_s=PATIENCE_S, what="nothing to be told"
        )
