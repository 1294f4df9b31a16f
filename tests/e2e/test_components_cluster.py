"""What else comes and goes: labels of one node, ServiceMonitors with their CRD, the namespace's labels, everything."""

import copy

import pytest
from e2e.changes import Picture, picture, step
from e2e.switches import GPU_NODES, NO_UPGRADES, start, throw
from e2e.world import POLICY, World

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.cluster.kinds import SERVICE_MONITOR
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE
from groundplane.operator.labels import CONTAINER, DEPLOYED
from groundplane.operator.policy import PSA_LABELS

MONITORS = {"servicemonitors/gpu-operator", "servicemonitors/nvidia-dcgm-exporter"}
MONITOR_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{SERVICE_MONITOR.plural}.{SERVICE_MONITOR.group}"},
    "spec": {
        "group": SERVICE_MONITOR.group,
        "scope": "Namespaced",
        "names": {
            "kind": SERVICE_MONITOR.kind,
            "listKind": "ServiceMonitorList",
            "plural": SERVICE_MONITOR.plural,
            "singular": "servicemonitor",
        },
        "versions": [
            {
                "name": SERVICE_MONITOR.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
ON = {"dcgmExporter": {"serviceMonitor": {"enabled": True, "interval": "15s"}}}
OFF = {"dcgmExporter": {"serviceMonitor": {"enabled": False}}}


async def test_operands_off_on_one_node_and_on_again() -> None:
    async with World() as world:
        await start(world, Release.V26_7, {})
        before = picture(world)
        world.switch_operands("gpu-b", "false")
        await world.at_rest()
        off = picture(world)
        flag = f"{names.DEPLOY_OPERANDS}=false"
        keys = {*DEPLOYED[CONTAINER], names.DEPLOY_MIG_MANAGER}
        gone = step(world, before, off)
        assert gone.marks == {"gpu-b": {f"+{flag}", *(f"-{key}=true" for key in keys)}}
        assert (gone.node_writes, gone.written) == ({"gpu-b": 1}, set())
        world.switch_operands("gpu-b", None)
        await world.at_rest()
        back = step(world, off, picture(world))
        assert back.marks == {"gpu-b": {f"-{flag}", *(f"+{key}=true" for key in keys)}}
        assert (back.node_writes, back.written) == ({"gpu-b": 1}, set())


async def test_mig_labels_come_with_the_capability_and_stay() -> None:
    """3.2 rules 5 and 6: neither the manager's label nor the node's configuration is taken away again."""
    async with World() as world:
        await start(world, Release.V26_7, {})
        before = picture(world)
        world.wish("gpu-a", {names.MIG_CAPABLE: "true"})
        await world.at_rest()
        capable = picture(world)
        done = step(world, before, capable)
        came = {f"+{names.DEPLOY_MIG_MANAGER}=true", f"+{names.MIG_CONFIG}=all-disabled", f"+{names.MIG_CAPABLE}=true"}
        assert (done.marks, done.node_writes, done.written) == ({"gpu-a": came}, {"gpu-a": 1}, set())
        world.wish("gpu-a", {names.MIG_CAPABLE: None})
        await world.at_rest()
        done = step(world, capable, picture(world))
        assert (done.marks, done.node_writes) == ({"gpu-a": {f"-{names.MIG_CAPABLE}=true"}}, {})


async def _with_crd(world: World) -> Picture:
    world.lab.api.create(resources.CUSTOM_RESOURCE_DEFINITIONS, copy.deepcopy(MONITOR_CRD))
    await world.at_rest()
    return picture(world)


@pytest.mark.parametrize(("release", "without_crd"), [(Release.V26_3, "notReady"), (Release.V26_7, "ready")])
async def test_service_monitors_come_with_their_crd_and_go_with_the_switch(release: Release, without_crd: str) -> None:
    """5.5: both come when the CRD does, the exporter's goes when switched off, the operator's stays."""
    async with World(release=release) as world:
        await start(world, release, ON)
        assert world.lab.policy_state() == without_crd
        before = picture(world)
        installed = await _with_crd(world)
        done = step(world, before, installed)
        assert (done.gone, done.came, done.told, done.written) == (set(), MONITORS, {}, MONITORS)
        assert world.lab.policy_state() == "ready"
        switched_off = await throw(world, "dcgmExporter", "serviceMonitor", OFF["dcgmExporter"]["serviceMonitor"])
        done = step(world, installed, switched_off)
        exporter = {"servicemonitors/nvidia-dcgm-exporter"}
        assert (done.gone, done.came, done.told, done.written) == (exporter, set(), {}, exporter)
        back = step(
            world,
            switched_off,
            await throw(world, "dcgmExporter", "serviceMonitor", ON["dcgmExporter"]["serviceMonitor"]),
        )
        assert (back.gone, back.came, back.told, back.written) == (set(), exporter, {}, exporter)


async def test_psa_labels_the_namespace_and_leaves_it_so() -> None:
    """5.3: the labels are not removed when psa is turned off."""

    def labelled(world: World) -> set[str]:
        labels = world.lab.api.get(resources.NAMESPACES, OPERATOR_NAMESPACE)["metadata"].get("labels") or {}
        return {key for key in PSA_LABELS if labels.get(key) == "privileged"}

    async with World() as world:
        await start(world, Release.V26_7, {})
        before = picture(world)
        assert labelled(world) == set()
        on = await throw(world, "psa", "enabled", True)
        assert labelled(world) == set(PSA_LABELS)
        assert step(world, before, on).written == {f"namespaces/{OPERATOR_NAMESPACE}"}
        off = await throw(world, "psa", "enabled", False)
        assert labelled(world) == set(PSA_LABELS)
        assert step(world, on, off).written == set()


async def test_without_its_policy_every_object_goes_and_with_it_returns() -> None:
    """4.1: each object, those of the cluster too, is owned by the policy; 3.4: without one no node is touched."""
    async with World() as world:
        await start(world, Release.V26_7, {"sandboxWorkloads": {"enabled": True}})
        await _with_crd(world)
        before, document = picture(world), world.policies[POLICY]
        plurals = {key.partition("/")[0] for key in before.objects}
        assert plurals >= {"daemonsets", "clusterroles", "clusterrolebindings", "runtimeclasses", "servicemonitors"}
        world.delete_policy(POLICY)
        await world.at_rest()
        deleted = picture(world)
        assert deleted.objects == {}
        done = step(world, before, deleted)
        assert (done.marks, done.node_writes, done.written) == ({}, {}, set())
        await world.create_policy(document)
        await world.at_rest()
        assert world.lab.policy_state() == "ready"
        back = step(world, before, picture(world))
        assert (back.gone, back.came, back.told, back.marks) == (set(), set(), {}, {})


async def test_a_policy_that_comes_back_without_upgrades_takes_the_annotation_away() -> None:
    """3.3: removed, not set to false, wherever it no longer applies."""
    async with World() as world:
        await start(world, Release.V26_7, {})
        before, document = picture(world), copy.deepcopy(world.policies[POLICY])
        world.delete_policy(POLICY)
        await world.at_rest()
        document["spec"]["driver"]["upgradePolicy"]["autoUpgrade"] = False
        await world.create_policy(document)
        await world.at_rest()
        done = step(world, before, picture(world))
        assert done.marks == dict.fromkeys(GPU_NODES, NO_UPGRADES)
        assert done.node_writes == dict.fromkeys(GPU_NODES, 2)
