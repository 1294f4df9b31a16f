"""JSON that is changed in place: what is not touched stays as it was written, byte for byte.

The text is read once for what it says and for where each member of each object lies; a change replaces, adds or takes
out one member. What is added is indented as the file is, or else by four spaces (contracts/toolkit-cdi.md 5.5).
"""

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

import msgspec

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_SCALAR: Final = re.compile(r"[^\s,\]}]+")
USUAL_INDENT: Final = "    "


class JsonSyntaxError(ValueError):
    """The text is not JSON, or holds no object; says what and where."""


class Member(msgspec.Struct):
    """Where a member of an object lies: its key's first character, and its value's first and the one behind it."""

    key: int
    start: int
    end: int
    members: "dict[str, Member] | None"
    """Of an object's own; None of other values."""


class JsonText:
    """A text that holds one object. Raises :class:`JsonSyntaxError`."""

    def __init__(self, text: str) -> None:
        self.text = text
        body = text if text.strip(" \t\r\n") else "{}"
        try:
            self.plain: dict[str, Any] = json.loads(body, object_pairs_hook=_object, parse_constant=_constant)
        except json.JSONDecodeError as error:
            raise JsonSyntaxError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
        except RecursionError:
            raise JsonSyntaxError("it is nested too deeply") from None
        if not isinstance(self.plain, dict):
            raise JsonSyntaxError("it holds no object ({...})")
        self._body = body
        try:
            self._root = self._scan(_SPACE.match(body).end(), 0)  # type: ignore[union-attr]
        except RecursionError:
            raise JsonSyntaxError("it is nested too deeply") from None

    def put(self, path: tuple[str, ...], value: Any) -> "JsonText":
        """The text where a path holds a value; objects on the way are made. They must not be anything else."""
        parent, rest = self._root, path
        while len(rest) > 1 and parent.members is not None and rest[0] in parent.members:
            parent, rest = parent.members[rest[0]], rest[1:]
        depth = len(path) - len(rest) + 1
        for key in reversed(rest[1:]):
            value = {key: value}
        present = (parent.members or {}).get(rest[0])
        if present is not None:
            return self._spliced(present.start, present.end, self._write(value, depth))
        return self._added(parent, rest[0], value, depth)

    def drop(self, path: tuple[str, ...]) -> "JsonText":
        """The text without the member at a path, which it has."""
        parent = self._root
        for key in path[:-1]:
            assert parent.members is not None
            parent = parent.members[key]
        assert parent.members is not None
        keys = list(parent.members)
        place = keys.index(path[-1])
        gone = parent.members[path[-1]]
        if place:  # with the comma before it
            return self._spliced(parent.members[keys[place - 1]].end, gone.end, "")
        if len(keys) > 1:
            return self._spliced(gone.key, parent.members[keys[1]].key, "")
        return self._spliced(parent.start, parent.end, "{}")

    def _added(self, parent: Member, key: str, value: Any, depth: int) -> "JsonText":
        """The text with one more member at an object's end."""
        assert parent.members is not None
        name = json.dumps(key, ensure_ascii=False)
        if parent.members:
            end = list(parent.members.values())[-1].end
            if "\n" not in self._body[parent.start : parent.end]:
                return self._spliced(end, end, f", {name}: {json.dumps(value, ensure_ascii=False)}")
            return self._spliced(
                end, end, f",{self._newline()}{self._unit() * depth}{name}: {self._write(value, depth)}"
            )
        newline, unit = self._newline(), self._unit()
        inner = f"{{{newline}{unit * depth}{name}: {self._write(value, depth)}{newline}{unit * (depth - 1)}}}"
        return self._spliced(parent.start, parent.end, inner)

    def _write(self, value: Any, depth: int) -> str:
        text = json.dumps(value, indent=self._unit(), ensure_ascii=False)
        return text.replace("\n", self._newline() + self._unit() * depth)

    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self._body else "\n"

    def _unit(self) -> str:
        """What the file's first member is indented by; the usual if it begins no line."""
        first = next(iter(self._root.members.values()), None) if self._root.members else None
        before = self._body[self._root.start + 1 : first.key] if first is not None else ""
        return before.rpartition("\n")[2] or USUAL_INDENT if "\n" in before else USUAL_INDENT

    def _spliced(self, start: int, end: int, text: str) -> "JsonText":
        return JsonText(self._body[:start] + text + self._body[end:])

    def _scan(self, start: int, key: int) -> Member:
        """The value at a place of the body, which is valid JSON."""
        body = self._body
        if body[start] == '"':
            return Member(key, start, scanstring(body, start + 1)[1], None)
        if body[start] not in "{[":
            return Member(key, start, _SCALAR.match(body, start).end(), None)  # type: ignore[union-attr]
        members: dict[str, Member] = {}
        closing = "}" if body[start] == "{" else "]"
        at = self._skip(start + 1)
        while body[at] != closing:
            name, first = "", at
            if closing == "}":
                name, at = scanstring(body, at + 1)
                at = self._skip(self._skip(at) + 1)
            item = self._scan(at, first)
            members[name] = item
            at = self._skip(item.end)
            if body[at] == ",":
                at = self._skip(at + 1)
        return Member(key, start, at + 1, members if closing == "}" else None)

    def _skip(self, at: int) -> int:
        return _SPACE.match(self._body, at).end()  # type: ignore[union-attr]


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise JsonSyntaxError(f'"{twice}" is there twice in one object')
    return found


def _constant(name: str) -> Any:
    raise JsonSyntaxError(f"{name} is no JSON value")
