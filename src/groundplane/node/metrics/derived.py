"""The series that no field of DCGM's is: counts over a window, health, and whether GPUs reach each other.

Pure (contracts/mig-exporter-validator.md 5.4). Each is a table or a few lines of what makes its rows. Counts are of a
window that moves on, so they fall again, though their type is that of a counter. Health is an approximation from what
NVML tells; it knows nothing of NVSwitches and network cards, which are always well.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ..devices.telemetry import P2pStatus, Reading
from . import fields
from .counters import Counters
from .families import Entity
from .history import History
from .sampler import Snapshot
from .settings import Settings
from .text import Family, Row

PASS, WARN, FAIL = 0, 10, 20
OK: Final = "DCGM_FR_OK"
WINDOW: Final = "window_size_in_ms"

WATCHES: Final = (
    *("PCIE", "NVLINK", "PMU", "MCU", "MEM", "SM", "INFOROM", "THERMAL", "POWER", "DRIVER"),
    *("NVSWITCH_NONFATAL", "NVSWITCH_FATAL", "CONNECTX", "ALL"),
)
"""What health is told of; the last is the worst of all others."""

LINK_STATUS: Final[Mapping[P2pStatus, str]] = {
    P2pStatus.OK: "OK",
    P2pStatus.CHIPSET_NOT_SUPPORTED: "ChipsetNotSupported",
    P2pStatus.GPU_NOT_SUPPORTED: "GPUNotSupported",
    P2pStatus.TOPOLOGY_NOT_SUPPORTED: "TopologyNotSupported",
    P2pStatus.DISABLED_BY_REGKEY: "DisabledByRegKey",
    P2pStatus.NOT_SUPPORTED: "NotSupported",
    P2pStatus.UNKNOWN: "Unknown",
}


class World(NamedTuple):
    """What derived series are made from. ``now`` is monotonic."""

    shown: Sequence[Entity]
    snapshot: Snapshot
    history: History
    settings: Settings
    now: float


def families(counters: Counters, world: World) -> Iterator[Family]:
    """The derived series that are wanted, in the order of the output."""
    for counter in counters.series:
        make = _MAKERS.get(counter.name)
        if make is not None:
            yield Family(counter.name, counter.kind, counter.help, list(make(world)))


def _gpus(world: World) -> Iterator[tuple[int, Entity]]:
    return ((at, entity) for at, entity in enumerate(world.shown) if entity.gi is None and _is_chosen(world, entity))


def _is_chosen(world: World, entity: Entity) -> bool:
    numbers = world.settings.selection.numbers
    return world.settings.selection.kind != "g" or numbers is None or entity.gpu.index in numbers


def _xid_counts(world: World) -> Iterator[Row]:
    window = {WINDOW: str(world.settings.xid_window_ms)}
    since = world.now - world.settings.xid_window_ms / 1000
    for at, entity in _gpus(world):
        counts = world.history.xids(entity.gpu.uuid, since)
        yield from (Row(at, str(count), {**window, "xid": str(code)}) for code, count in counts.items())
        if not counts:
            yield Row(at, "0", window)


def _clock_events(world: World) -> Iterator[Row]:
    window = {WINDOW: str(world.settings.clock_window_ms)}
    since = world.now - world.settings.clock_window_ms / 1000
    for at, entity in _gpus(world):
        counts = world.history.reasons(entity.gpu.uuid, since)
        yield from (Row(at, str(count), {**window, "clock_event": reason}) for reason, count in counts.items())
        if not counts:
            yield Row(at, "0", window)


def _p2p(world: World) -> Iterator[Row]:
    indices = {entity.gpu.uuid: (at, entity.gpu.index) for at, entity in _gpus(world) if not entity.lost}
    for (one, other), status in sorted(world.snapshot.p2p.items(), key=lambda each: _pair(each[0], indices)):
        if one in indices and other in indices:
            peer = {"peer_gpu": str(indices[other][1]), "link_status": LINK_STATUS[status]}
            yield Row(indices[one][0], str(status.value), peer)


def _pair(uuids: tuple[str, str], indices: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return indices.get(uuids[0], (0, 0))[1], indices.get(uuids[1], (0, 0))[1]


def _xid_times(world: World) -> Iterator[Row]:
    for at, entity in _gpus(world):
        last = world.history.last_xid(entity.gpu.uuid)
        if last is not None:
            yield Row(at, f"{last.time:.3f}")


# --- health -----------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """How a part of a GPU is, and DCGM's name of what is wrong."""

    status: int
    code: str


class Evidence(NamedTuple):
    """What health is judged by: figures, whether the GPU is lost, and the Xid errors of the window."""

    reading: Reading
    lost: bool
    xids: frozenset[int]


class _Sign(NamedTuple):
    watch: str
    verdict: Verdict
    shows: Callable[[Evidence], bool]


def _positive(*names: str) -> Callable[[Evidence], bool]:
    return lambda evidence: any((getattr(evidence.reading, name) or 0) > 0 for name in names)


def _bits(bits: int) -> Callable[[Evidence], bool]:
    return lambda evidence: bool((evidence.reading.event_reasons or 0) & bits)


def _any_xid(*codes: int) -> Callable[[Evidence], bool]:
    return lambda evidence: not evidence.xids.isdisjoint(codes)


PCI_REPLAYS: Final = 8
"""Retries since the driver was loaded that are still no sign of a bad link."""

_SIGNS: Final = (
    _Sign("DRIVER", Verdict(FAIL, "DCGM_FR_FALLEN_OFF_BUS"), lambda evidence: evidence.lost or 79 in evidence.xids),
    _Sign("MEM", Verdict(FAIL, "DCGM_FR_ROW_REMAP_FAILURE"), _positive("remap_failure")),
    _Sign("MEM", Verdict(FAIL, "DCGM_FR_VOLATILE_DBE_DETECTED"), _positive("ecc_dbe_volatile")),
    _Sign("MEM", Verdict(FAIL, "DCGM_FR_XID_ERROR"), _any_xid(48, 64, 95, 140)),
    _Sign("MEM", Verdict(WARN, "DCGM_FR_PENDING_ROW_REMAP"), _positive("remap_pending")),
    _Sign("MEM", Verdict(WARN, "DCGM_FR_PENDING_PAGE_RETIREMENTS"), _positive("retired_pending")),
    _Sign("MEM", Verdict(WARN, "DCGM_FR_XID_ERROR"), _any_xid(63, 94)),
    _Sign("NVLINK", Verdict(FAIL, "DCGM_FR_NVLINK_ERROR_CRITICAL"), _any_xid(74, *range(144, 151))),
    _Sign(
        "NVLINK",
        Verdict(WARN, "DCGM_FR_NVLINK_ERROR_THRESHOLD"),
        _positive(
            *("nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_replay_errors", "nvlink_recovery_errors")
        ),
    ),
    _Sign(
        "PCIE",
        Verdict(WARN, "DCGM_FR_PCI_REPLAY_RATE"),
        lambda evidence: (evidence.reading.pcie_replays or 0) > PCI_REPLAYS,
    ),
    _Sign("PMU", Verdict(FAIL, "DCGM_FR_XID_ERROR"), _any_xid(62)),
    _Sign("MCU", Verdict(FAIL, "DCGM_FR_XID_ERROR"), _any_xid(119, 120)),
    _Sign(
        "INFOROM",
        Verdict(FAIL, "DCGM_FR_CORRUPT_INFOROM"),
        lambda evidence: evidence.reading.absent.get("inforom_image") == "ERROR_CORRUPTED_INFOROM",
    ),
    _Sign("THERMAL", Verdict(WARN, "DCGM_FR_CLOCKS_EVENT_THERMAL"), _bits(0x40)),
    _Sign("THERMAL", Verdict(WARN, "DCGM_FR_THERMAL_VIOLATIONS"), _positive("thermal_violation_ns")),
    _Sign("POWER", Verdict(WARN, "DCGM_FR_CLOCKS_EVENT_POWER"), _bits(0x80)),
)
"""Signs of trouble, for each part the worst first."""
_WELL: Final = Verdict(PASS, OK)


def health(evidence: Evidence) -> dict[str, Verdict]:
    """How each part of a GPU is."""
    found = dict.fromkeys(WATCHES, _WELL)
    for sign in _SIGNS:
        if found[sign.watch].status < sign.verdict.status and sign.shows(evidence):
            found[sign.watch] = sign.verdict
    found["ALL"] = max(found.values(), key=lambda verdict: verdict.status)
    return found


def _health(world: World) -> Iterator[Row]:
    since = world.now - world.settings.xid_window_ms / 1000
    for at, entity in _gpus(world):
        seen = frozenset(world.history.xids(entity.gpu.uuid, since))
        for watch, verdict in health(Evidence(entity.reading, entity.lost, seen)).items():
            yield Row(at, str(verdict.status), {"health_watch": watch, "health_error_code": verdict.code})


_MAKERS: Final[Mapping[str, Callable[[World], Iterator[Row]]]] = {
    fields.XID_ERRORS_COUNT: _xid_counts,
    fields.CLOCK_EVENTS_COUNT: _clock_events,
    fields.GPU_HEALTH_STATUS: _health,
    fields.P2P_STATUS: _p2p,
    fields.XID_TIME: _xid_times,
}
