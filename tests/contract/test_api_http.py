"""The API over HTTP: paths, methods, media types, discovery, OpenAPI, health."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from contract.engines import MERGE_PATCH, Api
from contract.things import config_map

NOT_ALLOWED = "the server does not allow this method on the requested resource"
NOT_FOUND = "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/configmaps"), ("PATCH", "/configmaps"), ("POST", "/configmaps/a"), ("DELETE", "/pods/a/log"),
        ("GET", "/pods/a/eviction"), ("POST", "/configmaps!cluster"), ("POST", "/version!root"),
    ],
)  # fmt: skip
def test_method_not_allowed(api: Api, core: str, method: str, path: str) -> None:
    path, _, where = path.partition("!")
    full = {"": core, "cluster": "/api/v1", "root": ""}[where] + path
    media = MERGE_PATCH if method == "PATCH" else "application/json"
    body = None if method in ("GET", "DELETE") else config_map("a")
    answer = api.request(method, full, body, content_type=media)
    assert answer.fails(405, "MethodNotAllowed")["message"] == NOT_ALLOWED
    assert answer.body["details"] == {} if "details" in answer.body else True


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nothing", "/apis/apps/v9/daemonsets", "/api/v1/namespaces/x/nothing", "/api/v1/namespaces/x/nodes",
        "/api/v1/namespaces/x/pods/a/nothing", "/api/v1/namespaces/x/configmaps/a/status", "/api/v1/configmaps/a",
        "/apis/apps/v1/namespaces/x/daemonsets/a/scale",
    ],
)  # fmt: skip
def test_path_that_is_not_there(api: Api, path: str) -> None:
    assert api.get(path).fails(404, "NotFound")["message"] == NOT_FOUND


@pytest.mark.parametrize("path", ["/apis/none.such/v1", "/nothing", "/apis/none.such/v1/things", "/apis/none.such"])
def test_path_outside_the_api(api: Api, path: str) -> None:
    assert api.get(path).status == 404


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "application/xml"])
def test_unsupported_body(api: Api, core: str, media: str) -> None:
    answer = api.request("POST", f"{core}/configmaps", "x", content_type=media)
    body = answer.fails(415, "UnsupportedMediaType")
    assert body["message"] == (
        "the body of the request was in an unknown format - accepted media types include: application/json, "
        "application/yaml, application/vnd.kubernetes.protobuf"
    )


def test_yaml_body(api: Api, core: str) -> None:
    text = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata: {x: '1'}"
    answer = api.request("POST", f"{core}/configmaps", text, content_type="application/yaml")
    assert answer.ok()["data"] == {"x": "1"}


def test_yaml_answer(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    answer = api.request("GET", f"{core}/configmaps/a", headers={"Accept": "application/yaml"})
    assert answer.headers["content-type"] == "application/yaml"
    assert yaml.load(answer.body, Loader=yaml.BaseLoader)["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.parametrize("accept", ["text/html", "application/*", "application/json;as=Chair;v=v1;g=meta.k8s.io"])
def test_not_acceptable(api: Api, core: str, accept: str) -> None:
    answer = api.request("GET", f"{core}/configmaps", headers={"Accept": accept})
    answer.fails(406, "NotAcceptable")


@pytest.mark.parametrize("accept", ["*/*", "text/html, application/json", "application/json;q=0.8"])
def test_acceptable(api: Api, core: str, accept: str) -> None:
    answer = api.request("GET", f"{core}/configmaps", headers={"Accept": accept})
    assert answer.ok()["kind"] == "ConfigMapList"
    assert answer.headers["content-type"] == "application/json"


# --- discovery -----------------------------------------------------------------------------------------------------


def test_versions(api: Api) -> None:
    body = api.get("/api").ok()
    assert (body["kind"], body["versions"]) == ("APIVersions", ["v1"])


def test_groups(api: Api) -> None:
    body = api.get("/apis").ok()
    assert (body["kind"], body["apiVersion"]) == ("APIGroupList", "v1")
    groups = {group["name"]: group for group in body["groups"]}
    assert groups["apps"]["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}
    wanted = {
        "apps", "batch", "policy", "coordination.k8s.io", "rbac.authorization.k8s.io", "node.k8s.io", "events.k8s.io",
        "apiextensions.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "discovery.k8s.io",
        "scheduling.k8s.io", "storage.k8s.io",
    }  # fmt: skip
    assert wanted <= groups.keys()


def test_one_group(api: Api) -> None:
    assert api.get("/apis/apps").ok() == {
        "kind": "APIGroup", "apiVersion": "v1", "name": "apps",
        "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
    }  # fmt: skip


RESOURCES: dict[str, dict[str, Any]] = {
    "/api/v1 pods": {
        "singularName": "pod", "namespaced": True, "kind": "Pod", "shortNames": ["po"], "categories": ["all"],
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    },
    "/api/v1 nodes": {"singularName": "node", "namespaced": False, "kind": "Node", "shortNames": ["no"]},
    "/api/v1 namespaces": {
        "singularName": "namespace", "namespaced": False, "kind": "Namespace", "shortNames": ["ns"],
        "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
    },
    "/api/v1 configmaps": {"singularName": "configmap", "namespaced": True, "kind": "ConfigMap", "shortNames": ["cm"]},
    "/api/v1 services": {"kind": "Service", "shortNames": ["svc"], "categories": ["all"]},
    "/api/v1 pods/eviction": {
        "singularName": "", "namespaced": True, "group": "policy", "version": "v1", "kind": "Eviction",
        "verbs": ["create"],
    },
    "/api/v1 pods/binding": {"kind": "Binding", "verbs": ["create"]},
    "/api/v1 pods/log": {"kind": "Pod", "verbs": ["get"]},
    "/api/v1 pods/status": {"kind": "Pod", "verbs": ["get", "patch", "update"]},
    "/api/v1 serviceaccounts/token": {
        "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest", "verbs": ["create"],
    },
    "/apis/apps/v1 daemonsets": {"kind": "DaemonSet", "shortNames": ["ds"], "categories": ["all"]},
    "/apis/apps/v1 deployments/scale": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
    "/apis/authorization.k8s.io/v1 selfsubjectaccessreviews": {"kind": "SelfSubjectAccessReview", "verbs": ["create"]},
    "/apis/policy/v1 poddisruptionbudgets": {"kind": "PodDisruptionBudget", "shortNames": ["pdb"]},
}  # fmt: skip


@pytest.mark.parametrize("name", RESOURCES)
def test_resource_in_discovery(api: Api, name: str) -> None:
    path, _, plural = name.partition(" ")
    body = api.get(path).ok()
    assert body["kind"] == "APIResourceList"
    (found,) = [item for item in body["resources"] if item["name"] == plural]
    expected = RESOURCES[name]
    assert {key: found.get(key) for key in expected} == expected


def test_aggregated_discovery(api: Api) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    answer = api.request("GET", "/apis", headers={"Accept": accept})
    body = answer.ok()
    assert (body["kind"], body["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    assert "as=APIGroupDiscoveryList" in answer.headers["content-type"]
    (apps,) = [item for item in body["items"] if item["metadata"]["name"] == "apps"]
    (version,) = apps["versions"]
    assert (version["version"], version["freshness"]) == ("v1", "Current")
    (daemon_sets,) = [item for item in version["resources"] if item["resource"] == "daemonsets"]
    assert daemon_sets["scope"] == "Namespaced"
    assert daemon_sets["responseKind"] == {"group": "", "version": "", "kind": "DaemonSet"}  # the group's own
    assert [item["subresource"] for item in daemon_sets["subresources"]] == ["status"]


def test_aggregated_discovery_of_the_core(api: Api) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    body = api.request("GET", "/api", headers={"Accept": accept}).ok()
    (core,) = body["items"]
    assert "name" not in core["metadata"]
    names = {item["resource"] for item in core["versions"][0]["resources"]}
    assert {"pods", "nodes", "configmaps", "services"} <= names


# --- OpenAPI and others --------------------------------------------------------------------------------------------


def test_openapi_v3_index_and_document(api: Api) -> None:
    index = api.request("GET", "/openapi/v3", headers={"Accept": "application/json"})
    paths = index.body["paths"] if isinstance(index.body, dict) else yaml.safe_load(index.body)["paths"]
    assert {"api/v1", "apis/apps/v1"} <= paths.keys()
    document = api.request("GET", paths["apis/apps/v1"]["serverRelativeURL"]).ok()
    assert document["openapi"].startswith("3.0")
    schemas = document["components"]["schemas"]
    daemon_set = schemas["io.k8s.api.apps.v1.DaemonSet"]
    assert {"group": "apps", "kind": "DaemonSet", "version": "v1"} in daemon_set["x-kubernetes-group-version-kind"]
    assert daemon_set["properties"].keys() >= {"apiVersion", "kind", "metadata", "spec", "status"}
    assert "$ref" in str(daemon_set["properties"]["spec"])


def test_version(api: Api) -> None:
    body = api.get("/version").ok()
    assert (body["major"], body["minor"]) == ("1", "37")
    assert body["gitVersion"].startswith("v1.37.")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/livez", "/livez/ping", "/healthz/ping"])
def test_health(api: Api, path: str) -> None:
    answer = api.get(path)
    assert (answer.status, answer.body) == (200, "ok")


def test_nobody_may_see_the_version_and_health(api: Api) -> None:
    nobody = api.with_token(None)
    assert nobody.get("/version").status == 200
    assert nobody.get("/readyz").status == 200
    nobody.get("/api").fails(403, "Forbidden", 'User "system:anonymous" cannot get path "/api"')
