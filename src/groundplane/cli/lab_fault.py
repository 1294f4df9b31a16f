"""``groundplane lab fault``: break a running lab as reality does, and undo it; the doctor is to find it."""

from typing import TYPE_CHECKING

import click

from . import reach

if TYPE_CHECKING:
    from ..lab.faultbook import Fault
    from ..lab.host import SimulatedHost

_name = click.option("--name", default="default", show_default=True, help="Which lab, when several run.")
_node = click.option("--node", metavar="NAME", help="Where; the first node on which it can be, unless given.")


@click.group("fault")
def command() -> None:
    """Break a running lab as reality does, from the bus up to the operator, and undo it."""


@command.command("list")
def list_() -> None:
    """List what can be broken, by layer, with the signatures by which the doctor names it."""
    from ..lab import faultbook

    layer = ""
    for name, fault in faultbook.FAULTS.items():
        if fault.layer.value != layer:
            layer = fault.layer.value
            click.echo(f"{layer} {fault.layer.name.lower().replace('_', ' ')}")
        click.echo(f"  {name:32} {fault.title} ({', '.join(fault.causes)})")


@command.command("apply")
@click.argument("fault")
@_node
@_name
def apply(fault: str, node: str | None, name: str) -> None:
    """Bring a FAULT about in a running lab; `groundplane lab fault list` shows which there are."""
    found = _fault(fault)
    host = _host(name, found, fault, node)
    reach.run(_act(name, fault, host, undo=False))
    click.echo(f"{host.spec.name}: {found.title}")
    click.echo(f"find it with: groundplane doctor --kubeconfig {_kubeconfig(name)}")
    click.echo(f"undo it with: groundplane lab fault clear {fault} --node {host.spec.name} --name {name}")


@command.command("clear")
@click.argument("fault")
@_node
@_name
def clear(fault: str, node: str | None, name: str) -> None:
    """Undo a FAULT in a running lab."""
    found = _fault(fault)
    host = _host(name, found, fault, node)
    reach.run(_act(name, fault, host, undo=True))
    click.echo(f"{host.spec.name}: {fault} is cleared")


def _fault(name: str) -> "Fault":
    from ..lab import faultbook

    try:
        return faultbook.fault(name)
    except faultbook.UnknownFaultError as error:
        raise click.ClickException(str(error)) from error


async def _act(name: str, fault: str, host: "SimulatedHost", *, undo: bool) -> None:
    from ..cluster.client import Client
    from ..cluster.config import Config
    from ..lab import faultbook
    from ..lab.host import HostError

    async with Client(Config.from_kubeconfig(_kubeconfig(name)), user_agent="groundplane-lab") as client:
        where = faultbook.Where(client, host.spec.name, host)
        try:
            await (faultbook.clear if undo else faultbook.apply)(fault, where)
        except HostError as error:
            raise click.ClickException(f"{host.spec.name}: {error}") from error


def _kubeconfig(name: str) -> str:
    from . import lab

    return lab.expect(name).kubeconfig


def _host(name: str, found: "Fault", fault: str, node: str | None) -> "SimulatedHost":
    """The machine of a node of a running lab on which the fault can be."""
    from ..lab.host import HostError, SimulatedHost
    from . import lab

    folder = lab.machines(name)
    try:
        if node is not None:
            host = SimulatedHost.attached(folder / node)
            if not found.on.fits(host):
                raise click.ClickException(f"{fault} can be on {found.on.says} only; {node} is none")
            return host
        hosts = [SimulatedHost.attached(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    except (HostError, OSError) as error:
        raise click.ClickException(str(error)) from error
    fitting = next((host for host in hosts if found.on.fits(host)), None)
    if fitting is None:
        raise click.ClickException(f"{fault} can be on {found.on.says} only; lab {name!r} has none")
    return fitting
