"""gpu-feature-discovery from end to end on simulated GPUs (contracts/device-plugin-gfd.md 1.6, 8.3, 12)."""

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, Signals
from typing import Any

import pytest
from node.fakeprocess import FakeProcess, until

from groundplane.api.release import Release
from groundplane.node.devices.simulated import Machine, SimulatedSource, describe
from groundplane.node.features import main
from groundplane.node.nodefeatures import local

OUTPUT = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
CONFIG = "/config/config.yaml"
FILE = {"USE_NODE_FEATURE_API": "false"}


class World:
    """A node with GPUs and a run of the program on it. `library` and `loaded` say what is there of the driver."""

    def __init__(self, folder: Path, *models: str, release: Release = Release.DEFAULT) -> None:
        self.folder = folder
        self.machine = Machine.create(folder / "gpus.yaml", describe("node", models, "580.95.05"))
        self.library = self.loaded = True
        self.process = FakeProcess(folder, ["gpu-feature-discovery"], FILE, source=self.source(), release=release)
        self.process.devices = lambda driver_root="/": self.source()  # type: ignore[method-assign]
        self.process.write_kernel("/sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n")
        for card in self.machine.read().cards.values():
            self.process.write_kernel(f"{card.gpu.sysfs}/class", f"{card.model.pci_class}\n")
            self.process.write_kernel(f"{card.gpu.sysfs}/vendor", "0x10de\n")
            self.process.write_kernel(f"{card.gpu.sysfs}/config", bytes(256))

    def source(self) -> SimulatedSource:
        file = self.folder / "gpus.yaml"
        return SimulatedSource(file, library=lambda: self.library, loaded=lambda: self.loaded)

    def env(self, **variables: str) -> None:
        self.process.env = {**self.process.env, **variables}

    @property
    def file(self) -> Path:
        return self.process.path(OUTPUT)

    def labels(self) -> dict[str, str]:
        if not self.file.exists():
            return {}
        return dict(line.partition("=")[::2] for line in self.file.read_text().splitlines())

    async def run(self) -> int:
        async with asyncio.timeout(30):
            return await main.run(self.process)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[int]]:
        """Run, and end with SIGTERM if it still does."""
        task = asyncio.ensure_future(self.run())
        try:
            yield task
            if not task.done():
                self.process.send(SIGTERM)
            await task
        finally:
            task.cancel()

    async def until(self, condition: Callable[[dict[str, str]], Any], what: str) -> dict[str, str]:
        """Wait for labels, failing at once where the program has ended."""
        await until(lambda: condition(self.labels()), f"{what}; log:\n{self.process.stderr}")
        return self.labels()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, *["H100"] * 8)


# --- output (8.3) -----------------------------------------------------------------------------------------------------


async def test_8_3_file(world: World) -> None:
    world.env(GFD_ONESHOT="true")
    before = int(world.process.now().timestamp())
    assert await world.run() == 0
    found = world.labels()
    assert before <= int(found.pop("nvidia.com/gfd.timestamp")) <= int(world.process.now().timestamp())
    assert found == {
        "nvidia.com/gpu.machine": "Standard-PC-Q35-ICH9-2009",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.driver-version.minor": "95",
        "nvidia.com/cuda.driver-version.revision": "05",
        "nvidia.com/cuda.driver-version.full": "580.95.05",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.driver.minor": "95",
        "nvidia.com/cuda.driver.rev": "05",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime.major": "13",
        "nvidia.com/cuda.runtime.minor": "0",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/vgpu.present": "false",
    }
    assert stat.S_IMODE(world.file.stat().st_mode) == 0o644
    temporary = world.file.with_name("gfd-tmp")
    assert temporary.is_dir()
    assert list(temporary.iterdir()) == []
    read = local.read(world.file.parent, world.process.now())
    assert (read.labels, read.problems) == (world.labels(), ()), "as node feature discovery reads it (section 9)"


async def test_8_3_an_empty_path_is_standard_output(world: World) -> None:
    world.env(GFD_ONESHOT="true", GFD_OUTPUT_FILE="", GFD_NO_TIMESTAMP="true")
    assert await world.run() == 0
    lines = world.process.stdout.splitlines()
    assert "nvidia.com/gpu.count=8" in lines
    assert len(lines) == 25
    assert not any("timestamp" in line for line in lines)
    assert not world.file.exists()


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGQUIT])
async def test_8_3_a_signal_ends_with_0_and_takes_the_file_away(world: World, number: Signals) -> None:
    async with world.running() as task:
        await world.until(bool, "labels")
        world.process.send(number)
        assert await task == 0
    assert list(world.file.parent.iterdir()) == []


async def test_8_3_infinite_labels_once_and_the_file_stays(world: World) -> None:
    world.env(GFD_SLEEP_INTERVAL="infinite")
    async with world.running() as task:
        await world.until(bool, "labels")
        world.machine.remove(7)
        await asyncio.sleep(0.05)
        assert world.labels()["nvidia.com/gpu.count"] == "8"
        world.process.send(SIGTERM)
        assert await task == 0
    assert world.labels()["nvidia.com/gpu.count"] == "8"
    assert world.file.with_name("gfd-tmp").is_dir()


async def test_8_3_what_is_there_already_is_not_written_again(world: World) -> None:
    world.env(GFD_SLEEP_INTERVAL="10ms")
    opened = 0
    real = world.process.devices

    def counted(driver_root: str = "/") -> Any:
        nonlocal opened
        opened += 1
        return real(driver_root)

    world.process.devices = counted  # type: ignore[method-assign]
    async with world.running():
        await world.until(bool, "labels")
        inode, seen = world.file.stat().st_ino, opened
        await until(lambda: opened > seen + 6, "more passes")
        assert world.file.stat().st_ino == inode
    assert world.process.stderr.count("Wrote ") == 1


async def test_8_3_a_foreign_change_of_the_file_is_put_right(world: World) -> None:
    world.env(GFD_SLEEP_INTERVAL="10ms")
    async with world.running():
        found = await world.until(bool, "labels")
        world.file.write_text("nvidia.com/gpu.count=80\n")
        await world.until(lambda now: now == found, "the labels again")


@pytest.mark.parametrize("obstacle", ["a folder", "a file for a folder"])
async def test_8_3_an_output_error_ends_with_1(world: World, obstacle: str) -> None:
    if obstacle == "a folder":
        (world.file / "in").mkdir(parents=True)
    else:
        world.file.parent.parent.mkdir(parents=True)
        world.file.parent.write_text("")
    assert await world.run() == 1
    assert f"error writing labels to {OUTPUT}: " in world.process.stderr


# --- the loop ---------------------------------------------------------------------------------------------------------


async def test_a_gpu_that_leaves_and_comes_back(world: World) -> None:
    world.env(GFD_SLEEP_INTERVAL="10ms")
    async with world.running():
        first = await world.until(lambda now: now.get("nvidia.com/gpu.count") == "8", "eight GPUs")
        world.machine.remove(3)
        await world.until(lambda now: now.get("nvidia.com/gpu.count") == "7", "seven GPUs")
        world.machine.restore(3)
        again = await world.until(lambda now: now.get("nvidia.com/gpu.count") == "8", "eight GPUs again")
    assert again == first, "the timestamp is that of the cycle's start"


async def test_labels_of_the_last_gpu_disappear(tmp_path: Path) -> None:
    world = World(tmp_path, "T4")
    world.env(GFD_SLEEP_INTERVAL="10ms")
    async with world.running():
        await world.until(lambda now: "nvidia.com/gpu.product" in now, "a GPU's labels")
        world.machine.remove(0)
        found = await world.until(lambda now: now and "nvidia.com/gpu.product" not in now, "no GPU's labels")
    assert set(found) == {"nvidia.com/gfd.timestamp", "nvidia.com/vgpu.present"}


async def test_mig_devices_come_and_go(tmp_path: Path) -> None:
    world = World(tmp_path, "A100-40GB", "A100-40GB")
    world.env(GFD_SLEEP_INTERVAL="10ms", MIG_STRATEGY="mixed")
    async with world.running():
        await world.until(lambda now: now.get("nvidia.com/gpu.replicas") == "1", "full GPUs")
        world.machine.set_mig(1, True, ["1g.5gb", "1g.5gb", "1c.2g.10gb"])
        found = await world.until(lambda now: "nvidia.com/mig-1g.5gb.count" in now, "MIG labels")
        assert found["nvidia.com/mig-1g.5gb.count"] == "2"
        assert found["nvidia.com/mig-1g.5gb.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
        assert found["nvidia.com/mig-1g.5gb.memory"] == "4864"
        assert found["nvidia.com/mig-1g.5gb.multiprocessors"] == "14"
        assert found["nvidia.com/mig-1c.2g.10gb.slices.gi"] == "2"
        world.machine.set_mig(1, False)
        await world.until(lambda now: not [key for key in now if "/mig-" in key], "no MIG labels")


async def test_a_lost_gpu_ends_with_1(world: World) -> None:
    world.env(GFD_SLEEP_INTERVAL="10ms")
    async with world.running() as task:
        await world.until(bool, "labels")
        world.machine.lose(2)
        assert await task == 1
    assert not world.file.exists()
    assert "GPU 2" in world.process.stderr


# --- reload -----------------------------------------------------------------------------------------------------------


def slicing(replicas: int, *, flags: str = "") -> str:
    return f"""\
version: v1
flags:
  useNodeFeatureAPI: false
{flags}sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: {replicas}
"""


async def test_sighup_reads_everything_again(world: World) -> None:
    world.process.write(CONFIG, slicing(4))
    world.process.env = {"CONFIG_FILE": CONFIG}
    async with world.running():
        found = await world.until(lambda now: now.get("nvidia.com/gpu.replicas") == "4", "4 replicas")
        assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
        world.process.write(CONFIG, slicing(7, flags="  gfd: {noTimestamp: true}\n"))
        world.process.send(SIGHUP)
        found = await world.until(lambda now: now.get("nvidia.com/gpu.replicas") == "7", "7 replicas")
        assert "nvidia.com/gfd.timestamp" not in found


async def test_sighup_to_another_file_takes_the_old_one_away(world: World) -> None:
    world.process.write(CONFIG, slicing(4))
    world.process.env = {"CONFIG_FILE": CONFIG}
    async with world.running():
        await world.until(bool, "labels")
        world.process.write(CONFIG, slicing(4, flags="  gfd: {outputFile: /out/labels}\n"))
        world.process.send(SIGHUP)
        await until(world.process.path("/out/labels").exists, "the other file")
        assert not world.file.exists()
    assert not world.process.path("/out/labels").exists()


async def test_sighup_to_a_broken_config_ends_with_1(world: World) -> None:
    world.process.write(CONFIG, slicing(4))
    world.process.env = {"CONFIG_FILE": CONFIG}
    async with world.running() as task:
        await world.until(bool, "labels")
        world.process.write(CONFIG, "version: v2\n")
        world.process.send(SIGHUP)
        assert await task == 1
    assert "unknown version: v2" in world.process.stderr
    assert not world.file.exists()


async def test_signals_during_a_pass_are_heard(world: World) -> None:
    world.process.send(SIGHUP)
    world.process.send(SIGTERM)
    assert await world.run() == 0


# --- failing to start (1.1, 1.6, 2.1, 8.3, 12) ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "loaded", "env", "error"),
    [
        (False, False, {}, "unsupported strategy auto"),
        (False, False, {"DEVICE_DISCOVERY_STRATEGY": "nvml"}, "failed to initialize NVML: "),
        (True, False, {}, "failed to initialize NVML: "),
        (True, True, {"DEVICE_DISCOVERY_STRATEGY": "other"}, "unsupported strategy other"),
        (True, True, {"DEVICE_DISCOVERY_STRATEGY": "tegra"}, "failed to initialize CUDA: "),
    ],
)
async def test_8_3_fail_on_init_error(
    world: World, library: bool, loaded: bool, env: dict[str, str], error: str
) -> None:
    world.library, world.loaded = library, loaded
    world.env(**env)
    assert await world.run() == 1
    said = [line[30:] for line in world.process.stderr.splitlines() if line.startswith("E")]
    assert said[0] == error or (error.endswith(": ") and said[0].startswith(error))
    assert not world.file.exists()

    world.env(FAIL_ON_INIT_ERROR="false", GFD_ONESHOT="true")
    assert await world.run() == 0
    assert set(world.labels()) == {"nvidia.com/gfd.timestamp", "nvidia.com/vgpu.present"}


async def test_12_6_a_driver_that_comes_later_is_found(world: World) -> None:
    world.library = False
    world.env(FAIL_ON_INIT_ERROR="false", GFD_SLEEP_INTERVAL="10ms")
    async with world.running():
        await world.until(bool, "the labels of no GPU")
        world.library, world.loaded = True, False
        await until(lambda: "failed to initialize NVML" in world.process.stderr, "another try")
        assert "nvidia.com/gpu.product" not in world.labels()
        world.loaded = True
        await world.until(lambda now: now.get("nvidia.com/gpu.count") == "8", "the GPUs' labels")


async def test_12_6_a_driver_that_came_is_found_at_a_reload(world: World) -> None:
    world.library = False
    world.env(FAIL_ON_INIT_ERROR="false", GFD_SLEEP_INTERVAL="infinite")
    async with world.running():
        await world.until(bool, "the labels of no GPU")
        world.library = True
        world.process.send(SIGHUP)
        await world.until(lambda now: now.get("nvidia.com/gpu.count") == "8", "the GPUs' labels")


async def test_8_3_a_driver_that_goes(world: World) -> None:
    world.env(FAIL_ON_INIT_ERROR="false", GFD_SLEEP_INTERVAL="10ms")
    async with world.running():
        await world.until(lambda now: now.get("nvidia.com/gpu.count") == "8", "the GPUs' labels")
        world.loaded = False
        await world.until(lambda now: now and "nvidia.com/gpu.count" not in now, "no GPU's labels")


async def test_8_no_gpu_at_all_is_warned_of(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.env(GFD_ONESHOT="true", GFD_NO_TIMESTAMP="true")
    assert await world.run() == 0
    assert world.labels() == {}
    assert world.process.stderr.count("No GPU was found") == 1
    assert world.file.read_text() == ""


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({"GFD_ONESHOT": "yes"}, "GFD_ONESHOT"),
        ({"GFD_SLEEP_INTERVAL": "60"}, "GFD_SLEEP_INTERVAL"),
        ({"CONFIG_FILE": "/nowhere"}, "/nowhere"),
        ({"FAIL_ON_INIT_ERROR": "false", "GFD_NO_TIMESTAMP": "maybe"}, "GFD_NO_TIMESTAMP"),
    ],
)
async def test_1_1_wrong_options_end_with_1(world: World, env: dict[str, str], error: str) -> None:
    world.env(**env)
    assert await world.run() == 1
    assert error in world.process.stderr
    assert not world.file.exists()


async def test_1_6_an_unknown_mig_strategy_is_an_error_only_with_gpus(world: World, tmp_path: Path) -> None:
    world.env(GFD_MIG_STRATEGY="both", MIG_STRATEGY="none", GFD_ONESHOT="true")
    assert await world.run() == 1
    assert "unknown strategy: both" in world.process.stderr

    (tmp_path / "bare").mkdir()
    bare = World(tmp_path / "bare")
    bare.env(GFD_MIG_STRATEGY="both", GFD_ONESHOT="true")
    assert await bare.run() == 0


async def test_6_mps_with_mig_ends_with_1(tmp_path: Path) -> None:
    world = World(tmp_path, "A100-40GB")
    world.machine.set_mig(0, True, ["1g.5gb"])
    world.process.write(CONFIG, slicing(4).replace("timeSlicing", "mps"))
    world.process.env = {"CONFIG_FILE": CONFIG}
    assert await world.run() == 1
    assert "MIG mode is enabled" in world.process.stderr


@pytest.mark.parametrize(("release", "expected"), [(Release.V26_3, "undefined"), (Release.V26_7, "rubin")])
async def test_13_the_release_counts(tmp_path: Path, release: Release, expected: str) -> None:
    world = World(tmp_path, "VR200", release=release)
    world.env(GFD_ONESHOT="true")
    assert await world.run() == 0
    assert world.labels()["nvidia.com/gpu.family"] == expected


@pytest.mark.parametrize("file", ["", "/nowhere/at/all"])
async def test_8_an_unknown_machine(world: World, file: str) -> None:
    world.env(GFD_ONESHOT="true", GFD_MACHINE_TYPE_FILE=file)
    assert await world.run() == 0
    assert world.labels()["nvidia.com/gpu.machine"] == "unknown"


async def test_8_a_machine_type_from_a_file_of_the_container(world: World) -> None:
    world.process.write("/etc/machine-type", "My box\n")
    world.env(GFD_ONESHOT="true", GFD_MACHINE_TYPE_FILE="/etc/machine-type")
    assert await world.run() == 0
    assert world.labels()["nvidia.com/gpu.machine"] == "My-box"


async def test_1_the_effective_configuration_is_logged(world: World) -> None:
    world.env(GFD_ONESHOT="true")
    assert await world.run() == 0
    for line in ('"migStrategy": "none"', '"gdsEnabled": null', '"sleepInterval": "1m0s"'):
        assert line in world.process.stderr


async def test_1_6_help(world: World) -> None:
    world.process.argv = ("gpu-feature-discovery", "--help")
    assert await world.run() == 0
    assert "--sleep-interval" in world.process.stdout


async def test_a_sleep_interval_of_nanoseconds_is_warned_of(world: World) -> None:
    world.process.write(CONFIG, slicing(2, flags="  gfd: {sleepInterval: 60}\n"))
    world.process.env = {"CONFIG_FILE": CONFIG}
    async with world.running():
        await world.until(bool, "labels")
    assert "the sleep interval is 60ns" in world.process.stderr
