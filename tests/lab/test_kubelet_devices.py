"""The device plugin manager and pod resources over real gRPC, with a small plugin of the test's own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from lab.kubelet_bench import Bench, bench, container

from groundplane.lab import resources
from groundplane.lab.kubelet import Kubelet
from groundplane.node import kubeletapi
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc
from groundplane.node.kubeletapi.stubs import podresources_pb2 as pods_wire
from groundplane.node.kubeletapi.stubs import podresources_pb2_grpc as pods_rpc

RESOURCE = "example.com/thing"
SLEEP = "trap 'exit 0' TERM; sleep 100000 & wait"


class Plugin(rpc.DevicePluginServicer):
    """Offers devices a, b, c; prefers the last ones; answers with an environment variable."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.health = dict.fromkeys("abc", kubeletapi.HEALTHY)
        self.news = asyncio.Event()
        self.allocated: list[list[str]] = []
        self.broken = False
        self.server: grpc.aio.Server | None = None

    async def start(self, version: str = kubeletapi.API_VERSION, resource: str = RESOURCE) -> None:
        root = self.kubelet.host.root
        self.server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        self.server.add_insecure_port(f"unix:{root.path(kubeletapi.DEVICE_PLUGIN_DIR + '/thing.sock')}")
        await self.server.start()
        async with grpc.aio.insecure_channel(f"unix:{root.path(kubeletapi.KUBELET_SOCKET)}") as channel:
            stub = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(wire.RegisterRequest(version=version, endpoint="thing.sock", resource_name=resource))

    async def stop(self) -> None:
        if self.server:
            await self.server.stop(None)

    def change(self, device: str, health: str) -> None:
        self.health[device] = health
        self.news.set()

    async def GetDevicePluginOptions(self, _request: Any, _context: Any) -> Any:
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        while True:
            self.news.clear()
            topology = wire.TopologyInfo(nodes=[wire.NUMANode(ID=1)])
            devices = [wire.Device(ID=name, health=health, topology=topology) for name, health in self.health.items()]
            yield wire.ListAndWatchResponse(devices=devices)
            await self.news.wait()

    async def GetPreferredAllocation(self, request: Any, _context: Any) -> Any:
        wanted = request.container_requests[0]
        chosen = sorted(wanted.available_deviceIDs, reverse=True)[: wanted.allocation_size]
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def Allocate(self, request: Any, context: Any) -> Any:
        if self.broken:
            await context.abort(grpc.StatusCode.UNKNOWN, "out of order")
        names = list(request.container_requests[0].devices_ids)
        self.allocated.append(names)
        answer = wire.ContainerAllocateResponse(envs={"THINGS": ",".join(sorted(names))})
        return wire.AllocateResponse(container_responses=[answer])


async def with_plugin(b: Bench) -> Plugin:
    kubelet = b.node()
    await b.until(lambda: kubelet.host.root.exists(kubeletapi.POD_RESOURCES_SOCKET), "the sockets")
    plugin = Plugin(kubelet)
    await plugin.start()
    await b.until(lambda: amounts(b) == ("3", "3"), "three devices")
    return plugin


def amounts(b: Bench) -> tuple[str, str]:
    status = b.kubelets["n1"].node_document().get("status", {})
    return status.get("capacity", {}).get(RESOURCE, ""), status.get("allocatable", {}).get(RESOURCE, "")


def asking(count: int, script: str = SLEEP) -> dict[str, Any]:
    return container(script=script, resources={"limits": {RESOURCE: str(count)}})


async def test_allocation_follows_the_preference_and_reaches_the_container() -> None:
    async with bench() as b:
        plugin = await with_plugin(b)
        b.pod("p", asking(2, "echo $THINGS"), restartPolicy="Never")
        await b.until(lambda: b.status("p").get("phase") == "Succeeded", "success")
        assert b.log("p") == "b,c\n"
        assert plugin.allocated == [["c", "b"]]
        await plugin.stop()


async def test_too_many_and_a_failing_plugin_reject_the_pod() -> None:
    async with bench() as b:
        plugin = await with_plugin(b)
        b.pod("many", asking(4))
        await b.until(lambda: b.status("many").get("phase") == "Failed", "rejection")
        assert b.status("many")["reason"] == "UnexpectedAdmissionError"
        assert "Requested: 4, Available: 3" in b.status("many")["message"]
        plugin.broken = True
        b.pod("broken", asking(1))
        await b.until(lambda: b.status("broken").get("phase") == "Failed", "rejection")
        assert "out of order" in b.status("broken")["message"]
        assert b.kubelets["n1"].devices.allocations() == []
        await plugin.stop()


async def test_health_and_end_of_the_plugin_show_on_the_node() -> None:
    async with bench(speed=100) as b:
        plugin = await with_plugin(b)
        plugin.change("a", kubeletapi.UNHEALTHY)
        await b.until(lambda: amounts(b) == ("3", "2"), "one less")
        await plugin.stop()
        await b.until(lambda: amounts(b) == ("3", "0"), "none to give")
        await b.until(lambda: amounts(b) == ("0", "0"), "the grace period's end")


async def test_devices_come_back_with_the_pod_deleted_and_survive_a_kubelet_restart() -> None:
    async with bench() as b:
        plugin = await with_plugin(b)
        kubelet = b.kubelets["n1"]
        b.pod("p", asking(2))
        await b.until(lambda: b.ready("p"), "ready")
        before = kubelet.devices.allocations()
        await b.stop()
        b.start()
        await b.until(lambda: kubelet.host.root.exists(kubeletapi.KUBELET_SOCKET), "the socket")
        assert kubelet.devices.allocations() == before
        await plugin.stop()
        await plugin.start()
        await b.until(lambda: amounts(b) == ("3", "3"), "the plugin to be back")
        b.pod("q", asking(2))
        await b.until(lambda: b.status("q").get("phase") == "Failed", "nothing handed out twice")
        b.api.delete(resources.PODS, "p", "default")
        await b.until(lambda: not kubelet.devices.allocations(), "the devices")
        b.pod("r", asking(3))
        await b.until(lambda: b.ready("r"), "all three")
        await plugin.stop()


@pytest.mark.parametrize(("version", "resource"), [("v1alpha", RESOURCE), (kubeletapi.API_VERSION, "cpu")])
async def test_bad_registrations_are_refused(version: str, resource: str) -> None:
    async with bench() as b:
        kubelet = b.node()
        await b.until(lambda: kubelet.host.root.exists(kubeletapi.POD_RESOURCES_SOCKET), "the sockets")
        plugin = Plugin(kubelet)
        with pytest.raises(grpc.aio.AioRpcError, match=r"not supported|invalid"):
            await plugin.start(version, resource)
        await plugin.stop()


async def test_pod_resources() -> None:
    async with bench() as b:
        plugin = await with_plugin(b)
        b.pod("p", asking(1), container("plain", SLEEP))
        await b.until(lambda: b.ready("p"), "ready")
        path = b.kubelets["n1"].host.root.path(kubeletapi.POD_RESOURCES_SOCKET)
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = pods_rpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            listed = (await stub.List(pods_wire.ListPodResourcesRequest())).pod_resources
            assert [(pod.name, [c.name for c in pod.containers]) for pod in listed] == [("p", ["main", "plain"])]
            devices = listed[0].containers[0].devices[0]
            assert (devices.resource_name, list(devices.device_ids)) == (RESOURCE, ["c"])
            assert devices.topology.nodes[0].ID == 1
            one = await stub.Get(pods_wire.GetPodResourcesRequest(pod_name="p", pod_namespace="default"))
            assert one.pod_resources == listed[0]
            with pytest.raises(grpc.aio.AioRpcError, match="not found"):
                await stub.Get(pods_wire.GetPodResourcesRequest(pod_name="x", pod_namespace="default"))
            offered = await stub.GetAllocatableResources(pods_wire.AllocatableResourcesRequest())
            assert sorted(d.device_ids[0] for d in offered.devices) == ["a", "b", "c"]
        await plugin.stop()
