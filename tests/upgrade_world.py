"""A small cluster that reacts as a real one would to what an upgrade pass decides, for model-based tests.

:class:`World` is the truth: nodes with their labels, pods and cordons, one driver DaemonSet, a clock. It makes
snapshots of itself, carries decisions out write by write (so that a controller can die between any two), and checks at
each write what must never happen. Its ``tick`` is everybody else: DaemonSet controller, kubelets, evictions, jobs.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from groundplane.api import names
from groundplane.operator.upgrade import machine, slots, states
from groundplane.operator.upgrade.model import (
    NEEDS,
    DaemonSetFacts,
    Decision,
    DeletePod,
    DriverPod,
    GpuPod,
    NodeFacts,
    Policy,
    Snapshot,
    StartDrain,
    StartEviction,
    ValidatorPod,
    Work,
)
from groundplane.operator.upgrade.states import State

STATE = names.UPGRADE_STATE
INITIAL = names.UPGRADE_INITIAL_STATE


class GpuUser(msgspec.Struct):
    """A pod that holds a GPU. ``kept``: the policy does not let it go; ``blocked``: its disruption budget does not."""

    name: str
    kept: str = ""
    blocked: bool = False


class Node(msgspec.Struct):
    """A node as it is, and what is wrong with it.

    ``driver`` is how a new driver pod fares: ``ok``, ``crashes``, ``hangs``; ``validator``: ``ok``, ``never`` ready or
    ``absent``. ``person`` cordoned it, ``stays`` is a cordon from before the upgrade, ``left`` one that the upgrade was
    kept from taking back (its label was taken away).
    """

    name: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    version: int = 1
    unschedulable: bool = False
    ready: bool = True
    pods: list[DriverPod] = msgspec.field(default_factory=list)
    gpu_users: list[GpuUser] = msgspec.field(default_factory=list)
    jobs: int = 0
    driver: str = "ok"
    validator: str = "ok"
    valid: bool = True
    person: bool = False
    stays: bool = False
    left: bool = False

    @property
    def state(self) -> str:
        return self.labels.get(STATE, "")


class World:
    """The cluster. ``policy`` may be exchanged; ``writes`` counts requests for each node, evictions left out."""

    def __init__(self, size: int, policy: Policy) -> None:
        self.policy = policy
        self.now = 1_000_000
        self.work: dict[str, Work] = {}
        self.pending: list[Decision] = []
        self.snapshot: Snapshot | None = None
        self.revision, self.digest, self.precompiled = 1, "d1", False
        self.made = 0
        self.nodes: dict[str, Node] = {}
        self.writes: dict[str, int] = {}
        self.evicted: set[str] = set()
        for number in range(size):
            self.add(f"node-{number}")

    # --- What is ---------------------------------------------------------------------------------------------------
    def add(self, name: str) -> None:
        self.nodes[name] = node = Node(name)
        self._place(node, ready=True)

    def _place(self, node: Node, *, ready: bool = False) -> None:
        self.made += 1
        pod = DriverPod(
            namespace="gpu-operator",
            name=f"driver-{self.made}",
            uid=f"uid-{self.made}",
            daemon_set="ds",
            hash=f"r{self.revision}",
            digest=self.digest,
            ready=ready,
        )
        node.pods.append(pod)

    def facts(self, node: Node) -> NodeFacts:
        state = states.parse(node.state)
        needs = NEEDS.get(state, frozenset()) if state is not None else frozenset()
        validators: tuple[ValidatorPod, ...] = ()
        if node.validator != "absent":
            validators = (ValidatorPod("gpu-operator/validator", node.valid and node.validator == "ok"),)
        return NodeFacts(
            name=node.name,
            labels=dict(node.labels),
            annotations=dict(node.annotations),
            resource_version=str(node.version),
            unschedulable=node.unschedulable,
            ready=node.ready,
            driver_pods=tuple(node.pods),
            jobs=tuple(f"default/job-{i}" for i in range(node.jobs)) if "jobs" in needs else None,
            gpu_pods=tuple(GpuPod(u.name, u.kept) for u in node.gpu_users) if "gpu_pods" in needs else None,
            validators=validators if "validators" in needs else None,
        )

    def observe(self) -> Snapshot:
        owned = sum(not pod.orphan for node in self.nodes.values() for pod in node.pods)
        return Snapshot(
            now=self.now,
            policy=self.policy,
            nodes=[self.facts(node) for node in self.nodes.values() if node.pods or node.state],
            daemon_sets={
                "ds": DaemonSetFacts(
                    name="driver",
                    uid="ds",
                    desired=len(self.nodes),
                    pods=owned,
                    revision=f"r{self.revision}",
                    digest=self.digest,
                    precompiled=self.precompiled,
                )
            },
            work=dict(self.work),
        )

    # --- The controller --------------------------------------------------------------------------------------------
    def decide(self) -> None:
        """Begin a pass; what an earlier one did not get to is dropped, as is work of nodes that are elsewhere now."""
        self.work = {
            name: work
            for name, work in self.work.items()
            if name in self.nodes and self.nodes[name].state == work.state
        }
        self.snapshot = self.observe()
        self.pending = list(machine.decide(self.snapshot).decisions)

    def write(self, decision: Decision, *, die_after_patch: bool = False) -> None:
        """Carry out one decision as the shell does."""
        node = self.nodes.get(decision.node)
        if node is None:
            return
        if decision.patch:
            if decision.resource_version != str(node.version):
                return  # 409 Conflict: the next pass decides anew
            self._patch(node, decision)
            if decision.to is not None:
                self.work.pop(node.name, None)
        if die_after_patch:
            self.restart()
            return
        for action in decision.actions:
            self._act(node, action)

    def restart(self) -> None:
        """The process dies: what it was about to write and what it knew of its own work are gone."""
        self.pending = []
        self.work = {}

    def run_pass(self) -> None:
        self.decide()
        for decision in self.pending:
            self.write(decision)
        self.pending = []

    def _patch(self, node: Node, decision: Decision) -> None:
        document = decision.patch.document(decision.resource_version)
        assert set(document) <= {"metadata", "spec"}
        if decision.to is not None:
            assert document["metadata"]["labels"] == {STATE: str(decision.to) or None}
        unschedulable = document.get("spec", {}).get("unschedulable", False)
        if "spec" in document:
            if unschedulable is None:
                assert not node.stays, f"{node.name} was cordoned before its upgrade and is uncordoned by it"
                node.person = node.left = False
            node.unschedulable = bool(unschedulable)
        starts = decision.to is State.UPGRADE_REQUIRED
        for kept, key in ((node.labels, "labels"), (node.annotations, "annotations")):
            for name, value in document.get("metadata", {}).get(key, {}).items():
                kept.pop(name, None) if value is None else kept.__setitem__(name, value)
        if starts and node.unschedulable:
            assert INITIAL in node.annotations
            node.stays = True
        if decision.to is State.DONE:
            assert INITIAL not in node.annotations or decision.state is State.UNKNOWN
            node.stays = False
        node.version += 1
        self.writes[node.name] = self.writes.get(node.name, 0) + 1

    def _act(self, node: Node, action: Any) -> None:
        match action:
            case DeletePod():
                self._delete(node, action)
                self.writes[node.name] = self.writes.get(node.name, 0) + 1
            case StartEviction():
                assert node.name not in self.work or self.work[node.name].state is not State.POD_DELETION_REQUIRED
                self.work[node.name] = Work(state=State.POD_DELETION_REQUIRED)
            case StartDrain():
                assert self.policy.drain.enable or self.pending
                self.work[node.name] = Work(state=State.DRAIN_REQUIRED)

    def _delete(self, node: Node, action: DeletePod) -> None:
        for number, pod in enumerate(node.pods):
            if pod.uid == action.uid:
                assert (action.namespace, action.name) == (pod.namespace, pod.name)
                stale = self.snapshot is not None and pod.hash == self.snapshot.daemon_sets["ds"].revision
                assert pod.orphan or not stale, "a driver pod that is up to date is deleted"
                node.pods[number] = msgspec.structs.replace(pod, terminating=True)

    # --- Everybody else --------------------------------------------------------------------------------------------
    def tick(self, seconds: int = 5) -> None:
        """Some time passes: pods end and are made, containers start or fail, evictions end, jobs go on."""
        self.now += seconds
        for node in self.nodes.values():
            gone = [pod for pod in node.pods if pod.terminating]
            if gone:
                node.pods = [pod for pod in node.pods if not pod.terminating]
                node.valid = False
            elif not any(not pod.orphan for pod in node.pods):
                self._place(node)
            else:
                self._kubelet(node)
            node.jobs = max(0, node.jobs - 1) if node.jobs < 100 else node.jobs
            self._evictions(node)

    def _kubelet(self, node: Node) -> None:
        for number, pod in enumerate(node.pods):
            if pod.ready:
                continue
            if node.driver == "ok":
                node.pods[number] = msgspec.structs.replace(pod, ready=True, restarts=0)
            elif node.driver == "crashes":
                node.pods[number] = msgspec.structs.replace(pod, restarts=pod.restarts + 4)
        if all(pod.ready for pod in node.pods):
            node.valid = True

    def _evictions(self, node: Node) -> None:
        work = self.work.get(node.name)
        if work is None or work.done or node.state != work.state:
            return
        if any(user.blocked for user in node.gpu_users):
            self.work[node.name] = Work(state=work.state, done=True, failure="a PodDisruptionBudget does not let it go")
            return
        if work.state is State.DRAIN_REQUIRED and any(user.kept == "no controller" for user in node.gpu_users):
            self.work[node.name] = Work(state=work.state, done=True, failure="a pod has no controller")
            return
        going = [user for user in node.gpu_users if work.state is State.DRAIN_REQUIRED or not user.kept]
        self.evicted |= {user.name for user in going}
        node.gpu_users = [user for user in node.gpu_users if user not in going]
        self.work[node.name] = Work(state=work.state, done=True)

    # --- Questions -------------------------------------------------------------------------------------------------
    def check_budget(self) -> None:
        """Of a cluster in which nobody else cordons nodes or sets states, and none is unready."""
        busy = [node for node in self.nodes.values() if node.state in states.IN_PROGRESS]
        down = [node for node in self.nodes.values() if node.unschedulable or not node.ready]
        limit = slots.scaled(self.policy.max_unavailable, len(self.nodes))
        if self.policy.max_parallel:
            assert len(busy) <= self.policy.max_parallel, [(node.name, node.state) for node in busy]
        assert len(down) <= limit, [(node.name, node.state) for node in down]

    def calm(self) -> Iterator[Decision]:
        """Nothing new happens any more: pass after pass until nothing is left to do; the decisions of the last one."""
        for _ in range(60 * (len(self.nodes) + 1)):
            self.run_pass()
            self.tick(30)
            found = machine.decide(self.observe()).decisions
            if not any(each.patch or each.actions for each in found) and not self._unsettled():
                return iter(found)
        decisions = "\n".join(map(repr, machine.decide(self.observe()).decisions))
        raise AssertionError(f"it never comes to rest: {self.nodes}\n{self.work}\n{decisions}")

    def _unsettled(self) -> bool:
        """Something goes on by itself: pods that end, are made, start or crash, jobs, evictions, timers."""
        timed = {names.UPGRADE_JOBS_START, names.UPGRADE_VALIDATION_START}
        return any(
            all(pod.orphan for pod in node.pods)
            or any(pod.terminating or self._starting(node, pod) for pod in node.pods)
            or 0 < node.jobs < 100
            or (node.name in self.work and not self.work[node.name].done)
            or any(
                node.annotations[key].isdecimal() and self.now - int(node.annotations[key]) <= 601
                for key in timed & node.annotations.keys()
            )
            for node in self.nodes.values()
        )

    def _starting(self, node: Node, pod: DriverPod) -> bool:
        """A pod that hangs does so for ever; one that crashes is failing after some time."""
        return not pod.ready and (node.driver == "ok" or (node.driver == "crashes" and pod.restarts <= 20))
