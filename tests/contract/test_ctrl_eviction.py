"""What takes pods off a node (cluster/eviction.py, cluster/gpupods.py), against the API server's real answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from contract.ctrl_plane import Plane
from contract.engines import Engine
from contract.test_ctrl_budgets import budget, going, says, workload

from groundplane.cluster import eviction, gpupods, kinds
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.cluster.eviction import EvictionError, Pod, Rules
from groundplane.cluster.gpupods import Claim, ClaimReader


@pytest.fixture
async def client(swift_engine: Engine) -> AsyncIterator[Client]:
    api = swift_engine.admin
    async with Client(Config(server=api.url, token=api.token, ca_file=api._ca_file)) as client:
        yield client


async def quickly(seconds: float) -> None:
    await asyncio.sleep(seconds / 20)


async def until(plane: Plane, look: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(plane.until, look, what)


def off(client: Client, plane: Plane, pods: list[Pod], timeout_s: float = 0.0) -> asyncio.Future[None]:
    node = plane.node_name("a")
    return asyncio.ensure_future(eviction.evict(client, node, pods, timeout_s=timeout_s, sleep=quickly))


async def test_evicts_and_waits(client: Client, plane: Plane) -> None:
    """A budget holds one of two pods back until there is another that is healthy; then both go."""
    first, second = await asyncio.to_thread(workload, plane, 2, 2)
    budget(plane, minAvailable=1)
    await until(plane, lambda: bool(says(plane, 1, 2, 1, 2)), "the budget")
    pods = await eviction.pods_on(client, plane.node_name("a"))
    assert [pod.metadata.name for pod in pods] == sorted([first, second])
    assert {owner.kind for pod in pods if (owner := pod.controller)} == {"ReplicaSet"}
    task = off(client, plane, pods)
    await until(plane, lambda: going(plane, first) != going(plane, second), "one to be asked to go")
    plane.remove("poddisruptionbudgets", "b")
    await until(plane, lambda: going(plane, first) and going(plane, second), "both to be asked to go")
    for name in (first, second):
        await asyncio.to_thread(plane.ends, name)
    await asyncio.wait_for(task, 30)


async def test_time_over(client: Client, plane: Plane) -> None:
    (name,) = await asyncio.to_thread(workload, plane, 1, 1)
    budget(plane, minAvailable=1)
    await until(plane, lambda: bool(says(plane, 0, 1, 1, 1)), "the budget")
    pods = await eviction.pods_on(client, plane.node_name("a"))
    with pytest.raises(EvictionError, match=f"{name} .*would violate the pod's disruption budget"):
        await off(client, plane, pods, timeout_s=20.0)
    assert not going(plane, name)


async def test_another_pod_of_the_name_is_let_alone(client: Client, plane: Plane) -> None:
    plane.node("a")
    plane.pod("p", nodeName=plane.node_name("a"))
    pods = await eviction.pods_on(client, plane.node_name("a"))
    plane.remove("pods", "p", gracePeriodSeconds=0)
    plane.pod("p", nodeName=plane.node_name("a"))
    await asyncio.wait_for(off(client, plane, pods), 30)
    assert not going(plane, "p")


async def test_drain_and_cordon(client: Client, plane: Plane) -> None:
    plane.node("a")
    plane.pod("p", nodeName=plane.node_name("a"))
    node = plane.node_name("a")
    await eviction.cordon(client, node)
    assert plane.read("nodes", node)["spec"]["unschedulable"] is True
    with pytest.raises(EvictionError, match=f"node {node} cannot be drained: {plane.space}/p "):
        await eviction.drain(client, node, Rules(), sleep=quickly)
    task = asyncio.ensure_future(eviction.drain(client, node, Rules(force=True), sleep=quickly))
    await until(plane, lambda: going(plane, "p"), "the pod to go")
    if plane.get("pods", "p") is not None:
        await asyncio.to_thread(plane.ends, "p")
    await asyncio.wait_for(task, 30)
    await eviction.cordon(client, node, on=False)
    assert "unschedulable" not in plane.read("nodes", node)["spec"]


@pytest.mark.parametrize("versions", [("v1",), ("v0", "v1"), ("v0",)], ids=["served", "older", "absent"])
async def test_claims(client: Client, plane: Plane, monkeypatch: pytest.MonkeyPatch, versions: tuple[str, ...]) -> None:
    """A claim that is not there is told from an API that is not there."""
    monkeypatch.setattr(
        gpupods, "_CLAIMS", [msgspec.structs.replace(kinds.RESOURCE_CLAIM, version=version) for version in versions]
    )
    request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    body = {"metadata": {"name": "there"}, "spec": {"devices": {"requests": [request]}}}
    await client.create(kinds.RESOURCE_CLAIM, body, plane.space)
    spec = {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in ("there", "gone")]}
    pod = msgspec.convert({"metadata": {"name": "p", "namespace": plane.space}, "spec": spec}, Pod)
    found = await ClaimReader(client).of([pod])
    missing = Claim() if versions == ("v0",) else None
    assert found == {(plane.space, "there"): Claim(), (plane.space, "gone"): missing}
