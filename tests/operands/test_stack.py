"""The order of a pass and how it ends: 4.1 of contracts/control-plane.md."""

import pytest
from operands import rendering

from groundplane.operands import stack
from groundplane.operands.errors import problem

OFF = {"driver": {"enabled": False}}
BROKEN = {**OFF, "devicePlugin": {"version": ""}}


def test_an_error_ends_the_pass_and_names_its_state():
    results = rendering.states(changes=BROKEN)
    assert [each.state for each in results] == [each.name for each in stack.STATES][:6]
    *before, last = results
    assert last.state == last.error.state == "state-device-plugin"
    assert last.enabled and not last.objects
    assert "spec.devicePlugin" in str(last.error)
    assert all(each.error is None for each in before)
    assert all(each.objects for each in before if each.enabled)


def test_disabled_states_render_nothing():
    for each in rendering.states():
        assert bool(each.objects) is each.enabled, each.state


def test_a_state_that_fails_is_placed_by_the_stack():
    def fails(_spec, _facts):
        raise problem("cannot")

    states = (stack.State("state-x", lambda *_: True, fails), stack.State("state-y", lambda *_: True, lambda *_: []))
    (result,) = stack.render(rendering.spec(), rendering.facts(), states)
    assert str(result.error) == "state-x: cannot"


def test_a_bug_is_not_mistaken_for_a_bad_policy():
    def buggy(_spec, _facts):
        raise KeyError("bug")

    with pytest.raises(KeyError):
        stack.render(rendering.spec(), rendering.facts(), (stack.State("state-x", lambda *_: True, buggy),))


@pytest.mark.parametrize("file", rendering.FILES)
def test_every_policy_of_the_chart_renders(file):
    assert all(each.error is None for each in rendering.states(file))


def test_without_owner_there_is_no_owner_reference():
    for each in rendering.objects(owner=None).values():
        assert "ownerReferences" not in each["metadata"]
