"""What the cases of controllers and scheduler share: a namespace and nodes of their own, and the part of the kubelet.

No kubelet runs on either engine: a case marks its nodes ready, its pods running or ended, and finishes their deletion.
Every node carries the case's label, so that pods of one case stay on its nodes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar

from contract.engines import DEADLINE_S, STRATEGIC_PATCH, Engine, eventually, unique

Document = dict[str, Any]
T = TypeVar("T")

CASE = "contract/case"
GPU = "nvidia.com/gpu"
IMAGE = "registry.invalid/pause:1"
HOSTNAME = "kubernetes.io/hostname"
NO_NODES = "no nodes available to schedule pods"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"

_GROUPS = {
    "apps/v1": ("daemonsets", "deployments", "replicasets", "controllerrevisions", "statefulsets"),
    "batch/v1": ("jobs",),
    "policy/v1": ("poddisruptionbudgets",),
    "discovery.k8s.io/v1": ("endpointslices",),
    "coordination.k8s.io/v1": ("leases",),
    "scheduling.k8s.io/v1": ("priorityclasses",),
    "node.k8s.io/v1": ("runtimeclasses",),
    "apiextensions.k8s.io/v1": ("customresourcedefinitions",),
    "nvidia.com/v1": ("clusterpolicies",),
}
_PREFIXES = {plural: f"/apis/{group}" for group, plurals in _GROUPS.items() for plural in plurals}
_CLUSTER = frozenset(
    ("nodes", "namespaces", "priorityclasses", "runtimeclasses", "customresourcedefinitions", "clusterpolicies")
)
_POLL_S = 0.03


class Plane:
    """One case's cluster: `space` is its namespace and the value of its nodes' label."""

    patience_s = DEADLINE_S

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.api = engine.admin
        self.space = unique("contract")
        self._outside: list[str] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Make the namespace and wait until pods may be created in it."""
        self.make("namespaces", self.space)
        self.until(lambda: self.get("serviceaccounts", "default"), "the default service account")
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the case's pods at once, then its nodes and whatever else lies outside the namespace."""
        for plural in ("daemonsets", "deployments", "replicasets", "jobs"):
            self.api.delete(self.path(plural), {"propagationPolicy": "Background"})
        for path in reversed(self._outside):
            answer = self.api.delete(path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
            assert answer.status in (200, 202, 404), f"{path}: {answer.status} {answer.message}"
        for pod in self.list("pods"):
            if pod["metadata"].get("finalizers"):
                self.change("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
        self.api.delete(self.path("pods"), {"gracePeriodSeconds": 0})

    # --- requests -----------------------------------------------------------------------------------------------------

    def path(self, plural: str, name: str = "", subresource: str = "") -> str:
        """The URL path of a collection, an object or a subresource."""
        parts = [_PREFIXES.get(plural, "/api/v1")]
        if plural not in _CLUSTER:
            parts += ["namespaces", self.space]
        return "/".join([*parts, plural, *filter(None, (name, subresource))])

    def make(self, plural: str, name: str, **body: Any) -> Document:
        """Create an object; one outside the namespace is removed at the end. `metadata` adds to the name."""
        document = {**body, "metadata": {"name": name, **body.get("metadata", {})}}
        if plural in _CLUSTER:
            self._outside.append(self.path(plural, name))
        return self.api.create(self.path(plural), document).ok()

    def get(self, plural: str, name: str) -> Document | None:
        """An object, None if there is none."""
        answer = self.api.get(self.path(plural, name))
        return None if answer.status == 404 else answer.ok()

    def read(self, plural: str, name: str) -> Document:
        """An object that must be there."""
        return self.api.get(self.path(plural, name)).ok()

    def list(self, plural: str, labels: str = "") -> list[Document]:
        """The objects of the namespace, oldest name first."""
        params = {"labelSelector": labels} if labels else {}
        found: list[Document] = self.api.get(self.path(plural), **params).ok()["items"]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def change(self, plural: str, name: str, body: Document, subresource: str = "", **params: str) -> Document:
        """Merge-patch an object."""
        return self.api.patch(self.path(plural, name, subresource), body, **params).ok()

    def remove(self, plural: str, name: str, **options: Any) -> None:
        """Delete an object with these DeleteOptions."""
        answer = self.api.delete(self.path(plural, name), options)
        assert answer.status in (200, 202), answer.message

    def until(self, look: Callable[[], T], what: str = "") -> T:
        """Wait until `look` returns something true without failing an assertion."""
        return eventually(look, what=what, timeout_s=self.patience_s)

    def gone(self, plural: str, name: str, uid: str = "") -> None:
        """Wait until an object (of this UID) is not there any more."""

        def look() -> bool:
            found = self.get(plural, name)
            return found is None or (bool(uid) and found["metadata"]["uid"] != uid)

        self.until(look, f"{plural} {name} to be gone")

    def events(self, reason: str, about: str = "") -> list[Document]:
        """The namespace's events of a reason (about the object of this name)."""
        return [
            event
            for event in self.list("events")
            if event["reason"] == reason and about in ("", event["involvedObject"]["name"])
        ]

    def now(self) -> str:
        """The cluster's time, which in the lab runs ahead of ours."""
        probe = {"metadata": {"name": "clock"}}
        made = self.api.create("/api/v1/namespaces/default/configmaps", probe, dryRun="All").ok()
        return str(made["metadata"]["creationTimestamp"])

    # --- nodes --------------------------------------------------------------------------------------------------------

    def node_name(self, short: str) -> str:
        """The full name of a case's node."""
        return f"{self.space}-{short}"

    def node(
        self,
        short: str,
        labels: Mapping[str, str] | None = None,
        *,
        taints: Any = (),
        ready: str = "True",
        unschedulable: bool = False,
        **amounts: str,
    ) -> Document:
        """Make a node that is ready; `gpu`, `cpu`, `memory`, `pods` and `ephemeral_storage` are what it offers."""
        name = self.node_name(short)
        offered = {"cpu": "8", "memory": "32Gi", "pods": "20", **amounts}
        known = {"gpu": GPU, "ephemeral_storage": "ephemeral-storage"}
        offered = {known.get(key, key): value for key, value in offered.items()}
        spec: Document = {"unschedulable": True} if unschedulable else {}
        if taints:
            spec["taints"] = list(taints)
        self.make(
            "nodes",
            name,
            metadata={"labels": {CASE: self.space, HOSTNAME: name, **(labels or {})}},
            spec=spec,
            status={"capacity": offered, "allocatable": offered, "conditions": node_conditions(ready)},
        )
        return self.settled(short) if ready == "True" else self.read("nodes", name)

    def settled(self, short: str) -> Document:
        """Wait until a ready node has lost the taint that every new node gets."""

        def look() -> Document | None:
            node = self.read("nodes", self.node_name(short))
            taints = [taint["key"] for taint in node["spec"].get("taints") or ()]
            return None if "node.kubernetes.io/not-ready" in taints else node

        found = self.until(look, f"node {short} to be usable")
        assert found is not None
        return found

    def taints(self, short: str) -> set[tuple[str, str]]:
        """The (key, effect) pairs of a node's taints."""
        taints = self.read("nodes", self.node_name(short))["spec"].get("taints") or ()
        return {(taint["key"], taint["effect"]) for taint in taints}

    def node_is(self, short: str, ready: str) -> None:
        """Write a node's conditions."""
        self.change("nodes", self.node_name(short), {"status": {"conditions": node_conditions(ready)}}, "status")

    def scheduler_sees_no_nodes(self) -> None:
        """Wait until the scheduler knows that the nodes of earlier cases are gone."""

        def look() -> bool:
            name = unique("probe")
            self.pod(name)
            try:
                said = self.until(lambda: self.verdict(name), "the scheduler to look at a pod")
            finally:
                self.remove("pods", name, gracePeriodSeconds=0)
            return said == NO_NODES

        self.until(look, "no node to be left of earlier cases")

    # --- pods ---------------------------------------------------------------------------------------------------------

    def here(self, **spec: Any) -> Document:
        """A pod spec of one container that stays on the case's nodes."""
        return pod_spec(**{"nodeSelector": {CASE: self.space}, **spec})

    def template(self, app: str, **spec: Any) -> Document:
        """A pod template with the label `app` that stays on the case's nodes."""
        return {"metadata": {"labels": {"app": app}}, "spec": self.here(**spec)}

    def pod(self, name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> Document:
        """Make a pod."""
        return self.make("pods", name, metadata={"labels": dict(labels or {})}, spec=pod_spec(**spec))

    def place(self, name: str) -> str:
        """The short name of the node a pod is bound to, "" if none."""
        node = self.read("pods", name)["spec"].get("nodeName", "")
        return str(node).removeprefix(f"{self.space}-")

    def placed(self, name: str) -> str:
        """Wait until a pod is bound; the node's short name."""
        return self.until(lambda: self.place(name), f"pod {name} to be bound")

    def verdict(self, name: str) -> str:
        """Why a pod is not scheduled, as its condition says; "" if nothing is said."""
        found = condition(self.read("pods", name), "PodScheduled")
        return str(found.get("message", "")) if found is not None and found["status"] == "False" else ""

    def refused(self, name: str, text: str) -> None:
        """Wait until the scheduler says exactly this of a pod."""

        def look() -> bool:
            said = self.verdict(name)
            assert said == text, f"{said!r} is not {text!r}"
            return True

        self.until(look, f"pod {name} to be refused")

    def owned(self, labels: str = "") -> list[Document]:
        """The pods of the namespace that are not being deleted."""
        return [pod for pod in self.list("pods", labels) if not pod["metadata"].get("deletionTimestamp")]

    def by_node(self, labels: str = "") -> dict[str, Document]:
        """Pods that are not being deleted, by the short name of the node they are bound to."""
        return {
            pod["spec"]["nodeName"].removeprefix(f"{self.space}-"): pod
            for pod in self.owned(labels)
            if pod["spec"].get("nodeName")
        }

    # --- the kubelet's part -------------------------------------------------------------------------------------------

    def report(self, name: str, phase: str, *, ready: bool = False, exit_code: int = 0, reason: str = "") -> Document:
        """Write a pod's status as the kubelet does."""
        pod = self.read("pods", name)
        status = pod_status(pod, phase, ready=ready, now=self.now(), exit_code=exit_code, reason=reason)
        path = self.path("pods", name, "status")
        return self.api.patch(path, {"status": status}, STRATEGIC_PATCH).ok()

    def runs(self, name: str) -> Document:
        """Mark a pod as running and ready."""
        return self.report(name, "Running", ready=True)

    def ends(self, name: str) -> None:
        """Finish a pod's deletion."""
        self.remove("pods", name, gracePeriodSeconds=0)

    @contextlib.contextmanager
    def kubelet(self, behaviour: Callable[[Document], str] = lambda pod: "Running") -> Iterator[None]:
        """Play the kubelet for every bound pod of the namespace: bring it to a phase, and end it when it is deleted."""
        stop = threading.Event()
        failures: list[Exception] = []

        def serve() -> None:
            try:
                while not stop.wait(_POLL_S):
                    for pod in self.list("pods"):
                        self._serve(pod, behaviour)
            except Exception as error:  # noqa: BLE001  (told to the case below)
                failures.append(error)

        thread = threading.Thread(target=serve, name=f"kubelet {self.space}")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def _serve(self, pod: Document, behaviour: Callable[[Document], str]) -> None:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            return
        if pod["metadata"].get("deletionTimestamp"):
            self.api.delete(self.path("pods", name), {"gracePeriodSeconds": 0})
            return
        phase = behaviour(pod)
        if phase and pod["status"].get("phase") not in (phase, "Failed", "Succeeded"):
            failed = int(phase == "Failed")
            status = pod_status(pod, phase, ready=phase == "Running", now=self.now(), exit_code=failed)
            self.api.patch(self.path("pods", name, "status"), {"status": status}, STRATEGIC_PATCH)


# --- documents --------------------------------------------------------------------------------------------------------


def pod_spec(*, requests: Document | None = None, ports: Any = (), **spec: Any) -> Document:
    """A pod spec of one container; further fields as they are."""
    container: Document = {"name": "main", "image": IMAGE}
    if requests:
        container["resources"] = {"requests": requests, "limits": requests}
    if ports:
        container["ports"] = list(ports)
    return {"containers": [container], "terminationGracePeriodSeconds": 30, **spec}


def node_conditions(ready: str) -> list[Document]:
    """A node's conditions with Ready as given and no pressure."""
    kinds = {"Ready": ready, "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    return [
        {
            "type": kind,
            "status": status,
            "reason": "Contract",
            "message": "said by a case",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        }
        for kind, status in kinds.items()
    ]


def pod_status(pod: Document, phase: str, *, ready: bool, now: str, exit_code: int = 0, reason: str = "") -> Document:
    """The status a kubelet gives a pod in this phase."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    address = "10.1." + ".".join(str(int(pod["metadata"]["uid"][part : part + 2], 16)) for part in (0, 2))
    ended = {"terminated": {"exitCode": exit_code, "reason": "Completed" if not exit_code else "Error"}}
    state: Document = {"Running": {"running": {}}, "Pending": {"waiting": {"reason": "ContainerCreating"}}}.get(
        phase, ended
    )
    return {
        "phase": phase,
        **({"reason": reason} if reason else {}),
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": pod["metadata"]["creationTimestamp"],
        "conditions": [
            {"type": kind, "status": "True" if ready else "False", "lastTransitionTime": now}
            for kind in ("Ready", "ContainersReady")
        ],
        "containerStatuses": [
            {"name": name, "ready": ready, "restartCount": 0, "image": IMAGE, "imageID": "", "state": state}
            for name in names
        ],
    }


def condition(document: Document, kind: str) -> Document | None:
    """The condition of this type in an object's status."""
    for each in (document.get("status") or {}).get("conditions") or ():
        if each["type"] == kind:
            found: Document = each
            return found
    return None


def counts(document: Document, *names: str) -> tuple[int, ...]:
    """Fields of an object's status as numbers, 0 for those that are left out."""
    return tuple(int((document.get("status") or {}).get(name) or 0) for name in names)


def unavailable(total: int, reasons: str, preemption: str = "") -> str:
    """The scheduler's whole sentence; without `preemption`, it helps on none of the nodes."""
    start = f"0/{total} nodes are available:"
    return f"{start} {reasons}. preemption: {start} {preemption or f'{total} {NOT_HELPFUL}'}."
