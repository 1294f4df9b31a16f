"""The small pure decisions: election, runtime, status, readiness, fleet, back-off, namespace labels."""

import asyncio
import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.api.clusterpolicy import ClusterPolicySpec, ClusterPolicyStatus, Condition, Switch
from groundplane.api.release import Release
from groundplane.cluster.errors import TooManyRequests
from groundplane.cluster.queue import Requeue
from groundplane.cluster.views import (
    ContainerStatus,
    Meta,
    NodeInfo,
    NodeMeta,
    NodeStatus,
    NodeView,
    OwnerReference,
    PodStatus,
    PodView,
)
from groundplane.operands.facts import GpuNode
from groundplane.operator import clock, election, policy, readiness, runtime, status
from groundplane.operator.election import Candidate
from groundplane.operator.fleet import Fleet, Summary
from groundplane.operator.readiness import PodTally, RevisionView
from groundplane.operator.retries import Backoff, Gate

# --- election ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "winner"),
    [
        ([], None),
        ([("2026-01-02T00:00:00Z", "a"), ("2026-01-01T00:00:00Z", "b")], "b"),
        ([("2026-01-01T00:00:00Z", "b"), ("2026-01-01T00:00:00Z", "a")], "a"),
    ],
)
def test_the_oldest_policy_wins(candidates: list[tuple[str, str]], winner: str | None) -> None:
    assert election.active(Candidate(*each) for each in candidates) == winner


# --- runtime ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "openshift", "expected"),
    [
        ([], False, "containerd"),
        (["containerd://2.1"], True, "crio"),
        (["cri-o://1.33", "containerd://2.1", "docker://28"], False, "containerd"),
        (["docker://28", "cri-o://1.33"], False, "crio"),
        (["cri-o://1.33", "docker://28"], False, "docker"),
        (["rkt://1", "cri-o://1.33", "frob://2"], False, "crio"),
        (["rkt://1", ""], False, "containerd"),
    ],
)
def test_the_runtime(versions: list[str], openshift: bool, expected: str) -> None:
    assert runtime.detect(versions, openshift=openshift) == expected


# --- status -----------------------------------------------------------------------------------------------------------

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"


def after(
    outcome: status.Outcome, before: ClusterPolicyStatus | None = None, now: str = NOW
) -> ClusterPolicyStatus | None:
    return status.next_status(before or ClusterPolicyStatus(), outcome, namespace="gpu", generation=3, now=now)


def rows(found: ClusterPolicyStatus | None) -> list[tuple[str, str, str, str]]:
    assert found is not None
    return [(c.type, c.status, c.reason, c.message) for c in found.conditions]


@pytest.mark.parametrize(
    ("outcome", "state", "conditions"),
    [
        (
            status.reconciled(),
            "ready",
            [("Ready", "True", "Reconciled", "All resources have been reconciled"), ("Error", "False", "Ready", "")],
        ),
        (
            status.operands_not_ready(["state-driver", "state-dcgm"]),
            "notReady",
            [
                ("Ready", "False", "Error", ""),
                ("Error", "True", "OperandNotReady", "states not ready: [state-driver state-dcgm]"),
            ],
        ),
        (
            status.operands_not_ready(["a"], ["b", "c"], release=Release.V26_3),
            "notReady",
            [("Ready", "False", "Error", ""), ("Error", "True", "OperandNotReady", "states not ready: [a], b, c")],
        ),
        (
            status.operands_not_ready(["a"], ["b"], release=Release.V26_7),
            "notReady",
            [("Ready", "False", "Error", ""), ("Error", "True", "OperandNotReady", "states not ready: [a]; b")],
        ),
        (
            status.failed("no image", state="state-driver"),
            "notReady",
            [("Ready", "False", "Error", ""), ("Error", "True", "ReconcileFailed", "state-driver: no image")],
        ),
        (
            status.failed("bad"),
            "notReady",
            [("Ready", "False", "Error", ""), ("Error", "True", "ReconcileFailed", "bad")],
        ),
    ],
)
def test_the_conditions(outcome: status.Outcome, state: str, conditions: list[tuple[str, str, str, str]]) -> None:
    found = after(outcome)
    assert rows(found) == conditions
    assert found is not None and (found.state, found.namespace) == (state, "gpu")


def test_ready_without_gpus_says_what_it_waits_for() -> None:
    assert (status.no_gpu_nodes().reason, status.nfd_labels_missing().reason) == ("NoGPUNodes", "NFDLabelsMissing")
    assert "No GPU node" in status.no_gpu_nodes().message
    assert "NFD" in status.nfd_labels_missing().message
    assert status.no_gpu_nodes().ready and status.nfd_labels_missing().ready


def test_a_policy_that_lost_is_ignored_and_told_who_won() -> None:
    found = after(status.passed_over("first"))
    assert found is not None and found.state == "ignored"
    assert [row[1] for row in rows(found)] == ["False", "False"]
    assert "'first'" in rows(found)[0][3]


def test_the_same_outcome_is_not_written_again() -> None:
    first = after(status.reconciled())
    assert after(status.reconciled(), first, LATER) is None


def test_a_new_reason_keeps_the_time_and_a_new_status_moves_it() -> None:
    first = after(status.reconciled())
    waiting = after(status.no_gpu_nodes(), first, LATER)
    assert waiting is not None and [c.lastTransitionTime for c in waiting.conditions] == [NOW, NOW]
    broken = after(status.failed("x"), waiting, LATER)
    assert broken is not None and [c.lastTransitionTime for c in broken.conditions] == [LATER, LATER]


def test_conditions_of_others_stay() -> None:
    other = Condition(type="Upgraded", status="True", lastTransitionTime=NOW)
    found = after(status.reconciled(), ClusterPolicyStatus(state="ready", conditions=[other]))
    assert found is not None and found.conditions[-1] == other
    assert after(status.reconciled(), found, LATER) is None


def test_the_status_patch_writes_empty_messages_too() -> None:
    found = after(status.reconciled())
    assert found is not None
    document = status.patch(found)["status"]
    assert document["conditions"][1] == {
        "type": "Error",
        "status": "False",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": NOW,
        "observedGeneration": 3,
    }


# --- readiness --------------------------------------------------------------------------------------------------------


def daemon_set(on_delete: bool = False, generation: int = 2, **fields: Any) -> dict[str, Any]:
    strategy = {"type": "OnDelete" if on_delete else "RollingUpdate"}
    return {
        "metadata": {"name": "ds", "uid": "u", "generation": generation},
        "spec": {"updateStrategy": strategy},
        "status": {"observedGeneration": 2, **fields},
    }


def pod(revision: str = "b", *, phase: str = "Running", ready: bool = True, owner: str = "u") -> PodView:
    meta = Meta(
        name="p", labels={readiness.REVISION_HASH_LABEL: revision}, ownerReferences=(OwnerReference(uid=owner),)
    )
    return PodView(metadata=meta, status=PodStatus(phase=phase, containerStatuses=(ContainerStatus(ready=ready),)))


UP = {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}
CASES: list[tuple[str, dict[str, Any] | None, list[PodView], str, bool]] = [
    ("missing", None, [], "", False),
    ("all up", daemon_set(**UP), [], "", True),
    ("nothing wanted", daemon_set(desiredNumberScheduled=0), [], "", True),
    ("nothing wanted yet", daemon_set(generation=3, desiredNumberScheduled=0), [], "", False),
    ("old generation", daemon_set(generation=3, **UP), [], "", False),
    ("no status", daemon_set() | {"status": {}}, [], "", False),
    ("unavailable", daemon_set(**UP | {"numberUnavailable": 1}), [], "", False),
    ("not updated", daemon_set(**UP | {"updatedNumberScheduled": 1}), [], "", False),
    ("not available", daemon_set(**UP | {"numberAvailable": 1}), [], "", False),
    ("OnDelete, up", daemon_set(on_delete=True, **UP), [pod(), pod()], "b", True),
    ("OnDelete, no pods", daemon_set(on_delete=True, **UP), [], "b", False),
    ("OnDelete, no revision", daemon_set(on_delete=True, **UP), [pod()], "", False),
    ("OnDelete, old pod", daemon_set(on_delete=True, **UP), [pod(), pod("a")], "b", False),
    ("OnDelete, pending", daemon_set(on_delete=True, **UP), [pod(phase="Pending")], "b", False),
    ("OnDelete, not ready", daemon_set(on_delete=True, **UP), [pod(ready=False)], "b", False),
    ("OnDelete, pods of another", daemon_set(on_delete=True, **UP), [pod(), pod("a", owner="x")], "b", True),
    ("OnDelete, unavailable", daemon_set(on_delete=True, **UP | {"numberUnavailable": 1}), [pod()], "b", False),
]


@pytest.mark.parametrize(("live", "pods", "revision", "ready"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_daemon_set_readiness(live, pods, revision, ready) -> None:
    verdict = readiness.daemon_set(live, PodTally.of(pods, "u"), revision)
    assert verdict.ready is ready
    assert bool(verdict.why) is not ready


def test_a_daemon_set_that_is_being_deleted_is_not_ready() -> None:
    live = daemon_set(**UP)
    live["metadata"]["deletionTimestamp"] = NOW
    assert not readiness.daemon_set(live).ready


def revision(name: str, number: int, owner: str = "u") -> RevisionView:
    return RevisionView(Meta(name=name, ownerReferences=(OwnerReference(uid=owner),)), number)


def test_the_newest_revision_is_the_highest_of_this_very_daemon_set() -> None:
    stored = [revision("ds-b", 2), revision("ds-a", 1), revision("ds-5.15-z", 9, "other"), revision("x-c", 7)]
    assert readiness.newest_revision("ds", "u", stored) == "b"
    assert readiness.newest_revision("ds", "nobody", stored) == ""
    assert RevisionView().owner_uid == ""


@given(st.lists(st.builds(pod, st.sampled_from("ab"), phase=st.sampled_from(["Running", "Failed"]))), st.data())
def test_a_tally_forgets_what_it_counted(pods: list[PodView], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(pods), unique_by=id)) if pods else []
    tally = PodTally.of(pods, "u")
    for each in pods:
        if not any(each is k for k in kept):
            tally.count(each, -1)
    assert tally == PodTally.of(kept, "u")


# --- fleet ------------------------------------------------------------------------------------------------------------


def gpu(name: str, kernel: str = "6.8", runtime_version: str = "containerd://2", **more: str) -> NodeView:
    have = {names.GPU_PRESENT: "true", names.KERNEL_VERSION: kernel, names.OS_RELEASE_ID: "ubuntu", **more}
    return NodeView(
        metadata=NodeMeta(name=name, labels=have),
        status=NodeStatus(nodeInfo=NodeInfo(containerRuntimeVersion=runtime_version)),
    )


def cpu(name: str, nfd: bool = True) -> NodeView:
    return NodeView(metadata=NodeMeta(name=name, labels={names.KERNEL_VERSION: "1"} if nfd else {}))


def test_nodes_of_one_shape_count_once() -> None:
    fleet = Fleet()
    assert fleet.update("b", gpu("b"))
    assert not fleet.update("c", gpu("c")) or fleet.summary.runtimes == ("containerd://2",)
    assert fleet.gpu_nodes == 2
    assert fleet.summary.nodes == (GpuNode(name="b", kernel="6.8", os_id="ubuntu"),)
    assert fleet.update("d", gpu("d", "6.9"))
    assert [node.kernel for node in fleet.summary.nodes] == ["6.8", "6.9"]
    assert not fleet.update("d", gpu("d", "6.9"))


def test_a_node_in_the_middle_changes_nothing() -> None:
    fleet = Fleet()
    for name in ("a", "z"):
        fleet.update(name, gpu(name))
    before = fleet.summary
    assert not fleet.update("m", gpu("m"))
    assert not fleet.update("m", None)
    assert fleet.summary is before


def test_nfd_is_noticed_on_any_node() -> None:
    fleet = Fleet()
    assert not fleet.update("a", cpu("a", nfd=False))
    assert fleet.update("a", cpu("a"))
    assert fleet.summary == Summary(has_nfd=True)
    assert fleet.update("a", None)
    assert fleet.summary == Summary()


NODES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.one_of(st.none(), st.sampled_from(["1", "2"])),
        st.sampled_from(["containerd://2", "docker://1", "cri-o://1"]),
    ),
    max_size=25,
)


@given(NODES)
def test_the_summary_does_not_depend_on_the_way_there(history: list[tuple[str, str | None, str]]) -> None:
    fleet, last = Fleet(), {}
    for name, kernel, version in history:
        before = fleet.summary
        view = gpu(name, kernel, version) if kernel else None
        assert fleet.update(name, view) is (before != fleet.summary)
        last[name] = view
    fresh = Fleet()
    for name, view in sorted(last.items()):
        fresh.update(name, view)
    assert fleet.summary == fresh.summary
    assert fleet.gpu_nodes == sum(view is not None for view in last.values())


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_back_off_doubles_and_heeds_the_server() -> None:
    backoff: Backoff[str] = Backoff()
    assert [backoff.failed("a").after_s for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0]
    assert backoff.failed("b") == Requeue(0.1)
    backoff.succeeded("a")
    assert backoff.failed("a", TooManyRequests(429, "TooManyRequests", "slow down", 7)).after_s == 7


async def test_a_closed_gate_waits_for_those_inside_and_lets_no_other_in() -> None:
    gate, proceed, done = Gate(), asyncio.Event(), []

    async def work(key: str) -> None:
        await proceed.wait()
        done.append(key)

    guarded = gate.guard(work)
    inside = asyncio.create_task(guarded("a"))
    await asyncio.sleep(0)
    assert not await gate.close(0.01)
    await guarded("b")
    proceed.set()
    assert await gate.close(5)
    await inside
    assert done == ["a"]


@pytest.mark.parametrize(
    ("psa", "namespace", "have", "on_openshift", "expected"),
    [
        (False, "gpu", {}, False, {}),
        (True, "gpu", {}, False, dict.fromkeys(policy.PSA_LABELS, "privileged")),
        (True, "gpu", dict.fromkeys(policy.PSA_LABELS, "privileged"), False, {}),
        (True, "gpu", {policy.PSA_LABELS[0]: "baseline"}, False, dict.fromkeys(policy.PSA_LABELS, "privileged")),
        (True, "gpu", {}, True, {}),
        (False, "nvidia-gpu-operator", {}, True, {policy.MONITORING_LABEL: "true"}),
        (False, "nvidia-gpu-operator", {policy.MONITORING_LABEL: "false"}, True, {}),
        (
            True,
            "nvidia-gpu-operator",
            {policy.MONITORING_LABEL: "x"},
            True,
            dict.fromkeys(policy.PSA_LABELS, "privileged"),
        ),
    ],
)
def test_namespace_labels(psa, namespace, have, on_openshift, expected) -> None:
    spec = ClusterPolicySpec(psa=Switch(enabled=psa))
    assert policy.namespace_labels(spec, namespace, have, on_openshift=on_openshift) == expected


def test_timestamps_are_utc_and_whole() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moment = datetime.datetime(2026, 1, 1, 2, 0, 0, 999, tzinfo=zone)
    assert clock.rfc3339(moment) == NOW


async def test_the_system_clock_waits() -> None:
    system = clock.SystemClock()
    start = system.monotonic()
    await system.sleep(0.001)
    assert system.monotonic() > start
    assert system.now().tzinfo is datetime.UTC
