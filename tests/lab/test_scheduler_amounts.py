"""Quantities and what a pod asks for."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.lab import amounts

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("resource", "value", "expected"),
    [
        ("cpu", "1", 1000),
        ("cpu", "250m", 250),
        ("cpu", "0.1", 100),
        ("cpu", "1u", 1),
        ("cpu", 2, 2000),
        ("cpu", 0.5, 500),
        ("memory", "1Ki", 1024),
        ("memory", "1.5Gi", 3 * 2**29),
        ("memory", "128M", 128_000_000),
        ("memory", "1e3", 1000),
        ("memory", "1E", 10**18),
        ("memory", "2Ei", 2**61),
        ("memory", "100m", 1),
        ("nvidia.com/gpu", "8", 8),
        ("pods", "110", 110),
        ("memory", "0", 0),
    ],
)
def test_amount(resource: str, value: Any, expected: int) -> None:
    assert amounts.amount(resource, value) == expected


@pytest.mark.parametrize("value", ["", "abc", "1 Gi", "1gi", "Mi", "1e", "--1", "1.2.3"])
def test_what_is_no_quantity_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        amounts.exact(value)


@given(st.integers(min_value=0, max_value=10**15), st.sampled_from(["", "m", "k", "Ki", "Mi", "G"]))
def test_amount_rounds_up_and_by_less_than_one(number: int, suffix: str) -> None:
    exact = amounts.exact(f"{number}{suffix}")
    rounded = amounts.amount("memory", f"{number}{suffix}")
    assert 0 <= rounded - exact < 1
    assert isinstance(exact, Fraction)


def container(cpu: str = "", gpu: str = "", *, sidecar: bool = False, limits: dict[str, str] | None = None) -> Any:
    requests = {name: value for name, value in (("cpu", cpu), ("nvidia.com/gpu", gpu)) if value}
    made: dict[str, Any] = {"name": "c", "resources": {"requests": requests, "limits": limits or {}}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [container("1"), container("500m", "2")]}, {"cpu": 1500, "nvidia.com/gpu": 2}),
        ({"containers": [container(limits={"nvidia.com/gpu": "1"})]}, {"nvidia.com/gpu": 1}),
        ({"containers": [container("100m", limits={"cpu": "1"})]}, {"cpu": 100}),
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, {"cpu": 3000}),
        ({"containers": [container("2")], "initContainers": [container("1")]}, {"cpu": 2000}),
        ({"containers": [container("1")], "initContainers": [container("1", sidecar=True)]}, {"cpu": 2000}),
        (
            {"containers": [container("1")], "initContainers": [container("1", sidecar=True), container("3")]},
            {"cpu": 4000},
        ),
        (
            {"containers": [container("1")], "initContainers": [container("3"), container("1", sidecar=True)]},
            {"cpu": 3000},
        ),
        (
            {"containers": [container("1")], "overhead": {"cpu": "250m", "memory": "1Mi"}},
            {"cpu": 1250, "memory": 2**20},
        ),
        (
            {"containers": [container("1", "1")], "resources": {"requests": {"cpu": "4"}}},
            {"cpu": 4000, "nvidia.com/gpu": 1},
        ),
        ({"containers": [{"name": "c"}]}, {}),
    ],
)
def test_pod_requests(spec: dict[str, Any], expected: dict[str, int]) -> None:
    assert amounts.pod_requests(spec) == expected
