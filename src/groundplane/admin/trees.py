"""Values of a chart as trees: merged as Helm merges them, compared, cut down to what differs.

Maps merge key by key, lists and scalars replace, ``null`` removes (contracts/admin-workflow.md 5.2). A path names a
value from the root; written out, its parts are joined by dots, and a dot within a part has a backslash before it, as
for ``helm --set``. What values mean is left to ``values`` and ``value_changes``.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

Tree = Mapping[str, Any]
Path = tuple[str, ...]

_PART: Final = re.compile(r"(?:\\.|[^.\\])+")


def dotted(path: Path) -> str:
    """A path as text, such as ``driver.version`` or ``nodeSelector.kubernetes\\.io/os``."""
    return ".".join(part.replace("\\", "\\\\").replace(".", "\\.") for part in path)


def parse(text: str) -> Path:
    """The path that :func:`dotted` has written."""
    return tuple(re.sub(r"\\(.)", r"\1", part) for part in _PART.findall(text))


def get(tree: Tree, path: str | Path, default: Any = None) -> Any:
    """The value at a path; ``default`` if it, or a map on the way to it, is not there."""
    found: Any = tree
    for part in parse(path) if isinstance(path, str) else path:
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two values are one and the same to YAML: ``true`` is not ``1``, and maps have no order."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def merge(defaults: Tree, overrides: Tree) -> dict[str, Any]:
    """The values a template sees: a chart's defaults under somebody's overrides."""
    merged = dict(defaults)
    for key, value in overrides.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            under = merged.get(key)
            merged[key] = merge(under if isinstance(under, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def layer(lower: Tree, upper: Tree) -> dict[str, Any]:
    """Two values files given one after the other, as one; what is ``null`` stays so, to remove a default."""
    made = dict(lower)
    for key, value in upper.items():
        under = made.get(key)
        made[key] = layer(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return made


def minimal(defaults: Tree, wanted: Tree) -> dict[str, Any]:
    """The least overrides that make ``wanted`` of ``defaults``; neither has ``null``."""
    made: dict[str, Any] = {key: None for key in defaults if key not in wanted}
    for key, value in wanted.items():
        under = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            if part := minimal(under, value):
                made[key] = part
        elif key not in defaults or not same(under, value):
            made[key] = value
    return made


def leaves(tree: Tree, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that is no map, or an empty one, with its path."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*at, str(key)))
        else:
            yield (*at, str(key)), value


def without(tree: Tree, paths: Collection[Path]) -> dict[str, Any]:
    """The tree without the values at some paths, and without maps that are left empty by that."""
    made: dict[str, Any] = {}
    for key, value in tree.items():
        inner = {path[1:] for path in paths if path and path[0] == str(key)}
        if () in inner:
            continue
        kept = without(value, inner) if inner and isinstance(value, Mapping) else value
        if kept or not value or kept is value:
            made[key] = kept
    return made


def put(tree: Tree, path: Path, value: Any) -> dict[str, Any]:
    """The tree with a value at a path; what is in the way and no map is replaced."""
    if not path:
        raise ValueError("a value needs a path")
    under = tree.get(path[0])
    inner = put(under if isinstance(under, Mapping) else {}, path[1:], value) if path[1:] else value
    return {**tree, path[0]: inner}
