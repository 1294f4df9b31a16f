"""Documents to ClusterPolicies and NVIDIADrivers and back, without losing anything.

A document is a mapping as YAML or JSON gives it. Loading checks types only, and says where a value is wrong, what was
expected and what was found; whether values make sense together is for ``validate.py``. Unknown fields are kept and
listed: the API server would drop them without a word.
"""

import copy
import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from . import clusterpolicy, nvidiadriver, schema

K = TypeVar("K", bound=msgspec.Struct)


class Form(msgspec.Struct, Generic[K], frozen=True):
    """A kind of ours as documents hold it. ``article`` is the one that its name takes in a sentence."""

    api_version: str
    name: str
    struct: type[K]
    article: str = "a"

    @property
    def schema(self) -> schema.Schema:
        """What decoding asks of a document; shared."""
        return schema.of(self.struct)


CLUSTER_POLICY: Final = Form("nvidia.com/v1", "ClusterPolicy", clusterpolicy.ClusterPolicy)
NVIDIA_DRIVER: Final = Form("nvidia.com/v1alpha1", "NVIDIADriver", nvidiadriver.NVIDIADriver, "an")

_FATAL: Final = ("type", "required")
"""Broken schema rules that keep a document from being decoded."""


class PolicyError(ValueError):
    """A document that is not of its kind: a value of a wrong type, a missing key, another kind.

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


class LoadedDriver(msgspec.Struct, frozen=True):
    """An NVIDIADriver and where it came from; as :class:`Loaded` is for a policy."""

    driver: nvidiadriver.NVIDIADriver
    document: dict[str, Any]
    unknown: list[str]


def load_cluster_policy(document: Mapping[str, Any]) -> Loaded:
    """Read a ClusterPolicy. A null means that the field is unset.

    Raises:
        PolicyError: the document is of another kind or holds a value of a wrong type.
    """
    kept = _of_kind(document, CLUSTER_POLICY)
    return Loaded(policy=_decode(kept, CLUSTER_POLICY), document=kept, unknown=_unknown(kept, CLUSTER_POLICY))


def load_nvidia_driver(document: Mapping[str, Any]) -> LoadedDriver:
    """Read an NVIDIADriver. A null means that the field is unset.

    Raises:
        PolicyError: the document is of another kind or holds a value of a wrong type.
    """
    kept = _of_kind(document, NVIDIA_DRIVER)
    return LoadedDriver(driver=_decode(kept, NVIDIA_DRIVER), document=kept, unknown=_unknown(kept, NVIDIA_DRIVER))


def _of_kind(document: Mapping[str, Any], form: Form[Any]) -> dict[str, Any]:
    """A copy of the document; PolicyError when it says that it is of another kind."""
    if not isinstance(document, Mapping):
        raise PolicyError("", f"expected {form.article} {form.name}, found {schema.describe(document)}")
    for key, wanted in (("apiVersion", form.api_version), ("kind", form.name)):
        found = document.get(key)
        if found is not None and found != wanted:
            raise PolicyError(key, f"expected {wanted}, found {schema.describe(found)}")
    return copy.deepcopy(dict(document))


def _unknown(document: dict[str, Any], form: Form[Any]) -> list[str]:
    paths = schema.unknown(without_nulls(document), form.schema)
    return [path for path in paths if not path.startswith("metadata.")]


def dump(loaded: Loaded) -> dict[str, Any]:
    """The document again, with the changes made to ``loaded.policy`` since it was read. A fresh copy.

    An unchanged policy gives the document as it was read, so unknown fields and nulls survive.
    """
    before = msgspec.to_builtins(_decode(loaded.document, CLUSTER_POLICY))
    after = msgspec.to_builtins(loaded.policy)
    result: dict[str, Any] = _carry_over(copy.deepcopy(loaded.document), before, after)
    return result


def suggest(path: str, form: Form[Any] = CLUSTER_POLICY) -> str | None:
    """The full path of the field of a kind that an unknown ``path`` probably stands for, or ``None``.

    Looked for, in this order: the same name in another spelling (``source_labels``), a misspelt name at the same
    place (``repositry``), the same name in one other place (``spec.nriPluginEnabled``).
    """
    parent, _, name = path.rpartition(".")
    below = _fields_below(form)
    siblings = below.get(re.sub(r"\[\d+\]", "[]", parent), {})
    for candidate in siblings.values():
        if _plain(candidate) == _plain(name):
            return schema.join(parent, candidate)
    close = difflib.get_close_matches(name.lower(), siblings, n=1, cutoff=0.75)
    if close:
        return schema.join(parent, siblings[close[0]])
    elsewhere = [place for place, fields in below.items() if name in fields.values()]
    return schema.join(elsewhere[0], name) if len(elsewhere) == 1 else None


def _decode(document: dict[str, Any], form: Form[K]) -> K:
    value = without_nulls(document)
    for mismatch in schema.mismatches(value, form.schema):
        if mismatch.rule in _FATAL:
            raise PolicyError(mismatch.path, mismatch.message)
    try:
        return msgspec.convert(value, form.struct)
    except msgspec.ValidationError as error:
        raise PolicyError("", str(error)) from error


def without_nulls(value: Any) -> Any:
    """A copy without null values of mappings, at every depth. A null in a list stays: it is an item."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@functools.cache
def _fields_below(form: Form[Any]) -> dict[str, dict[str, str]]:
    """For each place, such as ``spec.driver.env[]``: its fields, by name in small letters."""
    return {
        path: {name.lower(): name for name in node["properties"]}
        for path, node in schema.walk(form.schema)
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
