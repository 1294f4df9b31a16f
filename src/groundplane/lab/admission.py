"""Admission of new objects: the built-in plugins that matter to a cluster of GPU nodes.

NamespaceLifecycle, Priority, RuntimeClass, DefaultTolerationSeconds, TaintNodesByCondition and the naming part of
ServiceAccount. Not here: the token volume that ServiceAccount adds to pods, quota, limit ranges and webhooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import objects, resources, status
from .objects import Document
from .resources import Resource
from .status import Cause

if TYPE_CHECKING:
    from .api import Api

_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_SECONDS = 300
_NEW_NODE = ("node.kubernetes.io/not-ready", "NoSchedule")


def admit_namespace(api: Api, res: Resource, document: Document) -> Document:
    """Refuse new objects in a namespace that is missing (404) or being deleted (403)."""
    if not res.namespaced:
        return document
    name = document["metadata"]["namespace"]
    namespace = api.find(resources.NAMESPACES, name)
    if namespace is None:
        raise status.not_found("namespaces", "", name)
    if namespace["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {name} because it is being terminated"
        error = status.forbidden(res.plural, res.group, document["metadata"]["name"], why)
        cause = Cause("NamespaceTerminating", f"namespace {name} is being terminated", "metadata.namespace")
        error.details["causes"] = [cause.document()]
        raise error
    return document


def admit(api: Api, res: Resource, document: Document) -> Document:
    """Change or refuse a new object, after defaulting."""
    if res is resources.PODS:
        spec = document["spec"]
        _priority(api, document, spec)
        _runtime_class(api, document, spec)
        _service_account(spec)
        _tolerations(spec)
    elif res is resources.NODES:
        _not_ready(document["spec"])
    return document


def _forbidden(document: Document, why: str) -> status.StatusError:
    return status.forbidden("pods", "", document["metadata"]["name"], why)


def _priority(api: Api, document: Document, spec: Document) -> None:
    name = spec.get("priorityClassName")
    if name:
        found = api.find(resources.PRIORITY_CLASSES, name)
        if found is None:
            raise _forbidden(document, f"no PriorityClass with name {name} was found")
    else:
        classes = (item.document for item in api.store.sorted(resources.PRIORITY_CLASSES.storage, None))
        found = next((item for item in classes if item.get("globalDefault")), None)
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
    computed = {
        "priority": found["value"] if found is not None else 0,
        "preemptionPolicy": (found or {}).get("preemptionPolicy", "PreemptLowerPriority"),
    }
    for field, text in (
        ("priority", "the integer value of priority"),
        ("preemptionPolicy", "the string value of PreemptionPolicy"),
    ):
        given, value = spec.get(field), computed[field]
        if given is not None and given != value:
            why = (
                f"{text} ({given}) must not be provided in pod spec; priority admission controller computed {value} "
                "from the given PriorityClass name"
            )
            raise _forbidden(document, why)
        spec[field] = value


def _runtime_class(api: Api, document: Document, spec: Document) -> None:
    name = spec.get("runtimeClassName")
    if not name:
        return
    found = api.find(resources.RUNTIME_CLASSES, name)
    if found is None:
        raise _forbidden(document, f'pod rejected: RuntimeClass "{name}" not found')
    if fixed := (found.get("overhead") or {}).get("podFixed"):
        spec["overhead"] = dict(fixed)
    scheduling = found.get("scheduling") or {}
    if selector := scheduling.get("nodeSelector"):
        clash = sorted(key for key, value in selector.items() if spec.get("nodeSelector", {}).get(key, value) != value)
        if clash:
            raise _forbidden(document, f"conflict: runtimeClass.scheduling.nodeSelector[{clash[0]}]")
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **selector}
    if tolerations := scheduling.get("tolerations"):
        spec["tolerations"] = [*spec.get("tolerations", []), *objects.copy(tolerations)]


def _service_account(spec: Document) -> None:
    name = spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
    spec["serviceAccount"] = name


def _not_ready(spec: Document) -> None:
    """Taint a new node, so that no pod gets there before the node controller has seen it ready."""
    taints = spec.get("taints") or []
    if not any((taint.get("key"), taint.get("effect")) == _NEW_NODE for taint in taints):
        key, effect = _NEW_NODE
        spec["taints"] = [*taints, {"key": key, "effect": effect}]


def _tolerations(spec: Document) -> None:
    held = spec.setdefault("tolerations", [])
    for key in _TOLERATED:
        if not any(_tolerates(item, key) for item in held):
            held.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
            )


def _tolerates(toleration: Document, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")
