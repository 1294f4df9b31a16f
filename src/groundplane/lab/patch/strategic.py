"""Strategic merge patch: merge patch that knows which lists are keyed.

The directives (`$patch`, `$retainKeys`, `$setElementOrder/<list>`, `$deleteFromPrimitiveList/<list>`) and their meaning
follow Kubernetes' "Strategic Merge Patch" design note; which list merges by which key comes from the schema.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..schema import types
from ..schema.types import Field, Schema
from .errors import PatchError

_PATCH, _RETAIN = "$patch", "$retainKeys"
_ORDER, _DELETE = "$setElementOrder/", "$deleteFromPrimitiveList/"


def strategic(original: Any, patch: Any, schema: Schema) -> Any:
    """Return `original` with `patch` merged in by the rules of `schema`; raises PatchError on a bad directive."""
    if not isinstance(patch, dict):
        raise PatchError("a strategic merge patch is an object")
    return _merge_object(original if isinstance(original, dict) else {}, patch, schema)


def _merge_object(original: dict[str, Any], patch: dict[str, Any], schema: Schema) -> dict[str, Any]:
    directive = patch.get(_PATCH)
    if directive == "replace":
        return {key: _plain(value) for key, value in patch.items() if key != _PATCH and value is not None}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(f"unknown patch type: {directive} in map: {patch}")
    result = _retain(original, patch)
    for key, value in patch.items():
        if key in (_PATCH, _RETAIN) or key.startswith((_ORDER, _DELETE)):
            continue
        if value is None:
            result.pop(key, None)
            continue
        result[key] = _merge_value(result.get(key), value, schema, key, patch.get(_ORDER + key))
    return _list_directives(result, patch, schema)


def _retain(original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    keep = patch.get(_RETAIN)
    if keep is None:
        return dict(original)
    if not isinstance(keep, list):
        raise PatchError(f"invalid patch format of {_RETAIN}: a list is expected")
    strange = [key for key, value in patch.items() if not key.startswith("$") and value is not None and key not in keep]
    if strange:
        raise PatchError(f"{_RETAIN} directives must contain every field of the patch; missing: {', '.join(strange)}")
    return {key: value for key, value in original.items() if key in keep}


def _field(schema: Schema, key: str) -> Field:
    return schema.fields.get(key) or Field(schema.child(key))


def _merge_value(original: Any, value: Any, schema: Schema, key: str, order: Any) -> Any:
    field = _field(schema, key)
    if isinstance(value, dict):
        return _merge_object(original if isinstance(original, dict) else {}, value, field.schema)
    if not isinstance(value, list):
        return value
    if "merge" not in field.strategies:
        return [_plain(item) for item in value if not _only_directive(item)]
    before = original if isinstance(original, list) else []
    if field.merge_key:
        return _merge_keyed(before, value, field, order)
    merged = list(before)
    merged.extend(item for item in value if item not in merged)
    return merged if order is None else _ordered(merged, order, before, lambda item: item)


def _merge_keyed(original: list[Any], patch: list[Any], field: Field, order: Any) -> list[Any]:
    key, item_schema = field.merge_key, field.schema.items
    if any(isinstance(item, dict) and item.get(_PATCH) == "replace" for item in patch):
        return [_plain(item) for item in patch if not _only_directive(item)]
    result = list(original)
    for item in patch:
        if not isinstance(item, dict):
            raise PatchError(f"list with merge key {key!r} holds {item!r}, which is not an object")
        if key not in item:
            raise PatchError(f"map: {item} does not contain declared merge key: {key}")
        place = next((i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]), None)
        if item.get(_PATCH) == "delete":
            result = [old for old in result if not (isinstance(old, dict) and old.get(key) == item[key])]
        elif place is None:
            result.append(_merge_object({}, item, item_schema))
        else:
            result[place] = _merge_object(result[place], item, item_schema)
    patched = [item[key] for item in patch if item.get(_PATCH) != "delete"]
    wanted = patched if order is None else order
    return _ordered(result, wanted, original, lambda item: _identity(item, key))


def _identity(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, dict) else item


def _ordered(merged: list[Any], order: Any, server: list[Any], identity: Callable[[Any], Any]) -> list[Any]:
    """Sort what the order names by the order, and let the rest keep its place relative to the server's order."""
    if not isinstance(order, list):
        raise PatchError("the value of a $setElementOrder directive is a list")
    wanted = [identity(item) for item in order]
    known = [identity(item) for item in server]
    named = sorted((item for item in merged if identity(item) in wanted), key=lambda item: wanted.index(identity(item)))
    others = [item for item in merged if identity(item) not in wanted]
    result: list[Any] = []
    while named and others:
        left, right = identity(others[0]), identity(named[0])
        before = left in known and right in known and known.index(left) < known.index(right)
        result.append((others if before else named).pop(0))
    return result + named + others


def _list_directives(result: dict[str, Any], patch: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Carry out the directives for lists that the patch itself does not mention, and primitive deletions."""
    for key, value in patch.items():
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            if isinstance(result.get(name), list):
                result[name] = [item for item in result[name] if item not in (value or [])]
        elif key.startswith(_ORDER):
            name = key.removeprefix(_ORDER)
            held = result.get(name)
            if name not in patch and isinstance(held, list):
                merge_key = _field(schema, name).merge_key
                result[name] = _ordered(held, value, held, functools.partial(_identity, key=merge_key))
    return result


def _only_directive(item: Any) -> bool:
    return isinstance(item, dict) and _PATCH in item and (len(item) == 1 or item[_PATCH] == "delete")


def _plain(value: Any) -> Any:
    """Return the value without directives and nulls."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not key.startswith("$") and item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value if not _only_directive(item)]
    return value


def understands(schema: Schema) -> bool:
    """Whether the kind can be patched strategically (custom resources cannot)."""
    return schema.type == types.OBJECT and not schema.open and schema.rules is None
