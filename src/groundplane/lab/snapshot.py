"""Objects of a file as something that answers listings: what ``kubectl get -o yaml`` printed, asked like a cluster.

Only reading is possible. Selectors mean what they mean to the lab's API server.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..api import codec
from ..cluster import errors
from ..cluster.client import Listing
from ..cluster.kinds import Kind
from . import selectors
from .status import StatusError


class Snapshot:
    """Documents, by kind. Lists (``kind: List``) are taken apart."""

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        self._found: dict[str, list[dict[str, Any]]] = {}
        for document in _items(documents):
            self._found.setdefault(str(document.get("kind")), []).append(document)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        view: Any = dict,
    ) -> Listing[Any]:
        """The objects of a kind, as :meth:`groundplane.cluster.client.Client.list`.

        Raises :class:`~groundplane.cluster.errors.ApiError` for a selector or an object that cannot be read.
        """
        try:
            by_label = selectors.parse_labels(labels)
        except StatusError as error:
            raise errors.ApiError(error.code, "BadRequest", str(error)) from error
        node = _node_of(fields)
        found = [
            each
            for each in self._found.get(kind.kind, ())
            if (not kind.namespaced or namespace is None or each["metadata"].get("namespace") == namespace)
            and by_label.matches(each["metadata"].get("labels"))
            and (node is None or (each.get("spec") or {}).get("nodeName") == node)
        ]
        return Listing([_as(each, view) for each in found], "")

    async def get(self, kind: Kind, name: str, namespace: str | None = None, *, view: Any = dict) -> Any:
        """One object. Raises :class:`~groundplane.cluster.errors.NotFound`."""
        for each in (await self.list(kind, namespace)).items:
            if each["metadata"].get("name") == name:
                return _as(each, view)
        raise errors.NotFound(404, "NotFound", f"the snapshot has no {kind.kind} {name}")


def _as(document: dict[str, Any], view: Any) -> Any:
    if view is dict:
        return document
    try:
        return msgspec.convert(codec.without_nulls(document), view)
    except msgspec.ValidationError as error:
        what = f"{document.get('kind')} {document['metadata'].get('name')}"
        raise errors.ApiError(422, "Invalid", f"{what} of the snapshot cannot be read: {error}") from error


def _items(documents: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for document in documents:
        if str(document.get("kind", "")).endswith("List"):
            item_kind = str(document["kind"]).removesuffix("List")
            items: Sequence[Mapping[str, Any]] = document.get("items") or ()
            yield from _items({"kind": item_kind, **item} if item_kind else item for item in items)
        elif isinstance(document.get("metadata"), dict):
            yield dict(document)


def _node_of(fields: str | None) -> str | None:
    """The node that pods are asked of; no other field is."""
    return fields.removeprefix("spec.nodeName=") if fields else None
