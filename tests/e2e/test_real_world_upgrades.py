"""A driver upgrade of 20 nodes on a real control plane: real DaemonSet controller, scheduler, evictions and rights.

Nodes and pods are simulated over HTTP. The operator has what the chart grants it, so a right that is missing shows.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2e.real_operator import POLICY, Document, RealWorld

from groundplane.api import names
from groundplane.cluster import errors, kinds
from groundplane.lab.scenarios import objects
from groundplane.lab.scenarios.upgradewatch import Limits, UpgradeWatch
from groundplane.operator.upgrade.states import State
from testing.hollownodes import HollowNodes
from testing.realcluster.controlplane import ControlPlane

pytestmark = pytest.mark.real

S = State
NODES = tuple(f"upgraded-{number:02d}" for number in range(20))
HELD, CORDONED = NODES[2], NODES[4]
LIMITS = Limits(parallel=6, unavailable=7)
OLD, NEW = "580.126.20", "590.44.01"


def wished(version: str) -> Any:
    """What the policy says of the driver."""

    def change(spec: Document) -> None:
        spec["driver"]["version"] = version
        spec["driver"]["upgradePolicy"] |= {
            "maxParallelUpgrades": LIMITS.parallel,
            "maxUnavailable": LIMITS.unavailable,
        }

    return change


class Fleet:
    """The world and what is seen of its nodes."""

    def __init__(self, world: RealWorld) -> None:
        self.world = world
        self.watch = UpgradeWatch(LIMITS)

    async def follow(self) -> None:
        """Look at every change of every node until cancelled."""
        admin = self.world.admin
        listing = await admin.list(kinds.NODE)
        for node in listing.items:
            self.watch.look(node)
        async with contextlib.aclosing(admin.watch(kinds.NODE, resource_version=listing.resource_version)) as events:
            async for event in events:
                if event.object is not None and event.type in ("ADDED", "MODIFIED"):
                    self.watch.look(event.object)

    async def until(self, what: str, done: Any) -> None:
        """Wait until ``done()`` holds."""

        async def look() -> bool:
            return bool(done())

        await self.world.until(f"{what}; {self.watch.paths}", look)

    def upgraded(self) -> set[str]:
        """The nodes that have been through their upgrade."""
        return {node for node in NODES if self.watch.upgraded(node)}

    async def held(self) -> list[Document]:
        """The pods that the budget protects."""
        found = (await self.world.admin.list(kinds.POD, objects.NAMESPACE, labels="app=held")).items
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    async def ready(self) -> bool:
        """Whether the policy is ready."""
        policy = await self.world.find(kinds.CLUSTER_POLICY, POLICY)
        return bool(policy and policy.get("status", {}).get("state") == "ready")


@pytest.fixture
async def fleet(real_control_plane: ControlPlane) -> AsyncIterator[Fleet]:
    async with RealWorld(real_control_plane, nodes=0) as world, HollowNodes(world.admin, NODES, gpus=8) as nodes:
        await world.grant()
        await world.policy(wished(OLD))
        found = Fleet(world)
        following = asyncio.create_task(found.follow())
        world.start()
        yield found
        nodes.check()
        await world.stop()
        following.cancel()
        for kind in (kinds.DEPLOYMENT, kinds.PDB):
            with contextlib.suppress(errors.NotFound):
                await world.admin.delete(kind, "held", objects.NAMESPACE)


async def test_twenty_nodes_get_a_new_driver(fleet: Fleet) -> None:
    world, watch = fleet.world, fleet.watch
    await world.until("the stack to be ready", fleet.ready)
    await fleet.until("all to be up to date", lambda: watch.counted() == {S.DONE: len(NODES)})
    for document in (objects.deployment("held", node=HELD), objects.budget("held")):
        await world.apply(document)

    async def runs() -> bool:
        budget = await world.admin.get(kinds.PDB, "held", objects.NAMESPACE)
        return [pod["status"]["phase"] for pod in await fleet.held()] == ["Running"] and "status" in budget

    await world.until("the workload to run", runs)
    before = [pod["metadata"]["uid"] for pod in await fleet.held()]
    await world.admin.patch(kinds.NODE, CORDONED, {"spec": {"unschedulable": True}})

    await world.policy(wished(NEW))
    await fleet.until("some nodes to be done", lambda: len(fleet.upgraded()) >= 3)
    await world.stop()
    world.start()
    await fleet.until("all but one to be done", lambda: fleet.upgraded() == {*NODES} - {HELD})
    assert watch.state(HELD) == S.POD_DELETION_REQUIRED, "its budget does not let its pod go"
    assert [pod["metadata"]["uid"] for pod in await fleet.held()] == before
    await world.admin.delete(kinds.PDB, "held", objects.NAMESPACE)
    await fleet.until("the last one to be done", lambda: fleet.upgraded() == {*NODES})

    await world.until("the stack to be ready again", fleet.ready)
    await world.until("the workload to be back", runs_again(fleet, before))
    nodes = {node["metadata"]["name"]: node for node in (await world.admin.list(kinds.NODE)).items}
    assert {name for name in NODES if nodes[name]["spec"].get("unschedulable")} == {CORDONED}
    assert names.UPGRADE_INITIAL_STATE not in nodes[CORDONED]["metadata"].get("annotations", {})
    assert watch.paths[CORDONED][-2:] == [S.VALIDATION_REQUIRED, S.DONE]
    assert watch.broken == []
    assert 1 < watch.maxima.in_progress <= LIMITS.parallel
    images = {
        pod["spec"]["containers"][0]["image"]
        for pod in (await world.admin.list(kinds.POD, world.namespace)).items
        if pod["metadata"]["labels"].get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT
    }
    assert [NEW in image for image in images] == [True]
    assert world.operator is not None
    assert world.operator.metrics.get("missing_permissions") == 0
    events = (await world.admin.list(kinds.EVENT, "default")).items
    about = {each["involvedObject"]["name"] for each in events if each["reason"] == "GPUDriverUpgrade"}
    assert about == {*NODES}, "every node's events are there, so they may be written"


def runs_again(fleet: Fleet, before: list[str]) -> Any:
    """Whether another pod than before runs."""

    async def look() -> bool:
        pods = await fleet.held()
        return [(pod["status"]["phase"], pod["metadata"]["uid"] in before) for pod in pods] == [("Running", False)]

    return look
