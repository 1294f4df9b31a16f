"""How a CDI spec file is read: JSON or YAML into a :class:`~.model.Spec`, and nothing that is not in the tables.

As container runtimes read it (contracts/toolkit-cdi.md 1.1 to 1.4): both formats by one reader, so that a text may be
written as a plain word (``name: 0``), an unknown or repeated field is an error, and so is a document without content.
Which files are read, and what they are worth against each other, is ``registry``'s.
"""

import types
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from ...api import goyaml
from . import model


def decode(data: bytes, name: str) -> model.Spec:
    """The spec that a file holds; ``name`` is what the file is called in errors.

    Raises:
        SpecError: the file is no spec, or breaks a rule; the text names the file, the line or part, and what it
            must be.
    """
    try:
        node = goyaml.compose(data)
    except goyaml.DocumentError as error:
        raise model.SpecError(f"{name}: neither YAML nor JSON: {error}") from error
    if node is None or _is_null(node):
        raise model.SpecError(f"{name}: there is no CDI spec in it; write one or remove the file")
    try:
        spec: model.Spec = _struct(model.Spec, node, "")
        spec = msgspec.structs.replace(spec, cdi_version=spec.cdi_version.removeprefix("v"))
        model.check_version(spec)
        model.check(spec)
    except model.SpecError as error:
        raise model.SpecError(f"{name}: {error}") from None
    return spec


def _is_null(node: yaml.Node) -> bool:
    return node.tag == "tag:yaml.org,2002:null"


def _struct(kind: type[Any], node: yaml.Node, where: str) -> Any:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found: dict[str, Any] = {field.name: _zero(field) for field in fields.values()}
    for key, value in _items(node, where):
        field = fields.get(key.value)
        here = f"{where}.{key.value}" if where else key.value
        if field is None:
            raise _wrong(key, here, f"unknown field; known are {', '.join(fields)}")
        if not _is_null(value):
            found[field.name] = _value(field.type, value, here)
    return kind(**found)


def _zero(field: msgspec.structs.FieldInfo) -> Any:
    """What stands for a field that is not given; rules that it breaks, the model tells."""
    if not field.required:
        return field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    kind = typing.get_origin(field.type) or field.type
    return kind()


def _items(node: yaml.Node, where: str) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(node, where or "the document", f"expected a mapping, found {_found(node)}")
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _wrong(key, where, "a key must be a word")
        yield key, value


def _value(kind: Any, node: yaml.Node, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is types.UnionType:  # that with None, for what may be left out
        return _value(next(each for each in typing.get_args(kind) if each is not types.NoneType), node, where)
    if origin is tuple:
        if not isinstance(node, yaml.SequenceNode):
            raise _wrong(node, where, f"expected a list, found {_found(node)}")
        item = typing.get_args(kind)[0]
        entries = [(number, each) for number, each in enumerate(node.value) if item not in _WORDS or not _is_null(each)]
        return tuple(_value(item, each, f"{where}[{number}]") for number, each in entries)
    if origin is dict:
        return {key.value: _value(str, value, f"{where}.{key.value}") for key, value in _items(node, where)}
    return _struct(kind, node, where) if issubclass(kind, msgspec.Struct) else _scalar(kind, node, where)


_WORDS: Final = (str, int)
"""What may be missing in a list: an entry that is null is none."""
_NUMBER_OR_TRUTH: Final = {int: ("a whole number", goyaml.whole_number), bool: ("true or false", goyaml.truth)}


def _scalar(kind: type[Any], node: yaml.Node, where: str) -> Any:
    if kind is str:
        if not isinstance(node, yaml.ScalarNode):
            raise _wrong(node, where, f"expected a text, found {_found(node)}")
        return "" if _is_null(node) else node.value
    expected, read = _NUMBER_OR_TRUTH[kind]
    value = read(node)
    if value is None:
        raise _wrong(node, where, f"expected {expected}, found {_found(node)}")
    return value


def _found(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "nothing" if _is_null(node) else repr(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _wrong(node: yaml.Node, where: str, text: str) -> model.SpecError:
    line = f"line {node.start_mark.line + 1}: " if node.start_mark is not None else ""
    return model.SpecError(f"{line}{where}: {text}")
