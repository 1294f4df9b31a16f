"""Configuration files as documents that are changed in place: TOML and JSON, with a person's layout kept.

A document is its text and what it says (plain mappings, lists and scalars). :meth:`put` and :meth:`drop` change as
little of the text as they can, and every change is checked by reading the text again: it says what it said before, plus
the change, or the file is refused. :func:`undo` takes back what one text says beyond another from a third, which a
person has edited meanwhile. What the keys mean is left to the runtimes' modules.
"""

import copy
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import tomlkit
import tomlkit.exceptions

from ..settings import RuntimeConfigError
from .jsontext import JsonSyntaxError, JsonText

Path: TypeAlias = tuple[str, ...]
Plain: TypeAlias = dict[str, Any]


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""What a document holds where it holds nothing."""


class Document(Protocol):
    """A file's text and what it says. Both forms raise RuntimeConfigError where a change cannot be made."""

    @property
    def text(self) -> str:
        """The file's text."""

    @property
    def plain(self) -> Plain:
        """What it says."""

    def put(self, path: Path, value: Any) -> None:
        """Let a path hold a value; tables on the way are made. Nothing is changed where it holds that value."""

    def drop(self, path: Path) -> None:
        """Let a path hold nothing; nothing is changed where it holds nothing."""


Read: TypeAlias = Callable[[str, str], Document]
"""Reads a text; the second argument is the file's name for errors."""


def at(plain: Any, path: Path) -> Any:
    """What a document's plain form holds at a path, or ABSENT."""
    for key in path:
        if not isinstance(plain, Mapping) or key not in plain:
            return ABSENT
        plain = plain[key]
    return plain


def table_at(plain: Any, path: Path, name: str) -> Plain:
    """The table at a path, empty if there is none. RuntimeConfigError if something else is there."""
    for length in range(1, len(path) + 1):
        found = at(plain, path[:length])
        if found is ABSENT:
            return {}
        if not isinstance(found, dict):
            raise RuntimeConfigError(f"{name}: {dotted(path[:length])} is not a table; correct the file")
    found = at(plain, path)
    assert isinstance(found, dict)
    return found


def dotted(path: Path) -> str:
    """A path as TOML writes it."""
    return ".".join(map(_key, path))


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal: of one type each, NaN equal to itself, the order of keys left out."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return type(one) is type(other) and bool(one == other)


def with_put(plain: Plain, path: Path, value: Any) -> Plain:
    """A copy of a plain document in which a path holds a value. KeyError if something on the way is no table."""
    result = copy.deepcopy(plain)
    node = result
    for key in path[:-1]:
        node = node.setdefault(key, {})
        if not isinstance(node, dict):
            raise KeyError(key)
    node[path[-1]] = copy.deepcopy(value)
    return result


def with_drop(plain: Plain, path: Path) -> Plain:
    """A copy of a plain document in which a path, which it has, holds nothing; its tables stay."""
    result = copy.deepcopy(plain)
    del at(result, path[:-1])[path[-1]]
    return result


# --- TOML -------------------------------------------------------------------------------------------------------------

MAX_DEPTH: Final = 100
"""How deep a configuration may be nested: far more than any is, and little enough for what walks through it."""
_DEEP_KEY: Final = re.compile(rf"""(?:(?:"[^"\n]*+"|'[^'\n]*+'|[A-Za-z0-9_-]++)[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}""")
"""A dotted key of so many parts, which takes the square of its length to be read."""


def toml_plain(text: str) -> Plain:
    """What a TOML text says. ValueError, with what is wrong."""
    if _DEEP_KEY.search(text):
        raise ValueError("it is nested too deeply")
    try:
        plain = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(plain)
    return plain


def check_depth(plain: Any) -> None:
    """ValueError if a value is nested more than :data:`MAX_DEPTH` deep."""
    level = [plain]
    for _ in range(MAX_DEPTH):
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [each for items in inner for each in items if isinstance(each, Mapping | list)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


class TomlDocument:
    """A TOML file."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text: str = text
        try:
            self.plain: Plain = toml_plain(text)
        except ValueError as error:
            hint = "; it is a template, not TOML: name the file that is made of it" if "{{" in text else ""
            raise RuntimeConfigError(f"{name} is not valid TOML: {error}{hint or '; correct the file'}") from None

    def put(self, path: Path, value: Any) -> None:
        """See :class:`Document`."""
        present = at(self.plain, path)
        if same(present, value):
            return
        try:
            wanted = with_put(self.plain, path, value)
        except KeyError:
            raise RuntimeConfigError(f"{self.name}: no table can be made at {dotted(path)}; correct the file") from None
        ways: list[Callable[[], str]] = [lambda: _put_in_layout(self.text, path, value)]
        if present is ABSENT:
            ways[:0] = [
                lambda: _put_as_block(self.text, path, value),
                lambda: _put_below_header(self.text, path, value),
                lambda: _put_as_block(self.text, path[:-1], {path[-1]: value}),
            ]
        if isinstance(value, dict) and isinstance(present, dict):
            ways.append(lambda: _put_as_block(_drop_section(self.text, path), path, value))
        self._change(ways, wanted, path)

    def drop(self, path: Path) -> None:
        """See :class:`Document`."""
        if at(self.plain, path) is ABSENT:
            return
        wanted = with_drop(self.plain, path)
        ways = [lambda: _drop_section(self.text, path), lambda: _drop_in_layout(self.text, path)]
        self._change(ways, wanted, path)

    def _change(self, ways: Sequence[Callable[[], str]], wanted: Plain, path: Path) -> None:
        """Take the first way that makes the text say what is wanted; an empty table more or less does not matter."""
        for way in ways:
            try:
                text = _line_ends_as(self.text, way())
                plain = tomllib.loads(text)
            except (tomllib.TOMLDecodeError, tomlkit.exceptions.TOMLKitError, LookupError, TypeError, ValueError):
                continue  # this way does not do for this layout
            except (AttributeError, AssertionError):
                continue  # nor does it where the library trips over the layout
            if same(_without_empty(plain), _without_empty(wanted)):
                self.text, self.plain = text, plain
                return
        raise RuntimeConfigError(
            f"{self.name}: {dotted(path)} cannot be changed in the file's layout without changing more; "
            f"write its table under a header of its own ([{dotted(path[:-1])}])"
        )


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    cleaned = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in cleaned.items() if item != {}}


def _line_ends_as(model: str, text: str) -> str:
    """A changed text with the line ends of a file that has only CRLF."""
    if "\r\n" in model and not re.search(r"(?<!\r)\n", model):
        return re.sub(r"(?<!\r)\n", "\r\n", text)
    return text


_ROOT_KEY: Final = re.compile(r"(?m)^[ \t]*version[ \t]*=[^\n]*$")
_HEADER: Final = re.compile(r"(?m)^[ \t]*\[\[?[^\n]*$")


def _put_as_block(text: str, path: Path, value: Any) -> str:
    """The text with a new table at its end, or with a new key of the root after ``version`` or at its top."""
    if isinstance(value, dict):
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return text + gap + toml_text(value, path)
    if len(path) > 1:
        raise LookupError
    line = f"{_key(path[0])} = {_value(value)}"
    header = _HEADER.search(text)
    found = _ROOT_KEY.search(text, 0, header.start() if header else len(text))
    if found:
        end = found.end() - found[0].endswith("\r")
        return f"{text[:end]}\n{line}{text[end:]}"
    return f"{line}\n{text}"


def _put_below_header(text: str, path: Path, value: Any) -> str:
    """The text with a new key as the first of a table that has a header, indented as the next one."""
    lines = text.splitlines(keepends=True)
    place = next((number for number, line in enumerate(lines) if path[:-1] and _header(line) == path[:-1]), None)
    if place is None or isinstance(value, dict):
        raise LookupError
    following = lines[place + 1] if place + 1 < len(lines) else ""
    model = following if following.strip() and not _HEADER.match(following) else lines[place]
    indent = model[: len(model) - len(model.lstrip())]
    if not lines[place].endswith("\n"):
        lines[place] += "\n"
    return "".join((*lines[: place + 1], f"{indent}{_key(path[-1])} = {_value(value)}\n", *lines[place + 1 :]))


def _put_in_layout(text: str, path: Path, value: Any) -> str:
    document = tomlkit.parse(text)
    node: Any = document
    for depth, key in enumerate(path[:-1]):
        if key not in node:
            node[key] = tomlkit.table(is_super_table=depth < len(path) - 2)
        node = node[key]
    present = node.get(path[-1])
    if isinstance(value, list) and isinstance(present, list) and same(_plain(present), value[: len(present)]):
        for item in value[len(present) :]:
            present.append(item)
    else:
        node[path[-1]] = value
    return tomlkit.dumps(document)


def _drop_in_layout(text: str, path: Path) -> str:
    document = tomlkit.parse(text)
    node: Any = document
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return tomlkit.dumps(document)


def _plain(item: Any) -> Any:
    return item.unwrap() if hasattr(item, "unwrap") else item


def _drop_section(text: str, path: Path) -> str:
    """The text without the headers of a path and of what is below it, and the lines that follow those."""
    kept, dropping, found = [], False, False
    for line in text.splitlines(keepends=True):
        header = _header(line)
        if header is not None:
            dropping = header[: len(path)] == path
            found = found or dropping
        if not dropping:
            kept.append(line)
    if not found:
        raise LookupError
    result = "".join(kept)
    return result.rstrip("\n") + "\n" if result.endswith("\n\n") else result


def _header(line: str) -> Path | None:
    if not _HEADER.match(line):
        return None
    try:
        node: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while node:
        (key, node), *more = node.items()
        if more:
            return None
        path.append(key)
        if isinstance(node, list):
            node = node[0]
    return tuple(path)


def toml_text(table: Mapping[str, Any], path: Path = ()) -> str:
    """A table as TOML: its values first, then its tables, each under its full name."""
    return "\n".join("".join(f"{line}\n" for line in block) for block in _blocks(table, path))


def _blocks(table: Mapping[str, Any], path: Path, depth: int = 0) -> Iterator[list[str]]:
    values = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    indent = "  " * depth
    if path and (values or not tables):
        depth += 1
        yield [f"{indent}[{dotted(path)}]", *(f"{indent}  {line}" for line in values)]
    elif values:
        yield values
    for key, value in tables.items():
        yield from _blocks(value, (*path, key), depth)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(tomlkit.item(value).as_string())


# --- JSON -------------------------------------------------------------------------------------------------------------


class JsonDocument:
    """A JSON file that holds an object; an empty file stands for an empty one."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        try:
            self._json = JsonText(text)
            check_depth(self._json.plain)
        except (JsonSyntaxError, ValueError) as error:
            raise RuntimeConfigError(f"{name} is not valid JSON: {error}; correct the file") from None

    @property
    def text(self) -> str:
        """The file's text."""
        return self._json.text

    @property
    def plain(self) -> Plain:
        """What it says."""
        return self._json.plain

    def put(self, path: Path, value: Any) -> None:
        """See :class:`Document`."""
        if same(at(self.plain, path), value):
            return
        try:
            wanted = with_put(self.plain, path, value)
        except KeyError:
            raise RuntimeConfigError(f"{self.name}: {'.'.join(path)} can be set in objects only") from None
        self._check(self._json.put(path, value), wanted, path)

    def drop(self, path: Path) -> None:
        """See :class:`Document`."""
        if at(self.plain, path) is not ABSENT:
            self._check(self._json.drop(path), with_drop(self.plain, path), path)

    def _check(self, changed: JsonText, wanted: Plain, path: Path) -> None:
        if not same(changed.plain, wanted):
            raise RuntimeConfigError(f"{self.name}: {'.'.join(path)} cannot be changed without changing more")
        self._json = changed


# --- undoing ----------------------------------------------------------------------------------------------------------


def undo(before: Mapping[str, Any], written: Mapping[str, Any], now: Document, whole: frozenset[Path]) -> None:
    """Take back from a document what was written beyond what was there before, and leave a person's edits.

    What a person has changed meanwhile stays as it is; of a list, only the items that were added go. The tables of
    ``whole`` go as they are, with what a person has put into them.
    """
    for path, old, new in list(_differences(before, written, (), whole)):
        present = at(now.plain, path)
        if path in whole and old is ABSENT:
            drop_with_empty_parents(now, path, before)
        elif isinstance(new, list) and isinstance(present, list) and not same(present, new):
            added = [item for item in new if old is ABSENT or not any(same(item, each) for each in old)]
            kept = [item for item in present if not any(same(item, each) for each in added)]
            _put_back(now, path, kept if kept or old is not ABSENT else ABSENT, before)
        elif same(present, new) or (present is ABSENT and new is ABSENT):
            _put_back(now, path, old, before)


def _put_back(now: Document, path: Path, old: Any, before: Mapping[str, Any]) -> None:
    if old is ABSENT:
        drop_with_empty_parents(now, path, before)
    else:
        now.put(path, old)


def drop_with_empty_parents(document: Document, path: Path, before: Mapping[str, Any] | None = None) -> None:
    """Let a path hold nothing, and no table stay that is empty by that, unless ``before`` has it."""
    document.drop(path)
    for length in range(len(path) - 1, 0, -1):
        parent = path[:length]
        if at(document.plain, parent) != {} or (before is not None and at(before, parent) is not ABSENT):
            return
        document.drop(parent)


def _differences(before: Any, written: Any, path: Path, whole: frozenset[Path]) -> Iterator[tuple[Path, Any, Any]]:
    """Where two documents differ: path, what the first holds, what the second holds."""
    for key in dict.fromkeys((*before, *written)):
        here = (*path, key)
        old, new = before.get(key, ABSENT), written.get(key, ABSENT)
        if same(old, new):
            continue
        if isinstance(new, dict) and (isinstance(old, dict) or (old is ABSENT and new)) and here not in whole:
            yield from _differences({} if old is ABSENT else old, new, here, whole)
        else:
            yield here, old, new
