"""What every source tells of GPUs at work, simulated or NVML (contracts/mig-exporter-validator.md 5.7, 7)."""

import pytest

from groundplane.node.devices import models, nvmltelemetry, simtelemetry, telemetry
from groundplane.node.devices.simtelemetry import NAMES, ProcessEntry
from groundplane.node.devices.simulated import FileError, GpuEntry, Instance, Mig, TelemetryEntry
from groundplane.node.devices.source import DeviceError, Lost, NotFound
from groundplane.node.devices.telemetry import GpuProcess, P2pStatus, Reading

H100 = "H100-SXM5-80GB"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvmltelemetry, "SAMPLES_APART_S", 0.0)


def asked(world, *names: str, gpu: int = 0) -> Reading:
    source = world.opened()
    reader = source.telemetry()
    found = reader.gpu(reader.survey().inventory.gpus[gpu].uuid, names or telemetry.QUANTITIES)
    reader.close()
    return found


@pytest.mark.parametrize("first", range(0, len(models.MODELS), 16))
def test_every_model_tells_the_same_through_each_source(make, first: int) -> None:
    names = list(models.MODELS)[first : first + 16]
    world = make([GpuEntry(name, telemetry=TelemetryEntry(load=37)) for name in names])
    reader = world.opened().telemetry()
    for gpu in reader.survey().inventory.gpus:
        card = world.read().cards[gpu.uuid]
        found, expected = reader.gpu(gpu.uuid), simtelemetry.reading(card)
        for name in telemetry.QUANTITIES:
            assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-6), f"{gpu.name}: {name}"
            assert (name in found.absent) == (getattr(expected, name) is None)
        assert set(found.absent.values()) <= {"ERROR_NOT_SUPPORTED"}
    reader.close()


def test_5_7_units(make) -> None:
    entry = TelemetryEntry(
        values={
            "smClockMhz": 1755,
            "powerMw": 312500,
            "energyMj": 9007199254740991,
            "tensorActive": 0.625,
            "pcieTxBytes": 3 * MIB,
            "nvlinkTxBytes": 61 * MIB,
            "nvlinkRxBytes": 60 * MIB,
            "nvlinkTxKib": 2**40,
            "eccDbeVolatile": 2,
            "eventReasons": 0x88,
            "serial": "1650123",
        }
    )
    found = asked(make([GpuEntry(H100, telemetry=entry)]))
    assert (found.sm_clock_mhz, found.power_mw, found.energy_mj) == (1755, 312500, 9007199254740991)
    assert (found.tensor_active, found.pcie_tx_bytes, found.nvlink_tx_kib) == (0.625, 3 * MIB, 2**40)
    assert (found.nvlink_tx_bytes, found.nvlink_rx_bytes) == (61 * MIB, 60 * MIB)
    assert (found.ecc_dbe_volatile, found.event_reasons, found.serial, found.brand) == (2, 0x88, "1650123", "Nvidia")


def test_5_7_used_reserved_and_free_memory_make_the_whole(make) -> None:
    found = asked(make([GpuEntry(H100, telemetry=TelemetryEntry(load=50))]))
    assert found.memory_total == 81559 * MIB
    assert None not in (found.memory_used, found.memory_free, found.memory_reserved)
    assert found.memory_used + found.memory_free + found.memory_reserved == found.memory_total  # type: ignore[operator]
    assert found.memory_reserved


def test_only_what_is_asked_for_is_told(make) -> None:
    found = asked(make([H100]), "power_mw", "retired_sbe")
    assert (found.power_mw, found.sm_clock_mhz) == (70000, None)
    assert dict(found.absent) == {"retired_sbe": "ERROR_NOT_SUPPORTED"}


@pytest.mark.parametrize("name", ["powerMw", "memoryTempC", "gpuUtil", "serial", "smActive", "nvlinkTxKib"])
def test_what_is_absent_says_why_and_all_else_is_there(make, name: str) -> None:
    reason = "ERROR_NOT_SUPPORTED" if name == "serial" else "ERROR_NO_PERMISSION"
    found = asked(make([GpuEntry(H100, telemetry=TelemetryEntry(absent={name: reason}))]))
    assert getattr(found, NAMES[name]) is None
    assert found.absent[NAMES[name]] == reason
    assert found.sm_clock_mhz == 345


def test_9_8_no_utilisation_in_mig_mode(make) -> None:
    found = asked(make([GpuEntry(H100, mig=Mig(True, ("1g.10gb",)))]))
    assert [getattr(found, name) for name in telemetry.UTILISATION] == [None] * 4
    assert {found.absent[name] for name in telemetry.UTILISATION} == {"ERROR_NOT_SUPPORTED"}


def test_gpu_instances_have_memory_and_activity_of_their_own(make) -> None:
    instances = (Instance("3g.40gb", 4, ("1c.3g.40gb", "1c.3g.40gb")), "1g.10gb")
    probe = make([GpuEntry(H100, mig=Mig(True, instances))])
    (gpu,) = probe.opened().inventory().gpus
    ids = {str(device.profile): device.gi for device in gpu.mig_devices}
    probe.set_telemetry(0, load=10, instance_loads={ids["1g.10gb"]: 80})
    reader = probe.opened().telemetry()
    small = reader.instance(gpu.uuid, ids["1g.10gb"])
    big = reader.instance(gpu.uuid, ids["1c.3g.40gb"], ["gr_engine_active", "memory_total", "power_mw"])
    assert (small.gr_engine_active, big.gr_engine_active) == (pytest.approx(0.8), pytest.approx(0.1))
    memory = {device.gi: device.memory_mib * MIB for device in gpu.mig_devices}
    assert (small.memory_total, big.memory_total) == (memory[ids["1g.10gb"]], memory[ids["1c.3g.40gb"]])
    assert (small.power_mw, big.power_mw, "power_mw" in big.absent) == (None, None, False)
    whole = telemetry.merged(reader.gpu(gpu.uuid), small)
    assert (whole.power_mw, whole.memory_total) == (reader.gpu(gpu.uuid).power_mw, small.memory_total)
    gone = reader.instance(gpu.uuid, 6)
    assert (gone.memory_used, gone.absent["memory_used"]) == (None, "ERROR_NOT_FOUND")
    reader.close()


def test_gpm_is_hoppers(make) -> None:
    found = asked(make(["A100", H100]), gpu=0)
    assert all(getattr(found, name) is None for name in telemetry.PROFILED)
    assert found.absent["tensor_active"] == "ERROR_NOT_SUPPORTED"


def test_a_second_reading_is_since_the_first(make) -> None:
    world = make([H100])
    reader = world.opened().telemetry()
    (gpu,) = reader.survey().inventory.gpus
    assert [reader.gpu(gpu.uuid).gr_engine_active for _ in range(3)] == [0.0] * 3
    world.set_telemetry(0, load=50)
    assert reader.gpu(gpu.uuid).gr_engine_active == pytest.approx(0.5)
    reader.close()


def test_a_lost_gpu_fails_alone(make) -> None:
    world = make([H100] * 3)
    reader = world.opened().telemetry()
    uuids = [gpu.uuid for gpu in reader.survey().inventory.gpus]
    world.lose(1)
    found = reader.survey()
    assert [gpu.index for gpu in found.inventory.gpus] == [0, 2]
    assert list(found.failed) == [1]
    assert "ERROR_GPU_IS_LOST" in found.failed[1]
    for question in (reader.gpu, reader.processes, lambda uuid: reader.p2p([uuids[0], uuid])):
        with pytest.raises(Lost, match="ERROR_GPU_IS_LOST"):
            question(uuids[1])
    assert reader.gpu(uuids[2]).power_mw == 70000
    with pytest.raises(NotFound):
        reader.gpu("GPU-none")
    reader.close()


def test_processes(make) -> None:
    on_a_gpu = TelemetryEntry(processes=(ProcessEntry(71, 512, 30), ProcessEntry(7, 1024, 60)))
    on_mig = TelemetryEntry(processes=(ProcessEntry(8, 100, 50, gi=2), ProcessEntry(9, 50, 10, gi=2)))
    world = make(
        [
            GpuEntry(H100, telemetry=on_a_gpu),
            GpuEntry(H100, mig=Mig(True, (Instance("3g.40gb", 4),)), telemetry=on_mig),
            H100,
        ]
    )
    reader = world.opened().telemetry()
    uuids = [gpu.uuid for gpu in reader.survey().inventory.gpus]
    assert reader.processes(uuids[0]) == (GpuProcess(7, 1024 * MIB, 60), GpuProcess(71, 512 * MIB, 30))
    assert reader.processes(uuids[1]) == (GpuProcess(8, 100 * MIB, None, 2), GpuProcess(9, 50 * MIB, None, 2))
    assert reader.processes(uuids[2]) == ()
    assert reader.gpu(uuids[0]).memory_used == 1536 * MIB
    assert reader.instance(uuids[1], 2).memory_used == 150 * MIB
    reader.close()


def test_5_4_p2p(make) -> None:
    world = make([H100, H100, "L4"])
    reader = world.opened().telemetry()
    uuids = [gpu.uuid for gpu in reader.survey().inventory.gpus]
    found = reader.p2p(uuids)
    assert len(found) == 6
    assert found[(uuids[0], uuids[1])] is P2pStatus.OK
    assert found[(uuids[0], uuids[2])] is P2pStatus.NOT_SUPPORTED
    reader.close()


def test_versions_and_a_closed_source(make) -> None:
    source = make([H100]).opened()
    reader = source.telemetry()
    assert reader.nvml_version() == "13.580.126.20"
    source.close()
    for question in (reader.survey, reader.nvml_version, lambda: reader.gpu("GPU-1"), source.telemetry):
        with pytest.raises(DeviceError, match="ERROR_UNINITIALIZED"):
            question()


def test_memory_of_an_older_driver_has_no_reserved_part(mocked) -> None:
    world = mocked([H100])
    world.show(faults={"DeviceGetMemoryInfo_v2": 13})
    found = asked(world, "memory_total", "memory_reserved")
    assert (found.memory_total, found.memory_reserved) == (81559 * MIB, 0)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (TelemetryEntry(load=101), "telemetry.load: 101; expected a percentage"),
        (TelemetryEntry(instance_loads={1: -1}), r"telemetry.instanceLoads.1: -1"),
        (TelemetryEntry(values={"speed": 1}), "'speed' is no quantity"),
        (TelemetryEntry(values={"serial": 1}), "telemetry.values.serial: 1; expected a text"),
        (TelemetryEntry(values={"powerMw": "much"}), "telemetry.values.powerMw: 'much'; expected a number"),
        (TelemetryEntry(absent={"powerMw": "NO"}), "telemetry.absent.powerMw: 'NO'; expected NVML's name"),
        (TelemetryEntry(delay_s=-1), "telemetry.delayS"),
    ],
)
def test_the_file_is_strict(make, entry: TelemetryEntry, problem: str) -> None:
    with pytest.raises(FileError, match=problem):
        make([GpuEntry(H100, telemetry=entry)])
