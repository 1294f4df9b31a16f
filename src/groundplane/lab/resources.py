"""The resources the lab's API server has from the start, as one table.

A `Resource` says how a kind is addressed and what it offers; its fields' types come from lightkube's models
(`lab/schema`), its printed columns from `lab/tables.py`, its rules from `lab/defaults.py` and `lab/validation.py`.
Resources of custom resource definitions are made by `lab/crd.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Resource(msgspec.Struct, frozen=True, eq=False):
    """One kind as the API serves it.

    `model` is `module:Class` of the lightkube model, empty for custom resources. `stored_as` names the core resource
    that holds the objects where two groups share them (events). `scale` maps spec replicas, status replicas and label
    selector paths of the scale subresource.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    model: str = ""
    stored_as: tuple[str, str] | None = None
    scale: tuple[str, str, str] | None = None
    singular: str = ""
    list_kind: str = ""
    custom: bool = False
    columns: tuple[dict[str, Any], ...] = ()
    keeps_generation: bool = True
    stored_version: str = ""
    selectable: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def id(self) -> tuple[str, str]:
        """(group, plural): names a resource whatever its version."""
        return (self.group, self.plural)

    @property
    def storage(self) -> tuple[str, str]:
        """The id under which objects are stored and watched."""
        return self.stored_as or (self.group, self.plural)

    @property
    def singular_name(self) -> str:
        """`daemonset`."""
        return self.singular or self.kind.lower()

    @property
    def list_name(self) -> str:
        """`DaemonSetList`."""
        return self.list_kind or self.kind + "List"

    @property
    def qualified(self) -> str:
        """`daemonsets.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_REPLICAS = (".spec.replicas", ".status.replicas", ".status.labelSelector")


def _core(kind: str, plural: str, short: str = "", **more: Any) -> Resource:
    return _resource("", "v1", "core_v1", kind, plural, short, **more)


def _resource(group: str, version: str, module: str, kind: str, plural: str, short: str = "", **more: Any) -> Resource:
    names = tuple(short.split())
    return Resource(group, version, kind, plural, short_names=names, model=f"{module}:{kind}", **more)


def _apps(kind: str, plural: str, short: str = "", **more: Any) -> Resource:
    return _resource("apps", "v1", "apps_v1", kind, plural, short, **more)


def _rbac(kind: str, plural: str, namespaced: bool) -> Resource:
    group = "rbac.authorization.k8s.io"
    return _resource(group, "v1", "rbac_v1", kind, plural, namespaced=namespaced, keeps_generation=False)


def _review(group: str, module: str, kind: str, plural: str, namespaced: bool = False) -> Resource:
    return _resource(group, "v1", module, kind, plural, namespaced=namespaced, verbs=("create",))


_ALL = ("all",)
_STATUS = ("status",)
_SCALED = ("status", "scale")

NAMESPACES = _core(
    "Namespace", "namespaces", "ns", namespaced=False, subresources=("status", "finalize"), keeps_generation=False,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)  # fmt: skip
NODES = _core("Node", "nodes", "no", namespaced=False, subresources=_STATUS, keeps_generation=False)
POD_SUBRESOURCES = (
    "status", "log", "exec", "attach", "portforward", "proxy", "eviction", "binding", "ephemeralcontainers", "resize",
)  # fmt: skip
PODS = _core("Pod", "pods", "po", categories=_ALL, subresources=POD_SUBRESOURCES)
CONFIG_MAPS = _core("ConfigMap", "configmaps", "cm", keeps_generation=False)
SECRETS = _core("Secret", "secrets", keeps_generation=False)
SERVICES = _core("Service", "services", "svc", categories=_ALL, subresources=_STATUS, keeps_generation=False)
SERVICE_ACCOUNTS = _core("ServiceAccount", "serviceaccounts", "sa", subresources=("token",), keeps_generation=False)
EVENTS = _core("Event", "events", "ev", keeps_generation=False)
ENDPOINTS = _core("Endpoints", "endpoints", "ep", keeps_generation=False)
LIMIT_RANGES = _core("LimitRange", "limitranges", "limits", keeps_generation=False)
RESOURCE_QUOTAS = _core("ResourceQuota", "resourcequotas", "quota", subresources=_STATUS, keeps_generation=False)
PERSISTENT_VOLUMES = _core(
    "PersistentVolume", "persistentvolumes", "pv", namespaced=False, subresources=_STATUS, keeps_generation=False
)
PERSISTENT_VOLUME_CLAIMS = _core(
    "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", subresources=_STATUS, keeps_generation=False
)
POD_TEMPLATES = _core("PodTemplate", "podtemplates", keeps_generation=False)
REPLICATION_CONTROLLERS = _core(
    "ReplicationController", "replicationcontrollers", "rc", categories=_ALL, subresources=_SCALED, scale=_REPLICAS
)
DAEMON_SETS = _apps("DaemonSet", "daemonsets", "ds", categories=_ALL, subresources=_STATUS)
DEPLOYMENTS = _apps("Deployment", "deployments", "deploy", categories=_ALL, subresources=_SCALED, scale=_REPLICAS)
REPLICA_SETS = _apps("ReplicaSet", "replicasets", "rs", categories=_ALL, subresources=_SCALED, scale=_REPLICAS)
STATEFUL_SETS = _apps("StatefulSet", "statefulsets", "sts", categories=_ALL, subresources=_SCALED, scale=_REPLICAS)
CONTROLLER_REVISIONS = _apps("ControllerRevision", "controllerrevisions", keeps_generation=False)
JOBS = _resource("batch", "v1", "batch_v1", "Job", "jobs", categories=_ALL, subresources=_STATUS)
CRON_JOBS = _resource("batch", "v1", "batch_v1", "CronJob", "cronjobs", "cj", categories=_ALL, subresources=_STATUS)
ROLES = _rbac("Role", "roles", True)
ROLE_BINDINGS = _rbac("RoleBinding", "rolebindings", True)
CLUSTER_ROLES = _rbac("ClusterRole", "clusterroles", False)
CLUSTER_ROLE_BINDINGS = _rbac("ClusterRoleBinding", "clusterrolebindings", False)
LEASES = _resource("coordination.k8s.io", "v1", "coordination_v1", "Lease", "leases", keeps_generation=False)
RUNTIME_CLASSES = _resource(
    "node.k8s.io", "v1", "node_v1", "RuntimeClass", "runtimeclasses", namespaced=False, keeps_generation=False
)
POD_DISRUPTION_BUDGETS = _resource(
    "policy", "v1", "policy_v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", subresources=_STATUS
)
PRIORITY_CLASSES = _resource(
    "scheduling.k8s.io", "v1", "scheduling_v1", "PriorityClass", "priorityclasses", "pc", namespaced=False
)
CUSTOM_RESOURCE_DEFINITIONS = _resource(
    "apiextensions.k8s.io", "v1", "apiextensions_v1", "CustomResourceDefinition", "customresourcedefinitions",
    "crd crds", namespaced=False, categories=("api-extensions",), subresources=_STATUS,
)  # fmt: skip
EVENTS_V1 = _resource(
    "events.k8s.io", "v1", "events_v1", "Event", "events", "ev", stored_as=("", "events"), keeps_generation=False
)
STORAGE_CLASSES = _resource(
    "storage.k8s.io",
    "v1",
    "storage_v1",
    "StorageClass",
    "storageclasses",
    "sc",
    namespaced=False,
    keeps_generation=False,
)
CSI_DRIVERS = _resource(
    "storage.k8s.io", "v1", "storage_v1", "CSIDriver", "csidrivers", namespaced=False, keeps_generation=False
)
CSI_NODES = _resource(
    "storage.k8s.io", "v1", "storage_v1", "CSINode", "csinodes", namespaced=False, keeps_generation=False
)
ENDPOINT_SLICES = _resource(
    "discovery.k8s.io", "v1", "discovery_v1", "EndpointSlice", "endpointslices", keeps_generation=True
)
NETWORK_POLICIES = _resource("networking.k8s.io", "v1", "networking_v1", "NetworkPolicy", "networkpolicies", "netpol")
INGRESSES = _resource("networking.k8s.io", "v1", "networking_v1", "Ingress", "ingresses", "ing", subresources=_STATUS)
RESOURCE_SLICES = _resource("resource.k8s.io", "v1", "resource_v1", "ResourceSlice", "resourceslices", namespaced=False)
RESOURCE_CLAIMS = _resource(
    "resource.k8s.io", "v1", "resource_v1", "ResourceClaim", "resourceclaims", subresources=_STATUS
)
DEVICE_CLASSES = _resource("resource.k8s.io", "v1", "resource_v1", "DeviceClass", "deviceclasses", namespaced=False)
RESOURCE_CLAIM_TEMPLATES = _resource(
    "resource.k8s.io", "v1", "resource_v1", "ResourceClaimTemplate", "resourceclaimtemplates"
)
_AUTHZ = ("authorization.k8s.io", "authorization_v1")
SUBJECT_ACCESS_REVIEWS = _review(*_AUTHZ, "SubjectAccessReview", "subjectaccessreviews")
SELF_SUBJECT_ACCESS_REVIEWS = _review(*_AUTHZ, "SelfSubjectAccessReview", "selfsubjectaccessreviews")
SELF_SUBJECT_RULES_REVIEWS = _review(*_AUTHZ, "SelfSubjectRulesReview", "selfsubjectrulesreviews")
LOCAL_SUBJECT_ACCESS_REVIEWS = _review(*_AUTHZ, "LocalSubjectAccessReview", "localsubjectaccessreviews", True)
_AUTHN = ("authentication.k8s.io", "authentication_v1")
TOKEN_REVIEWS = _review(*_AUTHN, "TokenReview", "tokenreviews")
SELF_SUBJECT_REVIEWS = _review(*_AUTHN, "SelfSubjectReview", "selfsubjectreviews")

BUILTIN: tuple[Resource, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Resource))
"""Every built-in resource, in the order of definition above."""
