"""How fast and how small the device plugin is, over real gRPC sockets: `python -m bench.plugin`.

The plugin runs as a process of its own on a simulated machine whose files lie in a temporary folder; this process is
its kubelet. Nothing outside the folder is touched.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec

from groundplane.node import kubeletapi, ownprocess
from groundplane.node.devices.simfile import Topology
from groundplane.node.devices.simulated import Description, GpuEntry, Machine, Mig, describe
from groundplane.node.hostroot import HostRoot
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc

from . import table
from .process import Child

ROUNDS = 400
FAULTS = 20
MODEL = "H100-SXM5-80GB"
DRIVER = "580.65.06"
ALLOCATE_LIMIT_MS, PREFERRED_LIMIT_MS, FAULT_LIMIT_MS, MEMORY_LIMIT_MIB = 5.0, 20.0, 50.0, 60.0
WAIT_S = 30.0


class Scenario(msgspec.Struct, frozen=True):
    """A machine and a configuration, and how many devices a container asks for."""

    name: str
    description: Description
    devices: int
    config: str = "version: v1\n"
    env: dict[str, str] = {}


def _gpus(count: int) -> Description:
    """Two GPUs a switch, half of them near each CPU."""
    pairs = tuple((first, first + 1) for first in range(0, count, 2))
    halves = tuple(tuple(range(half * count // 2, (half + 1) * count // 2)) for half in (0, 1))
    return describe("bench", [MODEL] * count, DRIVER, topology=Topology(single_switch=pairs, same_node=halves))


def _sliced(count: int) -> Description:
    entry = GpuEntry(MODEL, mig=Mig(enabled=True, instances=("1g.10gb",) * 7))
    return describe("bench", [entry] * count, DRIVER)


SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"
SCENARIOS = (
    Scenario("8 GPUs", _gpus(8), 4),
    Scenario("16 GPUs", _gpus(16), 8),
    Scenario("64 GPUs x 10 replicas", _gpus(64), 8, config=SHARED),
    Scenario("7 x 8 MIG devices", _sliced(8), 7, env={"MIG_STRATEGY": "single"}),
)


# --- the kubelet's side -----------------------------------------------------------------------------------------------


class Measured(msgspec.Struct):
    """Milliseconds, one for each call, and the plugin's memory. ``bare`` are calls that need no work."""

    bare: list[float] = []
    allocate: list[float] = []
    prefer: list[float] = []
    fault: list[float] = []
    memory_mib: float = 0.0


class Kubelet:
    """Asks the plugin of one scenario."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self._folder = folder
        self._scenario = scenario
        devices = HostRoot(folder / "host").path(ownprocess.DEVICES)
        devices.parent.mkdir(parents=True)
        self.machine = Machine.create(devices, scenario.description)
        _prepare(folder, self.machine, scenario)

    async def measure(self) -> Measured:
        """Start the plugin, ask it, let faults happen, and end it."""
        simulation = {ownprocess.SIMULATION_ENV: str(self._folder / "host")}
        child = Child(
            [sys.executable, "-m", "bench.pluginprogram", str(self._folder / "root")],
            {**ENVIRONMENT, **simulation, **self._scenario.env},
        )
        try:
            socket = self._folder / f"root{kubeletapi.DEVICE_PLUGIN_DIR}/nvidia-gpu.sock"
            await _until(socket.exists, child)
            async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
                found = await self._ask(rpc.DevicePluginStub(channel))  # type: ignore[no-untyped-call]
            found.memory_mib = child.memory_mib("VmRSS")
            return found
        finally:
            await child.stop()

    async def _ask(self, stub: Any) -> Measured:
        news: asyncio.Queue[tuple[float, list[str]]] = asyncio.Queue()

        async def follow() -> None:
            async for answer in stub.ListAndWatch(wire.Empty()):
                at = time.perf_counter()
                await news.put((at, [each.ID for each in answer.devices if each.health == kubeletapi.HEALTHY]))

        following = asyncio.create_task(follow())
        _, ids = await asyncio.wait_for(news.get(), WAIT_S)
        chosen = ids[:: len(ids) // self._scenario.devices][: self._scenario.devices]
        allocate = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=chosen)])
        wanted = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=ids, allocation_size=self._scenario.devices
        )
        prefer = wire.PreferredAllocationRequest(container_requests=[wanted])
        found = Measured(
            bare=await _times(lambda: stub.GetDevicePluginOptions(wire.Empty())),
            allocate=await _times(lambda: stub.Allocate(allocate)),
            prefer=await _times(lambda: stub.GetPreferredAllocation(prefer)),
        )
        for uuid in list(dict.fromkeys(ids))[:: max(1, len(ids) // FAULTS)][:FAULTS]:
            found.fault.append(await self._fault(uuid.partition("::")[0], news))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return found

    async def _fault(self, device: str, news: asyncio.Queue[tuple[float, list[str]]]) -> float:
        """From the moment a fault is in the driver (its file is written) until the list is here."""
        for gpu in self.machine.read().inventory.gpus:
            placed = next(((mig.gi, mig.ci) for mig in gpu.mig_devices if mig.uuid == device), (None, None))
            if device == gpu.uuid or placed != (None, None):
                self.machine.xid(gpu.uuid, 48, gi=placed[0], ci=placed[1])
                break
        began = time.perf_counter()
        at, _ = await asyncio.wait_for(news.get(), WAIT_S)
        return (at - began) * 1000


ENVIRONMENT = {
    "CONFIG_FILE": "/config.yaml",
    "DEVICE_LIST_STRATEGY": "envvar,cdi-annotations,cdi-cri",
    "PASS_DEVICE_SPECS": "true",
    "KUBELET_SOCKET": "",
    "GROUNDPLANE_NULL_DEVICES": "true",
}


def _prepare(folder: Path, machine: Machine, scenario: Scenario) -> None:
    root, kernel = HostRoot(folder / "root"), HostRoot(folder / "host")
    root.mkdir(kubeletapi.DEVICE_PLUGIN_DIR)
    root.write_atomic("/config.yaml", scenario.config)
    root.write_atomic("/driver-root/usr/lib64/libnvidia-ml.so.1", "")
    root.write_atomic(f"/driver-root/usr/lib64/libcuda.so.{machine.read().inventory.driver_version}", "")
    kernel.write_atomic("/sys/module/nvidia/refcnt", "1\n")
    lines, minor = [], 1
    for gpu in machine.read().inventory.gpus:
        kernel.write_atomic(f"{gpu.sysfs}/numa_node", f"{gpu.index % 2}\n")
        root.write_atomic(gpu.device_node, "")
        for device in gpu.mig_devices:
            for name in (f"gi{device.gi}/access", f"gi{device.gi}/ci{device.ci}/access"):
                minor += 1
                lines.append(f"gpu{gpu.minor}/{name} {minor}\n")
                root.write_atomic(f"/dev/nvidia-caps/nvidia-cap{minor}", "")
    kernel.write_atomic("/proc/driver/nvidia-caps/mig-minors", "".join(lines))


async def _until(condition: Callable[[], bool], child: Child) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        child.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the plugin did not serve within {WAIT_S:g} s: {child.output()}")
        await asyncio.sleep(0.02)


async def _times(call: Callable[[], Awaitable[Any]]) -> list[float]:
    gc.collect()
    gc.freeze()  # collections of the many modules of this client are none of the plugin's time
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await call()
        times.append((time.perf_counter() - began) * 1000)
    return times


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


async def _measure() -> list[tuple[Scenario, Measured]]:
    found = []
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="gp") as folder:
            found.append((scenario, await Kubelet(Path(folder), scenario).measure()))
    return found


def main() -> None:
    """Print the tables; each limit is that of the slowest call in a hundred."""
    found = asyncio.run(_measure())
    calls = [
        (f"{what}, {scenario.devices} of {scenario.name}", times, limit)
        for scenario, measured in found
        for what, times, limit in (
            ("bare call", measured.bare, None),
            ("Allocate", measured.allocate, ALLOCATE_LIMIT_MS),
            ("preferred", measured.prefer, PREFERRED_LIMIT_MS),
            ("fault to list", measured.fault, FAULT_LIMIT_MS),
        )
    ]
    table.show(
        f"device plugin over its socket, {ROUNDS} calls, {FAULTS} faults ({table.machine()})",
        ["call", "p50 ms", "p99 ms", "limit ms", "ratio"],
        [
            [name, statistics.median(times), _p99(times), limit, _p99(times) / limit if limit else None]
            for name, times, limit in calls
        ],
        "a fault is in the driver when the file of simulated GPUs is written; Python's client is in the times",
    )
    table.show(
        f"device plugin, resident memory after all calls ({table.machine()})",
        ["machine", "MiB", "limit MiB", "ratio"],
        [
            [scenario.name, measured.memory_mib, MEMORY_LIMIT_MIB, measured.memory_mib / MEMORY_LIMIT_MIB]
            for scenario, measured in found
        ],
    )


if __name__ == "__main__":
    main()
