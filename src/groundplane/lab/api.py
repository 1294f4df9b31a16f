"""The lab's API server without HTTP: one object whose methods do what kube-apiserver's verbs do, synchronously.

This module is the order of things (find, decode, default, admit, validate, manage fields, commit); the rules themselves
are tables and functions of their own: `objects`, `defaults`, `validation`, `admission`, `managers`, `deletion`, `crd`,
`subresources`. Documents handed out are the stored ones: treat them as read-only and copy before editing.
"""

from __future__ import annotations

import base64
import collections
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from . import (
    access,
    admission,
    bootstrap,
    conversion,
    crd,
    defaults,
    deletion,
    managers,
    objects,
    registry,
    selectors,
    status,
    store,
    subresources,
    validation,
)  # fmt: skip
from .discovery import VERSION
from .managers import Writer
from .objects import Document
from .patch import PatchError, apply_json_patch, merge_patch, strategic, typed
from .patch.strategic import understands
from .resources import DEPLOYMENTS, PODS, Resource
from .schema.decode import DecodeError, Decoder
from .store import Stored
from .watch import Watch

ChangeCallback = Callable[[str, Document, Document | None], None]
JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
PATCH_TYPES = {"json": JSON_PATCH, "merge": MERGE_PATCH, "strategic": STRATEGIC_PATCH, "apply": APPLY_PATCH}
"""Short names that `patch` takes for the media types."""
_NAME_TRIES = 8
_MANY = frozenset({("", "pods"), ("", "nodes")})
"""Kinds of which a cluster has thousands that are alike."""
_SIBLING_GROUPS = 256


class Clock(Protocol):
    """What the API server needs of a clock."""

    def now(self) -> datetime:
        """Return the cluster's time, UTC."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the present time, UTC."""
        return datetime.now(UTC)


class Options(msgspec.Struct):
    """What a write request carries besides the object.

    `validation` is Strict, Warn or Ignore (unknown and duplicate fields); warnings are appended to `warnings`. `user`
    is the caller as RBAC knows it, empty for the lab's own components.
    """

    manager: str = ""
    dry_run: bool = False
    validation: str = "Strict"
    warnings: list[str] = []
    duplicates: list[str] = []
    user: str = ""


class Api:
    """The API server's behaviour; see the module's description.

    `history` is how many changes of each resource stay available to watches and past lists. With `track_updates` off,
    only server-side apply is recorded in managedFields (cheaper for thousands of nodes). `rbac` makes `lab/http.py` ask
    `lab/access.py` before each request. `seed` fixes generated names and uids.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        history: int = 20_000,
        track_updates: bool = True,
        rbac: bool = False,
        seed: int | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.kubernetes = VERSION
        self.store = store.Store(history=history)
        self.registry = registry.Registry()
        self.track_updates = track_updates
        self.rbac = rbac
        self.random = random.Random(seed)
        self.url = ""
        """Where it is served over HTTP, if it is."""
        self._siblings: collections.OrderedDict[tuple[store.Id, str], Document] = collections.OrderedDict()
        bootstrap.fill(self)

    # --- finding -------------------------------------------------------------------------------------------------

    def resource(self, plural: str, group: str | None = None, version: str | None = None) -> Resource:
        """Return a served resource by its plural name; 404 when there is none. Any group when `group` is None."""
        return self.registry.find(plural, group, version)

    def of_kind(self, kind: str, api_version: str) -> Resource:
        """Return a served resource by kind and apiVersion; 404 when there is none."""
        return self.registry.of_kind(kind, api_version)

    def stored(self, res: Resource, name: str, ns: str | None = None) -> Stored:
        """Return the stored version of an object; raises the 404."""
        found = self.store.get(res.storage, ns or "" if res.namespaced else "", name)
        if found is None:
            raise status.not_found(res.plural, res.group, name)
        return found

    def get(self, res: Resource, name: str, ns: str | None = None, *, subresource: str | None = None) -> Document:
        """Return an object; raises the 404."""
        document = self.stored(res, name, ns).document
        if subresource == "scale":
            return subresources.scale_of(self, res, document)
        return conversion.outgoing(res, document)

    def find(self, res: Resource, name: str, ns: str | None = None) -> Document | None:
        """Return an object, or None."""
        found = self.store.get(res.storage, ns or "" if res.namespaced else "", name)
        return found.document if found is not None else None

    def select(
        self, res: Resource, ns: str | None = None, *, labels: str | None = None, fields: str | None = None,
        revision: int | None = None,
    ) -> list[Stored]:  # fmt: skip
        """Return the stored objects that match, ordered by namespace and name, now or as of a past revision."""
        by_label, by_field = selectors.parse_labels(labels), selectors.parse_fields(fields, res)
        if by_field.exact_namespace is not None and ns is None:
            ns = by_field.exact_namespace
        if by_field.exact_name is not None and revision is None and (ns is not None or not res.namespaced):
            one = self.store.get(res.storage, ns or "", by_field.exact_name)
            found = [one] if one is not None else []
        else:
            found = self.store.sorted(res.storage, ns if res.namespaced else None, revision)
        if not by_label and not by_field:
            return found
        return [
            item
            for item in found
            if by_label.matches(item.document["metadata"].get("labels")) and by_field.matches(item.document)
        ]

    def list(
        self, res: Resource, ns: str | None = None, *, labels: str | None = None, fields: str | None = None,
        limit: int | None = None, cont: str | None = None, resource_version: str | None = None,
        match: str | None = None,
    ) -> Document:  # fmt: skip
        """Return a List object. `cont` is the token of the previous page, `match` the resourceVersionMatch."""
        page = self.page(
            res,
            ns,
            labels=labels,
            fields=fields,
            limit=limit,
            cont=cont,
            resource_version=resource_version,
            match=match,
        )
        return {
            "kind": res.list_name,
            "apiVersion": res.api_version,
            "metadata": page.metadata,
            "items": [conversion.outgoing(res, item.document) for item in page.items],
        }

    def page(
        self, res: Resource, ns: str | None = None, *, labels: str | None = None, fields: str | None = None,
        limit: int | None = None, cont: str | None = None, resource_version: str | None = None,
        match: str | None = None,
    ) -> Page:  # fmt: skip
        """Return one page of a list as stored objects, with the list's metadata."""
        revision, start = self._list_from(cont, resource_version, match, limit)
        try:
            found = self.select(res, ns, labels=labels, fields=fields, revision=revision)
        except status.StatusError as error:
            if error.code == 410 and cont:
                raise status.gone(_EXPIRED_CONTINUE) from error
            raise
        shown = self.store.revision if revision is None else revision
        if start is not None:
            found = [item for item in found if item.key > start]
        metadata: Document = {"resourceVersion": str(shown)}
        if limit and len(found) > limit:
            metadata["continue"] = _token(shown, found[limit - 1].key)
            if not labels and not fields:
                metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        return Page(metadata, found)

    def _list_from(
        self, cont: str | None, version: str | None, match: str | None, limit: int | None
    ) -> tuple[int | None, tuple[str, str] | None]:
        """Return (the past revision to list, or None for now; the key after which to start)."""
        if cont:
            if version and version != "0":
                raise status.bad_request("specifying resource version is not allowed when using continue")
            return _read_token(cont)
        if match not in (None, "", "Exact", "NotOlderThan"):
            cause = objects.not_supported("resourceVersionMatch", match, ("Exact", "NotOlderThan", ""))
            raise status.invalid("ListOptions", "meta.k8s.io", "", [cause])
        if match and not version:
            text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            raise status.invalid("ListOptions", "meta.k8s.io", "", [objects.refused("resourceVersionMatch", text)])
        asked = self.revision_of(version)
        if asked > self.store.revision:
            raise status.too_large(asked, self.store.revision)
        if match == "Exact" or (limit and asked and match is None):
            if asked == 0:
                text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
                raise status.invalid("ListOptions", "meta.k8s.io", "", [objects.refused("resourceVersionMatch", text)])
            return asked, None
        return None, None

    def revision_of(self, version: str | None) -> int:
        """Return a resourceVersion parameter as a number, 0 when absent; raises the 400 or 422 of a malformed one."""
        if not version:
            return 0
        if not version.isdigit():
            cause = objects.invalid(
                "resourceVersion", version, f'strconv.ParseUint: parsing "{version}": invalid syntax'
            )
            raise status.StatusError(400, "BadRequest", f"invalid resource version: {cause.field}: {cause.message}")
        return int(version)

    # --- watching ------------------------------------------------------------------------------------------------

    def watch(
        self, res: Resource, ns: str | None = None, *, resource_version: str | None = None, labels: str | None = None,
        fields: str | None = None,
    ) -> Watch:  # fmt: skip
        """Return a watch of the changes after `resource_version`.

        Without one (or with "0") the present objects come first, as ADDED. Raises the 410 for a compacted version.
        """
        by_label, by_field = selectors.parse_labels(labels), selectors.parse_fields(fields, res)
        asked = self.revision_of(resource_version)
        table = self.store.table(res.storage)
        if asked == 0:
            present = self.store.sorted(res.storage, ns if res.namespaced else None)
            past = [store.Event(store.ADDED, item, None, item.revision) for item in present]
        else:
            past = self.store.since(res.storage, asked)
        return Watch(table, res, ns if res.namespaced else None, by_label, by_field, past, 0 if asked == 0 else asked)

    def on_change(self, res: Resource, callback: ChangeCallback) -> Callable[[], None]:
        """Call `callback(type, new, old)` right after each commit; returns the function that ends it.

        For in-process controllers: the callback may only note that something is to be done. `new` of a deletion is the
        object's last state; `old` is None for a creation.
        """
        table = self.store.table(res.storage)

        def listener(event: store.Event) -> None:
            callback(event.type, event.new.document, event.old.document if event.old is not None else None)

        table.listeners.append(listener)
        return lambda: table.listeners.remove(listener)

    # --- writing -------------------------------------------------------------------------------------------------

    def create(
        self, res: Resource, obj: Mapping[str, Any], ns: str | None = None, *, dry_run: bool = False, manager: str = "",
        options: Options | None = None,
    ) -> Document:  # fmt: skip
        """Create an object and return it as stored. `obj` is not kept."""
        options = options or Options(manager=manager, dry_run=dry_run)
        if res.verbs == ("create",):
            return subresources.review(self, res, objects.copy(dict(obj)), options)
        sent = {**obj, "metadata": objects.copy(obj.get("metadata"))}  # the rest is copied when defaults are set
        meta = sent["metadata"] or {}
        if isinstance(meta, dict) and meta.get("resourceVersion"):
            raise status.StatusError(500, "", "resourceVersion should not be set on objects to be created")
        for attempt in range(_NAME_TRIES):
            document = self._prepare_new(res, sent, ns, options)
            name, space = document["metadata"]["name"], document["metadata"].get("namespace", "")
            held = self.store.get(res.storage, space, name)
            if held is None:
                break
            if meta.get("name") or attempt == _NAME_TRIES - 1:
                deleted = bool(held.document["metadata"].get("deletionTimestamp"))
                raise status.already_exists(res.plural, res.group, name, deleted=deleted)
        return conversion.outgoing(res, self._commit_new(res, document, options))

    def _prepare_new(
        self, res: Resource, sent: Document, ns: str | None, options: Options, *, applied: bool = False
    ) -> Document:
        document = self._decode(res, sent, options, None)
        meta = dict(document.get("metadata") or {})
        self._place(res, meta, ns)
        meta = objects.new_metadata(meta, self.clock.now(), self.random, generation=res.keeps_generation)
        meta.pop("managedFields", None)
        document["metadata"] = meta
        if not meta.get("name"):
            raise status.invalid(res.kind, res.group, "", objects.metadata_problems(res, meta))
        document = admission.admit_namespace(self, res, document)
        given, document = document, defaults.new_object(self, res, document)
        if self.track_updates and not applied:
            self._track(res, None, defaults.as_given(res, document, given), options.manager, "")
        document = admission.admit(self, res, document)
        self._check_escalation(res, document, options)
        if causes := objects.metadata_problems(res, meta) + validation.problems(self, res, document, None):
            raise status.invalid(res.kind, res.group, meta["name"], causes)
        return document

    def _check_escalation(self, res: Resource, document: Document, options: Options) -> None:
        if self.rbac and options.user and res.group == access.RBAC:
            access.check_escalation(self, res, document, access.User.decode(options.user))

    def _place(self, res: Resource, meta: Document, ns: str | None) -> None:
        if not res.namespaced:
            meta.pop("namespace", None)
            return
        if ns and meta.get("namespace") not in (None, "", ns):
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise status.bad_request(text)
        meta["namespace"] = ns or meta.get("namespace") or "default"

    def _commit_new(self, res: Resource, document: Document, options: Options) -> Document:
        meta = document["metadata"]
        if options.dry_run:
            return document
        revision = self.store.next_revision()
        meta["resourceVersion"] = str(revision)
        key = (meta.get("namespace", ""), meta["name"])
        document = self._share(res, document)
        self.store.put(res.storage, key, document, revision)
        crd.after_write(self, res, document)
        return self._latest(res, key, document)

    def _share(self, res: Resource, document: Document) -> Document:
        """Store what the pods of one owner, or the nodes, have in common once. Only for kinds without open fields."""
        if res.id not in _MANY:
            return document
        owners = document["metadata"].get("ownerReferences")
        group = (res.storage, owners[0]["uid"] if owners else "")
        result = objects.shared(document, self._siblings.get(group))
        self._siblings[group] = result
        while len(self._siblings) > _SIBLING_GROUPS:
            self._siblings.popitem(last=False)
        return result

    def _latest(self, res: Resource, key: tuple[str, str], document: Document) -> Document:
        found = self.store.get(res.storage, *key)
        return found.document if found is not None else document

    def update(
        self, res: Resource, obj: Mapping[str, Any], *, ns: str | None = None, name: str | None = None,
        subresource: str | None = None, manager: str = "", dry_run: bool = False, options: Options | None = None,
    ) -> Document:  # fmt: skip
        """Replace an object (or its status, scale or finalize part) and return it as stored."""
        options = options or Options(manager=manager, dry_run=dry_run)
        meta = obj.get("metadata") or {}
        name = name or meta.get("name") or ""
        _check_name(meta, name)
        ns = ns or meta.get("namespace")
        old = self.stored(res, name, ns)
        sent: Document = objects.copy_changed(dict(obj), old.document)
        meta = sent["metadata"] = dict(sent.get("metadata") or {})
        if subresource == "scale":
            return subresources.update_scale(self, res, old.document, sent, options)
        if res.custom and not meta.get("resourceVersion"):
            text = "must be specified for an update"
            cause = objects.invalid("metadata.resourceVersion", 0, text)
            raise status.invalid(res.kind, res.group, name, [cause])
        self._place(res, meta, ns)
        return conversion.outgoing(res, self._replace(res, old, sent, subresource or "", options))

    def patch(
        self, res: Resource, name: str, body: Any, *, ns: str | None = None, type: str, subresource: str | None = None,
        manager: str | None = None, force: bool = False, dry_run: bool = False, options: Options | None = None,
    ) -> Document:  # fmt: skip
        """Patch an object and return it as stored.

        `type` is json, merge, strategic or apply (or the media type). An apply creates what is not there.
        """
        options = options or Options(manager=manager or "", dry_run=dry_run)
        media = PATCH_TYPES.get(type, type)
        body = objects.copy(body)
        if media == APPLY_PATCH:
            return conversion.outgoing(res, self._apply(res, name, body, ns, subresource or "", force, options))
        if force:
            cause = objects.refused("force", "may not be specified for non-apply patch")
            raise status.invalid("PatchOptions", "meta.k8s.io", "", [cause])
        old = self.stored(res, name, ns)
        if subresource == "scale":
            sent = self._patched(res, subresources.scale_of(self, res, old.document), body, media)
            return subresources.update_scale(self, res, old.document, sent, options)
        before = conversion.outgoing(res, old.document)
        sent = self._patched(res, before, body, media)
        meta = sent["metadata"] = dict(sent.get("metadata") or {})
        _check_name(meta, name)
        self._place(res, meta, old.key[0])
        return conversion.outgoing(res, self._replace(res, old, sent, subresource or "", options, patched=True))

    def _patched(self, res: Resource, document: Document, body: Any, media: str) -> Document:
        try:
            if media == JSON_PATCH:
                if not isinstance(body, list):
                    text = f"json: cannot unmarshal {_go_type(body)} into Go value of type []handlers.jsonPatchOp"
                    raise status.bad_request(f"error decoding patch: {text}")
                result = apply_json_patch(document, body)
            elif media == MERGE_PATCH:
                result = merge_patch(document, body)
            elif media == STRATEGIC_PATCH and understands(self.registry.schema(res)):
                result = strategic(document, body, self.registry.schema(res))
            else:
                served = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH] + ([] if res.custom else [STRATEGIC_PATCH])
                raise status.unsupported_media_type(served)
        except PatchError as error:
            if media == JSON_PATCH:
                text = "the server rejected our request due to an error in our request"
                details = {"causes": [{"reason": "UnexpectedServerResponse", "message": str(error)}]}
                raise status.StatusError(422, "Invalid", text, details) from error
            raise status.StatusError(500, "", str(error)) from error
        if not isinstance(result, dict):
            raise status.bad_request("the patched object is not an object")
        return result

    def _apply(
        self, res: Resource, name: str, body: Any, ns: str | None, subresource: str, force: bool, options: Options
    ) -> Document:
        sent = self._checked_configuration(res, name, body, ns, options)
        named = _named(res, sent)
        if problem := typed.problem(sent, self.registry.schema(res)):
            raise status.StatusError(500, "", f"failed to create typed patch object {named}: {problem}")
        self._place(res, sent["metadata"], ns)
        try:
            wanted = self._decode(res, sent, options, None, partial=True)
        except _Undecodable as error:
            raise error.of_apply(named) from error
        space = ns or "" if res.namespaced else ""
        old = self.store.get(res.storage, space, name)
        schema = self.registry.schema(res)
        now = objects.timestamp(self.clock.now())
        writer = Writer(options.manager, managers.APPLY, res.api_version, subresource)
        if old is None:
            if subresource:
                raise status.not_found(res.plural, res.group, name)
            return self._apply_new(res, wanted, sent, ns, writer, options)
        version = wanted["metadata"].get("resourceVersion")
        objects.check_preconditions(res, name, old.document, {"resourceVersion": version})
        if causes := objects.update_problems(old.document, old.document, {"uid": wanted["metadata"].get("uid")}):
            raise status.invalid(res.kind, res.group, name, causes)
        wanted["metadata"] = {k: v for k, v in wanted["metadata"].items() if k not in ("resourceVersion", "uid")}
        outcome = managers.apply_configuration(old.document, wanted, sent, schema, writer, now, force=force)
        merged = outcome.document
        merged = {**merged, "metadata": {**merged["metadata"], "managedFields": outcome.managed}}
        return self._replace(res, old, merged, subresource, options, applied=True)

    def _checked_configuration(self, res: Resource, name: str, body: Any, ns: str | None, options: Options) -> Document:
        if not options.manager:
            cause = objects.required("fieldManager", "is required for apply patch")
            raise status.invalid("PatchOptions", "meta.k8s.io", "", [cause])
        if not isinstance(body, dict):
            raise status.bad_request("error decoding YAML: an applied configuration is an object")
        version, kind = body.get("apiVersion", ""), body.get("kind", "")
        if (version, kind) != (res.api_version, res.kind):
            raise status.bad_request(f"invalid object type: {_gvk(version, kind)}")
        meta = body.setdefault("metadata", {})
        if meta.get("managedFields") is not None:
            raise status.bad_request("metadata.managedFields must be nil")
        _check_name(meta, name)
        return body

    def _apply_new(
        self, res: Resource, wanted: Document, sent: Document, ns: str | None, writer: Writer, options: Options
    ) -> Document:
        now = objects.timestamp(self.clock.now())
        if uid := wanted["metadata"].get("uid"):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise status.conflict(res.plural, res.group, wanted["metadata"]["name"], why)
        schema = self.registry.schema(res)
        managed = managers.apply_configuration({}, wanted, sent, schema, writer, now, force=True).managed
        wanted["metadata"].pop("resourceVersion", None)
        document = self._prepare_new(res, wanted, ns, options, applied=True)
        document["metadata"]["managedFields"] = managed
        return self._commit_new(res, document, options)

    def _replace(
        self, res: Resource, old: Stored, sent: Document, subresource: str, options: Options, *, applied: bool = False,
        patched: bool = False,
    ) -> Document:  # fmt: skip
        """Make `sent` the next version of `old`: the common end of update, patch and apply."""
        before = old.document
        name = before["metadata"]["name"]
        try:
            document = self._decode(res, sent, options, before)
        except _Undecodable as error:
            raise error.of_patch(sent) if patched else error from error.__cause__
        meta = document.get("metadata") or {}
        checked = {"resourceVersion": meta.get("resourceVersion")} if patched else meta
        objects.check_preconditions(res, name, before, checked)
        kept = objects.kept_metadata(before["metadata"], meta)
        kept["resourceVersion"] = before["metadata"]["resourceVersion"]
        managed = kept.get("managedFields") if applied else _managed_after_update(before, kept)
        kept.pop("managedFields", None)
        document["metadata"] = kept
        document = subresources.confine(res, before, document, subresource)
        document = defaults.changed_object(self, res, document, before, subresource)
        causes = objects.update_problems(before, document, meta)
        if any(document["metadata"].get(key) is not before["metadata"].get(key) for key in _VALIDATED_METADATA):
            causes += objects.metadata_problems(res, document["metadata"])
        causes += validation.problems(self, res, document, before, subresource)
        if causes:
            raise status.invalid(res.kind, res.group, name, causes)
        self._check_escalation(res, document, options)
        if managed:
            document["metadata"]["managedFields"] = managed
        if not applied and self.track_updates:
            if managed is None or managed is not before["metadata"].get("managedFields"):
                before = {**before, "metadata": {**before["metadata"], "managedFields": managed}}
            self._track(res, before, document, options.manager, subresource)
        return self._commit_change(res, old, document, options, subresource)

    def _commit_change(
        self, res: Resource, old: Stored, document: Document, options: Options, subresource: str = ""
    ) -> Document:
        before = old.document
        same_managers = managers.entries(before) == managers.entries(document)
        if same_managers and objects.unchanged(before, document):
            return before
        if res.keeps_generation and (
            objects.spec_changed(res, before, document)
            or (res is DEPLOYMENTS and not subresource and objects.annotations_differ(before, document))
        ):
            document["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
        if options.dry_run:
            return document
        if deletion.is_over(res, document):
            return deletion.finish(self, res, old, document)
        revision = self.store.next_revision()
        document["metadata"]["resourceVersion"] = str(revision)
        self.store.put(res.storage, old.key, document, revision)
        crd.after_write(self, res, document)
        return self._latest(res, old.key, document)

    def _track(self, res: Resource, old: Document | None, document: Document, manager: str, subresource: str) -> None:
        writer = Writer(manager or "groundplane-lab", managers.UPDATE, res.api_version, subresource)
        now = objects.timestamp(self.clock.now())
        schema = self.registry.schema(res)
        try:
            managed = managers.after_update(old, document, schema, writer, now)
        except ValueError:  # a list whose items have no keys, which validation is about to say
            return
        if managed:
            document["metadata"]["managedFields"] = managed
        else:
            document["metadata"].pop("managedFields", None)

    def _decode(
        self, res: Resource, sent: Document, options: Options, base: Document | None, *, partial: bool = False
    ) -> Document:
        """Return `sent` typed and pruned; raises the 400 of a wrong type or, when strict, of unknown fields."""
        kind, version = sent.get("kind") or res.kind, sent.get("apiVersion") or res.api_version
        if (kind, version) != (res.kind, res.api_version):
            raise _wrong_type(res, sent, kind, version)
        decoder = Decoder()
        try:
            document: Document = decoder.clean(
                sent, self.registry.schema(res), base=None if conversion.converts(res) else base
            )
        except DecodeError as error:
            raise _Undecodable(res, str(error)) from error
        if decoder.unknown or options.duplicates:
            _report_unknown(res, decoder.unknown, options)
        document = {**document, "kind": res.kind, "apiVersion": res.api_version}
        if next(iter(document)) != "kind":
            document = {"kind": res.kind, "apiVersion": res.api_version, **document}
        if document.get("metadata") is None and not partial:
            document["metadata"] = {}
        return conversion.to_storage(res, document)

    # --- deleting ------------------------------------------------------------------------------------------------

    def delete(
        self, res: Resource, name: str, ns: str | None = None, *, propagation: str | None = None,
        preconditions: Mapping[str, str] | None = None, grace_period_s: int | None = None, dry_run: bool = False,
        orphan_dependents: bool | None = None,
    ) -> Document:  # fmt: skip
        """Delete an object, or mark it as being deleted; returns its last or present state.

        `preconditions` may hold uid and resourceVersion. `propagation` is Foreground, Background or Orphan.
        """
        old = self.stored(res, name, ns)
        objects.check_deletion(res, name, old.document, preconditions or {})
        if orphan_dependents is not None:
            propagation = "Orphan" if orphan_dependents else "Background"
        return conversion.outgoing(res, deletion.delete(self, res, old, propagation, grace_period_s, dry_run))

    def delete_collection(
        self, res: Resource, ns: str | None = None, *, labels: str | None = None, fields: str | None = None,
        propagation: str | None = None, grace_period_s: int | None = None, dry_run: bool = False,
    ) -> Document:  # fmt: skip
        """Delete every object that matches; returns the List of what was there."""
        found = self.select(res, ns, labels=labels, fields=fields)
        for item in found:
            deletion.delete(self, res, item, propagation, grace_period_s, dry_run)
        return {
            "kind": res.list_name,
            "apiVersion": res.api_version,
            "metadata": {"resourceVersion": str(self.store.revision)},
            "items": [conversion.outgoing(res, item.document) for item in found],
        }

    def evict(
        self, name: str, ns: str, *, grace_period_s: int | None = None, preconditions: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> Document:  # fmt: skip
        """Evict a pod; raises the 429 when a PodDisruptionBudget does not allow it."""
        pod = self.get(PODS, name, ns)
        subresources.check_budgets(self, pod, dry_run=dry_run)
        objects.check_preconditions(PODS, name, pod, dict(preconditions or {}))
        if not dry_run:
            subresources.note_eviction(self, pod)
        return self.delete(PODS, name, ns, grace_period_s=grace_period_s, dry_run=dry_run)

    def bind(self, name: str, ns: str, node: str) -> Document:
        """Assign a pod to a node; raises the 409 when it already has one."""
        return subresources.bind(self, name, ns, node)

    def compact(self, res: Resource | None = None) -> None:
        """Forget past revisions, of one resource or all: older watches and continue tokens get 410."""
        self.store.compact(res.storage if res is not None else None)


class Page(msgspec.Struct, frozen=True):
    """One page of a list: the List's metadata and the stored objects."""

    metadata: Document
    items: list[Stored]


_EXPIRED_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


def _check_name(meta: Mapping[str, Any], name: str) -> None:
    """Raise the 400 of an object whose name is not the one in the request's path."""
    if not meta.get("name"):
        text = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
        raise status.bad_request(text)
    if meta["name"] != name:
        raise status.bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")


def _token(revision: int, key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"v": "groundplane/v1", "rv": revision, "after": key})).decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        content = msgspec.json.decode(base64.urlsafe_b64decode(token))
        return int(content["rv"]), (str(content["after"][0]), str(content["after"][1]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise status.bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def _managed_after_update(before: Document, sent: Document) -> list[Document] | None:
    """A client may edit managedFields; one empty entry resets them, and entries that make no sense change nothing."""
    asked = sent.get("managedFields") or []
    if asked == [{}]:
        return None
    sensible = all(entry.get("operation") in (managers.APPLY, managers.UPDATE) for entry in asked)
    return asked if asked and sensible else managers.entries(before)


_VALIDATED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


class _Undecodable(status.StatusError):
    """The document does not fit its kind: 400, and for the outcome of a patch 422 with the whole document in it."""

    def __init__(self, res: Resource, why: str) -> None:
        text = f'{res.kind} in version "{res.version}" cannot be handled as a {res.kind}: {why}'
        super().__init__(400, "BadRequest", text)
        self._why = why

    def of_patch(self, document: Document) -> status.StatusError:
        """Return the error as it is for a document that came out of a patch."""
        text = msgspec.json.encode(document).decode()
        return status.invalid("", "", "", [objects.invalid("patch", text, self._why)])

    def of_apply(self, named: str) -> status.StatusError:
        """Return the error as it is for an applied configuration."""
        return status.StatusError(500, "", f"failed to convert new object {named} to proper version: {self._why}")


def _gvk(api_version: str, kind: str) -> str:
    """Return a type as Go prints it: `/v1, Kind=Pod`, `apps/v1, Kind=DaemonSet`."""
    return f"{api_version if '/' in api_version else '/' + api_version}, Kind={kind}"


def _named(res: Resource, sent: Document) -> str:
    """Return how an applied configuration is named in an error."""
    meta = sent["metadata"]
    return f"({meta.get('namespace', '')}/{meta.get('name', '')}; {_gvk(res.api_version, res.kind)})"


def _go_type(value: Any) -> str:
    return "object" if isinstance(value, dict) else "string" if isinstance(value, str) else "number"


def _wrong_type(res: Resource, sent: Document, kind: str, version: str) -> status.StatusError:
    if res.custom and version == res.api_version:
        name = (sent.get("metadata") or {}).get("name", "")
        return status.invalid(kind, res.group, name, [objects.invalid("kind", kind, f"must be {res.kind}")])
    if kind == res.kind:
        text = f"the API version in the data ({version}) does not match the expected API version ({res.api_version})"
        return status.bad_request(text)
    return status.bad_request(f"the kind in the data ({kind}) does not match the expected kind ({res.kind})")


def _report_unknown(res: Resource, unknown: list[str], options: Options) -> None:
    texts = [f'unknown field "{path}"' for path in unknown] + [
        f'duplicate field "{path}"' for path in options.duplicates
    ]
    if options.validation == "Strict":
        raise _Undecodable(res, "strict decoding error: " + ", ".join(texts))
    if options.validation == "Warn":
        options.warnings.extend(texts)
