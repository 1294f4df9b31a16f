"""Deployments and ReplicaSets: the arithmetic of updates, and end to end."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.ctrl_world import World, template

from groundplane.lab import resources as res
from groundplane.lab.controllers import deployment, objects, replicaset
from groundplane.lab.controllers.deployment import Counts, Limits


@pytest.mark.parametrize(
    ("strategy", "replicas", "limits"),
    [
        ({}, 4, Limits(4, 1, 1)),
        ({}, 1, Limits(1, 1, 0)),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}}, 5, Limits(5, 0, 2)),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}, 5, Limits(5, 0, 1)),
        ({"rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 0}}, 5, Limits(5, 2, 0)),
        ({"type": "Recreate"}, 3, Limits(3, 0, 3)),
    ],
)
def test_limits(strategy: Any, replicas: int, limits: Limits) -> None:
    assert deployment.limits_of({"spec": {"replicas": replicas, "strategy": strategy}}) == limits


COUNTS = st.integers(0, 8).flatmap(lambda wanted: st.builds(Counts, st.just(wanted), st.integers(0, wanted)))
LIMITS = st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 3)).map(
    lambda each: Limits(each[0], each[1], min(each[0], each[2] if each[1] or each[2] else 1))
)


@given(LIMITS, COUNTS, st.lists(COUNTS, max_size=3))
def test_steps_stay_within_the_limits(limits: Limits, new: Counts, old: list[Counts]) -> None:
    wanted = deployment.scale_new(limits, new, old)
    total = wanted + sum(each.wanted for each in old)
    before = new.wanted + sum(each.wanted for each in old)
    assert total <= max(before, limits.replicas + limits.surge)
    after = deployment.scale_old(limits, new, old)
    assert all(0 <= kept <= each.wanted for kept, each in zip(after, old, strict=True))
    lost = sum(max(0, each.available - kept) for kept, each in zip(after, old, strict=True))
    available = new.available + sum(each.available for each in old)
    assert lost == 0 or available - lost >= limits.replicas - limits.unavailable


@given(LIMITS.filter(lambda limits: limits.replicas > 0), st.integers(1, 8))
def test_an_update_always_ends(limits: Limits, old_replicas: int) -> None:
    new, old = Counts(0, 0), Counts(old_replicas, old_replicas)
    for _ in range(60):
        wanted = deployment.scale_new(limits, new, [old])
        new = Counts(wanted, wanted)
        (left,) = deployment.scale_old(limits, new, [old])
        old = Counts(left, left)
    assert (new, old) == (Counts(limits.replicas, limits.replicas), Counts(0, 0))


def make(world: World, replicas: int = 3, **spec: Any) -> None:
    body = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("web"), **spec}
    world.create(res.DEPLOYMENTS, "web", spec=body)


def status(world: World) -> Any:
    return world.get(res.DEPLOYMENTS, "web").get("status") or {}


def set_image(world: World, image: str) -> None:
    container = {"name": "main", "image": image}
    world.patch(res.DEPLOYMENTS, "web", {"spec": {"template": {"spec": {"containers": [container]}}}})


def condition(world: World, kind: str) -> tuple[str, str]:
    found = objects.condition(world.get(res.DEPLOYMENTS, "web"), kind)
    assert found is not None
    return found["status"], found["reason"]


def images(world: World) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in world.pods())


async def test_comes_up_and_reports() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        (replica_set,) = world.listed(res.REPLICA_SETS)
        digest = replica_set["metadata"]["labels"]["pod-template-hash"]
        assert replica_set["metadata"]["name"] == f"web-{digest}"
        assert replica_set["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": digest}
        assert world.get(res.DEPLOYMENTS, "web")["metadata"]["annotations"][deployment.REVISION] == "1"
        numbers = {name: status(world)[name] for name in ("replicas", "updatedReplicas", "readyReplicas")}
        assert numbers == {"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3}
        assert status(world)["observedGeneration"] == 1
        assert condition(world, "Available") == ("True", "MinimumReplicasAvailable")
        assert condition(world, "Progressing") == ("True", "NewReplicaSetAvailable")
        assert all(pod["metadata"]["name"].startswith(f"web-{digest}-") for pod in world.pods())


async def test_scales_and_heals() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        for replicas in (5, 1):
            world.patch(res.DEPLOYMENTS, "web", {"spec": {"replicas": replicas}})
            await world.settle()
            assert len(world.pods()) == replicas
        world.api.delete(res.PODS, world.pods()[0]["metadata"]["name"], "default")
        await world.settle()
        assert len(world.pods()) == status(world)["availableReplicas"] == 1


async def test_rolls_to_a_new_template_and_back() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        first = world.listed(res.REPLICA_SETS)[0]["metadata"]["name"]
        set_image(world, "img:2")
        await world.settle()
        assert images(world) == ["img:2"] * 3
        assert len(world.listed(res.REPLICA_SETS)) == 2
        set_image(world, "img:1")
        await world.settle()
        assert images(world) == ["img:1"] * 3
        assert len(world.listed(res.REPLICA_SETS)) == 2
        assert world.get(res.REPLICA_SETS, first)["metadata"]["annotations"][deployment.REVISION] == "3"


async def test_old_sets_beyond_the_history_limit_go() -> None:
    async with World() as world:
        world.node("n1")
        make(world, 1, revisionHistoryLimit=1)
        for image in ("img:2", "img:3", "img:4"):
            await world.settle()
            set_image(world, image)
        await world.settle()
        kept = {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in world.listed(res.REPLICA_SETS)}
        assert kept == {"img:3", "img:4"}


async def test_bad_image_keeps_the_old_pods_and_misses_its_deadline() -> None:
    async with World() as world:
        world.node("n1")
        make(world, 4, progressDeadlineSeconds=30)
        await world.settle()
        world.kubelet.behaviour = lambda pod: "" if pod["spec"]["containers"][0]["image"] == "bad" else "Running"
        set_image(world, "bad")
        await world.settle()
        assert images(world).count("img:1") == 3
        assert condition(world, "Available") == ("True", "MinimumReplicasAvailable")
        await world.until(lambda: condition(world, "Progressing") == ("False", "ProgressDeadlineExceeded"))


async def test_recreate_stops_the_old_pods_first() -> None:
    async with World() as world:
        world.node("n1")
        make(world, 2, strategy={"type": "Recreate"})
        await world.settle()
        world.kubelet.ends = False
        set_image(world, "img:2")
        await world.settle()
        assert images(world) == ["img:1"] * 2
        world.kubelet.ends = True
        world.kubelet.look_again()
        await world.settle()
        assert images(world) == ["img:2"] * 2


async def test_paused_deployment_does_not_roll() -> None:
    async with World() as world:
        world.node("n1")
        make(world, 2)
        await world.settle()
        world.patch(res.DEPLOYMENTS, "web", {"spec": {"paused": True}})
        set_image(world, "img:2")
        await world.settle()
        assert images(world) == ["img:1"] * 2
        world.patch(res.DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await world.settle()
        assert images(world) == ["img:2"] * 2


async def test_deleted_deployment_takes_everything_along() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        world.api.delete(res.DEPLOYMENTS, "web", "default")
        await world.settle()
        assert world.listed(res.REPLICA_SETS) == world.pods() == []


def test_pods_to_remove_first() -> None:
    def pod(name: str, age: int, node: str = "n", phase: str = "Running", ready: str = "True") -> Any:
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        metadata = {"name": name, "creationTimestamp": f"2026-01-01T00:00:{60 - age:02}Z"}
        return {"metadata": metadata, "spec": {"nodeName": node}, "status": status}

    pods = [
        pod("old", 50),
        pod("young", 5),
        pod("unready", 9, ready="False"),
        pod("pending", 9, phase="Pending", ready="False"),
        pod("unbound", 9, node="", phase="Pending", ready="False"),
    ]
    order = [each["metadata"]["name"] for each in sorted(pods, key=replicaset.removal_order)]
    assert order == ["unbound", "pending", "unready", "young", "old"]


async def test_set_of_the_same_name_is_a_collision() -> None:
    async with World() as world:
        world.node("n1")
        make(world)
        await world.settle()
        (taken,) = world.listed(res.REPLICA_SETS)
        world.api.delete(res.DEPLOYMENTS, "web", "default")
        await world.settle()
        other = {"matchLabels": {"app": "other"}}
        world.create(
            res.REPLICA_SETS, taken["metadata"]["name"], spec={"selector": other, "template": template("other")}
        )
        await world.settle()
        make(world)
        await world.until(lambda: status(world).get("availableReplicas") == 3)
        assert status(world)["collisionCount"] == 1


async def test_replica_set_adopts_a_matching_pod_and_releases_one_that_matches_no_more() -> None:
    async with World() as world:
        world.node("n1")
        spec = {"containers": [{"name": "c", "image": "i"}]}
        world.create(res.PODS, "stray", metadata={"labels": {"app": "r"}}, spec=spec)
        selector = {"matchLabels": {"app": "r"}}
        world.create(res.REPLICA_SETS, "r", spec={"replicas": 2, "selector": selector, "template": template("r")})
        await world.settle()
        assert len(world.pods()) == 2
        assert objects.controller_uid(world.get(res.PODS, "stray"))
        world.patch(res.PODS, "stray", {"metadata": {"labels": {"app": "free"}}})
        await world.settle()
        assert len(world.pods("app=r")) == 2
        assert not objects.controller_uid(world.get(res.PODS, "stray"))


async def test_min_ready_seconds_of_a_replica_set() -> None:
    async with World(speed=200) as world:
        world.node("n1")
        make(world, 1, minReadySeconds=60)
        await world.settle()
        assert status(world)["readyReplicas"] == 1
        assert "availableReplicas" not in status(world)
        await world.until(lambda: status(world).get("availableReplicas") == 1)
