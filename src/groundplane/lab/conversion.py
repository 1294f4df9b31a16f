"""Objects in several shapes: Events in two groups, and custom resources in the versions of their definition.

`events.k8s.io/v1` and core `v1` Events are the same objects, stored in the core shape. The versions of a custom
resource differ in their apiVersion alone (conversion strategy None) and are stored in the storage version.
`to_storage` and `outgoing` translate at the edge. All other kinds pass through.
"""

from __future__ import annotations

from . import resources
from .objects import Document
from .resources import Resource

_RENAMED = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedSource": "source",
}
_BACK = {core: new for new, core in _RENAMED.items()}


def converts(res: Resource) -> bool:
    """Whether the resource's documents differ from the stored ones."""
    return res.stored_as is not None or bool(res.stored_version)


def outgoing(res: Resource, document: Document) -> Document:
    """Return a stored document as the resource shows it."""
    if res.stored_version:
        same = document["apiVersion"] == res.api_version
        return document if same else {**document, "apiVersion": res.api_version}
    if res.stored_as is None:
        return document
    return {**{_BACK.get(key, key): value for key, value in document.items()}, "apiVersion": res.api_version}


def to_storage(res: Resource, document: Document) -> Document:
    """Return a typed document in the shape it is stored in."""
    if res.stored_version:
        return {**document, "apiVersion": f"{res.group}/{res.stored_version}"}
    if res.stored_as is None:
        return document
    core = resources.EVENTS.api_version
    return {**{_RENAMED.get(key, key): value for key, value in document.items()}, "apiVersion": core}
