"""``groundplane rollback``: the way back to an older revision, what it takes back and what it leaves."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import output as printing
from . import reach

if TYPE_CHECKING:
    from ..admin.helm import Helm
    from ..admin.hops import Version
    from ..admin.nodelook import NodeLook
    from ..admin.rollbacks import Known, RollbackPlan, Way
    from ..admin.upgrade_run import Run
    from ..cluster.client import Client
    from ..diagnose.survey import Survey

T = TypeVar("T")


def _revision(_context: click.Context, _parameter: click.Parameter, text: str | None) -> "int | Version | None":
    """A number of ``helm history``, or a release such as v26.3.3, with or without ``v``."""
    from ..admin.hops import Version, VersionError

    if text is None or text.isdecimal():
        return int(text) if text else None
    try:
        return Version.parse(text)
    except VersionError:
        raise click.BadParameter(
            f"{text!r} is no revision of helm history, such as 3, and no release, such as v26.3.3"
        ) from None


_FILE = click.Path(dir_okay=False, path_type=Path)
asked = reach.all_of(
    click.argument("revision", callback=_revision, required=False),
    click.option("--name", default="", metavar="NAME", help="The release's name [the only one there is]."),
    click.option(
        "--baseline",
        "was",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="A baseline of before the upgrade: tells what no Helm brings back (kernels, MIG, firmware).",
    ),
    click.option(
        "--exec", "by_exec", is_flag=True, help="Look into nodes by commands in operand pods; they only read."
    ),
    click.option(
        "--node-pods", is_flag=True, help="Look into nodes, and have them ask for the old images, by short-lived pods."
    ),
    click.option(
        "--node-image", metavar="IMAGE", default="", help="Image of these pods: groundplane's, in your registry."
    ),
    click.option("--pull-secret", "pull_secrets", metavar="NAME", multiple=True, help="Pull secret of these pods."),
    click.option(
        "--matrix", "matrix_file", metavar="FILE", type=click.Path(path_type=Path), help="A newer support matrix."
    ),
    click.option("--write", "write_file", metavar="FILE", type=_FILE, help="Write the plan by layers, as Markdown."),
    click.option("--images", is_flag=True, help="Also list every image and package of the older release."),
    click.option("-a", "--all", "everything", is_flag=True, help="Print all lines and all evidence."),
)


@click.group("rollback", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Go back to an older revision of the operator's release: see first what comes back and what does not."""


@command.command("plan")
@reach.cluster_options
@asked
@reach.html_option
@reach.output_option
def plan(**given: Any) -> None:
    """Say what going back to REVISION means for this cluster [the one before the deployed].

    REVISION is a number of helm history, or a release such as v26.3.3: then its newest complete revision.

    Changes nothing, but for the pods that --node-pods allows. Exits with 0 if all is well, 4 with warnings or things
    that could not be looked at, 3 with a failure: no go.
    """
    _check(given)
    where = reach.config(given["kubeconfig"], given["context"])
    survey, made = told(lambda: reach.run(_planned(where, given)))
    write(made, survey, given)
    if given["output"] == "text":
        show(made, given)
        reach.leave(made.findings)
    reach.report(made.findings, given["output"], kind="RollbackPlan", about=document(made, survey))


def _check(given: dict[str, Any]) -> None:
    """Refuse options that nothing would read."""
    if (given["node_image"] or given["pull_secrets"]) and not given["node_pods"]:
        raise click.UsageError("--node-image and --pull-secret are for --node-pods")


def told(work: Callable[[], T]) -> T:
    """Do something; the errors of rollbacks and of Helm end as one sentence."""
    from ..admin import helm, plans, rollbacks
    from ..admin.baseline import BaselineError
    from ..admin.hops import VersionError

    try:
        return work()
    except (helm.HelmError, rollbacks.RollbackError, VersionError, BaselineError, plans.JournalError) as error:
        raise click.ClickException(str(error)) from None


def show(made: "RollbackPlan", given: dict[str, Any]) -> None:
    """Print the plan for people."""
    from ..admin import rollback_view

    for line in rollback_view.text(made, images=given["images"], everything=given["everything"]):
        click.echo(line)


def document(made: "RollbackPlan", survey: "Survey") -> dict[str, Any]:
    """The plan as ``reach.report`` says it."""
    from ..admin import rollback_view

    return rollback_view.about(made, survey.server)


def write(made: "RollbackPlan", survey: "Survey", given: dict[str, Any]) -> None:
    """Write the files that were asked for."""
    from ..admin import rollback_view
    from ..diagnose import html

    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(survey.at))
    try:
        if given["write_file"] is not None:
            html.write(given["write_file"], rollback_view.documented(made, when))
        if given.get("html") is not None:
            html.write(given["html"], rollback_view.page(made, survey.server))
    except OSError as error:
        raise click.ClickException(f"it cannot be written: {error}") from None


async def _planned(where: Any, given: dict[str, Any]) -> "tuple[Survey, RollbackPlan]":
    from ..admin import rollbacks
    from ..cluster.client import Client
    from ..diagnose import survey

    async with Client(where) as client:
        seen = await survey.live(client, rollbacks.KINDS, namespace=given["namespace"])
        return seen, await planned(client, seen, rollbacks.way(seen, given["revision"], release_of(given)), given)


def release_of(given: dict[str, Any]) -> str:
    """``namespace/name`` of the release that was named; empty: the only one."""
    return f"{given['namespace']}/{given['name']}" if given["name"] else ""


async def planned(client: "Client", seen: "Survey", way: "Way", given: dict[str, Any]) -> "RollbackPlan":
    """The plan, with what nodes and a baseline tell."""
    from ..admin import matrix, rollbacks

    try:
        read = matrix.load(given["matrix_file"])
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
    made = rollbacks.plan(seen, way, read, known := await known_of(client, seen, way, given))
    if not (given["by_exec"] or given["node_pods"]):
        return made
    looked = await _into_nodes(client, made, given)
    return rollbacks.plan(seen, way, read, known._replace(node_facts=looked.facts, node_unread=looked.unread))


async def known_of(client: "Client", seen: "Survey", way: "Way", given: dict[str, Any]) -> "Known":
    """The baseline of before the upgrade, named or kept by ``upgrade run``, and the cluster as it is to compare."""
    from ..admin import baseline, rollback_run, rollbacks
    from .baseline import load

    upgraded_to = str(rollbacks.version_of(way.running))
    was = load(given["was"]) if given["was"] else rollback_run.kept(seen.server, way.running.where, upgraded_to)
    now = await baseline.take(client, namespace=given["namespace"]) if was is not None else None
    return rollbacks.Known(was=was, now=now, recover=bool(given.get("recover")))


async def _into_nodes(client: "Client", made: "RollbackPlan", given: dict[str, Any]) -> "NodeLook":
    from ..admin import nodelook

    ways = [nodelook.Way.EXEC] if given["by_exec"] else []
    ways += [nodelook.Way.PODS] if given["node_pods"] else []
    return await nodelook.look(
        client,
        [node for pool in made.pools for node in pool.nodes],
        namespace=given["namespace"],
        ways=ways,
        image=given["node_image"],
        pull=[each.reference for each in made.needed.images] if given["node_pods"] else (),
        pull_secrets=given["pull_secrets"],
        tell=lambda text: click.echo(text, err=True),
    )


# --- Making it --------------------------------------------------------------------------------------------------------


@command.command("run")
@reach.cluster_options
@asked
@click.option("--helm", "executable", metavar="FILE", default="", help="A helm to use [in this process, else helm].")
@reach.carrying_out
@click.option("--force", is_flag=True, help="Roll back in spite of findings that fail.")
@click.option("--recover", is_flag=True, help="Go back though an interrupted helm has left the release pending.")
@click.option("--dry-run", is_flag=True, help="Judge and print the plan; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reach.output_option
def run(**given: Any) -> None:
    """Go back to REVISION [the one before the deployed]: keep what is, roll back, watch every driver, verify.

    What Helm does not take back is told before, and looked at again at the end. An interrupted run goes on where it
    was when it is repeated. Exits with 0 if all is well, 4 with warnings, 3 with a failure, 1 if it could not be done.
    """
    _check(given)
    told(lambda: reach.run(_run(given)))


async def _run(given: dict[str, Any]) -> None:
    from ..admin import helm, plans, rollbacks, upgrade_run
    from ..cluster.client import Client
    from ..diagnose import survey

    where = reach.config(given["kubeconfig"], given["context"])
    maker = helm.choose(given["kubeconfig"], given["context"], executable=given["executable"])
    async with Client(where) as client:
        seen = await survey.live(client, rollbacks.KINDS, namespace=given["namespace"])
        last = rollbacks.history_of(seen, release_of(given))[0]
        asked_for = upgrade_run.fingerprint("rollback", str(given["revision"]), given["no_cuda_test"])
        about: dict[str, Any] = {}
        found = upgrade_run.interrupted(seen.server, last.namespace, last.name)
        if found is not None and found.kind == "rollback":
            chosen = upgrade_run.resumed(found, asked_for, seen.server)
            click.echo(f"{chosen.plan.title} was interrupted: it goes on", err=True)
        else:
            chosen, about = await _new(client, seen, asked_for, given)
            chosen = _giving_up(chosen, found)
        record = upgrade_run.place(seen.server, chosen.namespace, chosen.name) / "journal.json"
        done = plans.Journal(record, chosen.plan).done if found is not None and found.kind == "rollback" else {}
        if given["output"] == "text":
            click.echo("\n".join(chosen.plan.text(done)))
        elif given["dry_run"]:
            printing.documents([{**chosen.plan.document(), **about}], given["output"])
        if given["dry_run"]:
            return
        if not given["yes"]:
            click.confirm("Go on?", abort=True, err=True)
        if found is not None and found.kind != "rollback":
            record.unlink(missing_ok=True)
            upgrade_run.end(seen.server, found)
        await _carry_out(client, maker, chosen, seen.server, given)


async def _new(client: "Client", seen: "Survey", asked_for: str, given: dict[str, Any]) -> "tuple[Run, dict[str, Any]]":
    """Plan a rollback and print it, or give it as plain values; refused if something fails, unless it is forced."""
    from ..admin import rollback_run, rollbacks
    from ..diagnose import findings as shape
    from . import upgrade

    made = await planned(client, seen, rollbacks.way(seen, given["revision"], release_of(given)), given)
    write(made, seen, given)
    if given["output"] == "text":
        show(made, given)
        click.echo()
    if not (made.go or given["force"] or given["dry_run"]):
        failed = sum(each.outcome is shape.Outcome.FAIL for each in made.findings)
        click.echo(f"{failed} findings fail: nothing was changed. Mend them, or give --force.", err=True)
        sys.exit(int(shape.ExitCode.FAIL))
    return rollback_run.of_plan(made, seen, asked_for, upgrade.limits_of(given)), {
        **document(made, seen),
        **shape.report(made.findings),
    }


def _giving_up(chosen: "Run", found: "Run | None") -> "Run":
    """The run, which says of an interrupted upgrade that it is given up."""
    import msgspec

    if found is None:
        return chosen
    note = f"{found.plan.title} was interrupted: this gives it up"
    plan = msgspec.structs.replace(chosen.plan, notes=(*chosen.plan.notes, note))
    return msgspec.structs.replace(chosen, plan=plan)


async def _carry_out(client: "Client", maker: "Helm", chosen: "Run", server: str, given: dict[str, Any]) -> None:
    """Carry the run out, and report what its steps have found. Exits with the findings' code."""
    from ..admin import nodelook, rollback_run, upgrade_run
    from . import upgrade

    journal = upgrade_run.begin(chosen, server)
    limits = upgrade.limits_of(given)
    work = rollback_run.Work(client, maker, chosen, journal, limits, upgrade.tell)
    work.ways = (nodelook.Way.EXEC, *((nodelook.Way.PODS,) if given["node_pods"] else ()))
    work.image = given["node_image"]
    await upgrade.finish(work, chosen, journal, server, given, "Rollback")
