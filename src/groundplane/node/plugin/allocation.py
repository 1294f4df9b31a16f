"""Which devices to prefer: the aligned policy for whole GPUs and the greedy ones for everything else.

Pure functions over ids and scores (contracts/device-plugin-gfd.md 4.2). The aligned policy is defined as a search
through all ways to part the available GPUs into sets, which are two million for four out of sixteen; here the same
answer is found by remembering what is best for each rest, and by never telling apart GPUs with equal neighbours.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

from ..devices.source import Level, Pair
from ..resources import physical_id

LEVEL_SCORES: Final = {
    Level.SAME_BOARD: 60,
    Level.SINGLE_SWITCH: 50,
    Level.MULTIPLE_SWITCHES: 40,
    Level.HOST_BRIDGE: 30,
    Level.SAME_NODE: 20,
    Level.CROSS_CPU: 10,
}
NVLINK_SCORE: Final = 100

DISTRIBUTED: Final = "distributed"
PACKED: Final = "packed"

_WORK: Final = 600_000
"""Steps after which the exact search is given up for an estimate: a few seconds.

Sixteen GPUs no two of which are connected alike need fewer, and so does any known machine.
"""


class AllocationError(ValueError):
    """No preference can be told; the text is the RPC's error."""


def score(pair: Pair) -> int:
    """What it is worth to have two GPUs in one container."""
    return LEVEL_SCORES[pair.level] + NVLINK_SCORE * pair.nvlinks


# --- greedy ----------------------------------------------------------------------------------------------------------


def greedy(
    available: Sequence[str],
    must: Sequence[str],
    size: int,
    replicas: Mapping[str, int],
    *,
    policy: str = DISTRIBUTED,
    least_picked: bool = True,
) -> list[str]:
    """Pick replicas one by one, from the device with the fewest (``distributed``) or most (``packed``) handed out.

    ``replicas`` says how many there are of each physical device; ids of none of these are never picked. Among devices
    of which equally many are handed out, with ``least_picked`` the one comes first that was picked least often in this
    call; otherwise, and then, the order is that of ``available``.

    Raises:
        AllocationError: there are too few candidates, or a device that must be included is unknown.
    """
    _refuse_unknown(must, replicas)
    included = set(must)
    candidates: dict[str, list[str]] = {}
    for name in dict.fromkeys(available):
        if name not in included and physical_id(name) in replicas:
            candidates.setdefault(physical_id(name), []).append(name)
    wanted = size - len(must)
    if sum(map(len, candidates.values())) < wanted:
        raise AllocationError("not enough available devices to satisfy allocation")
    sign = -1 if policy == PACKED else 1
    picked: dict[str, int] = dict.fromkeys(candidates, 0)

    def rank(device: str) -> tuple[int, int]:
        allocated = replicas[device] - len(candidates[device])
        return sign * allocated, picked[device] if least_picked else 0

    chosen = list(must)
    for _ in range(wanted):
        device = min((device for device, left in candidates.items() if left), key=rank)
        chosen.append(candidates[device].pop(0))
        picked[device] += 1
    return chosen


def _refuse_unknown(names: Sequence[str], known: Mapping[str, object]) -> None:
    for name in names:
        if physical_id(name) not in known:
            raise AllocationError(f"unknown device: {name}")


# --- aligned ---------------------------------------------------------------------------------------------------------


def aligned(available: Sequence[str], must: Sequence[str], size: int, scores: Callable[[str, str], int]) -> list[str]:
    """The best-connected set of whole GPUs, chosen so that what is left over is well connected too.

    Of all ways to part the available GPUs into sets of ``size`` (with one smaller set where they don't come out even),
    the first with the highest sum of scores over all pairs in a set counts; of its full sets that hold all of ``must``,
    the first with the highest score is the answer. Empty when there is none. ``scores`` must be symmetric.
    """
    gpus = list(dict.fromkeys(available))
    required = set(must)
    if size <= 0 or len(gpus) < size or len(required) > size or not required <= set(gpus):
        return []
    table = [[0 if one == other else scores(one, other) for other in gpus] for one in gpus]
    wanted = sum(1 << place for place, name in enumerate(gpus) if name in required)
    try:
        chosen = _Search(table, size, wanted).answer()
    except _TooMuchWork:
        chosen = _estimate(table, size, wanted)
    return [name for place, name in enumerate(gpus) if chosen >> place & 1]


class _TooMuchWork(Exception):  # noqa: N818 - tells of no fault
    """The search has used up its steps."""


class _Search:
    """The search for the best partition. Sets of GPUs are bit masks over their places; the first GPU is bit 0.

    Where GPUs don't come out even, bits beyond the last GPU pad the smaller set; padding is never split.
    """

    def __init__(self, scores: list[list[int]], size: int, required: int) -> None:
        self._scores = scores
        self._size = size
        self._required = required
        count = len(scores)
        padding = -count % size
        self._padding = (1 << padding) - 1 << count
        self._all = (1 << count) - 1 | self._padding
        classes = _classes(scores, required)
        self._twin = _previous_twins(classes)
        self._alike = _alike_classes(scores, classes, required)
        self._most = [_sums_of_highest(row, place) for place, row in enumerate(scores)]
        self._known: dict[int, int | None] = {}
        self._by_shape: dict[tuple[object, ...], int | None] = {}
        self._work = 0

    def answer(self) -> int:
        """The best set that holds all required GPUs, of the best partition."""
        best, best_score = 0, -1
        rest = self._all
        while rest:
            found = self._find(rest)
            if found is None:  # cannot be: some full set has room for all that is required
                break
            chosen = found[1]
            rest &= ~chosen
            if not chosen & self._padding and chosen & self._required == self._required:
                value = _inner(self._scores, chosen)
                if value > best_score:
                    best, best_score = chosen, value
        return best

    def _best(self, rest: int) -> int | None:
        """The highest sum that a rest can be parted into; None if no partition has a full set for what is required."""
        if rest not in self._known:
            shape = self._shape(rest)
            if shape not in self._by_shape:
                found = self._find(rest)
                self._by_shape[shape] = None if found is None else found[0]
            self._known[rest] = self._by_shape[shape]
        return self._known[rest]

    def _shape(self, rest: int) -> tuple[object, ...]:
        """What the best sum depends on: how many GPUs of each class are left, whichever of classes that are alike."""
        counts = (tuple(sorted((rest & each).bit_count() for each in classes)) for classes in self._alike)
        return (rest & self._padding != 0, *counts)

    def _find(self, rest: int) -> tuple[int, int] | None:
        """The highest sum, and the first set of the first partition that has it."""
        sets_left = rest.bit_count() // self._size
        if sets_left == 1:
            return None if rest & self._required and rest & self._padding else (_inner(self._scores, rest), rest)
        best: tuple[int, int] | None = None
        for base, free in self._beginnings(rest):
            need = self._size - base.bit_count()
            found = self._two(rest, base, free, need) if sets_left == 2 else self._many(rest, base, free, need)
            if found is not None and (best is None or found[0] > best[0] or _is_tie_before(found, best)):
                best = found
        return best

    def _beginnings(self, rest: int) -> list[tuple[int, int]]:
        """What the set with the first GPU of the rest can begin with, and what it can be filled up from."""
        first = rest & -rest
        required, padding = rest & self._required, rest & self._padding
        free = rest & ~(required | padding | first)
        found = []
        if not first & required:  # a set without any that is required
            found.append((first, free))
            if padding:
                found.append((first | padding, free))
        if required:
            found.append((first | required, free))
        return [(base, free) for base, free in found if base.bit_count() <= self._size]

    def _many(self, rest: int, base: int, free: int, need: int) -> tuple[int, int] | None:
        """The best first set, where what it leaves has to be parted again."""
        gains = [0] * len(self._scores)
        for place in _places(base & ~self._padding):
            gains = [gain + more for gain, more in zip(gains, self._scores[place], strict=True)]
        best: tuple[int, int] | None = None

        def look(chosen: int, value: int) -> None:
            nonlocal best
            other = self._best(rest & ~chosen)
            if other is not None and (best is None or value + other > best[0]):
                best = value + other, chosen

        self._fill(
            base, _inner(self._scores, base & ~self._padding), gains, _places(free), free, need, self._scores, look
        )
        return best

    def _two(self, rest: int, base: int, free: int, need: int) -> tuple[int, int] | None:
        """The best first set, where what it leaves is the last set.

        The pairs of the last set are all pairs of the rest, without those that have a GPU in the first set; so both
        sets' sum is told from the first set alone, which is what makes eight out of sixteen fast.
        """
        last_free = rest & ~base & ~free
        if last_free & self._required and last_free & self._padding:
            return None
        gpus = _places(rest & ~self._padding)
        doubled = [[2 * each for each in row] for row in self._scores]
        gains = [-sum(row[place] for place in gpus) for row in self._scores]
        value = _inner(self._scores, rest & ~self._padding)
        for place in _places(base & ~self._padding):
            value += gains[place]
            gains = [gain + more for gain, more in zip(gains, doubled[place], strict=True)]
        best: tuple[int, int] | None = None

        def look(chosen: int, value: int) -> None:
            nonlocal best
            if best is None or value > best[0]:
                best = value, chosen

        def hopeless(value: int, gains: list[int], free: list[int], need: int) -> bool:
            """Whether no way to fill up is better: each GPU adds its gain and at most its highest scores."""
            if best is None:
                return False
            most = sorted([gains[place] + self._most[place][need - 1] for place in free], reverse=True)
            return value + sum(most[:need]) <= best[0]

        self._fill(base, value, gains, _places(free), free, need, doubled, look, hopeless)
        return best

    def _fill(
        self,
        chosen: int,
        value: int,
        gains: list[int],
        free: list[int],
        open_: int,
        need: int,
        scores: list[list[int]],
        look: Callable[[int, int], None],
        hopeless: Callable[[int, list[int], list[int], int], bool] | None = None,
    ) -> None:
        """Show ``look`` all ways to fill up a set, in the order of places; of twins in ``open_`` the earlier is first.

        ``gains`` says what each GPU would add to the value beside those chosen; ``hopeless``, what need not be tried.
        """
        self._work += 1
        if self._work > _WORK:
            raise _TooMuchWork
        if need == 0:
            look(chosen, value)
            return
        if need > 2 and hopeless is not None and hopeless(value, gains, free, need):
            return
        for number, place in enumerate(free[: len(free) - need + 1]):
            bit = 1 << place
            if self._twin[place] & open_ & ~chosen:
                continue
            if need == 1:
                look(chosen | bit, value + gains[place])
                continue
            more = [gain + extra for gain, extra in zip(gains, scores[place], strict=True)]
            self._fill(
                chosen | bit, value + gains[place], more, free[number + 1 :], open_, need - 1, scores, look, hopeless
            )


def _places(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def _inner(scores: list[list[int]], mask: int) -> int:
    """The sum over all pairs of a set; padding counts nothing."""
    places = [place for place in _places(mask) if place < len(scores)]
    return sum(scores[one][other] for number, one in enumerate(places) for other in places[number + 1 :])


def _sums_of_highest(row: list[int], place: int) -> list[int]:
    """Sums of a GPU's highest scores: of none, of one, of two and so on."""
    return [0, *accumulate(sorted(row[:place] + row[place + 1 :], reverse=True))]


def _is_tie_before(found: tuple[int, int], best: tuple[int, int]) -> bool:
    """Whether a set of the same value comes first in the order of places."""
    differing = found[1] ^ best[1]
    return found[0] == best[0] and bool(differing & -differing & found[1])


def _classes(scores: list[list[int]], required: int) -> list[list[int]]:
    """GPUs in classes of twins: those that score alike with every third GPU, and are required or not alike.

    To be twins is an equivalence, so that one comparison a class does.
    """
    classes: list[list[int]] = []
    for place, row in enumerate(scores):
        for known in classes:
            one = known[0]
            if required >> one & 1 == required >> place & 1 and _differ_only(scores[one], row, (one, place)):
                known.append(place)
                break
        else:
            classes.append([place])
    return classes


def _differ_only(row: list[int], other: list[int], at: tuple[int, int]) -> bool:
    return all(row[place] == other[place] or place in at for place in range(len(row)))


def _previous_twins(classes: list[list[int]]) -> list[int]:
    """For each GPU the bit of the last twin before it; 0 if there is none."""
    before = {place: 1 << last for twins in classes for last, place in pairwise(twins)}
    return [before.get(place, 0) for place in range(sum(map(len, classes)))]


def _alike_classes(scores: list[list[int]], classes: list[list[int]], required: int) -> list[list[int]]:
    """Classes, as masks, in groups of those that may change places: as the switches below one CPU may.

    They have as many GPUs, which score alike among themselves and with those of every third class.
    """
    between = [[scores[one[0]][other[-1]] for other in classes] for one in classes]  # with itself: between two of it
    kinds = [(len(each), required >> each[0] & 1, between[number][number]) for number, each in enumerate(classes)]
    groups: list[list[int]] = []
    for number in range(len(classes)):
        for group in groups:
            first = group[0]
            if kinds[first] == kinds[number] and _differ_only(between[first], between[number], (first, number)):
                group.append(number)
                break
        else:
            groups.append([number])
    return [[sum(1 << place for place in classes[number]) for number in group] for group in groups]


def _estimate(scores: list[list[int]], size: int, required: int) -> int:
    """A well-connected set that holds all required GPUs: grown from each GPU by what adds most, the best is taken."""
    best, best_score = 0, -1
    for start in range(len(scores)):
        chosen = required | 1 << start
        if chosen.bit_count() > size:
            chosen = required
        gains = [sum(row[place] for place in _places(chosen)) for row in scores]
        while chosen.bit_count() < size:
            place = max((place for place in range(len(scores)) if not chosen >> place & 1), key=gains.__getitem__)
            chosen |= 1 << place
            gains = [gain + more for gain, more in zip(gains, scores[place], strict=True)]
        value = _inner(scores, chosen)
        if value > best_score:
            best, best_score = chosen, value
    return best
