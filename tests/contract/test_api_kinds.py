"""What single kinds do: defaults, validation with its field paths, immutable fields, allocation, subresources."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from contract.engines import Api, Cluster, unique
from contract.things import config_map, container, daemon_set, deployment, pod, template

Document = dict[str, Any]


# --- secrets and config maps ---------------------------------------------------------------------------------------


def test_string_data(api: Api, core: str) -> None:
    body = {
        "metadata": {"name": "a"},
        "data": {"x": base64.b64encode(b"1").decode()},
        "stringData": {"y": "2", "x": "3"},
    }
    made = api.create(f"{core}/secrets", body).ok()
    assert made["type"] == "Opaque"
    assert "stringData" not in made
    assert {key: base64.b64decode(value) for key, value in made["data"].items()} == {"x": b"3", "y": b"2"}


def test_secret_data_that_is_not_base64(api: Api, core: str) -> None:
    answer = api.create(f"{core}/secrets", {"metadata": {"name": "a"}, "data": {"x": "***"}})
    answer.fails(400, "BadRequest", "illegal base64 data")


def test_type_of_a_secret_is_immutable(api: Api, core: str) -> None:
    api.create(f"{core}/secrets", {"metadata": {"name": "a"}, "type": "one"}).ok()
    answer = api.patch(f"{core}/secrets/a", {"type": "two"})
    answer.fails(422, "Invalid", 'type: Invalid value: "two": field is immutable')


@pytest.mark.parametrize("plural", ["configmaps", "secrets"])
def test_immutable_data(api: Api, core: str, plural: str) -> None:
    value = base64.b64encode(b"1").decode()
    api.create(f"{core}/{plural}", {"metadata": {"name": "a"}, "data": {"x": value}, "immutable": True}).ok()
    path = f"{core}/{plural}/a"
    for change, field in (({"data": {"x": "MTI="}}, "data"), ({"immutable": False}, "immutable")):
        answer = api.patch(path, change)
        answer.fails(422, "Invalid", "field is immutable when `immutable` is set")
        assert answer.causes() == [(field, "FieldValueForbidden")]
    assert api.patch(path, {"metadata": {"labels": {"x": "y"}}}).status == 200


@pytest.mark.parametrize("key", ["a b", "..", "", "a/b"])
def test_bad_key(api: Api, core: str, key: str) -> None:
    answer = api.create(f"{core}/configmaps", config_map("a", {key: "x"}))
    answer.fails(422, "Invalid")
    assert answer.causes() == [(f"data[{key}]", "FieldValueInvalid")]


# --- services ------------------------------------------------------------------------------------------------------


def service(**spec: Any) -> Document:
    return {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}], **spec}}


def test_service_defaults_and_allocation(api: Api, core: str) -> None:
    made = api.create(f"{core}/services", service(selector={"x": "y"})).ok()["spec"]
    address = made["clusterIP"]
    assert address.startswith("10.")
    assert made == {
        "clusterIP": address, "clusterIPs": [address], "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "selector": {"x": "y"}, "sessionAffinity": "None", "type": "ClusterIP",
    }  # fmt: skip


def test_service_keeps_its_address(api: Api, core: str) -> None:
    made = api.create(f"{core}/services", service()).ok()
    path = f"{core}/services/a"
    assert api.update(path, service(selector={"x": "y"})).ok()["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    answer = api.patch(path, {"spec": {"clusterIP": "10.96.200.200", "clusterIPs": ["10.96.200.200"]}})
    answer.fails(422, "Invalid", "may not change once set")
    assert answer.causes() == [("spec.clusterIPs[0]", "FieldValueInvalid")]


def test_headless_service(api: Api, core: str) -> None:
    made = api.create(f"{core}/services", service(clusterIP="None")).ok()["spec"]
    assert (made["clusterIP"], made["clusterIPs"]) == ("None", ["None"])


BAD_SERVICES: dict[str, tuple[Document, str, str]] = {
    "no ports": ({"ports": []}, "spec.ports", "FieldValueRequired"),
    "port": ({"ports": [{"port": 70000}]}, "spec.ports[0].port", "FieldValueInvalid"),
    "no port": ({"ports": [{"name": "x"}]}, "spec.ports[0].port", "FieldValueInvalid"),
    "protocol": ({"ports": [{"port": 80, "protocol": "ICMP"}]}, "spec.ports[0].protocol", "FieldValueNotSupported"),
    "names": ({"ports": [{"port": 80}, {"port": 81}]}, "spec.ports[0].name", "FieldValueRequired"),
    "type": ({"type": "Magic"}, "spec.type", "FieldValueNotSupported"),
    "same names": (
        {"ports": [{"port": 80, "name": "x"}, {"port": 81, "name": "x"}]}, "spec.ports[1].name", "FieldValueDuplicate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SERVICES)
def test_bad_service(api: Api, core: str, case: str) -> None:
    spec, field, reason = BAD_SERVICES[case]
    answer = api.create(f"{core}/services", service(**spec))
    answer.fails(422, "Invalid")
    assert (field, reason) in answer.causes()


# --- pods and workloads --------------------------------------------------------------------------------------------


def test_pod_defaults(api: Api, core: str) -> None:
    spec = api.create(f"{core}/pods", pod("a")).ok()["spec"]
    tolerated = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    expected = {
        "dnsPolicy": "ClusterFirst", "enableServiceLinks": True, "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0, "restartPolicy": "Always", "schedulerName": "nobody", "securityContext": {},
        "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
        "tolerations": tolerated,
    }  # fmt: skip
    assert {key: spec[key] for key in expected} == expected
    (main,) = spec["containers"]
    assert {key: main[key] for key in ("imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy")} == {
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    assert main["resources"] == {}


def test_daemon_set_defaults(api: Api, apps: str) -> None:
    made = api.create(f"{apps}/daemonsets", daemon_set("a")).ok()
    assert made["metadata"]["annotations"] == {"deprecated.daemonset.template.generation": "1"}
    assert made["spec"]["revisionHistoryLimit"] == 10
    assert made["spec"]["updateStrategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }  # fmt: skip
    spec = made["spec"]["template"]["spec"]
    assert "tolerations" not in spec
    assert "enableServiceLinks" not in spec
    assert made["status"] == {
        "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0,
    }  # fmt: skip


BAD_DAEMON_SETS: dict[str, tuple[Document, str, str]] = {
    "selector mismatch": (
        {"selector": {"matchLabels": {"app": "other"}}}, "spec.template.metadata.labels", "FieldValueInvalid",
    ),
    "no selector": ({"selector": None}, "spec.template.metadata.labels", "FieldValueInvalid"),
    "empty selector": ({"selector": {}}, "spec.selector", "FieldValueInvalid"),
    "restart policy": (
        {"template": template("a", restartPolicy="Never")}, "spec.template.spec.restartPolicy",
        "FieldValueNotSupported",
    ),
    "no containers": (
        {"template": template("a", containers=[])}, "spec.template.spec.containers", "FieldValueRequired",
    ),
    "strategy": ({"updateStrategy": {"type": "Magic"}}, "spec.updateStrategy", "FieldValueNotSupported"),
    "zero unavailable": (
        {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}}},
        "spec.updateStrategy.rollingUpdate.maxUnavailable", "FieldValueRequired",
    ),
    "not a percentage": (
        {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "many"}}},
        "spec.updateStrategy.rollingUpdate.maxUnavailable", "FieldValueInvalid",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_DAEMON_SETS)
def test_bad_daemon_set(api: Api, apps: str, case: str) -> None:
    spec, field, reason = BAD_DAEMON_SETS[case]
    answer = api.create(f"{apps}/daemonsets", daemon_set("a", **spec))
    answer.fails(422, "Invalid", 'DaemonSet.apps "a" is invalid: ')
    assert (field, reason) in answer.causes()


MOUNT = {"name": "v", "mountPath": "/v"}
BAD_CONTAINERS: dict[str, tuple[Document, str, str]] = {
    "no image": ({"image": ""}, "image", "FieldValueRequired"),
    "name": ({"name": "Under_score"}, "name", "FieldValueInvalid"),
    "variable name": ({"env": [{"name": "A=B", "value": "x"}]}, "env[0].name", "FieldValueInvalid"),
    "variable without name": ({"env": [{"value": "x"}]}, "env[0].name", "FieldValueRequired"),
    "mount without volume": ({"volumeMounts": [MOUNT]}, "volumeMounts[0].name", "FieldValueNotFound"),
    "port": ({"ports": [{"containerPort": 70000}]}, "ports[0].containerPort", "FieldValueInvalid"),
    "pull policy": ({"imagePullPolicy": "Perhaps"}, "imagePullPolicy", "FieldValueNotSupported"),
    "request above limit": (
        {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}, "resources.requests", "FieldValueInvalid",
    ),
    "extended resource in parts": (
        {"resources": {"limits": {"nvidia.com/gpu": "500m"}}}, "resources.limits[nvidia.com/gpu]", "FieldValueInvalid",
    ),
    "extended resource without limit": (
        {"resources": {"requests": {"nvidia.com/gpu": "1"}}}, "resources.limits", "FieldValueRequired",
    ),
    "negative amount": ({"resources": {"limits": {"memory": "-1"}}}, "resources.limits[memory]", "FieldValueInvalid"),
    "unqualified resource": ({"resources": {"limits": {"gpu": "1"}}}, "resources.limits[gpu]", "FieldValueInvalid"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CONTAINERS)
def test_bad_container(api: Api, apps: str, case: str) -> None:
    change, field, reason = BAD_CONTAINERS[case]
    answer = api.create(
        f"{apps}/daemonsets", daemon_set("a", template=template("a", containers=[container() | change]))
    )
    answer.fails(422, "Invalid")
    assert (f"spec.template.spec.containers[0].{field}", reason) in answer.causes()


def test_amount_that_is_none(api: Api, core: str) -> None:
    body = pod("a", containers=[container(resources={"limits": {"cpu": "much"}})])
    api.create(f"{core}/pods", body).fails(400, "BadRequest", "quantities must match the regular expression")


@pytest.mark.parametrize("plural", ["daemonsets", "deployments"])
def test_selector_is_immutable(api: Api, apps: str, plural: str) -> None:
    body = {"daemonsets": daemon_set, "deployments": deployment}[plural]("a")
    api.create(f"{apps}/{plural}", body).ok()
    labels = {"app": "b"}
    change = {"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}}
    answer = api.patch(f"{apps}/{plural}/a", change)
    answer.fails(422, "Invalid", "field is immutable")
    assert answer.causes() == [("spec.selector", "FieldValueInvalid")]


def test_pod_spec_is_fixed(api: Api, core: str) -> None:
    api.create(f"{core}/pods", pod("a")).ok()
    answer = api.patch(f"{core}/pods/a", {"spec": {"restartPolicy": "Never"}})
    answer.fails(422, "Invalid", "pod updates may not change fields other than")
    assert answer.causes() == [("spec", "FieldValueForbidden")]


# --- subresources and others ---------------------------------------------------------------------------------------


def test_scale(api: Api, apps: str) -> None:
    made = api.create(f"{apps}/deployments", deployment("a", paused=True)).ok()
    path = f"{apps}/deployments/a/scale"
    scale = api.get(path).ok()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["metadata"]["uid"] == made["metadata"]["uid"]
    assert (scale["spec"], scale["status"]) == ({}, {"replicas": 0, "selector": "app=a"})
    scale["spec"]["replicas"] = 3
    del scale["metadata"]["resourceVersion"]  # the controller writes the Deployment's status meanwhile
    assert api.update(path, scale).ok()["spec"] == {"replicas": 3}
    assert api.get(f"{apps}/deployments/a").ok()["spec"]["replicas"] == 3
    answer = api.patch(path, {"spec": {"replicas": -1}})
    answer.fails(422, "Invalid", "must be greater than or equal to 0")


def test_binding(api: Api, cluster: Cluster, core: str) -> None:
    node = unique("contract")
    cluster.cleanup.add(f"/api/v1/nodes/{node}")
    api.create("/api/v1/nodes", {"metadata": {"name": node}}).ok()
    api.create(f"{core}/pods", pod("a")).ok()
    target = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": node}}
    answer = api.create(f"{core}/pods/a/binding", target)
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (201, "Status", "Success")
    bound = api.get(f"{core}/pods/a").ok()
    assert bound["spec"]["nodeName"] == node
    assert [item["status"] for item in bound["status"]["conditions"] if item["type"] == "PodScheduled"] == ["True"]
    again = api.create(f"{core}/pods/a/binding", target)
    again.fails(409, "Conflict", f'pod a is already assigned to node "{node}"')
    api.delete(f"{core}/pods/a", {"gracePeriodSeconds": 0}).ok()


def test_lease_is_taken_by_one(api: Api, namespace: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    made = api.create(
        leases, {"metadata": {"name": "a"}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 15}}
    ).ok()
    mine, yours = ({**made, "spec": {**made["spec"], "holderIdentity": who}} for who in ("me", "you"))
    assert api.update(f"{leases}/a", mine).ok()["spec"]["holderIdentity"] == "me"
    api.update(f"{leases}/a", yours).fails(409, "Conflict")
    assert api.get(f"{leases}/a").ok()["spec"]["holderIdentity"] == "me"
    negative = {"metadata": {"name": "b"}, "spec": {"leaseDurationSeconds": 0}}
    api.create(leases, negative).fails(422, "Invalid", "must be greater than 0")


def test_events_are_one_in_both_groups(api: Api, namespace: str, core: str) -> None:
    about = {"kind": "Pod", "namespace": namespace, "name": "p", "uid": "1"}
    event = {"metadata": {"name": "a"}, "involvedObject": about, "reason": "Why", "message": "what", "type": "Normal"}
    api.create(f"{core}/events", event).ok()
    found = api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/a").ok()
    assert (found["note"], found["regarding"]["name"], found["reason"]) == ("what", "p", "Why")


def test_role_reference_is_immutable(api: Api, namespace: str) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"}
    api.create(path, {"metadata": {"name": "a"}, "roleRef": reference, "subjects": []}).ok()
    answer = api.patch(f"{path}/a", {"roleRef": {"name": "two"}})
    answer.fails(422, "Invalid", "roleRef: Invalid value: ", "field is immutable")


def test_priority_and_runtime_class_of_a_pod(api: Api, core: str) -> None:
    made = api.create(f"{core}/pods", pod("a", priorityClassName="system-node-critical")).ok()["spec"]
    assert made["priority"] == 2000001000
    unknown = api.create(f"{core}/pods", pod("b", priorityClassName="nope"))
    unknown.fails(403, "Forbidden", "no PriorityClass with name nope was found")
    missing = api.create(f"{core}/pods", pod("c", runtimeClassName="nope"))
    missing.fails(403, "Forbidden", 'pod rejected: RuntimeClass "nope" not found')
