"""Fixtures of the validator's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node.validate.validator_world import World

from groundplane.api.release import Release


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A node and its cluster."""
    async with World(tmp_path) as made:
        yield made


@pytest.fixture(params=list(Release), ids=str)
async def released(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """The same, for each operator release."""
    async with World(tmp_path, request.param) as made:
        yield made
