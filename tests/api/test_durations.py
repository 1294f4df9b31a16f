import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import durations
from groundplane.api.clusterpolicy import DURATION

UNITS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("15s", 15_000),
        ("1m30s", 90_000),
        ("500ms", 500),
        ("1h0m", 3_600_000),
        ("1y1ms", 31_536_000_001),
    ],
)
def test_parse(text: str, milliseconds: int) -> None:
    assert durations.parse(text) == milliseconds


@pytest.mark.parametrize("text", ["", "15", "s", "1s1m", "1.5s", "-1s", "15 s", "1m1m", "15s\n", "١s"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 15s"):
        durations.parse(text)


@given(counts=st.lists(st.none() | st.integers(0, 999), min_size=7, max_size=7).filter(any))
def test_sum_of_the_parts(counts: list[int | None]) -> None:
    parts = [(count, unit) for count, unit in zip(counts, UNITS, strict=True) if count is not None]
    text = "".join(f"{count}{unit}" for count, unit in parts)
    assert durations.parse(text) == sum(count * UNITS[unit] for count, unit in parts)


@given(text=st.text(alphabet="0159ywdhms", max_size=8))
def test_accepts_what_the_crd_accepts(text: str) -> None:
    try:
        durations.parse(text)
    except ValueError:
        assert not text or not re.fullmatch(DURATION, text)
    else:
        assert re.fullmatch(DURATION, text)
