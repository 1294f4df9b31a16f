"""A layout out of a machine: what is, in the form in which it could be applied. Pure.

GPUs that are alike share an entry, as contracts/mig-exporter-validator.md 1.12 has it.
"""

from collections.abc import Sequence

import msgspec

from .layout import Entry, Filter, Layout
from .state import GpuState


def export(states: Sequence[GpuState]) -> Layout:
    """The layout that a machine has."""
    merged: list[Entry] = []
    for found in states:
        one = Entry(
            devices=(found.gpu.index,),
            filters=(_filter(found),),
            enabled=found.enabled,
            instances=dict(found.config),
        )
        at = next((at for at, other in enumerate(merged) if _alike(one, other)), None)
        if at is None:
            merged.append(one)
        else:
            merged[at] = _joined(merged[at], one)
    if len(merged) == 1:
        return (msgspec.structs.replace(_simplified(merged[0], states), filters=()),)
    return tuple(_simplified(entry, states) for entry in merged)


def _filter(found: GpuState) -> str:
    return str(Filter(found.gpu.pci_id))


def _alike(one: Entry, other: Entry) -> bool:
    return (one.enabled, one.instances) == (other.enabled, other.instances)


def _joined(one: Entry, other: Entry) -> Entry:
    return msgspec.structs.replace(
        one,
        devices=tuple(sorted({*(one.devices or ()), *(other.devices or ())})),
        filters=tuple(sorted({*one.filters, *other.filters})),
    )


def _simplified(entry: Entry, states: Sequence[GpuState]) -> Entry:
    """Without filters where the node has one kind of GPU, and for `all` devices where it covers its filters' GPUs."""
    covered = tuple(found.gpu.index for found in states if _filter(found) in entry.filters)
    kinds = {_filter(found) for found in states}
    return msgspec.structs.replace(
        entry,
        devices=None if covered == entry.devices else entry.devices,
        filters=() if len(kinds) == 1 else entry.filters,
    )
