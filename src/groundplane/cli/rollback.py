"""``groundplane rollback``: the way back to an older revision, what it takes back and what it leaves."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import reach

if TYPE_CHECKING:
    from ..admin.nodelook import NodeLook
    from ..admin.rollbacks import Known, RollbackPlan, Way
    from ..cluster.client import Client
    from ..diagnose.survey import Survey

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _all(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


_FILE = click.Path(dir_okay=False, path_type=Path)
asked = _all(
    click.argument("revision", type=click.IntRange(min=1), required=False),
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

    Changes nothing, but for the pods that --node-pods allows. Exits with 0 if all is well, 4 with warnings or things
    that could not be looked at, 3 with a failure: no go.
    """
    where = reach.config(given["kubeconfig"], given["context"])
    survey, made = told(lambda: reach.run(_planned(where, given)))
    write(made, survey, given)
    if given["output"] == "text":
        show(made, given)
        reach.leave(made.findings)
    reach.report(made.findings, given["output"], kind="RollbackPlan", about=document(made, survey))


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
    made = rollbacks.plan(seen, way, read, known := await known_of(client, given))
    if not (given["by_exec"] or given["node_pods"]):
        return made
    looked = await _into_nodes(client, made, given)
    return rollbacks.plan(seen, way, read, known._replace(node_facts=looked.facts, node_unread=looked.unread))


async def known_of(client: "Client", given: dict[str, Any]) -> "Known":
    """The baseline of before the upgrade, if there is one, and the cluster as it is to compare."""
    from ..admin import baseline, rollbacks
    from .baseline import load

    if given["was"] is None:
        return rollbacks.Known()
    was = load(given["was"])
    return rollbacks.Known(was=was, now=await baseline.take(client, namespace=given["namespace"]))


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
