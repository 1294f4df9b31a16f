"""Server-side apply over values: merging a configuration into an object and removing what nobody owns any more.

Who owns what is kept by `lab/managers.py`; here are only the two tree operations, by the schema's list types.
"""

from __future__ import annotations

from typing import Any

from ..schema.types import Schema
from . import fields
from .fields import FieldSet


def merge(live: Any, wanted: Any, schema: Schema) -> Any:
    """Return `live` with the applied configuration merged in: keyed lists by key, sets as unions, atoms replaced."""
    if not (fields.granular(schema, live) and fields.granular(schema, wanted) and type(live) is type(wanted)):
        return wanted
    if isinstance(wanted, dict):
        result = dict(live)
        for key, value in wanted.items():
            result[key] = merge(live[key], value, schema.child(key)) if key in live else value
        return result
    return _merge_list(live, wanted, schema)


def _merge_list(live: list[Any], wanted: list[Any], schema: Schema) -> list[Any]:
    """The applied items keep their own order, the others their place among the live ones."""
    ours, theirs = fields.members(wanted, schema), fields.members(live, schema)
    pending = list(ours)
    result: list[Any] = []

    def take(element: str) -> None:
        item = ours[element]
        keyed = schema.list_type == "map" and element in theirs
        result.append(merge(theirs[element], item, schema.items) if keyed else item)

    for element, item in theirs.items():
        if element not in ours:
            result.append(item)
            continue
        while pending:
            element = pending.pop(0)
            take(element)
            if element in theirs:
                break
    for element in pending:
        take(element)
    return result


def remove(value: Any, gone: FieldSet, schema: Schema) -> Any:
    """Return `value` without the member paths of `gone`; containers that become empty that way go too.

    Returns None when nothing is left of the value.
    """
    if fields.is_member(gone) and not any(key != "." for key in gone):
        return None
    if isinstance(value, dict):
        return _remove_from_object(value, gone, schema)
    if isinstance(value, list):
        return _remove_from_list(value, gone, schema)
    return value


def _remove_from_object(value: dict[str, Any], gone: FieldSet, schema: Schema) -> Any:
    result = dict(value)
    for key in value:
        node = gone.get(f"f:{key}")
        if node is None:
            continue
        kept = remove(value[key], node, schema.child(key))
        if kept is None:
            del result[key]
        else:
            result[key] = kept
    return result or None


def _remove_from_list(value: list[Any], gone: FieldSet, schema: Schema) -> Any:
    if schema.list_type == "atomic":
        return value
    result: list[Any] = []
    for element, item in fields.members(value, schema).items():
        node = gone.get(element)
        if node is None:
            result.append(item)
        elif not fields.is_member(node):
            kept = remove(item, node, schema.items)
            if kept is not None:
                result.append(kept)
    return result or None
