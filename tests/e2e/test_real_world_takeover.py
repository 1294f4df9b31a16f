"""A cluster that NVIDIA's operator has run becomes ours: what it leaves, what goes, and whose is left alone."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from e2e.world import POLICY, Document, World, operand_objects, policy_document

from groundplane.api import names
from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_NAMESPACE as NS
from groundplane.lab.resources import Resource
from groundplane.operator.takeover import TRIES

NVIDIA = "gpu-operator"
"""The field manager of NVIDIA's operator: its executable's name."""
GONE_WITH_GFD = ("daemonsets/gpu-feature-discovery", "serviceaccounts/nvidia-gpu-feature-discovery")


def rich_policy() -> Document:
    """A policy with more in it than the one it is replaced by."""
    document = policy_document()
    spec = document["spec"]
    spec["driver"]["env"] = [{"name": "DRIVER_EXTRA", "value": "1"}]
    spec["devicePlugin"]["env"] = [*(spec["devicePlugin"].get("env") or []), {"name": "PLUGIN_EXTRA", "value": "1"}]
    spec["daemonsets"]["labels"] = {"team": "gpu"}
    spec["daemonsets"]["annotations"] = {"note": "x"}
    spec["dcgm"]["enabled"] = True
    return document


def lean_policy() -> Document:
    document = policy_document()
    document["spec"]["gfd"]["enabled"] = False
    return document


def resource_of(world: World, key: str) -> Resource:
    groups = {"daemonsets": "apps", "runtimeclasses": "node.k8s.io"}
    plural = key.partition("/")[0]
    rbac = "rbac.authorization.k8s.io" if "role" in plural else ""
    return world.lab.api.resource(plural, group=groups.get(plural, rbac))


def as_nvidia_made_it(obj: Mapping[str, Any]) -> Document:
    """The object without what is ours alone."""
    document = copy.deepcopy(dict(obj))
    document.pop("status", None)
    meta = document["metadata"]
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        meta.pop(field, None)
    meta["labels"].pop(names.STATE_LABEL)
    if document["kind"] != "DaemonSet":
        meta["annotations"].pop(names.LAST_APPLIED_HASH, None)
    if document["kind"] == "Service":
        for address in ("clusterIP", "clusterIPs"):
            document["spec"].pop(address, None)
    return document


async def run_by_nvidia(world: World) -> None:
    """A cluster as NVIDIA's operator has left it when it was stopped, for :func:`rich_policy`."""
    world.join("gpu-1", "plain")
    world.join("gpu-2", "mig")
    await world.create_policy(rich_policy())
    world.start_operator()
    await world.at_rest()
    await world.stop_operator()
    made = operand_objects(world.lab)
    for key, obj in made.items():
        world.lab.api.delete(resource_of(world, key), obj["metadata"]["name"], obj["metadata"].get("namespace"))
    await world.lab.wait_until(lambda: not operand_objects(world.lab), timeout_s=20.0, what="our objects to go")
    for key, obj in made.items():
        world.lab.api.create(
            resource_of(world, key), as_nvidia_made_it(obj), obj["metadata"].get("namespace"), manager=NVIDIA
        )


def change_policy(world: World, document: Document) -> None:
    world.policies[POLICY] = document
    world._store_policy(POLICY)


def managers_of(obj: Mapping[str, Any]) -> set[tuple[str, str]]:
    entries = obj["metadata"].get("managedFields") or ()
    return {(each["manager"], each["operation"]) for each in entries if not each.get("subresource")}


def owner_of(world: World) -> list[Document]:
    service = world.lab.api.get(resources.SERVICES, "gpu-operator", NS)
    owners: list[Document] = service["metadata"]["ownerReferences"]
    return owners


async def test_a_cluster_taken_over_is_one_that_was_always_ours() -> None:
    async with World() as world:
        await run_by_nvidia(world)
        change_policy(world, lean_policy())
        world.start_operator()
        await world.converged()
        objects = operand_objects(world.lab)
        for key, obj in objects.items():
            expected = {("groundplane-operator", "Apply")}
            if not key.startswith("serviceaccounts/"):  # one that exists is left as it is (4.1)
                assert managers_of(obj) == expected, key
        assert not set(GONE_WITH_GFD) & set(objects)
        before = {key: obj["metadata"]["resourceVersion"] for key, obj in objects.items()}
        await world.stop_operator()
        world.start_operator()
        await world.at_rest()
        after = {key: obj["metadata"]["resourceVersion"] for key, obj in operand_objects(world.lab).items()}
        assert after == before, "a second start writes nothing"


async def test_a_takeover_is_one_rollout() -> None:
    async with World() as world:
        await run_by_nvidia(world)
        change_policy(world, lean_policy())
        world.start_operator()
        await world.at_rest()
        for key, obj in operand_objects(world.lab).items():
            if key.startswith("daemonsets/"):
                assert obj["metadata"]["generation"] <= 2, key


async def test_what_a_person_wrote_is_left_alone() -> None:
    """Objects of a person: one that names the policy as its owner, one without; and a person's field in ours."""
    async with World() as world:
        await run_by_nvidia(world)
        head = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
        mine = {**head, "metadata": {"name": "mine", "namespace": NS, "ownerReferences": owner_of(world)}}
        world.lab.api.create(resources.CONFIG_MAPS, mine, NS, manager="kubectl-create")
        theirs = {**head, "metadata": {"name": "theirs", "namespace": NS}}
        world.lab.api.create(resources.CONFIG_MAPS, theirs, NS, manager=NVIDIA)
        env = [{"name": "MINE", "value": "1"}]
        pod = {"containers": [{"name": "nvidia-device-plugin", "env": env}]}
        world.lab.api.patch(
            resources.DAEMON_SETS,
            "nvidia-device-plugin-daemonset",
            {"spec": {"template": {"spec": pod}}},
            ns=NS,
            type="strategic",
            manager="kubectl-patch",
        )
        change_policy(world, lean_policy())
        world.start_operator()
        await world.at_rest()
        for name in ("mine", "theirs"):
            assert world.lab.api.find(resources.CONFIG_MAPS, name, NS) is not None, name
        live = world.lab.api.get(resources.DAEMON_SETS, "nvidia-device-plugin-daemonset", NS)
        found = {each["name"] for each in live["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert "MINE" in found
        assert "PLUGIN_EXTRA" not in found


async def test_fields_that_both_operators_set_go_when_the_policy_drops_them_later() -> None:
    async with World() as world:
        await run_by_nvidia(world)
        world.start_operator()
        await world.at_rest()
        change_policy(world, lean_policy())
        await world.converged()


async def test_a_driver_that_is_left_and_not_wanted_goes_by_the_rules_for_drivers() -> None:
    """A precompiled driver's DaemonSet, left from before, leaves before the other kind comes."""
    async with World() as world:
        await run_by_nvidia(world)
        live = world.lab.api.get(resources.DAEMON_SETS, "nvidia-driver-daemonset", NS)
        other = as_nvidia_made_it({**live, "metadata": {**live["metadata"], "labels": {names.STATE_LABEL: "x"}}})
        other["metadata"] |= {
            "name": "nvidia-driver-daemonset-6.8.0-ubuntu24.04",
            "labels": {names.PRECOMPILED: "true"},
        }
        world.lab.api.create(resources.DAEMON_SETS, other, NS, manager=NVIDIA)
        world.start_operator()
        await world.converged()
        assert "daemonsets/nvidia-driver-daemonset-6.8.0-ubuntu24.04" not in operand_objects(world.lab)


@pytest.mark.parametrize(("answer", "times"), [(409, 2), (409, 3 * TRIES), (500, 2), ("reset", 2)])
async def test_trouble_while_taking_over_is_overcome(answer: int | str, times: int) -> None:
    async with World() as world:
        await run_by_nvidia(world)
        change_policy(world, lean_policy())
        for resource in ("daemonsets", "services", "configmaps"):
            world.fault("patch", resource, answer, times)
            world.fault("list", resource, answer, 1)
        world.start_operator()
        await world.converged()
        assert not set(GONE_WITH_GFD) & set(operand_objects(world.lab))
