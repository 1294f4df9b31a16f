"""Documents to ClusterPolicies and back, without losing anything.

A document is a mapping as YAML or JSON gives it. Loading checks types only, and says where a value is wrong, what was
expected and what was found; whether values make sense together is for ``validate.py``. Unknown fields are kept and
listed: the API server would drop them without a word.
"""

import copy
import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from . import clusterpolicy, schema

API_VERSION: Final = "nvidia.com/v1"
KIND: Final = "ClusterPolicy"

_SCHEMA: Final = schema.of(clusterpolicy.ClusterPolicy)
_FATAL: Final = ("type", "required")
"""Broken schema rules that keep a document from being decoded."""


class PolicyError(ValueError):
    """A document that is no ClusterPolicy: a value of a wrong type, a missing key, another kind.

    Attributes:
        path: where, dotted, such as ``spec.driver.env[0].name``; empty for the document as a whole.
        message: what was expected, what was found and, where it helps, what to write instead.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class Loaded(msgspec.Struct, frozen=True):
    """A policy and where it came from.

    ``document`` is a copy of what was read, nulls and unknown fields included. ``unknown`` lists the dotted paths of
    fields that no supported release knows; :func:`suggest` may know what was meant.
    """

    policy: clusterpolicy.ClusterPolicy
    document: dict[str, Any]
    unknown: list[str]


def load_cluster_policy(document: Mapping[str, Any]) -> Loaded:
    """Read a ClusterPolicy. A null means that the field is unset.

    Raises:
        PolicyError: the document is of another kind or holds a value of a wrong type.
    """
    if not isinstance(document, Mapping):
        raise PolicyError("", f"expected a ClusterPolicy, found {schema.describe(document)}")
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        found = document.get(key)
        if found is not None and found != wanted:
            raise PolicyError(key, f"expected {wanted}, found {schema.describe(found)}")
    kept = copy.deepcopy(dict(document))
    policy = _decode(kept)
    unknown = [path for path in schema.unknown(_without_nulls(kept), _SCHEMA) if not path.startswith("metadata.")]
    return Loaded(policy=policy, document=kept, unknown=unknown)


def dump(loaded: Loaded) -> dict[str, Any]:
    """The document again, with the changes made to ``loaded.policy`` since it was read. A fresh copy.

    An unchanged policy gives the document as it was read, so unknown fields and nulls survive.
    """
    before = msgspec.to_builtins(_decode(loaded.document))
    after = msgspec.to_builtins(loaded.policy)
    result: dict[str, Any] = _carry_over(copy.deepcopy(loaded.document), before, after)
    return result


def suggest(path: str) -> str | None:
    """The full path of the field that an unknown ``path`` probably stands for, or ``None``.

    Looked for, in this order: the same name in another spelling (``source_labels``), a misspelt name at the same
    place (``repositry``), the same name in one other place (``spec.nriPluginEnabled``).
    """
    parent, _, name = path.rpartition(".")
    siblings = _fields_below().get(re.sub(r"\[\d+\]", "[]", parent), {})
    for candidate in siblings.values():
        if _plain(candidate) == _plain(name):
            return schema.join(parent, candidate)
    close = difflib.get_close_matches(name.lower(), siblings, n=1, cutoff=0.75)
    if close:
        return schema.join(parent, siblings[close[0]])
    elsewhere = [place for place, fields in _fields_below().items() if name in fields.values()]
    return schema.join(elsewhere[0], name) if len(elsewhere) == 1 else None


def _decode(document: dict[str, Any]) -> clusterpolicy.ClusterPolicy:
    value = _without_nulls(document)
    for mismatch in schema.mismatches(value, _SCHEMA):
        if mismatch.rule in _FATAL:
            raise PolicyError(mismatch.path, mismatch.message)
    try:
        return msgspec.convert(value, clusterpolicy.ClusterPolicy)
    except msgspec.ValidationError as error:
        raise PolicyError("", str(error)) from error


def _without_nulls(value: Any) -> Any:
    """A copy without null values of mappings, at every depth. A null in a list stays: it is an item."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


@functools.cache
def _fields_below() -> dict[str, dict[str, str]]:
    """For each place, such as ``spec.driver.env[]``: its fields, by name in small letters."""
    return {
        path: {name.lower(): name for name in node["properties"]}
        for path, node in schema.walk(_SCHEMA)
        if "properties" in node
    }


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _carry_over(document: Any, before: Any, after: Any) -> Any:
    """``document`` with the change from ``before`` to ``after`` made to it; what neither of them has stays."""
    if before == after:
        return document
    if isinstance(before, dict) and isinstance(after, dict):
        result = {} if document is None else document
        for key in (*before, *(key for key in after if key not in before)):
            old, new = before.get(key), after.get(key)
            if new is None:
                result.pop(key, None)
            elif new != old:
                result[key] = _carry_over(result.get(key), old, new)
        return result
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after) == len(document):
        return [_carry_over(*items) for items in zip(document, before, after, strict=True)]
    return after
