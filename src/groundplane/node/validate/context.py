"""What the checks share: settings, status files, the API server, the driver's tool, and what was said already."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from ..process import Process
from .errors import NotReady
from .settings import Settings
from .smi import Smi
from .status import StatusFiles

if TYPE_CHECKING:
    from ...cluster.client import Client


LABELS_S: Final = 30.0
"""For so many seconds, the node's labels count as they were read: all nodes of a cluster may be waiting at once."""


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Status(msgspec.Struct):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None


class Node(msgspec.Struct):
    """What is looked at of a node."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        return self.metadata.labels or {}


class Context:
    """One run of the program; an async context manager, as it keeps a connection to the API server."""

    def __init__(self, process: Process, settings: Settings, *, smi_limit_s: float | None = None) -> None:
        self.process = process
        self.settings = settings
        self.status = StatusFiles(process, settings.folder)
        self.smi = Smi(process, limit_s=smi_limit_s)
        self._stack = contextlib.AsyncExitStack()
        self._client: Client | None = None
        self._said: dict[str, str] = {}
        self._known: dict[str, tuple[float, Any]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def note(self, topic: str, text: str) -> None:
        """Say something once: again only when it has changed."""
        if self._said.get(topic) != text:
            self._said[topic] = text
            self.process.log.info(text)

    @contextlib.asynccontextmanager
    async def api(self, doing: str) -> "AsyncIterator[Client]":
        """The API server, for what is done in the block; what it refuses is raised as :class:`~.errors.NotReady`."""
        from ...cluster.errors import ClusterError

        try:
            if self._client is None:
                self._client = await self._stack.enter_async_context(self.process.client())
            yield self._client
        except ClusterError as error:
            raise NotReady(f"{doing}: {error}", "an answer of the API server") from error

    async def remembered(self, topic: str, ask: Callable[[], Awaitable[Any]], keeps_s: Callable[[Any], float]) -> Any:
        """What was found out about a topic, asked again only when it has been known for longer than it keeps."""
        now = self.process.monotonic()
        at, known = self._known.get(topic, (now, None))
        if topic not in self._known or now - at >= keeps_s(known):
            known = await ask()
            self._known[topic] = now, known
        return known

    async def labels(self, purpose: str) -> Mapping[str, str]:
        """This node's labels, as they are or were a little while ago. Raises :class:`~.errors.NotReady`."""

        async def ask() -> Mapping[str, str]:
            return (await self.node(purpose)).labels

        found: Mapping[str, str] = await self.remembered("labels", ask, lambda _: LABELS_S)
        return found

    async def node(self, purpose: str) -> Node:
        """This node, as the API server has it. Raises :class:`~.errors.NotReady`."""
        from ...cluster import kinds

        if not self.settings.node:
            raise NotReady(f"{purpose} needs the node's name", "the node's name in NODE_NAME or --node-name")
        async with self.api(f"reading node {self.settings.node} for {purpose}") as client:
            return await client.get(kinds.NODE, self.settings.node, view=Node)
