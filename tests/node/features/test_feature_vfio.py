"""contracts/device-plugin-gfd.md 8.2: GPUs bound to vfio-pci."""

from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess

from groundplane.node.features import main
from groundplane.node.features.vfio import addressable_bytes, names_in
from groundplane.node.hostroot import HostRoot

GIB = 1 << 30
DATABASE = """\
# a comment
10dd  Enigma
\t0001  Not this one
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c1  A board
\t27b8  AD104GL [L4]

10df  Emulex Corporation
\t2330  Not this one either
"""


def region(size: int, flags: int, start: int = 1 << 40) -> str:
    return f"{start:#018x} {start + size - 1:#018x} {flags:#018x}" if size else f"{0:#018x} {0:#018x} {0:#018x}"


MEM_64, MEM_32, IO = 0x14220C, 0x40200, 0x40101


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ([(16 << 20, MEM_64), (0, 0), (16 * GIB, MEM_64), (0, 0), (32 << 20, MEM_64), (0, 0)], 32 * GIB),
        ([(16 << 20, MEM_32), (16 * GIB, MEM_64), (0, 0), (128, IO)], 16 * GIB),
        ([(16 << 20, MEM_32), (128, IO)], 0),
        ([(0, 0)] * 6 + [(64 * GIB, MEM_64)], 0),
        ([], 0),
    ],
)
def test_8_2_addressable_memory(regions: list[tuple[int, int]], expected: int) -> None:
    assert addressable_bytes("\n".join(region(*each) for each in regions)) == expected


def test_8_2_names_are_those_of_nvidia_in_the_database() -> None:
    assert names_in(DATABASE) == {"2330": "GH100 [H100 SXM5 80GB]", "27b8": "AD104GL [L4]"}
    assert names_in("") == {}


def device(kernel: HostRoot, address: str, device_id: str, driver: str | None, pci_class: str = "0x030200") -> None:
    folder = f"/sys/bus/pci/devices/{address}"
    for name, text in (("vendor", "0x10de"), ("device", f"0x{device_id}"), ("class", pci_class)):
        kernel.write_atomic(f"{folder}/{name}", f"{text}\n")
    kernel.write_atomic(f"{folder}/resource", region(16 * GIB, MEM_64) + "\n")
    kernel.write_atomic(f"{folder}/config", bytes(256))
    if driver:
        kernel.mkdir(f"/sys/bus/pci/drivers/{driver}")
        kernel.symlink(f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}")


@pytest.fixture
def process(tmp_path: Path) -> FakeProcess:
    env = {
        "DEVICE_DISCOVERY_STRATEGY": "vfio",
        "GFD_USE_NODE_FEATURE_API": "false",
        "GFD_ONESHOT": "true",
        "GFD_NO_TIMESTAMP": "true",
        "GFD_OUTPUT_FILE": "",
    }
    return FakeProcess(tmp_path, ["gpu-feature-discovery"], env)


async def labels(process: FakeProcess) -> dict[str, str]:
    assert await main.run(process) == 0, process.stderr
    return dict(line.partition("=")[::2] for line in process.stdout.splitlines())


@pytest.mark.parametrize(
    ("database", "device_id", "product"),
    [
        ("/usr/share/misc/pci.ids", "2330", "GH100-H100-SXM5-80GB"),
        ("/usr/share/hwdata/pci.ids", "2330", "GH100-H100-SXM5-80GB"),
        ("/driver-root/usr/share/misc/pci.ids", "27b8", "AD104GL-L4"),
        (None, "2330", "GH100-H100-SXM5-80GB"),
        (None, "abcd", "Device-abcd"),
        ("/usr/share/misc/pci.ids", "abcd", "Device-abcd"),
    ],
)
async def test_8_2_labels(process: FakeProcess, database: str | None, device_id: str, product: str) -> None:
    if database:
        process.write(database, DATABASE)
    device(process.kernel, "0000:17:00.0", device_id, "vfio-pci")
    device(process.kernel, "0000:65:00.0", device_id, "vfio-pci")
    device(process.kernel, "0000:66:00.0", "27b8", "nvidia")
    device(process.kernel, "0000:67:00.0", "27b8", None)
    device(process.kernel, "0000:68:00.0", "1aef", "vfio-pci", "0x040300")
    assert await labels(process) == {
        "nvidia.com/gpu.machine": "unknown",
        "nvidia.com/cuda.driver-version.major": "unknown",
        "nvidia.com/cuda.driver-version.minor": "unknown",
        "nvidia.com/cuda.driver-version.revision": "unknown",
        "nvidia.com/cuda.driver-version.full": "unknown.unknown.unknown",
        "nvidia.com/cuda.driver.major": "unknown",
        "nvidia.com/cuda.driver.minor": "unknown",
        "nvidia.com/cuda.driver.rev": "unknown",
        "nvidia.com/cuda.runtime-version.major": "0",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/cuda.runtime-version.full": "0.0",
        "nvidia.com/cuda.runtime.major": "0",
        "nvidia.com/cuda.runtime.minor": "0",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.memory": "16384",
        "nvidia.com/gpu.family": "undefined",
        "nvidia.com/gpu.compute.major": "-1",
        "nvidia.com/gpu.compute.minor": "-1",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/vgpu.present": "false",
    }


async def test_8_2_no_gpu_was_handed_over(process: FakeProcess) -> None:
    device(process.kernel, "0000:17:00.0", "2330", "nvidia")
    assert await labels(process) == {"nvidia.com/vgpu.present": "false"}


async def test_8_2_no_pci_bus(process: FakeProcess) -> None:
    assert await main.run(process) == 1
    assert "failed to read the PCI bus: " in process.stderr
