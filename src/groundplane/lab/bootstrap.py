"""What a fresh API server already holds: system namespaces, priority classes, the `kubernetes` Service, admin roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import resources

if TYPE_CHECKING:
    from .api import Api

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_CRITICAL = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_ANYTHING: list[dict[str, Any]] = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]
_PUBLIC = [{"nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"], "verbs": ["get"]}]
_DISCOVERY = [
    {"nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"], "verbs": ["get"]},
    *_PUBLIC,
    {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
     "verbs": ["create"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
]  # fmt: skip
_ROLES = {
    "cluster-admin": (_ANYTHING, "system:masters"),
    "system:discovery": (_DISCOVERY, "system:authenticated"),
    "system:public-info-viewer": (_PUBLIC, "system:unauthenticated"),
}
MANAGER = "kube-apiserver"


def fill(api: Api) -> None:
    """Create the objects in an empty store."""
    for name in NAMESPACES:
        api.create(resources.NAMESPACES, {"metadata": {"name": name}}, manager=MANAGER)
    for name, value in _CRITICAL.items():
        body = {"metadata": {"name": name}, "value": value, "description": "Used for system critical pods."}
        api.create(resources.PRIORITY_CLASSES, body, manager=MANAGER)
    for name, (rules, group) in _ROLES.items():
        _grant(api, name, rules, group)
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]
    labels = {"component": "apiserver", "provider": "kubernetes"}
    service = {"metadata": {"name": "kubernetes", "labels": labels}, "spec": {"clusterIP": "10.96.0.1", "ports": ports}}
    api.create(resources.SERVICES, service, "default", manager=MANAGER)


def _grant(api: Api, name: str, rules: list[dict[str, Any]], group: str) -> None:
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    metadata = {"name": name, "labels": labels, "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}}
    api.create(resources.CLUSTER_ROLES, {"metadata": metadata, "rules": rules}, manager=MANAGER)
    binding = {
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    api.create(resources.CLUSTER_ROLE_BINDINGS, binding, manager=MANAGER)
