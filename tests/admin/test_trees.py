"""Values as trees: contracts/admin-workflow.md 5.2 (lists replace, never merge) and laws of merging."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.admin import trees

KEYS = st.sampled_from(["a", "b", "c", "x.y", "k\\z"])
SCALARS = st.one_of(st.booleans(), st.integers(0, 2), st.sampled_from(["", "1", "v"]), st.lists(st.integers(0, 1)))
TREES: Any = st.recursive(
    st.dictionaries(KEYS, SCALARS, max_size=3),
    lambda inner: st.dictionaries(KEYS, st.one_of(SCALARS, inner), max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("defaults", "overrides", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": None}, {}),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}),
        ({}, {"a": {"b": None}}, {"a": {}}),
        ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
        ({"a": {"b": 2}}, {"a": 1}, {"a": 1}),
        ({"a": {"b": 2}}, {"a": {}}, {"a": {"b": 2}}),
    ],
)
def test_merge_is_helms(defaults: Any, overrides: Any, merged: Any) -> None:
    assert trees.merge(defaults, overrides) == merged


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (True, 1, False),
        (1, 1.0, True),
        ("1", 1, False),
        ([1], (1,), True),
        ({"a": 1}, {"a": True}, False),
        ({}, [], False),
    ],
)
def test_same_is_what_yaml_would_call_the_same(one: Any, other: Any, equal: bool) -> None:
    assert trees.same(one, other) is equal


def test_layers_keep_null_so_that_it_removes_a_default() -> None:
    both = trees.layer({"a": {"b": 1}, "c": 1}, {"a": {"b": None, "d": 2}})
    assert both == {"a": {"b": None, "d": 2}, "c": 1}
    assert trees.merge({"a": {"b": 5, "e": 6}}, both) == {"a": {"d": 2, "e": 6}, "c": 1}


@given(TREES, TREES)
def test_merging_twice_is_merging_once_and_nothing_changes_nothing(defaults: Any, overrides: Any) -> None:
    merged = trees.merge(defaults, overrides)
    assert trees.merge(merged, overrides) == merged
    assert trees.merge(defaults, {}) == trees.merge({}, defaults) == trees.merge(defaults, defaults) == defaults


@given(TREES, TREES)
def test_layers_without_null_are_merged(lower: Any, upper: Any) -> None:
    assert trees.layer(lower, upper) == trees.merge(lower, upper)


@given(TREES, TREES)
def test_minimal_overrides_make_what_is_wanted_and_none_is_idle(defaults: Any, wanted: Any) -> None:
    overrides = trees.minimal(defaults, wanted)
    assert trees.same(trees.merge(defaults, overrides), wanted)
    for path, _ in trees.leaves(overrides):
        assert not trees.same(trees.merge(defaults, trees.without(overrides, {path})), wanted)


@given(TREES)
def test_leaves_put_together_are_the_tree(tree: Any) -> None:
    made: dict[str, Any] = {}
    for path, value in trees.leaves(tree):
        assert trees.get(tree, path) is value
        made = trees.put(made, path, value)
    assert trees.same(made, tree)


@given(TREES)
def test_without_all_leaves_nothing_is_left(tree: Any) -> None:
    assert trees.without(tree, {path for path, _ in trees.leaves(tree)}) == {}
    assert trees.same(trees.without(tree, set()), tree)


@given(st.lists(st.text(min_size=1), min_size=1))
def test_paths_are_written_and_read(parts: list[str]) -> None:
    path = tuple(parts)
    assert trees.parse(trees.dotted(path)) == path


def test_a_dot_in_a_name_has_a_backslash_as_for_helm() -> None:
    assert trees.dotted(("nodeSelector", "kubernetes.io/os")) == r"nodeSelector.kubernetes\.io/os"
    assert trees.get({"n": {"k.io/os": "linux"}}, r"n.k\.io/os") == "linux"
    with pytest.raises(ValueError, match="needs a path"):
        trees.put({}, (), 1)
