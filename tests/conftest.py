"""What all tests share: property tests that run the same examples every time, and the real control plane."""

import os
import signal
from collections.abc import Iterator

import pytest
from contract_report import pytest_terminal_summary  # noqa: F401  (a hook)
from hypothesis import settings

from testing.realcluster import build
from testing.realcluster.controlplane import ControlPlane

settings.register_profile("api", deadline=None, derandomize=True)
settings.load_profile("api")


def pytest_configure() -> None:
    """A shell has what it puts into the background ignore SIGINT, and children inherit that: some tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of `real/` take longest and come first, so that several workers end at about the same time."""
    items.sort(key=lambda item: item.path.parent.name != "real")


def unavailable(reason: str) -> None:
    """End a test that cannot run on this machine: skipped on a person's, failed in CI, where nothing may go missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"cannot run here, and CI=true: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def real_control_plane() -> Iterator[ControlPlane]:
    """A real kube-apiserver with controllers and scheduler, one for the session. Tests use namespaces of their own."""
    try:
        build.ensure(build.CONTROL_PLANE)
    except build.UnavailableError as error:
        unavailable(str(error))
    users = {"operator": (), "alice": (), "bob": ("developers",)}
    hasty = ("--kube-api-qps=500", "--kube-api-burst=1000")
    with ControlPlane(users=users, audit=True, controller_args=hasty) as running:
        yield running
