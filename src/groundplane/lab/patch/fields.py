"""Sets of fields, in the form `metadata.managedFields[].fieldsV1` has them.

A set is a nested dict. Its keys are path elements: `f:<name>` for a field, `k:<json>` for an item of a keyed list,
`v:<json>` for an item of a set. A node is a member when it is empty or has the key "."; otherwise it only leads to
members below it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from ..schema import extensions, types
from ..schema.types import Schema

FieldSet = dict[str, Any]
_LEAF: FieldSet = {}


@functools.lru_cache(maxsize=4096)
def _key_text(values: tuple[tuple[str, Any], ...]) -> str:
    return "k:" + json.dumps(dict(values), separators=(",", ":"), sort_keys=True)


def item_key(item: Any, schema: Schema) -> str:
    """Return the path element of an item of a keyed list; ValueError names a missing key."""
    if not isinstance(item, dict):
        raise ValueError(f"an item of a keyed list is an object, found {item!r}")
    values = []
    for key in schema.keys:
        value = item.get(key, _default(schema, key))
        if value is None:
            raise ValueError(f"associative list with keys has an element that omits key field {key!r}")
        values.append((key, value))
    return _key_text(tuple(values))


def _default(schema: Schema, key: str) -> Any:
    field = schema.items.fields.get(key)
    if field is None:
        return extensions.KEY_DEFAULTS.get(key)
    if field.schema.rules is not None:
        return field.schema.rules.get("default")
    zero = 0 if field.schema.type == types.INTEGER else ""
    return extensions.KEY_DEFAULTS.get(key, zero if field.required else None)


def value_key(value: Any) -> str:
    """Return the path element of an item of a set."""
    return "v:" + json.dumps(value, separators=(",", ":"), sort_keys=True)


def granular(schema: Schema, value: Any) -> bool:
    """Whether the parts of a value are owned one by one."""
    if isinstance(value, dict):
        return (
            not schema.atomic
            and schema.type in (types.OBJECT, types.MAP, types.ANY)
            and not (schema.type == types.ANY and schema.atomic)
        )
    return isinstance(value, list) and schema.type == types.ARRAY and schema.list_type != "atomic"


def members(value: list[Any], schema: Schema) -> dict[str, Any]:
    """Return the items of a keyed list or set by path element."""
    if schema.list_type == "map":
        return {item_key(item, schema): item for item in value}
    return {value_key(item): item for item in value}


def of(value: Any, schema: Schema, *, containers: bool = False) -> FieldSet:
    """Return every field a value sets. With `containers`, what holds fields is a member too (as after an update)."""
    if not value or not granular(schema, value):
        return _LEAF
    if isinstance(value, dict):
        node = {f"f:{key}": of(item, schema.child(key), containers=containers) for key, item in value.items()}
        return {".": _LEAF, **node} if containers else node
    result: FieldSet = {".": _LEAF} if containers else {}
    for key, item in members(value, schema).items():
        result[key] = _item(of(item, schema.items, containers=containers)) if schema.list_type == "map" else _LEAF
    return result


def _item(node: FieldSet) -> FieldSet:
    """Return an item of a keyed list as a member, with the fields below it."""
    return {".": _LEAF, **node} if node else _LEAF


def compare(old: Any, new: Any, schema: Schema) -> tuple[FieldSet | None, FieldSet | None]:
    """Return (added or changed, removed) fields between two values; None where there are none."""
    if old is new:
        return None, None
    if not (granular(schema, old) and granular(schema, new) and type(old) is type(new)):
        return (None, None) if old == new else (of(new, schema, containers=True), None)
    if isinstance(new, dict):
        return _compare_parts(
            {f"f:{key}": item for key, item in old.items()},
            {f"f:{key}": item for key, item in new.items()},
            lambda element: schema.child(element[2:]),
            "",
        )
    return _compare_parts(members(old, schema), members(new, schema), lambda _: schema.items, schema.list_type)


def _compare_parts(
    old: dict[str, Any], new: dict[str, Any], child: Any, kind: str
) -> tuple[FieldSet | None, FieldSet | None]:
    changed: FieldSet = {}
    removed: FieldSet = {}
    for element, item in new.items():
        if element not in old:
            changed[element] = _whole(item, child(element), kind)
        elif kind != "set" and old[element] is not item:
            more, less = compare(old[element], item, child(element))
            if more is not None:
                changed[element] = more
            if less is not None:
                removed[element] = less
    for element, item in old.items():
        if element not in new:
            removed[element] = _whole(item, child(element), kind)
    return changed or None, removed or None


def _whole(item: Any, schema: Schema, kind: str) -> FieldSet:
    if kind == "set":
        return _LEAF
    node = of(item, schema, containers=True)
    return _item(node) if kind == "map" else node


def is_member(node: FieldSet) -> bool:
    """Whether the path that leads to this node is itself in the set."""
    return not node or "." in node


def _node(member: bool, children: FieldSet) -> FieldSet | None:
    if member:
        return {".": _LEAF, **children} if children else _LEAF
    return children or None


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths in either set. The roots are never members."""
    result = dict(left)
    for key, node in right.items():
        if key not in result:
            result[key] = node
        elif key != ".":
            mine = result[key]
            if mine is node:
                continue
            below = union(_children(mine), _children(node))
            result[key] = _node(is_member(mine) or is_member(node), below) or _LEAF
    return result


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of `left` that are not in `right`."""
    result: FieldSet = {}
    for key, node in left.items():
        if key == ".":
            continue
        other = right.get(key)
        if other is None:
            result[key] = node
            continue
        kept = _node(is_member(node) and not is_member(other), difference(_children(node), _children(other)))
        if kept is not None:
            result[key] = kept
    return result


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths in both sets."""
    result: FieldSet = {}
    for key, node in left.items():
        other = right.get(key)
        if key == "." or other is None:
            continue
        kept = _node(is_member(node) and is_member(other), intersection(_children(node), _children(other)))
        if kept is not None:
            result[key] = kept
    return result


def below(left: FieldSet, removed: FieldSet) -> FieldSet:
    """Return `left` without the paths of `removed` and everything beneath removed members."""
    result: FieldSet = {}
    for key, node in left.items():
        other = removed.get(key)
        if key == "." or other is None:
            result[key] = node
        elif not is_member(other):
            kept = below(node, other)
            if kept:
                result[key] = kept
    return result


def with_parents(node: FieldSet) -> FieldSet:
    """Return the set with everything that leads to a member as a member too."""
    return {key: {".": _LEAF, **with_parents(_children(child))} if child else _LEAF for key, child in node.items()}


def _children(node: FieldSet) -> FieldSet:
    return {key: child for key, child in node.items() if key != "."} if "." in node else node


def paths(node: FieldSet, prefix: str = "") -> Iterator[str]:
    """Yield the members as texts: `.spec.containers[name="a"].image`."""
    for key, child in node.items():
        if key == ".":
            continue
        here = prefix + element_text(key)
        if is_member(child):
            yield here
        yield from paths(child, here)


def element_text(element: str) -> str:
    """Return a path element as people read it."""
    kind, _, text = element.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "v":
        return f"[={text}]"
    keys = json.loads(text)
    return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in keys.items()) + "]"
