"""YAML as NVIDIA's programs, written in Go, read it: YAML 1.1, turned into what JSON can hold.

So ``yes``, ``on`` and ``y`` are true, as in YAML 1.1, but ``1:0`` (a MIG device) is a text, not sixty, and a date is
a text, not a moment. ``3.0`` is the whole number 3, as JSON knows no other. Keys are texts. What a document means is
left to its readers.
"""

import re
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
    ("int", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", "-+0123456789"),
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
    text = node.value.replace("_", "")
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
    try:
        loader = _Loader(text)
        try:
            return _as_json(loader.get_data()) if loader.check_data() else None  # type: ignore[no-untyped-call]
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DocumentError(str(error)) from error


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
