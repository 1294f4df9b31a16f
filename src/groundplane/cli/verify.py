"""``groundplane verify``: whether an installed GPU stack is what it should be, on every node."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import reach

if TYPE_CHECKING:
    from ..admin.hops import Version
    from ..admin.verify_view import View
    from ..diagnose.findings import Finding
    from ..diagnose.survey import Survey

METRICS_ASKED = 32
"""Exporters that are asked, unless told otherwise: evenly spread, so that a thousand nodes take no minute."""


@click.command("verify")
@reach.cluster_options
@click.option("--release", metavar="VERSION", default="", help="The release that should be installed [any].")
@click.option(
    "--snapshot",
    metavar="FILE",
    multiple=True,
    help="Judge what kubectl printed (-o yaml or json), a folder of it, an archive, - for stdin; no cluster is asked.",
)
@click.option(
    "--explain", metavar="NODE", default="", help="Say of every operand why it runs, or does not run, on a node."
)
@click.option(
    "--metrics",
    metavar="N",
    type=click.IntRange(min=-1),
    default=METRICS_ASKED,
    show_default=True,
    help="How many exporters to ask for their metrics: 0 for all, -1 for none.",
)
@click.option("-a", "--all", "everything", is_flag=True, help="Print all nodes and all evidence.")
@reach.html_option
@reach.output_option
def command(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    release: str,
    snapshot: tuple[str, ...],
    explain: str,
    metrics: int,
    everything: bool,
    html: Path | None,
    output: str,
) -> None:
    """Verify an installed GPU stack, node by node: NVIDIA's operator or groundplane's. Changes nothing.

    Exits with 0 if all is well, 4 with warnings or things that could not be looked at, 3 with a failure. The CUDA test
    is a command of its own: groundplane cuda-test.
    """
    from ..admin import verify

    wanted = _wanted(release)
    if snapshot:
        survey, pages = _of_files(snapshot, namespace), None
    else:
        survey, pages = _live(kubeconfig, context, namespace, metrics)
    view = verify.look(survey, wanted=wanted, metrics=pages)
    findings = verify.judge(view)
    about = verify.about(view)
    if explain:
        about["explained"] = {"node": explain, "operands": _explained(view, explain)}
    if html is not None:
        _page(html, view, findings, about)
    if output == "text":
        _head(about, explain)
    reach.report(findings, output, kind="Verification", about=about, everything=everything)


def _wanted(release: str) -> "Version | None":
    from ..admin.hops import Version, VersionError

    try:
        return Version.parse(release) if release else None
    except VersionError as error:
        raise click.UsageError(f"--release: {error}") from None


def _of_files(paths: tuple[str, ...], namespace: str) -> "Survey":
    """What files, folders and archives hold of a cluster. What is wrong with them becomes a usage error."""
    from ..admin import sources
    from ..diagnose.archive import ArchiveError

    try:
        return sources.survey_of_all(paths, namespace=namespace)
    except (ArchiveError, OSError) as error:
        raise click.UsageError(f"--snapshot: {error}") from None


def _live(kubeconfig: str | None, context: str | None, namespace: str, metrics: int) -> "tuple[Survey, Any]":
    from ..admin import metricslook, verify, verify_gpus
    from ..cluster.client import Client
    from ..diagnose import survey

    where = reach.config(kubeconfig, context)

    async def read() -> "tuple[Survey, Any]":
        async with Client(where) as client:
            found = await survey.live(client, verify.KINDS, namespace=namespace)
            if metrics < 0:
                return found, None
            exporters = verify_gpus.exporters(verify.look(found))
            return found, await metricslook.look(client, metricslook.chosen(exporters, metrics))

    return reach.run(read())


def _explained(view: "View", node: str) -> list[dict[str, Any]]:
    """Why each operand is, or is not, on a node. Raises :class:`click.UsageError` for a node that is not there."""
    from ..admin import verify_pods

    if not any(each["metadata"]["name"] == node for each in view.survey.of_kind("nodes")):
        raise click.UsageError(f"--explain {node}: the cluster has no such node; see kubectl get nodes")
    return verify_pods.explained(view, node)


def _head(about: dict[str, Any], explain: str) -> None:
    cluster = about["cluster"]
    where = f" at {cluster['server']}" if cluster["server"] else ""
    click.echo(
        f"Kubernetes {cluster['kubernetes'] or '(version unknown)'}{where}: {cluster['nodes']} nodes, "
        f"{cluster['gpuNodes']} with GPUs"
    )
    click.echo(f"Installed: {about['installed'] or 'no release that can be seen'}; rules of {about['rules']}")
    click.echo()
    for row in about["explained"]["operands"] if explain else ():
        mark = {True: "expected", False: "not expected"}[row["expected"]]
        click.echo(f"  {row['operand']:<42} {mark:<13} {row['pod'] or '-':<12} {row['why']}")
    if explain:
        click.echo()


def _page(path: Path, view: "View", findings: "list[Finding]", about: dict[str, Any]) -> None:
    from ..admin import verify_gpus, verify_pods
    from ..diagnose import html

    cluster = about["cluster"]
    sections = (
        html.Section(
            title="Operands by node",
            head=("DaemonSet", "Expected on", "Running on", "Not expected, because"),
            rows=tuple(verify_pods.summary(view)),
        ),
        html.Section(
            title="Label families",
            head=("Family", "Labels", "Values"),
            rows=tuple(verify_gpus.family_table(view.expected.nodes.values())),
        ),
    )
    facts = {
        "Cluster": cluster["server"] or "offline",
        "Kubernetes": cluster["kubernetes"] or "unknown",
        "Nodes": f"{cluster['nodes']}, {cluster['gpuNodes']} with GPUs",
        "Installed": about["installed"] or "no release that can be seen",
        "Judged by": f"rules of {about['rules']}",
    }
    try:
        path.write_text(html.page("Verification", facts=facts, findings=findings, sections=sections), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error}") from None
