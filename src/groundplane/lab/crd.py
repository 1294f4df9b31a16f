"""Custom resource definitions: accepted, served at once, and taken away with all their objects.

A definition becomes one `Resource` per served version (all versions show the same stored objects, as with conversion
strategy None), with its schema, printer columns, scale and status subresources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import cel, crd_defaults, objects, resources
from .objects import Document, invalid, not_supported, required
from .resources import Resource
from .schema import structural
from .status import Cause
from .store import Stored

if TYPE_CHECKING:
    from .api import Api

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_DEFINITIONS = resources.CUSTOM_RESOURCE_DEFINITIONS


def after_write(api: Api, res: Resource, document: Document) -> None:
    """Serve what a definition now says, and report it in the definition's status."""
    if res is not _DEFINITIONS:
        return
    if document["metadata"].get("deletionTimestamp"):
        return
    serve(api, document)
    wanted = _accepted(api, document)
    if wanted == document.get("status") and CLEANUP in (document["metadata"].get("finalizers") or []):
        return
    meta = document["metadata"]
    finalizers = [*(meta.get("finalizers") or [])]
    if CLEANUP not in finalizers:
        finalizers.append(CLEANUP)
    _store(api, {**document, "metadata": {**meta, "finalizers": finalizers}, "status": wanted})


def _store(api: Api, document: Document) -> None:
    revision = api.store.next_revision()
    document["metadata"]["resourceVersion"] = str(revision)
    api.store.put(_DEFINITIONS.storage, ("", document["metadata"]["name"]), document, revision)


def _accepted(api: Api, document: Document) -> Document:
    now = objects.timestamp(api.clock.now())
    held = document.get("status") or {}
    stored = [version["name"] for version in document["spec"]["versions"] if version.get("storage")]
    versions = [*(held.get("storedVersions") or [])]
    versions += [name for name in stored if name not in versions]
    conditions = [
        _condition(held, "NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition(held, "Established", "InitialNamesAccepted", "the initial names have been accepted", now),
    ]
    return {"conditions": conditions, "acceptedNames": document["spec"]["names"], "storedVersions": versions}


def _condition(held: Document, kind: str, reason: str, message: str, now: str) -> Document:
    for condition in held.get("conditions") or []:
        if condition["type"] == kind and condition["status"] == "True":
            return dict(condition)
    return {"lastTransitionTime": now, "message": message, "reason": reason, "status": "True", "type": kind}


def resources_of(document: Document) -> Iterator[tuple[Resource, Mapping[str, Any]]]:
    """Yield a resource and its OpenAPI rules for each served version, the storage version's rules as they are."""
    spec = document["spec"]
    names = spec["names"]
    several = len(spec["versions"]) > 1
    stored = next((item["name"] for item in spec["versions"] if item.get("storage")), "") if several else ""
    for version in sorted(spec["versions"], key=lambda item: _priority(item["name"])):
        if not version.get("served"):
            continue
        sub = version.get("subresources") or {}
        scale = sub.get("scale")
        yield (
            Resource(
                spec["group"],
                version["name"],
                names["kind"],
                names["plural"],
                namespaced=spec["scope"] == "Namespaced",
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                subresources=tuple(name for name in ("status", "scale") if name in sub),
                scale=(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", ""))
                if scale
                else None,
                singular=names.get("singular") or names["kind"].lower(),
                list_kind=names.get("listKind") or names["kind"] + "List",
                custom=True,
                columns=tuple(version.get("additionalPrinterColumns") or ()),
                stored_version=stored,
                selectable=tuple(field["jsonPath"] for field in version.get("selectableFields") or ()),
            ),
            (version.get("schema") or {}).get("openAPIV3Schema") or {},
        )


def _priority(version: str) -> tuple[int, int, str]:
    """Order versions as discovery does: v2, v1, v1beta1, v1alpha1."""
    stable, _, rest = version.removeprefix("v").partition("alpha")
    if rest:
        return (2, 0, version)
    stable, _, rest = stable.partition("beta")
    return (1 if rest else 0, -int(stable) if stable.isdigit() else 0, version)


def serve(api: Api, document: Document) -> None:
    """Register the resources of a definition in place of what it said before."""
    spec = document["spec"]
    found = list(resources_of(document))
    api.registry.remove(spec["group"], spec["names"]["plural"])
    for resource, rules in found:
        api.registry.add(resource, structural.of_custom_resource(rules, resource.kind))
    if found:
        _bring_up_to_date(api, found[0][0])


def _bring_up_to_date(api: Api, resource: Resource) -> None:
    """Give stored objects the defaults of a changed schema, as they show when they are read; this is no change.

    History from before the kind was served does not exist: watches from then are told that they are too late.
    """
    table = api.store.table(resource.storage)
    table.compacted = table.compacted or api.store.revision
    schema = api.registry.schema(resource)
    for space in table.spaces.values():
        for key, item in space.items():
            document = crd_defaults.fill(schema, item.document)
            if document is not item.document:
                space[key] = Stored(item.key, document, item.revision)


def before_delete(api: Api, old: Stored) -> None:
    """Delete every object of a definition that is being deleted; drop its finalizer when none is left."""
    document = old.document
    for resource in _served(api, document):
        for item in api.select(resource):
            meta = item.document["metadata"]
            api.delete(resource, meta["name"], meta.get("namespace"))
    document = _terminating(api, document)
    _drop_finalizer_when_empty(api, document)


def _terminating(api: Api, document: Document) -> Document:
    """Report that the objects of a definition are being deleted."""
    text = "CustomResource deletion is in progress"
    now = objects.timestamp(api.clock.now())
    condition = {
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": now,
        "reason": "InstanceDeletionInProgress",
    }
    held = [item for item in document["status"]["conditions"] if item["type"] != "Terminating"]
    conditions = [*held, {**condition, "message": text}]
    changed = {**document, "metadata": dict(document["metadata"])}
    changed["status"] = {**document["status"], "conditions": conditions}
    _store(api, changed)
    return changed


def _served(api: Api, document: Document) -> list[Resource]:
    spec = document["spec"]
    return [item for item in api.registry if (item.group, item.plural) == (spec["group"], spec["names"]["plural"])][:1]


def _drop_finalizer_when_empty(api: Api, document: Document) -> None:
    if any(next(iter(api.select(resource)), None) for resource in _served(api, document)):
        return
    meta = document["metadata"]
    rest = [item for item in meta.get("finalizers") or [] if item != CLEANUP]
    if rest == (meta.get("finalizers") or []):
        return
    changed = {key: value for key, value in meta.items() if key != "finalizers"}
    if rest:
        changed["finalizers"] = rest
    _store(api, {**document, "metadata": changed})


def after_remove(api: Api, res: Resource, last: Document) -> None:
    """Stop serving a definition that is gone; let a definition go whose last object is gone."""
    if res is _DEFINITIONS:
        spec = last["spec"]
        api.registry.remove(spec["group"], spec["names"]["plural"])
        api.store.drop((spec["group"], spec["names"]["plural"]))
    elif res.custom:
        found = api.store.get(_DEFINITIONS.storage, "", res.qualified)
        if found is not None and found.document["metadata"].get("deletionTimestamp"):
            _drop_finalizer_when_empty(api, found.document)
            again = api.stored(_DEFINITIONS, res.qualified)
            if not again.document["metadata"].get("finalizers"):
                api.delete(_DEFINITIONS, res.qualified)


# --- what a definition must look like --------------------------------------------------------------------------


def problems(document: Document) -> list[Cause]:
    """Return what is wrong with a definition."""
    spec = document["spec"]
    names = spec.get("names") or {}
    causes = [required(f"spec.{key}") for key in ("group", "scope") if not spec.get(key)]
    causes += [required(f"spec.names.{key}") for key in ("plural", "kind") if not names.get(key)]
    if causes:
        return causes
    name = f"{names['plural']}.{spec['group']}"
    if document["metadata"]["name"] != name:
        causes.append(
            invalid("metadata.name", document["metadata"]["name"], 'must be spec.names.plural+"."+spec.group')
        )
    if spec["scope"] not in ("Cluster", "Namespaced"):
        causes.append(not_supported("spec.scope", spec["scope"], ("Cluster", "Namespaced")))
    versions = spec.get("versions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        causes.append(
            invalid(
                "spec.versions",
                [v.get("name") for v in versions],
                "must have exactly one version marked as storage version",
            )
        )
    found = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    paths = [f"spec.versions[{index}].schema.openAPIV3Schema" for index in range(len(versions))]
    causes += [
        required(path, "schemas are required") for path, rules in zip(paths, found, strict=True) if rules is None
    ]
    if all(rules == found[0] for rules in found):  # the server folds schemas that are all alike into one
        found, paths = found[:1], ["spec.validation.openAPIV3Schema"]
    for path, rules in zip(paths, found, strict=False):
        if rules is not None:
            causes += _schema_problems(rules, path, root=True)
    return causes


def _schema_problems(rules: Mapping[str, Any], path: str, *, root: bool = False) -> list[Cause]:
    causes: list[Cause] = []
    kind = rules.get("type")
    if root and kind != "object":
        causes.append(invalid(f"{path}.type", kind or "", "must be object at the root"))
    free = rules.get("x-kubernetes-int-or-string") or rules.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not free and not root:
        causes.append(required(f"{path}.type", "must not be empty for specified object fields"))
    if kind and kind not in _TYPES:
        causes.append(not_supported(f"{path}.type", kind, _TYPES))
    if "properties" in rules and "additionalProperties" in rules:
        causes.append(
            objects.refused(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
        )
    for index, entry in enumerate(rules.get("x-kubernetes-validations") or ()):
        if why := cel.unsupported(entry.get("rule", "")):
            text = f"the lab evaluates a small part of CEL (lab/cel.py) and not this rule: {why}"
            causes.append(invalid(f"{path}.x-kubernetes-validations[{index}].rule", entry.get("rule", ""), text))
    for key, value in (rules.get("properties") or {}).items():
        causes += _schema_problems(value, f"{path}.properties[{key}]")
    for key in ("items", "additionalProperties"):
        if isinstance(rules.get(key), Mapping):
            causes += _schema_problems(rules[key], f"{path}.{key}")
    if kind == "array" and "items" not in rules:
        causes.append(required(f"{path}.items", "must be specified"))
    return causes
