"""Schemas of the built-in kinds, derived from lightkube's model classes.

The annotations are read as text ("Optional[List[Container]]") because the names in them (Quantity, Time, IntOrString)
say more than the runtime types do. What the models leave out comes from `extensions.py`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from typing import Any

import msgspec

from . import extensions, types
from .types import Field, Schema

_SCALARS: dict[str, Schema] = {
    "str": types.STRING_SCHEMA,
    "int": types.INTEGER_SCHEMA,
    "float": types.NUMBER_SCHEMA,
    "bool": types.BOOLEAN_SCHEMA,
    "datetime": types.TIME_SCHEMA,
    "Time": types.TIME_SCHEMA,
    "MicroTime": types.MICRO_TIME_SCHEMA,
    "Quantity": types.QUANTITY_SCHEMA,
    "IntOrString": types.INT_OR_STRING_SCHEMA,
    "RawExtension": types.RAW_SCHEMA,
    "CustomResourceSubresourceStatus": types.RAW_SCHEMA,
    "FieldsV1": types.RAW_SCHEMA,
    "Patch": types.RAW_SCHEMA,
    "JSON": types.ANY_SCHEMA,
    "JSONSchemaPropsOrBool": types.ANY_SCHEMA,
    "JSONSchemaPropsOrArray": types.ANY_SCHEMA,
    "JSONSchemaPropsOrStringArray": types.ANY_SCHEMA,
    "Any": types.ANY_SCHEMA,
}
_PARAMETER = re.compile(r"^\* \*\*(\w+)\*\* ``[^`]*`` - ?(.*)$")


def of_model(model: str) -> Schema:
    """Return the schema of `module:Class` below `lightkube.models`."""
    module, _, name = model.partition(":")
    return of_class(getattr(importlib.import_module(f"lightkube.models.{module}"), name))


@functools.cache
def of_class(cls: type[msgspec.Struct]) -> Schema:
    """Return the (shared) schema of a lightkube model class."""
    return Schema(
        types.OBJECT,
        name=cls.__name__,
        doc=_class_doc(cls),
        load=lambda: _fields_of(cls),
        atomic=cls.__name__ in extensions.ATOMIC_STRUCTS,
    )


def _fields_of(cls: type[msgspec.Struct]) -> dict[str, Field]:
    docs = parameter_docs(cls)
    module = sys.modules[cls.__module__]
    required = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
    fields: dict[str, Field] = {}
    for index, (attribute, name) in enumerate(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)):
        fields[name] = _field(cls, attribute, name, module, docs.get(attribute, ""), index < required)
    return fields


def _field(cls: type[msgspec.Struct], attribute: str, name: str, module: Any, doc: str, required: bool) -> Field:
    text = str(_annotation(cls, attribute))
    place = (cls.__name__, name)
    schema = _parse(
        text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text, module, place
    )
    key = ""
    if schema.list_type == "map" and place not in extensions.NO_MERGE_KEY:
        key = schema.keys[0]
    key = extensions.MERGE_KEYS.get(place, key)
    strategies = ("merge",) if key or place in extensions.MERGED_SCALARS else ()
    if place in extensions.RETAIN_KEYS:
        strategies = (*strategies, "retainKeys")
    return Field(
        schema,
        doc=doc,
        required=required,
        zero_absent=not required and _drops_zero(schema, place),
        merge_key=key,
        strategies=strategies,
    )


def _annotation(cls: type, attribute: str) -> object:
    for base in cls.__mro__:
        own = inspect.get_annotations(base)
        if attribute in own:
            return own[attribute]
    raise TypeError(f"{cls.__name__}.{attribute} has no annotation")


def _parse(text: str, module: Any, place: tuple[str, str]) -> Schema:
    if text.startswith("List["):
        item = _parse(text[5:-1], module, ("", ""))
        keys = extensions.LIST_MAPS.get(place, ())
        kind = "map" if keys else "set" if place in extensions.LIST_SETS else "atomic"
        return Schema(types.ARRAY, item=item, list_type=kind, keys=keys)
    if text in ("dict", "Dict"):
        return _map(module, place)
    name = text.rpartition(".")[2]
    if name == "int" and place[1] in _INT64:
        return _LONG
    scalar = _SCALARS.get(name)
    if scalar is not None:
        return scalar
    owner, _, _ = text.rpartition(".")
    source = getattr(module, owner) if owner else module
    found = getattr(source, name)
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return of_class(found)
    return types.STRING_SCHEMA if found is str else types.ANY_SCHEMA


_INT64 = frozenset(
    {
        "activeDeadlineSeconds", "deletionGracePeriodSeconds", "fsGroup", "generation", "observedGeneration",
        "revision", "runAsGroup", "runAsUser", "sizeBytes", "terminationGracePeriodSeconds", "tolerationSeconds",
    }
)  # fmt: skip
_LONG = Schema(types.INTEGER, format="int64")
_BYTES = Schema(types.STRING, format="byte")
_STRING_MAP = Schema(types.MAP, item=types.STRING_SCHEMA)
_ATOMIC_STRING_MAP = Schema(types.MAP, item=types.STRING_SCHEMA, atomic=True)
_QUANTITY_MAP = Schema(types.MAP, item=types.QUANTITY_SCHEMA)
_BYTES_MAP = Schema(types.MAP, item=_BYTES)
_OPEN_MAP = Schema(types.MAP, item=types.ANY_SCHEMA)


def _map(module: Any, place: tuple[str, str]) -> Schema:
    if place in extensions.ATOMIC_MAPS:
        return _ATOMIC_STRING_MAP
    if place in extensions.OPEN_MAPS:
        if place[0] == "JSONSchemaProps":
            return Schema(types.MAP, item=of_class(module.JSONSchemaProps))
        return _OPEN_MAP
    if place in {("Secret", "data"), ("ConfigMap", "binaryData")}:
        return _BYTES_MAP
    if place[1] == "fieldsV1":
        return types.RAW_SCHEMA
    return _QUANTITY_MAP if place[1] in extensions.QUANTITY_MAPS else _STRING_MAP


def _drops_zero(schema: Schema, place: tuple[str, str]) -> bool:
    if schema.type in (types.ARRAY, types.MAP):
        return True
    if schema.type == types.STRING and not schema.format:
        return place not in extensions.KEPT_STRINGS
    if schema.type == types.BOOLEAN:
        return place in extensions.DROPPED_BOOLEANS
    return schema.type == types.INTEGER and place in extensions.DROPPED_INTEGERS


def _class_doc(cls: type) -> str:
    text = inspect.cleandoc(cls.__doc__ or "")
    return " ".join(text.partition("**parameters**")[0].split())


@functools.cache
def parameter_docs(cls: type) -> dict[str, str]:
    """Return the description of each field, read from the class's docstring."""
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    docs: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        match = _PARAMETER.match(line.strip()) if line.strip().startswith("* **") else None
        if match:
            current = docs.setdefault(match.group(1), [match.group(2)])
        elif current:
            current.append(line.strip())
    return {name: " ".join(" ".join(parts).split()) for name, parts in docs.items()}
