"""The chart in the tests: rendered by the real Helm engine, in this process."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
DATA = ROOT / "tests" / "data"
NAMESPACE = "gpu-operator"
RELEASE = "gpu-operator"
RELEASES = ("26.3.3", "26.7.0")
VARIANTS = tuple(path.stem for path in sorted((DATA / "values").glob("*.yaml")))

Document = dict[str, Any]


def chart() -> helm.Chart:
    """The chart, loaded anew: rendering it with a part switched off takes the part's subchart away from it for good."""
    return helm.Chart.load(CHART)


def load(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Document:
    """Two trees of values, the second one winning."""
    both = dict(base)
    for key, value in over.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


def values(variant: str = "default", release: str = "") -> Document:
    """The values of a variant, for a release."""
    chosen = {"operator": {"release": release}} if release else {}
    return merged(load(DATA / "values" / f"{variant}.yaml"), chosen)


def tree(path: str, value: object) -> Document:
    """``a.b.c`` and a value as nested values."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def text(given: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE) -> dict[str, str]:
    """Rendered templates by path; raises what Helm raises."""
    return _text(json.dumps(given or {}), namespace)


@functools.cache
def _text(given: str, namespace: str) -> dict[str, str]:
    values = json.loads(given)
    with chart() as loaded:
        loaded.validate_schema(values)
        return loaded.render(values, name=RELEASE, namespace=namespace)


def documents(given: Mapping[str, Any] | None = None, *, namespace: str = NAMESPACE) -> list[Document]:
    """Every rendered object."""
    return [
        document
        for path, content in sorted(text(given, namespace=namespace).items())
        if not path.endswith("NOTES.txt")
        for document in yaml.load_all(content, Loader=yaml.CSafeLoader)
        if document is not None
    ]


def key(document: Document) -> tuple[str, str, str]:
    meta = document["metadata"]
    return document["kind"], meta.get("namespace", ""), meta["name"]


def objects(given: Mapping[str, Any] | None = None, **rest: str) -> dict[tuple[str, str, str], Document]:
    """Rendered objects by kind, namespace and name, each once."""
    found = documents(given, **rest)
    by_key = {key(each): each for each in found}
    assert len(by_key) == len(found), "an object is rendered twice"
    return by_key


def one(kind: str, given: Mapping[str, Any] | None = None, name: str = "") -> Document:
    """The one rendered object of a kind (and name)."""
    (found,) = [each for each in documents(given) if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found
