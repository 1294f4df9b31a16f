"""Every policy that the chart renders against its golden file; regen_golden.py writes those."""

import pytest
from operands import golden, rendering


@pytest.mark.parametrize("name", rendering.FILES)
def test_golden(name):
    assert golden.document(name) == golden.read(name), "run tests/operands/regen_golden.py and review the difference"


def test_there_is_one_golden_file_a_policy_and_they_are_small():
    files = list(golden.GOLDEN.glob("*.yaml"))
    assert {each.stem for each in files} == set(rendering.FILES)
    assert len(files) == 14
    sizes = [each.stat().st_size for each in files]
    assert max(sizes) < 200_000
    assert sum(sizes) < 1_000_000
