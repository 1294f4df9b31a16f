"""Schemas of custom resources, from the `openAPIV3Schema` of their definition.

Every node keeps its OpenAPI rules (`Schema.rules`): validation and defaulting read them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import builtin, types
from .types import Field, Schema

_PLAIN = {"string": types.STRING, "integer": types.INTEGER, "number": types.NUMBER, "boolean": types.BOOLEAN}
_META = "meta_v1:ObjectMeta"


def of_custom_resource(rules: Mapping[str, Any], kind: str) -> Schema:
    """Return the schema of whole objects: the definition's, with apiVersion, kind and metadata added."""
    schema = of_rules(rules, name=kind)
    fields = dict(schema.fields)
    fields["apiVersion"] = Field(types.STRING_SCHEMA, doc="APIVersion defines the versioned schema of this object.")
    fields["kind"] = Field(types.STRING_SCHEMA, doc="Kind is the REST resource this object represents.")
    fields["metadata"] = Field(builtin.of_model(_META), doc="Standard object's metadata.")
    return Schema(
        types.OBJECT, name=kind, doc=schema.doc, fields=fields,
        item=types.ANY_SCHEMA if schema.open else None,
        rules=rules,
    )  # fmt: skip


def of_rules(rules: Mapping[str, Any], name: str = "") -> Schema:
    """Return the schema of one node."""
    doc, nullable = rules.get("description", ""), bool(rules.get("nullable"))
    keeps = bool(rules.get("x-kubernetes-preserve-unknown-fields"))
    if rules.get("x-kubernetes-int-or-string"):
        return Schema(types.STRING, format="int-or-string", doc=doc, nullable=nullable, rules=rules)
    kind = rules.get("type")
    if kind == "object":
        return _object(rules, name, doc, nullable, keeps)
    if kind == "array":
        return Schema(
            types.ARRAY,
            doc=doc,
            item=of_rules(rules.get("items") or {}),
            list_type=rules.get("x-kubernetes-list-type", "atomic"),
            keys=tuple(rules.get("x-kubernetes-list-map-keys") or ()),
            nullable=nullable,
            rules=rules,
        )
    if kind in _PLAIN:
        return Schema(_PLAIN[kind], doc=doc, nullable=nullable, rules=rules)
    return Schema(types.ANY, doc=doc, nullable=nullable, open=True, rules=rules)


def _object(rules: Mapping[str, Any], name: str, doc: str, nullable: bool, keeps: bool) -> Schema:
    atomic = rules.get("x-kubernetes-map-type") == "atomic"
    embedded = bool(rules.get("x-kubernetes-embedded-resource"))
    properties = rules.get("properties")
    additional = rules.get("additionalProperties")
    if isinstance(additional, Mapping) and not properties:
        item = of_rules(additional)
        return Schema(types.MAP, doc=doc, item=item, atomic=atomic, nullable=nullable, rules=rules)
    if additional is True and not properties:
        return Schema(types.MAP, doc=doc, item=types.ANY_SCHEMA, atomic=atomic, nullable=nullable, rules=rules)
    needed = set(rules.get("required") or ())
    fields = {
        key: Field(of_rules(value), doc=value.get("description", ""), required=key in needed)
        for key, value in (properties or {}).items()
    }
    return Schema(
        types.OBJECT,
        name=name,
        doc=doc,
        fields=fields,
        item=types.ANY_SCHEMA if keeps else None,
        open=(keeps or embedded) and not fields,
        embedded=embedded,
        atomic=atomic,
        nullable=nullable,
        rules=rules,
    )
