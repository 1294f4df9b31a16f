"""A container runtime's side of NRI, on a real socket: it takes plugins, and does to them what a test says."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from node.fakeprocess import until

from groundplane.node.toolkit.nri import mux, ttrpc
from groundplane.node.toolkit.nri.stubs import nri_pb2 as wire

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
PATIENCE_S = 20.0


class Connection:
    """A plugin's connection, as the runtime has it."""

    def __init__(self, runtime: "FakeRuntime", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._runtime = runtime
        self.writer = writer
        self.mux = mux.Mux(reader, writer)
        self.client = ttrpc.Client(partial(self.mux.send, mux.PLUGIN_SERVICE))
        server = ttrpc.Server({RUNTIME: {"RegisterPlugin": self._register}}, partial(self._answer))
        self.mux.open(mux.PLUGIN_SERVICE, self.client.receive)
        self.mux.open(mux.RUNTIME_SERVICE, server.receive)
        self.registered: wire.RegisterPluginRequest | None = None
        self.events: int | None = None
        self.closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            await self.mux.run()
        except OSError:
            pass  # the plugin is gone, which `closed` says
        finally:
            self.closed = True
            self.client.close("the plugin is gone")
            self.mux.close()

    def _register(self, payload: bytes) -> bytes:
        if self._runtime.refusal:
            raise ttrpc.RpcError(2, self._runtime.refusal)
        self.registered = wire.RegisterPluginRequest.FromString(payload)
        if self._runtime.configures:
            task = asyncio.create_task(self._configure())
            self._tasks.add(task)
        return b""

    def _answer(self, data: bytes) -> None:
        if not self._runtime.mute:
            self.mux.send(mux.RUNTIME_SERVICE, data)

    async def _configure(self) -> None:
        request = wire.ConfigureRequest(
            runtime_name="fake", runtime_version="v1.2.3", registration_timeout=self._runtime.registration_timeout_ms
        )
        answer = await self.call("Configure", request.SerializeToString())
        self.events = wire.ConfigureResponse.FromString(answer).events
        if self._runtime.hangs_up:
            self.close()

    async def call(self, method: str, payload: bytes = b"") -> bytes:
        """Ask the plugin."""
        return await self.client.call(PLUGIN, method, payload, PATIENCE_S)

    async def create(
        self, annotations: Mapping[str, str], *, namespace: str = "gpu-operator", container: str = "ctr"
    ) -> list[str]:
        """The devices that the plugin wants for a new container."""
        pod = wire.PodSandbox(name="pod", namespace=namespace, annotations=annotations)
        request = wire.CreateContainerRequest(pod=pod, container=wire.Container(name=container))
        answer = wire.CreateContainerResponse.FromString(
            await self.call("CreateContainer", request.SerializeToString())
        )
        return [device.name for device in answer.adjust.CDI_devices]

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def close(self) -> None:
        """Hang up."""
        self.mux.close()


class FakeRuntime:
    """A runtime that listens at a path. What it does to plugins that come can be changed at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refusal = ""
        """With which registrations are refused."""
        self.mute = False
        """Registrations are not answered."""
        self.configures = True
        self.hangs_up = False
        """Plugins are sent away once they are configured."""
        self.registration_timeout_ms = 5000
        self.connections: list[Connection] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    async def stop(self) -> None:
        """End; the socket's file stays, as that of a runtime that was killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self.connections:
            connection.close()
        await until(lambda: all(each.closed for each in self.connections), "the end of all connections")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self.connections.append(connection)
        await connection.run()

    @property
    def live(self) -> list[Connection]:
        return [each for each in self.connections if not each.closed]

    async def plugin(self, after: int = 0) -> Connection:
        """The plugin that is connected and configured, once more than `after` connections have been made."""

        def ready() -> Connection | None:
            found = [each for each in self.connections[after:] if not each.closed and each.events is not None]
            return found[-1] if found else None

        found: Connection = await until(ready, "a configured plugin")
        return found


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[FakeRuntime]:
    """A runtime that runs meanwhile."""
    runtime = FakeRuntime(path)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()
