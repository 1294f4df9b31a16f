"""The NVML source alone: the library and how it is found, and answers that only a library gives. With the mock library;
the last tests with a real one, where there is one."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from groundplane.node.devices import nvml
from groundplane.node.devices.simfile import FabricEntry, Links
from groundplane.node.devices.simulated import GpuEntry, Instance, Mig
from groundplane.node.devices.source import DeviceError, Event, EventKind, Level, LibraryNotFound, Lost, Pair
from groundplane.node.hostroot import HostRoot
from testing import mocknvml

ALL = EventKind.XID | EventKind.DOUBLE_BIT_ECC | EventKind.SINGLE_BIT_ECC
H100 = "H100-SXM5-80GB"


# --- 2.2: finding the library -----------------------------------------------------------------------------------------


def library_in(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / nvml.SONAME
    file.touch()
    return file


def test_2_2_folders_of_the_driver_root_in_order(tmp_path: Path) -> None:
    container = HostRoot(tmp_path)
    assert nvml.find_library(container.path, "/driver-root") is None
    for folder in reversed(nvml.LIBRARY_FOLDERS):
        file = library_in(tmp_path / "driver-root" / folder[1:])
        assert nvml.find_library(container.path, "/driver-root") == file
    assert nvml.LIBRARY_FOLDERS == (
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/lib64",
        "/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
    )


@pytest.mark.parametrize("driver_root", ["", "/"])
def test_2_2_no_driver_root_leaves_it_to_the_loader(tmp_path: Path, driver_root: str) -> None:
    file = library_in(tmp_path / "usr/lib64")
    container = HostRoot(tmp_path)
    assert nvml.find_library(container.path, driver_root) is None
    assert nvml.find_library(container.path, driver_root, also=nvml.LIBRARY_FOLDERS) == file


def test_2_2_links_in_a_driver_root_are_meant_in_it(tmp_path: Path) -> None:
    root = tmp_path / "driver-root"
    library_in(root / "opt/driver")
    (root / "usr/lib64").mkdir(parents=True)
    (root / "usr/lib64" / nvml.SONAME).symlink_to(f"/opt/driver/{nvml.SONAME}")
    assert nvml.find_library(HostRoot(tmp_path).path, "/driver-root") == root / "opt/driver" / nvml.SONAME
    (root / "opt/driver" / nvml.SONAME).unlink()
    assert nvml.find_library(HostRoot(tmp_path).path, "/driver-root") is None
    (root / "opt/driver" / nvml.SONAME).symlink_to(f"/usr/lib64/{nvml.SONAME}")
    assert nvml.find_library(HostRoot(tmp_path).path, "/driver-root") is None


def loaded_files() -> set[str]:
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if nvml.SONAME in line}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc/self/maps")
def test_the_file_that_was_found_is_the_one_that_is_used(mocked, built_library: Path, tmp_path: Path) -> None:
    mocked([H100]).show()
    found: list[Path] = []
    source = nvml.NvmlSource(lambda: found[-1])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        found.append(Path(shutil.copy(built_library, tmp_path / name / nvml.SONAME)))
        with source, nvml.NvmlSource(lambda: None) as other:
            assert loaded_files() == {str(found[-1])}
            assert len(source.inventory().gpus) == len(other.inventory().gpus) == 1
        assert loaded_files() == set()


def test_a_file_that_is_no_library(mocked, built_library: Path, tmp_path: Path) -> None:
    mocked([H100]).show()
    file = tmp_path / nvml.SONAME
    file.write_text("no library\n" * 1000)
    source = nvml.NvmlSource(lambda: file)
    assert source.has_library()
    with pytest.raises(LibraryNotFound, match=rf"loading {file}: ERROR_LIBRARY_NOT_FOUND \(.*invalid ELF header"):
        source.open()
    file.unlink()
    shutil.copy(built_library, file)
    with source:
        assert len(source.inventory().gpus) == 1


# --- 2: what an answer means ------------------------------------------------------------------------------------------


def test_2_6_empty_slots_are_no_error(mocked) -> None:
    world = mocked([GpuEntry(H100, mig=Mig(True, ("1g.10gb", "1g.10gb", "2g.20gb")))])
    source = world.opened()
    for slots in ((0, 1, 2), (0, 3, 6), (4, 5, 6)):
        world.show(slots=slots)
        assert [device.slot for device in source.inventory().gpus[0].mig_devices] == list(slots)
    world.show(gpu_faults={0: {"DeviceGetMigDeviceHandleByIndex": 2}})
    assert source.inventory().gpus[0].mig_devices == ()
    world.show(gpu_faults={0: {"DeviceGetMigDeviceHandleByIndex": 4}})
    with pytest.raises(DeviceError, match="GPU 0, MIG slot 0: ERROR_NO_PERMISSION"):
        source.inventory()


def test_2_10_failing_memory_is_ignored(mocked) -> None:
    world = mocked([H100, H100])
    source = world.opened()
    world.show(gpu_faults={1: {"DeviceGetMemoryInfo": 999, "DeviceGetMigMode": 3}})
    assert [(gpu.memory_bytes >> 20, gpu.mig) for gpu in source.inventory().gpus] == [(81559, False), (0, None)]


def test_2_10_failing_memory_is_ignored_where_a_gpu_could_be_cut(mocked) -> None:
    world = mocked([H100, H100])
    source = world.opened()
    world.show(gpu_faults={1: {"DeviceGetMemoryInfo": 999}})
    known, unknown = source.inventory().gpus
    assert (unknown.memory_bytes, unknown.mig, unknown.profiles) == (0, False, ())
    assert known.profiles, "what a profile is called follows from the memory"


def test_a_gpu_without_device_node_or_bus_as_under_wsl_and_on_a_tegra(mocked) -> None:
    world = mocked(["L4", "L4"])
    source = world.opened()
    world.show(gpu_faults={0: {"DeviceGetMinorNumber": 3, "DeviceGetPciInfo": 3}})
    assert [(gpu.minor, gpu.bus_id) for gpu in source.inventory().gpus] == [(None, ""), (1, "00000000:18:00.0")]


@pytest.mark.parametrize(
    ("function", "code", "name"),
    [
        ("DeviceGetCudaComputeCapability", 999, "ERROR_UNKNOWN"),
        ("DeviceGetMinorNumber", 999, "ERROR_UNKNOWN"),
        ("DeviceGetUUID", 15, "ERROR_GPU_IS_LOST"),
        ("DeviceGetName", 999, "ERROR_UNKNOWN"),
        ("DeviceGetPciInfo", 999, "ERROR_UNKNOWN"),
        ("DeviceGetMigMode", 999, "ERROR_UNKNOWN"),
        ("DeviceGetHandleByIndex", 4, "ERROR_NO_PERMISSION"),
        ("DeviceGetGpuInstanceProfileInfo", 999, "ERROR_UNKNOWN"),
        ("DeviceGetGpuFabricInfoV", 999, "ERROR_UNKNOWN"),
    ],
)
def test_2_10_what_ends_an_inventory(mocked, function: str, code: int, name: str) -> None:
    world = mocked([H100, H100])
    source = world.opened()
    world.show(gpu_faults={1: {function: code}})
    with pytest.raises(DeviceError, match=f"GPU 1: {name}") as raised:
        source.inventory()
    assert raised.value.code == code


@pytest.mark.parametrize("function", ["SystemGetDriverVersion", "SystemGetCudaDriverVersion", "DeviceGetCount"])
def test_what_concerns_all_ends_an_inventory(mocked, function: str) -> None:
    world = mocked([H100])
    source = world.opened()
    world.show(faults={function: 999})
    with pytest.raises(DeviceError, match=r"asking for|counting"):
        source.inventory()


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("DeviceGetGpuInstanceById", 4),
        ("GpuInstanceGetInfo", 999),
        ("GpuInstanceGetComputeInstanceById", 6),
        ("ComputeInstanceGetInfo", 999),
        ("DeviceGetAttributes", 3),
        ("DeviceGetMaxMigDeviceCount", 999),
    ],
)
def test_a_mig_device_that_cannot_be_read_ends_an_inventory(mocked, function: str, code: int) -> None:
    world = mocked([GpuEntry(H100, mig=Mig(True, (Instance("3g.40gb"),)))])
    source = world.opened()
    world.show(gpu_faults={0: {function: code}})
    with pytest.raises(DeviceError, match="GPU 0") as raised:
        source.inventory()
    assert raised.value.code == code


def test_2_11_a_gpu_without_profiles_cannot_name_its_devices(mocked) -> None:
    world = mocked([GpuEntry(H100, mig=Mig(True, ("3g.40gb",)))])
    source = world.opened()
    world.show(gpu_faults={0: {"DeviceGetGpuInstanceProfileInfo": 3}})
    with pytest.raises(DeviceError, match="GPU 0, MIG slot 0: GPU instance profile 9 is none that the GPU offers"):
        source.inventory()
    world.show(gpu_faults={0: {"GpuInstanceGetComputeInstanceProfileInfo": 3}})
    with pytest.raises(DeviceError, match="compute instance profile 42 is none that its GPU instance offers"):
        source.inventory()
    world.show(gpu_faults={0: {"DeviceGetMemoryInfo": 3}})
    with pytest.raises(DeviceError, match="a MIG profile has no name: memory of"):
        source.inventory()


@pytest.mark.parametrize("code", [13, 25, 3])
def test_fabric_of_a_driver_without_the_versioned_question(mocked, code: int) -> None:
    world = mocked([GpuEntry("GB200", fabric=FabricEntry("4b0c8c8e-6d7d-4f0a-9b4e-0d0c5b1f2a3b", 5))])
    source = world.opened()
    world.show(gpu_faults={0: {"DeviceGetGpuFabricInfoV": code}})
    fabric = source.inventory().gpus[0].fabric
    assert fabric is not None
    assert (fabric.clique, fabric.completed, fabric.succeeded) == (5, True, True)
    world.show(gpu_faults={0: {"DeviceGetGpuFabricInfoV": code, "DeviceGetGpuFabricInfo": 13}})
    assert source.inventory().gpus[0].fabric is None


def test_4_2_links_to_switches_and_links_that_are_down_do_not_count(mocked) -> None:
    world = mocked(["V100"] * 2, nvlinks=(Links((0, 1), 3),))
    source = world.opened()
    world.show(switches=6)
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    assert source.topology(uuids) == {frozenset(uuids): Pair(Level.CROSS_CPU, 3)}
    world.show(gpu_faults={0: {"DeviceGetTopologyCommonAncestor": 999}})
    with pytest.raises(DeviceError, match=f"GPUs {uuids[0]} and {uuids[1]}: ERROR_UNKNOWN"):
        source.topology(uuids)
    world.show(gpu_faults={0: {"DeviceGetNvLinkState": 15}})
    with pytest.raises(Lost):
        source.topology(uuids)


# --- 5: events --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "code", "unsupported"),
    [
        ("DeviceRegisterEvents", 3, True),
        ("DeviceRegisterEvents", 999, False),
        ("DeviceGetSupportedEventTypes", 3, False),
        ("DeviceGetSupportedEventTypes", 999, False),
        ("DeviceGetHandleByUUID", 4, False),
    ],
)
async def test_5_registering(mocked, soon: Callable, function: str, code: int, unsupported: bool) -> None:
    world = mocked([H100, H100])
    source = world.opened()
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    world.show(gpu_faults={1: {function: code}})
    watch = source.watch(uuids, ALL)
    assert watch.unsupported == ({uuids[1]} if unsupported else set())
    assert {each: error.code for each, error in watch.failed.items()} == ({} if unsupported else {uuids[1]: code})
    world.xid(0, 31)
    assert (await soon(watch.next())).uuid == uuids[0]
    await watch.close()


async def test_5_a_wait_that_keeps_failing_is_told_each_time(mocked, soon: Callable) -> None:
    world = mocked([H100])
    source = world.opened()
    watch = source.watch([gpu.uuid for gpu in source.inventory().gpus], ALL)
    world.show(faults={"EventSetWait": 15})
    for _ in range(3):
        with pytest.raises(Lost, match="waiting for events: ERROR_GPU_IS_LOST"):
            await soon(watch.next())
    await watch.close()


async def test_5_an_event_whose_gpu_does_not_answer(mocked, soon: Callable) -> None:
    world = mocked([H100])
    source = world.opened()
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    watch = source.watch(uuids, ALL)
    world.show(faults={"DeviceGetUUID": 15})
    world.xid(0, 79)
    assert await soon(watch.next()) == Event(EventKind.XID, "", 79)
    await watch.close()


async def test_an_event_set_that_cannot_be_made_leaves_nothing_behind(mocked) -> None:
    world = mocked([H100])
    source = world.opened()
    users = nvml._library._users
    world.show(faults={"EventSetCreate": 999})
    with pytest.raises(DeviceError, match="making an event set: ERROR_UNKNOWN"):
        source.watch([gpu.uuid for gpu in source.inventory().gpus], ALL)
    assert nvml._library._users == users


def test_a_watch_whose_loop_is_gone_ends(mocked) -> None:
    world = mocked([H100])
    source = world.opened()

    async def forget() -> None:
        source.watch([gpu.uuid for gpu in source.inventory().gpus], ALL)

    asyncio.run(forget())
    source.close()
    assert nvml._library._users == 1
    world.xid(0, 31)
    deadline = time.monotonic() + 20
    while nvml._library._users and time.monotonic() < deadline:
        time.sleep(0.005)
    assert nvml._library._users == 0


async def test_a_watch_outlives_its_source_and_ends_by_itself(mocked, soon: Callable) -> None:
    world = mocked([H100])
    source = world.opened()
    watch = source.watch([gpu.uuid for gpu in source.inventory().gpus], ALL)
    source.close()
    world.xid(0, 31)
    assert (await soon(watch.next())).xid == 31
    await watch.close()

    async def over() -> None:
        while nvml._library._users:
            await asyncio.sleep(0.005)

    await soon(over())


# --- this machine's own library ---------------------------------------------------------------------------------------

_REAL = """
import asyncio
from groundplane.node.devices.model import Placed
from groundplane.node.devices.nvml import NvmlSource
from groundplane.node.devices.source import DeviceError, EventKind
import itertools
source = NvmlSource()
if not source.has_library():
    raise SystemExit("skip: there is no libnvidia-ml.so.1 on this machine")
try:
    source.open()
except DeviceError as error:
    raise SystemExit(f"skip: {error}")
inventory = source.inventory()
print(inventory)
assert inventory.driver_version and inventory.cuda_version >= 9000
for gpu in inventory.gpus:
    source.check(gpu.uuid)
    for device in gpu.mig_devices:
        assert source.placement(device.uuid) == Placed(gpu.uuid, device.gi, device.ci)
uuids = [gpu.uuid for gpu in inventory.gpus]
assert len(source.topology(uuids)) == len(list(itertools.combinations(uuids, 2)))

async def listen():
    watch = source.watch(uuids, EventKind.XID | EventKind.DOUBLE_BIT_ECC | EventKind.SINGLE_BIT_ECC)
    assert not watch.failed, watch.failed
    try:
        print(await asyncio.wait_for(watch.next(), 1))
    except asyncio.TimeoutError:
        print("no event within a second")
    await watch.close()

asyncio.run(listen())
source.close()
source.open()
assert source.inventory() == inventory
source.close()
"""


def test_the_real_library_where_there_is_one() -> None:
    environment = {name: value for name, value in os.environ.items() if name != mocknvml.VARIABLE}
    done = subprocess.run([sys.executable, "-c", _REAL], capture_output=True, text=True, timeout=120, env=environment)
    if "skip: " in done.stderr:
        pytest.skip(done.stderr.strip().partition("skip: ")[2])
    assert done.returncode == 0, done.stderr
