"""Every object of every resource the API server serves, custom ones included: where garbage collection and namespaces
look. Keeps no objects, only who is interested; a resource that is defined later is followed from then on.
"""

from collections.abc import Callable, Iterator

from ..resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from ..status import StatusError
from .objects import Obj
from .shared import Shared

Subscriber = Callable[[Resource, Obj | None, Obj | None], None]
LISTED = frozenset(("list", "delete"))


class Everything:
    """The commits of all resources in one stream."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._followed: dict[tuple[str, str], Resource] = {}
        self._subscribers: list[Subscriber] = []
        shared.cache(CUSTOM_RESOURCE_DEFINITIONS).subscribe(self._definitions_changed)
        self._follow_all()

    def __iter__(self) -> Iterator[Resource]:
        """The resources whose objects can be listed and deleted, one for each storage."""
        return iter(list(self._followed.values()))

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hear of every commit; of present objects right now."""
        for resource in self:
            for item in self._shared.api.list(resource)["items"]:
                subscriber(resource, None, item)
        self._subscribers.append(subscriber)

    def resource_of(self, api_version: str, kind: str) -> Resource | None:
        """The resource that serves a kind, in whatever version; None if none does."""
        group = api_version.rpartition("/")[0]
        for resource in self._followed.values():
            if resource.kind == kind and resource.group == group:
                return resource
        return None

    def current(self, resource: Resource) -> Resource:
        """The resource as it is served now: a definition may have changed its version since."""
        try:
            return self._shared.api.resource(resource.plural, resource.group)
        except StatusError as error:
            if error.code != 404:
                raise
            return resource

    def _definitions_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None and old is not None:
            self._followed.pop((old["spec"]["group"], old["spec"]["names"]["plural"]), None)
        else:
            self._follow_all()

    def _follow_all(self) -> None:
        served = {resource.storage: resource for resource in self._shared.api.registry if set(resource.verbs) >= LISTED}
        for storage in [known for known in self._followed if known not in served]:
            del self._followed[storage]
        for storage, resource in served.items():
            if storage not in self._followed:
                self._follow(storage, resource)

    def _follow(self, storage: tuple[str, str], resource: Resource) -> None:
        self._followed[storage] = resource

        def changed(kind: str, new: Obj, old: Obj | None) -> None:
            for subscriber in self._subscribers:
                subscriber(resource, old, None if kind == "DELETED" else new)

        self._shared.api.on_change(resource, changed)
        for item in self._shared.api.list(resource)["items"] if self._subscribers else ():
            changed("ADDED", item, None)
