"""Small questions about Kubernetes objects that controllers ask: identity, ownership, pod state, names, hashes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..clock import LabClock, parse_rfc3339

Doc = Mapping[str, Any]
Obj = dict[str, Any]
Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""

_SAFE = "bcdfghjklmnpqrstvwxz2456789"


def key(obj: Doc) -> Key:
    """An object's namespace and name."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def uid(obj: Doc) -> str:
    """An object's UID."""
    return str(obj["metadata"].get("uid") or "")


def deleting(obj: Doc) -> bool:
    """Whether deletion of the object was asked for."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def labels(obj: Doc) -> Mapping[str, str]:
    """An object's labels, empty if it has none."""
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found


def owners(obj: Doc) -> list[Doc]:
    """An object's owner references."""
    return list(obj["metadata"].get("ownerReferences") or ())


def controller_of(obj: Doc) -> Doc | None:
    """The owner reference of the object's controller, if it has one."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            reference: Doc = owner
            return reference
    return None


def controller_uid(obj: Doc) -> str:
    """The UID of the object's controller, "" if it has none."""
    owner = controller_of(obj)
    return str(owner["uid"]) if owner else ""


def owner_reference(owner: Doc, api_version: str, kind: str) -> Obj:
    """The reference a controller puts on what it makes."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": uid(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def object_reference(obj: Doc, api_version: str, kind: str) -> Obj:
    """The reference an event carries."""
    metadata = obj["metadata"]
    reference = {
        "apiVersion": api_version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata.get("uid"),
        "namespace": metadata.get("namespace"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {name: value for name, value in reference.items() if value}


def condition(obj: Doc, kind: str) -> Doc | None:
    """The condition of this type in an object's status."""
    for each in (obj.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            found: Doc = each
            return found
    return None


def phase(pod: Doc) -> str:
    """A pod's phase, "Pending" before anybody said."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def finished(pod: Doc) -> bool:
    """Whether a pod has ended: its containers hold no resources any more."""
    return phase(pod) in ("Succeeded", "Failed")


def active(pod: Doc) -> bool:
    """Whether a pod counts towards its controller's replicas: neither ended nor being deleted."""
    return not finished(pod) and not deleting(pod)


def ready(pod: Doc) -> bool:
    """Whether a pod's Ready condition is True."""
    found = condition(pod, "Ready")
    return found is not None and found.get("status") == "True"


def until_available(pod: Doc, min_ready_s: float, clock: LabClock) -> float | None:
    """Seconds until a pod counts as available: 0 if it does, None if it is not ready."""
    found = condition(pod, "Ready")
    if found is None or found.get("status") != "True":
        return None
    if not min_ready_s:
        return 0.0
    since = found.get("lastTransitionTime")
    if not since:
        return None
    return max(0.0, min_ready_s - (clock.now() - parse_rfc3339(since)).total_seconds())


def node_name(pod: Doc) -> str:
    """The node a pod is bound to, "" if none yet."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def created(obj: Doc) -> tuple[str, str]:
    """Sort key: oldest first, ties by name."""
    return str(obj["metadata"].get("creationTimestamp") or ""), str(obj["metadata"]["name"])


def percent_or_int(value: object, total: int, *, round_up: bool) -> int:
    """An IntOrString (3, "3", "25%") of a total; ValueError if it is neither."""
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    share = int(text[:-1]) * total
    return -(-share // 100) if round_up else share // 100


def fnv32a(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def template_hash(template: Doc, collisions: int = 0) -> str:
    """A short name for a pod template, independent of map order; `collisions` sets equal hashes apart."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":")).encode()
    digest = fnv32a(text + (str(collisions).encode() if collisions else b""))
    return "".join(_SAFE[int(digit) % len(_SAFE)] for digit in str(digest))


def set_conditions(conditions: Iterable[Doc], new: Doc, now: str) -> list[Obj]:
    """Conditions with one replaced; its transition time is kept while its status stays the same."""
    result: list[Obj] = []
    placed = False
    for each in conditions:
        if each.get("type") != new["type"]:
            result.append(dict(each))
            continue
        since = each.get("lastTransitionTime") if each.get("status") == new["status"] else now
        result.append({**each, **new, "lastTransitionTime": since or now})
        placed = True
    if not placed:
        result.append({**new, "lastTransitionTime": now})
    return result
