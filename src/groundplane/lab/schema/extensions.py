"""What Kubernetes' published schema says beyond lightkube's Structs: list keys, patch strategies, zero values.

Source: the `x-kubernetes-*` extensions of the OpenAPI document and the `omitempty` tags of the API types. A
list that is not named here is atomic.
"""

from __future__ import annotations

LIST_MAPS: dict[tuple[str, str], tuple[str, ...]] = {
    ("Container", "env"): ("name",),
    ("Container", "ports"): ("containerPort", "protocol"),
    ("Container", "volumeMounts"): ("mountPath",),
    ("Container", "volumeDevices"): ("devicePath",),
    ("EphemeralContainer", "env"): ("name",),
    ("EphemeralContainer", "ports"): ("containerPort", "protocol"),
    ("EphemeralContainer", "volumeMounts"): ("mountPath",),
    ("EphemeralContainer", "volumeDevices"): ("devicePath",),
    ("ContainerStatus", "volumeMounts"): ("mountPath",),
    ("ContainerStatus", "allocatedResourcesStatus"): ("name",),
    ("ResourceRequirements", "claims"): ("name",),
    ("ResourceStatus", "resources"): ("resourceID",),
    ("PodSpec", "containers"): ("name",),
    ("PodSpec", "initContainers"): ("name",),
    ("PodSpec", "ephemeralContainers"): ("name",),
    ("PodSpec", "volumes"): ("name",),
    ("PodSpec", "imagePullSecrets"): ("name",),
    ("PodSpec", "hostAliases"): ("ip",),
    ("PodSpec", "topologySpreadConstraints"): ("topologyKey", "whenUnsatisfiable"),
    ("PodSpec", "schedulingGates"): ("name",),
    ("PodSpec", "resourceClaims"): ("name",),
    ("PodStatus", "conditions"): ("type",),
    ("PodStatus", "podIPs"): ("ip",),
    ("PodStatus", "resourceClaimStatuses"): ("name",),
    ("NodeStatus", "conditions"): ("type",),
    ("NodeStatus", "addresses"): ("type",),
    ("NamespaceStatus", "conditions"): ("type",),
    ("ServiceSpec", "ports"): ("port", "protocol"),
    ("ServiceStatus", "conditions"): ("type",),
    ("ServiceAccount", "secrets"): ("name",),
    ("ObjectMeta", "ownerReferences"): ("uid",),
    ("DaemonSetStatus", "conditions"): ("type",),
    ("DeploymentStatus", "conditions"): ("type",),
    ("ReplicaSetStatus", "conditions"): ("type",),
    ("StatefulSetStatus", "conditions"): ("type",),
    ("ReplicationControllerStatus", "conditions"): ("type",),
    ("PodDisruptionBudgetStatus", "conditions"): ("type",),
    ("PersistentVolumeClaimStatus", "conditions"): ("type",),
    ("CustomResourceDefinitionStatus", "conditions"): ("type",),
    ("CSINodeSpec", "drivers"): ("name",),
    ("ResourceClaimStatus", "reservedFor"): ("uid",),
    ("ResourceClaimStatus", "devices"): ("driver", "device", "pool"),
}
"""Lists of maps (`x-kubernetes-list-type: map`) by (type, field): the keys that identify an item."""

KEY_DEFAULTS: dict[str, str] = {"protocol": "TCP"}
"""Defaults of list keys that a client may leave out (`x-kubernetes-list-map-keys` with a default)."""

LIST_SETS: frozenset[tuple[str, str]] = frozenset(
    {
        ("ContainerRestartRuleOnExitCodes", "values"),
        ("NodeSpec", "podCIDRs"),
        ("ObjectMeta", "finalizers"),
        ("PodFailurePolicyOnExitCodesRequirement", "values"),
        ("UncountedTerminatedPods", "failed"),
        ("UncountedTerminatedPods", "succeeded"),
    }
)
"""Lists of unique scalars (`x-kubernetes-list-type: set`)."""

MERGE_KEYS: dict[tuple[str, str], str] = {
    ("Container", "ports"): "containerPort",
    ("EphemeralContainer", "ports"): "containerPort",
    ("PodSpec", "topologySpreadConstraints"): "topologyKey",
    ("PodStatus", "hostIPs"): "ip",
    ("ServiceSpec", "ports"): "port",
    ("JobStatus", "conditions"): "type",
}
"""Strategic merge keys that differ from the first list key, or belong to lists that apply treats as atomic."""

NO_MERGE_KEY: frozenset[tuple[str, str]] = frozenset(
    {
        ("ResourceRequirements", "claims"),
        ("ResourceStatus", "resources"),
        ("CustomResourceDefinitionStatus", "conditions"),
        ("ResourceClaimStatus", "devices"),
    }
)
"""List maps that a strategic merge patch replaces as a whole."""

RETAIN_KEYS: frozenset[tuple[str, str]] = frozenset(
    {
        ("PodSpec", "volumes"),
        ("PodSpec", "resourceClaims"),
        ("PodStatus", "resourceClaimStatuses"),
        ("DeploymentSpec", "strategy"),
    }
)
"""Fields whose patch strategy includes `retainKeys`."""

MERGED_SCALARS: frozenset[tuple[str, str]] = frozenset({("ObjectMeta", "finalizers"), ("NodeSpec", "podCIDRs")})
"""Lists of scalars that a strategic merge patch joins instead of replacing."""

ATOMIC_STRUCTS: frozenset[str] = frozenset(
    {
        "ConfigMapKeySelector", "CrossVersionObjectReference", "EndpointAddress", "EndpointPort", "FileKeySelector",
        "LabelSelector", "LocalObjectReference",
        "NodeSelector", "NodeSelectorTerm", "ObjectFieldSelector", "ObjectReference", "OwnerReference",
        "ResourceFieldSelector", "RoleRef", "ScopeSelector", "SecretKeySelector",
        "SecretReference", "Subject", "TopologySelectorTerm", "TypedLocalObjectReference",
        "ContainerExtendedResourceRequest",
    }
)  # fmt: skip
"""Objects that server-side apply owns as a whole (`x-kubernetes-map-type: atomic`)."""

ATOMIC_MAPS: frozenset[tuple[str, str]] = frozenset(
    {("PodSpec", "nodeSelector"), ("ServiceSpec", "selector"), ("ReplicationControllerSpec", "selector"),
     ("Scheduling", "nodeSelector")}
)  # fmt: skip
"""Maps that server-side apply owns as a whole."""

QUANTITY_MAPS: frozenset[str] = frozenset(
    {"allocatable", "capacity", "default", "defaultRequest", "hard", "limits", "max", "maxLimitRequestRatio", "min",
     "overhead", "podFixed", "requests", "used", "allocatedResources"}
)  # fmt: skip
"""Names of untyped dict fields whose values are quantities."""

OPEN_MAPS: frozenset[tuple[str, str]] = frozenset(
    {("JSONSchemaProps", "definitions"), ("JSONSchemaProps", "dependencies"), ("JSONSchemaProps", "patternProperties"),
     ("JSONSchemaProps", "properties"), ("DeviceCapacity", "capacity"), ("Device", "attributes"),
     ("Device", "capacity"), ("CounterSet", "counters"), ("DeviceCounterConsumption", "counters"),
     ("SubjectAccessReviewSpec", "extra"), ("UserInfo", "extra")}
)  # fmt: skip
"""Dict fields whose values are neither strings nor quantities."""

KEPT_STRINGS: frozenset[tuple[str, str]] = frozenset(
    {("PersistentVolumeClaimSpec", "storageClassName"),
     ("GRPCAction", "service"), ("HostPathVolumeSource", "type"), ("LeaseSpec", "holderIdentity"),
     ("IngressSpec", "ingressClassName"), ("EndpointPort", "name"), ("EndpointPort", "appProtocol"),
     ("RuntimeClass", "handler"), ("RoleRef", "apiGroup")}
)  # fmt: skip
"""Optional strings that are pointers in the API types: an empty one is kept."""

DROPPED_BOOLEANS: frozenset[tuple[str, str]] = frozenset(
    {("PodSpec", "hostNetwork"), ("PodSpec", "hostPID"), ("PodSpec", "hostIPC"), ("VolumeMount", "readOnly"),
     ("Container", "stdin"), ("Container", "stdinOnce"), ("Container", "tty"), ("DeploymentSpec", "paused"),
     ("NodeSpec", "unschedulable"), ("ServiceSpec", "publishNotReadyAddresses"), ("PriorityClass", "globalDefault"),
     ("PersistentVolumeClaimVolumeSource", "readOnly")}
)  # fmt: skip
"""Optional booleans that are not pointers: a false one is dropped."""

DROPPED_INTEGERS: frozenset[tuple[str, str]] = frozenset(
    {("DaemonSetSpec", "minReadySeconds"), ("DeploymentSpec", "minReadySeconds"), ("ReplicaSetSpec", "minReadySeconds"),
     ("StatefulSetSpec", "minReadySeconds"), ("Probe", "initialDelaySeconds"), ("ContainerPort", "hostPort"),
     ("ServicePort", "nodePort"), ("ObjectMeta", "generation"), ("DaemonSetStatus", "updatedNumberScheduled"),
     ("DaemonSetStatus", "numberAvailable"), ("DaemonSetStatus", "numberUnavailable"),
     ("DaemonSetStatus", "observedGeneration"), ("DeploymentStatus", "replicas"), ("DeploymentStatus", "readyReplicas"),
     ("DeploymentStatus", "updatedReplicas"), ("DeploymentStatus", "availableReplicas"),
     ("DeploymentStatus", "unavailableReplicas"), ("DeploymentStatus", "observedGeneration"),
     ("ReplicaSetStatus", "readyReplicas"), ("ReplicaSetStatus", "availableReplicas"),
     ("ReplicaSetStatus", "fullyLabeledReplicas"), ("ReplicaSetStatus", "observedGeneration"), ("JobStatus", "active"),
     ("JobStatus", "succeeded"), ("JobStatus", "failed"), ("Event", "count"), ("PodStatus", "observedGeneration")}
)  # fmt: skip
"""Optional integers that are not pointers: a zero is dropped."""
