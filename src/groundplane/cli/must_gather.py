"""``groundplane must-gather``: what a cluster shows, without its secrets, in one file to hand on."""

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from . import reach

if TYPE_CHECKING:
    from ..admin.gather import Gathered

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)i?b?", re.IGNORECASE)


def _size(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """A size in bytes, such as ``10Mi``, ``512M`` or ``1G``; units are powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (size := int(float(found[1]) * _UNITS[found[2].lower()])):
        raise click.BadParameter(f"{text!r} is no size; write it like 512K, 10Mi or 1G")
    return size


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float:
    """A time such as ``30m`` or ``2h``, in seconds; 0 for none."""
    from ..api import durations

    try:
        return durations.parse(text) / 1000 if text is not None else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("must-gather")
@reach.cluster_options
@click.option(
    "--file", "path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="The archive (.tar.gz)."
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a new folder instead of an archive.",
)
@click.option("--node", "nodes", metavar="NAME", multiple=True, help="Logs and facts of this node only.")
@click.option("--workload", "workloads", metavar="NAMESPACE/POD", multiple=True, help="This pod's logs too.")
@click.option("--since", "since_s", metavar="DURATION", callback=_duration, help="Logs and events since, such as 2h.")
@click.option("--exec/--no-exec", "look", default=True, show_default=True, help="Look at GPU nodes in operand pods.")
@reach.node_pod_options
@click.option(
    "--pseudonyms", is_flag=True, help="Other names for nodes, addresses, serial numbers, the same throughout."
)
@click.option("--max-file", "file_bytes", metavar="SIZE", callback=_size, default="10Mi", show_default=True,
              help="Of each log the end.")  # fmt: skip
@click.option("--max-total", "total_bytes", metavar="SIZE", callback=_size, default="512Mi", show_default=True,
              help="Of all logs, unpacked.")  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds in all."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a workload's logs are included.")
def command(**given: Any) -> None:
    """Gather what explains the GPU stack's state: objects, events, logs, nodes seen from inside, the doctor's verdict.

    Changes nothing in the cluster, but for the pods that --node-pods allows. Secrets are taken out before anything is
    written; their number is told. What could not be read is listed in the archive, which is valid without it, also
    after Ctrl-C. Judge it anywhere with "groundplane doctor --from FILE".
    """
    named = [_named(each) for each in given["workloads"]]
    if given["path"] is not None and given["folder"] is not None:
        raise click.UsageError("give one of --file and --dir")
    reach.check_node_pods(given["node_pods"], given["node_image"], given["pull_secrets"])
    if named and not given["yes"]:
        click.confirm(
            f"Logs of {', '.join(given['workloads'])} may hold what no rule knows as secret. Include them?", abort=True
        )
    gathered = reach.run(_gather(given, named))
    with _patient():
        _write(gathered, given["path"], given["folder"], given["pseudonyms"])


async def _gather(given: Mapping[str, Any], named: list[tuple[str, str]]) -> "Gathered":
    from ..admin import gather, nodelook
    from ..cluster.client import Client

    ways = [nodelook.Way.EXEC] if given["look"] else []
    ways += [nodelook.Way.PODS] if given["node_pods"] else []
    async with Client(reach.config(given["kubeconfig"], given["context"])) as client:

        async def look(machines: Any) -> nodelook.NodeLook:
            return await nodelook.look(
                client,
                machines,
                namespace=given["namespace"],
                ways=ways,
                image=given["node_image"],
                pull_secrets=given["pull_secrets"],
                timeout_s=60.0 if given["node_pods"] else 30.0,
                tell=_tell,
            )

        return await gather.gather(
            client,
            namespace=given["namespace"],
            nodes=given["nodes"],
            workloads=named,
            look=look if ways else None,
            limits=gather.Limits(
                file_bytes=given["file_bytes"],
                total_bytes=given["total_bytes"],
                timeout_s=given["timeout_s"],
                since_s=given["since_s"],
            ),
            tell=_tell,
        )


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """While what was read is written, the first Ctrl-C is answered only; the second ends it, and leaves no file."""

    def first(_number: int, _frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        click.echo("writing what was read; once more to give up", err=True)

    before = None
    with contextlib.suppress(ValueError):  # not in the main thread: nobody sends signals here
        before = signal.signal(signal.SIGINT, first)
    try:
        yield
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _write(gathered: "Gathered", path: Path | None, folder: Path | None, pseudonyms: bool) -> None:
    from ..admin import gather_pack

    _tell("taking secrets out")
    redactor = gather_pack.redactor_of(gathered.captured.survey, pseudonyms)
    plain = gather_pack.redacted(gathered, redactor)
    captured = plain.gathered.captured
    named = gather_pack.files(plain, redactor)
    target = folder or path or Path(time.strftime("groundplane-must-gather-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    try:
        if folder is not None:
            size = gather_pack.write_folder(folder, named)
        else:
            gather_pack.write(target, named, captured.survey.at)
            size = target.stat().st_size
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror or error}") from None
    click.echo(f"{target}: {size} bytes, {sum(plain.total.values())} values taken out")
    for kind, count in plain.total.items():
        click.echo(f"  {count} x {kind}")
    for each in (*captured.survey.unread.values(), *captured.missing):
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
