"""When the toolkit's specs are looked after: the driver is asked only if something has changed."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from node.fakeprocess import FakeProcess
from node.toolkit.conftest import LIBRARIES, NODES, Node

from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.toolkit import install
from groundplane.node.toolkit.options import load
from groundplane.node.toolkit.specs import Specs, SpecsError

MANAGEMENT = "/var/run/cdi/management.nvidia.com-gpu.yaml"
SHIM = f"/usr/local/nvidia/toolkit/{install.SPECS}"
MIG = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"


def node_at(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")


class Real:
    """A node that counts as a real one: its device nodes are character devices. How often was the driver asked?"""

    def __init__(self, node: Node, pace: float = 1e9) -> None:
        node.env.pop(NULL_DEVICES)
        self.node = node
        self.process = node.process = node.make(pace=pace)
        self.asked = 0
        for name in NODES:
            path = self.process.path(f"/driver-root/dev/{name}")
            path.unlink()
            node_at(path)
        opens = self.process.source.open

        def counted() -> None:
            self.asked += 1
            opens()

        self.process.source.open = counted
        self.specs = Specs(self.process, load(self.process))

    async def refreshed(self) -> bool:
        """Refresh; whether the driver was asked."""
        before = self.asked
        await self.specs.refresh()
        return self.asked > before


@pytest.fixture
def real(node: Node) -> Real:
    return Real(node)


async def test_nothing_changes_nobody_asks(real: Real) -> None:
    await real.specs.first()
    assert real.asked == 1
    assert not any([await real.refreshed() for _ in range(3)])


def _node(process: FakeProcess) -> None:
    node_at(process.path("/driver-root/dev/nvidia2"))


def _capability(process: FakeProcess) -> None:
    process.root.mkdir("/driver-root/dev/nvidia-caps")
    node_at(process.path("/driver-root/dev/nvidia-caps/nvidia-cap30"))


def _gone(process: FakeProcess) -> None:
    process.root.remove("/driver-root/dev/nvidia1")


def _instance(process: FakeProcess) -> None:
    process.write_kernel(f"{MIG}/ci0/access", "")


def _driver(process: FakeProcess) -> None:
    process.write_kernel("/proc/driver/nvidia/version", "NVRM version: 590.44.01\n")


def _library(process: FakeProcess) -> None:
    process.write(f"{LIBRARIES}/libnvidia-new.so.580.95.05", "")


def _no_management_spec(process: FakeProcess) -> None:
    process.root.remove(MANAGEMENT)


def _other_management_spec(process: FakeProcess) -> None:
    process.write(MANAGEMENT, "another's\n")


def _no_shim_spec(process: FakeProcess) -> None:
    process.root.remove(f"{SHIM}/runtime.nvidia.com-gpu.json")


CHANGES = (
    *(_node, _capability, _instance, _driver, _library),
    *(_no_management_spec, _other_management_spec, _no_shim_spec),
)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_followed(change: Callable[[FakeProcess], None], real: Real) -> None:
    await real.specs.first()
    management = real.node.read(MANAGEMENT)
    change(real.process)
    assert await real.refreshed()
    assert not await real.refreshed()
    if change not in (_node, _capability, _library):
        assert real.node.read(MANAGEMENT) == management
    else:
        assert real.node.read(MANAGEMENT) != management
    assert real.node.exists(f"{SHIM}/runtime.nvidia.com-gpu.json")


async def test_a_node_that_is_gone(real: Real) -> None:
    """Management containers get what there is; a GPU without its node is none to offer, so that it is looked for."""
    await real.specs.first()
    shim = real.node.read(f"{SHIM}/runtime.nvidia.com-gpu.json")
    _gone(real.process)
    assert await real.refreshed()
    assert "/dev/nvidia1" not in real.node.read(MANAGEMENT)
    assert real.node.read(f"{SHIM}/runtime.nvidia.com-gpu.json") == shim
    assert await real.refreshed()


async def test_mig_instances_that_are_made_again_are_others(real: Real) -> None:
    real.process.write_kernel(f"{MIG}/ci0/access", "")
    await real.specs.first()
    folder = real.process.kernel.path(f"{MIG}/ci0")
    folder.rename(folder.with_name("old"))
    folder.mkdir()
    (folder / "access").write_text("")
    assert await real.refreshed()


async def test_gpus_that_do_not_answer_are_asked_again_each_time(real: Real) -> None:
    real.node.loaded = False
    await real.specs.first()
    assert await real.refreshed()
    real.node.loaded = True
    assert await real.refreshed()
    assert not await real.refreshed()


async def test_what_failed_is_tried_again_after_the_interval_or_a_change(node: Node) -> None:
    real = Real(node, pace=1.0)
    real.node.loaded = False
    await real.specs.first()
    assert not await real.refreshed()
    _node(real.process)
    assert await real.refreshed()
    assert not await real.refreshed()


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, 2.0),
        ({"CDI_REFRESH_INTERVAL": "1s"}, 1.0),
        ({"CDI_REFRESH_INTERVAL": "infinite"}, None),
        ({NULL_DEVICES: "true"}, 30.0),
    ],
)
def test_how_often_the_machine_is_looked_at(env: dict[str, str], seconds: float | None, real: Real) -> None:
    real.process.env = {**real.process.env, **env}
    assert Specs(real.process, load(real.process)).interval_s == seconds


async def test_a_gpu_that_is_lost_is_no_end(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    from groundplane.node.devices.source import Lost

    await real.specs.first()
    before = real.node.tree("/usr/local/nvidia/toolkit")

    def lost() -> None:
        raise Lost("NVML_ERROR_GPU_IS_LOST", 15)

    monkeypatch.setattr(real.process.source, "inventory", lost)
    _node(real.process)
    assert await real.refreshed()
    assert "GPU_IS_LOST" in real.process.stderr
    assert real.node.tree("/usr/local/nvidia/toolkit") == before


async def test_a_surprise_is_told_once_and_is_no_end(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    await real.specs.first()
    _node(real.process)
    with monkeypatch.context() as patch:
        patch.setattr("groundplane.node.cdi.generate.generate", lambda *_: 1 // 0)
        assert await real.refreshed()
        assert await real.refreshed()
    assert real.process.stderr.count("CDI specifications not refreshed: ZeroDivisionError") == 1
    assert await real.refreshed()
    assert "/dev/nvidia2" in real.node.read(MANAGEMENT)


async def test_a_surprise_is_no_reason_to_ask_the_driver_all_the_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Real(node, pace=1.0)
    await real.specs.first()
    _node(real.process)
    monkeypatch.setattr("groundplane.node.cdi.generate.generate", lambda *_: 1 // 0)
    assert await real.refreshed()
    assert not await real.refreshed()


async def test_a_look_that_fails_is_no_end(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(*_: object) -> object:
        raise OSError(errno.ELOOP, "Too many levels of symbolic links")

    await real.specs.first()
    monkeypatch.setattr("groundplane.node.toolkit.specs.inputs", loop)
    await real.specs.refresh()
    await real.specs.refresh()
    assert real.process.stderr.count("Too many levels") == 1


async def test_a_full_disk(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    await real.specs.first()
    earlier = real.node.read(MANAGEMENT)
    _node(real.process)
    with monkeypatch.context() as patch:
        patch.setattr("groundplane.node.cdi.write.write_atomic", full)
        assert await real.refreshed()
        with pytest.raises(SpecsError, match=r"management\.nvidia\.com-gpu\.yaml|free some space"):
            await real.specs.first()
    assert real.node.read(MANAGEMENT) == earlier
    assert await real.refreshed()
    assert real.node.read(MANAGEMENT) != earlier


async def test_what_the_shim_needs_no_more_is_removed(real: Real) -> None:
    await real.specs.first()
    real.process.write(f"{SHIM}/nvidia.com-gds.json", "{}")
    real.process.root.mkdir(f"{SHIM}/folder")
    await real.specs.first()
    names = {path.name for path in real.process.path(SHIM).iterdir()}
    assert names == {"runtime.nvidia.com-gpu.json", "properties.json", "folder"}


async def test_features_that_specs_obey(real: Real) -> None:
    path = real.process.path("/driver-root/dev/nvidia0")
    path.chmod(0o660)
    os.chown(path, 0, 44)
    await real.specs.first()
    assert '"additionalGids"' in real.node.read(f"{SHIM}/runtime.nvidia.com-gpu.json")
    real.process.env = {
        **real.process.env,
        "NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES": "no-additional-gids-for-device-nodes,disable-cuda-compat-lib-hook",
        "CDI_LIBRARIES": "hooks",
    }
    await Specs(real.process, load(real.process)).first()
    text = real.node.read(f"{SHIM}/runtime.nvidia.com-gpu.json")
    assert '"additionalGids"' not in text
    assert "update-ldcache" in text
    assert "enable-cuda-compat" not in text
