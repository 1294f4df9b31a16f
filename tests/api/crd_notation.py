"""The notation in which tests write CRDs down by hand, the parts that our kinds share in it, and a schema in it."""

import json
from typing import Any

from groundplane.api import schema

DURATION = "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
PATTERNS = {
    DURATION: "DURATION",
    QUANTITY: "QUANTITY",
    r"[a-zA-Z0-9\-]+": "IMAGE",
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$": "QUALIFIED",
    r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$": "REASON",
}

# Notation: type, then /format, >=minimum, ~pattern, {a,b} allowed, =default (JSON), ! required keys, @ other keywords.
Table = dict[str, Any]

STRINGS: Table = {"": "array", "[]": "string"}
LABELS: Table = {"": "object", "{}": "string"}
ENV: Table = {"": "array", "[]": {"": "object !name", "name": "string", "value": "string"}}
IMAGE: Table = {
    "": "object",
    "repository": "string",
    "image": "string ~IMAGE",
    "version": "string",
    "imagePullPolicy": "string",
    "imagePullSecrets": STRINGS,
}
COMPONENT: Table = {**IMAGE, "enabled": "boolean", "args": STRINGS, "env": ENV}
AMOUNTS: Table = {"": "object", "{}": "integer|string ~QUANTITY @x-kubernetes-int-or-string"}
RESOURCES: Table = {"": "object", "limits": AMOUNTS, "requests": AMOUNTS}
STANDARD: Table = {**COMPONENT, "resources": RESOURCES, "hostNetwork": "boolean"}
NAMED: Table = {"": "object", "name": "string"}
MANAGER: Table = {**IMAGE, "env": ENV}
PROBE: Table = {
    "": "object",
    "initialDelaySeconds": "integer/int32",
    **dict.fromkeys(("timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"), "integer/int32 >=1"),
}
ACTIONS = (
    "replace,Replace,keep,Keep,drop,Drop,hashmod,HashMod,labelmap,LabelMap,labeldrop,LabelDrop,labelkeep,LabelKeep,"
    "lowercase,Lowercase,uppercase,Uppercase,keepequal,KeepEqual,dropequal,DropEqual"
)
MONITOR: Table = {
    "": "object",
    "enabled": "boolean",
    "interval": "string ~DURATION",
    "scrapeTimeout": "string ~DURATION",
    "honorLabels": "boolean",
    "additionalLabels": LABELS,
    "relabelings": {
        "": "array",
        "[]": {
            "": "object",
            "action": f'string {{{ACTIONS}}} ="replace"',
            "modulus": "integer/int64 >=0",
            "regex": "string",
            "replacement": "string",
            "separator": "string",
            "sourceLabels": STRINGS,
            "targetLabel": "string",
        },
    },
}
PROFILE: Table = {"": "object !type", "type": "string", "localhostProfile": "string"}
DAEMONSETS: Table = {
    "": "object",
    "labels": LABELS,
    "annotations": LABELS,
    "priorityClassName": "string",
    "updateStrategy": 'string {RollingUpdate,OnDelete} ="RollingUpdate"',
    "rollingUpdate": {"": "object", "maxUnavailable": "string"},
    "tolerations": {
        "": "array",
        "[]": {
            "": "object",
            **dict.fromkeys(("key", "operator", "value", "effect"), "string"),
            "tolerationSeconds": "integer/int64",
        },
    },
    "podSecurityContext": {
        "": "object",
        "appArmorProfile": PROFILE,
        "seccompProfile": PROFILE,
        **dict.fromkeys(("fsGroup", "runAsGroup", "runAsUser"), "integer/int64"),
        **dict.fromkeys(("fsGroupChangePolicy", "seLinuxChangePolicy", "supplementalGroupsPolicy"), "string"),
        "runAsNonRoot": "boolean",
        "seLinuxOptions": {"": "object", **dict.fromkeys(("level", "role", "type", "user"), "string")},
        "supplementalGroups": {"": "array @x-kubernetes-list-type", "[]": "integer/int64"},
        "sysctls": {
            "": "array @x-kubernetes-list-type",
            "[]": {"": "object !name,value", "name": "string", "value": "string"},
        },
        "windowsOptions": {
            "": "object",
            **dict.fromkeys(("gmsaCredentialSpec", "gmsaCredentialSpecName", "runAsUserName"), "string"),
            "hostProcess": "boolean",
        },
    },
}
OFF = "boolean =false"
PARALLEL = "integer >=0 =1"
UNAVAILABLE = 'integer|string ="25%" @x-kubernetes-int-or-string'
POD_DELETION: Table = {"": "object", "force": OFF, "deleteEmptyDir": OFF, "timeoutSeconds": "integer >=0 =300"}
WAIT: Table = {"": "object", "podSelector": "string", "timeoutSeconds": "integer >=0 =0"}
DRAIN: Table = {
    "": "object",
    **dict.fromkeys(("enable", "force", "deleteEmptyDir"), OFF),
    "podSelector": "string",
    "timeoutSeconds": "integer >=0 =300",
}
RDMA: Table = {"": "object", "enabled": "boolean", "useHostMofed": "boolean"}
MODULES = 'string {auto,open,proprietary} ="auto"'
CONDITION: Table = {
    "": "object !lastTransitionTime,message,reason,status,type",
    "type": "string ~QUALIFIED @maxLength",
    "status": "string {True,False,Unknown}",
    "reason": "string ~REASON @maxLength,minLength",
    "message": "string @maxLength",
    "lastTransitionTime": "string/date-time",
    "observedGeneration": "integer/int64 >=0",
}
KEYWORDS = {
    *("type", "anyOf", "format", "minimum", "pattern", "enum", "default", "required"),
    *("description", "properties", "items", "additionalProperties"),
}


def flatten(table: Table, path: str = "") -> dict[str, str]:
    flat = {}
    for key, value in table.items():
        place = path + key if key in ("", "[]", "{}") else schema.join(path, key)
        flat.update(flatten(value, place) if isinstance(value, dict) else {place: value})
    return flat


def notation(node: dict[str, Any]) -> str:
    text = "|".join(option["type"] for option in node["anyOf"]) if "anyOf" in node else node["type"]
    text += f"/{node['format']}" if "format" in node else ""
    parts = [text]
    for key, words in (("minimum", ">={}"), ("pattern", "~{}"), ("enum", "{{{}}}"), ("default", "={}")):
        if key in node:
            value = node[key]
            match key:
                case "pattern":
                    value = PATTERNS[value]
                case "enum":
                    value = ",".join(value)
                case "default":
                    value = json.dumps(value)
            parts.append(words.format(value))
    if "required" in node:
        parts.append("!" + ",".join(node["required"]))
    if others := sorted(set(node) - KEYWORDS):
        parts.append("@" + ",".join(others))
    return " ".join(parts)
