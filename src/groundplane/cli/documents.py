"""Reading the files that commands are given: YAML or JSON documents, with errors that name the file."""

import json
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import yaml

VALUES_MAX: Final = 20_000_000
"""Values of a document with its aliases written out: beyond any cluster, and short of what would exhaust memory."""


class Loader(yaml.CSafeLoader):
    """YAML's safe types; a key that is there twice is an error, as one of the two would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping. Raises :class:`yaml.YAMLError` naming the line of a repeated key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read(path: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML or JSON file (``-`` for standard input), empty ones left out.

    Raises :class:`click.ClickException` naming the file, the line and what is wrong.
    """
    name = "standard input" if path == "-" else path
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        found = [item for item in _parse(text) if item is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{name} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise click.ClickException(f"{name} is neither YAML nor JSON: {error}") from error
    for number, item in enumerate(found, 1):
        if not isinstance(item, dict):
            raise click.ClickException(
                f"{name}, document {number}: expected a mapping with apiVersion and kind, found {type(item).__name__}"
            )
        if problem := _endless(item):
            raise click.ClickException(f"{name}, document {number}: {problem}; write the values out")
    return found


def _parse(text: str) -> list[Any]:
    """Return the documents of a text. JSON is YAML too, but a listing of thousands of nodes is read faster as JSON."""
    if text.lstrip().startswith("{"):
        try:
            return [json.loads(text, object_pairs_hook=_without_repeats)]
        except (json.JSONDecodeError, RecursionError, _RepeatedKeyError):
            return list(yaml.load_all(text, Loader=Loader))  # flow-style YAML, or an error that names the line
    return list(yaml.load_all(text, Loader=Loader))


class _RepeatedKeyError(ValueError):
    """A key is there twice in one JSON object."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RepeatedKeyError
    return found


def _endless(document: Any) -> str:
    """What makes a document's YAML aliases unusable: one inside itself, or "billion laughs". Empty if they are fine."""
    weights: dict[int, int] = {}
    open_now: set[int] = set()
    stack: list[tuple[Any, Iterator[Any]]] = [(document, _children(document))]
    open_now.add(id(document))
    while stack:
        value, rest = stack[-1]
        child = next((each for each in rest if id(each) not in weights), None)
        if child is None:
            stack.pop()
            open_now.discard(id(value))
            weights[id(value)] = 1 + sum(weights.get(id(each), 1) for each in _leaves_and_all(value))
            if weights[id(value)] > VALUES_MAX:
                return f"its YAML aliases stand for more than {VALUES_MAX:,} values"
        elif id(child) in open_now:
            return "a YAML alias stands inside the value that it names"
        else:
            open_now.add(id(child))
            stack.append((child, _children(child)))
    return ""


def _leaves_and_all(value: Any) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value


def _children(value: Any) -> Iterator[Any]:
    """The mappings and lists directly inside a value."""
    return (each for each in _leaves_and_all(value) if isinstance(each, dict | list))


def of_kind(items: list[dict[str, Any]], kind: str, path: str) -> dict[str, Any]:
    """Return the one document of a kind, also out of a List, as `kubectl get` prints it.

    Raises :class:`click.ClickException` for none or several.
    """
    items = unpacked(items, kind)
    found = [item for item in items if item.get("kind") == kind]
    if len(found) != 1:
        kinds = ", ".join(str(item.get("kind")) for item in items) or "nothing"
        raise click.ClickException(f"{path}: expected one {kind}, found {len(found)} (the file holds: {kinds})")
    return found[0]


def unpacked(items: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return documents with the items of Lists, and of typed lists of ``kind``, in their place."""
    return [each for item in items for each in _unpacked(item, kind)]


def _unpacked(item: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """A List's items, anything else as it is; items of a typed list need no kind of their own."""
    items = item.get("items")
    if item.get("kind") not in ("List", f"{kind}List") or not isinstance(items, list):
        return [item]
    typed = {"apiVersion": item.get("apiVersion"), "kind": kind} if item["kind"] != "List" else {}
    return [{**typed, **each} for each in items if isinstance(each, dict)]
