"""JSON patch, RFC 6902, with JSON pointers of RFC 6901, as lenient as kube-apiserver is.

It takes `replace` of a missing member for `add`, a missing `value` and a copied member that is missing for null, and
counts negative indices of lists from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import PatchError


def apply_json_patch(document: Any, operations: list[Any]) -> Any:
    """Return `document` after all operations; raises PatchError at the first that does not apply."""
    for index, operation in enumerate(operations):
        if not isinstance(operation, Mapping) or not isinstance(operation.get("op"), str):
            raise PatchError(f"operation {index} has no 'op'")
        handler = _OPERATIONS.get(operation["op"])
        if handler is None:
            raise PatchError(f"Unexpected kind: {operation['op']}")
        document = handler(document, operation)
    return document


def pointer(text: Any) -> list[str]:
    """Split a JSON pointer into its tokens."""
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f"{text!r} is not a JSON pointer: it must be empty or start with '/'")
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def _value(operation: Mapping[str, Any]) -> Any:
    return operation.get("value")


def _index(container: Sequence[Any], token: str, limit: int) -> int:
    digits = token.removeprefix("-")
    if not digits.isdigit() or (len(digits) > 1 and digits[0] == "0"):
        raise PatchError(f"{token!r} is not an index of a list of {len(container)}")
    index = int(token) + (limit if int(token) < 0 else 0)
    if not 0 <= index < limit:
        raise PatchError(f"{token!r} is not an index of a list of {len(container)}")
    return index


def _get(document: Any, path: str) -> Any:
    here = document
    for token in pointer(path):
        if isinstance(here, dict) and token in here:
            here = here[token]
        elif isinstance(here, list):
            here = here[_index(here, token, len(here))]
        else:
            raise PatchError(f"doc is missing path: {path}")
    return here


def _held(document: Any, path: str) -> Any:
    """Return what is at a path; null for a member that its object lacks."""
    tokens = pointer(path)
    holder = _get(document, path.rpartition("/")[0]) if tokens else document
    if tokens and isinstance(holder, dict) and tokens[-1] not in holder:
        return None
    return _get(document, path)


def _edit(here: Any, tokens: list[str], path: str, change: Callable[[Any, str], Any]) -> Any:
    """Return a copy of `here` in which `change` was applied to the container that holds the last token."""
    if len(tokens) == 1:
        if not isinstance(here, dict | list):
            raise PatchError(f"doc is missing path: {path}")
        return change(here, tokens[0])
    token = tokens[0]
    if isinstance(here, dict) and token in here:
        return {**here, token: _edit(here[token], tokens[1:], path, change)}
    if isinstance(here, list):
        index = _index(here, token, len(here))
        return [*here[:index], _edit(here[index], tokens[1:], path, change), *here[index + 1 :]]
    raise PatchError(f"doc is missing path: {path}")


def _set(document: Any, path: str, value: Any, *, replace: bool) -> Any:
    tokens = pointer(path)
    if not tokens:
        return value

    def change(holder: Any, token: str) -> Any:
        if isinstance(holder, dict):
            return {**holder, token: value}
        if replace:
            index = _index(holder, token, len(holder))
            return [*holder[:index], value, *holder[index + 1 :]]
        index = len(holder) if token == "-" else _index(holder, token, len(holder) + 1)
        return [*holder[:index], value, *holder[index:]]

    return _edit(document, tokens, path, change)


def _add(document: Any, operation: Mapping[str, Any]) -> Any:
    return _set(document, operation.get("path", ""), _value(operation), replace=False)


def _replace(document: Any, operation: Mapping[str, Any]) -> Any:
    return _set(document, operation.get("path", ""), _value(operation), replace=True)


def _remove(document: Any, operation: Mapping[str, Any]) -> Any:
    path = operation.get("path", "")
    tokens = pointer(path)
    if not tokens:
        raise PatchError("remove operation does not apply: the whole document cannot be removed")

    def change(holder: Any, token: str) -> Any:
        if isinstance(holder, list):
            index = _index(holder, token, len(holder))
            return [*holder[:index], *holder[index + 1 :]]
        if token not in holder:
            raise PatchError(f"remove operation does not apply: doc is missing path: {path}")
        return {key: value for key, value in holder.items() if key != token}

    return _edit(document, tokens, path, change)


def _move(document: Any, operation: Mapping[str, Any]) -> Any:
    source, target = operation.get("from", ""), operation.get("path", "")
    if target.startswith(f"{source}/"):
        raise PatchError(f"move operation does not apply: {source} cannot be moved into itself")
    value = _get(document, source)
    if source == target:
        return document
    return _set(_remove(document, {"path": source}), target, value, replace=False)


def _copy(document: Any, operation: Mapping[str, Any]) -> Any:
    return _set(document, operation.get("path", ""), _held(document, operation.get("from", "")), replace=False)


def _test(document: Any, operation: Mapping[str, Any]) -> Any:
    path = operation.get("path", "")
    if not same(_held(document, path), _value(operation)):
        raise PatchError(f"testing value {path} failed: test failed")
    return document


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; unlike Python, true is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


_OPERATIONS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
