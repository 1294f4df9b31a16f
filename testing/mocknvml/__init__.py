"""A libnvidia-ml.so.1 without a GPU: built from our own C source, and described from a simulated machine.

With it the NVML source is held against the simulated one: both show the same machine, one through NVIDIA's binding and
a C library, the other from the description itself. The library's source says what its file looks like.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from groundplane.node.devices import models, nvmlerrors, profiles, simfile, simtelemetry
from groundplane.node.devices.model import NO_INSTANCE, MigDevice
from groundplane.node.devices.telemetry import Reading
from groundplane.node.hostroot import write_atomic

SONAME = "libnvidia-ml.so.1"
VARIABLE = "MOCK_NVML"
"""The environment variable that names the machine's file."""

_SOURCE = Path(__file__).with_name("mocknvml.c")
_EVENT_KINDS = {"xid": 8, "doubleBitEcc": 2, "singleBitEcc": 1, "unreadable": 8}
_STATES = {"notStarted": 1, "inProgress": 2, "completed": 3}
_SLOTS = 7
_SUPPORTED = 0x0B


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return shutil.which(os.environ.get("CC", "gcc"))


def build(folder: Path) -> Path:
    """Compile the library into a folder and return its path. Raises CalledProcessError, with the compiler's words."""
    target = folder / SONAME
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        compiler() or "gcc",
        *("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"),
        f"-Wl,-soname,{SONAME}",
        *("-o", str(target), str(_SOURCE)),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


Faults = Mapping[str, int]
"""Codes that functions answer, by their names without `nvml`."""


def write(
    file: Path,
    machine: simfile.SimulatedMachine,
    *,
    init: int = 0,
    faults: Faults | None = None,
    gpu_faults: Mapping[int, Faults] | None = None,
    slots: Sequence[int] | None = None,
    switches: int = 0,
) -> None:
    """Write the file for a simulated machine, in one step.

    `init` is what initialising answers; `faults` and `gpu_faults` (by index) let functions fail; `slots` are the
    numbers of the MIG slots that are taken, the first by default; `switches` gives each GPU that many NVLinks to
    switches, and one that is down.
    """
    library = machine.description.library_error
    lines = [f"driver {machine.inventory.driver_version}", f"cuda {machine.inventory.cuda_version}", f"init {init}"]
    lines += [f"fail {name} {code}" for name, code in (faults or {}).items()]
    if library is not None:
        names = ("SystemGetDriverVersion", "DeviceGetHandleByUUID", "EventSetWait")
        lines += [f"fail {name} {nvmlerrors.CODES[library]}" for name in names]
    lines += _levels(machine) + _events(machine)
    for index, card in enumerate(machine.cards.values()):
        lines += _gpu(machine, card, slots, switches)
        lines += [f"fail {name} {code}" for name, code in (gpu_faults or {}).get(index, {}).items()]
    write_atomic(file, "".join(line + "\n" for line in lines))


def _levels(machine: simfile.SimulatedMachine) -> list[str]:
    places = [card.place for card in machine.cards.values()]
    return [
        f"level {one} {other} {machine.description.topology.level(places[one], places[other])}"
        for other in range(len(places))
        for one in range(other)
    ]


def _events(machine: simfile.SimulatedMachine) -> list[str]:
    lines = []
    for event in machine.description.events:
        if event.kind == "waitError":
            lines.append(f"eventerror {event.number} {nvmlerrors.CODES[event.error]}")
            continue
        instances = [NO_INSTANCE if each is None else each for each in (event.gi, event.ci)]
        gpu = "-" if event.kind == "unreadable" else event.gpu
        kind = _EVENT_KINDS[event.kind]
        lines.append(f"event {event.number} {kind} {gpu} {event.xid} {instances[0]} {instances[1]}")
    return lines


def _gpu(
    machine: simfile.SimulatedMachine, card: simfile.Card, slots: Sequence[int] | None, switches: int
) -> list[str]:
    gpu = card.gpu
    lines = [
        f"gpu {gpu.uuid}",
        f"minor {gpu.minor}",
        f"name {gpu.name}",
        f"bus {gpu.bus_id}",
        f"memory {gpu.memory_bytes}",
        f"compute {gpu.compute[0]} {gpu.compute[1]}",
        f"pci {card.model.pci_id}10de {card.entry.subsystem_id or 0}",
        f"mig {-1 if gpu.mig is None else int(gpu.mig)}",
        f"resetless {int(card.reset_less)}",
        f"busy {int(card.entry.busy)}",
        f"lost {int(card.entry.lost)}",
        f"supported {_SUPPORTED if card.entry.events else 0}",
        f"slots {_SLOTS}",
    ]
    fabric = card.entry.fabric
    if fabric is not None:
        status = 0 if fabric.status == "SUCCESS" else nvmlerrors.CODES[fabric.status]
        cluster = uuid.UUID(fabric.cluster_uuid).hex
        lines.append(f"fabric {cluster} {status} {fabric.clique} {_STATES[fabric.state]}")
    lines += _links(machine, card, switches)
    lines += _telemetry(machine, card)
    if gpu.mig is not None:
        lines += [f"pending {int(card.entry.mig.after_reset)}", *_profiles(card.model)]
        lines += [_gpu_instance(card.model, made) for made in simfile.gpu_instances(card.model, card.entry.mig)]
        lines += [_mig_device(card.model, device, slots) for device in gpu.mig_devices]
    return lines


_FIGURES = {
    "sm_clock_mhz": "clock.1",
    "mem_clock_mhz": "clock.2",
    "gpu_temp_c": "temperature.0",
    "power_mw": "power",
    "gpu_util": "util.gpu",
    "mem_util": "util.memory",
    "enc_util": "util.encoder",
    "dec_util": "util.decoder",
    "event_reasons": "reasons",
    "pstate": "pstate",
    "memory_temp_c": "field.82.0",
    "energy_mj": "field.83.0",
    "pcie_replays": "field.94.0",
    "ecc_sbe_volatile": "field.3.0",
    "ecc_dbe_volatile": "field.4.0",
    "ecc_sbe_aggregate": "field.5.0",
    "ecc_dbe_aggregate": "field.6.0",
    "retired_sbe": "field.29.0",
    "retired_dbe": "field.30.0",
    "retired_pending": "field.31.0",
    "remapped_correctable": "field.142.0",
    "remapped_uncorrectable": "field.143.0",
    "remap_pending": "field.144.0",
    "remap_failure": "field.145.0",
    "power_violation_ns": "field.74.0",
    "thermal_violation_ns": "field.75.0",
    "sync_boost_violation_ns": "field.76.0",
    "board_limit_violation_ns": "field.77.0",
    "low_util_violation_ns": "field.78.0",
    "reliability_violation_ns": "field.79.0",
    "nvlink_crc_flit_errors": "field.38.0",
    "nvlink_crc_data_errors": "field.45.0",
    "nvlink_replay_errors": "field.52.0",
    "nvlink_recovery_errors": "field.59.0",
    "nvlink_tx_kib": f"field.138.{0xFFFFFFFF}",
    "nvlink_rx_kib": f"field.139.{0xFFFFFFFF}",
    "nvlink0_tx_kib": "field.138.0",
    "nvlink0_rx_kib": "field.139.0",
}
"""Where the library looks for a quantity: its function, or NVML's number of a field and of its link."""
_WORDS = {
    "serial": "serial",
    "vbios": "vbios",
    "inforom_image": "inforom",
    "inforom_oem": "inforom.0",
    "inforom_ecc": "inforom.1",
    "inforom_power": "inforom.2",
}
_BRANDS = {"Tesla": 2, "GeForce": 5, "Nvidia": 14}
_METRICS = {
    "gr_engine_active": 1,
    "sm_active": 2,
    "sm_occupancy": 3,
    "int_active": 4,
    "tensor_active": 5,
    "dfma_active": 6,
    "hmma_active": 7,
    "imma_active": 9,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
    "fp16_active": 13,
    "pcie_tx_bytes": 20,
    "pcie_rx_bytes": 21,
    "nvlink_rx_bytes": 60,
    "nvlink_tx_bytes": 61,
}
_MEMORY = ("total", "free", "used", "reserved")


def _telemetry(machine: simfile.SimulatedMachine, card: simfile.Card) -> list[str]:
    """What the GPU shows of itself, as a library would be asked for it."""
    shown = simtelemetry.reading(card)
    lines = []
    for name, key in _FIGURES.items():
        value = getattr(shown, name)
        error = nvmlerrors.CODES.get(shown.absent.get(name, ""), 0)
        lines.append(f"nofigure {key} {error}" if value is None else f"figure {key} {value}")
    lines += [f"word {key} {getattr(shown, name)}" for name, key in _WORDS.items() if getattr(shown, name) is not None]
    if shown.brand is not None:
        lines.append(f"figure brand {_BRANDS[shown.brand]}")
    lines += _own_figures(shown, "memory", -1)
    for gi in dict.fromkeys(device.gi for device in card.gpu.mig_devices):
        lines += _own_figures(simtelemetry.instance_reading(card, gi), f"memory.{gi}", gi)
    for index, other in enumerate(machine.cards.values()):
        if other is not card:
            lines.append(f"figure p2p.{index} {simtelemetry.p2p(card, other).value}")
    for each in card.entry.telemetry.processes:
        gi = NO_INSTANCE if each.gi is None else each.gi
        lines.append(f"process {each.pid} {each.memory_mib << 20} {each.util} {gi}")
    return lines


def _own_figures(shown: Reading, memory: str, gi: int) -> list[str]:
    """Memory and activity, of a GPU (-1) or of a GPU instance. NVML counts reserved memory as used, too."""
    lines = []
    for name, number in _METRICS.items():
        value = getattr(shown, name)
        if value is not None:
            lines.append(f"figure gpm.{gi}.{number} {value / (1 << 20) if name.endswith('bytes') else value * 100}")
        else:
            lines.append(f"nofigure gpm.{gi}.{number} {nvmlerrors.CODES.get(shown.absent.get(name, ''), 3)}")
    values = {key: getattr(shown, f"memory_{key}") for key in _MEMORY}
    if None not in values.values():
        values["used"] += values["reserved"]
        lines += [f"figure {memory}.{key} {value}" for key, value in values.items()]
    return lines


def _links(machine: simfile.SimulatedMachine, card: simfile.Card, switches: int) -> list[str]:
    lines = []
    for other in machine.cards.values():
        count = machine.links.get(frozenset((card.place, other.place)), 0) if other is not card else 0
        lines += [f"link {other.gpu.bus_id} 1"] * count
    if switches:
        lines += ["link 00000000:C5:00.0 1"] * switches + ["link 00000000:C6:00.0 0"]
    return lines


def _profiles(model: models.Model) -> list[str]:
    lines = []
    for kind in model.kinds.values():
        multiprocessors = kind.slices * model.sliced.multiprocessors
        starts = sum(1 << start for start in kind.starts)
        values = (
            kind.number,
            model.instance_profile_id(kind),
            kind.slices,
            model.instance_mib(kind),
            multiprocessors,
            kind.most,
            kind.size,
            starts,
            *kind.engines,
        )
        lines.append(f"giprofile {' '.join(map(str, values))}")
    known = profiles.COMPUTE_INSTANCES.items()
    return lines + [
        f"ciprofile {number} {models.compute_profile_id(number)} {slices}" for number, slices in known if number < 7
    ]


def _gpu_instance(model: models.Model, made: simfile.GpuInstanceMade) -> str:
    kind = model.kinds[made.profile]
    return f"gi {made.id} {model.instance_profile_id(kind)} {made.start} {kind.size}"


def _mig_device(model: models.Model, device: MigDevice, slots: Sequence[int] | None) -> str:
    whole = next(kind for profile, kind in model.kinds.items() if _same_instance(str(profile), device))
    compute = next(number for number, slices in profiles.COMPUTE_INSTANCES.items() if slices == device.ci_slices)
    values = (
        device.slot if slots is None else slots[device.slot],
        device.uuid,
        device.gi,
        device.ci,
        model.instance_profile_id(whole),
        models.compute_profile_id(compute),
        device.memory_mib,
        device.multiprocessors,
        device.gi_slices,
        device.ci_slices,
        device.copy_engines,
        device.decoders,
        device.encoders,
        device.jpeg_engines,
        device.ofa_engines,
    )
    return f"migdevice {' '.join(map(str, values))}"


def _same_instance(profile: str, device: MigDevice) -> bool:
    return str(device.profile).rpartition("c.")[2] == profile
