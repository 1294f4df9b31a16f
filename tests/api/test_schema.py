"""Checking values against a schema: what codec and validate tests do not reach."""

from typing import Any

import pytest

from groundplane.api import schema
from groundplane.api.clusterpolicy import Condition

GOOD = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": "all is well"}


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        ({}, []),
        ({"status": "Maybe"}, ["enum"]),
        ({"reason": ""}, ["pattern", "minLength"]),
        ({"reason": "a" * 1025}, ["maxLength"]),
        ({"message": "a" * 32769}, ["maxLength"]),
        ({"type": "-x"}, ["pattern"]),
        ({"type": "nvidia.com/Ready"}, []),
        ({"observedGeneration": -1}, ["minimum"]),
        ({"observedGeneration": 2**63}, ["format"]),
        ({"type": None}, ["required", "type"]),
    ],
)
def test_conditions(change: dict[str, Any], rules: list[str]) -> None:
    found = list(schema.mismatches({**GOOD, **change}, schema.of(Condition), "c"))
    assert [mismatch.rule for mismatch in found] == rules
    assert all(mismatch.path == f"c.{next(iter(change))}" for mismatch in found)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "the number 1.5"),
        ("x" * 80, f'the string "{"x" * 57}..."'),
        ({}, "a mapping"),
        ([], "a list"),
    ],
)
def test_describe(value: object, words: str) -> None:
    assert schema.describe(value) == words


def test_describe_type() -> None:
    assert schema.describe_type({"anyOf": [{"type": "integer"}, {"type": "string"}]}) == "a whole number or a string"
    assert schema.describe_type({}) == "anything"
