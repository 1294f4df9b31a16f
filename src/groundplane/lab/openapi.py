"""OpenAPI v3 documents, one for each group and version, made from the schemas the server itself uses.

kubectl reads them for `explain`, for field validation and for patch strategies. Documents are made when asked for and
kept until what is served changes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from . import discovery
from .objects import Document
from .registry import Registry
from .resources import Resource
from .schema import types
from .schema.types import Field, Schema

_INFO = {"title": "groundplane lab", "version": discovery.version(discovery.VERSION)["gitVersion"]}
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_MODULES = {"": "io.k8s.api.core.v1"}
_PATCHES = (
    "application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)  # fmt: skip
_SCALARS: dict[str, Document] = {
    "": {"type": "string"},
    "int-or-string": {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "date-time": {"type": "string", "format": "date-time"},
    "byte": {"type": "string", "format": "byte"},
}


def _parameter(name: str, kind: str, doc: str) -> Document:
    return {"name": name, "in": "query", "description": doc, "schema": {"type": kind, "uniqueItems": True}}


_WRITE_PARAMETERS = [
    _parameter("dryRun", "string", "Set to All, nothing is persisted."),
    _parameter("fieldManager", "string", "Name of who makes these changes."),
    _parameter("fieldValidation", "string", "How unknown and duplicate fields are treated: Ignore, Warn or Strict."),
]
_FORCE = _parameter("force", "boolean", "Take fields from other managers on conflict; apply only.")


class Documents:
    """The OpenAPI documents of a registry, as JSON."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._cache: dict[str, bytes] = {}

    def answer(self, path: str) -> bytes | None:
        """Return the JSON of a path below /openapi/v3; None when it is none of ours."""
        if not path.startswith("/openapi/v3"):
            return None
        if self._generation != self._registry.generation:
            self._generation = self._registry.generation
            self._cache.clear()
        if path not in self._cache:
            document = self._make(path.removeprefix("/openapi/v3").strip("/"))
            if document is None:
                return None
            self._cache[path] = msgspec.json.encode(document)
        return self._cache[path]

    def _make(self, name: str) -> Document | None:
        if not name:
            return {"paths": {path: {"serverRelativeURL": self._address(path)} for path in self._names()}}
        if name not in self._names():
            return None
        parts = name.split("/")
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        return _Document(self._registry, group, version).build()

    def _names(self) -> list[str]:
        named = [
            f"apis/{group}/{version}"
            for group, all_of in discovery.groups(self._registry).items()
            for version in all_of
        ]
        return ["api/v1", *named]

    def _address(self, path: str) -> str:
        content = f"{path}:{self._registry.generation}"
        return f"/openapi/v3/{path}?hash={hashlib.sha256(content.encode()).hexdigest()[:32].upper()}"


class _Document:
    """One document under construction."""

    def __init__(self, registry: Registry, group: str, version: str) -> None:
        self._registry = registry
        self._group = group
        self._version = version
        self._schemas: dict[str, Document] = {}

    def build(self) -> Document:
        paths: dict[str, Document] = {}
        for resource in self._registry.served(self._group, self._version):
            name = self._root(resource)
            paths.update(_paths(resource, name))
        return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": self._schemas}}

    def _root(self, resource: Resource) -> str:
        schema = self._registry.schema(resource)
        name = _name(schema, resource)
        document = self._object(schema)
        document["x-kubernetes-group-version-kind"] = [_gvk(resource)]
        self._schemas[name] = document
        self._schemas[name + "List"] = _list_schema(resource, name)
        return name

    def _object(self, schema: Schema) -> Document:
        document: Document = {"type": "object"}
        if schema.doc:
            document["description"] = schema.doc
        properties = {key: self._field(field) for key, field in schema.fields.items()}
        if properties:
            document["properties"] = properties
        required = [key for key, field in schema.fields.items() if field.required]
        if required:
            document["required"] = required
        if schema.atomic:
            document["x-kubernetes-map-type"] = "atomic"
        if schema.open or schema.item is not None:
            document["x-kubernetes-preserve-unknown-fields"] = True
        return document

    def _field(self, field: Field) -> Document:
        document = self._of(field.schema)
        if "$ref" in document:
            document = {"allOf": [document], "default": {}}
        document = {**document}
        if field.doc:
            document["description"] = field.doc
        if field.merge_key:
            document["x-kubernetes-patch-merge-key"] = field.merge_key
        if field.strategies:
            document["x-kubernetes-patch-strategy"] = ",".join(field.strategies)
        return document

    def _of(self, schema: Schema) -> Document:
        kind = schema.type
        if kind == types.OBJECT and schema.name and schema.rules is None and not schema.open:
            return {"$ref": f"#/components/schemas/{self._reference(schema)}"}
        if kind == types.OBJECT:
            return {**self._object(schema), **_rules(schema)}
        if kind == types.MAP:
            document: Document = {"type": "object", "additionalProperties": self._of(schema.items), **_rules(schema)}
            return {**document, "x-kubernetes-map-type": "atomic"} if schema.atomic else document
        if kind == types.ARRAY:
            document = {"type": "array", "items": self._of(schema.items), "x-kubernetes-list-type": schema.list_type}
            if schema.keys:
                document["x-kubernetes-list-map-keys"] = list(schema.keys)
            return {**document, **_rules(schema)}
        if kind == types.ANY:
            return {"x-kubernetes-preserve-unknown-fields": True, **_rules(schema)}
        if kind == types.STRING:
            return {**_SCALARS[schema.format], **_rules(schema)}
        return {"type": kind, **({"format": schema.format} if schema.format else {}), **_rules(schema)}

    def _reference(self, schema: Schema) -> str:
        name = _name(schema, None)
        if name not in self._schemas:
            self._schemas[name] = {}
            self._schemas[name] = self._object(schema)
        return name


_KEPT_RULES = ("description", "default", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
               "maxItems", "format", "nullable")  # fmt: skip


def _rules(schema: Schema) -> Document:
    rules = schema.rules or {}
    return {key: rules[key] for key in _KEPT_RULES if key in rules}


def _name(schema: Schema, resource: Resource | None) -> str:
    """Return a component's name: reversed group domain, version and kind, as Kubernetes names them."""
    if resource is not None and resource.custom:
        return ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])
    if resource is None:
        return f"{_META if schema.name in _META_TYPES else 'io.k8s.api.types'}.{schema.name}"
    short = resource.group.partition(".")[0] or "core"
    return f"io.k8s.api.{short}.{resource.version}.{resource.kind}"


_META_TYPES = frozenset({"Condition", "FieldsV1", "LabelSelector", "LabelSelectorRequirement", "ListMeta",
                         "ManagedFieldsEntry", "ObjectMeta", "OwnerReference"})  # fmt: skip


def _gvk(resource: Resource) -> dict[str, Any]:
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def _list_schema(resource: Resource, name: str) -> Document:
    return {
        "type": "object",
        "description": f"{resource.list_name} is a list of {resource.kind}",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
        },
        "x-kubernetes-group-version-kind": [{**_gvk(resource), "kind": resource.list_name}],
    }


def _paths(resource: Resource, name: str) -> dict[str, Document]:
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if resource.namespaced:
        base += "/namespaces/{namespace}"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    answer = {"200": {"description": "OK", "content": content}}
    gvk = _gvk(resource)

    def operation(action: str, **more: Any) -> Document:
        return {"x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk, "responses": answer, **more}

    body = {"requestBody": {"content": content, "required": True}, "parameters": _WRITE_PARAMETERS}
    collection = f"{base}/{resource.plural}"
    if resource.verbs == ("create",):
        return {collection: {"post": operation("post", **body)}}
    patch = {
        "parameters": [*_WRITE_PARAMETERS, _FORCE],
        "requestBody": {
            "content": {media: {"schema": {"type": "object"}} for media in _PATCHES[: 3 if resource.custom else 4]},
            "required": True,
        },
    }
    return {
        collection: {"get": operation("list"), "post": operation("post", **body)},
        collection + "/{name}": {
            "get": operation("get"),
            "put": operation("put", **body),
            "patch": operation("patch", **patch),
            "delete": operation("delete"),
        },
    }
