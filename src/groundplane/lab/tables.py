"""Tables for `kubectl get`: the columns of each kind, and custom resources' printer columns.

A column is (name, type, priority, cell): priority 0 is always shown, 1 only with `-o wide`. A cell is a function of the
object and the present time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec

from . import jsonpath, pod_table
from .objects import Document
from .resources import Resource
from .table_cells import age, duration, joined, of_count, path, selector_text, since

Cell = Callable[[Document, datetime], Any]


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    format: str = ""


def _columns(*entries: tuple[Any, ...]) -> tuple[Column, ...]:
    return tuple(Column(*entry) for entry in entries)


def _text(*keys: str, default: Any = "") -> Cell:
    return lambda obj, now: path(obj, *keys, default=default)


def _containers(field: str, *keys: str) -> Cell:
    return lambda obj, now: ",".join(str(c.get(field, "")) for c in path(obj, *keys, "containers", default=[]))


NAME = Column("Name", _text("metadata", "name"), format="name")
AGE = Column("Age", age)
_TEMPLATE = ("spec", "template", "spec")
_IMAGES = (
    ("Containers", _containers("name", *_TEMPLATE), "string", 1),
    ("Images", _containers("image", *_TEMPLATE), "string", 1),
    ("Selector", lambda obj, now: selector_text(path(obj, "spec", "selector")), "string", 1),
)


def _number(*keys: str) -> Cell:
    return _text(*keys, default=0)


def _pair(left: tuple[str, ...], right: tuple[str, ...]) -> Cell:
    return lambda obj, now: f"{path(obj, *left, default=0)}/{path(obj, *right, default=0)}"


def _node_status(obj: Document, now: datetime) -> str:
    conditions = {item["type"]: item["status"] for item in path(obj, "status", "conditions", default=[])}
    ready = conditions.get("Ready")
    text = "Unknown" if ready not in ("True", "False") else "Ready" if ready == "True" else "NotReady"
    return text + (",SchedulingDisabled" if path(obj, "spec", "unschedulable", default=False) else "")


def _node_roles(obj: Document, now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = path(obj, "metadata", "labels", default={})
    found = sorted({key.removeprefix(prefix) for key in labels if key.startswith(prefix)} - {""})
    return ",".join(found) or "<none>"


def _node_address(kind: str) -> Cell:
    def cell(obj: Document, now: datetime) -> str:
        found = [item["address"] for item in path(obj, "status", "addresses", default=[]) if item["type"] == kind]
        return found[0] if found else "<none>"

    return cell


def _node_info(key: str) -> Cell:
    return _text("status", "nodeInfo", key, default="<unknown>")


def _node_selector(obj: Document, now: datetime) -> str:
    found = path(obj, "spec", "template", "spec", "nodeSelector", default={})
    return ",".join(f"{key}={value}" for key, value in sorted(found.items())) or "<none>"


def _job_status(obj: Document, now: datetime) -> str:
    held = [item["type"] for item in path(obj, "status", "conditions", default=[]) if item["status"] == "True"]
    for kind in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if kind in held:
            return kind
    return "Terminating" if path(obj, "metadata", "deletionTimestamp") else "Running"


def _job_duration(obj: Document, now: datetime) -> str:
    start, end = path(obj, "status", "startTime"), path(obj, "status", "completionTime")
    return duration(start, end, now) if start else ""


def _ports(obj: Document, now: datetime) -> str:
    texts = []
    for port in path(obj, "spec", "ports", default=[]):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        texts.append(f"{port['port']}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(texts) or "<none>"


def _external(obj: Document, now: datetime) -> str:
    if path(obj, "spec", "type") == "LoadBalancer":
        found = path(obj, "status", "loadBalancer", "ingress", default=[])
        return joined(item.get("ip") or item.get("hostname") for item in found) or "<pending>"
    return ",".join(path(obj, "spec", "externalIPs", default=[])) or "<none>"


def _event_object(obj: Document, now: datetime) -> str:
    involved = obj.get("involvedObject") or obj.get("regarding") or {}
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _event_seen(obj: Document, now: datetime) -> str:
    moment = path(obj, "series", "lastObservedTime") or obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp")
    return since(moment or obj.get("eventTime") or obj.get("firstTimestamp"), now)


def _event_message(obj: Document, now: datetime) -> str:
    return str(obj.get("message") or obj.get("note") or "").strip()


def _role_ref(obj: Document, now: datetime) -> str:
    return f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"


def _subjects(kind: str) -> Cell:
    def cell(obj: Document, now: datetime) -> str:
        found = [item for item in obj.get("subjects") or [] if item["kind"] == kind]
        return joined(f"{s['namespace']}/{s['name']}" if kind == "ServiceAccount" else s["name"] for s in found)

    return cell


def _controller(obj: Document, now: datetime) -> str:
    owners = path(obj, "metadata", "ownerReferences", default=[])
    held = next((item for item in owners if item.get("controller")), None)
    if held is None:
        return "<none>"
    group = held["apiVersion"].partition("/")[0] if "/" in held["apiVersion"] else ""
    return f"{held['kind'].lower()}{'.' + group if group else ''}/{held['name']}"


def _established(obj: Document, now: datetime) -> str:
    return str(path(obj, "metadata", "creationTimestamp", default=""))


def _versions(obj: Document, now: datetime) -> str:
    """The served versions; the stored one is marked."""
    versions = path(obj, "spec", "versions", default=[])
    return joined(item["name"] + "(storage)" * bool(item.get("storage")) for item in versions if item.get("served"))


def _short_names(obj: Document, now: datetime) -> str:
    return joined(path(obj, "spec", "names", "shortNames", default=[]))


def _is_established(obj: Document, now: datetime) -> bool:
    conditions = path(obj, "status", "conditions", default=[])
    return any((item["type"], item["status"]) == ("Established", "True") for item in conditions)


def _namespace_status(obj: Document, now: datetime) -> str:
    return str(path(obj, "status", "phase", default=""))


def _keys(obj: Document, now: datetime) -> int:
    return of_count(obj, "data") + of_count(obj, "binaryData")


_ACCESS = _columns(("Role", _role_ref), ("Age", age), ("Users", _subjects("User"), "string", 1),
                   ("Groups", _subjects("Group"), "string", 1),
                   ("ServiceAccounts", _subjects("ServiceAccount"), "string", 1))  # fmt: skip
_CREATED = _columns(("Created At", _established))
_DEFINITIONS = _columns(("Scope", _text("spec", "scope")), ("Versions", _versions),
                        ("Created At", _established, "date"),
                        ("Group", _text("spec", "group"), "string", 1),
                        ("Kind", _text("spec", "names", "kind"), "string", 1),
                        ("ShortNames", _short_names, "string", 1),
                        ("Established", _is_established, "boolean", 1))  # fmt: skip
_EVENTS = (
    Column("Last Seen", _event_seen),
    Column("Type", _text("type")),
    Column("Reason", _text("reason")),
    Column("Object", _event_object),
    Column("Subobject", _text("involvedObject", "fieldPath"), priority=1),
    Column("Source", _text("source", "component"), priority=1),
    Column("Message", _event_message),
    Column("First Seen", lambda obj, now: since(obj.get("firstTimestamp") or obj.get("eventTime"), now), priority=1),
    Column("Count", lambda obj, now: obj.get("count", 1), priority=1),
    Column("Name", _text("metadata", "name"), format="name", priority=1),
)
_RBAC = "rbac.authorization.k8s.io"
_REPLICA_SET = _columns(
    ("Desired", _number("spec", "replicas"), "integer"), ("Current", _number("status", "replicas"), "integer"),
    ("Ready", _number("status", "readyReplicas"), "integer"), ("Age", age), *_IMAGES,
)  # fmt: skip

COLUMNS: dict[tuple[str, str], tuple[Column, ...]] = {
    ("", "pods"): (NAME, *(Column(*entry) for entry in pod_table.COLUMNS)),
    ("", "nodes"): (NAME, *_columns(
        ("Status", _node_status), ("Roles", _node_roles), ("Age", age), ("Version", _node_info("kubeletVersion")),
        ("Internal-IP", _node_address("InternalIP"), "string", 1),
        ("External-IP", _node_address("ExternalIP"), "string", 1),
        ("OS-Image", _node_info("osImage"), "string", 1), ("Kernel-Version", _node_info("kernelVersion"), "string", 1),
        ("Container-Runtime", _node_info("containerRuntimeVersion"), "string", 1))),
    ("", "namespaces"): (NAME, *_columns(("Status", _namespace_status), ("Age", age))),
    ("", "configmaps"): (NAME, *_columns(("Data", _keys, "integer"), ("Age", age))),
    ("", "secrets"): (NAME, *_columns(("Type", _text("type")), ("Data", _keys, "integer"), ("Age", age))),
    ("", "serviceaccounts"): (NAME, AGE),
    ("", "services"): (NAME, *_columns(
        ("Type", _text("spec", "type")), ("Cluster-IP", _text("spec", "clusterIP", default="<none>")),
        ("External-IP", _external), ("Port(s)", _ports), ("Age", age),
        ("Selector", lambda obj, now: selector_text({"matchLabels": path(obj, "spec", "selector")}), "string", 1))),
    ("", "events"): _EVENTS,
    ("events.k8s.io", "events"): _EVENTS,
    ("apps", "daemonsets"): (NAME, *_columns(
        ("Desired", _number("status", "desiredNumberScheduled"), "integer"),
        ("Current", _number("status", "currentNumberScheduled"), "integer"),
        ("Ready", _number("status", "numberReady"), "integer"),
        ("Up-to-date", _number("status", "updatedNumberScheduled"), "integer"),
        ("Available", _number("status", "numberAvailable"), "integer"),
        ("Node Selector", _node_selector), ("Age", age), *_IMAGES)),
    ("apps", "deployments"): (NAME, *_columns(
        ("Ready", _pair(("status", "readyReplicas"), ("spec", "replicas"))),
        ("Up-to-date", _number("status", "updatedReplicas"), "integer"),
        ("Available", _number("status", "availableReplicas"), "integer"), ("Age", age), *_IMAGES)),
    ("apps", "replicasets"): (NAME, *_REPLICA_SET),
    ("", "replicationcontrollers"): (NAME, *_REPLICA_SET),
    ("apps", "statefulsets"): (NAME, *_columns(
        ("Ready", _pair(("status", "readyReplicas"), ("spec", "replicas"))), ("Age", age), *_IMAGES[:2])),
    ("apps", "controllerrevisions"): (NAME, *_columns(
        ("Controller", _controller), ("Revision", _number("revision"), "integer"), ("Age", age))),
    ("batch", "jobs"): (NAME, *_columns(
        ("Status", _job_status), ("Completions", _pair(("status", "succeeded"), ("spec", "completions"))),
        ("Duration", _job_duration), ("Age", age), *_IMAGES)),
    ("batch", "cronjobs"): (NAME, *_columns(
        ("Schedule", _text("spec", "schedule")),
        ("Suspend", lambda obj, now: str(path(obj, "spec", "suspend")), "boolean"),
        ("Active", lambda obj, now: len(path(obj, "status", "active", default=[])), "integer"),
        ("Last Schedule", lambda obj, now: since(path(obj, "status", "lastScheduleTime"), now, "<none>")),
        ("Age", age))),
    (_RBAC, "roles"): (NAME, *_CREATED),
    (_RBAC, "clusterroles"): (NAME, *_CREATED),
    (_RBAC, "rolebindings"): (NAME, *_ACCESS),
    (_RBAC, "clusterrolebindings"): (NAME, *_ACCESS),
    ("node.k8s.io", "runtimeclasses"): (NAME, *_columns(("Handler", _text("handler")), ("Age", age))),
    ("coordination.k8s.io", "leases"): (NAME, *_columns(("Holder", _text("spec", "holderIdentity")), ("Age", age))),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (NAME, *_DEFINITIONS),
    ("policy", "poddisruptionbudgets"): (NAME, *_columns(
        ("Min Available", _text("spec", "minAvailable", default="N/A")),
        ("Max Unavailable", _text("spec", "maxUnavailable", default="N/A")),
        ("Allowed Disruptions", _number("status", "disruptionsAllowed"), "integer"), ("Age", age))),
    ("scheduling.k8s.io", "priorityclasses"): (NAME, *_columns(
        ("Value", _number("value"), "integer"),
        ("Global-Default", lambda obj, now: bool(obj.get("globalDefault")), "boolean"), ("Age", age),
        ("PreemptionPolicy", _text("preemptionPolicy")))),
    ("storage.k8s.io", "storageclasses"): (NAME, *_columns(
        ("Provisioner", _text("provisioner")), ("ReclaimPolicy", _text("reclaimPolicy")),
        ("VolumeBindingMode", _text("volumeBindingMode")),
        ("AllowVolumeExpansion", lambda obj, now: bool(obj.get("allowVolumeExpansion")), "boolean"), ("Age", age))),
    ("", "persistentvolumeclaims"): (NAME, *_columns(
        ("Status", _text("status", "phase")), ("Volume", _text("spec", "volumeName")),
        ("Capacity", _text("status", "capacity", "storage")),
        ("Access Modes", lambda obj, now: joined(path(obj, "spec", "accessModes", default=[]))),
        ("StorageClass", _text("spec", "storageClassName")), ("Age", age))),
}  # fmt: skip
"""Columns of built-in kinds; other kinds show name and age (custom resources: their printer columns)."""


def columns_of(res: Resource) -> tuple[Column, ...]:
    """Return a resource's columns."""
    if not res.custom:
        return COLUMNS.get(res.id, (NAME, AGE))
    if not res.columns:
        return (NAME, AGE)
    return (NAME, *(_custom(entry) for entry in res.columns))


def _custom(entry: Document) -> Column:
    find = jsonpath.compile_path(entry["jsonPath"])
    kind = entry.get("type", "string")

    def cell(obj: Document, now: datetime) -> Any:
        found = find(obj)
        if not found:
            return None
        if kind == "date":
            return since(found[0], now, "<unknown>")
        if kind in ("integer", "number", "boolean"):
            return found[0]
        return joined(str(item).lower() if isinstance(item, bool) else str(item) for item in found)

    return Column(entry["name"], cell, kind, entry.get("priority", 0), entry.get("format", ""))


def of_objects(
    res: Resource, documents: Iterable[Document], metadata: Document, include: str, now: datetime
) -> Document:
    """Return a Table; `include` is None, Metadata or Object: what each row carries of its object."""
    columns = columns_of(res)
    definitions = [
        {
            "name": column.name, "type": column.type, "format": column.format, "priority": column.priority,
            "description": "",
        }
        for column in columns
    ]  # fmt: skip
    rows = []
    for document in documents:
        row: Document = {"cells": [column.cell(document, now) for column in columns]}
        if include == "Object":
            row["object"] = document
        elif include != "None":
            row["object"] = {
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": document["metadata"],
            }  # fmt: skip
        rows.append(row)
        if not metadata:
            metadata = {"resourceVersion": document["metadata"].get("resourceVersion", "")}
    return {**empty(metadata), "columnDefinitions": definitions, "rows": rows}


def empty(metadata: Document) -> Document:
    """Return a Table without columns and rows."""
    return {
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": [],
    }  # fmt: skip
