"""Reading what a cluster shows, for an archive that may be handed on.

Needs no operator and no labelled node: every kind that can be surveyed is read, the logs of all pods of the GPU stack
in whatever namespace, Helm's releases, pages of metrics, and nodes from inside. What cannot be read, is too large or
comes too late is told, and the rest is kept; so is what was there when somebody interrupted. Nothing here is redacted
yet: ``gather_pack`` redacts and writes, ``gather_files`` makes what people read, ``diagnose.archive`` says what the
files are and reads them (contracts/admin-workflow.md 13).
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ..cluster import errors, permissions
from ..diagnose import collect, pods
from ..diagnose import evidence as seen
from ..diagnose import survey as surveys
from ..diagnose.archive import Captured
from ..diagnose.collect import Wish
from ..diagnose.evidence import Log
from ..diagnose.survey import Survey
from . import gather_files as files
from . import metricslook
from .gather_files import Extra

if TYPE_CHECKING:
    from ..cluster.client import Client

FILE_BYTES: Final = 10 << 20
"""Of a log or a page the end is kept."""
TOTAL_BYTES: Final = 512 << 20
LOG_TIMEOUT_S: Final = 60.0
PAGE_TIMEOUT_S: Final = 15.0
AT_ONCE: Final = 16
EXPORTERS: Final = 4
"""Exporters whose pages are kept, evenly spread."""
_LOG_TAIL_LINES: Final = 200_000
_GONE: Final = frozenset({400, 404})
"""What the API server answers where a container has no such log."""
INTERRUPTED: Final = "it was interrupted before all was read"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is read, and for how long."""

    file_bytes: int = FILE_BYTES
    """Of each log and page."""
    total_bytes: int = TOTAL_BYTES
    """Of all logs and pages."""
    timeout_s: float = 600.0
    """Of the whole; what is there by then is kept."""
    since_s: float = 0.0
    """Logs and events that are older are left out; 0 for none."""


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, not redacted unless ``gather_pack`` did."""

    captured: Captured
    states: tuple[tuple[str, str], ...] = ()
    """How each log of the capture came about: a status of ``gather_files`` and a sentence."""
    extras: tuple[Extra, ...] = ()


T = TypeVar("T")
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
) -> Gathered:
    """Read a cluster; not yet redacted, so it must not be written or shown.

    Args:
        client: how the cluster is reached.
        namespace: the operator's.
        nodes: logs and facts of these nodes only; all unless given.
        workloads: namespace and name of pods whose logs are wanted though they are not the operator's.
        look: looks at nodes from inside; without it nobody does.
        limits: what to stop at.
        tell: hears how far it is.

    Raises what :func:`~groundplane.diagnose.survey.live` raises where there is no cluster at all. After an
    interruption, or when the time is over, what has been read by then is given, with a sentence in ``missing``.
    """
    work = _Work(client, namespace, nodes, workloads, look, limits or Limits(), tell)
    try:
        async with asyncio.timeout(work.limits.timeout_s):
            await work.all()
    except TimeoutError:
        work.missing.append(f"the time of {work.limits.timeout_s:.0f} s was over before all was read")
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        work.missing.append(INTERRUPTED)
    return work.gathered()


class _Work:
    """One gathering: what has been read so far is always whole enough to be written."""

    def __init__(
        self,
        client: "Client",
        namespace: str,
        nodes: Sequence[str],
        workloads: Sequence[tuple[str, str]],
        look: collect.Look | None,
        limits: Limits,
        tell: Tell,
    ) -> None:
        self.limits = limits
        self.missing: list[str] = []
        self._client, self._nodes, self._workloads, self._look, self._tell = client, nodes, workloads, look, tell
        self._survey = Survey(
            server=client.config.server, namespace=namespace, at=client.now(),
            unread={plural: f"{plural} were not read: {INTERRUPTED}" for plural in surveys.KINDS},
        )  # fmt: skip
        self._reading = _Reading(client, limits)
        self._wishes: list[Wish] = []
        self._facts: dict[str, seen.NodeFacts] = {}
        self._kernel: list[seen.KernelLog] = []
        self._extras: list[Extra] = []

    async def all(self) -> None:
        """Read everything, what explains most first."""
        await self._objects()
        survey = self._survey
        self._wishes = list(wanted(survey, self._nodes, self._workloads))
        self._tell(f"reading {len(self._wishes)} logs")
        await self._reading.all(self._wishes)
        machines = list(self._nodes) or _gpu_nodes(survey)
        if self._look is not None and machines:
            self._tell(f"looking at {len(machines)} nodes from inside")
            found = await self._look(machines)
            self._facts |= found.facts
            self._kernel += found.kernel
            for node, why in found.unread.items():
                self.missing.append(f"node {node} could not be looked at from inside: {why}")
                self._lost(f"nodes/{files.file_name(node)}", why)
        elif machines:
            self._extras.append(Extra(name="nodes", status=files.SKIPPED, why="nodes were not to be looked at"))
        self._tell("reading metrics and other namespaces")
        await self._pages()
        await self._elsewhere()

    def _lost(self, name: str, why: str) -> None:
        status = files.DENIED if "permission" in why else files.TIMEOUT if "did not end" in why else files.PARTIAL
        self._extras.append(Extra(name=name, status=status, why=why))

    async def _objects(self) -> None:
        """The survey, kind by kind, so that an interruption leaves the kinds that have been read."""
        self._tell("reading the cluster's objects")
        self._add(await surveys.live(self._client, (), namespace=self._survey.namespace))

        async def one(plural: str) -> None:
            self._add(await surveys.live(self._client, (plural,), namespace=self._survey.namespace))
            self._tell(f"read {len(self._survey.objects)} of {len(surveys.KINDS)} kinds of objects")

        await _together(one, surveys.KINDS)

    def _add(self, part: Survey) -> None:
        read = {*part.objects, *part.absent}
        kept = {plural: why for plural, why in self._survey.unread.items() if plural not in read}
        self._survey = msgspec.structs.replace(
            self._survey,
            version=part.version or self._survey.version,
            objects={**self._survey.objects, **part.objects},
            absent=self._survey.absent | part.absent,
            unread={**kept, **part.unread},
        )

    async def _pages(self) -> None:
        """Metrics of the operator and of some exporters."""
        running = [pod for pod in self._survey.of_kind("pods") if pods.ready(pod) and not pods.ended(pod)]
        exporters = [pod for pod in running if seen.labels(pod).get("app") in _EXPORTERS]
        wanted = [("operator", pod) for pod in running if seen.labels(pod).get("app") == _OPERATOR]
        wanted += [("exporter", pod) for pod in metricslook.chosen(exporters, EXPORTERS)]
        await _together(self._page, wanted)

    async def _page(self, which: tuple[str, Any]) -> None:
        kind, pod = which
        port = _EXPORTERS.get(str(seen.labels(pod).get("app")), _OPERATOR_PORT)
        name = f"metrics/{kind}_{files.file_name(seen.name(pod))}.prom"
        port = metricslook.port_of(pod, port)
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                text = await metricslook.text_of(self._client, seen.namespace(pod), seen.name(pod), port)
        except TimeoutError:
            self._extras.append(Extra(name=name, status=files.TIMEOUT, why=f"no answer within {PAGE_TIMEOUT_S:.0f} s"))
            return
        except errors.ClusterError as error:
            status, why = _refusal(error)
            self._extras.append(Extra(name=name, status=status, why=why))
            return
        if len(text) > self.limits.file_bytes:
            text, why = text[: self.limits.file_bytes].rpartition("\n")[0], f"only {self.limits.file_bytes} characters"
            self._extras.append(Extra(name=name, text=text, status=files.PARTIAL, why=why))
        else:
            self._extras.append(Extra(name=name, text=text))

    async def _elsewhere(self) -> None:
        """What makes pods, in namespaces other than the operator's that have pods of the GPU stack."""
        own = [pod for pod in self._survey.of_kind("pods") if pods.layer_of(pod) is not None]

        async def one(namespace: str) -> None:
            found = await surveys.live(self._client, _MAKERS, namespace=namespace)
            folder = f"namespaces/{files.file_name(namespace)}"
            for plural, things in found.objects.items():
                self._extras.append(Extra(name=f"{folder}/{plural}.yaml", documents=things))
            for plural, why in found.unread.items():
                self._lost(f"{folder}/{plural}.yaml", why)

        await _together(one, files.namespaces(self._survey, own))

    def gathered(self) -> Gathered:
        """All that there is by now."""
        survey = _lately(_without_users(self._survey, self._workloads), self.limits.since_s)
        extras = [*files.definitions(survey), *files.helm(survey), *self._extras, *self._reading.lost(self._wishes)]
        kept = [wish for wish in self._wishes if wish in self._reading.logs]
        captured = Captured(
            survey=files.without_schemas(survey),
            logs=tuple(self._reading.logs[wish] for wish in kept),
            kernel=tuple(self._kernel),
            facts=tuple(self._facts.values()),
            missing=(*self.missing, *self._reading.told(self._wishes)),
            whole=True,
        )
        states = tuple(self._reading.troubles.get(wish, (files.OK, "")) for wish in kept)
        return Gathered(captured=captured, states=states, extras=tuple(sorted(extras, key=lambda each: each.name)))


_OPERATOR: Final = "gpu-operator"
_OPERATOR_PORT: Final = 8080
_EXPORTERS: Final = {"nvidia-dcgm-exporter": 9400, "nvidia-node-status-exporter": 8000}
"""Port of the page by the exporter's app, where its container names none."""
_MAKERS: Final = ("daemonsets", "deployments", "configmaps", "jobs")


async def _together(one: Callable[[T], Coroutine[Any, Any, None]], things: Iterable[T]) -> None:
    """One after another, some at a time; the first error ends the others."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def gated(thing: T) -> None:
        async with gate:
            await one(thing)

    tasks = [asyncio.ensure_future(gated(thing)) for thing in things]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _refusal(error: errors.ClusterError) -> tuple[str, str]:
    """How a file came about that could not be read, and why."""
    if lacking := permissions.missing(error):
        return files.DENIED, permissions.tell(permissions.Denied(each) for each in lacking)
    return (files.DENIED if isinstance(error, errors.Forbidden) else files.PARTIAL), str(error)


def _lately(survey: Survey, since_s: float) -> Survey:
    """The same without events that ended before."""
    if not since_s or "events" not in survey.objects:
        return survey
    first = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(survey.at - since_s))
    kept = tuple(each for each in survey.of_kind("events") if (seen.event_of(each).when or first) >= first)
    return msgspec.structs.replace(survey, objects={**survey.objects, "events": kept})


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
        self.troubles: dict[Wish, tuple[str, str]] = {}
        """Status and sentence of logs that are not whole, or not there."""
        self._client, self._limits = client, limits
        self._left = limits.total_bytes
        self._begun: set[Wish] = set()

    async def all(self, wishes: Iterable[Wish]) -> None:
        await _together(self._one, wishes)

    async def _one(self, wish: Wish) -> None:
        if self._left <= 0:
            self.troubles[wish] = (files.TOO_LARGE, "the logs before it took all the room")
            return
        kept: list[str] = []
        most = self._limits.file_bytes
        size, cut = 0, False
        self._begun.add(wish)
        try:
            async with asyncio.timeout(LOG_TIMEOUT_S):
                async for line in self._lines(wish):
                    kept.append(line)
                    size += len(line) + 1
                    if size > 2 * most:
                        kept, cut = ["\n".join(kept)[-most:]], True
                        size = len(kept[0])
        except TimeoutError:
            self.troubles[wish] = (files.TIMEOUT, f"no end within {LOG_TIMEOUT_S:.0f} s")
        except errors.ClusterError as error:
            if isinstance(error, errors.ApiError) and error.code in _GONE:
                self._begun.discard(wish)
                return
            self.troubles[wish] = _refusal(error)
        self._begun.discard(wish)
        text = "\n".join(kept)
        if cut or len(text) > most:
            text = text[-most:].partition("\n")[2]  # half a line may be half a secret
            self.troubles.setdefault(wish, (files.PARTIAL, f"only the last {most} characters"))
        if text:
            self._left -= len(text)
            self.logs[wish] = Log(
                text=text, pod=wish.pod, container=wish.container, namespace=wish.namespace, node=wish.node,
                previous=wish.previous,
            )  # fmt: skip

    def _lines(self, wish: Wish) -> AsyncIterator[str]:
        return self._client.logs(
            wish.pod,
            wish.namespace,
            container=wish.container,
            previous=wish.previous,
            tail_lines=_LOG_TAIL_LINES,
            since_s=math.ceil(self._limits.since_s) or None,
        )

    def told(self, wishes: Iterable[Wish]) -> Iterator[str]:
        """A sentence for each log that is not whole."""
        for wish in wishes:
            if trouble := self.troubles.get(wish):
                yield f"log of {wish.namespace}/{wish.pod}, container {wish.container}: {': '.join(trouble)}"
            elif wish in self._begun:
                yield f"log of {wish.namespace}/{wish.pod}, container {wish.container}: timeout: {INTERRUPTED}"

    def lost(self, wishes: Iterable[Wish]) -> Iterator[Extra]:
        """The logs that are not there, as files without content."""
        for wish in wishes:
            trouble = self.troubles.get(wish, (files.TIMEOUT, INTERRUPTED) if wish in self._begun else None)
            if trouble is not None and wish not in self.logs:
                parts = "_".join(map(files.file_name, (wish.namespace, wish.pod, wish.container)))
                previous = ".previous" if wish.previous else ""
                yield Extra(name=f"logs/{parts}{previous}.log", status=trouble[0], why=trouble[1])
