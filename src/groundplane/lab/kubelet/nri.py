"""The container runtime's side of NRI on a simulated node: plugins connect, and are asked before a container is made.

As containerd: a plugin that registers is configured and told what runs, then gets the events that it wants; one that
does not answer in time is disconnected and the container made without it (contracts/toolkit-cdi.md 7).
"""

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import DecodeError

from ...node.toolkit.nri import mux, service, ttrpc
from ...node.toolkit.nri.stubs import nri_pb2 as wire
from ..host import SimulatedHost

SOCKET: Final = "/var/run/nri/nri.sock"
TIMEOUT_S: Final = 2.0
"""How long a plugin has for an answer, in real seconds."""
_EMPTY: Final = wire.Empty().SerializeToString()


class _Connection:
    """A plugin that has connected; it is in force once `ready`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, runtime: tuple[str, str]) -> None:
        self.name = ""
        self.ready = False
        self._events = 0
        self._runtime = runtime
        self._mux = mux.Mux(reader, writer)
        self._client = ttrpc.Client(partial(self._mux.send, mux.PLUGIN_SERVICE))
        methods = {"RegisterPlugin": self._register}
        server = ttrpc.Server({service.RUNTIME_SERVICE: methods}, partial(self._mux.send, mux.RUNTIME_SERVICE))
        self._mux.open(mux.PLUGIN_SERVICE, self._client.receive)
        self._mux.open(mux.RUNTIME_SERVICE, server.receive)
        self._configuring: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until the connection is lost."""
        try:
            await self._mux.run()
        except OSError:
            return  # as if the plugin had left
        finally:
            self.ready = False
            if self._configuring is not None:
                self._configuring.cancel()
            self._client.close("the plugin has gone")
            self._mux.close()

    def _register(self, payload: bytes) -> bytes:
        try:
            request = wire.RegisterPluginRequest.FromString(payload)
        except DecodeError as error:
            raise ttrpc.RpcError(ttrpc.Code.INVALID_ARGUMENT, str(error)) from error
        self.name = f"{request.plugin_idx}-{request.plugin_name}"
        self._configuring = asyncio.create_task(self._configure(), name=f"NRI configures {self.name}")
        return _EMPTY

    async def _configure(self) -> None:
        name, version = self._runtime
        request = wire.ConfigureRequest(runtime_name=name, runtime_version=version)
        try:
            answer = await self._call("Configure", request)
            self._events = wire.ConfigureResponse.FromString(answer).events
            await self._call("Synchronize", wire.SynchronizeRequest())
            self.ready = True
        except (ttrpc.RpcError, DecodeError):
            self._mux.close()

    async def devices(self, request: Any) -> tuple[str, ...]:
        """The CDI devices that this plugin gives a container; one that fails is disconnected and gives none."""
        if not self._events >> (wire.CREATE_CONTAINER - 1) & 1:
            return ()
        try:
            answer = wire.CreateContainerResponse.FromString(await self._call("CreateContainer", request))
        except (ttrpc.RpcError, DecodeError):
            self._mux.close()
            return ()
        return tuple(device.name for device in answer.adjust.CDI_devices)

    async def _call(self, method: str, request: Any) -> bytes:
        return await self._client.call(service.PLUGIN_SERVICE, method, request.SerializeToString(), TIMEOUT_S)


class NriRuntime:
    """NRI of one node's container runtime."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen for plugins, if the runtime is one that has NRI, unless that is so already."""
        if self._host.spec.runtime.name == "docker" or self._server is not None:
            return
        path = self._host.root.path(SOCKET)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, path)

    async def stop(self) -> None:
        """Disconnect all plugins and stop listening."""
        if self._server is None:
            return
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        self._host.root.remove(SOCKET)

    def plugins(self) -> tuple[str, ...]:
        """The plugins in force, in the order in which they are asked."""
        return tuple(sorted(each.name for each in self._connections if each.ready))

    async def devices(self, pod: Mapping[str, Any], container: str) -> tuple[str, ...]:
        """The CDI devices that the plugins give a container that is about to be made."""
        meta = pod["metadata"]
        sandbox = wire.PodSandbox(
            name=meta["name"], namespace=meta["namespace"], annotations=meta.get("annotations") or {}
        )
        request = wire.CreateContainerRequest(pod=sandbox, container=wire.Container(name=container))
        found: dict[str, None] = {}
        for connection in sorted((each for each in self._connections if each.ready), key=lambda each: each.name):
            found |= dict.fromkeys(await connection.devices(request))
        return tuple(found)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        runtime = self._host.spec.runtime
        connection = _Connection(reader, writer, (runtime.name, runtime.version))
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._connections.add(connection)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await connection.run()
        finally:
            self._connections.discard(connection)
            self._serving.discard(task)
