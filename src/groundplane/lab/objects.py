"""The rules of object metadata that hold for every kind: what the server sets, keeps, and refuses to change."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from . import names_rules, status
from .resources import Resource
from .status import Cause

Document = dict[str, Any]
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_BY_PATH = {"rbac.authorization.k8s.io"}
_ANNOTATIONS_LIMIT = 256 << 10
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_SERVER_SET = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


def timestamp(now: datetime) -> str:
    """Return a time as the API writes it: UTC, whole seconds."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def copy(value: Any) -> Any:
    """Return a deep copy of a JSON value (faster than copy.deepcopy)."""
    if isinstance(value, dict):
        return {key: copy(item) if isinstance(item, dict | list) else item for key, item in value.items()}
    if isinstance(value, list):
        return [copy(item) if isinstance(item, dict | list) else item for item in value]
    return value


def copy_changed(value: Any, base: Any) -> Any:
    """Return a deep copy of a JSON value, except for what is the very same object in `base`, a stored document.

    Stored documents never change, so sharing with them is safe, and a comparison of the two sees at once what is alike.
    """
    if value is base:
        return value
    if isinstance(value, dict):
        below = base if isinstance(base, dict) else {}
        return {
            key: copy_changed(item, below.get(key)) if isinstance(item, dict | list) else item
            for key, item in value.items()
        }
    if isinstance(value, list):
        known = {id(item) for item in base} if isinstance(base, list) else ()
        return [item if id(item) in known else copy(item) for item in value]
    return value


def shared(document: Document, sibling: Document | None) -> Document:
    """Return a new document that uses `sibling`'s parts where they are equal: a thousand replicas stay small."""
    if sibling is None:
        return document
    return {key: _shared(value, sibling.get(key)) for key, value in document.items()}


def _shared(value: Any, other: Any) -> Any:
    if not isinstance(value, dict | list) or value is other:
        return value
    if value == other:
        return other
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: _shared(item, other.get(key)) for key, item in value.items()}
    return value


def random_suffix(source: random.Random, length: int = 5) -> str:
    """Return the random part of a generated name."""
    return "".join(source.choices(_SUFFIX, k=length))


def new_metadata(meta: Document, now: datetime, source: random.Random, *, generation: bool) -> Document:
    """Return the metadata of an object to be created: name generated, server's fields set."""
    result = {key: value for key, value in meta.items() if key not in (*_SERVER_SET, "selfLink", "resourceVersion")}
    if not result.get("name") and result.get("generateName"):
        result["name"] = result["generateName"][: 63 - 5] + random_suffix(source)
    result["uid"] = str(uuid.UUID(int=source.getrandbits(128), version=4))
    result["creationTimestamp"] = timestamp(now)
    if generation:
        result["generation"] = 1
    return result


def kept_metadata(old: Document, new: Document) -> Document:
    """Return the metadata of an update: the client's, with the server's fields from the stored object."""
    result = dict(new)
    for key in (*_SERVER_SET, "name", "namespace", "selfLink"):
        if key in old:
            result[key] = old[key]
        else:
            result.pop(key, None)
    return result


def metadata_problems(resource: Resource, meta: Document) -> list[Cause]:
    """Return what is wrong with names, labels, annotations, finalizers and owner references."""
    causes: list[Cause] = []
    name = meta.get("name", "")
    if not name:
        causes.append(Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name"))
        return causes
    prefix = meta.get("generateName", "")
    if prefix and (problem := _name_problem(resource, prefix.removesuffix("-") + "a" * prefix.endswith("-"))):
        causes.append(invalid("metadata.generateName", prefix, problem))
    if problem := _name_problem(resource, name):
        causes.append(invalid("metadata.name", name, problem))
    for key, value in (meta.get("labels") or {}).items():
        if problem := names_rules.label_key_problem(key):
            causes.append(invalid("metadata.labels", key, problem))
        if problem := names_rules.label_value_problem(value):
            causes.append(invalid("metadata.labels", value, problem))
    causes += [
        invalid("metadata.annotations", key, problem)
        for key in meta.get("annotations") or {}
        if (problem := names_rules.label_key_problem(key.lower()))
    ]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in (meta.get("annotations") or {}).items())
    if size > _ANNOTATIONS_LIMIT:
        causes.append(too_long("metadata.annotations", _ANNOTATIONS_LIMIT))
    for index, finalizer in enumerate(meta.get("finalizers") or []):
        if problem := names_rules.label_key_problem(finalizer):
            causes.append(invalid("metadata.finalizers", finalizer, problem))
        if resource.group == "" and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid(f"metadata.finalizers[{index}]", finalizer, text))
    return causes + _owner_problems(meta.get("ownerReferences") or [])


def _owner_problems(owners: list[Document]) -> list[Cause]:
    causes: list[Cause] = []
    for index, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{index}]"
        causes += [
            required(f"{path}.{key}", "must not be empty")
            for key in ("apiVersion", "kind", "name", "uid")
            if not owner.get(key)
        ]
        version = owner.get("apiVersion") or ""
        if version.count("/") > 1:
            causes.append(invalid(f"{path}.apiVersion", version, "must be <group>/<version> or <version>"))
        elif (version, owner.get("kind")) == ("v1", "Event"):
            causes.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        first, second = (f"{owner['kind']}/{owner['name']}" for owner in controllers[:2])
        found = f'Found "true" in references for {first} and {second}'
        text = f"Only one reference can have Controller set to true. {found}"
        causes.append(invalid("metadata.ownerReferences", owners, text))
    return causes


def _name_problem(resource: Resource, name: str) -> str:
    if resource.group in _BY_PATH:
        return names_rules.path_segment_problem(name)
    if resource.id in {("", "services")}:
        return names_rules.service_name_problem(name)
    if resource.id in {("", "namespaces")}:
        return names_rules.label_name_problem(name)
    return names_rules.subdomain_problem(name)


def invalid(field: str, value: Any, why: str) -> Cause:
    """Return the cause of a value that breaks a rule."""
    return Cause("FieldValueInvalid", f"Invalid value: {quoted(value)}: {why}", field)


def required(field: str, why: str = "") -> Cause:
    """Return the cause of a missing value."""
    return Cause("FieldValueRequired", "Required value" + (f": {why}" if why else ""), field)


def not_supported(field: str, value: Any, choices: tuple[str, ...]) -> Cause:
    """Return the cause of a value that is not among the choices."""
    texts = ", ".join(f'"{choice}"' for choice in sorted(choices))
    return Cause("FieldValueNotSupported", f"Unsupported value: {quoted(value)}: supported values: {texts}", field)


def too_long(field: str, limit: int) -> Cause:
    """Return the cause of a text, or of texts together, with more than `limit` bytes."""
    return Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", field)


def refused(field: str, why: str) -> Cause:
    """Return the cause of a value that may not be set or changed."""
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def duplicate(field: str, value: Any) -> Cause:
    """Return the cause of a value that occurs twice."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {quoted(value)}", field)


def quoted(value: Any) -> str:
    """Return a value as the server prints it in an error."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if value is None or isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)


def update_problems(old: Document, new: Document, meta: Document) -> list[Cause]:
    """Return what an update may not do to metadata. `meta` is the metadata as the client sent it."""
    causes: list[Cause] = []
    before = old["metadata"]
    for key in ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds"):
        sent = meta.get(key)
        if sent and sent != before.get(key):
            causes.append(invalid(f"metadata.{key}", sent, "field is immutable"))
    if before.get("deletionTimestamp"):
        added = [
            item for item in new["metadata"].get("finalizers") or [] if item not in (before.get("finalizers") or [])
        ]
        if added:
            listed = ", ".join(f'"{item}"' for item in added)
            why = "no new finalizers can be added if the object is being deleted, found new finalizers"
            text = f"{why} []string{{{listed}}}"
            causes.append(refused("metadata.finalizers", text))
    return causes


def check_preconditions(resource: Resource, name: str, stored: Document, sent: Document) -> None:
    """Raise the 409 of a resourceVersion or uid that is not the stored object's."""
    meta = stored["metadata"]
    uid, version = sent.get("uid"), sent.get("resourceVersion")
    if uid and uid != meta["uid"]:
        raise status.conflict(resource.plural, resource.group, name, _wrong_uid(resource, meta, uid))
    if version and not version.isdigit():
        raise status.StatusError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if version and version not in ("0", meta["resourceVersion"]):
        raise status.stale(resource.plural, resource.group, name)


def check_deletion(resource: Resource, name: str, stored: Document, asked: Mapping[str, Any]) -> None:
    """Raise the 409 of a deletion that is about another object, or another version of it."""
    meta = stored["metadata"]
    pairs = (("uid", "UID", "deleted and then recreated"), ("resourceVersion", "ResourceVersion", "modified"))
    for key, word, happened in pairs:
        wanted = asked.get(key)
        if wanted is not None and wanted != meta[key]:
            why = f"the {word} in the precondition ({wanted}) does not match the {word} in record ({meta[key]})"
            raise status.conflict(resource.kind, resource.group, name, f"{why}. The object might have been {happened}")


def _wrong_uid(resource: Resource, meta: Document, uid: str) -> str:
    """Say it as the storage does, which names the object's key in etcd."""
    place = [resource.group, resource.plural] if resource.custom else [resource.plural]
    key = "/".join(("/registry", *place, *filter(None, (meta.get("namespace"), meta["name"]))))
    why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
    return f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"


def spec_changed(resource: Resource, old: Document, new: Document) -> bool:
    """Whether anything but metadata, and status where that is separate, differs."""
    ignored = {"metadata", "apiVersion", "kind"}
    if "status" in resource.subresources:
        ignored.add("status")
    keys = (old.keys() | new.keys()) - ignored
    return any(old.get(key) is not new.get(key) and old.get(key) != new.get(key) for key in keys)


def annotations_differ(old: Document, new: Document) -> bool:
    """Whether two versions have different annotations."""
    return bool((old["metadata"].get("annotations") or {}) != (new["metadata"].get("annotations") or {}))


def unchanged(old: Document, new: Document) -> bool:
    """Whether two versions say the same, resourceVersion and managedFields aside."""
    if old.keys() != new.keys():
        return False
    for key, value in new.items():
        if key != "metadata" and value is not old[key] and value != old[key]:
            return False
    return _comparable(old["metadata"]) == _comparable(new["metadata"])


def _comparable(meta: Document) -> Document:
    return {key: value for key, value in meta.items() if key not in ("resourceVersion", "managedFields")}
