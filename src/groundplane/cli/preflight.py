"""``groundplane preflight``: whether a cluster, or one node, can take the operator, and with which values."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from . import reach

if TYPE_CHECKING:
    from ..admin.inquiry import Inquiry
    from ..admin.nodelook import NodeLook
    from ..admin.preflight_inputs import Wanted
    from ..cluster.client import Client
    from ..cluster.config import Config
    from ..diagnose.findings import Finding
    from ..diagnose.survey import Survey

ROWS_SHOWN = 20
"""Nodes of the inventory that are printed, unless all are asked for."""

NO_NAMESPACE_YET = "default"
"""Where inspector pods are, as long as the operator's namespace does not exist."""


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
@click.option("--exec", "by_exec", is_flag=True, help="Also look at nodes by commands in operand pods; they only read.")
@reach.node_pod_options
@click.option("--on-node", is_flag=True, help="Look at the node that this runs on, and at no cluster.")
@click.option("--root", metavar="PATH", default="/", show_default=True, help="With --on-node: the node's root.")
@click.option(
    "--reach", "addresses", metavar="URL", multiple=True, help="An address that nodes must reach, such as a mirror."
)
@click.option("--no-network", is_flag=True, help="Do not try from nodes whether registries and repositories answer.")
@click.option(
    "--fix-values",
    metavar="FILE",
    help="Write the values file that fits the cluster, with the reason for every value (- for stdout).",
)
@click.option("--images", "with_images", is_flag=True, help="Also list every image and package that is needed.")
@click.option("-a", "--all", "everything", is_flag=True, help="Print all nodes and all evidence.")
@reach.html_option
@reach.output_option
def command(**given: Any) -> None:
    """Judge a cluster before anything is installed or upgraded.

    Changes nothing, but for the pods that --node-pods allows. Exits with 0 if all is well, 4 with warnings or things
    that could not be looked at, 3 with a failure.
    """
    options = Options(**given)
    options.check()
    wanted = _wanted(options)
    survey, inquiry = _seen(options, wanted)
    _tell(options, wanted, survey, inquiry)


class Options(NamedTuple):
    """The command line."""

    kubeconfig: str | None
    context: str | None
    namespace: str
    release: str
    values_files: tuple[str, ...]
    matrix: Path | None
    vgpu: bool
    snapshot: tuple[str, ...]
    by_exec: bool
    node_pods: bool
    node_image: str
    pull_secrets: tuple[str, ...]
    on_node: bool
    root: str
    addresses: tuple[str, ...]
    no_network: bool
    fix_values: str | None
    with_images: bool
    everything: bool
    html: Path | None
    output: str

    def check(self) -> None:
        """Refuse options that contradict each other, or that nothing would read."""
        inside = self.by_exec or self.node_pods
        if self.on_node and (self.snapshot or inside):
            raise click.UsageError(
                "--on-node looks at this node only: give it without --snapshot, --exec and --node-pods"
            )
        if self.snapshot and inside:
            raise click.UsageError("--snapshot asks no cluster: give it without --exec and --node-pods")
        if self.root != "/" and not self.on_node:
            raise click.UsageError("--root is for --on-node")
        reach.check_node_pods(self.node_pods, self.node_image, self.pull_secrets)
        if (self.addresses or self.no_network) and not (self.on_node or self.node_pods):
            raise click.UsageError("--reach and --no-network are for --on-node and --node-pods")
        if any("@" in address.partition("//")[2].partition("/")[0] for address in self.addresses):
            raise click.UsageError("--reach takes addresses without user and password: they would be shown")
        if [*self.values_files, *self.snapshot].count("-") > 1:
            raise click.UsageError("standard input can be read once only")


def _seen(options: Options, wanted: "Wanted") -> "tuple[Survey, Inquiry]":
    """What is to be judged: of this node, of files, of a cluster, or of values alone."""
    from ..admin import preflight_inputs

    if options.on_node:
        return reach.run(_on_node(options, wanted))
    if options.snapshot:
        survey = _of_files(options.snapshot, options.namespace)
        return survey, preflight_inputs.inquiry_of(wanted, survey)
    try:
        where = reach.config(options.kubeconfig, options.context)
    except click.ClickException as error:
        if not wanted.values or options.kubeconfig or options.context:
            raise
        click.echo(f"Values alone are judged, as there is no cluster: {error.message}", err=True)
        survey = preflight_inputs.of_nothing()
        return survey, preflight_inputs.inquiry_of(wanted, survey)
    return reach.run(_live(options, wanted, where))


async def _live(options: Options, wanted: "Wanted", where: "Config") -> "tuple[Survey, Inquiry]":
    from ..admin import preflight, preflight_inputs
    from ..cluster.client import Client
    from ..diagnose import survey

    async with Client(where) as client:
        seen = await survey.live(client, preflight.KINDS, namespace=options.namespace)
        inquiry = preflight_inputs.inquiry_of(wanted, seen)
        if not (options.by_exec or options.node_pods):
            return seen, inquiry
        looked = await _into_nodes(options, client, inquiry)
    return seen, preflight_inputs.inquiry_of(wanted, seen, looked.facts, looked.unread)


async def _into_nodes(options: Options, client: "Client", inquiry: "Inquiry") -> "NodeLook":
    from ..admin import nodelook, preflight_inputs, preflight_platform

    ways = [nodelook.Way.EXEC] if options.by_exec else []
    ways += [nodelook.Way.PODS] if options.node_pods else []
    network = options.node_pods and not options.no_network
    needed = preflight_platform.needed(inquiry)
    snapshot = inquiry.snapshot
    namespace = options.namespace
    if snapshot.namespace_labels is None and "namespaces" not in snapshot.unread:
        namespace = NO_NAMESPACE_YET  # before the first install there is none, and preflight makes none
    return await nodelook.look(
        client,
        [node.name for node in snapshot.candidates],
        namespace=namespace,
        ways=ways,
        image=options.node_image,
        reach=preflight_inputs.reaching(inquiry, options.addresses) if network else (),
        pull=[each.reference for each in needed.images] if network else (),
        pull_secrets=options.pull_secrets,
        tell=lambda text: click.echo(text, err=True),
    )


async def _on_node(options: Options, wanted: "Wanted") -> "tuple[Survey, Inquiry]":
    """This node: looked at once for what it is, then for what it reaches of what it needs."""
    from ..admin import nodelook, preflight_inputs, preflight_platform

    looked = await nodelook.look_here(options.root)
    survey = preflight_inputs.of_node(next(iter(looked.facts.values())))
    inquiry = preflight_inputs.inquiry_of(wanted, survey, looked.facts, looked.unread)
    if options.no_network:
        return survey, inquiry
    images = [each.reference for each in preflight_platform.needed(inquiry).images]
    addresses = preflight_inputs.reaching(inquiry, options.addresses)
    looked = await nodelook.look_here(options.root, reach=addresses, pull=images)
    return survey, preflight_inputs.inquiry_of(wanted, survey, looked.facts, looked.unread)


def _tell(options: Options, wanted: "Wanted", survey: "Survey", inquiry: "Inquiry") -> None:
    """Judge, write what was asked for, and print; exits with the findings' code."""
    from ..admin import preflight, preflight_inputs

    judge = preflight.of_values if survey.unread.get("nodes") == preflight_inputs.NO_CLUSTER else preflight.preflight
    findings = [*_of_values(wanted, inquiry), *judge(inquiry)]
    about = preflight_inputs.about(inquiry, survey)
    if options.with_images:
        about |= preflight_inputs.needs(inquiry)
    if options.html is not None:
        _page(options.html, about, inquiry, findings)
    if options.fix_values is not None:
        _fix(options.fix_values, inquiry)
    if options.fix_values == "-":  # the values alone, so that they can be piped
        reach.leave(findings)
    if options.output == "text":
        _head(about, inquiry, options.everything)
        findings = findings if options.everything else preflight.folded(findings)
    reach.report(findings, options.output, kind="Preflight", about=about, everything=options.everything)


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


def _wanted(options: Options) -> "Wanted":
    from ..admin import matrix as matrices
    from ..admin import preflight_inputs, values_file

    files = options.values_files
    read = [_usage(values_file.read, _text(path), "standard input" if path == "-" else path) for path in files]
    matrix = _usage(matrices.load, options.matrix)
    wanted = preflight_inputs.Wanted(matrix, options.release, tuple(read), options.vgpu)
    _usage(preflight_inputs.target_of, wanted, None)  # a release that is none is told before a cluster is asked
    return wanted


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None


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
