"""The kubelet's pod-resources service: which pod has which devices (contracts/device-plugin-gfd.md 11)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from ...node import kubeletapi
from ...node.kubeletapi.stubs import podresources_pb2 as wire
from ...node.kubeletapi.stubs import podresources_pb2_grpc as rpc
from ..host import SimulatedHost
from .devices import DeviceManager

Pods = Callable[[], Iterable[Mapping[str, Any]]]


class PodResources(rpc.PodResourcesListerServicer):
    """Answers from the device manager's books and the kubelet's pods."""

    def __init__(self, host: SimulatedHost, devices: DeviceManager, pods: Pods) -> None:
        self._host = host
        self._devices = devices
        self._pods = pods
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen on the node's pod-resources socket."""
        path = self._host.root.path(kubeletapi.POD_RESOURCES_SOCKET)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self._host.root.remove(kubeletapi.POD_RESOURCES_SOCKET)

    async def List(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - the name is the wire's
        """All pods of the node with their containers' devices."""
        return wire.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._pods()])

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        """One pod; NOT_FOUND if the node does not run it."""
        for pod in self._pods():
            meta = pod["metadata"]
            if (meta["name"], meta["namespace"]) == (request.pod_name, request.pod_namespace):
                return wire.GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return None

    async def GetAllocatableResources(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Every healthy device of the node, handed out or not."""
        devices = [_devices(resource, [name], numa) for resource, name, numa in self._devices.devices()]
        return wire.AllocatableResourcesResponse(devices=devices)

    def _pod(self, pod: Mapping[str, Any]) -> Any:
        meta = pod["metadata"]
        mine = [entry for entry in self._devices.allocations() if entry[0] == meta["uid"]]
        sidecars = [c for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy") == "Always"]
        containers = []
        for container in (*sidecars, *pod["spec"]["containers"]):
            devices = [
                _devices(resource, [name], self._devices.numa_node(resource, name))
                for _, owner, resource, names in mine
                if owner == container["name"]
                for name in names
            ]
            containers.append(wire.ContainerResources(name=container["name"], devices=devices))
        return wire.PodResources(name=meta["name"], namespace=meta["namespace"], containers=containers)


def _devices(resource: str, names: list[str], numa: int | None) -> Any:
    topology = None if numa is None else wire.TopologyInfo(nodes=[wire.NUMANode(ID=numa)])
    return wire.ContainerDevices(resource_name=resource, device_ids=names, topology=topology)
