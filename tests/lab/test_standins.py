"""Stand-ins one by one: what each checks of the host and what it leaves there."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groundplane.api import names
from groundplane.lab import api, clock, host, images, nodes, programs, resources
from groundplane.lab.standins import driver
from groundplane.node.hostroot import HostRoot

VALIDATIONS = names.VALIDATIONS_DIR


class Node:
    """One host with a Node object; runs programs as containers that see the host's files as operands do."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.api = api.Api()
        self.host = host.SimulatedHost(HostRoot(folder), nodes.NodeSpec("n", **fields))
        self.api.create(resources.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        self.stopping = asyncio.Event()
        self.output = bytearray()

    def context(self, image: str, *argv: str, tag: str = "1", **env: str) -> programs.ContainerContext:
        root = self.host.root
        mounts = [programs.Mount("/host", root), programs.Mount("/driver-root", root, names.DRIVER_ROOT)]
        same = ("/run/nvidia", "/var/run/cdi", "/usr/local/nvidia", "/etc/containerd", "/proc", "/sys", "/dev")
        mounts += [programs.Mount(path, root, path) for path in same]
        container = programs.Container(
            host=self.host,
            api=self.api,
            clock=clock.LabClock(5000),
            registry=programs.ProgramRegistry.standard(),
            pod={"metadata": {"name": "p", "namespace": "default"}, "spec": {}},
            spec={"name": "c", "image": f"lab/{image}:{tag}"},
            image=images.IMAGES[image],
            rootfs=HostRoot(root.mkdir("/rootfs")),
            mounts=tuple(mounts),
            env=env,
            stopping=self.stopping,
        )
        return programs.ContainerContext(container, argv or images.IMAGES[image].entrypoint, out=self.output.extend)

    async def run(self, image: str, *argv: str, **more: str) -> int:
        return await self.context(image, *argv, **more).run()

    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.api.get(resources.NODES, "n")["metadata"].get("labels") or {}
        return found

    @property
    def text(self) -> str:
        return self.output.decode()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("h")


GPUS = (nodes.GpuSpec("A100", 2),)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/driver:580.126.20-ubuntu24.04", "580.126.20"),
        ("driver:595.91.07-rhel9.6", "595.91.07"),
        ("driver:580-6.8.0-60-generic-ubuntu24.04", "580.00"),
    ],
)
def test_driver_version_of_an_image(image: str, version: str) -> None:
    assert driver.version_of(image) == version


async def test_driver_loads_and_unloads(folder: Path) -> None:
    node = Node(folder, gpus=GPUS)
    task = asyncio.create_task(node.run("driver", tag="580.126.20-ubuntu24.04", DRIVER_CONFIG_DIGEST="7"))
    while "waiting for signal" not in node.text:
        await asyncio.sleep(0.001)
    assert node.host.driver_version == "580.126.20"
    assert node.host.modules()[-3:] == ["nvidia", "nvidia_uvm", "nvidia_modeset"]
    assert node.host.root.read_text(f"{VALIDATIONS}/.driver-daemons-status") == "Ready\n"
    assert node.host.root.is_dir(names.DRIVER_ROOT + "/dev")
    node.stopping.set()
    assert await task == 0
    assert (node.host.loaded("nvidia"), node.host.device_nodes()) == (False, [])
    assert not node.host.root.exists(names.DRIVER_ROOT)


@pytest.mark.parametrize(
    ("fields", "complaint"), [({"gpus": GPUS, "host_driver": "550.1.2"}, "already installed"), ({}, "No NVIDIA GPU")]
)
async def test_driver_refuses(folder: Path, fields: dict[str, Any], complaint: str) -> None:
    node = Node(folder, **fields)
    assert await node.run("driver") == 1
    assert complaint in node.text


async def test_nvidia_smi(folder: Path) -> None:
    node = Node(folder, gpus=GPUS)
    assert await node.run("driver", "nvidia-smi") == 9
    node.host.load_module("nvidia", version="580.1")
    node.output.clear()
    assert await node.run("driver", "nvidia-smi", "--query-gpu=index,driver_version", "--format=csv,noheader") == 0
    assert node.text == "0, 580.1\n1, 580.1\n"
