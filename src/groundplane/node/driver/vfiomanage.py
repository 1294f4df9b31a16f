"""`vfio-manage`: gives this machine's GPUs to virtual machines (bind), and takes them back (unbind).

The VFIO manager's container runs it (contracts/control-plane.md 4.3). A device gets the driver that the kernel's list
of aliases names for it, mostly ``vfio-pci``. All devices are tried; any that fails makes the program fail.
"""

import asyncio
import fnmatch
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from .. import vfio
from ..options import BOOL, STRING, Asked, Command, Leave, Option, OptionError, help_text, read
from ..process import Process
from ..vfio import Device, VfioError

NAME: Final = "vfio-manage"
DEFAULT_DRIVER: Final = "vfio-pci"
_ALIAS: Final = "vfio_pci:"


def _options(verb: str) -> tuple[Option, ...]:
    return (
        Option(name="all", type=BOOL, default=False, flags=("all", "a"), help=f"{verb} all GPUs"),
        Option(
            name="device", flags=("device-id", "d"), help=f"{verb} the device at this address, such as 0000:01:00.0"
        ),
        Option(
            name="switches",
            type=BOOL,
            default=False,
            flags=(f"{verb}-nvswitches",),
            env=("BIND_NVSWITCHES",),
            help=f"{verb} NVSwitches, too",
        ),
    )


_HOST_ROOT: Final = Option(
    name="host_root",
    type=STRING,
    default="/",
    flags=("host-root",),
    env=("HOST_ROOT",),
    help="where the host's root is mounted, below which modules are loaded",
)
COMMANDS: Final = {
    "bind": Command(
        name=f"{NAME} bind", about="Give devices to virtual machines.", options=(*_options("bind"), _HOST_ROOT)
    ),
    "unbind": Command(name=f"{NAME} unbind", about="Take devices back.", options=_options("unbind")),
}
_WHOLE: Final = Command(
    name=NAME,
    about="Give GPUs to virtual machines, or take them back.",
    options=(),
    words={name: command.about for name, command in COMMANDS.items()},
)


class Wanted(msgspec.Struct, frozen=True):
    """What is to be done: with one device, or (``device`` empty) with all GPUs."""

    verb: str
    device: str
    switches: bool
    host_root: str


def load(process: Process) -> Wanted:
    """Read the command line. Raises :class:`~..options.Leave`."""
    verb = next(iter(process.argv[1:]), "")
    if verb in ("--help", "-h"):
        raise Asked(help_text(_WHOLE, ()))
    if verb not in COMMANDS:
        raise OptionError(f"{NAME}: unknown command {verb!r}; expected {' or '.join(COMMANDS)}")
    values = read(COMMANDS[verb], process, process.argv[2:])
    if values["all"] == bool(values["device"]):
        raise OptionError(f"{NAME} {verb}: give either --all or --device-id")
    return Wanted(verb, values["device"], values["switches"], values.found.get("host_root", "/"))


async def run(process: Process) -> int:
    """`vfio-manage bind` and `vfio-manage unbind`."""
    try:
        wanted = load(process)
        found = list(_devices(process, wanted))
        process.log.info(f"{wanted.verb}: {len(found)} devices")
        failed = [address for each in found if (address := await _failed(process, wanted, each))]
        return 1 if failed else 0
    except Leave as leave:
        return leave.tell(process)
    except VfioError as error:
        process.log.error(str(error))
        return 1


def _devices(process: Process, wanted: Wanted) -> Iterator[Device]:
    if not wanted.device:
        yield from (each for each in vfio.devices(process.kernel) if each.gpu or (each.switch and wanted.switches))
        return
    found = vfio.device(process.kernel, wanted.device)
    if found is None or not (found.gpu or found.switch):
        process.log.info(f"{wanted.device} is no GPU and no NVSwitch of NVIDIA's: nothing to do")
    elif found.switch and not wanted.switches:
        process.log.info(f"{wanted.device} is an NVSwitch: BIND_NVSWITCHES=true includes it")
    else:
        yield found


async def _failed(process: Process, wanted: Wanted, device: Device) -> str:
    """Do what is wanted with a device; its address if that failed."""
    try:
        if wanted.verb == "bind":
            driver = await vfio.driver_name(process, best(process, device), wanted.host_root)
            moved = await _in_kernel(lambda: vfio.bind(process, device, driver))
            process.log.info(f"{device.address}: {'bound to' if moved else 'has'} {driver}")
        else:
            freed = await _in_kernel(lambda: vfio.unbind(process, device))
            process.log.info(f"{device.address}: {f'taken from {device.driver}' if freed else 'no VM driver has it'}")
    except (OSError, VfioError) as error:
        process.log.error(f"{device.address}: cannot {wanted.verb} it: {error}")
        return device.address
    return ""


async def _in_kernel(order: Callable[[], bool]) -> bool:
    """An order to the kernel, which waits as long as somebody uses the device."""
    return await asyncio.to_thread(order)


def best(process: Process, device: Device) -> str:
    """The module for a device: that of the alias which matches it with the fewest wildcards."""
    try:
        alias = process.kernel.read_text(f"{device.path}/modalias").strip().removeprefix("pci:")
        release = process.kernel.read_text("/proc/sys/kernel/osrelease").strip()
        known = process.path(f"/lib/modules/{release}/modules.alias").read_text(encoding="utf-8")
    except OSError as error:
        process.log.info(f"{device.address}: the kernel's aliases cannot be read, so it gets {DEFAULT_DRIVER}: {error}")
        return DEFAULT_DRIVER
    matching = [
        (pattern.count("*"), module) for pattern, module in aliases(known) if fnmatch.fnmatchcase(alias, pattern)
    ]
    return min(matching, key=lambda found: found[0], default=(0, DEFAULT_DRIVER))[1]


def aliases(text: str) -> Iterator[tuple[str, str]]:
    """The aliases of drivers for virtual machines in ``modules.alias``: pattern and module."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "alias" and words[1].startswith(_ALIAS):
            yield words[1].removeprefix(_ALIAS), words[2]
