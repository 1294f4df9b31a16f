"""A container's environment variables: `env`, `envFrom` and their references, as the kubelet resolves them."""

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..amounts import exact as amount
from ..programs import expand

Document = Mapping[str, Any]
Lookup = Callable[[str, str], Document | None]
"""(kind, name) -> the ConfigMap or Secret of the pod's namespace, or None."""


class ConfigError(RuntimeError):
    """A container's configuration refers to something that is not there; the text is the kubelet's."""


def environment(pod: Document, container: Document, status: Document, node: Document, lookup: Lookup) -> dict[str, str]:
    """Return the container's variables. ConfigError on a missing ConfigMap, Secret or key that is not optional."""
    env: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        env |= _all_of(source, lookup)
    for variable in container.get("env") or ():
        name = variable["name"]
        if "valueFrom" in variable:
            value = _reference(pod, container, status, node, variable["valueFrom"], lookup)
            if value is not None:
                env[name] = value
        else:
            env[name] = expand(variable.get("value") or "", env)
    return env


def _all_of(source: Document, lookup: Lookup) -> dict[str, str]:
    kind, reference = (
        ("ConfigMap", source["configMapRef"]) if "configMapRef" in source else ("Secret", source["secretRef"])
    )
    found = lookup(kind, reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    prefix = source.get("prefix") or ""
    return {prefix + key: value.decode(errors="replace") for key, value in contents(kind, found).items()}


def contents(kind: str, found: Document) -> dict[str, bytes]:
    """The keys and bytes of a ConfigMap or Secret."""
    if kind == "Secret":
        encoded = {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
        return encoded | {key: value.encode() for key, value in (found.get("stringData") or {}).items()}
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return binary | {key: value.encode() for key, value in (found.get("data") or {}).items()}


def _reference(
    pod: Document, container: Document, status: Document, node: Document, source: Document, lookup: Lookup
) -> str | None:
    if "fieldRef" in source:
        return field_value(pod, status, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_value(pod, container, node, source["resourceFieldRef"])
    kind, reference = (
        ("ConfigMap", source["configMapKeyRef"]) if "configMapKeyRef" in source else ("Secret", source["secretKeyRef"])
    )
    found = lookup(kind, reference["name"])
    if found is None:
        if reference.get("optional"):
            return None
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    values = contents(kind, found)
    if reference["key"] not in values:
        if reference.get("optional"):
            return None
        namespace = pod["metadata"]["namespace"]
        raise ConfigError(f"couldn't find key {reference['key']} in {kind} {namespace}/{reference['name']}")
    return values[reference["key"]].decode(errors="replace")


def field_value(pod: Document, status: Document, path: str) -> str:
    """A field of the pod for the downward API. ConfigError if the path is not one the kubelet offers."""
    metadata, spec = pod["metadata"], pod["spec"]
    for group in ("labels", "annotations"):
        values: Mapping[str, str] = metadata.get(group) or {}
        if path == f"metadata.{group}":
            return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
        if path.startswith(f"metadata.{group}['") and path.endswith("']"):
            return values.get(path[len(group) + 11 : -2], "")
    fields: dict[str, Any] = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": status.get("hostIP"),
        "status.hostIPs": status.get("hostIP"),
        "status.podIP": status.get("podIP"),
        "status.podIPs": status.get("podIP"),
    }
    if path not in fields:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(fields[path] or "")


def resource_value(pod: Document, container: Document, node: Document, reference: Document) -> str:
    """A container's request or limit, in units of the divisor, rounded up; the node's allocatable where unlimited."""
    name = reference.get("containerName") or container.get("name")
    owner = next((item for item in pod["spec"]["containers"] if item["name"] == name), container)
    kind, _, resource = str(reference["resource"]).partition(".")
    resources = owner.get("resources") or {}
    text = (resources.get(kind) or {}).get(resource)
    if text is None and kind == "limits":
        text = node.get("status", {}).get("allocatable", {}).get(resource)
    divisor = amount(str(reference.get("divisor") or "1"))
    return str(math.ceil(amount(str(text or "0")) / (divisor or 1)))
