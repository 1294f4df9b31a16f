"""The cluster fixture of the operator's tests."""

from collections.abc import AsyncIterator

import pytest
from operator_harness import Cluster, cluster_of


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """An empty cluster; whatever operator a test starts on it ends with the test."""
    async with cluster_of() as made:
        yield made
