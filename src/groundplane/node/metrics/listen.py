"""Listening for Xid errors: the driver's events and the kernel's log, for as long as the exporter runs.

What is heard goes into the ``history``; what the errors mean is ``api.xids``' part.
"""

from typing import Final

from ..devices.source import DeviceError, EventKind, Source, Watch
from ..process import Log, Process, wait_any
from . import kernellog
from .history import History, Origin
from .sampler import Sampler, in_thread

KERNEL_LOG_S: Final = 1.0
"""Seconds between two looks into the kernel's log."""


class Listener:
    """Notes the errors of all GPUs that are sampled."""

    def __init__(
        self, process: Process, log: Log, source: Source, sampler: Sampler, history: History, interval_s: float
    ) -> None:
        self._process = process
        self._log = log
        self._source = source
        self._sampler = sampler
        self._history = history
        self._interval_s = interval_s
        self._said: set[str] = set()

    async def hear_driver(self) -> None:
        """Note Xid errors as the driver tells them."""
        await self._sampler.passed.wait()
        while True:
            uuids = frozenset(gpu.uuid for gpu in self._sampler.gpus)
            if not uuids or not await self._hear(uuids):
                await self._process.sleep(min(self._interval_s, 1.0))

    async def _hear(self, uuids: frozenset[str]) -> bool:
        """Note the Xid errors of some GPUs until there are others; False if the driver tells none, or no more."""
        try:
            events = self._source.watch(uuids, EventKind.XID)
        except DeviceError as error:
            self._say(f"the driver tells no Xid errors: {error}")
            return False
        heard = len(uuids) - len(events.unsupported) - len(events.failed)
        self._log.info(f"listening to the driver's Xid errors of {heard} GPUs")
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
            await self._process.sleep(min(self._interval_s, 5.0))

    async def hear_kernel(self) -> None:
        """Note Xid errors that the kernel's log tells, where it can be read."""
        try:
            log = kernellog.KernelLog.open(self._process.path(kernellog.PATH))
        except OSError as error:
            self._log.info(f"the kernel's log cannot be read ({error.strerror}): Xid errors are those that NVML tells")
            return
        self._log.info("reading Xid errors in the kernel's log")
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

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log.warning(text)
