"""Server-side apply: who owns what, what a conflict says, what goes when nobody names it any more."""

from __future__ import annotations

from typing import Any

import pytest
from contract.engines import APPLY_PATCH, STRATEGIC_PATCH, Answer, Api
from contract.things import config_map, container, daemon_set, deployment


def owned(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The fields of each (manager, operation) of an object."""
    entries = document["metadata"].get("managedFields") or []
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in entries}


def applied(data: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """The configuration of a ConfigMap, without any data if there is none."""
    document = config_map("a", data, **metadata)
    return document if data else {key: value for key, value in document.items() if key != "data"}


def conflict(answer: Answer, *expected: tuple[str, str]) -> str:
    """Check the causes, as (field, message), of a conflict; return the Status' message."""
    body = answer.fails(409, "Conflict")
    causes = body["details"]["causes"]
    assert {cause["reason"] for cause in causes} == {"FieldManagerConflict"}
    assert sorted((cause["field"], cause["message"]) for cause in causes) == sorted(expected)
    return str(body["message"])


def test_apply_creates(api: Api, core: str) -> None:
    answer = api.apply(f"{core}/configmaps/a", applied({"x": "1"}, labels={"l": "m"}), "one")
    assert answer.status == 201
    (entry,) = answer.body["metadata"]["managedFields"]
    assert entry.pop("time")
    assert entry == {
        "manager": "one", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:x": {}}, "f:metadata": {"f:labels": {"f:l": {}}}},
    }  # fmt: skip


def test_apply_again_changes_nothing(api: Api, core: str) -> None:
    made = api.apply(f"{core}/configmaps/a", applied({"x": "1"})).ok()
    answer = api.apply(f"{core}/configmaps/a", applied({"x": "1"}))
    assert answer.status == 200
    assert answer.body == made


def test_apply_adds_changes_and_removes(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1", "y": "1"}, labels={"l": "1", "k": "1"})).ok()
    now = api.apply(path, applied({"x": "2", "z": "1"}, labels={"k": "1"})).ok()
    assert now["data"] == {"x": "2", "z": "1"}
    assert now["metadata"]["labels"] == {"k": "1"}


def test_fields_of_others_stay(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1"}), "one").ok()
    now = api.apply(path, applied({"y": "1"}), "two").ok()
    assert now["data"] == {"x": "1", "y": "1"}
    assert owned(now) == {("one", "Apply"): {"f:data": {"f:x": {}}}, ("two", "Apply"): {"f:data": {"f:y": {}}}}
    assert api.apply(path, applied({}), "two").ok()["data"] == {"x": "1"}


def test_conflict_with_an_apply(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    made = api.apply(path, applied({"x": "1"}), "one").ok()
    answer = api.apply(path, applied({"x": "2"}), "two")
    message = conflict(answer, (".data.x", 'conflict with "one"'))
    assert message == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    assert api.get(path).body == made


def test_conflict_with_an_update(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", applied({"x": "1"}), fieldManager="hand").ok()
    answer = api.apply(f"{core}/configmaps/a", applied({"x": "2"}), "one")
    message = conflict(answer, (".data.x", 'conflict with "hand" using v1'))
    assert message == 'Apply failed with 1 conflict: conflict with "hand" using v1: .data.x'


def test_conflicts_over_several_fields_with_several_managers(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1", "y": "1"}), "one").ok()
    api.patch(path, {"data": {"z": "1"}}, fieldManager="hand").ok()
    answer = api.apply(path, applied({"x": "2", "y": "2", "z": "2"}), "two")
    message = conflict(
        answer,
        (".data.x", 'conflict with "one"'),
        (".data.y", 'conflict with "one"'),
        (".data.z", 'conflict with "hand" using v1'),
    )
    assert message == (
        "Apply failed with 3 conflicts: "
        'conflicts with "hand" using v1:\n- .data.z\nconflicts with "one":\n- .data.x\n- .data.y'
    )


def test_force_takes_ownership(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1", "y": "1"}), "one").ok()
    now = api.apply(path, applied({"x": "2"}), "two", force=True).ok()
    assert now["data"] == {"x": "2", "y": "1"}
    assert owned(now) == {("one", "Apply"): {"f:data": {"f:y": {}}}, ("two", "Apply"): {"f:data": {"f:x": {}}}}


def test_force_that_takes_all_prunes_the_other_manager(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1"}), "one").ok()
    assert owned(api.apply(path, applied({"x": "2"}), "two", force=True).ok()).keys() == {("two", "Apply")}


def test_equal_values_are_shared(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1"}), "one").ok()
    now = api.apply(path, applied({"x": "1"}), "two").ok()
    assert owned(now).keys() == {("one", "Apply"), ("two", "Apply")}
    assert api.apply(path, applied({}), "one").ok()["data"] == {"x": "1"}
    assert "data" not in api.apply(path, applied({}), "two").ok()


def test_change_of_a_shared_value_conflicts(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1"}), "one").ok()
    api.apply(path, applied({"x": "1"}), "two").ok()
    conflict(api.apply(path, applied({"x": "2"}), "one"), (".data.x", 'conflict with "two"'))


def test_update_takes_changed_fields_only(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    made = api.apply(path, applied({"x": "1", "y": "1"}), "one").ok()
    made["data"] = {"x": "2", "y": "1"}
    now = api.update(path, made, fieldManager="hand").ok()
    assert owned(now) == {
        ("one", "Apply"): {"f:data": {"f:y": {}}},
        ("hand", "Update"): {"f:data": {"f:x": {}}},
    }
    conflict(api.apply(path, applied({"x": "3", "y": "1"}), "one"), (".data.x", 'conflict with "hand" using v1'))


def test_update_that_removes_a_field_ends_its_ownership(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1", "y": "1"}), "one").ok()
    now = api.patch(path, {"data": {"x": None}}, fieldManager="hand").ok()
    assert owned(now) == {("one", "Apply"): {"f:data": {"f:y": {}}}}


def test_from_update_to_apply(api: Api, core: str) -> None:
    """The same manager's fields of an update and of an apply are two entries; equal values do not conflict."""
    path = f"{core}/configmaps/a"
    api.create(f"{core}/configmaps", applied({"x": "1", "y": "1"}), fieldManager="me").ok()
    now = api.apply(path, applied({"x": "1"}), "me").ok()
    assert owned(now) == {
        ("me", "Apply"): {"f:data": {"f:x": {}}},
        ("me", "Update"): {"f:data": {".": {}, "f:x": {}, "f:y": {}}},
    }
    assert api.apply(path, applied({}), "me").ok()["data"] == {"x": "1", "y": "1"}
    conflict(api.apply(path, applied({"x": "2"}), "me"), (".data.x", 'conflict with "me" using v1'))


def test_managed_fields_can_be_reset(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1"}), "one").ok()
    now = api.patch(path, {"metadata": {"managedFields": [{}]}}, fieldManager="hand").ok()
    assert "managedFields" not in now["metadata"]


def test_apply_to_an_object_without_managers(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.create(f"{core}/configmaps", applied({"x": "1"})).ok()
    api.patch(path, {"metadata": {"managedFields": [{}]}}).ok()
    answer = api.apply(path, applied({"x": "2"}), "one")
    conflict(answer, (".data.x", 'conflict with "before-first-apply" using v1'))
    now = api.apply(path, applied({"x": "1"}), "one").ok()
    assert owned(now).keys() == {("one", "Apply"), ("before-first-apply", "Update")}


# --- refused --------------------------------------------------------------------------------------------------------


def test_field_manager_is_required(api: Api, core: str) -> None:
    answer = api.request("PATCH", f"{core}/configmaps/a", applied({"x": "1"}), content_type=APPLY_PATCH)
    body = answer.fails(422, "Invalid")
    assert body["message"] == (
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
    )


def test_managed_fields_in_the_configuration(api: Api, core: str) -> None:
    answer = api.apply(f"{core}/configmaps/a", applied({"x": "1"}, managedFields=[{"manager": "x"}]))
    assert answer.fails(400, "BadRequest")["message"] == "metadata.managedFields must be nil"


def test_uid_of_an_object_that_is_not_there(api: Api, core: str) -> None:
    answer = api.apply(f"{core}/configmaps/a", applied({"x": "1"}, uid="11111111-1111-1111-1111-111111111111"))
    answer.fails(
        409, "Conflict", "uid mismatch: the provided object specified uid 11111111-1111-1111-1111-111111111111"
    )


def test_uid_of_another_object(api: Api, core: str) -> None:
    api.apply(f"{core}/configmaps/a", applied({"x": "1"})).ok()
    answer = api.apply(f"{core}/configmaps/a", applied({"x": "2"}, uid="11111111-1111-1111-1111-111111111111"))
    answer.fails(422, "Invalid", "metadata.uid: Invalid value: ", "field is immutable")


def test_resource_version_in_the_configuration(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    made = api.apply(path, applied({"x": "1"})).ok()
    version = made["metadata"]["resourceVersion"]
    assert api.apply(path, applied({"x": "2"}, resourceVersion=version)).ok()["data"] == {"x": "2"}
    api.apply(path, applied({"x": "3"}, resourceVersion=version)).fails(409, "Conflict", "the object has been modified")


def test_other_name_in_the_configuration(api: Api, core: str) -> None:
    api.apply(f"{core}/configmaps/b", applied({"x": "1"})).fails(400, "BadRequest")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"apiVersion": ""}, "invalid object type: /, Kind=ConfigMap"),
        ({"kind": ""}, "invalid object type: /v1, Kind="),
        ({"kind": "Secret"}, "invalid object type: /v1, Kind=Secret"),
        ({"apiVersion": "v2"}, "invalid object type: /v2, Kind=ConfigMap"),
        ({"metadata": {}}, "the name of the object (a based on URL) was undeterminable: name must be provided"),
    ],
    ids=["version missing", "kind missing", "kind", "version", "name missing"],
)
def test_configuration_of_another_type(api: Api, core: str, change: dict[str, Any], text: str) -> None:
    body = {**applied({"x": "1"}), **change}
    assert api.apply(f"{core}/configmaps/a", body).fails(400, "BadRequest")["message"] == text


CONFIG_MAP = "failed to create typed patch object (/a; /v1, Kind=ConfigMap): "
UNTYPED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"dta": {}}, ".dta: field not declared in schema"),
    "number for a string": ({"data": {"x": 1}}, ".data.x: expected string, got &value.valueUnstructured{Value:1}"),
    "list for a map": ({"data": []}, ".data: expected map, got &{[]}"),
    "item twice in a set": (
        {"metadata": {"name": "a", "finalizers": ["a.b/c", "a.b/c"]}},
        '.metadata.finalizers: duplicate entries for key [="a.b/c"]',
    ),
}


@pytest.mark.parametrize("case", UNTYPED)
@pytest.mark.parametrize("validation", ["Strict", "Ignore"])
def test_configuration_that_does_not_fit(api: Api, core: str, case: str, validation: str) -> None:
    """What has no place in the schema could have no owner: it is an error however fields are validated."""
    change, text = UNTYPED[case]
    answer = api.apply(f"{core}/configmaps/a", {**applied({"x": "1"}), **change}, fieldValidation=validation)
    assert answer.fails(500, "")["message"] == CONFIG_MAP + text


POD_SPEC = "failed to create typed patch object (/a; apps/v1, Kind=Deployment): .spec.template.spec"
NUMBER = "expected numeric (int or float), got string"
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "container twice": (
        {"containers": [container("x"), container("x")]}, '.containers: duplicate entries for key [name="x"]',
    ),
    "variable twice": (
        {"containers": [container("x", env=[{"name": "A"}, {"name": "A"}])]},
        '.containers[name="x"].env: duplicate entries for key [name="A"]',
    ),
    "port twice": (
        {"containers": [container("x", ports=[{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}])]},
        '.containers[name="x"].ports: duplicate entries for key [containerPort=80,protocol="TCP"]',
    ),
    "text for a number": (
        {"terminationGracePeriodSeconds": "5"}, f".terminationGracePeriodSeconds: {NUMBER}",
    ),
    "text for a boolean": ({"hostNetwork": "yes"}, ".hostNetwork: expected boolean, got &{yes}"),
    "map for a list": ({"hostAliases": {}}, ".hostAliases: expected list, got &{map[]}"),
    "list for a map": ({"securityContext": []}, ".securityContext: expected map, got &{[]}"),
    "deep unknown field": (
        {"containers": [container("x", imagee="y")]}, '.containers[name="x"].imagee: field not declared in schema',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_pod_spec_that_does_not_fit(api: Api, apps: str, case: str) -> None:
    change, text = MISFITS[case]
    answer = api.apply(f"{apps}/deployments/a", workload(**change))
    assert answer.fails(500, "")["message"] == POD_SPEC + text


@pytest.mark.parametrize(
    ("containers", "field"),
    [
        ([{"image": "x"}], "spec.template.spec.containers[0].name"),
        ([container(env=[{"value": "x"}])], "spec.template.spec.containers[0].env[0].name"),
        ([container(ports=[{"hostPort": 1}])], "spec.template.spec.containers[0].ports[0].containerPort"),
    ],
    ids=["container", "variable", "port"],
)
def test_item_without_its_key(api: Api, apps: str, containers: list[dict[str, Any]], field: str) -> None:
    answer = api.apply(f"{apps}/deployments/a", workload(containers=containers))
    answer.fails(422, "Invalid")
    assert answer.causes() == [(field, "FieldValueRequired")]


def test_amount_that_is_none(api: Api, apps: str) -> None:
    body = workload(containers=[container(resources={"limits": {"cpu": "much"}})])
    answer = api.apply(f"{apps}/deployments/a", body)
    answer.fails(500, "", "failed to convert new object (/a; apps/v1, Kind=Deployment)", "quantities must match")


def test_yaml_body(api: Api, core: str) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: '1'\n"
    answer = api.request(
        "PATCH", f"{core}/configmaps/a", text, params={"fieldManager": "one"}, content_type=APPLY_PATCH
    )
    assert answer.ok()["data"] == {"x": "1"}


def test_dry_run(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    assert api.apply(path, applied({"x": "1"}), dryRun="All").status == 201
    api.get(path).fails(404, "NotFound")
    made = api.apply(path, applied({"x": "1"})).ok()
    assert api.apply(path, applied({"x": "2"}), dryRun="All").ok()["data"] == {"x": "2"}
    assert api.get(path).body == made


# --- lists ---------------------------------------------------------------------------------------------------------


def workload(**pod_spec: Any) -> dict[str, Any]:
    """The configuration of a paused Deployment, which no controller takes up."""
    body = deployment("a", paused=True)
    del body["spec"]["replicas"]
    body["spec"]["template"]["spec"] = {"containers": [container("one")], **pod_spec}
    return body


def pod_spec(document: dict[str, Any]) -> dict[str, Any]:
    return dict(document["spec"]["template"]["spec"])


def test_lists_by_key_are_merged(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    api.apply(path, workload(containers=[container("one", env=[{"name": "A", "value": "1"}])]), "one").ok()
    two = workload(containers=[{"name": "one", "env": [{"name": "B", "value": "2"}]}, container("two")])
    now = pod_spec(api.apply(path, two, "two").ok())
    assert [item["name"] for item in now["containers"]] == ["one", "two"]
    assert now["containers"][0]["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert now["containers"][0]["image"] == container()["image"]


def test_items_of_a_list_go_with_their_owner(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    api.apply(path, workload(containers=[container("one"), container("two")])).ok()
    now = pod_spec(api.apply(path, workload(containers=[container("two")])).ok())
    assert [item["name"] for item in now["containers"]] == ["two"]


def test_order_of_a_list_is_the_appliers(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    api.apply(path, workload(containers=[container("one"), container("two")])).ok()
    swapped = workload(containers=[container("three"), container("two"), container("one")])
    now = pod_spec(api.apply(path, swapped).ok())
    assert [item["name"] for item in now["containers"]] == ["three", "two", "one"]


def test_ports_are_keyed_by_port_and_protocol(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    ports = [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}]
    api.apply(path, workload(containers=[container("one", ports=ports)])).ok()
    now = pod_spec(api.apply(path, workload(containers=[container("one", ports=ports[1:])])).ok())
    assert now["containers"][0]["ports"] == ports[1:]


def test_default_of_a_key(api: Api, apps: str) -> None:
    """A port without a protocol is the TCP port."""
    path = f"{apps}/deployments/a"
    api.apply(path, workload(containers=[container("one", ports=[{"containerPort": 80}])]), "one").ok()
    named = [{"containerPort": 80, "protocol": "TCP", "name": "web"}]
    now = pod_spec(api.apply(path, workload(containers=[{"name": "one", "ports": named}]), "two").ok())
    assert now["containers"][0]["ports"] == named


def test_atomic_lists_have_one_owner(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    first = workload(tolerations=[{"key": "a", "operator": "Exists"}])
    made = api.apply(path, first, "one").ok()
    tolerations = owned(made)["one", "Apply"]["f:spec"]["f:template"]["f:spec"]["f:tolerations"]
    assert tolerations == {}
    second = workload(tolerations=[{"key": "b", "operator": "Exists"}])
    field = ".spec.template.spec.tolerations"
    conflict(api.apply(path, second, "two"), (field, 'conflict with "one"'))
    now = pod_spec(api.apply(path, second, "two", force=True).ok())
    assert [item["key"] for item in now["tolerations"]] == ["b"]


def test_finalizers_are_a_set(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({}, finalizers=["a.b/one"]), "one").ok()
    now = api.apply(path, applied({}, finalizers=["a.b/two"]), "two").ok()
    assert now["metadata"]["finalizers"] == ["a.b/one", "a.b/two"]
    assert owned(now)["two", "Apply"] == {"f:metadata": {"f:finalizers": {'v:"a.b/two"': {}}}}
    assert api.apply(path, applied({}), "one").ok()["metadata"]["finalizers"] == ["a.b/two"]
    assert "finalizers" not in api.apply(path, applied({}), "two").ok()["metadata"]


def test_conflict_names_the_item(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    api.apply(path, workload(), "one").ok()
    other = workload(containers=[{"name": "one", "image": "other"}])
    conflict(
        api.apply(path, other, "two"),
        ('.spec.template.spec.containers[name="one"].image', 'conflict with "one"'),
    )


def test_defaulted_fields_have_no_owner_after_an_apply(api: Api, apps: str) -> None:
    made = api.apply(f"{apps}/daemonsets/a", daemon_set("a"), "one").ok()
    assert made["spec"]["revisionHistoryLimit"] == 10
    assert owned(made).keys() == {("one", "Apply")}
    assert "f:revisionHistoryLimit" not in owned(made)["one", "Apply"]["f:spec"]
    body = daemon_set("a", revisionHistoryLimit=3)
    assert api.apply(f"{apps}/daemonsets/a", body, "two").ok()["spec"]["revisionHistoryLimit"] == 3


def test_removed_field_gets_its_default_back(api: Api, apps: str) -> None:
    path = f"{apps}/daemonsets/a"
    api.apply(path, daemon_set("a", revisionHistoryLimit=3)).ok()
    assert api.apply(path, daemon_set("a")).ok()["spec"]["revisionHistoryLimit"] == 10


# --- status --------------------------------------------------------------------------------------------------------


def test_apply_to_status(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    api.apply(path, workload(), "one").ok()
    condition = {"type": "Contract", "status": "True", "reason": "Because"}
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
    now = api.apply(f"{path}/status", {**head, "status": {"conditions": [condition]}}, "two").ok()
    (found,) = [item for item in now["status"]["conditions"] if item["type"] == "Contract"]
    assert found.items() >= condition.items()
    (entry,) = [item for item in now["metadata"]["managedFields"] if item["manager"] == "two"]
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {
        "f:status": {"f:conditions": {'k:{"type":"Contract"}': {".": {}, "f:reason": {}, "f:status": {}, "f:type": {}}}}
    }


def test_status_in_a_plain_apply_is_not_owned(api: Api, apps: str) -> None:
    body = {**workload(), "status": {"replicas": 7}}
    now = api.apply(f"{apps}/deployments/a", body, "one").ok()
    assert "f:status" not in owned(now)["one", "Apply"]
    assert now["status"].get("replicas", 0) == 0


def test_apply_to_the_status_of_what_is_not_there(api: Api, apps: str) -> None:
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
    api.apply(f"{apps}/deployments/a/status", {**head, "status": {}}).fails(404, "NotFound")


# --- updates -------------------------------------------------------------------------------------------------------


def test_update_records_containers_of_fields(api: Api, apps: str) -> None:
    """Unlike an apply, an update owns maps and lists themselves where it made them."""
    made = api.create(f"{apps}/daemonsets", daemon_set("a"), fieldManager="hand").ok()
    spec = owned(made)["hand", "Update"]["f:spec"]
    assert spec["f:updateStrategy"] == {
        "f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {},
    }  # fmt: skip
    assert spec["f:template"]["f:metadata"] == {"f:labels": {".": {}, "f:app": {}}}
    assert "." not in spec["f:template"]["f:spec"]["f:containers"]


def test_manager_without_a_name_is_the_user_agent(api: Api, core: str) -> None:
    headers = {"User-Agent": "some-tool/1.2 (linux)"}
    made = api.request("POST", f"{core}/configmaps", applied({"x": "1"}), headers=headers).ok()
    assert owned(made).keys() == {("some-tool", "Update")}


def test_strategic_patch_is_an_update(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, applied({"x": "1"}), "one").ok()
    now = api.patch(path, {"data": {"x": "2"}}, STRATEGIC_PATCH, fieldManager="hand").ok()
    assert owned(now) == {("hand", "Update"): {"f:data": {"f:x": {}}}}


def test_an_empty_map_is_owned(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    made = api.apply(path, {**applied({}), "data": {}}, "one").ok()
    assert owned(made) == {("one", "Apply"): {"f:data": {}}}
    conflict(api.apply(path, applied({"x": "1"}), "two"), (".data", 'conflict with "one"'))
    now = api.apply(path, applied({"x": "1"}), "two", force=True).ok()
    assert owned(now) == {("two", "Apply"): {"f:data": {"f:x": {}}}}


def test_an_empty_map_that_is_filled(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.apply(path, {**applied({}), "data": {}}, "one").ok()
    now = api.apply(path, applied({"x": "1"}), "one").ok()
    assert now["data"] == {"x": "1"}
    assert owned(now) == {("one", "Apply"): {"f:data": {"f:x": {}}}}


def test_objects_without_managers_stay_so_until_somebody_applies(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.create(f"{core}/configmaps", applied({"x": "1"})).ok()
    api.patch(path, {"metadata": {"managedFields": [{}]}}).ok()
    assert "managedFields" not in api.patch(path, {"data": {"y": "1"}}).ok()["metadata"]
    now = api.apply(path, applied({"z": "1"}), "one").ok()
    assert owned(now) == {
        ("one", "Apply"): {"f:data": {"f:z": {}}},
        ("before-first-apply", "Update"): {"f:data": {".": {}, "f:x": {}, "f:y": {}}},
    }


def test_managed_fields_can_be_edited(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    made = api.apply(path, applied({"x": "1", "y": "1"}), "one").ok()
    (entry,) = made["metadata"]["managedFields"]
    edited = {**entry, "manager": "two", "fieldsV1": {"f:data": {"f:x": {}}}}
    now = api.patch(path, {"metadata": {"managedFields": [edited]}}).ok()
    assert owned(now) == {("two", "Apply"): {"f:data": {"f:x": {}}}}
    nonsense = {"metadata": {"managedFields": [{"manager": "x", "operation": "Wish"}]}}
    assert owned(api.patch(path, nonsense).ok()) == owned(now)


def test_pods_managed_fields_know_nothing_of_admission(api: Api, core: str) -> None:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container()]}}
    made = api.create(f"{core}/pods", {**body, "spec": {**body["spec"], "schedulerName": "nobody"}}).ok()
    assert made["spec"]["tolerations"]
    spec = owned(made)["contract", "Update"]["f:spec"]
    assert sorted(spec) == [
        "f:containers", "f:dnsPolicy", "f:enableServiceLinks", "f:restartPolicy", "f:schedulerName",
        "f:securityContext", "f:terminationGracePeriodSeconds",
    ]  # fmt: skip


def test_services_managed_fields_know_nothing_of_allocation(api: Api, core: str) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}
    made = api.create(f"{core}/services", body).ok()
    assert made["spec"]["clusterIP"]
    assert owned(made)["contract", "Update"]["f:spec"] == {
        "f:internalTrafficPolicy": {},
        "f:ports": {
            ".": {},
            'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}},
        },
        "f:sessionAffinity": {},
        "f:type": {},
    }
