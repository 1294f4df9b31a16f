"""``groundplane plan``: what the operator would change in a live cluster, printed and not done."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from . import output as printing
from .render import load_policy, release

if TYPE_CHECKING:
    from ..api.release import Release
    from ..cluster.config import Config
    from ..operator.plan import Report

SIGNS = {"create": "+", "update": "~", "delete": "-"}


@click.command("plan")
@click.option("-f", "--file", "path", metavar="FILE", help="A ClusterPolicy to plan for, instead of the cluster's own.")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the cluster [KUBECONFIG, else ~/.kube/config].")
@click.option("--context", metavar="NAME", help="Which context of the kubeconfig.")
@click.option("--namespace", default="gpu-operator", show_default=True, help="The operator's namespace.")
@click.option("--release", "release_text", envvar="GROUNDPLANE_RELEASE", help="26.3.3 or 26.7.0 (the default).")
@click.option("-o", "--output", type=click.Choice(["text", *printing.FORMATS]), default="text", show_default=True)
@click.option("--exit-code", is_flag=True, help="Exit with 2 when something would change.")
def command(
    path: str | None,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    release_text: str | None,
    output: str,
    exit_code: bool,
) -> None:
    """Print what the operator would change: objects, their differing fields, and node labels. Writes nothing."""
    from ..cluster import config, errors
    from ..operator import plan

    document = load_policy(path).document if path else None
    try:
        where = config.Config.detect(kubeconfig=kubeconfig, context=context)
        report = asyncio.run(_report(where, namespace, release(release_text), document))
    except (plan.PlanError, errors.ClusterError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if output == "text":
        _print(report)
    else:
        printing.documents([_document(report)], output)
    if report.problems:
        raise SystemExit(1)
    if exit_code and not report.empty:
        raise SystemExit(2)


async def _report(where: "Config", namespace: str, chosen: "Release", document: dict[str, Any] | None) -> "Report":
    from ..cluster.client import Client
    from ..operator import plan

    async with Client(where) as client:
        return await plan.live(client, namespace=namespace, release=chosen, document=document)


def _print(report: "Report") -> None:
    for change in report.objects:
        where = f"{change.key.namespace}/" if change.key.namespace else ""
        click.echo(f"{SIGNS[change.action]} {change.state}: {change.key.kind.kind} {where}{change.key.name}")
        for path in change.paths:
            click.echo(f"      {path}")
    for node in report.nodes:
        for key, value in {**node.labels, **node.annotations}.items():
            click.echo(f"{'-' if value is None else '~'} node {node.name}: {key}{'' if value is None else f'={value}'}")
    for waiting in report.waiting:
        click.echo(f"waits: {waiting}")
    for problem in report.problems:
        click.echo(f"error: {problem}", err=True)
    changes = f"{len(report.objects)} objects, {len(report.nodes)} nodes to change"
    nothing = "cannot be carried out" if report.problems else "nothing to change"
    click.echo(f"ClusterPolicy {report.policy}: {nothing if report.empty else changes}")


def _document(report: "Report") -> dict[str, Any]:
    return {
        "apiVersion": "groundplane.dev/v1alpha1",
        "kind": "Plan",
        "policy": report.policy,
        "objects": [
            {
                "action": change.action,
                "state": change.state,
                "kind": change.key.kind.kind,
                "namespace": change.key.namespace,
                "name": change.key.name,
                "paths": list(change.paths),
            }
            for change in report.objects
        ],
        "nodes": [{"name": node.name, "labels": node.labels, "annotations": node.annotations} for node in report.nodes],
        "waiting": list(report.waiting),
        "problems": list(report.problems),
    }
