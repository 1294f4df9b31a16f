"""The file of a simulated machine's GPUs: reading, checking, printing (docs/reference/simulated-devices.md).

A :class:`Description` is the file as it is written; :func:`machine` makes the GPUs of it, in NVML's terms. The file is
strict: a key that is not known, a wrong type or a layout that no hardware allows is an error that names file and place.
"""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import yaml

from . import geometry, models, nvmlerrors, profiles, simtelemetry
from .model import Fabric, Gpu, Inventory, MigDevice, Profile
from .simtelemetry import TelemetryEntry
from .source import DeviceError, Level

_GPU_SPACE: Final = uuid.UUID("6a0d1f62-5c0e-4cf1-9d3c-6d70716c616e")
_MIG_SPACE: Final = uuid.UUID("0c1c3ab4-91c4-4f35-a2ad-0f5bb5fd1d4e")
NO_CLUSTER: Final = str(uuid.UUID(int=0))


class FileError(DeviceError):
    """The file of a simulated machine cannot be used: file, place, what was found, what is expected and the remedy."""


# --- the file as it is written ----------------------------------------------------------------------------------------


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    pass


class Instance(_Part, frozen=True):
    """A GPU instance: its full profile, maybe the memory slice where it starts, and its compute instances by profile.

    Without `compute`, one compute instance fills it; an empty list leaves it bare, and null in it an id unused.
    """

    profile: str
    start: int | None = None
    compute: tuple[str | None, ...] | None = None


class Mig(_Part, frozen=True):
    """MIG mode, and the GPU instances: texts such as `1g.10gb` or `1c.3g.40gb`, or with more detail.

    `pending` is the mode that a reset will bring, where that is another.
    """

    enabled: bool = False
    instances: tuple[str | Instance, ...] = ()
    pending: bool | None = None

    @property
    def after_reset(self) -> bool:
        """The mode that the GPU has after its next reset."""
        return self.enabled if self.pending is None else self.pending


class FabricEntry(_Part, frozen=True):
    """Membership in an NVLink fabric; `status` is SUCCESS or NVML's name of an error."""

    cluster_uuid: str = msgspec.field(default=NO_CLUSTER, name="clusterUUID")
    clique: int = 0
    state: Literal["notStarted", "inProgress", "completed"] = "completed"
    status: str = "SUCCESS"


class GpuEntry(_Part, frozen=True):
    """One GPU. What is None is the model's, or follows from the place in the list.

    `lost`: it has fallen off the bus. `present: false`: it is not on the bus at all, and has no index.
    `events: false`: it tells no events. `busy`: a client of the driver uses it. `reset_less`: its MIG mode changes
    without a reset, as from Hopper on. `subsystem_id` is the board's, such as `0x14A910DE`. `defect` is what is wrong
    with the board though it answers: its InfoROM is corrupt, it lacks external power, its interrupts do not arrive.
    """

    model: str
    uuid: str | None = None
    bus_id: str | None = None
    minor: int | None = None
    name: str | None = None
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    compute: str | None = None
    mig_capable: bool | None = None
    mig: Mig = Mig()
    fabric: FabricEntry | None = None
    lost: bool = False
    present: bool = True
    events: bool = True
    telemetry: TelemetryEntry = TelemetryEntry()
    busy: bool = False
    reset_less: bool | None = None
    subsystem_id: str | None = None
    defect: Literal["none", "inforom", "power", "interrupts"] = "none"


class Links(_Part, frozen=True):
    """Active NVLinks that lead from one GPU to another, by their places in the list."""

    between: tuple[int, int]
    count: int


Groups: TypeAlias = tuple[tuple[int, ...], ...]


class Topology(_Part, frozen=True):
    """Groups of GPUs, by their places in the list, that have something in common; two in no group are across CPUs."""

    same_board: Groups = ()
    single_switch: Groups = ()
    multiple_switches: Groups = ()
    host_bridge: Groups = ()
    same_node: Groups = ()

    def level(self, one: int, other: int) -> Level:
        """The nearest thing that two GPUs have in common."""
        for level, groups in (
            (Level.SAME_BOARD, self.same_board),
            (Level.SINGLE_SWITCH, self.single_switch),
            (Level.MULTIPLE_SWITCHES, self.multiple_switches),
            (Level.HOST_BRIDGE, self.host_bridge),
            (Level.SAME_NODE, self.same_node),
        ):
            if any(one in group and other in group for group in groups):
                return level
        return Level.CROSS_CPU


EventName: TypeAlias = Literal["xid", "singleBitEcc", "doubleBitEcc", "unreadable", "waitError"]


class EventEntry(_Part, frozen=True, omit_defaults=True):
    """Something that happened; `number` grows. `unreadable` is an event whose GPU cannot be told, `waitError` a failed
    wait with `error` as NVML's name of it. `gpu` is a UUID."""

    number: int
    kind: EventName
    gpu: str = ""
    xid: int = 0
    gi: int | None = None
    ci: int | None = None
    error: str = ""


class Description(_Part, frozen=True):
    """A simulated machine. `last_event` is the number of the newest event ever, also if it is no longer listed.

    `reset_together` are groups of GPUs, by their places in the list, that the driver resets only all at once.
    """

    driver_version: str
    cuda_version: str | None = None
    gpus: tuple[GpuEntry, ...] = ()
    nvlinks: tuple[Links, ...] = ()
    topology: Topology = Topology()
    library_error: str | None = None
    reset_together: Groups = ()
    last_event: int = 0
    events: tuple[EventEntry, ...] = ()


# --- what it describes ------------------------------------------------------------------------------------------------


class Card(msgspec.Struct, frozen=True):
    """A GPU of the machine as it is described, and as NVML shows it. `place` is its position in the file's list."""

    place: int
    entry: GpuEntry
    model: models.Model
    gpu: Gpu

    @property
    def reset_less(self) -> bool:
        """Whether its MIG mode changes without a reset."""
        return self.gpu.compute >= (9, 0) if self.entry.reset_less is None else self.entry.reset_less


class SimulatedMachine(msgspec.Struct, frozen=True):
    """What a description comes to. `cards` are the GPUs on the bus, by UUID, in the order of their indices."""

    description: Description
    cards: dict[str, Card]
    inventory: Inventory
    links: dict[frozenset[int], int]

    def placed(self) -> Iterator[tuple[Card, MigDevice]]:
        """All MIG devices with their GPUs."""
        for card in self.cards.values():
            for device in card.gpu.mig_devices:
                yield card, device


def gpu_uuid(host: str, index: int) -> str:
    """The UUID of a host's GPU: always the same for the same host name and index."""
    return f"GPU-{uuid.uuid5(_GPU_SPACE, f'{host}/{index}')}"


def bus_id(index: int) -> str:
    """The PCI address of a simulated GPU, as sysfs has it."""
    bus = 0x10 + index * 8
    return f"{bus >> 8:04x}:{bus & 0xFF:02x}:00.0"


def describe(host: str, gpus: Sequence[GpuEntry | str], driver_version: str, **more: Any) -> Description:
    """Describe a host's GPUs, from models or entries; UUIDs and PCI addresses are filled in, stable for its name.

    The first half of the GPUs is near one CPU, the second near another, unless `more` (other fields of
    :class:`Description`) says otherwise.
    """
    entries = [GpuEntry(each) if isinstance(each, str) else each for each in gpus]
    filled = tuple(
        msgspec.structs.replace(entry, uuid=entry.uuid or gpu_uuid(host, index), bus_id=entry.bus_id or bus_id(index))
        for index, entry in enumerate(entries)
    )
    nodes = [tuple(at for at in range(len(filled)) if at * 2 // len(filled) == node) for node in (0, 1)]
    near = Topology(same_node=tuple(group for group in nodes if len(group) > 1))
    return Description(driver_version, gpus=filled, **{"topology": near, **more})


def read(path: Path) -> SimulatedMachine:
    """Read a file. Raises :class:`FileError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"file of simulated GPUs {path} cannot be read: {error}; {_FORM}") from error
    return machine(parse(text, str(path)), str(path))


_FORM = "docs/reference/simulated-devices.md shows each field"


def parse(text: str, source: str) -> Description:
    """Read a description; `source` names it in errors. Raises :class:`FileError`."""
    try:
        document = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise FileError(f"{source} is not valid YAML: {error}; {_FORM}") from error
    if not isinstance(document, dict):
        raise FileError(f"{source}: expected a mapping, found {type(document).__name__}; {_FORM}")
    try:
        return msgspec.convert(document, Description)
    except msgspec.ValidationError as error:
        raise FileError(f"{source}: {_located(str(error))}; {_FORM}") from error


def dump(description: Description) -> str:
    """Print a description; :func:`parse` reads the same from it."""
    document = msgspec.to_builtins(description)
    return str(yaml.dump(document, Dumper=_DUMPER, sort_keys=False, default_flow_style=None, width=120))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _located(text: str) -> str:
    """Put msgspec's path (`at `$.gpus[0].mig``) in front, as the other errors have it."""
    found = re.search(r" - at `\$\.?([^`]*)`$", text)
    return f"{found[1] or 'the file'}: {text[: found.start()]}" if found else text


def machine(description: Description, source: str) -> SimulatedMachine:
    """Make the GPUs of a description; `source` names it in errors. Raises :class:`FileError` with all problems."""
    problems = list(_problems(description))
    cards: list[Card] = []
    for place, entry in enumerate(description.gpus):
        try:
            cards.append(_card(place, entry, sum(card.entry.present for card in cards)))
        except ValueError as error:
            problems.append(f"gpus[{place}].{error}")
        problems += (f"gpus[{place}].{problem}" for problem in simtelemetry.problems(entry.telemetry))
    problems += _repeated(cards)
    if problems:
        raise FileError("\n".join(f"{source}: {problem}" for problem in problems))
    present = {card.gpu.uuid: card for card in cards if card.entry.present}
    shown = tuple(card.gpu for card in present.values() if card.gpu.name not in models.DISPLAY_ONLY)
    cuda = description.cuda_version or models.cuda_version(description.driver_version)
    major, minor = cuda.split(".")
    inventory = Inventory(description.driver_version, int(major) * 1000 + int(minor) * 10, shown)
    links = {frozenset(each.between): each.count for each in description.nvlinks}
    return SimulatedMachine(description, present, inventory, links)


def _card(place: int, entry: GpuEntry, index: int) -> Card:
    """Make a GPU of its entry. ValueError names field, what was found and what is expected."""
    model = models.find(entry.model)
    if model is None:
        known = ", ".join(sorted({*models.MODELS, *models.ALIASES}))
        raise ValueError(f"model: {entry.model!r} is not known; known are {known}")
    model = msgspec.structs.replace(
        model,
        product=model.product if entry.name is None else entry.name,
        memory_mib=model.memory_mib if entry.memory_mib is None else entry.memory_mib,
        mig=model.mig if entry.mig_capable is None else entry.mig_capable,
    )
    identity = gpu_uuid("simulated", place) if entry.uuid is None else entry.uuid
    gpu = Gpu(
        index=index,
        uuid=_matching("uuid", identity, _GPU_UUID, "a text such as 'GPU-6a0d1f62-5c0e-4cf1-9d3c-6d70716c616e'"),
        minor=_at_least("minor", place if entry.minor is None else entry.minor, 0),
        name=model.product,
        bus_id=_nvml_bus_id(bus_id(place) if entry.bus_id is None else entry.bus_id),
        memory_bytes=_at_least("memoryMiB", model.memory_mib, 0) * profiles.MIB,
        compute=model.compute if entry.compute is None else _compute(entry.compute),
        mig=entry.mig.enabled if model.mig else None,
        mig_devices=tuple(_mig_devices(model, identity, entry.mig)),
        profiles=tuple(model.kinds),
        fabric=None if entry.fabric is None else _fabric(entry.fabric),
    )
    if entry.subsystem_id is not None:
        _matching(
            "subsystemId", entry.subsystem_id, _SUBSYSTEM, "eight hexadecimal digits such as '0x14A910DE', in quotes"
        )
    return Card(place, entry, model, gpu)


_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_GPU_UUID = re.compile(f"GPU-{_UUID}")
_BUS_ID = re.compile(r"(?:([0-9a-fA-F]{4}|[0-9a-fA-F]{8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


def _matching(field: str, value: str, pattern: re.Pattern[str], expected: str) -> str:
    if not pattern.fullmatch(value):
        raise ValueError(f"{field}: {value!r}; expected {expected}")
    return value


def _at_least(field: str, value: int, least: int) -> int:
    if value < least:
        raise ValueError(f"{field}: {value}; expected {least} or more")
    return value


def _nvml_bus_id(text: str) -> str:
    _matching("busId", text, _BUS_ID, "an address such as '0000:10:00.0', in quotes")
    domain, rest = text.split(":", 1) if text.count(":") == 2 else ("0", text)
    return f"{int(domain, 16):08X}:{rest.upper()}"


def _compute(text: str) -> tuple[int, int]:
    major, minor = _matching("compute", text, _TWO_NUMBERS, "a capability such as '9.0', in quotes").split(".")
    return int(major), int(minor)


_SUBSYSTEM = re.compile(r"0[xX][0-9a-fA-F]{8}")
_TWO_NUMBERS = re.compile(r"[0-9]+\.[0-9]")


def _fabric(entry: FabricEntry) -> Fabric:
    cluster = _matching("fabric.clusterUUID", entry.cluster_uuid, re.compile(_UUID), "a UUID").lower()
    if entry.status != "SUCCESS" and entry.status not in nvmlerrors.CODES:
        raise ValueError(f"fabric.status: {entry.status!r}; expected SUCCESS or {_ERRORS}")
    _at_least("fabric.clique", entry.clique, 0)
    return Fabric(cluster, entry.clique, entry.state == "completed", entry.status == "SUCCESS")


_ERRORS = "NVML's name of an error, such as ERROR_UNKNOWN"


# --- MIG --------------------------------------------------------------------------------------------------------------


class GpuInstanceMade(NamedTuple):
    """A GPU instance where it is. `compute` are its compute instances by id; None is an id that none has."""

    id: int
    profile: Profile
    start: int
    compute: tuple[Profile | None, ...]


def gpu_instances(model: models.Model, mig: Mig) -> list[GpuInstanceMade]:
    """The GPU instances of a GPU, in the order in which they are listed. ValueError names the entry."""
    if mig.after_reset and not model.mig:
        raise ValueError(f"mig.enabled: {model.product} has no MIG; leave `mig` out")
    if mig.instances and not mig.enabled:
        raise ValueError("mig.instances: MIG is off; set `enabled: true`, or leave the instances out")
    if not mig.instances:
        return []
    wanted = []
    for number, each in enumerate(mig.instances):
        try:
            wanted.append(_wanted(each))
        except ValueError as error:
            raise ValueError(f"mig.instances[{number}]: {error}") from error
    try:
        starts = geometry.place(model, [where for where, _ in wanted])
    except geometry.GeometryError as error:
        raise ValueError(f"mig.instances: {error}") from error
    return [
        GpuInstanceMade(
            geometry.instance_id(model.sliced, model.kinds[where.profile], start), where.profile, start, compute
        )
        for (where, compute), start in zip(wanted, starts, strict=True)
    ]


def _mig_devices(model: models.Model, identity: str, mig: Mig) -> Iterator[MigDevice]:
    found = [
        (made.id, ci, profile)
        for made in gpu_instances(model, mig)
        for ci, profile in enumerate(made.compute)
        if profile is not None
    ]
    for slot, (gi, ci, profile) in enumerate(sorted(found)):
        yield _mig_device(model, identity, slot, gi, ci, profile)


def _wanted(entry: str | Instance) -> tuple[geometry.Wanted, tuple[Profile | None, ...]]:
    """A GPU instance to place, and its compute instances."""
    if isinstance(entry, str):
        compute = profiles.parse(entry)
        return geometry.Wanted(msgspec.structs.replace(compute, c=compute.g)), _computes(compute, (compute,))
    whole = profiles.parse(entry.profile)
    if not whole.full:
        raise ValueError(f"profile {entry.profile!r} is a compute instance; expected a GPU instance, with `compute`")
    texts = (entry.profile,) if entry.compute is None else entry.compute
    computes = tuple(None if text is None else profiles.parse(text) for text in texts)
    return geometry.Wanted(whole, entry.start), _computes(whole, computes)


def _computes(whole: Profile, computes: tuple[Profile | None, ...]) -> tuple[Profile | None, ...]:
    there = [each for each in computes if each is not None]
    for each in there:
        if msgspec.structs.replace(each, c=whole.g) != msgspec.structs.replace(whole, c=whole.g):
            raise ValueError(f"compute instance {each} is of another GPU instance than {whole}")
        if each.c not in profiles.COMPUTE_INSTANCES.values():
            raise ValueError(f"compute instance {each} has {each.c} slices; expected 1, 2, 3, 4, 6, 7 or 8")
    if sum(each.c for each in there) > whole.g:
        raise ValueError(f"{', '.join(map(str, there))} do not fit a GPU instance of {whole.g} slices")
    return computes


def _mig_device(model: models.Model, identity: str, slot: int, gi: int, ci: int, profile: Profile) -> MigDevice:
    kind = model.kinds[msgspec.structs.replace(profile, c=profile.g)]
    engines = kind.engines
    return MigDevice(
        slot=slot,
        uuid=f"MIG-{uuid.uuid5(_MIG_SPACE, f'{identity}/{gi}/{ci}')}",
        gi=gi,
        ci=ci,
        profile=profile,
        memory_mib=model.instance_mib(kind),
        multiprocessors=profile.c * model.sliced.multiprocessors,
        gi_slices=profile.g,
        ci_slices=profile.c,
        copy_engines=engines.copy,
        decoders=engines.decoders,
        encoders=engines.encoders,
        jpeg_engines=engines.jpeg,
        ofa_engines=engines.ofa,
    )


# --- problems that concern more than one GPU, or none -----------------------------------------------------------------

DRIVER_VERSION = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+)?")


def _problems(description: Description) -> Iterator[str]:
    if not DRIVER_VERSION.fullmatch(description.driver_version):
        yield f"driverVersion: {description.driver_version!r}; expected a version such as '580.126.20', in quotes"
    if description.cuda_version is not None and not _TWO_NUMBERS.fullmatch(description.cuda_version):
        yield f"cudaVersion: {description.cuda_version!r}; expected a version such as '13.0', in quotes"
    if description.library_error is not None and description.library_error not in nvmlerrors.CODES:
        yield f"libraryError: {description.library_error!r}; expected {_ERRORS}"
    count = len(description.gpus)
    for number, links in enumerate(description.nvlinks):
        yield from _outside(f"nvlinks[{number}].between", links.between, count)
        if links.count < 1:
            yield f"nvlinks[{number}].count: {links.count}; expected 1 or more"
    for name, groups in msgspec.structs.asdict(description.topology).items():
        for number, group in enumerate(groups):
            yield from _outside(f"topology.{_camel(name)}[{number}]", group, count)
    for number, group in enumerate(description.reset_together):
        yield from _outside(f"resetTogether[{number}]", group, count)
    yield from _event_problems(description.events, description.last_event)


def _outside(where: str, places: Sequence[int], count: int) -> Iterator[str]:
    for place in places:
        if not 0 <= place < count:
            yield f"{where}: there is no GPU {place}; the file has {count}, counted from 0"
    if len(set(places)) < len(places):
        yield f"{where}: a GPU is named twice"


def _event_problems(events: Sequence[EventEntry], last: int) -> Iterator[str]:
    before = 0
    for at, event in enumerate(events):
        if not before < event.number <= last:
            yield f"events[{at}].number: {event.number}; expected more than {before}, and at most lastEvent, {last}"
        before = max(before, event.number)
        if event.kind == "waitError" and event.error not in nvmlerrors.CODES:
            yield f"events[{at}].error: {event.error!r}; expected {_ERRORS}"
        if event.kind in ("xid", "singleBitEcc", "doubleBitEcc") and not event.gpu:
            yield f"events[{at}].gpu: missing; expected the UUID of a GPU"


def _repeated(cards: Sequence[Card]) -> Iterator[str]:
    """What only one GPU can have."""
    seen: dict[tuple[str, object], int] = {}
    for card in cards:
        values: Mapping[str, object] = {"uuid": card.gpu.uuid, "busId": card.gpu.bus_id, "minor": card.gpu.minor}
        for field, value in values.items():
            first = seen.setdefault((field, value), card.place)
            if first != card.place:
                yield f"gpus[{card.place}].{field}: {value!r} is that of gpus[{first}] too; each GPU has its own"


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)
