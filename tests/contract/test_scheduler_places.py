"""Where the scheduler puts a pod: the rules that admit a node, and those that prefer one."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from contract.ctrl_plane import CASE, GPU, HOSTNAME, Document, Plane, condition

TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


def node_terms(*terms: Document) -> Document:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> Document:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def prefers(weight: int, key: str, operator: str, *values: str) -> Document:
    return {"weight": weight, "preference": expression(key, operator, *values)}


def preferring(*terms: Document) -> Document:
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def together(kind: str, app: str, key: str, **more: Any) -> Document:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


class Choice(NamedTuple):
    """Nodes by name, a pod, and the nodes it may be put on; `present` are pods that already run, by node."""

    nodes: dict[str, Any]
    spec: Document
    places: str
    present: dict[str, Document] = {}


ZONES = {"a": {"labels": {"zone": "a", "size": "1"}}, "b": {"labels": {"zone": "b", "size": "20"}}, "c": {}}
CHOICES = {
    "in": Choice(ZONES, node_terms(expression("zone", "In", "b", "x")), "b"),
    "not-in": Choice(ZONES, node_terms(expression("zone", "NotIn", "a", "b")), "c"),
    "exists": Choice(ZONES, node_terms(expression("zone", "Exists")), "ab"),
    "does-not-exist": Choice(ZONES, node_terms(expression("zone", "DoesNotExist")), "c"),
    "greater": Choice(ZONES, node_terms(expression("size", "Gt", "3")), "b"),
    "less": Choice(ZONES, node_terms(expression("size", "Lt", "3")), "a"),
    "terms-are-alternatives": Choice(
        ZONES, node_terms(expression("zone", "In", "x"), expression("size", "Gt", "3")), "b"
    ),
    "expressions-all-hold": Choice(
        {**ZONES, "d": {"labels": {"zone": "b", "size": "2"}}},
        node_terms(
            {
                "matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["b"]},
                    {"key": "size", "operator": "Lt", "values": ["3"]},
                ]
            }
        ),
        "d",
    ),
    "an-empty-term-selects-nothing": Choice(ZONES, node_terms({}, expression("zone", "In", "a")), "a"),
    "toleration-of-a-value": Choice(
        {"a": {"taints": [{**TAINT, "value": "other"}]}, "b": {"taints": [TAINT]}},
        {"tolerations": [{"key": GPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}]},
        "b",
    ),
    "toleration-of-a-key": Choice(
        {"a": {"taints": [TAINT]}, "b": {"taints": [{"key": "other", "effect": "NoSchedule"}]}},
        {"tolerations": [{"key": GPU, "operator": "Exists"}]},
        "a",
    ),
    "toleration-of-an-effect-only": Choice(
        {"a": {"taints": [{**TAINT, "effect": "NoExecute"}]}, "b": {"taints": [TAINT]}},
        {"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]},
        "b",
    ),
    "toleration-of-everything": Choice(
        {"a": {"taints": [TAINT, {"key": "x", "effect": "NoExecute"}], "unschedulable": True}},
        {"tolerations": [{"operator": "Exists"}]},
        "a",
    ),
    "cordon-tolerated": Choice(
        {"a": {"unschedulable": True}},
        {"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]},
        "a",
    ),
    "soft-taint-is-avoided": Choice({"a": {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, "b": {}}, {}, "b"),
    "soft-taint-keeps-nobody-off": Choice({"a": {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}}, {}, "a"),
    "preferred": Choice(ZONES, preferring(prefers(1, "zone", "In", "b")), "b"),
    "preferred-by-weight": Choice(
        ZONES, preferring(prefers(1, "zone", "In", "a"), prefers(100, "zone", "In", "b")), "b"
    ),
    "gpus": Choice({"a": {}, "b": {"gpu": "4"}, "c": {"gpu": "8"}}, {"requests": {GPU: "5"}}, "c"),
    "gpus-left": Choice(
        {"a": {"gpu": "8"}, "b": {"gpu": "8"}},
        {"requests": {GPU: "2"}},
        "b",
        present={"a": {"requests": {GPU: "7"}}, "b": {"requests": {GPU: "6"}}},
    ),
    "least-used": Choice({"a": {}, "b": {}}, {}, "b", present={"a": {"requests": {"cpu": "4", "memory": "16Gi"}}}),
    "host-port-free": Choice(
        {"a": {}, "b": {}},
        {"ports": [{"containerPort": 80, "hostPort": 9400}]},
        "b",
        present={"a": {"ports": [{"containerPort": 80, "hostPort": 9400}]}},
    ),
    "host-port-of-another-address": Choice(
        {"a": {}},
        {"ports": [{"containerPort": 80, "hostPort": 9400, "hostIP": "127.0.0.1"}]},
        "a",
        present={"a": {"ports": [{"containerPort": 80, "hostPort": 9400, "hostIP": "127.0.0.2"}]}},
    ),
    "host-port-of-another-protocol": Choice(
        {"a": {}},
        {"ports": [{"containerPort": 80, "hostPort": 9400, "protocol": "UDP"}]},
        "a",
        present={"a": {"ports": [{"containerPort": 80, "hostPort": 9400}]}},
    ),
    "away-from-others": Choice(
        {"a": {}, "b": {}}, together("podAntiAffinity", "present", HOSTNAME), "b", present={"a": {}}
    ),
    "near-others": Choice(
        {"a": {"labels": {"zone": "x"}}, "b": {"labels": {"zone": "x"}}, "c": {"labels": {"zone": "y"}}},
        together("podAffinity", "present", "zone"),
        "ab",
        present={"a": {}},
    ),
    "an-init-container-needs-more": Choice(
        {"a": {"cpu": "2"}, "b": {"cpu": "4"}},
        {
            "requests": {"cpu": "1"},
            "initContainers": [{"name": "i", "image": "x", "resources": {"requests": {"cpu": "3"}}}],
        },
        "b",
    ),
    "a-sidecar-adds-to-the-rest": Choice(
        {"a": {"cpu": "3"}, "b": {"cpu": "4"}},
        {
            "requests": {"cpu": "2"},
            "initContainers": [
                {"name": "i", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}
            ],
        },
        "b",
    ),
}


@pytest.mark.parametrize("case", list(CHOICES))
def test_choice(plane: Plane, case: str) -> None:
    choice = CHOICES[case]
    for short, shape in choice.nodes.items():
        plane.node(short, **shape)
    for short, spec in choice.present.items():
        plane.pod(f"present-{short}", {"app": "present"}, nodeName=plane.node_name(short), **spec)
    plane.pod("p", **{"nodeSelector": {CASE: plane.space}, **choice.spec})
    assert plane.placed("p") in choice.places


def test_binding_is_told(plane: Plane) -> None:
    plane.node("a")
    plane.pod("p", nodeSelector={CASE: plane.space})
    assert plane.placed("p") == "a"
    said = condition(plane.until(lambda: plane.read("pods", "p")), "PodScheduled")
    assert said is not None
    assert {key: said[key] for key in said if not key.startswith("last")} == {
        "type": "PodScheduled",
        "status": "True",
    }
    event = plane.until(lambda: next(iter(plane.events("Scheduled", "p")), None), "the event")
    assert event is not None
    assert event["message"] == f"Successfully assigned {plane.space}/p to {plane.node_name('a')}"
    assert (event["type"], event["action"]) == ("Normal", "Binding")
    assert event["reportingComponent"] == "default-scheduler"


def test_a_named_node_needs_no_scheduler(plane: Plane) -> None:
    plane.node("a", taints=[TAINT], unschedulable=True, pods="0")
    plane.pod("p", nodeName=plane.node_name("a"))
    plane.pod("after", nodeSelector={CASE: plane.space}, tolerations=[{"operator": "Exists"}])
    assert plane.until(lambda: plane.verdict("after"))
    assert plane.place("p") == "a"
    assert plane.read("pods", "p")["status"].get("conditions") is None
    assert plane.events("Scheduled", "p") == []


def test_another_scheduler_is_left_alone(plane: Plane) -> None:
    plane.node("a")
    plane.pod("theirs", nodeSelector={CASE: plane.space}, schedulerName="other")
    plane.pod("ours", nodeSelector={CASE: plane.space})
    assert plane.placed("ours") == "a"
    assert plane.place("theirs") == ""
    assert plane.read("pods", "theirs")["status"].get("conditions") is None


def test_affinity_in_other_namespaces(plane: Plane) -> None:
    for short in ("a", "b"):
        plane.node(short)
    other = f"{plane.space}-other"
    plane.make("namespaces", other, metadata={"labels": {"team": plane.space}})
    plane.until(
        lambda: plane.api.get(f"/api/v1/namespaces/{other}/serviceaccounts/default").status == 200, "its account"
    )
    there: Document = {
        "metadata": {"name": "there", "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "x"}], "nodeName": plane.node_name("a")},
    }
    plane.api.create(f"/api/v1/namespaces/{other}/pods", there).ok()
    reaches: dict[str, tuple[Document, str]] = {
        "by-name": ({"namespaces": [other]}, "b"),
        "by-label": ({"namespaceSelector": {"matchLabels": {"team": plane.space}}}, "b"),
    }
    for name, (reach, place) in reaches.items():
        spec = together("podAntiAffinity", "x", HOSTNAME, **reach)
        plane.pod(name, nodeSelector={CASE: plane.space}, **spec)
        assert plane.placed(name) == place, name
    near = together("podAffinity", "x", HOSTNAME)
    plane.pod("own-namespace-only", nodeSelector={CASE: plane.space}, **near)
    assert "pod affinity rules" in plane.until(lambda: plane.verdict("own-namespace-only"))
    plane.api.delete(f"/api/v1/namespaces/{other}/pods/there", {"gracePeriodSeconds": 0})


def test_the_first_of_a_group_may_start(plane: Plane) -> None:
    for short in ("a", "b"):
        plane.node(short, {"zone": short})
    for name in ("first", "second", "third"):
        spec = together("podAffinity", "group", "zone")
        plane.pod(name, {"app": "group"}, nodeSelector={CASE: plane.space}, **spec)
    assert len({plane.placed(name) for name in ("first", "second", "third")}) == 1


def test_spreads_by_anti_affinity(plane: Plane) -> None:
    for short in ("a", "b", "c"):
        plane.node(short)
    for number in range(4):
        spec = together("podAntiAffinity", "group", HOSTNAME)
        plane.pod(f"p{number}", {"app": "group"}, nodeSelector={CASE: plane.space}, **spec)
    plane.until(lambda: len(plane.by_node()) == 3, "three pods to be bound")
    (lost,) = [pod["metadata"]["name"] for pod in plane.owned() if not pod["spec"].get("nodeName")]
    assert "node(s) didn't match pod anti-affinity rules" in plane.until(lambda: plane.verdict(lost))
    plane.node("d")
    assert plane.placed(lost) == "d"


def test_higher_priority_comes_first(plane: Plane) -> None:
    """Both wait for the same node; whichever is bound first takes the only GPU."""
    high = f"{plane.space}-high"
    plane.make("priorityclasses", high, value=1000)
    plane.pod("low", nodeSelector={CASE: plane.space}, requests={GPU: "1"})
    plane.pod("high", nodeSelector={CASE: plane.space}, requests={GPU: "1"}, priorityClassName=high)
    assert plane.read("pods", "high")["spec"]["priority"] == 1000
    for name in ("low", "high"):
        assert plane.until(lambda name=name: plane.verdict(name), f"{name} to be looked at")  # type: ignore[misc]
    plane.node("a", gpu="1")
    assert plane.placed("high") == "a"
    assert plane.place("low") == ""


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"preemptionPolicy": "Never"},
            "the string value of PreemptionPolicy (Never) must not be provided in pod spec; "
            "priority admission controller computed PreemptLowerPriority from the given PriorityClass name",
        ),
        (
            {"priority": 7},
            "the integer value of priority (7) must not be provided in pod spec; "
            "priority admission controller computed 0 from the given PriorityClass name",
        ),
    ],
    ids=["preemption-policy", "priority"],
)
def test_priority_comes_from_the_class_alone(plane: Plane, spec: Document, said: str) -> None:
    pod = {"metadata": {"name": "p"}, "spec": plane.here(**spec)}
    answer = plane.api.create(plane.path("pods"), pod)
    assert (answer.status, answer.message) == (403, f'pods "p" is forbidden: {said}')


RESCUES = {
    "label": {"metadata": {"labels": {"zone": "x"}}},
    "untainted": {"spec": {"taints": []}},
    "uncordoned": {"spec": {"unschedulable": False}},
}


@pytest.mark.parametrize("rescue", list(RESCUES))
def test_is_looked_at_again_when_the_node_changes(plane: Plane, rescue: str) -> None:
    shapes: dict[str, Any] = {"untainted": {"taints": [TAINT]}, "uncordoned": {"unschedulable": True}}
    plane.node("a", **shapes.get(rescue, {}))
    selector = {CASE: plane.space, **({"zone": "x"} if rescue == "label" else {})}
    plane.pod("p", nodeSelector=selector)
    assert plane.until(lambda: plane.verdict("p"), "the pod to be refused")
    plane.change("nodes", plane.node_name("a"), RESCUES[rescue])
    assert plane.placed("p") == "a"


def test_is_looked_at_again_when_devices_appear(plane: Plane) -> None:
    plane.node("a")
    plane.pod("p", nodeSelector={CASE: plane.space}, requests={GPU: "2"})
    assert f"Insufficient {GPU}" in plane.until(lambda: plane.verdict("p"), "the pod to be refused")
    amounts = {"capacity": {GPU: "2"}, "allocatable": {GPU: "2"}}
    plane.change("nodes", plane.node_name("a"), {"status": amounts}, "status")
    assert plane.placed("p") == "a"


@pytest.mark.parametrize("how", ["deleted", "Succeeded", "Failed"])
def test_is_looked_at_again_when_a_pod_ends(plane: Plane, how: str) -> None:
    plane.node("a", gpu="1")
    plane.pod("first", nodeSelector={CASE: plane.space}, requests={GPU: "1"})
    assert plane.placed("first") == "a"
    plane.pod("second", nodeSelector={CASE: plane.space}, requests={GPU: "1"})
    assert plane.until(lambda: plane.verdict("second"), "the pod to be refused")
    if how == "deleted":
        plane.ends("first")
    else:
        plane.report("first", how)
    assert plane.placed("second") == "a"


def test_a_pod_that_is_going_still_holds_its_devices(plane: Plane) -> None:
    plane.node("a", gpu="1")
    plane.pod("first", nodeSelector={CASE: plane.space}, requests={GPU: "1"})
    assert plane.placed("first") == "a"
    plane.remove("pods", "first")
    plane.pod("second", nodeSelector={CASE: plane.space}, requests={GPU: "1"})
    assert plane.until(lambda: plane.verdict("second"), "the pod to be refused")
    assert plane.place("second") == ""
    plane.ends("first")
    assert plane.placed("second") == "a"


def test_runtime_class_adds_overhead_and_selector(plane: Plane) -> None:
    name = f"{plane.space}-kata"
    plane.make(
        "runtimeclasses",
        name,
        handler="kata",
        overhead={"podFixed": {"cpu": "6"}},
        scheduling={"nodeSelector": {"kata": "yes"}},
    )
    plane.node("a")
    plane.node("b", {"kata": "yes"})
    plane.pod("p", nodeSelector={CASE: plane.space}, runtimeClassName=name, requests={"cpu": "2"})
    assert plane.placed("p") == "b"
    plane.pod("q", nodeSelector={CASE: plane.space}, runtimeClassName=name, requests={"cpu": "1"})
    assert "1 Insufficient cpu" in plane.until(lambda: plane.verdict("q"), "the pod to be refused")
