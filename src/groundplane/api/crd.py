"""The CustomResourceDefinitions of our kinds, generated from their Structs.

The schema means the same as NVIDIA's (union of the supported releases): types, enums, defaults, required keys and
patterns. Descriptions are our own. What the API server must enforce but decoding must not (objects of older releases
have to load) is added here.
"""

import copy
import hashlib
from typing import Any, Final

import msgspec

from . import clusterpolicy, names, schema

_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "spec": (
        *("daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver"),
        *("gfd", "nodeStatusExporter", "operator", "toolkit"),
    ),
    "status": ("state",),
    "status.conditions[]": ("lastTransitionTime", "message", "reason", "status", "type"),
}
"""Keys that the API server asks for (contracts/control-plane.md 1 and 1.7)."""


def cluster_policy_schema() -> dict[str, Any]:
    """The structural OpenAPI v3 schema of a whole ClusterPolicy; a fresh copy."""
    root = copy.deepcopy(schema.of(clusterpolicy.ClusterPolicy))
    root["description"] = "What the GPU stack of a cluster shall be. One ClusterPolicy is in force at a time."
    root["properties"]["metadata"] = {"type": "object"}  # the API server's own: it refuses even a description
    for path, node in schema.walk(root):
        if path in _REQUIRED:
            node["required"] = sorted(_REQUIRED[path])
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
    openapi = cluster_policy_schema()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"clusterpolicies.{names.GROUP}",
            "annotations": {names.CRD_SCHEMA_DIGEST: schema_digest(openapi)},
        },
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": "ClusterPolicy",
                "listKind": "ClusterPolicyList",
                "plural": "clusterpolicies",
                "singular": "clusterpolicy",
            },
            "scope": "Cluster",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": openapi},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Status", "type": "string", "jsonPath": ".status.state"},
                        {"name": "Age", "type": "string", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                }
            ],
        },
    }
