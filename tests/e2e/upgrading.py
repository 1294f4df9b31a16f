"""Three nodes without programs, the shipped operator, and an upgrade of their drivers that is watched."""

import copy
from collections.abc import Mapping
from typing import Any

from e2e.world import POLICY, World, policy_document

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE
from groundplane.lab.scenarios import objects
from groundplane.lab.scenarios.upgradewatch import Limits, UpgradeWatch
from groundplane.operator.upgrade.states import State

Document = dict[str, Any]

S = State
NODES = ("gpu-a", "gpu-b", "gpu-c")
DONE = dict.fromkeys(NODES, S.DONE.value)
PATIENCE_S = 60.0
SECOND, THIRD = "590.44.01", "595.91.07"
ONE = {"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": "50%"}
ALL = {"autoUpgrade": True, "maxParallelUpgrades": 0, "maxUnavailable": "100%"}
WAITS = {"waitForCompletion": {"podSelector": "wait=for-it", "timeoutSeconds": 0}}


class Fleet:
    """Three nodes without programs and a watch on their states."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = world.lab.api
        self.watch = UpgradeWatch(Limits(parallel=0, unavailable=len(NODES)))
        self.watch.follow(self.api)

    # --- doing --------------------------------------------------------------------------------------------------------

    def edit(self, **driver: Any) -> None:
        """Change fields of ``spec.driver``."""
        for field, value in driver.items():
            self.world.edit_policy(POLICY, "driver", field, value)

    def pod(self, name: str, node: str, **labels: str) -> None:
        """A pod of nobody's that runs on a node until it is deleted."""
        spec = {"nodeName": node, "containers": [{"name": "c", "image": objects.IMAGE}]}
        meta = {"name": name, "namespace": "default", "labels": labels}
        self.api.create(resources.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")

    def annotate(self, node: str, changes: Mapping[str, str | None]) -> None:
        """Set or remove annotations of a node."""
        patch = {"metadata": {"annotations": dict(changes)}}
        self.api.patch(resources.NODES, node, patch, type="merge", manager="kubectl-annotate")

    # --- looking ------------------------------------------------------------------------------------------------------

    async def until(self, done: Any, what: str) -> None:
        """Wait until ``done()`` holds."""
        await self.world.lab.wait_until(done, timeout_s=PATIENCE_S, what=f"{what}; states {self.watch.paths}")

    async def comes_to(self, **wanted: str) -> None:
        """Wait until nodes are in states; a name has ``_`` for ``-``."""
        nodes = {name.replace("_", "-"): state for name, state in wanted.items()}
        await self.until(lambda: all(self.state(node) == state for node, state in nodes.items()), f"nodes in {nodes}")

    async def all_run(self, version: str, nodes: tuple[str, ...] = NODES) -> None:
        """Wait until drivers of a version run on nodes, and these are done."""

        def done() -> bool:
            states = [self.state(node) for node in nodes]
            return states == [S.DONE] * len(nodes) and all(self.version(node) == version for node in nodes)

        await self.until(done, f"{version} on {nodes}")

    def node(self, name: str) -> Document:
        """A node."""
        return self.api.get(resources.NODES, name)

    def state(self, name: str) -> str:
        """A node's state."""
        return self.watch.state(name)

    def cordoned(self) -> list[str]:
        """The nodes that are not schedulable."""
        return [name for name in NODES if self.api.find(resources.NODES, name) and self._is_cordoned(name)]

    def _is_cordoned(self, name: str) -> bool:
        return bool(self.node(name)["spec"].get("unschedulable"))

    def unready(self) -> list[str]:
        """The nodes that are not Ready."""
        return [
            name
            for name in NODES
            for each in self.node(name)["status"]["conditions"]
            if each["type"] == "Ready" and each["status"] != "True"
        ]

    def driver(self, node: str) -> Document | None:
        """The driver pod that runs on a node."""
        for pod in self.api.list(resources.PODS, OPERATOR_NAMESPACE, fields=f"spec.nodeName={node}")["items"]:
            meta = pod["metadata"]
            if meta["labels"].get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT:
                return None if meta.get("deletionTimestamp") else dict(pod)
        return None

    def version(self, node: str) -> str:
        """The version of the driver on a node; empty while there is none."""
        pod = self.driver(node)
        image = pod["spec"]["containers"][0]["image"] if pod else ""
        return str(image).rpartition(":")[2].partition("-")[0]

    def events(self, node: str) -> list[tuple[str, str]]:
        """Type and message of what the upgrade has said about a node."""
        events = self.api.list(resources.EVENTS, "default")["items"]
        found = [each for each in events if each["reason"] == "GPUDriverUpgrade"]
        return [(each["type"], each["message"]) for each in found if each["involvedObject"]["name"] == node]

    async def said(self, node: str, *texts: str, type: str = "Normal") -> None:
        """Wait for an event about a node that has all texts."""

        def done() -> bool:
            return any(kind == type and all(text in said for text in texts) for kind, said in self.events(node))

        await self.until(done, f"an event about {node} with {texts}, there are {self.events(node)}")

    def condition(self) -> tuple[str, str]:
        """Reason and message of the policy's condition that upgrades are held up; empty without it."""
        policy = self.api.get(self.api.resource("clusterpolicies", group=names.GROUP), POLICY)
        for each in policy.get("status", {}).get("conditions") or ():
            if each["type"] == "DriverUpgradeHeldUp" and each["status"] == "True":
                return each["reason"], each["message"]
        return "", ""

    async def held_up(self, reason: str, *texts: str) -> None:
        """Wait until the policy says that upgrades are held up."""

        def done() -> bool:
            found = self.condition()
            return found[0] == reason and all(text in found[1] for text in texts)

        await self.until(done, f"condition {reason} with {texts}, it is {self.condition()}")


async def start(world: World, **upgrade: Any) -> Fleet:
    """Three nodes whose driver is up to date."""
    for name in NODES:
        world.join(name, "plain")
    document = policy_document(file="26.3.3-default.yaml" if world.release is Release.V26_3 else "26.7.0-default.yaml")
    document["spec"]["driver"]["version"] = "580.126.20"
    document["spec"]["driver"]["upgradePolicy"] = copy.deepcopy(upgrade or ONE)
    await world.create_policy(document)
    world.start_operator()
    await world.at_rest()
    fleet = Fleet(world)
    assert fleet.watch.states() == DONE
    return fleet


async def amid(world: World, node: str = "gpu-a", **more: Any) -> Fleet:
    """A fleet whose first node waits for a pod in the middle of its upgrade, and so the others for a slot."""
    fleet = await start(world, **{**ONE, **WAITS, **more})
    fleet.pod("job", node, wait="for-it")
    fleet.edit(version=SECOND)
    await fleet.comes_to(**{node.replace("-", "_"): S.WAIT_FOR_JOBS_REQUIRED})
    return fleet


def release_job(fleet: Fleet) -> None:
    """The pod that is waited for ends."""
    fleet.api.delete(resources.PODS, "job", "default", grace_period_s=0)
