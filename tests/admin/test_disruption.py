"""Which drivers an upgrade reloads, and whose work it stops: contracts/admin-workflow.md 9.3."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from groundplane.admin import disruption, selectors
from groundplane.admin.disruption import Effect
from groundplane.admin.hops import Version
from groundplane.cluster.eviction import Rules
from groundplane.cluster.gpupods import Claim
from groundplane.operator.upgrade import states

V26_3_2, V26_3, V26_7, V26_7_1 = Version(26, 3, 2), Version(26, 3, 3), Version(26, 7, 0), Version(26, 7, 1)
GPU = {"nvidia.com/gpu.present": "true"}


def driver(name: str = "nvidia-driver-daemonset", tag: str = "580.126.20-ubuntu24.04", **other: Any) -> dict[str, Any]:
    env = [{"name": "DRIVER_CONFIG_DIGEST", "value": other.get("digest", "1")}, *other.get("env", [])]
    container = {"name": "nvidia-driver-ctr", "image": f"nvcr.io/nvidia/driver:{tag}", "env": env}
    labels = {"app": name, "helm.sh/chart": other.get("chart", "gpu-operator-v26.7.0")}
    spec = {
        "nodeSelector": {"nvidia.com/gpu.deploy.driver": "true", **other.get("nodes", {})},
        "containers": [container],
    }
    return {"metadata": {"name": name}, "spec": {"template": {"metadata": {"labels": labels}, "spec": spec}}}


@pytest.mark.parametrize(
    ("source", "target", "new", "effect"),
    [
        (V26_3_2, V26_3, driver(), Effect.NONE),
        (V26_3_2, V26_3, driver(chart="gpu-operator-v26.3.3"), Effect.RELOAD),
        (V26_3, V26_7, driver(chart="other"), Effect.RELOAD),
        (V26_7, V26_7_1, driver(chart="gpu-operator-v26.7.1"), Effect.RESTART),
        (V26_7, V26_7_1, driver(chart="gpu-operator-v26.7.1", digest="2"), Effect.RELOAD),
        (V26_7, V26_7_1, driver(chart="gpu-operator-v26.7.1", digest=""), Effect.RELOAD),
        (V26_7, V26_3, driver(chart="gpu-operator-v26.3.3"), Effect.RELOAD),
        (V26_7, V26_7, driver(tag="595.91.07-ubuntu24.04", digest="3"), Effect.RELOAD),
    ],
)
def test_9_3_what_reloads_a_driver(source: Version, target: Version, new: Any, effect: Effect) -> None:
    found = disruption.compare(driver(), new, source, target)
    assert found.effect == effect
    assert bool(found.why) == (effect != Effect.NONE)


def test_9_3_the_reason_names_rule_and_changes() -> None:
    new = driver(tag="595.91.07-ubuntu24.04", digest="2", env=[{"name": "PROXY_TOKEN", "value": "hunter2"}])
    rule, *changes = disruption.compare(driver(), new, V26_3, V26_7).why
    assert rule == "the first upgrade into v26.7.0 or later reloads every driver"
    assert changes == [
        "spec.containers[nvidia-driver-ctr].env[DRIVER_CONFIG_DIGEST].value",
        "spec.containers[nvidia-driver-ctr].env[PROXY_TOKEN].name",
        "spec.containers[nvidia-driver-ctr].env[PROXY_TOKEN].value",
        "spec.containers[nvidia-driver-ctr].image: nvcr.io/nvidia/driver:580.126.20-ubuntu24.04 -> "
        "nvcr.io/nvidia/driver:595.91.07-ubuntu24.04",
    ]
    (only,) = disruption.changed({"labels": {"helm.sh/chart": "a"}}, {"labels": {"helm.sh/chart": "b"}})
    assert only == "labels.helm.sh/chart: a -> b"


def test_drivers_that_come_go_or_were_never_the_operators() -> None:
    assert disruption.compare(None, driver(), V26_7, V26_7).effect == Effect.RELOAD
    assert disruption.compare(driver(), None, V26_7, V26_7).effect == Effect.RELOAD
    assert disruption.compare(None, None, V26_3, V26_7).effect == Effect.NONE


DOCUMENTS: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["", "a"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        st.lists(st.fixed_dictionaries({"name": st.sampled_from("xy"), "value": inner}), max_size=2),
    ),
    max_leaves=6,
)


@given(DOCUMENTS, DOCUMENTS)
def test_nothing_has_changed_in_the_same_and_a_change_goes_both_ways(one: Any, other: Any) -> None:
    assert list(disruption.changed(one, copy.deepcopy(one))) == []
    assert bool(list(disruption.changed(one, other))) == bool(list(disruption.changed(other, one)))


def node(name: str, **labels: str) -> dict[str, Any]:
    given = {key.replace("_", "-"): value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": {**GPU, "nvidia.com/gpu.deploy.driver": "true", **given}}}


def test_9_2_drivers_by_node_pool() -> None:
    old = [driver("rhel9.4", nodes={"os": "rhel9.4"}), driver("rhel9.6", nodes={"os": "rhel9.6"}), driver("noble")]
    new = [driver("rhel9", tag="595.91.07-rhel9", nodes={"major": "9"}), driver("noble")]
    nodes = [
        node("a", os="rhel9.4", major="9"),
        node("c", os="rhel9.6", major="9"),
        node("b", os="rhel9.4", major="9"),
        node("n"),
        {"metadata": {"name": "host", "labels": {**GPU, "nvidia.com/gpu.deploy.driver": "pre-installed"}}},
        {"metadata": {"name": "cpu", "labels": {}}},
    ]
    found = disruption.by_pool(old, new, nodes, V26_3, V26_7)
    assert [(pool.old, pool.new, pool.nodes, pool.effect) for pool in found] == [
        ("rhel9.4", "rhel9", ("a", "b"), Effect.RELOAD),
        ("rhel9.6", "rhel9", ("c",), Effect.RELOAD),
        ("", "", ("host",), Effect.NONE),
        ("noble", "noble", ("n",), Effect.NONE),
    ]
    assert found[0].after == "nvcr.io/nvidia/driver:595.91.07-rhel9"
    assert found[2].why == ("the operator does not manage the driver here",)


def test_drivers_as_they_are_rendered() -> None:
    folder = Path(__file__).parents[1] / "data" / "golden"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sets = []
    for release in ("26.3.3", "26.7.0"):
        content = yaml.load((folder / f"{release}-default.yaml").read_text(encoding="utf-8"), Loader=loader)
        objects = content["objects"].values() if isinstance(content["objects"], dict) else content["objects"]
        sets.append([each for each in objects if each["kind"] == "DaemonSet" and "driver" in each["metadata"]["name"]])
    old, new = sets
    assert old
    assert new
    for one, other in zip(old, new, strict=True):
        assert disruption.digest(one)
        assert disruption.compare(one, one, V26_3, V26_7).effect == Effect.NONE
        found = disruption.compare(one, other, V26_3, V26_7)
        assert found.effect == Effect.RELOAD
        assert any(".image: " in each and " -> " in each for each in found.why)


def test_9_3_the_states_of_a_node_in_their_order() -> None:
    assert disruption.UPGRADE_STATES == (
        "upgrade-required",
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "pod-restart-required",
        "validation-required",
        "uncordon-required",
        "upgrade-done",
    )
    assert {states.State(each) for each in disruption.UPGRADE_STATES} < set(states.State)


# --- Workloads --------------------------------------------------------------------------------------------------------


def pod(name: str, on: str = "a", owner: str = "ReplicaSet", gpu: bool = True, **spec: Any) -> dict[str, Any]:
    owners = [{"kind": owner, "name": f"{name}-owner", "controller": True}] if owner else []
    container = {"resources": {"limits": {"nvidia.com/gpu": "1"}} if gpu else {}}
    return {
        "metadata": {"name": name, "namespace": "team", "labels": {"app": name}, "ownerReferences": owners},
        "spec": {"nodeName": on, "containers": [container], **spec},
        "status": {"phase": spec.pop("phase", "Running")},
    }


def budget(name: str, app: str | None, allowed: int, namespace: str = "team") -> dict[str, Any]:
    selector = {"matchLabels": {"app": app}} if app is not None else {}
    status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}, "status": status}


def blockers(pods: list[Any], budgets: list[Any] | None = None, **other: Any) -> dict[str, str]:
    found = disruption.estimate({"a", "b"}, pods, budgets or [], Rules(), **other)
    return {each.pod: "; ".join(each.blockers) for each in found.holders}


def test_9_2_gpu_pods_of_the_nodes_have_to_leave_and_idle_nodes_are_named() -> None:
    pods = [pod("train"), pod("web", gpu=False), pod("far", on="z"), pod("over", phase="Succeeded")]
    found = disruption.estimate({"a", "b"}, pods, [], Rules())
    assert [each.pod for each in found.holders] == ["team/train"]
    assert (found.nodes, found.idle, found.blocked) == (("a",), ("b",), ())
    assert found.holders[0].controller == "ReplicaSet train-owner"
    assert str(found) == "1 pods on 1 nodes have to leave (0 bare, 0 with emptyDir, 0 blocked); 1 nodes are idle"


def test_9_2_bare_pods_and_empty_dirs_stay_unless_the_policy_permits_it() -> None:
    pods = [pod("bare", owner=""), pod("local", volumes=[{"name": "s", "emptyDir": {}}])]
    found = disruption.estimate({"a"}, pods, [], Rules())
    assert [(each.bare, each.empty_dir, len(each.blockers)) for each in found.holders] == [
        (True, False, 1),
        (False, True, 1),
    ]
    assert "force permits it" in found.holders[0].blockers[0]
    assert disruption.estimate({"a"}, pods, [], Rules(force=True, delete_empty_dir=True)).blocked == ()


def test_a_gpu_pod_of_a_daemon_set_would_come_again_at_once() -> None:
    assert "would start it again at once" in blockers([pod("monitor", owner="DaemonSet")])["team/monitor"]


@pytest.mark.parametrize(
    ("budgets", "text"),
    [
        ([budget("p", "train", 1)], ""),
        ([budget("p", "train", 0)], "PodDisruptionBudget p allows no disruption (1 healthy, 1 needed)"),
        ([budget("p", None, 0)], "PodDisruptionBudget p allows no disruption (1 healthy, 1 needed)"),
        ([budget("p", "train", 0, namespace="other")], ""),
        ([budget("p", "web", 0)], ""),
        (
            [budget("q", "train", 1), budget("p", None, 1)],
            "PodDisruptionBudgets p, q all select it, and the API server evicts no pod of more than one",
        ),
    ],
)
def test_9_2_budgets_that_hold_a_pod_back(budgets: list[Any], text: str) -> None:
    assert blockers([pod("train")], budgets) == {"team/train": text}


def test_draining_takes_all_pods_but_those_of_daemon_sets() -> None:
    pods = [
        pod("train"),
        pod("web", gpu=False),
        pod("logs", owner="DaemonSet", gpu=False),
        pod("done", gpu=False, phase="Failed"),
    ]
    assert list(blockers(pods, drain=True)) == ["team/train", "team/web"]


def test_claims_count_from_26_7_on() -> None:
    claimed = pod("dra", gpu=False, resourceClaims=[{"name": "g", "resourceClaimName": "mine"}])
    device = {"status": {"allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com"}]}}}}
    claims = {("team", "mine"): msgspec.convert(device, Claim)}
    assert blockers([claimed]) == {}
    assert blockers([claimed], claims=claims) == {"team/dra": ""}


def down(name: str, *, cordoned: bool = False, ready: bool = True) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}
    return {"metadata": {"name": name}, "spec": {"unschedulable": cordoned}, "status": status}


@pytest.mark.parametrize(
    ("nodes", "limit", "text"),
    [
        (
            [down("a", cordoned=True), down("b"), down("c"), down("d")],
            "25%",
            "1 of 4 nodes are cordoned or not ready (a)",
        ),
        ([down("a", ready=False), down("b"), down("c"), down("d")], "25%", "maxUnavailable 25% allows 1"),
        ([down("a", cordoned=True), down("b"), down("c"), down("d")], 2, ""),
        ([down("a"), down("b")], "25%", ""),
        ([down("a")], 0, "lets no node be unavailable"),
        ([down(name, ready=False) for name in "abcdef"], 3, "(a, b, c, d, e, ...)"),
        ([down("a", cordoned=True)], None, "allows 1"),
        ([], "25%", ""),
    ],
)
def test_9_3_cordoned_and_not_ready_nodes_count_against_max_unavailable(nodes: Any, limit: Any, text: str) -> None:
    found = disruption.standstill(nodes, limit)
    assert text in found
    assert bool(found) == bool(text)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "z", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "z", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selectors(selector: Any, matches: bool) -> None:
    assert selectors.selects(selector, {"a": "1"}) is matches


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        ({"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["4"]}]}, True),
        ({"matchExpressions": [{"key": "n", "operator": "Lt", "values": ["4"]}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["4"]}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["here"]}]}, True),
        ({}, False),
    ],
)
def test_required_node_affinity(term: Any, matches: bool) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert selectors.may_run({"affinity": {"nodeAffinity": required}}, "here", {"n": "5", "a": "x"}) is matches


def test_an_unknown_operator_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown operator 'Near'; use one of In, NotIn"):
        selectors.selects({"matchExpressions": [{"key": "a", "operator": "Near"}]}, {})
