"""Redacting what was gathered, and writing it: in this order, so that nothing on disk has ever held a secret.

Secrets are learned of everything first, also within Helm's releases, so that they go from everything; then every file
is redacted and counted, and the manifest says of each how it came about. ``gather`` reads the cluster, ``gather_files``
makes what people read (contracts/admin-workflow.md 13.3, 13.4).
"""

import hashlib
import io
import os
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from .. import __version__
from ..diagnose import archive, doctor
from ..diagnose import evidence as seen
from ..diagnose.archive import Captured
from ..diagnose.redact import Pseudonyms, Redactor
from ..diagnose.survey import Survey
from . import gather_files as made
from . import releases
from .gather import Gathered
from .gather_files import Extra

FOLDER: Final = "must-gather"
"""Within the archive."""
T = TypeVar("T")
Counts = dict[str, dict[str, int]]
"""What was taken out, by file and kind."""


class Redacted(msgspec.Struct, frozen=True, kw_only=True):
    """What may be written."""

    gathered: Gathered
    texts: tuple[tuple[Extra, str], ...]
    """The files beside the capture with their redacted contents."""
    counts: Counts
    total: dict[str, int]


def redactor_of(survey: Survey, pseudonyms: bool) -> Redactor:
    """What takes the secrets out; with ``pseudonyms`` names of nodes, addresses and serials become others."""
    return Redactor(Pseudonyms(seen.name(each) for each in survey.of_kind("nodes")) if pseudonyms else None)


def redacted(gathered: Gathered, redactor: Redactor) -> Redacted:
    """The same without its secrets; Secrets themselves are learned and left out."""
    captured = gathered.captured
    _learn(gathered, redactor)
    counting = _Counting(redactor)
    survey = captured.survey
    objects = {
        plural: _objects(plural, found, counting) for plural, found in survey.objects.items() if plural != "secrets"
    }
    unread = {plural: redactor.text(why) for plural, why in survey.unread.items()}
    if "secrets" in survey.objects:
        unread["secrets"] = "Secrets are never put into an archive"
    plain = Captured(
        survey=msgspec.structs.replace(survey, server=redactor.text(survey.server), objects=objects, unread=unread),
        logs=tuple(
            counting.of(archive.log_name(number, each), partial(_plain, each, redactor))
            for number, each in enumerate(captured.logs)
        ),
        kernel=counting.of("nodes/kernel.jsonl", lambda: tuple(_plain(each, redactor) for each in captured.kernel)),
        facts=counting.of("nodes/facts.jsonl", lambda: tuple(_facts(each, redactor) for each in captured.facts)),
        missing=tuple(map(redactor.text, captured.missing)),
        whole=captured.whole,
    )
    texts = tuple(_extra(each, counting, redactor) for each in gathered.extras)
    states = tuple((status, redactor.text(why)) for status, why in gathered.states)
    return Redacted(
        gathered=Gathered(captured=plain, states=states, extras=tuple(extra for extra, _ in texts)),
        texts=texts,
        counts=counting.counts,
        total=redactor.report(),
    )


def _learn(gathered: Gathered, redactor: Redactor) -> None:
    """Everything that is known to be secret, wherever it stands."""
    survey = gathered.captured.survey
    for secret in survey.of_kind("secrets"):
        try:
            releases.of_secret(secret)  # what is within is among the extras, as documents
        except releases.ReleaseError:
            redactor.learn_from([secret])
    for plural, found in survey.objects.items():
        if plural != "secrets":
            redactor.learn_from(found)
    for extra in gathered.extras:
        redactor.learn_from(extra.documents or ())


class _Counting:
    """What a redactor takes out, by file."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.counts: Counts = {}

    def of(self, name: str, work: Callable[[], T]) -> T:
        before = Counter(self.redactor.counts)
        done = work()
        if more := dict(sorted((self.redactor.counts - before).items())):
            mine = self.counts.setdefault(self.redactor.line(name), {})
            for kind, count in more.items():
                mine[kind] = mine.get(kind, 0) + count
        return done


def _objects(plural: str, found: tuple[dict[str, Any], ...], counting: _Counting) -> tuple[dict[str, Any], ...]:
    kept: list[dict[str, Any]] = []
    for number, start in enumerate(range(0, len(found), archive.OBJECTS_A_FILE)):
        part = found[start : start + archive.OBJECTS_A_FILE]
        name = f"objects/{plural}.{number:04d}.jsonl"
        kept += counting.of(name, partial(_documents, part, counting.redactor))
    return tuple(kept)


def _documents(things: Iterable[dict[str, Any]], redactor: Redactor) -> list[dict[str, Any]]:
    return list(map(redactor.document, things))


def _plain(log: Any, redactor: Redactor) -> Any:
    """A log whose names and text are redacted."""
    fields = {name: getattr(log, name) for name in log.__struct_fields__}
    texts = {name: redactor.text(value) for name, value in fields.items() if isinstance(value, str)}
    return msgspec.structs.replace(log, **texts)


def _facts(facts: seen.NodeFacts, redactor: Redactor) -> seen.NodeFacts:
    return msgspec.convert(redactor.document(msgspec.to_builtins(facts)), seen.NodeFacts)


def _extra(extra: Extra, counting: _Counting, redactor: Redactor) -> tuple[Extra, str]:
    def text() -> str:
        if extra.documents is None:
            return redactor.text(extra.text)
        return made.to_yaml([redactor.document(each) for each in extra.documents])

    content = counting.of(extra.name, text)
    return Extra(name=redactor.line(extra.name), status=extra.status, why=redactor.text(extra.why)), content


# --- Files ------------------------------------------------------------------------------------------------------------


def files(plain: Redacted, redactor: Redactor) -> Iterator[tuple[str, bytes]]:
    """All files of an archive of what is redacted: the capture's, those for people, the verdict, the manifest last."""
    captured = plain.gathered.captured
    sheet = _Sheet(plain)
    for name, data in archive.entries(captured):
        yield sheet.told(name, data)
    for name, text in made.readable(captured):
        yield sheet.told(name, text.encode("utf-8", "replace"))
    for extra, text in plain.texts:
        if extra.status in (made.OK, made.PARTIAL):
            yield sheet.told(extra.name, text.encode("utf-8", "replace"), extra.status, extra.why)
        else:
            sheet.absent(extra.name, extra.status, extra.why)
    evidence = captured.evidence()
    verdict = redactor.document(doctor.report(doctor.diagnose(evidence), evidence))
    yield sheet.told("doctor.json", msgspec.json.format(msgspec.json.encode(verdict)))
    yield "manifest.json", msgspec.json.format(msgspec.json.encode(sheet.manifest()))


class _Sheet:
    """The manifest while it is written."""

    def __init__(self, plain: Redacted) -> None:
        self._plain = plain
        self._rows: dict[str, dict[str, Any]] = {}
        gathered = plain.gathered
        self._states = {
            archive.log_name(number, log): state
            for number, (log, state) in enumerate(zip(gathered.captured.logs, gathered.states, strict=False))
        }
        for plural, why in gathered.captured.survey.unread.items():
            status = made.SKIPPED if plural == "secrets" and "never put" in why else _status(why)
            self.absent(f"objects/{plural}.0000.jsonl", status, why)

    def told(self, name: str, data: bytes, status: str = made.OK, why: str = "") -> tuple[str, bytes]:
        """Note a file that is written, and give it."""
        status, why = self._states.get(name, (status, why))
        row: dict[str, Any] = {"status": status, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if why:
            row["why"] = why
        if redacted := self._plain.counts.get(name):
            row["redacted"] = redacted
        self._rows[name] = row
        return name, data

    def absent(self, name: str, status: str, why: str) -> None:
        """Note a file that is not there."""
        self._rows[name] = {"status": status, "bytes": 0, "why": why}

    def manifest(self) -> dict[str, Any]:
        """The document; the same capture gives the same."""
        captured = self._plain.gathered.captured
        denied = {row["why"] for row in self._rows.values() if row["status"] == made.DENIED}
        return {
            "format": archive.FORMAT,
            "tool": __version__,
            "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(captured.survey.at)),
            "cluster": captured.survey.version,
            "namespace": captured.survey.namespace,
            "files": dict(sorted(self._rows.items())),
            "statuses": dict(sorted(Counter(row["status"] for row in self._rows.values()).items())),
            "denied": sorted(denied),
            "unread": dict(sorted(captured.survey.unread.items())),
            "missing": list(captured.missing),
            "redacted": self._plain.total,
        }


def _status(why: str) -> str:
    return made.DENIED if why.startswith("forbidden") else made.PARTIAL


# --- Writing ----------------------------------------------------------------------------------------------------------


def write(path: Path, named: Iterable[tuple[str, bytes]], at: float) -> None:
    """Write a ``.tar.gz``, readable by its owner only, whole or not at all. Raises :class:`OSError`."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
                for name, data in named:
                    info = tarfile.TarInfo(f"{FOLDER}/{name}")
                    info.size, info.mtime, info.mode = len(data), int(at), 0o600
                    tar.addfile(info, io.BytesIO(data))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_folder(path: Path, named: Iterable[tuple[str, bytes]]) -> int:
    """Write the files into a folder that is new or empty, for its owner only; gives their bytes.

    Raises :class:`OSError`, also if there is something in the folder.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise FileExistsError(17, "the folder is not empty")
    written = 0
    for name, data in named:
        place = path / name
        for folder in reversed(place.relative_to(path).parents[:-1]):
            (path / folder).mkdir(mode=0o700, exist_ok=True)
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        written += len(data)
    return written
