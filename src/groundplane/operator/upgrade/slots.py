"""How many nodes may start their upgrade, and in words why no more may (contracts/driver-lifecycle.md 3.6).

Pure. The numbers are those of the snapshot, before any decision; who takes a slot is decided in ``machine``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from . import states
from .model import Counts, DaemonSetFacts, NodeFacts, Pass, Policy, Problem, Snapshot
from .states import State

_NONE_ALLOWED = (
    "{} of the nodes are to be upgraded, and maxUnavailable {} lets none be unavailable: allow 1 or more, or set "
    "autoUpgrade to false"
)
_NAMED = 5
"""So many nodes are named in a sentence; the others are counted."""


class Tally(msgspec.Struct, frozen=True, gc=False):
    """The counts, and the nodes behind them: those ``busy`` with an upgrade, and those ``down`` for whatever reason."""

    counts: Counts
    busy: tuple[NodeFacts, ...] = ()
    down: tuple[NodeFacts, ...] = ()
    problem: Problem | None = None


def scaled(limit: int | str | None, total: int) -> int:
    """``maxUnavailable`` of ``total`` nodes, a percentage rounded up; None allows all of them.

    Raises:
        ValueError: neither a whole number of nodes nor a percentage.
    """
    if limit is None:
        return total
    match = re.fullmatch(r"([0-9]+)(%?)", str(limit), re.ASCII)
    if match is None:
        raise ValueError(f"maxUnavailable: expected a whole number or a percentage such as 25%, found {limit!r}")
    number = int(match[1])
    return -(-number * total // 100) if match[2] else number


def slots(
    max_parallel: int, *, pending: int, in_progress: int, unavailable: int, max_unavailable: int, total: int
) -> int:
    """How many nodes may start now; none if it is 0 or less."""
    free = max_parallel - in_progress if max_parallel else pending
    free = min(free, max_unavailable)
    if unavailable >= max_unavailable:
        return 0
    if max_unavailable < total and unavailable + free > max_unavailable:
        return max_unavailable - unavailable
    return free


def tally(snapshot: Snapshot, *, incomplete: bool = False) -> Tally:
    """Count the nodes of a machine.

    A node without a driver pod is not managed, and no part of any number, unless it is amid its upgrade or pods may be
    missing (``incomplete``): what a DaemonSet's status says is late, and no limit may be passed for that. A node whose
    label names no state is managed, but neither in progress nor anything else. The states of requestor mode are not
    counted. What is wrong with ``maxUnavailable`` is a problem and leaves no slot.
    """
    buckets: dict[State | None, int] = dict.fromkeys(State, 0)
    buckets[None] = 0
    busy, down = [], []
    for node in snapshot.nodes:
        state = states.parse(node.label)
        if not (node.driver_pods or state in states.IN_PROGRESS or (incomplete and node.label)):
            continue
        buckets[state] += 1
        if state in states.IN_PROGRESS:
            busy.append(node)
        if node.unschedulable or not node.ready:
            down.append(node)
    return _counted(snapshot.policy, buckets, tuple(busy), tuple(down))


def _counted(
    policy: Policy, buckets: Mapping[State | None, int], busy: tuple[NodeFacts, ...], down: tuple[NodeFacts, ...]
) -> Tally:
    total = sum(number for state, number in buckets.items() if state not in states.MAINTENANCE)
    pending, about_to_be = buckets[State.UPGRADE_REQUIRED], buckets[State.CORDON_REQUIRED]
    unavailable = len(down) + about_to_be
    problem = None
    try:
        limit = scaled(policy.max_unavailable, total)
    except ValueError as error:
        limit, problem = 0, Problem("InvalidUpgradePolicy", f"{error}; no node starts its upgrade until it is right")
    else:
        if pending and not limit:
            problem = Problem("NoNodeMayStart", _NONE_ALLOWED.format(pending, policy.max_unavailable))
    free = slots(
        policy.max_parallel,
        pending=pending,
        in_progress=len(busy),
        unavailable=unavailable,
        max_unavailable=limit,
        total=total,
    )
    counts = Counts(
        total=total,
        in_progress=len(busy),
        done=buckets[State.DONE],
        failed=buckets[State.FAILED],
        pending=pending,
        unavailable=unavailable,
        max_unavailable=limit,
        slots=free,
    )
    return Tally(counts, busy, down, problem)


def total(passes: Iterable[Pass]) -> Counts:
    """The gauges over several machines: sums (1.3)."""
    columns = zip(Counts(), *(each.counts for each in passes), strict=True)
    return Counts(*(sum(column) for column in columns))


def unplaced(snapshot: Snapshot) -> str:
    """Which of the machine's DaemonSets have fewer pods than they want, for a person (3.2).

    A pod in excess takes no node out of any count. It is where a node was tainted or is not Ready, which would hold up
    all others for as long as that lasts.
    """
    return listed([_numbers(each) for each in _own(snapshot) if each.desired > each.pods])


def uncertain(snapshot: Snapshot) -> str:
    """Which of the machine's DaemonSets may lack a pod on a node, though they have as many as they want, for a person.

    A pod that is made anew is on no node for a moment; and one that is missing and one in excess come to nothing, where
    a node is not Ready, or was not when the status was written.
    """
    found = _own(snapshot)
    return listed([_numbers(each) for each in found if each.desired != each.pods - each.unready - each.waiting])


def _own(snapshot: Snapshot) -> list[DaemonSetFacts]:
    """The DaemonSets of the machine, by name."""
    found = snapshot.daemon_sets.values()
    return sorted((each for each in found if snapshot.owner in ("", each.driver)), key=lambda each: each.name)


def _numbers(each: DaemonSetFacts) -> str:
    notes = [
        *([f"{each.unready} on nodes that are not Ready"] if each.unready else []),
        *([f"{each.waiting} on no node yet"] if each.waiting else []),
    ]
    about = f" ({', '.join(notes)})" if notes else ""
    return f"DaemonSet {each.name} has {each.pods} pods{about} and wants {each.desired}"


def why_none(found: Tally, policy: Policy, starting: Sequence[str]) -> str:
    """Why a node that would have to be cordoned gets no slot, and what would give it one."""
    counts = found.counts
    if found.problem is not None:
        return f"no slot: {found.problem.message}"
    if policy.max_parallel and counts.in_progress >= policy.max_parallel:
        return (
            f"no slot: {counts.in_progress} upgrades are in progress, maxParallelUpgrades is {policy.max_parallel}: "
            f"{listed([f'{node.name} ({node.label})' for node in found.busy])}; one has to end"
        )
    if counts.unavailable >= counts.max_unavailable:
        return (
            f"no slot: {counts.unavailable} of {counts.total} nodes are unavailable, at most {counts.max_unavailable} "
            f"may be (maxUnavailable {policy.max_unavailable})" + _blockers(found)
        )
    return f"no slot left in this pass, which starts {listed(starting)}; it is in line"


def _blockers(found: Tally) -> str:
    """The nodes that are, or are about to be, unavailable."""
    about_to = [node for node in found.busy if node.label == State.CORDON_REQUIRED]
    texts = [*(_down(node) for node in found.down), *(f"{node.name} is about to be cordoned" for node in about_to)]
    return f": {listed(texts)}; one has to come back" if texts else ""


def _down(node: NodeFacts) -> str:
    if not node.unschedulable:
        return f"{node.name} is not Ready"
    return f"{node.name} is cordoned ({'for its upgrade' if cordoned_by_upgrade(node) else 'not by an upgrade'})"


def cordoned_by_upgrade(node: NodeFacts) -> bool:
    """Its upgrade cordoned it: it was schedulable when that began, and has got to where it is not."""
    return node.unschedulable and node.label in states.CORDONED_BY_UPGRADE and not node.cordoned_before


def listed(texts: Sequence[str]) -> str:
    """Some of the texts, and how many more there are."""
    rest = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
