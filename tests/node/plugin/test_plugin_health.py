"""Health: which events make which devices unhealthy, and recovery (contracts/device-plugin-gfd.md 5)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.fakeprocess import FakeProcess, until

from groundplane.node.devices.model import NO_INSTANCE, Placed
from groundplane.node.devices.simulated import GpuEntry, Machine, Mig, SimulatedSource, describe
from groundplane.node.devices.source import DeviceError, Event, EventKind
from groundplane.node.options import OptionError
from groundplane.node.plugin import health
from groundplane.node.plugin.health import Board, Monitor, Watched, XidRules

DEFAULTS = (13, 31, 43, 45, 68, 109)


@pytest.mark.parametrize(
    ("disable", "enable", "ignored", "counted"),
    [
        ("", "", DEFAULTS, (1, 48, 79, 119)),
        ("48", "", (*DEFAULTS, 48), (79,)),
        (" 48 , 79 ", "", (*DEFAULTS, 48, 79), (119,)),
        ("-68,abc,,1.5,0x10", "", DEFAULTS, (0, 1, 10, 16)),
        ("xids", "", (*DEFAULTS, 48, 79), ()),
        ("ALL", "", (*DEFAULTS, 48, 79), ()),
        ("48,Xids", "", (*DEFAULTS, 48, 79), ()),
        ("", "13", (31, 43), (13, 79)),
        ("13,48", "48", (13, 31), (48,)),
        ("", "all", (), (*DEFAULTS, 79)),
        ("79", "all", (), (*DEFAULTS, 79)),
        ("all", "79", (*DEFAULTS, 48), (79,)),
        ("all", "13", (31, 79), (13,)),
        ("all", "all", (), (*DEFAULTS, 79)),
        ("all", "xids", (), (*DEFAULTS, 79)),
    ],
)
def test_5_ignored_xids(disable: str, enable: str, ignored: tuple[int, ...], counted: tuple[int, ...]) -> None:
    rules = XidRules.parse(disable, enable)
    assert [xid for xid in ignored if not rules.ignores(xid)] == []
    assert [xid for xid in counted if rules.ignores(xid)] == []


@given(disable=st.text(), enable=st.text(), xid=st.integers(0, 200))
def test_5_any_text_can_be_read_and_what_is_enabled_wins(disable: str, enable: str, xid: int) -> None:
    XidRules.parse(disable, enable)
    assert not XidRules.parse(disable, f"{enable},{xid}").ignores(xid)
    assert XidRules.parse(f"{disable}, {xid} ", "").ignores(xid)


@pytest.mark.parametrize(
    ("disable", "enable", "off"),
    [("", "", False), ("all", "", True), ("xids", "abc", True), ("all", "79", False), ("all", "all", False)],
)
def test_5_checks_are_off_only_if_no_xid_counts(disable: str, enable: str, off: bool) -> None:
    assert XidRules.parse(disable, enable).off is off


DEVICES = (
    Watched("GPU-a", "GPU-a"),
    Watched("MIG-b11", "GPU-b", 1, 0),
    Watched("MIG-b20", "GPU-b", 2, 0),
    Watched("MIG-b21", "GPU-b", 2, 1),
)


@pytest.mark.parametrize(
    ("event", "devices"),
    [
        (Event(EventKind.XID, "GPU-a", 79), ["GPU-a"]),
        (Event(EventKind.XID, "GPU-a", 79, 1, 0), ["GPU-a"]),
        (Event(EventKind.XID, "GPU-b", 79), ["MIG-b11", "MIG-b20", "MIG-b21"]),
        (Event(EventKind.XID, "GPU-b", 79, 2, 1), ["MIG-b21"]),
        (Event(EventKind.XID, "GPU-b", 79, 7, 0), []),
        (Event(EventKind.XID, "GPU-b", 79, 2, NO_INSTANCE), ["MIG-b11", "MIG-b20", "MIG-b21"]),
        (Event(EventKind.XID, "GPU-c", 79), []),
        (Event(EventKind.XID, "", 79), ["GPU-a", "MIG-b11", "MIG-b20", "MIG-b21"]),
    ],
)
def test_5_whom_an_event_hits(event: Event, devices: list[str]) -> None:
    assert health.hit(event, DEVICES) == devices


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("10m", 600.0), ("1m30s", 90.0), ("infinite", None), ("500ms", 0.5)]
)
def test_recovery_period(text: str, seconds: float | None) -> None:
    assert health.recovery_period({health.RECOVERY: text} if text else {}) == seconds


@pytest.mark.parametrize("text", ["5", "soon", "0s", "-1m"])
def test_recovery_period_that_cannot_be_read(text: str) -> None:
    with pytest.raises(OptionError, match=f'invalid value "{text}" from environment variable {health.RECOVERY}'):
        health.recovery_period({health.RECOVERY: text})


def test_the_board_tells_changes_only() -> None:
    board, told = Board(), []
    board.listen(lambda: told.append(dict(board.unhealthy)))
    assert board.fail(["a", "b"], "x") == ["a", "b"]
    assert board.fail(["a"], "y") == []
    board.recover(["b", "c"])
    board.recover(["b"])
    assert told == [{"a": "x", "b": "x"}, {"a": "x"}]
    assert not board.is_healthy("a")
    assert board.is_healthy("b")


# --- the monitor ------------------------------------------------------------------------------------------------------

MIG = Mig(enabled=True, instances=("1g.10gb", "1g.10gb", "2g.20gb"))


class World:
    """Three GPUs, the last with MIG devices, and a monitor of them."""

    def __init__(self, folder: Path, env: Mapping[str, str], recovery_s: float | None, pace: float) -> None:
        description = describe("n", ["H100-SXM5-80GB", "H100-SXM5-80GB", GpuEntry("H100-SXM5-80GB", mig=MIG)], "580.1")
        self.machine = Machine.create(folder / "devices.yaml", description)
        self.source = SimulatedSource(folder / "devices.yaml", library=lambda: True, loaded=lambda: True)
        self.source.open()
        gpus = self.source.inventory().gpus
        self.gpus = [gpu.uuid for gpu in gpus[:2]]
        self.migs = [device.uuid for device in gpus[2].mig_devices]
        self.mig_gpu = gpus[2].uuid
        self.placed = {device.uuid: (device.gi, device.ci) for device in gpus[2].mig_devices}
        self.board = Board()
        self.process = FakeProcess(folder, env=env, pace=pace)
        self.recovery_s = recovery_s

    def monitor(self, source: Any = None) -> Monitor:
        rules = XidRules.parse(self.process.env.get(health.DISABLE, ""), self.process.env.get(health.ENABLE, ""))
        return Monitor(
            self.process,
            source or self.source,
            self.board,
            gpus=self.gpus,
            migs=self.migs,
            rules=rules,
            recovery_s=self.recovery_s,
        )

    @property
    def unhealthy(self) -> set[str]:
        return set(self.board.unhealthy)

    async def settled(self) -> None:
        """Let an event that counts be followed by one that shows that all before have been heard."""
        self.machine.xid(self.gpus[1], 48)
        await until(lambda: self.gpus[1] in self.unhealthy)


@contextlib.asynccontextmanager
async def watching(
    folder: Path, env: Mapping[str, str] | None = None, *, recovery_s: float | None = None, pace: float = 1.0
) -> AsyncIterator[World]:
    world = World(folder, env or {}, recovery_s, pace)
    task = asyncio.create_task(world.monitor().run())
    await asyncio.sleep(0)
    try:
        yield world
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_5_an_xid_makes_its_gpu_unhealthy(tmp_path: Path) -> None:
    async with watching(tmp_path) as world:
        world.machine.xid(world.gpus[0], 79)
        await until(lambda: world.unhealthy == {world.gpus[0]})
    assert f"{world.gpus[0]} is Unhealthy until the plugin starts anew: Xid 79" in world.process.stderr


async def test_5_ignored_xids_and_ecc_errors_change_nothing(tmp_path: Path) -> None:
    async with watching(tmp_path) as world:
        for xid in DEFAULTS:
            world.machine.xid(world.gpus[0], xid)
        world.machine.ecc(world.gpus[0])
        world.machine.ecc(world.gpus[0], double_bit=False)
        await world.settled()
        assert world.unhealthy == {world.gpus[1]}


async def test_5_single_xids_count_though_all_are_disabled(tmp_path: Path) -> None:
    async with watching(tmp_path, {health.DISABLE: "all", health.ENABLE: "48"}) as world:
        world.machine.xid(world.gpus[0], 79)
        await world.settled()
        assert world.unhealthy == {world.gpus[1]}


async def test_5_all_disabled_watches_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, {health.DISABLE: "xids"}, None, 1.0)
    await asyncio.wait_for(world.monitor().run(), 5)
    assert "health checks are disabled" in world.process.stderr


async def test_5_an_event_of_a_mig_device_hits_that_one(tmp_path: Path) -> None:
    async with watching(tmp_path) as world:
        gi, ci = world.placed[world.migs[1]]
        world.machine.xid(world.mig_gpu, 94, gi=gi, ci=ci)
        await world.settled()
        assert world.unhealthy == {world.migs[1], world.gpus[1]}


async def test_5_an_event_of_the_whole_gpu_hits_all_its_mig_devices(tmp_path: Path) -> None:
    async with watching(tmp_path) as world:
        world.machine.xid(world.mig_gpu, 94)
        await world.settled()
        assert world.unhealthy == {*world.migs, world.gpus[1]}


@pytest.mark.parametrize("what", ["unreadable", "wait error"])
async def test_5_what_cannot_be_told_hits_all(tmp_path: Path, what: str) -> None:
    async with watching(tmp_path, pace=50) as world:
        if what == "unreadable":
            world.machine.unreadable(79)
        else:
            world.machine.wait_error()
        await until(lambda: world.unhealthy == {*world.gpus, *world.migs})


async def test_5_waiting_goes_on_after_an_error(tmp_path: Path) -> None:
    async with watching(tmp_path, recovery_s=20, pace=200) as world:
        world.machine.wait_error()
        await until(lambda: len(world.unhealthy) == 5)
        await until(lambda: not world.unhealthy)
        world.machine.xid(world.gpus[0], 79)
        await until(lambda: world.unhealthy == {world.gpus[0]})


async def test_5_gpus_too_old_for_events_stay_healthy_and_others_that_fail_are_not(tmp_path: Path) -> None:
    world = World(tmp_path, {}, None, 1.0)
    world.machine.set_events(0, False)
    world.machine.lose(1, xid=None)
    task = asyncio.create_task(world.monitor().run())
    await until(lambda: world.unhealthy == {world.gpus[1]})
    assert f"{world.gpus[0]} is too old to tell events" in world.process.stderr
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class NoPlacement:
    """A source that knows no MIG device's place."""

    def __init__(self, source: SimulatedSource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def placement(self, mig_uuid: str) -> Placed:
        raise DeviceError("MIG device: ERROR_NO_PERMISSION", 4)


async def test_5_a_mig_device_of_unknown_place_is_unhealthy_with_the_drivers_error(tmp_path: Path) -> None:
    world = World(tmp_path, {}, None, 1.0)
    task = asyncio.create_task(world.monitor(NoPlacement(world.source)).run())
    await until(lambda: world.unhealthy == set(world.migs))
    reason = world.board.unhealthy[world.migs[0]]
    assert reason == f"placement of MIG device {world.migs[0]} is unknown: MIG device: ERROR_NO_PERMISSION"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class NoEvents(NoPlacement):
    """A source whose driver tells no events."""

    placement = SimulatedSource.placement

    def watch(self, *_arguments: Any) -> Any:
        raise DeviceError("nvmlEventSetCreate: ERROR_UNKNOWN", 999)


async def test_5_devices_are_served_unwatched_where_the_driver_tells_no_events(tmp_path: Path) -> None:
    world = World(tmp_path, {}, None, 1.0)
    world.migs = []
    await asyncio.wait_for(world.monitor(NoEvents(world.source)).run(), 5)
    assert world.unhealthy == set()
    assert "served without health checks" in world.process.stderr


async def test_a_gpu_that_falls_off_the_bus_without_a_word_is_noticed(tmp_path: Path) -> None:
    async with watching(tmp_path, pace=100) as world:
        world.machine.lose(0, xid=None)
        await until(lambda: world.unhealthy == {world.gpus[0]})
        world.machine.remove(2)
        await until(lambda: world.unhealthy == {world.gpus[0], *world.migs})
    assert "ERROR_GPU_IS_LOST" in world.board.unhealthy[world.gpus[0]]


async def test_5_there_is_no_recovery_by_default(tmp_path: Path) -> None:
    async with watching(tmp_path, pace=500) as world:
        world.machine.lose(0)
        await until(lambda: world.unhealthy == {world.gpus[0]})
        world.machine.restore(0)
        await world.process.sleep(100)
        assert world.unhealthy == {world.gpus[0]}


async def test_recovery_after_silence_of_a_gpu_that_is_alive(tmp_path: Path) -> None:
    async with watching(tmp_path, recovery_s=30, pace=200) as world:
        world.machine.lose(0)
        await until(lambda: world.unhealthy == {world.gpus[0]})
        await world.process.sleep(90)
        assert world.unhealthy == {world.gpus[0]}  # silent, but not alive
        world.machine.restore(0)
        await until(lambda: world.unhealthy == set())
    assert f"{world.gpus[0]} is Healthy again" in world.process.stderr


def test_recovery_never_flaps() -> None:
    recovery = health._Recovery(10)
    for wait in (10, 20, 40):
        recovery.failed(["a"], 100)
        assert not recovery.is_due("a", 100 + wait - 1)
        assert recovery.is_due("a", 100 + wait)
        recovery.failed(["a"], 105)  # a new event begins the silence anew
        assert not recovery.is_due("a", 100 + wait)
        recovery.recovered("a")
    assert not recovery.is_due("b", 1000)


async def test_a_gpu_that_gives_no_sign_for_another_reason_is_told_once(tmp_path: Path) -> None:
    async with watching(tmp_path, pace=200) as world:
        world.machine.fail_library("ERROR_UNKNOWN")
        await until(lambda: world.process.stderr.count("gives no sign of life") == 3)
        await world.process.sleep(20)
        assert world.process.stderr.count("gives no sign of life") == 3  # once for each GPU
        world.machine.fail_library(None)
        await world.process.sleep(20)
        world.machine.fail_library("ERROR_TIMEOUT")
        await until(lambda: world.process.stderr.count("gives no sign of life") == 6)
    assert world.unhealthy == set()
