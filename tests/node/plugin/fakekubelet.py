"""The kubelet's side of the device plugin API in a test: takes registrations, follows and asks each plugin."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from node.fakeprocess import until

from groundplane.node import kubeletapi
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc


class Plugin:
    """A registered plugin, as the kubelet knows it."""

    def __init__(self, folder: Path, request: Any) -> None:
        self.request = request
        # a connection of its own, that knows nothing of what others to the same path have met
        options = (("grpc.use_local_subchannel_pool", 1),)
        self.channel = grpc.aio.insecure_channel(f"unix:{folder / request.endpoint}", options=options)
        self.stub: Any = rpc.DevicePluginStub(self.channel)  # type: ignore[no-untyped-call]
        self.lists: list[dict[str, Any]] = []
        self.connected = True
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for answer in self.stub.ListAndWatch(wire.Empty()):
                self.lists.append({device.ID: device for device in answer.devices})
        self.connected = False

    @property
    def health(self) -> dict[str, str]:
        """Health by device, as last told."""
        return {name: device.health for name, device in self.lists[-1].items()} if self.lists else {}

    @property
    def unhealthy(self) -> set[str]:
        return {name for name, health in self.health.items() if health == kubeletapi.UNHEALTHY}

    async def known(self) -> dict[str, str]:
        """Health by device, once the first list is there."""
        await until(lambda: self.lists, "the first list of devices")
        return self.health

    async def allocate(self, *devices: str) -> Any:
        """The answer to one container's request."""
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=devices)])
        return (await self.stub.Allocate(request, timeout=10)).container_responses[0]

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """The preferred devices for one container."""
        wanted = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = wire.PreferredAllocationRequest(container_requests=[wanted])
        answer = await self.stub.GetPreferredAllocation(request, timeout=10)
        return list(answer.container_responses[0].deviceIDs)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.channel.close()


class FakeKubelet(rpc.RegistrationServicer):
    """Serves `Registration` on a socket below a test's root; `refuse` makes it refuse registrations with a text."""

    def __init__(self, socket: Path, plugins: Path) -> None:
        self.socket = socket
        self.plugins = plugins
        self.registered: list[Plugin] = []
        self.refuse = ""
        self._server: grpc.aio.Server | None = None

    async def start(self, *, clean: bool = True) -> None:
        """Begin to serve; as the kubelet does, all sockets in the folder are removed first."""
        for folder in (self.plugins, self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True)
            for entry in folder.iterdir() if clean else ():
                if entry.is_socket():
                    entry.unlink()
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """End, and let go of all plugins."""
        await asyncio.gather(*(plugin.close() for plugin in self.registered))
        await self.vanish()

    async def vanish(self) -> None:
        """Take the socket away, but hold on to the plugins."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.socket.unlink(missing_ok=True)

    async def Register(self, request: Any, context: Any) -> Any:
        if self.refuse:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse)
        self.registered.append(Plugin(self.plugins, request))
        return wire.Empty()

    def of(self, resource: str) -> list[Plugin]:
        """The registrations of a resource, oldest first."""
        return [plugin for plugin in self.registered if plugin.request.resource_name == resource]

    async def plugin(self, resource: str = "nvidia.com/gpu", number: int = 1) -> Plugin:
        """A resource's plugin, once it has registered so many times and told its devices."""
        await until(lambda: len(self.of(resource)) >= number, f"registration {number} of {resource}")
        plugin = self.of(resource)[number - 1]
        await plugin.known()
        return plugin
