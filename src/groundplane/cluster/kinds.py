"""Which Kubernetes resources groundplane speaks to, and their URL paths.

A :class:`Kind` is all a client needs to know of a resource: group, version, plural, and whether it lives in a
namespace. The table below lists the kinds the project uses; :func:`of` finds the kind of a manifest in it. What the
objects contain is left to lightkube's models, to ``api`` and to ``views``.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """One resource type of the API server. ``group`` is empty for the core group."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects, e.g. ``apps/v1`` or ``v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The resource as RBAC and error messages write it: ``daemonsets.apps``, ``nodes``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of a collection, an object or a subresource.

        Without ``namespace`` the path of a namespaced kind is the collection over all namespaces. Raises
        :class:`ValueError` for an object of a namespaced kind without its namespace, for a subresource without an
        object, and for a name that would leave its path segment.
        """
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} lives in a namespace, none was given: pass namespace=")
        if subresource is not None and name is None:
            raise ValueError(f"subresource {subresource!r} of {self.kind} belongs to one object: pass name=")
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [base]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        if name is not None:
            parts.append(_segment(name))
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


class UnknownKind(KeyError):  # noqa: N818
    """A manifest names an apiVersion and kind that are not in the table."""

    def __str__(self) -> str:
        return str(self.args[0])


def _segment(text: str) -> str:
    if text in ("", ".", "..") or "/" in text:
        raise ValueError(f"{text!r} is not a Kubernetes name")
    return quote(text, safe=":")


NODE = Kind("", "v1", "Node", "nodes", False)
POD = Kind("", "v1", "Pod", "pods", True)
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", False)
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps", True)
SECRET = Kind("", "v1", "Secret", "secrets", True)
SERVICE = Kind("", "v1", "Service", "services", True)
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts", True)
CORE_EVENT = Kind("", "v1", "Event", "events", True)
EVENT = CORE_EVENT
PERSISTENT_VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True)
DAEMON_SET = Kind("apps", "v1", "DaemonSet", "daemonsets", True)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments", True)
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets", True)
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets", True)
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", True)
JOB = Kind("batch", "v1", "Job", "jobs", True)
CRON_JOB = Kind("batch", "v1", "CronJob", "cronjobs", True)
ROLE = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles", True)
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", True)
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", False)
CLUSTER_ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", False)
RUNTIME_CLASS = Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", False)
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", True)
PDB = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True)
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", True)
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", False)
DEVICE_CLASS = Kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", False)
CRD = Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False)
CLUSTER_POLICY = Kind("nvidia.com", "v1", "ClusterPolicy", "clusterpolicies", False)
NVIDIA_DRIVER = Kind("nvidia.com", "v1alpha1", "NVIDIADriver", "nvidiadrivers", False)
SERVICE_MONITOR = Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", True)
PROMETHEUS_RULE = Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", True)
NODE_FEATURE = Kind("nfd.k8s-sigs.io", "v1alpha1", "NodeFeature", "nodefeatures", True)
NODE_FEATURE_RULE = Kind("nfd.k8s-sigs.io", "v1alpha1", "NodeFeatureRule", "nodefeaturerules", False)
SCC = Kind("security.openshift.io", "v1", "SecurityContextConstraints", "securitycontextconstraints", False)
CLUSTER_VERSION = Kind("config.openshift.io", "v1", "ClusterVersion", "clusterversions", False)
PROXY = Kind("config.openshift.io", "v1", "Proxy", "proxies", False)
IMAGE_STREAM = Kind("image.openshift.io", "v1", "ImageStream", "imagestreams", True)

_BY_TYPE: dict[tuple[str, str], Kind] = {}


def register(kind: Kind) -> Kind:
    """Make :func:`of` know ``kind``. Raises :class:`ValueError` if another kind holds the same apiVersion and kind."""
    known = _BY_TYPE.setdefault((kind.api_version, kind.kind), kind)
    if known != kind:
        raise ValueError(f"{kind.api_version} {kind.kind} is registered already, differently: {known}")
    return kind


def of(obj: Mapping[str, Any]) -> Kind:
    """The kind of a manifest, by its ``apiVersion`` and ``kind``. Raises :class:`UnknownKind`."""
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str) or not api_version or not kind:
        raise UnknownKind(f"not a Kubernetes manifest: apiVersion is {api_version!r} and kind is {kind!r}")
    found = _BY_TYPE.get((api_version, kind))
    if found is None:
        raise UnknownKind(
            f"no kind {kind!r} in {api_version!r} is known here: add it to cluster/kinds.py or register()"
        )
    return found


for _kind in [value for value in list(globals().values()) if isinstance(value, Kind)]:
    register(_kind)
