"""The OpenAPI schema of our kinds, made from their Structs, and checks of a value against it.

One walk over the Struct types gives the schema; the CRD, the checks of a policy, the list of unknown fields and the
reference page are all made from it, so that they cannot tell different stories. What a field means comes from
``meanings.py``; rules that concern several fields are in ``validate.py``.
"""

import copy
import functools
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Meta

from . import clusterpolicy, fragments, meanings

Schema = dict[str, Any]

_SCALARS: Final[dict[Any, str]] = {str: "string", bool: "boolean", int: "integer"}
_INTEGER_BITS: Final = {"int32": 32, "int64": 64}


class Mismatch(msgspec.Struct, frozen=True):
    """A value that breaks its schema. ``path`` is dotted, lists as ``env[0]``; ``rule`` is the OpenAPI keyword."""

    path: str
    rule: str
    expected: str
    found: str
    remedy: str = ""

    @property
    def message(self) -> str:
        """The whole story in one line, without the path."""
        text = f"expected {self.expected}, found {self.found}"
        return f"{text}; {self.remedy}" if self.remedy else text


# --- From types to schema -------------------------------------------------------------------------------------------


@functools.cache
def of(struct: type[msgspec.Struct]) -> Schema:
    """The OpenAPI schema of a Struct. The result is shared: copy it before you change it."""
    properties = {}
    required = []
    for info in msgspec.structs.fields(struct):
        node = _of_type(info.type)
        meaning = meanings.of(struct, info.name)
        if meaning:
            node["description"] = meaning
        properties[info.encode_name] = node
        if info.required:
            required.append(info.encode_name)
    node = {"type": "object", "properties": dict(sorted(properties.items()))}
    return {**node, "required": sorted(required)} if required else node


def _of_type(annotation: Any) -> Schema:
    """A fresh schema for a type annotation; ``None`` in a union only says that the field may be left out."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        base, *metadata = typing.get_args(annotation)
        node = _of_type(base)
        for meta in metadata:
            if isinstance(meta, Meta) and meta.extra_json_schema:
                node.update(copy.deepcopy(meta.extra_json_schema))
        return node
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
        return _of_type(members[0]) if len(members) == 1 else {}
    if origin is list:
        return {"type": "array", "items": _of_type(typing.get_args(annotation)[0])}
    if origin is dict:
        values = typing.get_args(annotation)[1]
        return {"type": "object"} if values is Any else {"type": "object", "additionalProperties": _of_type(values)}
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return copy.deepcopy(of(annotation))
    return {"type": _SCALARS[annotation]}


# --- Walking a schema -----------------------------------------------------------------------------------------------


def join(path: str, key: str) -> str:
    """The dotted path of a key below ``path``."""
    return f"{path}.{key}" if path else key


def children(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Schemas one level below, with how they extend a path: ``.name``, ``[]`` for items, ``{}`` for map values."""
    for key, node in schema.get("properties", {}).items():
        yield f".{key}", node
    if "items" in schema:
        yield "[]", schema["items"]
    if "additionalProperties" in schema:
        yield "{}", schema["additionalProperties"]


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema node in depth-first order with its path, such as ``spec.driver.env[].name``."""
    yield path, schema
    for suffix, node in children(schema):
        yield from walk(node, (path + suffix).removeprefix("."))


def unknown(value: object, schema: Schema, path: str = "") -> Iterator[str]:
    """Paths of keys that the schema does not define. Objects without defined keys take any."""
    if isinstance(value, Mapping) and "properties" in schema:
        for key, item in value.items():
            node = schema["properties"].get(key)
            if node is None:
                yield join(path, str(key))
            else:
                yield from unknown(item, node, join(path, key))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from unknown(item, schema["items"], f"{path}[{index}]")


# --- Checking a value -----------------------------------------------------------------------------------------------


def mismatches(value: object, schema: Schema, path: str = "") -> Iterator[Mismatch]:
    """Everything in ``value`` that breaks the schema. Below a value of the wrong type nothing more is said."""
    wrong = _type_mismatch(value, schema, path)
    if wrong is not None:
        yield wrong
        return
    yield from _rule_mismatches(value, schema, path)
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        for key in schema.get("required", ()):
            if value.get(key) is None:
                what = describe_type(properties[key])
                yield Mismatch(join(path, key), "required", what, "nothing", "this field must be set")
        for key, item in value.items():
            node = properties.get(key, schema.get("additionalProperties"))
            if not isinstance(key, str):
                yield Mismatch(join(path, str(key)), "type", "a string as key", describe(key), "put the key in quotes")
            elif node is not None:
                yield from mismatches(item, node, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from mismatches(item, schema.get("items", {}), f"{path}[{index}]")


def _types(schema: Schema) -> tuple[str, ...]:
    if "anyOf" in schema:
        return tuple(option["type"] for option in schema["anyOf"])
    return (schema["type"],) if "type" in schema else ()


_TYPE_WORDS: Final = {
    "string": "a string",
    "boolean": "true or false",
    "integer": "a whole number",
    "array": "a list",
    "object": "a mapping",
}


def describe_type(schema: Schema) -> str:
    """The types a schema allows, in words."""
    return " or ".join(_TYPE_WORDS[name] for name in _types(schema)) or "anything"


def describe(value: object) -> str:
    """A value in words for an error message: scalars in full, collections by kind, long text cut."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            text = value if len(value) <= 60 else value[:57] + "..."
            return f'the string "{text}"'
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
    return f"a YAML {type(value).__name__} ({value})"


def _has_type(value: object, name: str) -> bool:
    match name:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
    return isinstance(value, Mapping)


def _type_mismatch(value: object, schema: Schema, path: str) -> Mismatch | None:
    allowed = _types(schema)
    if not allowed or any(_has_type(value, name) for name in allowed):
        return None
    return Mismatch(path, "type", describe_type(schema), describe(value), _type_remedy(value, allowed))


def _type_remedy(value: object, allowed: Sequence[str]) -> str:
    """What to write instead, for the usual YAML slips."""
    if "string" in allowed and value is not None and not isinstance(value, Mapping | list):
        return "put the value in quotes"
    if isinstance(value, str):
        if "boolean" in allowed and value.lower() in ("true", "false"):
            return "write it without quotes"
        if "integer" in allowed and re.fullmatch(r"-?\d+", value):
            return "write it without quotes"
        if "array" in allowed:
            return "start each item of the list with '- '"
    if value is None:
        return "remove the entry or give it a value"
    return ""


def _rule_mismatches(value: object, schema: Schema, path: str) -> Iterator[Mismatch]:
    """Rules on a single value of the right type: enum, pattern, bounds."""
    if "enum" in schema and value not in schema["enum"]:
        options = ", ".join(option or '""' for option in schema["enum"])
        yield Mismatch(path, "enum", f"one of {options}", describe(value))
    if isinstance(value, str):
        yield from _text_mismatches(value, schema, path)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from _number_mismatches(value, schema, path)


def _text_mismatches(value: str, schema: Schema, path: str) -> Iterator[Mismatch]:
    pattern = schema.get("pattern")
    if pattern is not None and not _compiled(pattern).search(value):
        yield Mismatch(path, "pattern", _PATTERN_WORDS.get(pattern, f"text that matches {pattern}"), describe(value))
    if len(value) < schema.get("minLength", 0):
        yield Mismatch(path, "minLength", f"at least {schema['minLength']} characters", describe(value))
    if len(value) > schema.get("maxLength", len(value)):
        yield Mismatch(path, "maxLength", f"at most {schema['maxLength']} characters", f"{len(value)} characters")


def _number_mismatches(value: int, schema: Schema, path: str) -> Iterator[Mismatch]:
    if value < schema.get("minimum", value):
        yield Mismatch(path, "minimum", f"at least {schema['minimum']}", describe(value))
    bits = _INTEGER_BITS.get(schema.get("format", ""))
    if bits is not None and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        yield Mismatch(path, "format", f"a number that fits in {bits} bits", describe(value))


_PATTERN_WORDS: Final = {
    clusterpolicy.DURATION: "a duration such as 15s, 1m30s or 500ms, units from large to small",
    clusterpolicy.IMAGE: "an image name with at least one letter, digit or '-'",
    fragments.QUANTITY: "an amount such as 500m, 2 or 1Gi",
}


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern as the API server reads it: there ``$`` is the end of the text, not of its last line."""
    return re.compile(re.sub(r"\$$", r"\\Z", pattern))
