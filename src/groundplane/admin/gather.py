"""Gathering what a cluster shows into an archive that may be handed on: read, redacted, then written, in this order.

Needs no operator and no labelled node: every kind that can be surveyed is read, and the logs of all pods of the GPU
stack, of whatever namespace. What cannot be read, is too large or comes too late is told in the manifest, and the rest
is kept; so is what was there when somebody interrupted. Secrets are learned, so that they go from everything else, and
are not written; of users' pods neither environment nor arguments are kept unless they are named. ``diagnose.archive``
says what the files are and reads them (contracts/admin-workflow.md 13).
"""

import asyncio
import hashlib
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .. import __version__
from ..cluster import errors, permissions
from ..diagnose import archive, collect, doctor, pods
from ..diagnose import evidence as seen
from ..diagnose import survey as surveys
from ..diagnose.archive import Captured
from ..diagnose.collect import Wish
from ..diagnose.evidence import Log
from ..diagnose.redact import Pseudonyms, Redactor
from ..diagnose.survey import Survey

if TYPE_CHECKING:
    from ..cluster.client import Client

LOG_BYTES: Final = 10 << 20
"""Of a log the end is kept."""
TOTAL_BYTES: Final = 512 << 20
LOG_TIMEOUT_S: Final = 60.0
AT_ONCE: Final = 16
_LOG_TAIL_LINES: Final = 200_000
_GONE: Final = frozenset({400, 404})
"""What the API server answers where a container has no such log."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is read, and for how long."""

    log_bytes: int = LOG_BYTES
    total_bytes: int = TOTAL_BYTES
    """Of all logs."""
    timeout_s: float = 600.0
    """Of the whole; what is there by then is kept."""


Tell = Callable[[str], None]


async def gather(
    client: "Client",
    *,
    namespace: str,
    nodes: Sequence[str] = (),
    workloads: Sequence[tuple[str, str]] = (),
    look: collect.Look | None = None,
    limits: Limits | None = None,
    tell: Tell = lambda _: None,
) -> Captured:
    """Read a cluster; not yet redacted, so it must not be written or shown.

    Args:
        client: how the cluster is reached.
        namespace: the operator's.
        nodes: logs and facts of these nodes only; all unless given.
        workloads: namespace and name of pods whose logs are wanted though they are not the operator's.
        look: looks at nodes from inside; without it nobody does.
        limits: what to stop at.
        tell: hears how far it is.

    Raises what :func:`~groundplane.diagnose.survey.live` raises. An interruption after the survey ends the reading, and
    what has been read by then is given, with a sentence in ``missing``.
    """
    limits = limits or Limits()
    end = time.monotonic() + limits.timeout_s
    tell("reading the cluster's objects")
    survey = await surveys.live(client, surveys.KINDS, namespace=namespace)
    wishes = list(wanted(survey, nodes, workloads))
    reading = _Reading(client, limits)
    facts: list[seen.NodeFacts] = []
    missing: list[str] = []
    try:
        async with asyncio.timeout(max(0.0, end - time.monotonic())):
            tell(f"reading {len(wishes)} logs")
            await reading.all(wishes)
            machines = list(nodes) or _gpu_nodes(survey)
            if look is not None and machines:
                tell(f"looking at {len(machines)} nodes from inside")
                found = await look(machines)
                facts += found.facts.values()
                missing += [
                    f"node {node} could not be looked at from inside: {why}" for node, why in found.unread.items()
                ]
                reading.kernel += found.kernel
    except TimeoutError:
        missing.append(f"the time of {limits.timeout_s:.0f} s was over before all was read")
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        missing.append("it was interrupted before all was read")
    return Captured(
        survey=_without_users(survey, workloads),
        logs=tuple(log for log in map(reading.logs.get, wishes) if log is not None),
        kernel=tuple(reading.kernel),
        facts=tuple(facts),
        missing=(*missing, *reading.told(wishes)),
    )


_PRIVATE: Final = frozenset({"env", "envFrom", "command", "args"})


def _without_users(survey: Survey, workloads: Sequence[tuple[str, str]]) -> Survey:
    """The same without what users told their own pods, but for those that are named."""

    def kept(pod: Any) -> Any:
        if _operators(pod, survey.namespace) or (seen.namespace(pod), seen.name(pod)) in workloads:
            return pod
        spec = dict(pod.get("spec") or {})
        for part in ("containers", "initContainers"):
            if isinstance(spec.get(part), list):
                spec[part] = [{key: each[key] for key in each if key not in _PRIVATE} for each in spec[part]]
        return {**pod, "spec": spec}

    if "pods" not in survey.objects:
        return survey
    objects = {**survey.objects, "pods": tuple(map(kept, survey.objects["pods"]))}
    return msgspec.structs.replace(survey, objects=objects)


def wanted(survey: Survey, nodes: Sequence[str], workloads: Sequence[tuple[str, str]]) -> Iterator[Wish]:
    """The logs of every container that has run: of what concerns GPUs but users' workloads, and of named pods."""
    for pod in survey.of_kind("pods"):
        key, node = (seen.namespace(pod), seen.name(pod)), seen.node_of(pod)
        if key not in workloads and (not _operators(pod, survey.namespace) or (nodes and node not in (*nodes, ""))):
            continue
        for status in pods.statuses(pod):
            wish = Wish(*key, str(status.get("name") or ""), node)
            if pods.has_run(status):
                yield wish
            if pods.restarted(status):
                yield wish._replace(previous=True)


def _operators(pod: Any, namespace: str) -> bool:
    """Whether it is of the GPU stack: in the operator's namespace, or an operand or NFD wherever it runs."""
    return seen.namespace(pod) == namespace or pods.layer_of(pod) is not None


def _gpu_nodes(survey: Survey) -> list[str]:
    """Nodes that offer GPUs or are labelled so; every node with operands where no label says it (failed discovery)."""
    labelled = [
        seen.name(each) for each in survey.of_kind("nodes") if any("nvidia.com/" in key for key in seen.labels(each))
    ]
    own = {seen.node_of(pod) for pod in survey.of_kind("pods") if _operators(pod, survey.namespace)}
    return labelled or sorted(own - {""})


class _Reading:
    """Logs, many at a time, within limits."""

    def __init__(self, client: "Client", limits: Limits) -> None:
        self.logs: dict[Wish, Log] = {}
        self.kernel: list[seen.KernelLog] = []
        self._client, self._limits = client, limits
        self._troubles: dict[Wish, str] = {}
        self._left = limits.total_bytes

    async def all(self, wishes: Iterable[Wish]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(wish: Wish) -> None:
            async with gate:
                await self._one(wish)

        async with asyncio.TaskGroup() as group:
            for wish in wishes:
                group.create_task(one(wish))

    async def _one(self, wish: Wish) -> None:
        if self._left <= 0:
            self._troubles[wish] = "too-large: the logs before it took all the room"
            return
        kept: list[str] = []
        size = cut = 0
        try:
            async with asyncio.timeout(LOG_TIMEOUT_S):
                async for line in self._lines(wish):
                    kept.append(line)
                    size += len(line) + 1
                    if size > 2 * self._limits.log_bytes:
                        kept = ["\n".join(kept)[-self._limits.log_bytes :]]
                        size, cut = len(kept[0]), 1
        except TimeoutError:
            self._troubles[wish] = f"timeout: no end within {LOG_TIMEOUT_S:.0f} s"
        except errors.ClusterError as error:
            if isinstance(error, errors.ApiError) and error.code in _GONE:
                return
            lacking = permissions.missing(error)
            said = permissions.tell(permissions.Denied(each) for each in lacking) if lacking else str(error)
            self._troubles[wish] = f"{'denied' if lacking else 'partial'}: {said}"
        text = "\n".join(kept)
        if cut or len(text) > self._limits.log_bytes:
            text = text[-self._limits.log_bytes :].partition("\n")[2]  # half a line may be half a secret
            self._troubles.setdefault(wish, f"partial: only the last {self._limits.log_bytes} characters")
        if text:
            self._left -= len(text)
            self.logs[wish] = Log(
                text=text, pod=wish.pod, container=wish.container, namespace=wish.namespace, node=wish.node,
                previous=wish.previous,
            )  # fmt: skip

    def _lines(self, wish: Wish) -> AsyncIterator[str]:
        return self._client.logs(
            wish.pod, wish.namespace, container=wish.container, previous=wish.previous, tail_lines=_LOG_TAIL_LINES
        )

    def told(self, wishes: Iterable[Wish]) -> Iterator[str]:
        for wish in wishes:
            if why := self._troubles.get(wish):
                yield f"log of {wish.namespace}/{wish.pod}, container {wish.container}: {why}"


# --- Redaction ----------------------------------------------------------------------------------------------------


def redacted(captured: Captured, redactor: Redactor) -> Captured:
    """The same without its secrets; Secrets themselves are learned and left out."""
    survey = captured.survey
    for secret in survey.of_kind("secrets"):
        redactor.document(secret)
    objects = {
        plural: tuple(redactor.document(each) for each in found)
        for plural, found in survey.objects.items()
        if plural != "secrets"
    }
    unread = {plural: redactor.text(why) for plural, why in survey.unread.items()}
    if "secrets" in survey.objects:
        unread["secrets"] = "Secrets are never put into an archive"
    return Captured(
        survey=msgspec.structs.replace(survey, server=redactor.text(survey.server), objects=objects, unread=unread),
        logs=tuple(_plain(each, redactor) for each in captured.logs),
        kernel=tuple(_plain(each, redactor) for each in captured.kernel),
        facts=tuple(
            msgspec.convert(redactor.document(msgspec.to_builtins(each)), seen.NodeFacts) for each in captured.facts
        ),
        missing=tuple(map(redactor.text, captured.missing)),
    )


def _plain(log: Any, redactor: Redactor) -> Any:
    """A log whose names and text are redacted."""
    return msgspec.structs.replace(
        log,
        **{
            field: redactor.text(value)
            for field in log.__struct_fields__
            if isinstance(value := getattr(log, field), str)
        },
    )


def redactor_of(survey: Survey, pseudonyms: bool) -> Redactor:
    """What takes the secrets out; with ``pseudonyms`` names of nodes, addresses and serials become others."""
    return Redactor(Pseudonyms(seen.name(each) for each in survey.of_kind("nodes")) if pseudonyms else None)


# --- Writing ------------------------------------------------------------------------------------------------------


def files(captured: Captured, redactor: Redactor) -> Iterator[tuple[str, bytes]]:
    """All files of an archive of what is redacted already: the capture's, the doctor's verdict, the manifest last."""
    sums: dict[str, dict[str, Any]] = {}
    evidence = captured.evidence()
    verdict = redactor.document(doctor.report(doctor.diagnose(evidence), evidence))
    named = [*archive.entries(captured)]
    for name, data in (*named, ("doctor.json", msgspec.json.format(msgspec.json.encode(verdict)))):
        sums[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        yield name, data
    manifest = {
        "format": archive.FORMAT,
        "tool": __version__,
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(captured.survey.at)),
        "cluster": captured.survey.version,
        "files": sums,
        "unread": dict(sorted(captured.survey.unread.items())),
        "missing": list(captured.missing),
        "redacted": redactor.report(),
    }
    yield "manifest.json", msgspec.json.format(msgspec.json.encode(manifest))


def write(path: Path, named: Iterable[tuple[str, bytes]], at: float) -> None:
    """Write a ``.tar.gz``, readable by its owner only, whole or not at all. Raises :class:`OSError`."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
                for name, data in named:
                    info = tarfile.TarInfo(f"must-gather/{name}")
                    info.size, info.mtime, info.mode = len(data), int(at), 0o600
                    tar.addfile(info, io.BytesIO(data))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
