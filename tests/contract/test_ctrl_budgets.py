"""PodDisruptionBudgets and evictions: what a budget allows, and what the API server says when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from contract.ctrl_plane import Document, Plane, condition, counts
from contract.engines import Answer

STATUS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."


def workload(plane: Plane, replicas: int, ready: int) -> list[str]:
    """The pods of a ReplicaSet, the first of them ready; their names."""
    plane.node("a")
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "w"}}, "template": plane.template("w")}
    plane.make("replicasets", "w", spec=spec)
    plane.until(lambda: len(plane.by_node("app=w")) >= 1 and len(plane.owned("app=w")) == replicas, "the pods")
    plane.until(lambda: all(pod["spec"].get("nodeName") for pod in plane.owned("app=w")), "the pods to be bound")
    names = [pod["metadata"]["name"] for pod in plane.owned("app=w")]
    for name in names[:ready]:
        plane.runs(name)
    for name in names[ready:]:
        plane.report(name, "Running")
    return names


def budget(plane: Plane, **spec: Any) -> Document:
    return plane.make("poddisruptionbudgets", "b", spec={"selector": {"matchLabels": {"app": "w"}}, **spec})


def says(plane: Plane, *wanted: int) -> Document:
    """Wait until allowed, healthy, desired and expected are these."""

    def look() -> Document:
        found = plane.read("poddisruptionbudgets", "b")
        seen = counts(found, *STATUS)
        assert seen == wanted, f"{seen} is not {wanted}"
        assert found["status"].get("observedGeneration") == found["metadata"]["generation"]
        return found

    return plane.until(look, "the budget's status")


def evict(plane: Plane, name: str, **options: Any) -> Answer:
    body: Document = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": plane.space},
    }
    return plane.api.create(plane.path("pods", name, "eviction"), {**body, **options})


def going(plane: Plane, name: str) -> bool:
    found = plane.get("pods", name)
    return found is None or "deletionTimestamp" in found["metadata"]


def allowed(found: Document) -> tuple[str, str]:
    said = condition(found, "DisruptionAllowed")
    assert said is not None
    return said["status"], said["reason"]


@pytest.mark.parametrize(
    ("spec", "numbers", "condition_says"),
    [
        ({"minAvailable": 1}, (2, 3, 1, 4), ("True", "SufficientPods")),
        ({"minAvailable": 3}, (0, 3, 3, 4), ("False", "InsufficientPods")),
        ({"minAvailable": "50%"}, (1, 3, 2, 4), ("True", "SufficientPods")),
        ({"minAvailable": "60%"}, (0, 3, 3, 4), ("False", "InsufficientPods")),
        ({"maxUnavailable": 1}, (0, 3, 3, 4), ("False", "InsufficientPods")),
        ({"maxUnavailable": 2}, (1, 3, 2, 4), ("True", "SufficientPods")),
        ({"maxUnavailable": "30%"}, (1, 3, 2, 4), ("True", "SufficientPods")),
        ({"maxUnavailable": 10}, (3, 3, 0, 4), ("True", "SufficientPods")),
    ],
    ids=["min-1", "min-3", "min-50%", "min-60%", "max-1", "max-2", "max-30%", "max-10"],
)
def test_numbers(plane: Plane, spec: Document, numbers: Any, condition_says: Any) -> None:
    """Of four pods, one is not ready."""
    workload(plane, 4, 3)
    budget(plane, **spec)
    found = says(plane, *numbers)
    assert allowed(found) == condition_says


def test_no_pods(plane: Plane) -> None:
    budget(plane, minAvailable=1)
    found = says(plane, 0, 0, 1, 0)
    assert allowed(found) == ("False", "InsufficientPods")


def test_evictions_use_the_budget_up(plane: Plane) -> None:
    first, second = workload(plane, 2, 2)
    budget(plane, minAvailable=1)
    says(plane, 1, 2, 1, 2)
    answer = evict(plane, first)
    assert answer.status == 201
    assert (answer.body["kind"], answer.body["status"]) == ("Status", "Success")
    assert going(plane, first)
    said = condition(plane.read("pods", first), "DisruptionTarget")
    assert said is not None
    assert (said["status"], said["reason"], said["message"]) == (
        "True",
        "EvictionByEvictionAPI",
        "Eviction API: evicting",
    )
    says(plane, 0, 1, 1, 3)
    refused = evict(plane, second)
    body = refused.fails(429, "TooManyRequests")
    assert body["message"] == REFUSED
    assert body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
        }
    ]
    assert "retry-after" not in refused.headers
    assert not going(plane, second)


def test_an_evicted_pod_is_noted_until_it_goes(plane: Plane) -> None:
    first, _ = workload(plane, 2, 2)
    budget(plane, minAvailable=1)
    says(plane, 1, 2, 1, 2)
    evict(plane, first).ok()
    plane.until(
        lambda: "disruptedPods" not in plane.read("poddisruptionbudgets", "b")["status"], "the note to be taken back"
    )
    plane.ends(first)


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_pods_that_do_not_run_may_go(plane: Plane, phase: str) -> None:
    plane.node("a")
    plane.pod("p", {"app": "w"}, nodeName=plane.node_name("a"))
    if phase != "Pending":
        plane.report("p", phase)
    budget(plane, minAvailable=1)
    says(plane, 0, 0, 1, 1)
    evict(plane, "p").ok()
    assert going(plane, "p")


@pytest.mark.parametrize(
    ("policy", "may_go"), [(None, False), ("IfHealthyBudget", False), ("AlwaysAllow", True)],
    ids=["default", "if-healthy", "always"],
)  # fmt: skip
def test_unready_pods_of_a_broken_application(plane: Plane, policy: str | None, may_go: bool) -> None:
    _, broken = workload(plane, 2, 1)
    budget(plane, minAvailable=2, **({"unhealthyPodEvictionPolicy": policy} if policy else {}))
    says(plane, 0, 1, 2, 2)
    answer = evict(plane, broken)
    assert answer.status == (201 if may_go else 429)
    assert going(plane, broken) == may_go


def test_unready_pods_of_a_whole_application_may_go(plane: Plane) -> None:
    _, _, broken = workload(plane, 3, 2)
    budget(plane, minAvailable=2)
    says(plane, 0, 2, 2, 3)
    evict(plane, broken).ok()
    assert going(plane, broken)


def test_without_a_budget(plane: Plane) -> None:
    plane.node("a")
    plane.pod("p", {"app": "w"}, nodeName=plane.node_name("a"))
    plane.runs("p")
    evict(plane, "p", deleteOptions={"gracePeriodSeconds": 7}).ok()
    assert plane.read("pods", "p")["metadata"]["deletionGracePeriodSeconds"] == 7
    evict(plane, "missing").fails(404, "NotFound", 'pods "missing" not found')


def test_dry_run(plane: Plane) -> None:
    first, _ = workload(plane, 2, 2)
    budget(plane, minAvailable=1)
    says(plane, 1, 2, 1, 2)
    evict(plane, first, deleteOptions={"dryRun": ["All"]}).ok()
    assert not going(plane, first)
    says(plane, 1, 2, 1, 2)


def test_preconditions(plane: Plane) -> None:
    plane.node("a")
    plane.pod("p", {"app": "w"}, nodeName=plane.node_name("a"))
    plane.runs("p")
    options = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    evict(plane, "p", deleteOptions=options).fails(409, "Conflict")
    assert not going(plane, "p")


def test_two_budgets(plane: Plane) -> None:
    (name,) = workload(plane, 1, 1)
    budget(plane, minAvailable=0)
    plane.make("poddisruptionbudgets", "c", spec={"selector": {"matchLabels": {"app": "w"}}, "maxUnavailable": 1})
    said = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    answer = evict(plane, name)
    assert (answer.status, answer.body.get("reason"), answer.message) == (500, None, said)


def test_pods_without_a_controller(plane: Plane) -> None:
    """A share of nobody's replicas cannot be computed; a plain number can."""
    plane.node("a")
    for name in ("p", "q"):
        plane.pod(name, {"app": "w"}, nodeName=plane.node_name("a"))
        plane.runs(name)
    budget(plane, minAvailable=1)
    says(plane, 1, 2, 1, 2)
    plane.change("poddisruptionbudgets", "b", {"spec": {"minAvailable": None, "maxUnavailable": 1}})
    says(plane, 0, 2, 0, 0)


def test_daemon_pods_have_no_scale(plane: Plane) -> None:
    plane.node("a")
    spec = {"selector": {"matchLabels": {"app": "w"}}, "template": plane.template("w")}
    plane.make("daemonsets", "w", spec=spec)
    plane.until(lambda: plane.by_node("app=w"), "the pod")
    for pod in plane.owned("app=w"):
        plane.runs(pod["metadata"]["name"])
    budget(plane, maxUnavailable=1)

    def look() -> Document | None:
        return condition(plane.read("poddisruptionbudgets", "b"), "DisruptionAllowed")

    said = plane.until(look, "the condition")
    assert said is not None
    assert (said["status"], said["reason"]) == ("False", "SyncFailed")
    assert said["message"] == "daemonsets.apps does not implement the scale subresource"


def test_an_empty_selector_covers_the_namespace(plane: Plane) -> None:
    (name,) = workload(plane, 1, 1)
    plane.make("poddisruptionbudgets", "b", spec={"selector": {}, "minAvailable": 1})
    says(plane, 0, 1, 1, 1)
    evict(plane, name).fails(429, "TooManyRequests")


def test_readiness_changes_the_numbers(plane: Plane) -> None:
    first, _ = workload(plane, 2, 2)
    budget(plane, minAvailable=1)
    says(plane, 1, 2, 1, 2)
    plane.report(first, "Running")
    says(plane, 0, 1, 1, 2)
    plane.runs(first)
    says(plane, 1, 2, 1, 2)
