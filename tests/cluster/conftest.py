import asyncio
from collections.abc import AsyncIterator

import pytest
from cluster.fake_api import FakeApi, serving

from groundplane.cluster.client import Client
from groundplane.cluster.config import Config


class Sleeps(list[float]):
    """Stands in for asyncio.sleep: remembers, and returns at once."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with serving(FakeApi()) as api:
        yield api


@pytest.fixture
async def client(api: FakeApi, sleeps: Sleeps) -> AsyncIterator[Client]:
    async with Client(Config(server=api.url, token="secret"), sleep=sleeps, rand=lambda: 0.0) as client:
        yield client
