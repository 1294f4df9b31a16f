"""Preemption: an important pod makes room for itself among less important ones."""

from __future__ import annotations

from typing import Any

import pytest
from contract.ctrl_plane import CASE, GPU, NO_VICTIMS, Document, Plane, condition, unavailable


@pytest.fixture
def high(plane: Plane) -> str:
    """A priority class above the default."""
    return priority_class(plane, "high", 1000)


def priority_class(plane: Plane, short: str, value: int, **more: Any) -> str:
    name = f"{plane.space}-{short}"
    plane.make("priorityclasses", name, value=value, **more)
    return name


def gpu_pod(plane: Plane, name: str, gpus: int = 1, labels: Document | None = None, **spec: Any) -> None:
    plane.pod(name, labels, nodeSelector={CASE: plane.space}, requests={GPU: str(gpus)}, **spec)


def running(plane: Plane, name: str, gpus: int = 1, labels: Document | None = None, **spec: Any) -> None:
    gpu_pod(plane, name, gpus, labels, **spec)
    plane.placed(name)
    plane.runs(name)


def going(plane: Plane) -> list[str]:
    return [pod["metadata"]["name"] for pod in plane.list("pods") if pod["metadata"].get("deletionTimestamp")]


def test_makes_room(plane: Plane, high: str) -> None:
    plane.scheduler_sees_no_nodes()
    plane.node("a", gpu="1")
    running(plane, "low")
    gpu_pod(plane, "high", priorityClassName=high)
    plane.until(lambda: going(plane) == ["low"], "the less important pod to be deleted")
    victim = plane.read("pods", "low")
    said = condition(victim, "DisruptionTarget")
    assert said is not None
    assert (said["status"], said["reason"]) == ("True", "PreemptionByScheduler")
    assert said["message"] == "default-scheduler: preempting to accommodate a higher priority pod"
    assert victim["metadata"]["deletionGracePeriodSeconds"] == 30
    waiting = plane.until(
        lambda: next(
            (pod for pod in plane.list("pods") if pod["status"].get("nominatedNodeName") == plane.node_name("a")), None
        ),
        "the pod to be promised the node",
    )
    assert waiting is not None
    assert waiting["metadata"]["name"] == "high"
    uid = waiting["metadata"]["uid"]
    event = plane.until(lambda: next(iter(plane.events("Preempted", "low")), None), "the event")
    assert event is not None
    assert event["message"] == f"Preempted by pod {uid} on node {plane.node_name('a')}"
    told = plane.until(lambda: next(iter(plane.events("FailedScheduling", "high")), None), "the event of the other")
    assert told is not None
    assert told["message"].startswith(f"0/1 nodes are available: 1 Insufficient {GPU}. preemption: ")
    plane.ends("low")
    assert plane.placed("high") == "a"
    assert "nominatedNodeName" not in plane.read("pods", "high")["status"]


def test_the_least_important_go_and_no_more_than_needed(plane: Plane, high: str) -> None:
    middle = priority_class(plane, "middle", 10)
    plane.node("a", gpu="4")
    running(plane, "middle", priorityClassName=middle)
    for name in ("low-1", "low-2", "low-3"):
        running(plane, name)
    gpu_pod(plane, "high", 2, priorityClassName=high)
    plane.until(lambda: len(going(plane)) == 2, "two pods to be deleted")
    assert "middle" not in going(plane)
    for name in going(plane):
        plane.ends(name)
    assert plane.placed("high") == "a"
    assert {"middle", "high"} < {pod["metadata"]["name"] for pod in plane.owned()}
    assert len(plane.owned()) == 3


def test_the_node_with_the_least_important_pods_is_chosen(plane: Plane, high: str) -> None:
    middle = priority_class(plane, "middle", 10)
    for short in ("a", "b"):
        plane.node(short, gpu="1")
    running(plane, "middle", priorityClassName=middle)
    running(plane, "low")
    there = plane.place("low")
    gpu_pod(plane, "high", priorityClassName=high)
    plane.until(lambda: going(plane) == ["low"], "the less important pod to be deleted")
    plane.ends("low")
    assert plane.placed("high") == there


def test_the_node_with_the_fewest_pods_is_chosen(plane: Plane, high: str) -> None:
    plane.node("a", gpu="2")
    running(plane, "small-1")
    running(plane, "small-2")
    plane.node("b", gpu="2")
    running(plane, "large", 2)
    gpu_pod(plane, "high", 2, priorityClassName=high)
    plane.until(lambda: going(plane) == ["large"], "the one large pod to be deleted")


@pytest.mark.parametrize("value", [1000, 2000])
def test_equals_and_betters_are_left_alone(plane: Plane, high: str, value: int) -> None:
    plane.scheduler_sees_no_nodes()
    other = priority_class(plane, "other", value)
    plane.node("a", gpu="1")
    running(plane, "other", priorityClassName=other)
    gpu_pod(plane, "high", priorityClassName=high)
    plane.refused("high", unavailable(1, f"1 Insufficient {GPU}", f"1 {NO_VICTIMS}"))
    assert going(plane) == []


def test_never_preempts(plane: Plane) -> None:
    polite = priority_class(plane, "polite", 1000, preemptionPolicy="Never")
    plane.node("a", gpu="1")
    running(plane, "low")
    gpu_pod(plane, "polite", priorityClassName=polite)
    said = plane.until(lambda: plane.verdict("polite"), "the pod to be refused")
    assert said.endswith("preemption: not eligible due to preemptionPolicy=Never.")
    assert going(plane) == []


def test_budgets_are_kept_if_they_can_be(plane: Plane, high: str) -> None:
    for short in ("a", "b"):
        plane.node(short, gpu="1")
    running(plane, "guarded", labels={"app": "guarded"})
    running(plane, "free", labels={"app": "free"})
    plane.make(
        "poddisruptionbudgets", "guard", spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    )
    plane.until(lambda: plane.read("poddisruptionbudgets", "guard")["status"].get("currentHealthy") == 1, "the budget")
    gpu_pod(plane, "high", priorityClassName=high)
    plane.until(lambda: going(plane) == ["free"], "the unguarded pod to be deleted")


def test_a_budget_does_not_stop_it(plane: Plane, high: str) -> None:
    plane.node("a", gpu="1")
    running(plane, "guarded", labels={"app": "guarded"})
    plane.make(
        "poddisruptionbudgets", "guard", spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    )
    plane.until(lambda: plane.read("poddisruptionbudgets", "guard")["status"].get("currentHealthy") == 1, "the budget")
    gpu_pod(plane, "high", priorityClassName=high)
    plane.until(lambda: going(plane) == ["guarded"], "the guarded pod to be deleted")


def test_host_port_is_freed(plane: Plane, high: str) -> None:
    ports = [{"containerPort": 80, "hostPort": 9400}]
    plane.node("a")
    plane.pod("low", nodeSelector={CASE: plane.space}, ports=ports)
    assert plane.placed("low") == "a"
    plane.pod("high", nodeSelector={CASE: plane.space}, ports=ports, priorityClassName=high)
    plane.until(lambda: going(plane) == ["low"], "the less important pod to be deleted")


def test_what_preemption_cannot_help(plane: Plane, high: str) -> None:
    """A request that is larger than the node, and a taint, are not resolved by anybody's going."""
    plane.scheduler_sees_no_nodes()
    plane.node("a", gpu="1")
    running(plane, "low")
    gpu_pod(plane, "high", 2, priorityClassName=high)
    plane.refused("high", unavailable(1, f"1 Insufficient {GPU}"))
    assert going(plane) == []


def test_room_that_was_promised_is_kept(plane: Plane, high: str) -> None:
    plane.node("a", gpu="1")
    running(plane, "low")
    gpu_pod(plane, "high", priorityClassName=high)
    plane.until(lambda: going(plane) == ["low"], "the less important pod to be deleted")
    gpu_pod(plane, "late")
    assert plane.until(lambda: plane.verdict("late"), "the late pod to be refused")
    plane.ends("low")
    assert plane.placed("high") == "a"
    assert plane.place("late") == ""


def test_daemon_pods_get_onto_a_full_node(plane: Plane) -> None:
    """What node-critical operands rely on: only the pod on their own node goes."""
    for short in ("a", "b"):
        plane.node(short, pods="1")
    for name in ("low-1", "low-2"):
        plane.pod(name, nodeSelector={CASE: plane.space})
        plane.placed(name)
    victim = next(name for name in ("low-1", "low-2") if plane.place(name) == "a")
    template = plane.template("d", priorityClassName="system-node-critical")
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": plane.node_name("a")}
    plane.make("daemonsets", "d", spec={"selector": {"matchLabels": {"app": "d"}}, "template": template})
    plane.until(lambda: going(plane) == [victim], "the pod on that node to be deleted")
    plane.ends(victim)
    plane.until(lambda: "a" in plane.by_node("app=d"), "the daemon pod to be bound")
    assert len(plane.owned()) == 2
