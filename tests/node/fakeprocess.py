"""A node program's world in a test: a folder for the container's files, one for the machine, signals by hand."""

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from groundplane.api.release import Release
from groundplane.node.hostroot import HostRoot
from groundplane.node.process import Completed, Listed, Log

Command = Callable[[Sequence[str], Mapping[str, str], str], Completed]


class FakeProcess:
    """A `groundplane.node.process.Process` of a test.

    `root` is the container's file system, `kernel` the machine's /sys and /proc; `source` answers `devices()`,
    `make_client` answers `client()`. `commands` are what `execute` finds, by name, and `executed` what it was asked.
    Time is real, unless `pace` (seconds of the program a real second) says otherwise.
    """

    def __init__(
        self,
        folder: Path,
        argv: Sequence[str] = ("program",),
        env: Mapping[str, str] | None = None,
        *,
        source: Any = None,
        make_client: Callable[[], Any] | None = None,
        release: Release = Release.DEFAULT,
        pace: float = 1.0,
    ) -> None:
        self.argv: Sequence[str] = tuple(argv)
        self.env: Mapping[str, str] = dict(env or {})
        self.root = HostRoot(_made(folder / "root"))
        self.kernel = HostRoot(_made(folder / "kernel"))
        self.release = release
        self.source = source
        self.make_client = make_client
        self.pace = pace
        self.commands: dict[str, Command] = {}
        self.executed: list[tuple[str, ...]] = []
        self.listed: list[Listed] = []
        self.killed: list[tuple[int, int]] = []
        self.given = b""
        self.stdout = ""
        self.stderr = ""
        self.driver_roots: list[str] = []
        self.log = Log(self._err, self.now)
        self._signals: asyncio.Queue[Signals] = asyncio.Queue()

    # --- what a program sees ------------------------------------------------------------------------------------------

    def path(self, path: str) -> Path:
        return self.root.path(path)

    def out(self, text: str) -> None:
        self.stdout += text

    def _err(self, text: str) -> None:
        self.stderr += text

    async def stdin(self) -> bytes:
        return self.given

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() * self.pace

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.pace)

    async def signal(self, within_s: float | None = None) -> Signals | None:
        try:
            async with asyncio.timeout(None if within_s is None else within_s / self.pace):
                return await self._signals.get()
        except TimeoutError:
            return None

    async def execute(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> Completed:
        self.executed.append(tuple(argv))
        command = self.commands.get(argv[0].rpartition("/")[2])
        if command is None:
            raise FileNotFoundError(2, "No such file or directory", argv[0])
        return command(argv, {**self.env, **(env or {})}, stdin)

    @contextlib.asynccontextmanager
    async def serve(
        self,
        connection: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[int]:
        server = await asyncio.get_running_loop().create_server(connection, host, port, ssl=tls)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()

    def processes(self) -> Iterable[Listed]:
        return list(self.listed)

    def kill(self, pid: int, number: int) -> None:
        if all(each.pid != pid for each in self.listed):
            raise ProcessLookupError(3, "No such process")
        self.killed.append((pid, number))

    def devices(self, driver_root: str = "/") -> Any:
        self.driver_roots.append(driver_root)
        return self.source

    def client(self, kubeconfig: str = "") -> Any:
        assert self.make_client is not None, "give the test's process a client"
        return self.make_client()

    # --- what a test does ---------------------------------------------------------------------------------------------

    def send(self, number: Signals) -> None:
        """Send the program a signal."""
        self._signals.put_nowait(number)

    def write(self, path: str, text: str | bytes) -> Path:
        """Write a file of the container."""
        return self.root.write_atomic(path, text)

    def write_kernel(self, path: str, text: str | bytes) -> Path:
        """Write a file of the machine's /sys or /proc."""
        return self.kernel.write_atomic(path, text)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def until(condition: Callable[[], Any], what: str = "the condition", timeout_s: float = 20.0) -> Any:
    """Wait for a condition to become true and return what it gave."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not (found := condition()):
        assert asyncio.get_running_loop().time() < deadline, f"waited {timeout_s:g} s in vain for {what}"
        await asyncio.sleep(0.01)
    return found
