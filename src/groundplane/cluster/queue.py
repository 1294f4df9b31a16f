"""Keys that want work: a de-duplicating queue, and the loop that hands its keys to a reconcile function.

The queue follows the contract of client-go's: a key added twice before it is taken is handed out once; a key added
while it is being worked on is handed out again afterwards, never to two workers at a time; a key that failed comes back
after a delay that doubles up to a limit. What a key means and what reconciling does is left to the caller.
"""

import asyncio
import heapq
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 3.0
"""Exponential 100 ms to 3 s (contracts/control-plane.md 4.2, Requeue)."""


class WorkQueue(Generic[K]):
    """Keys in order of arrival. All methods belong to one event loop; none of the plain ones blocks.

    ``clock`` is a monotonic clock in seconds, ``sleep`` waits by it: a test or the lab passes its own pair.
    """

    def __init__(
        self,
        *,
        backoff_first_s: float = BACKOFF_FIRST_S,
        backoff_max_s: float = BACKOFF_MAX_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._first_s = backoff_first_s
        self._max_s = backoff_max_s
        self._clock = clock
        self._sleep = sleep
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are ready to be taken, without delayed ones and those in work."""
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """No key is ready, in work or due later."""
        return not (self._ready or self._working or self._due)

    @property
    def resting(self) -> bool:
        """No key is ready or in work; some may be due later."""
        return not (self._ready or self._working)

    def add(self, key: K) -> None:
        """Want work on ``key`` now. An earlier :meth:`add_after` of it is thereby fulfilled."""
        self._due.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._changed.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Want work on ``key`` in ``delay_s`` seconds; of several wishes the earliest counts."""
        if delay_s <= 0:
            self.add(key)
            return
        due = self._clock() + delay_s
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._changed.set()

    def retry(self, key: K) -> float:
        """Want ``key`` again after its back-off, which doubles with every call until :meth:`forget`. Returns it."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._first_s * 2.0 ** min(failures, 62), self._max_s)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """``key`` succeeded: its next failure backs off from the start again."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often ``key`` was retried since it last succeeded."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; it belongs to the caller until :meth:`done`."""
        while True:
            wait_s = self._release()
            if self._ready:
                key, _ = self._ready.popitem(last=False)
                self._working.add(key)
                if self._ready:
                    self._changed.set()
                return key
            self._changed.clear()
            await self._wait(wait_s)

    def done(self, key: K) -> None:
        """The caller of :meth:`get` has finished with ``key``. Raises :class:`KeyError` if it never held it."""
        self._working.remove(key)
        if key in self._again:
            self._again.remove(key)
            self.add(key)

    def _release(self) -> float | None:
        """Move due keys to the ready ones; seconds until the next is due, None without any."""
        now = self._clock()
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)
            elif due <= now:
                heapq.heappop(self._heap)
                self.add(key)
            else:
                return due - now
        return None

    async def _wait(self, wait_s: float | None) -> None:
        """Until something is added, or ``wait_s`` seconds."""
        changed = asyncio.ensure_future(self._changed.wait())
        waiters: set[asyncio.Future[Any]] = {changed}
        if wait_s is not None:
            waiters.add(asyncio.ensure_future(self._sleep(wait_s)))
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)


class Requeue(msgspec.Struct, frozen=True):
    """A reconcile's wish to be called again for its key, ``after_s`` seconds from now, without counting as failed."""

    after_s: float


class Controller(Generic[K]):
    """Runs ``reconcile`` for every added key, ``workers`` keys at a time.

    An exception of ``reconcile`` is logged, given to ``on_error`` and retried with back-off; it never ends the loop.
    ``reconcile`` returns None when the key is as it should be, or :class:`Requeue`.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Requeue | None]],
        *,
        workers: int = 1,
        on_error: Callable[[K, Exception], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        backoff_first_s: float = BACKOFF_FIRST_S,
        backoff_max_s: float = BACKOFF_MAX_S,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(
            clock=clock, sleep=sleep, backoff_first_s=backoff_first_s, backoff_max_s=backoff_max_s
        )
        self._reconcile = reconcile
        self._workers = workers
        self._on_error = on_error

    def add(self, key: K) -> None:
        """Want ``key`` reconciled."""
        self.queue.add(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Want ``key`` reconciled in ``delay_s`` seconds."""
        self.queue.add_after(key, delay_s)

    async def run(self) -> None:
        """Work until cancelled. A cancellation reaches the reconciles in flight and waits for them."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._handle(key)
            finally:
                self.queue.done(key)

    async def _handle(self, key: K) -> None:
        try:
            wish = await self._reconcile(key)
        except Exception as error:
            delay = self.queue.retry(key)
            log.error("%s: reconciling %r failed, again in %.1f s", self.name, key, delay, exc_info=error)
            self._report(key, error)
            return
        self.queue.forget(key)
        if wish is not None:
            self.queue.add_after(key, wish.after_s)

    def _report(self, key: K, error: Exception) -> None:
        if self._on_error is None:
            return
        try:
            self._on_error(key, error)
        except Exception:
            log.exception("%s: on_error for %r failed itself", self.name, key)
