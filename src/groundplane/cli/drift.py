"""``groundplane drift``: what of a cluster's GPU stack is no longer as a baseline says."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import reach

if TYPE_CHECKING:
    from ..diagnose.findings import Finding
    from ..diagnose.html import Section


@click.command("drift")
@click.argument("recorded", metavar="BASELINE", type=click.Path(path_type=Path))
@click.argument("other", metavar="[OTHER]", required=False, type=click.Path(path_type=Path))
@reach.cluster_options
@click.option(
    "--cuda",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="What `groundplane cuda-test -o json` wrote just now.",
)
@click.option("--metrics/--no-metrics", default=True, show_default=True, help="Read GPU counters from the exporters.")
@click.option("--exec/--no-exec", "smi", default=True, show_default=True, help="Run nvidia-smi in operand pods.")
@click.option("--inside", is_flag=True, help="Also look at nodes from inside, by commands in operand pods.")
@click.option("-a", "--all", "everything", is_flag=True, help="Print all nodes and all evidence.")
@reach.output_option
@reach.html_option
def command(
    recorded: Path,
    other: Path | None,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    cuda: Path | None,
    metrics: bool,
    smi: bool,
    inside: bool,
    everything: bool,
    output: str,
    html: Path | None,
) -> None:
    """Compare a BASELINE with the cluster as it is, or with OTHER, a later baseline. Changes nothing.

    Exits with 0 if nothing has changed for the worse, 4 with warnings or what could not be compared, 3 with a failure
    (GPUs missing or fewer allocatable, hardware errors).
    """
    from ..admin import drift
    from . import baseline as commands

    was = commands.load(recorded)
    if other is not None:
        if cuda is not None:
            raise click.UsageError("--cuda goes with the live cluster; OTHER has a result of its own, or none")
        now = commands.load(other)
    else:
        now = commands.live(
            kubeconfig, context, namespace, metrics=metrics, smi=smi, inside=inside, cuda=commands.cuda_of(cuda)
        )
    findings = drift.drift(was, now)
    about = drift.about(was, now)
    if html is not None:
        _page(html, findings, about, drift.sections(was, now))
    if output == "text":
        for name, value in about.items():
            click.echo(f"{name}: {value}")
        click.echo()
    reach.report(findings, output, kind="Drift", about={"compared": about}, everything=everything)


def _page(path: Path, findings: "list[Finding]", about: dict[str, str], sections: "list[Section]") -> None:
    from ..diagnose import html

    title = f"Drift of cluster {about['cluster']}"
    try:
        html.write(path, html.page(title, facts=about, findings=findings, sections=sections))
    except OSError as error:
        raise click.ClickException(f"--html {path} cannot be written: {error}") from None
