"""A container's files below a test's folder, and the stand-ins as real processes in it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from groundplane.lab import clock, driverfiles, host, nodes, onnode
from groundplane.lab.onnode import container as containers
from groundplane.lab.onnode import host as node_host
from groundplane.lab.programs import ContainerContext, Image
from groundplane.node.hostroot import HostRoot

GPUS = (nodes.GpuSpec("H100", 2),)
PATIENCE_S = 60.0


class Process:
    """A stand-in that runs as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.text = ""
        self._readers = [asyncio.create_task(self._read(stream)) for stream in (process.stdout, process.stderr)]

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        async for line in stream:
            self.text += line.decode()

    async def until(self, words: str) -> None:
        await until(lambda: words in self.text, lambda: f"{words!r} in: {self.text}")

    async def end(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        await asyncio.gather(*self._readers)
        return code

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.end()


async def until(check: Callable[[], Any], what: Callable[[], str]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not check():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.02)


class Place:
    """A node's simulated machine and one container's root, both below a folder."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.shared, self.base = folder / "node", folder / "root"
        for each in (self.shared, self.base / "bin", self.base / "var"):
            each.mkdir(parents=True)
        (self.base / "var/run").symlink_to("/run")
        self.root = HostRoot(self.base)
        self.describe([nodes.NodeSpec("n", **{"gpus": GPUS, **fields})])
        self._started: list[Process] = []

    def describe(self, specs: list[nodes.NodeSpec]) -> None:
        document = {"nodes": [msgspec.to_builtins(spec) for spec in specs]}
        (self.shared / node_host.SPEC).write_text(json.dumps(document))

    @property
    def host(self) -> node_host.NodeHost:
        return node_host.attach(self.shared)

    def install_driver(self, version: str = "580.1") -> None:
        """What the driver's container leaves: modules, device nodes, files below the driver's root."""
        simulated = self.host
        for module in host.CORE_MODULES:
            simulated.load_module(module, version=version)
        simulated.create_device_nodes()
        driver_root = HostRoot(self.root.mkdir("/driver-root"))
        driverfiles.write(driver_root, version, driverfiles.CONTAINER_LIBRARIES)

    def inject_driver(self) -> None:
        """What the NVIDIA runtime mounts into a container."""
        self.root.write_atomic("/usr/lib64/libcuda.so.1", "")

    def context(self, *argv: str, **env: str) -> ContainerContext:
        simulated = self.host
        made = containers.NodeContainer(
            host=simulated,
            clock=clock.LabClock(50),
            registry=containers.Commands(),
            pod={"metadata": {"name": "p", "namespace": "default"}, "spec": {}},
            spec={"name": "c", "image": "lab/x:1"},
            image=Image((), {}),
            rootfs=self.root,
            gpus=containers.visible_gpus(simulated, env, self.root),
            driver_injected=containers.driver_injected(self.root),
            env=env,
        )
        return ContainerContext(made, argv, out=lambda _data: None)

    async def start(self, *argv: str, **env: str) -> Process:
        settings = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "NVIDIA"))},
            onnode.FOLDER_ENV: str(self.shared),
            onnode.ROOT_ENV: str(self.base),
            onnode.SPEED_ENV: "50",
            **env,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "groundplane.lab.onnode", *argv),
            env=settings, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._started.append(Process(process))
        return self._started[-1]

    async def run(self, *argv: str, **env: str) -> tuple[int, str]:
        process = await self.start(*argv, **env)
        return await process.end(), process.text

    async def close(self) -> None:
        """Kill what still runs."""
        for each in self._started:
            if each.process.returncode is None:
                each.process.kill()
            await each.end()
