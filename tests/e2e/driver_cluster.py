"""A world whose drivers are NVIDIADrivers', and what is asked of it."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from e2e.world import World, policy_document

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE
from groundplane.lab.resources import Resource

Document = dict[str, Any]

NODES = ("gpu-a", "gpu-b", "gpu-c")
TEAM = "example.com/team"
"""A label of the user's own: nothing of the operator's reads it."""
MANAGER = {"repository": "nvcr.io/nvidia/cloud-native", "image": "k8s-driver-manager", "version": "v0.12.0"}


def driver(name: str, **spec: Any) -> Document:
    """An NVIDIADriver that could be pulled."""
    image = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580.126.20", "manager": MANAGER}
    head = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name}}
    return {**head, "spec": {**image, **spec}}


class Cluster:
    """A world whose drivers are NVIDIADrivers'."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.api = world.lab.api

    @property
    def _kind(self) -> Resource:
        return self.api.resource("nvidiadrivers", group=names.GROUP)

    async def create(self, *documents: Document) -> None:
        """Create drivers and let the cluster come to rest."""
        for document in documents:
            self.api.create(self._kind, document)
        await self.world.at_rest()

    async def edit(self, name: str, **spec: Any) -> None:
        """Change fields of a driver."""
        self.api.patch(self._kind, name, {"spec": spec}, type="merge", manager="kubectl-edit")
        await self.world.at_rest()

    async def delete(self, name: str) -> None:
        """Delete a driver."""
        self.api.delete(self._kind, name)
        await self.world.at_rest()

    def owners(self) -> dict[str, str]:
        """Whose each node is."""
        nodes = self.api.list(resources.NODES)["items"]
        labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
        return {name: each[names.DRIVER_OWNER] for name, each in labels.items() if names.DRIVER_OWNER in each}

    def status(self, name: str) -> tuple[str, str, str]:
        """A driver's state, and reason and message of the condition that is true."""
        found = self.api.get(self._kind, name).get("status") or {}
        true = next((each for each in found.get("conditions") or () if each["status"] == "True"), {})
        return found.get("state", ""), true.get("reason", ""), true.get("message", "")

    def daemon_sets(self) -> dict[str, list[str]]:
        """The driver DaemonSets by owner's name, sorted."""
        found: dict[str, list[str]] = {}
        for each in self.api.list(resources.DAEMON_SETS, OPERATOR_NAMESPACE)["items"]:
            if each["metadata"]["labels"].get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT:
                owner = each["metadata"]["ownerReferences"][0]["name"]
                found.setdefault(owner, []).append(each["metadata"]["name"])
        return {owner: sorted(some) for owner, some in found.items()}

    def drivers_on(self) -> dict[str, list[str]]:
        """The running driver pods of each node, by their DaemonSet's owner, or (orphan)."""
        of = {name: owner for owner, some in self.daemon_sets().items() for name in some}
        found: dict[str, list[str]] = {}
        for pod in self.api.list(resources.PODS, OPERATOR_NAMESPACE)["items"]:
            meta = pod["metadata"]
            running = pod.get("status", {}).get("phase") == "Running" and not meta.get("deletionTimestamp")
            if running and meta["labels"].get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT:
                owners = meta.get("ownerReferences") or ()
                what = of.get(owners[0]["name"], "(unknown)") if owners else "(orphan)"
                found.setdefault(pod["spec"]["nodeName"], []).append(what)
        return found


def by_crd(document: Document) -> Document:
    """A policy that leaves drivers to NVIDIADrivers."""
    changed = copy.deepcopy(document)
    changed["spec"]["driver"]["useNvidiaDriverCRD"] = True
    return changed


async def start(world: World, labels: Mapping[str, Mapping[str, str]] | None = None, *, crd: bool = True) -> Cluster:
    """Three nodes, a policy, the operator."""
    for name in NODES:
        world.join(name, "plain")
        if labels and name in labels:
            world.wish(name, labels[name])
    document = policy_document(file="26.3.3-default.yaml" if world.release is Release.V26_3 else "26.7.0-default.yaml")
    await world.create_policy(by_crd(document) if crd else document)
    world.start_operator()
    await world.at_rest()
    return Cluster(world)


TEAMS = {"gpu-a": {TEAM: "red"}, "gpu-b": {TEAM: "blue"}}


def states(world: World, nodes: Iterable[str] = NODES) -> dict[str, str]:
    """The upgrade state of each node."""
    found = {name: world.lab.api.get(resources.NODES, name)["metadata"]["labels"] for name in nodes}
    return {name: labels.get(names.UPGRADE_STATE, "") for name, labels in found.items()}
