"""Requests to the API server: one method a verb, typed answers, and the retries that are safe.

Our own transport on aiohttp, bytes in and out through msgspec, because at 5,000 nodes the client's CPU time is what
labelling takes (docs/architecture.md, decision 5). Keeping a live copy of a collection is left to ``informer``, knowing
which writes are needed to ``apply``.
"""

import asyncio
import contextlib
import enum
import logging
import random
import socket
import ssl
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast, overload
from urllib.parse import urlencode, urlsplit

import msgspec
from yarl import URL

from .. import __version__
from . import auth, errors
from .config import Config
from .http import aiohttp
from .kinds import POD, Kind

log = logging.getLogger(__name__)

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object as a plain document."""

REQUEST_TIMEOUT_S = 60.0
"""Silence on a connection after which a plain request counts as lost. The API server itself gives up after 60 s."""
CONNECT_TIMEOUT_S = 10.0
CLOCKS_ALIKE_S = 2.0
"""Two clocks that differ by no more agree: a server tells whole seconds, and the answer was under way."""
SOCKET_CLOSE_S = 2.0
"""How long the other end of a WebSocket may take to say goodbye."""
WATCH_TIMEOUT_S = 300
WATCH_GRACE_S = 30.0
"""A watch that outlives its server-side timeout by this is dropped from our side."""


class PatchType(enum.Enum):
    """The content type of a patch body."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Retry(msgspec.Struct, frozen=True):
    """How often and how soon a request is tried again.

    Delays double from ``first_s`` to ``max_s``, each cut by up to half at random. A Retry-After of the server counts up
    to ``retry_after_max_s``.
    """

    attempts: int = 5
    first_s: float = 0.2
    max_s: float = 5.0
    retry_after_max_s: float = 30.0

    def delay(self, attempt: int, wish_s: float | None, rand: Callable[[], float]) -> float:
        """Seconds before try ``attempt + 1``; ``rand`` gives numbers in [0, 1)."""
        backoff = min(self.first_s * 2.0 ** min(attempt - 1, 62), self.max_s) * (1.0 - rand() / 2.0)
        return backoff if wish_s is None else max(backoff, min(wish_s, self.retry_after_max_s))


DEFAULT_RETRY = Retry()

_METADATA_ONLY = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
_METADATA_OF_ONE = _METADATA_ONLY.format("PartialObjectMetadata")
_METADATA_OF_MANY = _METADATA_ONLY.format("PartialObjectMetadataList")


class Listing(msgspec.Struct, Generic[T]):
    """A collection at one moment; a watch from ``resource_version`` misses nothing. ``more`` continues a page."""

    items: list[T]
    resource_version: str
    more: str = ""


class WatchEvent(msgspec.Struct, Generic[T]):
    """One change: ADDED, MODIFIED or DELETED with its object, or BOOKMARK with ``object`` None."""

    type: str
    object: T | None
    resource_version: str


class _ListMeta(msgspec.Struct):
    resourceVersion: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct):
    resourceVersion: str = ""


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta = msgspec.field(default_factory=_BookmarkMeta)


_FRAME = msgspec.json.Decoder(_Frame)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)


@lru_cache(maxsize=256)
def _decoder(view: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Object if view is dict else view)


@lru_cache(maxsize=256)
def _list_decoder(view: Any) -> msgspec.json.Decoder[Any]:
    items: Any = list.__class_getitem__(Object if view is dict else view)
    fields = [
        ("metadata", _ListMeta, msgspec.field(default_factory=_ListMeta)),
        ("items", items | None, None),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("List", fields))


def _accept(view: Any, *, many: bool = False) -> str | None:
    """The Accept header for a view that is ``metadata_only``; a server may answer in full all the same."""
    if not getattr(view, "metadata_only", False):
        return None
    return _METADATA_OF_MANY if many else _METADATA_OF_ONE


def version_of(obj: Any) -> str:
    """``metadata.resourceVersion`` of an object, a plain one or a view."""
    if isinstance(obj, dict):
        return cast(str, obj.get("metadata", {}).get("resourceVersion", ""))
    return cast(str, obj.metadata.resourceVersion)


class _Request(msgspec.Struct, frozen=True):
    """What the retry loop must know of a request."""

    verb: str
    method: str
    url: URL
    label: str
    """The resource, for counting."""
    what: str
    """For messages: ``GET nodes/a``."""
    body: bytes | None = None
    content_type: str | None = None
    repeatable: bool = False
    """Sending it twice does no more than sending it once."""
    accept: str | None = None


class Client:
    """A connection pool to one API server.

    A ``view`` is what an answer is decoded as: ``dict``, or a msgspec Struct, which takes the fields it names. One with
    a class attribute ``metadata_only`` has the server leave out all but metadata.

    Use it as an async context manager. ``max_in_flight`` bounds the plain requests at any moment (watches and logs come
    on top). ``requests`` counts answers by (verb, resource, HTTP code), code 0 for a lost connection; verbs are RBAC's,
    and ``apply`` for server-side apply. ``sleep`` and ``rand`` are the retries' clock and dice.

    Retried here, up to ``retry.attempts`` tries: 429, and 503 with Retry-After (the server has done nothing yet) and
    refused connections for every verb; lost connections and 5xx for what can be repeated without harm: reads, apply,
    and merge patches without a resourceVersion. Not retried: an eviction that a PodDisruptionBudget holds back.
    """

    def __init__(
        self,
        config: Config,
        *,
        user_agent: str = f"groundplane/{__version__}",
        max_in_flight: int = 32,
        retry: Retry = DEFAULT_RETRY,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rand: Callable[[], float] = random.random,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.config = config
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self._auth = auth.authenticator(config)
        self._base = config.server.rstrip("/")
        self._headers = {"User-Agent": user_agent, "Accept": "application/json"}
        self._max_in_flight = max_in_flight
        self._retry = retry
        self._sleep = sleep
        self._rand = rand
        self._request_timeout_s = request_timeout_s
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=request_timeout_s)
        self._slots = asyncio.Semaphore(max_in_flight)
        self._proxy = config.proxy_url or _environment_proxy(config.server)
        self._open: aiohttp.ClientSession | None = None
        self._closed = False
        self._date = ""
        self._ahead_s = 0.0

    async def __aenter__(self) -> "Client":
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=90, ttl_dns_cache=60, socket_factory=_keepalive_socket
        )
        self._open = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=True,
            read_bufsize=1 << 18,
        )
        # aiohttp would silently repeat PUT and DELETE after a lost connection; what is repeated is decided in _send.
        self._open._retry_connection = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; watches, and requests from now on, end with :class:`~.errors.ConnectionLost`."""
        self._closed = True
        session, self._open = self._open, None
        if session is not None:
            await session.close()

    def now(self) -> float:
        """The cluster's present time in seconds since 1970: the API server's clock as its last answer told it, in whole
        seconds; this machine's if it told none. What objects say of times is to be compared with it, not with the own
        clock, which may be wrong."""
        return time.time() + self._ahead_s

    def _see_clock(self, date: str | None) -> None:
        if not date or date == self._date:
            return
        self._date = date
        try:
            ahead = parsedate_to_datetime(date).timestamp() - time.time()
        except ValueError:
            log.debug("the server's Date is none: %s", date)
            return
        self._ahead_s = 0.0 if abs(ahead) <= CLOCKS_ALIKE_S else ahead

    # --- reading ------------------------------------------------------------------------------------------------------

    @overload
    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object: ...
    @overload
    async def get(self, kind: Kind, name: str, namespace: str | None = None, *, view: type[T]) -> T: ...
    async def get(self, kind: Kind, name: str, namespace: str | None = None, *, view: Any = dict) -> Any:
        """One object. Raises :class:`~.errors.NotFound`."""
        path = kind.path(_ns(kind, namespace), name)
        request = self._make("get", "GET", kind, path, repeatable=True, accept=_accept(view))
        return self._decode(request, await self._send(request), view)

    @overload
    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        page: int = 500,
    ) -> Listing[Object]: ...
    @overload
    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        page: int = 500,
        view: type[T],
    ) -> Listing[T]: ...
    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        page: int = 500,
        view: Any = dict,
    ) -> Listing[Any]:
        """All objects of a kind, read ``page`` at a time (0: at once).

        If the server forgets the moment of the first page before the last is read, all is read again in one answer.
        """
        try:
            return await self._list_pages(kind, namespace, labels, fields, page, view)
        except errors.Gone:
            return await self.page(kind, namespace, labels=labels, fields=fields, limit=0, view=view)

    async def _list_pages(
        self, kind: Kind, namespace: str | None, labels: str | None, fields: str | None, page: int, view: Any
    ) -> Listing[Any]:
        part = await self.page(kind, namespace, labels=labels, fields=fields, limit=page, view=view)
        items = part.items
        while part.more:
            part = await self.page(kind, namespace, labels=labels, fields=fields, limit=page, more=part.more, view=view)
            items += part.items
        return Listing(items, part.resource_version)

    @overload
    async def page(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int = 500,
        more: str = "",
    ) -> Listing[Object]: ...
    @overload
    async def page(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int = 500,
        more: str = "",
        view: type[T],
    ) -> Listing[T]: ...
    async def page(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int = 500,
        more: str = "",
        view: Any = dict,
    ) -> Listing[Any]:
        """One page of a listing; ``more`` is the previous page's. Raises :class:`~.errors.Gone` if that is too old."""
        params = {"labelSelector": labels, "fieldSelector": fields, "limit": limit or None, "continue": more or None}
        path = kind.path(_ns(kind, namespace))
        request = self._make("list", "GET", kind, path, params, repeatable=True, accept=_accept(view, many=True))
        envelope = self._parse(request, await self._send(request), _list_decoder(view))
        items = envelope.items or []
        if view is dict:
            for item in items:
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
        return Listing(items, envelope.metadata.resourceVersion, envelope.metadata.continue_)

    @overload
    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str | None = None,
        fields: str | None = None,
        timeout_s: int = WATCH_TIMEOUT_S,
    ) -> AsyncGenerator[WatchEvent[Object], None]: ...
    @overload
    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str | None = None,
        fields: str | None = None,
        timeout_s: int = WATCH_TIMEOUT_S,
        view: type[T],
    ) -> AsyncGenerator[WatchEvent[T], None]: ...
    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str | None = None,
        fields: str | None = None,
        timeout_s: int = WATCH_TIMEOUT_S,
        view: Any = dict,
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        """Changes after ``resource_version``, until the server ends the watch (``timeout_s`` seconds at the latest).

        An ERROR event is raised as its typed error (:class:`~.errors.Gone`: list again). Raises
        :class:`~.errors.ConnectionLost` if the connection ends in the middle of an event or stays open, silent, past
        its time. Nothing is retried here.
        """
        params = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": timeout_s,
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        request = self._make("watch", "GET", kind, kind.path(_ns(kind, namespace)), params, accept=_accept(view))
        decoder = _decoder(view)
        stream = self._lines(request, timeout_s + WATCH_GRACE_S, head_s=self._request_timeout_s)
        async with contextlib.aclosing(stream) as lines:
            async for line in lines:
                frame = self._parse(request, line, _FRAME)
                if frame.type == "BOOKMARK":
                    bookmark = self._parse(request, frame.object, _BOOKMARK)
                    yield WatchEvent("BOOKMARK", None, bookmark.metadata.resourceVersion)
                elif frame.type == "ERROR":
                    raise errors.from_status(msgspec.json.decode(frame.object), request.what)
                else:
                    obj = self._parse(request, frame.object, decoder)
                    yield WatchEvent(frame.type, obj, version_of(obj))

    async def logs(
        self,
        pod: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
        since_s: int | None = None,
    ) -> AsyncGenerator[str, None]:
        """A container's log, line by line, without line ends; of the last ``since_s`` seconds only, if given."""
        params = {
            "container": container,
            "follow": "true" if follow else None,
            "previous": "true" if previous else None,
            "tailLines": tail_lines,
            "sinceSeconds": since_s,
        }
        request = self._make("get", "GET", POD, POD.path(namespace, pod, "log"), params, label="pods/log")
        lines = self._lines(request, None if follow else REQUEST_TIMEOUT_S, tail=True)
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield line.decode("utf-8", "replace").rstrip("\r")

    # --- writing ------------------------------------------------------------------------------------------------------

    async def create(
        self,
        kind: Kind,
        obj: Mapping[str, Any],
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Create an object (in its own ``metadata.namespace``, else in ``namespace``); what the server stored.

        With ``name`` and ``subresource``, post to a subresource, e.g. a pod's ``eviction``. Raises
        :class:`~.errors.AlreadyExists`, :class:`~.errors.Invalid`.
        """
        space = _ns(kind, obj.get("metadata", {}).get("namespace") or namespace)
        if kind.namespaced and space is None:
            raise ValueError(f"{kind.kind} lives in a namespace, none was given: set metadata.namespace")
        request = self._make(
            "create",
            "POST",
            kind,
            kind.path(space, name, subresource),
            {"dryRun": _dry(dry_run)},
            body=msgspec.json.encode(obj),
            content_type="application/json",
            label=_label(kind, subresource),
        )
        return self._document(request, await self._send(request))

    async def replace(
        self, kind: Kind, obj: Mapping[str, Any], *, subresource: str | None = None, dry_run: bool = False
    ) -> Object:
        """Write an object as a whole (PUT); what the server stored.

        With its resourceVersion set, raises :class:`~.errors.Conflict` if it changed since.
        """
        meta = obj["metadata"]
        request = self._make(
            "update",
            "PUT",
            kind,
            kind.path(_ns(kind, meta.get("namespace")), meta["name"], subresource),
            {"dryRun": _dry(dry_run)},
            body=msgspec.json.encode(obj),
            content_type="application/json",
            label=_label(kind, subresource),
        )
        return self._document(request, await self._send(request))

    @overload
    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        type: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object: ...
    @overload
    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        type: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        view: type[T],
    ) -> T: ...
    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        type: PatchType = PatchType.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        view: Any = dict,
    ) -> Any:
        """Change an object; ``body`` is a JSON-able document, or bytes that are sent as they are.

        ``force`` is for apply only: take over fields that other managers hold. Returns the stored object as ``view``.
        """
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        applying = type is PatchType.APPLY
        params = {
            "fieldManager": field_manager,
            "force": ("true" if force else "false") if applying else None,
            "dryRun": _dry(dry_run),
        }
        request = self._make(
            "apply" if applying else "patch",
            "PATCH",
            kind,
            kind.path(_ns(kind, namespace), name, subresource),
            params,
            body=data,
            content_type=type.value,
            label=_label(kind, subresource),
            repeatable=type is not PatchType.JSON and b'"resourceVersion"' not in data,
            accept=_accept(view),
        )
        return self._decode(request, await self._send(request), view)

    async def apply(
        self,
        kind: Kind,
        obj: Mapping[str, Any],
        *,
        field_manager: str,
        force: bool = True,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply: create the object or make the fields that ``obj`` names so; what the server stored.

        Without ``force`` raises :class:`~.errors.Conflict` where another manager holds a field.
        """
        meta = obj["metadata"]
        return await self.patch(
            kind,
            meta["name"],
            {"apiVersion": kind.api_version, "kind": kind.kind, **obj},
            namespace=meta.get("namespace"),
            type=PatchType.APPLY,
            subresource=subresource,
            field_manager=field_manager,
            force=force,
            dry_run=dry_run,
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        propagation: str = "Background",
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Ask for an object's deletion. ``uid`` and ``resource_version`` are preconditions.

        Raises :class:`~.errors.NotFound` if it is not there, :class:`~.errors.Conflict` if a precondition fails.
        """
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v is not None}
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        if dry_run:
            options["dryRun"] = ["All"]
        request = self._make(
            "delete",
            "DELETE",
            kind,
            kind.path(_ns(kind, namespace), name),
            body=msgspec.json.encode(options),
            content_type="application/json",
        )
        await self._send(request)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Any request, e.g. ``raw("GET", "/version")``; the answer's bytes. GET is retried as other reads are."""
        request = _Request(
            verb=method.lower(),
            method=method,
            url=self._url(path, params),
            label=path,
            what=f"{method} {path}",
            body=body,
            content_type=content_type if body is not None else None,
            repeatable=method in ("GET", "HEAD"),
        )
        return await self._send(request)

    @contextlib.asynccontextmanager
    async def websocket(
        self, kind: Kind, path: str, params: Sequence[tuple[str, str]], *, label: str, protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket to a subresource that streams (``pods/exec``); nothing is retried but an expired credential.

        ``protocols`` are offered in order of preference. A server that refuses says why, as for any request: raises
        :class:`~.errors.ApiError`, and :class:`~.errors.ConnectionLost` if it gives no answer.
        """
        request = self._make("get", "GET", kind, f"{path}?{urlencode(params)}", label=label)
        request = msgspec.structs.replace(request, what=request.what.partition("?")[0])
        socket = await self._handshake(request, protocols)
        self.requests[request.verb, request.label, 101] += 1
        try:
            yield socket
        except (aiohttp.ClientError, OSError) as error:
            raise self._lost(request, error) from error
        finally:
            await socket.close()

    async def _handshake(
        self, request: _Request, protocols: Sequence[str], *, again: bool = True
    ) -> aiohttp.ClientWebSocketResponse:
        session, headers, credentials = await self._ready(request)
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await session.ws_connect(
                    request.url,
                    protocols=protocols,
                    headers=headers,
                    ssl=credentials.tls or True,
                    server_hostname=self.config.tls_server_name,
                    proxy=self._proxy,
                    max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=SOCKET_CLOSE_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            refused = error.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost(request, error) from error
        if refused == 401 and again and self._auth.invalidate():
            return await self._handshake(request, protocols, again=False)
        raise await self._refusal(request, refused)

    async def _refusal(self, request: _Request, code: int) -> errors.ClusterError:
        """Why a handshake ended in ``code``. Its answer is lost in aiohttp: the same is asked without the upgrade.

        That starts nothing: a server that would allow it says that an upgrade is required.
        """
        try:
            await self._try(request)
        except errors.ApiError as error:
            if error.code == code:
                return error
        except errors.ClusterError as error:
            return error
        return errors.from_response(code, b"", f"{request.what}: the server does not open a WebSocket")

    # --- one request --------------------------------------------------------------------------------------------------

    def _make(
        self,
        verb: str,
        method: str,
        kind: Kind,
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        body: bytes | None = None,
        content_type: str | None = None,
        label: str | None = None,
        repeatable: bool = False,
        accept: str | None = None,
    ) -> _Request:
        what = f"{verb} {path.partition(kind.version + '/')[2]}"
        return _Request(
            verb, method, self._url(path, params), label or kind.plural, what, body, content_type, repeatable, accept
        )

    def _url(self, path: str, params: Mapping[str, Any] | None) -> URL:
        query = urlencode([(k, v) for k, v in params.items() if v is not None]) if params else ""
        return URL(f"{self._base}{path}?{query}" if query else self._base + path, encoded=True)

    async def _send(self, request: _Request) -> bytes:
        """The answer's body. Retries what may be retried; raises :class:`~.errors.ClusterError`."""
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._slots:
                    return await self._try(request)
            except errors.ClusterError as error:
                if attempt >= self._retry.attempts or not _may_retry(request, error):
                    raise
                wish = error.retry_after_s if isinstance(error, errors.ApiError) else None
                delay = self._retry.delay(attempt, wish, self._rand)
                log.debug("%s: try %d failed, again in %.2f s: %s", request.what, attempt, delay, error)
            await self._sleep(delay)

    async def _try(self, request: _Request, *, again: bool = True) -> bytes:
        async with self._response(request, self._timeout) as response:
            try:
                body = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._lost(request, error) from error
        self.requests[request.verb, request.label, response.status] += 1
        if response.status < 300:
            return body
        if response.status == 401 and again and self._auth.invalidate():
            return await self._try(request, again=False)
        raise errors.from_response(response.status, body, request.what, response.headers.get("Retry-After"))

    async def _ready(self, request: _Request) -> tuple[aiohttp.ClientSession, dict[str, str], auth.Credentials]:
        """What a request is sent with: the open session, its own headers, and the credentials."""
        if self._open is None and not self._closed:
            raise RuntimeError("the client is not open: use `async with Client(config) as client`")
        credentials = await self._auth.current()
        session = self._open
        if session is None:
            raise errors.ConnectionLost(f"{request.what}: the client has been closed")
        headers = {}
        if credentials.authorization is not None:
            headers["Authorization"] = credentials.authorization
        if request.content_type is not None:
            headers["Content-Type"] = request.content_type
        if request.accept is not None:
            headers["Accept"] = request.accept
        return session, headers, credentials

    @contextlib.asynccontextmanager
    async def _response(
        self, request: _Request, limits: aiohttp.ClientTimeout, *, head_s: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose head has arrived, within ``head_s`` seconds if that is given."""
        session, headers, credentials = await self._ready(request)
        tls: ssl.SSLContext | bool = credentials.tls or True
        try:
            async with asyncio.timeout(head_s):
                response = await session.request(
                    request.method,
                    request.url,
                    data=request.body,
                    headers=headers,
                    timeout=limits,
                    ssl=tls,
                    server_hostname=self.config.tls_server_name,
                    proxy=self._proxy,
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost(request, error) from error
        self._see_clock(response.headers.get("Date"))
        try:
            yield response
        finally:
            response.release()

    def _lost(self, request: _Request, error: BaseException) -> errors.ConnectionLost:
        self.requests[request.verb, request.label, 0] += 1
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        text = str(cause) or type(cause).__name__
        lost = errors.ConnectionLost(f"{request.what}: no answer from {self._base}: {text}")
        lost.unsent = isinstance(error, aiohttp.ClientConnectorError)
        return lost

    async def _lines(
        self, request: _Request, silence_s: float | None, *, tail: bool = False, head_s: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a streamed answer. ``tail``: a last line without its end is a line too, not a broken one.

        ``head_s`` bounds the wait for the answer's head, where the server sends that before it has anything to tell.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        async with self._response(request, timeout, head_s=head_s) as response:
            if response.status >= 300:
                await self._refuse_stream(request, response)
            self.requests[request.verb, request.label, response.status] += 1
            rest = b""
            try:
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line or tail:
                            yield line
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._lost(request, error) from error
            finally:
                response.close()
            if rest and not tail:
                raise self._lost(request, EOFError("the stream ended in the middle of a line"))
            if rest:
                yield rest

    async def _refuse_stream(self, request: _Request, response: aiohttp.ClientResponse) -> None:
        try:
            body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost(request, error) from error
        self.requests[request.verb, request.label, response.status] += 1
        if response.status == 401:
            self._auth.invalidate()
        raise errors.from_response(response.status, body, request.what, response.headers.get("Retry-After"))

    def _document(self, request: _Request, body: bytes) -> Object:
        return cast(Object, self._decode(request, body, dict))

    def _decode(self, request: _Request, body: bytes, view: Any) -> Any:
        return self._parse(request, body, _decoder(view))

    def _parse(self, request: _Request, body: Any, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.Unreadable(f"{request.what}: the answer is not what was asked for: {error}") from error


def _may_retry(request: _Request, error: errors.ClusterError) -> bool:
    if isinstance(error, errors.ConnectionLost):
        return request.repeatable or error.unsent
    if isinstance(error, errors.TooManyRequests):
        return not error.disruption_budget
    if isinstance(error, errors.ServerError):
        return request.repeatable or (error.code == 503 and error.retry_after_s is not None)
    return False


def _ns(kind: Kind, namespace: str | None) -> str | None:
    return namespace if kind.namespaced else None


def _dry(dry_run: bool) -> str | None:
    return "All" if dry_run else None


def _label(kind: Kind, subresource: str | None) -> str:
    return f"{kind.plural}/{subresource}" if subresource else kind.plural


def _environment_proxy(server: str) -> str | None:
    """HTTPS_PROXY, HTTP_PROXY and NO_PROXY, looked up once."""
    url = urlsplit(server)
    if not url.hostname or urllib.request.proxy_bypass(url.hostname):
        return None
    return urllib.request.getproxies().get(url.scheme)


_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""A peer that vanished (a node that lost power, a dropped NAT entry) is noticed within a minute, also by a watch."""


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, proto, _, _ = address
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEPALIVE:
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
    return sock
