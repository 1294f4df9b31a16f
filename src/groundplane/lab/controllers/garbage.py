"""The garbage collector: what depends on an object goes with it, as the deletion's propagation says.

Background: a dependent goes once none of its owners exists. Foreground: the owner waits, under its finalizer, until
the dependents that block it are gone. Orphan: dependents lose the reference and stay. An owner may be cluster-scoped
or in the dependent's namespace; a reference to any other object, or to one of another UID, dangles. A kind that the
API server does not know (its definition is missing) says nothing about whether the owner exists: its dependents stay.
"""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Literal

from ..resources import Resource
from ..status import StatusError
from . import objects
from .events import WARNING
from .everything import Everything
from .loop import Loop
from .objects import Doc, Key, Obj
from .shared import Shared

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
REMEMBERED_GONE = 10_000

Standing = Literal["solid", "waiting", "dangling"]


@dataclass(frozen=True, slots=True)
class Vertex:
    """Where an object of the graph is found."""

    resource: Resource
    key: Key


class GarbageCollector:
    """Keeps the graph of owners and dependents, and deletes what nobody owns any more."""

    def __init__(self, shared: Shared, everything: Everything) -> None:
        self._shared = shared
        self._everything = everything
        self._vertices: dict[str, Vertex] = {}
        self._dependents: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._recorder = shared.events("garbage-collector-controller")
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.loop: Loop[str] = Loop("garbage-collector", self._reconcile, shared.clock)
        everything.subscribe(self._changed)

    # --- the graph ----------------------------------------------------------------------------------------------------

    def _changed(self, resource: Resource, old: Obj | None, new: Obj | None) -> None:
        before = old["metadata"].get("ownerReferences") if old is not None else None
        after = new["metadata"].get("ownerReferences") if new is not None else None
        if new is None:
            if old is not None:
                self._removed(objects.uid(old), objects.owners(old))
            return
        uid = objects.uid(new)
        if old is None or uid not in self._vertices:
            self._vertices[uid] = Vertex(resource, objects.key(new))
        if before != after:
            self._rewire(uid, before or (), after or ())
        if old is None or self._starts_waiting(old, new):
            self._look_at(uid, new)

    def _rewire(self, uid: str, before: list[Doc] | tuple[()], after: list[Doc] | tuple[()]) -> None:
        for owner in before:
            self._unlink(owner["uid"], uid)
            self.loop.add(owner["uid"])
        for owner in after:
            self._dependents[owner["uid"]][uid] = None
        if after:
            self.loop.add(uid)

    def _starts_waiting(self, old: Obj, new: Obj) -> bool:
        return objects.deleting(new) and (
            not objects.deleting(old) or old["metadata"].get("finalizers") != new["metadata"].get("finalizers")
        )

    def _look_at(self, uid: str, obj: Obj) -> None:
        if objects.deleting(obj) and {FOREGROUND, ORPHAN} & set(obj["metadata"].get("finalizers") or ()):
            self.loop.add(uid)

    def _removed(self, uid: str, owners: list[Doc]) -> None:
        self._vertices.pop(uid, None)
        for owner in owners:
            self._unlink(owner["uid"], uid)
            if self._vertices.get(owner["uid"]):
                self.loop.add(owner["uid"])
        if uid in self._dependents:
            self._gone[uid] = None
            while len(self._gone) > REMEMBERED_GONE:
                self._gone.popitem(last=False)
            for dependent in self._dependents[uid]:
                self.loop.add(dependent)

    def _unlink(self, owner: str, dependent: str) -> None:
        found = self._dependents.get(owner)
        if found is not None:
            found.pop(dependent, None)
            if not found:
                del self._dependents[owner]

    # --- working it off -----------------------------------------------------------------------------------------------

    def _reconcile(self, uid: str) -> None:
        obj = self._get(uid)
        if obj is None:
            return
        resource = self._everything.current(self._vertices[uid].resource)
        finalizers = obj["metadata"].get("finalizers") or ()
        if objects.deleting(obj):
            if ORPHAN in finalizers:
                self._orphan(uid)
                self._drop_finalizer(uid, ORPHAN)
            elif FOREGROUND in finalizers:
                self._foreground(uid)
            return
        standings = [(owner, self._standing(obj, owner)) for owner in objects.owners(obj)]
        if standings and any(standing != "solid" for _, standing in standings):
            self._attempt(resource, obj, standings)

    def _get(self, uid: str) -> Obj | None:
        vertex = self._vertices.get(uid)
        if vertex is None:
            return None
        namespace, name = vertex.key
        try:
            found: Obj = self._shared.api.get(self._everything.current(vertex.resource), name, namespace or None)
        except StatusError as error:
            if error.code == 404:
                return None
            raise
        return found if objects.uid(found) == uid else None

    def _standing(self, obj: Obj, owner: Doc) -> Standing:
        vertex = self._vertices.get(owner["uid"])
        if vertex is None:
            if owner["uid"] in self._gone or self._everything.resource_of(owner["apiVersion"], owner["kind"]):
                return "dangling"
            return "solid"
        namespace, name = vertex.key
        own = obj["metadata"].get("namespace") or ""
        if namespace and own and namespace != own:
            self._say_elsewhere(obj, owner, own)
            return "dangling"
        if name != owner["name"] or (namespace and not own):
            return "dangling"
        found = self._get(owner["uid"])
        if found is not None and objects.deleting(found) and FOREGROUND in (found["metadata"].get("finalizers") or ()):
            return "waiting"
        return "solid"

    def _say_elsewhere(self, obj: Obj, owner: Doc, namespace: str) -> None:
        """Tell that an owner is in another namespace than what it owns."""
        about = objects.object_reference(obj, obj["apiVersion"], obj["kind"])
        named = f"[{owner['apiVersion']}/{owner['kind']}, namespace: {namespace}, name: {owner['name']}"
        text = f'ownerRef {named}, uid: {owner["uid"]}] does not exist in namespace "{namespace}"'
        self._recorder.event(about, WARNING, "OwnerRefInvalidNamespace", text)

    def _attempt(self, resource: Resource, obj: Obj, standings: list[tuple[Doc, Standing]]) -> None:
        """Delete a dependent that has no solid owner left; otherwise only drop the references that do not hold."""
        solid = [dict(owner) for owner, standing in standings if standing == "solid"]
        if solid:
            self._shared.edit_metadata(resource, obj, ownerReferences=solid)
            return
        waiting = any(standing == "waiting" for _, standing in standings)
        finalizers = obj["metadata"].get("finalizers") or ()
        foreground = FOREGROUND in finalizers or (waiting and bool(self._dependents.get(objects.uid(obj))))
        propagation = "Orphan" if ORPHAN in finalizers else "Foreground" if foreground else "Background"
        self._shared.delete(resource, obj, propagation=propagation)

    def _foreground(self, uid: str) -> None:
        blocked = False
        for dependent in list(self._dependents.get(uid, ())):
            found = self._get(dependent)
            if found is None:
                continue
            references = [owner for owner in objects.owners(found) if owner["uid"] == uid]
            blocked |= any(owner.get("blockOwnerDeletion") for owner in references)
            if not objects.deleting(found):
                self.loop.add(dependent)
        if not blocked:
            self._drop_finalizer(uid, FOREGROUND)

    def _orphan(self, uid: str) -> None:
        for dependent in list(self._dependents.get(uid, ())):
            found = self._get(dependent)
            if found is not None:
                kept = [owner for owner in objects.owners(found) if owner["uid"] != uid]
                resource = self._everything.current(self._vertices[dependent].resource)
                self._shared.edit_metadata(resource, found, ownerReferences=kept or None)

    def _drop_finalizer(self, uid: str, finalizer: str) -> None:
        found = self._get(uid)
        if found is not None and finalizer in (found["metadata"].get("finalizers") or ()):
            kept = [each for each in found["metadata"]["finalizers"] if each != finalizer]
            resource = self._everything.current(self._vertices[uid].resource)
            self._shared.edit_metadata(resource, found, finalizers=kept or None)
