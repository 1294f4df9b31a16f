"""The shipped node programs in the lab: each gets a simulated container as its `Process`.

What a program would find through the kernel (its files, its machine's /sys and /proc, signals, other processes, GPUs)
it finds in the simulated host; the API server it reaches over HTTP, as its pod's service account. Time is the lab's.
"""

import asyncio
import contextlib
import datetime
import errno
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..api.release import Release
from ..cluster.client import Client
from ..cluster.config import Config
from ..cluster.errors import ConfigError
from ..node import programs as node_programs
from ..node.cdi.roots import NULL_DEVICES
from ..node.devices import nvml, simulated
from ..node.hostroot import HostRoot
from ..node.ownprocess import DEVICES, RELEASE_ENV
from ..node.process import Completed, Listed, Log
from . import subresources
from .api import Api
from .pages import Pages
from .programs import CommandNotFoundError, ContainerContext, Program, Stdin

EPHEMERAL_PORTS = range(32768, 61000)
"""Ports of a container for programs to which any will do."""
_PLUGIN_WITH_26_3 = "v0.19."
_WITH_26_3 = {"k8s-driver-manager": "v0.11."}
"""How the tags of images begin that came with 26.3, by repository; others go with the device plugin."""
TOKEN_S = 10 * 365 * 86400
"""How long a token is good for, in cluster seconds: nothing renews it."""


class LabProcess:
    """A process in a container of the lab, as `groundplane.node.process.Process`."""

    def __init__(self, ctx: ContainerContext) -> None:
        self._ctx = ctx
        self.argv: Sequence[str] = ctx.argv
        self.env: Mapping[str, str] = {**ctx.env, NULL_DEVICES: "true"}
        self.log = Log(lambda text: ctx.err(text.encode()), self.now)
        self.kernel: HostRoot = ctx.host.root
        self.release = Release.parse(ctx.env[RELEASE_ENV]) if ctx.env.get(RELEASE_ENV) else _release(ctx)
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def path(self, path: str) -> Path:
        """The real path behind a path of the container."""
        return self._ctx.path(path)

    def out(self, text: str) -> None:
        """Print on standard output."""
        self._ctx.out(text.encode())

    async def stdin(self) -> bytes:
        """What is on standard input, to its end."""
        return await self._ctx.stdin.rest()

    def now(self) -> datetime.datetime:
        """The cluster's present time."""
        return self._ctx.clock.now()

    def monotonic(self) -> float:
        """Cluster seconds since the lab began."""
        return self._ctx.clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait so many cluster seconds."""
        await self._ctx.clock.sleep(seconds)

    def deliver(self, number: int) -> None:
        """Keep a signal for the program."""
        self._signals.put_nowait(signal.Signals(number))

    async def signal(self, within_s: float | None = None) -> signal.Signals | None:
        """The next signal, or None if none came within so many cluster seconds."""
        try:
            async with self._ctx.clock.timeout(within_s):
                return await self._signals.get()
        except TimeoutError:
            return None

    async def execute(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "") -> Completed:
        """Run a command of the container."""
        out, err = bytearray(), bytearray()
        child = self._ctx.child(
            argv, env={**self.env, **(env or {})}, out=out.extend, err=err.extend, stdin=Stdin(stdin.encode())
        )
        try:
            code = await child.run()
        except CommandNotFoundError as error:
            raise FileNotFoundError(2, str(error), argv[0]) from error
        return Completed(code, out.decode(errors="replace"), err.decode(errors="replace"))

    @contextlib.asynccontextmanager
    async def serve(
        self,
        connection: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> AsyncIterator[int]:
        """Serve a port of the container to probes and to who asks through the API server, whatever address is named."""
        ports = self._ctx.container.ports
        number = port or next(each for each in EPHEMERAL_PORTS if each not in ports)
        if number in ports:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._ctx.container.listen(number, Pages(connection, tls))
        try:
            yield number
        finally:
            ports.pop(number, None)

    def processes(self) -> Iterator[Listed]:
        """The processes of the container, and of its pod's others where they share their PID namespace."""
        yield from (Listed(pid, tuple(each.argv)) for pid, each in self._ctx.container.namespace().items())

    def kill(self, pid: int, number: int) -> None:
        """Send a signal to a program that takes some; SIGHUP to this very process restarts the container runtime."""
        if pid == os.getpid() and number == signal.SIGHUP and self._sees_host():
            self._ctx.container.restart_runtime()
            return
        target = self._ctx.container.namespace().get(pid)
        if target is None:
            raise ProcessLookupError(3, "No such process")
        target.deliver(number)

    def _sees_host(self) -> bool:
        return bool((self._ctx.pod.get("spec") or {}).get("hostPID"))

    def devices(self, driver_root: str = "/") -> simulated.SimulatedSource:
        """The host's GPUs, if the container sees the driver's library and the host has its module loaded."""
        host = self._ctx.host

        def library() -> bool:
            if self._ctx.container.driver_injected:
                return True
            return nvml.find_library(self.path, driver_root, also=nvml.LIBRARY_FOLDERS) is not None

        return simulated.SimulatedSource(host.root.path(DEVICES), library=library, loaded=lambda: host.loaded("nvidia"))

    def client(self, kubeconfig: str = "") -> Client:
        """A client of the lab's API server as the pod's service account, or as a kubeconfig file says."""
        if kubeconfig:
            return Client(Config.from_kubeconfig(self.path(kubeconfig)))
        identity = self._ctx.container.identity
        if identity is None:
            raise ConfigError("not in a cluster: this container has no API server to speak to")
        return Client(identity(), sleep=self._ctx.clock.sleep)


def identity(api: Api, account: str, namespace: str) -> Config:
    """How a service account reaches the lab's API server over HTTP."""
    answer = subresources.token(api, account, namespace, {"spec": {"expirationSeconds": TOKEN_S}})
    return Config(server=api.url, token=answer["status"]["token"], namespace=namespace)


def program(name: str) -> Program:
    """The shipped node program of a name, as a program of the lab's containers."""

    async def run(ctx: ContainerContext) -> int:
        shipped = node_programs.find(name)
        assert shipped is not None, f"{name} is in the table of images but no node program"
        process = LabProcess(ctx)
        ending = asyncio.create_task(_end(ctx, process))
        try:
            with ctx.container.runs(process):
                return await shipped(process)
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending

    return run


async def _end(ctx: ContainerContext, process: LabProcess) -> None:
    await ctx.stopping.wait()
    process.deliver(signal.SIGTERM)


def _release(ctx: ContainerContext) -> Release:
    """The release that an operand's image belongs to, by its tag."""
    repository, _, tag = str(ctx.container.spec.get("image", "")).rpartition(":")
    old = _WITH_26_3.get(repository.rpartition("/")[2], _PLUGIN_WITH_26_3)
    return Release.V26_3 if tag.startswith(old) else Release.DEFAULT
