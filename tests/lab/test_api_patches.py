# ruff: noqa: E501
from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.lab import resources
from groundplane.lab.api import Api
from groundplane.lab.patch import PatchError, apply_json_patch, merge_patch, strategic
from groundplane.lab.schema import builtin
from groundplane.lab.status import StatusError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.text(max_size=3), JSON, max_size=4)
POD = builtin.of_model("core_v1:Pod")


def without_nulls(value: Any) -> Any:
    return {k: without_nulls(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


@given(OBJECT, OBJECT)
def test_merge_patch_is_idempotent_and_leaves_its_arguments(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


@given(OBJECT, OBJECT)
def test_merge_patch_onto_nothing_drops_nulls(target: dict[str, Any], patch: dict[str, Any]) -> None:
    assert merge_patch({}, patch) == without_nulls(patch)
    assert merge_patch(target, {}) == target


@given(OBJECT, st.text(max_size=3), JSON)
def test_json_patch_add_then_remove_returns_to_the_start(document: dict[str, Any], key: str, value: Any) -> None:
    pointer = "/" + key.replace("~", "~0").replace("/", "~1")
    added = apply_json_patch(document, [{"op": "add", "path": pointer, "value": value}])
    assert added[key] == value
    tested = [{"op": "test", "path": pointer, "value": value}, {"op": "remove", "path": pointer}]
    assert apply_json_patch(added, tested) == {k: v for k, v in document.items() if k != key}


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": 1, "b": 1}),
        ({"a/b": 1, "c~d": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c~0d"}], {}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"x": 1}}], {"x": 1}),
    ],
)
def test_json_patch(document: Any, operations: Any, expected: Any) -> None:
    assert apply_json_patch(document, operations) == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/missing"},
        {"op": "add", "path": "/missing/x", "value": 1},
        {"op": "test", "path": "/a", "value": True},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "fly", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "move", "from": "/m", "path": "/m/x"},
    ],
)
def test_json_patch_refuses(operation: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        apply_json_patch({"a": 1, "list": [], "m": {}}, [operation])


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


C = [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]
STRATEGIC: list[tuple[str, Any, Any, Any]] = [
    ("merges by key", spec(containers=C), spec(containers=[{"name": "b", "image": "2"}]),
     spec(containers=[C[0], {"name": "b", "image": "2"}])),
    ("puts new items first", spec(containers=C[:1]), spec(containers=[C[1]]), spec(containers=[C[1], C[0]])),
    ("deletes by key", spec(containers=C), spec(containers=[{"name": "a", "$patch": "delete"}]), spec(containers=C[1:])),
    ("replaces a list", spec(containers=C), spec(containers=[{"$patch": "replace"}, {"name": "c"}]),
     spec(containers=[{"name": "c"}])),
    ("replaces a map", {"metadata": {"labels": {"a": "1"}}}, {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
     {"metadata": {"labels": {"b": "2"}}}),
    ("empties a map", {"metadata": {"labels": {"a": "1"}}}, {"metadata": {"labels": {"$patch": "delete"}}},
     {"metadata": {"labels": {}}}),
    ("null removes", spec(nodeName="x", hostNetwork=True), spec(nodeName=None), spec(hostNetwork=True)),
    ("atomic list replaced", spec(tolerations=[{"key": "a"}]), spec(tolerations=[{"key": "b"}]),
     spec(tolerations=[{"key": "b"}])),
    ("orders", spec(containers=C), {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                                            "containers": [{"name": "b", "image": "2"}]}},
     spec(containers=[{"name": "b", "image": "2"}, C[0]])),
    ("orders without items", spec(containers=C), {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
     spec(containers=C[::-1])),
    ("server's own items keep their place", spec(containers=[{"name": "x"}, *C]),
     {"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}], "containers": [{"name": "b", "image": "3"}]}},
     spec(containers=[{"name": "x"}, C[0], {"name": "b", "image": "3"}])),
    ("joins primitives", {"metadata": {"finalizers": ["a"]}}, {"metadata": {"finalizers": ["b", "a"]}},
     {"metadata": {"finalizers": ["a", "b"]}}),
    ("deletes primitives", {"metadata": {"finalizers": ["a", "b"]}},
     {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, {"metadata": {"finalizers": ["b"]}}),
    ("retains keys", spec(volumes=[{"name": "v", "emptyDir": {}}]),
     spec(volumes=[{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]),
     spec(volumes=[{"name": "v", "hostPath": {"path": "/x"}}])),
    ("nested keyed lists", spec(containers=[{"name": "a", "env": [{"name": "X", "value": "1"}]}]),
     spec(containers=[{"name": "a", "env": [{"name": "Y", "value": "2"}]}]),
     spec(containers=[{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}])),
    ("new items lose directives", spec(), spec(containers=[{"name": "n", "command": None}]), spec(containers=[{"name": "n"}])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("original", "patch", "expected"), [case[1:] for case in STRATEGIC], ids=[c[0] for c in STRATEGIC]
)
def test_strategic_merge(original: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy(original)
    assert strategic(original, patch, POD) == expected
    assert original == before


@pytest.mark.parametrize(
    "patch", [{"spec": {"containers": [{"image": "x"}]}}, {"spec": {"$patch": "dance"}}, {"spec": {"$retainKeys": "x"}}]
)
def test_strategic_merge_refuses(patch: Any) -> None:
    with pytest.raises(PatchError):
        strategic(spec(containers=C), patch, POD)


# --- server-side apply -------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> Api:
    return Api(seed=2)


def apply(
    api: Api, manager: str, data: dict[str, str] | None = None, *, force: bool = False, **meta: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **meta}}
    if data is not None:
        body["data"] = data
    return api.patch(resources.CONFIG_MAPS, "c", body, ns="default", type="apply", manager=manager, force=force)


def owners(document: dict[str, Any]) -> dict[str, Any]:
    return {e["manager"]: e["fieldsV1"] for e in document["metadata"]["managedFields"]}


def test_apply_creates_and_repeats_without_a_write(api: Api) -> None:
    first = apply(api, "me", {"a": "1"})
    assert owners(first) == {"me": {"f:data": {"f:a": {}}}}
    assert apply(api, "me", {"a": "1"}) is first


def test_apply_removes_what_it_names_no_more_unless_shared(api: Api) -> None:
    apply(api, "me", {"a": "1", "b": "2", "c": "3"})
    apply(api, "you", {"b": "2"})
    after = apply(api, "me", {"a": "1"})
    assert after["data"] == {"a": "1", "b": "2"}
    assert owners(after) == {"me": {"f:data": {"f:a": {}}}, "you": {"f:data": {"f:b": {}}}}


def test_apply_conflict_names_field_and_manager(api: Api) -> None:
    apply(api, "me", {"a": "1", "b": "1"})
    with pytest.raises(StatusError) as caught:
        apply(api, "you", {"a": "2", "b": "1"})
    assert caught.value.code == 409
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "me": .data.a'
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".data.a"}
    assert caught.value.details["causes"] == [cause]
    forced = apply(api, "you", {"a": "2", "b": "1"}, force=True)
    assert forced["data"] == {"a": "2", "b": "1"}
    assert owners(forced) == {"me": {"f:data": {"f:b": {}}}, "you": {"f:data": {"f:a": {}, "f:b": {}}}}


def test_an_update_takes_fields_over(api: Api) -> None:
    apply(api, "me", {"a": "1", "b": "1"})
    patched = api.patch(resources.CONFIG_MAPS, "c", {"data": {"a": "9"}}, ns="default", type="merge", manager="hand")
    assert owners(patched) == {"me": {"f:data": {"f:b": {}}}, "hand": {"f:data": {"f:a": {}}}}
    with pytest.raises(StatusError, match=r'conflict with "hand" using v1: \.data\.a'):
        apply(api, "me", {"a": "1", "b": "1"})
    removed = api.patch(resources.CONFIG_MAPS, "c", {"data": {"b": None}}, ns="default", type="merge", manager="hand")
    assert "me" not in owners(removed)


def container(**fields: Any) -> dict[str, Any]:
    labels = {"app": "x"}
    pod = {"containers": [{"name": "main", "image": "i:1", **fields}]}
    body = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": body}


def test_apply_merges_keyed_lists_and_keeps_defaults(api: Api) -> None:
    port = {"containerPort": 80}
    first = api.patch(resources.DAEMON_SETS, "d", container(ports=[port]), ns="default", type="apply", manager="me")
    other = container(env=[{"name": "A", "value": "1"}], ports=[{"containerPort": 80, "protocol": "UDP"}])
    both = api.patch(resources.DAEMON_SETS, "d", other, ns="default", type="apply", manager="you")
    held = both["spec"]["template"]["spec"]["containers"][0]
    assert [(p["containerPort"], p["protocol"]) for p in held["ports"]] == [(80, "TCP"), (80, "UDP")]
    assert held["terminationMessagePath"] == "/dev/termination-log"
    again = api.patch(resources.DAEMON_SETS, "d", container(), ns="default", type="apply", manager="you")
    held = again["spec"]["template"]["spec"]["containers"][0]
    assert [p["protocol"] for p in held["ports"]] == ["TCP"]
    assert "env" not in held
    assert first["metadata"]["generation"] == 1
    assert again["metadata"]["generation"] == 3


@pytest.mark.parametrize(
    ("body", "manager", "text"),
    [
        ({"metadata": {"name": "c"}}, "", "fieldManager: Required value: is required for apply patch"),
        ({"metadata": {"name": "c", "managedFields": [{"manager": "x"}]}}, "m", "metadata.managedFields must be nil"),
        ({"metadata": {"name": "z"}}, "m", "does not match the name on the URL"),
        ({"metadata": {"name": "c"}, "dada": {}}, "m", ".dada: field not declared in schema"),
        ({"metadata": {"name": "c", "uid": "1"}}, "m", "uid mismatch: the provided object specified uid 1"),
        ({"kind": "Secret", "metadata": {"name": "c"}}, "m", "invalid object type: /v1, Kind=Secret"),
    ],
)
def test_apply_refuses(api: Api, body: dict[str, Any], manager: str, text: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", **body}
    with pytest.raises(StatusError) as caught:
        api.patch(resources.CONFIG_MAPS, "c", body, ns="default", type="apply", manager=manager)
    assert text in caught.value.message


VALUES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"), max_size=4)


@given(st.lists(st.tuples(st.sampled_from(["me", "you"]), VALUES), min_size=1, max_size=6))
def test_forced_applies_hold_what_the_last_of_each_manager_said(steps: list[tuple[str, dict[str, str]]]) -> None:
    api = Api(seed=3)
    api.create(resources.CONFIG_MAPS, {"metadata": {"name": "c"}}, "default")
    model: dict[str, str] = {}
    owned: dict[str, set[str]] = {"me": set(), "you": set()}
    for manager, data in steps:
        other = "you" if manager == "me" else "me"
        result = apply(api, manager, data, force=True)
        owned[other] -= {key for key, value in data.items() if model.get(key) not in (None, value)}
        for key in owned[manager] - data.keys() - owned[other]:
            model.pop(key, None)
        model.update(data)
        owned[manager] = set(data)
        assert result.get("data", {}) == model
        assert apply(api, manager, data, force=True) is result
