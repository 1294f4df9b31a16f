"""`nvidia-device-plugin`: the program's life, from its configuration to the kubelet and round again.

A *cycle* reads the configuration, finds the devices, writes the CDI specs, serves one socket a resource and registers
each with the kubelet (contracts/device-plugin-gfd.md 3). It begins anew on SIGHUP, when the kubelet's socket is made
anew, when an own socket is lost, and 30 s after it has failed. Another instance that takes an own socket over is not
fought: this one stands by until that one is gone.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from ...api import names
from .. import config as configs
from .. import kubeletapi, options, platforms, resources, watch
from ..cdi.model import SpecError
from ..cdi.options import GenerateError
from ..cdi.roots import simulated
from ..config import AllocationPolicy, PluginConfig
from ..devices.model import Inventory
from ..devices.source import DeviceError, Source
from ..mps import client as mps
from ..platforms import Platform
from ..process import ENDING, Process, wait_any
from ..sharing import SharingStrategy
from . import cdispec, health, imex
from .answers import Answers, Extras
from .preference import Preference
from .server import Identity, ResourceServer, ServeError, Service, TooManyCrashes, answers_on

RETRY_S: Final = 30.0
"""Seconds after which a cycle that failed is tried again."""
STAND_BY_MAX_S: Final = 600.0
"""The longest time between two looks whether another instance still serves."""
_NO_GPUS: Final = Inventory("", 0)


class Fatal(RuntimeError):  # noqa: N818 - reads as a fact
    """The program cannot do what it is asked to, and ends with exit code 1."""


async def run(process: Process) -> int:
    """`nvidia-device-plugin`."""
    try:
        config = configs.load_plugin(process)
    except options.Leave as leave:
        return leave.tell(process)
    return await _Life(process, config.kubelet_socket).run()


class _Life:
    """The cycles of one run of the program."""

    def __init__(self, process: Process, kubelet_socket: str) -> None:
        self._process = process
        self._log = process.log
        self._kubelet = process.path(kubelet_socket) if kubelet_socket else None
        self._seen: Identity | None = None
        """The kubelet's socket as it was when this cycle began."""
        self._servers: list[ResourceServer] = []
        self._taken: list[Path] = []
        """Own sockets that another instance has replaced by its own."""

    async def run(self) -> int:
        """Until the program is asked to end, or cannot go on; its exit code."""
        folders = [self._process.path(kubeletapi.DEVICE_PLUGIN_DIR)]
        if self._kubelet is not None:
            folders.append(self._kubelet.parent)
        async with watch.paths(*dict.fromkeys(folders)) as changes:
            work: Callable[[], Awaitable[None]] = self._cycle
            while True:
                outcome = await self._until(work(), changes)
                if isinstance(outcome, int):
                    return outcome
                work = outcome

    async def _until(self, work: Awaitable[None], changes: watch.Changes) -> "int | Callable[[], Awaitable[None]]":
        """Do some work until it is done or something asks for other work: what comes next, or the exit code."""
        working = asyncio.ensure_future(work)
        signalled = asyncio.ensure_future(self._process.signal())
        changed = asyncio.ensure_future(self._changed(changes))
        try:
            await asyncio.wait({working, signalled, changed}, return_when=asyncio.FIRST_COMPLETED)
            if signalled.done() and (number := signalled.result()) is not None:
                if number in ENDING:
                    self._log.info(f"received {number.name}: ending")
                    return 0
                self._log.info(f"received {number.name}: starting anew")
                return self._cycle
            if changed.done():
                return changed.result()
            return self._after(working)
        finally:
            for task in (working, signalled, changed):
                task.cancel()
            await asyncio.gather(working, signalled, changed, return_exceptions=True)

    def _after(self, working: "asyncio.Future[None]") -> "int | Callable[[], Awaitable[None]]":
        """What comes after work that has ended by itself."""
        try:
            working.result()
        except options.Leave as leave:
            return leave.tell(self._process)
        except (Fatal, TooManyCrashes) as error:
            self._log.error(str(error))
            return 1
        except (ServeError, mps.DaemonNotReady) as error:
            self._say_again(error)
            return self._pause
        return self._cycle

    def _say_again(self, error: Exception) -> None:
        self._log.error(f"{error}; trying again in {RETRY_S:g} s")

    async def _pause(self) -> None:
        await self._process.sleep(RETRY_S)

    # --- what asks for a new cycle ------------------------------------------------------------------------------------

    async def _changed(self, changes: watch.Changes) -> Callable[[], Awaitable[None]]:
        """Wait until the sockets ask for other work. Looks at what is, not at what the watch tells happened."""
        while (found := self._look()) is None:
            await changes.next()
        return found

    def _look(self) -> Callable[[], Awaitable[None]] | None:
        if self._kubelet is not None:
            now = Identity.of(self._kubelet)
            if now is not None and now != self._seen:
                self._log.info(f"the kubelet's socket {self._kubelet} was made anew: starting anew")
                return self._cycle
        if any(not path.exists() for path in self._taken):
            self._log.info("the other instance of the device plugin has gone: starting anew")
            return self._cycle
        lost = [server for server in self._servers if server.identity is not None]
        lost = [server for server in lost if Identity.of(server.path) != server.identity]
        if not lost:
            return None
        self._taken = [server.path for server in lost if server.path.exists()]
        if self._taken:
            return self._stand_by
        self._log.warning(f"own socket {lost[0].path} has disappeared: starting anew")
        return self._cycle

    async def _stand_by(self) -> None:
        """Wait until the instance that has taken over answers no more."""
        pause_s = RETRY_S
        names = ", ".join(path.name for path in self._taken)
        while True:
            self._log.error(
                f"another instance of the device plugin has taken over {names}; this one stands by until that one is "
                f"gone, and looks again in {pause_s:g} s. Is there more than one device plugin on this node?"
            )
            await self._process.sleep(pause_s)
            if not all([await answers_on(path) for path in self._taken]):
                return
            pause_s = min(pause_s * 2, STAND_BY_MAX_S)

    # --- a cycle ------------------------------------------------------------------------------------------------------

    async def _cycle(self) -> None:
        """Serve everything until cancelled, or until it is time to try again what cannot be served now.

        Raises Leave, Fatal or TooManyCrashes if the program must end; ServeError or DaemonNotReady if it may be tried
        again.
        """
        self._taken = []
        self._seen = Identity.of(self._kubelet) if self._kubelet is not None else None
        config = configs.load_plugin(self._process)
        recovery_s = health.recovery_period(self._process.env)
        async with contextlib.AsyncExitStack() as stack:
            source = self._process.devices(config.container_driver_root)
            stack.callback(source.close)
            served = await _find(self._process, config, source)
            await _ask_mps(self._process, served)
            extras = _extras(self._process, config, served)
            board = health.Board()
            monitor = asyncio.create_task(_watch_health(self._process, source, served, board, recovery_s))
            stack.push_async_callback(_end, monitor)
            await asyncio.sleep(0)  # what the driver knows already is on the board before the first list is sent
            stack.push_async_callback(self._stop)
            ends: list[Awaitable[object]] = [monitor]
            try:
                for offer in served.offers:
                    await self._start(config, offer, served.platform, source, extras, board)
            except ServeError as error:  # those that serve already go on until then (section 3)
                self._say_again(error)
                ends.append(self._pause())
            if not served.offers:
                self._log.info("No devices found. Waiting indefinitely.")
            await wait_any(*ends, *(server.supervise() for server in self._servers))

    async def _start(
        self,
        config: PluginConfig,
        offer: resources.Offer,
        platform: Platform,
        source: Source,
        extras: Extras,
        board: health.Board,
    ) -> None:
        """Serve and register one resource. Raises ServeError; it is not served then."""
        answers = Answers(offer, config, extras, lambda node: self._process.path(node).exists())
        policy = AllocationPolicy.DISTRIBUTED if platform is Platform.TEGRA else config.allocation_policy
        preference = Preference(offer, policy, self._process.release, source)
        service = Service(self._process, offer, answers, preference, board)
        server = ResourceServer(self._process, offer.resource, service, self._kubelet)
        self._servers.append(server)
        try:
            await server.start()
        except ServeError:
            self._servers.remove(server)
            await server.stop()
            raise
        if self._seen is None and self._kubelet is not None:  # made between the cycle's begin and the registration
            self._seen = Identity.of(self._kubelet)

    async def _stop(self) -> None:
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop() for server in servers))


# --- what a cycle serves ----------------------------------------------------------------------------------------------


class _Served(NamedTuple):
    """What was found, and under which resources it is offered."""

    platform: Platform
    offers: tuple[resources.Offer, ...]
    inventory: Inventory


async def _find(process: Process, config: PluginConfig, source: Source) -> _Served:
    """Find the devices and share them out to resources. Waits for ever where that is asked for (section 3).

    Raises Leave or Fatal.
    """
    has_library = source.has_library()
    platform = platforms.resolve(process, config.discovery, config.container_driver_root, has_library=has_library)
    configs.check_library(config, has_library=has_library)
    inventory = _NO_GPUS
    if platform is not Platform.TEGRA:
        inventory = await _inventory(process, config, source)
        if config.discovery == platforms.AUTO and platforms.has_tegra_gpu(inventory):
            platform = Platform.TEGRA
    _tell(process, config, inventory)
    try:
        offers = _offers(process, config, platform, inventory)
    except resources.ResourceError as error:
        raise Fatal(str(error)) from error
    return _Served(platform, offers, inventory)


async def _inventory(process: Process, config: PluginConfig, source: Source) -> Inventory:
    """All GPUs, from the driver; waits for ever if it cannot be reached and failOnInitError is false."""
    try:
        await asyncio.to_thread(source.open)
    except DeviceError as error:
        _tell(process, config, _NO_GPUS)
        text = (
            f"failed to initialize NVML: {error}. Is the driver installed and loaded, and its root mounted at "
            f"{config.container_driver_root}? On a machine without GPUs this program is not needed"
        )
        if config.fail_on_init_error:
            raise Fatal(text) from error
        process.log.error(f"{text}; waiting indefinitely, as failOnInitError is false")
        await asyncio.Event().wait()
    try:
        return await asyncio.to_thread(source.inventory)
    except DeviceError as error:
        _tell(process, config, _NO_GPUS)
        raise Fatal(f"the GPUs cannot be enumerated: {error}") from error


def _tell(process: Process, config: PluginConfig, inventory: Inventory) -> None:
    """Log the configuration at each start, whether the GPUs can be asked for their resources or not (section 1)."""
    for warning in config.warnings:
        process.log.warning(warning)
    process.log.info(f"Running with config:\n{config.effective(resources.patterns(config.mig_strategy, inventory))}")


def _offers(
    process: Process, config: PluginConfig, platform: Platform, inventory: Inventory
) -> tuple[resources.Offer, ...]:
    """What is offered on a kind of machine. Raises ResourceError."""
    alone = {Platform.WSL: resources.WSL_DEVICE, Platform.TEGRA: resources.TEGRA_DEVICE}.get(platform)
    if alone is None:
        return resources.offers(inventory, config.mig_strategy, config.sharing, process.kernel, process.log.warning)
    if platform is Platform.WSL and not inventory.gpus:
        return ()
    return (resources.offer(names.GPU_RESOURCE, [alone], config.sharing),)


async def _ask_mps(process: Process, served: _Served) -> None:
    """See that the daemon of each resource that is shared by MPS answers. Raises Fatal or DaemonNotReady."""
    for offer in served.offers:
        if offer.strategy is SharingStrategy.MPS:
            if any(device.is_mig for device in offer.devices):
                raise Fatal(str(mps.refuse_mig(offer.resource)))
            await mps.check(process, offer.resource)


def _extras(process: Process, config: PluginConfig, served: _Served) -> Extras:
    """IMEX channels that are there, and the CDI specs that were written. Raises Fatal."""
    null = simulated(process)
    dev_root = cdispec.roots(config, process).dev
    try:
        channels = imex.available(process, config.imex_channels, dev_root, required=config.imex_required, any_kind=null)
        if not config.cdi:
            return Extras(channels)
        devices = tuple(device for offer in served.offers for device in offer.devices)
        offered = cdispec.Offered(served.platform, served.inventory, devices, channels)
        written = cdispec.write_all(cdispec.specs(process, config, offered), process.path)
    except imex.ChannelMissing as error:
        raise Fatal(str(error)) from error
    except GenerateError as error:
        raise Fatal(f"the CDI spec cannot be made: {error}") from error
    except (SpecError, OSError) as error:
        raise Fatal(f"the CDI spec cannot be written: {error}") from error
    process.log.info(f"CDI specs written: {', '.join(written) or 'none'}")
    return Extras(channels, tuple(each for each in written if each in cdispec.MODES))


async def _watch_health(
    process: Process, source: Source, served: _Served, board: health.Board, recovery_s: float | None
) -> None:
    """Follow the devices' health. Does not return, whether it can be followed or not."""
    devices = [device for offer in served.offers for device in offer.devices]
    if served.platform is Platform.NVML and devices:
        monitor = health.Monitor(
            process,
            source,
            board,
            gpus=[device.id for device in devices if not device.is_mig],
            migs=[device.id for device in devices if device.is_mig],
            rules=health.XidRules.parse(process.env.get(health.DISABLE, ""), process.env.get(health.ENABLE, "")),
            recovery_s=recovery_s,
        )
        await monitor.run()
    await asyncio.Event().wait()


async def _end(task: "asyncio.Task[None]") -> None:
    """End a task; how it ended is of no more interest."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
