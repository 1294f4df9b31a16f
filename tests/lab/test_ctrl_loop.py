"""The work loop, the caches and the event recorder under the controllers."""

import asyncio
from typing import Any

import pytest
from lab.ctrl_world import World

from groundplane.lab import resources as res
from groundplane.lab.clock import LabClock
from groundplane.lab.controllers import cache, events, objects
from groundplane.lab.controllers.loop import Loop
from groundplane.lab.status import StatusError

FAST = 100_000.0


async def drained(loop: Loop[Any], until: Any) -> None:
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(10):
        while not until():
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_keys_are_worked_once_and_in_order() -> None:
    done: list[str] = []
    loop: Loop[str] = Loop("test", done.append, LabClock())
    for key in ("a", "b", "a", "c", "b"):
        loop.add(key)
    assert len(loop) == 3
    await drained(loop, lambda: len(done) == 3)
    assert done == ["a", "b", "c"]


async def test_key_marked_while_it_is_worked_on_comes_again() -> None:
    done: list[str] = []

    def work(key: str) -> None:
        done.append(key)
        if len(done) == 1:
            loop.add(key)

    loop: Loop[str] = Loop("test", work, LabClock())
    loop.add("a")
    await drained(loop, lambda: len(done) == 2)


@pytest.mark.parametrize("error", [StatusError(409, "Conflict", "changed"), RuntimeError("broken")])
async def test_failed_key_is_tried_again_and_others_go_on(error: Exception) -> None:
    done: list[str] = []

    def work(key: str) -> None:
        done.append(key)
        if done.count("bad") < 3 and key == "bad":
            raise error

    loop: Loop[str] = Loop("test", work, LabClock(FAST))
    loop.add("bad")
    loop.add("good")
    await drained(loop, lambda: done.count("bad") == 3)
    assert done[:2] == ["bad", "good"]


async def test_earliest_appointment_holds() -> None:
    done: list[str] = []
    loop: Loop[str] = Loop("test", done.append, LabClock(FAST))
    loop.add_after("a", 10)
    loop.add_after("a", 3600 * 24 * 365)
    await drained(loop, lambda: done == ["a"])


async def test_long_work_gives_others_a_turn() -> None:
    turns = 0
    loop: Loop[int] = Loop("test", lambda key: sum(range(20_000)) and None, LabClock())
    for key in range(200):
        loop.add(key)
    task = asyncio.create_task(loop.run())
    while len(loop) or not turns:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pod_cache_follows_node_owner_and_namespace() -> None:
    async with World() as world:
        pods = cache.PodCache(world.api)
        spec = {"containers": [{"name": "c", "image": "i"}]}
        pod = world.create(res.PODS, "p", spec=spec)
        assert [each["metadata"]["name"] for each in pods.orphans["default"]] == ["p"]
        world.node("n1")
        await world.settle()
        assert [each["metadata"]["name"] for each in pods.by_node["n1"]] == ["p"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": objects.uid(world.get(res.NODES, "n1"))}
        world.patch(res.PODS, "p", {"metadata": {"ownerReferences": [{**owner, "controller": True}]}})
        assert pods.orphans["default"] == []
        assert [objects.uid(each) for each in pods.by_owner[owner["uid"]]] == [objects.uid(pod)]
        world.api.delete(res.PODS, "p", "default", grace_period_s=0)
        assert pods.by_node["n1"] == pods.by_owner[owner["uid"]] == pods.in_namespace("default") == []
        assert pods.at(("default", "p")) is None


ABOUT = {"kind": "Pod", "apiVersion": "v1", "name": "p", "namespace": "default", "uid": "u"}


def recorder() -> tuple[World, events.EventRecorder]:
    world = World()
    return world, events.EventRecorder(world.api, LabClock(start=world.clock.now(), real=lambda: 0.0), "tester")


async def test_repeated_event_is_counted() -> None:
    world, record = recorder()
    for _ in range(3):
        record.event(ABOUT, events.WARNING, "Bad", "it is")
    (found,) = world.events("Bad")
    assert (found["count"], found["type"], found["message"]) == (3, "Warning", "it is")
    assert found["source"] == {"component": "tester"}
    assert found["involvedObject"]["name"] == "p"


async def test_alike_events_are_combined_and_few() -> None:
    world, record = recorder()
    for number in range(100):
        record.event(ABOUT, events.NORMAL, "Made", f"number {number}")
    found = world.events("Made")
    assert len(found) == events.SIMILAR_LIMIT + 1
    (combined,) = (each for each in found if each["message"].startswith(events.COMBINED))
    assert combined["count"] == events.BURST - events.SIMILAR_LIMIT


async def test_event_that_was_removed_is_written_anew() -> None:
    world, record = recorder()
    record.event(ABOUT, events.NORMAL, "Made", "one")
    (found,) = world.events("Made")
    world.api.delete(res.EVENTS, found["metadata"]["name"], "default")
    record.event(ABOUT, events.NORMAL, "Made", "one")
    assert len(world.events("Made")) == 1


async def test_event_about_something_in_a_missing_namespace_is_dropped() -> None:
    world, record = recorder()
    record.event({**ABOUT, "namespace": "nowhere"}, events.NORMAL, "Made", "one")
    assert world.events("Made") == []
