"""Label selectors (text and objects) and field selectors, parsed once and then matched against many objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from . import label_syntax, status
from .names_rules import label_key_problem, label_value_problem
from .resources import Resource

Labels = Mapping[str, str]


class Requirement(msgspec.Struct, frozen=True):
    """One term. `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels fulfils the term."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        return value is not None and _compare(value, self.operator, self.values[0])


def _compare(value: str, operator: str, bound: str) -> bool:
    try:
        left, right = int(value), int(bound)
    except ValueError:
        return False
    return left > right if operator == "Gt" else left < right


class LabelSelector(msgspec.Struct, frozen=True):
    """A conjunction of requirements; an empty one matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels | None) -> bool:
        """Whether all terms hold."""
        known = labels or {}
        return all(requirement.matches(known) for requirement in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)


def parse_labels(text: str | None) -> LabelSelector:
    """Parse the `labelSelector` query parameter; 400 with the server's text when it is malformed."""
    if not text:
        return LabelSelector()
    try:
        terms = label_syntax.parse(text)
    except label_syntax.SelectorError as error:
        raise status.bad_request(str(error)) from error
    return LabelSelector(tuple(_requirement(*term) for term in terms))


def _requirement(key: str, operator: str, values: tuple[str, ...]) -> Requirement:
    if problem := label_key_problem(key):
        raise _unparsable(f'<nil>: Invalid value: "{key}": {problem}')
    for index, value in enumerate(values):
        if problem := label_value_problem(value):
            raise _unparsable(f'values[{index}][{key}]: Invalid value: "{value}": {problem}')
        if operator in ("Gt", "Lt") and not re.fullmatch(r"-?\d+", value):
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _unparsable(f'values[{index}]: Invalid value: "{value}": {why}')
    return Requirement(key, operator, values)


def _unparsable(why: str) -> status.StatusError:
    return status.bad_request(f"unable to parse requirement: {why}")


def from_object(selector: Mapping[str, Any] | None) -> LabelSelector | None:
    """Return the selector of a `LabelSelector` object; None for a missing one, which matches nothing."""
    if selector is None:
        return None
    terms = [Requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    terms += [
        Requirement(term["key"], term["operator"], tuple(term.get("values") or ()))
        for term in selector.get("matchExpressions") or []
    ]
    return LabelSelector(tuple(terms))


Read = Callable[[Mapping[str, Any]], str]


def _at(*path: str, default: str = "") -> Read:
    def read(document: Mapping[str, Any]) -> str:
        value: Any = document
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return default
        return str(value).lower() if isinstance(value, bool) else str(value)

    return read


def _involved(*fields: str) -> dict[str, Read]:
    return {f"involvedObject.{field}": _at("involvedObject", field) for field in fields}


_COMMON: dict[str, Read] = {
    "metadata.name": _at("metadata", "name"),
    "metadata.namespace": _at("metadata", "namespace"),
}
_EVENT: dict[str, Read] = {
    **_involved("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"),
    "reason": _at("reason"),
    "reportingComponent": _at("reportingComponent"),
    "source": _at("source", "component"),
    "type": _at("type"),
}
_BY_RESOURCE: dict[tuple[str, str], dict[str, Read]] = {
    ("", "pods"): {
        "spec.nodeName": _at("spec", "nodeName"),
        "spec.restartPolicy": _at("spec", "restartPolicy"),
        "spec.schedulerName": _at("spec", "schedulerName"),
        "spec.serviceAccountName": _at("spec", "serviceAccountName"),
        "spec.hostNetwork": _at("spec", "hostNetwork", default="false"),
        "status.phase": _at("status", "phase"),
        "status.podIP": _at("status", "podIP"),
        "status.nominatedNodeName": _at("status", "nominatedNodeName"),
    },
    ("", "nodes"): {"spec.unschedulable": _at("spec", "unschedulable", default="false")},
    ("", "secrets"): {"type": _at("type")},
    ("", "namespaces"): {"status.phase": _at("status", "phase")},
    ("", "events"): _EVENT,
    ("events.k8s.io", "events"): {
        **_EVENT,
        **{f"regarding.{name.partition('.')[2]}": read for name, read in _EVENT.items() if "." in name},
        "reportingController": _at("reportingComponent"),
    },
    ("batch", "jobs"): {"status.successful": _at("status", "succeeded", default="0")},
    ("apps", "replicasets"): {"status.replicas": _at("status", "replicas", default="0")},
    ("", "services"): {"spec.clusterIP": _at("spec", "clusterIP"), "spec.type": _at("spec", "type")},
}


class FieldSelector:
    """A conjunction of `field=value` and `field!=value` terms."""

    __slots__ = ("exact_name", "exact_namespace", "terms")

    def __init__(
        self, terms: Sequence[tuple[Read, bool, str]] = (), name: str | None = None, space: str | None = None
    ) -> None:
        self.terms = tuple(terms)
        self.exact_name = name
        self.exact_namespace = space

    def matches(self, document: Mapping[str, Any]) -> bool:
        """Whether all terms hold."""
        return all((read(document) == value) is equal for read, equal, value in self.terms)

    def __bool__(self) -> bool:
        return bool(self.terms)


def parse_fields(text: str | None, resource: Resource) -> FieldSelector:
    """Parse the `fieldSelector` query parameter; 400 for a malformed term or a label the kind does not support."""
    if not text:
        return FieldSelector()
    known = _COMMON if resource.namespaced else {"metadata.name": _COMMON["metadata.name"]}
    known = {**known, **_BY_RESOURCE.get(resource.id, {}), **_selectable(resource)}
    terms: list[tuple[Read, bool, str]] = []
    exact: dict[str, str] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^=!]+?)\s*(==|=|!=)\s*(.*?)\s*", part)
        if match is None:
            raise status.bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        name, operator, value = match.groups()
        if name not in known:
            raise status.bad_request(_unknown_field(name, resource))
        if "=" in value:
            raise status.bad_request(f"invalid field selector: unescaped character in value: {ord('=')}")
        terms.append((known[name], operator != "!=", value))
        if operator != "!=":
            exact[name] = value
    return FieldSelector(terms, exact.get("metadata.name"), exact.get("metadata.namespace"))


def _unknown_field(name: str, resource: Resource) -> str:
    if resource.custom or resource.id in _BY_RESOURCE:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def _selectable(resource: Resource) -> dict[str, Read]:
    """Fields that a custom resource definition declares as selectable."""
    return {path.lstrip("."): _at(*path.lstrip(".").split(".")) for path in resource.selectable}
