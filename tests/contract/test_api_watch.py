"""Watches: where they start, what they report, how they end."""

from __future__ import annotations

from typing import Any

import pytest
from contract.engines import Api, Watch
from contract.things import config_map, pod

Document = dict[str, Any]


def seen(events: list[tuple[str, Document]]) -> list[tuple[str, str]]:
    return [(kind, item["metadata"]["name"]) for kind, item in events]


def version(api: Api, path: str) -> str:
    return str(api.get(path, limit=1).ok()["metadata"]["resourceVersion"])


@pytest.fixture
def secrets(core: str) -> str:
    """Secrets: a kind of which a new namespace has none."""
    return f"{core}/secrets"


def secret(name: str, **metadata: Any) -> Document:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, **metadata}}


def test_watch_from_a_resource_version(api: Api, secrets: str) -> None:
    api.create(secrets, secret("before")).ok()
    start = version(api, secrets)
    made = api.create(secrets, secret("a")).ok()
    changed = api.patch(f"{secrets}/a", {"metadata": {"labels": {"x": "y"}}}).ok()
    api.delete(f"{secrets}/a").ok()
    with api.watch(secrets, resourceVersion=start) as watch:
        events = watch.take(3)
    assert seen(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert events[0][1] == made
    assert events[1][1] == changed
    gone = events[2][1]
    assert gone["metadata"]["labels"] == {"x": "y"}
    assert int(gone["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])
    assert (gone["kind"], gone["apiVersion"]) == ("Secret", "v1")


@pytest.mark.parametrize(
    "params", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}], ids=["none", "zero", "empty"]
)
def test_watch_without_a_version_begins_with_what_is_there(api: Api, secrets: str, params: dict[str, str]) -> None:
    for name in ("b", "a"):
        api.create(secrets, secret(name)).ok()
    with api.watch(secrets, **params) as watch:
        assert sorted(seen(watch.take(2))) == [("ADDED", "a"), ("ADDED", "b")]
        api.create(secrets, secret("c")).ok()
        assert seen(watch.take(1)) == [("ADDED", "c")]


def test_changes_come_as_they_happen(api: Api, secrets: str) -> None:
    with api.watch(secrets, resourceVersion=version(api, secrets)) as watch:
        for name in "abc":
            made = api.create(secrets, secret(name)).ok()
            ((kind, item),) = watch.take(1)
            assert (kind, item) == ("ADDED", made)


def test_watch_of_all_namespaces(api: Api, secrets: str, namespace: str) -> None:
    start = version(api, "/api/v1/secrets")
    made = api.create(secrets, secret("a")).ok()
    with api.watch("/api/v1/secrets", resourceVersion=start) as watch:
        _, item = watch.until(lambda _, found: found["metadata"].get("namespace") == namespace)
    assert item == made


def test_watch_of_one_object(api: Api, secrets: str) -> None:
    api.create(secrets, secret("a")).ok()
    api.create(secrets, secret("b")).ok()
    with api.watch(secrets, fieldSelector="metadata.name=a") as watch:
        assert seen(watch.take(1)) == [("ADDED", "a")]
        api.patch(f"{secrets}/b", {"metadata": {"labels": {"x": "y"}}}).ok()
        api.patch(f"{secrets}/a", {"metadata": {"labels": {"x": "y"}}}).ok()
        assert seen(watch.take(1)) == [("MODIFIED", "a")]


def test_watch_parameter_means_nothing_for_one_object(api: Api, secrets: str) -> None:
    made = api.create(secrets, secret("a")).ok()
    assert api.get(f"{secrets}/a", watch=True).ok() == made


def test_label_selector_makes_objects_come_and_go(api: Api, secrets: str) -> None:
    start = version(api, secrets)
    path = f"{secrets}/a"
    api.create(secrets, secret("a")).ok()
    with api.watch(secrets, resourceVersion=start, labelSelector="x=y") as watch:
        api.patch(path, {"metadata": {"labels": {"x": "y"}}}).ok()
        api.patch(path, {"metadata": {"labels": {"z": "1"}}}).ok()
        gone = api.patch(path, {"metadata": {"labels": {"x": None}}}).ok()
        api.patch(path, {"metadata": {"labels": {"z": "2"}}}).ok()
        api.patch(path, {"metadata": {"labels": {"x": "y"}}}).ok()
        api.delete(path).ok()
        events = watch.take(5)
    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    left = events[2][1]["metadata"]
    assert left["labels"] == {"x": "y", "z": "1"}  # its state before it left the selection,
    assert left["resourceVersion"] == gone["metadata"]["resourceVersion"]  # with the version of the change


def test_field_selector_makes_pods_come_and_go(api: Api, core: str) -> None:
    api.create(f"{core}/pods", pod("a")).ok()
    start = version(api, f"{core}/pods")
    state = f"{core}/pods/a/status"
    with api.watch(f"{core}/pods", resourceVersion=start, fieldSelector="status.phase=Running") as watch:
        api.patch(state, {"status": {"phase": "Running"}}).ok()
        api.patch(state, {"status": {"phase": "Succeeded"}}).ok()
        assert [kind for kind, _ in watch.take(2)] == ["ADDED", "DELETED"]


def test_watch_ends_after_its_time(api: Api, secrets: str) -> None:
    api.create(secrets, secret("a")).ok()
    with api.watch(secrets, timeoutSeconds=1) as watch:
        assert seen(watch.rest()) == [("ADDED", "a")]


def test_initial_events_end_with_a_bookmark(api: Api, secrets: str) -> None:
    for name in ("a", "b"):
        api.create(secrets, secret(name)).ok()
    params: dict[str, Any] = {
        "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true",
    }  # fmt: skip
    with api.watch(secrets, **params) as watch:
        events = watch.take(3)
        assert sorted(seen(events[:2])) == [("ADDED", "a"), ("ADDED", "b")]
        kind, mark = events[2]
        assert kind == "BOOKMARK"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert int(mark["metadata"]["resourceVersion"]) >= int(events[1][1]["metadata"]["resourceVersion"])
        assert (mark["kind"], mark["apiVersion"]) == ("Secret", "v1")
        api.create(secrets, secret("c")).ok()
        assert seen(watch.take(1)) == [("ADDED", "c")]


def test_no_initial_events(api: Api, secrets: str) -> None:
    api.create(secrets, secret("a")).ok()
    params = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    with api.watch(secrets, **params) as watch:
        api.create(secrets, secret("b")).ok()
        assert seen(watch.take(1)) == [("ADDED", "b")]


BAD_WATCHES: dict[str, tuple[dict[str, str], int, str, str]] = {
    "initial events without match": (
        {"sendInitialEvents": "true"}, 422, "Invalid",
        "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    ),
    "match alone": (
        {"resourceVersionMatch": "NotOlderThan"}, 422, "Invalid",
        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    ),
    "exact": (
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"}, 422, "Invalid",
        "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    ),
    "version": ({"resourceVersion": "x"}, 500, "", 'resourceVersion: Invalid value: "x"'),
    "selector": ({"labelSelector": "a b"}, 400, "BadRequest", "unable to parse requirement"),
    "field": ({"fieldSelector": "data.x=1"}, 400, "BadRequest", "field label not supported"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_WATCHES)
def test_bad_watch(api: Api, secrets: str, case: str) -> None:
    params, code, reason, text = BAD_WATCHES[case]
    with api.watch(secrets, **params) as watch:
        watch.answer().fails(code, reason, text)


def test_bookmarks_are_optional(api: Api, secrets: str) -> None:
    """Bookmarks may come when they were asked for, and say what has been seen."""
    with api.watch(secrets, allowWatchBookmarks="true", timeoutSeconds=2) as watch:
        api.create(secrets, secret("a")).ok()
        kinds = {kind for kind, _ in watch.rest()}
    assert kinds - {"BOOKMARK"} == {"ADDED"}


def test_watch_as_metadata_only(api: Api, core: str) -> None:
    accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    api.create(f"{core}/configmaps", config_map("a", labels={"x": "y"})).ok()
    with Watch(api, f"{core}/configmaps", {"fieldSelector": "metadata.name=a"}, accept) as watch:
        ((kind, item),) = watch.take(1)
    assert kind == "ADDED"
    assert (item["kind"], item["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert item["metadata"]["labels"] == {"x": "y"}
    assert "data" not in item


def test_watch_as_table(api: Api, core: str) -> None:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    api.create(f"{core}/configmaps", config_map("a")).ok()
    with Watch(api, f"{core}/configmaps", {"fieldSelector": "metadata.name=a"}, accept) as watch:
        _, first = watch.take(1)[0]
        api.patch(f"{core}/configmaps/a", {"data": {"b": "2"}}).ok()
        _, second = watch.take(1)[0]
    assert first["kind"] == second["kind"] == "Table"
    assert [row["cells"][:2] for row in (*first["rows"], *second["rows"])] == [["a", 1], ["a", 2]]
    assert first["columnDefinitions"]
    assert not second.get("columnDefinitions")


def test_no_op_writes_are_not_reported(api: Api, secrets: str) -> None:
    made = api.create(secrets, secret("a")).ok()
    with api.watch(secrets, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        api.update(f"{secrets}/a", made).ok()
        api.create(secrets, secret("b"), dryRun="All").ok()
        api.create(secrets, secret("c")).ok()
        assert seen(watch.take(1)) == [("ADDED", "c")]


def test_create_and_delete_of_the_same_name(api: Api, secrets: str) -> None:
    start = version(api, secrets)
    uids = []
    for _ in range(2):
        uids.append(api.create(secrets, secret("a")).ok()["metadata"]["uid"])
        api.delete(f"{secrets}/a").ok()
    with api.watch(secrets, resourceVersion=start) as watch:
        events = watch.take(4)
    assert [kind for kind, _ in events] == ["ADDED", "DELETED"] * 2
    assert [item["metadata"]["uid"] for _, item in events] == [uids[0], uids[0], uids[1], uids[1]]


def test_list_then_watch_misses_nothing(api: Api, secrets: str) -> None:
    api.create(secrets, secret("a")).ok()
    listed = api.get(secrets).ok()
    api.create(secrets, secret("b")).ok()
    api.delete(f"{secrets}/a").ok()
    with api.watch(secrets, resourceVersion=listed["metadata"]["resourceVersion"]) as watch:
        assert seen(watch.take(2)) == [("ADDED", "b"), ("DELETED", "a")]
