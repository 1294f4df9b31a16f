"""Nodes for the driver manager."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from node.driver.driverworld import World

from groundplane.api.release import Release


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    """Makes the world of a test."""
    async with contextlib.AsyncExitStack() as stack:
        made = 0

        async def start(release: Release = Release.DEFAULT) -> World:
            nonlocal made
            made += 1
            return await stack.enter_async_context(World(tmp_path / str(made), release).serving())

        yield start
