"""NodeFeature objects: what programs ask for on behalf of one node, and what they ask for together.

Source: contracts/device-plugin-gfd.md 9. Pure; objects are plain documents as the API server gives them, read
leniently, since anybody may write them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...api import names
from . import labels

Sets = dict[str, dict[str, str]]


class Request(NamedTuple):
    """One NodeFeature object, or what would be one: labels (keys qualified), and values that they may refer to."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    attributes: Mapping[str, Mapping[str, str]]


def selector(node: str) -> str:
    """The label selector of a node's NodeFeature objects."""
    return f"{names.NFD_NODE_NAME}={node}"


def of(document: Mapping[str, Any]) -> Request:
    """The request in a NodeFeature object."""
    meta, spec = document["metadata"], document.get("spec") or {}
    sets = (spec.get("features") or {}).get("attributes") or {}
    attributes = {name: (each or {}).get("elements") or {} for name, each in sets.items()}
    return Request(meta.get("namespace", ""), meta["name"], qualified(spec.get("labels") or {}), attributes)


def qualified(requested: Mapping[str, str]) -> dict[str, str]:
    """Labels with the namespaces of their keys, so that later ones override earlier ones however they are written."""
    return {labels.qualified(key): value for key, value in requested.items()}


def merged(requests: Iterable[Request], own_namespace: str) -> Request:
    """All requests as one: own namespace first, then by object name, later ones overriding earlier ones."""
    together: dict[str, str] = {}
    attributes: Sets = {}
    for each in sorted(requests, key=lambda one: (one.namespace != own_namespace, one.name, one.namespace)):
        together.update(each.labels)
        for name, elements in each.attributes.items():
            attributes.setdefault(name, {}).update(elements)
    return Request(own_namespace, "", together, attributes)
