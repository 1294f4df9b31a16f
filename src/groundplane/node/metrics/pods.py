"""Asking whose a device is: the kubelet for devices of pods, the API server for what else is told of these.

Whatever does not answer leaves labels out and breaks nothing (contracts/mig-exporter-validator.md 4, 5.5). What the
answers mean is ``mapping``'s part.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...cluster import kinds
from ..process import Log, Process
from ..unixsocket import reachable
from . import mapping
from .mapping import PodFacts, SliceDevice, Use
from .settings import Settings

if TYPE_CHECKING:
    from ...cluster.informer import Informer

LIMIT_S: Final = 10.0
"""How long the kubelet may take to answer."""
PATIENCE_S: Final = 5.0
"""How long a scrape waits for that: Prometheus gives up after 10 s, and figures without pods are better than none."""
_LARGEST: Final = 16 << 20
"""Bytes of the longest answer that a kubelet gives."""
_POD_UID: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


class PodResources:
    """The kubelet's pod-resources socket."""

    def __init__(self, process: Process, log: Log, socket: str) -> None:
        self._process = process
        self._log = log
        self._socket = socket
        self._channel: Any = None
        self._open = contextlib.ExitStack()
        self._asking: asyncio.Task[list[Use]] | None = None
        self._trouble = ""

    async def uses(self) -> list[Use]:
        """The devices of all containers, none if the kubelet does not tell. Scrapes at one time share an answer."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(self._forget)
        asking = self._asking
        await asyncio.wait((asking,), timeout=PATIENCE_S)
        if not asking.done():
            self._say(
                f"the kubelet has not listed pods within {PATIENCE_S:g} s; rows say nothing of pods until it does"
            )
        return asking.result() if asking.done() and not asking.cancelled() else []

    async def close(self) -> None:
        """Let the socket go."""
        asking = self._asking
        if asking is not None and asking is not asyncio.current_task():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
        self._open.close()

    def _forget(self, asked: "asyncio.Task[list[Use]]") -> None:
        self._asking = None
        if not asked.cancelled():
            asked.exception()  # those who wait for it raise it, if there are any left

    async def _ask(self) -> list[Use]:
        import grpc
        import grpc.aio

        try:
            there = self._process.path(self._socket).exists()
        except OSError:
            there = False
        if not there:
            self._say(f"there is no socket {self._socket}: rows say nothing of pods. Is the kubelet's folder mounted?")
            return []
        for last in (False, True):  # the kubelet may have been restarted since
            fresh = self._channel is None
            try:
                answer = await self._list()
            except (grpc.aio.AioRpcError, OSError) as error:
                await self.close()
                if last or fresh:
                    reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                    self._say(f"the kubelet does not list pods at {self._socket}: {reason}; rows say nothing of pods")
                    return []
            else:
                self._say("")
                return list(mapping.uses(answer))
        return []

    async def _list(self) -> Any:
        import grpc.aio

        from ..kubeletapi.stubs import podresources_pb2, podresources_pb2_grpc

        if self._channel is None:
            address = self._open.enter_context(reachable(self._process.path(self._socket)))
            self._channel = grpc.aio.insecure_channel(
                f"unix:{address}",
                options=(("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", _LARGEST)),
            )
        stub: Any = podresources_pb2_grpc.PodResourcesListerStub(self._channel)  # type: ignore[no-untyped-call]
        return await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=LIMIT_S)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._log.warning(trouble)
        if self._trouble and not trouble:
            self._log.info("the kubelet lists pods again")
        self._trouble = trouble


# --- the API server ---------------------------------------------------------------------------------------------------


class _PodMeta(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] = {}


class _Pod(msgspec.Struct, frozen=True, gc=False):
    metadata_only = True
    metadata: _PodMeta = _PodMeta()


class _Attribute(msgspec.Struct, frozen=True, gc=False):
    string: str = ""


class _Device(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    attributes: dict[str, _Attribute] = {}


class _Pool(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _SliceSpec(msgspec.Struct, frozen=True, gc=False):
    driver: str = ""
    pool: _Pool = _Pool()
    devices: tuple[_Device, ...] = ()


class _Slice(msgspec.Struct, frozen=True, gc=False):
    metadata: _PodMeta = _PodMeta()
    spec: _SliceSpec = _SliceSpec()


class Cluster:
    """What the API server tells of this node's pods and of resource slices, kept up to date by :meth:`run`."""

    def __init__(self, process: Process, log: Log, settings: Settings) -> None:
        self._process = process
        self._log = log
        self._settings = settings
        self._pods: Informer[_Pod] | None = None
        self._slices: Informer[_Slice] | None = None

    @property
    def needed(self) -> bool:
        """Whether anything is wanted that only the API server tells."""
        return self._wants_pods or (self._settings.kubernetes and self._settings.dra)

    @property
    def _wants_pods(self) -> bool:
        wanted = self._settings
        return wanted.kubernetes and (wanted.pod_labels or wanted.pod_uid or wanted.virtual_gpus)

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        from ...cluster.errors import ConfigError
        from ...cluster.informer import Informer

        settings, process = self._settings, self._process
        if not settings.node_name:
            self._log.warning("NODE_NAME is not set: the pods of all nodes are watched for their labels")
        try:
            client = process.client(settings.kubeconfig)
        except ConfigError as error:
            self._log.error(
                f"the API server cannot be asked: {error}; labels and uids of pods, and claims, are left out"
            )
            return
        async with client, asyncio.TaskGroup() as group:
            if self._wants_pods:
                fields = f"spec.nodeName={settings.node_name}" if settings.node_name else None
                self._pods = Informer(
                    client, kinds.POD, _Pod, fields=fields, sleep=process.sleep, clock=process.monotonic
                )
                self._follow(group, self._pods)
            if settings.dra:
                self._slices = Informer(
                    client, kinds.RESOURCE_SLICE, _Slice, sleep=process.sleep, clock=process.monotonic
                )
                self._follow(group, self._slices)

    def _follow(self, group: asyncio.TaskGroup, informer: "Informer[Any]") -> None:
        informer.on_trouble(lambda: self._tell(informer))
        group.create_task(informer.run())

    def _tell(self, informer: "Informer[Any]") -> None:
        if informer.last_error is not None:
            self._log.warning(f"{informer.scope} cannot be watched: {informer.last_error}; trying again")

    @property
    def facts(self) -> Mapping[tuple[str, str], PodFacts]:
        """What is known of pods, by namespace and name."""
        if self._pods is None:
            return {}
        metas = (pod.metadata for pod in self._pods.values())
        return {(meta.namespace, meta.name): PodFacts(meta.uid, meta.labels) for meta in metas}

    @property
    def slices(self) -> Mapping[tuple[str, str], SliceDevice]:
        """The GPUs of resource slices, by pool and device."""
        if self._slices is None:
            return {}
        return {
            (each.spec.pool.name, device.name): found
            for each in self._slices.values()
            if each.spec.driver == mapping.DRA_DRIVER
            for device in each.spec.devices
            if (found := _slice_device(device)) is not None
        }


def _slice_device(device: _Device) -> SliceDevice | None:
    def text(name: str) -> str:
        found = device.attributes.get(name)
        return found.string if found is not None else ""

    if not text("uuid"):
        return None
    return SliceDevice(text("uuid"), text("parentUUID") if text("type") == "mig" else "", text("profile"))


def pods_of(process: Process, pids: Iterable[int]) -> dict[int, str]:
    """The uid of the pod that each process is in, by the name of its control group; others are left out."""
    found: dict[int, str] = {}
    for pid in pids:
        try:
            match = _POD_UID.search(process.kernel.read_text(f"/proc/{pid}/cgroup"))
        except OSError:  # it has ended, or is in another PID namespace than ours
            continue
        if match:
            found[pid] = match[1].replace("_", "-")
    return found
