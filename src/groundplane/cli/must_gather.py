"""``groundplane must-gather``: what a cluster shows, without its secrets, in one file to hand on."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import reach

if TYPE_CHECKING:
    from ..diagnose.archive import Captured


@click.command("must-gather")
@reach.cluster_options
@click.option(
    "--file", "path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="The archive (.tar.gz)."
)
@click.option("--node", "nodes", metavar="NAME", multiple=True, help="Logs and facts of this node only.")
@click.option("--workload", "workloads", metavar="NAMESPACE/POD", multiple=True, help="This pod's logs too.")
@click.option("--exec/--no-exec", "look", default=True, show_default=True, help="Look at GPU nodes in operand pods.")
@click.option(
    "--pseudonyms", is_flag=True, help="Other names for nodes, addresses, serial numbers, the same throughout."
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds in all."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a workload's logs are included.")
def command(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    path: Path | None,
    nodes: tuple[str, ...],
    workloads: tuple[str, ...],
    look: bool,
    pseudonyms: bool,
    timeout_s: float,
    yes: bool,
) -> None:
    """Gather what explains the GPU stack's state: objects, events, logs, nodes seen from inside, the doctor's verdict.

    Changes nothing in the cluster. Secrets are taken out before anything is written; their number is told. What could
    not be read is listed in the archive, which is valid without it, also after Ctrl-C. Judge it anywhere with
    "groundplane doctor --from FILE".
    """
    named = [_named(each) for each in workloads]
    if named and not yes:
        click.confirm(
            f"Logs of {', '.join(workloads)} may hold what no rule knows as secret. Include them?", abort=True
        )
    target = path or Path(time.strftime("groundplane-must-gather-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    where = reach.config(kubeconfig, context)

    async def work() -> "Captured":
        from ..admin import gather, nodelook
        from ..cluster.client import Client

        async with Client(where) as client:
            return await gather.gather(
                client,
                namespace=namespace,
                nodes=nodes,
                workloads=named,
                look=(lambda machines: nodelook.look(client, machines, namespace=namespace, timeout_s=30.0, tell=_tell))
                if look
                else None,
                limits=gather.Limits(timeout_s=timeout_s),
                tell=_tell,
            )

    _write(reach.run(work()), target, pseudonyms)


def _write(captured: "Captured", target: Path, pseudonyms: bool) -> None:
    from ..admin import gather

    redactor = gather.redactor_of(captured.survey, pseudonyms)
    plain = gather.redacted(captured, redactor)
    try:
        gather.write(target, gather.files(plain, redactor), plain.survey.at)
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror or error}") from None
    click.echo(f"{target}: {target.stat().st_size} bytes, {sum(redactor.counts.values())} values taken out")
    for kind, count in redactor.report().items():
        click.echo(f"  {count} x {kind}")
    for each in (*plain.survey.unread.values(), *plain.missing):
        click.echo(f"not gathered: {each}")
    click.echo("Look it through before you hand it on: no rule knows every secret.")


def _named(workload: str) -> tuple[str, str]:
    namespace, _, name = workload.partition("/")
    if not namespace or not name or "/" in name:
        raise click.UsageError(f"--workload takes NAMESPACE/POD; this is {workload!r}")
    return namespace, name


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(text, err=True)
