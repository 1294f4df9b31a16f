"""Whether the API server knows every field of a ClusterPolicy, or of an NVIDIADriver, that the operator knows.

Helm installs a CRD once and never again, so an upgraded operator may meet an older schema, by which the API server
drops new fields without a word. The live CRD is judged by its schema, not by who wrote it: NVIDIA's CRD with the same
fields is as good as ours. The definition is read once a version of it, with one request; bringing it up to date is left
to ``manage_crds.py``.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ..api import names
from ..api.release import Release
from ..cluster import kinds
from ..cluster.client import Client
from ..cluster.errors import ClusterError
from ..cluster.informer import Informer
from ..cluster.kinds import Kind
from ..cluster.views import Meta
from . import status
from .status import Warned

log = logging.getLogger(__name__)

FIELDS_MISSING: Final = "FieldsMissing"
FIELDS_MAX: Final = 10
"""So many fields are named; the rest are counted."""
REMEDY: Final = (
    "Bring it up to date: groundplane crds | kubectl apply --server-side --force-conflicts -f - "
    "(the chart's upgrade hook does the same), then set the fields again"
)

Schema = Mapping[str, Any]


class Versioned(msgspec.Struct, frozen=True):
    """One version of a CRD."""

    name: str = ""
    schema: dict[str, Any] = {}


class CrdSpec(msgspec.Struct, frozen=True):
    """``spec`` of a CRD: its versions."""

    versions: tuple[Versioned, ...] = ()


class CrdView(msgspec.Struct, frozen=True):
    """A CRD with its schemas. It is a large document: look at it and let it go."""

    metadata: Meta = Meta()
    spec: CrdSpec = CrdSpec()


def missing(known: Schema, live: Schema, path: str = "") -> Iterator[str]:
    """Paths that ``known`` has and ``live`` drops; of a field that is dropped, not those below it."""
    if live.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "properties" in known and "additionalProperties" not in live:
        there = live.get("properties", {})
        for key, node in known["properties"].items():
            here = f"{path}.{key}" if path else key
            if key in there:
                yield from missing(node, there[key], here)
            else:
                yield here
    for part, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(known.get(part), Mapping) and isinstance(live.get(part), Mapping):
            yield from missing(known[part], live[part], path + suffix)


def judge(view: CrdView, kind: Kind = kinds.CLUSTER_POLICY, release: Release = Release.DEFAULT) -> Warned | None:
    """What is wrong with the live CRD of a kind, ``None`` if it has every field that there is in ``release``.

    Other versions of the kind than ours do not count.
    """
    from ..api import crd  # needed once a version of the CRD

    wanted = next((each for each in view.spec.versions if each.name == kind.version), None)
    if wanted is None:
        return None
    known = crd.cluster_policy_schema() if kind is kinds.CLUSTER_POLICY else crd.nvidia_driver_schema(release)
    fields = list(missing(known, wanted.schema.get("openAPIV3Schema") or {}))
    if not fields:
        return None
    more = f" and {len(fields) - FIELDS_MAX} more" if len(fields) > FIELDS_MAX else ""
    digest = view.metadata.annotations.get(names.CRD_SCHEMA_DIGEST, "")
    by = f" (schema digest {digest})" if digest else ""
    text = (
        f"CustomResourceDefinition {kind.resource}{by} lacks fields that this operator knows; the API server drops "
        f"them from every {kind.kind} without a word: {', '.join(fields[:FIELDS_MAX])}{more}. Whether one of "
        f"them was meant to be set can no longer be seen. {REMEDY}"
    )
    return Warned(status.SCHEMA_OUTDATED, FIELDS_MISSING, text)


class SchemaCheck:
    """The judgement on the live CRD of a kind, kept until the CRD changes."""

    def __init__(
        self,
        client: Client,
        crds: Informer[Any],
        kind: Kind = kinds.CLUSTER_POLICY,
        release: Release = Release.DEFAULT,
    ) -> None:
        self._client = client
        self._crds = crds
        self._kind = kind
        self._release = release
        self._version = ""
        self._found: Warned | None = None

    async def warning(self) -> Warned | None:
        """What to warn of. Asks the API server only if the CRD is another version than last time."""
        seen = self._crds.get(self._kind.resource)
        if seen is None or seen.metadata.resourceVersion == self._version:
            return self._found
        try:
            part = await self._client.page(
                kinds.CRD, fields=f"metadata.name={self._kind.resource}", limit=1, view=CrdView
            )
        except ClusterError as error:
            log.warning("the schema of %s cannot be compared: %s", self._kind.resource, error)
            return self._found
        if part.items:
            self._found = judge(part.items[0], self._kind, self._release)
            self._version = seen.metadata.resourceVersion
        return self._found
