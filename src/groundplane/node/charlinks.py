"""Links in /dev/char by which systemd finds the driver's devices, and loading the driver's kernel modules.

Where the systemd cgroup driver is in use, a container loses its devices when systemd reloads its units, unless
`/dev/char/<major>:<minor>` leads to each (contracts/toolkit-cdi.md 2, contracts/mig-exporter-validator.md 6.4). The
numbers themselves are read in ``controlnodes``; when links are made is left to the programs.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from . import controlnodes
from .controlnodes import CAPS, GPU, UVM, Majors, NodeError
from .process import Process

MODULES: Final = ("nvidia", "nvidia-uvm", "nvidia-modeset")
_VENDOR: Final = "0x10de"
_DISPLAY_CLASSES: Final = ("0x0300", "0x0302")
"""PCI classes of GPUs: VGA and 3D controllers."""
_EXISTING: Final = ("/dev/nvidia*", "/dev/nvidia-caps/nvidia-*")
_OTHERS: Final = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
"""Nodes of other drivers, by how their names begin."""


class Node(NamedTuple):
    """A device node: its path below the dev root, and its numbers."""

    path: str
    major: int
    minor: int

    @property
    def link(self) -> str:
        """The name of its link."""
        return f"{self.major}:{self.minor}"


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


def make(process: Process, folder: str, dev_root: str, nodes: Sequence[Node], *, dry_run: bool = False) -> list[str]:
    """Make the links of nodes; one that says the same is left alone, one that leads elsewhere is replaced.

    ``folder`` is a path of the container's, ``dev_root`` the host's, which links lead into. Returns what is wrong with
    the links that cannot be made, a text each. OSError if the folder cannot be made.
    """
    real = process.path(folder)
    if not dry_run:
        real.mkdir(parents=True, exist_ok=True)
    problems = []
    for node in nodes:
        target = f"{dev_root.rstrip('/')}{node.path}"
        shown = f"{folder}/{node.link} => {target}"
        process.log.info(f"Creating link {shown}")
        if dry_run:
            continue
        try:
            _replace(real / node.link, target)
        except OSError as error:
            problems.append(f"Could not create symlink {shown}: {error.strerror or error}")
    return problems


def _replace(link: Path, target: str) -> None:
    if link.is_symlink() and str(link.readlink()) == target:
        return
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
