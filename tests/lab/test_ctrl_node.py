"""Node lifecycle: conditions to taints, eviction by taints, silent nodes, pods of vanished nodes."""

from datetime import timedelta
from typing import Any

import pytest
from lab.ctrl_world import World

from groundplane.lab import resources as res
from groundplane.lab.clock import rfc3339_micro
from groundplane.lab.controllers import nodelifecycle, objects


def both(key: str) -> list[tuple[str, str]]:
    return [(key, "NoSchedule"), (key, "NoExecute")]


@pytest.mark.parametrize(
    ("condition", "status", "cordoned", "wanted"),
    [
        ("Ready", "True", False, []),
        ("Ready", "False", False, both(nodelifecycle.NOT_READY)),
        (
            "Ready",
            "Unknown",
            False,
            both(nodelifecycle.UNREACHABLE),
        ),
        ("DiskPressure", "True", False, [("node.kubernetes.io/disk-pressure", "NoSchedule")]),
        ("DiskPressure", "False", False, []),
        ("Ready", "True", True, [(nodelifecycle.UNSCHEDULABLE, "NoSchedule")]),
    ],
)
def test_wanted_taints(condition: str, status: str, cordoned: bool, wanted: Any) -> None:
    node = {"status": {"conditions": [{"type": condition, "status": status}]}, "spec": {"unschedulable": cordoned}}
    assert nodelifecycle.wanted_taints(node) == wanted


def test_taints_of_others_and_ages_are_kept() -> None:
    foreign = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    old = {"key": nodelifecycle.NOT_READY, "effect": "NoExecute", "timeAdded": "then"}
    gone = {"key": nodelifecycle.UNSCHEDULABLE, "effect": "NoSchedule"}
    wanted = both(nodelifecycle.NOT_READY)
    assert nodelifecycle.with_taints([foreign, old, gone], wanted, "now") == [
        foreign,
        old,
        {"key": nodelifecycle.NOT_READY, "effect": "NoSchedule", "timeAdded": "now"},
    ]


EXECUTE = {"key": "k", "effect": "NoExecute", "timeAdded": "2025-12-31T23:59:30Z"}


@pytest.mark.parametrize(
    ("tolerations", "taints", "left"),
    [
        ([], [], None),
        ([], [{"key": "k", "effect": "NoSchedule"}], None),
        ([], [EXECUTE], 0.0),
        ([{"key": "k", "operator": "Exists"}], [EXECUTE], None),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": 100}], [EXECUTE], 100.0),
        ([{"key": "k", "operator": "Exists", "tolerationSeconds": -1}], [EXECUTE], 0.0),
        ([{"operator": "Exists", "tolerationSeconds": 100}], [EXECUTE, {**EXECUTE, "key": "other"}], 100.0),
        ([{"key": "k", "operator": "Exists"}], [EXECUTE, {**EXECUTE, "key": "other"}], 0.0),
    ],
)
def test_tolerated_s(tolerations: Any, taints: Any, left: float | None) -> None:
    assert nodelifecycle.tolerated_s({"spec": {"tolerations": tolerations}}, taints) == left


def taints(world: World, name: str = "n1") -> set[tuple[str, str]]:
    return {(each["key"], each["effect"]) for each in world.get(res.NODES, name)["spec"].get("taints") or ()}


def pod(world: World, name: str, **spec: Any) -> Any:
    return world.create(res.PODS, name, spec={"containers": [{"name": "c", "image": "i"}], **spec})


async def test_cordon_and_uncordon() -> None:
    async with World() as world:
        world.node("n1")
        world.patch(res.NODES, "n1", {"spec": {"unschedulable": True}})
        await world.settle()
        assert taints(world) == {(nodelifecycle.UNSCHEDULABLE, "NoSchedule")}
        world.patch(res.NODES, "n1", {"spec": {"unschedulable": None}})
        await world.settle()
        assert taints(world) == set()


async def test_not_ready_node_evicts_after_the_default_tolerations() -> None:
    async with World() as world:
        world.node("n1")
        pod(world, "patient", tolerations=[{"operator": "Exists"}])
        pod(world, "usual")
        await world.settle()
        world.node_status("n1", ready="False")
        await world.settle()
        assert taints(world) == set(both(nodelifecycle.NOT_READY))
        assert objects.ready(world.get(res.PODS, "usual"))
        await world.until(lambda: world.find(res.PODS, "usual") is None, "evicted after 300 s")
        assert world.find(res.PODS, "patient") is not None
        (event,) = world.events("TaintManagerEviction")
        assert event["message"] == "Marking for deletion Pod default/usual"


async def test_node_that_recovers_keeps_its_pods() -> None:
    async with World(speed=10) as world:
        world.node("n1")
        pod(world, "usual")
        await world.settle()
        world.node_status("n1", ready="False")
        await world.settle()
        world.node_status("n1", ready="True")
        await world.settle()
        assert taints(world) == set()
        assert world.find(res.PODS, "usual") is not None


async def test_taint_evicts_at_once() -> None:
    async with World() as world:
        world.node("n1")
        pod(world, "p")
        await world.settle()
        world.patch(res.NODES, "n1", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})
        await world.settle()
        assert world.find(res.PODS, "p") is None


async def test_node_whose_lease_grows_old_is_unreachable_until_it_reports() -> None:
    async with World(speed=100) as world:
        world.node("n1")
        long_ago = world.clock.now() - timedelta(hours=1)
        spec = {"holderIdentity": "n1", "renewTime": rfc3339_micro(long_ago)}
        world.create(res.LEASES, "n1", "kube-node-lease", spec=spec)
        await world.settle()
        assert (nodelifecycle.UNREACHABLE, "NoExecute") in taints(world)
        found = objects.condition(world.get(res.NODES, "n1"), "Ready")
        assert found is not None
        assert (found["status"], found["reason"]) == ("Unknown", "NodeStatusUnknown")
        spec = {"spec": {"renewTime": rfc3339_micro(world.clock.now())}}
        world.patch(res.LEASES, "n1", spec, "kube-node-lease")
        world.node_status("n1")
        await world.settle()
        assert taints(world) == set()


async def test_fresh_lease_is_no_reason_to_act() -> None:
    async with World(speed=10) as world:
        world.node("n1")
        spec = {"holderIdentity": "n1", "renewTime": rfc3339_micro(world.clock.now())}
        world.create(res.LEASES, "n1", "kube-node-lease", spec=spec)
        await world.settle()
        assert taints(world) == set()


async def test_pods_of_a_vanished_node_are_removed_after_a_while() -> None:
    async with World() as world:
        world.node("n1")
        pod(world, "p")
        await world.settle()
        world.kubelet.ends = False
        world.api.delete(res.NODES, "n1")
        await world.settle()
        assert world.find(res.PODS, "p") is not None
        await world.until(lambda: world.find(res.PODS, "p") is None)


async def test_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async with World(speed=10) as world:
        world.node("n1")
        pod(world, "p")
        await world.settle()
        world.api.delete(res.NODES, "n1")
        await world.settle()
        world.node("n1")
        await world.settle()
        assert world.find(res.PODS, "p") is not None


async def test_pod_that_was_never_bound_goes_although_a_finalizer_held_it() -> None:
    async with World() as world:
        spec = {"containers": [{"name": "c", "image": "i"}]}
        world.create(res.PODS, "p", metadata={"finalizers": ["example.com/hold"]}, spec=spec)
        await world.settle()
        world.api.delete(res.PODS, "p", "default")
        await world.settle()
        assert objects.deleting(world.get(res.PODS, "p"))
        world.patch(res.PODS, "p", {"metadata": {"finalizers": None}})
        await world.settle()
        assert world.find(res.PODS, "p") is None


async def test_heartbeats_cause_no_write() -> None:
    async with World() as world:
        world.node("n1")
        await world.settle()
        before = world.api.store.revision
        conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2030-01-01T00:00:00Z"}]
        world.node_status("n1", conditions=conditions)
        await world.settle()
        assert world.api.store.revision == before + 1
