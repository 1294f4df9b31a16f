"""contracts/driver-lifecycle.md 3.7: replacing a driver pod without taking workloads off the node."""

import msgspec
import pytest
from upgrade_facts import NEW, OLD, UNLIMITED, driver, node, one, run

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.operator.upgrade.model import Policy
from groundplane.operator.upgrade.states import State

SAME = driver(hash=OLD, digest="7")
REQUIRED = State.UPGRADE_REQUIRED


def qualifies(*pods, annotations=None, **daemon_set) -> bool:
    to = one(node(REQUIRED, *pods, annotations=annotations), **{"digest": "7", **daemon_set}).to
    assert to in (State.POD_RESTART_REQUIRED, State.CORDON_REQUIRED)
    return to is State.POD_RESTART_REQUIRED


@pytest.mark.parametrize(
    ("pods", "annotations", "daemon_set", "expected"),
    [
        ((SAME,), {}, {}, True),
        ((driver(hash=NEW, digest="7"),), {}, {}, True),
        ((driver(hash=OLD, digest="8"),), {}, {}, False),
        ((driver(hash=OLD),), {}, {}, False),
        ((SAME,), {}, {"digest": ""}, False),
        ((driver(hash=OLD),), {}, {"digest": ""}, False),
        ((driver(daemon_set="", digest="7"),), {}, {}, False),
        ((SAME, driver(name="b", uid="b", daemon_set="", digest="7")), {}, {}, False),
        ((SAME,), {names.UPGRADE_REQUESTED: "true"}, {}, False),
        ((SAME,), {names.UPGRADE_REQUESTED: "false"}, {}, True),
        ((SAME,), {names.UPGRADE_SAFE_LOAD: "x"}, {}, False),
        ((SAME,), {names.UPGRADE_SAFE_LOAD: ""}, {}, True),
        ((SAME,), {}, {"precompiled": True}, False),
        ((driver(hash=OLD, digest="7", ready=False),), {}, {}, False),
        ((driver(hash=OLD, digest="7", phase="Pending"),), {}, {}, False),
        ((driver(hash=OLD, digest="7", terminating=True),), {}, {}, False),
    ],
)
def test_a_node_qualifies(pods, annotations, daemon_set, expected):
    assert qualifies(*pods, annotations=annotations, **daemon_set) == expected


def test_it_is_of_release_26_7():
    policy = msgspec.structs.replace(UNLIMITED, release=Release.V26_3)
    assert one(node(REQUIRED, SAME), policy=policy, digest="7").to is State.CORDON_REQUIRED


def test_it_takes_a_slot_and_cordons_in_the_same_patch():
    nodes = [node(REQUIRED, SAME, name=name) for name in "abc"]
    found = run(*nodes, policy=Policy(max_parallel=2, max_unavailable=None), digest="7")
    assert [each.to for each in found.decisions] == [State.POD_RESTART_REQUIRED, State.POD_RESTART_REQUIRED, None]
    assert [each.patch.unschedulable for each in found.decisions] == [True, True, None]
    assert not any(each.actions for each in found.decisions)


def test_a_node_that_was_cordoned_before_is_patched_only_with_its_state():
    facts = node(REQUIRED, SAME, unschedulable=True, annotations={names.UPGRADE_INITIAL_STATE: "true"})
    decision = one(facts, digest="7")
    assert decision.patch.document() == {"metadata": {"labels": {names.UPGRADE_STATE: "pod-restart-required"}}}
