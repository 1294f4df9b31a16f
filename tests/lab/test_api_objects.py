# ruff: noqa: E501
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from groundplane.lab import access, resources
from groundplane.lab.api import Api, Options
from groundplane.lab.resources import Resource
from groundplane.lab.status import StatusError


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(clock: Clock) -> Api:
    return Api(clock, seed=4)


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


def daemon_set(name: str = "d", **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template, **spec}}


def failure(call: Any, *args: Any, **more: Any) -> StatusError:
    with pytest.raises(StatusError) as caught:
        call(*args, **more)
    return caught.value


def test_a_new_pod_has_the_defaults_of_the_real_server(api: Api) -> None:
    volumes = [{"name": "h", "hostPath": {"path": "/x"}}, {"name": "s", "secret": {"secretName": "s"}}, {"name": "e"}]
    made = api.create(resources.PODS, pod(volumes=volumes), "default")
    spec = made["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["serviceAccountName"] == "default"
    assert spec["priority"] == 0
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert spec["volumes"][0]["hostPath"] == {"path": "/x", "type": ""}
    assert spec["volumes"][1]["secret"]["defaultMode"] == 420
    assert spec["volumes"][2] == {"name": "e", "emptyDir": {}}
    assert {t["key"] for t in spec["tolerations"]} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"


def test_generation_follows_spec_and_equal_writes_change_nothing(api: Api) -> None:
    made = api.create(resources.DAEMON_SETS, daemon_set(), "default")
    assert made["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }
    assert api.update(resources.DAEMON_SETS, made) is made
    labelled = api.patch(resources.DAEMON_SETS, "d", {"metadata": {"labels": {"a": "b"}}}, ns="default", type="merge")
    assert labelled["metadata"]["generation"] == 1
    changed = api.patch(resources.DAEMON_SETS, "d", {"spec": {"minReadySeconds": 3}}, ns="default", type="merge")
    assert changed["metadata"]["generation"] == 2
    state = {
        "status": {"numberReady": 4, "currentNumberScheduled": 4, "desiredNumberScheduled": 4, "numberMisscheduled": 0}
    }
    status = api.patch(resources.DAEMON_SETS, "d", {**state, "spec": {"minReadySeconds": 9}}, ns="default", type="merge",
                       subresource="status")  # fmt: skip
    assert (status["status"]["numberReady"], status["spec"]["minReadySeconds"]) == (4, 3)
    assert status["metadata"]["generation"] == 2
    ignored = api.patch(resources.DAEMON_SETS, "d", {"status": {"numberReady": 1}}, ns="default", type="merge")
    assert ignored is status


CHANGES: list[tuple[str, Resource, dict[str, Any], dict[str, Any], str]] = [
    ("selector", resources.DAEMON_SETS, daemon_set("x"),
     {"spec": {"selector": {"matchLabels": {"app": "y"}}, "template": {"metadata": {"labels": {"app": "y"}}}}},
     "spec.selector"),
    ("pod command", resources.PODS, pod("x"), {"spec": {"nodeName": "n"}}, "pod updates may not change fields other than"),
    ("cluster ip", resources.SERVICES, {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}]}},
     {"spec": {"clusterIP": "10.96.9.9"}}, "spec.clusterIPs[0]: Invalid value"),
    ("role ref", resources.ROLE_BINDINGS,
     {"metadata": {"name": "x"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": []},
     {"roleRef": {"kind": "Role", "name": "q", "apiGroup": "rbac.authorization.k8s.io"}}, "roleRef: Invalid value"),
    ("uid", resources.CONFIG_MAPS, {"metadata": {"name": "x"}}, {"metadata": {"uid": "other"}}, "field is immutable"),
    ("secret type", resources.SECRETS, {"metadata": {"name": "x"}}, {"type": "other"}, "type: Invalid value"),
    ("revision", resources.CONTROLLER_REVISIONS, {"metadata": {"name": "x"}, "revision": 1, "data": {"a": 1}},
     {"data": {"a": 2}}, "field is immutable"),
    ("runtime class", resources.PRIORITY_CLASSES, {"metadata": {"name": "x"}, "value": 1}, {"value": 2}, "value: Invalid"),
]  # fmt: skip


@pytest.mark.parametrize(("res", "made", "patch", "text"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_immutable_fields(api: Api, res: Resource, made: dict[str, Any], patch: dict[str, Any], text: str) -> None:
    ns = "default" if res.namespaced else None
    api.create(res, made, ns)
    assert text in failure(api.patch, res, "x", patch, ns=ns, type="merge").message


def test_image_and_further_tolerations_of_a_pod_may_change(api: Api) -> None:
    made = api.create(resources.PODS, pod(), "default")
    more = [*made["spec"]["tolerations"], {"operator": "Exists"}]
    patch = {"spec": {"containers": [{"name": "c", "image": "i:2"}], "tolerations": more}}
    after = api.patch(resources.PODS, "p", patch, ns="default", type="strategic")
    assert after["spec"]["containers"][0]["image"] == "i:2"
    assert len(after["spec"]["tolerations"]) == 3


def test_stale_and_foreign_updates_conflict(api: Api) -> None:
    made = api.create(resources.CONFIG_MAPS, {"metadata": {"name": "c"}}, "default")
    api.patch(resources.CONFIG_MAPS, "c", {"data": {"a": "1"}}, ns="default", type="merge")
    error = failure(api.update, resources.CONFIG_MAPS, {**made, "data": {"b": "2"}})
    assert (error.code, error.reason) == (409, "Conflict")
    assert "the object has been modified; please apply your changes to the latest version" in error.message
    assert failure(api.create, resources.CONFIG_MAPS, {"metadata": {"name": "c"}}, "default").reason == "AlreadyExists"
    stale = {"resourceVersion": made["metadata"]["resourceVersion"]}
    assert failure(api.delete, resources.CONFIG_MAPS, "c", "default", preconditions=stale).code == 409


BAD: list[tuple[Resource, dict[str, Any], int, str]] = [
    (resources.PODS, pod(volumes=[{"name": "a"}, {"name": "a"}]), 422, 'spec.volumes[1].name: Duplicate value: "a"'),
    (resources.PODS, pod(restartPolicy="Maybe"), 422, "spec.restartPolicy: Unsupported value"),
    (resources.PODS, pod(runtimeClassName="nvidia"), 403, 'RuntimeClass "nvidia" not found'),
    (resources.PODS, pod(hostNetwork="yes"), 400, "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool"),
    (resources.PODS, {"metadata": {"name": "x", "labels": {"a": "b c"}}, "spec": pod()["spec"]}, 422, "metadata.labels"),
    (resources.PODS, {"metadata": {"name": "x"}, "spec": {}}, 422, "spec.containers: Required value"),
    (resources.DAEMON_SETS, daemon_set(updateStrategy={"type": "Never"}), 422, "spec.updateStrategy: Unsupported value"),
    (resources.DAEMON_SETS, {"metadata": {"name": "x"}, "spec": {}}, 422, "`selector` does not match template `labels`"),
    (resources.CONFIG_MAPS, {"metadata": {"name": "x"}, "data": {"a/b": "1"}}, 422, "a valid config key must consist"),
    (resources.ROLES, {"metadata": {"name": "x"}, "rules": [{"apiGroups": [""], "resources": ["pods"]}]}, 422, "verbs"),
    (resources.NAMESPACES, {"metadata": {"name": "a.b"}}, 422, "must not contain dots"),
    (resources.CONFIG_MAPS, {"metadata": {"resourceVersion": "3", "name": "x"}}, 500, "resourceVersion should not be set"),
]  # fmt: skip


@pytest.mark.parametrize(("res", "obj", "code", "text"), BAD)
def test_bad_objects_are_refused(api: Api, res: Resource, obj: dict[str, Any], code: int, text: str) -> None:
    error = failure(api.create, res, obj, "default" if res.namespaced else None)
    assert error.code == code
    assert text in error.message


def test_unknown_fields_warn_or_are_dropped(api: Api) -> None:
    options = Options(validation="Warn", warnings=[], duplicates=[])
    made = api.create(resources.PODS, {**pod(), "sepc": 1}, "default", options=options)
    assert options.warnings == ['unknown field "sepc"']
    assert "sepc" not in made


def test_graceful_deletion_of_a_running_pod(api: Api, clock: Clock) -> None:
    api.create(resources.PODS, pod(), "default")
    api.bind("p", "default", "n1")
    marked = api.delete(resources.PODS, "p", "default")
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert api.delete(resources.PODS, "p", "default", grace_period_s=60) is marked
    sooner = api.delete(resources.PODS, "p", "default", grace_period_s=5)
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
    api.delete(resources.PODS, "p", "default", grace_period_s=0)
    assert api.find(resources.PODS, "p", "default") is None


def test_finalizers_and_propagation(api: Api) -> None:
    api.create(resources.CONFIG_MAPS, {"metadata": {"name": "c", "finalizers": ["example.com/hold"]}}, "default")
    marked = api.delete(resources.CONFIG_MAPS, "c", "default", propagation="Foreground")
    assert marked["metadata"]["finalizers"] == ["example.com/hold", "foregroundDeletion"]
    more = {"metadata": {"finalizers": ["example.com/hold", "foregroundDeletion", "x.y/z"]}}
    assert "no new finalizers can be added" in failure(
        api.patch, resources.CONFIG_MAPS, "c", more, ns="default", type="merge"
    ).message  # fmt: skip
    api.patch(resources.CONFIG_MAPS, "c", {"metadata": {"finalizers": None}}, ns="default", type="merge")
    assert api.find(resources.CONFIG_MAPS, "c", "default") is None


def test_namespaces_hold_until_finalized_and_take_nothing_new(api: Api) -> None:
    api.create(resources.NAMESPACES, {"metadata": {"name": "n"}})
    marked = api.delete(resources.NAMESPACES, "n")
    assert marked["status"]["phase"] == "Terminating"
    error = failure(api.create, resources.CONFIG_MAPS, {"metadata": {"name": "c"}}, "n")
    assert "unable to create new content in namespace n because it is being terminated" in error.message
    api.update(resources.NAMESPACES, {**marked, "spec": {"finalizers": []}}, subresource="finalize")
    assert api.find(resources.NAMESPACES, "n") is None
    assert failure(api.create, resources.CONFIG_MAPS, {"metadata": {"name": "c"}}, "n").code == 404


def test_eviction_honours_budgets(api: Api) -> None:
    api.create(resources.PODS, {**pod(), "metadata": {"name": "p", "labels": {"app": "x"}}}, "default")
    api.bind("p", "default", "n1")
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api.patch(resources.PODS, "p", {"status": running}, ns="default", type="merge", subresource="status")
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    api.create(resources.POD_DISRUPTION_BUDGETS, budget, "default")
    error = failure(api.evict, "p", "default")
    assert (error.code, error.retry_after_s, error.details["causes"][0]["reason"]) == (429, 10, "DisruptionBudget")
    state: dict[str, Any] = {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1,
                             "expectedPods": 1}  # fmt: skip
    where: dict[str, Any] = {"ns": "default", "type": "merge", "subresource": "status"}
    api.patch(resources.POD_DISRUPTION_BUDGETS, "b", {"status": state}, **where)
    text = "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert failure(api.evict, "p", "default").details["causes"][0]["message"] == text
    api.patch(resources.POD_DISRUPTION_BUDGETS, "b", {"status": {**state, "disruptionsAllowed": 1}}, **where)
    assert api.evict("p", "default")["metadata"]["deletionTimestamp"]
    left = api.get(resources.POD_DISRUPTION_BUDGETS, "b", "default")["status"]
    assert (left["disruptionsAllowed"], list(left["disruptedPods"])) == (0, ["p"])


def crd(**schema: Any) -> dict[str, Any]:
    properties = {
        "spec": {"type": "object", "properties": schema},
        "status": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
               "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}  # fmt: skip
    names = {"plural": "things", "kind": "Thing"}
    spec = {"group": "x.io", "scope": "Cluster", "names": names, "versions": [version]}
    return {"metadata": {"name": "things.x.io"}, "spec": spec}


def test_custom_resources_are_defaulted_validated_and_deleted_with_their_definition(api: Api) -> None:
    fields = {
        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "size": {"x-kubernetes-int-or-string": True},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "x-kubernetes-list-type": "set"},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "is fixed"}]},
    }
    made = api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, crd(**fields))
    conditions = {item["type"]: item["status"] for item in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    things = api.resource("things", group="x.io")
    body = {"metadata": {"name": "t"}, "spec": {"size": "50%", "open": {"any": [1]}, "fixed": "x"}, "status": {"a": 1}}
    thing = api.create(things, body)
    assert thing["spec"] == {"size": "50%", "open": {"any": [1]}, "fixed": "x", "mode": "a"}
    assert "status" not in thing
    for patch, text in {
        "mode": ("c", 'spec.mode: Unsupported value: "c": supported values: "a", "b"'),
        "tags": (["A"], "should match '^[a-z]+$'"),
        "size": (1.5, 'must be of type integer,string: "number"'),
        "fixed": ("y", "is fixed"),
    }.items():
        value, message = text
        assert message in failure(api.patch, things, "t", {"spec": {patch: value}}, type="merge").message
    assert failure(api.patch, things, "t", {"spec": {}}, type="strategic").code == 415
    api.delete(resources.CUSTOM_RESOURCE_DEFINITIONS, "things.x.io")
    assert failure(api.resource, "things", group="x.io").code == 404
    assert api.find(resources.CUSTOM_RESOURCE_DEFINITIONS, "things.x.io") is None


def test_a_definition_with_a_rule_beyond_the_lab_is_refused(api: Api) -> None:
    rule = {"type": "string", "x-kubernetes-validations": [{"rule": "self.all(x, x > 1)"}]}
    error = failure(api.create, resources.CUSTOM_RESOURCE_DEFINITIONS, crd(field=rule))
    assert "the lab evaluates a small part of CEL" in error.message


def test_rbac_says_yes_by_roles_only(api: Api) -> None:
    api.rbac = True
    robot = access.account_user("default", "robot")
    wanted = access.Attributes("patch", "", "nodes")
    error = failure(access.check, api, robot, wanted)
    text = (
        'nodes is forbidden: User "system:serviceaccount:default:robot" cannot patch resource "nodes" in API group "" '
    )
    assert error.message == text + "at the cluster scope"
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
    api.create(resources.CLUSTER_ROLES, {"metadata": {"name": "r"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    binding = {"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [subject]}
    api.create(resources.CLUSTER_ROLE_BINDINGS, binding)
    access.check(api, robot, wanted)
    assert not access.allowed(api, robot, access.Attributes("patch", "", "nodes", "status"))


def test_lists_pages_and_past_revisions(api: Api) -> None:
    for name in "abcde":
        api.create(resources.CONFIG_MAPS, {"metadata": {"name": name, "labels": {"n": name}}}, "default")
    first = api.list(resources.CONFIG_MAPS, limit=2)
    assert first["metadata"]["remainingItemCount"] == 3
    api.delete(resources.CONFIG_MAPS, "d", "default")
    second = api.list(resources.CONFIG_MAPS, limit=5, cont=first["metadata"]["continue"])
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d", "e"]
    exact = api.list(resources.CONFIG_MAPS, resource_version=first["metadata"]["resourceVersion"], match="Exact")
    assert len(exact["items"]) == 5
    assert [i["metadata"]["name"] for i in api.list(resources.CONFIG_MAPS, labels="n in (a,b),n!=b")["items"]] == ["a"]
    assert failure(api.list, resources.CONFIG_MAPS, resource_version="99999").code == 504
    api.compact()
    expired = failure(api.list, resources.CONFIG_MAPS, cont=first["metadata"]["continue"])
    assert (expired.code, expired.reason) == (410, "Expired")


async def test_watch_translates_selector_changes(api: Api) -> None:
    watch = api.watch(resources.CONFIG_MAPS, "default", labels="on=1", resource_version=str(api.store.revision))
    api.create(resources.CONFIG_MAPS, {"metadata": {"name": "c"}}, "default")
    for value in ("1", "2", "1"):
        api.patch(resources.CONFIG_MAPS, "c", {"metadata": {"labels": {"on": value}}}, ns="default", type="merge")
    api.patch(resources.CONFIG_MAPS, "c", {"data": {"k": "v"}}, ns="default", type="merge")
    api.delete(resources.CONFIG_MAPS, "c", "default")
    kinds = [kind for kind, _ in watch.take()]
    assert kinds == ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
    watch.close()


def test_watch_from_a_compacted_revision_is_gone(api: Api) -> None:
    start = str(api.store.revision)
    api.create(resources.CONFIG_MAPS, {"metadata": {"name": "c"}}, "default")
    api.compact()
    assert failure(api.watch, resources.CONFIG_MAPS, resource_version=start).message.startswith(
        "too old resource version"
    )


@pytest.mark.parametrize(
    ("res", "fields", "found"),
    [
        (resources.PODS, "spec.nodeName=n1", ["p"]),
        (resources.PODS, "spec.nodeName!=n1,status.phase=Pending", ["q"]),
        (resources.PODS, "metadata.name=q", ["q"]),
        (resources.NAMESPACES, "metadata.name=default", ["default"]),
    ],
)
def test_field_selectors(api: Api, res: Resource, fields: str, found: list[str]) -> None:
    for name in "pq":
        api.create(resources.PODS, pod(name), "default")
    api.bind("p", "default", "n1")
    assert [item["metadata"]["name"] for item in api.list(res, fields=fields)["items"]] == found


def test_both_kinds_of_events_are_the_same_objects(api: Api, clock: Clock) -> None:
    made = {
        "metadata": {"name": "e"}, "note": "hello", "reason": "R", "type": "Normal", "action": "A",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "reportingController": "c",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingInstance": "i",
    }  # fmt: skip
    api.create(resources.EVENTS_V1, made, "default")
    core = api.get(resources.EVENTS, "e", "default")
    assert (core["message"], core["involvedObject"]["name"], core["apiVersion"]) == ("hello", "p", "v1")
    assert api.get(resources.EVENTS_V1, "e", "default")["note"] == "hello"
    assert len(api.list(resources.EVENTS, fields="involvedObject.name=p,reason=R")["items"]) == 1


def test_generated_names_and_dry_runs(api: Api, clock: Clock) -> None:
    made = api.create(resources.CONFIG_MAPS, {"metadata": {"generateName": "x-"}}, "default")
    assert made["metadata"]["name"].startswith("x-")
    assert len(made["metadata"]["name"]) == 7
    before = api.store.revision
    assert api.create(resources.CONFIG_MAPS, {"metadata": {"name": "dry"}}, "default", dry_run=True)["metadata"]["uid"]
    assert api.find(resources.CONFIG_MAPS, "dry", "default") is None
    clock.time += timedelta(seconds=1)
    assert api.store.revision == before
