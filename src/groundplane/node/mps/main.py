"""The program `mps-control-daemon`: daemons for the resources that are shared by MPS, and the subcommand `mount-shm`.

Source: contracts/device-plugin-gfd.md 6. A round is one configuration's: it starts the daemons, says that they are
ready, and keeps them until a signal comes or one fails; then all are ended, and the next round reads the configuration
anew. A container that is killed leaves daemons and markers behind, which the next run clears first.
"""

import asyncio
from collections.abc import Iterable
from signal import Signals
from typing import Final

from .. import resources
from ..config import MpsConfig, load_mps
from ..devices.model import Inventory
from ..devices.source import DeviceError
from ..options import Leave
from ..process import ENDING, Process, wait_any
from ..resources import Offer, ResourceError
from ..sharing import SharingStrategy
from . import paths, shm
from .daemon import Daemon, DaemonFailed, clear, left_over, quit_daemon

RETRY_S: Final = 30.0
_DONE, _FAILED = 0, 1
_NO_GPUS: Final = Inventory("", 0)
_MOUNT: Final = "mount-shm"


async def run(process: Process) -> int:
    """Run the program until a signal asks for the end; its exit code."""
    try:
        config = load_mps(process)
        if config.word == _MOUNT:
            await shm.mount(process)
            return _DONE
        await _clear_left_over(process)
        while await _round(process, config):
            config = load_mps(process)
    except Leave as leave:
        return leave.tell(process)
    except (DeviceError, ResourceError, shm.MountError) as error:
        process.log.error(str(error))
        return _FAILED
    except OSError as error:
        process.log.error(f"the MPS root cannot be written: {error}")
        return _FAILED
    return _DONE


async def _round(process: Process, config: MpsConfig) -> bool:
    """Daemons by one configuration; whether another round follows."""
    daemons = [Daemon(process, offer) for offer in await _wanted(process, config)]
    keeper, heard = Keeper(process, daemons), list[Signals]()
    try:
        await wait_any(keeper.work(), _hear(process, heard))
    except DaemonFailed as error:
        process.log.error(str(error))
    await keeper.stop()
    number = heard[0] if heard else None
    if number is None:
        process.log.info(f"One or more MPS daemons failed. Restarting all in {RETRY_S:g} s")
        number = await process.signal(RETRY_S)
    if number is not None:
        process.log.info(f"Received signal {number.name}")
    return number not in ENDING


async def _wanted(process: Process, config: MpsConfig) -> list[Offer]:
    """What is shared by MPS and can be. Raises :class:`DeviceError`, :class:`ResourceError`.

    MPS knows no MIG devices: a resource that has some gets no daemon.
    """
    inventory = _NO_GPUS
    try:
        if config.sharing.mps:
            inventory = await asyncio.to_thread(_inventory, process)
    finally:
        _tell(process, config, inventory)
    offers = resources.offers(inventory, config.mig_strategy, config.sharing, process.kernel, process.log.warning)
    shared = [offer for offer in offers if offer.shared and offer.strategy is SharingStrategy.MPS]
    wanted = [offer for offer in shared if not any(device.is_mig for device in offer.devices)]
    for offer in shared:
        if offer not in wanted:
            process.log.warning(f"MPS does not share MIG devices: {offer.resource} gets no daemon")
    if not wanted:
        process.log.info("No resource is shared by MPS: waiting for another configuration")
    return wanted


def _tell(process: Process, config: MpsConfig, inventory: Inventory) -> None:
    """Log the configuration at each start, whether the GPUs can be asked for their resources or not (section 1)."""
    for warning in config.warnings:
        process.log.warning(warning)
    patterns = resources.patterns(config.mig_strategy, inventory)
    process.log.info(f"Running with config:\n{config.effective(patterns)}")


def _inventory(process: Process) -> Inventory:
    with process.devices() as source:
        return source.inventory()


class Keeper:
    """All daemons of one configuration, and the marker that says that they are ready."""

    def __init__(self, process: Process, daemons: Iterable[Daemon]) -> None:
        self._process = process
        self._daemons = tuple(daemons)
        self._begun: list[Daemon] = []

    async def work(self) -> None:
        """Start all, and keep them until one fails, which raises :class:`DaemonFailed`."""
        for daemon in self._daemons:
            self._begun.append(daemon)
            await daemon.start()
        ready = self._process.path(paths.READY)
        ready.parent.mkdir(parents=True, exist_ok=True)
        ready.touch()
        await wait_any(asyncio.Event().wait(), *(daemon.keep() for daemon in self._daemons))

    async def stop(self) -> None:
        """End all that was begun."""
        self._process.path(paths.READY).unlink(missing_ok=True)
        while self._begun:
            await self._begun.pop().stop()


async def _clear_left_over(process: Process) -> None:
    process.path(paths.READY).unlink(missing_ok=True)
    for resource in left_over(process):
        process.log.warning(f"the MPS daemon for {resource} is left over from a run that was killed; ending it")
        await quit_daemon(process, resource)
        clear(process, resource)


async def _hear(process: Process, heard: list[Signals]) -> None:
    number = await process.signal()
    if number is not None:
        heard.append(number)
