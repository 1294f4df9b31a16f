"""What all controllers share: the API server, the clock, one cache a kind, and the writes that several of them make.

Also the rules of ownership (`claim`): a controller adopts the objects its selector finds and releases those it finds no
more. Who decides what to write is each controller's own module.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from .. import placement
from ..api import Api
from ..clock import LabClock
from ..resources import PODS, Resource
from ..status import StatusError
from . import objects
from .cache import Cache, OwnedCache, PodCache
from .events import NORMAL, WARNING, EventRecorder
from .objects import Doc, Obj

MANAGER = "kube-controller-manager"


class Shared:
    """The controllers' common ground."""

    def __init__(self, api: Api, clock: LabClock) -> None:
        self.api = api
        self.clock = clock
        self.pods = PodCache(api)
        self._caches: dict[tuple[str, str], Cache] = {PODS.id: self.pods}

    def cache(self, resource: Resource) -> Cache:
        """The cache of a resource, made on first use."""
        found = self._caches.get(resource.id)
        if found is None:
            found = self._caches[resource.id] = OwnedCache(self.api, resource)
        return found

    def owned(self, resource: Resource) -> OwnedCache:
        """The cache of a namespaced resource, with its look-up by owner."""
        found = self.cache(resource)
        assert isinstance(found, OwnedCache)
        return found

    def events(self, component: str) -> EventRecorder:
        """A recorder for one component's events."""
        return EventRecorder(self.api, self.clock, component)

    # --- writes -------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, document: Obj, namespace: str | None = None) -> Obj:
        """Create an object as the controller manager."""
        return self.api.create(resource, document, namespace, manager=MANAGER)

    def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        """Replace an object, or its `subresource`, as the controller manager."""
        return self.api.update(resource, obj, subresource=subresource, manager=MANAGER)

    def set_status(self, resource: Resource, obj: Obj, status: Mapping[str, Any]) -> Obj:
        """Write an object's status if it is another than the present one."""
        if (obj.get("status") or {}) == status:
            return obj
        return self.update(resource, {**obj, "status": dict(status)}, subresource="status")

    def edit_metadata(self, resource: Resource, obj: Obj, **changes: Any) -> Obj:
        """Write some metadata fields of an object; None removes a field."""
        metadata = {**obj["metadata"], **changes}
        kept = {name: value for name, value in metadata.items() if value is not None}
        return self.update(resource, {**obj, "apiVersion": resource.api_version, "metadata": kept})

    def delete(self, resource: Resource, obj: Doc, **options: Any) -> bool:
        """Delete an object, if it is still that one; False if it was gone already."""
        namespace, name = objects.key(obj)
        try:
            self.api.delete(resource, name, namespace or None, preconditions={"uid": objects.uid(obj)}, **options)
        except StatusError as error:
            if error.code in (404, 409):
                return False
            raise
        return True

    # --- ownership ----------------------------------------------------------------------------------------------------

    def claim(
        self, cache: OwnedCache, owner: Obj, resource: Resource, selector: Doc | None, candidates: Iterable[Obj]
    ) -> list[Obj]:
        """The candidates that are the owner's, after adopting matching orphans and releasing what matches no more."""
        mine: list[Obj] = []
        for candidate in candidates:
            held_by = objects.controller_uid(candidate)
            matches = placement.selects(selector, objects.labels(candidate))
            if held_by == objects.uid(owner):
                if matches:
                    mine.append(candidate)
                elif not objects.deleting(owner):
                    self._release(cache.resource, owner, candidate)
            elif not held_by and matches and not objects.deleting(candidate) and not objects.deleting(owner):
                mine.append(self._adopt(cache.resource, owner, resource, candidate))
        return mine

    def _adopt(self, resource: Resource, owner: Obj, owner_resource: Resource, candidate: Obj) -> Obj:
        reference = objects.owner_reference(owner, owner_resource.api_version, owner_resource.kind)
        kept = [each for each in objects.owners(candidate) if each.get("uid") != reference["uid"]]
        return self.edit_metadata(resource, candidate, ownerReferences=[*kept, reference])

    def _release(self, resource: Resource, owner: Obj, candidate: Obj) -> None:
        kept = [each for each in objects.owners(candidate) if each.get("uid") != objects.uid(owner)]
        self.edit_metadata(resource, candidate, ownerReferences=kept or None)


class PodControl:
    """Creates and deletes pods on behalf of one controller, with the events that go with it."""

    def __init__(self, shared: Shared, recorder: EventRecorder, resource: Resource) -> None:
        self._shared = shared
        self._recorder = recorder
        self._resource = resource

    def reference(self, owner: Doc) -> Obj:
        """The reference events about the owner carry."""
        return objects.object_reference(owner, self._resource.api_version, self._resource.kind)

    def create(self, owner: Obj, pod: Obj) -> Obj | None:
        """Create a pod for an owner; None if the namespace is going, which is no error."""
        namespace = owner["metadata"]["namespace"]
        reference = objects.owner_reference(owner, self._resource.api_version, self._resource.kind)
        metadata = {**pod["metadata"], "namespace": namespace, "ownerReferences": [reference]}
        document = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata}
        try:
            made = self._shared.create(PODS, document, namespace)
        except StatusError as error:
            if error.code == 403 and "being terminated" in error.message:
                return None
            told = _without_generated_name(error, metadata.get("generateName") or "")
            self._recorder.event(self.reference(owner), WARNING, "FailedCreate", f"Error creating: {told}")
            raise
        name = made["metadata"]["name"]
        self._recorder.event(self.reference(owner), NORMAL, "SuccessfulCreate", f"Created pod: {name}")
        return made

    def delete(self, owner: Doc, pod: Doc) -> None:
        """Delete an owner's pod, gracefully."""
        if objects.deleting(pod):
            return
        if self._shared.delete(PODS, pod):
            name = pod["metadata"]["name"]
            self._recorder.event(self.reference(owner), NORMAL, "SuccessfulDelete", f"Deleted pod: {name}")


def _without_generated_name(error: StatusError, prefix: str) -> str:
    """An error's message that is the same at each attempt: it names the prefix, not the name made up this time."""
    name = error.details.get("name")
    return error.message.replace(f'"{name}"', f'"{prefix}"') if prefix and name else error.message


def from_template(template: Doc, prefix: str, *, labels: Mapping[str, str] | None = None) -> Obj:
    """A pod document from a pod template; the API server completes its name after `prefix`."""
    given = template.get("metadata") or {}
    metadata: Obj = {"generateName": prefix, "labels": {**(given.get("labels") or {}), **(labels or {})}}
    if given.get("annotations"):
        metadata["annotations"] = dict(given["annotations"])
    if given.get("finalizers"):
        metadata["finalizers"] = list(given["finalizers"])
    return {"metadata": metadata, "spec": dict(template.get("spec") or {})}
