"""Archives: what a cluster showed, packed to be judged elsewhere: ours, NVIDIA's must-gather, kubectl's output.

:class:`Captured` is what was read of a cluster, in the very shapes that live commands judge: :func:`entries` makes
files of it and :func:`load` reads them back equal, so that a verdict is the same offline. Other tools' files are read
by what they hold. What was not captured is told in ``missing``, never taken for healthy. Input is not trusted
(``safetar``), and reading never writes. Who gathers, and redaction, are ``admin.gather``'s part.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import msgspec

from ..api import goyaml
from . import bugreport, collect, evidence, safetar, texts
from . import survey as surveys
from .evidence import Evidence, KernelLog, Log, NodeFacts
from .survey import Object, Survey

FORMAT: Final = "groundplane-must-gather/1"
HEAD: Final = "survey.json"
OBJECTS_A_FILE: Final = 2000
"""A reader holds one file of them as text at a time."""


class ArchiveError(ValueError):
    """Nothing of a cluster could be read; the message says what was found."""


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a cluster."""

    survey: Survey
    logs: tuple[Log, ...] = ()
    kernel: tuple[KernelLog, ...] = ()
    facts: tuple[NodeFacts, ...] = ()
    missing: tuple[str, ...] = ()
    others: tuple[Evidence, ...] = ()
    """Of other tools' texts, such as ``kubectl describe``."""

    whole: bool = False
    """Whether all logs were captured that there are, not only those of what is not well."""

    def evidence(self, pod: tuple[str, str] | None = None) -> Evidence:
        """What the doctor judges, offline as live; ``pod`` is looked at although it is well.

        Of a capture of all logs only those count that a live doctor would have read, and of those as much: old
        complaints of what is well by now are no evidence.
        """
        logs = tuple(self._telling(pod)) if self.whole else self.logs
        own = collect.of_survey(
            self.survey, logs=logs, kernel=self.kernel, facts=self.facts, missing=self.missing, pod=pod
        )
        return texts.merged((own, *self.others)) if self.others else own

    def _telling(self, pod: tuple[str, str] | None) -> Iterator[Log]:
        wishes = set(collect.wanted_logs(self.survey, pod=pod).wanted)
        for log in self.logs:
            if _wish(log) in wishes:
                yield msgspec.structs.replace(log, text=_end(log.text))


def _wish(log: Log) -> collect.Wish:
    return collect.Wish(log.namespace, log.pod, log.container, log.node, log.previous)


def _end(text: str) -> str:
    """As much of a log as a live doctor reads."""
    end = "\n".join(text[-2 * collect.LOG_BYTES :].split("\n")[-collect.LOG_LINES :])
    return end[-collect.LOG_BYTES :]


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: str = ""
    server: str = ""
    namespace: str = surveys.OPERATOR_NAMESPACE
    at: float = 0.0
    counts: dict[str, int] = {}
    """Objects by plural: fewer in the files are a loss."""
    absent: tuple[str, ...] = ()
    unread: dict[str, str] = {}
    missing: tuple[str, ...] = ()
    whole: bool = False


def entries(captured: Captured) -> Iterator[tuple[str, bytes]]:
    """The files of an archive, name and content, in order; equal captures give equal files."""
    survey = captured.survey
    head = _Head(
        format=FORMAT,
        version=survey.version,
        server=survey.server,
        namespace=survey.namespace,
        at=survey.at,
        counts={plural: len(survey.objects[plural]) for plural in sorted(survey.objects)},
        absent=tuple(sorted(survey.absent)),
        unread=dict(sorted(survey.unread.items())),
        missing=captured.missing,
        whole=captured.whole,
    )
    yield HEAD, msgspec.json.format(msgspec.json.encode(head))
    for plural in head.counts:
        for number, part in enumerate(_parts(survey.objects[plural])):
            yield f"objects/{plural}.{number:04d}.jsonl", _lines(part)
    yield "nodes/facts.jsonl", _lines(captured.facts)
    yield "nodes/kernel.jsonl", _lines(captured.kernel)
    yield "logs/index.jsonl", _lines([msgspec.structs.replace(each, text="") for each in captured.logs])
    for number, log in enumerate(captured.logs):
        yield log_name(number, log), log.text.encode("utf-8", "surrogatepass")


def _parts(objects: tuple[Object, ...]) -> Iterator[tuple[Object, ...]]:
    for start in range(0, len(objects), OBJECTS_A_FILE):
        yield objects[start : start + OBJECTS_A_FILE]


def log_name(number: int, log: Log) -> str:
    """The file that a log is in; ``number`` is its place among the capture's logs."""
    parts = (log.namespace, log.pod, log.container)
    plain = "_".join(re.sub(r"[^A-Za-z0-9.\-]", "-", part)[:80] for part in parts)
    return f"logs/{number:05d}_{plain}{'.previous' if log.previous else ''}.log"


def _lines(things: Sequence[Any]) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in things)


def open(path: Path, pod: tuple[str, str] | None = None) -> Evidence:  # noqa: A001  (archive.open, as gzip.open)
    """The evidence of an archive, a folder or a file; ``pod`` is looked at although it is well.

    Of thousands of logs those that tell nothing are let go as they come: memory holds what is judged.

    Raises :class:`ArchiveError` and :class:`OSError`.
    """
    reader = _Reader(telling=True, pod=pod)
    return _read(safetar.members(path, safetar.Limits()), str(path), reader).evidence(pod)


def open_stream(name: str, file: BinaryIO, pod: tuple[str, str] | None = None) -> Evidence:
    """As :func:`open`, of an open file that can seek; ``name`` is its name in messages."""
    reader = _Reader(telling=True, pod=pod)
    return _read(safetar.unpacked(name, file, safetar.Limits()), name, reader).evidence(pod)


def load(path: Path, limits: safetar.Limits = safetar.Limits()) -> Captured:  # noqa: B008  (a constant)
    """What an archive of ours, NVIDIA's directory, a folder or a file of kubectl's output holds; packed or not.

    Raises:
        ArchiveError: there is nothing of a cluster in it.
        OSError: it cannot be read at all.
    """
    return _read(safetar.members(path, limits), str(path))


def load_stream(name: str, file: BinaryIO, limits: safetar.Limits = safetar.Limits()) -> Captured:  # noqa: B008
    """As :func:`load`, of an open file that can seek; ``name`` is its name in messages."""
    return _read(safetar.unpacked(name, file, limits), name)


def _read(members: Iterator[safetar.Member], source: str, reader: "_Reader | None" = None) -> Captured:
    reader = reader or _Reader()
    for member in members:
        if member.trouble:
            reader.missing.append(member.trouble)
        if member.name and (member.data or not member.trouble):
            reader.take(member.name, member.data)
    return reader.captured(source)


class _Reader:
    """Files as they come; their raw bytes are let go one after another.

    With ``telling`` only those logs are kept that the doctor would read, ``pod``'s among them, and their ends.
    """

    def __init__(self, *, telling: bool = False, pod: tuple[str, str] | None = None) -> None:
        self.missing: list[str] = []
        self._telling, self._pod = telling, pod
        self._wanted: frozenset[int] | None = None
        self._head: _Head | None = None
        self._objects: dict[str, list[Object]] = {}
        self._documents: list[Object] = []
        self._facts: list[NodeFacts] = []
        self._kernel: list[KernelLog] = []
        self._index: list[Log] = []
        self._texts: dict[int, str] = {}
        self._logs: list[Log] = []
        self._others: list[Evidence] = []
        self._none: list[str] = []
        """Kinds of which a file says that there is no object."""

    def take(self, name: str, data: bytes) -> None:
        """Read one file; what is wrong with it is told, and the others go on."""
        path = PurePosixPath(name)
        try:
            if path.name == HEAD and self._head is None and FORMAT.encode() in data[:4096]:
                self._head = msgspec.json.decode(data, type=_Head)
            elif self._head is not None:
                self._ours(path, data)
            else:
                self._foreign(path, data)
        except (ValueError, RecursionError, EOFError, OSError, zlib.error) as error:
            self.missing.append(f"{name} could not be read: {error}")

    def _ours(self, path: PurePosixPath, data: bytes) -> None:
        place = "/".join(path.parts[-2:])
        if place == "nodes/facts.jsonl":
            self._facts += self._decoded(path, data, NodeFacts)
        elif place == "nodes/kernel.jsonl":
            self._kernel += self._decoded(path, data, KernelLog)
        elif place == "logs/index.jsonl":
            self._index = self._decoded(path, data, Log)
        elif path.parent.name == "logs" and path.name[:5].isdecimal():
            self._log(int(path.name[:5]), data)
        elif path.parent.name == "objects" and path.suffix == ".jsonl":
            found = self._decoded(path, data, dict[str, Any])
            kept = self._objects.setdefault(path.name.partition(".")[0], [])
            kept += [each for each in found if isinstance(each.get("metadata"), dict)]

    def _log(self, number: int, data: bytes) -> None:
        if not self._telling or self._head is None or not self._head.whole:
            self._texts[number] = _text(data)
            return
        if self._wanted is None and self._complete(self._head):  # an archive has objects and index before logs
            wishes = set(collect.wanted_logs(self._survey(self._head), pod=self._pod).wanted)
            self._wanted = frozenset(at for at, each in enumerate(self._index) if _wish(each) in wishes)
        tells = self._wanted is None or number in self._wanted
        self._texts[number] = _end(_text(_tail(data))) if tells else ""

    def _complete(self, head: _Head) -> bool:
        """Whether it can be said which logs tell something: a folder's files may come in any order."""
        objects = all(len(self._objects.get(plural, ())) >= count for plural, count in head.counts.items())
        return objects and bool(self._index)

    def _decoded(self, path: PurePosixPath, data: bytes, kind: Any) -> list[Any]:
        """The things of a file, one a line; damaged lines are told and left out."""
        lines = [line for line in data.split(b"\n") if line.strip()]
        try:
            found: list[Any] = msgspec.json.decode(b"[" + b",".join(lines) + b"]", type=list[kind])
        except msgspec.DecodeError:
            decoder, found, bad = msgspec.json.Decoder(kind), [], 0
            for line in lines:
                try:
                    found.append(decoder.decode(line))
                except (msgspec.DecodeError, RecursionError):
                    bad += 1
            self.missing.append(f"{bad} of {len(lines)} entries of {path} are damaged")
        return found

    def _foreign(self, path: PurePosixPath, data: bytes) -> None:
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(texts.LARGEST)
        if path.suffix in (".yaml", ".yml", ".json") or data[:64].lstrip()[:1] == b"{":
            self._documents += _documents(data.decode("utf-8-sig", "replace"))
            return
        text = texts.decoded(data[-texts.LARGEST :])
        if logs := list(_foreign_logs(path.name, text)):
            self._logs += logs
        elif named := _BUG_REPORT.match(path.name):
            self._report(text, path.name, named["node"] or "")
        elif named := _USAGE.match(path.name):
            self._others.append(_of_node(texts.read(text, path.name), named["node"]))
        elif (missing := _MISSING.get(path.name)) is not None:
            self._none.append(missing)
        elif text.strip() and path.name not in _SCRIPTS_OWN:
            self._others.append(texts.read(text, path.name))

    def _report(self, text: str, name: str, node: str) -> None:
        report = bugreport.read(text, node)
        if report is None:
            self._others.append(_of_node(texts.read(text, name), node))
            return
        self._facts.append(report.facts)
        self._kernel.append(report.kernel)

    def captured(self, source: str) -> Captured:
        """All of it."""
        if self._head is None:
            return self._captured_foreign(source)
        head = self._head
        survey = self._survey(head)
        logs = [
            msgspec.structs.replace(each, text=self._texts[number])
            for number, each in enumerate(self._index)
            if number in self._texts
        ]
        if len(logs) < len(self._index):
            self.missing.append(f"{len(self._index) - len(logs)} logs are missing in the archive")
        return Captured(
            survey=survey,
            logs=tuple(logs),
            kernel=tuple(self._kernel),
            facts=tuple(self._facts),
            missing=(*head.missing, *self.missing),
            whole=head.whole,
        )

    def _survey(self, head: _Head) -> Survey:
        objects = {plural: tuple(self._objects.get(plural, ())) for plural in head.counts}
        lost = {
            plural: f"{count - len(objects[plural])} of {count} {plural} are missing in the archive"
            for plural, count in head.counts.items()
            if len(objects[plural]) < count
        }
        return Survey(
            version=head.version,
            server=head.server,
            namespace=head.namespace,
            at=head.at,
            objects={plural: found for plural, found in objects.items() if plural not in lost or found},
            absent=frozenset(head.absent),
            unread={**head.unread, **lost},
        )

    def _captured_foreign(self, source: str) -> Captured:
        if not (self._documents or self._logs or self._others or self._facts or self._none):
            told = f" ({'; '.join(self.missing[:3])})" if self.missing else ""
            raise ArchiveError(f"{source} holds nothing that is known of a cluster{told}")
        survey = Survey.of(self._documents, read=self._none)
        return Captured(
            survey=survey,
            logs=tuple(_placed(self._logs, survey)),
            others=tuple(self._others),
            kernel=tuple(self._kernel),
            facts=tuple(self._facts),
            missing=tuple(self.missing),
        )


_TAIL: Final = 8 * collect.LOG_BYTES
"""Bytes that surely hold the end that is read, of characters of any length."""


def _tail(data: bytes) -> bytes:
    """The end of a text, from the beginning of a character on."""
    start = max(0, len(data) - _TAIL)
    while start and start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass" if _paired(data) else "replace")


def _paired(data: bytes) -> bool:
    """Whether a text that holds lone surrogates, as logs of bad encodings may, can be had back as it was."""
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


_BUG_REPORT: Final = re.compile(r"^nvidia-bug-report(?:_(?P<node>[a-z0-9.\-]+?))?\.log$")
_USAGE: Final = re.compile(r"^gpu_device_usage_(?P<node>[a-z0-9.\-]+?)\.log$")
_MISSING: Final = {"cluster_policy.missing": "clusterpolicies", "nvidiadrivers.missing": "nvidiadrivers"}
_SCRIPTS_OWN: Final = frozenset({"must-gather.log", "must-gather.stderr.log", "version", "all_machines.list"})
"""What NVIDIA's script says of its own work, and of machines that no check asks for."""
_LOG_NAMES: Final = (
    re.compile(r"^gpu_operand_pod_(?P<pod>[a-z0-9.\-]+?)(?P<previous>\.previous)?\.log$"),
    re.compile(r"^(?P<pod>gpu_operator_pod)(?P<previous>\.previous)?\.log$"),
)
"""NVIDIA's names of logs (contracts/admin-workflow.md 13.1)."""


_PREFIX: Final = re.compile(r"^\[pod/[^/\]\s]+/(?P<container>[^\]\s]+)\] ")
"""How kubectl marks the lines of several containers' logs."""


def _foreign_logs(name: str, text: str) -> Iterator[Log]:
    """The logs that are in a file of NVIDIA's: one, or one a container where lines say whose they are."""
    found = next(filter(None, (pattern.match(name) for pattern in _LOG_NAMES)), None)
    if found is None:
        return
    by_container: dict[str, list[str]] = {}
    container = ""
    for line in text.split("\n"):
        if (mark := _PREFIX.match(line)) is not None:
            container, line = mark["container"], line[mark.end() :]
        by_container.setdefault(container, []).append(line)
    pod, previous = found["pod"].replace("_", "-"), found["previous"] is not None
    for container, lines in by_container.items():
        if any(lines):
            yield Log(text="\n".join(lines), pod=pod, container=container, previous=previous)


_OPERATORS_LOG: Final = "gpu-operator-pod"
"""What stands in a file's name instead of the operator's pod."""


def _placed(logs: Iterable[Log], survey: Survey) -> Iterator[Log]:
    """The logs with what their pods' objects say: full name, namespace, container and node."""
    pods = {evidence.name(each): each for each in survey.of_kind("pods")}
    operator = [each for each in pods.values() if evidence.labels(each).get("app") == "gpu-operator"]
    for log in logs:
        pod = operator[0] if log.pod == _OPERATORS_LOG and len(operator) == 1 else pods.get(log.pod)
        if pod is None:
            yield log
            continue
        containers = [str(each.get("name") or "") for each in (pod.get("spec") or {}).get("containers") or ()]
        yield msgspec.structs.replace(
            log,
            pod=evidence.name(pod),
            namespace=evidence.namespace(pod),
            container=log.container or (containers[0] if containers else ""),
            node=evidence.node_of(pod),
        )


def _of_node(found: Evidence, node: str) -> Evidence:
    """The same, of a node where it says none."""
    if not node:
        return found
    return msgspec.structs.replace(
        found,
        nodes=tuple(msgspec.structs.replace(each, name=each.name or node) for each in found.nodes),
        kernel=tuple(msgspec.structs.replace(each, node=each.node or node) for each in found.kernel),
        logs=tuple(msgspec.structs.replace(each, node=each.node or node) for each in found.logs),
    )


_SEPARATOR: Final = re.compile(r"^---[^\n]*$", re.M)


def _documents(text: str) -> list[Object]:
    """The objects of a JSON or YAML file. Raises :class:`ValueError`."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            found = [msgspec.json.decode(text)]
        except msgspec.DecodeError:
            found = [goyaml.loads(text)]
    else:
        found = [goyaml.loads(part) for part in _SEPARATOR.split(text) if part.strip()]
    flat = [inner for each in found for inner in (each if isinstance(each, list) else [each])]
    return [each for each in flat if isinstance(each, dict) and each.get("kind")]
