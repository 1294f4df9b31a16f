"""docs/reference/checks.md is the table of checks, and every check is answered by a function or by a command."""

import re
from pathlib import Path

from groundplane.admin import reference
from groundplane.admin.checks import CHECKS

TEXT = (Path(__file__).parents[2] / "docs/reference/checks.md").read_text(encoding="utf-8")
OF_A_PERSON_OR_A_NODE = frozenset(
    f"A{number}" for number in (8, 15, 16, 17, 18, 25, 26, 27, 28, 29, 30, 32, 33, 73, 74, 75, 76, 77, 78)
)
"""Checks that only a node or a running test answers; the others of these commands have a function for certain."""


def _rows(text: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| A\d", line)]
    return {cells[0]: cells for cells in lines}


def test_the_page_has_every_check_as_the_table_has_it() -> None:
    """What the code decides (who answers, what is said) is left to whoever writes the page again."""
    rows = _rows(TEXT)
    assert list(rows) == list(CHECKS)
    for check in CHECKS.values():
        assert tuple(rows[check.id][:5]) == reference.fixed(check), f"write the page again: {reference.COMMAND}"
    head, _, _ = reference.page().partition("| Number")
    assert TEXT.startswith(head)


def test_every_check_has_a_function_or_the_command_that_does_it() -> None:
    found = reference.answers()
    rows = _rows(reference.page())
    for check in CHECKS.values():
        answered = rows[check.id][5]
        assert ("." in answered) if found.get(check.id) else answered == f"`groundplane {check.command}`"
        if check.command in ("preflight", "verify", "baseline", "cuda-test") and check.id not in OF_A_PERSON_OR_A_NODE:
            assert found.get(check.id), f"{check.id} ({check.title}) has no function"


def test_the_checks_of_a_baseline_are_answered_by_drift_and_say_what_they_found() -> None:
    rows = _rows(reference.page())
    assert rows["A80"][5:] == ["`admin.drift._helm`", "release … is not as recorded: …"]
    assert "fewer … are allocatable" in rows["A82"][6]
    assert "another image runs under the same tag" in rows["A83"][6]


WHOLE = ("preflight", "verify", "cuda-test", "baseline")
"""Commands of which the page has every word as the code has it."""


def test_the_page_is_as_the_code_is() -> None:
    made, written = _rows(reference.page()), _rows(TEXT)
    stale = [check.id for check in CHECKS.values() if check.command in WHOLE and made[check.id] != written[check.id]]
    assert not stale, f"write the page again: {reference.COMMAND}"
