"""Which GPUs and MIG devices a spec has, from ids that a person writes, and what they are called.

contracts/toolkit-cdi.md 3.2. Pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ..devices.model import Gpu, Inventory, MigDevice
from .options import GenerateError, Strategy

ALL, NONE = "all", "none"
_OLD_MIG: Final = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")
_MIG_INDEX: Final = re.compile(r"(\d+):(\d+)")


class Selected(NamedTuple):
    """A GPU, or one of its MIG devices."""

    gpu: Gpu
    mig: MigDevice | None = None


_NAMES: Final[Mapping[Strategy, tuple[Callable[[Gpu], str], Callable[[Gpu, MigDevice], str]]]] = {
    Strategy.INDEX: (lambda gpu: f"{gpu.index}", lambda gpu, mig: f"{gpu.index}:{mig.slot}"),
    Strategy.TYPE_INDEX: (lambda gpu: f"gpu{gpu.index}", lambda gpu, mig: f"mig{gpu.index}:{mig.slot}"),
    Strategy.UUID: (lambda gpu: gpu.uuid, lambda gpu, mig: mig.uuid),
}


def names(device: Selected, strategies: Iterable[Strategy]) -> list[str]:
    """A device's names, one for each strategy."""
    found = (
        _NAMES[each][0](device.gpu) if device.mig is None else _NAMES[each][1](device.gpu, device.mig)
        for each in strategies
    )
    return list(dict.fromkeys(found))


def select(inventory: Inventory, ids: Iterable[str]) -> list[Selected]:
    """The devices that some ids name, each once; ``all`` among them names each.

    A GPU with MIG mode on is no device, whether it has MIG devices or not. Raises :class:`GenerateError` for an id that
    names none.
    """
    ids = tuple(ids)
    if ALL in ids:
        return list(_everything(inventory))
    return list({_key(found): found for found in (_one(inventory, each) for each in ids)}.values())


def _key(device: Selected) -> tuple[int, int]:
    return device.gpu.index, -1 if device.mig is None else device.mig.slot


def _everything(inventory: Inventory) -> Iterator[Selected]:
    yield from (Selected(gpu) for gpu in inventory.gpus if not gpu.mig_enabled)
    yield from (Selected(gpu, mig) for gpu in inventory.gpus for mig in gpu.mig_devices)


def _one(inventory: Inventory, text: str) -> Selected:
    for gpu in inventory.gpus:
        if text in (gpu.uuid, str(gpu.index)):
            if gpu.mig_enabled:
                raise GenerateError(f"GPU {text} is in MIG mode, and no device as a whole: name its MIG devices")
            return Selected(gpu)
        for mig in gpu.mig_devices:
            if _is_mig(text, gpu, mig):
                return Selected(gpu, mig)
    there = ", ".join(names(each, [Strategy.INDEX])[0] for each in _everything(inventory)) or "none"
    raise GenerateError(
        f"unknown device id {text!r}: it must be all, none, the index or UUID of a GPU or MIG device; there are {there}"
    )


def _is_mig(text: str, gpu: Gpu, mig: MigDevice) -> bool:
    if text == mig.uuid:
        return True
    if match := _MIG_INDEX.fullmatch(text):
        return (int(match[1]), int(match[2])) == (gpu.index, mig.slot)
    match = _OLD_MIG.fullmatch(text)
    return match is not None and (match[1], int(match[2]), int(match[3])) == (gpu.uuid, mig.gi, mig.ci)
