"""The driver's character devices: their numbers as the kernel says them, and making the nodes that are missing.

contracts/toolkit-cdi.md 2. A node that is there already, whatever it is, is left alone. On machines whose GPUs are
simulated no real number is ever used: an ordinary file stands for a node there.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from . import resources
from .cdi.roots import simulated
from .hostroot import HostRoot
from .process import Log, Process
from .resources import MIG_MINORS

PROC_DEVICES: Final = "/proc/devices"
GPU, UVM, CAPS = "nvidia", "nvidia-uvm", "nvidia-caps"
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {GPU: (GPU, "nvidia-frontend")}
"""Names of one major number, the newer first (it changed with driver 550.40)."""
MODE: Final = 0o666
_LINE: Final = re.compile(r"\s*([0-9]+)\s+(\S+)\s*")

Make = Callable[[Path, int, int], None]
"""Makes a character device of a major and a minor number at a path. OSError."""


class Control(NamedTuple):
    """A control device: its name in /dev, the name of its major number, its minor number."""

    name: str
    major: str
    minor: int


CONTROL: Final = (
    Control("nvidiactl", GPU, 255),
    Control("nvidia-modeset", GPU, 254),
    Control("nvidia-uvm", UVM, 0),
    Control("nvidia-uvm-tools", UVM, 1),
)
"""In the order in which they are made."""


class Entry(NamedTuple):
    """An entry of a dev root's folder: its path below the root, and what it is."""

    path: str
    status: os.stat_result


class NodeError(RuntimeError):
    """A device node cannot be made, or the kernel's lists cannot be read; the text says what to do."""


class Majors:
    """NVIDIA's major numbers, by name; one name stands for another that the same driver had earlier."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def get(self, name: str) -> int | None:
        """The number of a name, or None."""
        return next((self._numbers[each] for each in ALIASES.get(name, (name,)) if each in self._numbers), None)


def parse_majors(text: str) -> Majors:
    """NVIDIA's part of /proc/devices. Raises :class:`NodeError` if there is none."""
    found = (match for match in map(_LINE.fullmatch, text.splitlines()) if match)
    numbers = {match[2]: int(match[1]) for match in found if match[2].startswith("nvidia")}
    if not numbers:
        raise NodeError(f"no NVIDIA devices found in {PROC_DEVICES}: the driver's kernel modules are not loaded")
    return Majors(numbers)


def majors(kernel: HostRoot) -> Majors:
    """NVIDIA's major numbers; none where the kernel has no list. Raises :class:`NodeError`."""
    text = _read(kernel, PROC_DEVICES)
    return Majors({}) if text is None else parse_majors(text)


def mig_minors(kernel: HostRoot, log: Log) -> dict[str, int] | None:
    """Minor numbers of MIG capabilities by their name; None if the driver has no list, as it knows no MIG.

    A line that says nothing is left out, with a word in the log. Raises :class:`NodeError`.
    """
    text = _read(kernel, MIG_MINORS)
    if text is None:
        return None
    for line in text.splitlines():
        if not resources.mig_minors(line):
            log.warning(f"Skipping line in {MIG_MINORS}: {line!r} is no capability with its number")
    return resources.mig_minors(text)


def _read(kernel: HostRoot, path: str) -> str | None:
    try:
        return kernel.read_text(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeError(f"cannot read {path}: {error.strerror or error}") from None


def entries(process: Process, dev_root: str, patterns: Iterable[str]) -> Iterator[Entry]:
    """What there is below a dev root; wildcards are in a pattern's last component only. Links are followed."""
    for pattern in patterns:
        folder, _, name = pattern.rpartition("/")
        # where nodes are simulated, the folder of an NVIDIA node is not the container's /dev
        place = process.path(f"{dev_root.rstrip('/')}{folder}/{name.rstrip('*') or '_'}").parent
        for path in sorted(place.glob(name)):
            try:
                yield Entry(f"{folder}/{path.name}", path.stat())
            except OSError:  # a link to nothing, or gone meanwhile
                continue


def make_node(path: Path, major: int, minor: int) -> None:
    """Make a character device that all may read and write. OSError."""
    os.mknod(path, stat.S_IFCHR | MODE, os.makedev(major, minor))
    path.chmod(MODE)


def make_stand_in(path: Path, _major: int, _minor: int) -> None:
    """Make the ordinary file that stands for a node on a simulated machine. OSError."""
    path.touch(exist_ok=False)
    path.chmod(MODE)


def create_control_nodes(process: Process, dev_root: str, *, make: Make | None = None) -> None:
    """Make the control devices that are missing below ``<dev root>/dev``. Raises :class:`NodeError`."""
    if make is None:
        make = make_stand_in if simulated(process) else make_node
    root = dev_root.rstrip("/")
    numbers: Majors | None = None
    for device in CONTROL:
        shown = f"{root}/dev/{device.name}"
        # not through a link of the dev root's; where nodes are simulated, the plain path is not the container's
        path = process.path(f"{root}/dev") / device.name if root else process.path(shown)
        if os.path.lexists(path):
            process.log.info(f"Skipping: {shown} already exists")
            continue
        if numbers is None:
            numbers = Majors({GPU: 0, UVM: 0}) if simulated(process) else majors(process.kernel)
        _create(process, device, shown, path, numbers, make)


def _create(process: Process, device: Control, shown: str, path: Path, numbers: Majors, make: Make) -> None:
    major = numbers.get(device.major)
    if major is None:
        raise NodeError(
            f"failed to create device node {device.name}: {PROC_DEVICES} has no major number {device.major}: is the "
            f"kernel module {device.major} loaded?"
        )
    try:
        make(path, major, device.minor)
    except FileExistsError:  # somebody else, such as nvidia-modprobe, has made it meanwhile
        process.log.info(f"Skipping: {shown} already exists")
    except OSError as error:
        raise NodeError(f"failed to create device node {shown}: {error.strerror or error}") from None
    else:
        process.log.info(f"Created {shown} ({major}:{device.minor})")
