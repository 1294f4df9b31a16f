"""What objects must look like, and what updates may not change, kind by kind.

A rule returns `Cause`s with field paths in the API server's words. Custom resources are validated by `crd_rules`.
Missing fields that the API marks as required are found generically from the schema.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import crd, crd_rules, names_rules, pod_validation, selectors
from .objects import Document, duplicate, invalid, not_supported, refused, required, too_long
from .resources import Resource
from .schema import types
from .schema.types import Schema
from .status import Cause

if TYPE_CHECKING:
    from .api import Api

Rule = Callable[[Document, Document | None], Iterator[Cause]]
_RBAC = "rbac.authorization.k8s.io"
_IMMUTABLE = "field is immutable"
_SKIPPED = frozenset({"metadata", "status", "apiVersion", "kind"})


def problems(
    api: Api, res: Resource, document: Document, before: Document | None, subresource: str = ""
) -> list[Cause]:
    """Return everything that is wrong with an object; parts that are as they were are not looked at again."""
    if res.custom:
        if before is not None and all(document.get(k) is before.get(k) for k in document if k != "metadata"):
            return []
        return crd_rules.problems(api.registry.schema(res), document, before)
    if subresource == "status":
        return []
    keys = (document.keys() | (before or {}).keys()) - _SKIPPED
    if before is not None and all(document.get(key) is before.get(key) for key in keys):
        return []
    causes = list(missing(api.registry.schema(res), document))
    rule = _RULES.get(res.id)
    if rule is not None and not causes:
        causes = list(rule(document, before))
    return causes


def missing(schema: Schema, document: Document) -> Iterator[Cause]:
    """Yield required strings, lists and objects that are missing outside metadata and status."""
    for key, field in schema.fields.items():
        if key in _SKIPPED:
            continue
        value = document.get(key)
        if value is None:
            if field.required and _counts(field.schema):
                yield required(key)
        else:
            yield from _missing(field.schema, value, key)


def _counts(schema: Schema) -> bool:
    if schema.name in ("RawExtension", "MicroTime", "Time", "ObjectReference", "NodeSelectorTerm", "ObjectMeta"):
        return False
    return schema.type in (types.STRING, types.ARRAY, types.OBJECT)


def _missing(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, dict) and schema.type == types.OBJECT and not schema.open:
        for key, below, needed, deeper in _worth_a_look(schema):
            held = value.get(key)
            if held is None or (held == "" and needed):
                if needed and _counts(below):
                    yield required(f"{path}.{key}")
            elif deeper:
                yield from _missing(below, held, f"{path}.{key}")
    elif isinstance(value, list) and _can_miss(schema.items):
        for index, item in enumerate(value):
            yield from _missing(schema.items, item, f"{path}[{index}]")


@functools.cache
def _worth_a_look(schema: Schema) -> tuple[tuple[str, Schema, bool, bool], ...]:
    """The fields of an object that are required, or below which something is: (name, type, required, look below)."""
    needed = {
        key: bool(field.required) and (schema.name, key) not in _MAY_BE_EMPTY for key, field in schema.fields.items()
    }
    deeper = {key: key != "metadata" and _can_miss(field.schema) for key, field in schema.fields.items()}
    return tuple(
        (key, field.schema, needed[key], deeper[key])
        for key, field in schema.fields.items()
        if needed[key] or deeper[key]
    )


def _can_miss(schema: Schema, above: frozenset[int] = frozenset()) -> bool:
    """Whether a value of this type may lack something required; types that contain themselves are looked into once."""
    if schema.type == types.ARRAY:
        return _can_miss(schema.items, above)
    if schema.type != types.OBJECT or schema.open or id(schema) in above:
        return False
    known = _CAN_MISS.get(schema)
    if known is None:
        inside = above | {id(schema)}
        known = any(
            (field.required and (schema.name, key) not in _MAY_BE_EMPTY) or _can_miss(field.schema, inside)
            for key, field in schema.fields.items()
        )
        if known or not above:
            _CAN_MISS[schema] = known
    return known


_CAN_MISS: dict[Schema, bool] = {}


_MAY_BE_EMPTY = frozenset(
    {("RoleRef", "apiGroup"), ("PodTemplateSpec", "metadata"), ("LabelSelectorRequirement", "values"),
     ("CustomResourceDefinitionNames", "listKind"), ("HTTPHeader", "value"), ("EnvVar", "value"),
     ("Overhead", "podFixed"),
     ("DaemonSetSpec", "template"),
     ("DaemonSetSpec", "selector"), ("JobSpec", "template"), ("ResourceFieldSelector", "divisor"),
     ("EndpointSlice", "endpoints"), ("PolicyRule", "verbs"), ("CustomResourceDefinitionSpec", "group"),
     ("CustomResourceDefinitionSpec", "scope"), ("CustomResourceDefinitionNames", "plural"),
     ("CustomResourceDefinitionNames", "kind"), ("VolumeMount", "name")}
)  # fmt: skip
"""Fields the schema calls required although an empty or missing value is accepted, defaulted or judged by a rule."""


def immutable(document: Document, before: Document | None, *path: str) -> Iterator[Cause]:
    """Yield a cause when a field differs from the stored object's."""
    if before is None:
        return
    old, new = _at(before, path), _at(document, path)
    if old != new:
        yield invalid(".".join(path), new, _IMMUTABLE)


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def label_selector(selector: Document | None, path: str) -> Iterator[Cause]:
    """Yield what is wrong with a LabelSelector."""
    for key, value in ((selector or {}).get("matchLabels") or {}).items():
        if problem := names_rules.label_key_problem(key):
            yield invalid(f"{path}.matchLabels", key, problem)
        if problem := names_rules.label_value_problem(value):
            yield invalid(f"{path}.matchLabels", value, problem)
    for index, term in enumerate((selector or {}).get("matchExpressions") or []):
        here = f"{path}.matchExpressions[{index}]"
        operator, values = term.get("operator"), term.get("values") or []
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            yield invalid(f"{here}.operator", operator, "not a valid selector operator")
        elif operator in ("In", "NotIn") and not values:
            yield required(f"{here}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist") and values:
            yield refused(f"{here}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")


def _workload(
    document: Document, before: Document | None, *, restart: tuple[str, ...] = ("Always",)
) -> Iterator[Cause]:
    """Rules that workloads share: the selector matches the template's labels, and never changes."""
    spec = document["spec"]
    yield from label_selector(spec.get("selector"), "spec.selector")
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    matcher = selectors.from_object(spec.get("selector"))
    if matcher is not None and not matcher:
        yield invalid("spec.selector", spec.get("selector"), "empty selector is invalid for this kind")
    elif matcher is not None and not matcher.matches(labels):
        yield invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    yield from immutable(document, before, "spec", "selector")
    if before is None or before["spec"].get("template") != template:
        yield from pod_validation.template(template, "spec.template", restart)


def _daemon_set(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from _workload(document, before)
    if document["spec"].get("selector") is None:
        labels = (document["spec"]["template"].get("metadata") or {}).get("labels") or {}
        yield invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    strategy = document["spec"]["updateStrategy"]
    path = "spec.updateStrategy"
    if strategy["type"] not in ("RollingUpdate", "OnDelete"):
        yield not_supported(path, strategy["type"], ("RollingUpdate", "OnDelete"))
    elif strategy["type"] == "RollingUpdate":
        yield from _rollout(strategy["rollingUpdate"], f"{path}.rollingUpdate", surge_excludes=True)


def _rollout(rolling: Document, path: str, *, surge_excludes: bool = False) -> Iterator[Cause]:
    values = {}
    for name in ("maxUnavailable", "maxSurge"):
        value = rolling.get(name, 0)
        text = str(value).removesuffix("%")
        if not text.isdigit() or (isinstance(value, str) and not value.endswith("%")):
            yield invalid(
                f"{path}.{name}", value, "a valid percent string must be a numeric string followed by an ending '%'"
            )
            return
        values[name] = int(text)
    if not any(values.values()) and surge_excludes:
        yield required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")
    elif not any(values.values()):
        yield invalid(f"{path}.maxUnavailable", rolling.get("maxUnavailable"), "may not be 0 when `maxSurge` is 0")
    if surge_excludes and all(values.values()):
        yield invalid(f"{path}.maxSurge", rolling.get("maxSurge"), "may not be set when maxUnavailable is non-zero")


def _deployment(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from _workload(document, before)
    yield from _replicas(document["spec"])
    strategy = document["spec"]["strategy"]
    if strategy["type"] not in ("RollingUpdate", "Recreate"):
        yield not_supported("spec.strategy.type", strategy["type"], ("RollingUpdate", "Recreate"))
    elif strategy["type"] == "RollingUpdate":
        yield from _rollout(strategy["rollingUpdate"], "spec.strategy.rollingUpdate")
    elif strategy.get("rollingUpdate"):
        text = "may not be specified when strategy `type` is 'Recreate'"
        yield refused("spec.strategy.rollingUpdate", text)


def _replica_set(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from _workload(document, before)
    yield from _replicas(document["spec"])


def _replicas(spec: Document) -> Iterator[Cause]:
    if spec.get("replicas", 0) < 0:
        yield invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0")


def _job(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from _workload(document, before, restart=("OnFailure", "Never"))
    yield from immutable(document, before, "spec", "completions")
    yield from immutable(document, before, "spec", "template")
    for name in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        value = document["spec"].get(name, 0)
        if value < 0:
            yield invalid(f"spec.{name}", value, "must be greater than or equal to 0")


def _controller_revision(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from immutable(document, before, "data")


def _config_map(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from _data(document, ("data", "binaryData"))
    yield from _frozen(document, before, ("data", "binaryData"))


def _secret(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from _data(document, ("data",))
    yield from _frozen(document, before, ("data",))
    yield from immutable(document, before, "type")


def _data(document: Document, parts: tuple[str, ...]) -> Iterator[Cause]:
    seen: set[str] = set()
    for part in parts:
        for key in document.get(part) or {}:
            if problem := names_rules.config_key_problem(key):
                yield invalid(f"{part}[{key}]", key, problem)
            if key in seen:
                yield invalid(f"{part}[{key}]", key, "duplicate of key present in data")
            seen.add(key)
    encoded = parts[-1]  # Secrets hold all values in base64, ConfigMaps those in binaryData
    size = sum(
        _decoded_size(value) if part == encoded else len(value.encode())
        for part in parts
        for value in (document.get(part) or {}).values()
    )
    if size > _DATA_LIMIT:
        yield too_long("data" if len(parts) == 1 else "", _DATA_LIMIT)


_DATA_LIMIT = 1 << 20


def _decoded_size(text: str) -> int:
    """The number of bytes that a base64 text stands for."""
    return len(text) * 3 // 4 - text[-2:].count("=")


def _frozen(document: Document, before: Document | None, parts: tuple[str, ...]) -> Iterator[Cause]:
    if before is None or not before.get("immutable"):
        return
    text = "field is immutable when `immutable` is set"
    for part in ("immutable", *parts):
        if document.get(part) != before.get(part):
            yield refused(part, text)


def _service(document: Document, before: Document | None) -> Iterator[Cause]:
    spec = document["spec"]
    if spec["type"] not in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"):
        yield not_supported("spec.type", spec["type"], ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    ports = spec.get("ports") or []
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield required("spec.ports")
    names: set[str] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        if not 1 <= port.get("port", 0) <= 65535:
            yield invalid(f"{path}.port", port.get("port", 0), "must be between 1 and 65535, inclusive")
        if port["protocol"] not in ("TCP", "UDP", "SCTP"):
            yield not_supported(f"{path}.protocol", port["protocol"], ("SCTP", "TCP", "UDP"))
        name = port.get("name", "")
        if len(ports) > 1 and not name:
            yield required(f"{path}.name")
        elif name in names:
            yield duplicate(f"{path}.name", name)
        names.add(name)
    if before is not None and before["spec"].get("type") != "ExternalName" and spec["type"] != "ExternalName":
        held, given = before["spec"].get("clusterIP"), spec.get("clusterIP")
        if held and held != given:
            yield invalid("spec.clusterIPs[0]", spec.get("clusterIPs") or [given], "may not change once set")


def _role(document: Document, before: Document | None) -> Iterator[Cause]:
    for index, rule in enumerate(document.get("rules") or []):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            yield required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            continue
        if not rule.get("apiGroups"):
            yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield required(f"{path}.resources", "resource rules must supply at least one resource")


def _role_binding(document: Document, before: Document | None) -> Iterator[Cause]:
    reference = document["roleRef"]
    kinds = ("Role", "ClusterRole") if document["metadata"].get("namespace") else ("ClusterRole",)
    if reference.get("apiGroup") != _RBAC:
        yield not_supported("roleRef.apiGroup", reference.get("apiGroup"), (_RBAC,))
    if reference.get("kind") not in kinds:
        yield not_supported("roleRef.kind", reference.get("kind"), kinds)
    if before is not None and before["roleRef"] != reference:
        yield invalid("roleRef", reference, "field is immutable")
    for index, subject in enumerate(document.get("subjects") or []):
        path = f"subjects[{index}]"
        if subject.get("kind") not in ("ServiceAccount", "User", "Group"):
            yield not_supported(f"{path}.kind", subject.get("kind"), ("Group", "ServiceAccount", "User"))
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            yield required(f"{path}.namespace")


def _node(document: Document, before: Document | None) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(document.get("spec", {}).get("taints") or []):
        path = f"spec.taints[{index}]"
        if problem := names_rules.label_key_problem(taint.get("key", "")):
            yield invalid(f"{path}.key", taint.get("key", ""), problem)
        effect = taint.get("effect", "")
        if effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            yield not_supported(f"{path}.effect", effect, ("NoExecute", "NoSchedule", "PreferNoSchedule"))
        if (taint.get("key", ""), effect) in seen:
            yield duplicate(path, taint.get("key", ""))
        seen.add((taint.get("key", ""), effect))
    if before is not None and before["spec"].get("providerID"):
        yield from immutable(document, before, "spec", "providerID")


def _runtime_class(document: Document, before: Document | None) -> Iterator[Cause]:
    handler = document.get("handler", "")
    if problem := names_rules.label_name_problem(handler):
        yield invalid("handler", handler, problem)
    yield from immutable(document, before, "handler")


def _budget(document: Document, before: Document | None) -> Iterator[Cause]:
    spec = document.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    yield from label_selector(spec.get("selector"), "spec.selector")


def _priority_class(document: Document, before: Document | None) -> Iterator[Cause]:
    name, value = document["metadata"]["name"], document.get("value", 0)
    if value > 1_000_000_000 and not name.startswith("system-"):
        yield refused("value", "maximum allowed value of a user defined priority is 1000000000")
    yield from immutable(document, before, "value")
    yield from immutable(document, before, "preemptionPolicy")


def _lease(document: Document, before: Document | None) -> Iterator[Cause]:
    spec = document.get("spec") or {}
    if spec.get("leaseDurationSeconds", 1) <= 0:
        yield invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")


def _event(document: Document, before: Document | None) -> Iterator[Cause]:
    involved = document.get("involvedObject") or document.get("regarding") or {}
    space, held = document["metadata"].get("namespace", ""), involved.get("namespace") or "default"
    if held != space and (involved.get("namespace") or space not in ("default", "kube-system", "")):
        yield invalid("involvedObject.namespace", involved.get("namespace", ""), "does not match event.namespace")


def _definition(document: Document, before: Document | None) -> Iterator[Cause]:
    yield from crd.problems(document)
    for path in (("spec", "group"), ("spec", "scope"), ("spec", "names", "plural"), ("spec", "names", "kind")):
        yield from immutable(document, before, *path)


_RULES: dict[tuple[str, str], Rule] = {
    ("", "pods"): pod_validation.pod,
    ("", "nodes"): _node,
    ("", "configmaps"): _config_map,
    ("", "secrets"): _secret,
    ("", "services"): _service,
    ("", "events"): _event,
    ("events.k8s.io", "events"): _event,
    ("apps", "daemonsets"): _daemon_set,
    ("apps", "deployments"): _deployment,
    ("apps", "replicasets"): _replica_set,
    ("apps", "statefulsets"): _replica_set,
    ("apps", "controllerrevisions"): _controller_revision,
    ("batch", "jobs"): _job,
    (_RBAC, "roles"): _role,
    (_RBAC, "clusterroles"): _role,
    (_RBAC, "rolebindings"): _role_binding,
    (_RBAC, "clusterrolebindings"): _role_binding,
    ("node.k8s.io", "runtimeclasses"): _runtime_class,
    ("policy", "poddisruptionbudgets"): _budget,
    ("scheduling.k8s.io", "priorityclasses"): _priority_class,
    ("coordination.k8s.io", "leases"): _lease,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _definition,
}
