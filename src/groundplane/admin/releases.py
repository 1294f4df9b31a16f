"""Helm's releases as the cluster stores them: read from their Secrets, without Helm.

Helm keeps each revision of a release in a Secret: JSON, packed by gzip, in base64 twice. Reading them takes one listing
(``survey``: Helm's Secrets only) and works the same from any reader that may see them. Values may hold secrets: whoever
prints or saves them redacts first (``diagnose.redact``). Changing releases is ``helm``'s.
"""

import base64
import binascii
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ..diagnose.survey import Survey
from .hops import Version

OURS: Final = "groundplane"
NVIDIAS: Final = "nvidia"
CHART: Final = "gpu-operator"
"""The name of NVIDIA's chart, and of ours."""
PENDING: Final = ("pending-install", "pending-upgrade", "pending-rollback", "uninstalling")
"""States in which Helm refuses any change, because a run of it is, or was, under way."""
_LARGEST: Final = 64 << 20
"""Bytes of one release, unpacked; far beyond what an API server stores packed."""


class ReleaseError(ValueError):
    """A Secret is no release of Helm's, or no one release is meant; the message says which."""


class Hook(msgspec.Struct, frozen=True):
    """A hook of the chart."""

    name: str = ""
    kind: str = ""
    manifest: str = ""
    events: tuple[str, ...] = ()


class _Info(msgspec.Struct):
    status: str = ""
    description: str = ""
    last_deployed: str = ""
    first_deployed: str = ""
    notes: str = ""


class _Metadata(msgspec.Struct):
    name: str = ""
    version: str = ""
    appVersion: str = ""
    keywords: list[str] | None = None
    description: str = ""


class _File(msgspec.Struct):
    name: str = ""
    data: str = ""


class _Chart(msgspec.Struct):
    metadata: _Metadata | None = None
    values: dict[str, Any] | None = None
    files: list[_File] | None = None


class _Stored(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    version: int = 0
    info: _Info | None = None
    chart: _Chart | None = None
    config: dict[str, Any] | None = None
    manifest: str = ""
    hooks: list[Hook] | None = None


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of a release."""

    name: str
    namespace: str
    revision: int
    status: str
    """Helm's: ``deployed``, ``superseded``, ``failed``, ``pending-upgrade``, ..."""
    chart: str
    chart_version: str
    """As written, such as ``v26.3.3``."""
    app_version: str
    values: Mapping[str, Any]
    """What the user gave. May hold secrets."""
    defaults: Mapping[str, Any]
    """The chart's own values."""
    manifest: str
    hooks: tuple[Hook, ...] = ()
    definition_files: tuple[bytes, ...] = ()
    """CustomResourceDefinitions of the chart, as YAML: Helm installs them once, and does not update them."""
    updated: str = ""
    description: str = ""
    maker: str = NVIDIAS
    """Whose chart it is: :data:`OURS` or :data:`NVIDIAS`."""

    @property
    def where(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def definitions(self) -> tuple[dict[str, Any], ...]:
        """The documents of :attr:`definition_files`; a file that is no YAML has none."""
        import yaml  # slow to import, and needed here only

        found: list[dict[str, Any]] = []
        for text in self.definition_files:
            try:
                found += [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if isinstance(each, dict)]
            except yaml.YAMLError:
                continue
        return tuple(found)

    @property
    def behaves_like(self) -> Version | None:
        """The release of NVIDIA's operator that runs: the chart's version, or what our chart was told to be like."""
        if self.maker == OURS:
            operator = {**(self.defaults.get("operator") or {}), **(self.values.get("operator") or {})}
            text = str(operator.get("release") or "")
        else:
            text = self.chart_version
        try:
            return Version.parse(text)
        except ValueError:
            return None


def of_secret(secret: Mapping[str, Any]) -> Revision:
    """The revision that a Secret holds. Raises :class:`ReleaseError`."""
    metadata = secret.get("metadata") or {}
    where = f"Secret {metadata.get('namespace')}/{metadata.get('name')}"
    try:
        packed = base64.b64decode(base64.b64decode((secret.get("data") or {})["release"]))
        text = _unpacked(packed) if packed[:2] == b"\x1f\x8b" else packed
        stored = msgspec.json.decode(text, type=_Stored, strict=False)
    except (KeyError, TypeError, binascii.Error, OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise ReleaseError(f"{where} does not hold a release as Helm stores it: {error!r}") from None
    chart = stored.chart or _Chart()
    about, info = chart.metadata or _Metadata(), stored.info or _Info()
    labels = metadata.get("labels") or {}
    return Revision(
        name=stored.name or str(labels.get("name") or ""),
        namespace=stored.namespace or str(metadata.get("namespace") or ""),
        revision=stored.version,
        status=info.status or str(labels.get("status") or ""),
        chart=about.name,
        chart_version=about.version,
        app_version=about.appVersion,
        values=stored.config or {},
        defaults=chart.values or {},
        manifest=stored.manifest,
        hooks=tuple(stored.hooks or ()),
        definition_files=tuple(_definition_files(chart.files or ())),
        updated=info.last_deployed,
        description=info.description,
        maker=OURS if "groundplane" in about.description else NVIDIAS,
    )


def _definition_files(files: Iterable[_File]) -> Iterable[bytes]:
    for file in files:
        if file.name.startswith("crds/") and file.name.endswith((".yaml", ".yml")):
            yield base64.b64decode(file.data)


def _unpacked(packed: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        text = stream.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise OSError(f"more than {_LARGEST} bytes")
    return text


class History(msgspec.Struct, frozen=True):
    """The releases of the GPU operator in a cluster, every revision, newest first by release."""

    revisions: tuple[Revision, ...] = ()
    broken: tuple[str, ...] = ()
    """Secrets that could not be read as releases, a sentence each."""
    unread: str = ""
    """Why releases could not be looked for; empty if they were."""

    @property
    def releases(self) -> tuple[str, ...]:
        """``namespace/name`` of every release of the chart."""
        return tuple(dict.fromkeys(each.where for each in self.revisions))

    def of(self, where: str) -> tuple[Revision, ...]:
        """The revisions of one release, newest first."""
        return tuple(each for each in self.revisions if each.where == where)

    def meant(self, release: str = "") -> str:
        """``namespace/name`` of the release that is meant, of the only one by default.

        There must be one at all. Raises :class:`ReleaseError` if there is none of that name, or several and none named.
        """
        if release and release not in self.releases:
            raise ReleaseError(f"no release {release}; there are {', '.join(self.releases)}")
        if not release and len(self.releases) > 1:
            raise ReleaseError(
                f"the cluster has {len(self.releases)} releases of chart {CHART}: {', '.join(self.releases)}. "
                "Name one (--namespace, --name); remove the other (groundplane uninstall)"
            )
        return release or self.releases[0]

    def last(self, where: str = "") -> Revision | None:
        """The newest revision of a release, of the only one by default."""
        found = self.of(where) if where else self.revisions
        return found[0] if found else None

    def deployed(self, where: str = "") -> Revision | None:
        """The revision that is in force: the newest that is ``deployed``."""
        found = self.of(where) if where else self.revisions
        return next((each for each in found if each.status == "deployed"), None)


def history(survey: Survey, chart: str = CHART) -> History:
    """The releases of a chart that a survey has seen (kind ``secrets``)."""
    found: list[Revision] = []
    broken: list[str] = []
    for secret in _of_helm(survey.of_kind("secrets")):
        try:
            revision = of_secret(secret)
        except ReleaseError as error:
            broken.append(str(error))
            continue
        if revision.chart == chart:
            found.append(revision)
    found.sort(key=lambda each: (each.where, -each.revision))
    unread = "" if survey.knows("secrets") else survey.unread.get("secrets", "Helm's releases were not looked for")
    return History(tuple(found), tuple(broken), unread)


def _of_helm(secrets: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for secret in secrets:
        if secret.get("type") == "helm.sh/release.v1":
            yield secret
