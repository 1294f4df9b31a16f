"""`nvidia-toolkit`: installs, configures, waits for a signal, and takes back what must not outlive it.

The sequence is that of contracts/toolkit-cdi.md 4.4; how each step is done, the rooms beside this one know. A signal
before the toolkit waits ends it at once and takes nothing back: a container runtime that restarts for its new
configuration may end the toolkit with it, and the next one must find that configuration in force.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, ParamSpec, TypeVar

import msgspec

from .. import controlnodes
from ..hostroot import HostPathError
from ..options import Leave
from ..process import Process, unless_signalled
from . import config, install, lock, options, restart, runtimes, specs
from .options import NriSettings, Settings
from .settings import RuntimeConfigError, RuntimeSettings

PENDING: Final = "restart-pending"
"""The file beside the pid file that notes that the runtime has not read its configuration yet."""
_DONE, _FAILED = 0, 1
_P = ParamSpec("_P")
_T = TypeVar("_T")


class StepError(RuntimeError):
    """A step failed; the text names the step, and says what is wrong and what to do."""


_REFUSALS: Final[tuple[type[Exception], ...]] = (
    *(config.ConfigError, controlnodes.NodeError, install.InstallError, restart.RestartError),
    *(RuntimeConfigError, specs.SpecsError, OSError),
)


@contextlib.contextmanager
def _step(name: str, *refusals: type[Exception]) -> Iterator[None]:
    """What is done in the block is one step of the sequence."""
    try:
        yield
    except (*_REFUSALS, *refusals) as error:
        raise StepError(f"unable to {name}: {error}") from error


async def run(process: Process) -> int:
    """Run the toolkit; its exit code."""
    try:
        settings = options.load(process)
    except Leave as leave:
        return leave.tell(process)
    for remark in settings.remarks:
        process.log.warning(remark)
    try:
        with lock.held(process.path(settings.pid_file), settings.pid_file):
            return await Toolkit(process, settings).run()
    except (lock.LockError, StepError, HostPathError) as error:
        process.log.error(str(error))
        return _FAILED


class Toolkit:
    """One run, while the pid file is held."""

    def __init__(self, process: Process, settings: Settings) -> None:
        self._process = process
        self._settings = settings
        self._specs = specs.Specs(process, settings)
        self._pending = restart.Pending(process.path(f"{settings.pid_file.rpartition('/')[0]}/{PENDING}"))

    async def run(self) -> int:
        """The whole sequence; the exit code. Raises :class:`StepError`."""
        process, settings = self._process, self._settings
        number = await unless_signalled(process, self._set_up())
        if number is not None:
            process.log.info(f"Signal {number.name} received, exiting early: nothing is taken back")
            return _DONE
        if settings.no_daemon:
            process.log.info("The node is set up; there is to be no daemon (--no-daemon)")
            return _DONE
        async with contextlib.AsyncExitStack() as stack:
            if settings.nri is not None and not await self._serve(settings.nri, stack):
                return _DONE
            await self._wait()
            await self._clean_up()
        return _DONE

    async def _set_up(self) -> None:
        process, settings = self._process, self._settings
        with _step("recover the earlier installation"):
            await _to_end(install.recover, process.path(settings.folder))
        with _step("determine runtime options"):
            low_level = await self._low_level()
        with _step("install toolkit"):
            await self._install(low_level)
        if settings.control_nodes:
            with _step("create device nodes"):
                controlnodes.create_control_nodes(process, settings.roots.dev)
        with _step("generate CDI specification"):
            await self._specs.first()
        if settings.runtime is not None:
            await self._configure(settings.runtime)

    async def _low_level(self) -> tuple[str, ...]:
        """The low-level runtimes that the shim may use, in the order in which it tries them (4.4.3)."""
        process, settings = self._process, self._settings
        found: Sequence[str] = ()
        if settings.low_level:
            return settings.low_level
        if settings.nri is not None:
            try:
                return config.installed_runtimes(process.path(f"{settings.folder}/{config.FILE}"))
            except config.ConfigError as error:
                process.log.warning(f"{error}; the low-level runtimes are {', '.join(config.LOW_LEVEL)}")
        elif settings.runtime is not None:
            found = await runtimes.low_level(process, settings.runtime)
        return tuple(dict.fromkeys((*found, *config.LOW_LEVEL)))

    async def _install(self, low_level: Sequence[str]) -> None:
        process, settings = self._process, self._settings
        process.log.info(f"Installing NVIDIA container toolkit to {settings.folder}")
        text = config.of_host(process, settings, low_level)
        wanted = install.Wanted(
            folder=settings.folder,
            program=settings.program,
            files={config.FILE: text},
            release=process.release,
            durable=process.kernel.durable,
        )
        await _to_end(install.install, process, wanted)
        process.log.info(f"Using config:\n{text}")
        if settings.debug:
            process.log.info(f"Installed {', '.join(install.names(process.release))}")

    async def _configure(self, runtime: RuntimeSettings) -> None:
        """Let the runtime know its handlers; it is restarted only if it has not read its configuration as it is now."""
        process, pending = self._process, self._pending
        with _step(f"setup runtime {runtime.runtime}"):
            overdue = bool(pending)
            pending.set()
            try:
                changed = await runtimes.configure(process, runtime)
            except RuntimeConfigError:
                if not overdue:
                    pending.clear()
                raise
            if not changed and not overdue:
                pending.clear()
                process.log.info(f"The configuration of {runtime.runtime} is in force: it is not restarted")
                return
            try:
                await self._restart(runtime, pending.clear)
            except restart.RestartError:
                pending.set()
                raise

    async def _restart(self, runtime: RuntimeSettings, begun: Callable[[], None] = lambda: None) -> None:
        """Restart the runtime; if its socket is not there, by the one that its configuration names (9).

        Where that fails, the error says which it names.
        """
        wanted, named = self._settings.restart, ""
        if wanted.mode is restart.Mode.SIGNAL and not self._process.path(wanted.socket).exists():
            named = await self._named_socket(runtime)
            for path in (named, f"{wanted.host_root.rstrip('/')}{named}") if named else ():
                if self._process.path(path).exists():
                    self._process.log.info(f"{wanted.socket} is not there; {runtime.runtime} listens on {path}")
                    wanted = msgspec.structs.replace(wanted, socket=path)
                    break
        try:
            await restart.restart(self._process, wanted, begun)
        except restart.RestartError as error:
            if wanted.mode is not restart.Mode.SIGNAL:
                raise
            named = named or await self._named_socket(runtime)
            if not named:
                raise
            raise restart.RestartError(
                f"{error}; the configuration of {runtime.runtime} names the socket {named} of the host: "
                "RUNTIME_SOCKET must lead to that one"
            ) from None

    async def _named_socket(self, runtime: RuntimeSettings) -> str:
        """The socket that the runtime's configuration names; empty if none, or if that cannot be read."""
        try:
            return await runtimes.socket(self._process, runtime)
        except RuntimeConfigError:
            return ""

    async def _serve(self, nri: NriSettings, stack: contextlib.AsyncExitStack) -> bool:
        """Start the NRI plugin, to be stopped with the stack; whether no signal came meanwhile."""
        from .nri.plugin import NriError, NriPlugin

        plugin = NriPlugin(
            self._process,
            socket=nri.socket,
            index=nri.index,
            namespace=nri.namespace,
            management_namespaces=nri.management_namespaces,
        )
        stack.push_async_callback(plugin.stop)
        with _step("start NRI plugin server", NriError):
            return await unless_signalled(self._process, plugin.start()) is None

    async def _wait(self) -> None:
        """Until a signal comes, keep the CDI specs as the node's GPUs are."""
        process = self._process
        process.log.info("Waiting for signal")
        number = None
        while number is None:
            number = await process.signal(self._specs.interval_s)
            if number is None:
                number = await unless_signalled(process, self._specs.refresh())
        process.log.info(f"Signal {number.name} received, shutting down")

    async def _clean_up(self) -> None:
        """Take the runtime's configuration back. The host's programs and the specs stay: containers use them."""
        process, runtime = self._process, self._settings.runtime
        if runtime is None:
            return
        with _step(f"cleanup runtime {runtime.runtime}"):
            if await runtimes.revert(process, runtime):
                await self._restart(runtime)


async def _to_end(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a function in a thread; it comes to its end even if this is cancelled, so that nothing goes on unseen."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
