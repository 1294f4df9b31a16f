"""Why a pod stays unscheduled, in the scheduler's own words: the condition's message and the event's."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from contract.ctrl_plane import (
    CASE,
    GPU,
    HOSTNAME,
    NO_NODES,
    NO_VICTIMS,
    NOT_HELPFUL,
    Document,
    Plane,
    condition,
    unavailable,
)

SELECTED = "node(s) didn't match Pod's node affinity/selector"
TAINTED = "node(s) had untolerated taint(s)"
CORDONED = "node(s) were unschedulable"
PORTS = "node(s) didn't have free ports for the requested pod ports"
PINNED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


def affinity(kind: str, app: str, key: str = HOSTNAME) -> Document:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def node_terms(*terms: Document) -> Document:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


class Refusal(NamedTuple):
    """Nodes by name, pods that already run on node `a`, the pod that is refused, and what is said of it."""

    nodes: dict[str, Any]
    spec: Document
    reasons: str
    preemption: str = ""
    present: dict[str, Document] = {}
    labels: dict[str, str] = {}


REFUSALS = {
    "node-selector": Refusal(
        {"a": {}, "b": {"labels": {"zone": "b"}}}, {"nodeSelector": {"zone": "c"}}, f"2 {SELECTED}"
    ),
    "node-affinity": Refusal(
        {"a": {"labels": {"zone": "a"}}, "b": {"labels": {"zone": "b"}}, "c": {}},
        {"affinity": node_terms({"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["1"]}]})},
        f"3 {SELECTED}",
    ),
    "taint": Refusal({"a": {"taints": [TAINT]}}, {}, f"1 {TAINTED}"),
    "taint-no-execute": Refusal({"a": {"taints": [{**TAINT, "effect": "NoExecute"}]}}, {}, f"1 {TAINTED}"),
    "cordoned": Refusal({"a": {"unschedulable": True}}, {}, f"1 {CORDONED}"),
    "no-gpu": Refusal({"a": {}, "b": {}}, {"requests": {GPU: "1"}}, f"2 Insufficient {GPU}"),
    "too-few-gpus": Refusal({"a": {"gpu": "8"}}, {"requests": {GPU: "9"}}, f"1 Insufficient {GPU}"),
    "gpus-in-use": Refusal(
        {"a": {"gpu": "8"}},
        {"requests": {GPU: "1"}},
        f"1 Insufficient {GPU}",
        f"1 {NO_VICTIMS}",
        present={"other": {"requests": {GPU: "8"}}},
    ),
    "cpu-and-memory": Refusal(
        {"a": {}}, {"requests": {"cpu": "9", "memory": "1Ti"}}, "1 Insufficient cpu, 1 Insufficient memory"
    ),
    "ephemeral-storage": Refusal(
        {"a": {"ephemeral_storage": "1Gi"}},
        {"requests": {"ephemeral-storage": "2Gi"}},
        "1 Insufficient ephemeral-storage",
    ),
    "pod-count": Refusal({"a": {"pods": "0"}}, {}, "1 Too many pods", f"1 {NO_VICTIMS}"),
    "pod-count-and-cpu": Refusal(
        {"a": {"pods": "0"}}, {"requests": {"cpu": "9"}}, "1 Insufficient cpu, 1 Too many pods"
    ),
    "host-port": Refusal(
        {"a": {}},
        {"ports": [{"containerPort": 80, "hostPort": 9400}]},
        f"1 {PORTS}",
        f"1 {NO_VICTIMS}",
        present={"other": {"ports": [{"containerPort": 81, "hostPort": 9400}]}},
    ),
    "pod-affinity": Refusal(
        {"a": {}, "b": {}}, {"affinity": affinity("podAffinity", "leader")}, "2 node(s) didn't match pod affinity rules"
    ),
    "pod-anti-affinity": Refusal(
        {"a": {}},
        {"affinity": affinity("podAntiAffinity", "other")},
        "1 node(s) didn't match pod anti-affinity rules",
        f"1 {NO_VICTIMS}",
        present={"other": {}},
    ),
    "anti-affinity-of-others": Refusal(
        {"a": {}},
        {},
        "1 node(s) didn't satisfy existing pods anti-affinity rules",
        f"1 {NO_VICTIMS}",
        present={"other": {"affinity": affinity("podAntiAffinity", "shy")}},
        labels={"app": "shy"},
    ),
    "anti-affinity-both-ways": Refusal(
        {"a": {}},
        {"affinity": affinity("podAntiAffinity", "other")},
        "1 node(s) didn't match pod anti-affinity rules",
        f"1 {NO_VICTIMS}",
        present={"other": {"affinity": affinity("podAntiAffinity", "shy")}},
        labels={"app": "shy"},
    ),
    "node-of-that-name-is-missing": Refusal(
        {"a": {}, "b": {}},
        {"affinity": node_terms({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]})},
        f"2 {PINNED}",
    ),
    "each-node-has-its-own-reason": Refusal(
        {
            "a": {"gpu": "1"},
            "b": {"taints": [TAINT]},
            "c": {"unschedulable": True},
            "d": {"labels": {"zone": "z"}},
            "e": {"taints": [{**TAINT, "value": "other"}], "labels": {"zone": "z"}},
        },
        {"requests": {GPU: "1"}, "nodeSelector": {"zone": "z"}},
        f"1 Insufficient {GPU}, 1 {SELECTED}, 1 {CORDONED}, 2 {TAINTED}",
    ),
    "some-nodes-could-be-freed": Refusal(
        {"a": {"gpu": "1"}, "b": {}, "c": {"taints": [TAINT]}},
        {"requests": {GPU: "1"}},
        f"1 {TAINTED}, 2 Insufficient {GPU}",
        f"1 {NO_VICTIMS}, 2 {NOT_HELPFUL}",
        present={"other": {"requests": {GPU: "1"}}},
    ),
}


@pytest.mark.parametrize("case", list(REFUSALS))
def test_refusal(plane: Plane, case: str) -> None:
    refusal = REFUSALS[case]
    plane.scheduler_sees_no_nodes()
    for short, shape in refusal.nodes.items():
        plane.node(short, **shape)
    for name, spec in refusal.present.items():
        plane.pod(name, {"app": "other"}, nodeName=plane.node_name("a"), **spec)
    plane.pod("p", refusal.labels, **refusal.spec)
    total = len(refusal.nodes)
    text = unavailable(total, refusal.reasons, refusal.preemption)
    plane.refused("p", text)


def test_condition_and_event_say_the_same(plane: Plane) -> None:
    plane.scheduler_sees_no_nodes()
    plane.node("a")
    plane.pod("p", requests={GPU: "1"})
    text = unavailable(1, f"1 Insufficient {GPU}")
    plane.refused("p", text)
    pod = plane.read("pods", "p")
    said = condition(pod, "PodScheduled")
    assert said is not None
    assert {key: said[key] for key in said if not key.startswith("last")} == {
        "type": "PodScheduled",
        "status": "False",
        "observedGeneration": 1,
        "reason": "Unschedulable",
        "message": text,
    }
    assert pod["status"]["phase"] == "Pending"
    assert "nodeName" not in pod["spec"]
    event = plane.until(lambda: next(iter(plane.events("FailedScheduling", "p")), None), "the event")
    assert event is not None
    assert (event["type"], event["message"]) == ("Warning", text)
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]
    assert (event["reportingComponent"], event["action"]) == ("default-scheduler", "Scheduling")


def test_terms_that_conflict(plane: Plane) -> None:
    plane.scheduler_sees_no_nodes()
    plane.node("a")
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in ("x", "y")]
    plane.pod("p", affinity=node_terms({"matchFields": fields}))
    plane.refused("p", "0/1 nodes are available: pod affinity terms conflict. not found")


def test_without_nodes(plane: Plane) -> None:
    plane.scheduler_sees_no_nodes()
    plane.pod("p", nodeSelector={CASE: plane.space})
    plane.refused("p", NO_NODES)
    plane.node("a")
    assert plane.placed("p") == "a"


def test_gated_pod(plane: Plane) -> None:
    plane.node("a")
    plane.pod("p", nodeSelector={CASE: plane.space}, schedulingGates=[{"name": "example.com/wait"}])
    plane.refused("p", "Scheduling is blocked due to non-empty scheduling gates")
    said = condition(plane.read("pods", "p"), "PodScheduled")
    assert said is not None
    assert said["reason"] == "SchedulingGated"
    plane.change("pods", "p", {"spec": {"schedulingGates": None}})
    assert plane.placed("p") == "a"


def test_daemon_pod_is_for_one_node_only(plane: Plane) -> None:
    plane.scheduler_sees_no_nodes()
    for short in ("a", "b", "c"):
        plane.node(short)
    template = plane.template("d", requests={GPU: "1"}, nodeSelector={HOSTNAME: plane.node_name("b")})
    plane.make("daemonsets", "d", spec={"selector": {"matchLabels": {"app": "d"}}, "template": template})
    pods = plane.until(lambda: plane.owned("app=d"), "the daemon pod")
    plane.refused(pods[0]["metadata"]["name"], unavailable(3, f"1 Insufficient {GPU}, 2 {PINNED}"))
