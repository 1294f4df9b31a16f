"""What the operator would do: from documents alone, and against a cluster that it must not touch."""

from typing import Any

import pytest
from operator_harness import GPU_LABELS, NS, Cluster, policy_document

from groundplane.api import codec, names
from groundplane.api.release import Release
from groundplane.cluster import kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.operator import plan
from groundplane.operator.plan import PlanError, Report


def node(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**GPU_LABELS, **labels}, "annotations": None},
        "status": {"nodeInfo": {"containerRuntimeVersion": "cri-o://1.33"}},
    }


def offline(*documents: dict[str, Any], policy: dict[str, Any] | None = None, **more: Any) -> plan.Offline:
    loaded = codec.load_cluster_policy(policy or policy_document())
    views = plan.node_views(documents)
    return plan.offline(loaded.policy, views, namespace=NS, release=Release.V26_7, **more)


def test_documents_become_nodes() -> None:
    listed = {"kind": "NodeList", "items": [{"metadata": {"name": "b"}}]}
    assert [view.name for view in plan.node_views([node("a"), listed])] == ["a", "b"]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "Pod"}, "document 1 .*'Pod'"),
        ({"kind": "Node", "metadata": {"name": 3}}, "no Node"),
        ({"kind": "Node"}, "metadata.name"),
    ],
)
def test_documents_that_are_no_nodes(document: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan.node_views([document])


def test_offline_knows_the_nodes_as_they_will_be() -> None:
    found = offline(
        node("a"), node("b", **{names.KERNEL_VERSION: "6.9"}), {"kind": "Node", "metadata": {"name": "cpu"}}
    )
    assert [change.name for change in found.nodes] == ["a", "b"]
    assert [each.kernel for each in found.facts.nodes] == ["6.8.0-60-generic", "6.9"]
    assert found.facts.runtime == "crio"
    assert found.problems == ()
    assert len(found.rendered) == 20


def test_offline_tells_what_is_wrong() -> None:
    document = policy_document()
    document["spec"]["cdi"] = {"enabled": False, "nriPluginEnabled": True}
    document["spec"]["driver"]["secretEnv"] = "hidden"
    found = offline(node("a"), policy=document)
    assert any("cdi.enabled" in problem for problem in found.problems)
    assert any("hidden" in problem for problem in found.problems)


def test_label_changes_alone() -> None:
    policy = codec.load_cluster_policy(policy_document()).policy
    _fleet, changes = plan.fleet_of(plan.node_views([node("a")]), policy, Release.V26_7)
    assert changes[0].labels[names.GPU_PRESENT] == "true"
    assert plan.labelled(plan.node_views([node("a")])[0], None).name == "a"


async def live(cluster: Cluster, **more: Any) -> Report:
    async with Client(Config(server=cluster.api.url)) as client:
        return await plan.live(client, namespace=NS, release=Release.V26_7, **more)


async def test_a_plan_is_what_the_operator_then_does(cluster: Cluster) -> None:
    cluster.nodes(2)
    cluster.policy()
    report = await live(cluster)
    assert cluster.api.writes == []
    assert {change.action for change in report.objects} == {"create"}
    cluster.start()
    await cluster.ready()
    assert {(change.key.kind.plural, change.key.name) for change in report.objects} == set(cluster.ours())
    assert [change.name for change in report.nodes] == ["gpu-000", "gpu-001"]
    assert (await live(cluster)).empty


async def test_a_plan_names_what_differs(cluster: Cluster) -> None:
    cluster.nodes(1)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    await cluster.stop()
    cluster.api.edit("services", "gpu-operator", lambda obj: obj["spec"]["ports"][0].update(port=1), NS)
    document = cluster.api.get("clusterpolicies", "cluster-policy") or {}
    document = {**document, "spec": {**document["spec"], "gfd": {"enabled": False}}}
    report = await live(cluster, document=document)
    updates = [change for change in report.objects if change.action == "update"]
    assert [(change.key.kind, change.key.name) for change in updates] == [(kinds.SERVICE, "gpu-operator")]
    assert updates[0].paths
    gone = {change.key.name for change in report.objects if change.action == "delete"}
    assert "gpu-feature-discovery" in gone


async def test_a_plan_of_a_broken_policy_says_why(cluster: Cluster) -> None:
    cluster.nodes(1)
    with pytest.raises(PlanError, match="no ClusterPolicy"):
        await live(cluster)
    document = policy_document()
    document["spec"]["driver"]["enabled"] = "yes"
    assert "spec.driver.enabled" in (await live(cluster, document=document)).problems[0]
    document["spec"]["driver"]["enabled"] = True
    document["spec"]["driver"]["secretEnv"] = "hidden"
    assert "state-driver" in (await live(cluster, document=document)).problems[0]
    document["spec"]["cdi"] = {"enabled": False, "nriPluginEnabled": True}
    assert "cdi.enabled" in (await live(cluster, document=document)).problems[0]


async def test_a_plan_on_openshift(cluster: Cluster) -> None:
    cluster.openshift()
    cluster.node("a", labels={names.OSTREE_VERSION: "418"})
    cluster.api.add("secrets", "hidden", NS, data={"A": "Zg=="})
    document = policy_document()
    document["spec"]["driver"]["secretEnv"] = "hidden"
    report = await live(cluster, document=document)
    assert report.problems == ()
    made = {(change.key.kind.plural, change.key.name) for change in report.objects}
    assert ("daemonsets", "nvidia-driver-daemonset-418") in made
    assert ("securitycontextconstraints", "nvidia-driver") in made
