"""What all tests share: property tests that run the same examples every time, and the real control plane."""

import os
from collections.abc import Iterator

import pytest
from contract_report import pytest_terminal_summary  # noqa: F401  (a hook)
from hypothesis import settings

from testing.realcluster import build
from testing.realcluster.controlplane import ControlPlane

settings.register_profile("api", deadline=None, derandomize=True)
settings.load_profile("api")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, tests that share a real cluster run in one of them: those of a file, and all of `real/`.

    Those of `real/` take longest and come first.
    """
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.xdist_group("real" if _on_stage(item) else item.path.name))
    items.sort(key=lambda item: not _on_stage(item))


def _on_stage(item: pytest.Item) -> bool:
    return item.path.parent.name == "real"


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
