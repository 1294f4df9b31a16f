"""Deleting: finalizers, propagation, graceful deletion of pods, namespaces, and what happens when nothing
holds an object.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from . import crd, objects, resources
from .objects import Document
from .resources import Resource
from .status import forbidden
from .store import Stored

if TYPE_CHECKING:
    from .api import Api

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_FINALIZER = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_PROTECTED = ("default", "kube-system", "kube-public")
_ENDED = ("Succeeded", "Failed")


def delete(
    api: Api, res: Resource, old: Stored, propagation: str | None, grace_period_s: int | None, dry_run: bool
) -> Document:
    """Remove an object, or mark it when finalizers, a grace period or a namespace's content hold it."""
    if res is resources.NAMESPACES and old.key[1] in _PROTECTED:
        raise forbidden(res.plural, res.group, old.key[1], "this namespace may not be deleted")
    meta = dict(old.document["metadata"])
    meta["finalizers"] = _finalizers(res, meta.get("finalizers") or [], propagation)
    if not meta["finalizers"]:
        del meta["finalizers"]
    grace = _grace(res, old.document, grace_period_s)
    document = {**old.document, "metadata": meta}
    if res is resources.NAMESPACES and document.get("spec", {}).get("finalizers"):
        document["status"] = {**document.get("status", {}), "phase": "Terminating"}
    elif res is resources.CUSTOM_RESOURCE_DEFINITIONS and not dry_run:
        crd.before_delete(api, old)
        old = api.stored(res, meta["name"])
        meta = dict(old.document["metadata"])
        document = {**old.document, "metadata": meta}
    held = bool(meta.get("finalizers")) or _has_spec_finalizers(res, document)
    if not held and not grace:
        return finish(api, res, old, document) if not dry_run else old.document
    _mark(api, meta, grace)
    if dry_run or objects.unchanged(old.document, document):
        return document if dry_run else old.document
    if res.keeps_generation and not old.document["metadata"].get("deletionTimestamp"):
        meta["generation"] = meta.get("generation", 0) + 1
    revision = api.store.next_revision()
    meta["resourceVersion"] = str(revision)
    api.store.put(res.storage, old.key, document, revision)
    return document


def _finalizers(res: Resource, held: list[str], propagation: str | None) -> list[str]:
    """Without a policy, finalizers that express one stay, and Jobs of batch/v1 orphan their pods."""
    if propagation is None:
        if res is resources.JOBS and FOREGROUND not in held:
            propagation = "Orphan"
        else:
            return list(held)
    kept = [item for item in held if item not in (FOREGROUND, ORPHAN)]
    wanted = _FINALIZER.get(propagation)
    return [*kept, wanted] if wanted else kept


def _grace(res: Resource, document: Document, asked: int | None) -> int:
    """Seconds until a pod must be gone; 0 deletes at once. Only pods have a grace period."""
    if res is not resources.PODS:
        return 0
    spec, phase = document.get("spec", {}), document.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in _ENDED:
        return 0
    if asked is None:
        asked = spec.get("terminationGracePeriodSeconds", 30)
    present = document["metadata"].get("deletionGracePeriodSeconds")
    if present is not None:
        asked = min(asked, present)
    return 1 if asked < 0 else asked


def _mark(api: Api, meta: Document, grace: int) -> None:
    shorter = meta.get("deletionGracePeriodSeconds") is None or grace < meta["deletionGracePeriodSeconds"]
    if "deletionTimestamp" in meta and not shorter:
        return
    meta["deletionTimestamp"] = objects.timestamp(api.clock.now() + timedelta(seconds=grace))
    meta["deletionGracePeriodSeconds"] = grace


def _has_spec_finalizers(res: Resource, document: Document) -> bool:
    return res is resources.NAMESPACES and bool(document.get("spec", {}).get("finalizers"))


def is_over(res: Resource, document: Document) -> bool:
    """Whether an object that is being deleted is no longer held by anything."""
    meta = document["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers") or _has_spec_finalizers(res, document):
        return False
    return not (res is resources.PODS and meta.get("deletionGracePeriodSeconds", 0) > 0)


def finish(api: Api, res: Resource, old: Stored, document: Document) -> Document:
    """Remove the object from storage and return its last state."""
    revision = api.store.next_revision()
    last = {**document, "metadata": {**document["metadata"], "resourceVersion": str(revision)}}
    api.store.remove(res.storage, old.key, last, revision)
    crd.after_remove(api, res, last)
    return last
