"""Preferred allocation: the contract's definitions, written out plainly, hold (device-plugin-gfd.md 4.2)."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.node.devices.source import Level, Pair
from groundplane.node.plugin import allocation
from groundplane.node.resources import physical_id

Table = list[list[int]]


def parted(devices: list[int], size: int, padding: int) -> Iterator[list[list[int]]]:
    """All partitions into sets of `size` in the contract's order; -1 and below are padding."""
    if len(devices) == size:
        yield [devices]
        return
    for others in itertools.combinations(devices[1:], size - 1):
        chosen = [devices[0], *others]
        if sum(each < 0 for each in chosen) not in (0, padding):
            continue
        for rest in parted([each for each in devices if each not in chosen], size, padding):
            yield [chosen, *rest]


def by_definition(count: int, must: set[int], size: int, table: Table) -> list[int]:
    """The aligned policy as the contract defines it."""
    if size <= 0 or count < size or len(must) > size:
        return []

    def worth(chosen: list[int]) -> int:
        return sum(table[a][b] for a, b in itertools.combinations(chosen, 2) if a >= 0 and b >= 0)

    def fits(chosen: list[int]) -> bool:
        return min(chosen) >= 0 and must <= set(chosen)

    padding = -count % size
    best: tuple[int, list[list[int]]] | None = None
    for partition in parted([*range(count), *range(-1, -padding - 1, -1)], size, padding):
        if any(map(fits, partition)):
            value = sum(map(worth, partition))
            if best is None or value > best[0]:
                best = value, partition
    assert best is not None
    return max(filter(fits, best[1]), key=worth)  # max keeps the first of equals


@st.composite
def machines(draw: st.DrawFn) -> tuple[int, Table]:
    """Up to eight GPUs; few distinct scores, so that ties are frequent."""
    count = draw(st.integers(1, 8))
    values = draw(st.sampled_from([(10, 20), (10, 20, 50), (10, 110, 210), tuple(range(0, 400, 10))]))
    table = [[0] * count for _ in range(count)]
    for one, other in itertools.combinations(range(count), 2):
        table[one][other] = table[other][one] = draw(st.sampled_from(values))
    return count, table


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, Table]:
    """Up to nine GPUs below switches and CPUs, in any order: many GPUs have equal neighbours."""
    spots = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=9))
    table = [
        [0 if i == j else 50 if one == other else 20 if one[0] == other[0] else 10 for j, other in enumerate(spots)]
        for i, one in enumerate(spots)
    ]
    return len(spots), table


@settings(max_examples=150, deadline=None)
@given(st.one_of(machines(), trees()), st.data())
def test_4_2_aligned_is_the_first_best_partition(machine: tuple[int, Table], data: st.DataObject) -> None:
    count, table = machine
    size = data.draw(st.integers(0, count + 1))
    must = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=size + 1))
    names = [f"GPU-{number}" for number in range(count)]
    found = allocation.aligned(names, [names[place] for place in must], size, _scores(names, table))
    assert found == [names[place] for place in by_definition(count, set(must), size, table)]


def _scores(names: list[str], table: Table) -> Callable[[str, str], int]:
    place = {name: number for number, name in enumerate(names)}
    return lambda one, other: table[place[one]][place[other]]


def hgx(one: str, other: str) -> int:
    """Eight or more GPUs, two a switch, half of them on each CPU."""
    a, b = int(one), int(other)
    level = Level.SINGLE_SWITCH if a // 2 == b // 2 else Level.SAME_NODE if a // 8 == b // 8 else Level.CROSS_CPU
    return allocation.score(Pair(level, 0))


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        ("01234567", "", 2, "01"),
        ("1234567", "", 2, "23"),
        ("0246", "", 2, "02"),
        ("01234567", "5", 2, "45"),
        ("01234567", "25", 4, "2345"),
        ("01", "", 0, ""),
        ("01", "", -1, ""),
        ("01", "", 3, ""),
        ("0123", "012", 2, ""),
        ("0123", "7", 2, ""),
        ("0123", "", 1, "0"),
        ("0123", "2", 1, "2"),
        ("3210", "", 2, "32"),
        ("01234", "", 5, "01234"),
    ],
)
def test_4_2_aligned_table(available: str, must: str, size: int, expected: str) -> None:
    assert "".join(allocation.aligned(list(available), list(must), size, hgx)) == expected


@pytest.mark.parametrize(
    ("level", "links", "expected"),
    [
        (Level.SAME_BOARD, 0, 60),
        (Level.SINGLE_SWITCH, 0, 50),
        (Level.MULTIPLE_SWITCHES, 0, 40),
        (Level.HOST_BRIDGE, 0, 30),
        (Level.SAME_NODE, 0, 20),
        (Level.CROSS_CPU, 0, 10),
        (Level.CROSS_CPU, 1, 110),
        (Level.SAME_NODE, 18, 1820),
    ],
)
def test_4_2_scores_of_pairs(level: Level, links: int, expected: int) -> None:
    assert allocation.score(Pair(level, links)) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 15, 16])
def test_sixteen_gpus_are_answered_whatever_the_size(size: int) -> None:
    names = [str(number) for number in range(16)]
    found = allocation.aligned(names, ["9"], size, hgx)
    assert len(found) == size and "9" in found


def test_an_estimate_where_the_search_would_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_WORK", 5_000)
    names = [f"GPU-{number}" for number in range(40)]

    def scores(one: str, other: str) -> int:
        a, b = sorted((int(one[4:]), int(other[4:])))
        return (a * 7919 + b * 104729) % 997

    found = allocation.aligned(names, ["GPU-17", "GPU-30"], 9, scores)
    assert len(set(found)) == 9
    assert {"GPU-17", "GPU-30"} <= set(found) <= set(names)


# --- greedy ----------------------------------------------------------------------------------------------------------


def shared(**free: int) -> list[str]:
    return [f"{name}::{number}" for name, count in free.items() for number in range(count)]


FOUR = {"A": 4, "B": 4}


@pytest.mark.parametrize(
    ("available", "must", "size", "policy", "expected"),
    [
        (shared(A=4, B=4), [], 3, "distributed", {"A": 2, "B": 1}),
        (shared(A=4, B=4), [], 3, "packed", {"A": 3}),
        (shared(A=4, B=1), [], 1, "distributed", {"A": 1}),
        (shared(A=4, B=1), [], 1, "packed", {"B": 1}),
        (shared(A=4, B=1), [], 2, "distributed", {"A": 2}),
        (shared(A=4, B=1), [], 2, "packed", {"B": 1, "A": 1}),
        (shared(A=4, B=4), ["A::0"], 2, "distributed", {"A": 1, "B": 1}),
        (shared(A=4, B=4), ["A::0", "A::1"], 2, "distributed", {"A": 2}),
        (shared(A=4, B=4), ["A::0", "A::1"], 1, "distributed", {"A": 2}),
        (shared(A=4, B=4), [], 0, "distributed", {}),
    ],
)
@pytest.mark.parametrize("least_picked", [True, False])
def test_4_2_greedy_table(
    available: list[str], must: list[str], size: int, policy: str, expected: dict[str, int], least_picked: bool
) -> None:
    found = allocation.greedy(available, must, size, FOUR, policy=policy, least_picked=least_picked)
    assert found[: len(must)] == must
    counts = {name: sum(physical_id(each) == name for each in found) for name in FOUR}
    assert {name: count for name, count in counts.items() if count} == expected


@pytest.mark.parametrize(("least_picked", "expected"), [(True, ["A::3", "B::0"]), (False, ["A::3", "A::2"])])
def test_4_2_tie_break_by_release(least_picked: bool, expected: list[str]) -> None:
    available = ["A::3", "A::2", "B::0", "C::0"]  # after one pick A has as many handed out as B: three
    found = allocation.greedy(available, [], 2, {"A": 4, "B": 4, "C": 9}, least_picked=least_picked)
    assert found == expected


@pytest.mark.parametrize(
    ("available", "must", "size", "text"),
    [
        (shared(A=1), [], 2, "not enough available devices to satisfy allocation"),
        (shared(A=1), ["A::0"], 2, "not enough available devices to satisfy allocation"),
        (["Z::0", "A::0"], [], 2, "not enough available devices to satisfy allocation"),
        (shared(A=1), ["Z::0"], 1, "unknown device: Z::0"),
    ],
)
def test_4_2_greedy_errors(available: list[str], must: list[str], size: int, text: str) -> None:
    with pytest.raises(allocation.AllocationError, match=text):
        allocation.greedy(available, must, size, FOUR)


@given(st.data())
def test_4_2_greedy_by_its_definition(data: st.DataObject) -> None:
    replicas = data.draw(st.dictionaries(st.sampled_from("ABCD"), st.integers(1, 4), min_size=1))
    every = [f"{name}::{number}" for name, count in replicas.items() for number in range(count)]
    available = data.draw(st.permutations(every))
    available = available[: data.draw(st.integers(0, len(every)))]
    size = data.draw(st.integers(0, len(available)))
    policy = data.draw(st.sampled_from(["distributed", "packed"]))
    found = allocation.greedy(available, [], size, replicas, policy=policy)
    assert len(found) == len(set(found)) == size
    assert set(found) <= set(available)
    left = set(available)
    picks = dict.fromkeys(replicas, 0)
    for name in found:
        free = {device: sum(physical_id(each) == device for each in left) for device in replicas}
        sign = 1 if policy == "distributed" else -1
        rank = {device: (sign * (replicas[device] - free[device]), picks[device]) for device in free if free[device]}
        assert rank[physical_id(name)] == min(rank.values())
        left.remove(name)
        picks[physical_id(name)] += 1
