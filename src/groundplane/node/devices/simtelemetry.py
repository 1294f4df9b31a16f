"""Readings of simulated GPUs: what the file says of them, and for all else what a GPU of the model shows under a load.

The same file always gives the same figures: nothing here looks at a clock. Which figures a board shows is a table by
compute capability, close to what data sheets and idle machines say. The file's part is documented in
docs/reference/simulated-devices.md.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from . import nvmlerrors, profiles
from .model import Inventory
from .telemetry import (
    ACTIVITY_METRICS,
    MEMORY,
    OF_INSTANCES,
    QUANTITIES,
    RATE_METRICS,
    GpuProcess,
    P2pStatus,
    Reading,
    Survey,
)

if TYPE_CHECKING:
    from .simfile import Card, SimulatedMachine


# --- the file's part --------------------------------------------------------------------------------------------------


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    pass


class ProcessEntry(_Part, frozen=True):
    """A process that computes on the GPU; with `gi`, on that GPU instance."""

    pid: int
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    util: int = 0
    gi: int | None = None


class TelemetryEntry(_Part, frozen=True):
    """What a GPU shows of itself. `load` (percent) is what the figures are made from, `instance_loads` that of GPU
    instances by their id. `values` are figures that are set, by quantity; `absent` are quantities that fail, with
    NVML's name of the error. `delay_s`: each question takes so long, as where the driver hangs."""

    load: int = 0
    instance_loads: dict[int, int] = {}
    values: dict[str, int | float | str] = {}
    absent: dict[str, str] = {}
    processes: tuple[ProcessEntry, ...] = ()
    delay_s: float = 0.0


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


NAMES: Final[Mapping[str, str]] = {_camel(name): name for name in QUANTITIES}
"""Quantities by the names that the file has for them."""
_TEXTS: Final = frozenset(("brand", "serial", "vbios", *(name for name in QUANTITIES if name.startswith("inforom"))))


def problems(entry: TelemetryEntry) -> Iterator[str]:
    """What is wrong in an entry: place, what was found, what is expected."""
    for where, load in (
        ("load", entry.load),
        *((f"instanceLoads.{gi}", each) for gi, each in entry.instance_loads.items()),
    ):
        if not 0 <= load <= 100:
            yield f"telemetry.{where}: {load}; expected a percentage, 0 to 100"
    for name in (*entry.values, *entry.absent):
        if name not in NAMES:
            yield f"telemetry: {name!r} is no quantity; there are {', '.join(NAMES)}"
    for name, value in entry.values.items():
        if name in NAMES and isinstance(value, str) != (NAMES[name] in _TEXTS):
            yield f"telemetry.values.{name}: {value!r}; expected a {'text' if NAMES[name] in _TEXTS else 'number'}"
    for name, error in entry.absent.items():
        if error not in nvmlerrors.CODES:
            yield f"telemetry.absent.{name}: {error!r}; expected NVML's name of an error, such as ERROR_NOT_SUPPORTED"
    if entry.delay_s < 0:
        yield f"telemetry.delayS: {entry.delay_s}; expected seconds, 0 or more"


# --- what a board shows -----------------------------------------------------------------------------------------------


class Board(NamedTuple):
    """Power in W without and with full load, clocks in MHz, NVLinks; whether its memory has a thermometer (HBM)."""

    idle_w: int
    limit_w: int
    sm_clock: int
    mem_clock: int
    nvlinks: int = 0
    hbm: bool = False


BOARDS: Final[Mapping[tuple[int, int], Board]] = {
    (1, 3): Board(30, 188, 1296, 800),
    (2, 0): Board(30, 225, 1301, 1848),
    (3, 5): Board(25, 235, 875, 3004),
    (3, 7): Board(30, 150, 875, 2505),
    (5, 2): Board(20, 250, 1114, 3004),
    (6, 0): Board(30, 300, 1480, 715, nvlinks=4),
    (6, 1): Board(10, 250, 1531, 3615),
    (7, 0): Board(40, 300, 1530, 877, nvlinks=6, hbm=True),
    (7, 5): Board(10, 70, 1590, 5001),
    (8, 0): Board(50, 400, 1410, 1215, nvlinks=12, hbm=True),
    (8, 6): Board(20, 150, 1695, 6251),
    (8, 9): Board(20, 300, 2520, 9001),
    (9, 0): Board(70, 700, 1980, 2619, nvlinks=18, hbm=True),
    (10, 0): Board(140, 1000, 1965, 3996, nvlinks=18, hbm=True),
    (10, 3): Board(150, 1400, 2032, 3996, nvlinks=18, hbm=True),
    (12, 0): Board(35, 600, 2617, 12481),
    (12, 1): Board(4, 140, 2418, 8533),
    (13, 0): Board(180, 1800, 2100, 4800, nvlinks=36, hbm=True),
}
"""What boards show, by compute capability; another has the figures of the nearest older one."""

_IDLE_CLOCK: Final = 345
_GPU_IDLE, _POWER_CAP = 0x1, 0x4
_FIRST_MJ: Final = 1_000_000_000
_BUSY_SHARE: Final = 0.8
"""The part of the memory that a full load uses."""
_ACTIVE_SHARE: Final[Mapping[str, float]] = {
    "gr_engine_active": 1.0,
    "sm_active": 0.9,
    "sm_occupancy": 0.5,
    "int_active": 0.3,
    "tensor_active": 0.6,
    "hmma_active": 0.6,
    "dram_active": 0.4,
    "fp32_active": 0.2,
    "fp16_active": 0.1,
}
"""How far a full load keeps a unit busy; others rest."""
_RATE_MIB: Final[Mapping[str, int]] = {
    "pcie_tx_bytes": 4096,
    "pcie_rx_bytes": 8192,
    "nvlink_tx_bytes": 65536,
    "nvlink_rx_bytes": 65536,
}
"""MiB a second under full load."""
_COUNTERS: Final = (
    *("pcie_replays", "ecc_sbe_volatile", "ecc_dbe_volatile", "ecc_sbe_aggregate", "ecc_dbe_aggregate"),
    *("power_violation_ns", "thermal_violation_ns", "sync_boost_violation_ns", "board_limit_violation_ns"),
    *("low_util_violation_ns", "reliability_violation_ns"),
)
_REMAP: Final = ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure")
_RETIRED: Final = ("retired_sbe", "retired_dbe", "retired_pending")
_NVLINK: Final = tuple(name for name in QUANTITIES if name.startswith("nvlink") and name not in RATE_METRICS)


def board(compute: tuple[int, int]) -> Board:
    """The figures of a board."""
    return BOARDS[max((known for known in BOARDS if known <= compute), default=min(BOARDS))]


def reading(card: "Card", wanted: Collection[str] = QUANTITIES) -> Reading:
    """The figures of a GPU."""
    return _chosen(
        card, wanted, {**_of_board(card), **_of_memory(card, None), **_of_activity(card, card.entry.telemetry.load)}
    )


def instance_reading(card: "Card", gi: int, wanted: Collection[str] = QUANTITIES) -> Reading:
    """What one of its GPU instances has of its own."""
    load = card.entry.telemetry.instance_loads.get(gi, card.entry.telemetry.load)
    names = OF_INSTANCES.intersection(wanted)
    if all(device.gi != gi for device in card.gpu.mig_devices):
        return Reading(absent=dict.fromkeys(names, "ERROR_NOT_FOUND"))
    return _chosen(card, names, {**_of_memory(card, gi), **_of_activity(card, load)}, values=False)


def _chosen(card: "Card", wanted: Collection[str], made: Mapping[str, Any], *, values: bool = True) -> Reading:
    """What is wanted of some figures, as the file changes them; what there is not is not supported."""
    entry = card.entry.telemetry
    given = {NAMES[name]: value for name, value in entry.values.items()} if values else {}
    failing = {NAMES[name]: error for name, error in entry.absent.items()}
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name in wanted:
        value = given.get(name, made.get(name))
        if name in failing or value is None:
            absent[name] = failing.get(name, "ERROR_NOT_SUPPORTED")
        else:
            found[name] = value
    return Reading(**found, absent=absent)


def _of_board(card: "Card") -> dict[str, Any]:
    shown, load, place = board(card.gpu.compute), card.entry.telemetry.load, card.place
    temperature = 32 + place % 8 + 45 * load // 100
    found: dict[str, Any] = {
        "sm_clock_mhz": shown.sm_clock if load else _IDLE_CLOCK,
        "mem_clock_mhz": shown.mem_clock,
        "gpu_temp_c": temperature,
        "power_mw": shown.idle_w * 1000 + (shown.limit_w - shown.idle_w) * 10 * load,
        "energy_mj": _FIRST_MJ + place,
        "event_reasons": _POWER_CAP if load == 100 else 0 if load else _GPU_IDLE,
        "pstate": 0,
        "brand": "Nvidia" if card.gpu.compute >= (8, 0) else "Tesla",
        "serial": f"16523{card.place:08d}",
        "vbios": f"{86 + card.gpu.compute[0]:02X}.00.5E.00.01",
        "inforom_image": "G520.0200.00.05",
        "inforom_oem": "2.1",
        "inforom_ecc": "7.16",
        **dict.fromkeys(_COUNTERS, 0),
        **dict.fromkeys(_REMAP if card.gpu.compute >= (8, 0) else _RETIRED, 0),
    }
    if shown.hbm:
        found["memory_temp_c"] = temperature + 6
    if shown.nvlinks:
        found |= dict.fromkeys(_NVLINK, 0)
    if not card.gpu.mig_enabled:
        found |= {"gpu_util": load, "mem_util": load // 2, "enc_util": 0, "dec_util": 0}
    return found


def _of_memory(card: "Card", gi: int | None) -> dict[str, int]:
    """Bytes: what processes use, or what the load would."""
    entry = card.entry.telemetry
    total, load = card.gpu.memory_bytes, entry.load
    if gi is not None:
        total = next(device.memory_mib for device in card.gpu.mig_devices if device.gi == gi) * profiles.MIB
        load = entry.instance_loads.get(gi, load)
    if not total:
        return {}
    reserved = total // 160 // profiles.MIB * profiles.MIB
    used = sum(each.memory_mib for each in entry.processes if gi in (None, each.gi)) * profiles.MIB
    if not used:
        used = int(total * _BUSY_SHARE * load / 100) // profiles.MIB * profiles.MIB
    used = min(used, total - reserved)
    return dict(zip(MEMORY, (total, total - used - reserved, used, reserved), strict=True))


def _of_activity(card: "Card", load: int) -> dict[str, Any]:
    """Profiling figures; Hopper and later tell them without DCGM."""
    if card.gpu.compute < (9, 0):
        return {}
    rates = (
        _RATE_MIB
        if board(card.gpu.compute).nvlinks
        else {name: _RATE_MIB[name] for name in _RATE_MIB if "pcie" in name}
    )
    return {
        **{name: round(_ACTIVE_SHARE.get(name, 0.0) * load / 100, 6) for name in ACTIVITY_METRICS},
        **{name: rate * load // 100 * profiles.MIB for name, rate in rates.items()},
    }


# --- who reads --------------------------------------------------------------------------------------------------------


class SimulatedTelemetry:
    """Readings of a file's GPUs, as ``telemetry.Telemetry``. ``machine`` gives the machine as it is now."""

    def __init__(self, machine: "Callable[[str], SimulatedMachine]") -> None:
        self._machine = machine

    def survey(self) -> Survey:
        """The GPUs that answer, and why others do not."""
        machine = self._machine("counting the GPUs")
        failed = {
            card.gpu.index: str(nvmlerrors.error(nvmlerrors.GPU_IS_LOST, f"GPU {card.gpu.index}"))
            for card in machine.cards.values()
            if card.entry.lost
        }
        whole = machine.inventory
        gpus = tuple(gpu for gpu in whole.gpus if gpu.index not in failed)
        return Survey(Inventory(whole.driver_version, whole.cuda_version, gpus), failed)

    def nvml_version(self) -> str:
        """The version of the library: that of CUDA and of the driver."""
        inventory = self._machine("asking for NVML's version").inventory
        return f"{inventory.cuda_version // 1000}.{inventory.driver_version}"

    def gpu(self, uuid: str, wanted: Collection[str] = QUANTITIES) -> Reading:
        """Read what is wanted of a GPU."""
        return reading(self._card(uuid), wanted)

    def instance(self, uuid: str, gi: int, wanted: Collection[str] = QUANTITIES) -> Reading:
        """Read what a GPU instance has of its own."""
        return instance_reading(self._card(uuid), gi, wanted)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """The processes on a GPU and its instances."""
        card = self._card(uuid)
        found = (
            GpuProcess(each.pid, each.memory_mib * profiles.MIB, None if card.gpu.mig_enabled else each.util, each.gi)
            for each in card.entry.telemetry.processes
        )
        return tuple(sorted(found, key=lambda each: each.pid))

    def p2p(self, uuids: Collection[str]) -> dict[tuple[str, str], P2pStatus]:
        """Whether each GPU reaches each other one over NVLink: both have NVLinks, and neither is cut into instances."""
        cards = [self._card(uuid) for uuid in uuids]
        return {(one.gpu.uuid, other.gpu.uuid): p2p(one, other) for one in cards for other in cards if one is not other}

    def close(self) -> None:
        """Nothing is kept."""

    def _card(self, uuid: str) -> "Card":
        machine = self._machine(f"GPU {uuid}")
        card = machine.cards.get(uuid)
        if card is None:
            raise nvmlerrors.error(nvmlerrors.NOT_FOUND, f"GPU {uuid}")
        if card.entry.telemetry.delay_s:
            time.sleep(card.entry.telemetry.delay_s)
        if card.entry.lost:
            raise nvmlerrors.error(nvmlerrors.GPU_IS_LOST, f"GPU {uuid}")
        return card


def p2p(one: "Card", other: "Card") -> P2pStatus:
    """Whether one GPU reaches another over NVLink."""
    linked = all(board(card.gpu.compute).nvlinks and not card.gpu.mig_enabled for card in (one, other))
    return P2pStatus.OK if linked else P2pStatus.NOT_SUPPORTED
