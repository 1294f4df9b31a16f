"""`chroot` into a node's own file system, and the commands that a node has there.

Operands that mount the host run a few of its commands that way: the service manager, the container runtime's view of
its configuration, module loading, the driver's nvidia-smi.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import tomlkit

from .. import driverfiles
from ..host import HostError, SimulatedHost, containerd_configuration, crio_configuration
from ..programs import ContainerContext
from ..standins import nvidia_smi

NOT_FOUND: Final = 127
CANNOT: Final = 125
"""How chroot itself fails."""


async def chroot(ctx: ContainerContext) -> int:
    """`chroot ROOT COMMAND ARGS...`, where ROOT is a mount of the host's root, or a driver's root for its own tool."""
    words = list(ctx.argv[1:])
    if len(words) < 2 or words[0].startswith("-"):
        ctx.error("chroot: expected a folder and a command")
        return CANNOT
    root, command = words[0], words[1:]
    name = command[0].rpartition("/")[2]
    if ctx.path(root).resolve() != ctx.host.root.base.resolve():
        if name == "nvidia-smi" and ctx.exists(root + driverfiles.SMI):
            return await nvidia_smi.run(ctx.child(command))
        ctx.error(f"chroot: {root} is not the root of the host; the lab runs commands of hosts only")
        return CANNOT
    if name == "nvidia-smi" and ctx.host.root.is_file(driverfiles.SMI):
        return await nvidia_smi.on_host(ctx.child(command))
    found = COMMANDS.get(name)
    absent = found is None or (found.runtime and found.runtime != ctx.host.spec.runtime.name)
    if found is None or absent or name in off_path(ctx.host):
        ctx.error(f"chroot: failed to run command '{command[0]}': No such file or directory")
        return NOT_FOUND
    try:
        return found.run(ctx, command[1:])
    except HostError as error:
        ctx.error(f"{name}: {error}")
        return 1


OFF_PATH: Final = "/var/lib/groundplane/off-path"
"""Names of a machine's commands that are not in a folder of the PATH, a line each; without the file all are."""


def off_path(host: SimulatedHost) -> frozenset[str]:
    """The commands that are on a machine but not on its PATH."""
    return frozenset(host.root.read_text(OFF_PATH).split()) if host.root.exists(OFF_PATH) else frozenset()


def _systemctl(ctx: ContainerContext, arguments: list[str]) -> int:
    services = {"containerd": "containerd", "crio": "cri-o", "docker": "docker"}
    if arguments == ["daemon-reload"]:
        ctx.host.reload_units()
        return 0
    if arguments[:1] == ["show"]:
        units = [word for word in arguments[1:] if not word.startswith("-")]
        ctx.log("\n\n".join(_unit(ctx.host, unit) for unit in units))
        return 0
    if len(arguments) == 2 and arguments[0] == "restart":
        service = arguments[1].removesuffix(".service")
        if services.get(service) == ctx.host.spec.runtime.name:
            ctx.container.restart_runtime()
            return 0
        ctx.error(f"Failed to restart {service}.service: Unit {service}.service not found.")
        return 5
    ctx.error(f"systemctl: the lab knows restart, show and daemon-reload, not {' '.join(arguments)!r}")
    return 1


UNITS: Final = "/etc/systemd/system"
STATES: Final = "/run/systemd/units"
"""Where the lab's machines keep how a unit stands: `active`, `inactive` or `failed`, a file each; as it is installed,
it is active."""


def _unit(host: SimulatedHost, unit: str) -> str:
    """How a service stands; whatever has no unit file is not installed."""
    name = unit.removesuffix(".service")
    if not host.root.exists(f"{UNITS}/{name}.service"):
        return f"Id={name}.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\nType="
    file = f"{STATES}/{name}"
    state = host.root.read_text(file).strip() if host.root.exists(file) else "active"
    return f"Id={name}.service\nLoadState=loaded\nActiveState={state}\nUnitFileState=enabled\nType=simple"


def _config(words: tuple[str, ...], read: Callable[[SimulatedHost], Mapping[str, Any]]) -> "Run":
    def run(ctx: ContainerContext, arguments: list[str]) -> int:
        if tuple(arguments) != words:
            ctx.error(f"the lab knows only {' '.join(words)!r} here, not {' '.join(arguments)!r}")
            return 1
        ctx.out(tomlkit.dumps(read(ctx.host)).encode())
        return 0

    return run


def _modprobe(ctx: ContainerContext, arguments: list[str]) -> int:
    for module in arguments:
        if not module.startswith("-"):
            ctx.host.load_module(module.replace("-", "_"))
    return 0


Run = Callable[[ContainerContext, list[str]], int]


class HostCommand:
    """A command of a host; only hosts with a certain container runtime have it, if one is named."""

    def __init__(self, run: Run, runtime: str = "") -> None:
        self.run = run
        self.runtime = runtime


COMMANDS: Final[Mapping[str, HostCommand]] = {
    "systemctl": HostCommand(_systemctl),
    "modprobe": HostCommand(_modprobe),
    "containerd": HostCommand(
        _config(("config", "dump"), lambda host: containerd_configuration(host.root)), "containerd"
    ),
    "crio": HostCommand(_config(("status", "config"), lambda host: crio_configuration(host.root)), "cri-o"),
}
