"""The record of labels that were put on a node, and the patch (contracts/device-plugin-gfd.md 9)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.node.nodefeatures import labels, record

PREFIX = "feature.node.kubernetes.io/"
A, B, GPU = f"{PREFIX}a", f"{PREFIX}b", "nvidia.com/gpu.count"


def noted(*keys: str) -> dict[str, str]:
    text = record.written(keys)
    return {names.NFD_FEATURE_LABELS: text, names.NODE_FEATURES_RECORD: record.digest(text)}


def test_section_9_the_record_is_sorted_and_without_the_default_namespace() -> None:
    assert record.written([GPU, B, A]) == "a,b,nvidia.com/gpu.count"
    assert record.read("a,b,nvidia.com/gpu.count") == {A, B, GPU}
    assert record.read("") == frozenset()
    assert record.read(" a ,, b") == {A, B}


_keys = st.from_regex(r"([a-z]{1,5}\.com/)?[a-z]{1,5}", fullmatch=True).map(labels.qualified)


@given(st.sets(_keys))
def test_section_9_what_is_recorded_is_read(keys: set[str]) -> None:
    assert record.read(record.written(keys)) == keys


@pytest.mark.parametrize(
    ("annotations", "ours", "foreign"),
    [
        ({}, False, False),
        (noted(A), True, False),
        ({names.NFD_FEATURE_LABELS: "a"}, False, True),
        (noted(A) | {names.NFD_FEATURE_LABELS: "a,b"}, False, True),
        ({names.NODE_FEATURES_RECORD: record.digest("a")}, False, False),
    ],
)
def test_whose_record_it_is(annotations: dict[str, str], ours: bool, foreign: bool) -> None:
    assert (record.is_ours(annotations), record.is_foreign(annotations)) == (ours, foreign)


def test_instances_of_nfd_have_records_of_their_own() -> None:
    annotations = noted(A) | {f"red.{names.NFD_FEATURE_LABELS}": "b", f"blue.{names.NFD_FEATURE_LABELS}": GPU}
    assert record.of_instances(annotations) == {B, GPU}


@pytest.mark.parametrize(
    ("present", "recorded", "wanted", "expected"),
    [
        ({}, (), {A: "1"}, {"labels": {A: "1"}, "annotations": noted(A)}),
        ({A: "1", "x/y": "z"}, (A,), {A: "1"}, None),
        ({A: "1"}, (A,), {A: "2"}, {"labels": {A: "2"}}),
        ({}, (A,), {A: "1"}, {"labels": {A: "1"}}),
        ({A: "1"}, (), {A: "1"}, {"annotations": noted(A)}),
        ({A: "1", B: "1"}, (A, B), {A: "1"}, {"labels": {B: None}, "annotations": noted(A)}),
        ({A: "1", B: "1"}, (A,), {A: "1"}, None),
        ({A: "1"}, (A, B), {A: "1"}, {"annotations": noted(A)}),
        ({A: "1"}, (A,), {}, {"labels": {A: None}, "annotations": dict.fromkeys(noted(A))}),
        ({"x/y": "z"}, (), {}, None),
    ],
)
def test_section_9_only_differences_are_written_and_only_recorded_labels_are_removed(
    present: dict[str, str], recorded: tuple[str, ...], wanted: dict[str, str], expected: dict[str, Any] | None
) -> None:
    changes = record.changes(present, noted(*recorded) if recorded else {}, wanted)
    if expected is not None and "annotations" in expected:
        before = noted(*recorded) if recorded else {}
        expected["annotations"] = {k: v for k, v in expected["annotations"].items() if before.get(k) != v}
    assert changes == expected


_labels = st.dictionaries(_keys, st.sampled_from(["", "1", "2"]), max_size=6)


@given(_labels, st.none() | st.sets(_keys, max_size=6), _labels)
def test_section_9_one_patch_makes_it_right(
    present: dict[str, str], recorded: set[str] | None, wanted: dict[str, str]
) -> None:
    before = {} if recorded is None else noted(*recorded)
    changes = record.changes(present, before, wanted) or {}
    after = patched(present, changes.get("labels", {}))
    notes = patched(before, changes.get("annotations", {}))
    assert record.changes(after, notes, wanted) is None
    assert {key: after[key] for key in wanted} == wanted
    strangers = {key for key in present if key not in (recorded or set()) and key not in wanted}
    assert set(after) == strangers | set(wanted)
    assert record.read(notes.get(names.NFD_FEATURE_LABELS, "")) == set(wanted)


def patched(old: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**old, **changes}.items() if value is not None}
