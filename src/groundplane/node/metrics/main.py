"""`dcgm-exporter`: the program's life. It samples in the background, serves, and begins anew where its files change.

A scrape puts together what was sampled last and whose the devices are now; it waits for the kubelet, never for a GPU
(contracts/mig-exporter-validator.md 4, 5.5). What keeps the program from beginning ends it with exit code 1; a counters
file that becomes wrong later is told, and the one before stays.
"""

import asyncio
import contextlib
import importlib.resources
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from .. import watch
from ..devices.source import DeviceError, EventKind, Source, Watch
from ..devices.telemetry import QUANTITIES, Reading
from ..options import Leave
from ..process import ENDING, Log, Process, unless_signalled, wait_any
from . import counters as wanted_series
from . import derived, dump, families, fields, jobs, kernellog, mapping, pods, text, webconfig
from . import settings as options
from .counters import Counters, CountersError
from .families import Entity
from .history import History, Origin
from .mapping import PER_PROCESS, Users
from .sampler import Sampler, Snapshot, Wanted, in_thread
from .server import ScrapeError, Server
from .settings import Settings
from .text import Family

RELOAD_PAUSE_S: Final = 2.0
"""The shortest time between two reloads (4)."""
FIRST_SAMPLES_S: Final = 5.0
"""How long the first samples are waited for before serving begins."""
KERNEL_LOG_S: Final = 1.0
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
        self._history = History()
        self._sampler = Sampler(process, log, self._source, self._history, wanted.interval_s)
        self._counters = Counters((), ())
        self._pod_resources = pods.PodResources(process, log, wanted.pod_resources_socket)
        self._cluster = pods.Cluster(process, log, wanted)
        self._server: Server | None = None
        self._said: set[str] = set()
        self._answer: tuple[object, bytes] | None = None
        """The answer to the last scrape of the same rows, and who used the devices then."""
        self._made: tuple[tuple[int, int, int], Snapshot, Counters, list[Entity], list[Family]] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until a signal asks for the end. Raises StartError, CountersError or WebConfigError."""
        await self._open()
        self._counters = await self._read_counters()
        self._sampler.wanted = self._wanted(self._counters)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._sampler.close)
            stack.push_async_callback(self._pod_resources.close)
            background = _Background()
            stack.push_async_callback(background.stop)
            for work in self._works():
                background.start(work())
            await self._first_samples()
            config = self._web_config()
            self._server = Server(self, config, debug=self._settings.pprof)
            stack.push_async_callback(self._server.stop)
            await self._serve(self._server)
            await wait_any(self._until_told(config.certificate or ()), background.failure())

    def _works(self) -> list[Callable[[], Work]]:
        works: list[Callable[[], Work]] = [self._sampler.run, self._hear_driver, self._hear_kernel]
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

    async def _serve(self, server: Server) -> None:
        wanted = self._settings
        try:
            port = await server.start(wanted.host, wanted.port)
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
        file = self._process.path(name)
        folder, _, last = name.rpartition("/")
        if not file.exists() and folder == options.FOLDER and last in options.SHIPPED:
            return (importlib.resources.files(__package__) / last).read_text(encoding="utf-8"), f"{last} (shipped)"
        try:
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

    async def _hear_driver(self) -> None:
        """Note Xid errors as the driver tells them."""
        await self._sampler.passed.wait()
        while True:
            uuids = frozenset(gpu.uuid for gpu in self._sampler.gpus)
            if not uuids or not await self._hear(uuids):
                await self._process.sleep(min(self._settings.interval_s, 1.0))

    async def _hear(self, uuids: frozenset[str]) -> bool:
        """Note the Xid errors of some GPUs until there are others; False if the driver tells none, or no more."""
        try:
            events = self._source.watch(uuids, EventKind.XID)
        except DeviceError as error:
            self._say(f"the driver tells no Xid errors: {error}")
            return False
        for uuid, reason in events.failed.items():
            self._say(f"GPU {uuid} tells no Xid errors: {reason}")
        try:
            await wait_any(self._note(events), self._until_other(uuids))
        except DeviceError as error:
            self._say(f"waiting for Xid errors failed: {error}")
            return False
        finally:
            await events.close()
        return True

    async def _note(self, events: Watch) -> None:
        while True:
            event = await events.next()
            found = [event.uuid] if event.uuid else await self._silent(event.xid)
            for uuid in found:
                self._add_xid(uuid, event.xid, "driver")
            if not found:
                self._log.warning(f"Xid {event.xid} of a GPU that cannot be told")

    async def _silent(self, code: int) -> list[str]:
        """GPUs that give no sign of life and did not have this error last: of a lost GPU the driver cannot tell which
        it is."""
        last = {gpu.uuid: self._history.last_xid(gpu.uuid) for gpu in self._sampler.gpus}
        uuids = [uuid for uuid, seen in last.items() if seen is None or seen.code != code]

        def ask() -> list[str]:
            return [uuid for uuid in uuids if not self._answers(uuid)]

        return await in_thread(ask)

    def _answers(self, uuid: str) -> bool:
        try:
            self._source.check(uuid)
        except DeviceError:
            return False
        return True

    async def _until_other(self, uuids: frozenset[str]) -> None:
        while uuids == {gpu.uuid for gpu in self._sampler.gpus}:
            await self._process.sleep(min(self._settings.interval_s, 5.0))

    async def _hear_kernel(self) -> None:
        """Note Xid errors that the kernel's log tells, where it can be read."""
        try:
            log = kernellog.KernelLog.open(self._process.path(kernellog.PATH))
        except OSError as error:
            self._log.info(f"the kernel's log cannot be read ({error.strerror}): Xid errors are those that NVML tells")
            return
        try:
            while True:
                for found in log.read():
                    for gpu in self._sampler.gpus:
                        if gpu.bus_id and kernellog.address(gpu.bus_id) == found.address:
                            self._add_xid(gpu.uuid, found.code, "kernel log")
                await self._process.sleep(KERNEL_LOG_S)
        finally:
            log.close()

    def _add_xid(self, uuid: str, code: int, origin: Origin) -> None:
        self._history.add_xid(uuid, code, self._process.monotonic(), self._process.now().timestamp(), origin)

    async def _look_for_gpus(self) -> None:
        """Take samples at once where GPUs were bound to the driver or unbound from it."""
        while True:
            await self._process.sleep(self._settings.bind_poll_s or 1.0)
            if await self._sampler.changed():
                self._sampler.wake()

    async def _dump(self) -> None:
        folder, wanted = self._process.path(self._settings.dump_dir), self._settings
        while True:
            await self._process.sleep(wanted.interval_s)
            try:
                dump.write(folder, self.state(), self._process.now(), compressed=wanted.dump_compressed)
                dump.clean(folder, wanted.dump_retention_h)
            except OSError as error:
                self._say(f"what was sampled cannot be written to {wanted.dump_dir}: {error}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log.warning(text)

    # --- a scrape -----------------------------------------------------------------------------------------------------

    async def scrape(self) -> bytes:
        """The figures. Raises ScrapeError."""
        uses = await self._pod_resources.uses() if self._settings.kubernetes else []
        try:
            found = self._document(uses)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            self._log.error(f"a scrape failed: {type(error).__name__}: {error}")
            raise ScrapeError(f"the figures cannot be put together: {type(error).__name__}: {error}") from error
        if self._settings.debug:
            ages = [round(self._process.monotonic() - each.taken, 1) for each in self._sampler.snapshot.samples]
            self._log.info(f"scrape: {len(found)} bytes, {len(uses)} devices of pods, samples {ages} s old")
        return found

    def _document(self, uses: Sequence[mapping.Use]) -> bytes:
        snapshot, counters, wanted = self._sampler.snapshot, self._counters, self._settings
        shown, plain = self._rows(snapshot, counters)
        facts, slices, jobs_of = self._cluster.facts, self._cluster.slices, self._jobs()
        key = (uses, facts, slices, jobs_of)
        if self._answer is not None and self._answer[0] == key:
            return self._answer[1]
        world = derived.World(shown, snapshot, self._history, wanted, self._process.monotonic())
        of_windows = list(derived.families(counters, world))
        made = [*plain, *of_windows]
        users = None
        if uses:
            users = Users(uses, mapping.Places.of(self._sampler.gpus), wanted, facts, slices)
            if wanted.virtual_gpus:
                made = self._per_process(made, shown, users)
        found = text.document(render(made, shown, users, jobs_of))
        if not of_windows and not wanted.virtual_gpus:  # else it depends on the clock, and on processes
            self._answer = key, found
        return found

    def _rows(self, snapshot: Snapshot, counters: Counters) -> tuple[list[Entity], list[Family]]:
        """What changes only when samples were taken or an error came: made once for all scrapes until then."""
        key = (id(snapshot), id(counters), self._history.version)
        if self._made is None or self._made[0] != key:
            shown = families.entities(snapshot, counters, self._history, self._settings)
            if reason := families.without_profiling(snapshot, counters):
                self._say(reason)
            self._answer = None
            self._made = key, snapshot, counters, shown, list(families.plain(shown, counters, snapshot, self._history))
        return self._made[3], self._made[4]

    def _per_process(self, made: Sequence[Family], shown: Sequence[Entity], users: Users) -> list[Family]:
        pids = {process.pid for entity in shown for process in entity.sample.processes}
        pod_of = pods.pods_of(self._process, pids)
        return [
            mapping.per_process(family, shown, users, pod_of) if family.name in PER_PROCESS else family
            for family in made
        ]

    def _jobs(self) -> Mapping[str, tuple[str, ...]]:
        if not self._settings.job_mapping_dir:
            return {}
        try:
            return jobs.read(self._process.path(self._settings.job_mapping_dir))
        except jobs.JobsError as error:
            self._say(f"{error}; rows say nothing of jobs until it can")
            return {}

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


def render(
    made: Sequence[Family], shown: Sequence[Entity], users: Users | None, jobs_of: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """The output: each row once for each who uses its device and each job on it; a series without rows is left out."""
    using = [users.of(entity) if users is not None else [] for entity in shown]
    working = [jobs.of(entity, jobs_of) for entity in shown]
    ready = [_variants(entity, using[at], working[at]) for at, entity in enumerate(shown)]
    parts: list[str] = []
    for family in made:
        if not family.rows:
            continue
        parts.append(text.head(family))
        name = family.name
        for row in family.rows:
            at = row.entity
            if not (row.labels or row.attributes or row.settled):
                labels = ready[at]
            else:
                labels = _variants(shown[at], [] if row.settled else using[at], working[at], row.labels, row.attributes)
            parts += [f"{name}{{{each}}} {row.value}\n" for each in labels]
    return parts


def _variants(
    entity: Entity,
    using: Sequence[mapping.User],
    working: Sequence[str],
    labels: Mapping[str, str] | None = None,
    attributes: Mapping[str, str] | None = None,
) -> list[str]:
    """The labels of a row, once for each user and job."""
    own_labels, own_attributes = {**entity.labels, **(labels or {})}, dict(attributes or {})
    found = []
    for user in using or (mapping.User({}),):
        for job in working or ("",):
            whole = {**own_attributes, **user.attributes, **({jobs.LABEL: job} if job else {})}
            found.append(text.labelled(entity.base, {**user.labels, **own_labels}, whole))
    return found


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
