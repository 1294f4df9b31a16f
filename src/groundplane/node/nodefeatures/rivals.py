"""Whether NFD itself is at work on this node; then its labels, and its NodeFeature object, are left to it.

Three kinds of evidence, in the order of their weight. A worker's NodeFeature object that is not ours, and the versions
that NFD before 0.14 noted on nodes, are plain: NFD is here as long as they are. A record of labels that somebody else
wrote is not, since NFD leaves it behind when it is uninstalled without pruning. While a master lives, it gives the node
what our NodeFeature object asks for, and nothing is left to do. So only where labels are missing for
:data:`SETTLE_S` seconds all the same do we take the record over, once: if somebody writes it again after us, there is
somebody, and we keep still for the rest of the run, or until the record is gone. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ...api import names

SETTLE_S: Final = 300.0
"""Longer than a master takes to be replaced by another."""
OURS: Final = "groundplane-"
"""How the worker's version begins on our NodeFeature objects."""
_VERSIONS: Final = (names.NFD_MASTER_VERSION, names.NFD_WORKER_VERSION)


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether a NodeFeature object was written by a worker of ours."""
    return _worker(document).startswith(OURS)


def _worker(document: Mapping[str, Any]) -> str:
    return str((document["metadata"].get("annotations") or {}).get(names.NFD_WORKER_VERSION, ""))


def evidence(node: str, namespace: str, annotations: Mapping[str, str], documents: Iterable[Mapping[str, Any]]) -> str:
    """What shows plainly that NFD is at work on a node, for a person; empty if nothing does.

    ``namespace`` is ours: in it, the object that is named as the node is a worker's whatever it says.
    """
    for document in documents:
        meta = document["metadata"]
        if meta["name"] != node or is_ours(document):
            continue
        where = f"{meta.get('namespace', '')}/{node}"
        version = _worker(document)
        if version or meta.get("namespace") == namespace:
            writers = ", ".join(sorted({str(each.get("manager")) for each in meta.get("managedFields") or ()}))
            by = f" by {writers}" if writers else ""
            return (
                f"NodeFeature {where} is kept{by} as worker {version or 'of an unknown version'}"
                f" (if that is gone: kubectl delete nodefeatures -n {meta.get('namespace', '')} {node})"
            )
    for key in _VERSIONS:
        if key in annotations:
            return (
                f"the node's annotation {key} is {annotations[key]!r}"
                f" (if that is gone: kubectl annotate node {node} {key}-)"
            )
    return ""


class Dispute(msgspec.Struct, frozen=True):
    """What is remembered of a record that somebody else wrote: since when labels have been missing, on our clock.

    ``held``: at some moment of this run the record was nobody else's.
    """

    held: bool = False
    missing_since: float | None = None


class Verdict(NamedTuple):
    """What to do about a record: write it or not, and look again in how many seconds (None: when something changes)."""

    act: bool
    dispute: Dispute
    again_s: float | None = None
    why: str = ""


def judge(dispute: Dispute, *, foreign: bool, missing: int, now: float) -> Verdict:
    """Decide on the record of a node of which ``missing`` wanted labels are missing.

    Where no record is, whoever comes first may begin one.
    """
    if not foreign:
        return Verdict(True, Dispute(held=True))
    if dispute.held:
        return Verdict(False, dispute, why=_REWRITTEN)
    if not missing:
        return Verdict(False, Dispute(), why=_FOREIGN)
    since = now if dispute.missing_since is None else dispute.missing_since
    left = since + SETTLE_S - now
    if left > 0:
        return Verdict(False, Dispute(missing_since=since), left, f"{_FOREIGN}; {_WAITING}")
    return Verdict(True, Dispute(held=True))


_REMEDY: Final = f"to hand the labels to this program, remove the node's annotation {names.NFD_FEATURE_LABELS}"
_REWRITTEN: Final = f"somebody else writes the record of the node's feature labels; {_REMEDY}"
_FOREIGN: Final = f"the record of the node's feature labels is somebody else's; {_REMEDY}"
_WAITING: Final = f"labels are missing: unless they come within {SETTLE_S:g} s, their writer is gone and they are ours"
