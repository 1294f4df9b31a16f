"""What node programs share in waiting: work that a signal ends."""

import asyncio
from pathlib import Path
from signal import SIGHUP, SIGTERM

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.process import unless_signalled


async def test_work_that_is_done_before_a_signal(tmp_path: Path) -> None:
    process, done = FakeProcess(tmp_path), []

    async def work() -> None:
        done.append(1)

    assert await unless_signalled(process, work()) is None
    assert done == [1]
    process.send(SIGHUP)
    assert await process.signal(0.0) is SIGHUP, "the wait has taken a signal that came later"


async def test_a_signal_ends_the_work(tmp_path: Path) -> None:
    process, ended = FakeProcess(tmp_path), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asyncio.get_running_loop().call_soon(process.send, SIGTERM)
    assert await unless_signalled(process, work()) is SIGTERM
    assert ended.is_set()


async def test_work_that_fails(tmp_path: Path) -> None:
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await unless_signalled(FakeProcess(tmp_path), work())


async def test_cancelled_from_outside(tmp_path: Path) -> None:
    process, ended = FakeProcess(tmp_path), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(unless_signalled(process, work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    process.send(SIGTERM)
    assert await process.signal(1.0) is SIGTERM, "a wait that was cancelled has lost a signal"
