"""contracts/driver-lifecycle.md 3.6: how many nodes may start, which they are, and why no more may."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from upgrade_facts import NEW, OLD, driver, node, run

from groundplane.operator.upgrade import machine, slots, states
from groundplane.operator.upgrade.model import Counts, DaemonSetFacts, NodeFacts, Policy, Snapshot
from groundplane.operator.upgrade.states import State

S = State
OUTDATED = driver(hash=OLD)


def cluster(**numbers: int) -> list[NodeFacts]:
    """So many nodes of each state, named ``state-number``; a suffix says ``_cordoned`` or ``_not_ready``."""
    nodes = []
    for key, number in numbers.items():
        name = key.removesuffix("_cordoned").removesuffix("_not_ready")
        nodes += [
            node(
                S[name.upper()],
                OUTDATED,
                name=f"{name}-{i}",
                unschedulable=key.endswith("_cordoned"),
                ready=not key.endswith("_not_ready"),
            )
            for i in range(number)
        ]
    return nodes


@pytest.mark.parametrize(
    ("limit", "total", "expected"),
    [
        ("25%", 1, 1),
        ("25%", 4, 1),
        ("25%", 5, 2),
        ("25%", 8, 2),
        ("25%", 9, 3),
        ("0%", 9, 0),
        ("100%", 9, 9),
        ("150%", 4, 6),
        (3, 9, 3),
        ("3", 9, 3),
        (0, 9, 0),
        (99, 9, 99),
        (None, 9, 9),
        ("25%", 0, 0),
    ],
)
def test_max_unavailable_is_scaled_and_rounded_up(limit, total, expected):
    assert slots.scaled(limit, total) == expected


@pytest.mark.parametrize("limit", ["", "abc", "-1", "25 %", "2.5%", "%", "25%%", -1, "٣"])
def test_a_limit_that_makes_no_sense_stops_new_upgrades_and_nothing_else(limit):
    with pytest.raises(ValueError, match="maxUnavailable: expected a whole number or a percentage such as 25%"):
        slots.scaled(limit, 4)
    found = run(*cluster(upgrade_required=2, cordon_required=1), policy=Policy(max_unavailable=limit, max_parallel=0))
    assert [each.to for each in found.decisions] == [None, None, S.WAIT_FOR_JOBS_REQUIRED]
    assert [each.reason for each in found.problems] == ["InvalidUpgradePolicy"]
    assert repr(limit) in found.decisions[0].waits_for
    assert found.counts.slots == 0


@pytest.mark.parametrize(
    ("nodes", "policy", "expected"),
    [
        # max_parallel - in_progress; failed counts as in progress
        ({"upgrade_required": 8}, {"max_parallel": 3, "max_unavailable": None}, 3),
        ({"upgrade_required": 8, "failed": 1}, {"max_parallel": 3, "max_unavailable": None}, 2),
        ({"upgrade_required": 8, "failed": 3}, {"max_parallel": 3, "max_unavailable": None}, 0),
        ({"upgrade_required": 8, "validation_required": 4}, {"max_parallel": 3, "max_unavailable": None}, -1),
        ({"upgrade_required": 8, "unknown": 2, "done": 3}, {"max_parallel": 3, "max_unavailable": None}, 3),
        # 0 is no limit: as many as are pending
        ({"upgrade_required": 8, "failed": 1}, {"max_parallel": 0, "max_unavailable": None}, 8),
        # capped by max_unavail, and by what is left of it
        ({"upgrade_required": 8}, {"max_parallel": 0, "max_unavailable": "25%"}, 2),
        ({"upgrade_required": 8}, {"max_parallel": 5, "max_unavailable": 4}, 4),
        ({"upgrade_required": 8, "done_cordoned": 1}, {"max_parallel": 5, "max_unavailable": 4}, 3),
        ({"upgrade_required": 8, "done_not_ready": 1}, {"max_parallel": 5, "max_unavailable": 4}, 3),
        ({"upgrade_required": 8, "unknown_cordoned": 4}, {"max_parallel": 5, "max_unavailable": 4}, 0),
        ({"upgrade_required": 8, "unknown_not_ready": 9}, {"max_parallel": 5, "max_unavailable": 4}, 0),
        ({"upgrade_required": 7, "upgrade_required_cordoned": 1}, {"max_parallel": 0, "max_unavailable": 4}, 3),
        # the default in a small cluster: one node that is down blocks all others
        ({"upgrade_required": 3, "done_not_ready": 1}, {}, 0),
        ({"upgrade_required": 3, "done": 1}, {}, 1),
        # cordon-required counts, twice where it is cordoned already
        ({"upgrade_required": 8, "cordon_required": 1}, {"max_parallel": 0, "max_unavailable": 4}, 3),
        ({"upgrade_required": 8, "cordon_required_cordoned": 1}, {"max_parallel": 0, "max_unavailable": 4}, 2),
        # with a limit of all nodes or more, what is unavailable is not taken off
        ({"upgrade_required": 4, "done_cordoned": 1}, {"max_parallel": 0, "max_unavailable": 5}, 4),
        ({"upgrade_required": 4, "done_cordoned": 1}, {"max_parallel": 0, "max_unavailable": "100%"}, 4),
        ({"upgrade_required": 4, "done_cordoned": 1}, {"max_parallel": 0, "max_unavailable": None}, 4),
        ({"upgrade_required": 4, "done_cordoned": 1}, {"max_parallel": 0, "max_unavailable": 4}, 3),
        # but nothing starts once they all are
        ({"upgrade_required_cordoned": 2}, {"max_parallel": 0, "max_unavailable": None}, 0),
        ({"upgrade_required": 4}, {"max_parallel": 0, "max_unavailable": 0}, 0),
        ({}, {"max_parallel": 1, "max_unavailable": "25%"}, 0),
    ],
)
def test_slots(nodes, policy, expected):
    assert run(*cluster(**nodes), policy=Policy(**policy)).counts.slots == expected


def test_counts_are_those_before_the_pass():  # 3.13
    nodes = cluster(unknown=1, done=2, upgrade_required=3, failed=4, drain_required=5)
    found = run(*nodes, policy=Policy(max_parallel=20, max_unavailable=None))
    assert found.counts == Counts(
        total=15, in_progress=9, done=2, failed=4, pending=3, unavailable=0, max_unavailable=15, slots=11
    )
    assert slots.total([found, found]).in_progress == 18
    assert slots.total([]) == Counts()


def started(nodes: list[NodeFacts], policy: Policy) -> list[str]:
    found = run(*nodes, policy=policy)
    return [each.node for each in found.decisions if each.state is S.UPGRADE_REQUIRED and each.to is not None]


def test_cordoned_nodes_go_first_and_always_and_take_slots():
    nodes = cluster(upgrade_required=3)
    both = [*nodes, *(node(S.UPGRADE_REQUIRED, OUTDATED, name=f"z-{i}", unschedulable=True) for i in range(2))]
    assert started(both, Policy(max_parallel=1, max_unavailable=None)) == ["z-0", "z-1"]
    assert started(both, Policy(max_parallel=3, max_unavailable=None)) == ["upgrade_required-0", "z-0", "z-1"]
    assert started(both, Policy(max_parallel=3, max_unavailable=0)) == ["z-0", "z-1"]
    assert started(list(reversed(nodes)), Policy(max_parallel=1, max_unavailable=None)) == ["upgrade_required-0"]


def why(nodes: list[NodeFacts], policy: Policy) -> str:
    found = run(*nodes, policy=policy)
    return next(
        each.waits_for for each in reversed(found.decisions) if each.state is S.UPGRADE_REQUIRED and not each.to
    )


def test_a_node_without_a_slot_names_who_stands_in_its_way():
    parallel = why(
        cluster(failed=1, drain_required=1, upgrade_required=1), Policy(max_parallel=2, max_unavailable=None)
    )
    assert parallel == (
        "no slot: 2 upgrades are in progress, maxParallelUpgrades is 2: failed-0 (upgrade-failed), "
        "drain_required-0 (drain-required); one has to end"
    )
    nodes = cluster(
        done_cordoned=1, unknown_not_ready=1, validation_required_cordoned=1, upgrade_required=1, cordon_required=1
    )
    assert why(nodes, Policy(max_parallel=9, max_unavailable="80%")) == (
        "no slot: 4 of 5 nodes are unavailable, at most 4 may be (maxUnavailable 80%): done-0 is cordoned (not by an "
        "upgrade), unknown-0 is not Ready, validation_required-0 is cordoned (for its upgrade), cordon_required-0 is "
        "about to be cordoned; one has to come back"
    )
    assert why(cluster(upgrade_required=7), Policy(max_parallel=6, max_unavailable=None)) == (
        "no slot left in this pass, which starts upgrade_required-0, upgrade_required-1, upgrade_required-2, "
        "upgrade_required-3, upgrade_required-4 and 1 more; it is in line"
    )


def test_a_policy_that_lets_nobody_start_is_a_problem_as_soon_as_somebody_would():
    assert why(cluster(upgrade_required=2), Policy(max_unavailable="0%")) == (
        "no slot: 2 of the nodes are to be upgraded, and maxUnavailable 0% lets none be unavailable: allow 1 or more, "
        "or set autoUpgrade to false"
    )
    found = run(*cluster(upgrade_required=2), policy=Policy(max_unavailable=0))
    assert [problem.reason for problem in found.problems] == ["NoNodeMayStart"]
    assert run(*cluster(done=2), policy=Policy(max_unavailable=0)).problems == ()


NODES = st.lists(
    st.builds(
        lambda number, state, unschedulable, ready, old, skip: node(
            state,
            driver(name=f"p{number}", uid=f"u{number}", hash=OLD if old else NEW),
            name=f"n{number:03}",
            unschedulable=unschedulable,
            ready=ready,
            labels={"nvidia.com/gpu-driver-upgrade.skip": "true"} if skip else {},
        ),
        st.integers(0, 999),
        st.sampled_from([*State, "nonsense"]),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=30,
    unique_by=lambda one: one.name,
)
POLICIES = st.builds(
    Policy,
    max_parallel=st.integers(0, 6),
    max_unavailable=st.none() | st.integers(0, 10) | st.integers(0, 120).map(lambda number: f"{number}%"),
)


@given(NODES, POLICIES)
def test_no_more_start_than_both_limits_allow(nodes, policy):
    """By the formula's meaning rather than its text: what is taken never exceeds what is free."""
    before = msgspec.json.encode(nodes)
    found = run(*nodes, policy=policy)
    assert msgspec.json.encode(nodes) == before
    assert found == run(*nodes, policy=policy), "the same snapshot gives the same pass"
    by_name = {each.name: each for each in nodes}
    starting = [by_name[each.node] for each in found.decisions if each.state is S.UPGRADE_REQUIRED and each.to]
    fresh = [each for each in starting if not each.unschedulable]
    managed = [each for each in nodes if each.label not in states.MAINTENANCE]
    busy = [each for each in nodes if each.label in states.IN_PROGRESS]
    down = [each for each in nodes if each.unschedulable or not each.ready]
    limit = slots.scaled(policy.max_unavailable, len(managed))
    assert not any(each.skip for each in starting)
    if fresh and policy.max_parallel:
        assert len(busy) + len(starting) <= policy.max_parallel
    if fresh and limit < len(managed):
        about_to_be = sum(each.label == S.CORDON_REQUIRED for each in nodes)
        assert len(down) + about_to_be + len(fresh) <= limit
    waiting = [each for each in found.decisions if each.state is S.UPGRADE_REQUIRED and not each.to]
    assert all(each.waits_for for each in waiting)


@pytest.mark.parametrize(
    ("desired", "pods", "unready", "held", "missing"),
    [
        (3, 3, 0, False, False),
        (3, 2, 0, True, True),  # one is missing
        (3, 4, 0, False, True),  # one is in excess: a node was tainted; or was not Ready a moment ago
        (2, 3, 1, False, False),  # a node is not Ready: nothing is wanted there any more
        (3, 3, 1, False, True),  # the same, before the DaemonSet's status says so; or one is missing elsewhere
        (2, 2, 1, False, True),  # one is missing elsewhere, which the numbers do not show
        (3, 2, 1, True, True),
        (1, 3, 1, False, True),
    ],
)
def test_a_pod_on_a_node_that_is_not_ready_holds_up_nobody(desired, pods, unready, held, missing):
    """3.2, better: NVIDIA's controller upgrades nothing while a node with a driver is down."""
    owner = DaemonSetFacts(name="ds", uid="ds", desired=desired, pods=pods, unready=unready, revision=NEW)
    about = Snapshot(now=0, policy=Policy(), nodes=(), daemon_sets={"ds": owner})
    assert bool(slots.unplaced(about)) is held
    assert bool(slots.unplaced(about) or slots.uncertain(about)) is (held or missing)


@pytest.mark.parametrize(
    "between_two", [{"unready": 1}, {"waiting": 1}], ids=["another is not Ready", "not placed yet"]
)
def test_a_node_between_two_pods_counts_though_the_numbers_are_right(between_two):
    between = node(S.POD_RESTART_REQUIRED, name="between", driver_pods=())
    waiting = node(S.UPGRADE_REQUIRED, OUTDATED, name="waiting")
    owner = DaemonSetFacts(name="ds", uid="ds", desired=1, pods=1, **between_two, revision=NEW)
    found = machine.decide(
        Snapshot(now=0, policy=Policy(max_parallel=1), nodes=(between, waiting), daemon_sets={"ds": owner})
    )
    assert (found.counts.in_progress, found.held, found.problems) == (1, "", ())
    assert [each.to for each in found.decisions] == [None, None]
    assert "it has no driver pod yet" in found.decisions[0].waits_for
