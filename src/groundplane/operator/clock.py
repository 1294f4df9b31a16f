"""The time, as a parameter: the system's own clock, and the protocol that a test's or the lab's clock follows."""

import asyncio
import datetime
import time
from typing import Protocol


class Clock(Protocol):
    """Time of day, a monotonic clock and a way to wait, all of one pace."""

    def now(self) -> datetime.datetime:
        """The present moment, in UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of this clock."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime.datetime:
        """The present moment, in UTC."""
        return datetime.datetime.now(datetime.UTC)

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""
        await asyncio.sleep(seconds)


def rfc3339(moment: datetime.datetime) -> str:
    """A Kubernetes timestamp: UTC, whole seconds."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
