"""`nvidia-ctk system`: device nodes of the driver, and the links by which systemd finds them.

contracts/toolkit-cdi.md 2. Where the systemd cgroup driver is in use, a container loses its devices when systemd
reloads its units, unless `/dev/char/<major>:<minor>` leads to each. What is known of the devices' numbers is kept in
``controlnodes``.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .. import controlnodes
from ..controlnodes import CAPS, GPU, UVM, Majors, NodeError
from ..options import BOOL, Command, Leave, Option, Values, read
from ..process import Process

MODULES: Final = ("nvidia", "nvidia-uvm", "nvidia-modeset")
_VENDOR: Final = "0x10de"
_DISPLAY_CLASSES: Final = ("0x0300", "0x0302")
"""PCI classes of GPUs: VGA and 3D controllers."""
_EXISTING: Final = ("/dev/nvidia*", "/dev/nvidia-caps/nvidia-*")
_OTHERS: Final = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
"""Nodes of other drivers, by how their names begin."""
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


class Node(NamedTuple):
    """A device node: its path below the dev root, and its numbers."""

    path: str
    major: int
    minor: int

    @property
    def link(self) -> str:
        """The name of its link."""
        return f"{self.major}:{self.minor}"


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


async def load_modules(process: Process, root: str, *, dry_run: bool) -> None:
    """Load the driver's kernel modules with the root's modprobe. Raises :class:`NodeError`."""
    chroot = () if root in ("", "/") else ("chroot", root)
    for module in MODULES:
        command = (*chroot, "/sbin/modprobe", module)
        shown = " ".join(command)
        if dry_run:
            process.log.info(f"Running: {shown}")
            continue
        try:
            done = await process.execute(command)
        except FileNotFoundError as error:
            raise NodeError(f"failed to load module {module}: {shown}: {error}") from None
        if done.code != 0:
            said = (done.err or done.out).strip() or "it said nothing"
            raise NodeError(f"failed to load module {module}: {shown} ended with {done.code}: {said}")


def _make_control_nodes(process: Process, dev_root: str, *, dry_run: bool) -> None:
    def tell(path: Path, major: int, minor: int) -> None:
        process.log.info(f"Running: mknod --mode=0666 {path} c {major} {minor}")

    controlnodes.create_control_nodes(process, dev_root, make=tell if dry_run else None)


def existing(process: Process, dev_root: str) -> Iterator[Node]:
    """The driver's device nodes that there are."""
    for entry in controlnodes.entries(process, dev_root, _EXISTING):
        name = entry.path.rpartition("/")[2]
        if stat.S_ISCHR(entry.status.st_mode) and not name.startswith(_OTHERS):
            number = entry.status.st_rdev
            yield Node(entry.path, os.major(number), os.minor(number))


def possible(process: Process) -> Iterator[Node]:
    """The driver's device nodes that there can be for the machine's GPUs. Raises :class:`NodeError`."""
    majors = controlnodes.majors(process.kernel)
    minors = controlnodes.mig_minors(process.kernel, process.log)
    needed = (GPU, UVM) if minors is None else (CAPS, GPU, UVM)
    numbers = {name: _required(majors, name) for name in needed}
    count = sum(1 for _ in _gpus(process))
    if count == 0:
        process.log.info("No NVIDIA GPU was found in /sys/bus/pci/devices")
        return
    for control in sorted(controlnodes.CONTROL, key=lambda each: each.name != "nvidia-modeset"):
        yield Node(f"/dev/{control.name}", numbers[control.major], control.minor)
    yield from _capabilities(numbers, minors or {}, ("config", "monitor"))
    for gpu in range(count):
        yield Node(f"/dev/nvidia{gpu}", numbers[GPU], gpu)
        of_gpu = (name for name in minors or {} if name.startswith(f"gpu{gpu}/"))
        yield from _capabilities(numbers, minors or {}, of_gpu)


def _capabilities(
    numbers: Mapping[str, int], minors: Mapping[str, int], capabilities: Sequence[str] | Iterator[str]
) -> Iterator[Node]:
    for minor in (minors[name] for name in capabilities if name in minors):
        yield Node(f"/dev/nvidia-caps/nvidia-cap{minor}", numbers[CAPS], minor)


def _required(majors: Majors, name: str) -> int:
    number = majors.get(name)
    if number is None:
        raise NodeError(f"missing required device major {name} in {controlnodes.PROC_DEVICES}: is its module loaded?")
    return number


def _gpus(process: Process) -> Iterator[str]:
    """The machine's NVIDIA GPUs, as PCI has them."""
    for device in process.kernel.glob("/sys/bus/pci/devices/*"):
        try:
            vendor, kind = (process.kernel.read_text(f"{device}/{name}").strip() for name in ("vendor", "class"))
        except OSError:  # gone meanwhile
            continue
        if vendor == _VENDOR and kind.startswith(_DISPLAY_CLASSES):
            yield device


def _link(process: Process, values: Values, nodes: Sequence[Node]) -> None:
    """Make the links; one that says the same is left alone, one that leads elsewhere is replaced. OSError."""
    if not nodes:
        process.log.info(f"No NVIDIA devices found in {values['dev-root']}")
        return
    folder = process.path(values["dev-char-path"])
    if not values["dry-run"]:
        folder.mkdir(parents=True, exist_ok=True)
    for node in nodes:
        target = f"{values['dev-root'].rstrip('/')}{node.path}"
        shown = f"{values['dev-char-path']}/{node.link} => {target}"
        process.log.info(f"Creating link {shown}")
        if values["dry-run"]:
            continue
        try:
            _replace(folder / node.link, target)
        except OSError as error:
            process.log.warning(f"Could not create symlink {shown}: {error.strerror or error}")


def _replace(link: Path, target: str) -> None:
    if link.is_symlink() and str(link.readlink()) == target:
        return
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
