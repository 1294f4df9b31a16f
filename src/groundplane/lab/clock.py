"""Cluster time: the only clock of the lab.

Everything in the lab that waits or writes a time takes a `LabClock`, so that a scenario of minutes can run in seconds:
with speed N, N seconds of the cluster pass in one real second. Durations in the lab's signatures are always cluster
seconds. What is written into objects is formatted here (`rfc3339`), as the API server would.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


class LabClock:
    """The lab's time; it starts at the real present and runs `speed` times as fast.

    Times never go backwards, even when the machine's own clock is set back.
    """

    def __init__(
        self,
        speed: float = 1.0,
        *,
        start: datetime | None = None,
        real: Callable[[], float] = time.monotonic,
    ) -> None:
        if not speed > 0:
            raise ValueError(f"clock speed must be a positive number, got {speed}; use 1 for real time")
        begin = start if start is not None else datetime.now(UTC)
        if begin.tzinfo is None:
            raise ValueError(f"clock start {begin.isoformat()} has no time zone; give a datetime in UTC")
        self.speed = speed
        self._begin = begin.astimezone(UTC)
        self._real = real
        self._real_begin = real()

    def monotonic(self) -> float:
        """Cluster seconds since the clock was made."""
        return (self._real() - self._real_begin) * self.speed

    def now(self) -> datetime:
        """The cluster's present time, in UTC."""
        return self._begin + timedelta(seconds=self.monotonic())

    def timestamp(self) -> str:
        """The present time as the API server writes it: RFC 3339, UTC, whole seconds."""
        return rfc3339(self.now())

    async def sleep(self, seconds: float) -> None:
        """Wait this many cluster seconds; zero or less gives other tasks one turn. Cancelling ends it at once."""
        await asyncio.sleep(max(0.0, seconds) / self.speed)

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function in this many cluster seconds, on the running loop; `cancel()` of the handle revokes it."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds) / self.speed, call)

    def deadline(self, seconds: float) -> "Deadline":
        """A point in time this many cluster seconds from now."""
        return Deadline(self, self.monotonic() + seconds)

    def since(self, text: str) -> float:
        """Cluster seconds passed since an RFC 3339 time; negative for one to come. ValueError if it is no time."""
        return (self.now() - parse_rfc3339(text)).total_seconds()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in cluster time that something must not, or must, wait for."""

    clock: LabClock
    at: float

    @property
    def remaining(self) -> float:
        """Cluster seconds left, never negative."""
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the point lies behind us."""
        return self.clock.monotonic() >= self.at

    async def wait(self) -> None:
        """Sleep until the point is reached."""
        while not self.passed:
            await self.clock.sleep(self.remaining)


def rfc3339(moment: datetime) -> str:
    """A time in Kubernetes' `metav1.Time` form: UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """A time in Kubernetes' `metav1.MicroTime` form (leases, events.k8s.io): UTC, microseconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> datetime:
    """The time an RFC 3339 text names, in UTC; ValueError if it has no zone or is malformed."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no time zone; Kubernetes times end in Z or an offset")
    return moment.astimezone(UTC)
