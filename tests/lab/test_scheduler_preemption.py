"""Whom preemption takes, and where: the pure choices."""

from typing import Any

import pytest

from groundplane.lab import preemption
from groundplane.lab.fitting import Refusal

SHORT = Refusal(("Insufficient cpu",))
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def pod(name: str, priority: int = 0, *, started: str = EARLY, app: str = "x") -> Any:
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"priority": priority},
        "status": {"startTime": started},
    }


def budget(app: str, allowed: int, **status: Any) -> Any:
    return {
        "metadata": {"name": app, "namespace": "default", "uid": app},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed, **status},
    }


def taking(count: int) -> Any:
    """A node on which the pod fits once so many others are gone."""
    return lambda gone: None if len(gone) >= count else SHORT


def names(candidate: Any) -> list[str]:
    assert isinstance(candidate, preemption.Candidate)
    return [victim["metadata"]["name"] for victim in candidate.victims]


def test_nobody_to_take() -> None:
    assert preemption.victims_on("n", [], taking(0), []) == preemption.NO_VICTIMS


def test_in_vain() -> None:
    assert preemption.victims_on("n", [pod("a")], taking(2), []) == SHORT


@pytest.mark.parametrize(
    ("possible", "count", "victims"),
    [
        ([pod("a"), pod("b", 1)], 1, ["a"]),
        ([pod("a", 2), pod("b", 1), pod("c", 3)], 2, ["a", "b"]),
        ([pod("a", started=EARLY), pod("b", started=LATE)], 1, ["b"]),
        ([pod("a"), pod("b")], 2, ["a", "b"]),
    ],
    ids=["less-important", "most-important-first", "younger", "all"],
)
def test_the_least_important_go(possible: Any, count: int, victims: list[str]) -> None:
    assert names(preemption.victims_on("n", possible, taking(count), [])) == victims


@pytest.mark.parametrize(
    ("budgets", "victims", "violations"),
    [
        ([], ["young"], 0),
        ([budget("y", 1)], ["young"], 0),
        ([budget("y", 0)], ["old"], 0),
        ([budget("y", 0, disruptedPods={"young": LATE})], ["young"], 0),
        ([budget("x", 0), budget("y", 0)], ["young"], 1),
    ],
    ids=["none", "allows", "protects-the-younger", "noted-already", "protects-both"],
)
def test_budgets_are_kept_if_they_can_be(budgets: Any, victims: list[str], violations: int) -> None:
    possible = [pod("old", started=EARLY, app="x"), pod("young", started=LATE, app="y")]
    found = preemption.victims_on("n", possible, taking(1), budgets)
    assert names(found) == victims
    assert isinstance(found, preemption.Candidate)
    assert found.violations == violations


def candidate(name: str, *victims: Any, violations: int = 0) -> preemption.Candidate:
    return preemption.Candidate(name, victims, violations)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (candidate("a", pod("p"), violations=1), candidate("b", pod("p", 5))),
        (candidate("a", pod("p", 2)), candidate("b", pod("p", 1), pod("q", 1))),
        (candidate("a", pod("p", 1), pod("q", 1)), candidate("b", pod("p", 1), pod("q", 0))),
        (candidate("a", pod("p", -1), pod("q", -1)), candidate("b", pod("p", -1))),
        (candidate("a", pod("p", started=EARLY)), candidate("b", pod("p", started=LATE))),
    ],
    ids=["budgets", "highest-priority", "sum-of-priorities", "fewer-pods", "started-later"],
)
def test_the_node_that_hurts_least(worse: preemption.Candidate, better: preemption.Candidate) -> None:
    assert preemption.best([worse, better]) == better
    assert preemption.best([better, worse]) == better


@pytest.mark.parametrize(("nodes", "enough"), [(1, 100), (1000, 100), (5000, 500)])
def test_enough_candidates(nodes: int, enough: int) -> None:
    assert preemption.enough_candidates(nodes) == enough
