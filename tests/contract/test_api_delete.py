"""Deleting: what is answered, what holds an object, who goes with it, and namespaces."""

from __future__ import annotations

from typing import Any

import pytest
from contract.engines import Api, Cluster, eventually, unique
from contract.things import config_map, daemon_set, deployment, pod

Document = dict[str, Any]
HELD = "contract.test/held"


def gone(api: Api, path: str) -> None:
    eventually(lambda: api.get(path).status == 404, what=f"{path} to be gone")


def test_delete(api: Api, core: str) -> None:
    made = api.create(f"{core}/configmaps", config_map("a")).ok()
    answer = api.delete(f"{core}/configmaps/a")
    assert answer.status == 200
    assert answer.body == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]},
    }  # fmt: skip
    api.get(f"{core}/configmaps/a").fails(404, "NotFound")


def test_delete_names_the_group(api: Api, apps: str) -> None:
    api.create(f"{apps}/daemonsets", daemon_set("a")).ok()
    details = api.delete(f"{apps}/daemonsets/a", propagationPolicy="Background").ok()["details"]
    assert (details["name"], details["group"], details["kind"]) == ("a", "apps", "daemonsets")


def test_delete_of_what_is_not_there(api: Api, core: str) -> None:
    api.delete(f"{core}/configmaps/a").fails(404, "NotFound", 'configmaps "a" not found')


def test_preconditions(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    made = api.create(f"{core}/configmaps", config_map("a")).ok()["metadata"]
    other = {"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}
    assert api.delete(path, other).fails(409, "Conflict")["message"] == (
        'Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition '
        f"(11111111-1111-1111-1111-111111111111) does not match the UID in record ({made['uid']}). "
        "The object might have been deleted and then recreated"
    )
    old = {"preconditions": {"resourceVersion": "1"}}
    assert api.delete(path, old).fails(409, "Conflict")["message"] == (
        'Operation cannot be fulfilled on ConfigMap "a": the ResourceVersion in the precondition (1) does not match '
        f"the ResourceVersion in record ({made['resourceVersion']}). The object might have been modified"
    )
    right = {"preconditions": {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}}
    api.delete(path, right).ok()


def test_finalizers_hold_an_object(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    made = api.create(f"{core}/configmaps", config_map("a", finalizers=[HELD])).ok()
    answer = api.delete(path)
    assert answer.status == 200
    assert answer.body["kind"] == "ConfigMap"
    meta = answer.body["metadata"]
    assert meta["deletionTimestamp"]
    assert meta["deletionGracePeriodSeconds"] == 0
    assert int(meta["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    again = api.delete(path).ok()
    assert again["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]
    assert again["metadata"]["resourceVersion"] == meta["resourceVersion"]
    done = api.patch(path, {"metadata": {"finalizers": None}}).ok()
    assert done["metadata"]["uid"] == made["metadata"]["uid"]
    api.get(path).fails(404, "NotFound")


def test_a_deleted_object_takes_no_new_finalizers(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.create(f"{core}/configmaps", config_map("a", finalizers=[HELD])).ok()
    api.delete(path).ok()
    answer = api.patch(path, {"metadata": {"finalizers": [HELD, "contract.test/more"]}})
    body = answer.fails(422, "Invalid")
    assert body["message"] == (
        'ConfigMap "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is '
        'being deleted, found new finalizers []string{"contract.test/more"}'
    )
    assert api.patch(path, {"data": {"still": "writable"}}).ok()["data"]["still"] == "writable"
    api.patch(path, {"metadata": {"finalizers": None}}).ok()


def test_create_while_the_old_one_is_held(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a"
    api.create(f"{core}/configmaps", config_map("a", finalizers=[HELD])).ok()
    api.delete(path).ok()
    api.create(f"{core}/configmaps", config_map("a")).fails(409, "AlreadyExists", "object is being deleted")
    api.patch(path, {"metadata": {"finalizers": None}}).ok()


def test_delete_with_a_generation(api: Api, apps: str) -> None:
    body = daemon_set("a")
    body["metadata"]["finalizers"] = [HELD]
    made = api.create(f"{apps}/daemonsets", body).ok()
    held = api.delete(f"{apps}/daemonsets/a", propagationPolicy="Background").ok()
    assert held["metadata"]["generation"] == made["metadata"]["generation"] + 1
    api.patch(f"{apps}/daemonsets/a", {"metadata": {"finalizers": None}}).ok()


def test_unknown_propagation(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    answer = api.delete(f"{core}/configmaps/a", {"propagationPolicy": "Sometimes"})
    assert answer.fails(422, "Invalid")["message"] == (
        'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Sometimes": supported values: '
        '"Foreground", "Background", "Orphan", "nil"'
    )


def test_grace_period_that_is_no_number(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    api.delete(f"{core}/configmaps/a", {"gracePeriodSeconds": "soon"}).fails(
        400, "BadRequest", "cannot unmarshal string"
    )
    api.delete(f"{core}/configmaps/a", gracePeriodSeconds="soon").fails(400, "BadRequest", "invalid syntax")


@pytest.mark.parametrize("place", ["query", "body"])
def test_foreground(api: Api, core: str, place: str) -> None:
    path = f"{core}/configmaps/a"
    owner = api.create(f"{core}/configmaps", config_map("a")).ok()["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": owner, "blockOwnerDeletion": True}
    child = config_map("child", ownerReferences=[reference], finalizers=[HELD])
    api.create(f"{core}/configmaps", child).ok()
    if place == "query":
        answer = api.delete(path, propagationPolicy="Foreground")
    else:
        answer = api.delete(path, {"propagationPolicy": "Foreground"})
    assert answer.ok()["metadata"]["finalizers"] == ["foregroundDeletion"]
    held = f"{core}/configmaps/child"
    eventually(lambda: "deletionTimestamp" in api.get(held).ok()["metadata"], what="the child to be deleted")
    assert api.get(path).status == 200
    api.patch(held, {"metadata": {"finalizers": None}}).ok()
    gone(api, path)


def test_background(api: Api, core: str) -> None:
    owner = api.create(f"{core}/configmaps", config_map("a")).ok()["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": owner}
    api.create(f"{core}/configmaps", config_map("child", ownerReferences=[reference])).ok()
    api.delete(f"{core}/configmaps/a", propagationPolicy="Background").ok()
    api.get(f"{core}/configmaps/a").fails(404, "NotFound")
    gone(api, f"{core}/configmaps/child")


def test_orphan(api: Api, core: str) -> None:
    owner = api.create(f"{core}/configmaps", config_map("a")).ok()["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": owner}
    api.create(f"{core}/configmaps", config_map("child", ownerReferences=[reference])).ok()
    child = f"{core}/configmaps/child"
    api.delete(f"{core}/configmaps/a", propagationPolicy="Orphan").ok()
    gone(api, f"{core}/configmaps/a")
    eventually(lambda: "ownerReferences" not in api.get(child).ok()["metadata"], what="the child to be orphaned")


def test_policy_and_orphan_dependents_exclude_each_other(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    answer = api.delete(f"{core}/configmaps/a", {"propagationPolicy": "Orphan", "orphanDependents": True})
    answer.fails(422, "Invalid", "orphanDependents and deletionPropagation cannot be both set")


# --- collections ---------------------------------------------------------------------------------------------------


def test_delete_collection(api: Api, core: str) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
        api.create(f"{core}/secrets", {"metadata": {"name": name, "labels": labels}}).ok()
    body = api.delete(f"{core}/secrets", labelSelector="x").ok()
    assert body["kind"] in ("SecretList", "Status")
    assert [item["metadata"]["name"] for item in api.get(f"{core}/secrets").ok()["items"]] == ["c"]


def test_delete_collection_by_field(api: Api, core: str) -> None:
    for name in ("a", "b"):
        api.create(f"{core}/secrets", {"metadata": {"name": name}}).ok()
    api.delete(f"{core}/secrets", fieldSelector="metadata.name=a").ok()
    assert [item["metadata"]["name"] for item in api.get(f"{core}/secrets").ok()["items"]] == ["b"]


def test_delete_collection_honours_finalizers(api: Api, core: str) -> None:
    api.create(f"{core}/secrets", {"metadata": {"name": "a", "finalizers": [HELD]}}).ok()
    api.create(f"{core}/secrets", {"metadata": {"name": "b"}}).ok()
    api.delete(f"{core}/secrets").ok()
    (left,) = api.get(f"{core}/secrets").ok()["items"]
    assert left["metadata"]["deletionTimestamp"]
    api.patch(f"{core}/secrets/a", {"metadata": {"finalizers": None}}).ok()


def test_delete_collection_dry_run(api: Api, core: str) -> None:
    api.create(f"{core}/secrets", {"metadata": {"name": "a"}}).ok()
    api.delete(f"{core}/secrets", dryRun="All").ok()
    assert len(api.get(f"{core}/secrets").ok()["items"]) == 1


# --- pods ----------------------------------------------------------------------------------------------------------


def test_pod_without_a_node_goes_at_once(api: Api, core: str) -> None:
    api.create(f"{core}/pods", pod("a")).ok()
    api.delete(f"{core}/pods/a").ok()
    api.get(f"{core}/pods/a").fails(404, "NotFound")


def test_pod_on_a_node_has_a_grace_period(api: Api, cluster: Cluster, core: str) -> None:
    node = unique("contract")
    cluster.cleanup.add(f"/api/v1/nodes/{node}")
    api.create("/api/v1/nodes", {"metadata": {"name": node}}).ok()
    path = f"{core}/pods/a"
    api.create(f"{core}/pods", pod("a", nodeName=node)).ok()
    held = api.delete(path).ok()
    assert held["kind"] == "Pod"
    assert held["metadata"]["deletionGracePeriodSeconds"] == 30
    shorter = api.delete(path, {"gracePeriodSeconds": 5}).ok()
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = api.delete(path, {"gracePeriodSeconds": 60}).ok()
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
    api.delete(path, {"gracePeriodSeconds": 0}).ok()
    api.get(path).fails(404, "NotFound")


def test_finished_pod_goes_at_once(api: Api, cluster: Cluster, core: str) -> None:
    node = unique("contract")
    cluster.cleanup.add(f"/api/v1/nodes/{node}")
    api.create("/api/v1/nodes", {"metadata": {"name": node}}).ok()
    api.create(f"{core}/pods", pod("a", nodeName=node)).ok()
    api.patch(f"{core}/pods/a/status", {"status": {"phase": "Succeeded"}}).ok()
    api.delete(f"{core}/pods/a").ok()
    api.get(f"{core}/pods/a").fails(404, "NotFound")


# --- namespaces ----------------------------------------------------------------------------------------------------


def test_new_namespace(api: Api, namespace: str) -> None:
    found = api.get(f"/api/v1/namespaces/{namespace}").ok()
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": namespace}
    assert found["spec"] == {"finalizers": ["kubernetes"]}
    assert found["status"] == {"phase": "Active"}


def test_namespace_gets_the_root_certificate(api: Api, core: str) -> None:
    eventually(lambda: api.get(f"{core}/configmaps/kube-root-ca.crt").status == 200, what="kube-root-ca.crt")
    assert list(api.get(f"{core}/configmaps/kube-root-ca.crt").ok()["data"]) == ["ca.crt"]


def test_namespace_takes_its_content(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a")).ok()
    answer = api.delete(core)
    assert answer.status == 200
    assert answer.body["status"]["phase"] == "Terminating"
    assert answer.body["metadata"]["deletionTimestamp"]
    gone(api, core)
    assert api.get(f"{core}/configmaps").ok()["items"] == []


def test_nothing_is_created_in_a_namespace_that_goes(api: Api, core: str, namespace: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", finalizers=[HELD])).ok()
    api.delete(core).ok()
    body = api.create(f"{core}/configmaps", config_map("b")).fails(403, "Forbidden")
    assert body["message"] == (
        f'configmaps "b" is forbidden: unable to create new content in namespace {namespace} because it is being '
        "terminated"
    )
    cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
    assert body["details"]["causes"] == [{**cause, "field": "metadata.namespace"}]
    assert api.patch(f"{core}/configmaps/a", {"data": {"x": "y"}}).status == 200
    api.patch(f"{core}/configmaps/a", {"metadata": {"finalizers": None}}).ok()
    gone(api, core)


def test_namespace_says_what_holds_it(api: Api, core: str) -> None:
    api.create(f"{core}/configmaps", config_map("a", finalizers=[HELD])).ok()
    api.delete(core).ok()

    def told() -> bool:
        conditions = {item["type"]: item for item in api.get(core).ok()["status"].get("conditions") or []}
        remaining = conditions["NamespaceFinalizersRemaining"]
        assert remaining["status"] == "True"
        assert remaining["reason"] == "SomeFinalizersRemain"
        return HELD in remaining["message"] and "1 resource instances" in remaining["message"]

    eventually(lambda: "conditions" in api.get(core).ok()["status"] and told(), what="the condition")
    api.patch(f"{core}/configmaps/a", {"metadata": {"finalizers": None}}).ok()
    gone(api, core)


def test_namespaces_cannot_be_deleted_together(api: Api) -> None:
    api.delete("/api/v1/namespaces", labelSelector="nobody=none").fails(405, "MethodNotAllowed")


def test_protected_namespaces(api: Api) -> None:
    answer = api.delete("/api/v1/namespaces/default")
    answer.fails(403, "Forbidden", "this namespace may not be deleted")


def test_deployments_take_their_replica_sets(api: Api, apps: str) -> None:
    api.create(f"{apps}/deployments", deployment("a")).ok()
    eventually(lambda: api.get(f"{apps}/replicasets").ok()["items"], what="the ReplicaSet")
    api.delete(f"{apps}/deployments/a", propagationPolicy="Foreground").ok()
    gone(api, f"{apps}/deployments/a")
    assert api.get(f"{apps}/replicasets").ok()["items"] == []
