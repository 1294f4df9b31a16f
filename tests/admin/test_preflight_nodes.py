"""What was found on nodes beside what the API tells: which answer counts, and why there is none."""

from collections.abc import Iterator

from msgspec.structs import replace
from preflight_world import inquire, node

from groundplane.admin import preflight
from groundplane.admin.checks import CHECKS
from groundplane.admin.inquiry import Inquiry
from groundplane.diagnose.evidence import NodeFacts
from groundplane.diagnose.findings import Finding, Outcome

LOOKED = {"gpu-1": NodeFacts(name="gpu-1", facts={"gpus": [{"device": "20b0"}]})}


def three() -> Inquiry:
    """Three nodes: one was looked at, one could not be, one nobody tried."""
    inquiry = inquire(nodes=[node("gpu-1"), node("gpu-2"), node("gpu-3")])
    return replace(inquiry, node_facts=LOOKED, node_unread={"gpu-2": "the node is unreachable"})


def _answer(outcome: Outcome, number: str, *nodes: str) -> preflight.Function:
    def function(inquiry: Inquiry) -> Iterator[Finding]:
        for name in nodes:
            yield inquiry.finding(number, outcome, "seen on the node", node=name)

    return function


def test_what_was_found_on_a_node_takes_the_place_of_not_knowing() -> None:
    found = preflight.run(CHECKS["A20"], three(), on_nodes={"A20": _answer(Outcome.FAIL, "A20", "gpu-1")})
    by_node = {each.node: (each.outcome, each.cause) for each in found}
    assert by_node == {
        "gpu-1": (Outcome.FAIL, ""),
        "gpu-2": (Outcome.UNKNOWN, "the node is unreachable"),
        "gpu-3": (Outcome.UNKNOWN, preflight.NOBODY_LOOKED),
    }


def test_checks_that_only_nodes_answer() -> None:
    found = preflight.run(CHECKS["A27"], three(), on_nodes={"A27": _answer(Outcome.PASS, "A27", "gpu-1")})
    assert {each.node: each.outcome.value for each in found} == {
        "gpu-1": "pass",
        "gpu-2": "unknown",
        "gpu-3": "unknown",
    }
    silent = preflight.run(CHECKS["A27"], three(), on_nodes={"A27": _answer(Outcome.PASS, "A27")})
    assert next(each for each in silent if each.node == "gpu-1").cause == preflight.DOES_NOT_TELL
    nowhere = preflight.run(CHECKS["A27"], inquire(nodes=[]), on_nodes={})
    assert [(each.outcome, each.node) for each in nowhere] == [(Outcome.UNKNOWN, "")]


def test_a_failure_that_the_api_tells_stays_beside_what_a_node_tells() -> None:
    inquiry = replace(inquire(nodes=[node("gpu-1") | {"status": {}}]), node_facts=LOOKED)
    found = preflight.run(CHECKS["A31"], inquiry, on_nodes={"A31": _answer(Outcome.PASS, "A31", "gpu-1")})
    assert [each.outcome for each in found] == [Outcome.FAIL, Outcome.PASS]


def test_nothing_is_said_above_a_missing_device() -> None:
    inquiry = inquire(nodes=[node(gpu=False), node("other", gpu=False)])
    found = preflight.preflight(inquiry)
    above = [each for each in found if each.layer.value not in ("L0", "L9")]
    assert above and {each.outcome for each in above} == {Outcome.SKIP}
    assert {each.cause for each in above} == {preflight.NO_GPU}
    assert any(each.id == "A2" and each.outcome is Outcome.PASS for each in found)


def test_what_was_not_made_is_told_as_one_at_first() -> None:
    found = preflight.preflight(three())
    folded = preflight.folded(found)
    assert len(folded) < len(found)
    (unreachable,) = [each for each in folded if each.cause == "the node is unreachable" and each.id == "-"]
    assert unreachable.nodes == ("gpu-2",) and "A27" in unreachable.title and unreachable.outcome is Outcome.UNKNOWN
    assert {each.outcome for each in folded} == {each.outcome for each in found}
