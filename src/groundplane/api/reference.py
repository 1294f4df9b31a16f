"""The reference page of ClusterPolicy, made from the same Structs as the CRD.

``docs/reference/clusterpolicy.md`` is the result, kept in the repository; run this module to write it again.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from . import clusterpolicy, crd, fragments, schema

COMMAND: Final = "python -m groundplane.api.reference > docs/reference/clusterpolicy.md"

_HEADER: Final = f"""\
<!-- Generated from src/groundplane/api: do not edit. To write it again: {COMMAND} -->
# ClusterPolicy

`clusterpolicies.nvidia.com`, version v1, cluster-scoped. One ClusterPolicy is in force at a time.

Default is what the API server fills in when the section is present and the field is not. Without one, the component
that reads the field decides. `[]` in a path stands for each item of a list, `{{}}` for each value of a mapping.
Also available in a cluster: `kubectl explain clusterpolicy.spec.driver`.
"""

_COLUMNS: Final = ("Field", "Type", "Default", "Allowed", "Meaning")
_PATTERNS: Final = {
    fragments.QUANTITY: "an amount: `500m`, `2`, `1Gi`",
    clusterpolicy.DURATION: "a duration: `15s`, `1m30s`, `500ms`",
}
_BOUNDS: Final = (
    ("minimum", "at least {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
)


def cluster_policy_reference() -> str:
    """The page as Markdown: a table for each section of ``spec``, then one for ``status``."""
    root = crd.cluster_policy_schema()["properties"]
    parts = [_HEADER, _required_note(root["spec"])]
    for name, section in root["spec"]["properties"].items():
        parts.append(_table(f"spec.{name}", section))
    parts.append(_table("status", root["status"]))
    return "\n".join(parts)


def _required_note(spec: dict[str, Any]) -> str:
    keys = ", ".join(f"`{key}`" for key in spec["required"])
    return f"These sections of `spec` must be present, if only as `{{}}`: {keys}.\n"


def _table(path: str, section: dict[str, Any]) -> str:
    lines = [f"## {path}", "", section["description"], "", _row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
    lines.extend(_row(cells) for cells in _rows(path, section))
    return "\n".join(lines) + "\n"


def _rows(path: str, section: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    required = {f"{parent}.{key}" for parent, node in schema.walk(section, path) for key in node.get("required", ())}
    for place, node in schema.walk(section, path):
        if place != path and not place.endswith(("[]", "{}")):  # plain items: told by the type of the whole
            default = f"`{msgspec.json.encode(node['default']).decode()}`" if "default" in node else ""
            meaning = ("Required. " if place in required else "") + node.get("description", "")
            yield f"`{place}`", _type(node), default, _allowed(node), meaning.strip()


def _type(node: dict[str, Any]) -> str:
    if node.get("type") == "array":
        return f"list of {_type(node['items'])}"
    if "additionalProperties" in node:
        return f"map of {_type(node['additionalProperties'])}"
    if "anyOf" in node:
        return " or ".join(option["type"] for option in node["anyOf"])
    return str(node["type"])


def _allowed(node: dict[str, Any]) -> str:
    inner = node.get("items") or node.get("additionalProperties") or {}
    if "pattern" in inner:
        return _allowed(inner)
    parts = [f"`{value}`" if value else "empty" for value in node.get("enum", ())]
    if "pattern" in node:
        pattern = node["pattern"]
        parts.append(_PATTERNS.get(pattern) or f"`{pattern}`".replace("|", "\\|"))
    parts.extend(words.format(node[key]) for key, words in _BOUNDS if key in node)
    return ", ".join(parts)


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(cluster_policy_reference(), end="")
