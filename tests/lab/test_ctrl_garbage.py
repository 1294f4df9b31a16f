"""Garbage collection: each propagation, cluster-scoped owners, dangling references, custom resources."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.ctrl_world import World

from groundplane.lab import resources as res
from groundplane.lab.controllers import objects
from groundplane.lab.resources import Resource

UNKNOWN_UID = "11111111-0000-4000-8000-000000000000"
CRD: dict[str, Any] = {
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def reference(owner: Any, *, block: bool = False, **changes: Any) -> Any:
    made = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": objects.uid(owner),
    }
    return {**made, **({"blockOwnerDeletion": True} if block else {}), **changes}


def config_map(world: World, name: str, *owners: Any, finalizers: Any = (), namespace: str = "default") -> Any:
    metadata = {"ownerReferences": list(owners), "finalizers": list(finalizers)}
    return world.create(res.CONFIG_MAPS, name, namespace, metadata=metadata)


def present(world: World, *names: str) -> list[str]:
    return [name for name in names if world.find(res.CONFIG_MAPS, name) is not None]


async def test_background_deletion_takes_the_whole_tree() -> None:
    async with World() as world:
        root = config_map(world, "root")
        child = config_map(world, "child", reference(root))
        config_map(world, "grandchild", reference(child))
        config_map(world, "other")
        world.api.delete(res.CONFIG_MAPS, "root", "default")
        await world.settle()
        assert present(world, "root", "child", "grandchild", "other") == ["other"]


async def test_dependent_stays_while_another_owner_lives() -> None:
    async with World() as world:
        one, two = config_map(world, "one"), config_map(world, "two")
        config_map(world, "child", reference(one), reference(two))
        world.api.delete(res.CONFIG_MAPS, "one", "default")
        await world.settle()
        (left,) = world.get(res.CONFIG_MAPS, "child")["metadata"]["ownerReferences"]
        assert left["name"] == "two"
        world.api.delete(res.CONFIG_MAPS, "two", "default")
        await world.settle()
        assert present(world, "child") == []


@pytest.mark.parametrize(("block", "root_waits"), [(True, True), (False, False)])
async def test_foreground_deletion_waits_for_blocking_dependents(block: bool, root_waits: bool) -> None:
    async with World() as world:
        root = config_map(world, "root")
        config_map(world, "held", reference(root, block=block), finalizers=["example.com/hold"])
        world.api.delete(res.CONFIG_MAPS, "root", "default", propagation="Foreground")
        await world.settle()
        assert present(world, "root", "held") == (["root", "held"] if root_waits else ["held"])
        assert objects.deleting(world.get(res.CONFIG_MAPS, "held"))
        world.patch(res.CONFIG_MAPS, "held", {"metadata": {"finalizers": None}})
        await world.settle()
        assert present(world, "root", "held") == []


async def test_foreground_deletion_goes_down_the_tree() -> None:
    async with World() as world:
        root = config_map(world, "root")
        child = config_map(world, "child", reference(root, block=True))
        config_map(world, "leaf", reference(child, block=True), finalizers=["example.com/hold"])
        world.api.delete(res.CONFIG_MAPS, "root", "default", propagation="Foreground")
        await world.settle()
        assert present(world, "root", "child", "leaf") == ["root", "child", "leaf"]
        world.patch(res.CONFIG_MAPS, "leaf", {"metadata": {"finalizers": None}})
        await world.settle()
        assert present(world, "root", "child", "leaf") == []


async def test_orphaned_dependents_stay_without_reference() -> None:
    async with World() as world:
        root = config_map(world, "root")
        config_map(world, "child", reference(root))
        world.api.delete(res.CONFIG_MAPS, "root", "default", propagation="Orphan")
        await world.settle()
        assert present(world, "root", "child") == ["child"]
        assert "ownerReferences" not in world.get(res.CONFIG_MAPS, "child")["metadata"]


async def test_custom_cluster_scoped_owner() -> None:
    async with World() as world:
        world.api.create(res.CUSTOM_RESOURCE_DEFINITIONS, CRD)
        await world.settle()
        things: Resource = world.api.resource("things", "example.com")
        thing = world.api.create(things, {"metadata": {"name": "t"}})
        config_map(world, "child", reference(thing))
        world.create(res.CLUSTER_ROLES, "role", metadata={"ownerReferences": [reference(thing)]})
        await world.settle()
        assert present(world, "child") == ["child"]
        world.api.delete(things, "t")
        await world.settle()
        assert present(world, "child") == []
        assert world.find(res.CLUSTER_ROLES, "role") is None


async def test_definition_made_anew_is_followed_again() -> None:
    async with World() as world:
        for _ in range(2):
            world.api.create(res.CUSTOM_RESOURCE_DEFINITIONS, CRD)
            await world.settle()
            things: Resource = world.api.resource("things", "example.com")
            thing = world.api.create(things, {"metadata": {"name": "t"}})
            config_map(world, "child", reference(thing))
            await world.settle()
            world.api.delete(res.CUSTOM_RESOURCE_DEFINITIONS, "things.example.com")
            await world.settle()
            assert world.api.find(res.CUSTOM_RESOURCE_DEFINITIONS, "things.example.com") is None
            assert present(world, "child") == []


async def test_definition_that_changes_its_version_keeps_its_garbage_collected() -> None:
    async with World() as world:
        world.api.create(res.CUSTOM_RESOURCE_DEFINITIONS, CRD)
        await world.settle()
        things: Resource = world.api.resource("things", "example.com")
        root = config_map(world, "root")
        thing = world.api.create(things, {"metadata": {"name": "t"}})
        version = CRD["spec"]["versions"][0]
        versions = [{**version, "name": "v2"}]
        world.patch(res.CUSTOM_RESOURCE_DEFINITIONS, "things.example.com", {"spec": {"versions": versions}})
        config_map(world, "child", reference(thing), reference(root))
        await world.settle()
        things = world.api.resource("things", "example.com")
        assert things.version == "v2"
        world.api.delete(things, "t", propagation="Foreground")
        await world.settle()
        assert world.api.find(things, "t") is None
        assert [each["name"] for each in world.get(res.CONFIG_MAPS, "child")["metadata"]["ownerReferences"]] == ["root"]


async def test_owned_custom_object_goes_with_its_owner() -> None:
    async with World() as world:
        world.api.create(res.CUSTOM_RESOURCE_DEFINITIONS, CRD)
        await world.settle()
        things: Resource = world.api.resource("things", "example.com")
        role = world.create(res.CLUSTER_ROLES, "role")
        world.api.create(things, {"metadata": {"name": "t", "ownerReferences": [reference(role)]}})
        world.api.delete(res.CLUSTER_ROLES, "role")
        await world.settle()
        assert world.api.find(things, "t") is None


@pytest.mark.parametrize("wrong", [{"uid": UNKNOWN_UID}, {"name": "other"}])
async def test_reference_to_nothing_dangles(wrong: Any) -> None:
    async with World() as world:
        root = config_map(world, "root")
        config_map(world, "child", reference(root, **wrong))
        await world.settle()
        assert present(world, "root", "child") == ["root"]


async def test_owner_in_another_namespace_dangles() -> None:
    async with World() as world:
        root = config_map(world, "root", namespace="kube-public")
        config_map(world, "child", reference(root))
        await world.settle()
        assert present(world, "child") == []


async def test_owner_of_an_unknown_kind_says_nothing() -> None:
    async with World() as world:
        owner = reference(config_map(world, "root"), apiVersion="example.com/v1", kind="Mystery", uid=UNKNOWN_UID)
        config_map(world, "child", owner)
        await world.settle()
        assert present(world, "child") == ["child"]


async def test_owner_made_anew_does_not_inherit() -> None:
    async with World() as world:
        root = config_map(world, "root")
        config_map(world, "child", reference(root))
        world.api.delete(res.CONFIG_MAPS, "root", "default")
        config_map(world, "root")
        await world.settle()
        assert present(world, "root", "child") == ["root"]


TREE = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(TREE, st.sampled_from(["Background", "Foreground"]), st.data())
async def test_exactly_the_descendants_go(tree: Any, propagation: str, data: Any) -> None:
    async with World() as world:
        made = [config_map(world, "c0")]
        parents: list[int | None] = [None]
        for number, (parent, block) in enumerate(tree, 1):
            parents.append(parent % len(made))
            made.append(config_map(world, f"c{number}", reference(made[parent % len(made)], block=block)))
        gone = data.draw(st.integers(0, len(made) - 1))
        world.api.delete(res.CONFIG_MAPS, f"c{gone}", "default", propagation=propagation)
        await world.settle()

        def descends(number: int | None) -> bool:
            return number is not None and (number == gone or descends(parents[number]))

        expected = [f"c{number}" for number in range(len(made)) if not descends(number)]
        assert present(world, *(f"c{number}" for number in range(len(made)))) == expected
