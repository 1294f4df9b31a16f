"""Defaults of custom resources: values that the definition's schema gives for missing fields.

A null counts as missing unless the field may be null; without a default it is dropped.
"""

from __future__ import annotations

from typing import Any

from . import objects
from .objects import Document
from .schema import types
from .schema.types import Schema


def fill(schema: Schema, document: Document) -> Document:
    """Return the document with defaults filled in, sharing the parts that need none."""
    result: Document = _fill(schema, document, root=True)
    return result


def _fill(schema: Schema, value: Any, *, root: bool = False) -> Any:
    if isinstance(value, dict):
        if schema.type == types.MAP:
            return _same_or(value, {key: _fill(schema.items, item) for key, item in value.items()})
        return _object(schema, value, root)
    if isinstance(value, list) and schema.type == types.ARRAY:
        filled = [_fill(schema.items, item) for item in value]
        return value if all(a is b for a, b in zip(filled, value, strict=True)) else filled
    return value


def _same_or(old: Document, new: Document) -> Document:
    same = old.keys() == new.keys() and all(new[key] is value for key, value in old.items())
    return old if same else new


def _object(schema: Schema, value: Document, root: bool) -> Document:
    result = dict(value)
    for key, field in schema.fields.items():
        if root and key in ("metadata", "apiVersion", "kind"):
            continue
        rules = field.schema.rules or {}
        held = result.get(key)
        if "default" in rules and (key not in result or (held is None and not field.schema.nullable)):
            result[key] = _fill(field.schema, objects.copy(rules["default"]))
        elif held is None:
            if key in result and not field.schema.nullable:
                del result[key]
        else:
            result[key] = _fill(field.schema, held)
    return _same_or(value, result)
