"""What the server serves right now: built-in resources and those of custom resource definitions, with their schemas."""

from __future__ import annotations

from collections.abc import Iterator

from . import status
from .resources import BUILTIN, Resource
from .schema import builtin
from .schema.types import Schema


class Registry:
    """Resources by name and by kind. `generation` grows with every change (caches of discovery hang on it)."""

    def __init__(self) -> None:
        self.generation = 0
        self._by_name: dict[tuple[str, str, str], Resource] = {}
        self._by_kind: dict[tuple[str, str], Resource] = {}
        self._schemas: dict[tuple[str, str, str], Schema] = {}
        for resource in BUILTIN:
            self.add(resource)

    def add(self, resource: Resource, schema: Schema | None = None) -> None:
        """Serve a resource; a custom one comes with its schema."""
        name = (resource.group, resource.version, resource.plural)
        self._by_name[name] = resource
        self._by_kind[resource.kind, resource.api_version] = resource
        if schema is not None:
            self._schemas[name] = schema
        else:
            self._schemas.pop(name, None)
        self.generation += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving every version of a resource."""
        for name in [name for name in self._by_name if (name[0], name[2]) == (group, plural)]:
            resource = self._by_name.pop(name)
            self._by_kind.pop((resource.kind, resource.api_version), None)
            self._schemas.pop(name, None)
        self.generation += 1

    def find(self, plural: str, group: str | None = None, version: str | None = None) -> Resource:
        """Return a resource by plural name; without a group, the first that has it. Raises the 404."""
        if group is not None and version is not None:
            exact = self._by_name.get((group, version, plural))
            if exact is None:
                raise status.no_such_path()
            return exact
        for resource in self._by_name.values():
            if resource.plural == plural and group in (None, resource.group) and version in (None, resource.version):
                return resource
        raise status.no_such_path()

    def of_kind(self, kind: str, api_version: str) -> Resource:
        """Return a resource by kind and apiVersion; raises the 404."""
        found = self._by_kind.get((kind, api_version))
        if found is None:
            raise status.StatusError(404, "NotFound", f'no matches for kind "{kind}" in version "{api_version}"')
        return found

    def schema(self, resource: Resource) -> Schema:
        """Return the type of a resource's objects."""
        name = (resource.group, resource.version, resource.plural)
        found = self._schemas.get(name)
        if found is None:
            found = self._schemas[name] = builtin.of_model(resource.model)
        return found

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_name.values())

    def served(self, group: str, version: str) -> list[Resource]:
        """Return the resources of one group and version."""
        return [resource for resource in self if (resource.group, resource.version) == (group, version)]
