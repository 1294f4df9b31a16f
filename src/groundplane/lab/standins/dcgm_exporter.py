"""Stand-in for dcgm-exporter: replaced by groundplane's node/metrics.

Serves a few of the exporter's metrics with made-up, steady values and the right labels, tied to pods by the kubelet's
pod-resources socket (contracts/mig-exporter-validator.md 5).
"""

import grpc
import grpc.aio

from ...node import kubeletapi
from ...node.kubeletapi.stubs import podresources_pb2 as wire
from ...node.kubeletapi.stubs import podresources_pb2_grpc as rpc
from ..host import Gpu
from ..programs import ContainerContext, Response
from . import common

REFRESH_S = 30.0
_HELP = {
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB)."),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB)."),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered."),
}


def _value(metric: str, gpu: Gpu) -> int:
    values = {
        "DCGM_FI_DEV_GPU_TEMP": 34 + gpu.index,
        "DCGM_FI_DEV_POWER_USAGE": 70 + gpu.index,
        "DCGM_FI_DEV_FB_FREE": gpu.model.memory_mib,
    }
    return values.get(metric, 0)


class _Exporter:
    def __init__(self, ctx: ContainerContext) -> None:
        self._ctx = ctx
        self._pods: dict[str, tuple[str, str, str]] = {}

    async def refresh(self) -> None:
        """Ask the kubelet which pod has which device."""
        path = self._ctx.path(kubeletapi.POD_RESOURCES_SOCKET)
        found: dict[str, tuple[str, str, str]] = {}
        if path.exists():
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                stub = rpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
                try:
                    answer = await stub.List(wire.ListPodResourcesRequest(), timeout=5.0)
                except grpc.aio.AioRpcError as error:
                    self._ctx.error(f"pod-resources: {error.details()}; rows carry no pods until it answers")
                    return
            for pod in answer.pod_resources:
                for container in pod.containers:
                    for devices in container.devices:
                        found |= dict.fromkeys(devices.device_ids, (pod.name, pod.namespace, container.name))
        self._pods = found

    def answer(self, path: str) -> Response:
        """`/metrics` and `/health`."""
        if path.startswith("/health"):
            return Response(200, "KO" if not self._ctx.host.loaded("nvidia") else "OK")
        if not path.startswith("/metrics"):
            return Response(404, "not found\n")
        lines = []
        for metric, (kind, text) in _HELP.items():
            lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
            lines += [f"{metric}{{{self._labels(gpu)}}} {_value(metric, gpu)}" for gpu in self._gpus]
        return Response(200, "\n".join(lines) + "\n")

    @property
    def _gpus(self) -> tuple[Gpu, ...]:
        return self._ctx.devices or self._ctx.host.gpus

    def _labels(self, gpu: Gpu) -> str:
        labels = {
            "gpu": str(gpu.index),
            "UUID": gpu.uuid,
            "pci_bus_id": gpu.pci_address.upper(),
            "device": f"nvidia{gpu.index}",
            "modelName": gpu.model.product,
            "Hostname": self._ctx.node_name,
            "DCGM_FI_DRIVER_VERSION": self._ctx.host.driver_version or "",
        }
        if gpu.uuid in self._pods:
            labels |= dict(zip(("pod", "namespace", "container"), self._pods[gpu.uuid], strict=True))
        return ",".join(f'{key}="{value}"' for key, value in labels.items())


async def run(ctx: ContainerContext) -> int:
    """`dcgm-exporter`."""
    if not common.sees_driver(ctx):
        ctx.error(
            "Failed to initialize DCGM: the NVIDIA driver is not loaded or its libraries are not in this container"
        )
        return 1
    exporter = _Exporter(ctx)
    ctx.serve(int(ctx.env.get("DCGM_EXPORTER_LISTEN", ":9400").rpartition(":")[2]), exporter.answer)
    while True:
        await exporter.refresh()
        if await ctx.stopped(REFRESH_S):
            return 0
