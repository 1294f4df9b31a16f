"""The small questions controllers ask about objects."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.lab.clock import LabClock
from groundplane.lab.controllers import objects


@pytest.mark.parametrize(
    ("value", "total", "up", "expected"),
    [
        (3, 10, True, 3),
        ("3", 10, True, 3),
        ("25%", 10, True, 3),
        ("25%", 10, False, 2),
        ("0%", 10, True, 0),
        ("100%", 7, True, 7),
    ],
)
def test_percent_or_int(value: Any, total: int, up: bool, expected: int) -> None:
    assert objects.percent_or_int(value, total, round_up=up) == expected


def test_neither_percent_nor_int() -> None:
    with pytest.raises(ValueError, match="many"):
        objects.percent_or_int("many", 3, round_up=True)


@pytest.mark.parametrize(
    ("status", "since", "wait", "left"),
    [
        ("True", "2026-01-01T00:00:00Z", 0, 0.0),
        ("True", "2025-12-31T23:59:50Z", 30, 20.0),
        ("True", "2025-12-31T23:00:00Z", 30, 0.0),
        ("False", "2025-12-31T23:00:00Z", 0, None),
    ],
)
def test_until_available(status: str, since: str, wait: int, left: float | None) -> None:
    clock = LabClock(start=datetime(2026, 1, 1, tzinfo=UTC), real=lambda: 0.0)
    pod = {"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}}
    assert objects.until_available(pod, wait, clock) == left


def test_pod_without_conditions_is_not_available() -> None:
    assert objects.until_available({"status": {}}, 0, LabClock()) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_template_hash_ignores_map_order_and_is_a_valid_name(template: dict[str, Any]) -> None:
    digest = objects.template_hash(template)
    assert objects.template_hash(dict(reversed(template.items()))) == digest
    assert 1 <= len(digest) <= 10
    assert digest.isalnum()
    assert digest == digest.lower()


def test_template_hash_tells_templates_and_collisions_apart() -> None:
    assert objects.template_hash({"a": 1}) != objects.template_hash({"a": 2})
    assert objects.template_hash({"a": 1}) != objects.template_hash({"a": 1}, 1)


def test_fnv() -> None:
    assert objects.fnv32a(b"") == 0x811C9DC5
    assert objects.fnv32a(b"foobar") == 0xBF9CF968


def test_condition_keeps_its_transition_time_while_its_status_stays() -> None:
    other = {"type": "Other", "status": "True", "lastTransitionTime": "t0"}
    known = {"type": "Ready", "status": "True", "reason": "A", "lastTransitionTime": "t1"}
    same = objects.set_conditions([other, known], {"type": "Ready", "status": "True", "reason": "B"}, "t2")
    assert same == [other, {"type": "Ready", "status": "True", "reason": "B", "lastTransitionTime": "t1"}]
    changed = objects.set_conditions([known], {"type": "Ready", "status": "False"}, "t2")
    assert changed[0]["lastTransitionTime"] == "t2"
    assert objects.set_conditions([], {"type": "New", "status": "True"}, "t2") == [
        {"type": "New", "status": "True", "lastTransitionTime": "t2"}
    ]
