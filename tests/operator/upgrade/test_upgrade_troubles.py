"""Which problems of upgrades are told, how often, and when a pass has to look again."""

import pytest

from groundplane.operator.upgrade import troubles
from groundplane.operator.upgrade.model import Problem
from groundplane.operator.upgrade.troubles import LASTING_S, REPEAT_S, Troubles

LABEL = Problem("UnknownUpgradeState", "node a: label banana is no state")
ALONE = Problem("NoDriverPod", "node a: no driver DaemonSet wants a pod on the node")


def unplaced(pods: int) -> Problem:
    return Problem("UnscheduledPods", f"no upgrade starts while driver pods are missing: DaemonSet d has {pods} pods")


def test_what_does_not_pass_by_itself_is_told_at_once_and_then_seldom():
    seen = Troubles()
    told = []
    for now in range(0, 2 * int(REPEAT_S) + 10, 10):
        assert seen.found([LABEL], float(now)) == ((LABEL,), None)
        told += [now] if seen.due(LABEL, float(now)) else []
    assert told == [0, REPEAT_S, 2 * REPEAT_S]


def test_a_passing_state_is_told_when_it_has_lasted():
    seen = Troubles()
    assert seen.found([ALONE], 100.0) == ((), LASTING_S)
    assert not seen.due(ALONE, 100.0)
    assert seen.found([ALONE], 130.0) == ((), LASTING_S - 30.0)
    assert seen.found([ALONE], 100.0 + LASTING_S) == ((ALONE,), None)
    assert seen.due(ALONE, 100.0 + LASTING_S)
    assert not seen.due(ALONE, 110.0 + LASTING_S)


def test_what_was_gone_begins_anew():
    seen = Troubles()
    seen.found([ALONE, LABEL], 0.0)
    assert seen.due(LABEL, 0.0)
    assert seen.found([], LASTING_S) == ((), None)
    assert seen.found([ALONE, LABEL], LASTING_S) == ((LABEL,), LASTING_S)
    assert seen.due(LABEL, LASTING_S)


def test_a_count_in_the_text_makes_no_other_problem_of_it():
    seen = Troubles()
    seen.found([unplaced(2)], 0.0)
    assert seen.found([unplaced(3)], LASTING_S)[0] == (unplaced(3),)


@pytest.mark.parametrize("reason", sorted(troubles.UNHEARD))
def test_what_no_watch_tells_the_end_of_is_looked_at_again_ever_more_seldom(reason):
    seen, now, waits = Troubles(), 0.0, []
    for _ in range(7):
        _, again_s = seen.found([Problem(reason, "x")], now)
        assert again_s is not None
        waits.append(again_s)
        now += LASTING_S
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 120.0]
    assert seen.found([], now)[1] is None
    assert seen.found([Problem(reason, "x")], now)[1] == 5.0
