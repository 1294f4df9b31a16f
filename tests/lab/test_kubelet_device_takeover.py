"""A device plugin that takes a socket over while the one before it still answers there."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
from lab.kubelet_bench import bench

from groundplane.node import kubeletapi
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc

RESOURCE = "example.com/thing"
SOCKET = "thing.sock"


class Plugin(rpc.DevicePluginServicer):
    """Offers one device."""

    def __init__(self, health: str) -> None:
        self.health = health
        self.server = grpc.aio.server()

    async def start(self, folder: str, kubelet: str) -> None:
        rpc.add_DevicePluginServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        self.server.add_insecure_port(f"unix:{folder}/{SOCKET}")
        await self.server.start()
        async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
            stub = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            request = wire.RegisterRequest(version=kubeletapi.API_VERSION, endpoint=SOCKET, resource_name=RESOURCE)
            await stub.Register(request)

    async def GetDevicePluginOptions(self, _request: object, _context: object) -> object:
        return wire.DevicePluginOptions()

    async def ListAndWatch(self, _request: object, _context: object) -> AsyncIterator[object]:
        yield wire.ListAndWatchResponse(devices=[wire.Device(ID="a", health=self.health)])
        await asyncio.Event().wait()


async def test_the_new_plugin_is_asked_not_the_one_before() -> None:
    async with bench() as b:
        kubelet = b.node()
        root = kubelet.host.root
        folder, socket = str(root.path(kubeletapi.DEVICE_PLUGIN_DIR)), str(root.path(kubeletapi.KUBELET_SOCKET))
        await b.until(lambda: root.exists(kubeletapi.POD_RESOURCES_SOCKET), "the sockets")

        def offered() -> str:
            status = kubelet.node_document().get("status", {})
            return str(status.get("allocatable", {}).get(RESOURCE, ""))

        old, new = Plugin("Unhealthy"), Plugin(kubeletapi.HEALTHY)
        await old.start(folder, socket)
        await b.until(lambda: offered() == "0", "a device that is not healthy")
        root.path(f"{kubeletapi.DEVICE_PLUGIN_DIR}/{SOCKET}").unlink()
        await new.start(folder, socket)
        await b.until(lambda: offered() == "1", "a healthy device")
        for plugin in (old, new):
            await plugin.server.stop(None)
