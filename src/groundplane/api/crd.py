"""The CustomResourceDefinitions of our kinds, generated from their Structs.

The schema means the same as NVIDIA's (union of the supported releases): types, enums, defaults, required keys and
patterns. Descriptions are our own. What the API server must enforce but decoding must not (objects of older releases
have to load) is added here.
"""

import copy
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from . import clusterpolicy, names, nvidiadriver, schema
from .release import Release

_STATUS_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "status": ("state",),
    "status.conditions[]": ("lastTransitionTime", "message", "reason", "status", "type"),
}
_POLICY_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "spec": (
        *("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver"),
        *("gfd", "nodeStatusExporter", "operator", "toolkit"),
    ),
    **_STATUS_REQUIRED,
}
"""Keys that the API server asks for (contracts/control-plane.md 1 and 1.7)."""
_DRIVER_REQUIRED: Final[dict[str, tuple[str, ...]]] = {"spec": ("driverType", "image"), **_STATUS_REQUIRED}
"""The same for NVIDIADriver (section 2); all have defaults, which the API server fills in before it looks."""

_NO_SELECTOR_BESIDE_DEFAULT: Final = {
    "rule": "!(has(self.default) && self.default) || !has(self.nodeSelector) || size(self.nodeSelector) == 0",
    "message": "a default NVIDIADriver serves the nodes that are left: clear nodeSelector, or set default to false",
}


def cluster_policy_schema() -> dict[str, Any]:
    """The structural OpenAPI v3 schema of a whole ClusterPolicy; a fresh copy."""
    text = "What the GPU stack of a cluster shall be. One ClusterPolicy is in force at a time."
    return _root(clusterpolicy.ClusterPolicy, text, _POLICY_REQUIRED)


def nvidia_driver_schema(release: Release = Release.DEFAULT) -> dict[str, Any]:
    """The structural OpenAPI v3 schema of a whole NVIDIADriver in a release; a fresh copy."""
    root = _root(nvidiadriver.NVIDIADriver, "One driver for the nodes that it selects.", _DRIVER_REQUIRED)
    spec = root["properties"]["spec"]
    if release is Release.V26_3:
        for name in ("default", "upgradePolicy"):
            del spec["properties"][name]
    else:
        spec["required"] = sorted([*spec["required"], "default"])
        spec["x-kubernetes-validations"] = [dict(_NO_SELECTOR_BESIDE_DEFAULT)]
    return root


def _root(kind: type[msgspec.Struct], description: str, required: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    root = copy.deepcopy(schema.of(kind))
    root["description"] = description
    root["properties"]["metadata"] = {"type": "object"}  # the API server's own: it refuses even a description
    for path, node in schema.walk(root):
        if path in required:
            node["required"] = sorted(required[path])
    return root


def schema_digest(openapi: dict[str, Any]) -> str:
    """A digest of what a schema allows; wording of descriptions does not count. 16 hexadecimal digits."""
    meaning = _without_descriptions(openapi)
    return hashlib.sha256(msgspec.json.encode(meaning, order="deterministic")).hexdigest()[:16]


def _without_descriptions(node: dict[str, Any]) -> dict[str, Any]:
    bare = {key: value for key, value in node.items() if key != "description"}
    if "properties" in node:
        bare["properties"] = {name: _without_descriptions(child) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in node:
            bare[key] = _without_descriptions(node[key])
    return bare


def cluster_policy_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of ClusterPolicy, ready to be applied; a fresh document.

    Its annotation ``groundplane.dev/schema-digest`` says which schema it carries.
    """
    kind = {
        "kind": "ClusterPolicy",
        "listKind": "ClusterPolicyList",
        "plural": "clusterpolicies",
        "singular": "clusterpolicy",
    }
    return _definition(kind, "v1", cluster_policy_schema(), [_STATUS, _AGE])


def nvidia_driver_crd(release: Release = Release.DEFAULT) -> dict[str, Any]:
    """The CustomResourceDefinition of NVIDIADriver in a release, ready to be applied; a fresh document.

    That of 26.7 has every field of 26.3, so that one definition serves an operator of either.
    """
    kind = {
        "kind": "NVIDIADriver",
        "listKind": "NVIDIADriverList",
        "plural": "nvidiadrivers",
        "singular": "nvidiadriver",
        "shortNames": ["nvd", "nvdriver", "nvdrivers"],
    }
    columns = [_STATUS, _AGE] if release is Release.V26_3 else [_STATUS, _DEFAULT, _AGE]
    return _definition(kind, "v1alpha1", nvidia_driver_schema(release), columns)


def definitions() -> list[dict[str, Any]]:
    """The definitions of all our kinds, ready to be applied; fresh documents."""
    return [cluster_policy_crd(), nvidia_driver_crd()]


_STATUS: Final = {"name": "Status", "type": "string", "jsonPath": ".status.state"}
_DEFAULT: Final = {"name": "Default", "type": "boolean", "jsonPath": ".spec.default"}
_AGE: Final = {"name": "Age", "type": "string", "jsonPath": ".metadata.creationTimestamp"}


def _definition(
    kind: dict[str, Any], version: str, openapi: dict[str, Any], columns: list[dict[str, str]]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind['plural']}.{names.GROUP}",
            "annotations": {names.CRD_SCHEMA_DIGEST: schema_digest(openapi)},
        },
        "spec": {
            "group": names.GROUP,
            "names": kind,
            "scope": "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": openapi},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [dict(column) for column in columns],
                }
            ],
        },
    }
