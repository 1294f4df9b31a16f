"""A node of a test: simulated GPUs, the plugin as a task, and a kubelet of the test's own."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess
from node.plugin.fakekubelet import FakeKubelet

from groundplane.api.release import Release
from groundplane.node import kubeletapi
from groundplane.node.devices.simulated import Description, GpuEntry, Machine, SimulatedSource, describe
from groundplane.node.devices.source import Source
from groundplane.node.plugin import main

H100 = "H100-SXM5-80GB"


class Node:
    """A machine with the plugin's world. Start as many plugins as wanted; all are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "devices.yaml"
        self.machine = Machine.create(self.file, describe("n", [H100, H100], "580.65.06"))
        self.library = True
        self.loaded = True
        self.process = self.make()
        self.plugins = self.process.path(kubeletapi.DEVICE_PLUGIN_DIR)
        self.plugins.mkdir(parents=True)
        self.kubelet = FakeKubelet(self.process.path(kubeletapi.KUBELET_SOCKET), self.plugins)
        self._tasks: list[asyncio.Task[int]] = []

    def make(self, *argv: str, pace: float = 1.0, release: Release = Release.DEFAULT, **env: str) -> FakeProcess:
        """The world of one run of the plugin."""
        words = ["nvidia-device-plugin", *argv]
        return FakeProcess(self.folder, words, env, source=self.source(), pace=pace, release=release)

    def source(self) -> Source:
        """The machine's GPUs."""
        return SimulatedSource(self.file, library=lambda: self.library, loaded=lambda: self.loaded)

    def run(self, *argv: str, pace: float = 1.0, release: Release = Release.DEFAULT, **env: str) -> asyncio.Task[int]:
        """Run a plugin; its world is in `process` afterwards."""
        self.process = self.make(*argv, pace=pace, release=release, **env)
        task = asyncio.create_task(main.run(self.process))
        self._tasks.append(task)
        return task

    def gpus(self, *gpus: str | GpuEntry, **more: Any) -> Description:
        """Replace the machine's GPUs."""
        description = describe("n", gpus, "580.65.06", **more)
        self.machine = Machine.create(self.file, description)
        return description

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.machine.read().inventory.gpus]

    @property
    def migs(self) -> list[str]:
        return [device.uuid for gpu in self.machine.read().inventory.gpus for device in gpu.mig_devices]

    def grant_mig_access(self) -> None:
        """Write the kernel's file of MIG capabilities."""
        lines, minor = ["config 1", "monitor 2"], 3
        for gpu in self.machine.read().inventory.gpus:
            for device in gpu.mig_devices:
                for name in (f"gi{device.gi}/access", f"gi{device.gi}/ci{device.ci}/access"):
                    lines.append(f"gpu{gpu.minor}/{name} {minor}")
                    minor += 1
        self.process.write_kernel("/proc/driver/nvidia-caps/mig-minors", "\n".join(lines) + "\n")

    def add_driver(self) -> None:
        """Put a driver's library and, as files, device nodes where CDI specs need them."""
        version = self.machine.read().inventory.driver_version
        self.process.write(f"/driver-root/usr/lib64/libcuda.so.{version}", "")
        for gpu in self.machine.read().inventory.gpus:
            self.process.write(gpu.device_node, "")

    def sockets(self) -> Sequence[str]:
        """Names of the plugins' sockets."""
        return sorted(path.name for path in self.plugins.iterdir() if path != self.kubelet.socket)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.kubelet.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a unix socket's path has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="gp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    """A node with two GPUs and a kubelet that is not started yet."""
    made = Node(folder)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(made.end)
        yield made
