"""The model of a type: `Schema` and, in objects, `Field`.

One model serves decoding, pruning, defaulting, strategic merge, server-side apply and OpenAPI, for built-in kinds and
custom resources alike. Built-in objects are resolved lazily because some are recursive (JSONSchemaProps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

OBJECT, ARRAY, MAP, STRING, INTEGER, NUMBER, BOOLEAN, ANY = (
    "object", "array", "map", "string", "integer", "number", "boolean", "any",
)  # fmt: skip


class Field:
    """One field of an object: its type, and what only this place says about it.

    `zero_absent`: Go's `omitempty` drops the zero value (empty string, 0, false, empty list or map) here.
    `merge_key` and `strategies` are strategic merge patch's `patchMergeKey` and `patchStrategy`.
    """

    __slots__ = ("doc", "merge_key", "required", "schema", "strategies", "zero_absent")

    def __init__(
        self,
        schema: Schema,
        *,
        doc: str = "",
        required: bool = False,
        zero_absent: bool = False,
        merge_key: str = "",
        strategies: tuple[str, ...] = (),
    ) -> None:
        self.schema = schema
        self.doc = doc
        self.required = required
        self.zero_absent = zero_absent
        self.merge_key = merge_key
        self.strategies = strategies


class Schema:
    """The type of a value.

    `type` is one of the constants of this module. `list_type` is atomic, set or map (then `keys` names the fields that
    identify an item); `atomic` marks objects and maps that server-side apply owns as a whole. `rules` keeps the OpenAPI
    node of a custom resource for validation and defaulting.
    """

    __slots__ = (
        "_fields", "_load", "atomic", "doc", "embedded", "format", "item", "keys", "list_type", "name", "nullable",
        "open", "rules", "type",
    )  # fmt: skip

    def __init__(
        self,
        type: str,
        *,
        name: str = "",
        doc: str = "",
        format: str = "",
        fields: Mapping[str, Field] | None = None,
        load: Callable[[], dict[str, Field]] | None = None,
        item: Schema | None = None,
        list_type: str = "atomic",
        keys: tuple[str, ...] = (),
        atomic: bool = False,
        open: bool = False,
        embedded: bool = False,
        nullable: bool = False,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        self.type = type
        self.name = name
        self.doc = doc
        self.format = format
        self._fields: dict[str, Field] | None = dict(fields) if fields is not None else None
        self._load = load
        self.item = item
        self.list_type = list_type
        self.keys = keys
        self.atomic = atomic
        self.open = open
        self.embedded = embedded
        self.nullable = nullable
        self.rules = rules

    @property
    def fields(self) -> dict[str, Field]:
        """Fields of an object by their JSON name; empty for other types."""
        if self._fields is None:
            self._fields = self._load() if self._load is not None else {}
        return self._fields

    def child(self, key: str) -> Schema:
        """Return the type below `key` of an object or map; `ANY_SCHEMA` where nothing is known."""
        if self.type == OBJECT:
            field = self.fields.get(key)
            return field.schema if field is not None else (self.item or ANY_SCHEMA)
        if self.type == MAP:
            return self.item or ANY_SCHEMA
        return ANY_SCHEMA

    @property
    def items(self) -> Schema:
        """The type of a list's items."""
        return self.item or ANY_SCHEMA


ANY_SCHEMA = Schema(ANY, open=True)
STRING_SCHEMA = Schema(STRING)
INTEGER_SCHEMA = Schema(INTEGER, format="int32")
NUMBER_SCHEMA = Schema(NUMBER, format="double")
BOOLEAN_SCHEMA = Schema(BOOLEAN)
TIME_SCHEMA = Schema(STRING, format="date-time", name="Time")
MICRO_TIME_SCHEMA = Schema(STRING, format="date-time", name="MicroTime")
QUANTITY_SCHEMA = Schema(STRING, format="quantity", name="Quantity")
INT_OR_STRING_SCHEMA = Schema(STRING, format="int-or-string", name="IntOrString")
RAW_SCHEMA = Schema(OBJECT, open=True, atomic=True, name="RawExtension")
