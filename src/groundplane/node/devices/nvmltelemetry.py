"""Readings of this machine's GPUs through NVIDIA's binding, as ``telemetry.Telemetry``.

One table says which function answers which quantity, another which of NVML's *field values* does; all fields of a
reading are one call. Profiling figures come from GPM (Hopper and later): the difference of two samples, of which the
older one is kept from reading to reading. What each error means follows contracts/mig-exporter-validator.md 5.7 and 7.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from . import nvml, nvmlerrors
from .model import NO_INSTANCE, Gpu, Inventory
from .source import DeviceError
from .telemetry import (
    ACTIVITY_METRICS,
    MEMORY,
    OF_INSTANCES,
    PROFILED,
    QUANTITIES,
    RATE_METRICS,
    GpuProcess,
    P2pStatus,
    Reading,
    Survey,
)

_MIB: Final = 1 << 20
_ALL_LINKS: Final = 0xFFFFFFFF
_NVLINK: Final = 2
"""The capability that is asked for between two GPUs."""
_MEMORY_V2: Final = 0x02000028
SAMPLES_APART_S: Final = 0.12
"""Two GPM samples that are nearer than 0.1 s give no figures."""
_FATAL: Final = frozenset({nvmlerrors.UNINITIALIZED, nvmlerrors.GPU_IS_LOST, 16})
"""What concerns the GPU as a whole: library closed, lost, reset required."""
_BRANDS: Final = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
"""Brands by NVML's number."""


class _Call(NamedTuple):
    """A function that answers some quantities, and how they are taken from its answer."""

    quantities: tuple[str, ...]
    function: str
    args: tuple[int, ...] = ()
    pick: Callable[[Any], tuple[Any, ...]] = lambda answer: (answer,)


_CALLS: Final = (
    _Call(("sm_clock_mhz",), "nvmlDeviceGetClockInfo", (1,)),
    _Call(("mem_clock_mhz",), "nvmlDeviceGetClockInfo", (2,)),
    _Call(("gpu_temp_c",), "nvmlDeviceGetTemperature", (0,)),
    _Call(("power_mw",), "nvmlDeviceGetPowerUsage"),
    _Call(("gpu_util", "mem_util"), "nvmlDeviceGetUtilizationRates", pick=lambda answer: (answer.gpu, answer.memory)),
    _Call(("enc_util",), "nvmlDeviceGetEncoderUtilization", pick=lambda answer: (answer[0],)),
    _Call(("dec_util",), "nvmlDeviceGetDecoderUtilization", pick=lambda answer: (answer[0],)),
    _Call(("event_reasons",), "nvmlDeviceGetCurrentClocksEventReasons"),
    _Call(("pstate",), "nvmlDeviceGetPerformanceState"),
    _Call(("brand",), "nvmlDeviceGetBrand", pick=lambda answer: (_BRANDS.get(answer, "Unknown"),)),
    _Call(("serial",), "nvmlDeviceGetSerial"),
    _Call(("vbios",), "nvmlDeviceGetVbiosVersion"),
    _Call(("inforom_image",), "nvmlDeviceGetInforomImageVersion"),
    _Call(("inforom_oem",), "nvmlDeviceGetInforomVersion", (0,)),
    _Call(("inforom_ecc",), "nvmlDeviceGetInforomVersion", (1,)),
    _Call(("inforom_power",), "nvmlDeviceGetInforomVersion", (2,)),
)

_FIELDS: Final[Mapping[str, tuple[int, int]]] = {
    "memory_temp_c": (82, 0),
    "energy_mj": (83, 0),
    "pcie_replays": (94, 0),
    "ecc_sbe_volatile": (3, 0),
    "ecc_dbe_volatile": (4, 0),
    "ecc_sbe_aggregate": (5, 0),
    "ecc_dbe_aggregate": (6, 0),
    "retired_sbe": (29, 0),
    "retired_dbe": (30, 0),
    "retired_pending": (31, 0),
    "remapped_correctable": (142, 0),
    "remapped_uncorrectable": (143, 0),
    "remap_pending": (144, 0),
    "remap_failure": (145, 0),
    "power_violation_ns": (74, 0),
    "thermal_violation_ns": (75, 0),
    "sync_boost_violation_ns": (76, 0),
    "board_limit_violation_ns": (77, 0),
    "low_util_violation_ns": (78, 0),
    "reliability_violation_ns": (79, 0),
    "nvlink_crc_flit_errors": (38, 0),
    "nvlink_crc_data_errors": (45, 0),
    "nvlink_replay_errors": (52, 0),
    "nvlink_recovery_errors": (59, 0),
    "nvlink_tx_kib": (138, _ALL_LINKS),
    "nvlink_rx_kib": (139, _ALL_LINKS),
    "nvlink0_tx_kib": (138, 0),
    "nvlink0_rx_kib": (139, 0),
}
"""Quantities by NVML's field and its scope, which is a link where there are several."""

_VALUE_TYPES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union by the number of the type."""


class _Found:
    """A reading in the making."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.absent: dict[str, str] = {}

    def miss(self, quantities: Iterable[str], error: DeviceError) -> None:
        """Note why quantities are not there; what concerns the whole GPU is raised."""
        if error.code in _FATAL:
            raise error
        self.absent |= dict.fromkeys(quantities, _reason(error.code, str(error)))

    def reading(self) -> Reading:
        return Reading(**self.values, absent=self.absent)


def _reason(code: int, otherwise: str) -> str:
    return nvmlerrors.NAMES.get(code, otherwise)


class NvmlTelemetry:
    """Readings through the library that a source has opened; ``check_open`` raises if it has been closed since."""

    def __init__(self, check_open: Callable[[str], None]) -> None:
        self._check_open = check_open
        self._gpm = _Gpm()

    def survey(self) -> Survey:
        """The GPUs that answer, and why others do not."""
        self._check_open("counting the GPUs")
        driver = nvml.ask("asking for the driver's version", "nvmlSystemGetDriverVersion")
        cuda = nvml.ask("asking for the CUDA version", "nvmlSystemGetCudaDriverVersion")
        found: list[Gpu] = []
        failed: dict[int, str] = {}
        for index in range(nvml.ask("counting the GPUs", "nvmlDeviceGetCount")):
            try:
                gpu = nvml.read_gpu(index)
            except DeviceError as error:
                failed[index] = str(error)
                continue
            if gpu is not None:
                found.append(gpu)
        return Survey(Inventory(driver, cuda, tuple(found)), failed)

    def nvml_version(self) -> str:
        """The version of the library."""
        self._check_open("asking for NVML's version")
        return str(nvml.ask("asking for NVML's version", "nvmlSystemGetNVMLVersion"))

    def gpu(self, uuid: str, wanted: Collection[str] = QUANTITIES) -> Reading:
        """Read what is wanted of a GPU."""
        doing, handle = self._open(uuid)
        names, found = frozenset(wanted), _Found()
        for call in _CALLS:
            if asked := names.intersection(call.quantities):
                try:
                    answer = call.pick(nvml.ask(doing, call.function, handle, *call.args))
                except DeviceError as error:
                    found.miss(asked, error)
                    continue
                found.values |= {
                    name: value for name, value in zip(call.quantities, answer, strict=True) if name in asked
                }
        _read_fields(doing, handle, [name for name in _FIELDS if name in names], found)
        self._own(doing, handle, handle, None, uuid, names, found)
        return found.reading()

    def instance(self, uuid: str, gi: int, wanted: Collection[str] = QUANTITIES) -> Reading:
        """Read what a GPU instance has of its own."""
        doing, handle = self._open(uuid)
        names, found = OF_INSTANCES.intersection(wanted), _Found()
        self._own(doing, handle, _mig_handle(doing, handle, gi), gi, uuid, names, found)
        return found.reading()

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """The processes on a GPU and its instances."""
        doing, handle = self._open(uuid)
        use = _process_use(doing, handle)
        found = [_process(each, use) for each in nvml.ask(doing, "nvmlDeviceGetComputeRunningProcesses_v3", handle)]
        return tuple(sorted(found, key=lambda each: each.pid))

    def p2p(self, uuids: Collection[str]) -> dict[tuple[str, str], P2pStatus]:
        """Whether each GPU reaches each other one over NVLink."""
        handles = {uuid: self._open(uuid)[1] for uuid in uuids}
        return {
            (one, other): _p2p(f"GPUs {one} and {other}", handles[one], handles[other])
            for one in handles
            for other in handles
            if one != other
        }

    def close(self) -> None:
        """Free the samples."""
        self._gpm.close()

    def _open(self, uuid: str) -> tuple[str, Any]:
        doing = f"GPU {uuid}"
        self._check_open(doing)
        return doing, nvml.ask(doing, "nvmlDeviceGetHandleByUUID", uuid)

    def _own(
        self, doing: str, gpu: Any, handle: Any, gi: int | None, uuid: str, names: frozenset[str], found: _Found
    ) -> None:
        """What GPUs and GPU instances both have: memory and activity."""
        if asked := names.intersection(MEMORY):
            try:
                if handle is None:
                    raise nvmlerrors.error(nvmlerrors.NOT_FOUND, f"{doing}, GPU instance {gi}")
                memory = _memory(doing, handle)
                found.values |= {name: memory[name] for name in asked}
            except DeviceError as error:
                found.miss(asked, error)
        if asked := names.intersection(PROFILED):
            try:
                self._gpm.read(doing, gpu, gi, uuid, asked, found)
            except DeviceError as error:
                found.miss(asked, error)


def _read_fields(doing: str, handle: Any, quantities: list[str], found: _Found) -> None:
    if not quantities:
        return
    try:
        answers = nvml.ask(doing, "nvmlDeviceGetFieldValues", handle, [_FIELDS[name] for name in quantities])
    except DeviceError as error:
        found.miss(quantities, error)
        return
    for name, answer in zip(quantities, answers, strict=True):
        if answer.nvmlReturn:
            found.miss([name], nvmlerrors.error(answer.nvmlReturn, doing))
        elif answer.valueType >= len(_VALUE_TYPES):
            found.absent[name] = f"a value of an unknown type, {answer.valueType}"
        else:
            found.values[name] = int(getattr(answer.value, _VALUE_TYPES[answer.valueType]))


def _memory(doing: str, handle: Any) -> dict[str, int]:
    """Bytes; ``used`` without what is reserved, so that the parts make the whole (5.7)."""
    try:
        info = nvml.ask(doing, "nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
        reserved = int(info.reserved)
    except DeviceError as error:
        if error.code not in (nvmlerrors.NOT_SUPPORTED, nvmlerrors.FUNCTION_NOT_FOUND, 25):
            raise
        info, reserved = nvml.ask(doing, "nvmlDeviceGetMemoryInfo", handle), 0
    values = (int(info.total), int(info.free), max(int(info.used) - reserved, 0), reserved)
    return dict(zip(MEMORY, values, strict=True))


def _mig_handle(doing: str, gpu: Any, gi: int) -> Any | None:
    """The first MIG device in a GPU instance; empty slots are passed over (7)."""
    for slot in range(nvml.ask(doing, "nvmlDeviceGetMaxMigDeviceCount", gpu)):
        handle = nvml.mig_device(f"{doing}, MIG slot {slot}", gpu, slot)
        if handle is not None and nvml.ask(doing, "nvmlDeviceGetGpuInstanceId", handle) == gi:
            return handle
    return None


def _process_use(doing: str, handle: Any) -> dict[int, int]:
    """Utilisation by process, as far as it is told."""
    try:
        samples = nvml.ask(doing, "nvmlDeviceGetProcessUtilization", handle, 0)
    except DeviceError as error:
        if error.code in _FATAL:
            raise
        return {}
    return {sample.pid: int(sample.smUtil) for sample in sorted(samples, key=lambda each: int(each.timeStamp))}


def _process(entry: Any, use: Mapping[int, int]) -> GpuProcess:
    gi = None if entry.gpuInstanceId in (None, NO_INSTANCE) else int(entry.gpuInstanceId)
    return GpuProcess(int(entry.pid), entry.usedGpuMemory, use.get(entry.pid), gi)


def _p2p(doing: str, one: Any, other: Any) -> P2pStatus:
    try:
        status = nvml.ask(doing, "nvmlDeviceGetP2PStatus", one, other, _NVLINK)
    except DeviceError as error:
        if error.code in _FATAL:
            raise
        return P2pStatus.NOT_SUPPORTED
    return P2pStatus(status) if status in set(P2pStatus) else P2pStatus.UNKNOWN


class _Gpm:
    """Samples of the profiling counters, the newest of each GPU and GPU instance kept for the next reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int | None], tuple[float, Any]] = {}

    def read(self, doing: str, gpu: Any, gi: int | None, uuid: str, asked: Collection[str], found: _Found) -> None:
        """Read what is asked for, over the time since the last reading, or over a moment. Raises DeviceError."""
        support = nvml.ask(doing, "nvmlGpmQueryDeviceSupport", gpu)
        if not support.isSupportedDevice:
            raise nvmlerrors.error(nvmlerrors.NOT_SUPPORTED, doing, "profiling without DCGM needs Hopper or later")
        key = (uuid, gi)
        with self._lock:
            before = self._kept.pop(key, None)
        if before is None:
            before = time.monotonic(), _sample(doing, gpu, gi)
        time.sleep(max(before[0] + SAMPLES_APART_S - time.monotonic(), 0.0))
        try:
            after = time.monotonic(), _sample(doing, gpu, gi)
        except DeviceError:
            _free(before[1])
            raise
        try:
            _differ(doing, before[1], after[1], asked, found)
        finally:
            _free(before[1])
            with self._lock:
                self._kept[key] = after

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, {}
        for _taken, sample in kept.values():
            _free(sample)


def _sample(doing: str, gpu: Any, gi: int | None) -> Any:
    sample = nvml.ask(doing, "nvmlGpmSampleAlloc")
    try:
        if gi is None:
            nvml.ask(doing, "nvmlGpmSampleGet", gpu, sample)
        else:
            nvml.ask(doing, "nvmlGpmMigSampleGet", gpu, gi, sample)
    except DeviceError:
        _free(sample)
        raise
    return sample


def _free(sample: Any) -> None:
    try:
        nvml.ask("freeing a sample", "nvmlGpmSampleFree", sample)
    except DeviceError as error:  # the library was closed meanwhile, and its memory with it
        if error.code != nvmlerrors.UNINITIALIZED:
            raise


def _differ(doing: str, before: Any, after: Any, asked: Collection[str], found: _Found) -> None:
    numbers = {**ACTIVITY_METRICS, **RATE_METRICS}
    question = nvml.binding().c_nvmlGpmMetricsGet_t()
    question.version, question.numMetrics = 1, len(asked)
    question.sample1, question.sample2 = before, after
    names = sorted(asked)
    for at, name in enumerate(names):
        question.metrics[at].metricId = numbers[name]
    nvml.ask(doing, "nvmlGpmMetricsGet", question)
    for at, name in enumerate(names):
        metric = question.metrics[at]
        if metric.nvmlReturn:
            found.miss([name], nvmlerrors.error(metric.nvmlReturn, doing))
        elif name in RATE_METRICS:
            found.values[name] = int(metric.value * _MIB)
        else:
            found.values[name] = float(metric.value) / 100.0
