"""Fixtures of the contract cases: one lab and one real control plane a session, a fresh namespace a case.

`engine` runs a case twice, as `[lab]` and as `[kubernetes]` (marker `real`). How many passed on each is printed at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.ctrl_plane import Plane
from contract.engines import NAMES, Api, Cleanup, Cluster, Engine, LabThread, attached, started

from groundplane.lab.cluster import DEFAULT_SPEED

ENGINES = [pytest.param("lab"), pytest.param("kubernetes", marks=pytest.mark.real)]


@pytest.fixture(scope="session")
def lab() -> Iterator[Engine]:
    with LabThread() as engine:
        yield engine


@pytest.fixture(scope="session")
def swift_lab() -> Iterator[Engine]:
    with LabThread(speed=DEFAULT_SPEED) as engine:
        yield engine


@pytest.fixture(scope="session")
def kubernetes(request: pytest.FixtureRequest) -> Engine:
    return attached() or started(request.getfixturevalue("real_control_plane"))


@pytest.fixture(scope="session", params=ENGINES, ids=NAMES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session", params=ENGINES, ids=NAMES)
def swift_engine(request: pytest.FixtureRequest) -> Engine:
    """As `engine`, but the lab's time runs fast: for controllers and scheduler, which let things wait."""
    found: Engine = request.getfixturevalue("swift_lab" if request.param == "lab" else request.param)
    return found


@pytest.fixture
def plane(swift_engine: Engine) -> Iterator[Plane]:
    """A namespace and nodes for a case of controllers or scheduler."""
    with Plane(swift_engine) as plane:
        yield plane


@pytest.fixture
def api(engine: Engine) -> Api:
    """The engine as its administrator sees it."""
    return engine.admin


@pytest.fixture
def cleanup(api: Api) -> Iterator[Cleanup]:
    """Deletes, after the case, what it made outside its namespace."""
    cleanup = Cleanup(api)
    yield cleanup
    cleanup.run()


@pytest.fixture
def cluster(api: Api, cleanup: Cleanup) -> Cluster:
    return Cluster(api, cleanup)


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    """The name of a fresh namespace with its default service account."""
    return cluster.namespace()


@pytest.fixture
def core(namespace: str) -> str:
    """The path of the fresh namespace in the core group."""
    return f"/api/v1/namespaces/{namespace}"


@pytest.fixture
def apps(namespace: str) -> str:
    """The path of the fresh namespace in apps/v1."""
    return f"/apis/apps/v1/namespaces/{namespace}"
