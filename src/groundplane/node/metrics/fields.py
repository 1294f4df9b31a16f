"""The fields that can be told without DCGM: name, DCGM's number, type, and how the value comes out of a reading.

One table (contracts/mig-exporter-validator.md 5.2 and 5.7). A field has the name that dashboards know; names that DCGM
4.6 gave to the same numbers, and the lower-case names of the exporter's first major version, find it too. Fields that
DCGM has and NVML cannot tell are known by name (``names.csv``), so that they are told from misspelt ones.
"""

import enum
import functools
import importlib.resources
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ..devices.model import Gpu
from ..devices.telemetry import PROFILED, Reading

Value: TypeAlias = int | float | str | None

MIB: Final = 1 << 20
PROFILING: Final = range(1000, 1100)
"""Numbers of the profiling fields, which a GPU may not have (5.1)."""
XID_ERRORS: Final = "DCGM_FI_DEV_XID_ERRORS"
GPU_UTIL: Final = "DCGM_FI_DEV_GPU_UTIL"
FB_USED: Final = "DCGM_FI_DEV_FB_USED"
XID_TIME: Final = "GROUNDPLANE_XID_LAST_TIMESTAMP_SECONDS"
XID_ERRORS_COUNT: Final = "DCGM_EXP_XID_ERRORS_COUNT"
CLOCK_EVENTS_COUNT: Final = "DCGM_EXP_CLOCK_EVENTS_COUNT"
GPU_HEALTH_STATUS: Final = "DCGM_EXP_GPU_HEALTH_STATUS"
P2P_STATUS: Final = "DCGM_EXP_P2P_STATUS"
DERIVED: Final = {
    XID_ERRORS_COUNT: 9001,
    CLOCK_EVENTS_COUNT: 9002,
    GPU_HEALTH_STATUS: 9003,
    P2P_STATUS: 9004,
    XID_TIME: 9101,
}
"""Series that are computed from a history or between GPUs, and where they stand in the output; the last is our own."""


class Form(enum.Enum):
    """How a value is printed."""

    INTEGER = "integer"
    DOUBLE = "double"
    """With exactly six decimals."""
    TEXT = "text"


class Shown(NamedTuple):
    """What a value is computed from: the GPU, its figures, the newest Xid (0 if none), and versions."""

    gpu: Gpu
    reading: Reading
    xid: int
    driver_version: str
    nvml_version: str


class Field(NamedTuple):
    """A field. ``needs`` are the quantities of a reading that it is computed from."""

    name: str
    id: int
    form: Form
    needs: tuple[str, ...]
    compute: Callable[[Shown], Value]
    modern: str = ""
    """DCGM 4.6's name."""
    legacy: str = ""
    """An older name, by which the series is still called where the counters file does."""

    @property
    def profiling(self) -> bool:
        """Whether a GPU may well not have it."""
        return self.id in PROFILING


def _plain(name: str) -> Callable[[Shown], Value]:
    def compute(shown: Shown) -> Value:
        value: Value = getattr(shown.reading, name)
        return value

    return compute


def _divided(name: str, by: int, *, whole: bool = False) -> Callable[[Shown], Value]:
    def compute(shown: Shown) -> Value:
        value = getattr(shown.reading, name)
        if value is None:
            return None
        return int(value) // by if whole else value / by

    return compute


def _sum(*names: str) -> Callable[[Shown], Value]:
    def compute(shown: Shown) -> Value:
        found = [value for name in names if (value := getattr(shown.reading, name)) is not None]
        return sum(found) if found else None

    return compute


def _int(
    name: str,
    number: int,
    quantity: str,
    modern: str = "",
    legacy: str = "",
    compute: Callable[[Shown], Value] | None = None,
) -> Field:
    return Field(
        f"DCGM_FI_DEV_{name}", number, Form.INTEGER, (quantity,), compute or _plain(quantity), _dev(modern), legacy
    )


def _text(name: str, number: int, quantity: str, modern: str = "") -> Field:
    return Field(f"DCGM_FI_DEV_{name}", number, Form.TEXT, (quantity,), _plain(quantity), _dev(modern))


def _prof(name: str, number: int, quantity: str, modern: str = "", form: Form = Form.DOUBLE) -> Field:
    assert quantity in PROFILED
    full = f"DCGM_FI_PROF_{name}"
    return Field(
        full, number, form, (quantity,), _plain(quantity), f"DCGM_FI_PROF_{modern}" if modern else "", full.lower()
    )


def _dev(modern: str) -> str:
    return f"DCGM_FI_DEV_{modern}" if modern else ""


def _memory(name: str, number: int, quantity: str) -> Field:
    legacy = f"dcgm_{name.lower()}"
    return _int(name, number, quantity, legacy=legacy, compute=_divided(quantity, MIB, whole=True))


def _violation(name: str, number: int, quantity: str) -> Field:
    return _int(f"{name}_VIOLATION", number, f"{quantity}_violation_ns", legacy=f"dcgm_{name.lower()}_violation")


_NVLINK = ("nvlink_tx_kib", "nvlink_rx_kib")
_NVLINK_0 = ("nvlink0_tx_kib", "nvlink0_rx_kib")

FIELDS: Final = (
    Field(
        "DCGM_FI_DRIVER_VERSION", 1, Form.TEXT, (), lambda shown: shown.driver_version, "DCGM_FI_SYSTEM_DRIVER_VERSION"
    ),
    Field("DCGM_FI_NVML_VERSION", 2, Form.TEXT, (), lambda shown: shown.nvml_version, "DCGM_FI_SYSTEM_NVML_VERSION"),
    Field("DCGM_FI_DEV_NAME", 50, Form.TEXT, (), lambda shown: shown.gpu.name, "DCGM_FI_DEV_GPU_NAME"),
    _text("BRAND", 51, "brand", "GPU_BRAND"),
    Field("DCGM_FI_DEV_NVML_INDEX", 52, Form.INTEGER, (), lambda shown: shown.gpu.index),
    _text("SERIAL", 53, "serial", "BOARD_SERIAL"),
    Field("DCGM_FI_DEV_UUID", 54, Form.TEXT, (), lambda shown: shown.gpu.uuid, "DCGM_FI_DEV_GPU_UUID"),
    _text("OEM_INFOROM_VER", 56, "inforom_oem", "INFOROM_OEM_VERSION"),
    Field("DCGM_FI_DEV_MIG_MODE", 67, Form.INTEGER, (), lambda shown: int(shown.gpu.mig_enabled)),
    _text("ECC_INFOROM_VER", 80, "inforom_ecc", "INFOROM_ECC_VERSION"),
    _text("POWER_INFOROM_VER", 81, "inforom_power", "INFOROM_POWER_VERSION"),
    _text("INFOROM_IMAGE_VER", 82, "inforom_image", "INFOROM_IMAGE_VERSION"),
    _text("VBIOS_VERSION", 85, "vbios"),
    _int("SM_CLOCK", 100, "sm_clock_mhz", legacy="dcgm_sm_clock"),
    _int("MEM_CLOCK", 101, "mem_clock_mhz", legacy="dcgm_memory_clock"),
    _int("CLOCKS_EVENT_REASONS", 112, "event_reasons", legacy="DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
    _int("MEMORY_TEMP", 140, "memory_temp_c", "MEMORY_TEMP_CELSIUS", "dcgm_memory_temp"),
    _int("GPU_TEMP", 150, "gpu_temp_c", "GPU_TEMP_CELSIUS", "dcgm_gpu_temp"),
    Field(
        "DCGM_FI_DEV_POWER_USAGE",
        155,
        Form.DOUBLE,
        ("power_mw",),
        _divided("power_mw", 1000),
        "DCGM_FI_DEV_BOARD_POWER_WATTS",
        "dcgm_power_usage",
    ),
    _int("TOTAL_ENERGY_CONSUMPTION", 156, "energy_mj", legacy="dcgm_total_energy_consumption"),
    _int("PSTATE", 190, "pstate", "GPU_PSTATE"),
    _int("PCIE_REPLAY_COUNTER", 202, "pcie_replays", "PCIE_REPLAY_TOTAL", "dcgm_pcie_replay_counter"),
    _int("GPU_UTIL", 203, "gpu_util", "GPU_UTIL_RATIO", "dcgm_gpu_utilization"),
    _int("MEM_COPY_UTIL", 204, "mem_util", legacy="dcgm_mem_copy_utilization"),
    _int("ENC_UTIL", 206, "enc_util", legacy="dcgm_enc_utilization"),
    _int("DEC_UTIL", 207, "dec_util", legacy="dcgm_dec_utilization"),
    Field(XID_ERRORS, 230, Form.INTEGER, (), lambda shown: shown.xid, "DCGM_FI_DEV_XID_ERROR", "dcgm_xid_errors"),
    _violation("POWER", 240, "power"),
    _violation("THERMAL", 241, "thermal"),
    _violation("SYNC_BOOST", 242, "sync_boost"),
    _violation("BOARD_LIMIT", 243, "board_limit"),
    _violation("LOW_UTIL", 244, "low_util"),
    _violation("RELIABILITY", 245, "reliability"),
    _memory("FB_TOTAL", 250, "memory_total"),
    _memory("FB_FREE", 251, "memory_free"),
    _memory("FB_USED", 252, "memory_used"),
    _memory("FB_RESERVED", 253, "memory_reserved"),
    _int("ECC_SBE_VOL_TOTAL", 310, "ecc_sbe_volatile", legacy="dcgm_ecc_sbe_volatile_total"),
    _int("ECC_DBE_VOL_TOTAL", 311, "ecc_dbe_volatile", legacy="dcgm_ecc_dbe_volatile_total"),
    _int("ECC_SBE_AGG_TOTAL", 312, "ecc_sbe_aggregate", legacy="dcgm_ecc_sbe_aggregate_total"),
    _int("ECC_DBE_AGG_TOTAL", 313, "ecc_dbe_aggregate", legacy="dcgm_ecc_dbe_aggregate_total"),
    _int("RETIRED_SBE", 390, "retired_sbe", "PAGE_RETIRED_SBE_TOTAL", "dcgm_retired_pages_sbe"),
    _int("RETIRED_DBE", 391, "retired_dbe", "PAGE_RETIRED_DBE_TOTAL", "dcgm_retired_pages_dbe"),
    _int("RETIRED_PENDING", 392, "retired_pending", "PAGE_RETIRED_PENDING", "dcgm_retired_pages_pending"),
    _int("UNCORRECTABLE_REMAPPED_ROWS", 393, "remapped_uncorrectable", "ROW_REMAP_UNCORRECTABLE_TOTAL"),
    _int("CORRECTABLE_REMAPPED_ROWS", 394, "remapped_correctable", "ROW_REMAP_CORRECTABLE_TOTAL"),
    _int("ROW_REMAP_FAILURE", 395, "remap_failure", "ROW_REMAP_FAILED"),
    _int("ROW_REMAP_PENDING", 396, "remap_pending"),
    _int(
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        409,
        "nvlink_crc_flit_errors",
        "NVLINK_CRC_FLIT_ERROR_TOTAL",
        "dcgm_nvlink_flit_crc_error_count_total",
    ),
    _int(
        "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        419,
        "nvlink_crc_data_errors",
        "NVLINK_CRC_DATA_ERROR_TOTAL",
        "dcgm_nvlink_data_crc_error_count_total",
    ),
    _int(
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        429,
        "nvlink_replay_errors",
        "NVLINK_REPLAY_ERROR_TOTAL",
        "dcgm_nvlink_replay_error_count_total",
    ),
    _int(
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        439,
        "nvlink_recovery_errors",
        "NVLINK_RECOVERY_ERROR_TOTAL",
        "dcgm_nvlink_recovery_error_count_total",
    ),
    Field(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
        440,
        Form.INTEGER,
        _NVLINK_0,
        _sum(*_NVLINK_0),
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_L0",
    ),
    Field(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        449,
        Form.INTEGER,
        _NVLINK,
        _sum(*_NVLINK),
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL",
        "dcgm_nvlink_bandwidth_total",
    ),
    Field("DCGM_FI_DEV_VGPU_LICENSE_STATUS", 526, Form.INTEGER, (), lambda _: 0),
    _prof("GR_ENGINE_ACTIVE", 1001, "gr_engine_active", "GR_ENGINE_UTIL_RATIO"),
    _prof("SM_ACTIVE", 1002, "sm_active", "SM_UTIL_RATIO"),
    _prof("SM_OCCUPANCY", 1003, "sm_occupancy", "SM_OCCUPANCY_RATIO"),
    _prof("PIPE_TENSOR_ACTIVE", 1004, "tensor_active", "TENSOR_UTIL_RATIO"),
    _prof("DRAM_ACTIVE", 1005, "dram_active", "DRAM_UTIL_RATIO"),
    _prof("PIPE_FP64_ACTIVE", 1006, "fp64_active", "FP64_UTIL_RATIO"),
    _prof("PIPE_FP32_ACTIVE", 1007, "fp32_active", "FP32_UTIL_RATIO"),
    _prof("PIPE_FP16_ACTIVE", 1008, "fp16_active", "FP16_UTIL_RATIO"),
    _prof("PCIE_TX_BYTES", 1009, "pcie_tx_bytes", form=Form.INTEGER),
    _prof("PCIE_RX_BYTES", 1010, "pcie_rx_bytes", form=Form.INTEGER),
    _prof("NVLINK_TX_BYTES", 1011, "nvlink_tx_bytes", form=Form.INTEGER),
    _prof("NVLINK_RX_BYTES", 1012, "nvlink_rx_bytes", form=Form.INTEGER),
    _prof("PIPE_TENSOR_IMMA_ACTIVE", 1013, "imma_active", "IMMA_UTIL_RATIO"),
    _prof("PIPE_TENSOR_HMMA_ACTIVE", 1014, "hmma_active", "HMMA_UTIL_RATIO"),
    _prof("PIPE_TENSOR_DFMA_ACTIVE", 1015, "dfma_active", "DFMA_UTIL_RATIO"),
    _prof("PIPE_INT_ACTIVE", 1016, "int_active", "INT_UTIL_RATIO"),
)
"""In the order of their numbers, which is that of the output (5.3)."""

_BY_NAME: Final = {name: field for field in FIELDS for name in (field.name, field.modern, field.legacy) if name}


def find(name: str) -> Field | None:
    """The field that a name of any generation means; None if there is none that NVML can tell."""
    return _BY_NAME.get(name)


def series(name: str, field: Field) -> str:
    """What the series of a field is called: as dashboards know it, or by an older name that the file asks for."""
    return name if name == field.legacy else field.name


@functools.cache
def _all_names() -> frozenset[str]:
    text = (importlib.resources.files(__package__) / "names.csv").read_text(encoding="utf-8")
    return frozenset(line.partition(",")[0] for line in text.splitlines() if not line.startswith("#"))


def is_dcgm(name: str) -> bool:
    """Whether DCGM has a field of this name, though NVML cannot tell it."""
    return name in _all_names()
