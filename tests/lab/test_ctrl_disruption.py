"""PodDisruptionBudgets: the arithmetic, the status, and eviction through it."""

from typing import Any

import pytest
from lab.ctrl_world import World, template

from groundplane.lab import resources as res
from groundplane.lab.controllers import disruption, objects
from groundplane.lab.controllers.disruption import Budget
from groundplane.lab.status import StatusError


@pytest.mark.parametrize(
    ("spec", "healthy", "pods", "expected", "numbers"),
    [
        ({"minAvailable": 2}, 3, 3, 3, Budget(1, 3, 2, 3)),
        ({"minAvailable": 2}, 1, 3, 3, Budget(0, 1, 2, 3)),
        ({"minAvailable": "50%"}, 5, 5, 5, Budget(2, 5, 3, 5)),
        ({"minAvailable": "100%"}, 5, 5, 5, Budget(0, 5, 5, 5)),
        ({"maxUnavailable": 1}, 3, 3, 4, Budget(0, 3, 3, 4)),
        ({"maxUnavailable": "30%"}, 4, 4, 4, Budget(2, 4, 2, 4)),
        ({"maxUnavailable": 9}, 2, 2, 2, Budget(2, 2, 0, 2)),
        ({"minAvailable": 0}, 0, 0, 0, Budget(0, 0, 0, 0)),
    ],
)
def test_budget(spec: Any, healthy: int, pods: int, expected: int, numbers: Budget) -> None:
    assert disruption.budget(spec, healthy, pods, expected) == numbers


def replicas(world: World, count: int) -> None:
    spec = {"replicas": count, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")}
    world.create(res.DEPLOYMENTS, "web", spec=spec)


def budget(world: World, app: str = "web", **spec: Any) -> None:
    body = {"selector": {"matchLabels": {"app": app}}, **spec}
    world.create(res.POD_DISRUPTION_BUDGETS, "b", spec=body)


def numbers(world: World) -> tuple[int, int, int, int]:
    status = world.get(res.POD_DISRUPTION_BUDGETS, "b")["status"]
    return status["disruptionsAllowed"], status["currentHealthy"], status["desiredHealthy"], status["expectedPods"]


async def test_status_follows_pods_and_scale() -> None:
    async with World() as world:
        world.node("n1")
        replicas(world, 4)
        budget(world, maxUnavailable=1)
        await world.settle()
        assert numbers(world) == (1, 4, 3, 4)
        status = world.get(res.POD_DISRUPTION_BUDGETS, "b")["status"]
        assert status["observedGeneration"] == 1
        world.kubelet.behaviour = lambda pod: ""
        world.patch(res.DEPLOYMENTS, "web", {"spec": {"replicas": 6}})
        await world.settle()
        assert numbers(world) == (0, 4, 5, 6)
        found = objects.condition(world.get(res.POD_DISRUPTION_BUDGETS, "b"), "DisruptionAllowed")
        assert found is not None
        assert (found["status"], found["reason"]) == ("False", "InsufficientPods")


async def test_eviction_is_held_back_until_the_budget_allows_it() -> None:
    async with World() as world:
        world.node("n1")
        replicas(world, 2)
        budget(world, minAvailable=1)
        await world.settle()
        world.kubelet.behaviour = lambda pod: ""
        first, second = (pod["metadata"]["name"] for pod in world.pods())
        world.api.evict(first, "default")
        with pytest.raises(StatusError) as refused:
            world.api.evict(second, "default")
        assert refused.value.code == 429
        await world.settle()
        assert numbers(world)[0] == 0
        world.kubelet.behaviour = lambda pod: "Running"
        world.kubelet.look_again()
        await world.settle()
        assert numbers(world) == (1, 2, 1, 2)
        assert not world.get(res.POD_DISRUPTION_BUDGETS, "b")["status"].get("disruptedPods")
        world.api.evict(second, "default")


async def test_share_of_pods_without_scale_is_refused() -> None:
    async with World() as world:
        world.node("n1")
        world.daemon_set("d")
        budget(world, app="d", maxUnavailable="50%")
        await world.settle()
        assert numbers(world)[0] == 0
        found = objects.condition(world.get(res.POD_DISRUPTION_BUDGETS, "b"), "DisruptionAllowed")
        assert found is not None
        assert found["reason"] == "SyncFailed"


async def test_fixed_number_works_for_any_pods() -> None:
    async with World() as world:
        world.node("n1")
        world.node("n2")
        world.daemon_set("d")
        budget(world, app="d", minAvailable=1)
        await world.settle()
        assert numbers(world) == (1, 2, 1, 2)
