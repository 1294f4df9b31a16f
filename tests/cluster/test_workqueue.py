"""Keys that want work: once each, never twice at a time, and with growing pauses after failures."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster.fake_time import FakeTime
from hypothesis import given
from hypothesis import strategies as st

from groundplane.cluster.queue import Controller, Requeue, WorkQueue


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def queue(time: FakeTime) -> WorkQueue[str]:
    return WorkQueue(clock=time, sleep=time.sleep)


async def test_keys_come_once_and_in_order(queue: WorkQueue[str]) -> None:
    for key in "abca":
        queue.add(key)
    assert len(queue) == 3
    assert [await queue.get() for _ in range(3)] == list("abc")


async def test_a_key_in_work_is_handed_out_again_only_afterwards(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0
    with pytest.raises(KeyError):
        queue.done("a")


async def test_delayed_keys_come_in_time_the_earliest_wish_counts(queue: WorkQueue[str], time: FakeTime) -> None:
    got: list[tuple[str, float]] = []

    async def worker() -> None:
        while True:
            key = await queue.get()
            got.append((key, time.now))
            queue.done(key)

    task = asyncio.create_task(worker())
    queue.add_after("slow", 5)
    queue.add_after("b", 3)
    queue.add_after("b", 1)
    queue.add_after("b", 2)
    queue.add_after("now", 0)
    queue.add_after("early", 4)
    await time.advance(2.5)
    queue.add("early")
    await time.advance(10)
    task.cancel()
    assert got == [("now", 0), ("b", 1), ("early", 2.5), ("slow", 5)]


async def test_back_off_doubles_to_its_limit_until_forgotten(queue: WorkQueue[str]) -> None:
    assert [round(queue.retry("a"), 3) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0]
    assert queue.failures("a") == 8
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") == 0.1


async def test_a_cancelled_getter_takes_no_key_along(queue: WorkQueue[str]) -> None:
    getter = asyncio.create_task(queue.get())
    await FakeTime.settle()
    queue.add("a")
    getter.cancel()
    await asyncio.wait({getter})
    assert len(queue) == 1
    assert await queue.get() == "a"


@given(
    st.lists(st.tuples(st.sampled_from(["add", "get", "done", "retry", "tick"]), st.sampled_from("abc")), max_size=60)
)
def test_no_key_is_lost_and_none_is_held_twice(steps: list[tuple[str, str]]) -> None:
    async def play() -> None:
        time = FakeTime()
        queue: WorkQueue[str] = WorkQueue(clock=time, sleep=time.sleep)
        held: set[str] = set()
        wanted: set[str] = set()
        for action, key in steps:
            if action in ("add", "retry"):
                getattr(queue, action)(key)
                wanted.add(key)
            elif action == "tick":
                time.now += 3.0
                queue._release()
            elif action == "get" and len(queue):
                taken = await queue.get()
                assert taken not in held
                held.add(taken)
                wanted.discard(taken)
            elif action == "done" and key in held:
                held.discard(key)
                queue.done(key)
        for key in sorted(held):
            queue.done(key)
        time.now += 3.0
        queue._release()
        assert {await queue.get() for _ in range(len(queue))} >= wanted  # a delayed wish may outlive its fulfilment

    asyncio.run(play())


# --- Controller ------------------------------------------------------------------------------------------------------


async def run_for(controller: Controller[str], time: FakeTime, seconds: float) -> None:
    task = asyncio.create_task(controller.run())
    await time.advance(seconds)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


def controller(time: FakeTime, reconcile: Callable[[str], Awaitable[Requeue | None]], **more: Any) -> Controller[str]:
    return Controller("test", reconcile, clock=time, sleep=time.sleep, **more)


async def test_requeue_comes_again_without_counting_as_failure(time: FakeTime) -> None:
    calls: list[float] = []

    async def reconcile(key: str) -> Requeue | None:
        calls.append(time.now)
        return Requeue(5) if len(calls) < 3 else None

    subject = controller(time, reconcile)
    subject.add_after("a", 1)
    await run_for(subject, time, 60)
    assert calls == [1, 6, 11]


async def test_failures_back_off_are_reported_and_never_end_the_loop(
    time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[float] = []
    seen: list[tuple[str, str]] = []

    async def reconcile(key: str) -> Requeue | None:
        calls.append(round(time.now, 3))
        if len(calls) < 4:
            raise ValueError(f"no {len(calls)}")
        return None

    def on_error(key: str, error: Exception) -> None:
        seen.append((key, str(error)))
        raise RuntimeError("a broken callback")

    subject = controller(time, reconcile, on_error=on_error)
    subject.add("a")
    await run_for(subject, time, 60)
    assert calls == [0, 0.1, 0.3, 0.7]
    assert seen == [("a", "no 1"), ("a", "no 2"), ("a", "no 3")]
    assert subject.queue.failures("a") == 0
    assert [r.exc_info[0] for r in caplog.records if r.exc_info] == [ValueError, RuntimeError] * 3


async def test_workers_share_keys_but_never_one(time: FakeTime) -> None:
    running: set[str] = set()
    peak = 0

    async def reconcile(key: str) -> Requeue | None:
        nonlocal peak
        assert key not in running
        running.add(key)
        peak = max(peak, len(running))
        subject.add(key) if time.now < 10 else None
        await time.sleep(1)
        running.discard(key)
        return None

    subject = controller(time, reconcile, workers=3)
    for key in "abcde":
        subject.add(key)
    subject.add_after("f", 3)
    await run_for(subject, time, 30)
    assert peak == 3
    assert running == set()


async def test_cancelling_reaches_the_work_in_flight(time: FakeTime) -> None:
    ended: list[str] = []

    async def reconcile(key: str) -> Requeue | None:
        try:
            await time.sleep(1000)
        finally:
            ended.append(key)
        return None

    subject = controller(time, reconcile, workers=2)
    subject.add("a")
    subject.add("b")
    await run_for(subject, time, 1)
    assert sorted(ended) == ["a", "b"]
