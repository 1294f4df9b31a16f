"""YAML as Go's programs read it (contract 1: YAML 1.1 booleans or JSON, with JSON's types)."""

from typing import Any

import pytest

from groundplane.api import goyaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"x: {word}", {"x": True}) for word in ("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "y", "Y")),
        *((f"x: {word}", {"x": False}) for word in ("false", "False", "no", "NO", "off", "Off", "n", "N")),
        ("x: tRue", {"x": "tRue"}),
        ('x: "yes"', {"x": "yes"}),
        ("x: 0:1", {"x": "0:1"}),
        ("x: 1:0", {"x": "1:0"}),
        ("x: 10:30:00", {"x": "10:30:00"}),
        ("x: 2026-11-30", {"x": "2026-11-30"}),
        ("x: 12", {"x": 12}),
        ("x: -12", {"x": -12}),
        ("x: 010", {"x": 8}),
        ("x: 0o10", {"x": 8}),
        ("x: 0x1F", {"x": 31}),
        ("x: 0b11", {"x": 3}),
        ("x: 1_000", {"x": 1000}),
        ("x: 1.5", {"x": 1.5}),
        ("x: 1e3", {"x": 1000.0}),
        ("x: 1g.10gb", {"x": "1g.10gb"}),
        ("x: ", {"x": None}),
        ("x: ~", {"x": None}),
        ("x: null", {"x": None}),
        ("x: *", None),
        ('x: "*"', {"x": "*"}),
        ("2: a\ntrue: b", {"2": "a", "true": "b"}),
        ("a: &a {b: 1}\nc:\n  <<: *a\n  d: 2", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("a: 1\na: 2", {"a": 2}),
        ("a: 1\n---\na: 2", {"a": 1}),
        ("", None),
        ("# nothing\n", None),
        ('{"version": "v1", "x": [1, "2", null, true]}', {"version": "v1", "x": [1, "2", None, True]}),
        ('{\n\t"version": "v1"\n}', {"version": "v1"}),
        ("{version: v1}", {"version": "v1"}),
        ("- a\n- 1", ["a", 1]),
    ],
)
def test_documents(text: str, expected: Any) -> None:
    if expected is None and "*" in text:
        with pytest.raises(goyaml.DocumentError):
            goyaml.loads(text)
        return
    assert goyaml.loads(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("x: 3.0", 3), ("x: 1e1", 10), ("x: -2.0", -2), ("x: 0.0", 0), ('{"x": 4.0}', 4), ("x: [5.0]", [5])),
        *(("x: 1e21", 1e21), ("x: 2.5", 2.5), ('{"x": 2.5}', 2.5)),
    ],
)
def test_whole_numbers_are_integers_however_they_are_written(text: str, expected: Any) -> None:
    found = goyaml.loads(text)["x"]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan"])
def test_numbers_that_are_none_stay(text: str) -> None:
    assert isinstance(goyaml.loads(f"x: {text}")["x"], float)


@pytest.mark.parametrize("text", ["a: [", "\tb: 1\n\t c", "a: b: c", "? [1, 2]\n: x", "a: !!python/name:os.system x"])
def test_no_documents(text: str) -> None:
    with pytest.raises(goyaml.DocumentError):
        goyaml.loads(text)
