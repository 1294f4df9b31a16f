"""Cluster time: speed, formatting, deadlines."""

import asyncio
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
