"""What a node program is given, and all it may reach: one protocol, two worlds.

A node program is an async function of a :class:`Process`; it returns its exit code. As a container's main program it
gets ``ownprocess.OwnProcess`` (the kernel's view of itself); in the lab, where many nodes share one process, the lab's
own. So a program never reads ``sys.argv``, ``os.environ``, a path or the clock by itself, and blocks nobody: what
waits in the kernel is waited for in a thread.

Paths are those that the program sees in its container; ``kernel`` is the machine's ``/sys`` and ``/proc`` (below a
folder where the machine is simulated).
"""

import asyncio
import datetime
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from ..api.release import Release
from .hostroot import HostRoot

if TYPE_CHECKING:
    import ssl

    from ..cluster.client import Client
    from .devices.source import Source

NodeProgram: TypeAlias = Callable[["Process"], Awaitable[int]]

HANGUP: Final = signal.SIGHUP
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGQUIT})
"""Signals that ask a program to end."""
SIGNALS: Final = ENDING | {HANGUP}
"""Signals that a program waits for; others have the system's effect."""


class Completed(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


class Listed(NamedTuple):
    """A process of the (maybe shared) PID namespace; ``argv`` is empty for kernel threads and zombies."""

    pid: int
    argv: tuple[str, ...]


class Log:
    """A program's log: a line an entry on standard error, headed as NVIDIA's programs (and Kubernetes') head theirs.

    ``I1130 13:36:07.123456       1 text``: level, month and day, time, and a process id.
    """

    def __init__(self, write: Callable[[str], None], now: Callable[[], datetime.datetime]) -> None:
        self._write = write
        self._now = now

    def info(self, text: str) -> None:
        """What a person wants to know when all is well."""
        self._entry("I", text)

    def warning(self, text: str) -> None:
        """What a person should look at, though the program goes on as asked."""
        self._entry("W", text)

    def error(self, text: str) -> None:
        """What keeps the program from doing as asked."""
        self._entry("E", text)

    def _entry(self, level: str, text: str) -> None:
        head = f"{level}{self._now():%m%d %H:%M:%S.%f} {1:>7}"
        for line in text.splitlines() or [""]:
            self._write(f"{head} {line}\n")


class Process(Protocol):
    """One run of a node program."""

    @property
    def argv(self) -> Sequence[str]:
        """The command line, the program's name first."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment."""

    @property
    def log(self) -> Log:
        """The program's log."""

    @property
    def kernel(self) -> HostRoot:
        """Root of the machine's ``/sys`` and ``/proc``."""

    @property
    def release(self) -> Release:
        """The operator release whose operands the program behaves like (contracts/device-plugin-gfd.md 13)."""

    def path(self, path: str) -> Path:
        """The real path behind a path of the container; it need not exist."""

    def out(self, text: str) -> None:
        """Print on standard output, as it is."""

    async def stdin(self) -> bytes:
        """What is on standard input, to its end."""

    def now(self) -> datetime.datetime:
        """The present moment, in UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancelling ends it at once."""

    async def signal(self, within_s: float | None = None) -> signal.Signals | None:
        """The next of :data:`SIGNALS` that was sent, waited for at most so long; None if none came.

        Signals are kept until they are asked for; cancelling loses none.
        """

    async def execute(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> Completed:
        """Run a command to its end; ``env`` is added to the program's own. FileNotFoundError if there is none."""

    def serve(
        self,
        connection: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        tls: "ssl.SSLContext | None" = None,
    ) -> AbstractAsyncContextManager[int]:
        """Serve a port of the container (0: any that is free) while the context lasts, which gives the port's number.

        Each connection is handled by what ``connection`` makes for it, an aiohttp runner's ``server`` for instance.
        ``host`` is the address to listen at, None for all. Raises OSError, as where the port is taken.
        """

    def processes(self) -> Iterable[Listed]:
        """The processes of the PID namespace, by number."""

    def kill(self, pid: int, number: int) -> None:
        """Send a signal. ProcessLookupError if the process is gone, PermissionError if it may not be signalled."""

    def devices(self, driver_root: str = "/") -> "Source":
        """The machine's GPUs, with the driver's library looked for in ``driver_root`` first; not opened yet."""

    def client(self, kubeconfig: str = "") -> "Client":
        """A client of the API server (use as async context manager): in-cluster unless a kubeconfig file is named.

        Raises :class:`~groundplane.cluster.errors.ConfigError`.
        """


async def wait_any(*waits: Awaitable[object]) -> None:
    """Wait until the first of some is done, cancel the others, and raise what the first raised."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def asked_to_end(process: Process) -> None:
    """Wait until a signal asks the program to end, and say so; another signal is said, and does nothing."""
    while (number := await process.signal()) not in ENDING:
        process.log.info(f"received {number.name if number else 'no signal'}: nothing to do")
    process.log.info(f"received {number.name}: ending")


async def unless_signalled(process: Process, work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    """Do something, but drop it at a signal: which signal came, or None if the work is done. Raises what it raises."""
    doing, asking = asyncio.ensure_future(work), asyncio.ensure_future(process.signal())
    try:
        await asyncio.wait((doing, asking), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (doing, asking):
            if not task.done():
                task.cancel()
        await asyncio.gather(doing, asking, return_exceptions=True)
    if not doing.cancelled():
        doing.result()
    return None if asking.cancelled() else asking.result()
