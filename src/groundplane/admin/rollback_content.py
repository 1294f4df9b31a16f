"""What objects hold that a rollback loses or leaves: edits made past Helm, and fields that an older schema refuses.

contracts/admin-workflow.md 10: the difference is shown before anything is rolled back, and definitions are never taken
back. Pure, on documents. Values are shown redacted, since a ClusterPolicy's environment variables may be secret.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from ..api import crd
from ..api.release import Release
from ..diagnose.redact import Redactor
from ..diagnose.survey import Object, Survey
from . import disruption, releases, trees, upgrade_render
from .releases import Revision

Schema = Mapping[str, Any]
PLURALS: Final[Mapping[str, str]] = {"ClusterPolicy": "clusterpolicies", "NVIDIADriver": "nvidiadrivers"}


class Change(NamedTuple):
    """A ClusterPolicy or NVIDIADriver as it is, and as the older revision has it; either may be None."""

    kind: str
    name: str
    edited: tuple[str, ...]
    """Paths that somebody has changed past Helm since the revision in force."""
    paths: tuple[str, ...]
    """What the rollback changes: paths, with values only of images."""
    diff: str
    """Unified, as YAML, without secrets."""

    @property
    def where(self) -> str:
        """The object, for people."""
        return f"{self.kind} {self.name}"


def changes(survey: Survey, running: Revision, wanted: Revision) -> tuple[Change, ...]:
    """What becomes of each ClusterPolicy and NVIDIADriver of the chart, in the order of kinds and names."""
    before, after = _objects(running), _objects(wanted)
    return tuple(_change(survey, running, *key, before.get(key), after.get(key)) for key in sorted({*before, *after}))


def edits(survey: Survey, revision: Revision) -> tuple[str, ...] | None:
    """Paths of the chart's objects that are not as the revision has them.

    None if they could not be read, or if Helm has not brought the revision in completely: edits cannot be told then.
    """
    if revision.status not in ("deployed", "superseded") or not all(
        survey.knows(plural) for plural in PLURALS.values()
    ):
        return None
    found: list[str] = []
    for (kind, name), document in sorted(_objects(revision).items()):
        live = _live(survey, kind, name)
        where = f"{kind} {name}"
        paths = _edited(survey, kind, document, live)
        found += [f"{where} (deleted)"] if live is None else [f"{where}: {path}" for path in paths]
    return tuple(found)


def _objects(revision: Revision) -> dict[tuple[str, str], Object]:
    return {
        (str(each["kind"]), str(each["metadata"]["name"])): each
        for each in upgrade_render.documents(revision.manifest)
        if each.get("kind") in PLURALS
    }


def _live(survey: Survey, kind: str, name: str) -> Object | None:
    return next((each for each in survey.of_kind(PLURALS[kind]) if each["metadata"]["name"] == name), None)


def _change(
    survey: Survey, running: Revision, kind: str, name: str, before: Object | None, after: Object | None
) -> Change:
    live = _live(survey, kind, name)
    now = live if live is not None else before
    wanted = None if after is None else _defaulted(_schema(survey, kind), {"spec": after.get("spec") or {}})["spec"]
    there = None if now is None else _defaulted(_schema(survey, kind), {"spec": now.get("spec") or {}})["spec"]
    whole = running.status == "deployed" and before is not None and live is not None
    edited = tuple(_edited(survey, kind, before or {}, live)) if whole else ()
    paths = tuple(disruption.changed(there or {}, wanted or {}, "spec"))
    return Change(kind, name, edited, paths, _diff(there, wanted, f"{kind} {name}"))


def _edited(survey: Survey, kind: str, document: Object, live: Object | None) -> Iterator[str]:
    if live is None:
        return
    schema = _schema(survey, kind)
    one, other = (_defaulted(schema, {"spec": each.get("spec") or {}})["spec"] for each in (document, live))
    yield from (path.partition(": ")[0] for path in disruption.changed(one, other, "spec"))


def _diff(now: Any, wanted: Any, name: str) -> str:
    redactor = Redactor()
    one, other = (
        yaml.safe_dump(redactor.document(each), sort_keys=True, width=200).splitlines() if each is not None else []
        for each in (now, wanted)
    )
    return "\n".join(difflib.unified_diff(one, other, f"now {name}", f"after {name}", lineterm="", n=1))


# --- Schemas ----------------------------------------------------------------------------------------------------------


def _schema(survey: Survey, kind: str) -> Schema:
    """The schema that the API server has for a kind; empty if it was not read."""
    for each in survey.of_kind("customresourcedefinitions"):
        spec = each.get("spec") or {}
        if (spec.get("names") or {}).get("kind") == kind and spec.get("group") == "nvidia.com":
            return _of_definition(each)
    return {}


def _of_definition(document: Mapping[str, Any]) -> Schema:
    versions = (document.get("spec") or {}).get("versions") or ()
    stored: Mapping[str, Any] = next((each for each in versions if each.get("storage")), {})
    return (stored.get("schema") or {}).get("openAPIV3Schema") or {}


def _defaulted(schema: Schema, value: Any) -> Any:
    """A value with what the API server fills in."""
    if isinstance(value, Mapping):
        known = schema.get("properties") or {}
        filled = {name: each["default"] for name, each in known.items() if "default" in each and name not in value}
        further = schema.get("additionalProperties")
        other = further if isinstance(further, Mapping) else {}
        return {key: _defaulted(known.get(key, other), each) for key, each in {**value, **filled}.items()}
    if isinstance(value, list):
        return [_defaulted(schema.get("items") or {}, each) for each in value]
    return value


def old_schemas(wanted: Revision, release: Release) -> Mapping[str, Schema]:
    """The schemas that the older operator was made for: those of its chart, else those known of its release."""
    known: dict[str, Schema] = {
        "ClusterPolicy": crd.cluster_policy_schema(),
        "NVIDIADriver": crd.nvidia_driver_schema(release),
    }
    if wanted.maker == releases.OURS:
        return known
    for each in wanted.definitions():
        kind = ((each.get("spec") or {}).get("names") or {}).get("kind")
        if kind in PLURALS:
            known[str(kind)] = _of_definition(each)
    return known


def rejected(survey: Survey, wanted: Revision, schemas: Mapping[str, Schema]) -> tuple[str, ...] | None:
    """Stored objects with values that the older schemas do not allow, and where; None if they could not be read.

    Objects that the rollback itself brings back do not count; nor do fields that the older operator does not know, as
    it leaves them alone.
    """
    if not all(survey.knows(plural) for plural in PLURALS.values()):
        return None
    own = _objects(wanted)
    return tuple(
        f"{kind} {each['metadata']['name']} ({', '.join(wrong)})"
        for kind, plural in PLURALS.items()
        for each in survey.of_kind(plural)
        if (kind, each["metadata"]["name"]) not in own
        if (wrong := sorted(set(_wrong(schemas.get(kind, {}), {"spec": each.get("spec") or {}}))))
    )


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def _wrong(schema: Schema, value: Any, at: trees.Path = ()) -> Iterator[str]:
    """Paths whose values a schema does not allow: of another type, not of an enumeration, or missing."""
    if value is None:
        return
    if not _fits(schema, value):
        yield trees.dotted(at)
    elif isinstance(value, Mapping):
        further = schema.get("additionalProperties")
        known: Mapping[str, Schema] = schema.get("properties") or {}
        yield from (trees.dotted((*at, name)) for name in schema.get("required") or () if name not in value)
        for key, each in value.items():
            yield from _wrong(known.get(key, further if isinstance(further, Mapping) else {}), each, (*at, str(key)))
    elif isinstance(value, list):
        for each in value:
            yield from _wrong(schema.get("items") or {}, each, at)


def _fits(schema: Schema, value: Any) -> bool:
    """Whether a value is of the type that a schema wants, and of its enumeration if it has one."""
    if "enum" in schema and value not in schema["enum"]:
        return False
    wanted = _TYPES.get(str(schema.get("type")))
    return wanted is None or bool(schema.get("x-kubernetes-int-or-string")) or isinstance(value, wanted)
