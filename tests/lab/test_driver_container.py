"""The driver container on a simulated host: verbs, the start sequence, signals, parameters and daemons
(contracts/driver-lifecycle.md 6)."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.driver_node import BUILT, PRECOMPILED, WAITS, Node

from groundplane.api import names
from groundplane.lab import driverfaults, nodes
from groundplane.lab.driver import container, daemons, fabric, image, install, modules
from groundplane.lab.driver.packages import TOOLKIT, Repository

STATE = names.DRIVER_STATE_FILE
DRIVER = ("nvidia-driver", "init")


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder: Path = tmp_path_factory.mktemp("h")
    yield Node(folder)


# --- 6.2 verbs --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "verb", "wanted"),
    [
        ("init", "init", {}),
        ("init -a -m 8", "init", {"max_threads": 8}),
        ("init --accept-license --max-threads=4", "init", {"max_threads": 4}),
        ("update -k 6.8.0-61-generic -s key.pem -t x -m 2", "update",
         {"kernel": "6.8.0-61-generic", "sign": "key.pem", "tag": "x", "max_threads": 2}),
        ("update --kernel 6.9", "update", {"kernel": "6.9"}),
        ("reload_nvidia_peermem", "reload_nvidia_peermem", {}),
        ("probe_nvidia_peermem", "probe_nvidia_peermem", {}),
    ],
)  # fmt: skip
def test_verbs_and_options(words: str, verb: str, wanted: dict[str, Any]) -> None:
    found = container.options(("nvidia-driver", *words.split()), rhel=False)
    assert found == (verb, install.Options(**wanted))


@pytest.mark.parametrize(
    "words",
    ["", "fly", "init --fast", "init -m many", "init now", "build", "load", "update -k", "probe_nvidia_peermem -a"],
)
async def test_what_is_no_verb_shows_the_usage(node: Node, words: str) -> None:
    pod = node.pod()
    assert await pod.run("nvidia-driver", *words.split()) == 1
    assert "Usage: nvidia-driver COMMAND" in pod.text
    assert node.host.modules() == []


def test_verbs_of_red_hats_images() -> None:
    assert container.options(("nvidia-driver", "build", "-t", "x"), rhel=True)[0] == "build"
    assert container.options(("nvidia-driver", "load"), rhel=True)[0] == "load"


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        ("nvcr.io/nvidia/driver:580.126.20-ubuntu24.04", image.DriverImage("580.126.20")),
        ("driver:580-6.8.0-60-generic-ubuntu22.04", image.DriverImage("580.00", "6.8.0-60-generic", "ubuntu")),
        ("driver:595-5.14.0-570.el9_6.x86_64-rhel9.6", image.DriverImage("595.00", "5.14.0-570.el9_6.x86_64", "rhel")),
        ("driver:580-ubuntu24.04", image.DriverImage("580.00")),
    ],
)
def test_what_an_image_is(reference: str, wanted: image.DriverImage) -> None:
    assert image.parse(reference) == wanted


# --- 6.3 start sequence -----------------------------------------------------------------------------------------------
async def test_the_full_path_loads_in_order_and_a_signal_undoes_it(node: Node) -> None:
    node.host.root.mkdir("/run/kernel/postinst.d")
    async with node.driver(DRIVER_CONFIG_DIGEST="7") as pod:
        assert node.host.modules() == [*modules.BEFORE, "nvidia", "nvidia_uvm", "nvidia_modeset"]
        assert node.host.driver_version == "580.126.20"
        assert (node.read(STATE), node.status()) == ("7\n", "Ready")
        assert node.read(modules.FIRMWARE_PATH) == modules.FIRMWARE
        assert "update --kernel" in node.read(install.HOOK)
        assert node.read(names.DRIVER_PID_FILE).strip().isdecimal()
        assert node.host.root.exists(f"{names.DRIVER_ROOT}/usr/bin/nvidia-smi")
    order = ["Unloading", "userspace", "Kernel module type", "package cache", "Compiling", "modprobe nvidia"]
    order += ["persistence daemon", "Mounting", "kernel update hook", WAITS, "Caught signal"]
    places = [pod.text.index(part) for part in order]
    assert places == sorted(places)
    assert node.host.modules() == list(modules.BEFORE)
    assert not any(node.host.root.exists(path) for path in (names.DRIVER_ROOT, names.DRIVER_PID_FILE, install.HOOK))
    assert node.host.device_nodes() == []


async def test_the_fast_path_leaves_the_modules_alone(node: Node) -> None:
    async with node.driver(kill=True, DRIVER_CONFIG_DIGEST="7"):
        pass
    node.host.kernel_modules.hold("nvidia_uvm")  # a pod goes on computing
    driverfaults.FAULTS["repositories-unreachable"].inject(node.host)
    async with node.driver(kill=True, DRIVER_CONFIG_DIGEST="7") as pod:
        assert node.host.kernel_modules.uses("nvidia_uvm") == 1
        assert (node.read(STATE), node.status()) == ("7\n", "Ready")
    assert "Unloading" not in pod.text and "modprobe" not in pod.text


@pytest.mark.parametrize(
    ("before", "now"), [("7", "8"), ("", ""), ("7", "")], ids=["other digest", "never one", "none now"]
)
async def test_only_an_equal_digest_takes_the_fast_path(node: Node, before: str, now: str) -> None:
    async with node.driver(kill=True, DRIVER_CONFIG_DIGEST=before):
        pass
    assert "Unloading NVIDIA driver kernel modules" in await node.comes_up(DRIVER_CONFIG_DIGEST=now)


async def test_precompiled_images_always_load_anew_and_store_no_digest(node: Node) -> None:
    for _ in range(2):
        async with node.driver(node.pod(tag=PRECOMPILED, DRIVER_CONFIG_DIGEST="7"), kill=True) as pod:
            assert "+ modprobe nvidia" in pod.text
            assert "Compiling" not in pod.text
            assert not node.host.root.exists(STATE)
            assert node.host.driver_version == "580.00"


async def test_a_second_instance_gives_way(node: Node) -> None:
    async with node.driver():
        second = node.pod()
        assert await second.run(*DRIVER) == 1
        assert "An instance of the NVIDIA driver is already running, aborting" in second.text
        assert node.host.loaded("nvidia")
    await node.comes_up()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM])
async def test_signals_unload(node: Node, number: int) -> None:
    pod = node.pod()
    task = asyncio.create_task(pod.run(*DRIVER))
    await pod.until(WAITS)
    (process,) = pod.container.namespace().values()
    process.deliver(signal.SIGUSR1)  # for which there is no trap
    process.deliver(number)
    assert await asyncio.wait_for(task, 20) == 0
    assert not node.host.loaded("nvidia")


async def test_an_unload_that_fails_waits_for_the_next_signal(node: Node) -> None:
    pod = node.pod()
    task = asyncio.create_task(pod.run(*DRIVER))
    await pod.until(WAITS)
    with node.host.gpus_in_use(node.host.gpus):
        pod.stopping.set()
        await pod.until(modules.IN_USE)
        assert node.host.root.exists(names.DRIVER_ROOT) and not task.done()
    (process,) = pod.container.namespace().values()
    process.deliver(signal.SIGTERM)
    assert await asyncio.wait_for(task, 20) == 0
    assert not node.host.loaded("nvidia")


async def test_a_killed_container_leaves_its_modules_and_nothing_that_runs(node: Node) -> None:
    async with node.driver(kill=True):
        assert daemons.running(node.host, daemons.PERSISTENCE.comm)
    assert node.host.loaded("nvidia") and node.host.root.exists(names.DRIVER_ROOT)
    assert not daemons.running(node.host, daemons.PERSISTENCE.comm)


async def test_a_signal_while_installing_ends_with_an_error(node: Node) -> None:
    pod = node.pod()
    task = asyncio.create_task(pod.run(*DRIVER))
    await pod.until("Installing userspace")
    pod.stopping.set()
    assert await asyncio.wait_for(task, 20) == 1
    assert node.host.modules() == [] and not node.host.root.exists(names.DRIVER_PID_FILE)


async def test_modules_of_other_containers_are_accounted_for(node: Node) -> None:
    """6.3, last sentence: a restart with another digest while GDRCopy and GDS are loaded."""
    async with node.driver(kill=True, DRIVER_CONFIG_DIGEST="1"):
        for module in modules.CLIENTS:
            node.host.load_module(module)
    async with node.driver(kill=True, DRIVER_CONFIG_DIGEST="2"):
        assert all(node.host.loaded(module) for module in (*modules.CLIENTS, "nvidia"))
    node.host.kernel_modules.hold("gdrdrv")
    pod = node.pod(DRIVER_CONFIG_DIGEST="3")
    assert await pod.run(*DRIVER) == 1
    assert modules.IN_USE in pod.text and node.host.loaded("gdrdrv")


async def test_lsmod_shows_who_uses_whom(node: Node) -> None:
    async with node.driver() as pod:
        pod.output.clear()
        assert await pod.run("lsmod") == 0
        rows = {line.split()[0]: line.split()[1:] for line in pod.text.splitlines()}
    assert rows["Module"] == ["Size", "Used", "by"]
    assert (rows["nvidia"], rows["nvidia_uvm"]) == (["16384", "2", "nvidia_uvm,nvidia_modeset"], ["16384", "0"])


async def test_nvidia_drm_keeps_the_driver(node: Node) -> None:
    """5.5: it is in nobody's list."""
    async with node.driver(kill=True):
        node.host.load_module("nvidia_drm")
    pod = node.pod()
    assert await pod.run(*DRIVER) == 1
    assert modules.IN_USE in pod.text and "nvidia_drm," in pod.text


# --- 6.4 kind ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "branch", "recommended", "wanted"),
    [
        ("proprietary", 595, "open", False),
        ("open", 535, "proprietary", True),
        ("auto", 580, "open", True),
        ("auto", 580, "proprietary", False),
        ("auto", 559, None, False),
        ("auto", 560, None, True),
    ],
)
def test_kind(setting: str, branch: int, recommended: str | None, wanted: bool) -> None:
    assert modules.kind_is_open(setting, branch, recommended) is wanted


@pytest.mark.parametrize("setting", ["", "Open", "kernel"])
def test_other_kinds_are_an_error(setting: str) -> None:
    with pytest.raises(modules.KindError, match=f"invalid value for the KERNEL_MODULE_TYPE variable: {setting}"):
        modules.kind_is_open(setting, 580, "open")


@pytest.mark.parametrize(
    ("model", "tag", "env", "title"),
    [
        ("A100", BUILT, {}, "Open Kernel Module"),
        ("A100", BUILT, {"KERNEL_MODULE_TYPE": "proprietary"}, "x86_64 Kernel Module"),
        ("A100", "550.54.15-ubuntu24.04", {}, "x86_64 Kernel Module"),
        ("V100", BUILT, {"KERNEL_MODULE_TYPE": "auto"}, "x86_64 Kernel Module"),
    ],
)
async def test_kind_of_the_loaded_module(
    tmp_path_factory: pytest.TempPathFactory, model: str, tag: str, env: dict[str, str], title: str
) -> None:
    node = Node(tmp_path_factory.mktemp("h"), gpus=(nodes.GpuSpec(model),))
    async with node.driver(node.pod(tag=tag, **env)):
        assert title in node.read("/proc/driver/nvidia/version")


@pytest.mark.parametrize(("model", "kind"), [("V100", "open"), ("B200", "proprietary")])
async def test_a_kind_that_does_not_drive_the_gpus(
    tmp_path_factory: pytest.TempPathFactory, model: str, kind: str
) -> None:
    node = Node(tmp_path_factory.mktemp("h"), gpus=(nodes.GpuSpec(model),))
    pod = node.pod(KERNEL_MODULE_TYPE=kind)
    assert await pod.run(*DRIVER) == 1
    assert "could not insert 'nvidia': No such device" in pod.text and not node.host.loaded("nvidia")


# --- 6.5 parameters ---------------------------------------------------------------------------------------------------
async def test_parameters_reach_modprobe_and_the_modules(node: Node) -> None:
    files = {
        "/drivers/nvidia.conf": "NVreg_A=1 NVreg_B=2\nNVreg_A=3",
        "/drivers/nvidia-uvm.conf": "uvm_disable_hmm=1\n",
        "/drivers/unrelated.conf": "x=1\n",
    }
    async with node.driver(node.pod(files=files)):
        conf = node.read(f"{names.DRIVER_ROOT}/etc/modprobe.d/nvidia.conf")
        assert conf == f"options nvidia {modules.ALWAYS} NVreg_A=1 NVreg_B=2 NVreg_A=3\n"
        assert node.read("/proc/driver/nvidia/params") == "CoherentGPUMemoryMode: driver\nA: 3\nB: 2\n"
        assert node.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm") == "1\n"
        assert not node.host.root.exists(f"{names.DRIVER_ROOT}/etc/modprobe.d/unrelated.conf")


async def test_precompiled_images_put_nothing_before_the_parameters(node: Node) -> None:
    async with node.driver(node.pod(tag=PRECOMPILED, files={"/drivers/nvidia.conf": "NVreg_A=1"})):
        assert node.read("/proc/driver/nvidia/params") == "A: 1\n"


_WORD = st.from_regex(r"[a-z_]{1,8}=[0-9]{1,3}", fullmatch=True)


@given(st.lists(st.lists(_WORD, min_size=1), min_size=1), st.booleans())
def test_words_of_a_parameter_file(lines: list[list[str]], ended: bool) -> None:
    text = "\n".join(" ".join(line) for line in lines) + ("\n" if ended else "")
    assert modules.words(text) == [word for line in lines for word in line]


@pytest.mark.parametrize(
    ("before", "files", "after"),
    [
        ("\n", {}, modules.FIRMWARE),
        ("/opt/firmware\n", {}, "/opt/firmware\n"),
        ("\n", {"/drivers/nvidia.conf": modules.NO_FIRMWARE}, "\n"),
    ],
    ids=["unset", "somebody's", "no firmware"],
)
async def test_firmware_search_path(node: Node, before: str, files: dict[str, str], after: str) -> None:
    node.host.root.write_atomic(modules.FIRMWARE_PATH, before)
    text = await node.comes_up(node.pod(files=files))
    assert node.read(modules.FIRMWARE_PATH) == after
    assert ("WARNING" in text) is (before != "\n")


# --- 6.6 precompiled or built -----------------------------------------------------------------------------------------
async def test_an_update_ahead_spares_the_build(node: Node) -> None:
    pod = node.pod()
    assert await pod.run("nvidia-driver", "update", "-k", "6.8.0-61-generic", "-t", "next", "-s", "key") == 0
    node.host.root.write_atomic("/proc/sys/kernel/osrelease", "6.8.0-61-generic\n")
    driverfaults.FAULTS["repositories-unreachable"].inject(node.host)
    driverfaults.set_secure_boot(node.host, True)
    driverfaults.enroll(node.host, "key")
    async with node.driver(pod):
        assert node.host.loaded("nvidia")


async def test_an_update_for_a_kernel_without_headers(node: Node) -> None:
    driverfaults.FAULTS["no-kernel-headers"].inject(node.host)
    pod = node.pod()
    assert await pod.run("nvidia-driver", "update", "-k", "9.9") == 1
    assert "Could not resolve Linux kernel version" in pod.text


@pytest.mark.parametrize("kernel", ["6.8.0-61-generic", "6.8.0-60-generic"], ids=["another kernel", "its own"])
async def test_precompiled_for_one_kernel(node: Node, kernel: str) -> None:
    node.host.root.write_atomic("/proc/sys/kernel/osrelease", kernel + "\n")
    pod = node.pod(tag=PRECOMPILED)
    if kernel in PRECOMPILED:
        await node.comes_up(pod)
    else:
        assert await pod.run(*DRIVER) == 1
        assert f"Module nvidia not found in directory /lib/modules/{kernel}" in pod.text


# --- 6.7 daemons ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "env", "wanted", "warned"),
    [
        ("A=1\nB=2\n", {"NVFM_CONFIG_A": "3"}, "A=3\nB=2\n", False),
        ("A=1\n", {"NVFM_CONFIG_C": "3", "OTHER": "x"}, "A=1\nC=3\n", False),
        ("A=1\n", {"NVFM_CONFIG_": "3"}, "A=1\n", True),
        ("A=1\n", {"NVFM_CONFIG_A": "x=y"}, "A=x=y\n", False),
        ("", {}, "", False),
    ],
)
def test_fabric_manager_configuration(text: str, env: dict[str, str], wanted: str, warned: bool) -> None:
    changed, warnings = fabric.configured(text, env)
    assert (changed, bool(warnings)) == (wanted, warned)


async def test_nvswitches_get_their_fabric_manager(node: Node) -> None:
    node.host.root.write_atomic(f"{fabric.NVSWITCHES}/0000:c1:00.0", "")
    pod = node.pod(NVFM_CONFIG_LOG_LEVEL="7")
    async with node.driver(pod):
        assert daemons.running(node.host, daemons.FABRIC.comm)
        assert not daemons.running(node.host, daemons.SUBNET.comm)
        assert pod.container.path(fabric.CONFIG).read_text().startswith("LOG_LEVEL=7\n")
    assert not daemons.running(node.host, daemons.FABRIC.comm)


async def test_a_fabric_manager_that_fails_fails_the_start(node: Node) -> None:
    node.host.root.write_atomic(f"{fabric.NVSWITCHES}/0000:c1:00.0", "")
    pod = node.pod(NVFM_CONFIG_FABRIC_MODE="9")
    assert await pod.run(*DRIVER) == 1
    assert "FABRIC_MODE=9" in pod.text and node.status() == "NotReady"
    assert not node.host.loaded("nvidia")


async def test_a_missing_fabric_configuration_is_a_warning(node: Node) -> None:
    node.host.root.write_atomic(f"{fabric.NVSWITCHES}/0000:c1:00.0", "")
    pod = node.pod(NVFM_CONFIG_LOG_LEVEL="7")
    pod.container.path(fabric.CONFIG).unlink()
    assert f"WARNING: {fabric.CONFIG} not found" in await node.comes_up(pod)


async def test_nvlink5_waits_for_its_prerequisites(node: Node) -> None:
    fault = driverfaults.FAULTS["nvlink5-prerequisites"]
    fault.inject(node.host)
    pod = node.pod(NVFM_CONFIG_FABRIC_MODE="1")
    task = asyncio.create_task(pod.run(*DRIVER))
    await pod.until(fault.shows)
    assert node.status() == "NotReady"
    fault.cure(node.host)
    await pod.until(WAITS)
    assert daemons.running(node.host, daemons.SUBNET.comm) and "Resetting the GPUs" in pod.text
    pod.stopping.set()
    assert await task == 0


async def test_vgpu_guests_get_their_licence(node: Node) -> None:
    files = {"/drivers/gridd.conf": "ServerAddress=x\n", "/drivers/ClientConfigToken/a.tok": "t"}
    env = {"DRIVER_TYPE": "vgpu", "VGPU_LICENSE_SERVER_TYPE": "NLS"}
    pod = node.pod(files={**files, "/etc/nvidia/nvidia-topologyd.conf": ""}, **env)
    async with node.driver(pod):
        assert pod.container.path("/etc/nvidia/ClientConfigToken/a.tok").read_text() == "t"
        assert daemons.running(node.host, daemons.GRID.comm) and daemons.running(node.host, daemons.TOPOLOGY.comm)
    pod = node.pod(**env)
    assert await pod.run(*DRIVER) == 1
    assert "/drivers/gridd.conf is missing" in pod.text


# --- 6.9 sidecars -----------------------------------------------------------------------------------------------------
async def test_peermem_waits_loads_and_stays(node: Node) -> None:
    fault = driverfaults.FAULTS["peermem-missing"]
    async with node.driver():
        sidecar = node.pod(files={"/drivers/nvidia-peermem.conf": "peerdirect_support=1"}, USE_HOST_MOFED="true")
        task = asyncio.create_task(sidecar.run("nvidia-driver", "reload_nvidia_peermem"))
        await sidecar.until("waiting for mellanox ofed and nvidia drivers to be installed")
        fault.inject(node.host)
        probe = node.pod()
        assert await probe.run("nvidia-driver", "probe_nvidia_peermem") == 1
        assert fault.shows in probe.text
        node.host.root.write_atomic(f"{names.VALIDATIONS_DIR}/.driver-ctr-ready", "")
        await sidecar.until("successfully loaded nvidia-peermem module")
        assert node.read("/sys/module/nvidia_peermem/parameters/peerdirect_support") == "1\n"
        assert await probe.run("nvidia-driver", "probe_nvidia_peermem") == 0
        again = node.pod(USE_HOST_MOFED="true")
        second = asyncio.create_task(again.run("nvidia-driver", "reload_nvidia_peermem"))
        await again.until("already loaded, skipping modprobe")
        assert not second.done()
        for pod in (sidecar, again):
            pod.stopping.set()
        await asyncio.gather(task, second)


async def test_peermem_without_a_driver_fails(node: Node) -> None:
    driverfaults.FAULTS["peermem-missing"].inject(node.host)
    node.host.root.write_atomic(f"{names.VALIDATIONS_DIR}/.driver-ctr-ready", "")
    sidecar = node.pod()
    assert await sidecar.run("nvidia-driver", "reload_nvidia_peermem") == 1
    assert "failed to load nvidia-peermem module" in sidecar.text


async def test_the_peermem_probe_spares_nodes_without_mofed(node: Node) -> None:
    probe = node.pod()
    assert await probe.run("nvidia-driver", "probe_nvidia_peermem") == 0


async def test_rdma_loads_peermem_where_there_is_a_mellanox_card(node: Node) -> None:
    async with node.driver(GPU_DIRECT_RDMA_ENABLED="true"):
        assert not node.host.loaded("nvidia_peermem")
    driverfaults.FAULTS["nvlink5-prerequisites"].inject(node.host)
    node.host.root.remove("/sys/class/infiniband")
    async with node.driver(GPU_DIRECT_RDMA_ENABLED="true"):
        assert node.host.loaded("nvidia_peermem")


@pytest.mark.parametrize(
    ("kind", "tag", "loads"),
    [("open", "2.26.6-ubuntu24.04", True), ("proprietary", "2.26.6-ubuntu24.04", False),
     ("proprietary", "2.17.4-ubuntu24.04", True), ("proprietary", "2.17.5", False)],
)  # fmt: skip
async def test_gds_needs_open_modules(node: Node, kind: str, tag: str, loads: bool) -> None:
    """6.4, last sentence."""
    async with node.driver(kill=True, KERNEL_MODULE_TYPE=kind):
        sidecar = node.pod("nvidia-fs", tag)
        task = asyncio.create_task(sidecar.run("nvidia-gds-driver", "install"))
        await sidecar.until("loaded nvidia_fs" if loads else "needs the open kernel modules")
        assert node.host.loaded("nvidia_fs") is loads
        sidecar.stopping.set()
        assert await task == (0 if loads else 1)


async def test_gds_and_secure_boot_do_not_go_together(node: Node) -> None:
    """6.10."""
    driverfaults.set_secure_boot(node.host, True)
    async with node.driver(node.pod(tag=PRECOMPILED)):
        sidecar = node.pod("nvidia-fs")
        assert await sidecar.run("nvidia-gds-driver", "install") == 1
        assert "could not insert 'nvidia_fs': Key was rejected by service" in sidecar.text


# --- 6.10 secure boot -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tag", "enrolled", "loads"),
    [
        (PRECOMPILED, "", True),
        (BUILT, "", False),
        ("595-5.14.0-570.el9_6.x86_64-rhel9.6", "", False),
        ("595-5.14.0-570.el9_6.x86_64-rhel9.6", install.IMAGE_SIGNER, True),
    ],
)
async def test_secure_boot(node: Node, tag: str, enrolled: str, loads: bool) -> None:
    if kernel := image.parse(tag).kernel:
        node.host.root.write_atomic("/proc/sys/kernel/osrelease", kernel + "\n")
    driverfaults.set_secure_boot(node.host, True)
    if enrolled:
        driverfaults.enroll(node.host, enrolled)
    pod = node.pod(tag=tag)
    if loads:
        await node.comes_up(pod)
    else:
        assert await pod.run(*DRIVER) == 1
        assert "Key was rejected by service" in pod.text


# --- OpenShift's driver toolkit ---------------------------------------------------------------------------------------
async def test_the_toolkit_builds_and_the_driver_loads(tmp_path_factory: pytest.TempPathFactory) -> None:
    node = Node(tmp_path_factory.mktemp("h"), os=nodes.OsSpec("rhcos", "4.19"), kernel="5.14.0-570.el9_6.x86_64")
    driverfaults.FAULTS["rhel-repositories-unreachable"].inject(node.host)  # none is needed
    driver, toolkit = node.pod(tag="580.126.20-rhcos4.19"), node.pod("ocp-v4.0-art-dev", "x")
    loading = asyncio.create_task(driver.run("ocp_dtk_entrypoint", "nv-ctr-run-with-dtk"))
    await driver.until("Waiting for the toolkit's container to start")
    building = asyncio.create_task(toolkit.run("ocp_dtk_entrypoint", "dtk-build-driver"))
    await driver.until(WAITS)
    assert node.host.driver_version == "580.126.20"
    assert "Compiling" in toolkit.text and "Compiling" not in driver.text
    for pod in (driver, toolkit):
        pod.stopping.set()
    assert await asyncio.gather(loading, building) == [0, 0]


async def test_a_toolkit_of_another_rhcos_is_told_and_not_used(node: Node) -> None:
    driverfaults.set_repository(node.host, Repository(kernels=("5.14.0-1",)), TOOLKIT)
    driver, toolkit = node.pod(), node.pod("ocp-v4.0-art-dev", "x")
    loading = asyncio.create_task(driver.run("ocp_dtk_entrypoint", "nv-ctr-run-with-dtk"))
    building = asyncio.create_task(toolkit.run("ocp_dtk_entrypoint", "dtk-build-driver"))
    await driver.until(WAITS)
    assert "the driver toolkit is broken; building here" in driver.text and "not for kernel" in toolkit.text
    for pod in (driver, toolkit):
        pod.stopping.set()
    assert await asyncio.gather(loading, building) == [0, 0]


async def test_without_a_toolkit_image_the_driver_builds_itself(node: Node) -> None:
    pod = node.pod(RHCOS_IMAGE_MISSING="true", RHCOS_VERSION="4.19.1")
    task = asyncio.create_task(pod.run("ocp_dtk_entrypoint", "nv-ctr-run-with-dtk"))
    await pod.until(WAITS)
    assert "no toolkit image for RHCOS 4.19.1" in pod.text and "Compiling" in pod.text
    pod.stopping.set()
    assert await task == 0


async def test_an_unknown_verb_of_the_toolkit(node: Node) -> None:
    pod = node.pod()
    assert await pod.run("ocp_dtk_entrypoint", "fly") == 1
    assert "Usage: ocp_dtk_entrypoint" in pod.text


# --- nvidia-smi -------------------------------------------------------------------------------------------------------
async def test_nvidia_smi(node: Node) -> None:
    pod = node.pod()
    query = ("nvidia-smi", "--query-gpu=index,driver_version", "--format=csv,noheader")
    assert await pod.run(*query) == 9
    assert "couldn't communicate with the NVIDIA driver" in pod.text
    node.host.load_module("nvidia", version="580.1")
    pod.output.clear()
    assert (await pod.run(*query), pod.text) == (0, "0, 580.1\n1, 580.1\n")
    node.host.machine.lose(1)
    pod.output.clear()
    assert await pod.run(*query) == 15
    assert "GPU1: " in pod.text and "GPU is lost" in pod.text
