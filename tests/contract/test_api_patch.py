"""JSON, merge and strategic merge patches: what they do to an object, and how wrong ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
from contract.engines import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Api, Cluster, unique
from contract.things import config_map, container, deployment

DATA = {"a": "1", "b": "2"}

JSON_PATCHES: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {
    "add": ([{"op": "add", "path": "/data/c", "value": "3"}], {"a": "1", "b": "2", "c": "3"}),
    "add replaces": ([{"op": "add", "path": "/data/a", "value": "3"}], {"a": "3", "b": "2"}),
    "replace": ([{"op": "replace", "path": "/data/a", "value": "3"}], {"a": "3", "b": "2"}),
    "remove": ([{"op": "remove", "path": "/data/a"}], {"b": "2"}),
    "move": ([{"op": "move", "from": "/data/a", "path": "/data/c"}], {"c": "1", "b": "2"}),
    "copy": ([{"op": "copy", "from": "/data/a", "path": "/data/c"}], {"a": "1", "b": "2", "c": "1"}),
    "test holds": (
        [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"}], {"b": "2"},
    ),
    "replace missing adds": ([{"op": "replace", "path": "/data/c", "value": "3"}], {"a": "1", "b": "2", "c": "3"}),
    "copy missing is empty": ([{"op": "copy", "from": "/data/z", "path": "/data/c"}], {"a": "1", "b": "2", "c": ""}),
    "add without a value is empty": ([{"op": "add", "path": "/data/c"}], {"a": "1", "b": "2", "c": ""}),
    "test of nothing": (
        [{"op": "test", "path": "/data/z", "value": None}, {"op": "remove", "path": "/data/a"}], {"b": "2"},
    ),
    "new map": (
        [{"op": "add", "path": "/data", "value": {}}, {"op": "add", "path": "/data/x", "value": ""}], {"x": ""},
    ),
    "in order": (
        [{"op": "remove", "path": "/data/a"}, {"op": "move", "from": "/data/b", "path": "/data/a"}], {"a": "2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JSON_PATCHES)
def test_json_patch(api: Api, core: str, case: str) -> None:
    operations, expected = JSON_PATCHES[case]
    api.create(f"{core}/configmaps", config_map("a", DATA)).ok()
    assert api.patch(f"{core}/configmaps/a", operations, JSON_PATCH).ok()["data"] == expected


def test_json_patch_of_a_label_with_a_slash(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", labels={"x.y/z": "1", "q": "2"})).ok()
    operations = [{"op": "replace", "path": "/metadata/labels/x.y~1z", "value": "3"}]
    now = api.patch(f"{core}/configmaps/a", operations, JSON_PATCH).ok()
    assert now["metadata"]["labels"] == {"x.y/z": "3", "q": "2"}


@pytest.mark.parametrize(
    ("place", "expected"),
    [("0", ["new", "one", "two"]), ("1", ["one", "new", "two"]), ("-", ["one", "two", "new"])],
    ids=["index", "middle", "end"],
)
def test_json_patch_of_a_list(api: Api, apps: str, place: str, expected: list[str]) -> None:
    made = deployment("a")
    made["spec"]["template"]["spec"]["containers"] = [container("one"), container("two")]
    api.create(f"{apps}/deployments", made).ok()
    operations = [{"op": "add", "path": f"/spec/template/spec/containers/{place}", "value": container("new")}]
    now = api.patch(f"{apps}/deployments/a", operations, JSON_PATCH).ok()
    assert [item["name"] for item in now["spec"]["template"]["spec"]["containers"]] == expected


BAD_JSON_PATCHES: dict[str, tuple[Any, int, str]] = {
    "test fails": ([{"op": "test", "path": "/data/a", "value": "9"}], 422, "Invalid"),
    "remove missing": ([{"op": "remove", "path": "/data/z"}], 422, "Invalid"),
    "add below missing": ([{"op": "add", "path": "/nope/z", "value": "1"}], 422, "Invalid"),
    "move from missing": ([{"op": "move", "from": "/data/z", "path": "/data/y"}], 422, "Invalid"),
    "unknown operation": ([{"op": "fly", "path": "/data/a"}], 422, "Invalid"),
    "test missing": ([{"op": "test", "path": "/data/z", "value": "1"}], 422, "Invalid"),
    "index beyond": ([{"op": "add", "path": "/metadata/finalizers/5", "value": "a/b"}], 422, "Invalid"),
    "not a list": ({"op": "add", "path": "/data/a", "value": "1"}, 400, "BadRequest"),
    "wrong type": ([{"op": "add", "path": "/data/a", "value": 1}], 422, "Invalid"),
    "no operation": ([{"path": "/data/a"}], 422, "Invalid"),
}


@pytest.mark.parametrize("case", BAD_JSON_PATCHES)
def test_bad_json_patch(api: Api, core: str, case: str) -> None:
    operations, code, reason = BAD_JSON_PATCHES[case]
    made = api.create(f"{core}/configmaps", config_map("a", DATA, finalizers=["contract.test/x"])).ok()
    api.patch(f"{core}/configmaps/a", operations, JSON_PATCH).fails(code, reason)
    assert api.get(f"{core}/configmaps/a").body == made
    api.patch(f"{core}/configmaps/a", {"metadata": {"finalizers": None}}).ok()


MERGE_PATCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adds and replaces": ({"data": {"b": "3", "c": "4"}}, {"a": "1", "b": "3", "c": "4"}),
    "null removes": ({"data": {"a": None}}, {"b": "2"}),
    "null of what is not there": ({"data": {"z": None}}, DATA),
    "nothing": ({}, DATA),
}


@pytest.mark.parametrize("case", MERGE_PATCHES)
def test_merge_patch(api: Api, core: str, case: str) -> None:
    patch, expected = MERGE_PATCHES[case]
    api.create(f"{core}/configmaps", config_map("a", DATA)).ok()
    assert api.patch(f"{core}/configmaps/a", patch).ok()["data"] == expected


def test_merge_patch_removes_a_whole_map(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", DATA, labels={"x": "y"})).ok()
    now = api.patch(f"{core}/configmaps/a", {"data": None, "metadata": {"labels": None}}).ok()
    assert "data" not in now
    assert "labels" not in now["metadata"]


def test_merge_patch_replaces_lists(api: Api, apps: str) -> None:
    made = deployment("a")
    made["spec"]["template"]["spec"]["containers"] = [container("one"), container("two")]
    api.create(f"{apps}/deployments", made).ok()
    patch = {"spec": {"template": {"spec": {"containers": [container("three")]}}}}
    now = api.patch(f"{apps}/deployments/a", patch, MERGE_PATCH).ok()
    assert [item["name"] for item in now["spec"]["template"]["spec"]["containers"]] == ["three"]


@pytest.mark.parametrize(
    ("change", "code", "reason", "text"),
    [
        ({"metadata": {"uid": "x"}}, 422, "Invalid", 'metadata.uid: Invalid value: "x": field is immutable'),
        ({"metadata": {"name": "b"}}, 400, "BadRequest", "the name of the object (b) does not match the name on"),
        ({"metadata": {"namespace": "b"}}, 400, "BadRequest", "the namespace of the provided object does not match"),
        ({"metadata": {"resourceVersion": "1"}}, 409, "Conflict", "the object has been modified"),
        ({"data": {"a": 1}}, 422, "Invalid", "json: cannot unmarshal number into Go struct field ConfigMap.data"),
        ([], 400, "BadRequest", ""),
    ],
    ids=["uid", "name", "namespace", "resourceVersion", "type", "list"],
)  # fmt: skip
def test_bad_merge_patch(api: Api, core: str, change: Any, code: int, reason: str, text: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a", DATA)).ok()
    api.patch(f"{core}/configmaps/a", change).fails(code, reason, text)
    assert api.get(f"{core}/configmaps/a").body == made


def test_patch_with_the_current_resource_version(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a", DATA)).ok()
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "data": {"a": "2"}}
    assert api.patch(f"{core}/configmaps/a", patch).ok()["data"]["a"] == "2"
    api.patch(f"{core}/configmaps/a", patch).fails(409, "Conflict")


def test_patch_of_what_is_not_there(api: Api, core: str) -> None:
    api.patch(f"{core}/configmaps/a", {"data": {}}).fails(404, "NotFound")
    api.patch(f"{core}/configmaps/a", {"data": {}}, STRATEGIC_PATCH).fails(404, "NotFound")


def test_patch_is_validated_strictly(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", DATA)).ok()
    answer = api.patch(f"{core}/configmaps/a", {"dta": {}}, fieldValidation="Strict")
    assert answer.fails(422, "Invalid")["message"].endswith('}": strict decoding error: unknown field "dta"')
    assert answer.causes() == [("patch", "FieldValueInvalid")]
    warned = api.patch(f"{core}/configmaps/a", {"dta": {}}, fieldValidation="Warn")
    assert warned.ok()
    assert warned.headers["warning"] == '299 - "unknown field \\"dta\\""'


# --- strategic merge -----------------------------------------------------------------------------------------------


def spec_after(api: Api, apps: str, patch: dict[str, Any]) -> dict[str, Any]:
    """Patch a Deployment of two containers, and return its new pod spec."""
    made = deployment("a")
    made["spec"]["template"]["spec"] = {
        "containers": [
            container("one", env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]),
            container("two", ports=[{"containerPort": 80}, {"containerPort": 81}]),
        ],
        "nodeSelector": {"x": "y"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "one"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    api.create(f"{apps}/deployments", made).ok()
    body = {"spec": {"template": {"spec": patch}}}
    return dict(api.patch(f"{apps}/deployments/a", body, STRATEGIC_PATCH).ok()["spec"]["template"]["spec"])


def named(items: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in items]


def test_strategic_merge_by_key(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"containers": [{"name": "two", "image": "changed"}]})
    assert named(spec["containers"]) == ["one", "two"]
    assert spec["containers"][1]["image"] == "changed"
    assert len(spec["containers"][1]["ports"]) == 2


def test_strategic_merge_adds_to_a_list(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"containers": [container("three")]})
    assert named(spec["containers"]) == ["three", "one", "two"]


def test_strategic_merge_of_nested_lists(api: Api, apps: str) -> None:
    patch = {"containers": [{"name": "one", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]}
    env = spec_after(api, apps, patch)["containers"][0]["env"]
    assert {item["name"]: item["value"] for item in env} == {"A": "1", "B": "3", "C": "4"}


def test_strategic_merge_by_a_number(api: Api, apps: str) -> None:
    patch = {"containers": [{"name": "two", "ports": [{"containerPort": 81, "name": "web"}]}]}
    ports = spec_after(api, apps, patch)["containers"][1]["ports"]
    assert sorted((item["containerPort"], item.get("name")) for item in ports) == [(80, None), (81, "web")]


def test_strategic_delete_of_an_item(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"containers": [{"name": "one", "$patch": "delete"}]})
    assert named(spec["containers"]) == ["two"]


def test_strategic_replace_of_a_list(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"containers": [container("three"), {"$patch": "replace"}]})
    assert named(spec["containers"]) == ["three"]


def test_strategic_replace_of_a_map(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"nodeSelector": {"$patch": "replace", "z": "1"}})
    assert spec["nodeSelector"] == {"z": "1"}


def test_strategic_delete_of_a_map(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"nodeSelector": {"$patch": "delete"}})
    assert "nodeSelector" not in spec


def test_strategic_null_removes(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"nodeSelector": {"x": None, "q": "r"}, "imagePullSecrets": None})
    assert spec["nodeSelector"] == {"q": "r"}
    assert "imagePullSecrets" not in spec


def test_strategic_atomic_lists_are_replaced(api: Api, apps: str) -> None:
    spec = spec_after(api, apps, {"tolerations": [{"key": "b", "operator": "Exists"}]})
    assert [item["key"] for item in spec["tolerations"]] == ["b"]


def test_strategic_retain_keys(api: Api, apps: str) -> None:
    volume = {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}
    spec = spec_after(api, apps, {"volumes": [volume]})
    assert spec["volumes"] == [{"name": "v", "hostPath": {"path": "/x", "type": ""}}]


def test_strategic_set_element_order(api: Api, apps: str) -> None:
    order = [{"name": "two"}, {"name": "three"}, {"name": "one"}]
    spec = spec_after(api, apps, {"$setElementOrder/containers": order, "containers": [container("three")]})
    assert named(spec["containers"]) == ["two", "three", "one"]


def test_strategic_finalizers_are_a_set(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", finalizers=["a.b/one", "a.b/two"])).ok()
    path = f"{core}/configmaps/a"
    now = api.patch(path, {"metadata": {"finalizers": ["a.b/three"]}}, STRATEGIC_PATCH).ok()
    assert sorted(now["metadata"]["finalizers"]) == ["a.b/one", "a.b/three", "a.b/two"]
    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/one", "a.b/three"]}}
    assert api.patch(path, gone, STRATEGIC_PATCH).ok()["metadata"]["finalizers"] == ["a.b/two"]
    api.patch(path, {"metadata": {"finalizers": None}}, STRATEGIC_PATCH).ok()


def test_strategic_item_without_its_key(api: Api, apps: str) -> None:
    api.create(f"{apps}/deployments", deployment("a")).ok()
    patch = {"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}
    answer = api.patch(f"{apps}/deployments/a", patch, STRATEGIC_PATCH)
    assert answer.status in (400, 500)
    assert "does not contain declared merge key: name" in answer.message


def test_strategic_unknown_directive(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", DATA)).ok()
    answer = api.patch(f"{core}/configmaps/a", {"data": {"$patch": "explode"}}, STRATEGIC_PATCH)
    answer.fails(500, "", "unknown patch type: explode in map")


def test_owner_references_merge_by_uid_and_are_validated(api: Api, core: str) -> None:
    held = api.create(f"{core}/configmaps", config_map("owner")).ok()["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": held}
    made = api.create(f"{core}/configmaps", config_map("a", ownerReferences=[owner])).ok()
    path = f"{core}/configmaps/a"
    more = {"metadata": {"ownerReferences": [{"uid": held, "controller": True}, {**owner, "uid": "2"}]}}
    api.patch(path, {"metadata": {"ownerReferences": [{"uid": "3"}]}}, STRATEGIC_PATCH).fails(422, "Invalid")
    assert api.get(path).body == made
    owners = api.patch(path, more, STRATEGIC_PATCH, dryRun="All").ok()["metadata"]["ownerReferences"]
    assert sorted((item["uid"], item.get("controller")) for item in owners) == sorted([(held, True), ("2", None)])


@pytest.mark.parametrize("media", ["text/plain", "application/json", "application/yaml"])
def test_patch_of_another_media_type(api: Api, core: str, media: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", DATA)).ok()
    assert api.patch(f"{core}/configmaps/a", "{}", media).status == 415


def test_node_taints_are_replaced_and_conditions_merged(api: Api, cluster: Cluster) -> None:
    name = unique("contract")
    path = cluster.cleanup.add(f"/api/v1/nodes/{name}")
    taint = {"key": "a", "effect": "NoExecute"}
    api.create("/api/v1/nodes", {"metadata": {"name": name}, "spec": {"taints": [taint]}}).ok()
    other = {"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}
    taints = api.patch(path, other, STRATEGIC_PATCH).ok()["spec"]["taints"]
    assert [item["key"] for item in taints] == ["b"]
    state = {"status": {"conditions": [{"type": "One", "status": "True"}]}}
    api.patch(f"{path}/status", state, STRATEGIC_PATCH).ok()
    state = {"status": {"conditions": [{"type": "Two", "status": "True"}]}}
    conditions = api.patch(f"{path}/status", state, STRATEGIC_PATCH).ok()["status"]["conditions"]
    assert sorted(item["type"] for item in conditions if item["type"] in ("One", "Two")) == ["One", "Two"]
