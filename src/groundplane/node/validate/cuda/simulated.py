"""CUDA on a simulated machine: what it answers follows from the machine's state, and the sums are really computed.

A GPU that has fallen off the bus, one with an error that only a reset mends, a driver that is not loaded or another
version than its library: each fails the call that it would fail on hardware, with CUDA's code. Which GPUs the check
sees is a parameter: by default, those whose device nodes its container has.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from ...devices import nvmlerrors
from ...devices.model import MigDevice
from ...devices.simfile import Card, EventEntry, SimulatedMachine
from ...devices.simulated import SimulatedSource
from ...devices.source import DeviceError, DriverNotLoaded, LibraryNotFound
from ...process import Process
from ...resources import ResourceError, part, read_mig_minors
from . import check, results
from .model import CudaError, Device, LibraryMissing

_MIB: Final = 1 << 20
RECOVERED: Final = 154
"""The Xid by which the driver tells that a GPU's recovery action changed: here, that it has been reset and works."""
XIDS: Final[Mapping[int, int]] = {
    **dict.fromkeys((48, 64, 95, 140), results.ECC_UNCORRECTABLE),
    **dict.fromkeys((74, 155), results.NVLINK_UNCORRECTABLE),
    **dict.fromkeys((46, 62, 79, 109, 110, 119, 120, 136, 143, 156, 158), results.UNKNOWN),
}
"""Errors after which a GPU must be reset (contracts/mig-exporter-validator.md 8), and what CUDA then answers."""


class Target(msgspec.Struct, frozen=True):
    """A GPU that the check sees, or one of its MIG devices."""

    card: Card
    mig: MigDevice | None = None

    def device(self, ordinal: int) -> Device:
        """As CUDA shows it."""
        gpu = self.card.gpu
        if self.mig is None:
            return Device(ordinal, gpu.name, gpu.uuid, gpu.memory_bytes // _MIB, gpu.compute)
        name = f"{gpu.name} MIG {self.mig.profile}"
        return Device(ordinal, name, self.mig.uuid, self.mig.memory_mib, gpu.compute)


Choose = Callable[[SimulatedMachine], Iterable[Target]]


def targets(cards: Iterable[Card]) -> Iterable[Target]:
    """Whole GPUs, or the MIG devices of those that are divided."""
    for card in cards:
        if card.gpu.mig_enabled:
            yield from (Target(card, device) for device in card.gpu.mig_devices)
        else:
            yield Target(card)


def by_nodes(process: Process, exists: Callable[[str], bool] | None = None) -> Choose:
    """Choose the GPUs and MIG devices whose device nodes are there; ``exists`` says so of a path of the container."""
    there = exists or (lambda path: process.path(path).exists())

    def choose(machine: SimulatedMachine) -> Iterable[Target]:
        for target in targets(machine.cards.values()):
            if all(there(node) for node in _nodes(process, target)):
                yield target

    return choose


def among(identities: Collection[str]) -> Choose:
    """Choose GPUs and MIG devices by UUID; a GPU's brings its MIG devices."""

    def choose(machine: SimulatedMachine) -> Iterable[Target]:
        for target in targets(machine.cards.values()):
            if target.card.gpu.uuid in identities or (target.mig is not None and target.mig.uuid in identities):
                yield target

    return choose


def _nodes(process: Process, target: Target) -> Collection[str]:
    gpu = target.card.gpu
    if target.mig is None:
        return (gpu.device_node,)
    try:
        return part(gpu, target.mig, process.kernel, read_mig_minors(process.kernel)).paths
    except ResourceError:  # the machine shows no capabilities: the GPU's node alone decides
        return (gpu.device_node,)


class SimulatedCuda:
    """CUDA for the GPUs of a simulated machine."""

    def __init__(self, source: SimulatedSource, choose: Choose) -> None:
        self._source = source
        self._choose = choose
        self._targets: tuple[Target, ...] = ()
        self.driver = ""
        """The driver's version, once started."""

    @property
    def delay_s(self) -> float:
        """How long the slowest of the GPUs takes to answer, as where the driver hangs; 0 where none can be asked."""
        try:
            with self._source:
                chosen = self._choose(self._source.machine())
                return max((target.card.entry.telemetry.delay_s for target in chosen), default=0.0)
        except DeviceError:
            return 0.0

    def start(self) -> int:
        """Look for the driver and the GPUs."""
        try:
            self._source.open()
            machine = self._source.machine()
        except LibraryNotFound as error:
            raise LibraryMissing(f"libcuda.so.1 cannot be loaded: {error}") from error
        except DeviceError as error:
            raise CudaError("cuInit", _code(error), str(error)) from error
        self.driver = machine.inventory.driver_version
        self._targets = tuple(self._choose(machine))
        if not self._targets:
            raise CudaError("cuInit", results.NO_DEVICE)
        if any(
            fabric is not None and not fabric.completed for fabric in (each.card.gpu.fabric for each in self._targets)
        ):
            raise CudaError("cuInit", results.SYSTEM_NOT_READY)
        return machine.inventory.cuda_version

    def devices(self) -> list[Device]:
        """The GPUs that were chosen."""
        return [target.device(ordinal) for ordinal, target in enumerate(self._targets)]

    def add(self, device: Device, left: bytes, right: bytes) -> bytes:
        """Add two vectors, if the GPU is well."""
        try:
            machine = self._source.machine()
        except DeviceError as error:
            raise CudaError("cuDevicePrimaryCtxRetain", _code(error), str(error)) from error
        target = self._targets[device.ordinal]
        card = machine.cards.get(target.card.gpu.uuid)
        if card is None or card.entry.lost:
            raise CudaError("cuDevicePrimaryCtxRetain", results.UNKNOWN, f"GPU {target.card.gpu.bus_id} is lost")
        if (code := sickness(card, machine.description.events)) is not None:
            raise CudaError("cuCtxSynchronize", code)
        return check.add(left, right)


def sickness(card: Card, events: Iterable[EventEntry]) -> int | None:
    """What CUDA answers on a GPU after what happened to it; None if it is well."""
    code = None
    for event in events:
        if event.gpu != card.gpu.uuid:
            continue
        if event.kind == "doubleBitEcc":
            code = results.ECC_UNCORRECTABLE
        elif event.kind == "xid":
            code = None if event.xid == RECOVERED else XIDS.get(event.xid, code)
    return code


def _code(error: DeviceError) -> int:
    """CUDA's code for what NVML says of the driver."""
    if isinstance(error, DriverNotLoaded):
        return results.NO_DEVICE if error.code == nvmlerrors.DRIVER_NOT_LOADED else results.DRIVER_MISMATCH
    return results.UNKNOWN
