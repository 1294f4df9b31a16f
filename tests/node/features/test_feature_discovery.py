"""contracts/device-plugin-gfd.md 2.1 and 8.2: who is asked for GPUs; Tegra's are asked through CUDA."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.devices.simulated import GpuEntry, Machine, SimulatedSource, describe
from groundplane.node.devices.source import DeviceError, LibraryNotFound
from groundplane.node.features import main, tegra
from groundplane.node.features.discovery import AUTO, NVML, TEGRA, InitError, discover, resolve
from groundplane.node.features.discovery import Machine as Asked

LIBCUDA = "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1"
CUDA = r"""
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int *version) { *version = 12060; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
  if (device != 40) return 101;
  strncpy(name, "Orin (nvgpu)", length);
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 32056ull << 20; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 8 : attribute == 76 ? 7 : -1;
  return 0;
}
int cuGetErrorName(int code, const char **name) {
  if (code != 100) return 1;
  *name = "CUDA_ERROR_NO_DEVICE";
  return 0;
}
"""
COMPILER = shutil.which("cc") or shutil.which("gcc")
compiled = pytest.mark.skipif(COMPILER is None, reason="no C compiler for a stand-in of libcuda")


def libcuda(file: Path, init: int = 0) -> Path:
    """A library of our own that answers as CUDA's driver library does on a Tegra."""
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [str(COMPILER), "-shared", "-fPIC", f"-DINIT={init}", "-x", "c", "-", "-o", str(file)]
    subprocess.run(command, input=CUDA, text=True, check=True)
    return file


class Node(FakeProcess):
    def __init__(self, folder: Path, *models: Any, library: bool = True, **env: str) -> None:
        Machine.create(folder / "gpus.yaml", describe("node", models, "580.95.05"))
        source = SimulatedSource(folder / "gpus.yaml", library=lambda: library, loaded=lambda: True)
        super().__init__(folder, ["gpu-feature-discovery"], env, source=source)


# --- auto (2.1) -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "files", "family", "expected"),
    [
        (True, [], None, NVML),
        (False, [], None, AUTO),
        (False, ["/usr/lib/wsl/lib/libdxcore.so"], None, NVML),
        (False, ["/etc/nv_tegra_release"], None, TEGRA),
        (True, ["/etc/nv_tegra_release"], None, NVML),
        (False, [], "Tegra\n", TEGRA),
        (False, [], "TEGRA234", TEGRA),
        (False, [], "not a tegra", AUTO),
        (False, ["/usr/lib/x86_64-linux-gnu/libdxcore.so", "/etc/nv_tegra_release"], None, NVML),
    ],
)
def test_2_1_auto(tmp_path: Path, library: bool, files: list[str], family: str | None, expected: str) -> None:
    node = Node(tmp_path, library=library)
    for file in files:
        node.write(file, "")
    if family is not None:
        node.write_kernel("/sys/devices/soc0/family", family)
    assert resolve(Asked(node, ("/",))) == expected


def test_2_2_the_library_is_the_loader_s_to_find(tmp_path: Path) -> None:
    node = Node(tmp_path, "T4")
    assert len(discover(node, AUTO, "/driver-root").gpus) == 1
    assert set(node.driver_roots) == {"/"}


@pytest.mark.parametrize("strategy", ["auto", "other", ""])
def test_1_6_nobody_to_ask(tmp_path: Path, strategy: str) -> None:
    with pytest.raises(InitError, match=f"^unsupported strategy {strategy}$"):
        discover(Node(tmp_path, library=False), strategy, "")


def test_2_3_display_only_gpus_are_no_gpus(tmp_path: Path) -> None:
    found = discover(Node(tmp_path, "A100", "DGX-DISPLAY", "A100"), NVML, "")
    assert [gpu.index for gpu in found.gpus] == [0, 2]


# --- Tegra (8.2) ------------------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("place", [LIBCUDA, f"/driver-root{LIBCUDA}"])
async def test_8_2_tegra_labels(tmp_path: Path, place: str) -> None:
    env = {"GFD_ONESHOT": "true", "GFD_USE_NODE_FEATURE_API": "false", "GFD_OUTPUT_FILE": "", "GFD_NO_TIMESTAMP": "1"}
    node = Node(tmp_path, library=False, **env)
    node.write("/etc/nv_tegra_release", "")
    node.write_kernel("/sys/class/dmi/id/product_name", "Jetson AGX Orin")
    libcuda(node.path(place))
    assert await main.run(node) == 0, node.stderr
    assert dict(line.partition("=")[::2] for line in node.stdout.splitlines()) == {
        "nvidia.com/gpu.machine": "Jetson-AGX-Orin",
        "nvidia.com/cuda.driver-version.major": "unknown",
        "nvidia.com/cuda.driver-version.minor": "unknown",
        "nvidia.com/cuda.driver-version.revision": "unknown",
        "nvidia.com/cuda.driver-version.full": "unknown.unknown.unknown",
        "nvidia.com/cuda.driver.major": "unknown",
        "nvidia.com/cuda.driver.minor": "unknown",
        "nvidia.com/cuda.driver.rev": "unknown",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "6",
        "nvidia.com/cuda.runtime-version.full": "12.6",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "6",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/gpu.product": "Orin-nvgpu",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.memory": "32056",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "7",
        "nvidia.com/gpu.mode": "unknown",
    }


@compiled
@pytest.mark.parametrize("name", ["Orin (nvgpu)", "NVIDIA Thor"])
def test_2_1_a_tegra_that_nvml_knows_is_asked_through_cuda(tmp_path: Path, name: str) -> None:
    node = Node(tmp_path, GpuEntry("GB10", name=name))
    libcuda(node.path(LIBCUDA))
    assert discover(node, AUTO, "").driver_version == "unknown.unknown.unknown"
    assert discover(node, NVML, "").driver_version == "580.95.05"


@compiled
@pytest.mark.parametrize(("code", "text"), [(100, "cuInit: CUDA_ERROR_NO_DEVICE"), (3, "cuInit: error 3")])
def test_8_2_cuda_s_errors_have_names(tmp_path: Path, code: int, text: str) -> None:
    with pytest.raises(DeviceError, match=f"^{text}$"):
        tegra.inventory(libcuda(tmp_path / "libcuda.so.1", code))


def test_8_2_no_cuda(tmp_path: Path) -> None:
    with pytest.raises(LibraryNotFound, match=r"libcuda\.so\.1"):
        tegra.inventory(None)
    (tmp_path / "libcuda.so.1").write_text("no library")
    with pytest.raises(DeviceError, match="cannot be loaded"):
        tegra.inventory(tmp_path / "libcuda.so.1")
    with pytest.raises(InitError, match=r"^failed to initialize CUDA: "):
        discover(Node(tmp_path), TEGRA, "")
