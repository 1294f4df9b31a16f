"""`nvidia-ctk system`: device nodes of the driver, and the links by which systemd finds them.

contracts/toolkit-cdi.md 2. What is known of the devices' numbers is kept in ``controlnodes``, of the links in
``charlinks``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .. import charlinks, controlnodes
from ..charlinks import Node, existing, load_modules, possible
from ..controlnodes import NodeError
from ..options import BOOL, Command, Leave, Option, Values, read
from ..process import Process

_DONE, _FAILED = 0, 1


def _flag(name: str, help: str, env: str = "") -> Option:
    return Option(name=name, flags=(name,), env=tuple(env.split()), type=BOOL, default=False, help=help)


_DRY_RUN: Final = _flag("dry-run", "only say what would be done", "DRY_RUN")
LINKS: Final = Command(
    name="nvidia-ctk system create-dev-char-symlinks",
    about="Create links to NVIDIA device nodes in /dev/char.",
    options=(
        Option(
            name="dev-char-path",
            flags=("dev-char-path",),
            env=("DEV_CHAR_PATH",),
            default="/dev/char",
            help="the folder for the links, which are named MAJOR:MINOR",
        ),
        Option(
            name="driver-root",
            flags=("driver-root",),
            env=("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"),
            default="/",
            help="the root in which kernel modules are loaded",
        ),
        Option(
            name="dev-root",
            flags=("dev-root",),
            env=("NVIDIA_DEV_ROOT", "DEV_ROOT"),
            default="/",
            help="the root whose /dev has the device nodes",
        ),
        _flag("create-all", "link all nodes that there can be, not only those that there are", "CREATE_ALL"),
        _flag(
            "load-kernel-modules", "load the driver's kernel modules first; with --create-all", "LOAD_KERNEL_MODULES"
        ),
        _flag("create-device-nodes", "make the control nodes first; with --create-all", "CREATE_DEVICE_NODES"),
        _DRY_RUN,
    ),
)
NODES: Final = Command(
    name="nvidia-ctk system create-device-nodes",
    about="Create NVIDIA device nodes.",
    options=(
        Option(
            name="root",
            flags=("root", "driver-root"),
            env=("ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"),
            default="/",
            help="the root in which kernel modules are loaded",
        ),
        Option(
            name="dev-root",
            flags=("dev-root",),
            env=("NVIDIA_DEV_ROOT", "DEV_ROOT"),
            help="the root whose /dev is to have the device nodes; by default the root",
        ),
        _flag("control-devices", "make nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools"),
        _flag("load-kernel-modules", "load the driver's kernel modules first"),
        _DRY_RUN,
    ),
)


async def create_dev_char_symlinks(process: Process, arguments: Sequence[str]) -> int:
    """`nvidia-ctk system create-dev-char-symlinks`."""
    try:
        values = read(LINKS, process, arguments)
    except Leave as leave:
        return leave.tell(process)
    every: bool = values["create-all"]
    for name in ("load-kernel-modules", "create-device-nodes"):
        if values[name] and not every:
            process.log.warning(f"{name} is only applicable when create-all is set; ignoring")
    try:
        if every and values["load-kernel-modules"]:
            await load_modules(process, values["driver-root"], dry_run=values["dry-run"])
        if every and values["create-device-nodes"]:
            _make_control_nodes(process, values["dev-root"], dry_run=values["dry-run"])
        _link(process, values, list(possible(process) if every else existing(process, values["dev-root"])))
    except (NodeError, OSError) as error:
        process.log.error(f"failed to create links: {error}")
        return _FAILED
    return _DONE


async def create_device_nodes(process: Process, arguments: Sequence[str]) -> int:
    """`nvidia-ctk system create-device-nodes`."""
    try:
        values = read(NODES, process, arguments)
    except Leave as leave:
        return leave.tell(process)
    try:
        if values["load-kernel-modules"]:
            await load_modules(process, values["root"], dry_run=values["dry-run"])
        if values["control-devices"]:
            _make_control_nodes(process, values["dev-root"] or values["root"], dry_run=values["dry-run"])
    except NodeError as error:
        process.log.error(str(error))
        return _FAILED
    return _DONE


def _make_control_nodes(process: Process, dev_root: str, *, dry_run: bool) -> None:
    def tell(path: Path, major: int, minor: int) -> None:
        process.log.info(f"Running: mknod --mode=0666 {path} c {major} {minor}")

    controlnodes.create_control_nodes(process, dev_root, make=tell if dry_run else None)


def _link(process: Process, values: Values, nodes: Sequence[Node]) -> None:
    """Make the links; those that cannot be made are told of. OSError."""
    if not nodes:
        process.log.info(f"No NVIDIA devices found in {values['dev-root']}")
        return
    for problem in charlinks.make(
        process, values["dev-char-path"], values["dev-root"], nodes, dry_run=values["dry-run"]
    ):
        process.log.warning(problem)
