"""A node program as this very process, in a container or on a machine: ``process.Process`` as the kernel has it.

On a machine that is simulated (the test nodes, where no GPU is) ``GROUNDPLANE_SIMULATION`` names a folder in which its
``/sys``, ``/proc``, the driver's device nodes and the description of its GPUs (``DEVICES``) are; all else is real.
"""

import asyncio
import contextlib
import datetime
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ..api.release import Release
from .hostroot import HostRoot
from .process import SIGNALS, Completed, Listed, Log, NodeProgram

if TYPE_CHECKING:
    import ssl

    from ..cluster.client import Client
    from .devices.source import Source

RELEASE_ENV: Final = "GROUNDPLANE_RELEASE"
"""The operator release whose operands a program behaves like, such as ``26.3``; the newest unless it is set."""
SIMULATION_ENV: Final = "GROUNDPLANE_SIMULATION"
DEVICES: Final = "/var/lib/groundplane/devices.yaml"
"""Where a simulated machine has the description of its GPUs."""
_FAILED: Final = 1


class OwnProcess:
    """This process. Make it on a running loop: from then on its signals are kept for :meth:`signal`."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, signals: bool = True) -> None:
        """``signals``: those that a program waits for come here, instead of having the system's effect."""
        self.argv = tuple(argv)
        self.env = dict(env)
        self.log = Log(_standard_error, self.now)
        self.release = Release.parse(env[RELEASE_ENV]) if env.get(RELEASE_ENV) else Release.DEFAULT
        self._simulation = Path(env[SIMULATION_ENV]) if env.get(SIMULATION_ENV) else None
        self.kernel = HostRoot(self._simulation or "/")
        self._root = HostRoot("/")
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in SIGNALS if signals else ():
            loop.add_signal_handler(number, self._signals.put_nowait, number)

    def path(self, path: str) -> Path:
        """The path itself, below the current folder if it is relative.

        On a simulated machine ``/dev``, and what that has of the machine's, is the machine's. So is ``/host/dev``:
        where the host's root is mounted, that is the same folder.
        """
        real = self._root.path(path if path.startswith("/") or not path else f"{Path.cwd()}/{path}")
        if self._simulation is None:
            return real
        parts = real.parts[2 if real.parts[1:2] == ("host",) else 1 :]
        if parts[:1] != ("dev",):
            return real
        simulated = self.kernel.path("/" + "/".join(parts))
        if parts == ("dev",) or parts[1].startswith("nvidia") or simulated.exists():
            return simulated
        return real

    def out(self, text: str) -> None:
        """Print on standard output."""
        sys.stdout.write(text)
        sys.stdout.flush()

    async def stdin(self) -> bytes:
        """What is on standard input, read in a thread."""
        return await asyncio.to_thread(sys.stdin.buffer.read)

    def now(self) -> datetime.datetime:
        """The present moment, in UTC."""
        return datetime.datetime.now(datetime.UTC)

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def signal(self, within_s: float | None = None) -> signal.Signals | None:
        """The next signal, or None if none came in time."""
        try:
            async with asyncio.timeout(within_s):
                return await self._signals.get()
        except TimeoutError:
            return None

    async def execute(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> Completed:
        """Run a command to its end; it is killed if this is cancelled.

        What it prints goes to files in memory, since a daemon that it leaves behind would keep a pipe open.
        """
        with _memory_file() as out, _memory_file() as err:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env={**self.env, **(env or {})},
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=err,
            )
            try:
                await process.communicate(stdin.encode())
            except BaseException:
                process.kill()
                await process.wait()
                raise
            code = process.returncode if process.returncode is not None else _FAILED
            return Completed(code, _printed(out), _printed(err))

    @contextlib.asynccontextmanager
    async def serve(
        self,
        connection: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        tls: "ssl.SSLContext | None" = None,
    ) -> AsyncIterator[int]:
        """Serve a TCP port; connections that are open at the end are the caller's to close."""
        server = await asyncio.get_running_loop().create_server(connection, host, port, ssl=tls)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()

    def processes(self) -> Iterator[Listed]:
        """The processes that ``/proc`` shows in this container."""
        for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            try:
                command = (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            argv = command.rstrip(b"\0").split(b"\0") if command else []
            yield Listed(int(folder.name), tuple(os.fsdecode(part) for part in argv))

    def kill(self, pid: int, number: int) -> None:
        """Send a signal."""
        os.kill(pid, number)

    def devices(self, driver_root: str = "/") -> "Source":
        """NVML's, or on a simulated machine the description's."""
        from .devices import nvml

        if self._simulation is None:
            return nvml.NvmlSource(lambda: nvml.find_library(self.path, driver_root))
        from .devices import simulated

        return simulated.SimulatedSource(
            self.kernel.path(DEVICES),
            library=lambda: nvml.find_library(self.path, driver_root, also=nvml.LIBRARY_FOLDERS) is not None,
            loaded=lambda: self.kernel.exists("/sys/module/nvidia/refcnt"),
        )

    def client(self, kubeconfig: str = "") -> "Client":
        """A client with the pod's service account, or a kubeconfig file's identity."""
        from ..cluster.client import Client
        from ..cluster.config import Config

        return Client(Config.from_kubeconfig(kubeconfig) if kubeconfig else Config.in_cluster(environ=self.env))


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("output"), "w+b")


def _printed(file: BinaryIO) -> str:
    """All that was written; the offset, which a daemon may share, stays."""
    handle = file.fileno()
    return os.pread(handle, os.fstat(handle).st_size, 0).decode(errors="replace")


def _standard_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def run(program: NodeProgram, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a node program as this process and return its exit code."""

    gc.freeze()  # what was imported stays: no collection need look at it while somebody waits for an answer

    async def main() -> int:
        return await program(OwnProcess(argv, env))

    return asyncio.run(main())
