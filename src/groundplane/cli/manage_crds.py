"""``groundplane manage-crds``: the custom resource definitions of a cluster, brought up to date or deleted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click

FILEPATH = click.option(
    "--filepath",
    "paths",
    multiple=True,
    metavar="PATH",
    help="A file or folder of definitions; may be repeated [those of this version of the operator].",
)
TIMEOUT = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.0), default=60.0, show_default=True, help="Seconds to wait."
)
KUBECONFIG = click.option(
    "--kubeconfig", metavar="FILE", help="How to reach the cluster [KUBECONFIG, else ~/.kube/config, else in-cluster]."
)


@click.group("manage-crds")
def command() -> None:
    """Bring the custom resource definitions of a cluster up to date, or delete them."""


@command.command("apply")
@FILEPATH
@TIMEOUT
@KUBECONFIG
def apply(paths: tuple[str, ...], timeout_s: float, kubeconfig: str | None) -> None:
    """Create or replace the definitions and wait until the API server serves them."""
    from ..operator import manage_crds

    _run(manage_crds.apply, paths, timeout_s, kubeconfig)


@command.command("delete")
@FILEPATH
@TIMEOUT
@KUBECONFIG
def delete(paths: tuple[str, ...], timeout_s: float, kubeconfig: str | None) -> None:
    """Delete the definitions, and with them every object of their kinds, and wait until all is gone."""
    from ..operator import manage_crds

    _run(manage_crds.delete, paths, timeout_s, kubeconfig)


def _run(
    action: Callable[..., Awaitable[None]], paths: tuple[str, ...], timeout_s: float, kubeconfig: str | None
) -> None:
    from .. import __version__
    from ..cluster.client import Client
    from ..cluster.config import Config
    from ..cluster.errors import ClusterError
    from ..operator import manage_crds

    async def carry_out(definitions: list[dict[str, Any]]) -> None:
        async with Client(Config.detect(kubeconfig=kubeconfig), user_agent=f"manage-crds/{__version__}") as client:
            await action(client, definitions, tell=click.echo, timeout_s=timeout_s)

    try:
        found = [each for path in paths for each in manage_crds.load(path)] if paths else manage_crds.shipped()
        asyncio.run(carry_out(found))
    except (manage_crds.DefinitionsError, ClusterError, OSError) as error:
        raise click.ClickException(str(error)) from error
