"""The exporter on NVML: the same figures through NVIDIA's binding and a library as from the simulation."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node.metrics.exporterworld import World, of, samples

from groundplane.node.devices import nvml, nvmltelemetry, simfile
from groundplane.node.devices.simulated import GpuEntry, Mig, TelemetryEntry
from testing import mocknvml

CSV = (
    "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_POWER_USAGE, gauge, x\nDCGM_FI_DEV_FB_USED, gauge, x\n"
    "DCGM_FI_DEV_XID_ERRORS, gauge, x\nDCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, x\nDCGM_FI_DEV_GPU_UTIL, gauge, x\n"
    "DCGM_EXP_P2P_STATUS, gauge, x\nDCGM_FI_NVML_VERSION, label, x\nDCGM_FI_DEV_SERIAL, label, x\n"
)


class NvmlWorld(World):
    """A machine whose GPUs the exporter sees through the mock library."""

    library: Path

    def show(self) -> None:
        mocknvml.write(self.folder / "nvml.txt", self.machine.read())

    def source(self) -> Any:
        self.show()
        return nvml.NvmlSource(lambda: self.library)


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if mocknvml.compiler() is None:
        pytest.skip("there is no C compiler, with which the mock library is built")
    try:
        return mocknvml.build(tmp_path_factory.mktemp("nvml"))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the mock library does not build:\n{error.stderr}")


async def test_the_same_figures_through_nvml(
    world: Callable[..., World], short: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "WAIT_MS", 20)
    monkeypatch.setattr(nvmltelemetry, "SAMPLES_APART_S", 0.0)
    gpus = [
        GpuEntry("H100", mig=Mig(True, ("1g.10gb", "3g.40gb")), telemetry=TelemetryEntry(load=30)),
        GpuEntry("H100", telemetry=TelemetryEntry(load=80)),
        "A100",
        "T4",
    ]
    simulated = world(gpus)
    await simulated.start(counters=CSV)
    expected = await simulated.scraped(lambda body: "P2P" in body, "P2P")
    folder = short / "nvml"
    folder.mkdir()
    NvmlWorld.library = library
    monkeypatch.setenv(mocknvml.VARIABLE, str(folder / "nvml.txt"))
    here = NvmlWorld(folder, gpus)
    try:
        await here.start(counters=CSV)
        body = await here.scraped(lambda body: "P2P" in body, "P2P")
        assert samples(body) == samples(expected)
        assert isinstance(here.machine.read(), simfile.SimulatedMachine)
        await here.told("listening to the driver's Xid errors of 4 GPUs")
        here.machine.lose(1)
        here.show()
        body = await here.scraped(lambda body: of(body, "DCGM_FI_DEV_XID_ERRORS", err_code="79"), "the Xid error")
        body = await here.scraped(lambda body: not of(body, "DCGM_FI_DEV_GPU_TEMP", gpu="1"), "the loss")
        assert of(body, "DCGM_FI_DEV_GPU_TEMP", gpu="2")
        assert await here.end() == 0
    finally:
        await here.close()
    deadline = time.monotonic() + 20
    while nvml._library._users:
        assert time.monotonic() < deadline, "the library was not given back"
        await asyncio.sleep(0.01)
