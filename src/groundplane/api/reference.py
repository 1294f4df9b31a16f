"""The reference pages of ClusterPolicy and NVIDIADriver, made from the same Structs as their CRDs.

``docs/reference/clusterpolicy.md`` and ``nvidiadriver.md`` are the result, kept in the repository; run this module with
the name of a page to write it again.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from . import clusterpolicy, crd, fragments, schema

COMMAND: Final = "python -m groundplane.api.reference {page} > docs/reference/{page}.md"

_HEADER: Final = """\
<!-- Generated from src/groundplane/api: do not edit. To write it again: {command} -->
# {kind}

`{resource}`, version {version}, cluster-scoped. {purpose}

Default is what the API server fills in when the section is present and the field is not. Without one, the component
that reads the field decides. `[]` in a path stands for each item of a list, `{{}}` for each value of a mapping.
Also available in a cluster: `kubectl explain {explain}`.
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
    header = _HEADER.format(
        command=COMMAND.format(page="clusterpolicy"),
        kind="ClusterPolicy",
        resource="clusterpolicies.nvidia.com",
        version="v1",
        purpose="One ClusterPolicy is in force at a time.",
        explain="clusterpolicy.spec.driver",
    )
    parts = [header, _required_note(root["spec"])]
    for name, section in root["spec"]["properties"].items():
        parts.append(_table(f"spec.{name}", section))
    parts.append(_table("status", root["status"]))
    return "\n".join(parts)


_DRIVER_RULES: Final = """\
Release 26.3.3 knows neither `spec.default` nor `spec.upgradePolicy`. `spec.driverType` cannot be changed, nor can
`spec.usePrecompiled` once it is set; with `spec.default: true` there may be no `spec.nodeSelector`.
"""


def nvidia_driver_reference() -> str:
    """The page of NVIDIADriver as Markdown: a table for ``spec`` and one for ``status``."""
    root = crd.nvidia_driver_schema()["properties"]
    header = _HEADER.format(
        command=COMMAND.format(page="nvidiadriver"),
        kind="NVIDIADriver",
        resource="nvidiadrivers.nvidia.com",
        version="v1alpha1",
        purpose="Each is a driver for the nodes that it selects; short names `nvd`, `nvdriver` and `nvdrivers`.",
        explain="nvidiadriver.spec",
    )
    return "\n".join([header, _DRIVER_RULES, _table("spec", root["spec"]), _table("status", root["status"])])


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "clusterpolicy": cluster_policy_reference,
    "nvidiadriver": nvidia_driver_reference,
}
"""The pages by name."""


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
    if len(sys.argv) != 2 or sys.argv[1] not in PAGES:
        sys.exit(f"name the page to write: {' or '.join(PAGES)}")
    print(PAGES[sys.argv[1]](), end="")
