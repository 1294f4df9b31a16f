"""Requests for CDI devices by annotation (contracts/toolkit-cdi.md 1.5)."""

import pytest

from groundplane.node.cdi import annotations
from groundplane.node.cdi.annotations import AnnotationError


@pytest.mark.parametrize(
    ("plugin", "device_id", "expected"),
    [
        ("vendor.class", "gpu0", "cdi.k8s.io/vendor.class_gpu0"),
        ("p", "a/b/c", "cdi.k8s.io/p_a_b_c"),
        ("p", "x" * 61, f"cdi.k8s.io/p_{'x' * 61}"),
        ("1", "2", "cdi.k8s.io/1_2"),
    ],
)
def test_keys(plugin: str, device_id: str, expected: str) -> None:
    assert annotations.key(plugin, device_id) == expected


@pytest.mark.parametrize(
    ("plugin", "device_id", "expected"),
    [
        ("p", "x" * 62, "has more than 63 characters"),
        ("", "a", "are needed"),
        ("p", "", "are needed"),
        ("-p", "a", "must begin and end with a letter or digit"),
        ("p", "a/", "must begin and end"),
        ("p/q", "a", "hold only these"),
        ("p", "a:b", "hold only these"),
        ("p", "ä", "must begin and end"),
        ("p", "a\n", "must begin and end"),
    ],
)
def test_keys_that_cannot_be(plugin: str, device_id: str, expected: str) -> None:
    with pytest.raises(AnnotationError, match=expected):
        annotations.key(plugin, device_id)


def test_values() -> None:
    assert annotations.value(["a/b=c", "x/y=z"]) == "a/b=c,x/y=z"
    assert annotations.value([]) == ""
    with pytest.raises(AnnotationError, match="unqualified CDI device 'c'"):
        annotations.value(["a/b=c", "c"])


def test_a_second_request_under_a_key_fails() -> None:
    before = {"other": "x"}
    once = annotations.update(before, "p", "1", ["a/b=c"])
    assert once == {"other": "x", "cdi.k8s.io/p_1": "a/b=c"}
    assert before == {"other": "x"}
    with pytest.raises(AnnotationError, match="p_1' is used already"):
        annotations.update(once, "p", "1", ["a/b=d"])


def test_what_is_asked_for() -> None:
    asked = {"cdi.k8s.io/b": "a/b=c,a/b=d", "cdi.k8s.io/a": "x/y=z", "other.io/a": "none"}
    assert annotations.parse(asked) == (("cdi.k8s.io/a", "cdi.k8s.io/b"), ("x/y=z", "a/b=c", "a/b=d"))
    assert annotations.parse({}) == ((), ())


@pytest.mark.parametrize("value", ["a/b=c,d", "a/b=c, a/b=d", "a/b=c,", ""])
def test_one_name_that_is_not_qualified_fails_the_whole_request(value: str) -> None:
    with pytest.raises(AnnotationError, match="CDI device"):
        annotations.parse({"cdi.k8s.io/a": "a/b=c", "cdi.k8s.io/b": value})
