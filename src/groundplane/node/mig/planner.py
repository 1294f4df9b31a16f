"""Which GPU instances a layout needs on a GPU, where each goes, and which compute instances it holds. Pure.

It knows nothing of GPU models: what a GPU offers and where it may be is what the driver says, with MIG on or off
(contracts/mig-exporter-validator.md 1.8, 1.9). Every layout that fits is planned, whatever the order it is written in,
and every other is refused before anything is touched. The work is bounded: places that were found to lead nowhere are
not tried again, and no two instances of one profile trade places.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ..devices import profiles
from ..devices.mig import InstanceProfile, Placement
from ..devices.model import Profile
from .errors import PlanError


class Planned(NamedTuple):
    """A GPU instance to make: of what profile, where, and the slices of its compute instances, largest first."""

    profile: InstanceProfile
    placement: Placement
    compute: tuple[int, ...]


def plan(offered: Sequence[InstanceProfile], wanted: Mapping[Profile, int]) -> tuple[Planned, ...]:
    """The GPU instances that have the wanted compute instances, in the order of their places.

    Raises :class:`~.errors.PlanError`, which says what does not fit and what would.
    """
    kinds = _by_name(offered)
    needed = [
        (kinds[whole], slices)
        for whole, counts in _by_instance(kinds, wanted).items()
        for slices in _shared(kinds[whole], counts)
    ]
    _check_engines(offered, [kind for kind, _ in needed])
    hardest = sorted(needed, key=lambda item: (len(item[0].placements), -item[0].memory_mib, item[0].number, item[1]))
    places = _search(tuple(kind for kind, _ in hardest))
    if places is None:
        raise PlanError(_explained(offered, [kind for kind, _ in needed]))
    made = [Planned(kind, place, slices) for (kind, slices), place in zip(hardest, places, strict=True)]
    return tuple(sorted(made, key=lambda each: each.placement))


def _by_name(offered: Sequence[InstanceProfile]) -> dict[Profile, InstanceProfile]:
    """What is offered by full name; of two of one name that of which more fit."""
    return {kind.profile: kind for kind in sorted(offered, key=lambda kind: (kind.most, -kind.number))}


def _by_instance(
    kinds: Mapping[Profile, InstanceProfile], wanted: Mapping[Profile, int]
) -> dict[Profile, dict[int, int]]:
    """How many compute instances of so many slices each kind of GPU instance has to hold."""
    found: dict[Profile, dict[int, int]] = {}
    for profile, count in wanted.items():
        whole = msgspec.structs.replace(profile, c=profile.g)
        if not count:
            continue
        if whole not in kinds:
            offered = ", ".join(map(str, kinds)) or "none (with MIG off, drivers up to 535 tell none)"
            raise PlanError(f"{profile} is no profile of this GPU; it offers {offered}")
        if profile.c not in _COMPUTE_SLICES or profile.c > profile.g:
            sizes = ", ".join(f"{size}c" for size in _COMPUTE_SLICES if size <= profile.g)
            raise PlanError(f"{profile}: no compute instance has {profile.c} of {profile.g} slices; expected {sizes}")
        found.setdefault(whole, {})[profile.c] = count
    return found


_COMPUTE_SLICES: Final = tuple(sorted(set(profiles.COMPUTE_INSTANCES.values())))


def _shared(kind: InstanceProfile, counts: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Compute instances, by slices, shared out to as few GPU instances as can be: each to the first with room.

    Largest first. That takes the fewest where a GPU has room for two or three of a kind, which are of 4 slices at most.
    """
    room = kind.profile.g
    total = sum(slices * count for slices, count in counts.items())
    if total > room * kind.most:
        asked = ", ".join(f"{count} x {slices}c" for slices, count in sorted(counts.items()))
        raise PlanError(f"{kind.profile}: {asked} are {total} slices; this GPU has room for {kind.most} x {room}")
    filled: list[list[int]] = []
    for slices, count in sorted(counts.items(), reverse=True):
        for _ in range(count):
            into = next((each for each in filled if sum(each) + slices <= room), None)
            if into is None:
                filled.append([slices])
            else:
                into.append(slices)
    if len(filled) > kind.most:
        raise PlanError(f"{kind.profile}: {len(filled)} are needed; this GPU has room for {kind.most}")
    return [tuple(each) for each in filled]


_MEDIA: Final = {"decoders": "decoders", "encoders": "encoders", "jpeg": "JPEG engines", "ofa": "OFA engines"}


def _check_engines(offered: Sequence[InstanceProfile], needed: Sequence[InstanceProfile]) -> None:
    """The GPU's engines are those of the instance that has most. Copy engines follow the slices."""
    for field, name in _MEDIA.items():
        most = max((getattr(kind.engines, field) for kind in offered), default=0)
        used = sum(getattr(kind.engines, field) for kind in needed)
        if used > most:
            raise PlanError(f"{_listed(needed)} need {used} {name}; this GPU has {most}")


def _search(kinds: tuple[InstanceProfile, ...]) -> list[Placement] | None:
    """Places for all, none overlapping another, or None. Equal kinds follow each other, and are placed in order."""
    dead: set[tuple[int, int, int]] = set()
    found: list[Placement] = []

    def place(at: int, used: int, least: int) -> bool:
        if at == len(kinds):
            return True
        if (at, used, least) in dead:
            return False
        for spot in sorted(kinds[at].placements):
            mask = ((1 << spot.size) - 1) << spot.start
            if used & mask or spot.start < least:
                continue
            found.append(spot)
            same = at + 1 < len(kinds) and kinds[at + 1].id == kinds[at].id
            if place(at + 1, used | mask, spot.start + spot.size if same else 0):
                return True
            found.pop()
        dead.add((at, used, least))
        return False

    return found if place(0, 0, 0) else None


def _explained(offered: Sequence[InstanceProfile], needed: Sequence[InstanceProfile]) -> str:
    for kind in needed:
        if not kind.placements:
            return f"the driver does not tell where {kind.profile} may be; a driver from R470 on does"
    slices = sum(kind.profile.g for kind in needed)
    most = max(kind.profile.g for kind in offered)
    if slices > most:
        return f"{_listed(needed)} need {slices} compute slices; this GPU has {most}"
    memory = sum(min(place.size for place in kind.placements) for kind in needed)
    there = max(place.start + place.size for kind in offered for place in kind.placements)
    if memory > there:
        return f"{_listed(needed)} need {memory} memory slices; this GPU has {there}"
    return f"{_listed(needed)} do not fit this GPU: there is no place for all of them at once"


def _listed(needed: Sequence[InstanceProfile]) -> str:
    return ", ".join(f"{count} x {profile}" for profile, count in Counter(kind.profile for kind in needed).items())


def orderings(slices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The distinct orders of some numbers, largest first; seven equal ones have one."""
    if not slices:
        yield ()
        return
    for first in sorted(set(slices), reverse=True):
        rest = list(slices)
        rest.remove(first)
        for more in orderings(rest):
            yield (first, *more)
