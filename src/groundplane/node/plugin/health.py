"""Health of the served devices: which events of the driver make which device unhealthy, and whether it recovers.

The rules (contracts/device-plugin-gfd.md 5) are pure; :class:`Monitor` follows the driver's events, and looks from time
to time whether each GPU still gives a sign of life. What is unhealthy stands on a :class:`Board`, from which the
servers of all resources read. Replicas of a device share its health.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from ..devices.model import NO_INSTANCE
from ..devices.source import DeviceError, Event, EventKind, Lost, NotFound, Source, Watch
from ..options import Duration, OptionError
from ..process import Process, wait_any

DISABLE: Final = "DP_DISABLE_HEALTHCHECKS"
ENABLE: Final = "DP_ENABLE_HEALTHCHECKS"
RECOVERY: Final = "DP_HEALTH_RECOVERY_PERIOD"
"""Ours: how long (as Go writes durations) a device must be silent and alive to be healthy again; unset: never."""

DEFAULT_IGNORED: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that an application causes by itself, not its GPU."""
EVENTS: Final = EventKind.XID | EventKind.DOUBLE_BIT_ECC | EventKind.SINGLE_BIT_ECC
LOOK_S: Final = 5.0
"""Seconds between two looks whether the GPUs are still there."""
PAUSE_S: Final = 1.0
"""Seconds of rest after waiting for events has failed."""


# --- rules ------------------------------------------------------------------------------------------------------------


class XidRules(msgspec.Struct, frozen=True):
    """Which Xids make a device unhealthy. What is enabled wins over what is disabled."""

    disabled: frozenset[int] = DEFAULT_IGNORED
    all_disabled: bool = False
    enabled: frozenset[int] = frozenset()
    all_enabled: bool = False

    @classmethod
    def parse(cls, disable: str, enable: str) -> "XidRules":
        """Read the two environment variables; items that are no Xid are passed over, as upstream does."""
        disabled, all_disabled = _xids(disable)
        enabled, all_enabled = _xids(enable)
        return cls(disabled | DEFAULT_IGNORED, all_disabled, enabled, all_enabled)

    def ignores(self, xid: int) -> bool:
        """Whether an Xid says nothing about a device's health."""
        if self.all_enabled or xid in self.enabled:
            return False
        return self.all_disabled or xid in self.disabled

    @property
    def off(self) -> bool:
        """Whether no Xid counts, so that nothing needs to be watched."""
        return self.all_disabled and not self.all_enabled and not self.enabled


def _xids(text: str) -> tuple[frozenset[int], bool]:
    words = [word.strip() for word in text.lower().split(",")]
    numbers = frozenset(int(word) for word in words if word.isascii() and word.isdecimal())
    return numbers, "all" in words or "xids" in words


class Watched(msgspec.Struct, frozen=True):
    """A served device as the health rules see it. ``gi`` and ``ci`` are None for a whole GPU."""

    id: str
    gpu_uuid: str
    gi: int | None = None
    ci: int | None = None


def hit(event: Event, devices: Iterable[Watched]) -> list[str]:
    """The ids of the devices that an event concerns.

    An event of a MIG device (both instances named) concerns that one, and whoever serves the GPU as a whole; any other
    event all devices of the GPU; one whose GPU cannot be told all devices.
    """
    if not event.uuid:
        return [device.id for device in devices]
    instance = event.gi != NO_INSTANCE and event.ci != NO_INSTANCE
    return [
        device.id
        for device in devices
        if device.gpu_uuid == event.uuid
        and (not instance or device.gi is None or (device.gi, device.ci) == (event.gi, event.ci))
    ]


def place(source: Source, mig_uuid: str) -> Watched:
    """Where a MIG device is. Raises :class:`DeviceError`, whose text has the device's UUID and the driver's error."""
    try:
        placed = source.placement(mig_uuid)
    except DeviceError as error:
        raise DeviceError(f"placement of MIG device {mig_uuid} is unknown: {error}", error.code) from error
    return Watched(mig_uuid, placed.gpu_uuid, placed.gi, placed.ci)


def recovery_period(env: Mapping[str, str]) -> float | None:
    """The configured healthy period in seconds, None for no recovery. Raises :class:`OptionError`."""
    text = env.get(RECOVERY, "")
    if not text:
        return None
    try:
        seconds = Duration.parse(text).seconds
    except ValueError as error:
        raise OptionError(f'invalid value "{text}" from environment variable {RECOVERY}: {error}') from None
    if seconds <= 0:
        raise OptionError(f'invalid value "{text}" from environment variable {RECOVERY}: expected more than 0s')
    return None if seconds == float("inf") else seconds


# --- state ------------------------------------------------------------------------------------------------------------


class Board:
    """What is unhealthy, and why. Listeners are called after each change."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []

    def listen(self, changed: Callable[[], None]) -> None:
        """Call a function after each change."""
        self._listeners.append(changed)

    def is_healthy(self, device: str) -> bool:
        """Whether a (physical) device is healthy."""
        return device not in self._reasons

    @property
    def unhealthy(self) -> Mapping[str, str]:
        """The unhealthy devices with the reasons."""
        return self._reasons

    def fail(self, devices: Iterable[str], reason: str) -> list[str]:
        """Note devices as unhealthy; those that were healthy are returned."""
        fresh = [device for device in devices if device not in self._reasons]
        self._reasons.update(dict.fromkeys(fresh, reason))
        if fresh:
            self._tell()
        return fresh

    def recover(self, devices: Iterable[str]) -> None:
        """Note devices as healthy again."""
        known = [device for device in devices if device in self._reasons]
        for device in known:
            del self._reasons[device]
        if known:
            self._tell()

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()


# --- monitor ----------------------------------------------------------------------------------------------------------


class Monitor:
    """Follows the health of devices: whole GPUs and MIG devices, by their ids. Those that fail stand on the board."""

    def __init__(
        self,
        process: Process,
        source: Source,
        board: Board,
        *,
        gpus: Collection[str],
        migs: Collection[str],
        rules: XidRules,
        recovery_s: float | None = None,
    ) -> None:
        self._process = process
        self._log = process.log
        self._source = source
        self._board = board
        self._rules = rules
        self._recovery = _Recovery(recovery_s) if recovery_s is not None else None
        self._devices = [Watched(uuid, uuid) for uuid in gpus]
        self._migs = tuple(migs)
        self._gone: set[str] = set()
        self._odd: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled. Ends by itself only where there is nothing to watch or the driver cannot tell."""
        if self._rules.off:
            self._log.info(f"health checks are disabled ({DISABLE})")
            return
        self._place_migs()
        if not self._devices:
            return
        uuids = sorted({device.gpu_uuid for device in self._devices})
        try:
            watch = self._source.watch(uuids, EVENTS)
        except DeviceError as error:
            self._log.error(f"devices are served without health checks, as the driver cannot tell events: {error}")
            return
        try:
            self._registered(watch)
            await wait_any(self._events(watch), self._looks([uuid for uuid in uuids if uuid not in watch.failed]))
        finally:
            await watch.close()

    def _place_migs(self) -> None:
        for uuid in self._migs:
            try:
                self._devices.append(place(self._source, uuid))
            except DeviceError as error:
                self._fail([uuid], str(error))

    def _registered(self, watch: Watch) -> None:
        for uuid in sorted(watch.unsupported):
            self._log.warning(f"{uuid} is too old to tell events: its health is not watched")
        self._gone.update(watch.failed)  # not watched, and so never known to be healthy again
        for uuid, error in watch.failed.items():
            self._fail(
                hit(Event(EventKind.XID, uuid), self._devices), f"events of {uuid} cannot be registered: {error}"
            )

    async def _events(self, watch: Watch) -> None:
        while True:
            try:
                event = await watch.next()
            except DeviceError as error:
                self._fail([device.id for device in self._devices], f"waiting for events has failed: {error}")
                await self._process.sleep(PAUSE_S)
                continue
            self._event(event)

    def _event(self, event: Event) -> None:
        if event.kind is not EventKind.XID:
            return
        if self._rules.ignores(event.xid):
            self._log.info(f"Xid {event.xid} on {event.uuid or 'a GPU that cannot be told'} is ignored")
            return
        where = event.uuid or "a GPU that cannot be told, so that all count as hit"
        self._fail(hit(event, self._devices), f"Xid {event.xid} on {where}")

    async def _looks(self, uuids: list[str]) -> None:
        while True:
            await self._process.sleep(LOOK_S)
            for uuid in uuids:
                await self._look(uuid)
            self._recover()

    async def _look(self, uuid: str) -> None:
        """Ask a GPU for a sign of life; it is unhealthy if it is gone. Other errors are told once."""
        try:
            await asyncio.to_thread(self._source.check, uuid)
        except (Lost, NotFound) as error:
            self._gone.add(uuid)
            self._fail(hit(Event(EventKind.XID, uuid), self._devices), f"{uuid} is gone: {error}")
        except DeviceError as error:
            if self._odd.get(uuid) != str(error):
                self._log.warning(f"{uuid} gives no sign of life: {error}")
            self._odd[uuid] = str(error)
        else:
            self._gone.discard(uuid)
            self._odd.pop(uuid, None)

    def _fail(self, devices: list[str], reason: str) -> None:
        if self._recovery is not None:
            self._recovery.failed(devices, self._process.monotonic())
        fresh = self._board.fail(devices, reason)
        if fresh:
            until = "the plugin starts anew" if self._recovery is None else f"it is silent long enough ({RECOVERY})"
            for device in fresh:
                self._log.error(f"{device} is Unhealthy until {until}: {reason}")

    def _recover(self) -> None:
        """Take back devices that have been silent long enough and whose GPU gives a sign of life."""
        if self._recovery is None:
            return
        now = self._process.monotonic()
        ready = [
            device.id
            for device in self._devices
            if not self._board.is_healthy(device.id)
            and device.gpu_uuid not in self._gone
            and device.gpu_uuid not in self._odd
            and self._recovery.is_due(device.id, now)
        ]
        for device in ready:
            self._recovery.recovered(device)
            self._log.info(f"{device} is Healthy again: it was silent and alive for the time that {RECOVERY} asks for")
        self._board.recover(ready)


class _Recovery:
    """When devices may be healthy again. The period doubles with each relapse, so that none flaps."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last: dict[str, float] = {}
        self._times: dict[str, int] = {}

    def failed(self, devices: Iterable[str], now: float) -> None:
        self._last.update(dict.fromkeys(devices, now))

    def is_due(self, device: str, now: float) -> bool:
        return device in self._last and now - self._last[device] >= self._period_s * 2 ** self._times.get(device, 0)

    def recovered(self, device: str) -> None:
        del self._last[device]
        self._times[device] = self._times.get(device, 0) + 1
