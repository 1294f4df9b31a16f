"""The operator under access control: what it is granted suffices, and a lacking permission is named."""

from collections.abc import Callable
from typing import Any

import pytest

from groundplane.lab import resources
from groundplane.lab.cluster import Lab, data

PATIENCE_S = 40.0
USER_AGENT = "gpu-operator"


def without(group: str, resource: str, verb: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """The shipped grants less one verb on one resource."""

    def take(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        taken = 0
        for document in documents:
            rules = []
            for rule in document.get("rules", []):
                if group in rule["apiGroups"] and resource in rule["resources"]:
                    others = [each for each in rule["resources"] if each != resource]
                    kept = [each for each in rule["verbs"] if each != verb]
                    taken += len(rule["verbs"]) - len(kept)
                    rules += [rule | {"resources": others}] if others else []
                    rules.append(rule | {"resources": [resource], "verbs": kept})
                else:
                    rules.append(rule)
            if "rules" in document:
                document["rules"] = rules
        assert taken == 1
        return documents

    return take


def refused(lab: Lab) -> list[tuple[str, str]]:
    return [
        (seen.verb, seen.resource)
        for seen in lab.faults.requests
        if seen.code == 403 and seen.user_agent.startswith(USER_AGENT)
    ]


async def test_what_the_operator_is_granted_suffices_from_bare_to_ready_and_back() -> None:
    async with Lab(hollow=3, rbac=True, operator_options={"leader_elect": True}) as lab:
        await lab.apply([data("guide-baseline.yaml")])
        await lab.wait_ready(timeout_s=PATIENCE_S)
        policy = data("guide-baseline.yaml")
        policy["spec"]["gfd"]["enabled"] = False
        await lab.apply([policy])
        await lab.wait_until(
            lambda: lab.api.find(resources.DAEMON_SETS, "gpu-feature-discovery", "gpu-operator") is None,
            timeout_s=PATIENCE_S,
            what="the switched-off operand to go",
        )
        assert refused(lab) == []
        assert any(seen.resource == "events" and seen.code < 300 for seen in lab.faults.requests)


def condition(lab: Lab, kind: str) -> dict[str, Any]:
    policies = lab.api.resource("clusterpolicies", group="nvidia.com")
    found = (lab.api.find(policies, "cluster-policy") or {}).get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})


@pytest.mark.parametrize(
    ("group", "resource", "verb", "there"),
    [
        ("apps", "daemonsets", "create", "nvidia-driver"),
        ("node.k8s.io", "runtimeclasses", "patch", None),
        ("", "services", "create", None),
    ],
)
async def test_a_lacking_permission_is_named_in_the_condition_and_an_event(
    monkeypatch: pytest.MonkeyPatch, group: str, resource: str, verb: str, there: str | None
) -> None:
    grants = without(group, resource, verb)(data("operator-rbac.yaml"))
    monkeypatch.setattr("groundplane.lab.cluster.data", lambda name: grants if "rbac" in name else data(name))
    async with Lab(hollow=2, rbac=True) as lab:
        await lab.apply([data("guide-baseline.yaml")])
        await lab.wait_until(
            lambda: condition(lab, "Error").get("status") == "True", timeout_s=PATIENCE_S, what="the error condition"
        )
        error = condition(lab, "Error")
        assert error["reason"] == "ReconcileFailed"
        assert resource in error["message"]
        assert "forbidden" in error["message"].lower()
        if there is not None:
            assert lab.api.find(resources.SERVICE_ACCOUNTS, there, "gpu-operator"), "what came before is there"

        def told() -> bool:
            events = lab.api.list(resources.EVENTS)["items"]
            return any(e["reason"] == "ReconcileFailed" and resource in e["message"] for e in events)

        await lab.wait_until(told, timeout_s=PATIENCE_S, what="the event")
        labels = [node["metadata"]["labels"] for node in lab.api.list(resources.NODES)["items"]]
        await lab.wait_until(
            lambda: all(
                node["metadata"]["labels"].get("nvidia.com/gpu.present") == "true"
                for node in lab.api.list(resources.NODES)["items"]
            ),
            timeout_s=PATIENCE_S,
            what="the nodes to be labelled all the same",
        )
        assert len(labels) == 2
