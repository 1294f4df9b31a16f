"""Writing documents to standard output as YAML or JSON, the same way for every command."""

import sys
from collections.abc import Sequence
from typing import Any, TextIO

import click
import msgspec
import yaml

FORMATS = ["yaml", "json"]


class _Dumper(yaml.CSafeDumper):
    """YAML without anchors, with multi-line text as literal blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.CSafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


FIRST = ("apiVersion", "kind", "metadata", "name", "namespace")
"""The keys that a person looks for first in an object and in its metadata."""


def ordered(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the keys of it and of its metadata in the order people write them."""
    whole = _first(manifest)
    if isinstance(whole.get("metadata"), dict):
        whole["metadata"] = _first(whole["metadata"])
    return whole


def _first(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: mapping[key] for key in (*FIRST, *mapping) if key in mapping}


def to_yaml(document: object) -> str:
    """Return one YAML document, keys in the order given."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


def to_json(document: object) -> str:
    """Return indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def documents(items: Sequence[dict[str, Any]], form: str, stream: TextIO | None = None) -> None:
    """Print objects as a YAML stream, or as JSON: one object, or a v1 List of several."""
    out = stream or sys.stdout
    if form == "json":
        whole: object = items[0] if len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(items)}
        click.echo(to_json(whole), file=out)
        return
    for number, item in enumerate(items):
        click.echo(("---\n" if number else "") + to_yaml(ordered(item)), nl=False, file=out)
