"""Cluster time: speed, formatting, deadlines."""

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.lab import clock as clocks


class Real:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.parametrize(("speed", "passed"), [(1.0, 10.0), (60.0, 600.0), (0.5, 5.0)])
def test_speed_scales_real_seconds(speed: float, passed: float) -> None:
    real = Real()
    clock = clocks.LabClock(speed, start=START, real=real)
    assert clock.now() == START
    real.seconds += 10
    assert clock.monotonic() == pytest.approx(passed)
    assert clock.now() == START + timedelta(seconds=passed)


def test_timestamp_has_whole_seconds_and_z() -> None:
    assert clocks.LabClock(start=START, real=Real()).timestamp() == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.678901Z", START),
    ],
)
def test_parse(text: str, expected: datetime) -> None:
    assert clocks.parse_rfc3339(text) == expected


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05", "yesterday", ""])
def test_parse_refuses_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"time zone|isoformat"):
        clocks.parse_rfc3339(text)


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_formats_round_trip(moment: datetime) -> None:
    assert clocks.parse_rfc3339(clocks.rfc3339_micro(moment)) == moment
    assert clocks.parse_rfc3339(clocks.rfc3339(moment)) == moment.replace(microsecond=0)


def test_format_converts_to_utc() -> None:
    assert clocks.rfc3339(START.astimezone(timezone(timedelta(hours=5)))) == "2026-01-02T03:04:05Z"


def test_since() -> None:
    clock = clocks.LabClock(start=START.replace(microsecond=0), real=Real())
    assert clock.since("2026-01-02T03:03:05Z") == 60
    assert clock.since("2026-01-02T03:05:05Z") == -60


@pytest.mark.parametrize("speed", [0, -1, float("nan")])
def test_impossible_speed_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        clocks.LabClock(speed)


def test_start_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        clocks.LabClock(start=datetime(2026, 1, 1))


async def test_sleep_scales_and_can_be_cancelled() -> None:
    clock = clocks.LabClock(speed=100_000)
    await clock.sleep(1000)
    assert clock.monotonic() >= 1000
    task = asyncio.ensure_future(clocks.LabClock(speed=0.001).sleep(3600))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_deadline() -> None:
    clock = clocks.LabClock(speed=100_000)
    deadline = clock.deadline(500)
    assert not deadline.passed
    assert 0 < deadline.remaining <= 500
    await deadline.wait()
    assert deadline.passed
    assert deadline.remaining == 0


async def test_call_later_and_revoke() -> None:
    clock = clocks.LabClock(speed=100_000)
    called: list[int] = []
    clock.call_later(1, lambda: called.append(1))
    clock.call_later(1, lambda: called.append(2)).cancel()
    await clock.sleep(1000)
    assert called == [1]


BLOCKED_S = 1.5
"""Real seconds; half of it is left to whatever else this machine does."""


async def test_time_in_which_nothing_could_be_done_does_not_pass() -> None:
    clock = clocks.LabClock(100.0)
    rung: list[str] = []
    clock.call_later(1, lambda: rung.append("soon"))
    revoked = clock.call_later(1, lambda: rung.append("never"))
    revoked.cancel()
    clock.call_later(BLOCKED_S / 2 * 100, lambda: rung.append("late"))
    sleeping = asyncio.create_task(clock.sleep(2))
    await asyncio.sleep(0)
    begin = clock.monotonic()
    time.sleep(BLOCKED_S)
    await sleeping
    assert rung == ["soon"]
    assert clock.monotonic() - begin < BLOCKED_S / 2 * 100


async def test_a_timeout_is_in_cluster_seconds() -> None:
    clock = clocks.LabClock(1000.0)
    with pytest.raises(TimeoutError):
        async with clock.timeout(10):
            await asyncio.Event().wait()
    async with clock.timeout(None):
        await clock.sleep(10)
    never = asyncio.ensure_future(asyncio.Event().wait())
    await clock.wait({never}, 10)
    assert not never.done()
    never.cancel()


async def test_waits_that_are_late_together_are_taken_out_once() -> None:
    clock = clocks.LabClock(100.0)
    sleeping = [asyncio.create_task(clock.sleep(1)) for _ in range(50)]
    await asyncio.sleep(0)
    begin = clock.monotonic()
    time.sleep(BLOCKED_S)
    await asyncio.gather(*sleeping)
    assert 0 <= clock.monotonic() - begin < BLOCKED_S / 2 * 100
    before = clock.monotonic()
    await asyncio.sleep(0.2)
    assert clock.monotonic() > before
