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

from groundplane.node.devices import models, nvmlerrors, simfile
from groundplane.node.devices.model import NO_INSTANCE, MigDevice
from groundplane.node.hostroot import write_atomic

SONAME = "libnvidia-ml.so.1"
VARIABLE = "MOCK_NVML"
"""The environment variable that names the machine's file."""

_SOURCE = Path(__file__).with_name("mocknvml.c")
_EVENT_KINDS = {"xid": 8, "doubleBitEcc": 2, "singleBitEcc": 1, "unreadable": 8}
_STATES = {"notStarted": 1, "inProgress": 2, "completed": 3}
_SLOTS = 7
_ID_OF_NUMBER = {0: 19, 1: 14, 2: 9, 3: 5, 4: 0, 7: 20, 9: 15}
"""Ids that a real A100 has for its profiles' numbers; others get 100 more than the number. They are not the numbers."""
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
        f"mig {-1 if gpu.mig is None else int(gpu.mig)}",
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
    if gpu.mig is not None:
        lines += _profiles(card.model)
        lines += [_mig_device(card.model, device, slots) for device in gpu.mig_devices]
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
        values = (kind.number, _gi_id(kind.number), kind.slices, model.instance_mib(kind), multiprocessors)
        lines.append(f"giprofile {' '.join(map(str, values))}")
    return lines + [f"ciprofile {number} {_ci_id(number)} {slices}" for number, slices in _COMPUTE.items()]


_COMPUTE = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1, 8: 7}


def _gi_id(number: int) -> int:
    return _ID_OF_NUMBER.get(number, number + 100)


def _ci_id(number: int) -> int:
    return number + 40


def _mig_device(model: models.Model, device: MigDevice, slots: Sequence[int] | None) -> str:
    whole = next(kind for profile, kind in model.kinds.items() if _same_instance(str(profile), device))
    compute = next(number for number, slices in _COMPUTE.items() if slices == device.ci_slices)
    values = (
        device.slot if slots is None else slots[device.slot],
        device.uuid,
        device.gi,
        device.ci,
        _gi_id(whole.number),
        _ci_id(compute),
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
