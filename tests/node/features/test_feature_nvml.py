"""gpu-feature-discovery on NVML, through the mock library: the labels are those of the simulated source."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.devices import nvml
from groundplane.node.devices.simulated import Description, GpuEntry, Machine, Mig, SimulatedSource, describe
from groundplane.node.devices.source import Source
from groundplane.node.features import main
from testing import mocknvml

pytestmark = pytest.mark.skipif(mocknvml.compiler() is None, reason="no C compiler for the mock library")

ENV = {
    "GFD_USE_NODE_FEATURE_API": "false",
    "GFD_ONESHOT": "true",
    "GFD_NO_TIMESTAMP": "true",
    "GFD_OUTPUT_FILE": "",
    "MIG_STRATEGY": "mixed",
}
NODES = {
    "whole GPUs": describe("node", ["H100"] * 8, "580.95.05"),
    "MIG": describe(
        "node",
        [
            GpuEntry("A100-40GB", mig=Mig(True, ("1g.5gb", "1g.5gb", "2g.10gb", "1c.3g.20gb"))),
            GpuEntry("A100-40GB", mig=Mig(True)),
            "A100-40GB",
        ],
        "570.12",
    ),
    "old and new": describe("node", ["T4", "GB10", "V100", "DGX-DISPLAY"], "535.161.08"),
    "no GPU": describe("node", [], "580.95.05"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mocknvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which the mock library finds its machine."""
    monkeypatch.setenv(mocknvml.VARIABLE, str(tmp_path / "nvml.txt"))
    yield tmp_path / "nvml.txt"
    assert nvml._library._users == 0, "the program holds the driver's library"


async def output(folder: Path, source: Source) -> str:
    process = FakeProcess(folder, ["gpu-feature-discovery"], ENV, source=source)
    assert await main.run(process) == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("node", NODES)
async def test_8_labels_by_nvml(tmp_path: Path, shown: Path, library: Path, node: str) -> None:
    description: Description = NODES[node]
    machine = Machine.create(tmp_path / "gpus.yaml", description)
    mocknvml.write(shown, machine.read())
    by_nvml = await output(tmp_path, nvml.NvmlSource(lambda: library))
    simulated = SimulatedSource(machine.file, library=lambda: True, loaded=lambda: True)
    assert by_nvml == await output(tmp_path, simulated)
    assert ("gpu.product" in by_nvml) is (node != "no GPU")


async def test_8_3_a_library_without_its_kernel_module(tmp_path: Path, shown: Path, library: Path) -> None:
    machine = Machine.create(tmp_path / "gpus.yaml", NODES["whole GPUs"])
    mocknvml.write(shown, machine.read(), init=9)
    source = nvml.NvmlSource(lambda: library)
    process = FakeProcess(tmp_path, ["gpu-feature-discovery"], ENV, source=source)
    assert await main.run(process) == 1
    assert "failed to initialize NVML: " in process.stderr
