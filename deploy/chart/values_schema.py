"""The JSON schema of the chart's values.

It is the sections of a ClusterPolicy as the operator's own types have them, and the chart's own values by the tables
below. Strict: an unknown name or a wrong type is refused, and Helm's error names the value. Every value may be null,
which means unset to Helm, and a text may be empty, which the templates take as unset. Where the values differ from the
policy in name or type (contracts/control-plane.md 6.1), a table says so.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from groundplane.api import crd, fragments

Schema = dict[str, Any]

DIALECT: Final = "http://json-schema.org/draft-07/schema#"

TEXT: Final[Schema] = {"type": "string"}
SWITCH: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
LABELS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
FREE: Final[Schema] = {"type": "object"}
"""A Kubernetes fragment whose own schema the API server knows."""
VERSION: Final[Schema] = {"type": ["string", "integer"]}
"""A tag or digest. YAML reads an unquoted branch such as 580 as a number; a fraction would lose its trailing zeros."""
AMOUNTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
TOLERATIONS: Final[Schema] = {"type": "array", "items": fragments.TOLERATION}
ENV: Final[Schema] = {
    "type": "array",
    "items": {"type": "object", "properties": {"name": TEXT, "value": TEXT, "valueFrom": FREE}, "required": ["name"]},
}


def enum(*allowed: str) -> Schema:
    """One of some texts; empty means unset."""
    return {"type": "string", "enum": [*allowed, ""]}


def section(**properties: Schema) -> Schema:
    """An object with just these values."""
    return {"type": "object", "properties": properties}


IMAGE: Final[dict[str, Schema]] = {
    "repository": TEXT,
    "image": TEXT,
    "version": VERSION,
    "imagePullPolicy": TEXT,
    "imagePullSecrets": TEXTS,
}
DRA_CONTAINER: Final = section(env=ENV, resources=FREE, healthcheck=section(enabled=SWITCH, port=NUMBER))

OWN: Final[dict[str, Schema]] = {
    "nameOverride": TEXT,
    "fullnameOverride": TEXT,
    "global": FREE,
    "platform": section(openshift=SWITCH),
    "nfd": section(enabled=SWITCH, nodefeaturerules=SWITCH, implementation=enum("minimal", "upstream")),
    "clusterPolicy": section(deployCR=SWITCH),
    "gpuCluster": section(deployCR=SWITCH),
    "draDriver": section(
        **IMAGE,
        featureGates={"type": "object", "additionalProperties": SWITCH},
        gpus=section(kubeletPlugin=DRA_CONTAINER),
        computeDomains=section(
            enabled=SWITCH, controller=section(env=ENV, resources=FREE), kubeletPlugin=DRA_CONTAINER
        ),
    ),
    "monitoring": section(
        alerts=section(enabled=SWITCH, labels=LABELS, runbook=TEXT),
        dashboard=section(enabled=SWITCH, labels=LABELS, annotations=LABELS),
        counters=section(enabled=SWITCH),
    ),
    "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
    "node-feature-discovery": FREE,
}
"""Values that have no place in a ClusterPolicy."""

ADDED: Final[dict[str, dict[str, Schema]]] = {
    "operator": {
        **IMAGE,
        "release": {"type": ["string", "number"]},
        "env": ENV,
        "priorityClassName": TEXT,
        "nodeSelector": LABELS,
        "cleanupCRD": SWITCH,
        "upgradeCRD": SWITCH,
        "tolerations": TOLERATIONS,
        "affinity": FREE,
        "logging": section(
            timeEncoding=enum("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"),
            level={"type": ["string", "integer"]},
            develMode=SWITCH,
        ),
        "resources": section(limits=AMOUNTS, requests=AMOUNTS),
        "defaultGPUMode": TEXT,
        "diagnosis": section(enabled=SWITCH, intervalSeconds={"type": "integer", "minimum": 10}),
    },
    "driver": {
        "nvidiaDriverCRD": section(
            enabled=SWITCH,
            deployDefaultCR=SWITCH,
            driverType=enum("gpu", "vgpu", "vgpu-host-manager"),
            nodeSelector=LABELS,
        ),
    },
    "devicePlugin.config": {"create": SWITCH, "data": LABELS},
    "migManager.config": {"create": SWITCH, "data": LABELS},
    "dcgmExporter.config": {"create": SWITCH, "data": TEXT},
    "dcgmExporter.serviceMonitor.relabelings[]": {"source_labels": TEXTS, "target_label": TEXT},
    "operator.metrics.serviceMonitor.relabelings[]": {"source_labels": TEXTS, "target_label": TEXT},
    "daemonsets.rollingUpdate": {"maxUnavailable": {"type": ["string", "integer"]}},
}
"""What the chart takes besides the policy's fields, or with another type, by where it stands."""

RENAMED: Final = {"driver.upgradePolicy.podDeletion": "gpuPodDeletion"}
"""Fields of the policy that have another name in the values."""

NOT_VALUES: Final = {"psp", "driver.useNvidiaDriverCRD"}
"""Fields of the policy that no value sets: one does nothing, the other is driver.nvidiaDriverCRD.enabled."""

KEPT: Final = ("type", "properties", "items", "additionalProperties", "enum", "pattern", "minimum", "required", "anyOf")
"""Keywords that mean the same in a definition and here; the API server's own and its defaults are not for Helm."""


def values_schema() -> Schema:
    """The whole schema."""
    policy = crd.cluster_policy_schema()["properties"]["spec"]["properties"]
    properties = dict(OWN)
    properties |= {name: _translated(node, name) for name, node in policy.items() if name not in NOT_VALUES}
    root = _strict({"type": "object", "properties": dict(sorted(properties.items()))}, nullable=False)
    return {"$schema": DIALECT, "title": "Values of the gpu-operator chart", **root}


def _translated(node: Mapping[str, Any], path: str) -> Schema:
    """The schema of a policy's field as that of a value."""
    made: Schema = {key: copy.deepcopy(node[key]) for key in KEPT if key in node}
    if "enum" in made:
        made["enum"] = [*dict.fromkeys([*made["enum"], ""])]
    if "pattern" in made and made.get("type") == "string":
        made["pattern"] = f"^$|{made['pattern']}"
    if "description" in node:
        made["description"] = node["description"]
    if "properties" in node:
        properties = {}
        for key, child in node["properties"].items():
            place = f"{path}.{key}"
            if place not in NOT_VALUES:
                properties[RENAMED.get(place, key)] = _translated(child, place)
                if key == "version":
                    properties[key]["type"] = VERSION["type"]
        made["properties"] = properties | ADDED.get(path, {})
    if isinstance(node.get("items"), Mapping):
        made["items"] = _translated(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), Mapping):
        made["additionalProperties"] = _translated(node["additionalProperties"], f"{path}{{}}")
    return made


def _strict(node: Mapping[str, Any], *, nullable: bool = True) -> Schema:
    """The same schema for objects that hold only what is listed, where everything may be null."""
    made: Schema = {key: value for key, value in node.items() if key in (*KEPT, "description")}
    if "properties" in made:
        made["properties"] = {key: _strict(child) for key, child in made["properties"].items()}
        made.setdefault("additionalProperties", False)
    if isinstance(made.get("items"), Mapping):
        made["items"] = _strict(made["items"], nullable=False)
    if isinstance(made.get("additionalProperties"), Mapping):
        made["additionalProperties"] = _strict(made["additionalProperties"], nullable=False)
    return _or_null(made) if nullable else made


def _or_null(node: Schema) -> Schema:
    if "anyOf" in node:
        return {**node, "anyOf": [*node["anyOf"], {"type": "null"}]}
    if "type" in node:
        types = [node["type"]] if isinstance(node["type"], str) else node["type"]
        node = {**node, "type": [*types, "null"]}
    if "enum" in node:
        node = {**node, "enum": [*node["enum"], None]}
    return node
