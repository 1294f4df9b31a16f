"""What was reported in public: a lower layer wins over it, and neither it nor healthy logs raise a false alarm."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.diagnose import engine, evidence, texts
from groundplane.diagnose.evidence import Evidence
from groundplane.diagnose.findings import Finding, Severity
from groundplane.diagnose.match import match, scopes
from groundplane.diagnose.signatures import Signature, builtin

FOLDER = Path(__file__).parent / "signatures"


def table(file: str) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))
    return found


PUBLIC, MIXED = table("public.yaml"), table("public_mixed.yaml")
OURS = {**table("low.yaml"), **table("high.yaml")}
KNOWN = {signature.id: signature for signature in builtin()}
HEALTHY: dict[str, str] = yaml.safe_load((FOLDER / "healthy.yaml").read_text(encoding="utf-8"))
NEIGHBOURS = {
    "G061": {"S42"},  # both say that the GPU is held; this one also by what
    "G062": {"M01"},  # the label alone says that something failed
}
"""Signatures of the same or a lower layer that the evidence of one shows too."""


def found(document: Evidence, known: Mapping[str, Signature]) -> set[str]:
    shares = scopes(document).values()
    return {name for name, each in known.items() if any(match(each, scope) is not None for scope in shares)}


def told(verdict: engine.Verdict) -> Iterator[Finding]:
    for cause in verdict.causes:
        yield from cause.consequences
    yield from verdict.notes


def test_at_least_sixty_and_each_names_an_issue() -> None:
    mine = {name: each for name, each in KNOWN.items() if name in PUBLIC}
    assert len(mine) >= 60 and mine.keys() == MIXED.keys()
    assert all(any(character.isdigit() for character in each.source) for each in mine.values())
    assert mine.keys() == {name for name in KNOWN if name.startswith("G")}


@pytest.mark.parametrize("name", MIXED)
def test_the_lower_of_two_is_the_cause(name: str) -> None:
    other, cause = MIXED[name]["with"], MIXED[name]["cause"]
    both = [evidence.load({**PUBLIC, **OURS}[each]["shows"]) for each in (other, name)]
    verdict = engine.judge(texts.merged(both), builtin())
    assert [each.finding.id for each in verdict.causes] == [cause]
    follows = other if cause == name else name
    assert follows in {each.id for each in told(verdict)}
    assert KNOWN[cause].layer < KNOWN[follows].layer


@pytest.mark.parametrize("name", PUBLIC)
def test_it_is_the_cause_where_it_stands_alone(name: str) -> None:
    document = evidence.load(PUBLIC[name]["shows"])
    lower = {each for each in found(document, KNOWN) - {name} if KNOWN[each].layer <= KNOWN[name].layer}
    assert lower <= NEIGHBOURS.get(name, set())


@pytest.mark.parametrize("name", OURS)
def test_it_does_not_take_the_place_of_another(name: str) -> None:
    public = {each: KNOWN[each] for each in PUBLIC}
    assert not found(evidence.load(OURS[name]["shows"]), public)


@pytest.mark.parametrize("operand", HEALTHY)
def test_healthy_logs_match_nothing(operand: str) -> None:
    container = operand.partition(" ")[0]
    named = {"logs": [{"node": "n1", "pod": "p", "container": container, "text": HEALTHY[operand]}]}
    failures = {name: each for name, each in KNOWN.items() if each.severity is not Severity.INFO}
    assert not found(evidence.load(named), failures)
    assert not found(texts.read(HEALTHY[operand]), failures)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "S08",
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update it",
        ),
        ("S37", "Failed to initialize NVML: could not load NVML library."),
    ],
)
def test_other_words_for_a_cause_that_is_known(name: str, text: str) -> None:
    assert found(evidence.load({"logs": text}), KNOWN) == {name}
