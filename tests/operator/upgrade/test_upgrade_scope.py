"""contracts/driver-lifecycle.md 1 and 3.14: which machines there are, by which policy, over which nodes."""

import pytest
from upgrade_facts import NEW, NOW, OLD, VALID, daemon_set, driver, node

from groundplane.api import clusterpolicy as cp
from groundplane.api import names, nvidiadriver
from groundplane.api.release import Release
from groundplane.operator.upgrade import scope
from groundplane.operator.upgrade.model import DaemonSetFacts, Drain, NodeFacts, Patch, PodDeletion, Policy
from groundplane.operator.upgrade.states import State

NOT_SKIPPED = "nvidia.com/gpu-driver-upgrade-drain.skip!=true"
OUTDATED = driver(hash=OLD)


# --- 1.1 -------------------------------------------------------------------------------------------------------------
def test_what_is_missing_of_a_cluster_policy():
    assert scope.policy(cp.UpgradePolicy(), Release.V26_7) == Policy(max_parallel=0, max_unavailable=None)


@pytest.mark.parametrize("release", Release)
def test_a_missing_drain_is_an_empty_one(release):
    assert scope.policy(cp.UpgradePolicy(autoUpgrade=True), release).drain == Drain(selector=NOT_SKIPPED)


def test_the_policy_of_an_nvidia_driver_without_one():
    given = nvidiadriver.upgrade_policy(nvidiadriver.NVIDIADriverSpec())
    assert scope.policy(given, Release.V26_7) == Policy(max_parallel=1, max_unavailable="25%")


def test_a_policy_in_full():
    given = cp.UpgradePolicy(
        autoUpgrade=True,
        maxParallelUpgrades=3,
        maxUnavailable=2,
        podDeletion=cp.PodDeletion(force=True, timeoutSeconds=0, deleteEmptyDir=True),
        waitForCompletion=cp.WaitForCompletion(podSelector=" app=job ", timeoutSeconds=9),
        drain=cp.Drain(enable=True, force=True, podSelector="app=x", timeoutSeconds=7, deleteEmptyDir=True),
    )
    assert scope.policy(given, Release.V26_3) == Policy(
        release=Release.V26_3,
        max_parallel=3,
        max_unavailable=2,
        jobs_selector="app=job",
        jobs_timeout_s=9,
        pod_deletion=PodDeletion(force=True, timeout_s=0, delete_empty_dir=True),
        drain=Drain(enable=True, force=True, selector=f"app=x,{NOT_SKIPPED}", timeout_s=7, delete_empty_dir=True),
    )


@pytest.mark.parametrize(
    ("given", "expected"), [("", NOT_SKIPPED), (" ", NOT_SKIPPED), ("a=b,c in (d)", f"a=b,c in (d),{NOT_SKIPPED}")]
)
def test_the_drain_selector_is_always_extended(given, expected):
    assert scope.drain_selector(given) == expected


# --- 1.2 and 1.3 -----------------------------------------------------------------------------------------------------
def cluster(
    *, auto: bool | None = True, crd: bool | None = None, sandbox: bool = False, enabled: bool | None = None
) -> cp.ClusterPolicySpec:
    return cp.ClusterPolicySpec(
        driver=cp.DriverSpec(
            enabled=enabled,
            useNvidiaDriverCRD=crd,
            upgradePolicy=cp.UpgradePolicy(autoUpgrade=auto, maxParallelUpgrades=4),
        ),
        sandboxWorkloads=cp.SandboxWorkloads(enabled=sandbox),
    )


ON, OFF = cp.UpgradePolicy(autoUpgrade=True, maxParallelUpgrades=2), cp.UpgradePolicy(autoUpgrade=False)
V3, V7 = Release.V26_3, Release.V26_7


@pytest.mark.parametrize(
    ("given", "drivers", "release", "machines", "selector", "enabled", "clears_all"),
    [
        (cluster(), {}, V7, [""], scope.BY_APP, True, False),
        (cluster(), {}, V3, [""], scope.BY_APP, True, False),
        (cluster(), {"a": ON}, V7, [""], scope.BY_APP, True, False),
        (cluster(sandbox=True), {}, V7, [], scope.BY_APP, False, True),
        (cluster(sandbox=True), {}, V3, [], scope.BY_APP, False, True),
        (cluster(sandbox=True, crd=True), {"a": ON}, V7, ["a"], scope.BY_COMPONENT, True, False),
        (cluster(sandbox=True, crd=True), {"a": ON}, V3, [], scope.BY_APP, False, True),
        (cluster(auto=False), {}, V7, [], scope.BY_APP, False, True),
        (cluster(auto=None), {}, V7, [], scope.BY_APP, False, True),
        (cluster(auto=None), {}, V3, [], scope.BY_APP, False, True),
        (cluster(enabled=False), {}, V7, [], scope.BY_APP, False, True),
        (cluster(auto=False, crd=True), {"a": ON}, V7, ["a"], scope.BY_COMPONENT, True, False),
        (cluster(auto=False, crd=True), {"a": ON}, V3, [], scope.BY_APP, False, True),
        (cluster(crd=True, enabled=False), {}, V3, [""], scope.BY_COMPONENT, True, False),
        (cluster(crd=True), {"a": OFF}, V3, [""], scope.BY_COMPONENT, True, False),
        (cluster(crd=True), {"a": OFF}, V7, [], scope.BY_COMPONENT, False, True),
        (cluster(crd=True), {}, V7, [], scope.BY_COMPONENT, False, True),
        (None, {"a": ON, "b": OFF, "c": ON}, V7, ["a", "c"], scope.BY_COMPONENT, True, False),
        (None, {}, V7, [], scope.BY_COMPONENT, False, True),
        (None, {"a": ON}, V3, [], scope.BY_APP, None, False),
    ],
)
def test_which_machines_there_are(given, drivers, release, machines, selector, enabled, clears_all):
    found = scope.of(given, drivers, release)
    assert (list(found.machines), found.enabled, found.clears_all) == (machines, enabled, clears_all)
    assert found.requeue_s == (120 if machines else None)
    assert bool(found.off) == (not machines)
    if machines:
        assert found.selector == selector
        assert {each.release for each in found.machines.values()} == {release}
        assert {each.max_parallel for each in found.machines.values()} == {4 if machines == [""] else 2}


def test_on_openshift_the_toolkits_daemon_sets_are_meant():
    assert scope.of(cluster(), {}, V7, driver_toolkit=True).selector == ("openshift.driver-toolkit", "true")
    assert scope.of(cluster(crd=True), {"a": ON}, V7, driver_toolkit=True).selector == scope.BY_COMPONENT


def owned(owner: str, state: State | str, *pods, name: str, **facts) -> NodeFacts:
    labels = {names.DRIVER_OWNER: owner} if owner else {}
    return node(state, *pods, name=name, labels=labels, **facts)


def sets(*nodes: NodeFacts, **short: int) -> dict[str, DaemonSetFacts]:
    """A DaemonSet for each owner; ``short`` says of whose some pods are missing."""
    owners = sorted({each.labels.get(names.DRIVER_OWNER, "") for each in nodes})
    found = {}
    for owner in owners:
        pods = sum(pod.daemon_set == owner for each in nodes for pod in each.driver_pods)
        found[owner] = DaemonSetFacts(
            name=f"ds-{owner}", uid=owner, driver=owner, desired=pods + short.get(owner, 0), pods=pods, revision=NEW
        )
    return found


def test_each_driver_has_limits_of_its_own_and_gauges_are_sums():
    drivers = {"a": ON, "b": ON, "off": OFF}
    nodes = [
        owned(owner, State.UPGRADE_REQUIRED, driver(hash=OLD, daemon_set=owner), name=f"{owner}{number}")
        for owner in ("a", "b")
        for number in range(3)
    ]
    nodes += [
        owned("off", State.DRAIN_REQUIRED, name="off1", unschedulable=True),
        owned("off", State.UNKNOWN, name="off2"),
        owned("", State.DONE, name="nobody"),
        owned("", State.VALIDATION_REQUIRED, name="lost", validators=VALID, unschedulable=True),
        owned("deleted", State.FAILED, name="left"),
    ]
    outcome = scope.decide(scope.of(None, drivers, V7), NOW, nodes, sets(*nodes))
    by_node = {each.node: each for each in outcome.decisions}
    assert [name for name, each in by_node.items() if each.to is State.CORDON_REQUIRED] == ["a0", "a1", "b0", "b1"]
    assert outcome.counts is not None
    assert (outcome.counts.total, outcome.counts.pending, outcome.counts.slots) == (6, 6, 4)
    assert by_node["off1"].patch == Patch({names.UPGRADE_STATE: None})
    assert "kubectl uncordon off1" in by_node["off1"].waits_for
    assert "off2" not in by_node
    assert "nobody" not in by_node
    for name in ("lost", "left"):
        assert by_node[name].patch == Patch()
        assert by_node[name].problem is not None
        assert by_node[name].problem.reason == "NoDriverOwner"
    assert [each.reason for each in outcome.problems] == ["NoDriverOwner", "NoDriverOwner"]


@pytest.mark.parametrize(
    ("given", "release", "asked"),
    [
        (None, V7, True),
        (None, V3, False),
        (cluster(crd=True), V7, True),
        (cluster(crd=True), V3, False),
        (cluster(), V7, False),
        (cluster(), V3, False),
    ],
)
def test_where_nvidiadrivers_have_to_be_known(given, release, asked):
    assert scope.asks_drivers(given, release) is asked
    assert bool(scope.of(given, {}, release, unreadable={"bad": "why"}).unreadable) is asked


@pytest.mark.parametrize(("drivers", "enabled"), [({"a": ON, "off": OFF}, True), ({"off": OFF}, None), ({}, None)])
def test_a_driver_that_cannot_be_read_holds_up_no_other(drivers, enabled):
    nodes = [
        owned("a", State.UPGRADE_REQUIRED, driver(hash=OLD, daemon_set="a"), name="a"),
        owned("off", State.DRAIN_REQUIRED, name="off"),
        owned("bad", State.DONE, driver(hash=OLD, daemon_set="bad"), name="rests"),
        owned("bad", State.VALIDATION_REQUIRED, name="waits", validators=VALID, unschedulable=True),
    ]
    about = scope.of(None, drivers, V7, unreadable={"bad": "spec.driverType: expected a string"})
    assert (about.enabled, about.clears_all) == (enabled, False)
    outcome = scope.decide(about, NOW, nodes, sets(*nodes))
    by_node = {each.node: each for each in outcome.decisions}
    assert "rests" not in by_node
    assert by_node["waits"].patch == Patch()
    assert "NVIDIADriver bad" in by_node["waits"].waits_for
    assert "kubectl uncordon waits" in by_node["waits"].waits_for
    assert (by_node["a"].to is State.CORDON_REQUIRED) is ("a" in drivers)
    assert (by_node["off"].patch == Patch({names.UPGRADE_STATE: None})) is ("off" in drivers)
    assert outcome.problems[0].reason == "NVIDIADriverUnreadable"
    assert outcome.problems[0].message.endswith("spec.driverType: expected a string")
    assert (outcome.counts is None) is ("a" not in drivers), "gauges keep their values"


def test_missing_pods_of_one_driver_hold_up_no_other():
    nodes = [
        owned(owner, State.UPGRADE_REQUIRED, driver(hash=OLD, daemon_set=owner), name=owner) for owner in ("a", "b")
    ]
    outcome = scope.decide(scope.of(None, {"a": ON, "b": ON}, V7), NOW, nodes, sets(*nodes, a=1))
    assert {each.node: each.to for each in outcome.decisions} == {"a": None, "b": State.CORDON_REQUIRED}
    assert [each.reason for each in outcome.problems] == ["UnscheduledPods"]


def test_a_bad_policy_of_one_driver_holds_up_no_other():
    bad = cp.UpgradePolicy(autoUpgrade=True, maxUnavailable="many")
    nodes = [
        owned(owner, State.UPGRADE_REQUIRED, driver(hash=OLD, daemon_set=owner), name=owner) for owner in ("a", "b")
    ]
    outcome = scope.decide(scope.of(None, {"a": bad, "b": ON}, V7), NOW, nodes, sets(*nodes))
    assert {each.node: each.to for each in outcome.decisions} == {"a": None, "b": State.CORDON_REQUIRED}
    assert [each.reason for each in outcome.problems] == ["InvalidUpgradePolicy"]


@pytest.mark.parametrize("given", [cluster(sandbox=True), cluster(auto=False), cluster(enabled=False)])
def test_when_upgrades_are_off_every_state_label_goes_and_gauges_stay(given):
    nodes = [node(state, OUTDATED, name=str(number)) for number, state in enumerate([*State, "nonsense"])]
    outcome = scope.decide(scope.of(given, {}, V7), NOW, nodes, {"ds": daemon_set(nodes)})
    assert [each.node for each in outcome.decisions] == [each.name for each in nodes if each.label]
    assert all(each.patch == Patch({names.UPGRADE_STATE: None}) for each in outcome.decisions)
    assert outcome.counts is None


def test_without_a_cluster_policy_release_26_3_does_nothing():
    nodes = [node(State.DONE, OUTDATED)]
    outcome = scope.decide(scope.of(None, {"a": ON}, V3), NOW, nodes, {"ds": daemon_set(nodes)})
    assert outcome.decisions == ()


def test_in_26_3_one_machine_has_all_nodes_of_nvidia_drivers():
    nodes = [owned(owner, State.UNKNOWN, driver(daemon_set=owner), name=owner or "none") for owner in ("a", "b", "")]
    outcome = scope.decide(scope.of(cluster(crd=True), {"a": ON}, V3), NOW, nodes, sets(*nodes))
    assert outcome.counts is not None
    assert outcome.counts.total == 3
    assert list(outcome.passes) == [""]
