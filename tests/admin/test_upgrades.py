"""An upgrade's plan for one cluster: every check from A85 to A102 where it holds and where it does not."""

import base64
import copy
import gzip
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import yaml

from groundplane.admin import chart, helm, matrix, upgrade_checks, upgrade_render, upgrade_view, upgrades
from groundplane.admin.disruption import Effect
from groundplane.admin.hops import Version
from groundplane.admin.upgrades import Charts, UpgradeError, UpgradePlan, Wanted
from groundplane.api import codec
from groundplane.diagnose.evidence import NodeFacts
from groundplane.diagnose.findings import Outcome
from groundplane.diagnose.survey import Survey

Document = dict[str, Any]
V26_3, V26_7 = Version(26, 3, 3), Version(26, 7, 0)
MATRIX = matrix.shipped()
CHART = helm.Chart("gpu-operator", "v26.7.0", helm.NVIDIA_REPOSITORY)
READ = upgrades.KINDS
STATE = "nvidia.com/gpu-driver-upgrade-state"


def node(name: str, labels: Document | None = None, **spec: Any) -> Document:
    gpu = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.family": "ampere",
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "feature.node.kubernetes.io/kernel-version.full": "6.8.0-60-generic",
        "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "24.04",
        "nvidia.com/gpu.deploy.driver": "true",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**gpu, **(labels or {})}},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {
                "osImage": "Ubuntu 24.04 LTS",
                "kernelVersion": "6.8.0-60-generic",
                "kubeletVersion": "v1.34.1",
                "containerRuntimeVersion": "containerd://2.1.4",
                "architecture": "amd64",
            },
        },
    }


def pod(name: str, on: str, gpu: bool = True, **metadata: Any) -> Document:
    limits = {"nvidia.com/gpu": "1"} if gpu else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "uid": name, **metadata},
        "spec": {"nodeName": on, "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


def release(
    revision: int = 1, status: str = "deployed", values: Document | None = None, version: str = "v26.3.3", **more: Any
) -> Document:
    name = more.get("name", "gpu-operator")
    policy = upgrade_render.policy_of({**chart.defaults(V26_3), **(values or {})})
    stored = {
        "name": name,
        "namespace": "gpu-operator",
        "version": revision,
        "info": {"status": status},
        "chart": {
            "metadata": {"name": "gpu-operator", "version": version, "description": more.get("description", "")},
            "values": chart.defaults(V26_3),
        },
        "config": values or {},
        "manifest": "---\n" + yaml.safe_dump(policy),
    }
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(stored).encode()))).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {"name": f"sh.helm.release.v1.{name}.v{revision}", "namespace": "gpu-operator"},
        "data": {"release": data},
    }


def cluster(*more: Document, version: str = "v1.34.1", nodes: list[Document] | None = None, **kept: Any) -> Survey:
    policy = upgrade_render.policy_of(chart.defaults(V26_3))
    documents = [*(nodes if nodes is not None else [node("a"), node("b")]), policy, *more]
    if not any(each.get("kind") == "Secret" for each in more):
        documents.append(release())
    return Survey.of(copy.deepcopy(documents), version=version, read=READ, **kept)


def planned(survey: Survey, charts: Charts = Charts(), facts: Any = None, **wanted: Any) -> UpgradePlan:  # noqa: B008
    return upgrades.plan(Wanted(**{"target": V26_7, "matrix": MATRIX, **wanted}), survey, charts, facts)


def blind(survey: Survey, plural: str) -> Survey:
    """As if a kind could not be read."""
    left = {name: found for name, found in survey.objects.items() if name != plural}
    return msgspec.structs.replace(survey, objects=left, unread={**survey.unread, plural: f"may not list {plural}"})


def outcomes(made: UpgradePlan, number: str) -> set[str]:
    return {each.outcome.value for each in made.findings if each.id == number}


BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "keep", "namespace": "train"},
    "spec": {"selector": {"matchLabels": {"app": "t"}}},
    "status": {"disruptionsAllowed": 0},
}
OWNER = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "t-1", "uid": "u", "controller": True}]
GUARDED = pod("t", "a", labels={"app": "t"}, ownerReferences=OWNER)
CASES: dict[str, tuple[str, Callable[[], UpgradePlan], set[str]]] = {
    "A85 the next family": ("A85", lambda: planned(cluster()), {"pass"}),
    "A85 a chain": ("A85", lambda: planned(cluster(release(version="v25.3.4"), version="v1.32.1")), {"pass", "warn"}),
    "A85 a cluster that is too new": ("A85", lambda: planned(cluster(version="v1.40.0")), {"fail"}),
    "A85 nothing known of Kubernetes": ("A85", lambda: planned(cluster(version="", nodes=[])), {"unknown"}),
    "A86 listed": ("A86", lambda: planned(cluster()), {"pass"}),
    "A86 not in the matrix": ("A86", lambda: planned(cluster(), target=Version(26, 7, 9)), {"pass", "unknown"}),
    "A87 fits": ("A87", lambda: planned(cluster()), {"pass"}),
    "A87 does not": (
        "A87",
        lambda: planned(cluster(nodes=[_on(node("a"), containerRuntimeVersion="docker://27.0")])),
        {"fail"},
    ),
    "A88 can be read": ("A88", lambda: planned(cluster()), {"pass"}),
    "A88 cannot": ("A88", lambda: planned(blind(cluster(), "clusterpolicies")), {"unknown"}),
    "A89 a pool": ("A89", lambda: planned(cluster(nodes=[node("a", {"c": "1"}), node("b")]), canary="c=1"), {"pass"}),
    "A89 none asked for": ("A89", lambda: planned(cluster()), {"warn"}),
    "A89 no such node": ("A89", lambda: planned(cluster(), canary="c=1"), {"fail"}),
    "A89 all nodes": ("A89", lambda: planned(cluster(), canary="nvidia.com/gpu.present"), {"warn"}),
    "A90 idle": ("A90", lambda: planned(cluster()), {"pass"}),
    "A90 work": ("A90", lambda: planned(cluster(pod("t", "a", ownerReferences=OWNER))), {"pass", "warn"}),
    "A90 blocked": ("A90", lambda: planned(cluster(GUARDED, BUDGET)), {"pass", "fail"}),
    "A90 no room": ("A90", lambda: planned(cluster(nodes=[node("a", unschedulable=True)])), {"fail", "pass"}),
    "A91 open": ("A91", lambda: planned(cluster()), {"pass", "unknown"}),
    "A91 closed": ("A91", lambda: planned(cluster(version="v1.37.0")), {"warn", "pass", "unknown"}),
    "A92 nobody tried": ("A92", lambda: planned(cluster()), {"unknown"}),
    "A92 other tags": ("A92", lambda: planned(cluster(nodes=[_rhel(node("a"))])), {"unknown", "warn"}),
    "A94 at hand": ("A94", lambda: planned(cluster(), Charts(chart.defaults(V26_7)), chart=CHART), {"pass"}),
    "A94 not": ("A94", lambda: planned(cluster()), {"warn"}),
    "A95 nothing set": ("A95", lambda: planned(cluster()), {"pass", "warn"}),
    "A95 refused": (
        "A95",
        lambda: planned(cluster(release(values={"toolkit": {"enabled": False}, "cdi": {"nriPluginEnabled": True}}))),
        {"fail", "pass", "warn"},
    ),
    "A96 deployed": ("A96", lambda: planned(cluster()), {"pass"}),
    "A96 failed last": ("A96", lambda: planned(cluster(release(), release(2, "failed"))), {"warn"}),
    "A96 pending": ("A96", lambda: planned(cluster(release(), release(2, "pending-upgrade"))), {"fail"}),
    "A96 two": (
        "A96",
        lambda: planned(cluster(release(), release(name="other")), release="gpu-operator/gpu-operator"),
        {"pass", "fail"},
    ),
    "A97 by the hook": ("A97", lambda: planned(cluster()), {"pass"}),
    "A97 hook off": (
        "A97",
        lambda: planned(cluster(release(values={"operator": {"upgradeCRD": False}}))),
        {"pass", "warn"},
    ),
    "A97 no hooks": ("A97", lambda: planned(cluster(), hooks=False), {"pass", "warn"}),
    "A97 no hooks with a GPUCluster": (
        "A97",
        lambda: planned(
            cluster(),
            hooks=False,
            overrides={"gpuCluster": {"deployCR": True}, "clusterPolicy": {"deployCR": False}},
        ),
        {"pass", "fail"},
    ),
    "A99 none to reload": ("A99", lambda: planned(cluster(release(values={"driver": {"enabled": False}}))), {"pass"}),
    "A99 reloads": ("A99", lambda: planned(cluster()), {"warn"}),
    "A100 at rest": ("A100", lambda: planned(cluster(nodes=[node("a", {STATE: "upgrade-done"})])), {"pass"}),
    "A100 under way": ("A100", lambda: planned(cluster(nodes=[node("a", {STATE: "drain-required"})])), {"warn"}),
    "A101 done": ("A101", lambda: planned(cluster(nodes=[node("a", {STATE: "upgrade-done"})])), {"pass"}),
    "A101 failed": ("A101", lambda: planned(cluster(nodes=[node("a", {STATE: "upgrade-failed"})])), {"fail"}),
    "A102 the operator's": ("A102", lambda: planned(cluster()), {"pass"}),
    "A102 the host's": (
        "A102",
        lambda: planned(cluster(nodes=[node("a", {"nvidia.com/gpu.deploy.driver": "pre-installed"}), node("b")])),
        {"warn"},
    ),
}  # fmt: skip


def _on(made: Document, **info: str) -> Document:
    made["status"]["nodeInfo"] |= info
    return made


def _rhel(made: Document) -> Document:
    made["metadata"]["labels"] |= {
        "feature.node.kubernetes.io/system-os_release.ID": "rhel",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "9.6",
    }
    return made


@pytest.mark.parametrize("case", list(CASES))
def test_a_check_where_it_holds_and_where_not(case: str) -> None:
    number, make, expected = CASES[case]
    assert outcomes(make(), number) == expected


def test_each_check_of_the_plan_has_a_case_that_passes_and_one_that_does_not() -> None:
    good = {number for number, _, found in CASES.values() if found <= {"pass", "unknown"} or not found}
    bad = {number for number, _, found in CASES.values() if found & {"fail", "warn", "unknown"}}
    numbers = {f"A{number}" for number in range(85, 103)} - {"A93", "A98"}  # of the run
    assert bad >= numbers
    assert good | {"A92", "A95"} >= numbers


def test_go_is_no_when_something_fails_and_the_plan_says_why() -> None:
    assert planned(cluster()).go
    made = planned(cluster(GUARDED, BUDGET))
    assert not made.go
    assert made.reloaded == ("a", "b") and made.estimate.blocked
    assert [pool.effect for pool in made.pools] == [Effect.RELOAD]
    lines = list(upgrade_view.text(made))
    assert lines[-1].startswith("NO GO")
    assert any("580.126.20-ubuntu24.04 -> " in line and "595.91.07" in line for line in lines)


def test_a_pool_of_old_gpus_keeps_its_driver_s_branch() -> None:
    volta = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.family": "volta"}
    made = planned(cluster(nodes=[node("a", volta)]))
    assert str(made.values["driver"]["version"]).startswith("580.")
    assert made.pools[0].after.rpartition(":")[2].startswith("580.")


def test_values_are_merged_and_secrets_are_not_shown() -> None:
    env = [{"name": "PROXY_TOKEN", "value": "hunter2secret"}]
    mine = {"driver": {"env": env, "version": "580.126.20"}, "toolkit": {"enabled": True}}
    made = planned(cluster(release(values=mine)))
    assert made.values == {"driver": {"env": env}}  # what the old chart had anyway is dropped
    shown = "\n".join((*upgrade_view.text(made, everything=True), upgrade_view.page(made, "")))
    shown += json.dumps(upgrade_view.about(made))
    assert "hunter2secret" not in shown and "PROXY_TOKEN" in shown
    assert yaml.safe_load(upgrade_view.values_file(made)) == made.values
    kept = planned(cluster(release(values=mine)), keep=("driver.version",))
    assert kept.values["driver"]["version"] == "580.126.20"


def test_our_chart_is_told_which_release_to_be_like() -> None:
    ours = release(version="0.1.0", description="groundplane", values={"operator": {"release": "26.3.3"}})
    made = planned(cluster(ours), Charts(chart.defaults(V26_7)), chart=helm.Chart("deploy/chart", "0.1.0"))
    assert (made.source, made.ours) == (V26_3, True)
    assert made.values == {"operator": {"release": "26.7.0"}}


def test_a_patch_before_26_7_reloads_drivers_though_nothing_but_the_chart_has_changed() -> None:
    made = planned(cluster(release(version="v26.3.2")), target=V26_3)
    assert [pool.effect for pool in made.pools] == [Effect.RELOAD]
    assert any("helm.sh/chart" in why for pool in made.pools for why in pool.why)


@pytest.mark.parametrize(
    ("survey", "said"),
    [
        (lambda: cluster(pod("p", "a"), release(status="failed")), "never deployed completely"),
        (lambda: Survey.of([], read=READ), "groundplane install makes one"),
        (lambda: Survey.of([], unread={"secrets": "list secrets is not allowed"}), "list secrets is not allowed"),
        (lambda: cluster(release(), release(name="other")), "has 2 releases"),
        (lambda: cluster(release(version="v27.1.0")), "27.1"),
        (lambda: cluster(release(version="master")), "no release such as"),
    ],
)
def test_what_no_plan_can_be_made_for_is_told(survey: Any, said: str) -> None:
    with pytest.raises((UpgradeError, ValueError), match=said):
        planned(survey())


def test_an_older_target_is_a_rollback() -> None:
    with pytest.raises(UpgradeError, match="groundplane rollback plan"):
        planned(cluster(release(version="v26.7.0")), target=V26_3)


def test_a_policy_of_values_is_one_that_operators_read() -> None:
    made = upgrade_render.policy_of(
        {**chart.defaults(V26_7), "driver": {"version": "1", "upgradePolicy": {"gpuPodDeletion": {"force": True}},
                                             "nvidiaDriverCRD": {"enabled": True}}}
    )  # fmt: skip
    spec = codec.load_cluster_policy(made).policy.spec
    assert spec.driver.upgradePolicy.podDeletion.force is True
    assert spec.driver.useNvidiaDriverCRD is True


def test_edits_past_helm_are_named_without_their_values() -> None:
    survey = cluster()
    revision = upgrades.running(survey)
    assert list(upgrade_render.edited(survey, revision)) == []
    survey.of_kind("clusterpolicies")[0]["spec"]["driver"]["version"] = "hunter2"
    assert list(upgrade_render.edited(survey, revision)) == ["ClusterPolicy cluster-policy: spec.driver.version"]


def test_a97_after_definitions_without_a_field_are_told() -> None:
    def definition(*fields: str) -> Document:
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
        version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
        head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        return {**head, "metadata": {"name": "x.nvidia.com"}, "spec": {"versions": [version]}}

    wanted = (definition("a", "b"),)
    for live, outcome in (([definition("a", "b", "c")], "pass"), ([definition("a")], "fail"), ([], "fail")):
        found = upgrade_checks.stale(Survey.of(live, read=("customresourcedefinitions",)), wanted)
        assert [each.outcome.value for each in found] == [outcome]
    assert [each.outcome for each in upgrade_checks.stale(Survey.of([]), wanted)] == [Outcome.UNKNOWN]


@pytest.mark.parametrize(("told", "outcome"), [({"status": 200}, "pass"), ({"problem": "not found"}, "fail")])
def test_a92_what_nodes_could_pull_is_told(told: Document, outcome: str) -> None:
    facts = {"a": NodeFacts(name="a", facts={"pull": {"nvcr.io/nvidia/gpu-operator:v26.7.0": told}})}
    made = planned(cluster(nodes=[node("a")]), facts=facts)
    assert outcomes(made, "A92") == {outcome}
