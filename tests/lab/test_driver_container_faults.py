"""Every log signature of contracts/driver-lifecycle.md 6.11 that a simulated host can bring about; each can be cured.

And drivers of the host itself (section 7), and the startup probe's reasons (6.9).
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.driver_node import WAITS, Node

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import driverfaults, nodes
from groundplane.lab.driver import daemons, fabric, modules, packages
from groundplane.lab.driver.packages import Repository
from groundplane.lab.driverfaults import DRIVER, FAULTS, PEERMEM_PROBE, PROBE
from groundplane.operands import startup_probe

INIT = ("nvidia-driver", "init")
PROBED = ("sh", "/usr/local/bin/startup-probe.sh")
RHEL = {"os": nodes.OsSpec("rhel", "9.6"), "kernel": "5.14.0-570.el9_6.x86_64"}
RUNNING = [name for name in FAULTS if name.startswith("stuck-")]
WAITING = ["nvlink5-prerequisites", "rhel-kernel-name"]
"""The driver comes up as soon as, or although, these are there."""
REFUSING = [name for name, fault in FAULTS.items() if fault.program == DRIVER and name not in (*RUNNING, *WAITING)]
AT_PROBE = [name for name, fault in FAULTS.items() if fault.program == PROBE]
NOT_HERE = {"cannot proceed until all GPU pods are drained from the node",
            "superseded by the GPU Operator's upgrade policy",
            "GPUDirectRDMA is enabled, validating MOFED driver installation"}  # fmt: skip
"""Texts of the driver manager, whose own tests show them; its host driver is in test_driver_container_pods.py."""
TABLE = [
    "Could not resolve Linux kernel version", "Failed to update package cache",
    "Could not locate Linux kernel version string", "failed to reach RHEL package repositories",
    "failed to update the dnf metadata cache", "RHEL entitlement may be improperly deployed",
    "Unable to resolve RHEL version from kernel version",
    "Could not unload NVIDIA driver kernel modules, driver is in use",
    "An instance of the NVIDIA driver is already running, aborting", "driver is pre-installed on host",
    "cannot proceed until all GPU pods are drained from the node", "superseded by the GPU Operator's upgrade policy",
    "GPUDirectRDMA is enabled, validating MOFED driver installation",
    "waiting for the mlx5_core and ib_umad kernel modules to be loaded", "Could not stop NVIDIA persistence daemon",
    "invalid value for the KERNEL_MODULE_TYPE variable", "nvidia-peermem module is not loaded",
    "NVIDIA kernel module not loaded", "nvidia-smi failed", "NVIDIA driver daemons are not ready",
]  # fmt: skip
"""6.11, row by row."""


def made(folder: Path, name: str) -> Node:
    return Node(folder, **(RHEL if name.startswith("rhel-") else {}))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("h")


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


def test_the_whole_table_is_there() -> None:
    assert set(TABLE) <= {fault.shows for fault in FAULTS.values()} | NOT_HERE
    assert all(fault.means for fault in FAULTS.values())
    with pytest.raises(driverfaults.UnknownFaultError, match="no fault 'fire'; there are daemons-not-ready, "):
        driverfaults.fault("fire")
    assert driverfaults.fault("secure-boot").program == DRIVER


@pytest.mark.parametrize("name", REFUSING)
async def test_a_fault_keeps_the_driver_down_until_it_is_cured(folder: Path, name: str) -> None:
    node, fault = made(folder, name), FAULTS[name]
    fault.inject(node.host)
    pod = node.pod(**fault.env)
    assert await pod.run(*INIT) == 1
    assert fault.shows in pod.text
    fault.cure(node.host)
    await node.comes_up()


async def test_a_kernel_of_nobody_is_only_a_warning(folder: Path) -> None:
    node, fault = made(folder, "rhel-kernel-name"), FAULTS["rhel-kernel-name"]
    fault.inject(node.host)
    assert fault.shows in await node.comes_up()
    fault.cure(node.host)
    assert fault.shows not in await node.comes_up()


@pytest.mark.parametrize("name", RUNNING)
async def test_a_stuck_daemon_keeps_the_driver_up(node: Node, name: str) -> None:
    fault = FAULTS[name]
    node.host.root.write_atomic(f"{fabric.NVSWITCHES}/0000:c1:00.0", "")
    node.host.root.write_atomic("/sys/class/infiniband/mlx5_0/device/vpd", "SW_MNG")
    for module in fabric.PREREQUISITES:
        node.host.load_module(module)
    files = {"/drivers/gridd.conf": "", "/etc/nvidia/nvidia-topologyd.conf": ""}
    pod = node.pod(files=files, DRIVER_TYPE="vgpu")
    task = asyncio.create_task(pod.run(*INIT))
    await pod.until(WAITS)
    assert all(daemons.running(node.host, daemon.comm) for daemon in daemons.ALL)
    fault.inject(node.host)
    pod.stopping.set()
    await pod.until(fault.shows)
    assert node.host.loaded("nvidia") and not task.done()
    task.cancel()
    await asyncio.wait({task})
    again = node.pod(DRIVER_TYPE="vgpu", files=files)
    if "fabric" in name or "subnet" in name:  # whose number the host keeps: a new container finds it stuck
        assert await again.run(*INIT) == 1
        assert fault.shows in again.text
    fault.cure(node.host)
    await node.comes_up(node.pod(DRIVER_TYPE="vgpu", files=files))


@pytest.mark.parametrize("name", AT_PROBE)
async def test_the_startup_probe_names_its_reason(node: Node, name: str) -> None:
    fault = FAULTS[name]
    async with node.driver(kill=True, GDS_ENABLED="true") as pod:
        ready = f"{names.VALIDATIONS_DIR}/.driver-ctr-ready"
        assert await pod.run(*PROBED) == 0
        assert node.read(ready) == "GDRCOPY_ENABLED: false\nGDS_ENABLED: true\nGPU_DIRECT_RDMA_ENABLED: false\n"
        fault.inject(node.host)
        pod.output.clear()
        assert await pod.run(*PROBED) == 1
        assert fault.shows in pod.text
        fault.cure(node.host)
        assert await pod.run(*PROBED) == 0


async def test_a_driver_without_a_daemons_file_is_probed_all_the_same(node: Node) -> None:
    async with node.driver() as pod:
        node.host.root.remove(fabric.STATUS)
        assert await pod.run(*PROBED) == 0


async def test_the_older_probe_knows_no_daemons_file(node: Node) -> None:
    node.host.root.write_atomic("/probe/startup-probe.sh", startup_probe.script(Release.V26_3))
    async with node.driver() as pod:
        FAULTS["daemons-not-ready"].inject(node.host)
        assert await pod.run(*PROBED) == 0


async def test_the_peermem_probe_names_its_reason(node: Node) -> None:
    (fault,) = (fault for fault in FAULTS.values() if fault.program == PEERMEM_PROBE)
    async with node.driver() as pod:
        fault.inject(node.host)
        assert await pod.run("nvidia-driver", "probe_nvidia_peermem") == 1
        assert fault.shows in pod.text
        fault.cure(node.host)
        assert await pod.run("nvidia-driver", "probe_nvidia_peermem") == 0


# --- repositories -----------------------------------------------------------------------------------------------------
MIRROR = {"/etc/apt/sources.list.d/mirror.list": "deb http://mirror.lab/ubuntu noble main\n"}


@pytest.mark.parametrize(
    ("distribution", "mirror", "files", "env", "comes"),
    [
        (Repository(reachable=False), Repository(), {}, {}, False),
        (Repository(reachable=False), Repository(), MIRROR, {}, True),
        (Repository(reachable=False), Repository(kernels=()), MIRROR, {}, False),
        (Repository(kernels=()), Repository(kernels=("6.8.0-60-generic",)), MIRROR, {}, True),
        (Repository(proxied=True), Repository(), {}, {}, False),
        (Repository(proxied=True), Repository(), {}, {"HTTPS_PROXY": "http://proxy:3128"}, True),
    ],
    ids=["unreachable", "mirror", "empty mirror", "mirror with headers", "no proxy", "proxy"],
)
async def test_mirrors_and_proxies_cure_what_is_out_of_reach(
    node: Node,
    distribution: Repository,
    mirror: Repository,
    files: dict[str, str],
    env: dict[str, str],
    comes: bool,
) -> None:
    driverfaults.set_repository(node.host, distribution)
    driverfaults.set_repository(node.host, mirror, "mirror.lab")
    pod = node.pod(files=files, **env)
    if comes:
        await node.comes_up(pod)
    else:
        assert await pod.run(*INIT) == 1


@pytest.mark.parametrize("text", ["repositories: [", "repositories: {a: {b: 1}}", "- 1"])
async def test_a_malformed_description_of_repositories_is_named(node: Node, text: str) -> None:
    node.host.root.write_atomic(packages.FILE, text)
    pod = node.pod()
    assert await pod.run(*INIT) == 1
    assert packages.FILE in pod.text


# --- 7: drivers of the host -------------------------------------------------------------------------------------------
async def test_a_host_driver_is_never_overwritten(folder: Path) -> None:
    node = Node(folder, host_driver="550.54.15")
    pod = node.pod()
    assert await pod.run(*INIT) == 1
    assert "already installed on the host" in pod.text
    assert (node.host.driver_version, node.host.host_libraries()) == ("550.54.15", ["550.54.15"])
    assert not node.host.root.exists(names.DRIVER_ROOT) and node.host.has_host_driver()


async def test_a_broken_host_driver_is_not_detected_and_fights(folder: Path) -> None:
    node = Node(folder, host_driver="550.54.15")
    driverfaults.break_host_driver(node.host)
    look = node.pod("container-toolkit", "x")
    assert await look.run("chroot", "/host", "nvidia-smi") == 18
    assert not node.host.has_host_driver()
    pod = node.pod()
    assert await pod.run(*INIT) == 1  # what the host runs keeps its module
    assert modules.IN_USE in pod.text and node.host.driver_version == "550.54.15"
    FAULTS["driver-in-use"].cure(node.host)
    async with node.driver():
        assert node.host.driver_version == "580.126.20"
        assert node.host.host_libraries() == [driverfaults.OTHER_LIBRARY]  # the host's files stay as they were
        assert not node.host.has_host_driver()
        assert await look.run("chroot", "/host", "nvidia-smi") == 18


async def test_a_node_without_gpus_gets_no_driver(folder: Path) -> None:
    node = Node(folder, gpus=())
    pod = node.pod()
    assert await pod.run(*INIT) == 1
    assert "No NVIDIA GPU detected" in pod.text
