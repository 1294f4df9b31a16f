"""Rows out of samples: which entities are shown, how they are labelled, and the value of each field for each of them.

Pure (contracts/mig-exporter-validator.md 4, 5.2, 5.3, 5.7). A GPU that is cut into instances is shown as these, with
its own figures where an instance has none. Series with a history are ``derived``'s, whose a device is ``mapping``'s.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ...api import xids
from ..devices.model import Gpu
from ..devices.telemetry import Reading
from . import fields, text
from .counters import Counters
from .fields import Shown
from .history import History
from .sampler import GpuSample, Snapshot
from .settings import Selection, Settings
from .text import Family, Row

_NOTHING: Final = Reading()


class Entity(NamedTuple):
    """A GPU, or one of its GPU instances (``gi``), with its figures. ``lost``: it gave none."""

    sample: GpuSample
    gi: int | None
    reading: Reading
    lost: bool
    base: tuple[tuple[str, str], ...]
    labels: Mapping[str, str]
    shown: bool
    """Whether fields have rows of it; a GPU that is shown by its instances is there for what concerns it as a whole."""

    @property
    def gpu(self) -> Gpu:
        """The GPU, or that of the instance."""
        return self.sample.gpu


def entities(snapshot: Snapshot, counters: Counters, history: History, settings: Settings) -> list[Entity]:
    """All GPUs, each followed by those of its instances that are shown."""
    found: list[Entity] = []
    number = 0
    for sample in snapshot.samples:
        instances = {} if sample.reading is None else sample.instances
        ids = sorted(instances)
        chosen = [gi for at, gi in enumerate(ids, number) if _shows_instance(settings.selection, at)]
        number += len(ids)
        whole = _shows_gpu(settings.selection, sample.gpu.index, has_instances=bool(ids))
        found.append(_entity(snapshot, sample, None, sample.reading, counters, history, settings, shown=whole))
        found += (
            _entity(snapshot, sample, gi, instances[gi], counters, history, settings, shown=True) for gi in chosen
        )
    return found


def _shows_gpu(selection: Selection, index: int, *, has_instances: bool) -> bool:
    if selection.kind == "f":
        return not has_instances
    return selection.kind == "g" and (selection.numbers is None or index in selection.numbers)


def _shows_instance(selection: Selection, number: int) -> bool:
    return selection.kind == "f" or (
        selection.kind == "i" and (selection.numbers is None or number in selection.numbers)
    )


def missing(selection: Selection, snapshot: Snapshot) -> list[str]:
    """Devices that are named and not there (4)."""
    if selection.numbers is None:
        return []
    if selection.kind == "g":
        there = {sample.gpu.index for sample in snapshot.samples}
        return [f"GPU {number}" for number in selection.numbers if number not in there]
    count = sum(len(sample.instances) for sample in snapshot.samples)
    return [f"GPU instance {number}" for number in selection.numbers if number >= count]


def _entity(
    snapshot: Snapshot,
    sample: GpuSample,
    gi: int | None,
    reading: Reading | None,
    counters: Counters,
    history: History,
    settings: Settings,
    *,
    shown: bool,
) -> Entity:
    figures = reading if reading is not None else _NOTHING
    facts = _facts(snapshot, sample.gpu, figures, history)
    labels = {
        counter.name: str(value)
        for counter in counters.labels
        if counter.field is not None and (value := counter.field.compute(facts)) not in (None, "")
    }
    return Entity(sample, gi, figures, reading is None, base_labels(sample.gpu, gi, settings), labels, shown)


def _facts(snapshot: Snapshot, gpu: Gpu, reading: Reading, history: History) -> Shown:
    last = history.last_xid(gpu.uuid)
    return Shown(gpu, reading, last.code if last else 0, snapshot.driver_version, snapshot.nvml_version)


def base_labels(gpu: Gpu, gi: int | None, settings: Settings) -> tuple[tuple[str, str], ...]:
    """The labels that come first, in their order (5.3)."""
    model = re.sub(r"\s+", "-", gpu.name) if settings.dashes_in_model else gpu.name
    found = [
        ("gpu", str(gpu.index)),
        ("uuid" if settings.old_namespace else "UUID", gpu.uuid),
        ("pci_bus_id", gpu.bus_id),
        ("device", f"nvidia{gpu.index}"),
        ("modelName", model),
    ]
    if gi is not None:
        found += [("GPU_I_PROFILE", profile(gpu, gi)), ("GPU_I_ID", str(gi))]
    if settings.hostname:
        found.append((settings.hostname_label, settings.hostname))
    return tuple(found)


def profile(gpu: Gpu, gi: int) -> str:
    """The profile of a GPU instance, by its first compute instance."""
    device = next((each for each in gpu.mig_devices if each.gi == gi), None)
    return "" if device is None else str(msgspec.structs.replace(device.profile, c=device.profile.g))


def plain(shown: Sequence[Entity], counters: Counters, snapshot: Snapshot, history: History) -> Iterator[Family]:
    """The series of fields, in the order of the output."""
    facts = [_facts(snapshot, entity.gpu, entity.reading, history) for entity in shown]
    for counter in counters.series:
        field = counter.field
        if field is None:
            continue
        rows = []
        for at, entity in enumerate(shown):
            if not entity.shown or (entity.lost and counter.field is not _XID_FIELD):
                continue
            value = text.number(field.compute(facts[at]), field.form)
            if value is not None:
                attributes = _of_xid(facts[at].xid) if field is _XID_FIELD else {}
                rows.append(Row(at, value, attributes=attributes))
        yield Family(counter.name, counter.kind, counter.help, rows)


_XID_FIELD: Final = fields.find(fields.XID_ERRORS)


def _of_xid(code: int) -> dict[str, str]:
    return {"err_code": str(code), "err_msg": xids.text(code)}


def without_profiling(snapshot: Snapshot, counters: Counters) -> str:
    """Why profiling series that are wanted have no rows, in one sentence; empty if they have (5.1, 9 #14)."""
    wanted = [each for each in counters.series if each.field is not None and each.field.profiling]
    reasons: dict[str, list[str]] = {}
    for sample in snapshot.samples:
        if sample.reading is None:
            continue
        absent = [sample.reading.absent.get(name) for each in wanted if each.field for name in each.field.needs]
        if wanted and None not in absent:
            reasons.setdefault(f"{sample.gpu.name}: {absent[0]}", []).append(str(sample.gpu.index))
    told = "; ".join(f"GPU {', '.join(indices)} ({reason})" for reason, indices in reasons.items())
    if not told:
        return ""
    return (
        f"{', '.join(each.name for each in wanted)}: no rows of {told}. Without DCGM these need a GPU of the Hopper "
        "generation or later, and where the driver restricts profiling the capability SYS_ADMIN"
    )
