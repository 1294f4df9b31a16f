"""Every row of contracts/driver-lifecycle.md 3.5, and what 3.2, 3.3, 3.10 to 3.13 say of single nodes."""

import itertools
from typing import Any

import msgspec
import pytest
from upgrade_facts import INVALID, NEW, NOW, OLD, UNLIMITED, VALID, driver, gpu, node, one, run

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.operator.upgrade import machine, slots, states
from groundplane.operator.upgrade.model import (
    DeletePod,
    Drain,
    NodeFacts,
    Patch,
    PodDeletion,
    Policy,
    StartDrain,
    StartEviction,
    Work,
)
from groundplane.operator.upgrade.states import State

S = State
OUTDATED = driver(hash=OLD)
ORPHAN = driver(daemon_set="", hash=OLD)
SAFE_LOAD = {names.UPGRADE_SAFE_LOAD: "yes"}
REQUESTED = {names.UPGRADE_REQUESTED: "true"}
INITIAL = {names.UPGRADE_INITIAL_STATE: "true"}
JOBS, VALIDATION = names.UPGRADE_JOBS_START, names.UPGRADE_VALIDATION_START
WAITING = Policy(max_parallel=0, max_unavailable=None, jobs_selector="app=job")
WAITING_60 = msgspec.structs.replace(WAITING, jobs_timeout_s=60)
DRAINING = Policy(max_parallel=0, max_unavailable=None, drain=Drain(enable=True))
NO_SLOT = Policy(max_parallel=1, max_unavailable=0)


def moved(to: State, annotations: dict[str, str | None] | None = None, unschedulable: bool | None = None) -> Patch:
    return Patch({names.UPGRADE_STATE: str(to)}, annotations or {}, unschedulable)


def stayed(annotations: dict[str, str | None] | None = None, unschedulable: bool | None = None) -> Patch:
    return Patch({}, annotations or {}, unschedulable)


# --- Rows of 3.5: (what the node is, what the policy is) -> (state, patch) ------------------------------------------
ROWS: list[tuple[str, NodeFacts, dict[str, Any], State | None, Patch]] = [
    # unknown, upgrade-done -> upgrade-required
    ("unknown, outdated", node(S.UNKNOWN, OUTDATED), {}, S.UPGRADE_REQUIRED, moved(S.UPGRADE_REQUIRED)),
    ("done, outdated", node(S.DONE, OUTDATED), {}, S.UPGRADE_REQUIRED, moved(S.UPGRADE_REQUIRED)),
    (
        "done, outdated, cordoned now",
        node(S.DONE, OUTDATED, unschedulable=True),
        {},
        S.UPGRADE_REQUIRED,
        moved(S.UPGRADE_REQUIRED, {names.UPGRADE_INITIAL_STATE: "true"}),
    ),
    (
        "done, outdated, cordoned before an upgrade that never ended",
        node(S.DONE, OUTDATED, annotations=INITIAL),
        {},
        S.UPGRADE_REQUIRED,
        moved(S.UPGRADE_REQUIRED, {names.UPGRADE_INITIAL_STATE: None}),
    ),
    (
        "unknown, outdated, cordoned and known to be (3.12)",
        node(S.UNKNOWN, OUTDATED, unschedulable=True, annotations=INITIAL),
        {},
        S.UPGRADE_REQUIRED,
        moved(S.UPGRADE_REQUIRED),
    ),
    ("done, safe load", node(S.DONE, annotations=SAFE_LOAD), {}, S.UPGRADE_REQUIRED, moved(S.UPGRADE_REQUIRED)),
    ("done, empty safe load", node(S.DONE, annotations={names.UPGRADE_SAFE_LOAD: ""}), {}, None, stayed()),
    ("unknown, requested", node(S.UNKNOWN, annotations=REQUESTED), {}, S.UPGRADE_REQUIRED, moved(S.UPGRADE_REQUIRED)),
    ("done, requested otherwise", node(S.DONE, annotations={names.UPGRADE_REQUESTED: "True"}), {}, None, stayed()),
    (
        "done, orphan with safe load",
        node(S.DONE, ORPHAN, annotations=SAFE_LOAD),
        {},
        S.UPGRADE_REQUIRED,
        moved(S.UPGRADE_REQUIRED),
    ),
    # unknown -> upgrade-done, done stays
    ("unknown, in sync", node(S.UNKNOWN), {}, S.DONE, moved(S.DONE)),
    ("unknown, in sync, not ready", node(S.UNKNOWN, driver(ready=False)), {}, S.DONE, moved(S.DONE)),
    ("unknown, orphan", node(S.UNKNOWN, ORPHAN), {}, S.DONE, moved(S.DONE)),
    ("done, in sync", node(S.DONE), {}, None, stayed()),
    ("done, orphan", node(S.DONE, ORPHAN), {}, None, stayed()),
    ("done, cordoned", node(S.DONE, unschedulable=True), {}, None, stayed()),
    # upgrade-required
    (
        "required, requested, skipped",
        node(S.UPGRADE_REQUIRED, OUTDATED, annotations=REQUESTED, labels={names.UPGRADE_SKIP: "true"}),
        {},
        None,
        stayed({names.UPGRADE_REQUESTED: None}),
    ),
    (
        "required, requested, no slot",
        node(S.UPGRADE_REQUIRED, OUTDATED, annotations=REQUESTED),
        {"policy": NO_SLOT},
        None,
        stayed({names.UPGRADE_REQUESTED: None}),
    ),
    (
        "required, requested, slot",
        node(S.UPGRADE_REQUIRED, OUTDATED, annotations=REQUESTED),
        {},
        S.CORDON_REQUIRED,
        moved(S.CORDON_REQUIRED, {names.UPGRADE_REQUESTED: None}),
    ),
    ("required, skipped", node(S.UPGRADE_REQUIRED, OUTDATED, labels={names.UPGRADE_SKIP: "true"}), {}, None, stayed()),
    (
        "required, cordoned and skipped",
        node(S.UPGRADE_REQUIRED, OUTDATED, labels={names.UPGRADE_SKIP: "true"}, unschedulable=True),
        {},
        None,
        stayed(),
    ),
    (
        "required, skip label of another value",
        node(S.UPGRADE_REQUIRED, OUTDATED, labels={names.UPGRADE_SKIP: "yes"}),
        {},
        S.CORDON_REQUIRED,
        moved(S.CORDON_REQUIRED),
    ),
    ("required, no slot", node(S.UPGRADE_REQUIRED, OUTDATED), {"policy": NO_SLOT}, None, stayed()),
    ("required, slot", node(S.UPGRADE_REQUIRED, OUTDATED), {}, S.CORDON_REQUIRED, moved(S.CORDON_REQUIRED)),
    (
        "required, no slot, cordoned",
        node(S.UPGRADE_REQUIRED, OUTDATED, unschedulable=True),
        {"policy": NO_SLOT},
        S.CORDON_REQUIRED,
        moved(S.CORDON_REQUIRED),
    ),
    (
        "required, restart only",
        node(S.UPGRADE_REQUIRED, driver(hash=OLD, digest="7")),
        {"digest": "7"},
        S.POD_RESTART_REQUIRED,
        moved(S.POD_RESTART_REQUIRED, unschedulable=True),
    ),
    # cordon-required
    (
        "cordon",
        node(S.CORDON_REQUIRED, OUTDATED),
        {},
        S.WAIT_FOR_JOBS_REQUIRED,
        moved(S.WAIT_FOR_JOBS_REQUIRED, unschedulable=True),
    ),
    (
        "cordon, cordoned",
        node(S.CORDON_REQUIRED, OUTDATED, unschedulable=True),
        {},
        S.WAIT_FOR_JOBS_REQUIRED,
        moved(S.WAIT_FOR_JOBS_REQUIRED),
    ),
    (
        "cordon, start of an earlier wait",
        node(S.CORDON_REQUIRED, OUTDATED, annotations={JOBS: "1"}),
        {},
        S.WAIT_FOR_JOBS_REQUIRED,
        moved(S.WAIT_FOR_JOBS_REQUIRED, {JOBS: None}, True),
    ),
    # wait-for-jobs-required
    ("jobs, no selector", node(S.WAIT_FOR_JOBS_REQUIRED), {}, S.POD_DELETION_REQUIRED, moved(S.POD_DELETION_REQUIRED)),
    (
        "jobs, none left",
        node(S.WAIT_FOR_JOBS_REQUIRED, jobs=(), annotations={JOBS: "5"}),
        {"policy": WAITING_60},
        S.POD_DELETION_REQUIRED,
        moved(S.POD_DELETION_REQUIRED, {JOBS: None}),
    ),
    ("jobs, no timeout", node(S.WAIT_FOR_JOBS_REQUIRED, jobs=("a/b",)), {"policy": WAITING}, None, stayed()),
    (
        "jobs, timeout starts",
        node(S.WAIT_FOR_JOBS_REQUIRED, jobs=("a/b",)),
        {"policy": WAITING_60},
        None,
        stayed({JOBS: str(NOW)}),
    ),
    (
        "jobs, at the timeout",
        node(S.WAIT_FOR_JOBS_REQUIRED, jobs=("a/b",), annotations={JOBS: str(NOW - 60)}),
        {"policy": WAITING_60},
        None,
        stayed(),
    ),
    (
        "jobs, after the timeout",
        node(S.WAIT_FOR_JOBS_REQUIRED, jobs=("a/b",), annotations={JOBS: str(NOW - 61)}),
        {"policy": WAITING_60},
        S.POD_DELETION_REQUIRED,
        moved(S.POD_DELETION_REQUIRED, {JOBS: None}),
    ),
    (
        "jobs, start is no integer",
        node(S.WAIT_FOR_JOBS_REQUIRED, jobs=("a/b",), annotations={JOBS: "yesterday"}),
        {"policy": WAITING_60},
        None,
        stayed(),
    ),
    # pod-deletion-required
    (
        "deletion, no GPU pods",
        node(S.POD_DELETION_REQUIRED, gpu_pods=()),
        {},
        S.POD_RESTART_REQUIRED,
        moved(S.POD_RESTART_REQUIRED),
    ),
    ("deletion, GPU pods", node(S.POD_DELETION_REQUIRED, gpu_pods=gpu("", "")), {}, None, stayed()),
    (
        "deletion, not all deletable, drain",
        node(S.POD_DELETION_REQUIRED, gpu_pods=gpu("", "is managed by a DaemonSet")),
        {"policy": DRAINING},
        S.DRAIN_REQUIRED,
        moved(S.DRAIN_REQUIRED),
    ),
    (
        "deletion, not all deletable, no drain",
        node(S.POD_DELETION_REQUIRED, gpu_pods=gpu("", "is managed by a DaemonSet")),
        {},
        S.FAILED,
        moved(S.FAILED),
    ),
    (
        "deletion, policy without podDeletion (1.1)",
        node(S.POD_DELETION_REQUIRED, gpu_pods=()),
        {"policy": msgspec.structs.replace(UNLIMITED, pod_deletion=None)},
        None,
        stayed(),
    ),
    # drain-required
    ("drain, off", node(S.DRAIN_REQUIRED, OUTDATED), {}, S.POD_RESTART_REQUIRED, moved(S.POD_RESTART_REQUIRED)),
    ("drain, begins", node(S.DRAIN_REQUIRED, OUTDATED), {"policy": DRAINING}, None, stayed(unschedulable=True)),
    # pod-restart-required
    ("restart, outdated", node(S.POD_RESTART_REQUIRED, OUTDATED), {}, None, stayed()),
    (
        "restart, outdated with safe load",
        node(S.POD_RESTART_REQUIRED, OUTDATED, annotations=SAFE_LOAD),
        {},
        None,
        stayed(),
    ),
    ("restart, orphan", node(S.POD_RESTART_REQUIRED, ORPHAN), {}, None, stayed()),
    (
        "restart, safe load, not healthy yet",
        node(S.POD_RESTART_REQUIRED, driver(phase="Pending", ready=False), annotations=SAFE_LOAD),
        {},
        None,
        stayed({names.UPGRADE_SAFE_LOAD: None}),
    ),
    (
        "restart, safe load, healthy",
        node(S.POD_RESTART_REQUIRED, annotations=SAFE_LOAD),
        {},
        S.VALIDATION_REQUIRED,
        moved(S.VALIDATION_REQUIRED, {names.UPGRADE_SAFE_LOAD: None}),
    ),
    ("restart, healthy", node(S.POD_RESTART_REQUIRED), {}, S.VALIDATION_REQUIRED, moved(S.VALIDATION_REQUIRED)),
    ("restart, failing", node(S.POD_RESTART_REQUIRED, driver(ready=False, restarts=11)), {}, S.FAILED, moved(S.FAILED)),
    ("restart, ten restarts", node(S.POD_RESTART_REQUIRED, driver(ready=False, restarts=10)), {}, None, stayed()),
    # uncordon-required
    ("uncordon", node(S.UNCORDON_REQUIRED, unschedulable=True), {}, S.DONE, moved(S.DONE, unschedulable=False)),
    ("uncordon, uncordoned by somebody", node(S.UNCORDON_REQUIRED), {}, S.DONE, moved(S.DONE)),
    (
        "uncordon set by hand on a node that was cordoned before",
        node(S.UNCORDON_REQUIRED, unschedulable=True, annotations=INITIAL),
        {},
        S.DONE,
        moved(S.DONE, {names.UPGRADE_INITIAL_STATE: None}),
    ),
    # upgrade-failed
    ("failed, healthy", node(S.FAILED, unschedulable=True), {}, S.UNCORDON_REQUIRED, moved(S.UNCORDON_REQUIRED)),
    (
        "failed, healthy, cordoned before",
        node(S.FAILED, unschedulable=True, annotations=INITIAL),
        {},
        S.DONE,
        moved(S.DONE, {names.UPGRADE_INITIAL_STATE: None}),
    ),
    ("failed, outdated", node(S.FAILED, OUTDATED), {}, None, stayed()),
    ("failed, healthy, but safe load is waited for", node(S.FAILED, annotations=SAFE_LOAD), {}, None, stayed()),
    ("failed, not ready", node(S.FAILED, driver(ready=False, restarts=99)), {}, None, stayed()),
]


@pytest.mark.parametrize(("what", "facts", "how", "to", "patch"), ROWS, ids=[row[0] for row in ROWS])
@pytest.mark.parametrize("release", Release)
def test_a_row_of_the_table(release, what, facts, how, to, patch):
    policy = msgspec.structs.replace(how.get("policy", UNLIMITED), release=release)
    if release is Release.V26_3 and to is S.POD_RESTART_REQUIRED and facts.label == S.UPGRADE_REQUIRED:
        to, patch = S.CORDON_REQUIRED, moved(S.CORDON_REQUIRED)  # 3.7 is of 26.7 alone
    decision = one(facts, **{**how, "policy": policy})
    assert (decision.to, decision.patch) == (to, patch)
    assert decision.state == facts.label
    changes = bool(decision.patch.annotations or decision.to)
    assert bool(decision.events) == (changes or decision.problem is not None)
    at_rest = facts.label in states.AT_REST
    says_why = to is None and (not at_rest or facts.unschedulable)
    assert bool(decision.waits_for) == says_why, "a node that stays, or stays cordoned, says why"


def test_every_state_has_a_rule():
    assert {*machine.RULES, *states.MAINTENANCE} == set(State)


# --- Side effects of 3.5 ---------------------------------------------------------------------------------------------
DELETED = (DeletePod("gpu-operator", "driver-x", "pod-x"),)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ((OUTDATED,), DELETED),
        ((ORPHAN,), DELETED),
        ((driver(hash=OLD, terminating=True),), ()),
        ((driver(daemon_set="", terminating=True),), ()),
        ((driver(hash=OLD, terminating=True), driver(name="b", uid="b", ready=False)), ()),
        ((driver(), driver(name="b", uid="b", daemon_set="")), (DeletePod("gpu-operator", "b", "b"),)),
        ((driver(ready=False),), ()),
    ],
)
def test_only_driver_pods_that_are_not_up_to_date_and_not_terminating_are_deleted(pods, expected):
    assert one(node(S.POD_RESTART_REQUIRED, *pods)).actions == expected


@pytest.mark.parametrize("state", sorted(set(State) - {S.POD_RESTART_REQUIRED}))
@pytest.mark.parametrize("pod", [OUTDATED, ORPHAN])
def test_driver_pods_are_deleted_in_no_other_state(state, pod):
    decision = one(node(state, pod, jobs=(), gpu_pods=(), validators=VALID))
    assert not any(isinstance(action, DeletePod) for action in decision.actions)


def test_eviction_begins_with_the_rules_of_the_policy():
    rules = PodDeletion(force=True, timeout_s=7, delete_empty_dir=True)
    policy = msgspec.structs.replace(UNLIMITED, pod_deletion=rules)
    decision = one(node(S.POD_DELETION_REQUIRED, gpu_pods=gpu("", "")), policy=policy)
    assert decision.actions == (StartEviction(rules),)
    assert "default/gpu-0, default/gpu-1" in decision.waits_for


def test_nothing_is_evicted_unless_everything_may_be():
    for kept in itertools.product(("", "it has no controller"), repeat=3):
        decision = one(node(S.POD_DELETION_REQUIRED, gpu_pods=gpu(*kept)))
        assert bool(decision.actions) == (not any(kept))
        if any(kept):
            assert decision.to is S.FAILED
            assert decision.events[0].type == "Warning"
            assert "it has no controller" in decision.events[0].message


def test_drain_begins_on_a_cordoned_node_with_the_rules_of_the_policy():
    decision = one(node(S.DRAIN_REQUIRED, OUTDATED), policy=DRAINING)
    assert decision.actions == (StartDrain(DRAINING.drain),)
    assert decision.patch.unschedulable is True
    assert one(node(S.DRAIN_REQUIRED, OUTDATED, unschedulable=True), policy=DRAINING).patch == Patch()


@pytest.mark.parametrize(
    ("state", "work", "policy", "to", "type"),
    [
        (S.POD_DELETION_REQUIRED, {}, UNLIMITED, None, None),
        (S.POD_DELETION_REQUIRED, {"done": True}, UNLIMITED, S.POD_RESTART_REQUIRED, "Normal"),
        (S.POD_DELETION_REQUIRED, {"done": True, "failure": "a budget"}, UNLIMITED, S.FAILED, "Warning"),
        (S.POD_DELETION_REQUIRED, {"done": True, "failure": "a budget"}, DRAINING, S.DRAIN_REQUIRED, "Warning"),
        (S.DRAIN_REQUIRED, {}, DRAINING, None, None),
        (S.DRAIN_REQUIRED, {"done": True}, DRAINING, S.POD_RESTART_REQUIRED, "Normal"),
        (S.DRAIN_REQUIRED, {"done": True, "failure": "a budget"}, DRAINING, S.FAILED, "Warning"),
    ],
)
def test_what_is_under_way_is_not_begun_twice_and_its_end_moves_the_node(state, work, policy, to, type):
    facts = node(state, OUTDATED, gpu_pods=gpu(""))
    decision = one(facts, Work(state=state, **work), policy=policy)
    assert (decision.to, decision.actions) == (to, ())
    if to is None:
        assert decision.waits_for
        assert not decision.events
    else:
        assert decision.events[0].type == type
        assert work.get("failure", "") in decision.events[0].message


def test_work_that_was_begun_in_another_state_is_no_work():
    done = Work(state=S.POD_DELETION_REQUIRED, done=True)
    decision = one(node(S.DRAIN_REQUIRED, OUTDATED), done, policy=DRAINING)
    assert decision.actions == (StartDrain(DRAINING.drain),)


def test_after_a_restart_the_node_is_started_again():  # 3.12
    facts = node(S.POD_DELETION_REQUIRED, OUTDATED, gpu_pods=gpu(""))
    assert one(facts).actions == one(facts, None).actions == (StartEviction(PodDeletion()),)


@pytest.mark.parametrize("start", ["", "x", "1.5", "1e3", "٣", "null"])
def test_a_timer_that_is_no_integer_is_reported(start):
    waiting = one(node(S.WAIT_FOR_JOBS_REQUIRED, jobs=("a/b",), annotations={JOBS: start}), policy=WAITING_60)
    validating = one(node(S.VALIDATION_REQUIRED, validators=INVALID, annotations={VALIDATION: start}))
    for decision, key in ((waiting, JOBS), (validating, VALIDATION)):
        assert decision.to is None
        assert decision.problem is not None
        assert decision.problem.reason == "InvalidUpgradeTimer"
        assert key in decision.problem.message
        assert decision.events[0].type == "Warning"


def test_a_timer_that_is_no_integer_ends_with_what_it_timed():
    waiting = one(node(S.WAIT_FOR_JOBS_REQUIRED, jobs=(), annotations={JOBS: "x"}), policy=WAITING_60)
    validating = one(node(S.VALIDATION_REQUIRED, validators=VALID, annotations={VALIDATION: "x"}))
    assert waiting.patch.annotations == {JOBS: None}
    assert validating.patch.annotations == {VALIDATION: None}


# --- 3.3 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pod", "healthy"),
    [
        (driver(), True),
        (driver(phase="Pending"), False),
        (driver(phase="Succeeded"), False),
        (driver(ready=False), False),
        (driver(terminating=True), False),
        (driver(hash=OLD), False),
        (driver(daemon_set=""), False),
    ],
)
def test_a_driver_pod_is_healthy(pod, healthy):
    assert (one(node(S.FAILED, pod)).to is S.UNCORDON_REQUIRED) == healthy


@pytest.mark.parametrize(
    ("pod", "how", "text"),
    [
        (driver(hash=""), {}, "no label controller-revision-hash"),
        (driver(), {"revision": ""}, "no ControllerRevision"),
        (driver(daemon_set="gone"), {}, "belongs to a DaemonSet that is not there"),
    ],
)
@pytest.mark.parametrize("state", [S.UNKNOWN, S.DONE, S.POD_RESTART_REQUIRED, S.FAILED])
def test_one_node_of_unknown_revision_stays_and_the_rest_goes_on(state, pod, how, text):
    decision = one(node(state, pod), **how)
    assert (decision.to, decision.actions, decision.patch) == (None, (), Patch())
    assert decision.problem is not None
    assert decision.problem.reason == "DriverRevisionUnknown"
    assert text in decision.waits_for
    assert text in decision.events[0].message
    if not how:
        both = run(node(state, pod, name="a"), node(S.UNKNOWN, name="b"))
        assert [each.to for each in both.decisions] == [None, S.DONE]


# --- 3.2 -------------------------------------------------------------------------------------------------------------
def test_while_pods_are_missing_nobody_starts_but_who_has_started_goes_on():
    nodes = (
        node(S.UPGRADE_REQUIRED, OUTDATED, name="a"),
        node(S.UPGRADE_REQUIRED, OUTDATED, name="b", unschedulable=True),
        node(S.CORDON_REQUIRED, OUTDATED, name="c"),
        node(S.UNKNOWN, name="d"),
        node(S.POD_RESTART_REQUIRED, name="e", driver_pods=()),
    )
    found = run(*nodes, desired=3, pods=2)
    assert [each.to for each in found.decisions] == [None, None, S.WAIT_FOR_JOBS_REQUIRED, S.DONE, None]
    text = "DaemonSet nvidia-driver-daemonset has 2 pods and wants 3"
    assert text in found.held
    assert [each.reason for each in found.problems] == ["UnscheduledPods"]
    for number in (0, 1, 4):
        assert text in found.decisions[number].waits_for
    assert found.counts.in_progress == 2, "the node without a pod is still counted"


def test_a_pod_in_excess_holds_up_nobody():
    """Better than NVIDIA's controller, which then upgrades nothing: a node that was tainted keeps its driver pod."""
    found = run(node(S.UPGRADE_REQUIRED, OUTDATED), desired=2, pods=3)
    assert (found.decisions[0].to, found.held, found.problems) == (S.CORDON_REQUIRED, "", ())


def test_a_node_that_no_daemon_set_wants_says_so_and_keeps_its_slot():
    """Whether its pod is just missing cannot be told for certain, as a DaemonSet's status is late."""
    nodes = (
        node(S.VALIDATION_REQUIRED, name="a", driver_pods=(), unschedulable=True, validators=VALID),
        node(S.UPGRADE_REQUIRED, OUTDATED, name="b"),
    )
    found = run(*nodes, policy=Policy(max_parallel=1, max_unavailable=1))
    assert found.decisions[0].problem is not None
    assert found.decisions[0].problem.reason == "NoDriverPod"
    assert "kubectl uncordon a" in found.decisions[0].waits_for
    assert found.decisions[1].to is None
    assert (
        "1 upgrades are in progress, maxParallelUpgrades is 1: a (validation-required)" in found.decisions[1].waits_for
    )
    assert (found.counts.total, found.counts.in_progress, found.counts.unavailable) == (2, 1, 1)
    waiting = run(node(S.UPGRADE_REQUIRED, name="a", driver_pods=()), nodes[1])
    assert waiting.counts.total == 1, "one that has not begun takes nothing"


@pytest.mark.parametrize("state", [S.UNKNOWN, S.DONE])
def test_a_node_at_rest_without_driver_is_left_alone(state):
    decision = one(node(state, driver_pods=(), annotations=REQUESTED))
    assert decision.idle
    assert not decision.waits_for


# --- Labels that nobody of us wrote ---------------------------------------------------------------------------------
@pytest.mark.parametrize("label", ["nonsense", "Upgrade-Done", "upgrade-done ", "null", *sorted(states.MAINTENANCE)])
@pytest.mark.parametrize("unschedulable", [False, True])
def test_a_label_that_makes_no_sense_is_reported_and_the_rest_goes_on(label, unschedulable):
    nodes = (
        node(label, OUTDATED, name="a", unschedulable=unschedulable),
        node(S.UPGRADE_REQUIRED, OUTDATED, name="b"),
        node(S.DONE, name="c"),
    )
    found = run(*nodes, policy=Policy(max_parallel=1, max_unavailable=None))
    bad, good, _ = found.decisions
    assert bad.patch == Patch()
    assert bad.problem is not None
    assert bad.problem.reason == "UnknownUpgradeState"
    assert bad.events[0].type == "Warning"
    for text in (label, "upgrade-required", names.UPGRADE_STATE):
        assert text in bad.events[0].message
    assert ("kubectl uncordon a" in bad.waits_for) == unschedulable
    assert good.to is S.CORDON_REQUIRED
    assert found.counts.in_progress == 0


# --- Facts that are missing ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "policy"),
    [(S.WAIT_FOR_JOBS_REQUIRED, WAITING), (S.POD_DELETION_REQUIRED, UNLIMITED), (S.VALIDATION_REQUIRED, UNLIMITED)],
)
def test_a_node_whose_facts_are_missing_waits(state, policy):
    unseen, unread = one(node(state), policy=policy), one(node(state, unread="403 Forbidden"), policy=policy)
    assert unseen.patch == unread.patch == Patch()
    assert unseen.idle
    assert "not been looked at yet" in unseen.waits_for
    assert unread.problem is not None
    assert unread.problem.reason == "FactsMissing"
    assert "403 Forbidden" in unread.events[0].message


# --- The way of one node ---------------------------------------------------------------------------------------------
def test_a_second_template_change_is_picked_up_where_the_pod_is_compared():  # notes of 3.5
    for state in (S.CORDON_REQUIRED, S.WAIT_FOR_JOBS_REQUIRED, S.POD_DELETION_REQUIRED):
        assert one(node(state, OUTDATED, gpu_pods=())).to not in (S.UPGRADE_REQUIRED, None)
    assert one(node(S.POD_RESTART_REQUIRED, OUTDATED)).actions == DELETED
    assert one(node(S.VALIDATION_REQUIRED, OUTDATED, validators=VALID)).to is S.UNCORDON_REQUIRED
    assert one(node(S.DONE, OUTDATED)).to is S.UPGRADE_REQUIRED


def test_a_failed_node_that_is_tried_again_passes_quickly():  # notes of 3.5
    way = [S.UPGRADE_REQUIRED]
    for _ in range(10):
        facts = node(way[-1], driver(hash=NEW), unschedulable=True, jobs=(), gpu_pods=(), validators=VALID)
        decision = one(facts, policy=WAITING_60)
        if decision.to is None:
            break
        assert not decision.actions
        way.append(decision.to)
    assert way[1:] == [
        S.CORDON_REQUIRED,
        S.WAIT_FOR_JOBS_REQUIRED,
        S.POD_DELETION_REQUIRED,
        S.POD_RESTART_REQUIRED,
        S.VALIDATION_REQUIRED,
        S.UNCORDON_REQUIRED,
        S.DONE,
    ]


def test_a_node_moves_once_a_pass():  # 3.2 step 5
    found = run(*(node(state, OUTDATED, name=str(i), gpu_pods=()) for i, state in enumerate(State)))
    assert len(found.decisions) == len(State)
    assert len({each.node for each in found.decisions}) == len(State)


def test_patches_are_one_request_each():
    document = moved(S.POD_RESTART_REQUIRED, {"a": None}, True).document("42")
    assert document == {
        "metadata": {
            "resourceVersion": "42",
            "labels": {names.UPGRADE_STATE: "pod-restart-required"},
            "annotations": {"a": None},
        },
        "spec": {"unschedulable": True},
    }
    assert stayed(unschedulable=False).document() == {"spec": {"unschedulable": None}}
    assert Patch().document() == {}


def test_a_refused_patch_or_action_is_an_event():
    moving = machine.failure(one(node(S.CORDON_REQUIRED)), "403 Forbidden")
    acting = machine.failure(one(node(S.POD_RESTART_REQUIRED, OUTDATED)), "403 Forbidden")
    assert moving == (
        "Warning",
        "Cannot move the node from cordon-required to wait-for-jobs-required: 403 Forbidden; it is tried again",
    )
    assert acting == ("Warning", "Cannot act on the node: 403 Forbidden; it is tried again")


# --- 3.12 ------------------------------------------------------------------------------------------------------------
def test_turning_upgrades_off_removes_the_label_and_nothing_else():
    nodes = [
        node(S.VALIDATION_REQUIRED, name="ours", unschedulable=True, annotations={VALIDATION: "1"}),
        node(S.VALIDATION_REQUIRED, name="before", unschedulable=True, annotations=INITIAL),
        node("nonsense", name="odd"),
        node(S.UNKNOWN, name="none"),
    ]
    cleared = machine.clear(nodes)
    assert [each.node for each in cleared] == ["ours", "before", "odd"]
    assert all(each.patch == Patch({names.UPGRADE_STATE: None}) for each in cleared)
    assert [bool(each.events) for each in cleared] == [True, False, False]
    assert "kubectl uncordon ours" in cleared[0].waits_for


def test_who_cordoned_a_node_can_be_told():
    assert slots.cordoned_by_upgrade(node(S.FAILED, unschedulable=True))
    assert not slots.cordoned_by_upgrade(node(S.FAILED, unschedulable=True, annotations=INITIAL))
    assert not slots.cordoned_by_upgrade(node(S.UPGRADE_REQUIRED, unschedulable=True))
    assert not slots.cordoned_by_upgrade(node(S.FAILED))
