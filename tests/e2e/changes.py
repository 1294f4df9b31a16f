"""What one edit does to a cluster, told in words short enough for a table: objects, parts of objects, labels, writes.

A :class:`Picture` is a cluster at rest; :func:`step` compares two of them and gives a :class:`Step`. Parts of a
DaemonSet are named by what a person would say: ``nvidia-device-plugin env CDI_ENABLED``. Nothing here knows what should
have changed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from e2e.world import Document, World, normal, operand_objects

from groundplane.lab import resources
from groundplane.lab.cluster import OPERATOR_USER_AGENT

WRITES = ("create", "update", "patch", "delete", "deletecollection")
SUMMARIES = ("events", "leases", "clusterpolicies")
"""What the operator writes to report, not to change anything."""
NAMED_LISTS: Mapping[str, tuple[str, str]] = {
    "env": ("env", "name"),
    "volumeMounts": ("mount", "mountPath"),
    "ports": ("port", "name"),
}
HASHES = ("nvidia.com/last-applied-hash",)

Parts = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A cluster at rest: the operator's objects as they are, marks of the nodes, and how many requests there were."""

    objects: Mapping[str, Document]
    marks: Mapping[str, frozenset[str]]
    requests: int


@dataclasses.dataclass(frozen=True)
class Step:
    """What is different. ``gone`` and ``came`` are keys of objects, ``told`` the parts that changed of others, by key.

    ``marks`` is, by node, the labels (``key=value``) and annotations (``@key=value``) that came (``+``), went (``-``).
    ``written`` is every object but nodes that the operator wrote, ``node_writes`` its writes of nodes, by node.
    """

    gone: set[str]
    came: set[str]
    told: Mapping[str, set[str]]
    marks: Mapping[str, set[str]]
    written: set[str]
    node_writes: Mapping[str, int]


def picture(world: World) -> Picture:
    """The cluster as it is."""
    nodes = world.lab.api.list(resources.NODES)["items"]
    marks = {node["metadata"]["name"]: _marks(node["metadata"]) for node in nodes}
    return Picture(operand_objects(world.lab), marks, len(world.lab.faults.requests))


def _marks(meta: Mapping[str, Any]) -> frozenset[str]:
    labels = {f"{key}={value}" for key, value in (meta.get("labels") or {}).items()}
    return frozenset(labels | {f"@{key}={value}" for key, value in (meta.get("annotations") or {}).items()})


def step(world: World, before: Picture, after: Picture) -> Step:
    """What happened between two pictures of one world."""
    both = before.objects.keys() & after.objects.keys()
    told = {key: differing(parts(before.objects[key]), parts(after.objects[key])) for key in both}
    marks = {
        name: {f"+{mark}" for mark in marks - before.marks.get(name, frozenset())}
        | {f"-{mark}" for mark in before.marks.get(name, frozenset()) - marks}
        for name, marks in after.marks.items()
    }
    written, node_writes = _writes(world, before.requests, after.requests)
    return Step(
        gone=set(before.objects.keys() - after.objects.keys()),
        came=set(after.objects.keys() - before.objects.keys()),
        told={key: changed for key, changed in told.items() if changed},
        marks={name: changed for name, changed in marks.items() if changed},
        written=written,
        node_writes=node_writes,
    )


def _writes(world: World, start: int, end: int) -> tuple[set[str], dict[str, int]]:
    written: set[str] = set()
    nodes: dict[str, int] = {}
    for request in list(world.lab.faults.requests)[start:end]:
        if OPERATOR_USER_AGENT not in request.user_agent or request.verb not in WRITES:
            continue
        if request.resource == "nodes":
            nodes[request.name] = nodes.get(request.name, 0) + 1
        elif request.resource not in SUMMARIES:
            written.add(f"{request.resource}/{request.name}")
    return written, nodes


def untouched(before: Picture, after: Picture, keys: set[str]) -> list[str]:
    """Which of the objects ``keys`` were written after all: other UID or resource version (of a DaemonSet generation:
    its status follows its pods)."""
    return [key for key in sorted(keys) if _version(before.objects[key]) != _version(after.objects[key])]


def _version(obj: Mapping[str, Any]) -> tuple[str, ...]:
    meta = obj["metadata"]
    return meta["uid"], str(meta["generation" if obj["kind"] == "DaemonSet" else "resourceVersion"])


# --- the parts of an object -------------------------------------------------------------------------------------------


def parts(obj: Mapping[str, Any]) -> Parts:
    """An object as named parts, without its status and hash."""
    document = normal(obj)
    document.pop("status", None)
    for hashed in HASHES:
        (document["metadata"].get("annotations") or {}).pop(hashed, None)
    if document["kind"] != "DaemonSet":
        return _leaves(document, "")
    template = document["spec"].pop("template")
    found = _leaves(document, "") | _leaves(template["metadata"], "template")
    pod = template["spec"]
    for kind in ("initContainers", "containers"):
        for container in pod.pop(kind, None) or ():
            found |= _container(container)
    for volume in pod.pop("volumes", None) or ():
        found[f"volume {volume['name']}"] = volume
    return found | {f"pod {key}": value for key, value in pod.items()}


def _leaves(value: Any, path: str) -> Parts:
    if isinstance(value, dict) and value:
        found: Parts = {}
        for key, child in value.items():
            found |= _leaves(child, f"{path}.{key}" if path else key)
        return found
    return {path: value}


def _container(container: Mapping[str, Any]) -> Parts:
    name = container["name"]
    found: Parts = {f"container {name}": True}
    for key, value in container.items():
        if key in NAMED_LISTS:
            word, by = NAMED_LISTS[key]
            found |= {f"{name} {word} {item[by]}": item for item in value}
        elif key != "name":
            found[f"{name} {key}"] = value
    return found


def differing(before: Parts, after: Parts) -> set[str]:
    """Names of the parts that differ; a container that comes or goes is one part."""
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    whole = {name.removeprefix("container ") for name in changed if name.startswith("container ")}
    return {name for name in changed if name.startswith("container ") or name.partition(" ")[0] not in whole}
