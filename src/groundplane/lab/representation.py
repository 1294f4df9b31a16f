"""Answers in the form the client accepts: objects and lists as they are, as tables, or as metadata only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from . import conversion, status, tables
from .api import Api, Page
from .objects import Document
from .resources import Resource
from .store import Stored

PLAIN, TABLE, METADATA = "", "Table", "PartialObjectMetadata"
_META_VERSION = "meta.k8s.io/v1"
_SERVED = ("application/json", "application/yaml")
_CHUNK = 1 << 20
encode = msgspec.json.Encoder().encode


def wanted(accept: str) -> str:
    """Return Table, PartialObjectMetadata or plain for an Accept header; raises the 406 when JSON is not accepted."""
    if not accept:
        return PLAIN
    acceptable = False
    for entry in accept.split(","):
        media, *parameters = [part.strip() for part in entry.split(";")]
        if media not in (*_SERVED, "*/*"):
            continue
        values = dict(part.partition("=")[::2] for part in parameters)
        kind = values.get("as", "")
        if kind in (TABLE, METADATA, METADATA + "List"):
            if values.get("g") == "meta.k8s.io" and values.get("v") in ("v1", "v1beta1"):
                return TABLE if kind == TABLE else METADATA
            continue
        if not kind:
            acceptable = True
            break
    if not acceptable:
        raise status.not_acceptable(_SERVED)
    return PLAIN


def document_bytes(api: Api, res: Resource, document: Document) -> bytes:
    """Return an object's JSON, from the store's cache where it is the stored one."""
    meta = document.get("metadata") or {}
    found = api.store.get(res.storage, meta.get("namespace", ""), meta.get("name", ""))
    return found.raw if found is not None and found.document is document else encode(document)


def one(api: Api, res: Resource, document: Document, form: str, include: str) -> bytes:
    """Return one object in a form."""
    if form == TABLE:
        return encode(tables.of_objects(res, [document], {}, include, api.clock.now()))
    if form == METADATA:
        return encode(_metadata(document))
    return document_bytes(api, res, document)


def many(api: Api, res: Resource, page: Page, form: str, include: str) -> Iterator[bytes]:
    """Yield a list in a form, in pieces of about a mebibyte."""
    if form == TABLE:
        documents = [conversion.outgoing(res, item.document) for item in page.items]
        yield encode(tables.of_objects(res, documents, page.metadata, include, api.clock.now()))
    elif form == METADATA:
        items = [_metadata(conversion.outgoing(res, item.document)) for item in page.items]
        head = {"kind": "PartialObjectMetadataList", "apiVersion": _META_VERSION, "metadata": page.metadata}
        yield encode({**head, "items": items})
    else:
        yield from _list(res, page)


def _list(res: Resource, page: Page) -> Iterator[bytes]:
    head = encode({"kind": res.list_name, "apiVersion": res.api_version, "metadata": page.metadata})
    pieces: list[bytes] = [head[:-1], b',"items":[']
    size = 0
    prefix = encode({"kind": res.kind, "apiVersion": res.api_version})[:-1] + b","
    for index, item in enumerate(page.items):
        raw = _item(res, item, prefix)
        if index:
            pieces.append(b",")
        pieces.append(raw)
        size += len(raw)
        if size > _CHUNK:
            yield b"".join(pieces)
            pieces, size = [], 0
    pieces.append(b"]}")
    yield b"".join(pieces)


def _item(res: Resource, item: Stored, prefix: bytes) -> bytes:
    """Items of built-in lists have no kind and apiVersion of their own."""
    if conversion.converts(res):
        document = conversion.outgoing(res, item.document)
        if not res.custom:
            document = {key: value for key, value in document.items() if key not in ("kind", "apiVersion")}
        return encode(document)
    raw = item.raw
    return b"{" + raw[len(prefix) :] if not res.custom and raw.startswith(prefix) else raw


def _metadata(document: Document) -> Document:
    return {"kind": METADATA, "apiVersion": _META_VERSION, "metadata": document["metadata"]}


def event_line(api: Api, res: Resource, kind: str, event: Any, form: str, include: str, *, first: bool) -> bytes:
    """Return one watch event as a line; only the first of a watch says which columns a table has."""
    if form == PLAIN and not conversion.converts(res):
        line: bytes = event.line(kind)
        return line
    document = conversion.outgoing(res, event.new.document)
    if form == TABLE:
        document = tables.of_objects(res, [document], {}, include, api.clock.now())
        if not first:
            document["columnDefinitions"] = None
    elif form == METADATA:
        document = _metadata(document)
    return encode({"type": kind, "object": document}) + b"\n"


def bookmark_line(res: Resource, revision: int, form: str, *, initial_end: bool) -> bytes:
    """Return a BOOKMARK, which says that the client has seen everything up to a revision."""
    meta: Document = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    document: Document = {"kind": res.kind, "apiVersion": res.api_version, "metadata": meta}
    if form == TABLE:
        document = tables.empty(meta)
    elif form == METADATA:
        document = _metadata(document)
    return encode({"type": "BOOKMARK", "object": document}) + b"\n"
