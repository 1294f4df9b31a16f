"""Defaults that the API server fills in, kind by kind, and the state it gives new objects.

A rule gets a document it may edit. It runs for new objects and for updates that change anything but metadata
and status. Source of the values: the API reference's documented defaults; contracts/control-plane.md 9 names
those that the operator relies on.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import crd_defaults, objects, pod_defaults, resources
from .objects import Document
from .resources import Resource

if TYPE_CHECKING:
    from .api import Api

Rule = Callable[["Api", Document, Document | None], None]
_RBAC = "rbac.authorization.k8s.io"
_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_SERVICE_RANGE = ipaddress.ip_network("10.96.0.0/12")
KEPT_STATUS = frozenset({("", "nodes"), ("", "persistentvolumes")})
"""Kinds whose status a client may set when it creates them."""


def fill(target: Document, **values: Any) -> Document:
    """Set the fields that are missing, and return the target."""
    for key, value in values.items():
        if key not in target:
            target[key] = value
    return target


def new_object(api: Api, res: Resource, document: Document) -> Document:
    """Return a new object with defaults and the status a new object has."""
    result = {key: value if key == "metadata" else objects.copy(value) for key, value in document.items()}
    if "status" in res.subresources and res.id not in KEPT_STATUS:
        result.pop("status", None)
    if res.custom:
        return crd_defaults.fill(api.registry.schema(res), result)
    rule = _RULES.get(res.id)
    if rule is not None:
        rule(api, result, None)
    if res.id in _NEW_STATUS:
        result["status"] = objects.copy(_NEW_STATUS[res.id])
    return result


_GIVEN_LATER: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {
    ("", "namespaces"): (("spec",),),
    ("", "services"): tuple(("spec", name) for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")),
    ("batch", "jobs"): (("spec", "selector"), ("spec", "template", "metadata", "labels")),
}
"""What the server fills in only after it has noted which fields the client set."""


def as_given(res: Resource, document: Document, sent: Document) -> Document:
    """Return a new object as its managed fields see it: with defaults, without what is allocated later.

    The metadata is shared with `document`.
    """
    result = document
    for *above, name in _GIVEN_LATER.get(res.id, ()):
        result = dict(result)
        holder, given = result, sent
        for key in above:
            holder[key] = holder = dict(holder.get(key) or {})
            given = given.get(key) or {}
        holder.pop(name, None)
        if name in given:
            holder[name] = given[name]
    return result


def changed_object(api: Api, res: Resource, document: Document, before: Document, subresource: str) -> Document:
    """Return the new version of an object with defaults; parts that did not change are left alone."""
    if res.custom:
        return crd_defaults.fill(api.registry.schema(res), document)
    rule = _RULES.get(res.id)
    parts = (document.keys() | before.keys()) - {"metadata", "status", "apiVersion", "kind"}
    if rule is None or subresource or all(document.get(key) is before.get(key) for key in parts):
        return _keep_generation(res, document, before)
    result = {key: value if key in ("metadata", "status") else objects.copy(value) for key, value in document.items()}
    rule(api, result, before)
    return _keep_generation(res, result, before)


def _keep_generation(res: Resource, document: Document, before: Document) -> Document:
    """A DaemonSet's template generation is the server's: it survives clients that leave it out."""
    if res is not resources.DAEMON_SETS:
        return document
    held = before["metadata"].get("annotations", {}).get(_TEMPLATE_GENERATION, "1")
    changed = document["spec"].get("template") != before["spec"].get("template")
    value = str(int(held) + 1) if changed else held
    annotations = document["metadata"].get("annotations") or {}
    if annotations.get(_TEMPLATE_GENERATION) != value:
        document["metadata"] = {
            **document["metadata"], "annotations": {**annotations, _TEMPLATE_GENERATION: value},
        }  # fmt: skip
    return document


def _template(spec: Document) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    if isinstance(template.get("spec"), dict):
        pod_defaults.fill_spec(template["spec"], template=True)


def _pod(api: Api, document: Document, before: Document | None) -> None:
    spec = document.setdefault("spec", {})
    pod_defaults.fill_spec(spec, template=False)
    if before is None:
        document["status"] = {"phase": "Pending", "qosClass": pod_defaults.qos_class(spec)}


def _daemon_set(api: Api, document: Document, before: Document | None) -> None:
    spec = document.setdefault("spec", {})
    _template(spec)
    strategy = fill(spec.setdefault("updateStrategy", {}), type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = fill(strategy.get("rollingUpdate") or {}, maxUnavailable=1, maxSurge=0)
    fill(spec, revisionHistoryLimit=10)
    if before is None:
        meta = document["metadata"]
        meta["annotations"] = {**(meta.get("annotations") or {}), _TEMPLATE_GENERATION: "1"}


def _deployment(api: Api, document: Document, before: Document | None) -> None:
    spec = fill(document.setdefault("spec", {}), replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    _template(spec)
    strategy = fill(spec.setdefault("strategy", {}), type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = fill(strategy.get("rollingUpdate") or {}, maxUnavailable="25%", maxSurge="25%")


def _replica_set(api: Api, document: Document, before: Document | None) -> None:
    _template(fill(document.setdefault("spec", {}), replicas=1))


def _stateful_set(api: Api, document: Document, before: Document | None) -> None:
    spec = fill(
        document.setdefault("spec", {}), replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady"
    )
    _template(spec)
    strategy = fill(spec.setdefault("updateStrategy", {}), type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = fill(strategy.get("rollingUpdate") or {}, partition=0)
    fill(spec.setdefault("persistentVolumeClaimRetentionPolicy", {}), whenDeleted="Retain", whenScaled="Retain")


def _job_spec(spec: Document) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        fill(spec, completions=1)
    fill(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False)
    fill(spec, podReplacementPolicy="TerminatingOrFailed")
    _template(spec)


def _job(api: Api, document: Document, before: Document | None) -> None:
    spec = document.setdefault("spec", {})
    _job_spec(spec)
    if spec.get("manualSelector") or before is not None:
        return
    meta = document["metadata"]
    uid = {"batch.kubernetes.io/controller-uid": meta["uid"]}
    legacy = {"controller-uid": meta["uid"], "job-name": meta["name"], "batch.kubernetes.io/job-name": meta["name"]}
    template_meta = spec["template"]["metadata"]
    template_meta["labels"] = {**(template_meta.get("labels") or {}), **uid, **legacy}
    spec["selector"] = {"matchLabels": uid}


def _cron_job(api: Api, document: Document, before: Document | None) -> None:
    spec = fill(document.setdefault("spec", {}), concurrencyPolicy="Allow", suspend=False)
    fill(spec, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    job = spec.setdefault("jobTemplate", {})
    fill(job, metadata={})
    _job_spec(job.setdefault("spec", {}))


def _service(api: Api, document: Document, before: Document | None) -> None:
    spec = fill(document.setdefault("spec", {}), type="ClusterIP", sessionAffinity="None")
    for port in spec.get("ports") or []:
        fill(port, protocol="TCP")
        fill(port, targetPort=port.get("port"))
    if spec["type"] == "ExternalName":
        return
    fill(spec, internalTrafficPolicy="Cluster", ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    if not spec.get("clusterIP"):
        held = (before or {}).get("spec", {}).get("clusterIP")
        spec["clusterIP"] = held or _free_address(api)
    fill(spec, clusterIPs=[spec["clusterIP"]])


def _free_address(api: Api) -> str:
    services = api.store.table(resources.SERVICES.storage).values(None)
    taken = {item.document["spec"].get("clusterIP") for item in services}
    first = int(_SERVICE_RANGE.network_address) + 10
    return next(text for text in _addresses(first) if text not in taken)


def _addresses(first: int) -> Iterable[str]:
    for number in range(first, int(_SERVICE_RANGE.broadcast_address)):
        yield str(ipaddress.ip_address(number))


def _secret(api: Api, document: Document, before: Document | None) -> None:
    fill(document, type="Opaque")
    texts = document.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in texts.items()}
        document["data"] = {**(document.get("data") or {}), **encoded}


def _namespace(api: Api, document: Document, before: Document | None) -> None:
    meta = document["metadata"]
    meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    if before is None:
        document["spec"] = {"finalizers": ["kubernetes"]}


def _node(api: Api, document: Document, before: Document | None) -> None:
    document.setdefault("spec", {})
    if before is None and isinstance(document.get("status"), dict):
        fill(document["status"], daemonEndpoints={"kubeletEndpoint": {"Port": 0}})


def _binding(api: Api, document: Document, before: Document | None) -> None:
    fill(document.setdefault("roleRef", {}), apiGroup=_RBAC)
    for subject in document.get("subjects") or []:
        if subject.get("kind") != "ServiceAccount":
            fill(subject, apiGroup=_RBAC)


def _priority_class(api: Api, document: Document, before: Document | None) -> None:
    fill(document, preemptionPolicy="PreemptLowerPriority")


def _crd(api: Api, document: Document, before: Document | None) -> None:
    spec = document.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if names.get("kind"):
        fill(names, singular=names["kind"].lower(), listKind=names["kind"] + "List")
    fill(spec, conversion={"strategy": "None"})
    if before is None:
        document["status"] = {"conditions": [], "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": []}


def _claim(api: Api, document: Document, before: Document | None) -> None:
    fill(document.setdefault("spec", {}), volumeMode="Filesystem")


def _storage_class(api: Api, document: Document, before: Document | None) -> None:
    fill(document, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _endpoint_slice(api: Api, document: Document, before: Document | None) -> None:
    for port in document.get("ports") or []:
        fill(port, name="", protocol="TCP")


_RULES: dict[tuple[str, str], Rule] = {
    ("", "pods"): _pod,
    ("", "services"): _service,
    ("", "secrets"): _secret,
    ("", "namespaces"): _namespace,
    ("", "nodes"): _node,
    ("", "persistentvolumeclaims"): _claim,
    ("", "replicationcontrollers"): _replica_set,
    ("apps", "daemonsets"): _daemon_set,
    ("apps", "deployments"): _deployment,
    ("apps", "replicasets"): _replica_set,
    ("apps", "statefulsets"): _stateful_set,
    ("batch", "jobs"): _job,
    ("batch", "cronjobs"): _cron_job,
    (_RBAC, "rolebindings"): _binding,
    (_RBAC, "clusterrolebindings"): _binding,
    ("scheduling.k8s.io", "priorityclasses"): _priority_class,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _crd,
    ("storage.k8s.io", "storageclasses"): _storage_class,
    ("discovery.k8s.io", "endpointslices"): _endpoint_slice,
}

_NEW_STATUS: dict[tuple[str, str], Document] = {
    ("", "namespaces"): {"phase": "Active"},
    ("", "services"): {"loadBalancer": {}},
    ("", "persistentvolumeclaims"): {"phase": "Pending"},
    ("apps", "daemonsets"): {
        "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0,
    },
    ("apps", "deployments"): {},
    ("apps", "replicasets"): {"replicas": 0},
    ("apps", "statefulsets"): {"availableReplicas": 0, "replicas": 0},
    ("batch", "jobs"): {},
    ("policy", "poddisruptionbudgets"): {
        "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
    },
}  # fmt: skip
