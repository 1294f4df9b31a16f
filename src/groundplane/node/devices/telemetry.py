"""What a GPU says of itself while it works: one reading as plain data, and the protocol of who takes it.

A reading holds each quantity in NVML's unit; what cannot be had is None, and ``absent`` says why. Only a GPU that gives
no answer at all is an error. Asking blocks for up to some milliseconds a GPU (more where the driver is in trouble), so
who serves others asks in a thread. What is made of the figures is left to the programs; events (Xid errors) come from
``source.Watch``.
"""

import enum
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

import msgspec

from .model import Inventory


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a GPU, or of one of its GPU instances, at one moment.

    Clocks in MHz, temperatures in °C, power in mW, utilisation in percent, memory in bytes (``used`` without
    ``reserved``); since the driver was loaded: energy in mJ, violations in ns, NVLink traffic in KiB. ``event_reasons``
    are NVML's bits. Activities are ratios 0 to 1 and rates bytes a second, both since the last reading
    (contracts/mig-exporter-validator.md 5.7).
    """

    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    gpu_temp_c: int | None = None
    memory_temp_c: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None
    gpu_util: int | None = None
    mem_util: int | None = None
    enc_util: int | None = None
    dec_util: int | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    memory_used: int | None = None
    memory_reserved: int | None = None
    event_reasons: int | None = None
    pstate: int | None = None
    pcie_replays: int | None = None
    ecc_sbe_volatile: int | None = None
    ecc_dbe_volatile: int | None = None
    ecc_sbe_aggregate: int | None = None
    ecc_dbe_aggregate: int | None = None
    retired_sbe: int | None = None
    retired_dbe: int | None = None
    retired_pending: int | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: int | None = None
    remap_failure: int | None = None
    power_violation_ns: int | None = None
    thermal_violation_ns: int | None = None
    sync_boost_violation_ns: int | None = None
    board_limit_violation_ns: int | None = None
    low_util_violation_ns: int | None = None
    reliability_violation_ns: int | None = None
    nvlink_crc_flit_errors: int | None = None
    nvlink_crc_data_errors: int | None = None
    nvlink_replay_errors: int | None = None
    nvlink_recovery_errors: int | None = None
    nvlink_tx_kib: int | None = None
    nvlink_rx_kib: int | None = None
    nvlink0_tx_kib: int | None = None
    nvlink0_rx_kib: int | None = None
    brand: str | None = None
    serial: str | None = None
    vbios: str | None = None
    inforom_image: str | None = None
    inforom_oem: str | None = None
    inforom_ecc: str | None = None
    inforom_power: str | None = None
    gr_engine_active: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    int_active: float | None = None
    tensor_active: float | None = None
    dfma_active: float | None = None
    hmma_active: float | None = None
    imma_active: float | None = None
    dram_active: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    absent: Mapping[str, str] = {}
    """Why a quantity that was asked for is None, by its name: NVML's name of the error, or a sentence."""


QUANTITIES: Final = tuple(name for name in Reading.__struct_fields__ if name != "absent")
MEMORY: Final = ("memory_total", "memory_free", "memory_used", "memory_reserved")
ACTIVITY_METRICS: Final[Mapping[str, int]] = {
    "gr_engine_active": 1,
    "sm_active": 2,
    "sm_occupancy": 3,
    "int_active": 4,
    "tensor_active": 5,
    "dfma_active": 6,
    "hmma_active": 7,
    "imma_active": 9,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
    "fp16_active": 13,
}
"""Ratios by the number of the GPM metric that they come from, in percent there (5.7)."""
RATE_METRICS: Final[Mapping[str, int]] = {
    "pcie_tx_bytes": 20,
    "pcie_rx_bytes": 21,
    "nvlink_rx_bytes": 60,
    "nvlink_tx_bytes": 61,
}
"""Rates by the number of the GPM metric that they come from, in MiB a second there (5.7)."""
PROFILED: Final = (*ACTIVITY_METRICS, *RATE_METRICS)
OF_INSTANCES: Final = frozenset((*MEMORY, *PROFILED))
"""What a GPU instance has of its own; all else is its GPU's (5.7)."""
UTILISATION: Final = ("gpu_util", "mem_util", "enc_util", "dec_util")
"""What NVML does not tell of a GPU in MIG mode."""


class P2pStatus(enum.IntEnum):
    """Whether a GPU reaches another's memory, numbered as NVML numbers it (5.4)."""

    OK = 0
    CHIPSET_NOT_SUPPORTED = 1
    GPU_NOT_SUPPORTED = 2
    TOPOLOGY_NOT_SUPPORTED = 3
    DISABLED_BY_REGKEY = 4
    NOT_SUPPORTED = 5
    UNKNOWN = 6


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that computes on a GPU: its memory in bytes, its utilisation in percent (None where it is not told).

    ``gi`` is the GPU instance that it runs on; None on a GPU without MIG.
    """

    pid: int
    memory_bytes: int | None
    sm_util: int | None = None
    gi: int | None = None


class Survey(msgspec.Struct, frozen=True):
    """The GPUs that answer, and why others do not, by index."""

    inventory: Inventory
    failed: Mapping[int, str]


class Telemetry(Protocol):
    """Takes readings. Made by an open source's ``telemetry()``, and of use while that is open."""

    def survey(self) -> Survey:
        """Read what there is, as ``Source.inventory``, but without the GPUs that fail.

        Raises :class:`~.source.DeviceError` if the driver as a whole does not answer.
        """

    def nvml_version(self) -> str:
        """The version of the driver's library. Raises :class:`~.source.DeviceError`."""

    def gpu(self, uuid: str, wanted: Collection[str] = QUANTITIES) -> Reading:
        """Read what is wanted of a GPU.

        Raises :class:`~.source.Lost`, :class:`~.source.NotFound` or another :class:`~.source.DeviceError` if it gives
        no answer.
        """

    def instance(self, uuid: str, gi: int, wanted: Collection[str] = QUANTITIES) -> Reading:
        """Read what is wanted of a GPU instance, as far as it has it of its own (:data:`OF_INSTANCES`).

        Raises as :meth:`gpu`.
        """

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """The processes that compute on a GPU and its instances. Raises as :meth:`gpu`."""

    def p2p(self, uuids: Collection[str]) -> dict[tuple[str, str], P2pStatus]:
        """Whether each GPU reaches each other one over NVLink. Raises as :meth:`gpu`."""

    def close(self) -> None:
        """Give back what was kept between readings."""


def merged(gpu: Reading, instance: Reading) -> Reading:
    """What is shown of a GPU instance: its own figures, and its GPU's for all that it has none of (5.7)."""
    own: dict[str, Any] = {name: getattr(instance, name) for name in OF_INSTANCES}
    absent = {name: why for name, why in gpu.absent.items() if name not in OF_INSTANCES}
    return msgspec.structs.replace(gpu, **own, absent={**absent, **instance.absent})
