"""Specs of every driver and installation are those that were looked at once (`goldenspecs` writes them anew)."""

from pathlib import Path

import pytest
from node.cdi import goldenspecs

from testing.driverroots import Kind


@pytest.mark.parametrize(("version", "kind", "case"), goldenspecs.names())
def test_the_spec_is_the_golden_one(tmp_path: Path, version: str, kind: Kind, case: str) -> None:
    golden = goldenspecs.file(version, kind, case).read_text(encoding="utf-8")
    assert goldenspecs.text(tmp_path, version, kind, case) == golden


def test_there_is_a_golden_spec_of_each_case_and_no_other() -> None:
    expected = {goldenspecs.file(*each) for each in goldenspecs.names()}
    assert set(goldenspecs.FOLDER.iterdir()) == expected
