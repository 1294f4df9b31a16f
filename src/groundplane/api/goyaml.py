"""YAML as NVIDIA's programs, written in Go, read it: YAML 1.1, turned into what JSON can hold.

So ``yes``, ``on`` and ``y`` are true, as in YAML 1.1, but ``1:0`` (a MIG device) is a text, not sixty, and a date is
a text, not a moment. ``3.0`` is the whole number 3, as JSON knows no other. Keys are texts. What a document means is
left to its readers.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]


class DocumentError(ValueError):
    """A text is neither YAML nor JSON; the message says where it goes wrong."""


class _Loader(_SafeLoader):
    """The 1.1 loader with Go's rules of what a plain word is."""


_BOOLEANS: Final = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
}
_RULES: Final = (
    ("bool", "|".join(_BOOLEANS), "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0[bB][01_]+|0[oO]?[0-7_]+|0[xX][0-9a-fA-F_]+|0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
)


def _bool(_: _Loader, node: yaml.ScalarNode) -> bool:
    return _BOOLEANS[node.value]


def _int(_: _Loader, node: yaml.ScalarNode) -> int:
    return _whole(node.value)


def _whole(word: str) -> int:
    text = word.replace("_", "")
    octal = re.fullmatch(r"([-+]?)0([0-7]+)", text)
    return int(f"{octal[1]}0o{octal[2]}" if octal else text, 0)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _RULES:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:bool", _bool)
_Loader.add_constructor("tag:yaml.org,2002:int", _int)


def loads(text: str) -> Any:
    """The first document of a text, as JSON would hold it; None if it is empty. Raises :class:`DocumentError`."""
    if text.lstrip().startswith("{"):  # JSON may be indented with tabs, which YAML forbids
        try:
            return _as_json(msgspec.json.decode(text))
        except msgspec.DecodeError:
            pass  # YAML has braces, too
        except RecursionError:
            raise DocumentError("it is nested too deeply") from None
    with _document(text) as (loader, node):
        return None if node is None else _as_json(loader.construct_document(node))


@contextlib.contextmanager
def _document(data: str | bytes) -> Iterator[tuple[_Loader, yaml.Node | None]]:
    """A text's first document, of a size that can be had, with its loader; what is wrong with it is a DocumentError."""
    try:
        loader = _Loader(data)
        try:
            node: yaml.Node | None = loader.get_node() if loader.check_node() else None
            if _may_be_large(data):
                _check_size(node)
            yield loader, node
        finally:
            loader.dispose()
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(str(error)) from error


_MAX_NODES: Final = 1_000_000
"""How many nodes a document may have where each alias stands for all that it names."""


def _may_be_large(data: str | bytes) -> bool:
    """Whether a text can have that many nodes: one that is short and names none cannot, and need not be counted."""
    return len(data) > _MAX_NODES // 8 or ("&" in data if isinstance(data, str) else b"&" in data)


def _check_size(document: yaml.Node | None) -> None:
    """Refuse a document whose aliases make much of little, or name what they are in. :class:`DocumentError`."""
    sizes: dict[int, int] = {}
    waiting = [] if document is None else [(document, False)]
    while waiting:
        node, measured = waiting.pop()
        inner = [] if isinstance(node, yaml.ScalarNode) else [each for item in node.value for each in _nodes(item)]
        if measured:
            sizes[id(node)] = 1 + sum(sizes[id(each)] for each in inner)
            if sizes[id(node)] > _MAX_NODES:
                raise DocumentError(f"its aliases stand for more than {_MAX_NODES} nodes\n{node.start_mark}")
        elif id(node) not in sizes:
            sizes[id(node)] = _MAX_NODES  # until it is measured: whoever meets it meanwhile is inside it
            waiting.append((node, True))
            waiting += ((each, False) for each in inner)


def _nodes(item: yaml.Node | tuple[yaml.Node, yaml.Node]) -> tuple[yaml.Node, ...]:
    return item if isinstance(item, tuple) else (item,)


def compose(data: bytes) -> yaml.Node | None:
    """The first document's nodes, for readers who know what type each place has: tags are those of Go's rules, and keys
    that ``<<`` merges stand before a mapping's own. None if there is no document.

    Raises :class:`DocumentError`, also where a mapping has a key twice.
    """
    with _document(data) as (loader, node):
        _merge(loader, node, set())
        return node


def _merge(loader: _Loader, node: yaml.Node | None, seen: set[int]) -> None:
    if isinstance(node, yaml.ScalarNode) or node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise DocumentError(f"the key {key.value!r} is there twice\n{key.start_mark}")
            if isinstance(key, yaml.ScalarNode):
                keys.add(key.value)
        loader.flatten_mapping(node)
    for item in node.value:
        for child in _nodes(item):
            _merge(loader, child, seen)


def whole_number(node: yaml.Node) -> int | None:
    """The whole number that a plain word is; None if it is something else."""
    kind = node.tag.rpartition(":")[2]
    if not isinstance(node, yaml.ScalarNode) or kind not in ("int", "float"):
        return None
    try:
        value = _whole(node.value) if kind == "int" else float(node.value.replace("_", ""))
    except ValueError:  # .inf, or a word that is tagged as what it is not
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value


def truth(node: yaml.Node) -> bool | None:
    """What a plain word that means yes or no means; None if it is something else."""
    return _BOOLEANS.get(node.value) if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":bool") else None


_IN_DIGITS: Final = 1e21
"""Numbers below are written without an exponent when Go turns them into JSON; then a whole one is an integer."""


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _IN_DIGITS:
        return int(value)
    return value


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    if not isinstance(key, str | int | float):
        raise DocumentError(f"a mapping's key must be a text, not {key!r}")
    return str(key)
