"""Lists: label and field selectors, pages, resource versions, and tables."""

from __future__ import annotations

from typing import Any

import pytest
from contract.engines import CRDS, Api, Cluster, unique
from contract.things import config_map, definition, pod


def names(answer: Any) -> list[str]:
    return [item["metadata"]["name"] for item in answer.ok()["items"]]


@pytest.fixture
def labelled(api: Api, core: str) -> str:
    """The path of four ConfigMaps: tier of a, b and c is one, two and absent; d has an empty one."""
    for name, labels in (
        ("a", {"tier": "one", "x": "1"}),
        ("b", {"tier": "two"}),
        ("c", {"x": "10"}),
        ("d", {"tier": ""}),
    ):
        api.create(f"{core}/configmaps", config_map(name, labels=labels)).ok()
    return f"{core}/configmaps"


SELECTORS = {
    "tier=one": "a", "tier==one": "a", "tier!=one": "bcd", "tier": "abd", "!tier": "c", "tier in (one,two)": "ab",
    "tier notin (one,two)": "cd", "tier=": "d", "tier=one,x=1": "a", "tier=one,x=2": "", "x>5": "c", "x<5": "a",
    "tier in (one),!y": "a", " tier = one ": "a", "tier in (,one)": "ad",
}  # fmt: skip


@pytest.mark.parametrize("selector", SELECTORS)
def test_label_selector(api: Api, labelled: str, selector: str) -> None:
    # the cluster itself puts kube-root-ca.crt into every namespace
    found = [name for name in names(api.get(labelled, labelSelector=selector)) if len(name) == 1]
    assert "".join(found) == SELECTORS[selector]


@pytest.mark.parametrize(
    "selector", ["a b", "a in", "a in b", "a=b=c", "=a", "a=b,,c=d", "a b=c", "a=-b-", "A/B/c=d", "a>x", "a in ()x"]
)
def test_bad_label_selector(api: Api, core: str, selector: str) -> None:
    api.get(f"{core}/configmaps", labelSelector=selector).fails(400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("a in (x", "unable to parse requirement: found '', expected: ',' or ')'"),
        (
            "a>x",
            'unable to parse requirement: values[0]: Invalid value: "x": '
            "for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ],
)
def test_bad_label_selector_is_told(api: Api, core: str, selector: str, text: str) -> None:
    assert api.get(f"{core}/configmaps", labelSelector=selector).fails(400, "BadRequest")["message"] == text


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=a", "a"),
        ("metadata.name!=a", "bcd"),
        ("metadata.name=a,metadata.name=b", ""),
        ("metadata.name=z", ""),
    ],
)
def test_field_selector_of_names(api: Api, labelled: str, selector: str, expected: str) -> None:
    found = [name for name in names(api.get(labelled, fieldSelector=selector)) if len(name) == 1]
    assert "".join(found) == expected


def test_field_selector_of_namespaces(api: Api, core: str, namespace: str) -> None:
    api.create(f"{core}/configmaps", config_map("mine")).ok()
    found = names(api.get("/api/v1/configmaps", fieldSelector=f"metadata.namespace={namespace},metadata.name=mine"))
    assert found == ["mine"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=", ["b"]), ("spec.nodeName=contract-node", ["a"]),
        ("spec.restartPolicy=Never", ["a"]),
        ("status.phase=Pending", ["a", "b"]), ("spec.schedulerName=nobody", ["a", "b"]),
        ("status.podIP=", ["a", "b"]),
        ("spec.serviceAccountName=default", ["a", "b"]), ("spec.hostNetwork=true", ["b"]),
        ("status.phase!=Pending", []),
    ],
)  # fmt: skip
def test_field_selector_of_pods(api: Api, core: str, selector: str, expected: list[str]) -> None:
    api.create(f"{core}/pods", pod("a", nodeName="contract-node", restartPolicy="Never")).ok()
    api.create(f"{core}/pods", pod("b", hostNetwork=True)).ok()
    assert names(api.get(f"{core}/pods", fieldSelector=selector)) == expected


@pytest.mark.parametrize(
    ("path", "selector", "text"),
    [
        (
            "configmaps",
            "data.a=1",
            '"data.a" is not a known field selector: only "metadata.name", "metadata.namespace"',
        ),
        ("configmaps", "metadata.name=a=b", "invalid field selector: unescaped character in value: 61"),
        ("secrets", "data.a=1", "field label not supported: data.a"),
        ("pods", "spec.containers=1", "field label not supported: spec.containers"),
        ("pods", "metadata.labels=1", "field label not supported: metadata.labels"),
        ("pods", "status.phase", "invalid selector: 'status.phase'; can't understand 'status.phase'"),
    ],
)
def test_bad_field_selector(api: Api, core: str, path: str, selector: str, text: str) -> None:
    api.get(f"{core}/{path}", fieldSelector=selector).fails(400, "BadRequest", text)


def test_field_selector_of_events(api: Api, core: str, namespace: str) -> None:
    for name, reason in (("a", "Good"), ("b", "Bad")):
        about = {"kind": "Pod", "namespace": namespace, "name": name, "uid": name}
        event = {"metadata": {"name": name}, "involvedObject": about, "reason": reason, "type": "Normal"}
        api.create(f"{core}/events", event).ok()
    assert names(api.get(f"{core}/events", fieldSelector="reason=Bad")) == ["b"]
    assert names(api.get(f"{core}/events", fieldSelector="involvedObject.name=a,involvedObject.kind=Pod")) == ["a"]


def test_selectable_fields_of_custom_resources(api: Api, cluster: Cluster, namespace: str) -> None:
    group = f"{unique('g')}.contract.test"
    schema = {"type": "object", "properties": {"color": {"type": "string"}, "size": {"type": "integer"}}}
    made = definition(group, "Thing", schema)
    made["spec"]["versions"][0]["selectableFields"] = [{"jsonPath": ".spec.color"}]
    cluster.define(made)
    path = f"/apis/{group}/v1/namespaces/{namespace}/things"
    for name, color in (("a", "red"), ("b", "blue")):
        head = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": name}}
        api.create(path, {**head, "spec": {"color": color, "size": 1}}).ok()
    assert names(api.get(path, fieldSelector="spec.color=blue")) == ["b"]
    api.get(path, fieldSelector="spec.size=1").fails(400, "BadRequest", "field label not supported: spec.size")


# --- the list itself -----------------------------------------------------------------------------------------------


def test_empty_list(api: Api, core: str) -> None:
    body = api.get(f"{core}/services").ok()
    assert (body["kind"], body["apiVersion"], body["items"]) == ("ServiceList", "v1", [])
    assert body["metadata"]["resourceVersion"].isdigit()


def test_items_of_built_in_kinds_have_no_kind(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    item = api.get(f"{core}/configmaps", fieldSelector="metadata.name=a").ok()["items"][0]
    assert "kind" not in item
    assert "apiVersion" not in item


def test_list_of_a_namespace_that_is_not_there(api: Api) -> None:
    assert names(api.get("/api/v1/namespaces/contract-nowhere/configmaps")) == []


def test_lists_are_ordered_by_namespace_and_name(api: Api, cluster: Cluster) -> None:
    label = unique("set")
    spaces = sorted([cluster.namespace(), cluster.namespace()])
    for space in reversed(spaces):
        for name in ("b", "a"):
            api.create(f"/api/v1/namespaces/{space}/configmaps", config_map(name, labels={label: ""})).ok()
    items = api.get("/api/v1/configmaps", labelSelector=label).ok()["items"]
    found = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items]
    assert found == [(space, name) for space in spaces for name in ("a", "b")]


# --- pages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def five(api: Api, core: str) -> str:
    for name in "abcde":
        api.create(f"{core}/secrets", {"metadata": {"name": name, "labels": {"x": "y"}}}).ok()
    return f"{core}/secrets"


def test_pages(api: Api, five: str) -> None:
    first = api.get(five, limit=2).ok()
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    second = api.get(five, limit=2, **{"continue": first["metadata"]["continue"]}).ok()
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d"]
    assert second["metadata"]["remainingItemCount"] == 1
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = api.get(five, limit=2, **{"continue": second["metadata"]["continue"]}).ok()
    assert [item["metadata"]["name"] for item in last["items"]] == ["e"]
    assert "continue" not in last["metadata"]
    assert "remainingItemCount" not in last["metadata"]


def test_page_that_holds_all(api: Api, five: str) -> None:
    body = api.get(five, limit=5).ok()
    assert len(body["items"]) == 5
    assert "continue" not in body["metadata"]


def test_pages_show_one_revision(api: Api, five: str) -> None:
    first = api.get(five, limit=2).ok()
    api.delete(f"{five}/d").ok()
    api.create(five, {"metadata": {"name": "cc"}}).ok()
    rest = api.get(five, **{"continue": first["metadata"]["continue"]})
    assert names(rest) == ["c", "d", "e"]


def test_pages_of_a_selection(api: Api, five: str) -> None:
    api.create(five, {"metadata": {"name": "bb"}}).ok()
    first = api.get(five, limit=2, labelSelector="x=y").ok()
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert "remainingItemCount" not in first["metadata"]
    rest = api.get(five, limit=9, labelSelector="x=y", **{"continue": first["metadata"]["continue"]})
    assert names(rest) == ["c", "d", "e"]


def test_bad_continue_token(api: Api, five: str) -> None:
    api.get(five, limit=1, **{"continue": "nonsense"}).fails(400, "BadRequest", "continue key is not valid")


def test_continue_with_a_resource_version(api: Api, five: str) -> None:
    first = api.get(five, limit=2).ok()["metadata"]
    answer = api.get(five, limit=2, resourceVersion=first["resourceVersion"], **{"continue": first["continue"]})
    answer.fails(400, "BadRequest", "specifying resource version is not allowed when using continue")


def test_bad_limit(api: Api, core: str) -> None:
    assert api.get(f"{core}/configmaps", limit="many").status == 400


# --- resource versions ---------------------------------------------------------------------------------------------


def test_exact_resource_version(api: Api, five: str) -> None:
    version = api.get(five).ok()["metadata"]["resourceVersion"]
    api.delete(f"{five}/a").ok()
    exact = api.get(five, resourceVersion=version, resourceVersionMatch="Exact")
    assert names(exact) == ["a", "b", "c", "d", "e"]
    assert exact.body["metadata"]["resourceVersion"] == version


def test_not_older_than(api: Api, five: str) -> None:
    version = api.delete(f"{five}/a").ok() and api.get(five).ok()["metadata"]["resourceVersion"]
    answer = api.get(five, resourceVersion=version, resourceVersionMatch="NotOlderThan")
    assert names(answer) == ["b", "c", "d", "e"]


def test_any_resource_version(api: Api, five: str) -> None:
    assert names(api.get(five, resourceVersion="0")) == ["a", "b", "c", "d", "e"]


BAD_VERSIONS: dict[str, tuple[dict[str, str], int, str]] = {
    "no number": ({"resourceVersion": "x"}, 400, "invalid"),
    "match alone": ({"resourceVersionMatch": "Exact"}, 422, "resourceVersionMatch is forbidden unless resourceVersion"),
    "exact zero": (
        {"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422,
        'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
    ),
    "unknown match": ({"resourceVersion": "1", "resourceVersionMatch": "Nearly"}, 422, "supported values"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_VERSIONS)
def test_bad_resource_version(api: Api, core: str, case: str) -> None:
    params, code, text = BAD_VERSIONS[case]
    answer = api.get(f"{core}/configmaps", **params)
    assert answer.status == code, answer.body
    assert text in answer.message


def test_resource_version_that_is_yet_to_come(api: Api, core: str) -> None:
    now = int(api.get(f"{core}/configmaps").ok()["metadata"]["resourceVersion"])
    answer = api.get(f"{core}/configmaps", resourceVersion=str(now + 1_000_000), resourceVersionMatch="NotOlderThan")
    body = answer.fails(504, "Timeout", "Too large resource version")
    assert body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert body["details"]["retryAfterSeconds"] == 1


def test_get_at_a_resource_version(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    assert api.get(f"{core}/configmaps/a", resourceVersion="0").status in (200, 404)
    assert api.get(f"{core}/configmaps/a", resourceVersion=made["metadata"]["resourceVersion"]).ok() == made


# --- tables --------------------------------------------------------------------------------------------------------

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


def test_table_of_config_maps(api: Api, labelled: str) -> None:
    body = api.request("GET", labelled, params={"labelSelector": "tier=one"}, headers={"Accept": TABLE}).ok()
    assert (body["kind"], body["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in body["columnDefinitions"]] == ["Name", "Data", "Age"]
    (row,) = body["rows"]
    assert row["cells"][:2] == ["a", 1]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "a"


TABLES = {
    "/api/v1/nodes": [
        "Name", "Status", "Roles", "Age", "Version", "Internal-IP", "External-IP", "OS-Image", "Kernel-Version",
        "Container-Runtime",
    ],
    "/api/v1/pods": [
        "Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates",
    ],
    "/apis/apps/v1/daemonsets": [
        "Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age", "Containers",
        "Images", "Selector",
    ],
    "/apis/apps/v1/deployments": [
        "Name", "Ready", "Up-to-date", "Available", "Age", "Containers", "Images", "Selector",
    ],
    "/api/v1/services": ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector"],
    "/api/v1/namespaces": ["Name", "Status", "Age"],
    "/api/v1/secrets": ["Name", "Type", "Data", "Age"],
    "/api/v1/serviceaccounts": ["Name", "Age"],
    "/apis/batch/v1/jobs": ["Name", "Status", "Completions", "Duration", "Age", "Containers", "Images", "Selector"],
    "/apis/coordination.k8s.io/v1/leases": ["Name", "Holder", "Age"],
    "/apis/rbac.authorization.k8s.io/v1/clusterroles": ["Name", "Created At"],
    "/apis/rbac.authorization.k8s.io/v1/rolebindings": ["Name", "Role", "Age", "Users", "Groups", "ServiceAccounts"],
    "/apis/policy/v1/poddisruptionbudgets": ["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"],
    "/apis/node.k8s.io/v1/runtimeclasses": ["Name", "Handler", "Age"],
    "/apis/scheduling.k8s.io/v1/priorityclasses": ["Name", "Value", "Global-Default", "Age", "PreemptionPolicy"],
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": [
        "Name", "Scope", "Versions", "Created At", "Group", "Kind", "ShortNames", "Established",
    ],
    "/api/v1/events": [
        "Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name",
    ],
}  # fmt: skip


@pytest.mark.parametrize("path", TABLES)
def test_columns(api: Api, path: str) -> None:
    body = api.request("GET", path, params={"limit": 1}, headers={"Accept": TABLE}).ok()
    assert [column["name"] for column in body["columnDefinitions"]] == TABLES[path]


def test_table_of_one_object(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", {"x": "1", "y": "2"})).ok()
    body = api.request("GET", f"{core}/configmaps/a", headers={"Accept": TABLE}).ok()
    assert [row["cells"][:2] for row in body["rows"]] == [["a", 2]]


@pytest.mark.parametrize(
    ("include", "kind"), [("Object", "ConfigMap"), ("None", None), ("Metadata", "PartialObjectMetadata")]
)
def test_objects_in_a_table(api: Api, labelled: str, include: str, kind: str | None) -> None:
    params = {"labelSelector": "tier=one", "includeObject": include}
    (row,) = api.request("GET", labelled, params=params, headers={"Accept": TABLE}).ok()["rows"]
    assert (row.get("object") or {}).get("kind") == kind


def test_metadata_of_one_object(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", labels={"x": "y"})).ok()
    body = api.request("GET", f"{core}/configmaps/a", headers={"Accept": PARTIAL}).ok()
    assert (body["kind"], body["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert body["metadata"]["labels"] == {"x": "y"}
    assert "data" not in body


def test_metadata_of_a_list(api: Api, labelled: str) -> None:
    answer = api.request("GET", labelled, params={"labelSelector": "tier"}, headers={"Accept": PARTIAL_LIST})
    body = answer.ok()
    assert (body["kind"], body["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert names(answer) == ["a", "b", "d"]
    assert all("data" not in item for item in body["items"])


def test_the_definitions_path(api: Api) -> None:
    """CRDs are listed like any other kind."""
    assert api.get(CRDS, limit=1).ok()["kind"] == "CustomResourceDefinitionList"
