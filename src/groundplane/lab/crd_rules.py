"""Validation of custom resources against the rules of their definition, worded as the API server words it.

Covered: types, required, enum, pattern, minimum/maximum (exclusive too), multipleOf, lengths, item and property counts,
unique list keys, formats the server checks, int-or-string, nullable, oneOf/anyOf/allOf/not. CEL rules
(`x-kubernetes-validations`) are evaluated by `lab/cel.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import cel
from .objects import duplicate, invalid, quoted, required
from .schema import types
from .schema.types import Schema
from .status import Cause

Rules = Mapping[str, Any]
_NAMES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


_BLOCKING = frozenset(
    f"FieldValue{reason}" for reason in ("NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid")
)
_UNCHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)


def problems(schema: Schema, document: Any, before: Any) -> list[Cause]:
    """Return everything that is wrong with an object; `before` is the stored one, for transition rules.

    CEL rules are only evaluated on objects that are otherwise right enough for them.
    """
    causes = list(_problems(schema, document, _ABSENT if before is None else before, ""))
    if not any(cause.reason in _BLOCKING for cause in causes):
        causes += _rule_problems(schema, document, before, "")
    elif _has_rules(schema.rules or {}):
        causes.append(invalid("<nil>", None, _UNCHECKED))
    return causes


def _has_rules(node: Rules) -> bool:
    if node.get("x-kubernetes-validations"):
        return True
    below = [*(node.get("properties") or {}).values(), node.get("items"), node.get("additionalProperties")]
    return any(_has_rules(item) for item in below if isinstance(item, Mapping))


def _rule_problems(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Cause]:
    """Yield the CEL rules that do not hold on values that are new."""
    if value is None or value == old:
        return
    yield from cel.problems(schema.rules or {}, value, old, path)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for key, item in value.items():
            if schema.child(key) is not types.ANY_SCHEMA and (path or key not in _SERVERS):
                yield from _rule_problems(schema.child(key), item, before.get(key), _join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rule_problems(schema.items, item, None, f"{path}[{index}]")


_SERVERS = ("metadata", "apiVersion", "kind")


_ABSENT = object()


def _problems(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Cause]:
    """Yield every broken rule below a value. What is as it was (`old`) was accepted once and may stay."""
    if value == old and old is not _ABSENT:
        return
    if value is None:
        if not schema.nullable:
            yield _type_error(path, value, _wanted(schema))
        return
    if not _fits(schema, value):
        yield _type_error(path, value, _wanted(schema))
        return
    rules = schema.rules or {}
    for check in _CHECKS:
        yield from check(rules, value, path)
    yield from _combined(rules, value, path)
    yield from _children(schema, value, old, path)


def _children(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for name in (schema.rules or {}).get("required") or ():
            if name not in value:
                yield required(_join(path, name))
        for key, item in value.items():
            if not path and key in _SERVERS:
                continue
            child = schema.child(key)
            if child is not types.ANY_SCHEMA:
                yield from _problems(child, item, before.get(key, _ABSENT), _join(path, key))
    elif isinstance(value, list):
        yield from _list_keys(schema, value, path)
        for index, item in enumerate(value):
            yield from _problems(schema.items, item, _ABSENT, f"{path}[{index}]")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _list_keys(schema: Schema, value: list[Any], path: str) -> Iterator[Cause]:
    if schema.list_type not in ("map", "set"):
        return
    seen: list[Any] = []
    for index, item in enumerate(value):
        key = (
            {name: item.get(name) for name in schema.keys}
            if schema.list_type == "map" and isinstance(item, dict)
            else item
        )
        if key in seen:
            yield duplicate(f"{path}[{index}]", key)
        seen.append(key)


def _wanted(schema: Schema) -> str:
    if schema.format == "int-or-string":
        return "integer,string"
    return "object" if schema.type == types.MAP else schema.type


def _fits(schema: Schema, value: Any) -> bool:
    kind = schema.type
    if kind == types.ANY:
        return True
    if schema.format == "int-or-string":
        return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    if kind == types.INTEGER:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == types.NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    expected: dict[str, type] = {
        types.OBJECT: dict, types.MAP: dict, types.ARRAY: list, types.STRING: str, types.BOOLEAN: bool,
    }  # fmt: skip
    return isinstance(value, expected[kind])


def _type_error(path: str, value: Any, wanted: str) -> Cause:
    found = _NAMES.get(type(value), type(value).__name__)
    text = f'{path} in body must be of type {wanted}: "{found}"'
    return Cause("FieldValueTypeInvalid", f"Invalid value: {quoted(found)}: {text}", path)


def _enum(rules: Rules, value: Any, path: str) -> Iterator[Cause]:
    choices = rules.get("enum")
    if choices and value not in choices:
        texts = ", ".join(quoted(str(choice)) for choice in choices)
        yield Cause("FieldValueNotSupported", f"Unsupported value: {quoted(value)}: supported values: {texts}", path)


def _strings(rules: Rules, value: Any, path: str) -> Iterator[Cause]:
    if not isinstance(value, str):
        return
    pattern = rules.get("pattern")
    if pattern and not _matches(pattern, value):
        yield invalid(path, value, f"{path} in body should match '{pattern}'")
    if "maxLength" in rules and len(value) > rules["maxLength"]:
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {rules['maxLength']} bytes", path)
    if "minLength" in rules and len(value) < rules["minLength"]:
        yield invalid(path, value, f"{path} in body should be at least {rules['minLength']} chars long")
    known = _FORMATS.get(rules.get("format", ""))
    if known is not None and not known.fullmatch(value):
        text = f'{path} in body must be of type {rules["format"]}: "{value}"'
        yield Cause("FieldValueTypeInvalid", f"Invalid value: {quoted(value)}: {text}", path)


def _matches(pattern: str, value: str) -> bool:
    """RE2 patterns of definitions are read as Python's; `\\z` is RE2's end of text."""
    return re.search(pattern.replace(r"\z", r"\Z"), value) is not None


_FORMATS = {
    "date-time": re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})"),
    "date": re.compile(r"\d{4}-\d{2}-\d{2}"),
    "uuid": re.compile(r"(?i)[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}"),
    "byte": re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"),
    "ipv4": re.compile(r"(\d{1,3}\.){3}\d{1,3}"),
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
}


def _numbers(rules: Rules, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high, step = rules.get("minimum"), rules.get("maximum"), rules.get("multipleOf")
    if low is not None:
        strict = bool(rules.get("exclusiveMinimum"))
        if value < low or (strict and value == low):
            yield invalid(
                path, value, f"{path} in body should be greater than {'' if strict else 'or equal to '}{low:g}"
            )
    if high is not None:
        strict = bool(rules.get("exclusiveMaximum"))
        if value > high or (strict and value == high):
            yield invalid(path, value, f"{path} in body should be less than {'' if strict else 'or equal to '}{high:g}")
    if step and value % step:
        yield invalid(path, value, f"{path} in body should be a multiple of {step:g}")


def _sizes(rules: Rules, value: Any, path: str) -> Iterator[Cause]:
    if isinstance(value, list):
        low, high, what = rules.get("minItems"), rules.get("maxItems"), "items"
        if rules.get("uniqueItems") and len({str(item) for item in value}) < len(value):
            yield invalid(path, value, f"{path} in body shouldn't contain duplicates")
    elif isinstance(value, dict):
        low, high, what = rules.get("minProperties"), rules.get("maxProperties"), "properties"
    else:
        return
    if low is not None and len(value) < low:
        yield invalid(path, len(value), f"{path} in body should have at least {low} {what}")
    if high is not None and len(value) > high:
        yield Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {high} items", path)


_CHECKS: tuple[Callable[[Rules, Any, str], Iterator[Cause]], ...] = (_enum, _strings, _numbers, _sizes)


def _holds(rules: Rules, value: Any) -> bool:
    """Whether a value fulfils a node of oneOf/anyOf/allOf/not, which may omit types."""
    if "type" in rules and not any(_is(kind, value) for kind in [rules["type"]]):
        return False
    if any(True for check in _CHECKS for _ in check(rules, value, "")):
        return False
    if isinstance(value, dict):
        if any(name not in value for name in rules.get("required") or ()):
            return False
        known = rules.get("properties") or {}
        if any(not _holds(known[key], item) for key, item in value.items() if key in known):
            return False
    if isinstance(value, list) and rules.get("items") and any(not _holds(rules["items"], item) for item in value):
        return False
    return not any(True for _ in _combined(rules, value, ""))


def _is(kind: str, value: Any) -> bool:
    found = _NAMES.get(type(value))
    return found == kind or (kind == "number" and found == "integer")


def _combined(rules: Rules, value: Any, path: str) -> Iterator[Cause]:
    if "anyOf" in rules and not any(_holds(option, value) for option in rules["anyOf"]):
        yield invalid(path, value, f"{path} in body must validate at least one schema (anyOf)")
    if "oneOf" in rules and sum(_holds(option, value) for option in rules["oneOf"]) != 1:
        yield invalid(path, value, f"{path} in body must validate one and only one schema (oneOf)")
    if "allOf" in rules and not all(_holds(option, value) for option in rules["allOf"]):
        yield invalid(path, value, f"{path} in body must validate all the schemas (allOf)")
    if "not" in rules and _holds(rules["not"], value):
        yield invalid(path, value, f"{path} in body must not validate the schema (not)")
