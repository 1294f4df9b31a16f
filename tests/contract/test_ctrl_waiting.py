"""Controllers that wait: leases that grow old, tolerations that end, back-offs, time to live, slow retries.

The scenarios run side by side, since each of them spends its time waiting; each is a case of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from contract.ctrl_plane import CASE, GPU, Document, Plane, condition, counts
from contract.engines import Engine

PATIENCE = 3
"""How many times as long as elsewhere a scenario waits: kube-controller-manager looks at silent nodes after 50 s."""
PREFIX = "node.kubernetes.io/"
BOTH = ("NoSchedule", "NoExecute")
Scenario = Callable[[Plane], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    """Add a scenario to those that run side by side."""
    SCENARIOS[run.__name__] = run
    return run


def deletion(plane: Plane, name: str) -> bool:
    found = plane.get("pods", name)
    return found is None or "deletionTimestamp" in found["metadata"]


def bound(plane: Plane, name: str, short: str, *tolerations: Document) -> None:
    plane.pod(name, nodeName=plane.node_name(short), tolerations=list(tolerations))
    plane.runs(name)


# --- nodes ------------------------------------------------------------------------------------------------------------


class Heartbeats:
    """Renews the leases of nodes until told otherwise, as their kubelets do."""

    def __init__(self, plane: Plane, *shorts: str) -> None:
        self._plane = plane
        self._shorts = shorts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats")

    def __enter__(self) -> Heartbeats:
        for short in self._shorts:
            self._plane.node(short)
            self._lease(short, "POST")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for short in self._shorts:
            self._plane.api.delete(self._path(short))

    def silence(self, short: str) -> None:
        """Let a node's lease grow old."""
        self._shorts = tuple(each for each in self._shorts if each != short)

    def _path(self, short: str = "") -> str:
        base = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        return f"{base}/{self._plane.node_name(short)}" if short else base

    def _lease(self, short: str, method: str) -> None:
        name = self._plane.node_name(short)
        renewed = self._plane.now().replace("Z", ".000000Z")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}
        if method == "POST":
            self._plane.api.create(self._path(), {"metadata": {"name": name}, "spec": spec}).ok()
        else:
            self._plane.api.patch(self._path(short), {"spec": {"renewTime": renewed}}).ok()

    def _beat(self) -> None:
        while not self._stop.wait(1.0):
            for short in self._shorts:
                self._lease(short, "PATCH")


@scenario
def a_silent_node_is_unreachable(plane: Plane) -> None:
    with Heartbeats(plane, "silent", "b", "c", "d") as heartbeats:
        bound(plane, "p", "silent")
        bound(plane, "other", "b")
        heartbeats.silence("silent")
        wanted = {(f"{PREFIX}unreachable", effect) for effect in BOTH}
        plane.until(lambda: plane.taints("silent") == wanted, "the taints")
        node = plane.read("nodes", plane.node_name("silent"))
        said = condition(node, "Ready")
        assert said is not None
        assert (said["status"], said["reason"], said["message"]) == (
            "Unknown",
            "NodeStatusUnknown",
            "Kubelet stopped posting node status.",
        )
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure"):
            pressure = condition(node, kind)
            assert pressure is not None
            assert (pressure["status"], pressure["reason"]) == ("Unknown", "NodeStatusUnknown")
        plane.until(lambda: (condition(plane.read("pods", "p"), "Ready") or {})["status"] == "False", "its pod")
        other = condition(plane.read("pods", "other"), "Ready")
        assert other is not None
        assert other["status"] == "True"
        assert not deletion(plane, "p")
        assert plane.taints("b") == set()


@scenario
def a_node_that_is_not_ready_loses_its_impatient_pods(plane: Plane) -> None:
    patience = {"key": f"{PREFIX}not-ready", "operator": "Exists", "effect": "NoExecute"}
    with Heartbeats(plane, "a", "b", "c", "d"):
        bound(plane, "hasty", "a", {**patience, "tolerationSeconds": 1})
        bound(plane, "usual", "a")
        bound(plane, "patient", "a", patience)
        plane.node_is("a", "False")
        plane.until(lambda: plane.taints("a") == {(f"{PREFIX}not-ready", effect) for effect in BOTH}, "the taints")
        (taint,) = [
            taint
            for taint in plane.read("nodes", plane.node_name("a"))["spec"]["taints"]
            if taint["effect"] == "NoExecute"
        ]
        assert taint["timeAdded"]
        plane.until(lambda: deletion(plane, "hasty"), "the hasty pod to be evicted")
        (seconds,) = [
            each["tolerationSeconds"]
            for each in plane.read("pods", "usual")["spec"]["tolerations"]
            if each["key"] == f"{PREFIX}not-ready"
        ]
        assert seconds == 300
        assert not deletion(plane, "patient")
        ready = condition(plane.read("pods", "patient"), "Ready")
        assert ready is not None
        assert ready["status"] == "True", "the kubelet speaks for its pods as long as it speaks"
        plane.node_is("a", "True")
        plane.until(lambda: plane.taints("a") == set(), "the taints to go")


@scenario
def a_no_execute_taint_ends_pods_in_their_time(plane: Plane) -> None:
    plane.node("a")
    mine = {"key": GPU, "operator": "Exists", "effect": "NoExecute"}
    bound(plane, "none", "a")
    bound(plane, "for-a-while", "a", {**mine, "tolerationSeconds": 2})
    bound(plane, "for-ever", "a", mine)
    taint = {"key": GPU, "value": "broken", "effect": "NoExecute"}
    plane.change("nodes", plane.node_name("a"), {"spec": {"taints": [taint]}})
    plane.until(lambda: deletion(plane, "none"), "the pod without a toleration to be evicted")
    said = condition(plane.read("pods", "none"), "DisruptionTarget")
    assert said is not None
    assert (said["status"], said["reason"]) == ("True", "DeletionByTaintManager")
    assert said["message"] == "Taint manager: deleting due to NoExecute taint"
    event = plane.until(lambda: next(iter(plane.events("TaintManagerEviction", "none")), None), "the event")
    assert event is not None
    assert event["message"] == f"Marking for deletion Pod {plane.space}/none"
    assert event["source"] == {"component": "taint-eviction-controller"}
    plane.until(lambda: deletion(plane, "for-a-while"), "the other to be evicted")
    assert not deletion(plane, "for-ever")


@scenario
def pods_of_a_node_that_is_gone_are_collected(plane: Plane) -> None:
    plane.node("a")
    bound(plane, "p", "a")
    plane.make("pods", "held", metadata={"finalizers": ["example.com/held"]}, spec=plane.here())
    plane.placed("held")
    plane.remove("nodes", plane.node_name("a"))
    plane.gone("pods", "p")
    held = plane.until(lambda: plane.read("pods", "held"))
    plane.until(lambda: plane.read("pods", "held")["status"].get("phase") == "Failed", "the other pod to be marked")
    held = plane.read("pods", "held")
    said = condition(held, "DisruptionTarget")
    assert said is not None
    assert (said["status"], said["reason"]) == ("True", "DeletionByPodGC")
    assert said["message"] == "PodGC: node no longer exists"


# --- workloads --------------------------------------------------------------------------------------------------------


def job(plane: Plane, **spec: Any) -> None:
    plane.node("a")
    template = {"metadata": {"labels": {"app": "j"}}, "spec": plane.here(restartPolicy="Never")}
    plane.make("jobs", "j", spec={"template": template, **spec})


@scenario
def a_job_waits_before_it_tries_again(plane: Plane) -> None:
    job(plane, backoffLimit=1)
    (first,) = plane.until(lambda: list(plane.by_node("job-name=j").values()), "the first pod")
    plane.report(first["metadata"]["name"], "Failed", exit_code=1)
    plane.until(lambda: counts(plane.read("jobs", "j"), "failed") == (1,), "the failure to be counted")
    plane.until(lambda: len(plane.list("pods", "job-name=j")) == 2, "another pod")
    (second,) = [pod for pod in plane.list("pods", "job-name=j") if pod["status"]["phase"] == "Pending"]
    assert second["metadata"]["creationTimestamp"] > first["metadata"]["creationTimestamp"]
    plane.placed(second["metadata"]["name"])
    plane.report(second["metadata"]["name"], "Failed", exit_code=1)
    plane.until(lambda: condition(plane.read("jobs", "j"), "Failed"), "the Job to fail")
    assert counts(plane.read("jobs", "j"), "failed") == (2,)


@scenario
def a_finished_job_is_removed_in_time(plane: Plane) -> None:
    job(plane, ttlSecondsAfterFinished=2)
    (pod,) = plane.until(lambda: list(plane.by_node("job-name=j").values()), "the pod")
    plane.report(pod["metadata"]["name"], "Succeeded")
    plane.gone("jobs", "j")
    plane.gone("pods", pod["metadata"]["name"])


@scenario
def a_job_has_a_deadline(plane: Plane) -> None:
    job(plane, activeDeadlineSeconds=2)
    with plane.kubelet():
        plane.until(lambda: condition(plane.read("jobs", "j"), "Failed"), "the Job to fail")
    said = condition(plane.read("jobs", "j"), "Failed")
    assert said is not None
    assert (said["reason"], said["message"]) == ("DeadlineExceeded", "Job was active longer than specified deadline")


@scenario
def a_failing_daemon_pod_is_replaced_again_and_again(plane: Plane) -> None:
    plane.node("a")
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": plane.template("d")}
    plane.make("daemonsets", "d", spec=spec)
    seen: set[str] = set()

    def fail_each(pod: Document) -> str:
        seen.add(pod["metadata"]["name"])
        return "Failed"

    with plane.kubelet(fail_each):
        plane.until(lambda: len(seen) == 4, "three replacements")


# --- collection -------------------------------------------------------------------------------------------------------


@scenario
def what_a_custom_resource_owns_goes_with_it(plane: Plane) -> None:
    """As the operands go with their ClusterPolicy, which is in no namespace."""
    group = f"{plane.space}.example.com"
    names = {"plural": "policies", "singular": "policy", "kind": "Policy", "listKind": "PolicyList"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": group, "names": names, "scope": "Cluster", "versions": [version]}
    plane.make("customresourcedefinitions", f"policies.{group}", spec=spec)
    path = f"/apis/{group}/v1/policies"
    plane.until(lambda: plane.api.get(path).status == 200, "the kind to be served")
    body = {"apiVersion": f"{group}/v1", "kind": "Policy", "metadata": {"name": "policy"}}
    plane.until(lambda: plane.api.create(path, body).status == 201, "the policy to be made")
    policy = plane.api.get(f"{path}/policy").ok()
    owner = {
        "apiVersion": f"{group}/v1",
        "kind": "Policy",
        "name": "policy",
        "uid": policy["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    plane.node("a")
    selector = {"matchLabels": {"app": "d"}}
    plane.make("configmaps", "c", metadata={"ownerReferences": [owner]})
    plane.make(
        "daemonsets",
        "d",
        metadata={"ownerReferences": [owner]},
        spec={"selector": selector, "template": plane.template("d")},
    )
    plane.make("runtimeclasses", f"{plane.space}-class", metadata={"ownerReferences": [owner]}, handler="x")
    with plane.kubelet():
        plane.until(lambda: plane.by_node("app=d"), "the daemon pod")
        assert plane.api.delete(f"{path}/policy", {"propagationPolicy": "Background"}).status == 200
        plane.gone("configmaps", "c")
        plane.gone("daemonsets", "d")
        plane.gone("runtimeclasses", f"{plane.space}-class")
        plane.until(lambda: plane.list("pods") == [], "the pods to go")


@scenario
def deletion_empties_a_namespace(plane: Plane) -> None:
    plane.node("a")
    template = plane.template("d", terminationGracePeriodSeconds=1)
    selector = {"matchLabels": {"app": "d"}}
    plane.make("daemonsets", "d", spec={"selector": selector, "template": template})
    plane.make("deployments", "w", spec={"selector": selector, "template": template})
    plane.make("services", "s", spec={"selector": {"app": "d"}, "ports": [{"port": 80}]})
    plane.make("leases", "l", spec={"holderIdentity": "x"})
    plane.until(lambda: plane.by_node("app=d"), "pods")
    plane.make("configmaps", "c", metadata={"finalizers": ["example.com/held"]})
    with plane.kubelet():
        plane.remove("namespaces", plane.space)
        assert plane.read("namespaces", plane.space)["status"]["phase"] == "Terminating"
        refused = plane.api.create(plane.path("configmaps"), {"metadata": {"name": "late"}})
        body = refused.fails(403, "Forbidden")
        assert body["message"] == (
            f'configmaps "late" is forbidden: unable to create new content in namespace {plane.space} '
            "because it is being terminated"
        )
        assert body["details"]["causes"] == [
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {plane.space} is being terminated",
                "field": "metadata.namespace",
            }
        ]
        plane.until(lambda: plane.list("pods") == [], "the pods to go")
        plane.change("configmaps", "c", {"metadata": {"finalizers": None}})
        plane.gone("namespaces", plane.space)
    for plural in ("pods", "configmaps", "serviceaccounts", "deployments", "daemonsets", "leases", "services"):
        assert plane.list(plural) == [], plural


@scenario
def a_finalizer_holds_a_namespace(plane: Plane) -> None:
    plane.make("configmaps", "c", metadata={"finalizers": ["example.com/held"]})
    plane.remove("namespaces", plane.space)

    def held() -> Document | None:
        found = condition(plane.read("namespaces", plane.space), "NamespaceFinalizersRemaining")
        return found if found is not None and found["status"] == "True" else None

    said = plane.until(held, "the condition")
    assert said is not None
    assert said["reason"] == "SomeFinalizersRemain"
    assert said["message"] == (
        "Some content in the namespace has finalizers remaining: example.com/held in 1 resource instances"
    )
    remaining = condition(plane.read("namespaces", plane.space), "NamespaceContentRemaining")
    assert remaining is not None
    assert (remaining["status"], remaining["reason"]) == ("True", "SomeResourcesRemain")
    assert remaining["message"] == "Some resources are remaining: configmaps. has 1 resource instances"
    done = condition(plane.read("namespaces", plane.space), "NamespaceDeletionContentFailure")
    assert done is not None
    assert (done["status"], done["reason"]) == ("False", "ContentDeleted")
    assert plane.read("configmaps", "c")["metadata"]["deletionTimestamp"]
    plane.change("configmaps", "c", {"metadata": {"finalizers": None}})
    plane.gone("namespaces", plane.space)


@scenario
def preempted_pods_leave_when_their_grace_is_over(plane: Plane) -> None:
    """The important pod waits for the last second of the other, then takes its place."""
    high = f"{plane.space}-high"
    plane.make("priorityclasses", high, value=1000)
    plane.node("a", gpu="1")
    plane.pod("low", nodeSelector={CASE: plane.space}, requests={GPU: "1"}, terminationGracePeriodSeconds=2)
    plane.placed("low")
    plane.runs("low")
    plane.pod("high", nodeSelector={CASE: plane.space}, requests={GPU: "1"}, priorityClassName=high)
    plane.until(lambda: deletion(plane, "low"), "the less important pod to be deleted")
    assert plane.place("high") == ""
    with plane.kubelet():
        plane.until(lambda: plane.place("high") == "a", "the important pod to be bound")


# --- running them -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes(swift_engine: Engine) -> Iterator[dict[str, Future[None]]]:
    """Every scenario, begun at the same time, each on a plane of its own."""

    def play(run: Scenario) -> None:
        with Plane(swift_engine) as plane:
            plane.patience_s = PATIENCE * Plane.patience_s
            run(plane)

    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {name: pool.submit(play, run) for name, run in SCENARIOS.items()}


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_in_time(outcomes: dict[str, Future[None]], name: str) -> None:
    outcomes[name].result()
