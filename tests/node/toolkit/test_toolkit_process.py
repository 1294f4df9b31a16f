"""The toolkit as a process of its own: real signals, a real lock, and an end at any moment."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node.fakeprocess import until
from node.toolkit.test_toolkit_restart import line, served

from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.devices.simulated import Machine, describe
from groundplane.node.ownprocess import DEVICES, SIMULATION_ENV
from groundplane.node.toolkit import install

DRIVER = "580.95.05"
DOCKER = '{\n  "log-driver": "journald"\n}\n'


class World:
    """A simulated machine below a folder, and the toolkits that run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "nvidia"
        self.config = folder / "daemon.json"
        self.config.write_text(DOCKER)
        driver = folder / "driver"
        library = "usr/lib64/libnvidia-ml.so"
        for name in ("dev/nvidia0", "dev/nvidiactl", f"usr/lib64/libcuda.so.{DRIVER}", f"{library}.{DRIVER}"):
            (driver / name).parent.mkdir(parents=True, exist_ok=True)
            (driver / name).write_text("")
        (driver / f"{library}.1").symlink_to(f"libnvidia-ml.so.{DRIVER}")
        (folder / "image").mkdir()
        (folder / "image" / "groundplane-host").write_bytes(os.urandom(1 << 20))
        machine = folder / "machine"
        description = machine / DEVICES.lstrip("/")
        description.parent.mkdir(parents=True)
        (machine / "sys/module/nvidia").mkdir(parents=True)
        (machine / "sys/module/nvidia/refcnt").write_text("0\n")
        Machine.create(description, describe("n", ["H100-SXM5-80GB"], DRIVER))
        self.env = {
            "PATH": os.environ["PATH"],
            SIMULATION_ENV: str(machine),
            NULL_DEVICES: "true",
            "ROOT": str(self.root),
            "TOOLKIT_SOURCE_ROOT": str(folder / "image"),
            "CDI_ENABLED": "true",
            "TOOLKIT_PID_FILE": str(folder / "run" / "toolkit.pid"),
            "CDI_OUTPUT_DIR": str(folder / "cdi"),
            "NVIDIA_DRIVER_ROOT": str(driver),
            "DRIVER_ROOT_CTR_PATH": str(driver),
            "RUNTIME": "docker",
            "RUNTIME_CONFIG": str(self.config),
            "RUNTIME_RESTART_MODE": "none",
            "HOST_ROOT_MOUNT": str(folder),
        }
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, *argv: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "groundplane.node", "nvidia-toolkit", *argv),
            env=self.env,
            stderr=asyncio.subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    async def waiting(self, process: asyncio.subprocess.Process) -> str:
        """Wait for a toolkit to wait; what it has logged until then."""
        assert process.stderr is not None
        log = ""
        while "Waiting for signal" not in log:
            line = await asyncio.wait_for(process.stderr.readline(), 60)
            assert line, log
            log += line.decode()
        return log

    async def end(self, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0

    def whole(self) -> bool:
        """Whether the installed folder is whole."""
        folder = self.root / "toolkit"
        program = (self.folder / "image" / "groundplane-host").read_bytes()
        names = install.names(install.Release.V26_7)
        return all((folder / name).read_bytes() == program for name in names) and (
            folder / ".config/nvidia-container-runtime/config.toml"
        ).read_text().startswith("accept-")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    for process in made.processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def handlers(world: World) -> set[str]:
    return set(json.loads(world.config.read_text()).get("runtimes", {}))


async def test_a_life(world: World) -> None:
    process = await world.start()
    await world.waiting(process)
    assert world.whole()
    assert handlers(world) == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert (world.folder / "cdi" / "management.nvidia.com-gpu.yaml").exists()
    assert (world.root / "toolkit" / install.SPECS / "runtime.nvidia.com-gpu.json").exists()
    assert (world.folder / "run" / "toolkit.pid").read_text() == f"{process.pid}\n"
    second = await world.start()
    assert second.stderr is not None
    log = (await second.stderr.read()).decode()
    assert await second.wait() == 1
    assert f"already running on this node (process {process.pid})" in log
    await world.end(process)
    assert handlers(world) == set()
    assert world.config.read_text() == DOCKER
    assert not (world.folder / "run" / "toolkit.pid").exists()
    assert world.whole()


async def test_killed_at_any_moment_the_next_one_works(world: World) -> None:
    first = await world.start("--no-daemon")
    assert first.stderr is not None
    await first.stderr.read()
    assert await first.wait() == 0
    for text in ("Installing", "Using config", "Skipping", "Waiting"):
        process = await world.start()
        assert process.stderr is not None
        while (line := await asyncio.wait_for(process.stderr.readline(), 60)) and text not in line.decode():
            pass
        process.kill()
        await process.wait()
        assert world.whole()
        json.loads(world.config.read_text())
    process = await world.start()
    await world.waiting(process)
    await until(world.whole)
    assert handlers(world) == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert [path.name for path in world.root.iterdir() if path.name.startswith(".")] == []
    await world.end(process)


async def test_the_runtime_is_signalled_when_its_configuration_changes(world: World) -> None:
    path = world.folder / "docker.sock"
    world.env.update(RUNTIME_RESTART_MODE="signal", RUNTIME_SOCKET=str(path))
    with served(path, "\r\n\r\n") as docker:
        process = await world.start()
        await world.waiting(process)
        assert (await line(docker)).startswith("GET /info")
        assert await line(docker) == "hangup\n"
    path.unlink()
    with served(path, "\r\n\r\n") as docker:
        await world.end(process)
        assert (await line(docker)).startswith("GET /info")
        assert await line(docker) == "hangup\n"
    assert world.config.read_text() == DOCKER
