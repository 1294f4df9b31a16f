"""The record of the labels that were put on a node, in an annotation of it, and the patch that keeps both right.

The record is NFD's (contracts/device-plugin-gfd.md 9), so that whoever comes next knows what to take away. A second
annotation holds a digest of the record as we wrote it: where they differ, somebody else has written it. Pure.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Final

from ...api import names
from . import labels

_DIGEST_LENGTH: Final = 16


def written(keys: Collection[str]) -> str:
    """The record of some labels: sorted, comma-joined, without the namespace of features."""
    return ",".join(sorted(key.removeprefix(names.NFD_PREFIX) for key in keys))


def read(text: str) -> frozenset[str]:
    """The labels that a record names."""
    return frozenset(labels.qualified(key) for key in (part.strip() for part in text.split(",")) if key)


def digest(record: str) -> str:
    """What tells our record from another."""
    return hashlib.sha256(record.encode()).hexdigest()[:_DIGEST_LENGTH]


def is_ours(annotations: Mapping[str, str]) -> bool:
    """Whether the record on a node is as we wrote it."""
    record = annotations.get(names.NFD_FEATURE_LABELS)
    return record is not None and annotations.get(names.NODE_FEATURES_RECORD) == digest(record)


def is_foreign(annotations: Mapping[str, str]) -> bool:
    """Whether somebody else has written the record on a node."""
    return names.NFD_FEATURE_LABELS in annotations and not is_ours(annotations)


def of_instances(annotations: Mapping[str, str]) -> frozenset[str]:
    """Labels that named instances of NFD have put on a node, each with a record of its own."""
    ending = f".{names.NFD_FEATURE_LABELS}"
    return frozenset().union(*(read(text) for key, text in annotations.items() if key.endswith(ending)))


def missing(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """The wanted labels that a node does not have, or not with their values."""
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def changes(
    present: Mapping[str, str], annotations: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, Any] | None:
    """The metadata to patch so that a node has the wanted labels and none that we gave it before; None if it is right.

    With nothing wanted the record goes as well.
    """
    recorded = read(annotations.get(names.NFD_FEATURE_LABELS, ""))
    put: dict[str, str | None] = {**missing(present, wanted)}
    put |= {key: None for key in sorted(recorded) if key not in wanted and key in present}
    notes = _notes(written(wanted)) if wanted else dict.fromkeys(_NOTES)
    note = {key: value for key, value in notes.items() if annotations.get(key) != value}
    parts = {"labels": put, "annotations": note}
    return {key: part for key, part in parts.items() if part} or None


_NOTES: Final = (names.NFD_FEATURE_LABELS, names.NODE_FEATURES_RECORD)


def _notes(record: str) -> dict[str, str | None]:
    return dict(zip(_NOTES, (record, digest(record)), strict=True))
