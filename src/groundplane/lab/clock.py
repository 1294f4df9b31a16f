"""Cluster time: the only clock of the lab.

Everything in the lab that waits or writes a time takes a `LabClock`, so that a scenario of minutes can run in seconds:
with speed N, N seconds of the cluster pass in one real second. Durations in the lab's signatures are always cluster
seconds. What is written into objects is formatted here (`rfc3339`), as the API server would.

A machine that is busy must not make a cluster's timeouts pass while nothing gets done: what a wait of this clock is
late by more than a moment, it takes out of the cluster's time.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

LATE_S = 0.05
"""Real seconds by which a wait may be late, as on a machine with little to do; what is more does not count."""
_EXACT_S = 1e-4
"""Real seconds within which a wait's end is met."""


class Timer:
    """A call that is to come; `cancel` revokes it."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        self._revoked = False

    def cancel(self) -> None:
        """Do not call any more."""
        self._revoked = True
        if self._handle is not None:
            self._handle.cancel()

    def _wait(self, handle: asyncio.TimerHandle) -> None:
        self._handle = handle
        if self._revoked:
            handle.cancel()


class LabClock:
    """The lab's time; it starts at the real present and runs `speed` times as fast, slower while the machine is late.

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
        self._runs = real is time.monotonic
        self._real_begin = real()
        self._late = 0.0
        self._late_until = self._real_begin
        self._passed = 0.0

    def monotonic(self) -> float:
        """Cluster seconds since the clock was made."""
        passed = self._real() - self._real_begin - self._late
        self._passed = max(self._passed, passed)
        return self._passed * self.speed

    def _woken(self, planned: float) -> None:
        """Take out what a wait that was to end then, in real time, is late by; waits that are late together, once."""
        present = self._real()
        late = present - max(planned, self._late_until) - LATE_S
        if late > 0:
            self._late += late
        if present - planned > LATE_S:
            self._late_until = present

    def now(self) -> datetime:
        """The cluster's present time, in UTC."""
        return self._begin + timedelta(seconds=self.monotonic())

    def timestamp(self) -> str:
        """The present time as the API server writes it: RFC 3339, UTC, whole seconds."""
        return rfc3339(self.now())

    async def sleep(self, seconds: float) -> None:
        """Wait this many cluster seconds; zero or less gives other tasks one turn. Cancelling ends it at once."""
        left = max(0.0, seconds) / self.speed
        end = self.monotonic() + left * self.speed
        while True:
            planned = self._real() + left
            await asyncio.sleep(left)
            left = self._left(planned, end)
            if not left:
                return

    def _left(self, planned: float, end: float) -> float:
        """Real seconds that a wait, planned to be over then, still has until its end in cluster time."""
        if not self._runs:
            return 0.0
        self._woken(planned)
        left = (end - self.monotonic()) / self.speed
        return left if left > _EXACT_S else 0.0

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call a function in this many cluster seconds, on the running loop; `cancel()` of the timer revokes it."""
        loop = asyncio.get_running_loop()
        timer = Timer()
        end = self.monotonic() + max(0.0, seconds)

        def wait(left: float) -> None:
            timer._wait(loop.call_later(left, ring, self._real() + left))

        def ring(planned: float) -> None:
            if left := self._left(planned, end):
                wait(left)
            else:
                call()

        wait(max(0.0, seconds) / self.speed)
        return timer

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Like `asyncio.timeout`, in cluster seconds: TimeoutError if the block takes longer; None is for ever."""
        async with asyncio.timeout(None) as scope:
            timer = Timer()
            if seconds is not None:
                timer = self.call_later(seconds, lambda: scope.reschedule(asyncio.get_running_loop().time()))
            try:
                yield scope
            finally:
                timer.cancel()

    async def wait(self, waits: Collection["asyncio.Future[Any]"], seconds: float) -> None:
        """Wait until one of these has ended, at most so many cluster seconds; nothing is cancelled."""
        with contextlib.suppress(TimeoutError):
            async with self.timeout(seconds):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)

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
