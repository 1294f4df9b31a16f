"""`nvidia-driver`: its verbs, the sequence of `init`, and what signals do.

Source: contracts/driver-lifecycle.md 6.2 and 6.3.
"""

import asyncio
import contextlib
import getopt
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from ...api import names
from ..host import HostError
from ..programs import ContainerContext
from . import daemons, fabric, lock, modules, sidecars
from .install import HOOK, Installation, Options, Package
from .packages import RefusedError

SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)
_BANNER: Final = "\n========== {} ==========\n"
_USAGE: Final = """\
Usage: nvidia-driver COMMAND [OPTION...]

  init    [-a | --accept-license] [-m | --max-threads N]
  update  [-k | --kernel VERSION] [-s | --sign KEY] [-t | --tag TAG] [-m | --max-threads N]
  reload_nvidia_peermem
  probe_nvidia_peermem"""
_USAGE_RHEL: Final = """\
  build   [-a | --accept-license] [-m | --max-threads N] [-t | --tag TAG]
  load"""
_OPTIONS: Final = {
    "init": ("am:", ["accept-license", "max-threads="]),
    "update": ("k:s:t:m:", ["kernel=", "sign=", "tag=", "max-threads="]),
    "build": ("am:t:", ["accept-license", "max-threads=", "tag="]),
    "load": ("", []),
    "reload_nvidia_peermem": ("", []),
    "probe_nvidia_peermem": ("", []),
}
_MEANINGS: Final = {"m": "max_threads", "k": "kernel", "s": "sign", "t": "tag"}
_RHEL_ONLY: Final = ("build", "load")


class UsageError(ValueError):
    """The command line is none of those that there are."""


class Signals:
    """The signals that a process is sent, one after another; the kubelet's wish that it end is the first SIGTERM."""

    def __init__(self, ctx: ContainerContext) -> None:
        self.argv = ctx.argv
        self._ctx = ctx
        self._heard: asyncio.Queue[int] = asyncio.Queue()

    def deliver(self, number: int) -> None:
        """Take a signal; those that the program has no trap for do nothing."""
        if number in SIGNALS:
            self._heard.put_nowait(number)

    async def follow(self) -> None:
        """Take the container's end for a signal."""
        await self._ctx.stopping.wait()
        self.deliver(signal.SIGTERM)

    async def next(self) -> int:
        """The next signal."""
        return await self._heard.get()


def options(argv: Sequence[str], *, rhel: bool) -> tuple[str, Options]:
    """The verb and its options. Raises :class:`UsageError`."""
    verb = argv[1] if len(argv) > 1 else ""
    if verb not in _OPTIONS or (verb in _RHEL_ONLY and not rhel):
        raise UsageError(f"unknown command {verb!r}" if verb else "a command is missing")
    short, long = _OPTIONS[verb]
    try:
        found, rest = getopt.getopt(list(argv[2:]), short, long)
    except getopt.GetoptError as error:
        raise UsageError(str(error)) from error
    if rest:
        raise UsageError(f"{verb} takes no arguments, but there is {rest[0]!r}")
    values = {_MEANINGS[name.lstrip("-")[0]]: value for name, value in found if name.lstrip("-")[0] in _MEANINGS}
    threads = values.pop("max_threads", "1")
    if not threads.isdecimal():
        raise UsageError(f"--max-threads is {threads!r}; expected a number")
    return verb, Options(max_threads=int(threads), **values)


async def run(ctx: ContainerContext) -> int:
    """`nvidia-driver VERB`; an unknown one shows the usage and ends with 1."""
    rhel = ctx.host.spec.os.id in ("rhel", "rhcos")
    try:
        verb, given = options(ctx.argv, rhel=rhel)
    except UsageError as error:
        ctx.error(f"nvidia-driver: {error}\n{_USAGE}" + (f"\n{_USAGE_RHEL}" if rhel else ""))
        return 1
    return await _VERBS[verb](ctx, given)


# --- init -------------------------------------------------------------------------------------------------------------
async def init(ctx: ContainerContext, given: Options) -> int:
    """Install and load the driver, then hold it until a signal comes."""
    return await _held(ctx, Installation(ctx, given), _install)


async def load(ctx: ContainerContext, given: Options) -> int:
    """As `init`, with modules that are built already."""
    return await _held(ctx, Installation(ctx, given), _load_only)


Work = Callable[[Installation], Awaitable[None]]


async def _held(ctx: ContainerContext, installation: Installation, work: Work) -> int:
    version, kernel = installation.image.version, installation.kernel
    ctx.log(_BANNER.format("NVIDIA Software Installer"))
    ctx.log(f"Installing NVIDIA driver version {version} for Linux kernel version {kernel}")
    if ctx.host.has_host_driver():
        ctx.error("NVIDIA driver is already installed on the host; the driver container cannot run beside it")
        return 1
    if not ctx.host.gpus:
        ctx.error("No NVIDIA GPU detected on this node")
        return 1
    try:
        with lock.held(ctx):
            return await _until_signalled(ctx, installation, work)
    except lock.LockedError:
        ctx.error("An instance of the NVIDIA driver is already running, aborting")
        return 1


async def _until_signalled(ctx: ContainerContext, installation: Installation, work: Work) -> int:
    heard = Signals(ctx)
    following = asyncio.create_task(heard.follow())
    try:
        with ctx.container.runs(heard):
            if not await _started(ctx, installation, work, heard):
                await _shut_down(ctx, installation)
                return 1
            ctx.log("Done, now waiting for signal")
            while True:
                await heard.next()
                ctx.log("Caught signal")
                if await _shut_down(ctx, installation):
                    return 0
    finally:
        following.cancel()
        daemons.end_with_container(ctx)


async def _started(ctx: ContainerContext, installation: Installation, work: Work, heard: Signals) -> bool:
    """Whether the installation came to its end before a signal did."""
    working = asyncio.ensure_future(work(installation))
    signalled = asyncio.ensure_future(heard.next())
    try:
        await asyncio.wait({working, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            ctx.log("Caught signal")
            return False
        await working
    except (RefusedError, HostError, modules.KindError) as error:
        ctx.error(str(error))
        return False
    finally:
        for task in (working, signalled):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({working, signalled})
    return True


async def _shut_down(ctx: ContainerContext, installation: Installation) -> bool:
    """Unload and unmount; False if the driver is in use, when all stays as it is."""
    if not await _unload(ctx):
        return False
    installation.unmount()
    ctx.remove(names.DRIVER_PID_FILE)
    ctx.remove(HOOK)
    return True


async def _unload(ctx: ContainerContext) -> bool:
    return await daemons.stop(ctx) and modules.unload(ctx)


async def _install(installation: Installation) -> None:
    """RefusedError, HostError, KindError."""
    ctx = installation.ctx
    ctx.write(fabric.STATUS, "NotReady\n")
    if installation.is_loaded():
        ctx.log("The loaded driver has the wanted configuration: only user space is installed")
        installation.unmount()
        await installation.user_space()
        installation.choose_kind()
        await installation.daemons()
        package = installation.package() or Package(installation.kernel)
        installation.mount(package, modules.parameters(ctx, installation.image))
        installation.remember()
        return
    again = await _make_room(installation)
    await installation.user_space()
    installation.choose_kind()
    package = await installation.select()
    await _bring_up(installation, package, again)


async def _load_only(installation: Installation) -> None:
    installation.ctx.write(fabric.STATUS, "NotReady\n")
    again = await _make_room(installation)
    installation.choose_kind()
    package = installation.package()
    if package is None:
        raise RefusedError(f"there are no modules for kernel {installation.kernel}; build them first")
    await _bring_up(installation, package, again)


async def _make_room(installation: Installation) -> tuple[str, ...]:
    """Unload what is loaded; which modules of other containers had to go too. RefusedError if it is in use."""
    host = installation.ctx.host
    again = tuple(module for module in modules.CLIENTS if host.loaded(module))
    if not await _unload(installation.ctx):
        raise RefusedError("the driver that is loaded stays; see above what uses it")
    installation.unmount()
    return again


async def _bring_up(installation: Installation, package: Package, again: tuple[str, ...]) -> None:
    parameters = modules.parameters(installation.ctx, installation.image)
    installation.load(package, parameters, again=again)
    await installation.daemons()
    installation.mount(package, parameters)
    installation.remember()


# --- other verbs ------------------------------------------------------------------------------------------------------
async def build(ctx: ContainerContext, given: Options) -> int:
    """Build the modules for a kernel, by default the running one, and end."""
    installation = Installation(ctx, given)
    ctx.log(_BANNER.format("NVIDIA Software Updater"))
    ctx.log(
        f"Building NVIDIA driver version {installation.image.version} for Linux kernel version {installation.kernel}"
    )
    try:
        installation.choose_kind()
        if installation.package() is None:
            await installation.build()
    except (RefusedError, modules.KindError) as error:
        ctx.error(str(error))
        return 1
    ctx.log("Done")
    return 0


async def _peermem(ctx: ContainerContext, _given: Options) -> int:
    return await sidecars.reload_peermem(ctx)


async def _probe_peermem(ctx: ContainerContext, _given: Options) -> int:
    return sidecars.probe_peermem(ctx)


_VERBS: Final[Mapping[str, Callable[[ContainerContext, Options], Awaitable[int]]]] = {
    "init": init,
    "update": build,
    "build": build,
    "load": load,
    "reload_nvidia_peermem": _peermem,
    "probe_nvidia_peermem": _probe_peermem,
}
