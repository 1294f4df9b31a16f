"""How long a scrape of the metrics exporter takes, and what it holds in memory: `python -m bench.exporter`.

dcgm-exporter runs as a process of its own on eight simulated GPUs with 56 MIG instances. A pod-resources server of a
kubelet with 100 pods, of which 56 have an instance, is in this process. A scrape is an HTTP request over a kept
connection. The reference is the same server's answer to `/health`, which is what HTTP alone costs, and to one List of
the pod-resources API, which each scrape waits for.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio

from groundplane.node import ownprocess
from groundplane.node.devices import simulated
from groundplane.node.devices.simulated import GpuEntry, Machine, Mig, TelemetryEntry
from groundplane.node.hostroot import HostRoot
from groundplane.node.kubeletapi.stubs import podresources_pb2 as wire
from groundplane.node.kubeletapi.stubs import podresources_pb2_grpc as rpc

from . import process, table

LIMIT_MS, LIMIT_MIB = 20, 80
GPUS, INSTANCES, PODS = 8, 7, 100
SCRAPES, WARM_UP = 500, 20
DEADLINE_S = 30.0


class Kubelet(rpc.PodResourcesListerServicer):
    """Answers List with always the same pods."""

    def __init__(self, devices: list[str]) -> None:
        self._answer = wire.ListPodResourcesResponse(pod_resources=[_pod(at, devices) for at in range(PODS)])
        self._server: Any = grpc.aio.server()

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name of it
        return self._answer

    async def start(self, socket: Path) -> None:
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{socket}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


def _pod(at: int, devices: list[str]) -> Any:
    mine = [wire.ContainerDevices(resource_name="nvidia.com/mig-1g.10gb", device_ids=devices[at : at + 1])]
    container = wire.ContainerResources(name="main", devices=mine if at < len(devices) else [])
    return wire.PodResources(name=f"training-job-{at}-x7k2p", namespace=f"team-{at % 7}", containers=[container])


def _machine(folder: Path) -> list[str]:
    """Make the GPUs; the UUIDs of the MIG devices."""
    file = HostRoot(folder).path(ownprocess.DEVICES)
    file.parent.mkdir(parents=True)
    entry = GpuEntry("H100", mig=Mig(True, ("1g.10gb",) * INSTANCES), telemetry=TelemetryEntry(load=60))
    machine = Machine.create(file, simulated.describe("node", [entry] * GPUS, "580.95.05"))
    return [device.uuid for gpu in machine.read().inventory.gpus for device in gpu.mig_devices]


def _start(folder: Path, socket: Path, port: int) -> process.Child:
    settings = {
        ownprocess.SIMULATION_ENV: str(folder),
        "DCGM_EXPORTER_LISTEN": f"127.0.0.1:{port}",
        "DCGM_EXPORTER_KUBERNETES": "true",
        "DCGM_EXPORTER_INTERVAL": "5000",
        "DCGM_POD_RESOURCES_KUBELET_SOCKET": str(socket),
        "NODE_NAME": "node",
    }
    return process.Child([sys.executable, "-m", "bench.exporterprogram"], settings)


async def _free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def _until_served(child: process.Child, session: aiohttp.ClientSession, url: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        child.check()
        try:
            async with session.get(f"{url}/metrics") as answer:
                if b"pod=" in await answer.read():
                    return
        except aiohttp.ClientError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"no figures within {DEADLINE_S:g} s: {child.output()[-2000:]}")
        await asyncio.sleep(0.05)


async def _times(session: aiohttp.ClientSession, url: str) -> tuple[list[float], int]:
    times, size = [], 0
    for _ in range(SCRAPES + WARM_UP):
        began = time.perf_counter()
        async with session.get(url) as answer:
            size = len(await answer.read())
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times[WARM_UP:]), size


async def _list_times(socket: Path) -> list[float]:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub: Any = rpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
        times = []
        for _ in range(SCRAPES):
            began = time.perf_counter()
            await stub.List(wire.ListPodResourcesRequest())
            times.append((time.perf_counter() - began) * 1000)
    return sorted(times)


def _quantile(times: list[float], part: float) -> float:
    return times[min(int(len(times) * part), len(times) - 1)]


async def _measure(folder: Path) -> list[list[object]]:
    socket = folder / "pods.sock"
    kubelet = Kubelet(_machine(folder))
    await kubelet.start(socket)
    port = await _free_port()
    child = _start(folder, socket, port)
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port}"
            await _until_served(child, session, url)
            before = child.cpu_s()
            scrapes, size = await _times(session, f"{url}/metrics")
            cpu_ms = (child.cpu_s() - before) * 1000 / (SCRAPES + WARM_UP)
            bare, _ = await _times(session, f"{url}/health")
            listed = await _list_times(socket)
        resident = child.memory_mib("VmRSS")
        peak = child.memory_mib("VmHWM")
    finally:
        await child.stop()
        await kubelet.stop()
    median, reference = statistics.median(scrapes), statistics.median(bare) + statistics.median(listed)
    p99, bare_p99 = _quantile(scrapes, 0.99), _quantile(bare, 0.99) + _quantile(listed, 0.99)
    times = [median, p99, LIMIT_MS, cpu_ms, reference, bare_p99, median / reference]
    return [[size / 1024, *times, resident, peak, LIMIT_MIB]]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        rows = asyncio.run(_measure(Path(name)))
    table.show(
        f"{SCRAPES} scrapes of {GPUS} GPUs with {GPUS * INSTANCES} MIG instances and {PODS} pods ({table.machine()})",
        [
            *("KiB", "median ms", "p99 ms", "limit ms", "CPU ms", "bare HTTP + List ms", "their p99 ms", "ratio"),
            *("resident MiB", "peak MiB", "limit MiB"),
        ],
        rows,
        "client and kubelet are one other process on the same machine; samples are taken every five seconds meanwhile",
    )


if __name__ == "__main__":
    main()
