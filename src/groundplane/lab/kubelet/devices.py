"""The kubelet's device plugin manager: real gRPC on the node's unix sockets.

Plugins register on `device-plugins/kubelet.sock`; the manager dials each one, follows its device list and allocates
devices to pods when they are admitted. Allocations are kept in a checkpoint file, so that a kubelet that starts again
hands out nothing twice. Which devices there are is the plugin's business (contracts/device-plugin-gfd.md 3, 4, 10).
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from ...node import kubeletapi
from ...node.kubeletapi.stubs import deviceplugin_pb2 as wire
from ...node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc
from ..clock import LabClock, Timer
from ..host import SimulatedHost

STOPPED_GRACE_S = 300.0
"""Cluster seconds after which the devices of a plugin that went away are dropped from the node's capacity."""

RPC_LIMIT_S = 10.0
"""Real seconds a plugin may take to answer one call."""

NATIVE = ("cpu", "memory", "ephemeral-storage", "pods", "hugepages-1Gi", "hugepages-2Mi")


class AdmissionError(RuntimeError):
    """A pod cannot be run here (UnexpectedAdmissionError); the text is the kubelet's."""


class Granted(msgspec.Struct):
    """What one container got of one resource, and the plugin's answer."""

    devices: list[str]
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    cdi_devices: list[str] = []
    mounts: list[tuple[str, str, bool]] = []
    device_nodes: list[tuple[str, str]] = []


class _Entry(msgspec.Struct):
    pod: str
    container: str
    resource: str
    granted: Granted


class _Checkpoint(msgspec.Struct):
    entries: list[_Entry] = []
    resources: list[str] = []


class _Endpoint:
    """One registered plugin."""

    def __init__(self, resource: str, socket: str) -> None:
        self.resource = resource
        self.socket = socket
        self.devices: dict[str, wire.Device] = {}
        self.preferred = False
        self.connected = False
        self.stub: Any = None
        self.task: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> list[str]:
        """Ids that can be handed out."""
        if not self.connected:
            return []
        return [name for name, device in self.devices.items() if device.health == kubeletapi.HEALTHY]


_OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Channels to one path would share a connection, and a new plugin's would lead to the one before it."""


class DeviceManager:
    """Device plugins of one node. `changed` is called whenever capacity or allocatable may have changed."""

    def __init__(self, host: SimulatedHost, clock: LabClock, changed: Callable[[], None]) -> None:
        self._host = host
        self._clock = clock
        self._changed = changed
        self._endpoints: dict[str, _Endpoint] = {}
        self._granted: dict[tuple[str, str], dict[str, Granted]] = {}
        self._dropping: dict[str, Timer] = {}
        self._server: grpc.aio.Server | None = None
        self._admission = asyncio.Lock()
        self._followers: set[asyncio.Task[None]] = set()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Remove old sockets, restore the checkpoint and listen for plugins."""
        folder = self._host.root.mkdir(kubeletapi.DEVICE_PLUGIN_DIR)
        for entry in folder.iterdir():
            if entry.is_socket():
                entry.unlink()
        self._restore()
        server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(_Registration(self), server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{self._host.root.path(kubeletapi.KUBELET_SOCKET)}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop listening and let go of all plugins; allocations stay in the checkpoint."""
        for handle in self._dropping.values():
            handle.cancel()
        self._dropping.clear()
        followers = list(self._followers)
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self._host.root.remove(kubeletapi.KUBELET_SOCKET)

    # --- plugins ------------------------------------------------------------------------------------------------------

    def register(self, resource: str, socket: str) -> None:
        """Dial a plugin that has registered; an older one for the same resource is replaced."""
        old = self._endpoints.get(resource)
        if old and old.task:
            old.task.cancel()
        endpoint = _Endpoint(resource, socket)
        if old:
            endpoint.devices = old.devices
        self._endpoints[resource] = endpoint
        if resource in self._dropping:
            self._dropping.pop(resource).cancel()
        endpoint.task = asyncio.create_task(self._follow(endpoint), name=f"device-plugin:{resource}")
        self._followers.add(endpoint.task)
        endpoint.task.add_done_callback(self._followers.discard)

    async def _follow(self, endpoint: _Endpoint) -> None:
        """Read a plugin's device list until its socket goes away."""
        address = self._host.root.path(f"{kubeletapi.DEVICE_PLUGIN_DIR}/{endpoint.socket}")
        async with grpc.aio.insecure_channel(f"unix:{address}", options=_OWN_CONNECTION) as channel:
            endpoint.stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
            try:
                options = await endpoint.stub.GetDevicePluginOptions(wire.Empty(), timeout=RPC_LIMIT_S)
                endpoint.preferred = options.get_preferred_allocation_available
                async for answer in endpoint.stub.ListAndWatch(wire.Empty()):
                    endpoint.devices = {device.ID: device for device in answer.devices}
                    endpoint.connected = True
                    self._save()
                    self._changed()
            except grpc.aio.AioRpcError:
                pass  # the plugin has ended: the state below says so
            finally:
                endpoint.connected = False
                if self._endpoints.get(endpoint.resource) is endpoint:
                    self._gone(endpoint.resource)

    def _gone(self, resource: str) -> None:
        self._changed()
        if self._server is not None:
            drop = lambda: self._drop(resource)  # noqa: E731
            self._dropping[resource] = self._clock.call_later(STOPPED_GRACE_S, drop)

    def _drop(self, resource: str) -> None:
        self._dropping.pop(resource, None)
        endpoint = self._endpoints.get(resource)
        if endpoint and not endpoint.connected:
            endpoint.devices = {}
            self._changed()

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable of each resource that a plugin has ever offered on this node."""
        return {name: (len(endpoint.devices), len(endpoint.healthy)) for name, endpoint in self._endpoints.items()}

    # --- allocation ---------------------------------------------------------------------------------------------------

    async def admit(self, pod: Mapping[str, Any]) -> None:
        """Allocate all devices a pod asks for. AdmissionError, with nothing allocated, when one cannot be had."""
        async with self._admission:
            uid = pod["metadata"]["uid"]
            inits = pod["spec"].get("initContainers") or ()
            passing = [c for c in inits if c.get("restartPolicy") != "Always"]
            reusable: dict[str, list[str]] = {}
            try:
                for container in (*inits, *pod["spec"]["containers"]):
                    for resource, count in self._wanted(container):
                        known = self._granted.get((uid, container["name"]), {}).get(resource)
                        if known is not None and len(known.devices) == count:
                            granted = known
                        else:
                            granted = await self._allocate(uid, container["name"], resource, count, reusable)
                        if container in passing:
                            reusable.setdefault(resource, []).extend(granted.devices)
                        else:
                            reusable[resource] = [d for d in reusable.get(resource, []) if d not in granted.devices]
            except (AdmissionError, grpc.aio.AioRpcError) as error:
                self.release(uid)
                if isinstance(error, AdmissionError):
                    raise
                cause = f"code = {error.code().name} desc = {error.details()}"
                text = f"Allocate failed due to rpc error: {cause}, which is unexpected"
                raise AdmissionError(text) from error
            self._save()

    def _wanted(self, container: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
        limits = (container.get("resources") or {}).get("limits") or {}
        return [(name, int(value)) for name, value in sorted(limits.items()) if "/" in name and int(value) > 0]

    async def _allocate(
        self, uid: str, container: str, resource: str, count: int, reusable: Mapping[str, list[str]]
    ) -> Granted:
        endpoint = self._endpoints.get(resource)
        used = self._used(resource)
        again = [name for name in reusable.get(resource, []) if endpoint and name in endpoint.healthy]
        free = [name for name in (endpoint.healthy if endpoint else []) if name not in used]
        if endpoint is None or len(free) + len(again) < count:
            raise AdmissionError(
                f"Allocate failed due to requested number of devices unavailable for {resource}. "
                f"Requested: {count}, Available: {len(free)}, which is unexpected"
            )
        chosen = await self._choose(endpoint, again, free, count)
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=chosen)])
        answer = await endpoint.stub.Allocate(request, timeout=RPC_LIMIT_S)
        granted = _granted(chosen, answer.container_responses[0])
        self._granted.setdefault((uid, container), {})[resource] = granted
        return granted

    async def _choose(self, endpoint: _Endpoint, again: list[str], free: list[str], count: int) -> list[str]:
        must = again[:count]
        if len(must) == count or not endpoint.preferred:
            return (must + free)[:count]
        request = wire.PreferredAllocationRequest(
            container_requests=[
                wire.ContainerPreferredAllocationRequest(
                    available_deviceIDs=must + free, must_include_deviceIDs=must, allocation_size=count
                )
            ]
        )
        preferred: list[str] = []
        with contextlib.suppress(grpc.aio.AioRpcError):  # the kubelet then chooses by itself
            answer = await endpoint.stub.GetPreferredAllocation(request, timeout=RPC_LIMIT_S)
            preferred = [name for name in answer.container_responses[0].deviceIDs if name in must or name in free]
        rest = [name for name in must + free if name not in preferred]
        return (preferred + rest)[:count]

    def _used(self, resource: str) -> set[str]:
        return {name for by in self._granted.values() if resource in by for name in by[resource].devices}

    def granted(self, uid: str, container: str) -> list[Granted]:
        """The plugins' answers for one container."""
        return list(self._granted.get((uid, container), {}).values())

    def release(self, uid: str) -> None:
        """Take back all devices of a pod."""
        keys = [key for key in self._granted if key[0] == uid]
        for key in keys:
            del self._granted[key]
        if keys:
            self._save()

    def keep_only(self, uids: set[str]) -> None:
        """Take back the devices of pods that are gone (after a restart)."""
        for uid in {key[0] for key in self._granted} - uids:
            self.release(uid)

    def allocations(self) -> list[tuple[str, str, str, list[str]]]:
        """(pod uid, container, resource, device ids) of everything handed out."""
        return [
            (uid, container, resource, list(granted.devices))
            for (uid, container), by in self._granted.items()
            for resource, granted in by.items()
        ]

    def devices(self) -> list[tuple[str, str, int | None]]:
        """(resource, device id, NUMA node) of every healthy device."""
        found = []
        for name, endpoint in self._endpoints.items():
            for device in endpoint.healthy:
                nodes = endpoint.devices[device].topology.nodes
                found.append((name, device, nodes[0].ID if nodes else None))
        return found

    def numa_node(self, resource: str, device: str) -> int | None:
        """The NUMA node of a device, or None if the plugin names none."""
        endpoint = self._endpoints.get(resource)
        nodes = endpoint.devices[device].topology.nodes if endpoint and device in endpoint.devices else ()
        return nodes[0].ID if nodes else None

    # --- checkpoint ---------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        entries = [
            _Entry(uid, container, resource, granted)
            for (uid, container), by in self._granted.items()
            for resource, granted in by.items()
        ]
        data = msgspec.json.encode(_Checkpoint(entries, sorted(self._endpoints)))
        self._host.root.write_atomic(kubeletapi.CHECKPOINT, data, mode=0o600)

    def _restore(self) -> None:
        if not self._host.root.exists(kubeletapi.CHECKPOINT):
            return
        try:
            data = self._host.root.path(kubeletapi.CHECKPOINT).read_bytes()
            checkpoint = msgspec.json.decode(data, type=_Checkpoint)
        except msgspec.DecodeError:
            return  # as the kubelet: a corrupt checkpoint is dropped, plugins and pods tell everything again
        for entry in checkpoint.entries:
            self._granted.setdefault((entry.pod, entry.container), {})[entry.resource] = entry.granted
        for resource in checkpoint.resources:
            self._endpoints.setdefault(resource, _Endpoint(resource, ""))


def _granted(devices: list[str], answer: Any) -> Granted:
    return Granted(
        devices=devices,
        envs=dict(answer.envs),
        annotations=dict(answer.annotations),
        cdi_devices=[device.name for device in answer.cdi_devices],
        mounts=[(mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts],
        device_nodes=[(device.container_path, device.host_path) for device in answer.devices],
    )


class _Registration(rpc.RegistrationServicer):
    """The kubelet's side of the registration."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name is the wire's
        """Take a plugin in; refuse another API version or a resource name without a domain."""
        if request.version != kubeletapi.API_VERSION:
            text = f"version {request.version!r} is not supported; the kubelet supports {kubeletapi.API_VERSION}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if "/" not in request.resource_name or request.resource_name in NATIVE:
            text = f"the ResourceName {request.resource_name!r} is invalid; expected <domain>/<name>"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        self._manager.register(request.resource_name, request.endpoint)
        return wire.Empty()
