"""From a client's document to an object of a kind: types checked, unknown fields found and dropped, zero
values dropped.

`Decoder.clean` returns the document in the form the API server would give back. Parts that are the very same Python
objects as in the previous version of the object (`base`) are trusted and skipped, which makes small patches of large
objects cheap. Scalars and wrong types in custom resources are left to `lab/crd_rules.py`, which says more about them.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from .. import amounts
from . import types
from .types import Schema

_TIME = re.compile(r"^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$")
_WORDS = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
_CONTAINERS: dict[str, type] = {types.OBJECT: dict, types.MAP: dict, types.ARRAY: list}
_GO = {types.STRING: "string", types.INTEGER: "int32", types.NUMBER: "float64", types.BOOLEAN: "bool"}


class DecodeError(ValueError):
    """The document does not fit the kind's types; the message is worded as Go's JSON decoder words it."""


class Decoder:
    """Checks one document; collects the paths of unknown fields in `unknown`."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def clean(self, value: Any, schema: Schema, path: str = "", base: Any = None, owner: str = "") -> Any:
        """Return `value` as an instance of `schema`; raises DecodeError on a wrong type."""
        if value is base and base is not None:
            return value
        kind = schema.type
        if schema.rules is not None and not isinstance(value, _CONTAINERS.get(kind, ())):
            return value
        if kind == types.OBJECT:
            if schema.open:
                return self._open(value, schema, path, owner)
            return self._object(value, schema, path, base, owner)
        if kind == types.MAP:
            return self._map(value, schema, path, base, owner)
        if kind == types.ARRAY:
            return self._array(value, schema, path, base, owner)
        if kind == types.ANY:
            return value
        return _scalar(value, schema, path, owner)

    def _open(self, value: Any, schema: Schema, path: str, owner: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(value, "map[string]interface {}", path, owner)
        return value

    def _object(self, value: Any, schema: Schema, path: str, base: Any, owner: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch(value, f"v1.{schema.name}" if schema.name else "object", path, owner)
        fields = schema.fields
        before = base if isinstance(base, dict) else {}
        result: dict[str, Any] = {}
        kept: Any
        for key, item in value.items():
            field = fields.get(key)
            if field is None:
                if schema.item is not None:  # x-kubernetes-preserve-unknown-fields
                    result[key] = item
                else:
                    self.unknown.append(f"{path}.{key}" if path else key)
                continue
            if item is None:
                if field.schema.rules is not None:
                    result[key] = None
                continue
            below = field.schema
            if isinstance(item, str) and below.type == types.STRING and not below.format:
                kept = item  # most fields are plain texts: not worth a call each
            else:
                kept = self.clean(item, below, f"{path}.{key}" if path else key, before.get(key), schema.name)
            if field.zero_absent and not kept:
                continue
            result[key] = kept
        return result

    def _map(self, value: Any, schema: Schema, path: str, base: Any, owner: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch(value, "map[string]" + _GO.get(schema.items.type, "interface {}"), path, owner)
        items = schema.items
        if items is types.STRING_SCHEMA:
            for key, item in value.items():
                if not isinstance(item, str):
                    if item is None:
                        return self._map(
                            {k: "" if v is None else v for k, v in value.items()}, schema, path, base, owner
                        )
                    raise _mismatch(item, "string", path, owner)
                del key
            return value
        before = base if isinstance(base, dict) else {}
        return {
            key: self.clean(item, items, f"{path}.{key}", before.get(key), owner)
            for key, item in value.items()
            if item is not None
        }

    def _array(self, value: Any, schema: Schema, path: str, base: Any, owner: str) -> list[Any]:
        if not isinstance(value, list):
            raise _mismatch(
                value, "[]" + (schema.items.name or _GO.get(schema.items.type, "interface {}")), path, owner
            )
        known = {id(item) for item in base if isinstance(item, dict)} if isinstance(base, list) else ()
        return [
            item if id(item) in known else self.clean(item, schema.items, f"{path}[{index}]", None, owner)
            for index, item in enumerate(value)
        ]


def _scalar(value: Any, schema: Schema, path: str, owner: str) -> Any:
    kind, form = schema.type, schema.format
    if kind == types.STRING:
        if form == "":
            if isinstance(value, str):
                return value
            raise _mismatch(value, "string", path, owner)
        return _formatted(value, form, path, owner)
    if kind == types.BOOLEAN:
        if isinstance(value, bool):
            return value
        raise _mismatch(value, "bool", path, owner)
    if kind == types.INTEGER:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise _mismatch(value, form or "int32", path, owner)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise _mismatch(value, "float64", path, owner)


def _formatted(value: Any, form: str, path: str, owner: str) -> Any:
    if form == "int-or-string":
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise _mismatch(value, "intstr.IntOrString", path, owner)
    if form == "quantity":
        return _quantity(value, path, owner)
    if not isinstance(value, str):
        raise _mismatch(value, "string", path, owner)
    if form == "byte":
        _check_base64(value)
    if form == "date-time" and not _TIME.match(value):
        layout = "2006-01-02T15:04:05Z07:00"
        raise DecodeError(f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006" (field {path})')
    return value


def _check_base64(value: str) -> None:
    try:
        base64.b64decode(value, validate=True)
    except ValueError as error:
        wrong = re.search(r"[^A-Za-z0-9+/]", value)
        raise DecodeError(f"illegal base64 data at input byte {wrong.start() if wrong else len(value)}") from error


def _quantity(value: Any, path: str, owner: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise _mismatch(value, "resource.Quantity", path, owner)
    try:
        return amounts.canonical(value)
    except ValueError as error:
        pattern = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
        text = f"quantities must match the regular expression '{pattern}' (field {path}, value {value!r})"
        raise DecodeError(text) from error


def _mismatch(value: Any, wanted: str, path: str, owner: str) -> DecodeError:
    found = "null" if value is None else _WORDS.get(type(value), type(value).__name__)
    plain = re.sub(r"\[\d+\]", "", path)
    if not plain:
        return DecodeError(f"json: cannot unmarshal {found} into Go value of type {wanted}")
    return DecodeError(
        f"json: cannot unmarshal {found} into Go struct field {owner or 'Object'}.{plain} of type {wanted}"
    )
