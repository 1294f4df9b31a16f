"""DaemonSets end to end: eligibility, updates, revisions, status."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.ctrl_world import World, nodes_of

from groundplane.lab import placement
from groundplane.lab import resources as res
from groundplane.lab.controllers import daemonset, objects, revisions

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def status(world: World, name: str = "ds") -> Any:
    return world.get(res.DAEMON_SETS, name)["status"]


def images(world: World) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in world.pods())


def set_image(world: World, image: str, name: str = "ds") -> None:
    container = {"name": "main", "image": image}
    world.patch(res.DAEMON_SETS, name, {"spec": {"template": {"spec": {"containers": [container]}}}})


async def reported(world: World, **numbers: int) -> None:
    def holds() -> bool:
        found = status(world)
        return all(found.get(name, 0) == value for name, value in numbers.items())

    await world.until(holds, f"status {numbers}")


async def test_runs_on_selected_nodes_only() -> None:
    async with World() as world:
        world.node("gpu1", {"gpu": "yes"})
        world.node("gpu2", {"gpu": "yes"})
        world.node("cpu1")
        world.daemon_set(nodeSelector={"gpu": "yes"})
        await reported(world, desiredNumberScheduled=2, numberAvailable=2)
        assert nodes_of(world.pods()) == ["gpu1", "gpu2"]
        assert status(world) == {
            "currentNumberScheduled": 2,
            "numberMisscheduled": 0,
            "desiredNumberScheduled": 2,
            "numberReady": 2,
            "observedGeneration": 1,
            "updatedNumberScheduled": 2,
            "numberAvailable": 2,
        }


async def test_pod_is_named_labelled_and_pinned_as_daemon_pods_are() -> None:
    async with World() as world:
        world.node("n1")
        world.daemon_set(hostNetwork=True)
        await world.settle()
        (pod,) = world.pods()
        (revision,) = world.listed(res.CONTROLLER_REVISIONS, "default")
        digest = revisions.hash_of(revision)
        assert pod["metadata"]["name"].startswith("ds-")
        assert len(pod["metadata"]["name"]) == len("ds-") + 5
        assert revision["metadata"]["name"] == f"ds-{digest}"
        assert pod["metadata"]["labels"]["controller-revision-hash"] == digest
        assert placement.pinned_nodes({"affinity": pod["spec"]["affinity"]}) == {"n1"}
        tolerated = {(each["key"], each["effect"]) for each in pod["spec"]["tolerations"]}
        assert tolerated >= {(f"node.kubernetes.io/{key}", "NoExecute") for key in ("not-ready", "unreachable")}
        assert ("node.kubernetes.io/network-unavailable", "NoSchedule") in tolerated
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"], owner["blockOwnerDeletion"]) == (
            "DaemonSet",
            "ds",
            True,
            True,
        )
        assert [each["source"]["component"] for each in world.events("SuccessfulCreate")] == ["daemonset-controller"]


async def test_empty_set_reports_that_it_was_observed() -> None:
    async with World() as world:
        world.daemon_set(nodeSelector={"gpu": "yes"})
        await world.settle()
        assert status(world)["observedGeneration"] == 1
        assert status(world)["desiredNumberScheduled"] == 0


@pytest.mark.parametrize(
    ("effect", "pods", "misscheduled"),
    [("NoSchedule", 1, 0), ("NoExecute", 0, 0), ("PreferNoSchedule", 1, 0)],
)
async def test_taint_on_a_running_node(effect: str, pods: int, misscheduled: int) -> None:
    """A taint that lets the pod stay is no reason to look at the DaemonSet: its status is late, as Kubernetes' is."""
    async with World() as world:
        world.node("n1")
        world.daemon_set()
        await reported(world, numberAvailable=1)
        world.patch(res.NODES, "n1", {"spec": {"taints": [{**TAINT, "effect": effect}]}})
        await reported(world, numberMisscheduled=misscheduled)
        await world.until(lambda: len(world.pods()) == pods)
        await reported(world, desiredNumberScheduled=0 if effect == "NoExecute" else 1)


async def test_label_removed_and_given_back() -> None:
    async with World() as world:
        world.node("n1", {"gpu": "yes"})
        world.daemon_set(nodeSelector={"gpu": "yes"})
        await world.settle()
        world.patch(res.NODES, "n1", {"metadata": {"labels": {"gpu": None}}})
        await world.settle()
        assert world.pods() == []
        world.patch(res.NODES, "n1", {"metadata": {"labels": {"gpu": "yes"}}})
        await world.settle()
        assert nodes_of(world.pods()) == ["n1"]


async def test_runs_on_cordoned_node_and_comes_back_when_deleted() -> None:
    async with World() as world:
        world.node("n1")
        world.patch(res.NODES, "n1", {"spec": {"unschedulable": True}})
        world.daemon_set()
        await world.settle()
        (first,) = world.pods()
        assert first["spec"]["nodeName"] == "n1"
        world.api.delete(res.PODS, first["metadata"]["name"], "default")
        await world.settle()
        (second,) = world.pods()
        assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_node_gone_takes_its_pods_along() -> None:
    async with World() as world:
        world.node("n1")
        world.node("n2")
        world.daemon_set()
        await world.settle()
        world.api.delete(res.NODES, "n1")
        await world.until(lambda: nodes_of(world.pods()) == ["n2"], "pod of the vanished node removed")
        await reported(world, desiredNumberScheduled=1)


async def test_on_delete_waits_for_deletion() -> None:
    async with World() as world:
        for name in ("n1", "n2"):
            world.node(name)
        world.daemon_set(strategy={"type": "OnDelete"})
        await reported(world, updatedNumberScheduled=2)
        set_image(world, "img:2")
        await reported(world, observedGeneration=2, updatedNumberScheduled=0)
        assert images(world) == ["img:1", "img:1"]
        old = next(pod for pod in world.pods() if pod["spec"]["nodeName"] == "n1")
        world.api.delete(res.PODS, old["metadata"]["name"], "default")
        await reported(world, updatedNumberScheduled=1, numberAvailable=2)
        assert images(world) == ["img:1", "img:2"]


async def test_rolling_update_keeps_within_max_unavailable() -> None:
    async with World() as world:
        for number in range(6):
            world.node(f"n{number}")
        world.daemon_set(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}})
        await reported(world, numberAvailable=6)
        lowest = 6

        def count(kind: str, new: Any, old: Any) -> None:
            nonlocal lowest
            ready = [
                pod
                for pod in world.pods()
                if not pod["metadata"].get("deletionTimestamp") and pod.get("status", {}).get("phase") == "Running"
            ]
            lowest = min(lowest, len(ready))

        world.api.on_change(res.PODS, count)
        set_image(world, "img:2")
        await reported(world, updatedNumberScheduled=6, numberAvailable=6)
        assert images(world) == ["img:2"] * 6
        assert lowest == 4


async def test_rolling_update_stops_at_pods_that_do_not_become_ready() -> None:
    async with World() as world:
        for number in range(4):
            world.node(f"n{number}")
        world.daemon_set()
        await reported(world, numberAvailable=4)
        world.kubelet.behaviour = lambda pod: "" if pod["spec"]["containers"][0]["image"] == "img:bad" else "Running"
        set_image(world, "img:bad")
        await reported(world, updatedNumberScheduled=1, numberUnavailable=1)
        assert images(world) == ["img:1"] * 3 + ["img:bad"]
        set_image(world, "img:2")
        await reported(world, updatedNumberScheduled=4, numberAvailable=4)
        assert images(world) == ["img:2"] * 4


async def test_surge_starts_the_new_pod_first() -> None:
    async with World() as world:
        for number in range(3):
            world.node(f"n{number}")
        world.daemon_set(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
        await reported(world, numberAvailable=3)
        world.kubelet.behaviour = lambda pod: "" if pod["spec"]["containers"][0]["image"] == "img:2" else "Running"
        set_image(world, "img:2")
        await world.until(lambda: len(world.pods()) == 4, "one surplus pod")
        assert images(world).count("img:1") == 3
        world.kubelet.behaviour = lambda pod: "Running"
        world.kubelet.look_again()
        await reported(world, updatedNumberScheduled=3, numberAvailable=3)
        await world.until(lambda: images(world) == ["img:2"] * 3)


async def test_revisions_are_numbered_reused_and_limited() -> None:
    async with World() as world:
        world.node("n1")
        world.daemon_set()
        world.patch(res.DAEMON_SETS, "ds", {"spec": {"revisionHistoryLimit": 1}})
        await reported(world, numberAvailable=1)
        for image in ("img:2", "img:3", "img:2"):
            set_image(world, image)
            await world.until(lambda image=image: images(world) == [image])
        await world.settle()
        found = sorted(world.listed(res.CONTROLLER_REVISIONS, "default"), key=lambda each: each["revision"])
        kept = [each["data"]["spec"]["template"]["spec"]["containers"][0]["image"] for each in found]
        assert kept == ["img:3", "img:2"]
        assert [each["revision"] for each in found] == [3, 4]


async def test_failed_pod_is_replaced_with_growing_pauses() -> None:
    async with World() as world:
        world.node("n1")
        failures = iter(["Failed", "Failed"])
        world.kubelet.behaviour = lambda pod: next(failures, "Running")
        world.daemon_set()
        await reported(world, numberAvailable=1)
        assert len(world.events("FailedDaemonPod")) == 2
        assert {each["type"] for each in world.events("FailedDaemonPod")} == {"Warning"}


async def test_adopts_matching_pods_and_releases_those_that_match_no_more() -> None:
    async with World() as world:
        world.node("n1")
        spec = {"containers": [{"name": "main", "image": "img:0"}], "nodeName": "n1"}
        world.create(res.PODS, "stray", metadata={"labels": {"app": "ds"}}, spec=spec)
        await world.settle()
        world.daemon_set(strategy={"type": "OnDelete"})
        await reported(world, numberAvailable=1, updatedNumberScheduled=0)
        (owner,) = world.get(res.PODS, "stray")["metadata"]["ownerReferences"]
        assert owner["kind"] == "DaemonSet"
        world.patch(res.PODS, "stray", {"metadata": {"labels": {"app": "mine"}}})
        await reported(world, updatedNumberScheduled=1)
        assert "ownerReferences" not in world.get(res.PODS, "stray")["metadata"]
        assert len(world.pods("app=ds")) == 1


async def test_missing_runtime_class_is_an_event_and_heals() -> None:
    async with World() as world:
        world.node("n1")
        world.daemon_set(runtimeClassName="nvidia")
        await world.settle()
        (event,) = world.events("FailedCreate")
        assert 'RuntimeClass "nvidia" not found' in event["message"]
        world.create(res.RUNTIME_CLASSES, "nvidia", handler="nvidia")
        await reported(world, numberAvailable=1)


async def test_min_ready_seconds_delay_availability() -> None:
    async with World(speed=200) as world:
        world.node("n1")
        world.daemon_set()
        world.patch(res.DAEMON_SETS, "ds", {"spec": {"minReadySeconds": 60}})
        await reported(world, numberReady=1, numberUnavailable=1)
        await reported(world, numberAvailable=1, numberUnavailable=0)


async def test_quiet_cluster_writes_nothing() -> None:
    async with World() as world:
        world.node("n1")
        world.daemon_set()
        await reported(world, numberAvailable=1)
        await world.settle()
        before = world.api.store.revision
        world.patch(res.NODES, "n1", {"metadata": {"annotations": {"heartbeat": "1"}}})
        await world.settle()
        assert world.api.store.revision == before + 1


LABEL = st.sampled_from(["yes", "no", None])
STEP = st.one_of(
    st.tuples(st.just("node"), st.integers(0, 3), LABEL),
    st.tuples(st.just("remove"), st.integers(0, 3), st.none()),
    st.tuples(st.just("taint"), st.integers(0, 3), st.sampled_from(["NoSchedule", "NoExecute", None])),
    st.tuples(st.just("image"), st.integers(0, 3), st.none()),
    st.tuples(st.just("kill"), st.integers(0, 3), st.none()),
)


def step(world: World, what: str, number: int, value: Any) -> None:
    name = f"n{number}"
    node = world.find(res.NODES, name)
    if what == "image":
        set_image(world, f"img:{number}")
    elif what == "node" and node is None:
        world.node(name, {"gpu": value} if value else {})
    elif what == "node":
        world.patch(res.NODES, name, {"metadata": {"labels": {"gpu": value}}})
    elif what == "remove" and node is not None:
        world.api.delete(res.NODES, name)
    elif what == "taint" and node is not None:
        world.patch(res.NODES, name, {"spec": {"taints": [{**TAINT, "effect": value}] if value else None}})
    elif what == "kill":
        for pod in world.pods():
            if pod["spec"].get("nodeName") == name:
                world.api.delete(res.PODS, pod["metadata"]["name"], "default")


@settings(max_examples=25, deadline=None)
@given(st.lists(STEP, max_size=12), st.booleans())
async def test_converges_from_any_sequence(steps: list[Any], rushed: bool) -> None:
    async with World(speed=5000) as world:
        world.daemon_set(nodeSelector={"gpu": "yes"})
        for what in steps:
            step(world, *what)
            if not rushed:
                await world.settle()

        spec = daemonset.daemon_spec(world.get(res.DAEMON_SETS, "ds")["spec"]["template"]["spec"])
        fits = {node["metadata"]["name"]: placement.daemon_fit(spec, node) for node in world.listed(res.NODES)}
        must = sorted(name for name, (run, _) in fits.items() if run)
        may = {name for name, (_, stay) in fits.items() if stay}
        image = spec["containers"][0]["image"]

        def converged() -> bool:
            pods = world.pods()
            names = nodes_of(pods)
            on_required = [name for name in names if name in must]
            new = all(
                pod["spec"]["containers"][0]["image"] == image for pod in pods if pod["spec"].get("nodeName") in must
            )
            found = status(world)
            return (
                on_required == must
                and set(names) <= may
                and new
                and found["desiredNumberScheduled"] == found.get("numberAvailable", 0) == len(must)
                and found["numberMisscheduled"] == len(names) - len(must)
            )

        await world.until(converged, f"{steps}: pods on {must}")


async def test_name_taken_by_another_template_is_a_collision() -> None:
    async with World() as world:
        world.node("n1")
        probe = world.daemon_set()
        digest = objects.template_hash(probe["spec"]["template"])
        world.api.delete(res.DAEMON_SETS, "ds", "default")
        world.create(res.CONTROLLER_REVISIONS, f"ds-{digest}", revision=1, data={"spec": "other"})
        await world.settle()
        world.daemon_set()
        await reported(world, collisionCount=1, numberAvailable=1)
        names = {each["metadata"]["name"] for each in world.listed(res.CONTROLLER_REVISIONS, "default")}
        assert f"ds-{digest}" in names
        assert len(names) == 2


async def test_orphaned_pods_are_adopted_by_the_next_set_of_that_name() -> None:
    async with World() as world:
        world.node("n1")
        world.daemon_set()
        await reported(world, numberAvailable=1)
        (before,) = world.pods()
        world.api.delete(res.DAEMON_SETS, "ds", "default", propagation="Orphan")
        await world.settle()
        assert "ownerReferences" not in world.pods()[0]["metadata"]
        world.daemon_set()
        await reported(world, numberAvailable=1, updatedNumberScheduled=1)
        (after,) = world.pods()
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
