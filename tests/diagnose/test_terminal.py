"""What others wrote never steers a terminal: names, excerpts and titles with control sequences, in every text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.diagnose import doctor, tree
from groundplane.diagnose.evidence import Evidence as Seen
from groundplane.diagnose.evidence import Log
from groundplane.diagnose.findings import Evidence, Finding, Layer, Outcome, printable, text

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpu\r\nnode\x00"


def hostile(outcome: Outcome) -> Finding:
    return Finding(
        id=HOSTILE,
        layer=Layer.DRIVER,
        outcome=outcome,
        title=HOSTILE,
        node=HOSTILE,
        evidence=(Evidence(HOSTILE, HOSTILE),),
        cause=HOSTILE,
        confirm=HOSTILE,
        fix=(HOSTILE, HOSTILE),
        docs=HOSTILE,
    )


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("everything", [False, True])
def test_findings_in_text_steer_no_terminal(outcome: Outcome, everything: bool) -> None:
    lines = text([hostile(outcome)], all_evidence=everything)
    assert any("gpu" in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []


@pytest.mark.parametrize("everything", [False, True])
def test_the_doctors_tree_steers_no_terminal(everything: bool) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": HOSTILE, "labels": {"nvidia.com/gpu.present": "true"}},
    }
    log = Log(text=f"NVRM: Xid (PCI:0000:3b:00): 79, {HOSTILE} GPU has fallen off the bus.", node=HOSTILE, pod=HOSTILE)
    seen = Seen(objects=(node,), logs=(log,), missing=(HOSTILE,))
    verdict = doctor.diagnose(seen)
    lines = tree.lines(verdict, seen, everything=everything)
    assert any("gpu" in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []


def test_steps_of_a_pod_steer_no_terminal() -> None:
    told = tree.steps([hostile(Outcome.FAIL), hostile(Outcome.PASS)], (HOSTILE, HOSTILE))
    assert [line.text for line in told if not line.text.isprintable()] == []


@given(st.text(max_size=40))
def test_printable_keeps_what_may_be_printed(line: str) -> None:
    said = printable(line)
    assert len(said) == len(line)
    assert said.replace("\t", "").isprintable()
    assert printable(said) == said
    if line.isprintable():
        assert said == line
