"""Findings: order, grouping, exit codes, secrets and text (contracts/admin-workflow.md 1)."""

import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.diagnose.findings import (
    Action,
    Evidence,
    ExitCode,
    Finding,
    Layer,
    Outcome,
    Severity,
    counts,
    exit_code,
    grouped,
    ordered,
    report,
    text,
    worst,
)


def finding(id: str = "A2", layer: Layer = Layer.OPERATOR, outcome: Outcome = Outcome.FAIL, **more: object) -> Finding:
    return Finding(id=id, layer=layer, outcome=outcome, title="a title", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], ExitCode.OK),
        (["pass", "skip"], ExitCode.OK),
        (["pass", "warn"], ExitCode.WARN),
        (["pass", "unknown"], ExitCode.WARN),
        (["warn", "unknown", "fail", "pass"], ExitCode.FAIL),
    ],
)
def test_exit_codes(outcomes: list[str], code: ExitCode) -> None:
    assert exit_code(finding(outcome=Outcome(outcome)) for outcome in outcomes) is code


def test_exit_code_numbers() -> None:
    assert [(code.name, int(code)) for code in ExitCode] == [
        ("OK", 0), ("TOOL_ERROR", 1), ("USAGE", 2), ("FAIL", 3), ("WARN", 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "severity"),
    [("pass", "info"), ("skip", "info"), ("unknown", "warning"), ("warn", "warning"), ("fail", "critical")],
)
def test_severity_of_an_outcome(outcome: str, severity: str) -> None:
    assert finding(outcome=Outcome(outcome)).severity is Severity(severity)
    assert finding(outcome=Outcome(outcome), severity=Severity.FATAL).severity is Severity.FATAL


def test_severities_rank() -> None:
    assert sorted(Severity, key=lambda severity: severity.rank) == ["info", "warning", "critical", "fatal"]


def test_order_is_layer_node_id_with_numbers_as_numbers() -> None:
    expected = [
        finding("A12", Layer.HARDWARE),
        finding("A9", Layer.DRIVER),
        finding("A10", Layer.DRIVER),
        finding("A42", Layer.DRIVER, node="gpu-2"),
        finding("A20", Layer.DRIVER, node="gpu-10"),
    ]
    shuffled = list(expected)
    random.Random(7).shuffle(shuffled)
    assert ordered(shuffled) == expected


def test_nodes_with_one_cause_are_one_finding() -> None:
    rows = grouped(
        [
            finding("S11", node=f"gpu-{n}", cause="no route", evidence=(Evidence(f"node/gpu-{n}", "timeout"),))
            for n in (10, 2, 1)
        ]
        + [finding("S11", node="gpu-3", cause="proxy refuses")]
    )
    assert [(row.node, row.nodes) for row in rows] == [("", ("gpu-1", "gpu-2", "gpu-10")), ("gpu-3", ("gpu-3",))]
    assert [item.source for item in rows[0].evidence] == ["node/gpu-1", "node/gpu-2", "node/gpu-10"]
    assert grouped(rows) == rows


@given(
    st.lists(
        st.builds(
            finding,
            id=st.sampled_from(["A2", "A10", "S1"]),
            layer=st.sampled_from(Layer),
            outcome=st.sampled_from(Outcome),
            node=st.sampled_from(["", "gpu-1", "gpu-2", "gpu-10"]),
            cause=st.sampled_from(["", "one", "other"]),
        ),
        max_size=12,
    )
)
def test_grouping_loses_nothing_and_is_stable(found: list[Finding]) -> None:
    def said(rows: list[Finding]) -> set[tuple[str, ...]]:
        return {(row.id, row.layer, row.outcome, row.cause, node) for row in rows for node in row.nodes or ("",)}

    rows = grouped(found)
    assert said(rows) == said(found)
    assert grouped(rows) == rows == grouped(reversed(found))
    assert exit_code(rows) is exit_code(found)


def test_what_is_said_of_the_cluster_is_not_mixed_with_nodes() -> None:
    assert len(grouped([finding(), finding(node="gpu-1"), finding(node="gpu-2")])) == 2


def test_evidence_is_redacted_when_it_is_made() -> None:
    made = Evidence("pod/x", "NGC_API_KEY=abc def\nmodprobe: Key was rejected by service")
    assert made.excerpt == "NGC_API_KEY=***\nmodprobe: Key was rejected by service"
    assert Evidence("pod/x", made.excerpt) == made


def test_report_is_complete_and_stable() -> None:
    rows = [
        finding("A2", node="gpu-1", fix=("do",), action=Action.CHANGE_CONFIG, evidence=(Evidence("e", "PASSWORD=x"),)),
        finding("A1", outcome=Outcome.PASS),
    ]
    made = report(rows)
    assert made == report(reversed(rows))
    assert made["summary"] == {"fail": 1, "warn": 0, "unknown": 0, "skip": 0, "pass": 1}
    assert made["exitCode"] == 3
    assert made["findings"][1] == {
        "id": "A2", "layer": "L9", "node": "gpu-1", "nodes": ["gpu-1"], "outcome": "fail", "severity": "critical",
        "title": "a title", "evidence": [{"source": "e", "excerpt": "PASSWORD=***"}], "cause": "", "confirm": "",
        "fix": ["do"], "action": "change_config", "docs": "",
    }  # fmt: skip
    assert json.loads(json.dumps(made)) == made
    assert msgspec.convert(made["findings"][1], Finding) == grouped(rows)[1]


def test_text_says_what_why_and_what_to_do() -> None:
    lines = text(
        [
            finding("A1", Layer.HARDWARE, Outcome.PASS),
            *(
                finding(
                    "S11", Layer.KERNEL, node=f"gpu-{n}", cause="no route\nto the mirror", fix=("open", "retry"),
                    evidence=(Evidence(f"log of gpu-{n}", "timeout"),), confirm="curl x", action=Action.CHANGE_CONFIG,
                )
                for n in range(7)
            ),
        ]
    )  # fmt: skip
    assert lines == [
        "PASS    L0 A1    a title",
        "FAIL    L1 S11   a title  [gpu-0, gpu-1, gpu-2, gpu-3, gpu-4 and 2 more]",
        "        severity  critical",
        "        cause     no route",
        "                  to the mirror",
        "        evidence  log of gpu-0: timeout",
        "                  log of gpu-1: timeout",
        "                  log of gpu-2: timeout",
        "                  and 4 more",
        "        confirm   curl x",
        "        fix       1. open",
        "                  2. retry",
        "        action    change config",
        "1 fail, 1 pass",
    ]


def test_text_of_nothing_is_no_pass() -> None:
    assert text([]) == ["nothing was checked"]


def test_all_evidence() -> None:
    rows = [finding(evidence=tuple(Evidence("e", str(n)) for n in range(9)))]
    assert "                  e: 8" in text(rows, all_evidence=True)


def test_worst_and_counts() -> None:
    rows = [finding(outcome=Outcome.WARN), finding(outcome=Outcome.UNKNOWN)]
    assert worst(rows) is Outcome.WARN
    assert worst([]) is Outcome.PASS
    assert counts(rows)["warn"] == 1


def test_layers_have_words() -> None:
    assert [layer.words for layer in Layer][:6] == [
        "hardware",
        "kernel",
        "driver",
        "fabric",
        "runtime",
        "device plugin",
    ]
