"""What the administrator's commands share: their options, how they reach a cluster, how they print what they found.

Every command that reports findings has the same options, formats and exit codes (contracts/admin-workflow.md 1). Errors
end here, as one sentence with what to do next; a traceback is a defect.
"""

import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from . import output as printing

if TYPE_CHECKING:
    from ..cluster.config import Config
    from ..diagnose.findings import Finding

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

TOOL_ERROR = 1


def all_of(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several decorators as one, the first outermost: options that commands share."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def cluster_options(function: F) -> F:
    """``kubeconfig``, ``context`` and ``namespace``: which cluster, and where the operator is in it."""
    return all_of(
        click.option(
            "--kubeconfig", metavar="FILE", help="How to reach the cluster [KUBECONFIG, else ~/.kube/config]."
        ),
        click.option("--context", metavar="NAME", help="Which context of the kubeconfig."),
        click.option("-n", "--namespace", default="gpu-operator", show_default=True, help="The operator's namespace."),
    )(function)


def carrying_out(function: F) -> F:
    """How an upgrade, or a rollback, is carried out."""
    return all_of(
        click.option(
            "--timeout", default=1800, show_default=True, type=click.IntRange(min=1), help="Seconds that Helm may wait."
        ),
        click.option(
            "--driver-timeout",
            default=3600,
            show_default=True,
            type=click.IntRange(min=1),
            help="Seconds without any progress of drivers after which the run gives up; it can be taken up again.",
        ),
        click.option("--no-cuda-test", is_flag=True, help="Do not run the CUDA test at the end."),
        click.option("--cuda-image", metavar="IMAGE", default="", help="Image of the CUDA test."),
        click.option(
            "--test-namespace", default="default", show_default=True, help="Where the CUDA test's pods are made."
        ),
        click.option("--no-metrics", is_flag=True, help="Do not ask exporters and nvidia-smi for the baseline before."),
    )(function)


output_option = click.option(
    "-o", "--output", type=click.Choice(["text", *reversed(printing.FORMATS)]), default="text", show_default=True
)
html_option = click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Also write a report as one page."
)


node_pod_options = all_of(
    click.option(
        "--node-pods", is_flag=True, help="Also look at nodes by short-lived privileged pods, which are deleted again."
    ),
    click.option(
        "--node-image", metavar="IMAGE", default="", help="Image of these pods: groundplane's, in your registry."
    ),
    click.option("--pull-secret", "pull_secrets", metavar="NAME", multiple=True, help="Pull secret of these pods."),
)
"""Of what may look at nodes by pods of its own; :func:`check_node_pods` checks what was given."""


def check_node_pods(node_pods: bool, image: str, pull_secrets: Sequence[str]) -> None:
    """Raises :class:`click.UsageError` for options of pods that are not allowed."""
    if (image or pull_secrets) and not node_pods:
        raise click.UsageError("--node-image and --pull-secret are for --node-pods")


def config(kubeconfig: str | None, context: str | None) -> "Config":
    """The cluster that options name. Raises :class:`click.ClickException` with what was looked for."""
    from ..cluster.config import Config
    from ..cluster.errors import ConfigError

    try:
        return Config.detect(kubeconfig=kubeconfig, context=context)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; errors of the cluster, of files and of the work's own kind end as one sentence each.

    What is raised deliberately for people derives from :class:`click.ClickException`, or is one of the rooms' errors,
    which all are written for the reader.
    """
    from ..cluster import errors

    try:
        return _finished(work)
    except errors.Unauthorized as error:
        raise click.ClickException(
            f"the API server does not accept the credentials: {error}. The token or certificate may have expired: log "
            "in again, or give another --context"
        ) from None
    except errors.ConnectionLost as error:
        raise click.ClickException(
            f"no answer from the API server: {error}. Is the cluster up, and the address of the kubeconfig right "
            "(kubectl cluster-info)?"
        ) from None
    except errors.Forbidden as error:
        from ..cluster import permissions

        lacking = permissions.missing(error)
        told = permissions.tell(permissions.Denied(each) for each in lacking) if lacking else str(error)
        raise click.ClickException(told) from None
    except (errors.ClusterError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        raise click.Abort from None


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to, kept out of its task.

    When :func:`asyncio.run` puts the handler of SIGINT back, Python 3.11 makes, and throws away, the ``repr`` of the
    task: with a survey of 1,000 nodes as its result, that is 100 MiB.
    """
    import asyncio  # not at the top: what reads a file needs none, and starts the sooner

    kept: list[T] = []

    async def keep() -> None:
        kept.append(await work)

    asyncio.run(keep())
    return kept[0]


def report(
    findings: "Iterable[Finding]",
    output: str,
    *,
    kind: str,
    about: dict[str, Any] | None = None,
    everything: bool = False,
) -> None:
    """Print findings in a format; ``about`` is said first: what was looked at, with what. Exits with their code."""
    from ..diagnose import findings as shape

    rows = list(findings)
    if output == "text":
        for line in shape.text(rows, all_evidence=everything):
            click.echo(line)
    else:
        document = {"apiVersion": "groundplane.dev/v1alpha1", "kind": kind, **(about or {}), **shape.report(rows)}
        printing.documents([document], output)
    leave(rows)


def leave(findings: "Iterable[Finding]") -> NoReturn:
    """End the process with the findings' exit code."""
    from ..diagnose import findings as shape

    sys.exit(int(shape.exit_code(findings)))
