"""The operator on a real kube-apiserver when things are wrong: what RBAC refuses, in the API server's own words."""

import pytest
from e2e.real_operator import POLICY, USER, Document, Missing, RealWorld, real_world

from groundplane.api import names
from groundplane.cluster import kinds
from testing.realcluster.controlplane import ControlPlane

pytestmark = pytest.mark.real

RBAC = "rbac.authorization.k8s.io"


async def told(world: RealWorld, said: str) -> None:
    """Wait until the policy's conditions and an event say ``said``."""

    async def in_condition() -> bool:
        return said in (await world.condition()).get("message", "")

    async def in_event() -> bool:
        return bool(await world.events(said))

    await world.until(f"a condition with {said!r}", in_condition)
    error, ready = await world.condition(), await world.condition("Ready")
    assert (error["status"], ready["status"], error["reason"]) == ("True", "False", "ReconcileFailed")
    assert f'user "{USER}"' in error["message"]
    await world.until(f"an event with {said!r}", in_event)


async def mended(world: RealWorld) -> None:
    """Grant everything, and wait until nothing is refused any more."""
    await world.grant()

    async def fine() -> bool:
        return (await world.condition()).get("reason") != "ReconcileFailed"

    await world.until("the operator to go on", fine)
    assert world.operator is not None
    assert world.operator.metrics.get("missing_permissions") == 0


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("apps", "daemonsets", "list"), 'list daemonsets in API group "apps" in namespace "{ns}"'),
        (("", "configmaps", "watch"), 'watch configmaps in API group "" in namespace "{ns}"'),
        (("", "nodes", "patch"), 'patch nodes in API group "" in the whole cluster'),
        ((RBAC, "clusterroles", "list"), f'list clusterroles in API group "{RBAC}" in the whole cluster'),
        (("", "services", "create"), 'create services in API group "" in namespace "{ns}" (state-'),
        (("apps", "daemonsets", "patch"), 'patch daemonsets in API group "apps" in namespace "{ns}" (gpu-feature-'),
    ],
)
async def test_a_missing_permission_is_named_and_its_grant_is_noticed(
    real_control_plane: ControlPlane, missing: Missing, said: str
) -> None:
    async with real_world(real_control_plane, missing) as world:
        await told(world, said.format(ns=world.namespace))
        await mended(world)
        node = await world.admin.get(kinds.NODE, f"{world.namespace}-gpu-0")
        assert node["metadata"]["labels"][names.GPU_PRESENT] == "true"


async def test_rights_that_cannot_be_handed_on_are_named(real_control_plane: ControlPlane) -> None:
    """RBAC lets nobody grant what he does not hold: the refusal is about an operand's rights, not about the request."""
    async with real_world(real_control_plane, ("", "nodes", "update")) as world:
        await told(world, 'update nodes in API group "" in the whole cluster (state-')
        assert "ClusterRole nvidia-" in (await world.condition())["message"]
        await mended(world)


async def test_what_nvidias_operator_set_and_nobody_wants_goes(real_control_plane: ControlPlane) -> None:
    """Objects as its create and update leave them, field managers and all, on a real API server."""
    async with RealWorld(real_control_plane) as world:
        await world.grant()
        policy = await world.policy()
        owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": POLICY}
        owner |= {"uid": policy["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
        await world.made_by_nvidia(_service(world, "gpu-operator", owner, {"nvidia.com/old": "x"}))
        await world.made_by_nvidia(_service(world, "nvidia-left", owner, {}))
        await world.apply(_service(world, "mine", owner, {}), manager="kubectl")
        world.start()

        async def taken_over() -> bool:
            found = await world.find(kinds.SERVICE, "gpu-operator", world.namespace)
            entries = found["metadata"]["managedFields"] if found else []
            return [each["manager"] for each in entries] == [names.FIELD_MANAGER]

        async def gone() -> bool:
            return await world.find(kinds.SERVICE, "nvidia-left", world.namespace) is None

        await world.until("the Service to be ours", taken_over)
        await world.until("the left Service to go", gone)
        live = await world.admin.get(kinds.SERVICE, "gpu-operator", world.namespace)
        assert "nvidia.com/old" not in live["metadata"].get("annotations", {})
        assert [port["name"] for port in live["spec"]["ports"]] == ["gpu-operator-metrics"]
        assert await world.find(kinds.SERVICE, "mine", world.namespace) is not None


def _service(world: RealWorld, name: str, owner: Document, annotations: dict[str, str]) -> Document:
    meta = {"name": name, "namespace": world.namespace, "ownerReferences": [owner], "annotations": annotations}
    ports = [{"name": "old", "port": 9999, "protocol": "TCP"}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}}
