"""Simulated GPUs: a source that reads them from a file, and the hand that changes the file while programs run.

:class:`SimulatedSource` answers as NVML would for the machine that ``simfile`` describes; it reads the file again only
when that has changed, and all sources of one file in a process share the reading. :class:`Machine` changes the file
from any process: in one step, and one after the other. What the file says is documented in
docs/reference/simulated-devices.md.
"""

import contextlib
import fcntl
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from weakref import WeakValueDictionary

import msgspec

from ...api import xids
from .. import watch as files
from ..hostroot import write_atomic
from . import kernelmessages, nvmlerrors, placements, simfile
from .model import NO_INSTANCE, Inventory, Placed
from .simfile import Description, EventEntry, EventName, FileError, GpuEntry, Instance, Mig, SimulatedMachine, describe
from .simtelemetry import SimulatedTelemetry, TelemetryEntry
from .simulatedmig import SimulatedMig
from .source import DeviceError, Event, EventKind, Pair

__all__ = [
    "Description",
    "FileError",
    "GpuEntry",
    "Instance",
    "Machine",
    "Mig",
    "SimulatedSource",
    "TelemetryEntry",
    "describe",
]

EVENTS_KEPT: Final = 256
"""Events that stay in the file; a watch that is behind by more misses some, as a full queue of the driver's does."""
FALLEN_OFF: Final = 79
"""The Xid of a GPU that has fallen off the bus."""

_KINDS: Final[dict[EventName, EventKind]] = {
    "xid": EventKind.XID,
    "singleBitEcc": EventKind.SINGLE_BIT_ECC,
    "doubleBitEcc": EventKind.DOUBLE_BIT_ECC,
    "unreadable": EventKind.XID,
}


class _File:
    """The machine of a file, read again when the file has changed."""

    shared: WeakValueDictionary[Path, "_File"] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._outcome: SimulatedMachine | FileError | None = None

    @classmethod
    def of(cls, path: Path) -> "_File":
        """The one reader of a path."""
        return cls.shared.setdefault(path, cls(path))

    def read(self) -> SimulatedMachine:
        """The machine as it is now. Raises :class:`FileError`."""
        stamp = self.stamp()
        if self._outcome is None or stamp is None or stamp != self._stamp:
            try:
                self._outcome = simfile.read(self.path)
            except FileError as error:
                self._outcome = error
            self._stamp = stamp
        if isinstance(self._outcome, FileError):
            raise FileError(str(self._outcome))
        return self._outcome

    def change(self, how: Callable[[SimulatedMachine], Description]) -> None:
        """Replace the description by what is made of the present one, which need not be read again for it."""
        machine = Machine(self.path)
        with machine._locked():
            self._outcome = machine._write(how(self.read()))
            self._stamp = self.stamp()

    def stamp(self) -> tuple[int, int, int] | None:
        """Differs whenever the file has changed; None if there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


class SimulatedSource:
    """The GPUs that a file describes, as a :class:`~.source.Source`.

    ``library`` and ``loaded`` say whether the driver's library is there and its kernel module is loaded.
    """

    def __init__(self, file: Path, *, library: Callable[[], bool], loaded: Callable[[], bool]) -> None:
        self._file = _File.of(file)
        self._library = library
        self._loaded = loaded
        self._opened = False

    def open(self) -> None:
        """Find the library and the kernel module, and read the file."""
        if self._opened:
            return
        if not self._library():
            raise nvmlerrors.error(nvmlerrors.LIBRARY_NOT_FOUND, "loading libnvidia-ml.so.1")
        if not self._loaded():
            raise nvmlerrors.error(nvmlerrors.DRIVER_NOT_LOADED, "initialising NVML")
        self._opened = True
        try:
            self._machine("initialising NVML")
        except DeviceError:
            self._opened = False
            raise

    def close(self) -> None:
        """Give the library back."""
        self._opened = False

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def has_library(self) -> bool:
        """Whether the driver's library is found."""
        return self._library()

    def inventory(self) -> Inventory:
        """All GPUs; raises :class:`~.source.Lost` if one has fallen off the bus."""
        machine = self._machine("counting the GPUs")
        for card in machine.cards.values():
            if card.entry.lost:
                raise _lost(card)
        return machine.inventory

    def topology(self, uuids: Collection[str]) -> dict[frozenset[str], Pair]:
        """How each two of the GPUs are connected."""
        machine = self._machine("asking for the topology")
        cards = [_answering(machine, uuid) for uuid in uuids]
        return {
            frozenset((one.gpu.uuid, other.gpu.uuid)): Pair(
                machine.description.topology.level(one.place, other.place),
                machine.links.get(frozenset((one.place, other.place)), 0),
            )
            for one, other in combinations(cards, 2)
        }

    def placement(self, mig_uuid: str) -> Placed:
        """Where a MIG device is; also of a legacy name (contracts/device-plugin-gfd.md 5)."""
        machine = self._machine("looking for a MIG device")
        for card, device in machine.placed():
            if device.uuid == mig_uuid:
                if card.entry.lost:
                    raise _lost(card)
                return Placed(card.gpu.uuid, device.gi, device.ci)
        return placements.legacy(mig_uuid, nvmlerrors.error(nvmlerrors.NOT_FOUND, f"MIG device {mig_uuid}"))

    def check(self, uuid: str) -> None:
        """Whether a GPU is there and not lost."""
        _answering(self._machine("looking for a GPU"), uuid)

    def watch(self, uuids: Collection[str], kinds: EventKind) -> "SimulatedWatch":
        """Watch GPUs for events that are injected from now on."""
        return SimulatedWatch(self._file, self._machine("watching GPUs"), uuids, kinds)

    def telemetry(self) -> SimulatedTelemetry:
        """Who reads the figures of the GPUs."""
        self._machine("reading figures")
        return SimulatedTelemetry(self._machine)

    def mig(self) -> SimulatedMig:
        """Changes MIG of these GPUs."""
        return SimulatedMig(self)

    def machine(self) -> SimulatedMachine:
        """The machine as it is now. Raises :class:`~.source.DeviceError`."""
        return self._machine("reading MIG")

    def card(self, gpu: str) -> simfile.Card:
        """A GPU by UUID, if it answers. Raises :class:`~.source.DeviceError`."""
        return _answering(self.machine(), gpu)

    def change(self, how: Callable[[SimulatedMachine], Description]) -> None:
        """Change the machine's file in one step. Raises :class:`~.source.DeviceError`."""
        self._machine("changing MIG")
        try:
            self._file.change(how)
        except OSError as error:
            raise FileError(f"file of simulated GPUs {self._file.path} cannot be written: {error}") from error

    def _machine(self, doing: str) -> SimulatedMachine:
        if not self._opened:
            raise nvmlerrors.error(nvmlerrors.UNINITIALIZED, doing)
        machine = self._file.read()
        if machine.description.library_error is not None:
            raise nvmlerrors.error(nvmlerrors.CODES[machine.description.library_error], doing)
        return machine


def _lost(card: simfile.Card) -> DeviceError:
    return nvmlerrors.error(nvmlerrors.GPU_IS_LOST, f"GPU {card.gpu.index} ({card.gpu.bus_id})")


def _answering(machine: SimulatedMachine, uuid: str) -> simfile.Card:
    card = machine.cards.get(uuid)
    if card is None:
        raise nvmlerrors.error(nvmlerrors.NOT_FOUND, f"GPU {uuid}")
    if card.entry.lost:
        raise _lost(card)
    return card


class SimulatedWatch:
    """Events of some GPUs, as a :class:`~.source.Watch`."""

    def __init__(self, file: _File, machine: SimulatedMachine, uuids: Collection[str], kinds: EventKind) -> None:
        self._file = file
        self._kinds = kinds
        self._seen = machine.description.last_event
        self._pending: deque[Event | DeviceError] = deque()
        self._changes: files.Changes | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._closed = False
        self.unsupported: frozenset[str] = frozenset(
            uuid for uuid in uuids if uuid in machine.cards and not machine.cards[uuid].entry.events
        )
        failed: dict[str, DeviceError] = {}
        for uuid in uuids:
            try:
                _answering(machine, uuid)
            except DeviceError as error:
                failed[uuid] = error
        self.failed: Mapping[str, DeviceError] = failed
        self._watched = frozenset(uuids) - self.unsupported - failed.keys()

    async def next(self) -> Event:
        """Wait for the next event."""
        if self._changes is None and not self._closed:
            self._changes = files.Changes((self._file.path,), polling=False)
        while not self._pending:
            changes = self._changes
            if changes is None:
                raise nvmlerrors.error(nvmlerrors.UNINITIALIZED, "waiting for events")
            self._collect()
            if not self._pending:
                await changes.next()
                changes.drain()
        found = self._pending.popleft()
        if isinstance(found, DeviceError):
            raise found
        return found

    async def close(self) -> None:
        """End the watch."""
        self._closed = True
        self._watched = frozenset()
        if self._changes is not None:
            self._changes.overflow()  # wakes who waits
            self._changes.close()
            self._changes = None

    def _collect(self) -> None:
        """Take over the events that the file holds since the last look; an unusable file is told once."""
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            description = self._file.read().description
        except FileError as error:
            self._pending.append(error)
            return
        self._pending.extend(
            found
            for entry in description.events
            if entry.number > self._seen and (found := self._heard(entry)) is not None
        )
        self._seen = max(self._seen, description.last_event)

    def _heard(self, entry: EventEntry) -> Event | DeviceError | None:
        """What a watch makes of an entry; None if it does not concern it."""
        if not self._watched:
            return None
        if entry.kind == "waitError":
            return nvmlerrors.error(nvmlerrors.CODES[entry.error], "waiting for events")
        kind = _KINDS[entry.kind]
        uuid = "" if entry.kind == "unreadable" else entry.gpu
        if not kind & self._kinds or (uuid and uuid not in self._watched):
            return None
        return Event(kind, uuid, entry.xid, _instance(entry.gi), _instance(entry.ci))


def _instance(number: int | None) -> int:
    return NO_INSTANCE if number is None else number


class Machine:
    """Changes a simulated machine, from any process; each change is one step, and seen within milliseconds.

    GPUs are named by UUID, or by their place in the file's list. Each method raises :class:`FileError` if the file is
    missing or wrong, or would become wrong; then it stays as it was.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._kernel_log = file.parents[3] / kernelmessages.PATH.lstrip("/") if len(file.parents) > 3 else None

    @classmethod
    def create(cls, file: Path, description: Description) -> Self:
        """Write the file of a new machine, in place of any other; the folder must exist."""
        made = cls(file)
        with made._locked():
            made._write(description)
        return made

    def read(self) -> SimulatedMachine:
        """The machine as it is now."""
        return simfile.read(self.file)

    def change(self, how: Callable[[SimulatedMachine], Description]) -> SimulatedMachine:
        """Replace the description by what is made of the present one."""
        with self._locked():
            return self._write(how(self.read()))

    def inject(self, *events: Event) -> None:
        """Let events happen to GPUs; those without a UUID are events whose GPU cannot be told."""
        names = {kind: name for name, kind in _KINDS.items() if name != "unreadable"}
        self._append(
            EventEntry(
                0,
                names[event.kind] if event.uuid else "unreadable",
                event.uuid,
                event.xid,
                _told(event.gi),
                _told(event.ci),
            )
            for event in events
        )

    def xid(self, gpu: int | str, number: int, *, gi: int | None = None, ci: int | None = None) -> None:
        """Let a critical Xid error happen to a GPU, or to one of its instances."""
        self._happen(gpu, EventEntry(0, "xid", xid=number, gi=gi, ci=ci))
        self._log_xid(gpu, number)

    def ecc(self, gpu: int | str, *, double_bit: bool = True) -> None:
        """Let an ECC error happen to a GPU."""
        self._happen(gpu, EventEntry(0, "doubleBitEcc" if double_bit else "singleBitEcc"))

    def unreadable(self, xid: int = 0) -> None:
        """Let an event happen whose GPU cannot be told."""
        self._append([EventEntry(0, "unreadable", xid=xid)])

    def wait_error(self, error: str = "ERROR_UNKNOWN") -> None:
        """Let the next wait of each watch fail once, with NVML's name of the error."""
        self._append([EventEntry(0, "waitError", error=error)])

    def lose(self, gpu: int | str, *, xid: int | None = FALLEN_OFF) -> None:
        """Let a GPU fall off the bus, and tell it by an Xid error if one is given."""

        def lost(machine: SimulatedMachine) -> Description:
            place = _place(self.file, machine, gpu)
            description = _with_gpu(machine.description, place, lost=True)
            if xid is None:
                return description
            return _with_events(description, [EventEntry(0, "xid", _uuid_at(machine, place), xid)])

        self.change(lost)
        if xid is not None:
            self._log_xid(gpu, xid)

    def restore(self, gpu: int | str) -> None:
        """Let a lost or removed GPU come back."""
        self._set(gpu, lost=False, present=True)

    def remove(self, gpu: int | str) -> None:
        """Take a GPU out: it is no longer on the bus, and those after it move up."""
        self._set(gpu, present=False)

    def set_mig(self, gpu: int | str, enabled: bool, instances: Sequence[str | Instance] = ()) -> None:
        """Set a GPU's MIG mode and its instances."""
        self._set(gpu, mig=Mig(enabled, tuple(instances)))

    def set_busy(self, gpu: int | str, busy: bool = True) -> None:
        """Let a client of the driver use a GPU, or no longer."""
        self._set(gpu, busy=busy)

    def set_defect(self, gpu: int | str, defect: str) -> None:
        """Let something be wrong with a board though it answers: `inforom`, `power`, `interrupts`; or `none`."""
        self._set(gpu, defect=defect)

    def set_fabric(self, gpu: int | str, state: str | None) -> None:
        """Let a GPU join the NVLink fabric (`completed`), or not (`inProgress`, `notStarted`); None: it has none."""
        self._set(gpu, fabric=None if state is None else simfile.FabricEntry(state=state))  # type: ignore[arg-type]

    def set_events(self, gpu: int | str, supported: bool) -> None:
        """Say whether a GPU tells events; a watch that is there already keeps what it was told."""
        self._set(gpu, events=supported)

    def set_telemetry(self, gpu: int | str, **changes: object) -> None:
        """Change what a GPU shows of itself: fields of :class:`~.simtelemetry.TelemetryEntry`."""

        def shown(machine: SimulatedMachine) -> Description:
            place = _place(self.file, machine, gpu)
            entry = msgspec.structs.replace(machine.description.gpus[place].telemetry, **changes)
            return _with_gpu(machine.description, place, telemetry=entry)

        self.change(shown)

    def set_driver(self, version: str, cuda_version: str | None = None) -> None:
        """Set the driver's version, and that of CUDA if it is not the branch's own."""
        self.change(
            lambda machine: msgspec.structs.replace(
                machine.description, driver_version=version, cuda_version=cuda_version
            )
        )

    def fail_library(self, error: str | None) -> None:
        """Let the library answer everything with an error (NVML's name of it), or no longer."""
        self.change(lambda machine: msgspec.structs.replace(machine.description, library_error=error))

    def _set(self, gpu: int | str, **values: object) -> None:
        self.change(lambda machine: _with_gpu(machine.description, _place(self.file, machine, gpu), **values))

    def _append(self, entries: "Iterator[EventEntry] | Sequence[EventEntry]") -> None:
        found = list(entries)
        self.change(lambda machine: _with_events(machine.description, found))

    def _happen(self, gpu: int | str, entry: EventEntry) -> None:
        """Add an event of a GPU; one that is named by UUID need not be there."""

        def happened(machine: SimulatedMachine) -> Description:
            identity = gpu if isinstance(gpu, str) else _uuid_at(machine, _place(self.file, machine, gpu))
            return _with_events(machine.description, [msgspec.structs.replace(entry, gpu=identity)])

        self.change(happened)

    def _log_xid(self, gpu: int | str, number: int) -> None:
        """The driver tells the error in the kernel's log too, if the machine has one."""
        if self._kernel_log is None:
            return
        cards = self.read().cards
        uuid = gpu if isinstance(gpu, str) else _uuid_at(self.read(), gpu)
        if uuid in cards:
            line = kernelmessages.xid(cards[uuid].gpu.bus_id, number, xids.text(number))
            kernelmessages.append(self._kernel_log, line, level=3)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.file.with_name(f".{self.file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _write(self, description: Description) -> SimulatedMachine:
        machine = simfile.machine(description, str(self.file))
        write_atomic(self.file, simfile.dump(description))
        return machine


def _told(instance: int) -> int | None:
    return None if instance == NO_INSTANCE else instance


def _uuid_at(machine: SimulatedMachine, place: int) -> str:
    return machine.description.gpus[place].uuid or simfile.gpu_uuid("simulated", place)


def _place(file: Path, machine: SimulatedMachine, gpu: int | str) -> int:
    count = len(machine.description.gpus)
    for place in range(count):
        if gpu in (place, _uuid_at(machine, place)):
            return place
    raise FileError(f"{file}: there is no GPU {gpu!r}; it has {count}, named by UUID or counted from 0")


def _with_gpu(description: Description, place: int, **values: object) -> Description:
    gpus = list(description.gpus)
    gpus[place] = msgspec.structs.replace(gpus[place], **values)
    return msgspec.structs.replace(description, gpus=tuple(gpus))


def _with_events(description: Description, entries: Sequence[EventEntry]) -> Description:
    first = description.last_event + 1
    numbered = [msgspec.structs.replace(entry, number=first + at) for at, entry in enumerate(entries)]
    return msgspec.structs.replace(
        description,
        events=(*description.events, *numbered)[-EVENTS_KEPT:],
        last_event=description.last_event + len(numbered),
    )
