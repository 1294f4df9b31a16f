"""`dcgm-exporter`: the program's life. It samples in the background, serves, and begins anew where its files change.

A scrape puts together what was sampled last and whose the devices are now; it waits for the kubelet, never for a GPU
(contracts/mig-exporter-validator.md 4, 5.5). What keeps the program from beginning ends it with exit code 1; a counters
file that becomes wrong later is told, and the one before stays.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from .. import watch
from ..devices.source import DeviceError, Source
from ..devices.telemetry import QUANTITIES, Reading
from ..options import Leave
from ..process import ENDING, Log, Process, unless_signalled, wait_any
from . import counters as wanted_series
from . import dump, families, fields, pods, webconfig
from . import settings as options
from .counters import Counters, CountersError
from .history import History
from .listen import Listener
from .mapping import PER_PROCESS
from .sampler import Sampler, Wanted, in_thread
from .scrape import Scrapes
from .server import ScrapeError, Server
from .settings import Settings

RELOAD_PAUSE_S: Final = 2.0
"""The shortest time between two reloads (4)."""
FIRST_SAMPLES_S: Final = 5.0
"""How long the first samples are waited for before serving begins."""
_DONE, _FAILED = 0, 1
Work: TypeAlias = Coroutine[Any, Any, None]


class StartError(RuntimeError):
    """The program cannot begin; the text says why and what to do."""


class JsonLog(Log):
    """The log as a JSON object an entry."""

    @classmethod
    def of(cls, log: Log) -> "JsonLog":
        """The same log in the other form."""
        return cls(log._write, log._now)

    def _entry(self, level: str, text: str) -> None:
        levels = {"I": "INFO", "W": "WARN", "E": "ERROR"}
        self._write(json.dumps({"time": self._now().isoformat(), "level": levels[level], "msg": text}) + "\n")


async def run(process: Process) -> int:
    """`dcgm-exporter`."""
    try:
        wanted = options.load(process)
    except Leave as leave:
        return leave.tell(process)
    log = JsonLog.of(process.log) if wanted.json_log else process.log
    for warning in wanted.warnings:
        log.warning(warning)
    exporter = Exporter(process, log, wanted)
    try:
        await exporter.run()
    except (StartError, CountersError, webconfig.WebConfigError) as error:
        log.error(str(error))
        return _FAILED
    return _DONE


class Exporter:
    """One run of the exporter."""

    def __init__(self, process: Process, log: Log, wanted: Settings) -> None:
        self.reloading = False
        self._process = process
        self._log = log
        self._settings = wanted
        self._source: Source = process.devices()
        history = History()
        self._sampler = Sampler(process, log, self._source, history, wanted.interval_s)
        self._listener = Listener(process, log, self._source, self._sampler, history, wanted.interval_s)
        self._counters = Counters((), ())
        self._pod_resources = pods.PodResources(process, log, wanted.pod_resources_socket)
        self._cluster = pods.Cluster(process, log, wanted)
        self._scrapes = Scrapes(process, log, wanted, self._sampler, history, self._cluster)
        self._server: Server | None = None
        self._dump_trouble = ""

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until a signal asks for the end. Raises StartError, CountersError or WebConfigError."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._sampler.close)
            await self._open()
            self._counters = await self._read_counters()
            self._sampler.wanted = self._wanted(self._counters)
            stack.push_async_callback(self._pod_resources.close)
            background = _Background()
            stack.push_async_callback(background.stop)
            for work in self._works():
                background.start(work())
            await self._first_samples()
            config = self._web_config()
            self._server = Server(self, config, debug=self._settings.pprof)
            await self._serve(self._server, stack)
            await wait_any(self._until_told(config.certificate or ()), background.failure())

    def _works(self) -> list[Callable[[], Work]]:
        works: list[Callable[[], Work]] = [self._sampler.run, self._listener.hear_driver, self._listener.hear_kernel]
        if self._cluster.needed:
            works.append(self._cluster.run)
        if self._settings.bind_poll_s is not None:
            works.append(self._look_for_gpus)
        if self._settings.dump_dir:
            works.append(self._dump)
        return works

    async def _open(self) -> None:
        """Reach the driver, unless the program is to wait for it. Raises StartError."""
        if not self._settings.validate:
            return
        try:
            await in_thread(self._source.open)
        except DeviceError as error:
            raise StartError(
                f"the driver cannot be asked for figures: {error}. Is it installed and loaded, and has this container "
                "its libraries? (DISABLE_STARTUP_VALIDATE=true serves without figures until it is)"
            ) from error

    async def _first_samples(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SAMPLES_S):
                await self._sampler.passed.wait()
        absent = families.missing(self._settings.selection, self._sampler.snapshot)
        if absent and self._settings.validate:
            count = len(self._sampler.gpus)
            raise StartError(f"--devices names what is not there: {', '.join(absent)}; this machine has {count} GPUs")

    async def _serve(self, server: Server, stack: contextlib.AsyncExitStack) -> None:
        wanted = self._settings
        try:
            port = await stack.enter_async_context(server.serving(self._process, wanted.host, wanted.port))
        except OSError as error:
            raise StartError(f"cannot serve at {wanted.host or ''}:{wanted.port}: {error.strerror or error}") from error
        self._log.info(f"serving at port {port}: {len(self._counters.series)} series of {len(self._sampler.gpus)} GPUs")

    # --- reloading ----------------------------------------------------------------------------------------------------

    async def _until_told(self, certificate: Sequence[Path]) -> None:
        """Reload on SIGHUP or when a file changes, until a signal asks for the end."""
        named = [self._settings.collectors, *filter(None, [self._settings.web_config_file])]
        async with watch.paths(*map(self._process.path, named), *certificate) as changes:
            while True:
                if await self._told(changes):
                    return
                changes.drain()
                began = self._process.monotonic()
                number = await unless_signalled(self._process, self._reload())
                while number is None and (left := began + RELOAD_PAUSE_S - self._process.monotonic()) > 0:
                    number = await self._process.signal(left)
                if number in ENDING:
                    return
                if number is not None:  # one more reload follows, in time
                    await self._pause_until(began + RELOAD_PAUSE_S)
                    changes.overflow()

    async def _pause_until(self, moment: float) -> None:
        await self._process.sleep(max(moment - self._process.monotonic(), 0.0))

    async def _told(self, changes: watch.Changes) -> bool:
        """Wait for a reason to reload; True if it is one to end."""
        signalled = asyncio.ensure_future(self._process.signal())
        changed = asyncio.ensure_future(changes.next())
        try:
            await asyncio.wait((signalled, changed), return_when=asyncio.FIRST_COMPLETED)
            number = signalled.result() if signalled.done() else None
            if number is not None:
                self._log.info(f"received {number.name}: {'ending' if number in ENDING else 'reading files anew'}")
            return number in ENDING
        finally:
            for task in (signalled, changed):
                task.cancel()
            await asyncio.gather(signalled, changed, return_exceptions=True)

    async def _reload(self) -> None:
        """Read counters and web config anew; what is wrong is told and leaves all as it was."""
        self.reloading = True
        try:
            fresh = await self._read_counters()
            config = self._web_config()
            if fresh != self._counters:
                await self._change_to(fresh)
            if self._server is not None:
                self._server.configure(config)
            self._log.info(f"files were read anew: {len(fresh.series)} series")
        except (CountersError, webconfig.WebConfigError) as error:
            self._log.error(f"{error}\nwhat was in use stays in use")
        finally:
            self.reloading = False

    async def _change_to(self, fresh: Counters) -> None:
        """Sample what the new series need, then show them."""
        both = self._wanted(self._counters), self._wanted(fresh)
        self._sampler.wanted = Wanted(
            both[0].quantities | both[1].quantities, both[0].processes or both[1].processes, both[0].p2p or both[1].p2p
        )
        for _ in range(2):  # a pass that is under way began before
            self._sampler.passed.clear()
            self._sampler.wake()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SAMPLES_S):
                    await self._sampler.passed.wait()
        self._counters, self._sampler.wanted = fresh, both[1]

    def _wanted(self, counters: Counters) -> Wanted:
        shares = self._settings.kubernetes and self._settings.virtual_gpus
        return Wanted(counters.needs, shares and any(map(counters.has, PER_PROCESS)), counters.has(fields.P2P_STATUS))

    async def _read_counters(self) -> Counters:
        """The wanted series, from a ConfigMap or a file. Raises CountersError."""
        content, where = await self._counters_text()
        found = wanted_series.parse(content, where)
        for warning in found.warnings:
            self._log.warning(warning)
        if not found.series:
            self._log.warning(f"{where} names no series")
        return found

    async def _counters_text(self) -> tuple[str, str]:
        if self._settings.config_map is not None:
            try:
                return await self._config_map(*self._settings.config_map)
            except CountersError as error:
                self._log.error(f"{error}; {self._settings.collectors} is used instead")
        name = self._settings.collectors
        folder, _, last = name.rpartition("/")
        try:
            file = self._process.path(name)
            if not file.exists() and folder == options.FOLDER and last in options.SHIPPED:
                return options.shipped(last), f"{last} (shipped)"
            return file.read_text(encoding="utf-8"), name
        except (OSError, UnicodeDecodeError) as error:
            raise CountersError(f"the counters file {name} cannot be read: {error}") from error

    async def _config_map(self, namespace: str, name: str) -> tuple[str, str]:
        from ...cluster import kinds
        from ...cluster.errors import ClusterError, ConfigError

        where = f"ConfigMap {namespace}/{name}"
        try:
            async with self._process.client(self._settings.kubeconfig) as client:
                found = await client.get(kinds.CONFIG_MAP, name, namespace)
        except (ConfigError, ClusterError) as error:
            raise CountersError(f"{where} cannot be read: {error}") from error
        content = (found.get("data") or {}).get("metrics")
        if not isinstance(content, str):
            raise CountersError(f"{where} has no key metrics")
        return content, f"{where}, metrics"

    def _web_config(self) -> webconfig.WebConfig:
        name = self._settings.web_config_file
        return webconfig.load(self._process.path, name) if name else webconfig.WebConfig()

    # --- in the background --------------------------------------------------------------------------------------------

    async def _look_for_gpus(self) -> None:
        """Take samples at once where GPUs were bound to the driver or unbound from it."""
        while True:
            await self._process.sleep(self._settings.bind_poll_s or 1.0)
            if await self._sampler.changed():
                self._sampler.wake()

    async def _dump(self) -> None:
        wanted = self._settings
        while True:
            await self._process.sleep(wanted.interval_s)
            try:
                folder = self._process.path(wanted.dump_dir)
                dump.write(folder, self.state(), self._process.now(), compressed=wanted.dump_compressed)
                dump.clean(folder, wanted.dump_retention_h)
            except OSError as error:
                trouble = f"what was sampled cannot be written to {wanted.dump_dir}: {error}"
                if trouble != self._dump_trouble:
                    self._log.warning(trouble)
                self._dump_trouble = trouble

    # --- a scrape -----------------------------------------------------------------------------------------------------

    async def scrape(self) -> bytes:
        """The figures. Raises ScrapeError."""
        uses = await self._pod_resources.uses() if self._settings.kubernetes else []
        try:
            found = self._scrapes.document(self._counters, uses)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            self._log.error(f"a scrape failed: {type(error).__name__}: {error}")
            raise ScrapeError(f"the figures cannot be put together: {type(error).__name__}: {error}") from error
        if self._settings.debug:
            ages = [round(self._process.monotonic() - each.taken, 1) for each in self._sampler.snapshot.samples]
            self._log.info(f"scrape: {len(found)} bytes, {len(uses)} devices of pods, samples {ages} s old")
        return found

    def state(self) -> dict[str, object]:
        """What the program holds."""
        snapshot = self._sampler.snapshot
        return {
            "driverVersion": snapshot.driver_version,
            "series": [counter.name for counter in self._counters.series],
            "gpus": [
                {
                    "index": sample.gpu.index,
                    "uuid": sample.gpu.uuid,
                    "ageS": round(self._process.monotonic() - sample.taken, 3),
                    "why": sample.why,
                    "figures": _figures(sample.reading),
                    "absent": dict(sample.reading.absent) if sample.reading is not None else {},
                    "instances": {gi: _figures(reading) for gi, reading in sorted(sample.instances.items())},
                }
                for sample in snapshot.samples
            ],
        }


def _figures(reading: Reading | None) -> dict[str, object]:
    found = {name: getattr(reading, name, None) for name in QUANTITIES}
    return {name: value for name, value in found.items() if value is not None}


class _Background:
    """Work that goes on beside the program's own; it is cancelled at the end, and a failure of it is the program's."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Work) -> None:
        """Begin some work."""
        self._tasks.append(asyncio.create_task(work))

    async def failure(self) -> None:
        """Wait until some work fails, and raise what it raised; work that is done is no failure."""
        waiting = set(self._tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End it all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
