"""A live copy of a collection: list once, then follow the watch, for as long as it takes.

The copy holds slim views, so that 5,000 nodes fit in a few MiB, and a quiet cluster costs one open watch. What happens
between us and the API server (dropped connections, expired versions, an overloaded server) is settled here; a
subscriber sees only changes of objects, each from the last state it knew. Deciding on them is left to controllers.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, ItemsView, ValuesView
from typing import Any, Generic, Literal, TypeVar

import msgspec

from . import errors
from .client import Client, Retry, WatchEvent, version_of
from .kinds import Kind

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE = 500
WATCH_MIN_S = 300
"""A watch lasts this long to twice as long, at random, so that a fleet's clients do not all come back at once."""
BACKOFF = Retry(first_s=0.2, max_s=30.0)
HEALTHY_WATCH_S = 5.0
"""A watch that lived this long, or told anything, counts as working: the next failure backs off from the start."""
CONFIRM_S = 2.0
"""A watch that has been open this long was not refused: the trouble of the one before it is over."""
STUBBORN_FAILURES = 5
"""So many failures in a row (some six seconds) are no hiccup of the API server any more."""


class Change(msgspec.Struct, Generic[T], frozen=True):
    """What happened to one object. ``old`` is None when added; ``new`` is None when deleted, ``old`` its last state."""

    type: Literal["added", "modified", "deleted"]
    old: T | None
    new: T | None

    @property
    def object(self) -> T:
        """The newest known state: ``new``, or ``old`` of a deleted object."""
        found = self.new if self.new is not None else self.old
        if found is None:
            raise ValueError("a change without an object")
        return found


def key_of(obj: Any) -> str:
    """``namespace/name``, or ``name`` for cluster-scoped objects; of a plain object or a view."""
    if isinstance(obj, dict):
        meta = obj["metadata"]
        namespace, name = meta.get("namespace"), meta["name"]
    else:
        namespace, name = obj.metadata.namespace, obj.metadata.name
    return f"{namespace}/{name}" if namespace else name


def uid_of(obj: Any) -> str:
    """``metadata.uid`` of a plain object or a view."""
    return str(obj["metadata"].get("uid", "")) if isinstance(obj, dict) else obj.metadata.uid


class Informer(Generic[T]):
    """The objects of ``kind`` (in ``namespace``, matching the selectors), decoded as ``view``.

    A view is a msgspec Struct with ``metadata`` (name, namespace, uid, resourceVersion), or ``dict``. Objects belong to
    the cache: read them, never change them. ``sleep``, ``clock`` (monotonic seconds) and ``rand`` are parameters for
    tests and the lab.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        view: type[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        page: int = PAGE,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.kind = kind
        self.relists = 0
        self.last_error: errors.ClusterError | None = None
        self._client = client
        self._view = view
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._page = page
        self._sleep = sleep
        self._clock = clock
        self._rand = rand
        self._objects: dict[str, T] = {}
        self._handlers: list[Callable[[Change[T]], None]] = []
        self._trouble_handlers: list[Callable[[], None]] = []
        self._failures = 0
        self._version = ""
        self._heard = False
        self._synced = asyncio.Event()
        self._settled = asyncio.Event()
        self._stale = asyncio.Event()
        self._refreshing = False

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, name: str, namespace: str = "") -> T | None:
        """One object, or None."""
        return self._objects.get(f"{namespace}/{name}" if namespace else name)

    def values(self) -> ValuesView[T]:
        """All objects; a live view, copy it before awaiting."""
        return self._objects.values()

    def items(self) -> ItemsView[str, T]:
        """(key, object) of all objects; keys are those of :func:`key_of`."""
        return self._objects.items()

    @property
    def synced(self) -> bool:
        """The first listing is complete: what is not here is not there."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Until :attr:`synced`; :meth:`run` must be running."""
        await self._synced.wait()

    @property
    def scope(self) -> str:
        """What is listed, for a person: the resource, its namespace and the selectors."""
        parts = [self.kind.resource, f"in {self._namespace}" if self._namespace else "", self._labels, self._fields]
        return " ".join(filter(None, parts))

    @property
    def trouble(self) -> errors.ClusterError | None:
        """Why the copy is not current, and will not be by waiting alone; None while all is well or may soon be.

        A refusal is lasting (403), as is an answer that cannot be read; a server that fails counts once it has done so
        for a while and nothing was ever listed. A missing resource type is not trouble: its CRD may come.
        """
        error = self.last_error
        if isinstance(error, errors.Forbidden | errors.Unreadable):
            return error
        return error if isinstance(error, errors.ApiError) and self._stubborn(error) and not self.synced else None

    def _stubborn(self, error: errors.ClusterError) -> bool:
        """Whether somebody must do something before the collection can be listed."""
        if isinstance(error, errors.Forbidden | errors.Unreadable | errors.NotFound):
            return True
        return isinstance(error, errors.ApiError) and self._failures >= STUBBORN_FAILURES

    async def wait_settled(self) -> None:
        """Until the first listing is complete, or that may clearly take for ever; :meth:`run` must be running."""
        await self._settled.wait()

    @property
    def refreshing(self) -> bool:
        """:meth:`refresh` was asked for and is not done: objects may lack what it was asked for."""
        return self._refreshing

    def refresh(self) -> None:
        """List everything again, since more is kept of each object now; every object is then told as modified."""
        if self._version or self._objects:
            self._refreshing = True
            self._stale.set()

    def on_trouble(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` when :attr:`last_error` comes, goes or is another one."""
        self._trouble_handlers.append(handler)

    def subscribe(self, handler: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Call ``handler`` for every change, at once for what is here already (as added). Returns the unsubscribe call.

        Handlers run in the event loop, in order, and must not block. One that raises is logged and stays subscribed.
        """
        self._handlers.append(handler)
        for obj in list(self._objects.values()):
            self._call(handler, Change("added", None, obj))
        return lambda: self._handlers.remove(handler)

    async def run(self) -> None:
        """Follow the collection until cancelled. No answer of the API server ends it."""
        self._failures = 0
        while True:
            started, self._heard = self._clock(), False
            problem = await self._unless_stale()
            if self._heard or self._clock() - started >= HEALTHY_WATCH_S:
                self._failures = 0
            self._failures += 1
            await self._pause(problem, self._failures)

    async def _unless_stale(self) -> errors.ClusterError | None:
        """A round, broken off when :meth:`refresh` is asked for; what ended it."""
        work, stale = asyncio.ensure_future(self._round()), asyncio.ensure_future(self._stale.wait())
        try:
            await asyncio.wait({work, stale}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (work, stale):
                each.cancel()
            await asyncio.gather(work, stale, return_exceptions=True)
        if self._stale.is_set():
            self._stale.clear()
            self._version = ""
            self._failures = 0
            return None
        return work.result()

    async def _round(self) -> errors.ClusterError | None:
        """List if there is nothing to resume from, then one watch to its end; what ended it."""
        try:
            if not self._version:
                await self._relist()
            await self._follow()
        except errors.Gone as error:
            log.info("%s: version %s is too old for the server, listing again", self.kind.resource, self._version)
            self._version = ""
            return error
        except errors.NotFound as error:
            self._version = ""  # the CRD is gone: when it is back, nothing of what we know need still be true
            return error
        except errors.ClusterError as error:
            return error
        return None

    async def _pause(self, problem: errors.ClusterError | None, failures: int) -> None:
        """Back off; the first 410 or early end of a watch is everyday life and costs no time."""
        self._note(problem)
        everyday = problem is None or isinstance(problem, errors.Gone | errors.ConnectionLost)
        if everyday and failures == 1:
            log.debug("%s: watch ended (%s), resuming", self.kind.resource, problem)
            return
        wish = problem.retry_after_s if isinstance(problem, errors.ApiError) else None
        delay = BACKOFF.delay(failures, wish, self._rand)
        log.warning("%s: %s; again in %.1f s", self.kind.resource, problem or "watches end at once", delay)
        await self._sleep(delay)

    def _note(self, problem: errors.ClusterError | None) -> None:
        before, self.last_error = self.last_error, problem
        if problem is not None and self._stubborn(problem):
            self._settled.set()
        if str(before or "") != str(problem or ""):
            for handler in tuple(self._trouble_handlers):
                handler()

    # --- listing ------------------------------------------------------------------------------------------------------

    async def _relist(self) -> None:
        """Make the copy equal to the collection, reporting the differences, deletions last."""
        self.relists += 1
        try:
            seen, version = await self._list(self._page)
        except errors.Gone:
            seen, version = await self._list(0)
        for key in [key for key in self._objects if key not in seen]:
            self._remove(key, self._objects[key])
        self._version = version
        self._refreshing = self._stale.is_set()
        self._synced.set()
        self._settled.set()
        if not isinstance(self.last_error, errors.Forbidden):
            self._note(None)

    async def _list(self, limit: int) -> tuple[set[str], str]:
        """Take over a listing page by page: at no moment is more than one page in memory beside the views."""
        seen: set[str] = set()
        more = ""
        while True:
            part = await self._client.page(
                self.kind,
                self._namespace,
                labels=self._labels,
                fields=self._fields,
                limit=limit,
                more=more,
                view=self._view,
            )
            for obj in part.items:
                key = key_of(obj)
                seen.add(key)
                self._upsert(key, obj)
            more = part.more
            if not more:
                return seen, part.resource_version

    # --- watching -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """One watch, to its end."""
        timeout_s = int(WATCH_MIN_S * (1.0 + self._rand()))
        stream = self._client.watch(
            self.kind,
            self._namespace,
            resource_version=self._version,
            labels=self._labels,
            fields=self._fields,
            timeout_s=timeout_s,
            view=self._view,
        )
        refused = isinstance(self.last_error, errors.Forbidden)
        confirmed = asyncio.ensure_future(self._confirm()) if refused else None
        try:
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    self._take(event)
        finally:
            if confirmed is not None:
                confirmed.cancel()

    async def _confirm(self) -> None:
        """A watch is refused at once or not at all."""
        await self._sleep(CONFIRM_S)
        self._note(None)

    def _take(self, event: WatchEvent[T]) -> None:
        self._heard = True
        if self.last_error is not None:
            self._note(None)
        if event.object is not None:
            key = key_of(event.object)
            if event.type == "DELETED":
                self._remove(key, event.object)
            else:
                self._upsert(key, event.object)
        if event.resource_version:
            self._version = event.resource_version

    # --- the copy -----------------------------------------------------------------------------------------------------

    def _upsert(self, key: str, new: T) -> None:
        old = self._objects.get(key)
        same = old is not None and version_of(old) == version_of(new) and uid_of(old) == uid_of(new)
        if same and not self._refreshing:
            return
        if old is not None and uid_of(old) != uid_of(new):
            self._remove(key, old)
            old = None
        self._objects[key] = new
        self._tell(Change("added" if old is None else "modified", old, new))

    def _remove(self, key: str, last: T) -> None:
        if self._objects.pop(key, None) is not None:
            self._tell(Change("deleted", last, None))

    def _tell(self, change: Change[T]) -> None:
        for handler in tuple(self._handlers):
            self._call(handler, change)

    def _call(self, handler: Callable[[Change[T]], None], change: Change[T]) -> None:
        try:
            handler(change)
        except Exception:
            log.exception("%s: a handler failed on %s %s", self.kind.resource, change.type, key_of(change.object))
