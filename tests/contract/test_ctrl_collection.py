"""Garbage collection: what goes with its owner, what waits for its dependents, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from contract.ctrl_plane import Document, Plane

NOBODY = "00000000-0000-0000-0000-000000000000"


def config(plane: Plane, name: str, *owners: Document, **metadata: Any) -> Document:
    """A ConfigMap with owners."""
    references = {"ownerReferences": list(owners)} if owners else {}
    return plane.make("configmaps", name, metadata={**references, **metadata})


def owned_by(owner: Document, **more: Any) -> Document:
    """A reference to a ConfigMap."""
    metadata = owner["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"], **more}


def owners(plane: Plane, name: str) -> list[str]:
    return [each["name"] for each in plane.read("configmaps", name)["metadata"].get("ownerReferences") or ()]


def finalizers(plane: Plane, name: str) -> list[str]:
    found: list[str] = plane.read("configmaps", name)["metadata"].get("finalizers") or []
    return found


def delete(plane: Plane, name: str, propagation: str) -> None:
    plane.remove("configmaps", name, propagationPolicy=propagation)


def test_background(plane: Plane) -> None:
    """The owner goes at once, its dependents and theirs after it."""
    first = config(plane, "first")
    second = config(plane, "second", owned_by(first))
    config(plane, "third", owned_by(second))
    delete(plane, "first", "Background")
    assert plane.get("configmaps", "first") is None
    plane.gone("configmaps", "second")
    plane.gone("configmaps", "third")


def test_foreground_waits_for_what_blocks(plane: Plane) -> None:
    first = config(plane, "first")
    config(plane, "second", owned_by(first, blockOwnerDeletion=True), finalizers=["example.com/held"])
    delete(plane, "first", "Foreground")
    plane.until(lambda: plane.read("configmaps", "second")["metadata"].get("deletionTimestamp"), "its deletion")
    assert finalizers(plane, "first") == ["foregroundDeletion"]
    assert plane.read("configmaps", "first")["metadata"]["deletionTimestamp"]
    plane.change("configmaps", "second", {"metadata": {"finalizers": None}})
    plane.gone("configmaps", "second")
    plane.gone("configmaps", "first")


def test_foreground_does_not_wait_for_what_does_not_block(plane: Plane) -> None:
    first = config(plane, "first")
    config(plane, "second", owned_by(first), finalizers=["example.com/held"])
    delete(plane, "first", "Foreground")
    plane.gone("configmaps", "first")
    plane.until(lambda: plane.read("configmaps", "second")["metadata"].get("deletionTimestamp"), "its deletion")
    plane.change("configmaps", "second", {"metadata": {"finalizers": None}})
    plane.gone("configmaps", "second")


def test_foreground_goes_down_the_line(plane: Plane) -> None:
    """A dependent that blocks is deleted in the foreground itself if it has dependents that block."""
    first = config(plane, "first")
    second = config(plane, "second", owned_by(first, blockOwnerDeletion=True))
    config(plane, "third", owned_by(second, blockOwnerDeletion=True), finalizers=["example.com/held"])
    delete(plane, "first", "Foreground")
    plane.until(lambda: plane.read("configmaps", "third")["metadata"].get("deletionTimestamp"), "the last's deletion")
    assert finalizers(plane, "first") == finalizers(plane, "second") == ["foregroundDeletion"]
    plane.change("configmaps", "third", {"metadata": {"finalizers": None}})
    for name in ("third", "second", "first"):
        plane.gone("configmaps", name)


def test_orphan(plane: Plane) -> None:
    first = config(plane, "first")
    config(plane, "second", owned_by(first))
    delete(plane, "first", "Orphan")
    plane.gone("configmaps", "first")
    assert owners(plane, "second") == []


def test_one_of_two_owners(plane: Plane) -> None:
    first, other = config(plane, "first"), config(plane, "other")
    config(plane, "second", owned_by(first), owned_by(other))
    delete(plane, "first", "Background")
    plane.until(lambda: owners(plane, "second") == ["other"], "the reference to be dropped")
    delete(plane, "other", "Background")
    plane.gone("configmaps", "second")


def test_foreground_of_one_of_two_owners(plane: Plane) -> None:
    """The dependent stays for its other owner and stops blocking this one."""
    first, other = config(plane, "first"), config(plane, "other")
    config(plane, "second", owned_by(first, blockOwnerDeletion=True), owned_by(other))
    delete(plane, "first", "Foreground")
    plane.gone("configmaps", "first")
    plane.until(lambda: owners(plane, "second") == ["other"], "the reference to be dropped")
    assert "deletionTimestamp" not in plane.read("configmaps", "second")["metadata"]


@pytest.mark.parametrize(
    "owner",
    [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "missing", "uid": NOBODY},
        {"apiVersion": "v1", "kind": "Node", "name": "missing", "uid": NOBODY},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "present", "uid": NOBODY},
    ],
    ids=["missing", "missing-in-the-cluster", "another-of-that-name"],
)
def test_owner_that_is_not_there(plane: Plane, owner: Document) -> None:
    config(plane, "present")
    config(plane, "second", owner)
    plane.gone("configmaps", "second")
    assert plane.get("configmaps", "present") is not None


def test_owner_of_an_unknown_kind_says_nothing(plane: Plane) -> None:
    """What is not served cannot be looked for: its dependents stay."""
    unknown = {"apiVersion": "example.invalid/v1", "kind": "Unknown", "name": "x", "uid": NOBODY}
    config(plane, "second", unknown)
    missing = {"apiVersion": "v1", "kind": "ConfigMap", "name": "missing", "uid": NOBODY}
    config(plane, "later", missing)
    plane.gone("configmaps", "later")
    assert owners(plane, "second") == ["x"]


def test_owner_in_another_namespace_does_not_count(plane: Plane) -> None:
    other = f"{plane.space}-other"
    plane.make("namespaces", other)
    there = plane.api.create(f"/api/v1/namespaces/{other}/configmaps", {"metadata": {"name": "there"}}).ok()
    config(plane, "second", owned_by(there))
    plane.gone("configmaps", "second")
    event = plane.until(lambda: next(iter(plane.events("OwnerRefInvalidNamespace", "second")), None), "the event")
    assert event is not None
    assert event["type"] == "Warning"
    assert event["message"] == (
        f"ownerRef [v1/ConfigMap, namespace: {plane.space}, name: there, uid: {there['metadata']['uid']}] "
        f'does not exist in namespace "{plane.space}"'
    )


def test_across_kinds_and_scopes(plane: Plane) -> None:
    """A node is no object of a namespace; all the same it may own some."""
    node = plane.node("a")
    reference = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    plane.make("leases", "l", metadata={"ownerReferences": [reference]}, spec={"holderIdentity": "x"})
    account = plane.make("serviceaccounts", "s", metadata={"ownerReferences": [reference]})
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "s", "uid": account["metadata"]["uid"]}
    config(plane, "c", owner)
    plane.remove("nodes", node["metadata"]["name"])
    plane.gone("leases", "l")
    plane.gone("serviceaccounts", "s", account["metadata"]["uid"])
    plane.gone("configmaps", "c")


def test_a_pod_s_deletion_takes_its_time(plane: Plane) -> None:
    """A pod that goes with its owner gets its grace period."""
    plane.node("a")
    first = config(plane, "first")
    plane.make(
        "pods", "p", metadata={"ownerReferences": [owned_by(first)]}, spec=plane.here(nodeName=plane.node_name("a"))
    )
    delete(plane, "first", "Background")
    plane.until(lambda: plane.read("pods", "p")["metadata"].get("deletionTimestamp"), "the pod's deletion")
    assert plane.read("pods", "p")["metadata"]["deletionGracePeriodSeconds"] == 30
    plane.ends("p")
    plane.gone("pods", "p")


def test_reference_given_later(plane: Plane) -> None:
    first = config(plane, "first")
    config(plane, "second")
    plane.change("configmaps", "second", {"metadata": {"ownerReferences": [owned_by(first)]}})
    delete(plane, "first", "Background")
    plane.gone("configmaps", "second")


def test_owner_of_a_dependent_that_was_released_first(plane: Plane) -> None:
    first = config(plane, "first")
    config(plane, "second", owned_by(first))
    config(plane, "third", owned_by(first))
    plane.change("configmaps", "second", {"metadata": {"ownerReferences": None}})
    delete(plane, "first", "Background")
    plane.gone("configmaps", "third")
    assert plane.get("configmaps", "second") is not None
