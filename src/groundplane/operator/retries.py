"""When a key is looked at again after a failure, and when no more keys are looked at because the process stops.

API refusals and lost connections are everyday events for a controller; they are answered with a delay that doubles per
key from 100 ms to 3 s (contracts/control-plane.md 4.2), or with the server's own wish where that is longer. What is
forbidden waits for a person: there the delay doubles up to half a minute.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from ..cluster import queue
from ..cluster.errors import ApiError, ClusterError, Forbidden

K = TypeVar("K", bound=Hashable)
Reconcile = Callable[[str], Awaitable[queue.Requeue | None]]
Guard = Callable[[Reconcile], Reconcile]
"""Wraps a reconcile function."""


FORBIDDEN_MAX_S: Final = 30.0


class Backoff(Generic[K]):
    """Counts failures a key."""

    def __init__(self) -> None:
        self._failures: dict[K, int] = {}

    def failed(self, key: K, error: ClusterError | None = None) -> queue.Requeue:
        """``key`` failed once more: when to try again."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        longest = FORBIDDEN_MAX_S if isinstance(error, Forbidden) else queue.BACKOFF_MAX_S
        delay = min(queue.BACKOFF_FIRST_S * 2.0 ** min(count, 30), longest)
        wish = error.retry_after_s if isinstance(error, ApiError) else None
        return queue.Requeue(max(delay, wish or 0.0))

    def succeeded(self, key: K) -> None:
        """``key`` is as it should be: its next failure starts from the shortest delay."""
        self._failures.pop(key, None)


class Gate:
    """Lets reconciles through until it is closed; then those inside finish, and no other begins."""

    def __init__(self) -> None:
        self._inside = 0
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def guard(self, reconcile: Reconcile) -> Reconcile:
        """The same reconcile, counted while it runs and skipped once the gate is closed."""

        async def guarded(key: str) -> queue.Requeue | None:
            if self._closed:
                return None
            self._inside += 1
            self._empty.clear()
            try:
                return await reconcile(key)
            finally:
                self._inside -= 1
                if not self._inside:
                    self._empty.set()

        return guarded

    async def close(self, patience_s: float) -> bool:
        """Close, and wait for those inside, ``patience_s`` seconds at most. Says whether all came out."""
        self._closed = True
        try:
            async with asyncio.timeout(patience_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
