"""Custom resources: definitions, defaulting, pruning, validation with its field paths, versions, subresources."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from contract.engines import CRDS, JSON_PATCH, STRATEGIC_PATCH, Api, Cleanup, Cluster, Engine, eventually, unique
from contract.things import definition

Document = dict[str, Any]
SCHEMA: Document = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
        "ratio": {"type": "number", "exclusiveMinimum": True, "minimum": 0, "multipleOf": 0.5},
        "word": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "on": {"type": "boolean", "default": True},
        "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "maybe": {"type": "string", "nullable": True},
        "maybeDefault": {"type": "string", "default": "x"},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 3},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
            "items": {
                "type": "object",
                "required": ["id"],
                "properties": {"id": {"type": "string"}, "count": {"type": "integer", "default": 1}},
            },
        },
        "plain": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
        "nested": {
            "type": "object",
            "default": {},
            "properties": {"deep": {"type": "integer", "default": 7}, "other": {"type": "string"}},
        },
        "open": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"n": {"type": "integer"}},
        },
        "when": {"type": "string", "format": "date-time"},
        "rules": {
            "type": "object",
            "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}, "fixed": {"type": "string"}},
            "x-kubernetes-validations": [
                {"rule": "!has(self.low) || !has(self.high) || self.low <= self.high", "message": "low is above high"},
                {
                    "rule": "!has(oldSelf.fixed) || self.fixed == oldSelf.fixed",
                    "message": "fixed is immutable", "reason": "FieldValueForbidden", "fieldPath": ".fixed",
                },
            ],
        },
    },
}  # fmt: skip


class Kind:
    """A kind of its own for a module or a case: path of its objects, and the objects."""

    def __init__(self, api: Api, namespace: str, group: str, kind: str = "Thing", version: str = "v1") -> None:
        self.api = api
        self.group = group
        self.kind = kind
        self.definition = f"{CRDS}/{kind.lower()}s.{group}"
        self.path = f"/apis/{group}/{version}/namespaces/{namespace}/{kind.lower()}s"
        self.version = f"{group}/{version}"

    def thing(self, name: str = "a", **spec: Any) -> Document:
        return {"apiVersion": self.version, "kind": self.kind, "metadata": {"name": name}, "spec": spec}

    def create(self, name: str = "a", **spec: Any) -> Any:
        return self.api.create(self.path, self.thing(name, **spec))


@pytest.fixture
def group() -> str:
    return f"{unique('g')}.contract.test"


def thing_definition(group: str) -> Document:
    made = definition(group, "Thing", SCHEMA)
    made["spec"]["versions"][0]["subresources"] = {"status": {}}
    return made


@pytest.fixture
def own(api: Api, cluster: Cluster, namespace: str, group: str) -> Kind:
    """A kind with `SCHEMA` and a status subresource, whose definition the case may change."""
    cluster.define(thing_definition(group))
    return Kind(api, namespace, group)


@pytest.fixture(scope="module")
def shared_group(engine: Engine) -> Iterator[str]:
    cleanup = Cleanup(engine.admin)
    group = f"{unique('g')}.contract.test"
    Cluster(engine.admin, cleanup).define(thing_definition(group))
    yield group
    cleanup.run()


@pytest.fixture
def things(api: Api, namespace: str, shared_group: str) -> Kind:
    """The same kind, shared by the cases of this module (a definition takes seconds to be established)."""
    return Kind(api, namespace, shared_group)


# --- definitions ---------------------------------------------------------------------------------------------------


def test_definition_is_established(api: Api, things: Kind) -> None:
    found = api.get(things.definition).ok()
    conditions = {item["type"]: item for item in found["status"]["conditions"]}
    accepted, established = conditions["NamesAccepted"], conditions["Established"]
    assert (accepted["status"], accepted["reason"], accepted["message"]) == (
        "True",
        "NoConflicts",
        "no conflicts found",
    )
    assert (established["status"], established["reason"]) == ("True", "InitialNamesAccepted")
    assert established["message"] == "the initial names have been accepted"
    assert found["status"]["acceptedNames"] == found["spec"]["names"]
    assert found["status"]["storedVersions"] == ["v1"]
    assert found["spec"]["conversion"] == {"strategy": "None"}
    assert found["metadata"]["generation"] == 1
    assert "finalizers" not in found["metadata"] or found["metadata"]["finalizers"]


def test_definition_defaults_its_names(api: Api, cluster: Cluster, group: str) -> None:
    made = definition(group, "Thing", {"type": "object"})
    made["spec"]["names"] = {"plural": "things", "kind": "Thing"}
    cluster.define(made)
    names = api.get(f"{CRDS}/things.{group}").ok()["spec"]["names"]
    assert names == {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}


def bad(group: str, change: Any) -> Document:
    made = definition(group, "Thing", {"type": "object"})
    change(made)
    return made


BAD_DEFINITIONS: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "name": (lambda d: d["metadata"].update(name="x.y"), [("metadata.name", "FieldValueInvalid")]),
    "scope": (lambda d: d["spec"].update(scope="Everywhere"), [("spec.scope", "FieldValueNotSupported")]),
    "no schema": (
        lambda d: d["spec"]["versions"][0].pop("schema"),
        [("spec.versions[0].schema.openAPIV3Schema", "FieldValueRequired")],
    ),
    "root type": (
        lambda d: d["spec"]["versions"][0]["schema"].update(openAPIV3Schema={"type": "string"}),
        [("spec.validation.openAPIV3Schema.type", "FieldValueInvalid")],
    ),
    "no type": (
        lambda d: d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].update(x={}),
        [("spec.validation.openAPIV3Schema.properties[x].type", "FieldValueRequired")],
    ),
    "properties and additionalProperties": (
        lambda d: d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].update(
            x={"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}
        ),
        [("spec.validation.openAPIV3Schema.properties[x].additionalProperties", "FieldValueForbidden")],
    ),
    "array without items": (
        lambda d: d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].update(x={"type": "array"}),
        [("spec.validation.openAPIV3Schema.properties[x].items", "FieldValueRequired")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_DEFINITIONS)
def test_bad_definition(api: Api, group: str, case: str) -> None:
    change, causes = BAD_DEFINITIONS[case]
    answer = api.create(CRDS, bad(group, change))
    answer.fails(422, "Invalid")
    assert answer.causes() == causes


def test_two_storage_versions(api: Api, group: str) -> None:
    made = definition(group, "Thing", {"type": "object"})
    made["spec"]["versions"].append({**copy.deepcopy(made["spec"]["versions"][0]), "name": "v2"})
    answer = api.create(CRDS, made)
    answer.fails(422, "Invalid", "must have exactly one version marked as storage version")


def test_definition_is_served_in_discovery(api: Api, things: Kind) -> None:
    group = api.get(f"/apis/{things.group}").ok()
    assert group["preferredVersion"] == {"groupVersion": f"{things.group}/v1", "version": "v1"}
    found = {item["name"]: item for item in api.get(f"/apis/{things.group}/v1").ok()["resources"]}
    assert sorted(found) == ["things", "things/status"]
    assert (found["things"]["kind"], found["things"]["namespaced"]) == ("Thing", True)
    assert sorted(found["things"]["verbs"]) == [
        "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
    ]  # fmt: skip
    assert sorted(found["things/status"]["verbs"]) == ["get", "patch", "update"]


def test_short_names_and_categories(api: Api, cluster: Cluster, group: str) -> None:
    made = definition(group, "Thing", {"type": "object"})
    made["spec"]["names"].update(shortNames=["thg"], categories=["all"])
    cluster.define(made)

    def look() -> bool:
        (found,) = api.get(f"/apis/{group}/v1").ok()["resources"]
        return found.get("shortNames") == ["thg"] and found.get("categories") == ["all"]

    eventually(look, what="short names in discovery")


def test_update_of_the_schema_takes_effect(api: Api, own: Kind) -> None:
    own.create(size=5).ok()
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
    change = [
        {"op": "replace", "path": f"{path}/size/maximum", "value": 3},
        {"op": "add", "path": f"{path}/added", "value": {"type": "string", "default": "new"}},
    ]
    api.patch(own.definition, change, JSON_PATCH).ok()

    def refused() -> bool:
        return own.create("b", size=5, added="x").status == 422

    eventually(refused, what="the new maximum to hold")
    assert own.create("c", size=2).ok()["spec"]["added"] == "new"
    assert api.get(f"{own.path}/a").ok()["spec"]["added"] == "new"


def test_deletion_of_a_definition_takes_its_objects(api: Api, own: Kind) -> None:
    own.create(size=1).ok()
    assert api.delete(own.definition).status == 200
    eventually(lambda: api.get(own.definition).status == 404, what="the definition to be gone")
    eventually(lambda: api.get(own.path).status == 404, what="the kind to be no longer served")


def test_definition_that_waits_for_a_finalizer(api: Api, own: Kind) -> None:
    body = own.thing(size=1)
    body["metadata"]["finalizers"] = ["contract.test/wait"]
    api.create(own.path, body).ok()
    api.delete(own.definition).ok()

    def terminating() -> bool:
        conditions = api.get(own.definition).ok()["status"]["conditions"]
        return any((item["type"], item["status"]) == ("Terminating", "True") for item in conditions)

    eventually(terminating, what="the definition to be terminating")
    gone = f"{own.path}/a"
    eventually(lambda: "deletionTimestamp" in api.get(gone).ok()["metadata"], what="the object to be deleted")
    api.patch(f"{own.path}/a", {"metadata": {"finalizers": None}}).ok()
    eventually(lambda: api.get(own.definition).status == 404, what="the definition to be gone")


def test_cluster_scoped_kind(api: Api, cluster: Cluster, group: str) -> None:
    cluster.define(definition(group, "Thing", {"type": "object"}, scope="Cluster"))
    body = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}}
    made = api.create(f"/apis/{group}/v1/things", body).ok()
    assert "namespace" not in made["metadata"]
    assert api.get(f"/apis/{group}/v1/namespaces/default/things/a").status == 404


# --- objects -------------------------------------------------------------------------------------------------------


def test_defaults(things: Kind) -> None:
    made = things.create(size=1, parts=[{"id": "a"}]).ok()
    assert made["spec"] == {
        "size": 1, "color": "red", "on": True, "maybeDefault": "x", "nested": {"deep": 7},
        "parts": [{"id": "a", "count": 1}],
    }  # fmt: skip
    assert made["metadata"]["generation"] == 1


def test_null_of_a_field_with_a_default(things: Kind) -> None:
    made = things.create(size=1, maybeDefault=None, maybe=None, word=None).ok()
    assert made["spec"]["maybeDefault"] == "x"
    assert made["spec"]["maybe"] is None
    assert "word" not in made["spec"]


def test_pruning(things: Kind) -> None:
    body = things.thing(size=1, unknown=1, nested={"unknown": 1}, plain=[{"a": "x", "b": "y"}], labels={"any": "x"})
    body["extra"] = {"x": 1}
    answer = things.api.create(things.path, body, fieldValidation="Ignore")
    made = answer.ok()
    assert "extra" not in made
    assert "unknown" not in made["spec"]
    assert made["spec"]["nested"] == {"deep": 7}
    assert made["spec"]["plain"] == [{"a": "x"}]
    assert made["spec"]["labels"] == {"any": "x"}


def test_unknown_fields_are_told(things: Kind) -> None:
    body = things.thing(size=1, unknown=1, nested={"unknown": 1})
    answer = things.api.create(things.path, body, fieldValidation="Strict")
    message = answer.fails(400, "BadRequest")["message"]
    assert "strict decoding error: " in message
    assert 'unknown field "spec.nested.unknown"' in message
    assert 'unknown field "spec.unknown"' in message
    warned = things.api.create(things.path, body)
    assert 'unknown field \\"spec.unknown\\"' in warned.headers["warning"]


def test_unknown_fields_are_preserved(things: Kind) -> None:
    opened = {"n": 1, "x": {"y": [1, "z", None]}}
    assert things.create(size=1, open=opened).ok()["spec"]["open"] == opened


@pytest.mark.parametrize("port", [80, "http"])
def test_int_or_string(things: Kind, port: Any) -> None:
    assert things.create(size=1, port=port).ok()["spec"]["port"] == port


INVALID: dict[str, tuple[Document, str, str, str]] = {
    "missing": ({}, "spec.size", "FieldValueRequired", "Required value"),
    "type": ({"size": "1"}, "spec.size", "FieldValueTypeInvalid", 'size in body must be of type integer: "string"'),
    "fraction": ({"size": 1.5}, "spec.size", "FieldValueTypeInvalid", 'must be of type integer: "number"'),
    "minimum": ({"size": 0}, "spec.size", "FieldValueInvalid", "should be greater than or equal to 1"),
    "maximum": ({"size": 10}, "spec.size", "FieldValueInvalid", "should be less than or equal to 9"),
    "exclusive minimum": ({"size": 1, "ratio": 0}, "spec.ratio", "FieldValueInvalid", "should be greater than 0"),
    "multiple": ({"size": 1, "ratio": 0.7}, "spec.ratio", "FieldValueInvalid", "should be a multiple of 0.5"),
    "pattern": ({"size": 1, "word": "UP"}, "spec.word", "FieldValueInvalid", "word in body should match '^[a-z]+$'"),
    "short": ({"size": 1, "word": "a"}, "spec.word", "FieldValueInvalid", "should be at least 2 chars long"),
    "long": ({"size": 1, "word": "abcdef"}, "spec.word", "FieldValueTooLong", "Too long: may not be more than 5 bytes"),
    "enum": (
        {"size": 1, "color": "green"}, "spec.color", "FieldValueNotSupported",
        'Unsupported value: "green": supported values: "red", "blue"',
    ),
    "boolean": ({"size": 1, "on": "yes"}, "spec.on", "FieldValueTypeInvalid", 'must be of type boolean: "string"'),
    "item type": ({"size": 1, "tags": [1]}, "spec.tags[0]", "FieldValueTypeInvalid", 'of type string: "integer"'),
    "map value": ({"size": 1, "labels": {"a": 1}}, "spec.labels.a", "FieldValueTypeInvalid", "must be of type string"),
    "item's field": (
        {"size": 1, "parts": [{"id": "a"}, {"id": "b", "count": "x"}]}, "spec.parts[1].count", "FieldValueTypeInvalid",
        'must be of type integer: "string"',
    ),
    "item's key": ({"size": 1, "parts": [{"count": 1}]}, "spec.parts[0].id", "FieldValueRequired", "Required value"),
    "too many items": (
        {"size": 1, "tags": ["a", "b", "c", "d"]}, "spec.tags", "FieldValueTooMany", "must have at most 3 items",
    ),
    "too few items": ({"size": 1, "plain": []}, "spec.plain", "FieldValueInvalid", "should have at least 1 items"),
    "too many properties": (
        {"size": 1, "labels": {"a": "", "b": "", "c": ""}}, "spec.labels", "FieldValueTooMany",
        "must have at most 2 items",
    ),
    "set": ({"size": 1, "tags": ["a", "a"]}, "spec.tags[1]", "FieldValueDuplicate", 'Duplicate value: "a"'),
    "keys": (
        {"size": 1, "parts": [{"id": "a"}, {"id": "a"}]}, "spec.parts[1]", "FieldValueDuplicate",
        'Duplicate value: {"id":"a"}',
    ),
    "int or string": ({"size": 1, "port": True}, "spec.port", "FieldValueTypeInvalid", "of type integer,string"),
    "open part": ({"size": 1, "open": {"n": "x"}}, "spec.open.n", "FieldValueTypeInvalid", "must be of type integer"),
    "time": ({"size": 1, "when": "soon"}, "spec.when", "FieldValueTypeInvalid", 'must be of type date-time: "soon"'),
    "array for object": (
        {"size": 1, "nested": []}, "spec.nested", "FieldValueTypeInvalid", 'must be of type object: "array"',
    ),
    "rule": ({"size": 1, "rules": {"low": 2, "high": 1}}, "spec.rules", "FieldValueInvalid", "low is above high"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_invalid(things: Kind, case: str) -> None:
    spec, field, reason, text = INVALID[case]
    answer = things.create(**spec)
    body = answer.fails(422, "Invalid", text)
    assert body["message"].startswith(f'Thing.{things.group} "a" is invalid: ')
    assert body["details"]["group"] == things.group
    assert body["details"]["kind"] == "Thing"
    assert (field, reason) in answer.causes()


def test_several_problems_at_once(things: Kind) -> None:
    answer = things.create(size=0, word="UP", color="green")
    answer.fails(422, "Invalid", " is invalid: [")
    assert {field for field, _ in answer.causes()} == {"spec.size", "spec.word", "spec.color", "<nil>"}


def test_transition_rule(things: Kind) -> None:
    things.create(size=1, rules={"fixed": "a"}).ok()
    path = f"{things.path}/a"
    things.api.patch(path, {"spec": {"size": 2}}).ok()
    answer = things.api.patch(path, {"spec": {"rules": {"fixed": "b"}}})
    answer.fails(422, "Invalid", "spec.rules.fixed: Forbidden: fixed is immutable")
    assert answer.causes() == [("spec.rules.fixed", "FieldValueForbidden")]


def test_update_needs_a_resource_version(things: Kind) -> None:
    things.create(size=1).ok()
    answer = things.api.update(f"{things.path}/a", things.thing(size=2))
    answer.fails(422, "Invalid", "metadata.resourceVersion: Invalid value: 0", "must be specified for an update")


def test_strategic_patch_is_not_for_custom_resources(things: Kind) -> None:
    things.create(size=1).ok()
    assert things.api.patch(f"{things.path}/a", {"spec": {}}, STRATEGIC_PATCH).status == 415


def test_unchanged_invalid_values_are_let_through(own: Kind) -> None:
    """Validation ratchets: what was accepted before its rule was made may stay as it is."""
    own.create(size=5, word="abc").ok()
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/word/pattern"
    own.api.patch(own.definition, [{"op": "replace", "path": path, "value": "^x+$"}], JSON_PATCH).ok()
    eventually(lambda: own.create("b", size=1, word="abc", on=False).status == 422, what="the new pattern to hold")
    assert own.api.patch(f"{own.path}/a", {"spec": {"size": 6}}).ok()["spec"]["size"] == 6
    own.api.patch(f"{own.path}/a", {"spec": {"word": "abd"}}).fails(422, "Invalid", "should match '^x+$'")


def test_generation_and_status(things: Kind) -> None:
    made = things.create(size=1).ok()
    path = f"{things.path}/a"
    assert things.api.patch(path, {"metadata": {"labels": {"x": "y"}}}).ok()["metadata"]["generation"] == 1
    assert things.api.patch(path, {"spec": {"size": 2}}).ok()["metadata"]["generation"] == 2
    ignored = things.api.patch(path, {"status": {"state": "good"}}).ok()
    assert "status" not in ignored
    now = things.api.patch(f"{path}/status", {"status": {"state": "good"}, "spec": {"size": 3}}).ok()
    assert now["status"] == {"state": "good"}
    assert now["spec"]["size"] == 2
    assert now["metadata"]["generation"] == 2
    assert int(now["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


def test_without_a_status_subresource_everything_counts(api: Api, cluster: Cluster, namespace: str, group: str) -> None:
    cluster.define(definition(group, "Thing", {"type": "object"}))
    kind = Kind(api, namespace, group)
    body = {**kind.thing(), "status": {"state": "new"}}
    assert api.create(kind.path, body).ok()["status"] == {"state": "new"}
    now = api.patch(f"{kind.path}/a", {"status": {"state": "old"}}).ok()
    assert now["status"] == {"state": "old"}
    assert now["metadata"]["generation"] == 2
    api.get(f"{kind.path}/a/status").fails(404, "NotFound")


def test_scale_of_a_custom_resource(api: Api, cluster: Cluster, namespace: str, group: str) -> None:
    schema = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    made = definition(group, "Thing", schema)
    made["spec"]["versions"][0]["subresources"] = {
        "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
        "status": {},
    }  # fmt: skip
    cluster.define(made)
    kind = Kind(api, namespace, group)
    kind.create(replicas=2).ok()
    api.patch(f"{kind.path}/a/status", {"status": {"replicas": 1, "selector": "a=b"}}).ok()
    scale = api.get(f"{kind.path}/a/scale").ok()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "a=b"})
    assert api.patch(f"{kind.path}/a/scale", {"spec": {"replicas": 5}}).ok()["spec"] == {"replicas": 5}
    assert api.get(f"{kind.path}/a").ok()["spec"]["replicas"] == 5


def test_printer_columns(api: Api, cluster: Cluster, namespace: str, group: str) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}}},
    }
    made = definition(group, "Thing", schema)
    made["spec"]["versions"][0]["additionalPrinterColumns"] = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How large"},
        {"name": "First", "type": "string", "jsonPath": ".spec.list[0]", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    cluster.define(made)
    kind = Kind(api, namespace, group)
    kind.create(size=3, list=["x", "y"]).ok()
    kind.create("b").ok()
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    body = api.request("GET", kind.path, headers={"Accept": accept}).ok()
    columns = [(item["name"], item["type"], item["priority"]) for item in body["columnDefinitions"]]
    assert columns == [("Name", "string", 0), ("Size", "integer", 0), ("First", "string", 1), ("Age", "date", 0)]
    assert [row["cells"][:3] for row in body["rows"]] == [["a", 3, "x"], ["b", None, None]]


def test_two_versions_show_the_same_object(api: Api, cluster: Cluster, namespace: str, group: str) -> None:
    made = definition(group, "Thing", {"type": "object", "properties": {"size": {"type": "integer"}}})
    beta = {**copy.deepcopy(made["spec"]["versions"][0]), "name": "v1beta1", "storage": False}
    made["spec"]["versions"].append(beta)
    cluster.define(made)
    stable, old = Kind(api, namespace, group), Kind(api, namespace, group, version="v1beta1")
    uid = old.create(size=1).ok()["metadata"]["uid"]
    found = api.get(f"{stable.path}/a").ok()
    assert (found["metadata"]["uid"], found["apiVersion"], found["spec"]) == (uid, f"{group}/v1", {"size": 1})
    assert [item["version"] for item in api.get(f"/apis/{group}").ok()["versions"]] == ["v1", "v1beta1"]
    api.create(stable.path, old.thing("b")).fails(400, "BadRequest")


def test_apply_with_lists_of_each_type(things: Kind) -> None:
    path = f"{things.path}/a"
    one = things.thing(size=1, tags=["a"], parts=[{"id": "x", "count": 2}], plain=[{"a": "1"}])
    api = things.api
    api.apply(path, one, "one").ok()
    two = things.thing(tags=["b"], parts=[{"id": "y"}], nested={"other": "z"})
    now = api.apply(path, two, "two").ok()["spec"]
    assert now["tags"] == ["a", "b"]
    assert now["parts"] == [{"id": "x", "count": 2}, {"id": "y", "count": 1}]
    api.apply(path, things.thing(plain=[{"a": "2"}]), "two").fails(409, "Conflict", ".spec.plain")


def test_apply_of_an_unknown_field(things: Kind) -> None:
    answer = things.api.apply(f"{things.path}/a", things.thing(size=1, unknown=1))
    answer.fails(500, "", ".spec.unknown: field not declared in schema")


def test_apply_of_the_same_key_twice(things: Kind) -> None:
    answer = things.api.apply(f"{things.path}/a", things.thing(size=1, parts=[{"id": "x"}, {"id": "x"}]))
    assert answer.status in (422, 500), answer.body
    assert "parts" in answer.message


def test_create_of_another_kind(things: Kind) -> None:
    body = {**things.thing(size=1), "kind": "Other"}
    answer = things.api.create(things.path, body)
    answer.fails(422, "Invalid", 'kind: Invalid value: "Other": must be Thing')


def test_metadata_of_custom_resources_is_checked(things: Kind) -> None:
    body = things.thing(size=1)
    body["metadata"]["labels"] = {"a b": "c"}
    answer = things.api.create(things.path, body)
    answer.fails(422, "Invalid")
    assert answer.causes() == [("metadata.labels", "FieldValueInvalid")]
    wrong = things.thing(size=1)
    wrong["metadata"]["labels"] = {"a": 1}
    assert things.api.create(things.path, wrong).status in (400, 422)


def test_watch_from_before_the_kind_existed(things: Kind) -> None:
    made = things.create(size=1).ok()
    assert made
    with things.api.watch(things.path, resourceVersion="1", timeoutSeconds=5) as watch:
        ((kind, status),) = watch.take(1)
    assert kind == "ERROR"
    assert (status["code"], status["reason"]) == (410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")
