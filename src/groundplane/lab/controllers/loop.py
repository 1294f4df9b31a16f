"""The work loop under every controller: keys marked dirty now, worked off a moment later, nothing while all is quiet.

The API server of the lab is called synchronously, so working off a key is a plain function that sees the present state;
the loop only orders the calls, gives other tasks their turn after a few milliseconds of work, and tries a failed key
again with back-off.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..clock import LabClock, Timer
from ..status import StatusError

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

TURN_S = 0.005
"""Real seconds of work after which other tasks get a turn."""
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 60.0
"""Back-off of a failing key, in cluster seconds: doubled each time between these bounds."""


class Loop(Generic[K]):
    """A queue of keys, each at most once, and the task that works them off in order.

    `add` may be called at any time, also from inside `reconcile`. A `StatusError` or any other exception of
    `reconcile` is logged and the key tried again later; the loop itself ends only when it is cancelled.
    """

    def __init__(self, name: str, reconcile: Callable[[K], None], clock: LabClock) -> None:
        self.name = name
        self._reconcile = reconcile
        self._clock = clock
        self._order: deque[K] = deque()
        self._waiting: set[K] = set()
        self._timers: dict[K, tuple[float, Timer]] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._order)

    @property
    def failing(self) -> bool:
        """Whether some key's last attempt failed: it will be tried again."""
        return bool(self._failures)

    @property
    def timers(self) -> int:
        """How many keys are due later."""
        return len(self._timers)

    def add(self, key: K) -> None:
        """Mark a key dirty."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._order.append(key)
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Mark a key dirty in this many cluster seconds; of several appointments the earliest holds."""
        at = self._clock.monotonic() + seconds
        known = self._timers.get(key)
        if known is not None:
            if known[0] <= at:
                return
            known[1].cancel()
        self._timers[key] = (at, self._clock.call_later(seconds, lambda: self._ring(key)))

    def _ring(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def run(self) -> None:
        """Work keys off until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._drain()
        finally:
            for _, timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _drain(self) -> None:
        turn_ends = time.monotonic() + TURN_S
        while self._order:
            key = self._order.popleft()
            self._waiting.discard(key)
            self._work(key)
            if time.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + TURN_S

    def _work(self, key: K) -> None:
        try:
            self._reconcile(key)
        except StatusError as error:
            log.info("%s: %s: %s; will be tried again", self.name, key, error.message)
            self._retry(key)
        except Exception:
            log.exception("%s: %s failed; will be tried again", self.name, key)
            self._retry(key)
        else:
            self._failures.pop(key, None)

    def _retry(self, key: K) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures, 16)))
