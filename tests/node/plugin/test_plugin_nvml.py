"""The plugin on the NVML source, which goes through a mock of the driver's library (device-plugin-gfd.md 2, 4, 5)."""

import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import until

from groundplane.node.devices import nvml
from groundplane.node.devices.simfile import Links
from groundplane.node.devices.simulated import GpuEntry, Mig
from testing import mocknvml

H100 = "H100-SXM5-80GB"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mock library."""
    if mocknvml.compiler() is None:
        pytest.skip("there is no C compiler, with which the mock library is built")
    try:
        return mocknvml.build(tmp_path_factory.mktemp("nvml"))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the mock library does not build:\n{error.stderr}")


@pytest.fixture
async def show(node: Any, library: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[], None]]:
    """Let the library show the node's machine as it is now."""
    file = node.folder / "nvml.txt"
    monkeypatch.setenv(mocknvml.VARIABLE, str(file))
    monkeypatch.setattr(nvml, "WAIT_MS", 20)
    node.source = lambda: nvml.NvmlSource(lambda: library)

    def show() -> None:
        mocknvml.write(file, node.machine.read(), faults=getattr(node, "faults", None))

    yield show
    await node.end()
    await until(lambda: not nvml._library._users, "the end of all watches")


async def test_allocation_and_health_through_nvml(node: Any, show: Callable[[], None]) -> None:
    node.gpus(*[H100] * 4, nvlinks=(Links((0, 3), 4), Links((1, 2), 2)))
    show()
    await node.kubelet.start()
    node.run()
    plugin = await node.kubelet.plugin()
    uuids = node.uuids
    assert plugin.health == dict.fromkeys(uuids, "Healthy")
    assert set(await plugin.prefer(uuids, [], 2)) == {uuids[0], uuids[3]}
    assert (await plugin.allocate(*uuids[:2])).envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(uuids[:2])
    node.machine.xid(2, 79)
    show()
    await until(lambda: plugin.unhealthy == {uuids[2]})


async def test_mig_devices_through_nvml(node: Any, show: Callable[[], None]) -> None:
    node.gpus(GpuEntry(H100, mig=Mig(enabled=True, instances=("1g.10gb", "1g.10gb", "3g.40gb"))))
    node.grant_mig_access()
    show()
    await node.kubelet.start()
    node.run(MIG_STRATEGY="mixed")
    small = await node.kubelet.plugin("nvidia.com/mig-1g.10gb")
    large = await node.kubelet.plugin("nvidia.com/mig-3g.40gb")
    devices = node.machine.read().inventory.gpus[0].mig_devices
    assert set(small.health) | set(large.health) == {device.uuid for device in devices}
    hit = next(device for device in devices if device.uuid in small.health)
    node.machine.xid(0, 94, gi=hit.gi, ci=hit.ci)
    show()
    await until(lambda: small.unhealthy == {hit.uuid})
    assert large.unhealthy == set()


async def test_2_7_wsl_whose_driver_knows_no_device_nodes(node: Any, show: Callable[[], None]) -> None:
    node.process.write("/usr/lib/wsl/lib/libdxcore.so", "")
    node.gpus("RTX-4090")
    node.faults = {"DeviceGetMinorNumber": 3}
    show()
    await node.kubelet.start()
    node.run()
    plugin = await node.kubelet.plugin()
    assert plugin.health == {"all": "Healthy"}
