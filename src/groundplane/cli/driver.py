"""``groundplane driver``: what is to happen to the drivers of a cluster's nodes."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from . import documents
from . import output as printing
from .render import release

if TYPE_CHECKING:
    from ..api.release import Release
    from ..cluster.client import Client
    from ..cluster.config import Config
    from ..operator.upgrade.model import Counts
    from ..operator.upgrade.planning import Plan, Row

AT_REST = ("", "upgrade-done")


@click.group("driver")
def command() -> None:
    """See to the drivers of nodes."""


@command.command("plan")
@click.option("--live", is_flag=True, help="Look at the cluster; the default without --snapshot.")
@click.option(
    "--snapshot", "path", metavar="FILE", help="Look at the objects in a YAML or JSON file; - reads standard input."
)
@click.option("--kubeconfig", metavar="FILE", help="How to reach the cluster [KUBECONFIG, else ~/.kube/config].")
@click.option("--context", metavar="NAME", help="Which context of the kubeconfig.")
@click.option("--namespace", default="gpu-operator", show_default=True, help="The operator's namespace.")
@click.option("--release", "release_text", envvar="GROUNDPLANE_RELEASE", help="26.3.3 or 26.7.0 (the default).")
@click.option("--all", "everything", is_flag=True, help="Also list nodes that have nothing to do and wait for nothing.")
@click.option("-o", "--output", type=click.Choice(["text", *printing.FORMATS]), default="text", show_default=True)
def plan(
    live: bool,
    path: str | None,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    release_text: str | None,
    everything: bool,
    output: str,
) -> None:
    """Print what the next pass of driver upgrades would do, and why each node waits. Writes nothing.

    A snapshot holds what kubectl prints of a cluster:

    \b
      kubectl get nodes,pods,daemonsets,controllerrevisions,clusterpolicies,nvidiadrivers -A -o yaml
    """
    from ..cluster import errors
    from ..operator.upgrade import planning

    if live and path:
        raise click.UsageError("--live and --snapshot exclude each other: give one")
    chosen = release(release_text)
    try:
        if path:
            found = asyncio.run(_of_file(path, namespace, chosen))
        else:
            from ..cluster import config

            where = config.Config.detect(kubeconfig=kubeconfig, context=context)
            found = asyncio.run(_of_cluster(where, namespace, chosen))
    except (planning.PlanError, errors.ClusterError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if output == "text":
        _print(found, everything=everything)
    else:
        printing.documents([_document(found)], output)


async def _of_cluster(where: "Config", namespace: str, chosen: "Release") -> "Plan":
    from ..cluster.client import Client
    from ..operator.upgrade import planning

    async with Client(where) as client:
        return await planning.plan(client, namespace=namespace, release=chosen, now=int(time.time()))


async def _of_file(path: str, namespace: str, chosen: "Release") -> "Plan":
    from ..lab.snapshot import Snapshot
    from ..operator.upgrade import planning

    snapshot = Snapshot(documents.read(path))
    client = cast("Client", snapshot)  # it answers the listings that a plan asks for
    return await planning.plan(client, namespace=namespace, release=chosen, now=int(time.time()))


def _print(found: "Plan", *, everything: bool) -> None:
    if found.off:
        click.echo(f"driver upgrades are off: {found.off}")
    shown = [row for row in found.rows if everything or row.to or row.what or row.state not in AT_REST]
    for row in shown:
        click.echo(_line(row))
        for text in row.what:
            click.echo(f"      {text}")
    for problem in found.problems:
        click.echo(f"problem: {problem}")
    for driver, counts in found.counts.items():
        about = f"NVIDIADriver {driver}: " if driver else ""
        click.echo(f"{about}{counted(counts)}")
    if not shown and not found.off:
        click.echo("no node has anything to do")


def counted(counts: "Counts") -> str:
    """The numbers of a pass, for a person."""
    return (
        f"{counts.total} nodes: {counts.done} done, {counts.in_progress} in progress, {counts.pending} pending, "
        f"{counts.failed} failed; {counts.unavailable} of at most {counts.max_unavailable} unavailable; "
        f"{max(counts.slots, 0)} may start"
    )


def _line(row: "Row") -> str:
    move = f"{row.state or '(no state)'} -> {row.to}" if row.to else f"{row.state or '(no state)'}: stays"
    cordoned = ", cordoned" if row.cordoned else ""
    driver = f" ({row.driver})" if row.driver else ""
    return f"{row.node}{driver}: {move}{cordoned}"


def _document(found: "Plan") -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(found)
    document["counts"] = {driver: counts._asdict() for driver, counts in found.counts.items()}
    return {"apiVersion": "groundplane.dev/v1alpha1", "kind": "DriverPlan", **document}
