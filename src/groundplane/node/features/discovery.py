"""Which GPUs this machine has, and who is asked: NVML, CUDA on Tegra, or the PCI bus for GPUs bound to vfio-pci.

A discovery loads what it needs, reads everything and gives it back, so that the driver can be unloaded between two of
them, and one that comes later is found by the next (contracts/device-plugin-gfd.md 2.1, 8.2, 12 number 6).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from .. import platforms
from ..devices.model import Inventory
from ..devices.source import DeviceError
from ..process import Process
from . import pci, tegra, vfio

AUTO: Final = "auto"
NVML: Final = "nvml"
TEGRA: Final = "tegra"
VFIO: Final = "vfio"


class InitError(RuntimeError):
    """GPUs cannot be asked about (now): nobody to ask, or no driver. ``failOnInitError`` says what comes of it.

    ``hint`` says more than the text, which is the contract's.
    """

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class Machine(NamedTuple):
    """What is asked: the process' view of the machine, and the roots that libraries and databases are looked for in."""

    process: Process
    roots: tuple[str, ...]


def discover(process: Process, strategy: str, driver_root: str) -> Inventory:
    """The machine's GPUs. Takes milliseconds to seconds, and blocks.

    ``driver_root`` is where the driver's files are in the container, besides their usual places; NVML is the loader's
    to find. Raises :class:`InitError` where there is nobody to ask, and
    :class:`~..devices.source.DeviceError` where asking fails.
    """
    machine = Machine(process, tuple(dict.fromkeys(("/", driver_root or "/"))))
    chosen = resolve(machine) if strategy == AUTO else strategy
    read = _READERS.get(chosen)
    if read is None:
        raise InitError(f"unsupported strategy {strategy}", _HINTS.get(strategy, _UNKNOWN))
    found = read(machine)
    return _by_cuda(machine) if strategy == AUTO and platforms.has_tegra_gpu(found) else found


def resolve(machine: Machine) -> str:
    """Whom ``auto`` asks, from the machine's files; ``auto`` itself where nobody is there to ask."""
    has_nvml = machine.process.devices().has_library()
    if platforms.is_wsl(machine.process):
        return NVML
    if not has_nvml and platforms.is_tegra(machine.process):
        return TEGRA
    return NVML if has_nvml else AUTO


def _by_nvml(machine: Machine) -> Inventory:
    source = machine.process.devices()
    try:
        source.open()
    except DeviceError as error:
        raise InitError(f"failed to initialize NVML: {error}") from error
    try:
        return source.inventory()
    finally:
        source.close()


def _by_cuda(machine: Machine) -> Inventory:
    try:
        return tegra.inventory(tegra.find_library(machine.process.path, machine.roots))
    except DeviceError as error:
        raise InitError(f"failed to initialize CUDA: {error}") from error


def _by_pci(machine: Machine) -> Inventory:
    try:
        return vfio.inventory(machine.process.kernel, machine.process.path, machine.roots)
    except pci.PciError as error:
        raise InitError(f"failed to read the PCI bus: {error}") from error


_HINTS: Final = {
    AUTO: "nobody can be asked for GPUs: there is neither libnvidia-ml.so.1 nor a file of a Tegra system or of WSL. Is "
    "the driver installed, and does the container runtime give it to this container?"
}
_UNKNOWN: Final = f"the device discovery strategy is one of {AUTO}, {NVML}, {TEGRA}, {VFIO}"
_READERS: Final[Mapping[str, Callable[[Machine], Inventory]]] = {NVML: _by_nvml, TEGRA: _by_cuda, VFIO: _by_pci}
