"""Deployments and ReplicaSets: roll-outs within their limits, scaling, history, and what the status says."""

from __future__ import annotations

from typing import Any

import pytest
from contract.ctrl_plane import Document, Plane, condition, counts

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
STATUS = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas")


def deploy(plane: Plane, replicas: int = 1, *, image: str = "x:1", **more: Any) -> Document:
    template = plane.template("w")
    template["spec"]["containers"][0]["image"] = image
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "w"}}, "template": template, **more}
    return plane.make("deployments", "w", spec=spec)


def rolling(surge: Any, unavailable: Any) -> Document:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def set_image(plane: Plane, image: str) -> Document:
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]
    return plane.api.patch(plane.path("deployments", "w"), change, "application/json-patch+json").ok()


def says(plane: Plane, *wanted: int) -> Document:
    """Wait until the status, in the order of `STATUS`, holds these numbers for the present generation."""

    def look() -> Document | None:
        found = plane.read("deployments", "w")
        seen = counts(found, *STATUS)
        assert seen == wanted, f"{seen} is not {wanted}"
        return found if found["status"].get("observedGeneration") == found["metadata"]["generation"] else None

    found = plane.until(look, "the Deployment's status")
    assert found is not None
    return found


def progress(plane: Plane, kind: str, status: str, reason: str) -> str:
    """Wait until a condition says this; its message."""

    def look() -> Document | None:
        found = condition(plane.read("deployments", "w"), kind)
        assert found is not None
        assert (found["status"], found["reason"]) == (status, reason), found
        return found

    found = plane.until(look, f"condition {kind}")
    assert found is not None
    return str(found["message"])


def sets(plane: Plane) -> dict[str, int]:
    """How many pods each ReplicaSet wants, by image."""
    return {
        each["spec"]["template"]["spec"]["containers"][0]["image"]: each["spec"]["replicas"]
        for each in plane.list("replicasets", "app=w")
    }


def wants(plane: Plane, **wanted: int) -> None:
    """Wait until the ReplicaSets want these numbers, by the images' tags `v1`, `v2` and so on."""
    expected = {f"x:{tag.removeprefix('v')}": number for tag, number in wanted.items()}

    def look() -> bool:
        seen = sets(plane)
        assert seen == expected, f"{seen} is not {expected}"
        return True

    plane.until(look, "the ReplicaSets")


def running(plane: Plane, replicas: int, **more: Any) -> Document:
    """A Deployment all of whose pods are ready."""
    plane.node("a")
    deploy(plane, replicas, **more)
    ready(plane, replicas)
    return says(plane, replicas, replicas, replicas, replicas, 0)


def ready(plane: Plane, number: int, image: str = "x:1") -> None:
    """Wait until so many pods of an image are bound, and mark them as ready."""

    def bound() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in plane.owned("app=w")
            if pod["spec"].get("nodeName") and pod["spec"]["containers"][0]["image"] == image
        ]

    plane.until(lambda: len(bound()) == number, f"{number} pods of {image}")
    for name in bound():
        plane.runs(name)


def test_comes_up(plane: Plane) -> None:
    plane.node("a")
    deploy(plane, 2, strategy=rolling(1, 0))
    says(plane, 2, 2, 0, 0, 2)
    assert progress(plane, "Available", "False", "MinimumReplicasUnavailable") == (
        "Deployment does not have minimum availability."
    )
    (replica_set,) = plane.list("replicasets")
    name = replica_set["metadata"]["name"]
    assert progress(plane, "Progressing", "True", "ReplicaSetUpdated") == f'ReplicaSet "{name}" is progressing.'
    ready(plane, 2)
    done = says(plane, 2, 2, 2, 2, 0)
    assert progress(plane, "Available", "True", "MinimumReplicasAvailable") == ("Deployment has minimum availability.")
    assert progress(plane, "Progressing", "True", "NewReplicaSetAvailable") == (
        f'ReplicaSet "{name}" has successfully progressed.'
    )
    assert done["metadata"]["generation"] == 1
    assert done["metadata"]["annotations"] == {REVISION: "1"}


def test_replica_set_and_pods(plane: Plane) -> None:
    plane.node("a")
    made = deploy(plane, 2, strategy=rolling(1, 0))
    plane.until(lambda: len(plane.owned("app=w")) == 2, "the pods")
    (replica_set,) = plane.list("replicasets")
    digest = replica_set["metadata"]["labels"][HASH]
    assert replica_set["metadata"]["name"] == f"w-{digest}"
    assert replica_set["metadata"]["labels"] == {"app": "w", HASH: digest}
    assert replica_set["metadata"]["annotations"] == {
        REVISION: "1",
        "deployment.kubernetes.io/desired-replicas": "2",
        "deployment.kubernetes.io/max-replicas": "3",
    }
    (owner,) = replica_set["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "Deployment",
        made["metadata"]["uid"],
        True,
        True,
    )
    assert replica_set["spec"]["selector"] == {"matchLabels": {"app": "w", HASH: digest}}
    for pod in plane.owned("app=w"):
        assert pod["metadata"]["generateName"] == f"w-{digest}-"
        assert pod["metadata"]["labels"] == {"app": "w", HASH: digest}
        assert pod["metadata"]["ownerReferences"][0]["uid"] == replica_set["metadata"]["uid"]
    event = plane.until(lambda: next(iter(plane.events("ScalingReplicaSet")), None), "the event")
    assert event is not None
    assert event["message"] == f"Scaled up replica set w-{digest} from 0 to 2"
    assert event["source"] == {"component": "deployment-controller"}


@pytest.mark.parametrize("subresource", ["", "scale"])
def test_scales(plane: Plane, subresource: str) -> None:
    running(plane, 1)
    plane.change("deployments", "w", {"spec": {"replicas": 3}}, subresource)
    plane.until(lambda: len(plane.owned("app=w")) == 3, "three pods")
    says(plane, 3, 3, 1, 1, 2)
    plane.change("deployments", "w", {"spec": {"replicas": 1}}, subresource)
    with plane.kubelet():
        plane.until(lambda: len(plane.list("pods", "app=w")) == 1, "one pod")
    says(plane, 1, 1, 1, 1, 0)
    assert [each["metadata"]["annotations"][REVISION] for each in plane.list("replicasets")] == ["1"]


def test_the_pods_that_are_not_ready_go_first(plane: Plane) -> None:
    running(plane, 1)
    (keeper,) = plane.owned("app=w")
    plane.change("deployments", "w", {"spec": {"replicas": 3}})
    plane.until(lambda: len(plane.by_node("app=w")) == 1 and len(plane.owned("app=w")) == 3, "three pods")
    plane.change("deployments", "w", {"spec": {"replicas": 1}})
    plane.until(lambda: len(plane.owned("app=w")) == 1, "one pod")
    assert [pod["metadata"]["name"] for pod in plane.owned("app=w")] == [keeper["metadata"]["name"]]


def test_surge_without_loss(plane: Plane) -> None:
    running(plane, 2, strategy=rolling(1, 0))
    set_image(plane, "x:2")
    wants(plane, v1=2, v2=1)
    says(plane, 3, 1, 2, 2, 1)
    ready(plane, 1, "x:2")
    wants(plane, v1=1, v2=2)
    ready(plane, 2, "x:2")
    wants(plane, v1=0, v2=2)
    says(plane, 2, 2, 2, 2, 0)
    assert plane.read("deployments", "w")["metadata"]["annotations"][REVISION] == "2"
    assert sorted(each["metadata"]["annotations"][REVISION] for each in plane.list("replicasets")) == ["1", "2"]


def test_loss_without_surge(plane: Plane) -> None:
    running(plane, 3, strategy=rolling(0, 1))
    set_image(plane, "x:2")
    wants(plane, v1=2, v2=1)
    ready(plane, 1, "x:2")
    wants(plane, v1=1, v2=2)


def test_a_quarter_both_ways(plane: Plane) -> None:
    running(plane, 4)
    set_image(plane, "x:2")
    wants(plane, v1=3, v2=2)
    says(plane, 5, 2, 3, 3, 2)
    progress(plane, "Available", "True", "MinimumReplicasAvailable")


def test_a_broken_template_stops_the_roll_out(plane: Plane) -> None:
    running(plane, 4, progressDeadlineSeconds=2)
    set_image(plane, "x:2")
    wants(plane, v1=3, v2=2)
    (new,) = [each for each in plane.list("replicasets") if each["metadata"]["annotations"][REVISION] == "2"]
    assert progress(plane, "Progressing", "False", "ProgressDeadlineExceeded") == (
        f'ReplicaSet "{new["metadata"]["name"]}" has timed out progressing.'
    )
    wants(plane, v1=3, v2=2)
    set_image(plane, "x:1")
    wants(plane, v1=4, v2=0)


def test_recreate_lets_the_old_go_first(plane: Plane) -> None:
    running(plane, 2, strategy={"type": "Recreate"})
    set_image(plane, "x:2")
    plane.until(lambda: plane.owned("app=w") == [], "the old pods to be deleted")
    assert len(plane.list("pods", "app=w")) == 2
    assert list(sets(plane)) == ["x:1"]
    for pod in plane.list("pods", "app=w"):
        plane.ends(pod["metadata"]["name"])
    wants(plane, v1=0, v2=2)


def test_going_back_reuses_the_replica_set(plane: Plane) -> None:
    running(plane, 1)
    (first,) = plane.list("replicasets")
    with plane.kubelet():
        set_image(plane, "x:2")
        wants(plane, v1=0, v2=1)
        says(plane, 1, 1, 1, 1, 0)
        set_image(plane, "x:1")
        wants(plane, v1=1, v2=0)
        says(plane, 1, 1, 1, 1, 0)
    annotations = plane.read("replicasets", first["metadata"]["name"])["metadata"]["annotations"]
    assert annotations[REVISION] == "3"
    assert annotations["deployment.kubernetes.io/revision-history"] == "1"
    assert plane.read("deployments", "w")["metadata"]["annotations"][REVISION] == "3"


def test_history_is_limited(plane: Plane) -> None:
    running(plane, 1, revisionHistoryLimit=1)
    with plane.kubelet():
        for number in (2, 3, 4):
            set_image(plane, f"x:{number}")
            plane.until(lambda number=number: sets(plane).get(f"x:{number}") == 1, f"x:{number}")  # type: ignore[misc]
            says(plane, 1, 1, 1, 1, 0)
        wants(plane, v3=0, v4=1)


def test_paused(plane: Plane) -> None:
    running(plane, 1)
    plane.change("deployments", "w", {"spec": {"paused": True}})
    assert progress(plane, "Progressing", "Unknown", "DeploymentPaused") == "Deployment is paused"
    set_image(plane, "x:2")
    plane.change("deployments", "w", {"spec": {"replicas": 2}})
    wants(plane, v1=2)
    plane.change("deployments", "w", {"spec": {"paused": None}})
    plane.until(lambda: "x:2" in sets(plane), "the roll-out to go on")


def test_min_ready_seconds(plane: Plane) -> None:
    plane.node("a")
    deploy(plane, 1, minReadySeconds=2)
    ready(plane, 1)
    says(plane, 1, 1, 1, 1, 0)
    (replica_set,) = plane.list("replicasets")
    assert replica_set["spec"]["minReadySeconds"] == 2
    assert counts(replica_set, "replicas", "readyReplicas", "availableReplicas", "fullyLabeledReplicas") == (1, 1, 1, 1)


def test_no_replicas(plane: Plane) -> None:
    deploy(plane, 0)
    says(plane, 0, 0, 0, 0, 0)
    progress(plane, "Available", "True", "MinimumReplicasAvailable")
    progress(plane, "Progressing", "True", "NewReplicaSetAvailable")


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_deletion_takes_everything(plane: Plane, propagation: str) -> None:
    running(plane, 2)
    plane.remove("deployments", "w", propagationPolicy=propagation)
    with plane.kubelet():
        plane.gone("deployments", "w")
        plane.until(lambda: not plane.list("replicasets") and not plane.list("pods"), "sets and pods to be gone")


def replica_set(plane: Plane, replicas: int) -> Document:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "r"}}, "template": plane.template("r")}
    return plane.make("replicasets", "r", spec=spec)


def test_replica_set_adopts_and_releases(plane: Plane) -> None:
    plane.node("a")
    plane.pod("orphan", {"app": "r"}, nodeName=plane.node_name("a"))
    made = replica_set(plane, 2)
    plane.until(lambda: len(plane.owned("app=r")) == 2, "one more pod")
    (owner,) = plane.read("pods", "orphan")["metadata"]["ownerReferences"]
    assert owner["uid"] == made["metadata"]["uid"]
    plane.change("pods", "orphan", {"metadata": {"labels": {"app": "free"}}})
    plane.until(lambda: len(plane.owned("app=r")) == 2, "another pod")
    plane.until(lambda: "ownerReferences" not in plane.read("pods", "orphan")["metadata"], "the pod to be released")


def test_replica_set_replaces_failed_pods_and_keeps_them(plane: Plane) -> None:
    plane.node("a")
    replica_set(plane, 1)
    (pod,) = plane.until(lambda: list(plane.by_node("app=r").values()), "the pod")
    plane.report(pod["metadata"]["name"], "Failed", exit_code=1, reason="Evicted")
    plane.until(lambda: len(plane.owned("app=r")) == 2, "another pod")
    plane.until(lambda: counts(plane.read("replicasets", "r"), "replicas") == (1,), "the status")
    assert plane.read("pods", pod["metadata"]["name"])["status"]["phase"] == "Failed"


def test_replica_set_does_not_wait_for_pods_that_go(plane: Plane) -> None:
    plane.node("a")
    replica_set(plane, 1)
    (pod,) = plane.until(lambda: list(plane.by_node("app=r").values()), "the pod")
    plane.remove("pods", pod["metadata"]["name"])
    plane.until(lambda: len(plane.owned("app=r")) == 1, "another pod")
    assert len(plane.list("pods", "app=r")) == 2
