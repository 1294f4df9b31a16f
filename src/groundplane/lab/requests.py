"""What a request wants, read from its method, path and query: the API's URL scheme as a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from multidict import MultiDict

from . import objects, status
from .registry import Registry
from .resources import Resource
from .status import Cause

_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VALIDATIONS = ("", "Ignore", "Strict", "Warn")
_POLICIES = ("Foreground", "Background", "Orphan")
_MANAGER_LIMIT = 128
_STREAMED = ("exec", "attach", "portforward")
_PROXY = "proxy"


class Target(msgspec.Struct, frozen=True):
    """The resource a request is about, and the verb as the API means it.

    ``path`` is what a request through a pod's proxy asks of the pod.
    """

    verb: str
    resource: Resource
    namespace: str
    name: str
    subresource: str
    path: str = ""


def truthy(value: str | None) -> bool:
    """Whether a query parameter says yes."""
    return value in ("true", "1", "True")


def option_problems(query: MultiDict[str]) -> list[Cause]:
    """Return what is wrong with the parameters that all writes share: dryRun, fieldManager, fieldValidation."""
    causes = dry_run_problems(query.getall("dryRun", []))
    manager, validation = query.get("fieldManager", ""), query.get("fieldValidation", "")
    if len(manager.encode()) > _MANAGER_LIMIT:
        causes.append(objects.too_long("fieldManager", _MANAGER_LIMIT))
    for position, char in enumerate(manager):
        if not char.isprintable():
            why = f"invalid character U+{ord(char):04X} (at position {position})"
            causes.append(objects.invalid("fieldManager", manager, why))
            break
    if validation not in _VALIDATIONS:
        causes.append(objects.not_supported("fieldValidation", validation, _VALIDATIONS))
    return causes


def deletion_problems(options: Mapping[str, Any]) -> list[Cause]:
    """Return what is wrong with the options of a deletion."""
    causes = dry_run_problems(options.get("dryRun") or [])
    policy = options.get("propagationPolicy")
    if policy is not None and policy not in _POLICIES:
        texts = ", ".join(f'"{item}"' for item in (*_POLICIES, "nil"))
        text = f"Unsupported value: {objects.quoted(policy)}: supported values: {texts}"
        causes.append(Cause("FieldValueNotSupported", text, "propagationPolicy"))
    elif policy is not None and options.get("orphanDependents") is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(objects.invalid("propagationPolicy", policy, text))
    return causes


def dry_run_problems(asked: list[str]) -> list[Cause]:
    """Return what is wrong with dryRun, of which `All` is the only value."""
    if any(value not in ("", "All") for value in asked):
        return [objects.not_supported("dryRun", asked, ("All",))]
    return []


def parse(registry: Registry, method: str, path: str, query: Mapping[str, str]) -> Target | None:
    """Return what a path below /api or /apis addresses; None for paths that are no resource. Raises the 404 or 405."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace, rest = _namespace(rest)
    if len(rest) > 3 and rest[2] != _PROXY:
        raise status.no_such_path()
    resource = registry.find(rest[0], group, version)
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    _check_scope(resource, namespace, name, method)
    if subresource and subresource not in resource.subresources:
        raise status.no_such_path()
    verb = _verb(method, name, subresource, query, resource)
    behind = path.partition(f"/{name}/{_PROXY}")[2] or "/" if subresource == _PROXY else ""
    return Target(verb, resource, namespace, name, subresource, behind)


def _namespace(rest: list[str]) -> tuple[str, list[str]]:
    """Split off `namespaces/<name>`, unless it addresses the namespace itself."""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        return rest[1], rest[2:]
    return "", rest


def _check_scope(resource: Resource, namespace: str, name: str, method: str) -> None:
    if namespace and not resource.namespaced:
        raise status.no_such_path()
    if resource.namespaced and not namespace and (name or method == "DELETE"):
        raise status.no_such_path()
    if resource.namespaced and not namespace and method == "POST":
        raise status.method_not_supported()


def _verb(method: str, name: str, subresource: str, query: Mapping[str, str], resource: Resource) -> str:
    verb = _VERBS.get(method)
    if verb is None:
        raise status.method_not_supported()
    if subresource in _STREAMED:
        return "create"
    if subresource == _PROXY and verb != "get":
        raise status.method_not_supported()
    if verb == "get" and not name:
        verb = "watch" if truthy(query.get("watch")) else "list"
    elif verb == "delete" and not name:
        verb = "deletecollection"
    if verb in ("update", "patch") and not name:
        raise status.method_not_supported()
    if not subresource and verb not in resource.verbs:
        raise status.method_not_supported()
    return verb
