"""The simulated source and the hand that changes its file: what only a simulation has."""

import asyncio
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.devices import models, simfile, simtelemetry, simulated
from groundplane.node.devices.model import NO_INSTANCE
from groundplane.node.devices.simulated import GpuEntry, Instance, Machine, Mig, SimulatedSource, describe
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


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "gpus.yaml", describe("gpu-1", [H100] * 4, "580.126.20"))


def source_of(
    machine: Machine, *, library: Callable[[], bool] = lambda: True, loaded: Callable[[], bool] = lambda: True
) -> SimulatedSource:
    source = SimulatedSource(machine.file, library=library, loaded=loaded)
    source.open()
    return source


def test_uuids_and_addresses_are_stable() -> None:
    description = describe("gpu-1", [H100, "T4"], "580.126.20")
    assert description.gpus[0].uuid == "GPU-c3e4de04-ce3e-5331-a522-35983e019bd0"
    assert [gpu.bus_id for gpu in description.gpus] == ["0000:10:00.0", "0000:18:00.0"]
    assert description == describe("gpu-1", [H100, "T4"], "580.126.20")
    assert description.gpus[0].uuid != describe("gpu-2", [H100], "580.126.20").gpus[0].uuid


def test_they_are_those_of_the_lab() -> None:
    host = pytest.importorskip("groundplane.lab.host")
    nodes = pytest.importorskip("groundplane.lab.nodes")
    spec = nodes.NodeSpec("gpu-1", gpus=(nodes.GpuSpec("H100", 8),))
    described = describe("gpu-1", ["H100"] * 8, "580.126.20")
    assert [(gpu.uuid, gpu.bus_id) for gpu in described.gpus] == [
        (gpu.uuid, gpu.pci_address) for gpu in host._gpus(spec)
    ]


def test_two_halves_are_near_each_other(machine: Machine) -> None:
    source = source_of(machine)
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    pairs = source.topology(uuids)
    assert pairs[frozenset((uuids[0], uuids[1]))] == Pair(Level.SAME_NODE, 0)
    assert pairs[frozenset((uuids[1], uuids[2]))] == Pair(Level.CROSS_CPU, 0)
    assert len(pairs) == 6


def test_library_and_module_are_needed_to_open(machine: Machine) -> None:
    state = {"library": False, "loaded": False}
    source = SimulatedSource(machine.file, library=lambda: state["library"], loaded=lambda: state["loaded"])
    assert not source.has_library()
    with pytest.raises(LibraryNotFound, match="ERROR_LIBRARY_NOT_FOUND"):
        source.open()
    state["library"] = True
    assert source.has_library()
    with pytest.raises(DriverNotLoaded, match="ERROR_DRIVER_NOT_LOADED") as raised:
        source.open()
    assert raised.value.code == 9
    state["loaded"] = True
    with source:
        assert len(source.inventory().gpus) == 4
    with pytest.raises(DeviceError, match="ERROR_UNINITIALIZED"):
        source.inventory()


def test_a_failing_library(machine: Machine) -> None:
    source = source_of(machine)
    machine.fail_library("ERROR_UNKNOWN")
    with pytest.raises(DeviceError, match="ERROR_UNKNOWN") as raised:
        source.inventory()
    assert raised.value.code == 999
    machine.fail_library(None)
    assert len(source.inventory().gpus) == 4


def test_a_lost_gpu_and_its_return(machine: Machine) -> None:
    source = source_of(machine)
    uuid = source.inventory().gpus[2].uuid
    machine.lose(2)
    with pytest.raises(Lost, match=r"GPU 2 .*ERROR_GPU_IS_LOST"):
        source.inventory()
    with pytest.raises(Lost):
        source.check(uuid)
    with pytest.raises(Lost):
        source.topology([uuid, source._file.read().inventory.gpus[0].uuid])
    assert source.watch([uuid], ALL).failed.keys() == {uuid}
    machine.restore(uuid)
    source.check(uuid)
    assert len(source.inventory().gpus) == 4


def test_a_removed_gpu_has_no_index(machine: Machine) -> None:
    source = source_of(machine)
    before = source.inventory().gpus
    machine.remove(1)
    after = source.inventory().gpus
    assert [gpu.uuid for gpu in after] == [before[at].uuid for at in (0, 2, 3)]
    assert [(gpu.index, gpu.minor) for gpu in after] == [(0, 0), (1, 2), (2, 3)]
    with pytest.raises(NotFound):
        source.check(before[1].uuid)
    machine.restore(1)
    assert source.inventory().gpus == before


# --- events -----------------------------------------------------------------------------------------------------------


async def test_a_watch_hears_what_happens_after_it_was_made(machine: Machine) -> None:
    source = source_of(machine)
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    machine.xid(0, 31)
    watch = source.watch(uuids, ALL)
    machine.xid(1, 79)
    assert await watch.next() == Event(EventKind.XID, uuids[1], 79)
    machine.xid(uuids[2], 48, gi=3, ci=1)
    machine.ecc(3)
    machine.ecc(3, double_bit=False)
    machine.unreadable(13)
    assert [await watch.next() for _ in range(4)] == [
        Event(EventKind.XID, uuids[2], 48, 3, 1),
        Event(EventKind.DOUBLE_BIT_ECC, uuids[3]),
        Event(EventKind.SINGLE_BIT_ECC, uuids[3]),
        Event(EventKind.XID, "", 13),
    ]
    await watch.close()


async def test_a_waiting_watch_is_woken(machine: Machine) -> None:
    source = source_of(machine)
    uuid = source.inventory().gpus[0].uuid
    watch = source.watch([uuid], ALL)
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    machine.inject(Event(EventKind.XID, uuid, 94, 1, 0), Event(EventKind.XID, "", 79))
    assert await asyncio.wait_for(waiting, 20) == Event(EventKind.XID, uuid, 94, 1, 0)
    assert (await asyncio.wait_for(watch.next(), 20)).uuid == ""
    await watch.close()


async def test_cancelling_loses_none(machine: Machine) -> None:
    source = source_of(machine)
    uuid = source.inventory().gpus[0].uuid
    watch = source.watch([uuid], ALL)
    for number in range(1, 20):
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        machine.xid(0, number)
        await asyncio.sleep(0.001 * (number % 3))
        waiting.cancel()
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        event = await asyncio.wait_for(watch.next(), 20) if isinstance(outcome, BaseException) else outcome
        assert event.xid == number
    await watch.close()


async def test_only_watched_gpus_and_kinds_are_told(machine: Machine) -> None:
    source = source_of(machine)
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    watch = source.watch(uuids[:1], EventKind.XID)
    machine.xid(1, 31)
    machine.ecc(0)
    machine.xid(0, 32)
    assert await asyncio.wait_for(watch.next(), 20) == Event(EventKind.XID, uuids[0], 32, NO_INSTANCE, NO_INSTANCE)
    await watch.close()


async def test_a_wait_fails_once(machine: Machine) -> None:
    source = source_of(machine)
    watch = source.watch([source.inventory().gpus[0].uuid], ALL)
    machine.wait_error("ERROR_UNKNOWN")
    machine.xid(0, 31)
    with pytest.raises(DeviceError, match="ERROR_UNKNOWN"):
        await watch.next()
    assert (await watch.next()).xid == 31
    await watch.close()
    with pytest.raises(DeviceError, match="ERROR_UNINITIALIZED"):
        await watch.next()


async def test_gpus_too_old_and_gpus_unknown(machine: Machine) -> None:
    source = source_of(machine)
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    machine.set_events(1, False)
    watch = source.watch([*uuids, "GPU-none"], ALL)
    assert watch.unsupported == {uuids[1]}
    assert {uuid: type(error) for uuid, error in watch.failed.items()} == {"GPU-none": NotFound}
    machine.xid(1, 79)
    machine.xid(0, 48)
    assert (await asyncio.wait_for(watch.next(), 20)).uuid == uuids[0]
    await watch.close()


async def test_a_malformed_file_is_told_once_and_healed(machine: Machine) -> None:
    source = source_of(machine)
    watch = source.watch([source.inventory().gpus[0].uuid], ALL)
    good = machine.file.read_text()
    machine.file.write_text("gpus: [")
    with pytest.raises(simulated.FileError, match="not valid YAML"):
        await asyncio.wait_for(watch.next(), 20)
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    machine.file.write_text(good)
    machine.xid(0, 31)
    assert (await asyncio.wait_for(waiting, 20)).xid == 31
    await watch.close()


def _inject(file: str, count: int) -> None:
    for number in range(count):
        Machine(Path(file)).xid(0, number + 1)


def test_changes_of_several_processes_all_count(machine: Machine) -> None:
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_inject, args=(str(machine.file), 20)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    description = machine.read().description
    assert description.last_event == 60
    assert [event.number for event in description.events] == list(range(1, 61))


def test_old_events_are_dropped_but_still_counted(machine: Machine) -> None:
    uuid = machine.read().description.gpus[0].uuid or ""
    machine.inject(*(Event(EventKind.XID, uuid, 31) for _ in range(simulated.EVENTS_KEPT + 10)))
    description = machine.read().description
    assert (len(description.events), description.last_event) == (simulated.EVENTS_KEPT, simulated.EVENTS_KEPT + 10)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_read_again_only_when_it_changed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = simfile.read
    monkeypatch.setattr(simfile, "read", lambda path: reads.append(path) or real(path))
    one, other = source_of(machine), source_of(machine)
    for source in (one, other, one):
        source.inventory()
    assert len(reads) == 1
    monkeypatch.undo()
    machine.set_driver("550.54.15")
    assert one.inventory().driver_version == "550.54.15"
    assert other.inventory().cuda_version == 12040


def test_a_refused_change_leaves_the_file_alone(machine: Machine) -> None:
    before = machine.file.read_text()
    with pytest.raises(simulated.FileError, match=r"gpus\[0\]\.mig\.instances: 8g\.80gb is no GPU instance"):
        machine.set_mig(0, True, ["8g.80gb"])
    with pytest.raises(simulated.FileError, match="there is no GPU 7; it has 4"):
        machine.xid(7, 31)
    assert machine.file.read_text() == before
    assert sorted(path.name for path in machine.file.parent.iterdir()) == [".gpus.yaml.lock", "gpus.yaml"]


def test_a_small_file_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(
        "driverVersion: 535.104.05\ngpus: [{model: T4}, {model: GB10}, {model: DGX-DISPLAY}, {model: T4}]\n"
    )
    inventory = source_of(Machine(file)).inventory()
    assert (inventory.driver_version, inventory.cuda_version) == ("535.104.05", 12020)
    assert [(gpu.index, gpu.name, gpu.mig) for gpu in inventory.gpus] == [
        (0, "Tesla T4", None),
        (1, "NVIDIA GB10", None),
        (3, "Tesla T4", None),
    ]
    assert [gpu.memory_bytes >> 20 for gpu in inventory.gpus] == [15360, 0, 15360]
    assert inventory.gpus[2].bus_id == "00000000:28:00.0"
    assert inventory.gpus[2].sysfs == "/sys/bus/pci/devices/0000:28:00.0"


GPU_0 = "driverVersion: '580.1'\ngpus:\n- model: H100\n"

PROBLEMS = [
    ("- 1", "expected a mapping, found list"),
    ("gpus: []", "missing required field `driverVersion`"),
    ("driverVersion: 580.1", "driverVersion: Expected `str`, got `float`"),
    ("driverVersion: five", "driverVersion: 'five'; expected a version"),
    ("driverVersion: '580.1'\ncuda: 1", "unknown field `cuda`"),
    ("driverVersion: '580.1'\ncudaVersion: '13'", "cudaVersion: '13'; expected a version"),
    ("driverVersion: '580.1'\nlibraryError: OOPS", "libraryError: 'OOPS'; expected NVML's name of an error"),
    ("driverVersion: '580.1'\ngpus: [{model: H1000}]", r"gpus\[0\].model: 'H1000' is not known; known are A10,"),
    (GPU_0 + "  color: red", r"gpus\[0\]: Object contains unknown field `color`"),
    (GPU_0 + "  uuid: GPU-1", r"gpus\[0\].uuid: 'GPU-1'; expected a text such as"),
    (GPU_0 + "  busId: 7", r"gpus\[0\].busId: Expected `str \| null`, got `int`"),
    (GPU_0 + "  busId: '7'", r"gpus\[0\].busId: '7'; expected an address"),
    (GPU_0 + "  minor: -1", r"gpus\[0\].minor: -1; expected 0 or more"),
    (GPU_0 + "  memoryMiB: -1", r"gpus\[0\].memoryMiB: -1; expected 0 or more"),
    (GPU_0 + "  compute: '9'", r"gpus\[0\].compute: '9'; expected a capability"),
    (GPU_0 + "- model: H100\n  minor: 0", r"gpus\[1\].minor: 0 is that of gpus\[0\] too"),
    (GPU_0 + "  mig: {instances: [1g.10gb]}", r"gpus\[0\].mig.instances: MIG is off"),
    (GPU_0 + "  mig: {enabled: true, instances: [1g.10gb2]}", r"mig.instances\[0\]: '1g.10gb2' is no MIG profile"),
    (GPU_0 + "  mig: {enabled: true, instances: [{profile: 1c.2g.20gb}]}", "'1c.2g.20gb' is a compute instance"),
    (
        GPU_0 + "  mig: {enabled: true, instances: [{profile: 3g.40gb, compute: [1c.2g.20gb]}]}",
        "compute instance 1c.2g.20gb is of another GPU instance than 3g.40gb",
    ),
    (
        GPU_0 + "  mig: {enabled: true, instances: [{profile: 7g.80gb, compute: [5c.7g.80gb]}]}",
        "compute instance 5c.7g.80gb has 5 slices; expected 1, 2, 3, 4, 6, 7 or 8",
    ),
    (
        GPU_0 + "  mig: {enabled: true, instances: [{profile: 3g.40gb, compute: [2c.3g.40gb, 2c.3g.40gb]}]}",
        "2c.3g.40gb, 2c.3g.40gb do not fit a GPU instance of 3 slices",
    ),
    (GPU_0 + "  mig: {enabled: true, instances: [4c.3g.40gb]}", "4c.3g.40gb do not fit a GPU instance of 3 slices"),
    (GPU_0 + "  fabric: {clique: -1}", "fabric.clique: -1; expected 0 or more"),
    (GPU_0 + "  fabric: {clusterUUID: x}", "fabric.clusterUUID: 'x'; expected a UUID"),
    (GPU_0 + "  fabric: {status: BAD}", "fabric.status: 'BAD'; expected SUCCESS or"),
    (GPU_0 + "nvlinks: [{between: [0, 1], count: 4}]", r"nvlinks\[0\].between: there is no GPU 1; the file has 1"),
    (GPU_0 + "nvlinks: [{between: [0, 0], count: 0}]", r"nvlinks\[0\].count: 0; expected 1 or more"),
    (GPU_0 + "topology: {sameBoard: [[0, 1]]}", r"topology.sameBoard\[0\]: there is no GPU 1"),
    (GPU_0 + "events: [{number: 1, kind: xid}]", r"events\[0\].number: 1; expected more than 0, and at most lastEvent"),
    (GPU_0 + "lastEvent: 1\nevents: [{number: 1, kind: xid}]", r"events\[0\].gpu: missing"),
    (GPU_0 + "lastEvent: 1\nevents: [{number: 1, kind: waitError, error: X}]", r"events\[0\].error: 'X'"),
    ("driverVersion: '580.1'\ngpus: [{model: T4, mig: {enabled: true}}]", r"mig.enabled: Tesla T4 has no MIG"),
]


@pytest.mark.parametrize(("text", "problem"), PROBLEMS)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(text)
    with pytest.raises(simulated.FileError, match=problem) as raised:
        source_of(Machine(file))
    assert all(line.startswith(str(file)) for line in str(raised.value).splitlines())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(simulated.FileError, match=r"gpus.yaml cannot be read: .*No such file.*simulated-devices.md"):
        source_of(Machine(tmp_path / "gpus.yaml"))


MIG_MODELS = sorted(name for name, model in models.MODELS.items() if model.mig)


@st.composite
def descriptions(draw: st.DrawFn) -> simfile.Description:
    entries = []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(sorted(models.MODELS)))
        kinds = list(models.MODELS[name].kinds)
        chosen = draw(st.lists(st.sampled_from(kinds), max_size=1)) if kinds else []
        instances = tuple(draw(st.sampled_from([str(each), Instance(str(each))])) for each in chosen)
        entries.append(
            GpuEntry(
                name,
                mig=Mig(bool(chosen), instances),
                lost=draw(st.booleans()),
                present=draw(st.booleans()),
                fabric=draw(st.none() | st.builds(simfile.FabricEntry, clique=st.integers(0, 9))),
            )
        )
    error = draw(st.none() | st.sampled_from(["ERROR_UNKNOWN", "ERROR_MEMORY"]))
    description = describe(draw(st.sampled_from(["a", "b"])), entries, "580.126.20", library_error=error)
    if not entries:
        return description
    events = [simfile.EventEntry(0, "xid", description.gpus[0].uuid or "", draw(st.integers(1, 200)))]
    return simulated._with_events(description, events)


@given(descriptions())
def test_what_is_printed_is_read_back(description: simfile.Description) -> None:
    assert simfile.parse(simfile.dump(description), "file") == description
    machine = simfile.machine(description, "file")
    assert [card.gpu.index for card in machine.cards.values()] == list(range(len(machine.cards)))


def test_a_full_disk_leaves_mig_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpus.yaml"
    Machine.create(file, describe("h", [GpuEntry("H100", mig=Mig(True, ("1g.10gb",)))], "580.126.20"))
    source = SimulatedSource(file, library=lambda: True, loaded=lambda: True)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with source:
        control = source.mig()
        (gpu,) = control.gpus()
        before = control.instances(gpu.uuid)
        with monkeypatch.context() as patched:
            patched.setattr(simulated, "write_atomic", full)
            with pytest.raises(simulated.FileError, match=r"cannot be written: \[Errno 28\] No space left on device"):
                control.destroy_compute_instance(gpu.uuid, before[0].id, 0)
        assert control.instances(gpu.uuid) == before


# --- its page ---------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs/reference/simulated-devices.md"


def test_the_page_shows_every_model_and_field() -> None:
    text = PAGE.read_text()
    for name, model in models.MODELS.items():
        offered = " ".join(f"{profile}({kind.most})" for profile, kind in model.kinds.items()) or "-"
        memory = model.memory_mib or "none"
        row = f"| `{name}` | {model.product} | {memory} | {model.compute[0]}.{model.compute[1]} | {offered} |"
        assert row in text
    assert all(f"`{alias}` = `{name}`" in text for alias, name in models.ALIASES.items())
    assert all(f"{branch}: {version}" in text for branch, version in models.CUDA_VERSIONS.items())
    parts = (simfile.Description, GpuEntry, Instance, Mig, simfile.FabricEntry, simfile.Topology, simfile.EventEntry)
    parts += (simtelemetry.TelemetryEntry, simtelemetry.ProcessEntry)
    for part in parts:
        assert [
            field for field in part.__struct_encode_fields__ if f"`{field}`" not in text and field != "profile"
        ] == []


def test_the_pages_example_works(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(PAGE.read_text().split("```yaml\n")[1].split("```")[0])
    machine = Machine(file)
    assert [card.entry.lost for card in machine.read().cards.values()] == [False, False, True]
    example = PAGE.read_text().split("```python\n")[1].split("```")[0]
    folder = tmp_path / "example"
    folder.mkdir()
    exec(example.replace('Path("devices.yaml")', f"Path({str(folder / 'devices.yaml')!r})"), {})
    after = Machine(folder / "devices.yaml").read()
    assert [event.xid for event in after.description.events] == [79, 79, 0]
    assert len(after.inventory.gpus[0].mig_devices) == 7
