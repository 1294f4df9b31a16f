"""Readings of all GPUs, taken in the background, so that who asks the exporter never waits for a device.

Each GPU is read in a thread of its own at each interval: one that hangs in the driver keeps the others' figures coming,
and its own are shown no more once they are stale (contracts/mig-exporter-validator.md 4). What GPUs there are is looked
at anew each time, so that another MIG layout or a GPU that comes or goes needs no restart.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ..devices.model import Gpu
from ..devices.source import DeviceError, Source
from ..devices.telemetry import GpuProcess, P2pStatus, Reading, Survey, Telemetry, merged
from ..process import Log, Process
from .history import History

T = TypeVar("T")

MAX_AGE_S: Final = 600.0
"""The oldest sample that is shown, unless the interval itself is longer."""
_SLACK_S: Final = 5.0
CLOSING_S: Final = 2.0
"""How long an end waits for what is being asked."""
_GONE: Final = frozenset({15, 16})
"""NVML's errors of a GPU that is lost, or waits for a reset (7)."""


class GpuSample(NamedTuple):
    """The figures of a GPU at a moment (monotonic seconds). If it gave none, ``reading`` is None and ``why`` set."""

    gpu: Gpu
    taken: float
    reading: Reading | None
    instances: Mapping[int, Reading] = {}
    processes: tuple[GpuProcess, ...] = ()
    why: str = ""


class Wanted(NamedTuple):
    """What is to be read: quantities, processes, and whether GPUs reach each other."""

    quantities: frozenset[str] = frozenset()
    processes: bool = False
    p2p: bool = False


class Snapshot(NamedTuple):
    """All GPUs in the order of their indices, with versions of the driver and its library."""

    samples: Sequence[GpuSample] = ()
    driver_version: str = ""
    nvml_version: str = ""
    p2p: Mapping[tuple[str, str], P2pStatus] = {}


def max_age(interval_s: float) -> float:
    """How old a sample may be to be shown, by the seconds between two."""
    return max(min(2 * interval_s + _SLACK_S, MAX_AGE_S), interval_s + _SLACK_S)


def read(telemetry: Telemetry, gpu: Gpu, wanted: Wanted) -> GpuSample:
    """Read a GPU and its instances; when that was is for others to note. Blocks."""
    try:
        reading = telemetry.gpu(gpu.uuid, wanted.quantities)
        instances = {
            gi: merged(reading, telemetry.instance(gpu.uuid, gi, wanted.quantities))
            for gi in dict.fromkeys(device.gi for device in gpu.mig_devices)
        }
        processes = telemetry.processes(gpu.uuid) if wanted.processes else ()
    except DeviceError as error:
        advice = "; it needs a reset (nvidia-smi -r), or else the node a restart" if error.code in _GONE else ""
        return GpuSample(gpu, 0.0, None, why=f"{error}{advice}")
    return GpuSample(gpu, 0.0, reading, instances, processes)


def in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Do something in a thread that keeps nobody from ending, should it never return."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to who waits
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name="telemetry", daemon=True).start()
    return outcome


def _aged(sample: GpuSample) -> GpuSample:
    return GpuSample(sample.gpu, sample.taken, None, why="it has given no figures for too long")


class Sampler:
    """Keeps :attr:`snapshot` fresh. Set :attr:`wanted` and call :meth:`wake` to have other figures soon."""

    def __init__(self, process: Process, log: Log, source: Source, history: History, interval_s: float) -> None:
        self.wanted = Wanted()
        self.interval_s = interval_s
        self.passed = asyncio.Event()
        """Set whenever samples have been taken; who waits for it clears it first."""
        self._process = process
        self._log = log
        self._source = source
        self._history = history
        self._telemetry: Telemetry | None = None
        self._samples: dict[str, GpuSample] = {}
        self._pending: dict[str, asyncio.Future[GpuSample]] = {}
        self._surveying: asyncio.Future[tuple[Survey, str, Telemetry]] | None = None
        self._pairing: asyncio.Future[dict[tuple[str, str], P2pStatus]] | None = None
        self._versions = ("", "")
        self._p2p: Mapping[tuple[str, str], P2pStatus] = {}
        self._said: dict[str, str] = {}
        self._snapshot: Snapshot | None = None
        self._stale: frozenset[str] = frozenset()
        self._wake = asyncio.Event()

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """What is known now; samples that are too old have no reading. The same object as long as nothing changes."""
        oldest = self._process.monotonic() - max_age(self.interval_s)
        stale = frozenset(uuid for uuid, sample in self._samples.items() if sample.taken < oldest)
        if self._snapshot is None or self._stale != stale:
            samples = sorted(self._samples.values(), key=lambda each: each.gpu.index)
            fresh = [_aged(each) if each.gpu.uuid in stale else each for each in samples]
            self._snapshot, self._stale = Snapshot(fresh, *self._versions, self._p2p), stale
        return self._snapshot

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are there, or were and are lost."""
        return tuple(each.gpu for each in self._samples.values())

    def wake(self) -> None:
        """Take samples at once."""
        self._wake.set()

    # --- taking samples -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take samples at each interval, until cancelled."""
        while True:
            self._wake.clear()
            await self.once()
            waking = asyncio.ensure_future(self._wake.wait())
            sleeping = asyncio.ensure_future(self._process.sleep(self.interval_s))
            try:
                await asyncio.wait((waking, sleeping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (waking, sleeping):
                    task.cancel()
                await asyncio.gather(waking, sleeping, return_exceptions=True)

    async def once(self) -> None:
        """Look which GPUs there are and read them; waits for a GPU no longer than an interval."""
        gpus = await self._survey()
        telemetry = self._telemetry
        asked = (
            [] if telemetry is None else [self._start(gpu, telemetry) for gpu in gpus if gpu.uuid not in self._pending]
        )
        if asked:  # those that hang since an earlier pass hold nobody up
            await asyncio.wait(asked, timeout=max(self.interval_s, 1.0))
        for uuid in self._pending:
            self._say(
                uuid, f"GPU {uuid} has not answered for {self.interval_s:g} s; its figures are left out until it does"
            )
        if self.wanted.p2p:
            await self._read_p2p()
        self._snapshot = None
        self.passed.set()

    async def changed(self) -> bool:
        """Whether other GPUs are there than those that were sampled; not, as long as the driver does not say."""
        if self._surveying is not None or self._pending:
            return False
        try:
            survey, _, self._telemetry = await in_thread(self._look)
        except DeviceError:  # the next pass says so
            return False
        return {gpu.uuid for gpu in survey.inventory.gpus} != set(self._samples) or bool(survey.failed)

    def _start(self, gpu: Gpu, telemetry: Telemetry) -> "asyncio.Future[GpuSample]":
        wanted = self.wanted
        reading = in_thread(lambda: read(telemetry, gpu, wanted))
        self._pending[gpu.uuid] = reading
        reading.add_done_callback(lambda done: self._take(gpu.uuid, done))
        return reading

    def _take(self, uuid: str, done: "asyncio.Future[GpuSample]") -> None:
        self._pending.pop(uuid, None)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._say(uuid, f"reading GPU {uuid} failed: {type(error).__name__}: {error}")
            return
        sample = done.result()._replace(taken=self._process.monotonic())
        self._say(uuid, f"GPU {sample.gpu.index} cannot be read: {sample.why}" if sample.why else "")
        self._samples[uuid] = sample
        self._snapshot = None
        if sample.reading is not None and sample.reading.event_reasons is not None:
            self._history.add_reasons(uuid, sample.reading.event_reasons, sample.taken)

    async def _survey(self) -> Sequence[Gpu]:
        """The GPUs to read; those that were there and do not answer stay known."""
        patience_s = 0.0
        if self._surveying is None:
            self._surveying, patience_s = in_thread(self._look), max(self.interval_s, 1.0)
        await asyncio.wait((self._surveying,), timeout=patience_s)
        if not self._surveying.done():
            self._say("survey", "the driver does not say which GPUs there are; those known are read")
            return self.gpus
        looking, self._surveying = self._surveying, None
        try:
            survey, nvml_version, self._telemetry = looking.result()
        except DeviceError as error:
            self._say("survey", f"the driver cannot be asked which GPUs there are: {error}")
            self._let_go()
            return self.gpus
        self._say("survey", "; ".join(survey.failed.values()))
        inventory = survey.inventory
        self._versions = (inventory.driver_version, nvml_version)
        there = {gpu.uuid for gpu in inventory.gpus}
        lost = [
            each.gpu
            for each in self._samples.values()
            if each.gpu.index in survey.failed and each.gpu.uuid not in there
        ]
        for uuid in self._samples.keys() - there - {gpu.uuid for gpu in lost}:
            del self._samples[uuid]
        return (*inventory.gpus, *lost)

    def _look(self) -> tuple[Survey, str, Telemetry]:
        self._source.open()
        telemetry = self._telemetry or self._source.telemetry()
        return telemetry.survey(), telemetry.nvml_version(), telemetry

    async def _read_p2p(self) -> None:
        telemetry, uuids = (
            self._telemetry,
            [each.gpu.uuid for each in self._samples.values() if each.reading is not None],
        )
        if telemetry is None or self._pending:
            return
        patience_s = 0.0
        if self._pairing is None:
            self._pairing, patience_s = in_thread(lambda: telemetry.p2p(uuids)), max(self.interval_s, 1.0)
        await asyncio.wait((self._pairing,), timeout=patience_s)
        if not self._pairing.done():
            return
        asking, self._pairing = self._pairing, None
        try:
            self._p2p = asking.result()
        except DeviceError as error:
            self._p2p = {}
            self._say("p2p", f"the driver cannot be asked which GPUs reach each other: {error}")

    def _say(self, about: str, text: str) -> None:
        """Log a trouble once, and its end."""
        before = self._said.get(about, "")
        if text == before:
            return
        self._said[about] = text
        if text:
            self._log.warning(text)
        elif before:
            self._log.info(f"over: {before}")

    def _let_go(self) -> None:
        """Close the driver's library; the next look opens it again, and finds another driver that may have come."""
        if self._pending:
            return
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            telemetry.close()
        self._source.close()

    async def close(self) -> None:
        """Give everything back, unless the driver holds one of our threads."""
        asked: list[asyncio.Future[Any]] = [*self._pending.values()]
        asked += [each for each in (self._surveying, self._pairing) if each is not None]
        if asked:
            answered, open_still = await asyncio.wait(asked, timeout=CLOSING_S)
            for each in answered:
                each.exception()  # nobody will ask for it any more
            if open_still:
                self._log.warning("the driver has not answered all questions; it is left as it is")
                return
        self._let_go()
