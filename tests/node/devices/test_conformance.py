"""What every source of GPUs does, simulated or NVML (contracts/device-plugin-gfd.md 2, 4.2, 5)."""

import asyncio
import uuid

import pytest

from groundplane.node.devices import models
from groundplane.node.devices.model import NO_INSTANCE, Fabric, Placed
from groundplane.node.devices.simfile import FabricEntry, Links, Topology
from groundplane.node.devices.simulated import GpuEntry, Instance, Mig
from groundplane.node.devices.source import (
    DeviceError,
    DriverNotLoaded,
    Event,
    EventKind,
    Level,
    LibraryNotFound,
    Lost,
    NotFound,
    Pair,
)

ALL = EventKind.XID | EventKind.DOUBLE_BIT_ECC | EventKind.SINGLE_BIT_ECC
H100 = "H100-SXM5-80GB"
MIG_MODELS = sorted(name for name, model in models.MODELS.items() if model.mig)


def on(model: str, *instances: str | Instance) -> GpuEntry:
    return GpuEntry(model, mig=Mig(True, instances))


# --- opening ----------------------------------------------------------------------------------------------------------


def test_opening_is_tried_again_until_it_works(make) -> None:
    world = make([H100])
    world.library = world.loaded = False
    source = world.source()
    if source.has_library():
        pytest.skip("this machine has the driver's library")
    with pytest.raises(LibraryNotFound, match="ERROR_LIBRARY_NOT_FOUND") as raised:
        source.open()
    assert raised.value.code == 12
    world.library = True
    assert source.has_library()
    world.set_driver("580.126.20")
    with pytest.raises(DriverNotLoaded, match="ERROR_DRIVER_NOT_LOADED") as not_loaded:
        source.open()
    assert not_loaded.value.code == 9
    world.loaded = True
    world.set_driver("590.48.01")
    source.open()
    source.open()
    assert source.inventory().driver_version == "590.48.01"
    source.close()
    source.close()
    with source:
        assert len(source.inventory().gpus) == 1


def test_what_is_closed_answers_nothing(make) -> None:
    source = make([H100]).source()
    for question in (
        source.inventory,
        lambda: source.topology([]),
        lambda: source.placement("MIG-1"),
        lambda: source.check("GPU-1"),
        lambda: source.watch([], ALL),
    ):
        with pytest.raises(DeviceError, match="ERROR_UNINITIALIZED") as raised:
            question()
        assert raised.value.code == 1


def test_a_failing_library_keeps_its_errors_name(make) -> None:
    world = make([H100])
    source = world.opened()
    world.fail_library("ERROR_OPERATING_SYSTEM")
    with pytest.raises(DeviceError, match="ERROR_OPERATING_SYSTEM") as raised:
        source.inventory()
    assert raised.value.code == 17
    with pytest.raises(DeviceError, match="ERROR_OPERATING_SYSTEM"):
        source.check("GPU-1")
    source.close()
    with pytest.raises(DeviceError, match="ERROR_OPERATING_SYSTEM"):
        source.open()
    world.fail_library(None)
    source.open()
    assert len(source.inventory().gpus) == 1


# --- 2: enumeration and naming ----------------------------------------------------------------------------------------


def test_no_gpus(make) -> None:
    assert make([]).opened().inventory().gpus == ()


@pytest.mark.parametrize("first", range(0, len(models.MODELS), 16))
def test_every_model(make, first: int) -> None:
    names = list(models.MODELS)[first : first + 16]
    world = make(names)
    inventory = world.opened().inventory()
    assert inventory == world.read().inventory
    shown = [name for name in names if models.MODELS[name].product not in models.DISPLAY_ONLY]
    assert [(gpu.name, gpu.memory_bytes >> 20, gpu.compute, gpu.mig, len(gpu.profiles)) for gpu in inventory.gpus] == [
        (each.product, each.memory_mib, each.compute, False if each.mig else None, len(each.kinds))
        for each in (models.MODELS[name] for name in shown)
    ]


def test_driver_and_cuda_version(make) -> None:
    world = make([], cuda_version="12.9")
    assert (world.opened().inventory().driver_version, world.opened().inventory().cuda_version) == ("580.126.20", 12090)


@pytest.mark.parametrize("display", ["DGX Display", "NVIDIA DGX Display"])
def test_2_3_display_gpus_are_skipped_but_have_an_index(make, display: str) -> None:
    gpus = make([H100, GpuEntry("DGX-DISPLAY", name=display), H100]).opened().inventory().gpus
    assert [(gpu.index, gpu.minor) for gpu in gpus] == [(0, 0), (2, 2)]


def test_2_4_a_minor_is_not_an_index(make) -> None:
    gpus = make([GpuEntry(H100, minor=3), GpuEntry(H100, minor=0)]).opened().inventory().gpus
    assert [(gpu.index, gpu.device_node) for gpu in gpus] == [(0, "/dev/nvidia3"), (1, "/dev/nvidia0")]


@pytest.mark.parametrize(
    ("address", "nvml", "sysfs"),
    [
        ("0000:10:00.0", "00000000:10:00.0", "0000:10:00.0"),
        ("0000:ab:00.0", "00000000:AB:00.0", "0000:ab:00.0"),
        ("00010000:0b:00.0", "00010000:0B:00.0", "00010000:0b:00.0"),
        ("000a:0b:1f.7", "0000000A:0B:1F.7", "000a:0b:1f.7"),
    ],
)
def test_2_9_addresses(make, address: str, nvml: str, sysfs: str) -> None:
    (gpu,) = make([GpuEntry(H100, bus_id=address)]).opened().inventory().gpus
    assert (gpu.bus_id, gpu.sysfs) == (nvml, f"/sys/bus/pci/devices/{sysfs}")


def test_2_10_memory_that_cannot_be_asked_for_is_0(make) -> None:
    (gpu,) = make(["GB10"]).opened().inventory().gpus
    assert (gpu.memory_bytes, gpu.compute) == (0, (12, 1))


@pytest.mark.parametrize("model", MIG_MODELS)
def test_2_11_every_profile_alone(make, model: str) -> None:
    offered = models.MODELS[model].kinds
    world = make([on(model, str(profile)) for profile in offered])
    gpus = world.opened().inventory().gpus
    assert gpus == world.read().inventory.gpus
    assert [gpu.mig_devices[0].profile for gpu in gpus] == list(offered)
    assert all(gpu.profiles == tuple(offered) for gpu in gpus)


LAYOUTS = [
    (H100, ["1g.10gb"] * 7, ["1g.10gb"] * 7),
    (H100, ["1g.10gb", "2g.20gb", "4g.40gb"], ["4g.40gb", "2g.20gb", "1g.10gb"]),
    (H100, ["1c.3g.40gb", "4g.40gb"], ["4g.40gb", "1c.3g.40gb"]),
    (
        "A100-SXM4-40GB",
        [Instance("3g.20gb", 4, ("1c.3g.20gb", "2c.3g.20gb")), "1g.5gb+me", "1g.10gb"],
        ["1c.3g.20gb", "2c.3g.20gb", "1g.10gb", "1g.5gb+me"],
    ),
    ("B200", ["1g.23gb+me", "1g.45gb", "1c.4g.90gb"], ["1c.4g.90gb", "1g.45gb", "1g.23gb+me"]),
    (
        "RTX-PRO-6000",
        ["1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me"],
        ["2g.48gb-me", "1g.24gb+me.all", "1g.24gb-me"],
    ),
    ("RTX-PRO-6000", ["1g.24gb+gfx", "1g.24gb+me", "2g.48gb+gfx"], ["2g.48gb+gfx", "1g.24gb+me", "1g.24gb+gfx"]),
    ("A30", ["1g.6gb", "2g.12gb", "1g.6gb"], ["2g.12gb", "1g.6gb", "1g.6gb"]),
]


@pytest.mark.parametrize(("model", "instances", "found"), LAYOUTS)
def test_2_11_mig_devices(make, model: str, instances: list[str | Instance], found: list[str]) -> None:
    world = make(["T4", on(model, *instances)])
    gpu = world.opened().inventory().gpus[1]
    assert gpu == world.read().inventory.gpus[1]
    assert gpu.mig_enabled
    assert sorted(str(device.profile) for device in gpu.mig_devices) == sorted(found)
    assert [device.slot for device in gpu.mig_devices] == list(range(len(found)))
    assert len({(device.gi, device.ci) for device in gpu.mig_devices}) == len(found)


def test_attributes_of_mig_devices(make) -> None:
    (gpu,) = make([on("A100-SXM4-40GB", Instance("3g.20gb", 4, ("1c.3g.20gb",)))]).opened().inventory().gpus
    (device,) = gpu.mig_devices
    assert (device.gi, device.ci, device.memory_mib, device.multiprocessors) == (2, 0, 19968, 14)
    assert (device.gi_slices, device.ci_slices) == (3, 1)
    assert (device.copy_engines, device.decoders, device.encoders, device.jpeg_engines) == (3, 2, 0, 0)


def test_mig_on_without_instances_and_mig_off(make) -> None:
    bare, off, without = make([on(H100), H100, "T4"]).opened().inventory().gpus
    assert (bare.mig, bare.mig_devices, bare.mig_enabled) == (True, (), True)
    assert (off.mig, off.mig_enabled, len(off.profiles)) == (False, False, 7)
    assert (without.mig, without.profiles) == (None, ())


def test_mig_is_reconfigured(make) -> None:
    world = make([H100])
    source = world.opened()
    world.set_mig(0, True, ["3g.40gb", "3g.40gb"])
    assert [str(device.profile) for device in source.inventory().gpus[0].mig_devices] == ["3g.40gb"] * 2
    world.set_mig(0, False)
    assert source.inventory().gpus[0].mig is False


CLUSTER = "4B0C8C8E-6D7D-4F0A-9B4E-0D0C5B1F2A3B"


@pytest.mark.parametrize(
    ("entry", "fabric"),
    [
        (None, None),
        (FabricEntry(CLUSTER, 7), Fabric(CLUSTER.lower(), 7, True, True)),
        (FabricEntry(CLUSTER, 7, "inProgress"), Fabric(CLUSTER.lower(), 7, False, True)),
        (FabricEntry(CLUSTER, 0, "notStarted"), Fabric(CLUSTER.lower(), 0, False, True)),
        (FabricEntry(CLUSTER, 1, status="ERROR_UNKNOWN"), Fabric(CLUSTER.lower(), 1, True, False)),
        (FabricEntry(), Fabric(str(uuid.UUID(int=0)), 0, True, True)),
    ],
)
def test_fabric(make, entry: FabricEntry | None, fabric: Fabric | None) -> None:
    assert make([GpuEntry("GB200", fabric=entry)]).opened().inventory().gpus[0].fabric == fabric


# --- 4.2: topology ----------------------------------------------------------------------------------------------------


def test_4_2_levels_and_links(make) -> None:
    world = make(
        ["V100"] * 6,
        topology=Topology(
            same_board=((0, 1),),
            single_switch=((0, 1, 2),),
            multiple_switches=((0, 1, 2, 3),),
            host_bridge=((0, 1, 2, 3, 4),),
            same_node=((0, 4, 5), (1, 4, 5)),
        ),
        nvlinks=(Links((0, 1), 2), Links((5, 2), 1)),
    )
    source = world.opened()
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    pairs = source.topology(uuids)
    assert len(pairs) == 15

    def pair(one: int, other: int) -> Pair:
        return pairs[frozenset((uuids[one], uuids[other]))]

    assert [pair(0, at) for at in range(1, 6)] == [
        Pair(Level.SAME_BOARD, 2),
        Pair(Level.SINGLE_SWITCH, 0),
        Pair(Level.MULTIPLE_SWITCHES, 0),
        Pair(Level.HOST_BRIDGE, 0),
        Pair(Level.SAME_NODE, 0),
    ]
    assert pair(2, 5) == Pair(Level.CROSS_CPU, 1)
    assert source.topology(uuids[:1]) == {}
    assert source.topology([uuids[5], uuids[2]]) == {frozenset((uuids[5], uuids[2])): Pair(Level.CROSS_CPU, 1)}
    with pytest.raises(NotFound, match="ERROR_NOT_FOUND"):
        source.topology([uuids[0], "GPU-none"])


# --- placement, life --------------------------------------------------------------------------------------------------


def test_5_placement(make) -> None:
    world = make([H100, on(H100, "1g.10gb", Instance("3g.40gb", None, ("1c.3g.40gb", "2c.3g.40gb")))])
    source = world.opened()
    gpu = source.inventory().gpus[1]
    assert [source.placement(device.uuid) for device in gpu.mig_devices] == [
        Placed(gpu.uuid, device.gi, device.ci) for device in gpu.mig_devices
    ]
    assert source.placement(f"MIG-{gpu.uuid}/3/1") == Placed(gpu.uuid, 3, 1)
    with pytest.raises(NotFound, match="MIG-00000000-0000-0000-0000-000000000000: ERROR_NOT_FOUND"):
        source.placement("MIG-00000000-0000-0000-0000-000000000000")
    world.lose(1)
    with pytest.raises(Lost, match="ERROR_GPU_IS_LOST"):
        source.placement(gpu.mig_devices[0].uuid)


def test_a_gpu_is_lost_and_comes_back(make) -> None:
    world = make([H100] * 2)
    source = world.opened()
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    source.check(uuids[1])
    world.lose(1)
    source.check(uuids[0])
    with pytest.raises(Lost, match="ERROR_GPU_IS_LOST") as raised:
        source.check(uuids[1])
    assert raised.value.code == 15
    with pytest.raises(Lost, match="GPU 1.*ERROR_GPU_IS_LOST"):  # noqa: RUF043
        source.inventory()
    world.restore(1)
    source.check(uuids[1])
    assert len(source.inventory().gpus) == 2
    world.remove(0)
    assert [gpu.uuid for gpu in source.inventory().gpus] == [uuids[1]]
    with pytest.raises(NotFound):
        source.check(uuids[0])


# --- 5: events --------------------------------------------------------------------------------------------------------


async def test_5_events(make, soon) -> None:
    world = make([H100, on(H100, "3g.40gb"), H100])
    source = world.opened()
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    world.xid(0, 13)
    watch = source.watch(uuids[:2], ALL)
    assert (watch.unsupported, dict(watch.failed)) == (frozenset(), {})
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0.05)
    world.xid(2, 62)
    world.xid(0, 79)
    assert await soon(waiting) == Event(EventKind.XID, uuids[0], 79, NO_INSTANCE, NO_INSTANCE)
    world.xid(1, 94, gi=2, ci=0)
    world.ecc(0)
    world.ecc(1, double_bit=False)
    world.unreadable(48)
    assert [await soon(watch.next()) for _ in range(4)] == [
        Event(EventKind.XID, uuids[1], 94, 2, 0),
        Event(EventKind.DOUBLE_BIT_ECC, uuids[0]),
        Event(EventKind.SINGLE_BIT_ECC, uuids[1]),
        Event(EventKind.XID, "", 48),
    ]
    await watch.close()
    with pytest.raises(DeviceError, match="ERROR_UNINITIALIZED"):
        await soon(watch.next())


async def test_5_only_the_kinds_that_were_asked_for(make, soon) -> None:
    world = make([H100])
    source = world.opened()
    watch = source.watch([gpu.uuid for gpu in source.inventory().gpus], EventKind.XID)
    world.ecc(0)
    world.xid(0, 31)
    assert (await soon(watch.next())).xid == 31
    await watch.close()


async def test_5_a_failed_wait_is_told_and_the_next_one_works(make, soon) -> None:
    world = make([H100])
    source = world.opened()
    watch = source.watch([gpu.uuid for gpu in source.inventory().gpus], ALL)
    world.wait_error("ERROR_UNKNOWN")
    with pytest.raises(DeviceError, match="ERROR_UNKNOWN") as raised:
        await soon(watch.next())
    assert raised.value.code == 999
    world.xid(0, 31)
    assert (await soon(watch.next())).xid == 31
    await watch.close()


async def test_5_gpus_that_are_too_old_lost_or_unknown(make, soon) -> None:
    world = make([H100, GpuEntry("K40", events=False), H100])
    source = world.opened()
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    world.lose(2, xid=None)
    watch = source.watch([*uuids, "GPU-none"], ALL)
    assert watch.unsupported == {uuids[1]}
    assert {each: type(error) for each, error in watch.failed.items()} == {uuids[2]: Lost, "GPU-none": NotFound}
    world.xid(2, 79)
    world.xid(0, 31)
    assert (await soon(watch.next())).xid == 31
    await watch.close()


async def test_cancelling_a_wait_loses_no_event(make, soon) -> None:
    world = make([H100])
    source = world.opened()
    watch = source.watch([gpu.uuid for gpu in source.inventory().gpus], ALL)
    for number in range(1, 12):
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        world.xid(0, number)
        await asyncio.sleep(0.002 * (number % 4))
        waiting.cancel()
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        event = await soon(watch.next()) if isinstance(outcome, BaseException) else outcome
        assert event.xid == number
    await watch.close()


async def test_two_watches_hear_the_same(make, soon) -> None:
    world = make([H100])
    source, other = world.opened(), world.opened()
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    watches = [source.watch(uuids, ALL), other.watch(uuids, ALL)]
    world.xid(0, 79)
    assert [(await soon(watch.next())).xid for watch in watches] == [79, 79]
    await watches[0].close()
    source.close()
    world.xid(0, 31)
    assert (await soon(watches[1].next())).xid == 31
    await watches[1].close()


async def test_a_waiting_reader_is_let_go_by_the_end_of_the_watch(make, soon) -> None:
    source = make([H100]).opened()
    watch = source.watch([gpu.uuid for gpu in source.inventory().gpus], ALL)
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0.05)
    await watch.close()
    with pytest.raises(DeviceError, match="ERROR_UNINITIALIZED"):
        await soon(waiting)
