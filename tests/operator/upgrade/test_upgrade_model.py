"""Random clusters, policies, faults and deaths of the controller: what must hold whatever happens.

The budget is never exceeded; a node that was cordoned before its upgrade stays so; only driver pods that are out of
date are deleted, and GPU pods evicted only where all may be; every node ends done or failed or says what it waits for;
no node that is done is left cordoned by its upgrade; nothing but the cluster is remembered.
"""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from upgrade_world import STATE, GpuUser, Node, World

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.operator.upgrade import machine, states
from groundplane.operator.upgrade.model import Drain, PodDeletion, Policy
from groundplane.operator.upgrade.states import State

POLICIES = st.builds(
    Policy,
    release=st.sampled_from(Release),
    max_parallel=st.integers(0, 4),
    max_unavailable=st.none() | st.integers(0, 4) | st.sampled_from(["0%", "25%", "34%", "50%", "100%"]),
    jobs_selector=st.sampled_from(["", "app=job"]),
    jobs_timeout_s=st.sampled_from([0, 60]),
    pod_deletion=st.just(PodDeletion()) | st.none(),
    drain=st.builds(Drain, enable=st.booleans()),
)
NODE = st.integers(0, 9)


class Undisturbed(RuleBasedStateMachine):
    """Templates change, drivers, validators and pods misbehave, the controller dies; nobody touches the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(0, Policy())
        self.disturbed = False
        self.gpu_pods = 0

    @initialize(size=st.integers(1, 7), policy=POLICIES)
    def a_cluster(self, size: int, policy: Policy) -> None:
        self.world = World(size, policy)

    def node(self, number: int) -> Node:
        nodes = list(self.world.nodes.values())
        return nodes[number % len(nodes)]

    # --- The controller
    @rule()
    def passes(self) -> None:
        self.world.run_pass()

    @rule()
    def decides(self) -> None:
        self.world.decide()

    @rule(number=st.integers(0, 20), dies=st.booleans())
    def writes_one(self, number: int, dies: bool) -> None:
        if self.world.pending:
            decision = self.world.pending.pop(number % len(self.world.pending))
            self.world.write(decision, die_after_patch=dies)

    @rule()
    def dies(self) -> None:
        self.world.restart()

    # --- The cluster
    @rule(times=st.integers(1, 6))
    def time_passes(self, times: int) -> None:
        for _ in range(times):
            self.world.tick()

    @rule()
    def ten_minutes_pass(self) -> None:
        self.world.tick(601)

    @rule(times=st.integers(1, 12))
    def all_goes_well_for_a_while(self, times: int) -> None:
        for _ in range(times):
            self.world.run_pass()
            self.world.tick()

    @rule(cosmetic=st.booleans(), precompiled=st.booleans())
    def the_template_changes(self, cosmetic: bool, precompiled: bool) -> None:
        self.world.revision += 1
        self.world.precompiled = precompiled
        if not cosmetic:
            self.world.digest = f"d{self.world.revision}"

    @rule(number=NODE, driver=st.sampled_from(["ok", "crashes", "hangs"]))
    def a_driver_fares(self, number: int, driver: str) -> None:
        self.node(number).driver = driver

    @rule(number=NODE, validator=st.sampled_from(["ok", "never", "absent"]))
    def a_validator_fares(self, number: int, validator: str) -> None:
        self.node(number).validator = validator

    @rule(number=NODE, kept=st.sampled_from(["", "", "no controller", "emptyDir"]), blocked=st.booleans())
    def a_gpu_pod_comes(self, number: int, kept: str, blocked: bool) -> None:
        node = self.node(number)
        if not node.unschedulable:
            self.gpu_pods += 1
            node.gpu_users.append(GpuUser(f"default/gpu-{self.gpu_pods}", kept, blocked))

    @rule(number=NODE)
    def gpu_pods_end(self, number: int) -> None:
        self.node(number).gpu_users.clear()

    @rule(number=NODE, jobs=st.sampled_from([1, 3, 100]))
    def jobs_run(self, number: int, jobs: int) -> None:
        self.node(number).jobs = jobs

    @rule(number=NODE)
    def a_driver_waits_for_safe_load(self, number: int) -> None:
        self._annotate(self.node(number), names.UPGRADE_SAFE_LOAD, "yes")

    @rule(number=NODE)
    def an_upgrade_is_requested(self, number: int) -> None:
        self._annotate(self.node(number), names.UPGRADE_REQUESTED, "true")

    @rule(number=NODE)
    def a_driver_pod_is_orphaned(self, number: int) -> None:
        node = self.node(number)
        node.pods = [msgspec.structs.replace(pod, daemon_set="") for pod in node.pods]

    def _annotate(self, node: Node, key: str, value: str) -> None:
        node.annotations[key] = value
        node.version += 1

    # --- What must hold
    @invariant()
    def budget(self) -> None:
        if not self.disturbed:
            self.world.check_budget()

    @invariant()
    def who_is_cleared_is_cordoned(self) -> None:
        for node in self.world.nodes.values() if not self.disturbed else ():
            assert node.unschedulable or node.state not in states.CORDONED_BY_UPGRADE, node

    @invariant()
    def nothing_but_the_cluster_is_remembered(self) -> None:
        snapshot = self.world.observe()
        before = msgspec.msgpack.encode(snapshot)
        found = machine.decide(snapshot)
        assert found == machine.decide(snapshot)
        assert msgspec.msgpack.encode(snapshot) == before
        for decision in found.decisions:
            assert len(decision.events) <= 1
            if decision.to is None and decision.state not in states.AT_REST:
                assert decision.waits_for
            if decision.problem is not None:
                assert not decision.patch
                assert not decision.actions

    @invariant()
    def what_the_policy_keeps_is_not_evicted(self) -> None:
        if not self.world.policy.drain.enable and not self.disturbed:
            kept = {user.name for node in self.world.nodes.values() for user in node.gpu_users if user.kept}
            assert not kept & self.world.evicted

    def teardown(self) -> None:
        """In the end every node is done or failed, or says what it waits for; and who is done is as it was before."""
        if not self.world.nodes:
            return
        for decision in self.world.calm():
            node = self.world.nodes[decision.node]
            assert decision.state == states.parse(node.state)
            if decision.state in states.AT_REST:
                ours = node.unschedulable and not (node.person or node.left)
                assert not ours, f"{node.name} is {node.state} and cordoned by its upgrade"
                assert decision.waits_for or not node.unschedulable
                assert not decision.patch
            else:
                assert decision.waits_for, f"{node.name} stays in {node.state} and says nothing"
            if node.stays:
                assert node.unschedulable


class Disturbed(Undisturbed):
    """People and other programs cordon, label, break and replace nodes at any moment as well."""

    def _touch(self, number: int) -> Node:
        self.disturbed = True
        node = self.node(number)
        node.version += 1
        return node

    @rule(number=NODE)
    def a_person_cordons(self, number: int) -> None:
        node = self._touch(number)
        if not node.unschedulable:
            node.unschedulable = node.person = True

    @rule(number=NODE)
    def a_person_uncordons(self, number: int) -> None:
        node = self._touch(number)
        node.unschedulable = node.person = node.stays = node.left = False

    @rule(number=NODE, ready=st.booleans())
    def a_kubelet_comes_or_goes(self, number: int, ready: bool) -> None:
        self._touch(number).ready = ready

    @rule(number=NODE, value=st.sampled_from(["true", "false"]))
    def a_person_skips(self, number: int, value: str) -> None:
        self._touch(number).labels[names.UPGRADE_SKIP] = value

    @rule(number=NODE)
    def a_person_tries_again(self, number: int) -> None:
        self._label(number, State.UPGRADE_REQUIRED)

    @rule(number=NODE, label=st.sampled_from([*State, "nonsense"]))
    def a_person_sets_a_label(self, number: int, label: str) -> None:
        self._label(number, label)

    def _label(self, number: int, label: str) -> None:
        node = self._touch(number)
        node.labels.pop(STATE, None)
        if label:
            node.labels[STATE] = str(label)
        if label not in states.IN_PROGRESS | {State.UPGRADE_REQUIRED} or label == State.UNCORDON_REQUIRED:
            node.left, node.stays = True, False

    @rule(number=NODE, key=st.sampled_from([names.UPGRADE_JOBS_START, names.UPGRADE_VALIDATION_START]))
    def a_person_spoils_a_timer(self, number: int, key: str) -> None:
        self._touch(number).annotations[key] = "soon"

    @rule(policy=POLICIES)
    def the_policy_changes(self, policy: Policy) -> None:
        self.disturbed = True
        self.world.policy = policy

    @rule()
    def upgrades_are_turned_off_and_on(self) -> None:
        self.disturbed = True
        self.world.restart()
        for decision in machine.clear(self.world.observe().nodes):
            node = self.world.nodes[decision.node]
            if node.unschedulable and not node.stays and not node.person:
                node.left = True
            node.stays = False
            node.labels.pop(STATE)
            node.version += 1

    @rule(number=NODE)
    def a_driver_pod_is_deleted(self, number: int) -> None:
        node = self._touch(number)
        node.pods = [msgspec.structs.replace(pod, terminating=True) for pod in node.pods]

    @precondition(lambda self: len(self.world.nodes) > 1)
    @rule(number=NODE)
    def a_node_goes(self, number: int) -> None:
        del self.world.nodes[self._touch(number).name]

    @rule(number=NODE)
    def a_node_is_made_anew(self, number: int) -> None:
        self.disturbed = True
        name = self.node(number).name
        version = self.world.nodes[name].version
        self.world.add(name)
        self.world.nodes[name].version = version + 1


PLENTY = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestUndisturbed = Undisturbed.TestCase
TestUndisturbed.settings = PLENTY
TestDisturbed = Disturbed.TestCase
TestDisturbed.settings = PLENTY
