"""``groundplane upgrade``: what an upgrade of the operator means for a cluster, and making it."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import output as printing
from . import reach

if TYPE_CHECKING:
    from ..admin.helm import Chart, Helm
    from ..admin.nodelook import NodeLook
    from ..admin.plans import Journal, Plan
    from ..admin.upgrade_run import Limits, Run, Work
    from ..admin.upgrades import Charts, UpgradePlan, Wanted
    from ..cluster.client import Client
    from ..diagnose.findings import Finding
    from ..diagnose.survey import Survey


asked = reach.all_of(
    click.option("--to", "target", metavar="VERSION", required=True, help="The release to go to, such as v26.7.0."),
    click.option("--name", default="", metavar="NAME", help="The release's name [the only one there is]."),
    click.option("--chart", metavar="REF", default="", help="The target's chart: a folder, a .tgz, oci://..., a name."),
    click.option("--repository", metavar="URL", default="", help="The repository that has the chart of that name."),
    click.option("-f", "--values", "files", metavar="FILE", multiple=True, help="More values, over the release's own."),
    click.option("--keep", metavar="PATH", multiple=True, help="A value that stays as it is, such as driver.version."),
    click.option("--canary-label", "canary", metavar="KEY=VALUE", default="", help="GPU nodes whose drivers go first."),
    click.option("--no-hooks", is_flag=True, help="Run no hook of the chart: for one whose image cannot be pulled."),
    click.option(
        "--matrix", "matrix_file", metavar="FILE", type=click.Path(path_type=Path), help="A newer support matrix."
    ),
    click.option(
        "--helm", "executable", metavar="FILE", default="", help="A helm to use [in this process, else helm]."
    ),
    click.option("-a", "--all", "everything", is_flag=True, help="Print all nodes and all evidence."),
)


@click.group("upgrade")
def command() -> None:
    """Upgrade the GPU operator: see what it means for this cluster, then make it."""


@command.command("plan")
@reach.cluster_options
@asked
@click.option(
    "--snapshot", metavar="PATH", help="Plan for what kubectl printed: a file, a folder, an archive, - for stdin."
)
@click.option("--no-chart", is_flag=True, help="Fetch no chart; plan by what groundplane knows of the release.")
@click.option("--node-pods", is_flag=True, help="Have GPU nodes try to pull the target's images, by short-lived pods.")
@click.option("--node-image", metavar="IMAGE", default="", help="Image of these pods: groundplane's, in your registry.")
@click.option(
    "--write-values",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the merged values file, as it is: with its secrets, for its owner only.",
)
@click.option("--images", is_flag=True, help="Also list every image and package that is needed.")
@reach.html_option
@reach.output_option
def plan(**given: Any) -> None:
    """Say what an upgrade means for this cluster. Changes nothing, but for the pods that --node-pods allows.

    Exits with 0 if all is well, 4 with warnings or things that could not be looked at, 3 with a failure: no go.
    """
    if given["snapshot"] and given["node_pods"]:
        raise click.UsageError("--snapshot asks no cluster: give it without --node-pods")
    survey, made = told(lambda: _offline(given) if given["snapshot"] else _planned(given))
    write(made, survey, given)
    if given["output"] == "text":
        from ..admin import upgrade_view

        for line in upgrade_view.text(made, images=given["images"], everything=given["everything"]):
            click.echo(line)
        reach.leave(made.findings)
    reach.report(made.findings, given["output"], kind="UpgradePlan", about=document(made, survey))


T = TypeVar("T")


def told(work: Callable[[], T]) -> T:
    """Do something; the errors of upgrades and of Helm end as one sentence."""
    from ..admin import helm, plans, upgrades
    from ..admin.hops import VersionError
    from ..diagnose.archive import ArchiveError

    try:
        return work()
    except (helm.HelmError, upgrades.UpgradeError, VersionError, ArchiveError, plans.JournalError, OSError) as error:
        raise click.ClickException(str(error)) from None


def document(made: "UpgradePlan", survey: "Survey") -> dict[str, Any]:
    """The plan as ``reach.report`` says it."""
    from ..admin import upgrade_view

    return upgrade_view.about(made, survey.server)


def write(made: "UpgradePlan", survey: "Survey", given: dict[str, Any]) -> None:
    """Write the files that were asked for."""
    from ..admin import upgrade_view
    from ..diagnose import html
    from ..node.hostroot import write_atomic

    try:
        if given.get("write_values") is not None:
            write_atomic(given["write_values"], upgrade_view.values_file(made).encode(), mode=0o600)
            click.echo(f"values for {made.wanted.target}: {given['write_values']}", err=True)
        if given.get("html") is not None:
            html.write(given["html"], upgrade_view.page(made, survey.server))
    except OSError as error:
        raise click.ClickException(f"it cannot be written: {error}") from None


def wanted_of(given: dict[str, Any]) -> "Wanted":
    """What the command line asks for. Raises :class:`click.UsageError`."""
    from ..admin import canary, helm, matrix, trees, upgrades, values_file
    from ..admin.hops import Version

    try:
        target = Version.parse(given["target"])
        overrides: dict[str, Any] = {}
        for path in given["files"]:
            found = values_file.read(Path(path).read_text(encoding="utf-8"), path)
            overrides = trees.layer(overrides, found.tree)
        if given["canary"]:
            canary.parse(given["canary"])
        chart = _chart(given, target)
        read = matrix.load(given["matrix_file"])
    except (ValueError, OSError, helm.HelmError) as error:
        raise click.UsageError(str(error)) from None
    release = f"{given['namespace']}/{given['name']}" if given["name"] else ""
    hooks = not given["no_hooks"]
    return upgrades.Wanted(
        target, read, release, chart, overrides, given["keep"], given["canary"], hooks, given["files"]
    )


def _chart(given: dict[str, Any], target: Any) -> "Chart | None":
    from ..admin import helm

    if not (given["chart"] or given["repository"]):
        return None
    local = bool(given["chart"]) and not given["repository"] and not given["chart"].startswith("oci://")
    return helm.chart_of(given["chart"] or helm.NVIDIA_CHART, "" if local else str(target), given["repository"])


def _offline(given: dict[str, Any]) -> "tuple[Survey, UpgradePlan]":
    from ..admin import sources, upgrades

    wanted = wanted_of(given)
    survey = sources.survey_of(given["snapshot"])
    chart = wanted.chart
    if chart is None or given["no_chart"]:
        return survey, upgrades.plan(wanted, survey)
    from ..admin import helm

    maker = helm.choose(executable=given["executable"])
    return survey, reach.run(with_chart(maker, wanted._replace(chart=chart), survey))


def _planned(given: dict[str, Any]) -> "tuple[Survey, UpgradePlan]":
    wanted = wanted_of(given)
    return reach.run(_live(reach.config(given["kubeconfig"], given["context"]), wanted, given))


async def _live(where: Any, wanted: "Wanted", given: dict[str, Any]) -> "tuple[Survey, UpgradePlan]":
    from ..admin import helm, upgrades
    from ..cluster.client import Client
    from ..diagnose import survey

    async with Client(where) as client:
        seen = await survey.live(client, upgrades.KINDS, namespace=given["namespace"])
        wanted = with_default_chart(wanted, seen)
        made = None
        if wanted.chart is not None and not given["no_chart"]:
            try:
                maker = helm.choose(given["kubeconfig"], given["context"], executable=given["executable"])
                made = await with_chart(maker, wanted, seen)
            except helm.HelmError as error:
                if given["chart"] or given["repository"]:
                    raise
                click.echo(f"planned without the chart of {wanted.target}: {error}", err=True)
        made = made or upgrades.plan(wanted, seen)
        if given["node_pods"]:
            looked = await _pull(client, made, given)
            made = upgrades.plan(wanted, seen, made.charts, looked.facts, looked.unread)
    return seen, made


def with_default_chart(wanted: "Wanted", seen: "Survey") -> "Wanted":
    """The chart of the target: the one that was named; for NVIDIA's releases the one of NVIDIA's repository."""
    from ..admin import helm, releases, upgrades

    if wanted.chart is not None or upgrades.running(seen, wanted.release).maker != releases.NVIDIAS:
        return wanted
    return wanted._replace(chart=helm.chart_of("", str(wanted.target)))


async def with_chart(maker: "Helm", wanted: "Wanted", seen: "Survey") -> "UpgradePlan":
    """The plan, with the chart at hand: its own values, and its objects under the merged ones."""
    from ..admin import upgrades

    assert wanted.chart is not None
    charts = await charts_of(maker, wanted)
    revision, review, values = upgrades.merged(wanted, seen, charts.defaults)
    if not review.refused:
        rendered = await maker.render(wanted.chart, revision.name, revision.namespace, values, upgrade=True)
        charts = charts._replace(rendered=tuple(rendered))
    return upgrades.plan(wanted, seen, charts)


async def charts_of(maker: "Helm", wanted: "Wanted") -> "Charts":
    """What the target's chart has."""
    from ..admin import helm, upgrades

    assert wanted.chart is not None
    path = await maker.fetch(wanted.chart)
    return upgrades.Charts(await maker.defaults(wanted.chart), None, tuple(helm.definitions(path)))


async def _pull(client: "Client", made: "UpgradePlan", given: dict[str, Any]) -> "NodeLook":
    from ..admin import nodelook

    return await nodelook.look(
        client,
        [node for pool in made.pools for node in pool.nodes],
        namespace=given["namespace"],
        ways=[nodelook.Way.PODS],
        image=given["node_image"],
        pull=[each.reference for each in made.needed.images],
        tell=lambda text: click.echo(text, err=True),
    )


@command.command("run")
@reach.cluster_options
@asked
@reach.carrying_out
@click.option("--force", is_flag=True, help="Upgrade in spite of findings that fail.")
@click.option("--recover", is_flag=True, help="Clear a release first that an interrupted helm has left pending.")
@click.option("--dry-run", is_flag=True, help="Judge and print the plan; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reach.output_option
def run(**given: Any) -> None:
    """Upgrade the operator: keep what is, upgrade the chart, watch every driver, verify, compare.

    An interrupted run goes on where it was when it is repeated. Exits with 0 if all is well, 4 with warnings, 3 with a
    failure, 1 if it could not be done.
    """
    told(lambda: reach.run(_run(given)))


async def _run(given: dict[str, Any]) -> None:
    from ..admin import helm, plans, upgrade_run, upgrades
    from ..cluster.client import Client
    from ..diagnose import survey

    wanted = wanted_of(given)
    where = reach.config(given["kubeconfig"], given["context"])
    maker = helm.choose(given["kubeconfig"], given["context"], executable=given["executable"])
    async with Client(where) as client:
        seen = await survey.live(client, upgrades.KINDS, namespace=given["namespace"])
        server = seen.server
        asked_for = _asked(given, wanted)
        limits = limits_of(given)
        found = upgrade_run.interrupted(server, *_names(seen, wanted.release))
        if found is not None:
            chosen = upgrade_run.resumed(found, asked_for, server)
            click.echo(f"{chosen.plan.title} was interrupted: it goes on", err=True)
        else:
            chosen = await _new(maker, wanted, seen, asked_for, given)
        journal = plans.Journal(_journal(server, chosen), chosen.plan)
        show(chosen.plan, journal.done, given)
        if given["dry_run"]:
            return
        if not given["yes"]:
            click.confirm("Go on?", abort=True, err=True)
        await carry_out(client, maker, chosen, server, limits, given)


def _names(seen: "Survey", release: str) -> tuple[str, str]:
    from ..admin import upgrades

    namespace, _, name = (release or upgrades.running(seen).where).partition("/")
    return namespace, name


def _journal(server: str, chosen: "Run") -> Path:
    from ..admin import upgrade_run

    return upgrade_run.place(server, chosen.namespace, chosen.name) / "journal.json"


def _asked(given: dict[str, Any], wanted: "Wanted") -> str:
    from ..admin import upgrade_run

    chart = list(wanted.chart) if wanted.chart is not None else []
    words = (str(wanted.target), wanted.release, chart, dict(wanted.overrides), list(wanted.keep), wanted.canary)
    return upgrade_run.fingerprint("upgrade", *words, wanted.hooks, given["no_cuda_test"])


def limits_of(given: dict[str, Any]) -> "Limits":
    """How long is waited for what."""
    from ..admin import cudatest, cudatest_plan, upgrade_run

    options = cudatest.Options(
        namespace=given["test_namespace"], image=given["cuda_image"] or cudatest_plan.SAMPLE_IMAGE
    )
    return upgrade_run.Limits(
        helm_s=given["timeout"],
        drivers_s=given["driver_timeout"],
        cuda=not given["no_cuda_test"],
        cuda_options=options,
        metrics=not given["no_metrics"],
        recover=given["recover"],
    )


async def _new(
    maker: "Helm", wanted: "Wanted", seen: "Survey", asked_for: str, given: dict[str, Any]
) -> "Run":  # fmt: skip
    """Plan an upgrade; it is refused if something fails, unless it is forced."""
    from ..admin import upgrade_run, upgrades

    wanted = with_default_chart(wanted, seen)
    if wanted.chart is None:
        raise click.UsageError("--chart: say which chart of groundplane's to upgrade to: a folder, a .tgz, oci://...")
    made = await with_chart(maker, wanted, seen)
    if made.path.action == "none" and not made.wanted.overrides:
        raise upgrades.UpgradeError(f"{made.revision.where} is {made.source} already: nothing to do")
    findings = [each for each in made.findings if not (each.id == "A96" and given["recover"])]
    stop(findings, given)
    if len(made.path.hops) > 1:
        first = made.path.hops[0].target
        raise upgrades.UpgradeError(
            f"from {made.source} to {wanted.target} are {len(made.path.hops)} hops: begin with --to {first}; "
            "groundplane upgrade plan shows all"
        )
    return upgrade_run.of_plan(made, seen, asked_for, limits_of(given))


def stop(findings: "Sequence[Finding]", given: dict[str, Any]) -> None:
    """Print what is serious; end if something fails, unless it is forced. Nothing has been changed."""
    from ..diagnose import findings as shape

    serious = [each for each in findings if each.outcome in (shape.Outcome.FAIL, shape.Outcome.WARN)]
    for line in shape.text(serious):
        click.echo(line, err=given["output"] != "text")
    failed = [each for each in findings if each.outcome is shape.Outcome.FAIL]
    if failed and not (given["force"] or given["dry_run"]):
        click.echo(f"{len(failed)} findings fail: nothing was changed. Mend them, or give --force.", err=True)
        sys.exit(int(shape.ExitCode.FAIL))


def show(plan: "Plan", done: "Iterable[str]", given: dict[str, Any]) -> None:
    """Print a plan before anything is changed."""
    if given["output"] == "text":
        click.echo("\n".join(plan.text(done)))
    elif given["dry_run"]:
        printing.documents([plan.document()], given["output"])


async def carry_out(
    client: "Client",
    maker: "Helm",
    chosen: "Run",
    server: str,
    limits: "Limits",
    given: dict[str, Any],
) -> None:
    """Carry an upgrade out, and report what its steps have found. Exits with the findings' code."""
    from ..admin import upgrade_run

    journal = upgrade_run.begin(chosen, server)
    work = upgrade_run.Work(client, maker, chosen, journal, limits, tell)
    await finish(work, chosen, journal, server, given, "Upgrade")


def tell(text: str) -> None:
    """Progress, beside what the command prints as its result."""
    click.echo(text, err=True)


async def finish(
    work: "Work", chosen: "Run", journal: "Journal", server: str, given: dict[str, Any], kind: str
) -> None:
    """Do what a run has left to do, and report what its steps have found. Exits with the findings' code."""
    from ..admin import helm, install, plans, upgrade_run

    try:
        await plans.carry_out(chosen.plan, work.steps, journal, plans.Lines(tell))
    except (upgrade_run.RunError, install.AlreadyRunsError, helm.HelmError) as error:
        raise click.ClickException(str(error)) from None
    upgrade_run.end(server, chosen)
    about = {"release": chosen.where, "source": chosen.source, "target": chosen.target, "kept": chosen.folder}
    reach.report(work.findings, given["output"], kind=kind, about=about, everything=given["everything"])
