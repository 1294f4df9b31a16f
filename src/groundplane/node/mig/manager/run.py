"""One run: the node's GPUs as one layout wants them, in the order of contracts/mig-exporter-validator.md 3.5.

Whatever ends a run before its end, the host's services and the operands go on and the state is ``failed``; only a kill
leaves something behind, which the next run starts from. A run keeps nothing for the next one.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import msgspec

from ...devices.source import DeviceError
from ...process import Process
from ..errors import MigError, NotApplied
from ..layout import Layout
from . import cdi, operands, services
from .cluster import Cluster, Now, State
from .errors import ManagerError, StepError, step, told
from .gpus import Gpus
from .host import Host
from .services import Services
from .settings import Settings
from .undo import UNFINISHED, Undo

SETTLE_S: Final = 30.0
"""How long stopped services are given to let go of GPUs before MIG mode is changed."""
REBOOT_S: Final = 900.0
"""How long the host may take to end this program once it was told to reboot."""
_NO_MORE_REBOOT: Final = (
    "the node has been rebooted for this layout, and is not rebooted for it again; look at the GPUs (nvidia-smi -q), "
    "then set the label anew"
)


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended; ``undone`` says whether nothing is left paused or stopped."""

    state: State
    failure: str = ""
    undone: bool = True


class Parts(NamedTuple):
    """What runs are done with."""

    process: Process
    settings: Settings
    cluster: Cluster
    host: Host
    services: Services
    gpus: Gpus
    undo: Undo


async def run(parts: Parts, name: str, *, fresh: bool) -> Outcome:
    """Let the node have a layout. `fresh`: somebody has just asked for it, so that a reboot for it may be repeated.

    What is to be expected ends as an outcome; when this is cancelled, what was paused goes on first.
    """
    this = _Run(parts, name, fresh=fresh)
    try:
        await this.steps()
    except StepError as error:
        failure = str(error)
        parts.process.log.error(f"MIG layout {name!r}: {failure}")
        return Outcome(State.FAILED, failure, undone=await _surely(parts.undo.failed(failure)))
    except BaseException as error:
        if not this.rebooting:
            what = "the MIG manager was ended" if isinstance(error, asyncio.CancelledError) else f"{error!r}"
            await _surely(parts.undo.failed(f"{this.doing}: {what}; it will go on when it runs again"))
        raise
    parts.process.log.info(f"MIG layout {name!r} is applied")
    return Outcome(State.SUCCESS)


async def _surely(work: Coroutine[Any, Any, bool]) -> bool:
    """Do something to its end, also if this is cancelled meanwhile."""
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise


class _Run:
    def __init__(self, parts: Parts, name: str, *, fresh: bool) -> None:
        self._parts = parts
        self._name = name
        self._fresh = fresh
        self._log = parts.process.log
        self.doing = "starting"
        self.rebooting = False

    async def steps(self) -> None:
        """All steps. Raises :class:`~.errors.StepError`."""
        gpus, cluster = self._parts.gpus, self._parts.cluster
        with self._step("reading the node's labels"):
            now = await cluster.now()
        with self._step("validating the layout"):
            wanted = gpus.layout(self._name)
        with self._step("comparing the GPUs with the layout"):
            applied = self._differing(wanted) is None
        if not applied:
            await self._change(wanted, now)
        if not applied or self._was_interrupted(now):
            await self._follow_up(wanted)
        with self._step("starting host services"):
            await self._parts.services.restart()
        with self._step("restoring operands"):
            labels = operands.restore((await cluster.now()).labels, self._parts.process.release)
            await cluster.write(State.SUCCESS, labels, rebooted_for=None)

    def _was_interrupted(self, now: Now) -> bool:
        """Whether an earlier run did not come to its end, so that what follows a change may still be to be done."""
        return now.state in (*UNFINISHED, State.FAILED) or bool(operands.paused(now.labels))

    # --- changing the GPUs: steps 4 to 11 -----------------------------------------------------------------------------

    async def _change(self, wanted: Layout, now: Now) -> None:
        gpus, settings = self._parts.gpus, self._parts.settings
        with self._step("validating the layout"):
            gpus.check(wanted)
        with self._step("configuring the host's MIG service"):
            await self._tell_host()
        with self._step("comparing MIG mode with the layout"):
            mode = self._differing(wanted, mode_only=True)
            if mode is not None and now.state == State.REBOOTING:
                raise ManagerError(f"{told(mode)}; {_NO_MORE_REBOOT}")
        with self._step("reading the list of host services"):
            stopping = services.load(self._parts.process, settings.clients_file) if settings.with_services else ()
        if settings.with_services and mode is not None and settings.kubelet_service not in stopping:
            stopping = (*stopping, settings.kubelet_service)
        await self._pause(now)
        if settings.with_services:
            with self._step("stopping host services"):
                await self._parts.services.stop(stopping)
            if mode is not None:
                await self._parts.process.sleep(SETTLE_S)
        await self._change_mode(wanted, now)
        with self._step("applying the layout"):
            await gpus.apply(wanted)

    async def _tell_host(self) -> None:
        """Let the host's own MIG service, where there is one, want the same after a reboot."""
        host, file = self._parts.host, self._parts.settings.state_file
        if not file or not host.files.is_file(file):
            return
        text = f'[Service]\nEnvironment="MIG_PARTED_SELECTED_CONFIG={self._name}"\n'
        host.write(file, text, mode=0o600)
        await host.run("systemctl", "daemon-reload")

    async def _pause(self, now: Now) -> None:
        cluster = self._parts.cluster
        with self._step("setting the state"):
            await cluster.write(State.PENDING)
        with self._step("pausing operands"):
            await cluster.label(operands.pause(now.labels, self._parts.process.release))
        with self._step("waiting for operands to end"):
            await cluster.operands_gone()
        with self._step("deleting pods that use GPUs"):
            await cluster.delete(operands.WORKLOADS)

    async def _change_mode(self, wanted: Layout, now: Now) -> None:
        """Change MIG mode. Where that fails, reboot if that is wanted; else applying the layout will tell."""
        gpus = self._parts.gpus
        self.doing = "changing MIG mode"
        try:
            await gpus.apply(wanted, mode_only=True)
            gpus.require(wanted, mode_only=True)
        except (MigError, DeviceError) as error:
            if not self._parts.settings.with_reboot:
                self._log.warning(f"changing MIG mode: {told(error)}")
                return
            if now.rebooted_for == self._name and not self._fresh:
                raise StepError(f"changing MIG mode: {told(error)}; {_NO_MORE_REBOOT}") from error
            self._log.warning(f"changing MIG mode: {told(error)}; rebooting the node")
            await self._reboot()

    async def _reboot(self) -> None:
        """Reboot, and never come back but with an error: who starts after the reboot goes on."""
        with self._step("setting the state before the reboot"):
            await self._parts.cluster.write(State.REBOOTING, rebooted_for=self._name)
        with self._step("rebooting the node"):
            self.rebooting = True
            await self._parts.host.run("reboot")
            await self._parts.process.sleep(REBOOT_S)
            raise ManagerError(f"the host was told to reboot, and has not done so in {REBOOT_S:g} s")

    # --- what follows a change: steps 12 to 14 ------------------------------------------------------------------------

    async def _follow_up(self, wanted: Layout) -> None:
        process, settings = self._parts.process, self._parts.settings
        if settings.cdi:
            with self._step("writing the CDI spec of management containers"):
                file = await cdi.refresh(process, settings)
                self._log.info(f"wrote {file}")
        with self._step("starting host services"):
            await self._parts.services.restart()
        with self._step("comparing the GPUs with the layout at the end"):
            self._parts.gpus.require(wanted)
        with self._step("deleting the validator's pods"):
            await self._parts.cluster.delete((operands.VALIDATOR,))

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _step(self, name: str) -> AbstractContextManager[None]:
        self.doing = name
        return step(name)

    def _differing(self, wanted: Layout, *, mode_only: bool = False) -> NotApplied | None:
        """How the GPUs differ from the layout, or None."""
        try:
            self._parts.gpus.require(wanted, mode_only=mode_only)
        except NotApplied as differing:
            return differing
        return None
