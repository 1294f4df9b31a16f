"""Preemption: which pods of lower priority go, on which node, so that a pod which fits nowhere can run.

Pure choices by kube-scheduler's rules: as few and as unimportant pods as possible, disruption budgets kept if they can
be. Who may preempt, and carrying it out, is the scheduler's.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from . import placement
from .clock import parse_rfc3339
from .controllers import objects
from .controllers.objects import Doc, Key, Obj
from .fitting import Refusal

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = Refusal(("No preemption victims found for incoming pod",), resolvable=False)
NEVER = "not eligible due to preemptionPolicy=Never."
UNDER_WAY = "not eligible due to a terminating pod on the nominated node."
REASON = "PreemptionByScheduler"

MIN_CANDIDATES, CANDIDATES_PERCENT = 100, 10
"""Nodes that could be freed after which no more are looked at: this many, or this share if that is more."""
_LOWEST_PRIORITY = 2**31
_NO_START = datetime.max.replace(tzinfo=UTC)


class Candidate(NamedTuple):
    """A node, the pods that would have to go (the most important first), and how many of them break a budget."""

    node: str
    victims: tuple[Obj, ...]
    violations: int


def priority_of(pod: Doc) -> int:
    """A pod's priority, 0 if it has none."""
    return int(pod["spec"].get("priority") or 0)


def enough_candidates(nodes: int) -> int:
    """How many candidates to look for among so many nodes."""
    return max(MIN_CANDIDATES, nodes * CANDIDATES_PERCENT // 100)


def victims_on(
    node: str, possible: Sequence[Obj], refusal: Callable[[frozenset[Key]], Refusal | None], budgets: Sequence[Doc]
) -> Candidate | Refusal:
    """Which of the possible victims have to go; the refusal that stays if none of them would help.

    `refusal` says why the pod does not fit on the node without the pods of these keys. First all are taken away, then
    as many as can stay are put back, those protected by a budget and the most important before the others.
    """
    if not possible:
        return NO_VICTIMS
    gone = frozenset(objects.key(pod) for pod in possible)
    left = refusal(gone)
    if left is not None:
        return left
    protected, others = _by_budget(sorted(possible, key=_importance), budgets)
    violations = 0
    for pod, breaks in [*((pod, True) for pod in protected), *((pod, False) for pod in others)]:
        if refusal(gone - {objects.key(pod)}) is None:
            gone -= {objects.key(pod)}
        else:
            violations += breaks
    victims = sorted((pod for pod in possible if objects.key(pod) in gone), key=_importance)
    return Candidate(node, tuple(victims), violations)


def best(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate that hurts least; the first of those that are alike."""
    return min(candidates, key=_harm)


def _importance(pod: Doc) -> tuple[int, datetime]:
    """Sort key, most important first: higher priority, then started earlier."""
    return -priority_of(pod), _started(pod)


def _started(pod: Doc) -> datetime:
    text = (pod.get("status") or {}).get("startTime")
    return parse_rfc3339(text) if text else _NO_START


def _harm(candidate: Candidate) -> tuple[int, int, int, int, float]:
    """Sort key: broken budgets, the highest priority, the sum of priorities, the pods, then the latest start first."""
    priorities = [priority_of(pod) for pod in candidate.victims]
    highest = max(priorities)
    started = min(_started(pod) for pod in candidate.victims if priority_of(pod) == highest)
    total = sum(priority + _LOWEST_PRIORITY for priority in priorities)
    return candidate.violations, highest, total, len(priorities), -started.timestamp()


def _by_budget(pods: Sequence[Obj], budgets: Sequence[Doc]) -> tuple[list[Obj], list[Obj]]:
    """Pods whose end would break a disruption budget, given that those before them end too, and the others."""
    allowed = {
        objects.uid(budget): int((budget.get("status") or {}).get("disruptionsAllowed") or 0) for budget in budgets
    }
    by_space: dict[str, list[Doc]] = {}
    for budget in budgets:
        by_space.setdefault(budget["metadata"]["namespace"], []).append(budget)
    protected: list[Obj] = []
    others: list[Obj] = []
    for pod in pods:
        breaks = False
        for budget in by_space.get(pod["metadata"]["namespace"], ()):
            if not _covers(budget, pod):
                continue
            allowed[objects.uid(budget)] -= 1
            if allowed[objects.uid(budget)] < 0:
                breaks = True
                break
        (protected if breaks else others).append(pod)
    return protected, others


def _covers(budget: Doc, pod: Doc) -> bool:
    """Whether a budget counts a pod: its selector is not empty, and the eviction of the pod is not noted already."""
    selector, labels = budget["spec"].get("selector"), objects.labels(pod)
    noted = pod["metadata"]["name"] in ((budget.get("status") or {}).get("disruptedPods") or {})
    return bool(selector) and bool(labels) and not noted and placement.selects(selector, labels)
