"""Field managers: who set which field, as kept in `metadata.managedFields`, and server-side apply on top of that.

An *update* (create, update, JSON, merge or strategic patch) takes the fields it changes away from everybody else. An
*apply* owns exactly the fields it names, shares equal values, conflicts over different ones, and gives up
(removes) what it no longer names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from . import status
from .patch import apply, fields
from .patch.fields import FieldSet
from .schema.types import Schema
from .status import Cause

Document = dict[str, Any]
APPLY, UPDATE = "Apply", "Update"
FIRST = "before-first-apply"
"""The manager to whom everything in an object is put down that had no managers when somebody first applied to it."""

_UNTRACKED_META = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields", "name",
    "namespace", "resourceVersion", "selfLink", "uid",
)  # fmt: skip
UNTRACKED: FieldSet = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {f"f:{name}": {} for name in _UNTRACKED_META},
}
"""Fields that identify an object or belong to the server: nobody manages them."""


class Writer(msgspec.Struct, frozen=True):
    """Who writes: manager name, Apply or Update, the version used, and the subresource written through."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""


def entries(document: Document) -> list[dict[str, Any]]:
    """Return the managedFields of an object."""
    found: list[dict[str, Any]] = document.get("metadata", {}).get("managedFields") or []
    return found


def _writer(entry: dict[str, Any]) -> Writer:
    return Writer(
        entry.get("manager", ""), entry.get("operation", ""), entry.get("apiVersion", ""), entry.get("subresource", "")
    )


def _entry(writer: Writer, owned: FieldSet, time: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "manager": writer.manager,
        "operation": writer.operation,
        "apiVersion": writer.api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned,
    }
    if writer.subresource:
        entry["subresource"] = writer.subresource
    return entry


def _ignored(writer: Writer) -> FieldSet:
    """Fields a write through this endpoint cannot set: status on the main one, everything else on `status`."""
    if writer.subresource == "status":
        return {**UNTRACKED, "f:spec": {}}
    return {**UNTRACKED, "f:status": {}}


def after_update(
    old: Document | None, new: Document, schema: Schema, writer: Writer, time: str
) -> list[dict[str, Any]]:
    """Return the managedFields after `writer` changed `old` to `new` (None: created it).

    An object whose fields nobody manages stays one until the first apply.
    """
    previous = entries(old) if old is not None else []
    if old is not None and not previous:
        return []
    base = _bare(old) if old is not None else _empty(new, schema)
    changed, removed = fields.compare(base, _bare(new), schema)
    mine = fields.below(changed or {}, _ignored(writer))
    if "." in mine.get("f:metadata", {}):
        mine["f:metadata"] = {key: node for key, node in mine["f:metadata"].items() if key != "."}
    gone = removed or {}
    if not mine and not gone:
        return previous
    result: list[dict[str, Any]] = []
    found = False
    for entry in previous:
        owned = entry.get("fieldsV1") or {}
        if _writer(entry) == writer:
            found = True
            kept = fields.union(fields.below(owned, gone), mine)
        else:
            kept = fields.below(fields.difference(owned, mine), gone)
        if kept == owned:
            result.append(entry)
        elif kept:
            result.append({**entry, "fieldsV1": kept, **({"time": time} if _writer(entry) == writer else {})})
    if not found and mine:
        result.append(_entry(writer, mine, time))
    return sorted(result, key=_order)


_POD_TEMPLATE: Document = {"metadata": {}, "spec": {"containers": []}}
_EMPTY_SPECS: dict[str, Document] = {
    "Pod": {"containers": []},
    "DaemonSet": {"template": _POD_TEMPLATE, "updateStrategy": {}},
    "Deployment": {"template": _POD_TEMPLATE, "strategy": {}},
    "ReplicaSet": {"template": _POD_TEMPLATE},
    "StatefulSet": {"template": _POD_TEMPLATE, "updateStrategy": {}},
    "Job": {"template": _POD_TEMPLATE},
    "CronJob": {"jobTemplate": {"metadata": {}, "spec": {"template": _POD_TEMPLATE}}},
    "CustomResourceDefinition": {"names": {}},
}
"""What an object of a built-in kind holds before anything is set: there, a creation adds fields but no containers."""


def _empty(document: Document, schema: Schema) -> Document:
    """Return what a new object is compared with to find the fields that its creation set."""
    if schema.rules is not None:
        return {}
    return {"metadata": {}, "spec": _EMPTY_SPECS.get(document["kind"], {}), "status": {}}


def _bare(document: Document) -> Document:
    """Return the document without what is never managed; cheap for equal metadata."""
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


def _order(entry: dict[str, Any]) -> tuple[str, str]:
    return (entry["operation"], entry.get("time", ""))


class Applied(msgspec.Struct, frozen=True):
    """Outcome of an apply: the merged document (without managedFields) and the new managedFields."""

    document: Document
    managed: list[dict[str, Any]]


def apply_configuration(
    live: Document, wanted: Document, sent: Document, schema: Schema, writer: Writer, time: str, *, force: bool
) -> Applied:
    """Merge `wanted` into `live` for an apply by `writer`; raises the 409 of a conflict unless forced.

    `sent` is the configuration as it came, from which `wanted` was decoded: empty fields are owned as well.
    """
    owned = fields.below(fields.of(sent, schema), _ignored(writer))
    merged = apply.merge(live, wanted, schema)
    changed, _ = fields.compare(live, merged, schema)
    previous = entries(live)
    if live and not previous:
        previous = after_update(None, live, schema, Writer(FIRST, UPDATE, writer.api_version), time)
    clashes = _clashes(previous, changed or {}, writer)
    if clashes and not force:
        raise _conflict(clashes)
    others = [_without(entry, changed or {}) if clashes else entry for entry in previous if _writer(entry) != writer]
    kept_others = [entry for entry in others if entry.get("fieldsV1")]
    last = next((entry for entry in previous if _writer(entry) == writer), None)
    if last is not None:
        merged = _drop_abandoned(merged, last["fieldsV1"], owned, kept_others, schema)
    same = last is not None and last["fieldsV1"] == owned
    mine = last if same and last is not None else _entry(writer, owned, time)
    managed = sorted([*kept_others, mine] if owned else kept_others, key=_order)
    return Applied(merged, managed)


def _without(entry: dict[str, Any], taken: FieldSet) -> dict[str, Any]:
    owned = entry.get("fieldsV1") or {}
    rest = fields.difference(owned, taken)
    return entry if rest == owned else {**entry, "fieldsV1": rest}


def _clashes(previous: Sequence[dict[str, Any]], changed: FieldSet, writer: Writer) -> list[tuple[Writer, list[str]]]:
    result = []
    for entry in previous:
        other = _writer(entry)
        if other == writer:
            continue
        shared = list(fields.paths(fields.intersection(entry.get("fieldsV1") or {}, changed)))
        if shared:
            result.append((other, shared))
    return result


def _conflict(clashes: Sequence[tuple[Writer, list[str]]]) -> status.StatusError:
    causes = [
        Cause("FieldManagerConflict", f"conflict with {_describe(writer)}", path)
        for writer, shared in clashes
        for path in shared
    ]
    if len(causes) == 1:
        what = f"{causes[0].message}: {causes[0].field}"
    else:
        what = "\n".join(
            sorted(
                f"conflicts with {_describe(writer)}:\n" + "\n".join(f"- {path}" for path in shared)
                for writer, shared in clashes
            )
        )
    count = f"{len(causes)} conflict" + ("" if len(causes) == 1 else "s")
    return status.apply_conflict(causes, f"Apply failed with {count}: {what}")


def _describe(writer: Writer) -> str:
    text = f'"{writer.manager}"'
    if writer.subresource:
        text += f' with subresource "{writer.subresource}"'
    return f"{text} using {writer.api_version}" if writer.operation == UPDATE else text


def _drop_abandoned(
    merged: Document, before: FieldSet, now: FieldSet, others: Sequence[dict[str, Any]], schema: Schema
) -> Document:
    """Remove what this manager named last time, names no more, and nobody else owns."""
    abandoned = fields.difference(before, fields.with_parents(now))
    for entry in others:
        abandoned = fields.difference(abandoned, fields.with_parents(entry.get("fieldsV1") or {}))
    if not abandoned:
        return merged
    result: Document = apply.remove(merged, abandoned, schema) or {}
    return result
