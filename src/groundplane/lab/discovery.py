"""Discovery: which groups, versions and resources are served, in the old form and the aggregated one (v2)."""

from __future__ import annotations

import re
from typing import Any

from . import status
from .objects import Document
from .registry import Registry
from .resources import Resource

VERSION = "v1.37.0"
"""The Kubernetes whose answers the lab gives, and by default says it is."""
_VERSION_FORM = re.compile(r"v?(1)\.(\d{1,3})\.(\d{1,3})")
_JSON = "application/json"
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_SUB_KINDS: dict[str, tuple[str, str, str]] = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
    "exec": ("", "v1", "PodExecOptions"),
    "attach": ("", "v1", "PodAttachOptions"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
    "proxy": ("", "v1", "PodProxyOptions"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
_SUB_VERBS: dict[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "finalize": ("update",),
    "ephemeralcontainers": ("get", "patch", "update"),
    "resize": ("get", "patch", "update"),
    "log": ("get",),
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
    "proxy": ("create", "delete", "get", "patch", "update"),
    "eviction": ("create",),
    "binding": ("create",),
    "token": ("create",),
}


def version(text: str) -> Document:
    """What `/version` says of a server that claims to be of a version. ValueError if it is not one like v1.35.2."""
    found = _VERSION_FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a version of Kubernetes: write it like {VERSION}")
    major, minor, patch = found.groups()
    return {
        "major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.{patch}+groundplane", "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "none",
        "platform": "groundplane/lab",
    }  # fmt: skip


def answer(registry: Registry, path: str, accept: str, host: str, claims: str = VERSION) -> tuple[Document, str]:
    """Return the document of a discovery path and its media type; raises the 404. `claims` is the server's version."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["version"] and len(parts) == 1:
        return version(claims), _JSON
    if parts in (["api"], ["apis"]):
        form = _aggregated(accept)
        if form:
            return _all(registry, parts[0] == "api", form), _AGGREGATED.format(form)
        return (_core_versions(host) if parts[0] == "api" else _group_list(registry)), _JSON
    if len(parts) == 2 and parts[0] == "apis":
        return _group(registry, parts[1]), _JSON
    if len(parts) == 2 and parts[0] == "api":
        return _resource_list(registry, "", parts[1]), _JSON
    if len(parts) == 3 and parts[0] == "apis":
        return _resource_list(registry, parts[1], parts[2]), _JSON
    if not parts:
        return {
            "paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]
        }, _JSON
    raise status.no_such_path()


def _aggregated(accept: str) -> str:
    """Return the version of aggregated discovery the client takes, preferring v2; empty for the old form."""
    for version in ("v2", "v2beta1"):
        if any(
            f"v={version}" in entry.replace(" ", "").split(";") and "as=APIGroupDiscoveryList" in entry
            for entry in accept.split(",")
        ):
            return version
    return ""


def groups(registry: Registry) -> dict[str, list[str]]:
    """Return the named groups with their versions, the preferred first."""
    found: dict[str, list[str]] = {}
    for resource in registry:
        versions = found.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
    return {group: found[group] for group in sorted(found) if group}


def _core_versions(host: str) -> Document:
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def _group_document(group: str, versions: list[str]) -> Document:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _group_list(registry: Registry) -> Document:
    listed = [_group_document(group, versions) for group, versions in groups(registry).items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def _group(registry: Registry, name: str) -> Document:
    versions = groups(registry).get(name)
    if not versions:
        raise status.no_such_path()
    return {"kind": "APIGroup", "apiVersion": "v1", **_group_document(name, versions)}


def _resource_list(registry: Registry, group: str, version: str) -> Document:
    served = registry.served(group, version)
    if not served:
        raise status.no_such_path()
    listed: list[Document] = []
    for resource in sorted(served, key=lambda item: item.plural):
        listed.append(_entry(resource))
        listed.extend(_sub_entry(resource, name) for name in resource.subresources)
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": listed}


def _entry(resource: Resource) -> Document:
    entry: Document = {
        "name": resource.plural,
        "singularName": resource.singular_name,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry


def _sub_kind(resource: Resource, name: str) -> tuple[str, str, str]:
    return _SUB_KINDS.get(name, (resource.group, resource.version, resource.kind))


def _sub_entry(resource: Resource, name: str) -> Document:
    group, version, kind = _sub_kind(resource, name)
    entry: Document = {
        "name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced, "kind": kind,
        "verbs": list(_SUB_VERBS[name]),
    }  # fmt: skip
    return entry if name not in _SUB_KINDS else {**entry, "group": group, "version": version}


def _all(registry: Registry, core: bool, version: str) -> Document:
    known: dict[str, list[str]] = {"": ["v1"]} if core else groups(registry)
    items = [
        {
            "metadata": {**({"name": group} if group else {}), "creationTimestamp": None},
            "versions": [
                {"version": item, "resources": _aggregated_resources(registry, group, item), "freshness": "Current"}
                for item in versions
            ],
        }
        for group, versions in known.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{version}", "metadata": {}, "items": items,
    }  # fmt: skip


def _response_kind(resource: Resource, group: str, version: str, kind: str) -> Document:
    """Return the kind of an answer; built-in ones leave out the group and version under which they are listed."""
    own = (group, version) == (resource.group, resource.version) and not resource.custom
    return _kind("", "", kind) if own else _kind(group, version, kind)


def _aggregated_resources(registry: Registry, group: str, version: str) -> list[Document]:
    return [_aggregated_entry(item) for item in sorted(registry.served(group, version), key=lambda item: item.plural)]


def _kind(group: str, version: str, kind: str) -> dict[str, Any]:
    return {"group": group, "version": version, "kind": kind}


def _aggregated_entry(resource: Resource) -> Document:
    entry: Document = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource, resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular_name,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": name,
                "responseKind": _response_kind(resource, *_sub_kind(resource, name)),
                "verbs": list(_SUB_VERBS[name]),
            }
            for name in resource.subresources
        ]
    return entry
