"""``groundplane preflight``: whether a cluster, or one node, can take the operator, and with which values."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import reach

if TYPE_CHECKING:
    from ..admin.inquiry import Inquiry
    from ..admin.preflight_inputs import Wanted
    from ..diagnose.findings import Finding
    from ..diagnose.survey import Survey

ROWS_SHOWN = 20
"""Nodes of the inventory that are printed, unless all are asked for."""


@click.command("preflight")
@reach.cluster_options
@click.option("--release", metavar="VERSION", default="", help="For which release [installed one, else the newest].")
@click.option(
    "-f", "--values", "values_files", metavar="FILE", multiple=True, help="Values to be installed (- for stdin)."
)
@click.option("--matrix", metavar="FILE", type=click.Path(path_type=Path), help="A newer support matrix.")
@click.option("--vgpu", is_flag=True, help="The GPUs are NVIDIA vGPUs of a hypervisor.")
@click.option(
    "--snapshot",
    metavar="FILE",
    multiple=True,
    help="Judge what kubectl printed (-o yaml or json), a folder of such files, or - for stdin, instead of a cluster.",
)
@click.option(
    "--fix-values",
    metavar="FILE",
    help="Write the values file that fits the cluster, with the reason for every value (- for stdout).",
)
@click.option("--images", "with_images", is_flag=True, help="Also list every image and package that is needed.")
@click.option("-a", "--all", "everything", is_flag=True, help="Print all nodes and all evidence.")
@reach.html_option
@reach.output_option
def command(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    release: str,
    values_files: tuple[str, ...],
    matrix: Path | None,
    vgpu: bool,
    snapshot: tuple[str, ...],
    fix_values: str | None,
    with_images: bool,
    everything: bool,
    html: Path | None,
    output: str,
) -> None:
    """Judge a cluster before anything is installed or upgraded. Changes nothing.

    Exits with 0 if all is well, 4 with warnings or things that could not be looked at, 3 with a failure.
    """
    from ..admin import preflight, preflight_inputs

    wanted = _wanted(release, values_files, matrix, vgpu)
    survey = _of_files(snapshot, namespace) if snapshot else _live(kubeconfig, context, namespace)
    inquiry = _usage(preflight_inputs.inquiry_of, wanted, survey)
    findings = [*_of_values(wanted, inquiry), *preflight.preflight(inquiry)]
    about = preflight_inputs.about(inquiry, survey)
    if with_images:
        about |= preflight_inputs.needs(inquiry)
    if html is not None:
        _page(html, about, inquiry, findings)
    if fix_values is not None:
        _fix(fix_values, inquiry)
    if fix_values == "-":  # the values alone, so that they can be piped
        reach.leave(findings)
    if output == "text":
        _head(about, inquiry, everything)
        findings = findings if everything else preflight.folded(findings)
    reach.report(findings, output, kind="Preflight", about=about, everything=everything)


def _fix(path: str, inquiry: "Inquiry") -> None:
    """Write the proposed values, and say on standard error what preflight says of them."""
    from ..admin import preflight, propose
    from ..diagnose import findings as shape

    proposal = propose.propose(inquiry)
    if path == "-":
        click.echo(proposal.text, nl=False)
    else:
        _write(Path(path), proposal.text)
    left = preflight.preflight(propose.with_proposal(inquiry, proposal))
    where = "values" if path == "-" else f"values in {path}"
    totals = ", ".join(f"{number} {outcome}" for outcome, number in shape.counts(left).items() if number)
    click.echo(f"With the proposed {where}, preflight finds: {totals}", err=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error}") from None


def _page(path: Path, about: dict[str, Any], inquiry: "Inquiry", findings: "list[Finding]") -> None:
    from ..admin import preflight_platform, propose
    from ..diagnose import html

    rows = preflight_platform.inventory(inquiry.snapshot)
    images = preflight_platform.needed(inquiry)
    sections = (
        html.Section(title="Nodes", head=preflight_platform.INVENTORY_COLUMNS, rows=tuple(rows)),
        html.Section(title="Values that fit this cluster", text=propose.propose(inquiry).text),
        html.Section(
            title="Images and packages that are needed",
            head=("FOR", "IMAGE OR PACKAGE"),
            rows=(
                *((each.component, each.reference) for each in images.images),
                *(("package", each) for each in images.packages),
            ),
            folded=True,
        ),
    )
    facts = {
        "release": about["target"]["release"],
        "settings": about["settings"],
        "installed": about["installed"] or "none",
    }
    facts |= {name: str(value) for name, value in about["cluster"].items()}
    facts["support matrix"] = about["matrix"]["dataAsOf"]
    try:
        html.write(path, html.page("Preflight", facts=facts, findings=findings, sections=sections))
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error}") from None


def _usage(function: Any, *arguments: Any) -> Any:
    """Call a function whose ValueError is about what the person gave."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _wanted(release: str, values_files: tuple[str, ...], matrix: Path | None, vgpu: bool) -> "Wanted":
    from ..admin import matrix as matrices
    from ..admin import preflight_inputs, values_file

    read = [_usage(values_file.read, _text(path), "standard input" if path == "-" else path) for path in values_files]
    wanted = preflight_inputs.Wanted(_usage(matrices.load, matrix), release, tuple(read), vgpu)
    _usage(preflight_inputs.target_of, wanted, None)  # a release that is none is told before a cluster is asked
    return wanted


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None


def _live(kubeconfig: str | None, context: str | None, namespace: str) -> "Survey":
    from ..admin import preflight
    from ..cluster.client import Client
    from ..diagnose import survey

    where = reach.config(kubeconfig, context)

    async def read() -> "Survey":
        async with Client(where) as client:
            return await survey.live(client, preflight.KINDS, namespace=namespace)

    return reach.run(read())


def _of_files(paths: tuple[str, ...], namespace: str) -> "Survey":
    """A survey of what kubectl printed; ``kubectl version -o json`` among it gives the server's version."""
    from ..diagnose.survey import Survey
    from . import documents

    found = [document for path in paths for each in _files(path) for document in documents.read(each)]
    versions = [
        each["serverVersion"].get("gitVersion") for each in found if isinstance(each.get("serverVersion"), dict)
    ]
    return Survey.of(found, version=next(iter(versions), "") or "", namespace=namespace)


def _files(path: str) -> list[str]:
    if path == "-" or not Path(path).is_dir():
        return [path]
    found = sorted(str(each) for each in Path(path).rglob("*") if each.suffix in (".yaml", ".yml", ".json"))
    if not found:
        raise click.UsageError(f"{path} holds no file that ends in .yaml, .yml or .json")
    return found


def _of_values(wanted: "Wanted", inquiry: "Inquiry") -> "list[Finding]":
    from ..admin import values_file
    from ..admin.hops import Version

    release = Version.parse(inquiry.target.version)
    return [finding for file in wanted.values for finding in values_file.judge(file, release)]


def _head(about: dict[str, Any], inquiry: "Inquiry", everything: bool) -> None:
    from ..admin import preflight_platform

    cluster, target = about["cluster"], about["target"]
    where = f" at {cluster['server']}" if cluster["server"] else ""
    click.echo(
        f"Kubernetes {cluster['kubernetes'] or '(version unknown)'}{where}: {cluster['nodes']} nodes, "
        f"{cluster['gpuNodes']} with GPUs, {cluster['nodesLookedAt']} looked at from inside"
    )
    click.echo(f"For release {target['release']} ({target['lifecycle']}); settings: {about['settings']}")
    click.echo(f"Installed: {about['installed'] or 'no release that can be seen'}")
    click.echo(f"Support matrix of {about['matrix']['dataAsOf']}")
    click.echo()
    rows = preflight_platform.inventory(inquiry.snapshot)
    shown = rows if everything else rows[:ROWS_SHOWN]
    for line in _table([preflight_platform.INVENTORY_COLUMNS, *shown]) if rows else ():
        click.echo(line)
    if len(rows) > len(shown):
        click.echo(f"and {len(rows) - len(shown)} more (--all)")
    click.echo()
    for name in ("images", "packages"):
        for line in about.get(name, ()):
            click.echo(line)
    if "images" in about:
        click.echo()


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
