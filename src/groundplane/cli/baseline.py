"""``groundplane baseline``: record what a cluster's GPU stack is while all is well, and show what was recorded."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output as printing
from . import reach

if TYPE_CHECKING:
    from ..admin.baseline import Baseline, CudaTest

PARTS = ("helm", "resources", "definitions", "nodes", "pods", "gpus", "hosts", "health", "cuda")


@click.group("baseline", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Record what a cluster's GPU stack is while all is well; `groundplane drift` tells what has changed since."""


@command.command("save")
@click.argument("path", type=click.Path(path_type=Path))
@reach.cluster_options
@click.option("--force", is_flag=True, help="Replace a baseline that is there.")
@click.option(
    "--cuda", metavar="FILE", type=click.Path(path_type=Path), help="What `groundplane cuda-test -o json` wrote."
)
@click.option("--metrics/--no-metrics", default=True, show_default=True, help="Read GPU counters from the exporters.")
@click.option("--exec/--no-exec", "smi", default=True, show_default=True, help="Run nvidia-smi in operand pods.")
@click.option("--inside", is_flag=True, help="Also look at nodes from inside, by commands in operand pods.")
def save(
    path: Path,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    force: bool,
    cuda: Path | None,
    metrics: bool,
    smi: bool,
    inside: bool,
) -> None:
    """Record the cluster in PATH: a directory, or one file if it ends in .tar.gz.

    Secrets are taken out before anything is written. Changes nothing in the cluster. Exits with 4 if a part could not
    be read; it is saved nevertheless, and says which part and why.
    """
    from ..admin import baseline

    result = cuda_of(cuda)
    if path.exists() and not force:
        raise click.ClickException(f"{path} exists already: give another name, or --force to replace it")
    taken = live(kubeconfig, context, namespace, metrics=metrics, smi=smi, inside=inside, cuda=result)
    try:
        baseline.save(taken, path, replace=force)
    except (baseline.BaselineError, OSError) as error:
        raise click.ClickException(str(error)) from None
    for line in summary(taken):
        click.echo(line)
    click.echo(f"saved as {path}; compare with: groundplane drift {path}")
    sys.exit(0 if taken.complete else 4)


@command.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--part", "parts", type=click.Choice(PARTS), multiple=True, help="Only this part; in text, with all that it has."
)
@reach.output_option
def show(path: Path, parts: tuple[str, ...], output: str) -> None:
    """Print what a baseline in PATH has recorded."""
    from ..admin import baseline

    loaded = load(path)
    if output != "text":
        printing.documents([baseline.document(loaded, parts)], output)
        return
    for line in summary(loaded):
        click.echo(line)
    for part in parts:
        click.echo()
        click.echo(f"{part}:")
        click.echo(printing.to_yaml(baseline.document(loaded, (part,))["parts"][part]), nl=False)
    if not parts:
        for line in _table(_nodes(loaded)):
            click.echo(line)


def load(path: Path) -> "Baseline":
    """Read a baseline; what is wrong with it becomes one sentence."""
    from ..admin import baseline

    try:
        return baseline.load(path)
    except FileNotFoundError:
        raise click.ClickException(f"{path} does not exist; `groundplane baseline save {path}` makes it") from None
    except (baseline.BaselineError, OSError) as error:
        raise click.ClickException(str(error)) from None


def live(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    *,
    metrics: bool,
    smi: bool,
    inside: bool = False,
    cuda: "dict[str, CudaTest] | None" = None,
) -> "Baseline":
    """The cluster as it is; progress goes to standard error if that is a terminal."""
    from ..admin import baseline, matrix, nodelook
    from ..cluster.client import Client

    where = reach.config(kubeconfig, context)

    async def take() -> "Baseline":
        async with Client(where) as client:

            async def look(nodes: list[str]) -> nodelook.NodeLook:
                return await nodelook.look(client, nodes, namespace=namespace)

            return await baseline.take(
                client,
                namespace=namespace,
                metrics=metrics,
                smi=smi,
                look=look if inside else None,
                cuda=cuda,
                matrix=matrix.shipped().data_as_of.isoformat(),
                tell=_progress,
            )

    return reach.run(take())


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rasked {done} of {of} nodes{'' if done < of else chr(10)}", nl=False, err=True)


def cuda_of(path: Path | None) -> "dict[str, CudaTest] | None":
    """The result of a CUDA test in a file. Raises :class:`click.UsageError`."""
    import msgspec

    from ..admin import baseline

    if path is None:
        return None
    try:
        return baseline.cuda_results(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError, baseline.BaselineError) as error:
        raise click.UsageError(f"--cuda {path}: {error}") from None


def summary(taken: "Baseline") -> list[str]:
    """What was recorded, part by part, for people."""
    plain = taken.parts
    amounts = {
        "helm": f"{len(plain.helm)} releases: {', '.join(_release(item) for item in plain.helm.items()) or 'none'}",
        "resources": ", ".join(each.where for each in plain.resources) or "none",
        "definitions": f"{len(plain.definitions)} definitions",
        "nodes": f"{len(plain.nodes)} nodes, {sum(node.gpu for node in plain.nodes.values())} with GPUs",
        "pods": f"{len(plain.pods)} pods of {len({pod.operand for pod in plain.pods})} operands",
        "gpus": f"{sum(map(len, plain.gpus.values()))} GPUs of {len(plain.gpus)} nodes",
        "hosts": f"{len(plain.hosts)} nodes looked at from inside",
        "health": f"counters of {sum(map(len, plain.health.values()))} GPUs",
        "cuda": f"results of {len(plain.cuda)} nodes",
    }
    lines = [
        f"baseline of cluster {taken.cluster or '(id unknown)'}, Kubernetes {taken.version or '(version unknown)'}",
        f"taken {taken.when} by groundplane {taken.tool}, support matrix of {taken.matrix or '(none)'}",
    ]
    rows = [(part, taken.coverage[part].state, amounts[part]) for part in PARTS]
    lines += _table([("PART", "STATE", "RECORDED"), *rows])
    lines += [f"  {part}: {reason}" for part in PARTS for reason in taken.coverage[part].reasons]
    hidden = ", ".join(f"{number} {kind}" for kind, number in taken.redacted.items())
    return [*lines, f"secrets taken out: {hidden or 'none found'}"]


def _release(item: tuple[str, Any]) -> str:
    where, release = item
    return f"{where} {release.version} (revision {release.revision})"


NODES_SHOWN = 50


def _nodes(taken: "Baseline") -> list[tuple[str, ...]]:
    head = ("NODE", "SYSTEM", "KERNEL", "RUNTIME", "DRIVER", "ALLOCATABLE", "GPUS KNOWN")
    rows = [
        (
            name,
            node.os,
            node.kernel,
            node.runtime,
            node.driver or "-",
            ", ".join(f"{key}: {value}" for key, value in node.allocatable.items()) or "-",
            str(len(taken.parts.gpus[name])) if name in taken.parts.gpus else "unknown" if node.gpu else "-",
        )
        for name, node in taken.parts.nodes.items()
    ]
    left = len(rows) - NODES_SHOWN
    more = [(f"and {left} more (--part nodes)", *[""] * (len(head) - 1))] if left > 0 else []
    return [head, *rows[:NODES_SHOWN], *more]


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
