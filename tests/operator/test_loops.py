"""The operator's loops end to end, over HTTP: what ends up in the cluster, and how many requests that took."""

import asyncio

from operator_harness import Cluster

from groundplane.api import names

MERGE = ("PATCH", "nodes")


def patches(cluster: Cluster) -> list[str]:
    return [name for method, plural, name in cluster.api.writes if (method, plural) == MERGE]


async def test_a_cluster_comes_up(cluster: Cluster) -> None:
    cluster.nodes(3)
    cluster.node("cpu", gpu=False)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert cluster.labels("gpu-000")[names.GPU_PRESENT] == "true"
    assert cluster.labels("cpu") == {}
    assert cluster.condition("Ready")["reason"] == "Reconciled"
    assert ("daemonsets", "nvidia-driver-daemonset") in cluster.ours()
    assert ("runtimeclasses", "nvidia") in cluster.ours()


async def test_fifty_cold_nodes_are_fifty_patches(cluster: Cluster) -> None:
    cluster.nodes(50)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    assert sorted(patches(cluster)) == [f"gpu-{number:03d}" for number in range(50)]


async def test_a_second_start_writes_nothing(cluster: Cluster) -> None:
    cluster.nodes(5)
    cluster.policy()
    cluster.start()
    await cluster.ready()
    await cluster.stop()
    cluster.api.forget_writes()
    cluster.start()
    await cluster.until(lambda: cluster.api.requests["watch", "nodes"])
    await cluster.quiet()
    assert cluster.api.writes == []


async def test_a_quiet_cluster_costs_only_watches_and_the_lease(cluster: Cluster) -> None:
    cluster.nodes(3)
    cluster.policy()
    cluster.start(leader_elect=True)
    await cluster.until(lambda: cluster.status().get("state") == "ready")
    await asyncio.sleep(0.3)
    cluster.api.forget_writes()
    await asyncio.sleep(1.2)  # a minute of the operator's clock
    other = {key for key in cluster.api.requests if key[0] != "watch" and key[1] != "leases"}
    assert other == set()
    assert cluster.api.requests["put", "leases"] > 5
