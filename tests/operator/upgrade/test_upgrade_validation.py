"""contracts/driver-lifecycle.md 3.8: the node's validators are the gate before it is schedulable again."""

import itertools

import pytest
from upgrade_facts import INVALID, NOW, VALID, driver, node, one

from groundplane.api import names
from groundplane.operator.upgrade.model import Patch, ValidatorPod
from groundplane.operator.upgrade.states import State

KEY = names.UPGRADE_VALIDATION_START
INITIAL = {names.UPGRADE_INITIAL_STATE: "true"}
STATE = names.UPGRADE_STATE


def validating(validators, annotations=None, now=NOW):
    return one(node(State.VALIDATION_REQUIRED, validators=validators, annotations=annotations), now=now)


@pytest.mark.parametrize(
    ("validators", "annotations", "to", "changes"),
    [
        (VALID, {}, State.UNCORDON_REQUIRED, {}),
        (VALID, {KEY: "5"}, State.UNCORDON_REQUIRED, {KEY: None}),
        (VALID, INITIAL, State.DONE, {names.UPGRADE_INITIAL_STATE: None}),
        (VALID, {**INITIAL, KEY: "5"}, State.DONE, {names.UPGRADE_INITIAL_STATE: None, KEY: None}),
        (INVALID, {}, None, {KEY: str(NOW)}),
        (INVALID, {KEY: str(NOW - 599)}, None, {}),
        (INVALID, {KEY: str(NOW - 600)}, None, {}),
        (INVALID, {KEY: str(NOW - 601)}, State.FAILED, {KEY: None}),
        (INVALID, {**INITIAL, KEY: str(NOW - 601)}, State.FAILED, {KEY: None}),
        ((), {}, None, {}),
        ((), {KEY: "5"}, None, {}),
    ],
)
def test_a_row_of_the_table(validators, annotations, to, changes):
    decision = validating(validators, annotations)
    assert decision.to == to
    assert decision.patch == Patch({STATE: str(to)} if to else {}, changes)


def test_all_pods_are_looked_at_before_the_timer_goes():
    """Two that disagree, in any order, neither end nor begin anew the time that is running."""
    for order in itertools.permutations((VALID[0], INVALID[0], ValidatorPod("gpu-operator/other", True))):
        assert validating(order, {KEY: str(NOW - 10)}).patch == Patch()
        assert validating(order, {KEY: str(NOW - 601)}).to is State.FAILED


def test_a_node_without_validator_waits_and_says_why():
    decision = validating(())
    assert decision.problem is not None
    assert decision.problem.reason == "NoValidatorPod"
    assert decision.events[0].type == "Warning"
    for text in ("app=nvidia-operator-validator", names.DEPLOY_OPERATOR_VALIDATOR, "paused-for-driver-upgrade"):
        assert text in decision.events[0].message


def test_a_node_that_waits_for_a_validator_says_how_long():
    decision = validating(INVALID, {KEY: str(NOW - 100)})
    assert decision.waits_for == "validator pod gpu-operator/validator is not ready; the upgrade fails in 500 s"
    assert not decision.events, "an event at every pass would say another number each time"


@pytest.mark.parametrize(
    ("validators", "before", "changes"),
    [
        (INVALID, {}, {KEY: str(NOW)}),
        (INVALID, {KEY: "5"}, {KEY: str(NOW)}),
        (VALID, {KEY: "5"}, {KEY: None}),
        (VALID, {}, {}),
        ((), {KEY: "5"}, {KEY: None}),
        (None, {KEY: "5"}, {KEY: None}),
        (None, {}, {}),
    ],
)
def test_validation_begins_with_a_timer_of_its_own(validators, before, changes):
    """What an upgrade that was broken off left behind would fail this one at once."""
    decision = one(node(State.POD_RESTART_REQUIRED, driver(), validators=validators, annotations=before))
    assert decision.to is State.VALIDATION_REQUIRED
    assert decision.patch.annotations == changes
