"""ControllerRevisions of DaemonSets: the history of pod templates, its numbers, names and limit.

A revision's name is `<daemonset>-<hash>`, its label `controller-revision-hash` the hash that the pods carry; the newest
number is the template wanted now (contracts/control-plane.md 4.2 reads both).
"""

from collections.abc import Collection
from typing import Any, Final

from ..resources import CONTROLLER_REVISIONS, DAEMON_SETS
from ..status import StatusError
from . import objects
from .objects import Doc, Obj
from .shared import Shared

HASH_LABEL: Final = "controller-revision-hash"
DEFAULT_HISTORY_LIMIT = 10


def data_of(daemon_set: Doc) -> dict[str, Any]:
    """What a revision records of a DaemonSet: the patch that would bring its template back."""
    return {"spec": {"template": {**daemon_set["spec"]["template"], "$patch": "replace"}}}


def hash_of(revision: Doc) -> str:
    """The hash label of a revision."""
    return objects.labels(revision).get(HASH_LABEL, "")


def owned(shared: Shared, daemon_set: Obj) -> list[Obj]:
    """A DaemonSet's revisions, oldest number first, after adopting its orphaned ones."""
    cache = shared.owned(CONTROLLER_REVISIONS)
    candidates = [*cache.by_owner[objects.uid(daemon_set)], *cache.orphans[daemon_set["metadata"]["namespace"]]]
    found = shared.claim(cache, daemon_set, DAEMON_SETS, daemon_set["spec"]["selector"], candidates)
    return sorted(found, key=lambda revision: int(revision["revision"]))


def current(shared: Shared, daemon_set: Obj) -> tuple[Obj, Obj]:
    """The revision of the present template, made or renumbered if need be, and the DaemonSet as it is afterwards.

    A name that is taken by another template counts as a collision: it is noted in the DaemonSet's status and the hash
    is made anew.
    """
    history = owned(shared, daemon_set)
    newest = int(history[-1]["revision"]) if history else 0
    wanted = data_of(daemon_set)
    for revision in reversed(history):
        if revision["data"] == wanted:
            if int(revision["revision"]) < newest:
                revision = shared.update(CONTROLLER_REVISIONS, {**revision, "revision": newest + 1})
            return revision, daemon_set
    while True:
        collisions = int((daemon_set.get("status") or {}).get("collisionCount") or 0)
        try:
            return _create(shared, daemon_set, wanted, newest + 1, collisions), daemon_set
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
        status = {**(daemon_set.get("status") or {}), "collisionCount": collisions + 1}
        daemon_set = shared.set_status(DAEMON_SETS, daemon_set, status)


def _create(shared: Shared, daemon_set: Obj, data: Doc, number: int, collisions: int) -> Obj:
    metadata = daemon_set["metadata"]
    digest = objects.template_hash(daemon_set["spec"]["template"], collisions)
    template_labels = (daemon_set["spec"]["template"].get("metadata") or {}).get("labels") or {}
    made: Obj = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{metadata['name']}-{digest}",
            "namespace": metadata["namespace"],
            "labels": {**template_labels, HASH_LABEL: digest},
            "ownerReferences": [objects.owner_reference(daemon_set, "apps/v1", "DaemonSet")],
        },
        "data": data,
        "revision": number,
    }
    if metadata.get("annotations"):
        made["metadata"]["annotations"] = dict(metadata["annotations"])
    return shared.create(CONTROLLER_REVISIONS, made, metadata["namespace"])


def trim(shared: Shared, daemon_set: Obj, keep: Obj, hashes_in_use: Collection[str]) -> None:
    """Delete the oldest revisions beyond the history limit; those that pods run count, and stay."""
    limit = daemon_set["spec"].get("revisionHistoryLimit", DEFAULT_HISTORY_LIMIT)
    if shared.owned(CONTROLLER_REVISIONS).by_owner.count(objects.uid(daemon_set)) <= limit:
        return
    old = [revision for revision in owned(shared, daemon_set) if objects.uid(revision) != objects.uid(keep)]
    spare = [revision for revision in old if hash_of(revision) not in hashes_in_use]
    for revision in spare[: max(0, len(old) - limit)]:
        shared.delete(CONTROLLER_REVISIONS, revision)
