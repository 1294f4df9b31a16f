"""A node's whole upgrade in a simulated cluster: the way it takes, and the requests it needs (at most 12)."""

import msgspec
import pytest
from upgrade_world import INITIAL, GpuUser, Node, World

from groundplane.api import names
from groundplane.operator.upgrade import machine
from groundplane.operator.upgrade.model import Drain, Policy
from groundplane.operator.upgrade.states import State

S = State
LIMIT = 12
FULL = [
    S.UPGRADE_REQUIRED,
    S.CORDON_REQUIRED,
    S.WAIT_FOR_JOBS_REQUIRED,
    S.POD_DELETION_REQUIRED,
    S.POD_RESTART_REQUIRED,
    S.VALIDATION_REQUIRED,
    S.UNCORDON_REQUIRED,
    S.DONE,
]
DRAINED = [*FULL[:4], S.DRAIN_REQUIRED, *FULL[4:]]
SHORT = [S.UPGRADE_REQUIRED, S.POD_RESTART_REQUIRED, S.VALIDATION_REQUIRED, S.UNCORDON_REQUIRED, S.DONE]


def upgraded(world: World, passes: int = 60) -> list[str]:
    """The states that the only node goes through."""
    node = world.nodes["node-0"]
    way: list[str] = []
    for _ in range(passes):
        before = node.state
        world.run_pass()
        if node.state != before:
            way.append(node.state)
        world.tick()
        if node.state == S.DONE and way:
            break
    return way


def changed(world: World, *, cosmetic: bool = False) -> Node:
    """A cluster at rest whose driver DaemonSet gets another template."""
    world.run_pass()
    world.revision += 1
    world.digest = "d1" if cosmetic else "d2"
    world.writes.clear()
    return world.nodes["node-0"]


def plain(world: World) -> list[State]:
    changed(world)
    return FULL


def restart_only(world: World) -> list[State]:
    changed(world, cosmetic=True)
    return SHORT


def with_gpu_pods(world: World) -> list[State]:
    changed(world).gpu_users = [GpuUser("default/a"), GpuUser("default/b")]
    return FULL


def with_jobs(world: World) -> list[State]:
    world.policy = msgspec.structs.replace(world.policy, jobs_selector="app=job", jobs_timeout_s=60)
    changed(world).jobs = 6
    return FULL


def with_a_job_that_never_ends(world: World) -> list[State]:
    with_jobs(world)
    world.nodes["node-0"].jobs = 1000
    return FULL


def drained(world: World) -> list[State]:
    world.policy = msgspec.structs.replace(world.policy, drain=Drain(enable=True))
    changed(world).gpu_users = [GpuUser("default/a", kept="it uses emptyDir")]
    return DRAINED


def with_safe_load(world: World) -> list[State]:
    changed(world).annotations[names.UPGRADE_SAFE_LOAD] = "yes"
    return FULL


def requested(world: World) -> list[State]:
    changed(world, cosmetic=True).annotations[names.UPGRADE_REQUESTED] = "true"
    return FULL


def cordoned_before(world: World) -> list[State]:
    node = changed(world)
    node.unschedulable = node.person = True
    return [*FULL[:6], S.DONE]


def everything_at_once(world: World) -> list[State]:
    drained(world)
    world.policy = msgspec.structs.replace(world.policy, jobs_selector="app=job", jobs_timeout_s=60)
    world.nodes["node-0"].jobs = 1000
    world.nodes["node-0"].annotations |= {names.UPGRADE_SAFE_LOAD: "yes", names.UPGRADE_REQUESTED: "true"}
    return DRAINED


@pytest.mark.parametrize(
    ("what", "requests"),
    [
        (plain, 9),
        (restart_only, 6),
        (with_gpu_pods, 9),
        (with_jobs, 10),
        (with_a_job_that_never_ends, 10),
        (drained, 10),
        (with_safe_load, 10),
        (requested, 9),
        (cordoned_before, 8),
        (everything_at_once, 12),
    ],
)
def test_the_way_of_a_node_and_its_requests(what, requests):
    """Evictions, and events, come on top: at most one event a request."""
    world = World(1, Policy())
    assert upgraded(world) == [S.DONE]
    expected = what(world)
    assert upgraded(world) == expected
    node = world.nodes["node-0"]
    assert world.writes["node-0"] == requests <= LIMIT
    assert node.unschedulable == node.person
    assert not {key for key in node.annotations if "upgrade" in key}
    assert [pod.hash for pod in node.pods] == [f"r{world.revision}"]


def test_a_validator_that_comes_late_costs_no_request_more():
    world = World(1, Policy())
    upgraded(world)
    node = changed(world)
    node.validator = "never"
    upgraded(world, passes=20)
    assert node.state == S.VALIDATION_REQUIRED
    assert names.UPGRADE_VALIDATION_START in node.annotations
    node.validator = "ok"
    assert upgraded(world)[-1] == S.DONE
    assert world.writes["node-0"] == 9


def test_a_validator_that_never_comes_fails_the_upgrade_and_a_retry_heals_it():
    world = World(1, Policy())
    upgraded(world)
    node = changed(world)
    node.validator, node.driver = "never", "ok"
    upgraded(world, passes=20)
    world.tick(601)
    world.run_pass()
    assert node.state == S.FAILED
    assert node.unschedulable
    assert upgraded(world) == [S.UNCORDON_REQUIRED, S.DONE], "its driver pod is healthy: recovery is automatic (3.5)"
    assert not node.unschedulable


def test_a_node_that_was_left_amid_an_upgrade_starts_with_no_old_timer():
    """autoUpgrade off and on again (3.12): what stayed behind must not fail the next upgrade at once."""
    world = World(1, Policy())
    upgraded(world)
    node = changed(world)
    node.validator = "never"
    upgraded(world, passes=20)
    for decision in machine.clear(world.observe().nodes):
        world.write(decision)
    assert names.UPGRADE_VALIDATION_START in node.annotations
    world.tick(10_000)
    node.validator = "ok"
    changed(world)
    assert upgraded(world)[-1] == S.DONE
    assert node.unschedulable, "it was cordoned when this upgrade began"
    assert INITIAL not in node.annotations
    assert "kubectl uncordon node-0" in machine.decide(world.observe()).decisions[0].waits_for


@pytest.mark.parametrize("size", [1, 4, 20])
def test_a_fleet_is_upgraded_within_its_budget_although_the_controller_dies_at_every_pass(size):
    world = World(size, Policy(max_parallel=3, max_unavailable="34%"))
    world.run_pass()
    world.revision, world.digest = 2, "d2"
    for number in range(100 * size):
        world.decide()
        for decision in world.pending[number % 3 :: 2]:
            world.write(decision, die_after_patch=number % 5 == 0)
            world.check_budget()
        world.restart()
        world.tick()
        if all(node.state == S.DONE and node.pods[0].hash == "r2" for node in world.nodes.values()):
            break
    assert {node.state for node in world.nodes.values()} == {S.DONE}
    assert not any(node.unschedulable for node in world.nodes.values())
