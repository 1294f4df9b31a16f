"""Creating, reading and replacing objects: names, metadata, conflicts, unknown fields, dry runs, generations."""

from __future__ import annotations

import re
from typing import Any

import pytest
from contract.engines import JSON, MERGE_PATCH, Api, Cluster, unique
from contract.things import changed, config_map, container, daemon_set, deployment, pod


def test_created_object_has_server_metadata(api: Api, core: str, namespace: str) -> None:
    answer = api.create(f"{core}/configmaps", config_map("a", labels={"x": "y"}))
    assert answer.status == 201
    meta = answer.body["metadata"]
    assert (answer.body["kind"], answer.body["apiVersion"]) == ("ConfigMap", "v1")
    assert meta["namespace"] == namespace
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meta["uid"])
    assert meta["resourceVersion"].isdigit()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta["creationTimestamp"])
    assert "generation" not in meta
    assert "selfLink" not in meta
    assert api.get(f"{core}/configmaps/a").body == answer.body


def test_server_metadata_of_a_new_object_cannot_be_chosen(api: Api, core: str) -> None:
    chosen = {"uid": "11111111-1111-1111-1111-111111111111", "creationTimestamp": "2001-01-01T00:00:00Z"}
    more = {"generation": 7, "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 9}
    meta = api.create(f"{core}/configmaps", config_map("a", **chosen, **more)).ok()["metadata"]
    assert meta["uid"] != chosen["uid"]
    assert not meta["creationTimestamp"].startswith("2001")
    assert "deletionTimestamp" not in meta
    assert "deletionGracePeriodSeconds" not in meta


def test_generate_name(api: Api, core: str) -> None:
    body = {"metadata": {"generateName": "it-"}}
    names = {api.create(f"{core}/configmaps", body).ok()["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"it-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


def test_generate_name_is_kept_and_a_long_one_is_cut(api: Api, core: str) -> None:
    meta = api.create(f"{core}/configmaps", {"metadata": {"generateName": "x" * 200}}).ok()["metadata"]
    assert meta["name"][:-5] == "x" * 58
    assert meta["generateName"] == "x" * 200


@pytest.mark.parametrize("prefix", ["x" * 254, "Upper-"])
def test_invalid_generate_name(api: Api, core: str, prefix: str) -> None:
    answer = api.create(f"{core}/configmaps", {"metadata": {"generateName": prefix}})
    answer.fails(422, "Invalid")
    assert ("metadata.generateName", "FieldValueInvalid") in answer.causes()


def test_create_twice(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    body = api.create(f"{core}/configmaps", config_map("a")).fails(409, "AlreadyExists")
    assert body["message"] == 'configmaps "a" already exists'
    assert body["details"] == {"name": "a", "kind": "configmaps"}


def test_details_name_the_group(api: Api, apps: str) -> None:
    body = api.get(f"{apps}/daemonsets/nope").fails(404, "NotFound")
    assert body == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": 'daemonsets.apps "nope" not found', "reason": "NotFound",
        "details": {"name": "nope", "group": "apps", "kind": "daemonsets"}, "code": 404,
    }  # fmt: skip


SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "dash-", "dot.", "a..b", "sp ace", "ü"])
def test_invalid_name(api: Api, core: str, name: str) -> None:
    answer = api.create(f"{core}/configmaps", config_map(name))
    body = answer.fails(422, "Invalid")
    assert body["message"] == f'ConfigMap "{name}" is invalid: metadata.name: Invalid value: "{name}": {SUBDOMAIN}'
    assert body["details"]["causes"] == [
        {"reason": "FieldValueInvalid", "message": f'Invalid value: "{name}": {SUBDOMAIN}', "field": "metadata.name"}
    ]


def test_no_name(api: Api, core: str) -> None:
    body = api.create(f"{core}/configmaps", {"metadata": {}}).fails(422, "Invalid")
    assert body["message"] == (
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'
    )


def test_too_long_name(api: Api, core: str) -> None:
    answer = api.create(f"{core}/configmaps", config_map("a" * 254))
    answer.fails(422, "Invalid", "must be no more than 253 characters")
    assert answer.causes() == [("metadata.name", "FieldValueInvalid")]


def test_namespace_name_is_a_label(api: Api) -> None:
    answer = api.create("/api/v1/namespaces", {"metadata": {"name": "contract.dotted"}})
    answer.fails(422, "Invalid", "must not contain dots")
    assert answer.causes() == [("metadata.name", "FieldValueInvalid")]


METADATA_PROBLEMS = {
    "label key": ({"labels": {"a b": "c"}}, "metadata.labels", "FieldValueInvalid", "name part must consist of"),
    "label value": ({"labels": {"a": "c d"}}, "metadata.labels", "FieldValueInvalid", "a valid label must be"),
    "label length": ({"labels": {"a": "c" * 64}}, "metadata.labels", "FieldValueInvalid", "no more than 63"),
    "label key length": ({"labels": {"a" * 64: ""}}, "metadata.labels", "FieldValueInvalid", "no more than 63"),
    "label prefix": ({"labels": {"A.b/c": ""}}, "metadata.labels", "FieldValueInvalid", "prefix part"),
    "annotation key": ({"annotations": {"a b": ""}}, "metadata.annotations", "FieldValueInvalid", "name part"),
    "annotations' size": (
        {"annotations": {"a": "x" * 262145}}, "metadata.annotations", "FieldValueTooLong", "more than 262144",
    ),
    "finalizer": (
        {"finalizers": ["unqualified"]}, "metadata.finalizers[0]", "FieldValueInvalid",
        "name is neither a standard finalizer name nor is it fully qualified",
    ),
    "owner of another form": (
        {"ownerReferences": [{"apiVersion": "a/b/c", "kind": "Pod", "name": "x", "uid": "1"}]},
        "metadata.ownerReferences[0].apiVersion", "FieldValueInvalid", "must be <group>/<version> or <version>",
    ),
    "owner that is an event": (
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "x", "uid": "1"}]},
        "metadata.ownerReferences[0]", "FieldValueInvalid", "/v1, Kind=Event is disallowed from being an owner",
    ),
    "owner without uid": (
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]},
        "metadata.ownerReferences[0].uid", "FieldValueRequired", "must not be empty",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", METADATA_PROBLEMS)
def test_invalid_metadata(api: Api, core: str, case: str) -> None:
    metadata, field, reason, text = METADATA_PROBLEMS[case]
    answer = api.create(f"{core}/configmaps", config_map("a", **metadata))
    answer.fails(422, "Invalid", text)
    assert answer.causes() == [(field, reason)]


def test_two_controllers_as_owners(api: Api, core: str) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "controller": True}
    answer = api.create(f"{core}/configmaps", config_map("a", ownerReferences=[owner, {**owner, "uid": "2"}]))
    answer.fails(422, "Invalid", "Only one reference can have Controller set to true")
    assert answer.causes() == [("metadata.ownerReferences", "FieldValueInvalid")]


def test_resource_version_at_creation(api: Api, core: str) -> None:
    body = api.create(f"{core}/configmaps", config_map("a", resourceVersion="1")).fails(500, "")
    assert body["message"] == "resourceVersion should not be set on objects to be created"


def test_other_namespace_in_the_body(api: Api, core: str) -> None:
    body = api.create(f"{core}/configmaps", config_map("a", namespace="default")).fails(400, "BadRequest")
    assert body["message"] == ("the namespace of the provided object does not match the namespace sent on the request")


def test_namespace_that_is_not_there(api: Api) -> None:
    body = api.create("/api/v1/namespaces/contract-nowhere/configmaps", config_map("a")).fails(404, "NotFound")
    assert body["message"] == 'namespaces "contract-nowhere" not found'
    assert body["details"] == {"name": "contract-nowhere", "kind": "namespaces"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, "Secret"),
        ({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}}, "v2"),
    ],
    ids=["kind", "version"],
)
def test_other_kind_in_the_body(api: Api, core: str, body: dict[str, Any], text: str) -> None:
    api.create(f"{core}/configmaps", body).fails(400, "BadRequest", text)


@pytest.mark.parametrize("sent", ["{", "[]", '"text"', "{}x"])
def test_malformed_body(api: Api, core: str, sent: str) -> None:
    api.create(f"{core}/configmaps", sent).fails(400, "BadRequest")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": {"a": 1}}, "cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        ({"data": []}, "cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string"),
        ({"immutable": "yes"}, "cannot unmarshal string into Go struct field ConfigMap.immutable of type bool"),
        ({"metadata": []}, "cannot unmarshal array into Go struct field ConfigMap.metadata of type v1.ObjectMeta"),
    ],
    ids=["string", "map", "bool", "object"],
)
def test_wrong_type(api: Api, core: str, change: dict[str, Any], text: str) -> None:
    body = api.create(f"{core}/configmaps", {**config_map("a"), **change}).fails(400, "BadRequest", text)
    assert body["message"] == f'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: {text}'


@pytest.mark.parametrize(
    ("quantity", "kept"), [("0.5", "500m"), ("1000m", "1"), ("1.0", "1"), (2, "2"), ("1e3", "1e3"), ("1024Mi", "1Gi")]
)
def test_quantities_are_written_canonically(api: Api, core: str, quantity: Any, kept: str) -> None:
    body = pod("a", containers=[container(resources={"limits": {"example.com/x": "1", "memory": quantity}})])
    limits = api.create(f"{core}/pods", body).ok()["spec"]["containers"][0]["resources"]["limits"]
    assert limits["memory"] == kept


# --- unknown fields ------------------------------------------------------------------------------------------------

UNKNOWN = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "lables": {}}, "dta": {"x": "y"}}
UNKNOWN_TEXTS = ['unknown field "dta"', 'unknown field "metadata.lables"']


def test_unknown_fields_strict(api: Api, core: str) -> None:
    body = api.create(f"{core}/configmaps", UNKNOWN, fieldValidation="Strict").fails(400, "BadRequest")
    start = 'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
    assert body["message"].startswith(start)
    assert sorted(body["message"].removeprefix(start).split(", ")) == UNKNOWN_TEXTS


@pytest.mark.parametrize("params", [{}, {"fieldValidation": "Warn"}], ids=["default", "Warn"])
def test_unknown_fields_warn(api: Api, core: str, params: dict[str, str]) -> None:
    answer = api.request("POST", f"{core}/configmaps", UNKNOWN, params=params)
    assert sorted(text.replace('\\"', '"') for text in raw_warnings(answer.headers)) == UNKNOWN_TEXTS
    assert "dta" not in answer.ok()


def raw_warnings(headers: dict[str, str]) -> list[str]:
    lines = re.split(r"[\n,] ?(?=299)", headers.get("warning", ""))
    return [line.removeprefix('299 - "').removesuffix('"') for line in lines if line]


def test_unknown_fields_ignored(api: Api, core: str) -> None:
    answer = api.create(f"{core}/configmaps", UNKNOWN, fieldValidation="Ignore")
    assert answer.ok()["metadata"]["name"] == "a"
    assert "warning" not in answer.headers


def test_duplicate_fields_strict(api: Api, core: str) -> None:
    sent = '{"metadata": {"name": "a"}, "data": {"x": "1"}, "data": {"x": "2"}}'
    api.create(f"{core}/configmaps", sent, fieldValidation="Strict").fails(400, "BadRequest", 'duplicate field "data"')
    made = api.create(f"{core}/configmaps", sent, fieldValidation="Warn")
    assert raw_warnings(made.headers) == ['duplicate field \\"data\\"']
    assert made.ok()["data"] == {"x": "2"}


def test_field_validation_of_another_word(api: Api, core: str) -> None:
    answer = api.create(f"{core}/configmaps", config_map("a"), fieldValidation="Maybe")
    answer.fails(422, "Invalid", 'Unsupported value: "Maybe": supported values: ')


def test_unknown_fields_deep_inside(api: Api, apps: str) -> None:
    body = daemon_set("a")
    body["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    answer = api.create(f"{apps}/daemonsets", body, fieldValidation="Strict")
    answer.fails(400, "BadRequest", 'unknown field "spec.template.spec.containers[0].imagee"')


# --- dry run -------------------------------------------------------------------------------------------------------


def test_dry_run_create(api: Api, core: str) -> None:
    answer = api.create(f"{core}/configmaps", config_map("a"), dryRun="All")
    assert answer.status == 201
    assert answer.body["metadata"]["uid"]
    assert "resourceVersion" not in answer.body["metadata"]
    api.get(f"{core}/configmaps/a").fails(404, "NotFound")


def test_dry_run_update_and_delete(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    sent = changed(made, "data", "a", value="2")
    assert api.update(f"{core}/configmaps/a", sent, dryRun="All").ok()["data"] == {"a": "2"}
    assert api.patch(f"{core}/configmaps/a", {"data": {"a": "3"}}, dryRun="All").ok()["data"] == {"a": "3"}
    api.delete(f"{core}/configmaps/a", dryRun="All").ok()
    assert api.get(f"{core}/configmaps/a").body == made


def test_dry_run_is_validated(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("A"), dryRun="All").fails(422, "Invalid")
    answer = api.create(f"{core}/configmaps", config_map("a"), dryRun="Some")
    assert answer.fails(422, "Invalid")["message"] == (
        'CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"'
    )
    assert answer.causes() == [("dryRun", "FieldValueNotSupported")]


# --- update --------------------------------------------------------------------------------------------------------


def test_update(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a", {"a": "1", "b": "2"}, labels={"x": "y"})).ok()
    sent = changed(changed(made, "data", "b", value=None), "metadata", "labels", value=None)
    now = api.update(f"{core}/configmaps/a", sent).ok()
    assert now["data"] == {"a": "1"}
    assert "labels" not in now["metadata"]
    assert int(now["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    for kept in ("uid", "creationTimestamp"):
        assert now["metadata"][kept] == made["metadata"][kept]


def test_update_with_an_old_resource_version(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    api.patch(f"{core}/configmaps/a", {"data": {"a": "2"}}).ok()
    body = api.update(f"{core}/configmaps/a", changed(made, "data", "a", value="3")).fails(409, "Conflict")
    assert body["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to '
        "the latest version and try again"
    )
    assert body["details"] == {"name": "a", "kind": "configmaps"}


def test_update_without_a_resource_version_overwrites(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    assert api.update(f"{core}/configmaps/a", config_map("a", {"b": "2"})).ok()["data"] == {"b": "2"}


def test_update_of_what_is_not_there(api: Api, core: str) -> None:
    api.update(f"{core}/configmaps/a", config_map("a")).fails(404, "NotFound", 'configmaps "a" not found')


def test_update_under_another_name(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    body = api.update(f"{core}/configmaps/a", config_map("b")).fails(400, "BadRequest")
    assert body["message"] == "the name of the object (b) does not match the name on the URL (a)"


def test_update_with_another_uid(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    other = "11111111-1111-1111-1111-111111111111"
    text = f"Precondition failed: UID in precondition: {other}, UID in object meta: {made['metadata']['uid']}"
    api.update(f"{core}/configmaps/a", config_map("a", uid=other)).fails(409, "Conflict", text)


def test_update_that_changes_nothing_keeps_the_resource_version(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    assert api.update(f"{core}/configmaps/a", made).ok() == made
    assert api.update(f"{core}/configmaps/a", config_map("a")).ok() == made
    assert api.patch(f"{core}/configmaps/a", {"data": {"a": "1"}}).ok() == made


def test_server_metadata_survives_an_update(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    sent = changed(made, "metadata", "creationTimestamp", value="2001-01-01T00:00:00Z")
    now = api.update(f"{core}/configmaps/a", changed(sent, "metadata", "uid", value=None)).ok()
    assert now["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert now["metadata"]["uid"] == made["metadata"]["uid"]


def test_deletion_cannot_be_set_by_an_update(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    sent = changed(made, "metadata", "deletionTimestamp", value="2001-01-01T00:00:00Z")
    answer = api.update(f"{core}/configmaps/a", changed(sent, "metadata", "deletionGracePeriodSeconds", value=1))
    answer.fails(422, "Invalid", 'Invalid value: "2001-01-01T00:00:00Z": field is immutable')
    assert [field for field, _ in answer.causes()] == [
        "metadata.deletionGracePeriodSeconds", "metadata.deletionTimestamp",
    ]  # fmt: skip


def test_update_without_a_name(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    body = api.update(f"{core}/configmaps/a", {"data": {}}).fails(400, "BadRequest")
    assert body["message"] == ("the name of the object (a based on URL) was undeterminable: name must be provided")


def test_update_with_a_resource_version_that_is_no_number(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    api.update(f"{core}/configmaps/a", config_map("a", resourceVersion="abc")).fails(500, "", "invalid syntax")


@pytest.mark.parametrize(
    ("method", "kind"), [("POST", "CreateOptions"), ("PUT", "UpdateOptions"), ("PATCH", "PatchOptions")]
)
@pytest.mark.parametrize(
    ("manager", "text"),
    [
        ("x" * 129, "fieldManager: Too long: may not be more than 128 bytes"),
        ("x\ty", 'fieldManager: Invalid value: "x\\ty": invalid character U+0009 (at position 1)'),
    ],
    ids=["long", "tab"],
)
def test_field_manager(api: Api, core: str, method: str, kind: str, manager: str, text: str) -> None:
    path = f"{core}/configmaps" + ("" if method == "POST" else "/a")
    media = MERGE_PATCH if method == "PATCH" else JSON
    answer = api.request(method, path, config_map("a"), params={"fieldManager": manager}, content_type=media)
    assert answer.fails(422, "Invalid")["message"] == f'{kind}.meta.k8s.io "" is invalid: {text}'


def test_large_objects(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("fits", {"a": "x" * (1 << 20)})).ok()
    api.create(f"{core}/configmaps", config_map("a", {"a": "x" * ((1 << 20) + 1)})).fails(422, "Invalid", "Too long")
    secret = {"metadata": {"name": "a"}, "stringData": {"a": "x" * ((1 << 20) + 1)}}
    answer = api.create(f"{core}/secrets", secret)
    answer.fails(422, "Invalid", "Too long: may not be more than 1048576 bytes")
    assert answer.causes() == [("data", "FieldValueTooLong")]


def test_too_large_body(api: Api, core: str) -> None:
    body = api.create(f"{core}/configmaps", config_map("a", {"a": "x" * (3 << 20)})).fails(413, "RequestEntityTooLarge")
    assert body["message"] == "Request entity too large: limit is 3145728"


# --- generation and status -----------------------------------------------------------------------------------------


def test_generation_follows_the_spec(api: Api, apps: str) -> None:
    path = f"{apps}/deployments/a"
    made = api.create(f"{apps}/deployments", deployment("a", paused=True)).ok()
    assert made["metadata"]["generation"] == 1
    assert api.patch(path, {"metadata": {"labels": {"x": "y"}}}).ok()["metadata"]["generation"] == 1
    assert api.patch(path, {"spec": {"minReadySeconds": 5}}).ok()["metadata"]["generation"] == 2
    assert api.patch(path, {"spec": {"minReadySeconds": 5}}).ok()["metadata"]["generation"] == 2
    assert api.patch(f"{path}/status", {"status": {"replicas": 0}}).ok()["metadata"]["generation"] == 2


def test_annotations_are_part_of_the_generation_of_deployments_alone(api: Api, apps: str) -> None:
    api.create(f"{apps}/deployments", deployment("a", paused=True)).ok()
    api.create(f"{apps}/daemonsets", daemon_set("a")).ok()
    annotated = {"metadata": {"annotations": {"c": "d"}}}
    assert api.patch(f"{apps}/deployments/a", annotated).ok()["metadata"]["generation"] == 2
    assert api.patch(f"{apps}/daemonsets/a", annotated).ok()["metadata"]["generation"] == 1


def test_status_is_not_written_with_the_object(api: Api, core: str) -> None:
    made = api.create(f"{core}/pods", {**pod("a"), "status": {"phase": "Running"}}).ok()
    assert made["status"]["phase"] == "Pending"
    now = api.patch(f"{core}/pods/a", {"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Running"}}).ok()
    assert now["status"]["phase"] == "Pending"
    assert now["metadata"]["labels"] == {"x": "y"}


def test_spec_is_not_written_with_the_status(api: Api, core: str) -> None:
    made = api.create(f"{core}/pods", pod("a")).ok()
    sent = changed(made, "spec", "containers", 0, "image", value="other")
    sent["status"]["phase"] = "Running"
    sent["metadata"]["labels"] = {"x": "y"}
    now = api.update(f"{core}/pods/a/status", sent).ok()
    assert now["status"]["phase"] == "Running"
    assert now["spec"] == made["spec"]
    assert api.get(f"{core}/pods/a/status").body == api.get(f"{core}/pods/a").body


def test_node_status_is_a_subresource(api: Api, cluster: Cluster) -> None:
    name = unique("contract")
    cluster.cleanup.add(f"/api/v1/nodes/{name}")
    api.create("/api/v1/nodes", {"metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}}).ok()
    path = f"/api/v1/nodes/{name}"
    assert api.get(path).ok()["status"]["capacity"] == {"cpu": "4"}  # nodes keep the status they are created with
    api.patch(path, {"status": {"capacity": {"cpu": "5"}}}).ok()
    assert api.get(path).ok()["status"]["capacity"] == {"cpu": "4"}
    state = {"status": {"capacity": {"cpu": "5"}, "allocatable": {"cpu": "5"}}, "spec": {"unschedulable": True}}
    now = api.patch(f"{path}/status", state).ok()
    assert now["status"]["allocatable"] == {"cpu": "5"}
    assert "unschedulable" not in now["spec"]
