"""Whether GPU instances fit a GPU, and where: the rules that the hardware enforces. Pure.

An instance takes compute slices, a run of memory slices that starts where its profile may start, and engines. Placing
is done for the simulation; which layout somebody wants, and making it on a real GPU, is not this module's concern.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .model import Profile
from .models import Engines, Kind, Layout, Model


class GeometryError(ValueError):
    """The instances do not fit the GPU; the message says why and what would."""


class Wanted(NamedTuple):
    """A GPU instance to place: its full profile, and the memory slice where it must start, if that matters."""

    profile: Profile
    start: int | None = None


def place(model: Model, wanted: Sequence[Wanted]) -> list[int]:
    """Where each GPU instance starts, in memory slices. Every set that fits is placed, in whatever order it is given.

    Raises :class:`GeometryError` (contracts/mig-exporter-validator.md 1.8, 1.9).
    """
    kinds = model.kinds
    for profile, start in wanted:
        if profile not in kinds:
            offered = ", ".join(map(str, kinds)) or "no MIG instances"
            raise GeometryError(f"{profile} is no GPU instance of {model.product}; it offers {offered}")
        if start is not None and start not in kinds[profile].starts:
            places = ", ".join(map(str, kinds[profile].starts))
            raise GeometryError(f"{profile} cannot start at memory slice {start}; it can at {places}")
    layout = model.sliced
    _check_sums(model, layout, [(profile, kinds[profile]) for profile, _ in wanted])
    hardest = sorted(range(len(wanted)), key=lambda at: (wanted[at].start is None, -kinds[wanted[at].profile].size))
    starts = _search(layout, [(kinds[wanted[at].profile], wanted[at].start) for at in hardest], 0)
    if starts is None:
        raise GeometryError(f"{_listed(wanted)} do not fit {model.product}: there is no place for all of them at once")
    return [start for _, start in sorted(zip(hardest, starts, strict=True))]


def instance_id(layout: Layout, kind: Kind, start: int) -> int:
    """A GPU instance's id: instances of half the size follow those of the whole, so that no two that fit have one."""
    return layout.memory_slices // kind.size - 1 + start // kind.size


def _check_sums(model: Model, layout: Layout, wanted: Sequence[tuple[Profile, Kind]]) -> None:
    for (profile, kind), count in Counter(wanted).items():
        if count > kind.most:
            raise GeometryError(f"{profile} {count} times; {model.product} has room for {kind.most}")
    slices = sum(kind.slices for _, kind in wanted)
    if slices > layout.slices:
        raise GeometryError(f"{slices} compute slices in all; {model.product} has {layout.slices}")
    for name, most in layout.engines._asdict().items():
        used = sum(getattr(kind.engines, name) for _, kind in wanted)
        if used > most:
            raise GeometryError(f"{used} {_ENGINES[name]} in all; {model.product} has {most}")


_ENGINES = dict(
    zip(Engines._fields, ("copy engines", "decoders", "encoders", "JPEG engines", "OFA engines"), strict=True)
)


def _search(layout: Layout, wanted: Sequence[tuple[Kind, int | None]], used: int) -> list[int] | None:
    """Starts of the first way to place all, by backtracking; `used` has a bit for each memory slice taken."""
    if not wanted:
        return []
    (kind, fixed), rest = wanted[0], wanted[1:]
    for start in kind.starts if fixed is None else (fixed,):
        mask = ((1 << kind.size) - 1) << start
        if start + kind.size > layout.memory_slices or used & mask:
            continue
        found = _search(layout, rest, used | mask)
        if found is not None:
            return [start, *found]
    return None


def _listed(wanted: Sequence[Wanted]) -> str:
    return ", ".join(f"{count} x {profile}" for profile, count in Counter(each.profile for each in wanted).items())
