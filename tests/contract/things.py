"""Small objects that contract cases create, with nothing in them that the API server would default."""

from __future__ import annotations

import copy
from typing import Any

Document = dict[str, Any]


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": {"a": "1"} if data is None else data,
    }


def container(name: str = "main", **more: Any) -> Document:
    return {"name": name, "image": "registry.k8s.io/pause:3.10", **more}


def pod(name: str, **spec: Any) -> Document:
    """A pod that no scheduler takes up, so that it stays as it was created."""
    base = {"schedulerName": "nobody", "containers": [container()]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**base, **spec}}


def template(app: str, **spec: Any) -> Document:
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container()], **spec}}


def daemon_set(name: str, **spec: Any) -> Document:
    """A DaemonSet whose pods fit no node."""
    base = {
        "selector": {"matchLabels": {"app": name}},
        "template": template(name, nodeSelector={"contract.test/none": "here"}),
    }
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": {**base, **spec}}


def deployment(name: str, **spec: Any) -> Document:
    """A Deployment that wants no pods."""
    base = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template(name)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {**base, **spec}}


def definition(group: str, kind: str, schema: Document, **spec: Any) -> Document:
    """A CRD of one version v1, whose `spec` has the given schema and whose `status` is open."""
    plural = kind.lower() + "s"
    state = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema, "status": state}}},
    }
    base = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
        "versions": [version],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {**base, **spec},
    }


def changed(document: Document, *path: str | int, value: Any) -> Document:
    """A copy with one field set, or removed when the value is None."""
    result = copy.deepcopy(document)
    place: Any = result
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return result
