"""The programs whose series alerts and dashboard read, run over HTTP against simulated machines."""

import asyncio
import contextlib
import re
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
from monitoring import prometheus
from node.metrics.exporterworld import World, pod
from node.validate.validator_world import World as ValidatorWorld

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.node.devices.simulated import GpuEntry, Machine, Mig, TelemetryEntry
from groundplane.operator.diagnosis.figures import Figures
from groundplane.operator.diagnosis.picture import Ill
from groundplane.operator.metrics import Metrics

DESTINATION = "/etc/dcgm-exporter/dcgm-metrics.csv"
MIG = GpuEntry("H100", mig=Mig(True, ("1g.10gb", "3g.40gb")), telemetry=TelemetryEntry(load=60))
BUSY = GpuEntry("H100", telemetry=TelemetryEntry(load=60))


@contextlib.asynccontextmanager
async def exporter(
    gpus: Sequence[str | GpuEntry] = (BUSY, BUSY), release: Release = Release.DEFAULT
) -> AsyncIterator[World]:
    """The metrics exporter with the chart's counters, before it is started."""
    folder = Path(tempfile.mkdtemp(prefix="gp"))
    world = World(folder, gpus)
    try:
        world.prepare("--collectors", DESTINATION, "--kubernetes", release=release)
        world.process.write(DESTINATION, prometheus.COUNTERS.read_text(encoding="utf-8"))
        await world.kubelet.start()
        await world.start()
        yield world
    finally:
        await world.close()
        shutil.rmtree(folder, ignore_errors=True)


READY = frozenset(("driver", "toolkit", "plugin", "cuda"))


async def node_status(
    folder: Path, *, shows: str, ready: frozenset[str] = READY, devices: int = 2, smi_code: int = 0
) -> str:
    """What the node-status exporter serves of a node, once that shows something."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with ValidatorWorld(folder) as node, aiohttp.ClientSession() as session:
        node.host_tool()
        node.devices()
        node.smi_code = smi_code
        node.resources({names.GPU_RESOURCE: str(devices)}, {})
        for component in ready:
            node.process.write(f"{names.VALIDATIONS_DIR}/{component}-ready", "")
        node.start("metrics", METRICS_PORT=str(port))
        await node.logged("Serving the node's metrics on port")
        async with asyncio.timeout(20):
            while True:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    if re.search(shows, body := await answer.text(), re.M):
                        return body
                await asyncio.sleep(0.01)


def operator_metrics(diagnosed: Figures | None = None, **values: float) -> str:
    """What the operator serves."""
    metrics = Metrics()
    for name, value in {**HEALTHY, **values}.items():
        metrics.set(name, value)
    metrics.more = (diagnosed or diagnosis(),)
    return metrics.expose().decode()


SICK = {"gpu-1": Ill("L2", "S15", "critical", "its image cannot be pulled", layers=(("L1", False), ("L2", True)))}
CLUSTER_CAUSE = Ill("L9", "S55", "critical", "no node features")


def diagnosis(sick: Mapping[str, Ill] | None = None, cluster: tuple[Ill, ...] = (), last: float = 1e9) -> Figures:
    """What the operator's diagnosis serves; by default, that all is well."""
    figures = Figures(60.0)
    figures.sick, figures.cluster, figures.last_success_s = sick or {}, cluster, last
    return figures


HEALTHY = {
    "reconciliation_status": 1,
    "reconciliation_has_nfd_labels": 1,
    "gpu_nodes_total": 2,
    "driver_auto_upgrade_enabled": 1,
    "reconciliation_last_success_ts_seconds": 1,
}


class Fault(NamedTuple):
    """Something that happens to a GPU of a simulated machine, what a scrape shows of it, and the alerts that fire."""

    happens: Callable[[Machine], None]
    shows: str
    fires: frozenset[str]
    grows: bool = False
    """Whether it goes on happening."""
    gpu: str | GpuEntry = BUSY

    async def scrapes(self) -> tuple[str, str]:
        """What is scraped before and after."""
        async with exporter((self.gpu, self.gpu)) as world:
            before = await world.scraped(
                lambda body: len(re.findall("^DCGM_FI_DEV_FB_USED", body, re.M)) >= 2, "figures"
            )
            assert not re.search(self.shows, before, re.M), "it is shown before it happens"
            self.happens(world.machine)
            return before, await world.scraped(lambda body: re.search(self.shows, body, re.M), self.shows)


def _xid(code: int, *alerts: str) -> Fault:
    shows = rf'^DCGM_EXP_XID_ERRORS_COUNT\{{gpu="0",.*xid="{code}".*\}} 1$'
    return Fault(lambda machine: machine.xid(0, code), shows, frozenset(alerts))


def _values(
    alert: str, name: str, shows: str, *more: str, grows: bool = False, gpu: str | GpuEntry = BUSY, **values: int
) -> Fault:
    return Fault(
        lambda machine: machine.set_telemetry(0, values=values),
        rf'^{name}\{{gpu="0",.*\}} {shows}$',
        frozenset((alert, *more) if alert else more),
        grows,
        gpu,
    )


GIB = 1 << 30
FAULTS: dict[str, Fault] = {
    "xid 79": _xid(79, "GPUXidRestartNode"),
    "xid 95": _xid(95, "GPUXidResetGPU"),
    "xid 119": _xid(119, "GPUXidResetGPU", "GPUHealthFailed"),
    "xid 48": _xid(48, "GPUXidUncorrectableMemory"),
    "xid 74": _xid(74, "GPUXidNVLink"),
    "xid 149": _xid(149, "GPUXidNVLink"),
    "xid 54": _xid(54, "GPUXidPower"),
    "xid 78": _xid(78, "GPUXidSoftware"),
    "xid 154": _xid(154, "GPUXidLookFurther"),
    "xid 61": _xid(61, "GPUXidSupport"),
    **{f"xid {code}": _xid(code) for code in (13, 31, 43, 45, 63, 68, 92, 94)},
    "lost": Fault(
        lambda machine: machine.lose(0, xid=None),
        r'\A(?![\s\S]*^DCGM_FI_DEV_FB_USED\{gpu="0")',
        frozenset(("GPULost",)),
    ),
    "fallen off the bus": Fault(
        lambda machine: machine.lose(0),
        r'\A(?![\s\S]*^DCGM_FI_DEV_FB_USED\{gpu="0")(?=[\s\S]*^DCGM_EXP_XID_ERRORS_COUNT\{gpu="0".*xid="79")',
        frozenset(("GPULost", "GPUXidRestartNode")),
    ),
    "taken away": Fault(lambda machine: machine.remove(1), r'\A(?![\s\S]*gpu="1")', frozenset(("GPULost",))),
    "double-bit error": _values("GPUUncorrectableECC", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "1", eccDbeVolatile=1),
    "remapping failed": _values("GPURowRemapFailed", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "1", remapFailure=1),
    "remapping pending": _values("GPURowRemapPending", "DCGM_FI_DEV_ROW_REMAP_PENDING", "1", remapPending=1),
    "retirement pending": _values(
        "GPURowRemapPending", "DCGM_FI_DEV_RETIRED_PENDING", "1", gpu="V100", retiredPending=1
    ),
    "corrupt InfoROM": Fault(
        lambda machine: machine.set_telemetry(0, absent={"inforomImage": "ERROR_CORRUPTED_INFOROM"}),
        r'^DCGM_EXP_GPU_HEALTH_STATUS\{gpu="0",.*health_watch="INFOROM".*\} 20$',
        frozenset(("GPUHealthFailed",)),
    ),
    "heat": _values("GPUThermalSlowdown", "DCGM_EXP_CLOCK_EVENTS_COUNT", r"\d+", eventReasons=0x40)._replace(
        shows=r'^DCGM_EXP_CLOCK_EVENTS_COUNT\{gpu="0",.*clock_event="hw_thermal".*\} \d+$'
    ),
    "power brake": _values("GPUPowerBrake", "DCGM_EXP_CLOCK_EVENTS_COUNT", r"\d+", eventReasons=0x80)._replace(
        shows=r'^DCGM_EXP_CLOCK_EVENTS_COUNT\{gpu="0",.*clock_event="hw_power_brake".*\} \d+$'
    ),
    "power limit": _values(
        "GPUPowerLimited", "DCGM_FI_DEV_POWER_VIOLATION", "45000000000", grows=True, powerViolationNs=45_000_000_000
    ),
    "hot": _values("GPUTemperatureHigh", "DCGM_FI_DEV_GPU_TEMP", "90", gpuTempC=90),
    "warm": _values("", "DCGM_FI_DEV_GPU_TEMP", "86", gpuTempC=86),
    "hot memory": _values("GPUMemoryTemperatureHigh", "DCGM_FI_DEV_MEMORY_TEMP", "97", memoryTempC=97),
    "NVLink recoveries": _values(
        "GPUNVLinkErrors", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "2", nvlinkRecoveryErrors=2
    ),
    "NVLink retries": _values(
        "GPUNVLinkErrors", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "500", nvlinkReplayErrors=500
    ),
    "few NVLink retries": _values("", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "5", nvlinkReplayErrors=5),
    "PCIe retries": _values("GPUPCIeReplays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "5", grows=True, pcieReplays=5),
    "full memory": _values("GPUMemoryFull", "DCGM_FI_DEV_FB_FREE", "0", memoryUsed=79 * GIB, memoryFree=0),
}


async def machines() -> dict[str, str]:
    """What the exporter serves on several machines, of both releases."""
    found = {}
    for name, gpus in {"plain": (BUSY, "A100-SXM4-80GB"), "mig": (MIG, BUSY), "old": ("V100", "T4")}.items():
        for release in Release:
            async with exporter(gpus, release) as world:
                devices = world.machine.read().inventory.gpus
                uuids = [each.uuid for gpu in devices for each in gpu.mig_devices] or [gpu.uuid for gpu in devices]
                resource = "nvidia.com/mig-1g.10gb" if name == "mig" else "nvidia.com/gpu"
                world.kubelet.pods = [pod("training", uuids[0], resource=resource)]
                world.machine.set_telemetry(1, values={"eventReasons": 0x40})
                world.machine.xid(1, 48)
                found[f"{name} {release}"] = await world.scraped(
                    lambda body: 'pod="training"' in body and 'xid="48"' in body and "hw_thermal" in body, "all"
                )
                if name == "plain":
                    world.machine.lose(0)
                    found[f"lost {release}"] = await world.scraped(lambda body: 'xid="79"' in body, "the lost GPU")
    return found
