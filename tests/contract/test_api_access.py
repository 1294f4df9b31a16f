"""Who may do what: tokens, roles, what a refusal says, reviews, and rights that cannot be handed on."""

from __future__ import annotations

from typing import Any

import pytest
from contract.engines import Api, Cluster, eventually, unique
from contract.things import config_map

Document = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
READ_PODS: Document = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


def test_unknown_token(api: Api) -> None:
    body = api.with_token("nonsense").get("/api/v1/nodes").fails(401, "Unauthorized")
    assert body["message"] == "Unauthorized"


def test_nobody(api: Api) -> None:
    body = api.with_token(None).get("/api/v1/nodes").fails(403, "Forbidden")
    assert body["message"] == (
        'nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    assert body["details"] == {"kind": "nodes"}


REFUSALS: dict[str, tuple[str, str, str]] = {
    "list": (
        "GET", "/api/v1/namespaces/{ns}/pods",
        'pods is forbidden: {user} cannot list resource "pods" in API group "" {in}',
    ),
    "get": (
        "GET", "/api/v1/namespaces/{ns}/pods/a",
        'pods "a" is forbidden: {user} cannot get resource "pods" in API group "" {in}',
    ),
    "group": (
        "GET", "/apis/apps/v1/namespaces/{ns}/daemonsets",
        'daemonsets.apps is forbidden: {user} cannot list resource "daemonsets" in API group "apps" {in}',
    ),
    "subresource": (
        "GET", "/api/v1/namespaces/{ns}/pods/a/log",
        'pods "a" is forbidden: {user} cannot get resource "pods/log" in API group "" {in}',
    ),
    "cluster": (
        "GET", "/api/v1/nodes/a",
        'nodes "a" is forbidden: {user} cannot get resource "nodes" in API group "" at the cluster scope',
    ),
    "named list of namespaces": (
        "GET", "/api/v1/namespaces?fieldSelector=metadata.name%3Da",
        'namespaces "a" is forbidden: {user} cannot list resource "namespaces" in API group "" at the cluster scope',
    ),
    "all namespaces": (
        "GET", "/api/v1/pods",
        'pods is forbidden: {user} cannot list resource "pods" in API group "" at the cluster scope',
    ),
    "create": (
        "POST", "/api/v1/namespaces/{ns}/configmaps",
        'configmaps is forbidden: {user} cannot create resource "configmaps" in API group "" {in}',
    ),
    "delete": (
        "DELETE", "/api/v1/namespaces/{ns}/configmaps/a",
        'configmaps "a" is forbidden: {user} cannot delete resource "configmaps" in API group "" {in}',
    ),
    "deletecollection": (
        "DELETE", "/api/v1/namespaces/{ns}/configmaps",
        'configmaps is forbidden: {user} cannot deletecollection resource "configmaps" in API group "" {in}',
    ),
    "watch": (
        "GET", "/api/v1/namespaces/{ns}/pods?watch=1",
        'pods is forbidden: {user} cannot watch resource "pods" in API group "" {in}',
    ),
    "named list": (
        "GET", "/api/v1/namespaces/{ns}/pods?fieldSelector=metadata.name%3Da",
        'pods "a" is forbidden: {user} cannot list resource "pods" in API group "" {in}',
    ),
    "namespace": (
        "GET", "/api/v1/namespaces/{ns}",
        'namespaces "{ns}" is forbidden: {user} cannot get resource "namespaces" in API group "" {in}',
    ),
    "path": ("GET", "/metrics", 'forbidden: {user} cannot get path "/metrics"'),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(cluster: Cluster, namespace: str, case: str) -> None:
    method, path, text = REFUSALS[case]
    user, caller = cluster.account(namespace)
    body = config_map("a") if method == "POST" else None
    answer = caller.request(method, path.replace("{ns}", namespace), body)
    where = f'in the namespace "{namespace}"'
    expected = text.replace("{user}", f'User "{user}"').replace("{in}", where).replace("{ns}", namespace)
    assert answer.fails(403, "Forbidden")["message"] == expected


def test_granted_verbs(cluster: Cluster, namespace: str, core: str) -> None:
    user, caller = cluster.account(namespace)
    cluster.grant(namespace, user, [READ_PODS])
    caller.get(f"{core}/pods").ok()
    caller.get(f"{core}/pods/a").fails(404, "NotFound")
    caller.delete(f"{core}/pods/a").fails(403, "Forbidden")
    caller.get("/api/v1/namespaces/default/pods").fails(403, "Forbidden")


def test_granted_names(api: Api, cluster: Cluster, namespace: str, core: str) -> None:
    for name in ("mine", "yours"):
        api.create(f"{core}/configmaps", config_map(name)).ok()
    user, caller = cluster.account(namespace)
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["mine"],
        "verbs": ["get", "list", "watch"],
    }
    cluster.grant(namespace, user, [rule])
    caller.get(f"{core}/configmaps/mine").ok()
    caller.get(f"{core}/configmaps/yours").fails(403, "Forbidden")
    caller.get(f"{core}/configmaps").fails(403, "Forbidden")
    assert len(caller.get(f"{core}/configmaps", fieldSelector="metadata.name=mine").ok()["items"]) == 1


def test_granted_subresource(cluster: Cluster, namespace: str, core: str) -> None:
    user, caller = cluster.account(namespace)
    cluster.grant(namespace, user, [{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}])
    caller.patch(f"{core}/pods/a/status", {}).fails(404, "NotFound")
    caller.patch(f"{core}/pods/a", {}).fails(403, "Forbidden")


def test_apply_that_creates_needs_create(cluster: Cluster, namespace: str, core: str) -> None:
    user, caller = cluster.account(namespace)
    cluster.grant(namespace, user, [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}])
    answer = caller.apply(f"{core}/configmaps/a", config_map("a"))
    answer.fails(403, "Forbidden", 'cannot create resource "configmaps"')


def test_groups_of_service_accounts(cluster: Cluster, api: Api, namespace: str, core: str) -> None:
    space = f"{RBAC}/namespaces/{namespace}"
    api.create(f"{space}/roles", {"metadata": {"name": "r"}, "rules": [READ_PODS]}).ok()
    group = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": f"system:serviceaccounts:{namespace}"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    api.create(f"{space}/rolebindings", {"metadata": {"name": "r"}, "roleRef": reference, "subjects": [group]}).ok()
    _, caller = cluster.account(namespace)
    eventually(lambda: caller.get(f"{core}/pods").status == 200, what="the group's rights")


def test_cluster_role_in_a_namespace(cluster: Cluster, api: Api, namespace: str, core: str) -> None:
    name = unique("contract")
    cluster.cleanup.add(f"{RBAC}/clusterroles/{name}")
    api.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": [READ_PODS]}).ok()
    _, caller = cluster.account(namespace)
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": "tester"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": "r"}, "roleRef": reference, "subjects": [subject]}
    api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding).ok()
    eventually(lambda: caller.get(f"{core}/pods").status == 200, what="the role's rights")
    caller.get("/api/v1/pods").fails(403, "Forbidden")


def test_rights_are_taken_away(cluster: Cluster, api: Api, namespace: str, core: str) -> None:
    user, caller = cluster.account(namespace)
    cluster.grant(namespace, user, [READ_PODS])
    caller.get(f"{core}/pods").ok()
    api.delete(f"{RBAC}/namespaces/{namespace}/rolebindings/granted").ok()
    eventually(lambda: caller.get(f"{core}/pods").status == 403, what="the rights to be gone")


# --- escalation ----------------------------------------------------------------------------------------------------


def manager_of_roles(cluster: Cluster, namespace: str) -> tuple[str, Api]:
    user, caller = cluster.account(namespace)
    rights = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create"]}
    cluster.grant(namespace, user, [READ_PODS, rights])
    return user, caller


def test_a_role_may_not_hold_more_than_its_maker(cluster: Cluster, namespace: str) -> None:
    user, caller = manager_of_roles(cluster, namespace)
    path = f"{RBAC}/namespaces/{namespace}/roles"
    caller.create(path, {"metadata": {"name": "less"}, "rules": [READ_PODS]}).ok()
    more = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    body = caller.create(path, {"metadata": {"name": "more"}, "rules": [more]}).fails(403, "Forbidden")
    assert body["message"] == (
        f'roles.rbac.authorization.k8s.io "more" is forbidden: user "{user}" '
        f'(groups=["system:serviceaccounts" "system:serviceaccounts:{namespace}" "system:authenticated"]) '
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )


def test_a_binding_may_not_hand_on_more_than_its_maker_holds(cluster: Cluster, api: Api, namespace: str) -> None:
    user, caller = manager_of_roles(cluster, namespace)
    path = f"{RBAC}/namespaces/{namespace}"
    more = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    api.create(f"{path}/roles", {"metadata": {"name": "more"}, "rules": [more]}).ok()
    binding = {
        "metadata": {"name": "more"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "more"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "tester"}],
    }

    def refused() -> bool:
        answer = caller.create(f"{path}/rolebindings", binding)
        answer.fails(403, "Forbidden", "is attempting to grant RBAC permissions not currently held")
        return user in answer.message

    eventually(refused, what="the binding to be refused")


# --- reviews -------------------------------------------------------------------------------------------------------

AUTHORIZATION = "/apis/authorization.k8s.io/v1"
AUTHENTICATION = "/apis/authentication.k8s.io/v1"


def test_self_subject_access_review(cluster: Cluster, namespace: str) -> None:
    user, caller = cluster.account(namespace)
    cluster.grant(namespace, user, [READ_PODS])

    def may(**attributes: str) -> bool:
        spec = {"resourceAttributes": {"namespace": namespace, "resource": "pods", **attributes}}
        answer = caller.create(f"{AUTHORIZATION}/selfsubjectaccessreviews", {"spec": spec})
        assert answer.status == 201
        assert answer.body["kind"] == "SelfSubjectAccessReview"
        return bool(answer.body["status"]["allowed"])

    assert may(verb="list")
    assert not may(verb="delete")
    assert not may(verb="list", namespace="default")
    assert not may(verb="list", subresource="log")


def test_non_resource_review(cluster: Cluster, namespace: str) -> None:
    _, caller = cluster.account(namespace)

    def may(path: str) -> bool:
        spec = {"nonResourceAttributes": {"path": path, "verb": "get"}}
        return bool(
            caller.create(f"{AUTHORIZATION}/selfsubjectaccessreviews", {"spec": spec}).ok()["status"]["allowed"]
        )

    assert may("/version")
    assert not may("/metrics")


def test_self_subject_review(cluster: Cluster, namespace: str) -> None:
    user, caller = cluster.account(namespace)
    info = caller.create(f"{AUTHENTICATION}/selfsubjectreviews", {}).ok()["status"]["userInfo"]
    assert info["username"] == user
    assert sorted(info["groups"]) == [
        "system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}",
    ]  # fmt: skip


def test_rules_review(cluster: Cluster, namespace: str) -> None:
    user, caller = cluster.account(namespace)
    cluster.grant(namespace, user, [READ_PODS])
    spec = {"spec": {"namespace": namespace}}
    status = caller.create(f"{AUTHORIZATION}/selfsubjectrulesreviews", spec).ok()["status"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]} in status["resourceRules"]
    assert any("/version" in rule["nonResourceURLs"] for rule in status["nonResourceRules"])


def test_token_review(api: Api, cluster: Cluster, namespace: str) -> None:
    user, caller = cluster.account(namespace)
    body = {"spec": {"token": caller.token}}
    status = api.create(f"{AUTHENTICATION}/tokenreviews", body).ok()["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == user
    bad = api.create(f"{AUTHENTICATION}/tokenreviews", {"spec": {"token": "nonsense"}}).ok()["status"]
    assert not bad.get("authenticated")
    assert bad["error"]


# --- tokens and impersonation --------------------------------------------------------------------------------------


def test_token_request(api: Api, core: str) -> None:
    path = f"{core}/serviceaccounts/default/token"
    answer = api.create(path, {"spec": {"expirationSeconds": 3600}})
    assert answer.status == 201
    body = answer.body
    assert (body["kind"], body["apiVersion"]) == ("TokenRequest", "authentication.k8s.io/v1")
    assert body["spec"]["expirationSeconds"] == 3600
    assert body["status"]["token"]
    assert body["status"]["expirationTimestamp"].endswith("Z")


def test_token_of_too_short_a_life(api: Api, core: str) -> None:
    answer = api.create(f"{core}/serviceaccounts/default/token", {"spec": {"expirationSeconds": 60}})
    answer.fails(422, "Invalid", "may not specify a duration less than 10 minutes")
    assert answer.causes() == [("spec.expirationSeconds", "FieldValueInvalid")]


def test_token_of_an_account_that_is_not_there(api: Api, core: str) -> None:
    api.create(f"{core}/serviceaccounts/nobody/token", {"spec": {}}).fails(404, "NotFound")


def test_token_ends_with_its_account(api: Api, cluster: Cluster, namespace: str, core: str) -> None:
    _, caller = cluster.account(namespace)
    caller.get("/api").ok()
    api.delete(f"{core}/serviceaccounts/tester").ok()
    eventually(lambda: caller.get("/api").status == 401, what="the token to be refused")


def test_impersonation(api: Api, cluster: Cluster, namespace: str, core: str) -> None:
    user, caller = cluster.account(namespace)
    cluster.grant(namespace, user, [READ_PODS])
    headers = {"Impersonate-User": user}
    assert api.request("GET", f"{core}/pods", headers=headers).status == 200
    api.request("GET", f"{core}/secrets", headers=headers).fails(403, "Forbidden", f'User "{user}" cannot list')
    answer = caller.request("GET", f"{core}/pods", headers={"Impersonate-User": "admin"})
    answer.fails(403, "Forbidden", f'User "{user}" cannot impersonate')
