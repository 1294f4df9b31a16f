"""NVIDIADrivers with the shipped operator: nodes have owners, drivers have DaemonSets and a status, and may change."""

import pytest
from e2e.driver_cluster import NODES, TEAM, TEAMS, Document, driver, start, states
from e2e.world import POLICY, World

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE, Lab, data
from groundplane.lab.nodes import GpuSpec, NodeSpec

PATIENCE_S = 90.0


def image(version: str) -> str:
    return f"nvcr.io/nvidia/driver:{version}-ubuntu24.04"


REST = image("580.126.20")
"""What a driver is of which no version is given."""


def driver_pods(lab: Lab) -> list[Document]:
    pods = lab.api.list(resources.PODS, OPERATOR_NAMESPACE)["items"]
    of_drivers = (names.COMPONENT_LABEL, names.DRIVER_COMPONENT)
    return [each for each in pods if of_drivers in each["metadata"].get("labels", {}).items()]


def images(lab: Lab) -> dict[str, str]:
    """The driver image by node, of pods whose every container is ready."""
    return {
        each["spec"]["nodeName"]: each["spec"]["containers"][0]["image"]
        for each in driver_pods(lab)
        if all(status["ready"] for status in each.get("status", {}).get("containerStatuses", [{"ready": False}]))
    }


def probe_owners(lab: Lab) -> list[str]:
    probe = lab.api.get(resources.CONFIG_MAPS, "nvidia-driver-startup-probe", OPERATOR_NAMESPACE)
    return [each["name"] for each in probe["metadata"]["ownerReferences"]]


async def test_the_default_driver_gets_every_node() -> None:
    async with World() as world:
        cluster = await start(world)
        assert world.lab.policy_state() == "ready"
        await cluster.create(driver("main", default=True))
        assert cluster.owners() == dict.fromkeys(NODES, "main")
        assert cluster.status("main") == ("ready", "Reconciled", "All resources have been reconciled")
        assert cluster.drivers_on() == {node: ["main"] for node in NODES}
        assert world.lab.policy_state() == "ready"
        node = world.lab.api.get(resources.NODES, "gpu-a")
        assert node["metadata"]["annotations"][names.DRIVER_UPGRADE_ENABLED] == "true"
        assert node["metadata"]["labels"][names.UPGRADE_STATE] == "upgrade-done"


async def test_labels_of_the_users_choice_select_nodes_also_when_they_come_late() -> None:
    async with World() as world:
        cluster = await start(world, TEAMS)
        red = driver("red", nodeSelector={TEAM: "red"}, version="595.91.07")
        await cluster.create(driver("rest", default=True), red)
        assert cluster.owners() == {"gpu-a": "red", "gpu-b": "rest", "gpu-c": "rest"}
        world.wish("gpu-c", {TEAM: "red"})
        await world.at_rest()
        assert cluster.owners() == {"gpu-a": "red", "gpu-b": "rest", "gpu-c": "red"}
        assert cluster.drivers_on() == {"gpu-a": ["red"], "gpu-b": ["rest"], "gpu-c": ["red"]}
        assert images(world.lab) == {"gpu-a": image("595.91.07"), "gpu-b": REST, "gpu-c": image("595.91.07")}
        assert probe_owners(world.lab) == ["red", "rest"]
        assert cluster.status("red")[0] == cluster.status("rest")[0] == "ready"
        await cluster.delete("red")
        assert cluster.owners() == dict.fromkeys(NODES, "rest")
        assert set(cluster.daemon_sets()) == {"rest"}
        assert images(world.lab) == dict.fromkeys(NODES, REST)
        assert probe_owners(world.lab) == ["rest"]


async def test_a_conflict_changes_no_node_and_names_both() -> None:
    async with World() as world:
        cluster = await start(world, TEAMS)
        await cluster.create(driver("red", nodeSelector={TEAM: "red"}), driver("blue", nodeSelector={TEAM: "blue"}))
        before = cluster.owners(), cluster.drivers_on()
        assert before[0] == {"gpu-a": "red", "gpu-b": "blue"}
        await cluster.create(driver("greedy"))
        for name in ("red", "blue", "greedy"):
            state, reason, message = cluster.status(name)
            assert (state, reason) == ("notReady", "ConflictingNodeSelector")
            assert "node gpu-a: [greedy red]" in message
        assert (cluster.owners(), cluster.drivers_on()) == before
        await cluster.delete("greedy")
        assert {cluster.status(name)[0] for name in ("red", "blue")} == {"ready"}
        await cluster.create(driver("first", default=True), driver("second", default=True))
        assert cluster.status("red")[:2] == ("notReady", "ReconcileFailed")
        assert "[first second]" in cluster.status("red")[2]
        assert (cluster.owners(), cluster.drivers_on()) == before


async def test_drivers_that_contradict_each_other_from_the_start_wait_for_a_correction() -> None:
    async with World() as world:
        cluster = await start(world, TEAMS)
        await cluster.create(driver("a", nodeSelector={TEAM: "red"}), driver("b", nodeSelector={TEAM: "red"}))
        for name in ("a", "b"):
            assert cluster.status(name)[1] == "ConflictingNodeSelector"
            assert "select node gpu-a: [a b]" in cluster.status(name)[2]
        assert cluster.owners() == cluster.drivers_on() == cluster.daemon_sets() == {}
        await cluster.edit("b", nodeSelector={TEAM: "nobody"})
        assert cluster.owners() == {"gpu-a": "a"}
        assert cluster.drivers_on() == {"gpu-a": ["a"]}
        assert cluster.status("a")[0] == cluster.status("b")[0] == "ready", "also the one without nodes"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"usePrecompiled": True, "version": "580", "gds": {"enabled": True}}, "usePrecompiled"),
        ({"gds": {"enabled": True, "repository": "r", "image": "i", "version": "v2.20.5"}}, "kernelModuleType"),
        ({"secretEnv": "not-there"}, "not-there"),
        ({"repository": None, "version": None}, "driver"),
    ],
    ids=["precompiled with GDS", "GDS with closed modules", "a Secret that is missing", "an image without a tag"],
)
async def test_a_driver_that_cannot_be_says_why_and_holds_up_no_other(spec: Document, said: str) -> None:
    async with World() as world:
        cluster = await start(world, TEAMS)
        await cluster.create(driver("good", default=True), driver("bad", nodeSelector={TEAM: "red"}, **spec))
        state, reason, message = cluster.status("bad")
        assert (state, reason) == ("notReady", "ReconcileFailed")
        assert said in message
        assert cluster.status("good")[0] == "ready"
        assert set(cluster.daemon_sets()) == {"good"}
        assert cluster.drivers_on() == {"gpu-b": ["good"], "gpu-c": ["good"]}


async def test_without_the_switch_drivers_are_disabled() -> None:
    async with World() as world:
        cluster = await start(world, crd=False)
        await cluster.create(driver("main", default=True))
        state, reason, message = cluster.status("main")
        assert (state, reason) == ("disabled", "Reconciled")
        assert "useNvidiaDriverCRD" in message
        assert cluster.owners() == {}
        assert cluster.daemon_sets() == {POLICY: ["nvidia-driver-daemonset"]}


async def test_handing_over_replaces_one_driver_at_a_time() -> None:
    """driver-lifecycle 3.9: the running drivers are orphaned, marked, and replaced as in any upgrade."""
    async with World() as world:
        cluster = await start(world, crd=False)
        await cluster.create(driver("main", default=True))
        assert cluster.drivers_on() == {node: [POLICY] for node in NODES}
        api, down, owned = world.lab.api, set[frozenset[str]](), set[str]()

        def watch(*_: object) -> None:
            on = cluster.drivers_on()
            down.add(frozenset(set(NODES) - set(on)))
            owned.update(what for some in on.values() for what in some)

        api.on_change(resources.PODS, watch)
        world.edit_policy(POLICY, "driver", "useNvidiaDriverCRD", True)
        await world.at_rest()
        assert cluster.drivers_on() == {node: ["main"] for node in NODES}
        assert {len(each) for each in down} <= {0, 1}, "never is more than one node without its driver"
        assert "(orphan)" in owned
        assert world.lab.policy_state() == "ready"
        assert states(world) == dict.fromkeys(NODES, "upgrade-done")
        assert not any(node["spec"].get("unschedulable") for node in api.list(resources.NODES)["items"])


async def test_handing_over_survives_a_restart_in_the_middle() -> None:
    async with World() as world:
        cluster = await start(world, crd=False)
        await cluster.create(driver("main", default=True))
        world.edit_policy(POLICY, "driver", "useNvidiaDriverCRD", True)
        await world.lab.wait_until(
            lambda: any(state not in ("", "upgrade-done") for state in states(world).values()),
            timeout_s=60.0,
            what="a node to be upgraded",
        )
        await world.kill_operator()
        world.start_operator()
        await world.at_rest()
        assert cluster.drivers_on() == {node: ["main"] for node in NODES}
        assert states(world) == dict.fromkeys(NODES, "upgrade-done")


async def test_2_5_with_the_shipped_driver_manager_and_only_its_rights_drivers_are_handed_over_node_by_node() -> None:
    machines = [NodeSpec(f"gpu-{number}", (GpuSpec("A30"),)) for number in range(2)]
    async with Lab(machines, rbac=True) as lab:
        policies = lab.api.resource("clusterpolicies", group=names.GROUP)
        nvidiadrivers = lab.api.resource("nvidiadrivers", group=names.GROUP)

        def status() -> Document:
            return (lab.api.find(nvidiadrivers, "all") or {}).get("status", {})

        await lab.apply([data("guide-baseline.yaml"), driver("all", default=True)])
        by_policy = dict.fromkeys(("gpu-0", "gpu-1"), image("595.91.07"))
        await lab.wait_until(lambda: images(lab) == by_policy, timeout_s=PATIENCE_S, what="the policy's driver")
        await lab.wait_ready(timeout_s=PATIENCE_S)
        await lab.wait_until(
            lambda: status().get("state") == "disabled", timeout_s=PATIENCE_S, what="the driver to be off"
        )
        fewest = 2

        def taken_over() -> bool:
            nonlocal fewest
            found = images(lab)
            fewest = min(fewest, len(found))
            return found == dict.fromkeys(("gpu-0", "gpu-1"), REST)

        switched = {"spec": {"driver": {"useNvidiaDriverCRD": True}}}
        lab.api.patch(policies, "cluster-policy", switched, type="merge")
        await lab.wait_until(taken_over, timeout_s=PATIENCE_S, what="both nodes to have the new driver")
        assert fewest >= 1, "both drivers were down at once"
        await lab.wait_until(lambda: status().get("state") == "ready", timeout_s=PATIENCE_S, what="the driver")
        await lab.wait_ready(timeout_s=PATIENCE_S)
        sets = {each["metadata"]["ownerReferences"][0]["name"] for each in driver_pods(lab)}
        assert all(name.startswith("nvidia-gpu-driver-ubuntu24.04-") for name in sets)


async def test_in_26_3_drivers_that_meet_hold_up_all_and_nodes_have_no_owner() -> None:
    async with World(release=Release.V26_3) as world:
        cluster = await start(world, TEAMS)
        await cluster.create(driver("red", nodeSelector={TEAM: "red"}), driver("blue", nodeSelector={TEAM: "blue"}))
        assert cluster.owners() == {}
        assert cluster.drivers_on() == {"gpu-a": ["red"], "gpu-b": ["blue"]}
        await cluster.create(driver("every"))
        assert {cluster.status(name)[1] for name in ("red", "blue", "every")} == {"ConflictingNodeSelector"}
        assert cluster.drivers_on() == {"gpu-a": ["red"], "gpu-b": ["blue"]}


async def test_a_driver_whose_upgrade_policy_is_off_leaves_eviction_to_the_nodes() -> None:
    async with World() as world:
        cluster = await start(world)
        await cluster.create(driver("main", default=True, upgradePolicy={"autoUpgrade": False}))
        for node in world.lab.api.list(resources.NODES)["items"]:
            assert names.DRIVER_UPGRADE_ENABLED not in (node["metadata"].get("annotations") or {})
            assert names.UPGRADE_STATE not in node["metadata"]["labels"]
        await cluster.edit("main", upgradePolicy={"autoUpgrade": True})
        assert states(world) == dict.fromkeys(NODES, "upgrade-done")
