"""The real cluster of the end-to-end tests: one for the session, each test module installs the chart in it anew."""

from collections.abc import Iterator

import pytest
from conftest import unavailable
from real.stage import Stage, hasten_probes, policies, specs

from testing.gpucluster import GpuCluster
from testing.realcluster import build


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Real nodes with simulated GPUs, and no operator yet."""
    try:
        with GpuCluster(specs(), policies(), audit=True) as cluster:
            hasten_probes(cluster)
            yield Stage(cluster)
    except build.UnavailableError as error:
        unavailable(str(error))
