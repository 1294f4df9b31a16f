"""Selectors, affinity, taints: the pure rules of placement."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.lab import placement


def node(name: str = "n1", labels: dict[str, str] | None = None, taints: Any = (), cordoned: bool = False) -> Any:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"taints": taints, "unschedulable": cordoned}}


def need(key: str, operator: str, *values: str) -> Any:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (need("gpu", "In", "a100", "h100"), True),
        (need("gpu", "In", "l4"), False),
        (need("none", "In", "x"), False),
        (need("gpu", "NotIn", "l4"), True),
        (need("gpu", "NotIn", "h100"), False),
        (need("none", "NotIn", "x"), True),
        (need("gpu", "Exists"), True),
        (need("none", "Exists"), False),
        (need("gpu", "DoesNotExist"), False),
        (need("none", "DoesNotExist"), True),
        (need("count", "Gt", "7"), True),
        (need("count", "Gt", "8"), False),
        (need("count", "Lt", "9"), True),
        (need("count", "Lt", "8"), False),
        (need("gpu", "Gt", "1"), False),
        (need("count", "Gt", "x"), False),
        (need("none", "Lt", "9"), False),
        (need("gpu", "Resembles", "h100"), False),
    ],
)
def test_requirement(requirement: Any, holds: bool) -> None:
    assert placement.requirement_holds(requirement, {"gpu": "h100", "count": "8"}) is holds


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "y"}}, False),
        ({"matchLabels": {"app": "x"}, "matchExpressions": [need("tier", "DoesNotExist")]}, True),
        ({"matchLabels": {"app": "x"}, "matchExpressions": [need("tier", "Exists")]}, False),
    ],
)
def test_label_selector(selector: Any, selected: bool) -> None:
    assert placement.selects(selector, {"app": "x"}) is selected


ZONE_B = {"matchExpressions": [need("zone", "In", "b")]}


def affinity(*terms: Any) -> Any:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("spec", "selected"),
    [
        ({}, True),
        ({"nodeSelector": {"gpu": "h100"}}, True),
        ({"nodeSelector": {"gpu": "h100", "zone": "b"}}, False),
        (affinity({"matchExpressions": [need("gpu", "Exists")]}), True),
        (affinity({"matchExpressions": [need("gpu", "Exists"), need("zone", "In", "b")]}), False),
        (
            affinity({"matchExpressions": [need("zone", "In", "b")]}, {"matchExpressions": [need("gpu", "Exists")]}),
            True,
        ),
        (affinity({}), False),
        (affinity(), False),
        (affinity({"matchFields": [need("metadata.name", "In", "n1")]}), True),
        (affinity({"matchFields": [need("metadata.name", "In", "n2")]}), False),
        (affinity({"matchFields": [need("metadata.name", "NotIn", "n1")]}), False),
        ({"nodeSelector": {"gpu": "l4"}, **affinity({"matchExpressions": [need("gpu", "Exists")]})}, False),
    ],
)
def test_node_selected(spec: Any, selected: bool) -> None:
    assert placement.node_selected(spec, node(labels={"gpu": "h100", "zone": "a"})) is selected


def named(*names: str) -> Any:
    return {"matchFields": [need("metadata.name", "In", name) for name in names]}


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({}, None),
        ({"nodeName": "n9"}, {"n9"}),
        (affinity({"matchFields": [need("metadata.name", "In", "n1")]}), {"n1"}),
        (affinity(named("n1"), named("n2")), {"n1", "n2"}),
        (affinity(named("n1"), {"matchExpressions": [need("a", "Exists")]}), None),
        (affinity(named("n1", "n2")), set()),
    ],
)
def test_pinned_nodes(spec: Any, names: set[str] | None) -> None:
    assert placement.pinned_nodes(spec) == names


def test_preferred_weights_add_up() -> None:
    terms = [
        {"weight": 10, "preference": {"matchExpressions": [need("gpu", "Exists")]}},
        {"weight": 5, "preference": {"matchExpressions": [need("zone", "In", "a")]}},
        {"weight": 90, "preference": {"matchExpressions": [need("zone", "In", "b")]}},
    ]
    spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}
    assert placement.preferred_node_weight(spec, node(labels={"gpu": "h100", "zone": "a"})) == 15
    assert placement.preferred_node_weight({}, node()) == 0


TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "value": "absent"}, False),
        ({"key": "nvidia.com/gpu"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Equal", "value": "present"}, False),
    ],
)
def test_toleration(toleration: Any, covers: bool) -> None:
    assert placement.tolerates(toleration, TAINT) is covers


@pytest.mark.parametrize(
    ("spec", "on", "expected"),
    [
        ({}, node(), (True, True)),
        ({}, node(cordoned=True), (True, True)),
        ({"nodeSelector": {"gpu": "y"}}, node(), (False, False)),
        ({}, node(taints=[TAINT]), (False, True)),
        ({}, node(taints=[{**TAINT, "effect": "NoExecute"}]), (False, False)),
        ({}, node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), (True, True)),
        (
            {"tolerations": [{"operator": "Exists"}]},
            node(taints=[TAINT, {**TAINT, "effect": "NoExecute"}]),
            (True, True),
        ),
        ({"nodeName": "n2"}, node(), (False, False)),
        ({"nodeName": "n1"}, node(), (True, True)),
    ],
)
def test_daemon_fit(spec: Any, on: Any, expected: tuple[bool, bool]) -> None:
    assert placement.daemon_fit(spec, on) == expected


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)


@given(LABELS, st.sampled_from("abcd"), st.lists(st.sampled_from("xyz"), min_size=1, max_size=3))
def test_opposite_operators_exclude_each_other(labels: dict[str, str], key: str, values: list[str]) -> None:
    for one, other in (("In", "NotIn"), ("Exists", "DoesNotExist")):
        holds = [placement.requirement_holds(need(key, operator, *values), labels) for operator in (one, other)]
        assert sorted(holds) == [False, True]
