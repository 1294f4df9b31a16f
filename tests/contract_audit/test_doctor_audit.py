"""The doctor against contracts/admin-workflow.md 11, 12, 13 and 15, by evidence written from the contract alone."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.diagnose import doctor, evidence
from groundplane.diagnose.engine import Verdict
from groundplane.diagnose.findings import Finding, exit_code

ROWS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(Path(__file__).with_name("doctor_rows.yaml").read_text())
NUMBERS = [f"S{number:02d}" for number in range(1, 59)]


def judged(document: Mapping[str, Any]) -> Verdict:
    return doctor.diagnose(evidence.loads(yaml.safe_dump(document)))


def told(verdict: Verdict) -> list[str]:
    """Ids of all that a verdict says, as a person reads it: causes with what follows from them, the rest."""
    causes = [[each.finding.id, [then.id for then in each.consequences]] for each in verdict.causes]
    return [str(each) for each in causes] + [
        f"{kind} {each.id}"
        for kind, found in (("unmatched", verdict.unmatched), ("note", verdict.notes))
        for each in found
    ]


def causes(verdict: Verdict) -> list[str]:
    return [each.finding.id for each in verdict.causes]


def test_every_row_has_its_evidence() -> None:
    assert {row.get("id", name.partition("-")[0]) for name, row in ROWS.items()} == set(NUMBERS)


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    row = ROWS[name]
    wanted = row.get("id", name)
    verdict = judged(row["evidence"])
    first: Sequence[Finding] = [each.finding for each in verdict.causes[:1]]
    if row.get("note"):
        first = verdict.notes
    elif row.get("told"):
        first = [*first, *itertools.chain.from_iterable(each.consequences for each in verdict.causes)]
    found = next((each for each in first if each.id == wanted), None)
    assert found is not None, told(verdict)
    assert found.layer in row["layers"]
    assert found.severity == row["severity"]
    fix = "\n".join(found.fix).casefold()
    assert [each for each in row["fix"] if each.casefold() not in fix] == [], found.fix
    assert found.cause and found.confirm and found.fix and found.evidence
    assert exit_code(verdict.findings) == {"info": 0, "warning": 4}.get(row["severity"], 3)
