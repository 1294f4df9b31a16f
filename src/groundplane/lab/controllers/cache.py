"""What controllers look things up in: the present objects of a kind, and pods by node, owner and namespace.

Kept by the API server's commit hook, so a look-up right after a write sees it. The objects are the API server's own
and are never changed here; an event costs the same however many objects there are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from ..api import Api
from ..resources import PODS, Resource
from . import objects
from .objects import Key, Obj

Subscriber = Callable[[Obj | None, Obj | None], None]
"""Called with the object before and after a commit: None before a creation, None after a removal."""


class Cache:
    """The present objects of one resource by key."""

    def __init__(self, api: Api, resource: Resource) -> None:
        self.resource = resource
        self._objects: dict[Key, Obj] = {}
        self._subscribers: list[Subscriber] = []
        api.on_change(resource, self._changed)
        for item in api.list(resource)["items"]:
            self._store(None, item)

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Obj]:
        return iter(list(self._objects.values()))

    def get(self, name: str, namespace: str = "") -> Obj | None:
        """The object of this name, None if there is none."""
        return self._objects.get((namespace, name))

    def at(self, key: Key) -> Obj | None:
        """The object of this key, None if there is none."""
        return self._objects.get(key)

    def in_namespace(self, namespace: str) -> list[Obj]:
        """The objects of a namespace; goes over all objects of the kind."""
        return [item for (found, _), item in self._objects.items() if found == namespace]

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hear of every commit; of present objects right now, as if they had just been created."""
        for item in self:
            subscriber(None, item)
        self._subscribers.append(subscriber)

    def _changed(self, kind: str, new: Obj, old: Obj | None) -> None:
        after = None if kind == "DELETED" else new
        self._store(old, after)
        for subscriber in self._subscribers:
            subscriber(old, after)

    def _store(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None:
            self._objects[objects.key(new)] = new
        elif old is not None:
            self._objects.pop(objects.key(old), None)


class Index:
    """Objects in groups, for look-ups that must not go over all of them."""

    def __init__(self) -> None:
        self._groups: defaultdict[str, dict[Key, Obj]] = defaultdict(dict)

    def __getitem__(self, group: str) -> list[Obj]:
        found = self._groups.get(group)
        return list(found.values()) if found else []

    def count(self, group: str) -> int:
        """How many objects a group has."""
        return len(self._groups.get(group) or ())

    def move(self, key: Key, old: str, new: str, obj: Obj | None) -> None:
        """Take an object out of one group and put it into another; "" is no group."""
        if old and (old != new or obj is None):
            group = self._groups.get(old)
            if group is not None:
                group.pop(key, None)
                if not group:
                    del self._groups[old]
        if new and obj is not None:
            self._groups[new][key] = obj


class OwnedCache(Cache):
    """A cache that also finds objects by their controller's UID, and those of a namespace that have no controller."""

    def __init__(self, api: Api, resource: Resource) -> None:
        self.by_owner = Index()
        self.orphans = Index()
        self.by_namespace = Index()
        super().__init__(api, resource)

    def in_namespace(self, namespace: str) -> list[Obj]:
        """The objects of a namespace."""
        return self.by_namespace[namespace]

    def _store(self, old: Obj | None, new: Obj | None) -> None:
        super()._store(old, new)
        some = new if new is not None else old
        if some is None:
            return
        key = objects.key(some)
        owner_before = objects.controller_uid(old) if old is not None else ""
        owner_after = objects.controller_uid(new) if new is not None else ""
        self.by_owner.move(key, owner_before, owner_after, new)
        orphan_before = key[0] if old is not None and not owner_before else ""
        orphan_after = key[0] if new is not None and not owner_after else ""
        self.orphans.move(key, orphan_before, orphan_after, new)
        self.by_namespace.move(key, key[0], key[0], new)


class PodCache(OwnedCache):
    """Pods, found also by the node they are bound to."""

    def __init__(self, api: Api) -> None:
        self.by_node = Index()
        super().__init__(api, PODS)

    def _store(self, old: Obj | None, new: Obj | None) -> None:
        super()._store(old, new)
        some = new if new is not None else old
        if some is not None:
            before = objects.node_name(old) if old is not None else ""
            after = objects.node_name(new) if new is not None else ""
            self.by_node.move(objects.key(some), before, after, new)


def same(old: Obj | None, new: Obj | None, *paths: str) -> bool:
    """Whether both objects exist and are alike at these dotted paths: then a controller need not look again."""
    return old is not None and new is not None and all(_at(old, path) == _at(new, path) for path in paths)


def _at(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value or None
