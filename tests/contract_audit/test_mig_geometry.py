"""Places, counts and processors of GPU instances are those of mig-exporter-validator.md 1.8; what fits them is planned.

The tables here are the contract's, not the models': which layouts there are follows from places and counts alone.
"""

from itertools import product

import pytest

from groundplane.node.devices import models
from groundplane.node.devices.mig import InstanceProfile, Placement
from groundplane.node.mig import planner
from groundplane.node.mig.errors import PlanError

SEVEN = {
    0: [(start, 1) for start in range(7)],
    7: [(start, 1) for start in range(7)],
    9: [(start, 2) for start in (0, 2, 4, 6)],
    1: [(start, 2) for start in (0, 2, 4)],
    2: [(start, 4) for start in (0, 4)],
    3: [(0, 4)],
    4: [(0, 8)],
}
FOUR = {
    0: [(start, 1) for start in range(4)],
    7: [(start, 1) for start in range(4)],
    1: [(start, 2) for start in (0, 2)],
    8: [(start, 2) for start in (0, 2)],
    3: [(0, 4)],
}
"""By NVML's number of a profile, start and size of its places in memory slices."""
SLICES = {0: 1, 7: 1, 9: 1, 1: 2, 8: 2, 2: 3, 3: 4, 4: 7}
MOST = {0: 7, 7: 1, 9: 4, 1: 3, 2: 2, 3: 1, 4: 1}
MOST_A30 = {0: 4, 7: 1, 1: 2, 8: 1, 3: 1}
SEVEN_SLICES = sorted(name for name, model in models.MODELS.items() if model.mig and model.sliced.slices == 7)
PROCESSORS = {"A30": 14, "A100": 14, "H100": 16, "H200": 16, "B200": 18}


def _offered(name: str) -> tuple[InstanceProfile, ...]:
    """What a GPU offers, with places and counts out of the contract."""
    model = models.MODELS[name]
    places, most = (FOUR, MOST_A30) if name == "A30" else (SEVEN, MOST)
    return tuple(
        InstanceProfile(
            number=kind.number,
            id=100 + kind.number,
            profile=profile,
            most=most[kind.number],
            memory_mib=model.instance_mib(kind),
            multiprocessors=1,
            engines=kind.engines,
            placements=tuple(Placement(start, size) for start, size in places[kind.number]),
        )
        for profile, kind in model.kinds.items()
    )


def _fits(counts: dict[int, int], places: dict[int, list[tuple[int, int]]]) -> bool:
    """Whether so many of each can be placed, each where it may be, by trying all."""
    wanted = sorted((number for number, count in counts.items() for _ in range(count)), key=lambda n: len(places[n]))

    def place(at: int, used: int) -> bool:
        if at == len(wanted):
            return True
        masks = (((1 << size) - 1) << start for start, size in places[wanted[at]])
        return any(not used & mask and place(at + 1, used | mask) for mask in masks)

    return place(0, 0)


@pytest.mark.parametrize("name", [*SEVEN_SLICES, "A30"])
def test_1_8_places_and_counts(name: str) -> None:
    places, most = (FOUR, MOST_A30) if name == "A30" else (SEVEN, MOST)
    kinds = models.MODELS[name].kinds.values()
    assert {kind.number: [(start, kind.size) for start in kind.starts] for kind in kinds} == places
    assert {kind.number: kind.most for kind in kinds} == most
    assert {kind.number: kind.slices for kind in kinds} == {number: SLICES[number] for number in most}


def test_1_8_processors() -> None:
    for name, model in models.MODELS.items():
        expected = next((count for prefix, count in PROCESSORS.items() if model.mig and name.startswith(prefix)), None)
        if expected is not None:
            assert model.sliced.multiprocessors == expected, name


@pytest.mark.parametrize("name", ["A100-SXM4-40GB", "H100-SXM5-80GB", "B300", "A30"])
def test_1_9_exactly_what_fits_is_planned(name: str) -> None:
    """All counts of all profiles up to one more than the most there can be; the media extensions are given once."""
    places, most = (FOUR, MOST_A30) if name == "A30" else (SEVEN, MOST)
    offered, slices = _offered(name), 4 if name == "A30" else 7
    by_number = {kind.number: kind.profile for kind in offered}
    planned = 0
    for numbers in product(*(range(count + 2) for count in most.values())):
        counts = dict(zip(most, numbers, strict=True))
        if sum(SLICES[number] * count for number, count in counts.items()) > slices + 1:
            continue
        within = all(count <= most[number] for number, count in counts.items()) and counts[7] + counts.get(8, 0) <= 1
        enough = sum(SLICES[number] * count for number, count in counts.items()) <= slices
        fits = within and enough and _fits(counts, places)
        try:
            plan = planner.plan(offered, {by_number[number]: count for number, count in counts.items()})
        except PlanError:
            assert not fits, counts
            continue
        planned += 1
        assert fits, counts
        assert len(plan) == sum(numbers)
    assert planned > 10
