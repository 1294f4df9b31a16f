"""Whether an applied configuration fits its kind's types: the first check of a server-side apply.

It is stricter than decoding (an unknown field, or a list with two items of one key, has no owner) and says what is
wrong in the words of the field-set machinery rather than the JSON decoder's.
"""

from __future__ import annotations

import json
from typing import Any

from ..schema import types
from ..schema.types import Schema
from . import fields

_NUMBERS = (types.INTEGER, types.NUMBER)
_UNTYPED = ("int-or-string", "quantity")


def problem(value: Any, schema: Schema, path: str = "") -> str:
    """Return the first thing in a configuration that does not fit, or an empty text."""
    if value is None or schema.type == types.ANY or (schema.type == types.OBJECT and schema.open):
        return ""
    if schema.type in (types.OBJECT, types.MAP):
        return _map(value, schema, path)
    if schema.type == types.ARRAY:
        return _list(value, schema, path)
    return _scalar(value, schema, path)


def _map(value: Any, schema: Schema, path: str) -> str:
    if not isinstance(value, dict):
        return f"{path}: expected map, got {_go(value)}"
    for key, item in value.items():
        known = schema.type == types.MAP or schema.item is not None or key in schema.fields
        if not known:
            return f"{path}.{key}: field not declared in schema"
        if text := problem(item, schema.child(key), f"{path}.{key}"):
            return text
    return ""


def _list(value: Any, schema: Schema, path: str) -> str:
    if not isinstance(value, list):
        return f"{path}: expected list, got {_go(value)}"
    seen: set[str] = set()
    for index, item in enumerate(value):
        try:
            element = _element(item, index, schema)
        except ValueError as error:
            return f"{path}: element {index}: {error}"
        if element in seen:
            return f"{path}: duplicate entries for key {element}"
        seen.add(element)
        if text := problem(item, schema.items, path + element):
            return text
    return ""


def _element(item: Any, index: int, schema: Schema) -> str:
    if schema.list_type == "map":
        return fields.element_text(fields.item_key(item, schema))
    if schema.list_type == "set":
        return f"[={json.dumps(item)}]"
    return f"[{index}]"


def _scalar(value: Any, schema: Schema, path: str) -> str:
    if schema.format in _UNTYPED:
        return "" if not isinstance(value, dict | list) else f"{path}: expected scalar, got {_go(value)}"
    if schema.type in _NUMBERS:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return ""
        return f"{path}: expected numeric (int or float), got {'string' if isinstance(value, str) else _go(value)}"
    if schema.type == types.BOOLEAN:
        return "" if isinstance(value, bool) else f"{path}: expected boolean, got {_go(value)}"
    if isinstance(value, str):
        return ""
    return f"{path}: expected string, got &value.valueUnstructured{{Value:{_go(value)[2:-1]}}}"


def _go(value: Any) -> str:
    """Return a value as Go prints it."""
    if isinstance(value, list):
        text = "[" + " ".join(_go(item)[2:-1] for item in value) + "]"
    elif isinstance(value, dict):
        text = "map[" + " ".join(f"{key}:{_go(item)[2:-1]}" for key, item in sorted(value.items())) + "]"
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"&{{{text}}}"
