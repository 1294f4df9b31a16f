"""One resource on its socket: the gRPC service that the kubelet asks, and its registration there.

What is answered is computed by ``answers`` and ``preference``, what is healthy stands on the board; when a server
starts and stops is decided by ``main`` (contracts/device-plugin-gfd.md 3, 4.1, 10).
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from .. import kubeletapi
from ..kubeletapi.stubs import deviceplugin_pb2 as wire
from ..kubeletapi.stubs import deviceplugin_pb2_grpc as rpc
from ..process import Process
from ..resources import Offer, physical_id
from .allocation import AllocationError
from .answers import Answers, RequestError
from .health import Board
from .preference import Preference

DIAL_S: Final = 5.0
"""Seconds that a server may take to answer for the first time, and the kubelet to take a registration."""
STOP_S: Final = 1.0
"""Seconds that calls in progress have to end when a server stops."""
_CHANNEL_OPTIONS: Final = (
    *(("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)),
    *(("grpc.min_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)),
)
CRASHES: Final = 5
CRASH_WINDOW_S: Final = 3600.0


class ServeError(RuntimeError):
    """A resource cannot be served or registered now; it is tried again later."""


class TooManyCrashes(RuntimeError):  # noqa: N818 - reads as a fact
    """A resource's server has crashed so often that it is no use to start it again."""


class Identity(NamedTuple):
    """What tells one socket file from another that is made at the same path."""

    device: int
    inode: int
    made_ns: int

    @classmethod
    def of(cls, path: Path) -> "Identity | None":
        """The identity of what is at a path; None if there is nothing."""
        try:
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns)


class Crashes:
    """Counts the crashes of a server; one that ran for more than an hour before is forgiven all (section 3)."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._count = 0

    def note(self, now: float) -> bool:
        """Count a crash; whether that is one too many."""
        self._count = 0 if now - self._last > CRASH_WINDOW_S else self._count + 1
        self._last = now
        return self._count > CRASHES


def socket_name(resource: str) -> str:
    """The base name of a resource's socket."""
    return f"nvidia-{resource.partition('/')[2]}.sock"


class Service(rpc.DevicePluginServicer):
    """The calls of the device plugin API for one resource."""

    def __init__(self, process: Process, offer: Offer, answers: Answers, preference: Preference, board: Board) -> None:
        self._process = process
        self._offer = offer
        self._answers = answers
        self._preference = preference
        self._board = board
        self._news = asyncio.Event()
        self._list: wire.ListAndWatchResponse | None = None
        self._closed = False
        board.listen(self.tell)

    def tell(self) -> None:
        """Wake all streams: something has changed."""
        self._list = None
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self.tell()

    def devices(self) -> wire.ListAndWatchResponse:
        """The complete list, as it is now."""
        if self._list is None:
            numa = {device.id: device.numa for device in self._offer.devices}
            self._list = wire.ListAndWatchResponse(
                devices=[self._device(name, numa[physical_id(name)]) for name in self._offer.ids()]
            )
        return self._list

    def _device(self, name: str, numa: int | None) -> wire.Device:
        health = kubeletapi.HEALTHY if self._board.is_healthy(physical_id(name)) else kubeletapi.UNHEALTHY
        if numa is None:
            return wire.Device(ID=name, health=health)
        return wire.Device(ID=name, health=health, topology=wire.TopologyInfo(nodes=[wire.NUMANode(ID=numa)]))

    async def GetDevicePluginOptions(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - the names are the wire's
        """What the plugin offers."""
        return OPTIONS

    async def ListAndWatch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The complete list at once, then again at every change: on every stream (4.1, required)."""
        while not self._closed:
            news = self._news
            yield self.devices()
            await news.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Which devices to take best."""
        answer = wire.PreferredAllocationResponse()
        for wanted in request.container_requests:
            try:
                chosen = await self._preference.choose(
                    list(wanted.available_deviceIDs), list(wanted.must_include_deviceIDs), wanted.allocation_size
                )
            except AllocationError as error:
                text = f'no preferred allocation for "{self._offer.resource}": {error}'
                self._process.log.error(text)
                await context.abort(grpc.StatusCode.UNKNOWN, text)
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """What each container gets for its devices."""
        answer = wire.AllocateResponse()
        for wanted in request.container_requests:
            try:
                answer.container_responses.append(self._answers.allocate(wanted.devices_ids))
            except RequestError as error:
                self._process.log.error(str(error))
                await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return answer

    async def PreStartContainer(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Nothing to do; never asked for."""
        return wire.PreStartContainerResponse()


OPTIONS: Final = wire.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


class ResourceServer:
    """A service on its socket, registered with the kubelet unless ``kubelet`` is None."""

    def __init__(self, process: Process, resource: str, service: Service, kubelet: Path | None) -> None:
        self.resource = resource
        self.path = process.path(kubeletapi.DEVICE_PLUGIN_DIR) / socket_name(resource)
        self.identity: Identity | None = None
        self._process = process
        self._service = service
        self._kubelet = kubelet
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serve, see that the socket answers, and register. Raises :class:`ServeError`."""
        await self._serve()
        await self._check()
        if self._kubelet is not None:
            await self._register(self._kubelet)
        self._process.log.info(f"serving {self.resource} on {self.path.name}")

    async def supervise(self) -> None:
        """Start the server again when it ends by itself. Never returns.

        Raises:
            ServeError: it could not be started again.
            TooManyCrashes: it ended by itself too often.
        """
        crashes = Crashes(self._process.monotonic())
        while True:
            assert self._server is not None, "supervised before it was started"
            await asyncio.shield(self._server.wait_for_termination())  # cancelled, it makes the server's stop fail
            self._process.log.error(f"the server of {self.resource} has ended by itself; it is started again")
            if crashes.note(self._process.monotonic()):
                raise TooManyCrashes(
                    f"the server of {self.resource} has ended by itself more than {CRASHES} times, "
                    f"never after more than {CRASH_WINDOW_S:g} s"
                )
            await self.start()

    async def stop(self) -> None:
        """End all calls and remove the socket, if it is still ours."""
        self._service.close()
        server, self._server = self._server, None
        if self.identity is not None and Identity.of(self.path) == self.identity:
            self.path.unlink(missing_ok=True)
        self.identity = None
        if server is not None:
            await server.stop(STOP_S)

    async def _serve(self) -> None:
        """Listen on a new socket, which takes the place of any other in one step.

        gRPC removes the socket that it made when it stops. As that one got another name meanwhile, a socket that
        another instance has put in our place is not removed with it.
        """
        made = self.path.with_name(f".{uuid.uuid4().hex[:8]}.sock")
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        try:
            server.add_insecure_port(f"unix:{made}")
            await server.start()
            identity = Identity.of(made)
            made.replace(self.path)
        except (OSError, RuntimeError) as error:  # gRPC tells a socket that cannot be bound by a RuntimeError
            await server.stop(None)
            made.unlink(missing_ok=True)
            raise ServeError(f"{self.resource} cannot be served on {self.path}: {error}") from error
        self.identity, self._server = identity, server

    async def _check(self) -> None:
        async with _channel(self.path) as channel:
            stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
            try:
                await stub.GetDevicePluginOptions(wire.Empty(), timeout=DIAL_S, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                text = f"{self.resource} does not answer on {self.path} within {DIAL_S:g} s: {error.details()}"
                raise ServeError(text) from error

    async def _register(self, kubelet: Path) -> None:
        if Identity.of(kubelet) is None:
            raise ServeError(f"{self.resource} cannot be registered: the kubelet's socket {kubelet} is not there")
        request = wire.RegisterRequest(
            version=kubeletapi.API_VERSION, endpoint=self.path.name, resource_name=self.resource, options=OPTIONS
        )
        async with _channel(kubelet) as channel:
            stub = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            try:
                await stub.Register(request, timeout=DIAL_S, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                text = f"{self.resource} cannot be registered with the kubelet at {kubelet}: {error.details()}"
                raise ServeError(text) from error


def _channel(path: Path) -> grpc.aio.Channel:
    """A connection that knows nothing of what earlier ones to the same socket have met, and tries often."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS)


async def answers_on(path: Path, within_s: float = DIAL_S) -> bool:
    """Whether a device plugin answers on a socket."""
    async with _channel(path) as channel:
        stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.GetDevicePluginOptions(wire.Empty(), timeout=within_s)
            return True
    return False
