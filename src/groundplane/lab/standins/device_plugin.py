"""Stand-in for nvidia-device-plugin: replaced by groundplane's node/plugin.

A real device plugin on a real gRPC socket: one device per GPU, health by what the host still has, answers by the
configured device list strategies (contracts/device-plugin-gfd.md 3, 4). Sharing, MIG and config files are left to the
real program.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from ...api import names
from ...node import kubeletapi
from ...node.kubeletapi.stubs import deviceplugin_pb2 as wire
from ...node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc
from ..host import Gpu
from ..programs import ContainerContext
from . import common

SOCKET = "nvidia-gpu.sock"
CDI_KIND = "k8s.device-plugin.nvidia.com/gpu"
LOOK_S = 5.0
RETRY_S = 30.0
DIAL_S = 5.0


async def run(ctx: ContainerContext) -> int:
    """`nvidia-device-plugin`."""
    if not common.sees_driver(ctx, ctx.env.get("DRIVER_ROOT_CTR_PATH", "/driver-root")):
        ctx.error("failed to initialize NVML: libnvidia-ml.so.1 not found or driver not loaded")
        if ctx.flag("FAIL_ON_INIT_ERROR", default=True):
            return 1
        await ctx.stopped()
        return 0
    gpus = ctx.devices or ctx.host.gpus
    strategies = (ctx.env.get("DEVICE_LIST_STRATEGY") or "envvar").split(",")
    if any(strategy.startswith("cdi-") for strategy in strategies):
        spec = common.cdi_spec(CDI_KIND, [(gpu.uuid, (gpu,)) for gpu in gpus], common.driver_mounts(ctx))
        ctx.write("/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json", spec)
    plugin = _Plugin(ctx, gpus, strategies)
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(plugin, server)  # type: ignore[no-untyped-call]
    path = ctx.path(f"{kubeletapi.DEVICE_PLUGIN_DIR}/{SOCKET}")
    try:
        while not ctx.stopping.is_set():
            path.unlink(missing_ok=True)
            server = grpc.aio.server()
            rpc.add_DevicePluginServicer_to_server(plugin, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            seen = _identity(ctx)
            if not await _register(ctx):
                await server.stop(None)
                await ctx.stopped(RETRY_S)
                continue
            ctx.log(f"registered {names.GPU_RESOURCE} with {len(gpus)} devices")
            while _identity(ctx) == seen and path.exists():
                plugin.look()
                if await ctx.stopped(LOOK_S):
                    break
            plugin.close_streams()
            await server.stop(None)
    finally:
        await server.stop(None)
        path.unlink(missing_ok=True)
    return 0


def _identity(ctx: ContainerContext) -> tuple[int, int] | None:
    """What changes when the kubelet has made its socket anew."""
    path = ctx.path(kubeletapi.KUBELET_SOCKET)
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_ino, stat.st_ctime_ns


async def _register(ctx: ContainerContext) -> bool:
    request = wire.RegisterRequest(
        version=kubeletapi.API_VERSION,
        endpoint=SOCKET,
        resource_name=names.GPU_RESOURCE,
        options=wire.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    try:
        async with grpc.aio.insecure_channel(f"unix:{ctx.path(kubeletapi.KUBELET_SOCKET)}") as channel:
            stub = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request, timeout=DIAL_S)
    except grpc.aio.AioRpcError as error:
        ctx.error(f"could not register with the kubelet: {error.details()}; trying again in {RETRY_S:g} s")
        return False
    return True


class _Plugin(rpc.DevicePluginServicer):
    """The gRPC service."""

    def __init__(self, ctx: ContainerContext, gpus: tuple[Gpu, ...], strategies: list[str]) -> None:
        self._ctx = ctx
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._strategies = strategies
        self._health = self._present()
        self._news = asyncio.Event()
        self._generation = 0

    def _present(self) -> dict[str, str]:
        nodes = set(self._ctx.host.device_nodes())
        return {
            name: kubeletapi.HEALTHY if gpu.device_node in nodes else kubeletapi.UNHEALTHY
            for name, gpu in self._gpus.items()
        }

    def look(self) -> None:
        """Look at the GPUs' health and tell every open stream of a change."""
        health = self._present()
        if health != self._health:
            self._health = health
            self._tell()

    def close_streams(self) -> None:
        """End all streams."""
        self._generation += 1
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def GetDevicePluginOptions(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - the name is the wire's
        """What the plugin offers."""
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The complete list at once, then at every change."""
        generation = self._generation
        while generation == self._generation:
            news = self._news
            yield wire.ListAndWatchResponse(
                devices=[wire.Device(ID=name, health=health) for name, health in self._health.items()]
            )
            await news.wait()

    async def GetPreferredAllocation(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """Must-include devices first, then those of the lowest index."""
        responses = []
        for wanted in request.container_requests:
            must = list(wanted.must_include_deviceIDs)
            order = sorted(wanted.available_deviceIDs, key=lambda name: self._gpus[name].index)
            chosen = must + [name for name in order if name not in must]
            responses.append(
                wire.ContainerPreferredAllocationResponse(deviceIDs=chosen[: max(0, wanted.allocation_size)])
            )
        return wire.PreferredAllocationResponse(container_responses=responses)

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The answer by the configured strategies; an unknown device is refused."""
        responses = []
        for wanted in request.container_requests:
            unknown = [name for name in wanted.devices_ids if name not in self._gpus]
            if unknown:
                cause = f"invalid request: unknown device: {unknown[0]}"
                text = f'invalid allocation request for "{names.GPU_RESOURCE}": {cause}'
                await context.abort(grpc.StatusCode.UNKNOWN, text)
            responses.append(self._answer(list(wanted.devices_ids)))
        return wire.AllocateResponse(container_responses=responses)

    def _answer(self, devices: list[str]) -> Any:
        named = [f"{CDI_KIND}={name}" for name in devices]
        answer = wire.ContainerAllocateResponse()
        if "envvar" in self._strategies:
            answer.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(devices)
        if "cdi-annotations" in self._strategies:
            prefix = self._ctx.env.get("CDI_ANNOTATION_PREFIX", "cdi.k8s.io/")
            answer.annotations[f"{prefix}nvidia-device-plugin_{uuid.uuid4()}"] = ",".join(named)
        if "cdi-cri" in self._strategies:
            answer.cdi_devices.extend(wire.CDIDevice(name=name) for name in named)
        return answer

    async def PreStartContainer(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Never asked for."""
        return wire.PreStartContainerResponse()
