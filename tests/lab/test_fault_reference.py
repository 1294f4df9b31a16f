"""docs/reference/lab-faults.md is what the table of faults says now."""

from pathlib import Path

from groundplane.lab.faultbook import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lab-faults.md"


def test_the_page_is_current() -> None:
    told = "run: python -m groundplane.lab.faultbook.reference > docs/reference/lab-faults.md"
    assert PAGE.read_text(encoding="utf-8") == reference.page(), told
