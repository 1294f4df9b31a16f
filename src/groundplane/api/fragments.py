"""OpenAPI schemas of the Kubernetes fragments that a policy passes through to pods.

Tolerations, resource amounts and the pod's security context are Kubernetes types: groundplane hands them on
unchanged and only needs their shape, for the CRD and for checking a document. Shapes follow the Kubernetes API
reference (core/v1); which fragment sits where is in ``clusterpolicy.py``.
"""

from typing import Any, Final

_STRING: Final = {"type": "string"}
_BOOLEAN: Final = {"type": "boolean"}
_INT64: Final = {"type": "integer", "format": "int64"}

QUANTITY: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
"""A Kubernetes resource quantity: a decimal number with an optional suffix or exponent."""


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": sorted(required)} if required else {})}


_AMOUNTS: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": True,
    },
}

RESOURCES: Final = _object(
    {
        "limits": _described(_AMOUNTS, "The most a container may use, by resource name, such as `cpu: 500m`."),
        "requests": _described(_AMOUNTS, "What the scheduler sets aside for a container, by resource name."),
    }
)

TOLERATION: Final = _object(
    {
        "key": _described(_STRING, "Key of the taint; empty, together with operator Exists, matches every taint."),
        "operator": _described(_STRING, "How key and value are compared: Exists or Equal. Unset means Equal."),
        "value": _described(_STRING, "Value of the taint that operator Equal asks for."),
        "effect": _described(_STRING, "NoSchedule, PreferNoSchedule or NoExecute; unset matches all three."),
        "tolerationSeconds": _described(_INT64, "How long a NoExecute taint is borne, in seconds; unset is for ever."),
    }
)

_PROFILE: Final = _object(
    {
        "type": _described(_STRING, "RuntimeDefault, Localhost or Unconfined."),
        "localhostProfile": _described(_STRING, "Name of the profile on the node; only with type Localhost."),
    },
    "type",
)

POD_SECURITY_CONTEXT: Final = _object(
    {
        "appArmorProfile": _described(_PROFILE, "AppArmor profile of the pod's containers."),
        "fsGroup": _described(_INT64, "Group that owns the pod's volumes."),
        "fsGroupChangePolicy": _described(_STRING, "When volume ownership is changed: OnRootMismatch or Always."),
        "runAsGroup": _described(_INT64, "Primary group of the containers' processes."),
        "runAsNonRoot": _described(_BOOLEAN, "Refuse to start a container as user 0."),
        "runAsUser": _described(_INT64, "User of the containers' processes."),
        "seLinuxChangePolicy": _described(_STRING, "How volumes get their SELinux label: MountOption or Recursive."),
        "seLinuxOptions": _described(
            _object(dict.fromkeys(("level", "role", "type", "user"), _STRING)),
            "SELinux label of the containers' processes.",
        ),
        "seccompProfile": _described(_PROFILE, "Filter on the system calls of the pod's containers."),
        "supplementalGroups": {
            "type": "array",
            "items": _INT64,
            "x-kubernetes-list-type": "atomic",
            "description": "Further groups of the containers' processes.",
        },
        "supplementalGroupsPolicy": _described(_STRING, "Whether groups of the image count too: Merge or Strict."),
        "sysctls": {
            "type": "array",
            "items": _object({"name": _STRING, "value": _STRING}, "name", "value"),
            "x-kubernetes-list-type": "atomic",
            "description": "Kernel parameters of the pod's own namespaces.",
        },
        "windowsOptions": _described(
            _object(
                {
                    "gmsaCredentialSpec": _STRING,
                    "gmsaCredentialSpecName": _STRING,
                    "hostProcess": _BOOLEAN,
                    "runAsUserName": _STRING,
                }
            ),
            "Settings for Windows pods. GPU operands run on Linux and ignore them.",
        ),
    }
)

_ATOMIC: Final = {"x-kubernetes-list-type": "atomic"}
_STRINGS: Final = {"type": "array", "items": _STRING, **_ATOMIC}
_REQUIREMENTS: Final = {
    "type": "array",
    "items": _object(
        {
            "key": _described(_STRING, "The label's key, or the field's name."),
            "operator": _described(_STRING, "In, NotIn, Exists, DoesNotExist, Gt or Lt."),
            "values": _described(_STRINGS, "What the value is compared with; none for Exists and DoesNotExist."),
        },
        "key",
        "operator",
    ),
    **_ATOMIC,
}
_NODE_TERM: Final = {
    **_object(
        {
            "matchExpressions": _described(_REQUIREMENTS, "What the node's labels must be."),
            "matchFields": _described(_REQUIREMENTS, "What the node's fields must be; there is metadata.name only."),
        }
    ),
    "x-kubernetes-map-type": "atomic",
}

NODE_AFFINITY: Final = _object(
    {
        "preferredDuringSchedulingIgnoredDuringExecution": {
            "type": "array",
            "items": _object(
                {
                    "preference": _described(_NODE_TERM, "The nodes that are preferred."),
                    "weight": _described({"type": "integer", "format": "int32"}, "How much they are, 1 to 100."),
                },
                "preference",
                "weight",
            ),
            **_ATOMIC,
            "description": "Nodes to prefer. A DaemonSet has a pod on each of its nodes, so it makes no difference.",
        },
        "requiredDuringSchedulingIgnoredDuringExecution": {
            **_object(
                {
                    "nodeSelectorTerms": {
                        "type": "array",
                        "items": _NODE_TERM,
                        **_ATOMIC,
                        "description": "A node that fits one of them will do.",
                    }
                },
                "nodeSelectorTerms",
            ),
            "x-kubernetes-map-type": "atomic",
            "description": "Nodes that a pod may run on.",
        },
    }
)
