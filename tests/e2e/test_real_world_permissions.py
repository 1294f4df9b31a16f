"""The operator without a permission: named exactly, felt only where it is needed, over once it is granted."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
import pytest

from groundplane.api import names
from groundplane.lab import resources
from groundplane.lab.cluster import Lab, data
from groundplane.operator.process import Operator

PATIENCE_S = 40.0
SPEED = 20.0
USER = "system:serviceaccount:gpu-operator:gpu-operator"
ROLES = {"ClusterRole": resources.CLUSTER_ROLES, "Role": resources.ROLES}
_shipped: WeakKeyDictionary[Lab, list[dict[str, Any]]] = WeakKeyDictionary()
"""The operator's roles as a lab made them: its own rights, and those that it hands on."""
Missing = tuple[str, str, str]
"""API group, resource and verb."""


def less(rules: Iterable[dict[str, Any]], missing: Iterable[Missing]) -> list[dict[str, Any]]:
    """Rules without some permissions, one resource a rule."""
    gone = set(missing)
    found = []
    for rule in rules:
        for resource in rule["resources"]:
            kept = [verb for verb in rule["verbs"] if (rule["apiGroups"][0], resource, verb) not in gone]
            if kept:
                found.append({**rule, "resources": [resource], "verbs": kept})
    return found


def policy(*off: str) -> dict[str, Any]:
    """A policy that needs every permission, with some components off."""
    document: dict[str, Any] = data("guide-baseline.yaml")
    document["spec"]["psa"] = {"enabled": True}
    for section in off:
        document["spec"][section]["enabled"] = False
    return document


def grant(lab: Lab, *, but: Iterable[Missing] = ()) -> None:
    """Give the operator what it is shipped with, less some permissions."""
    if lab not in _shipped:
        _shipped[lab] = [
            document
            for resource in ROLES.values()
            for document in lab.api.list(resource)["items"]
            if document["metadata"]["name"].startswith("gpu-operator")
        ]
    for document in _shipped[lab]:
        meta, resource = document["metadata"], ROLES[document["kind"]]
        live = lab.api.get(resource, meta["name"], meta.get("namespace"))
        lab.api.update(resource, {**live, "rules": less(document["rules"], but)}, manager="admin")


@contextlib.asynccontextmanager
async def lab_without(*missing: Missing, nodes: int = 2, **options: Any) -> AsyncIterator[Lab]:
    """A lab whose operator starts without some permissions, and a policy for it."""
    async with Lab(
        hollow=nodes, rbac=True, operator=False, speed=SPEED, operator_on_cluster_time=True, operator_options=options
    ) as lab:
        grant(lab, but=missing)
        await lab.apply([policy()])
        lab.start_operator()
        yield lab


def condition(lab: Lab, kind: str = "Error") -> dict[str, Any]:
    policies = lab.api.resource("clusterpolicies", group="nvidia.com")
    found = (lab.api.find(policies, "cluster-policy") or {}).get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})


def events(lab: Lab, word: str) -> list[dict[str, Any]]:
    found = lab.api.list(resources.EVENTS)["items"]
    return [each for each in found if each["involvedObject"]["kind"] == "ClusterPolicy" and word in each["message"]]


async def until(lab: Lab, what: str, done: Any) -> None:
    await lab.wait_until(done, timeout_s=PATIENCE_S, what=what)


async def operator_of(lab: Lab) -> Operator:
    """The operator, once its process has come so far."""
    await until(lab, "the operator", lambda: lab.operator is not None and lab.operator.health_port)
    assert lab.operator is not None
    return lab.operator


async def readyz(lab: Lab) -> tuple[int, str]:
    assert lab.operator is not None
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{lab.operator.health_port}/readyz") as answer,
    ):
        return answer.status, await answer.text()


def labelled(lab: Lab) -> bool:
    nodes = lab.api.list(resources.NODES)["items"]
    return all(node["metadata"]["labels"].get(names.GPU_PRESENT) == "true" for node in nodes)


def has(lab: Lab, name: str) -> bool:
    return lab.api.find(resources.DAEMON_SETS, name, "gpu-operator") is not None


RBAC = "rbac.authorization.k8s.io"
NS = 'in namespace "gpu-operator"'
EVERYWHERE = "in the whole cluster"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("apps", "daemonsets", "list"), f'list daemonsets in API group "apps" {NS}'),
        (("apps", "daemonsets", "watch"), f'watch daemonsets in API group "apps" {NS}'),
        (("", "configmaps", "list"), f'list configmaps in API group "" {NS}'),
        (("apps", "controllerrevisions", "watch"), f'watch controllerrevisions in API group "apps" {NS}'),
        ((RBAC, "clusterroles", "list"), f'list clusterroles in API group "{RBAC}" {EVERYWHERE}'),
        (("node.k8s.io", "runtimeclasses", "watch"), f'watch runtimeclasses in API group "node.k8s.io" {EVERYWHERE}'),
        (("", "nodes", "list"), f'list nodes in API group "" {EVERYWHERE}'),
        (("", "nodes", "patch"), f'patch nodes in API group "" {EVERYWHERE}'),
        (("", "pods", "list"), f'list pods in API group "" {NS}'),
        (("", "namespaces", "list"), f'list namespaces in API group "" {EVERYWHERE}'),
        (("", "namespaces", "patch"), f'patch namespaces in API group "" {NS}'),
        (
            ("apiextensions.k8s.io", "customresourcedefinitions", "list"),
            f'list customresourcedefinitions in API group "apiextensions.k8s.io" {EVERYWHERE}',
        ),
        (("", "services", "create"), f'create services in API group "" {NS} (state-dcgm-exporter: Service '),
        (
            ("apps", "daemonsets", "patch"),
            f'patch daemonsets in API group "apps" {NS} (gpu-feature-discovery: DaemonSet gpu-operator/gpu-feature',
        ),
    ],
)
async def test_every_missing_permission_is_named_and_its_grant_is_noticed(missing: Missing, said: str) -> None:
    async with lab_without(missing) as lab:
        await until(lab, said, lambda: said in condition(lab).get("message", ""))
        error = condition(lab)
        assert (error["status"], error["reason"]) == ("True", "ReconcileFailed")
        assert condition(lab, "Ready")["status"] == "False"
        assert f'user "{USER}"' in error["message"]
        assert "helm upgrade" in error["message"]
        await until(lab, "the event", lambda: events(lab, said))
        _, text = await readyz(lab)
        assert said.partition(" (")[0] in text
        assert lab.operator is not None
        assert lab.operator.metrics.get("missing_permissions") >= 1
        assert lab.operator.metrics.get("reconciliation_status") <= 0
        grant(lab)
        await lab.wait_ready(timeout_s=PATIENCE_S)
        assert condition(lab)["status"] == "False"
        assert await readyz(lab) == (200, "ok")
        assert lab.operator.metrics.get("missing_permissions") == 0


async def test_what_does_not_need_the_permission_is_done_all_the_same() -> None:
    async with lab_without(("", "services", "create"), ("", "configmaps", "list"), (RBAC, "roles", "watch")) as lab:
        await until(lab, "the nodes' labels", lambda: labelled(lab))
        await until(lab, "the last operand", lambda: has(lab, "nvidia-mig-manager"))
        await until(lab, "the refusal", lambda: 'create services in API group ""' in condition(lab).get("message", ""))
        message = condition(lab)["message"]
        assert 'list configmaps in API group ""' in message
        assert f'watch roles in API group "{RBAC}"' in message
        assert lab.api.find(resources.CONFIG_MAPS, "default-mig-parted-config", "gpu-operator") is None


async def test_many_missing_permissions_are_one_condition_and_one_event() -> None:
    kinds = [("", "services"), ("", "configmaps"), ("", "serviceaccounts"), ("apps", "daemonsets"), (RBAC, "roles")]
    kinds += [(RBAC, "rolebindings"), (RBAC, "clusterroles"), (RBAC, "clusterrolebindings")]
    kinds += [("node.k8s.io", "runtimeclasses"), ("apps", "controllerrevisions"), ("", "namespaces")]
    async with lab_without(*[(group, resource, "list") for group, resource in kinds]) as lab:
        await until(lab, "the error", lambda: condition(lab).get("status") == "True")
        message = condition(lab)["message"]
        assert message.count(" in API group ") == 10
        assert "and 1 more" in message
        assert "helm upgrade" in message
        await until(lab, "the event", lambda: events(lab, "forbidden"))
        await lab.clock.sleep(60.0)
        assert len(events(lab, "forbidden")) == 1
        assert lab.operator is not None
        assert lab.operator.metrics.get("missing_permissions") == len(kinds)


async def test_a_permission_lost_on_the_way_is_noticed_and_stale_objects_are_left_alone() -> None:
    async with lab_without() as lab:
        await lab.wait_ready(timeout_s=PATIENCE_S)
        grant(lab, but=[("", "services", "watch"), ("", "services", "list")])
        lab.faults.drop_watches()
        await until(lab, "the error", lambda: "services in API group" in condition(lab).get("message", ""))
        lab.api.delete(resources.SERVICES, "gpu-operator", "gpu-operator")
        await lab.apply([policy("gfd")])
        await until(lab, "the switched-off operand to go", lambda: not has(lab, "gpu-feature-discovery"))
        assert lab.api.find(resources.SERVICES, "gpu-operator", "gpu-operator") is None
        grant(lab)
        await lab.wait_ready(timeout_s=PATIENCE_S)
        assert lab.api.find(resources.SERVICES, "gpu-operator", "gpu-operator") is not None


async def test_a_refused_deletion_names_the_object_and_holds_up_no_other() -> None:
    async with lab_without(("apps", "daemonsets", "delete")) as lab:
        await lab.wait_ready(timeout_s=PATIENCE_S)
        await lab.apply([policy("gfd", "migManager")])
        said = f'delete daemonsets in API group "apps" {NS} (gpu-feature-discovery: DaemonSet gpu-operator/gpu-feature'
        await until(lab, said, lambda: said in condition(lab).get("message", ""))
        assert "state-mig-manager: DaemonSet gpu-operator/nvidia-mig-manager" in condition(lab)["message"]
        accounts = resources.SERVICE_ACCOUNTS
        await until(
            lab, "what may go to go", lambda: lab.api.find(accounts, "nvidia-mig-manager", "gpu-operator") is None
        )
        grant(lab)
        await until(lab, "the rest to go", lambda: not has(lab, "nvidia-mig-manager"))
        await lab.wait_ready(timeout_s=PATIENCE_S)


async def test_a_thousand_nodes_that_may_not_be_written_cost_few_requests() -> None:
    async with lab_without(("", "nodes", "patch"), nodes=1000) as lab:
        await until(lab, "the error", lambda: "patch nodes" in condition(lab).get("message", ""))
        lab.faults.requests.clear()
        await lab.clock.sleep(120.0)
        refused = [seen for seen in lab.faults.requests if seen.code == 403 and seen.resource == "nodes"]
        assert 2 <= len(refused) <= 40
        grant(lab)
        await until(lab, "the labels", lambda: labelled(lab))


@pytest.mark.parametrize(
    ("missing", "code"),
    [(("nvidia.com", "clusterpolicies/status", "patch"), 503), (("", "events", "create"), 200)],
)
async def test_what_cannot_be_said_in_the_policy_is_said_by_the_operator(missing: Missing, code: int) -> None:
    group, resource, verb = missing
    async with lab_without(missing) as lab:
        operator = await operator_of(lab)
        await until(lab, "the refusal", lambda: operator.metrics.get("missing_permissions") == 1)
        status, text = await readyz(lab)
        assert status == code
        assert f'{verb} {resource} in API group "{group}"' in text
        await until(lab, "the last operand", lambda: has(lab, "nvidia-mig-manager"))
        grant(lab)
        await lab.wait_ready(timeout_s=PATIENCE_S)
        await until(lab, "the event of what happened", lambda: events(lab, "reconciled"))
        assert await readyz(lab) == (200, "ok")


async def test_an_operator_that_may_not_see_policies_says_so_and_waits() -> None:
    async with lab_without(("nvidia.com", "clusterpolicies", "list")) as lab:
        operator = await operator_of(lab)
        await until(lab, "the refusal", lambda: operator.metrics.get("missing_permissions") == 1)
        status, text = await readyz(lab)
        assert status == 503
        assert "clusterpolicies.nvidia.com" in text
        assert not labelled(lab)
        grant(lab)
        await lab.wait_ready(timeout_s=PATIENCE_S)
        assert await readyz(lab) == (200, "ok")


async def test_a_candidate_that_may_not_take_the_lease_says_so() -> None:
    missing = ("coordination.k8s.io", "leases", "get")
    async with lab_without(missing, leader_elect=True, renew_deadline_s=10.0) as lab:
        operator = await operator_of(lab)
        await until(lab, "the refusal", lambda: operator.metrics.get("missing_permissions") == 1)
        status, text = await readyz(lab)
        assert status == 503
        assert text.startswith("the lease may not be taken")
        assert 'get leases in API group "coordination.k8s.io"' in text
        grant(lab)
        await lab.wait_ready(timeout_s=PATIENCE_S)
        assert await readyz(lab) == (200, "ok")


# --- NVIDIADrivers ----------------------------------------------------------------------------------------------------


def nvidia_driver(name: str, **spec: Any) -> dict[str, Any]:
    image = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580.126.20"}
    manager = {"repository": "nvcr.io/nvidia/cloud-native", "image": "k8s-driver-manager", "version": "v0.12.0"}
    head = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}}
    return {**head, "spec": {**image, "manager": manager, **spec}}


def driver_state(lab: Lab, name: str) -> str:
    found = lab.api.find(lab.api.resource("nvidiadrivers", group="nvidia.com"), name) or {}
    return str(found.get("status", {}).get("state", ""))


@pytest.mark.parametrize("by_crd", [False, True])
async def test_without_leave_to_list_nvidiadrivers_the_policy_is_carried_out_and_told(by_crd: bool) -> None:
    missing, said = (
        ("nvidia.com", "nvidiadrivers", "list"),
        f'list nvidiadrivers in API group "nvidia.com" {EVERYWHERE}',
    )
    async with lab_without(missing) as lab:
        lab.api.patch(
            lab.api.resource("clusterpolicies", group="nvidia.com"),
            "cluster-policy",
            {"spec": {"driver": {"useNvidiaDriverCRD": by_crd}}},
            type="merge",
        )
        await until(lab, said, lambda: said in condition(lab).get("message", ""))
        await until(lab, "an operand", lambda: has(lab, "nvidia-dcgm-exporter"))
        await until(lab, "the policy's driver", lambda: has(lab, "nvidia-driver-daemonset") is not by_crd)
        await until(lab, "the nodes", lambda: labelled(lab))
        assert said in (await readyz(lab))[1]
        grant(lab)
        await lab.wait_ready(timeout_s=PATIENCE_S)
        assert await readyz(lab) == (200, "ok")


async def test_without_leave_to_write_their_status_every_nvidiadriver_is_deployed() -> None:
    missing = ("nvidia.com", "nvidiadrivers/status", "patch")
    said = f'patch nvidiadrivers/status in API group "nvidia.com" {EVERYWHERE}'
    async with lab_without(missing) as lab:
        lab.api.patch(
            lab.api.resource("clusterpolicies", group="nvidia.com"),
            "cluster-policy",
            {"spec": {"driver": {"useNvidiaDriverCRD": True}}},
            type="merge",
        )
        first = lab.api.list(resources.NODES)["items"][0]["metadata"]["name"]
        lab.api.patch(resources.NODES, first, {"metadata": {"labels": {"example.com/team": "red"}}}, type="merge")
        await lab.apply(
            [nvidia_driver("all", default=True), nvidia_driver("red", nodeSelector={"example.com/team": "red"})]
        )

        def deployed() -> set[str]:
            sets = lab.api.list(resources.DAEMON_SETS, "gpu-operator")["items"]
            owners = [each["metadata"].get("ownerReferences", [{}])[0] for each in sets]
            return {each["name"] for each in owners if each.get("kind") == "NVIDIADriver"}

        await until(lab, "both drivers", lambda: deployed() == {"all", "red"})
        assert lab.operator is not None
        await until(lab, "the denial", lambda: lab.operator.metrics.get("missing_permissions") == 1)  # type: ignore[union-attr]
        assert said in (await readyz(lab))[1]
        grant(lab)
        await until(lab, "their status", lambda: driver_state(lab, "all") == driver_state(lab, "red") == "ready")
        await until(lab, "nothing missing", lambda: lab.operator.metrics.get("missing_permissions") == 0)  # type: ignore[union-attr]
