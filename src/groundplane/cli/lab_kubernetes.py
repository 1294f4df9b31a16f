"""``groundplane lab up --engine kubernetes``: the same lab on real Kubernetes nodes, whose GPUs are simulated.

The cluster is `testing/gpucluster.py` of groundplane's repository, which is not part of the installed package: it
builds Kubernetes from source, and needs root. The operator comes from the chart; a policy is applied as in the embedded
lab.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from testing.gpucluster import GpuCluster

    from ..lab.nodes import NodeSpec

POLICIES = "/apis/nvidia.com/v1/clusterpolicies"


def prepare() -> None:
    """Build what is not built yet. ClickException says what this machine lacks."""
    try:
        from testing.realcluster import build, node
    except ImportError as error:
        raise click.ClickException(
            "the engine `kubernetes` needs a checkout of groundplane's repository and its development dependencies "
            f"(make setup): {error}"
        ) from error
    if lacking := node.missing():
        raise click.ClickException(f"the engine `kubernetes` cannot run here: {lacking}")
    try:
        build.ensure((*build.CONTROL_PLANE, *build.NODE), log=click.echo)
    except build.UnavailableError as error:
        raise click.ClickException(f"the engine `kubernetes` cannot run here: {error}") from error


@contextlib.contextmanager
def running(
    specs: "list[NodeSpec]", *, port: int, speed: float, policies: Sequence[Mapping[str, Any]], operator: bool
) -> "Iterator[GpuCluster]":
    """A real cluster of these nodes with images loaded, the operator installed and the policies applied."""
    from testing import gpucluster
    from testing.realcluster import build, process

    from ..api.release import Release

    release = Release.DEFAULT
    usual = [gpucluster.chart_policy(release, values) for values in ({}, gpucluster.EVERYTHING)]
    wanted = [(release, policy) for policy in (*usual, *policies)]
    with _terminated_as_interrupt():
        try:
            with gpucluster.GpuCluster(specs, wanted, speed=speed, port=port, log=_say) as cluster:
                if operator:
                    cluster.install({"clusterPolicy": {"deployCR": False}, "operator": {"release": release.value}})
                else:
                    cluster.create_definitions()
                for policy in policies:
                    _create(cluster, policy)
                yield cluster
        except (build.UnavailableError, process.ProcessFailedError) as error:
            raise click.ClickException(str(error)) from error


def _say(text: str) -> None:
    click.echo(text, err=True)


def _create(cluster: "GpuCluster", policy: Mapping[str, Any]) -> None:
    status, answer = cluster.request("POST", POLICIES, policy)
    if status != HTTPStatus.CREATED:
        raise click.ClickException(f"the API server refused the policy: {answer.get('message', answer)}")


def wait_for_end(cluster: "GpuCluster") -> None:
    """Return when SIGTERM or Ctrl-C comes. ClickException if a server of the control plane ends by itself."""
    try:
        while True:
            for name, process in cluster.cluster.control_plane.processes.items():
                if not process.running:
                    raise click.ClickException(f"{name} has ended:\n{process.tail()}")
            threading.Event().wait(1.0)
    except KeyboardInterrupt:
        click.echo("the lab ends")


@contextlib.contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt, as Ctrl-C does: what was started is ended in order."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
