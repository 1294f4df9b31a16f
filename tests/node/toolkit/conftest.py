"""A node of the toolkit's tests: a driver, device nodes, simulated GPUs, a container runtime's configuration."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node.cdi.roots import NULL_DEVICES
from groundplane.node.devices.simulated import Machine, SimulatedSource, describe
from groundplane.node.devices.source import Source
from groundplane.node.ownprocess import DEVICES
from groundplane.node.process import Completed
from groundplane.node.toolkit import main
from groundplane.node.toolkit.settings import HOST_PROGRAM

DRIVER = "580.95.05"
LIBRARIES = "/driver-root/usr/lib/x86_64-linux-gnu"
NODES = ("nvidia0", "nvidia1", "nvidiactl")
ROOTS = {
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    "DRIVER_ROOT_CTR_PATH": "/driver-root",
    "NVIDIA_DEV_ROOT": "/run/nvidia/driver",
    "DEV_ROOT_CTR_PATH": "/driver-root",
}
"""What the driver's validation leaves behind where the driver is a container's."""
OPERATOR = {
    "ROOT": "/usr/local/nvidia",
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
    "NRI_NAMESPACE": "gpu-operator",
    "CDI_ENABLED": "true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
    "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
    "CRIO_CONFIG_MODE": "config",
}
"""What the operator sets (contracts/toolkit-cdi.md 4.1, 4.2)."""


class Node:
    """A node. Start as many toolkits as wanted; all are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices = folder / "kernel" / DEVICES.lstrip("/")
        self.devices.parent.mkdir(parents=True)
        self.machine = Machine.create(self.devices, describe("n", ["H100-SXM5-80GB"] * 2, DRIVER))
        self.library = True
        self.loaded = True
        self.env: dict[str, str] = {**OPERATOR, **ROOTS, NULL_DEVICES: "true"}
        self.commands: dict[str, Any] = {"chroot": lambda argv, env, stdin: Completed(0, "", "")}
        self.process = self.make()
        self.write(HOST_PROGRAM, "\x7fELF host program")
        for name in ("libcuda", "libnvidia-ml"):
            self.write(f"{LIBRARIES}/{name}.so.{DRIVER}", "")
        self.add_nodes(*NODES)
        self._tasks: list[asyncio.Task[int]] = []

    def write(self, path: str, text: str) -> Path:
        """Write a file of the toolkit's container."""
        return self.process.root.write_atomic(path, text)

    def read(self, path: str) -> str:
        """Read one."""
        return self.process.root.read_text(path)

    def exists(self, path: str) -> bool:
        """Whether there is one."""
        return self.process.root.exists(path)

    def add_nodes(self, *names: str) -> None:
        """Make device nodes; ordinary files stand for them."""
        for name in names:
            self.write(f"/driver-root/dev/{name}", "")

    def source(self) -> Source:
        """The machine's GPUs."""
        return SimulatedSource(self.devices, library=lambda: self.library, loaded=lambda: self.loaded)

    def make(self, *argv: str, pace: float = 1.0, release: Release = Release.DEFAULT, **env: str) -> FakeProcess:
        """The world of one run of the toolkit."""
        process = FakeProcess(
            self.folder,
            ("nvidia-toolkit", *argv),
            {**self.env, **env},
            source=self.source(),
            pace=pace,
            release=release,
        )
        process.commands.update(self.commands)
        return process

    def start(self, *argv: str, **more: Any) -> asyncio.Task[int]:
        """Run a toolkit; its world is in `process` afterwards."""
        self.process = self.make(*argv, **more)
        task = asyncio.create_task(main.run(self.process))
        self._tasks.append(task)
        return task

    async def stop(self) -> None:
        """End what still runs."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def tree(self, folder: str, skip: Sequence[str] = ()) -> dict[str, bytes | str]:
        """What a folder of the container holds: files' bytes and links' targets, by path below it."""
        root = self.process.path(folder)
        found: dict[str, bytes | str] = {}
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.is_file() and not name.startswith(tuple(skip)):
                found[name] = path.read_bytes()
        return found


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.stop()
