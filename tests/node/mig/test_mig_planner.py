"""Every geometry of a GPU is planned, every other is refused (contracts/mig-exporter-validator.md 1.8, 1.9)."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.devices import models, profiles
from groundplane.node.devices.mig import InstanceProfile, Placement
from groundplane.node.devices.model import Profile
from groundplane.node.mig import planner
from groundplane.node.mig.errors import PlanError

MIG_MODELS = sorted(name for name, model in models.MODELS.items() if model.mig)
MEDIA = ("decoders", "encoders", "jpeg", "ofa")


def offered(name: str) -> tuple[InstanceProfile, ...]:
    model = models.MODELS[name]
    return tuple(
        InstanceProfile(
            number=kind.number,
            id=model.instance_profile_id(kind),
            profile=profile,
            most=kind.most,
            memory_mib=model.instance_mib(kind),
            multiprocessors=kind.slices * model.sliced.multiprocessors,
            engines=kind.engines,
            placements=tuple(Placement(start, kind.size) for start in kind.starts),
        )
        for profile, kind in model.kinds.items()
    )


def config(text: str) -> dict[Profile, int]:
    pairs = (part.split(":") for part in text.split())
    return {profiles.parse(name): int(count) for name, count in pairs}


def fitting(kinds: tuple[InstanceProfile, ...]) -> set[tuple[int, ...]]:
    """By brute force: how many of each kind, for every set of places that do not overlap, within counts and engines."""
    places = [(at, place) for at, kind in enumerate(kinds) for place in kind.placements]
    most = {field: max(getattr(kind.engines, field) for kind in kinds) for field in MEDIA}
    found: set[tuple[int, ...]] = set()

    def choose(first: int, used: int, counts: tuple[int, ...]) -> None:
        if any(
            sum(count * getattr(kind.engines, field) for count, kind in zip(counts, kinds, strict=True)) > most[field]
            for field in MEDIA
        ):
            return
        found.add(counts)
        for next_ in range(first, len(places)):
            at, place = places[next_]
            mask = ((1 << place.size) - 1) << place.start
            if not used & mask and counts[at] < kinds[at].most:
                choose(next_ + 1, used | mask, (*counts[:at], counts[at] + 1, *counts[at + 1 :]))

    choose(0, 0, (0,) * len(kinds))
    return found


def check_plan(wanted: Mapping[Profile, int], plan: tuple[planner.Planned, ...]) -> None:
    """A plan makes what is wanted, at places that are allowed and free."""
    used = 0
    for each in plan:
        assert each.placement in each.profile.placements
        mask = ((1 << each.placement.size) - 1) << each.placement.start
        assert not used & mask
        used |= mask
        assert sum(each.compute) <= each.profile.profile.g
    made = Counter(
        Profile(slices, each.profile.profile.g, each.profile.profile.gb, each.profile.profile.suffix)
        for each in plan
        for slices in each.compute
    )
    assert made == {profile: count for profile, count in wanted.items() if count}


@pytest.mark.parametrize("name", MIG_MODELS)
def test_1_8_1_9_every_geometry(name: str) -> None:
    """What fits stays fitting with less, so that all that does not holds one that is one more than some that fits."""
    kinds = offered(name)
    allowed = fitting(kinds)
    beyond = {
        (*counts[:at], counts[at] + 1, *counts[at + 1 :]) for counts in allowed for at in range(len(kinds))
    } - allowed
    for counts in allowed:
        wanted = {kind.profile: count for kind, count in zip(kinds, counts, strict=True)}
        check_plan(wanted, planner.plan(kinds, wanted))
    for counts in beyond:
        with pytest.raises(PlanError):
            planner.plan(kinds, {kind.profile: count for kind, count in zip(kinds, counts, strict=True)})


@pytest.mark.parametrize(
    "wanted", ["1g.5gb:8", "1g.5gb:4 2g.10gb:2", "3g.20gb:2 1g.5gb:1", "1g.5gb+me:2", "4g.20gb:2", "7g.40gb:1 1g.5gb:1"]
)
def test_1_9_refused_on_an_a100_40(wanted: str) -> None:
    with pytest.raises(PlanError):
        planner.plan(offered("A100-SXM4-40GB"), config(wanted))


@pytest.mark.parametrize(
    ("wanted", "instances"),
    [
        ("1g.5gb:3 2g.10gb:2", 5),
        ("4g.20gb:1 3g.20gb:1", 2),
        ("2g.10gb:3 1g.5gb:1", 4),
        ("3g.20gb:1 1g.5gb:4", 5),
        ("1g.5gb:4 3g.20gb:1", 5),
        ("1c.3g.20gb:6", 2),
        ("1c.3g.20gb:1 2c.3g.20gb:1", 1),
        ("1c.3g.20gb:4", 2),
        ("1c.7g.40gb:7", 1),
        ("1c.7g.40gb:2 1c.4g.20gb:0 2c.7g.40gb:1 3c.7g.40gb:1", 1),
        ("2c.3g.20gb:2 1c.3g.20gb:2", 2),
        ("1g.10gb:4", 4),
        ("1g.10gb:1 1g.5gb:5", 6),
        ("", 0),
    ],
)
def test_1_9_planned_on_an_a100_40(wanted: str, instances: int) -> None:
    plan = planner.plan(offered("A100-SXM4-40GB"), config(wanted))
    check_plan(config(wanted), plan)
    assert len(plan) == instances


def test_1_9_the_order_of_the_file_does_not_matter() -> None:
    kinds = offered("A100-SXM4-40GB")
    items = list(config("3g.20gb:1 2g.10gb:1 1g.5gb:2").items())
    plans = {planner.plan(kinds, dict(order)) for order in permutations(items)}
    assert len(plans) == 1


@pytest.mark.parametrize(
    ("name", "wanted", "words"),
    [
        ("A100-SXM4-40GB", "1g.5gb:8", "1g.5gb: 8 x 1c are 8 slices; this GPU has room for 7 x 1"),
        ("A100-SXM4-40GB", "1c.3g.20gb:7", "7 x 1c are 7 slices; this GPU has room for 2 x 3"),
        ("A100-SXM4-40GB", "2c.3g.20gb:3", "3g.20gb: 3 are needed; this GPU has room for 2"),
        ("A100-SXM4-40GB", "0g.0gb:1", "0g.0gb is no profile of this GPU; it offers"),
        ("A100-SXM4-40GB", "1g.10gb+me:1", "is no profile of this GPU"),
        ("A100-SXM4-40GB", "3g.40gb:1", "is no profile of this GPU; it offers"),
        ("A100-SXM4-40GB", "5c.7g.40gb:1", "no compute instance has 5 of 7 slices; expected 1c, 2c, 3c, 4c, 6c, 7c"),
        ("A100-SXM4-40GB", "2c.1g.5gb:1", "no compute instance has 2 of 1 slices"),
        ("A100-SXM4-40GB", "4g.20gb:1 3g.20gb:1 1g.5gb:1", "need 8 compute slices; this GPU has 7"),
        ("A100-SXM4-40GB", "3g.20gb:2 1g.5gb:1", "2 x 3g.20gb, 1 x 1g.5gb need 9 memory slices; this GPU has 8"),
        ("A100-SXM4-40GB", "1g.5gb:999999999999", "room for 7 x 1"),
        ("A100-SXM4-40GB", "2g.10gb:3 1g.10gb:1 1g.5gb:1", "need 8 compute slices"),
        ("RTX-PRO-6000", "1g.24gb+me.all:1 1g.24gb:1", "need 5 decoders; this GPU has 4"),
    ],
)
def test_what_does_not_fit_is_explained(name: str, wanted: str, words: str) -> None:
    with pytest.raises(PlanError) as raised:
        planner.plan(offered(name), config(wanted))
    assert words in str(raised.value)


def test_without_places_the_driver_is_too_old() -> None:
    kinds = [msgspec.structs.replace(kind, placements=()) for kind in offered("A30")]
    with pytest.raises(PlanError, match=r"the driver does not tell where 1g\.6gb may be"):
        planner.plan(kinds, config("1g.6gb:1"))
    with pytest.raises(PlanError, match="it offers none"):
        planner.plan((), config("1g.6gb:1"))


def test_places_may_be_in_each_others_way() -> None:
    one, two = (kind for kind in offered("A30") if str(kind.profile) in ("1g.6gb", "2g.12gb"))
    kinds = (one, msgspec.structs.replace(two, placements=(Placement(1, 2),)), *offered("A30")[2:])
    check_plan(config("1g.6gb:2 2g.12gb:1"), planner.plan(kinds, config("1g.6gb:2 2g.12gb:1")))
    kinds = (msgspec.structs.replace(one, placements=(Placement(1, 1), Placement(2, 1))), *kinds[1:])
    with pytest.raises(PlanError, match=r"1 x 1g\.6gb, 1 x 2g\.12gb do not fit this GPU: there is no place for all"):
        planner.plan(kinds, config("1g.6gb:1 2g.12gb:1"))


def test_of_two_profiles_of_one_name_that_is_taken_of_which_more_fit() -> None:
    (kind,) = [kind for kind in offered("A30") if str(kind.profile) == "1g.6gb"]
    other = msgspec.structs.replace(kind, id=99, number=9, most=2, placements=(Placement(0, 2), Placement(2, 2)))
    for kinds in ((kind, other), (other, kind)):
        assert {each.profile.id for each in planner.plan(kinds, config("1g.6gb:4"))} == {kind.id}


# --- sharing GPU instances among compute instances --------------------------------------------------------------------


@functools.cache
def _packable(sizes: tuple[int, ...], bins: tuple[int, ...]) -> bool:
    """By brute force: whether numbers fit bins with so much room."""
    if not sizes:
        return True
    return any(
        _packable(sizes[1:], tuple(sorted((*bins[:at], room - sizes[0], *bins[at + 1 :]))))
        for at, room in enumerate(bins)
        if room >= sizes[0]
    )


def _multisets(sizes: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for count in range(most // sizes[0] + 1):
        for rest in _multisets(sizes[1:], most - count * sizes[0]):
            yield (count, *rest)


@pytest.mark.parametrize("name", ["A30", "A100-SXM4-40GB", "RTX-PRO-6000", "RTX-PRO-4500"])
def test_1_9_compute_instances_share_as_few_gpu_instances_as_can_be(name: str) -> None:
    for kind in offered(name):
        whole = kind.profile
        sizes = tuple(size for size in (1, 2, 3, 4, 7) if size <= whole.g)
        for counts in _multisets(sizes, whole.g * kind.most + 1):
            wanted = {
                Profile(size, whole.g, whole.gb, whole.suffix): count for size, count in zip(sizes, counts, strict=True)
            }
            items = tuple(size for size, count in zip(sizes, counts, strict=True) for _ in range(count))
            need = next((n for n in range(kind.most + 1) if _packable(items, (whole.g,) * n)), None)
            if need is None:
                with pytest.raises(PlanError):
                    planner.plan(offered(name), wanted)
                continue
            plan = planner.plan(offered(name), wanted)
            check_plan(wanted, plan)
            assert len(plan) == need


@given(st.lists(st.integers(1, 4), max_size=6))
def test_orderings_are_distinct_and_all(slices: list[int]) -> None:
    found = list(planner.orderings(slices))
    assert len(found) == len(set(found))
    assert set(found) == set(permutations(slices))
    assert found[0] == tuple(sorted(slices, reverse=True))


def test_1_9_5_seven_alike_have_one_ordering() -> None:
    assert list(planner.orderings([1] * 7)) == [(1,) * 7]
