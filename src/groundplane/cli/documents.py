"""Reading the files that commands are given: YAML or JSON documents, with errors that name the file."""

import sys
from pathlib import Path
from typing import Any

import click
import yaml


def read(path: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML or JSON file (``-`` for standard input), empty ones left out.

    Raises :class:`click.ClickException` naming the file, the line and what is wrong.
    """
    name = "standard input" if path == "-" else path
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        found = [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{name} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise click.ClickException(f"{name} is neither YAML nor JSON: {error}") from error
    for number, item in enumerate(found, 1):
        if not isinstance(item, dict):
            raise click.ClickException(
                f"{name}, document {number}: expected a mapping with apiVersion and kind, found {type(item).__name__}"
            )
    return found


def of_kind(items: list[dict[str, Any]], kind: str, path: str) -> dict[str, Any]:
    """Return the one document of a kind. Raises :class:`click.ClickException` for none or several."""
    found = [item for item in items if item.get("kind") == kind]
    if len(found) != 1:
        kinds = ", ".join(str(item.get("kind")) for item in items) or "nothing"
        raise click.ClickException(f"{path}: expected one {kind}, found {len(found)} (the file holds: {kinds})")
    return found[0]
