"""Time that passes only when a test says so."""

import asyncio
import heapq
import itertools


class FakeTime:
    """A clock that moves only when told; sleepers wake in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), waiter))
        await waiter

    async def advance(self, seconds: float) -> None:
        end = self.now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)
            await self.settle()
        self.now = end

    @staticmethod
    async def settle() -> None:
        for _ in range(30):
            await asyncio.sleep(0)
