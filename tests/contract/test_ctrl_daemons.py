"""The DaemonSet controller: which nodes get a pod, what the pod looks like, and what the status says at each step."""

from __future__ import annotations

import pytest
from contract import ctrl_daemons as daemons
from contract.ctrl_plane import CASE, GPU, HOSTNAME, Document, Plane

TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
PREFIX = "node.kubernetes.io/"
TOLERATIONS = [
    {"key": f"{PREFIX}not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": f"{PREFIX}unreachable", "operator": "Exists", "effect": "NoExecute"},
    {"key": f"{PREFIX}disk-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": f"{PREFIX}memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": f"{PREFIX}pid-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": f"{PREFIX}unschedulable", "operator": "Exists", "effect": "NoSchedule"},
]


def test_pod(plane: Plane) -> None:
    node = plane.node("a")
    made = daemons.make(plane)
    pod = daemons.pods(plane, "a")["a"]
    metadata = pod["metadata"]
    assert metadata["generateName"] == "d-"
    assert metadata["name"].startswith("d-")
    assert len(metadata["name"]) == len("d-") + 5
    (revision,) = daemons.revisions(plane)
    assert metadata["labels"] == {
        "app": "d",
        daemons.HASH: revision["metadata"]["labels"][daemons.HASH],
        daemons.GENERATION: "1",
    }
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": "d",
            "uid": made["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert pod["spec"]["affinity"] == {"nodeAffinity": required}
    assert pod["spec"]["tolerations"] == TOLERATIONS
    assert pod["spec"]["nodeSelector"] == {CASE: plane.space}
    event = plane.until(lambda: next(iter(plane.events("SuccessfulCreate", "d")), None), "the event")
    assert event is not None
    assert event["message"] == f"Created pod: {metadata['name']}"
    assert event["source"] == {"component": "daemonset-controller"}


def test_host_network_is_tolerated_as_well(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane, pod_hostNetwork=True)
    pod = daemons.pods(plane, "a")["a"]
    more = {"key": f"{PREFIX}network-unavailable", "operator": "Exists", "effect": "NoSchedule"}
    assert pod["spec"]["tolerations"] == [*TOLERATIONS, more]


def test_own_tolerations_stay_first_and_are_not_repeated(plane: Plane) -> None:
    plane.node("a", taints=[TAINT])
    own = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}, TOLERATIONS[2]]
    daemons.make(plane, pod_tolerations=own)
    pod = daemons.pods(plane, "a")["a"]
    assert pod["spec"]["tolerations"] == [*own, *(each for each in TOLERATIONS if each not in own)]


def test_required_affinity_chooses_nodes_and_gives_way_to_the_node_s_name(plane: Plane) -> None:
    for short, zone in (("a", "x"), ("b", "y"), ("c", "x")):
        plane.node(short, {"zone": zone})
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        }
    }
    daemons.make(plane, pod_affinity=affinity)
    pod = daemons.pods(plane, "a", "c")["a"]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [plane.node_name("a")]}]}
    assert pod["spec"]["affinity"]["nodeAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }


def test_status_step_by_step(plane: Plane) -> None:
    daemons.make(plane)
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 0)
    for short in ("a", "b"):
        plane.node(short)
    pods = daemons.pods(plane, "a", "b")
    daemons.says(plane, 2, 2, 0, 2, 0, 2, 0)
    plane.report(pods["a"]["metadata"]["name"], "Running")
    plane.runs(pods["b"]["metadata"]["name"])
    daemons.says(plane, 2, 2, 1, 2, 1, 1, 0)
    plane.runs(pods["a"]["metadata"]["name"])
    daemons.says(plane, 2, 2, 2, 2, 2, 0, 0)
    status = plane.read("daemonsets", "d")["status"]
    assert "numberUnavailable" not in status
    assert status["observedGeneration"] == 1
    assert "conditions" not in status
    plane.report(pods["a"]["metadata"]["name"], "Running")
    daemons.says(plane, 2, 2, 1, 2, 1, 1, 0)


def test_status_of_no_nodes_names_what_is_zero(plane: Plane) -> None:
    daemons.make(plane)
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 0)
    assert plane.read("daemonsets", "d")["status"] == {
        "currentNumberScheduled": 0,
        "desiredNumberScheduled": 0,
        "numberMisscheduled": 0,
        "numberReady": 0,
        "observedGeneration": 1,
    }


def test_min_ready_seconds_put_availability_off(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane, minReadySeconds=3)
    pod = daemons.pods(plane, "a")["a"]
    plane.runs(pod["metadata"]["name"])
    daemons.says(plane, 1, 1, 1, 1, 1, 0, 0)


def test_labels_of_nodes_bring_and_take_pods(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane, pod_nodeSelector={CASE: plane.space, "role": "gpu"})
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 0)
    plane.change("nodes", plane.node_name("a"), {"metadata": {"labels": {"role": "gpu"}}})
    daemons.pods(plane, "a")
    daemons.run_all(plane)
    daemons.says(plane, 1, 1, 1, 1, 1, 0, 0)
    plane.change("nodes", plane.node_name("a"), {"metadata": {"labels": {"role": None}}})
    daemons.pods(plane)
    assert daemons.going(plane) == ["a"]
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 1)
    daemons.finish(plane)
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 0)


def test_cordoned_node_gets_its_pod(plane: Plane) -> None:
    plane.node("a", unschedulable=True)
    daemons.make(plane)
    daemons.pods(plane, "a")
    daemons.says(plane, 1, 1, 0, 1, 0, 1, 0)


def test_cordon_takes_no_pod_away(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane)
    daemons.pods(plane, "a")
    daemons.run_all(plane)
    plane.change("nodes", plane.node_name("a"), {"spec": {"unschedulable": True}})
    plane.node("b")
    daemons.pods(plane, "a", "b")
    daemons.says(plane, 2, 2, 1, 2, 1, 1, 0)


def test_untolerated_taint_keeps_pods_off(plane: Plane) -> None:
    plane.node("a", taints=[TAINT])
    plane.node("b")
    daemons.make(plane)
    daemons.pods(plane, "b")
    daemons.says(plane, 1, 1, 0, 1, 0, 1, 0)
    plane.change("nodes", plane.node_name("a"), {"spec": {"taints": []}})
    daemons.pods(plane, "a", "b")


def test_a_no_schedule_taint_lets_a_running_pod_stay(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane)
    daemons.pods(plane, "a")
    daemons.run_all(plane)
    daemons.says(plane, 1, 1, 1, 1, 1, 0, 0)
    plane.change("nodes", plane.node_name("a"), {"spec": {"taints": [TAINT]}})
    (pod,) = plane.owned(daemons.LABELS)
    plane.report(pod["metadata"]["name"], "Running")
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 1)
    daemons.pods(plane, "a")
    (pod,) = plane.owned(daemons.LABELS)
    plane.ends(pod["metadata"]["name"])
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 0)
    daemons.pods(plane)


def test_a_no_execute_taint_takes_the_pod(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane)
    daemons.pods(plane, "a")
    daemons.run_all(plane)
    plane.change("nodes", plane.node_name("a"), {"spec": {"taints": [{**TAINT, "effect": "NoExecute"}]}})
    daemons.pods(plane)
    assert daemons.going(plane) == ["a"]
    daemons.says(plane, 0, 0, 0, 0, 0, 0, 1)


def test_a_node_that_is_not_ready_gets_no_pod_and_keeps_the_one_it_has(plane: Plane) -> None:
    """Daemon pods tolerate the NoExecute taint of such a node, and not the NoSchedule one."""
    plane.node("a")
    daemons.make(plane)
    daemons.pods(plane, "a")
    daemons.run_all(plane)
    daemons.says(plane, 1, 1, 1, 1, 1, 0, 0)
    plane.node_is("a", "False")
    plane.until(lambda: (f"{PREFIX}not-ready", "NoSchedule") in plane.taints("a"), "the taint")
    plane.node("b", ready="False")
    daemons.says(plane, 1, 1, 1, 1, 1, 0, 0)
    daemons.pods(plane, "a")
    plane.node_is("b", "True")
    daemons.pods(plane, "a", "b")
    daemons.says(plane, 1, 1, 0, 1, 0, 1, 1)
    plane.node_is("a", "True")
    daemons.says(plane, 2, 2, 1, 2, 1, 1, 0)


def test_what_does_not_fit_counts_as_desired_and_unavailable(plane: Plane) -> None:
    plane.node("a", gpu="1")
    plane.node("b")
    daemons.make(plane, pod_requests={GPU: "1"})
    plane.until(lambda: len(plane.owned(daemons.LABELS)) == 2, "both pods")
    plane.until(lambda: sorted(plane.by_node(daemons.LABELS)) == ["a"], "one to be bound")
    daemons.says(plane, 2, 2, 0, 2, 0, 2, 0)


@pytest.mark.parametrize(
    ("phase", "reason", "text"),
    [
        ("Failed", "FailedDaemonPod", "Found failed daemon pod {pod} on node {node}, will try to kill it"),
        ("Succeeded", "SucceededDaemonPod", "Found succeeded daemon pod {pod} on node {node}, will try to delete it"),
    ],
    ids=["failed", "succeeded"],
)
def test_ended_pods_are_replaced(plane: Plane, phase: str, reason: str, text: str) -> None:
    plane.node("a")
    daemons.make(plane)
    name = daemons.pods(plane, "a")["a"]["metadata"]["name"]
    plane.report(name, phase, exit_code=int(phase == "Failed"))
    plane.until(
        lambda: [pod["metadata"]["name"] for pod in plane.owned(daemons.LABELS)] not in ([], [name]), "another pod"
    )
    plane.gone("pods", name)
    event = plane.until(lambda: next(iter(plane.events(reason, "d")), None), "the event")
    assert event is not None
    assert event["message"] == text.format(pod=f"{plane.space}/{name}", node=plane.node_name("a"))


def test_deleted_pod_comes_back(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane)
    first = daemons.pods(plane, "a")["a"]["metadata"]["name"]
    plane.remove("pods", first)
    plane.until(lambda: daemons.going(plane) == ["a"])
    assert plane.owned(daemons.LABELS) == []
    plane.ends(first)
    assert daemons.pods(plane, "a")["a"]["metadata"]["name"] != first


def test_pod_of_a_node_that_is_gone_does_not_count(plane: Plane) -> None:
    for short in ("a", "b"):
        plane.node(short)
    daemons.make(plane)
    daemons.pods(plane, "a", "b")
    daemons.run_all(plane)
    daemons.says(plane, 2, 2, 2, 2, 2, 0, 0)
    plane.remove("nodes", plane.node_name("b"))
    plane.report(daemons.pods(plane, "a", "b")["a"]["metadata"]["name"], "Running")
    daemons.says(plane, 1, 1, 0, 1, 0, 1, 0)


def test_revision(plane: Plane) -> None:
    made = daemons.make(plane)
    (revision,) = plane.until(lambda: daemons.revisions(plane), "the revision")
    digest = revision["metadata"]["labels"][daemons.HASH]
    assert revision["metadata"]["name"] == f"d-{digest}"
    assert revision["metadata"]["labels"] == {"app": "d", daemons.HASH: digest}
    assert revision["metadata"]["annotations"] == {"deprecated.daemonset.template.generation": "1"}
    (owner,) = revision["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DaemonSet", made["metadata"]["uid"], True)
    assert revision["revision"] == 1
    assert revision["data"]["spec"]["template"]["$patch"] == "replace"
    template = {key: value for key, value in revision["data"]["spec"]["template"].items() if key != "$patch"}
    assert template["spec"]["containers"] == made["spec"]["template"]["spec"]["containers"]
    assert template["metadata"]["labels"] == {"app": "d"}


def test_orphan_is_adopted_and_a_relabelled_pod_released(plane: Plane) -> None:
    plane.node("a")
    plane.pod("orphan", {"app": "d"}, nodeName=plane.node_name("a"))
    made = daemons.make(plane)

    def owner(name: str) -> str:
        owners = plane.read("pods", name)["metadata"].get("ownerReferences") or [{"uid": ""}]
        return str(owners[0]["uid"])

    plane.until(lambda: owner("orphan") == made["metadata"]["uid"], "the orphan to be adopted")
    daemons.says(plane, 1, 1, 0, 0, 0, 1, 0)
    plane.change("pods", "orphan", {"metadata": {"labels": {"app": "free"}}})
    plane.until(lambda: owner("orphan") == "", "the pod to be released")
    pod = daemons.pods(plane, "a")["a"]
    assert pod["metadata"]["name"] != "orphan"


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_deletion_takes_pods_and_revisions(plane: Plane, propagation: str) -> None:
    plane.node("a")
    daemons.make(plane)
    daemons.pods(plane, "a")
    plane.remove("daemonsets", "d", propagationPolicy=propagation)
    plane.until(lambda: daemons.going(plane) == ["a"], "the pod to be deleted")
    if propagation == "Foreground":
        waiting = plane.read("daemonsets", "d")
        assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    daemons.finish(plane)
    plane.gone("daemonsets", "d")
    plane.until(lambda: not daemons.revisions(plane), "the revisions to be gone")
    assert plane.owned(daemons.LABELS) == []


def test_orphaning_deletion_leaves_pods_to_a_successor(plane: Plane) -> None:
    plane.node("a")
    first = daemons.make(plane)
    pod = daemons.pods(plane, "a")["a"]
    (revision,) = daemons.revisions(plane)
    plane.remove("daemonsets", "d", propagationPolicy="Orphan")
    plane.gone("daemonsets", "d")
    plane.until(
        lambda: "ownerReferences" not in plane.read("pods", pod["metadata"]["name"])["metadata"], "the pod to be free"
    )
    second = daemons.make(plane)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    plane.until(
        lambda: (
            plane.read("pods", pod["metadata"]["name"])["metadata"].get("ownerReferences", [{}])[0].get("uid")
            == second["metadata"]["uid"]
        ),
        "the pod to be adopted",
    )
    daemons.says(plane, 1, 1, 0, 1, 0, 1, 0)
    assert [each["metadata"]["name"] for each in daemons.revisions(plane)] == [revision["metadata"]["name"]]


def test_two_sets_share_a_node(plane: Plane) -> None:
    plane.node("a")
    daemons.make(plane)
    template = plane.template("e", nodeSelector={HOSTNAME: plane.node_name("a")})
    plane.make("daemonsets", "e", spec={"selector": {"matchLabels": {"app": "e"}}, "template": template})
    daemons.pods(plane, "a")
    plane.until(lambda: list(plane.by_node("app=e")) == ["a"], "the other's pod")


def test_template_s_labels_and_annotations_reach_the_pods(plane: Plane) -> None:
    plane.node("a")
    template: Document = plane.template("d")
    template["metadata"] = {"labels": {"app": "d", "tier": "x"}, "annotations": {"note": "y"}}
    plane.make("daemonsets", "d", spec={"selector": {"matchLabels": {"app": "d"}}, "template": template})
    metadata = daemons.pods(plane, "a")["a"]["metadata"]
    assert metadata["labels"]["tier"] == "x"
    assert metadata["annotations"] == {"note": "y"}
