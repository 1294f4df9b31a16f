"""The API server over HTTP: requests to `Api` calls, answers in the form the client accepts, watches as streams.

Routing, authentication, faults and streaming are here; what a request means is `requests.py`'s, what it does
`api.py`'s, how an answer looks `representation.py`'s, discovery and OpenAPI have modules of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import yaml
from aiohttp import web
from multidict import MultiDict

from . import (
    access,
    bodies,
    conversion,
    discovery,
    openapi,
    remote,
    representation,
    requests,
    resources,
    selectors,
    status,
)
from . import api as lab_api
from .access import ADMIN, ANONYMOUS, Attributes, User
from .api import Api, Clock, Options
from .faults import Faults, Request, Rule
from .nodeaccess import NodeAccess
from .objects import Document
from .requests import Target, truthy
from .store import Event
from .subresources import TOKEN_PREFIX
from .subresources import token as service_account_token
from .watch import Watch

__all__ = ["NodeAccess", "Server", "serve"]
BOOKMARK_EVERY_S = 60.0
FLUSH_PAUSE_S = 0.01
"""Seconds between two writes into one watch: a burst of changes travels together, a single change at once."""
_WATCH_LIMIT_S = 3600.0
_JSON = {"Content-Type": "application/json"}
_MAX_BODY = 3 << 20
_OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}


class Server:
    """A running API server. `url` is where it listens."""

    def __init__(self, handler: Handler, runner: web.ServerRunner, url: str) -> None:
        self._handler = handler
        self._runner = runner
        self.url = url

    async def close(self) -> None:
        """End all streams and stop listening."""
        self._handler.stop()
        await self._runner.cleanup()


async def serve(
    api: Api,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    clock: Clock | None = None,
    nodes: NodeAccess | None = None,
    faults: Faults | None = None,
    tokens: Mapping[str, User] | None = None,
    bookmark_every_s: float = BOOKMARK_EVERY_S,
) -> Server:
    """Start serving `api`; port 0 takes a free one.

    `tokens` are bearer tokens of users. Without a token a caller is the cluster's administrator, as long as the API
    checks no RBAC, and anonymous otherwise. `clock` replaces the API's clock.
    """
    if clock is not None:
        api.clock = clock
    handler = Handler(api, nodes, faults or Faults(), dict(tokens or {}), bookmark_every_s)
    server = web.Server(handler, access_log=None, request_factory=_request_factory())
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    address = runner.addresses[0]
    api.url = f"http://{address[0]}:{address[1]}"
    return Server(handler, runner, api.url)


def _request_factory() -> Callable[..., web.BaseRequest]:
    """Return what makes requests whose bodies may be as large as the API allows, which is more than aiohttp's own."""
    loop = asyncio.get_running_loop()

    def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_MAX_BODY)

    return make


async def _read(request: web.BaseRequest) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        text = f"Request entity too large: limit is {_MAX_BODY}"
        raise status.StatusError(413, "RequestEntityTooLarge", text) from error


class Context:
    """One request on its way: the parsed query, the caller, the target and the log entry."""

    __slots__ = ("accept", "entry", "query", "request", "rule", "target", "user")

    def __init__(self, request: web.BaseRequest, query: MultiDict[str], user: User) -> None:
        self.request = request
        self.query = query
        self.user = user
        self.accept = request.headers.get("Accept", "")
        self.target: Target | None = None
        self.entry: Request | None = None
        self.rule: Rule | None = None


class Handler:
    """Answers requests; an instance is the handler of an aiohttp server."""

    def __init__(
        self, api: Api, nodes: NodeAccess | None, faults: Faults, tokens: dict[str, User], bookmark_every_s: float
    ) -> None:
        self.api = api
        self.nodes = nodes
        self.faults = faults
        self.tokens = tokens
        self.bookmark_every_s = bookmark_every_s
        self._streams: set[Watch] = set()
        self._documents = openapi.Documents(api.registry)
        self._verbs: dict[str, Callable[[Context, Target], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def stop(self) -> None:
        """End all watches."""
        for watch in tuple(self._streams):
            watch.close()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        query = MultiDict(parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True))
        context = Context(request, query, ADMIN)
        try:
            context.user = self._user(request)
            response = await self._answer(context)
        except status.StatusError as error:
            response = _failure(error)
        if context.entry is not None:
            context.entry.code = response.status
        if context.accept.startswith(_YAML):
            response = _as_yaml(response)
        if not response.prepared:  # a server tells its own clock's time
            response.headers["Date"] = format_datetime(self.api.clock.now(), usegmt=True)
        return response

    def _user(self, request: web.BaseRequest) -> User:
        header = request.headers.get("Authorization", "")
        if not header:
            user = ANONYMOUS if self.api.rbac else ADMIN
        else:
            kind, _, token = header.partition(" ")
            found = access.of_token(self.api, token.strip(), self.tokens, TOKEN_PREFIX) if kind == "Bearer" else None
            if found is None:
                raise status.unauthorized()
            user = found
        name = request.headers.get("Impersonate-User")
        return self._impersonated(request, user, name) if name else user

    def _impersonated(self, request: web.BaseRequest, user: User, name: str) -> User:
        access.check(self.api, user, Attributes("impersonate", "", "users", name=name))
        groups = tuple(request.headers.getall("Impersonate-Group", []))
        prefix = "system:serviceaccount:"
        if name.startswith(prefix) and not groups:
            namespace, _, account = name.removeprefix(prefix).partition(":")
            return access.account_user(namespace, account)
        return User(name, (*groups, access.AUTHENTICATED))

    async def _answer(self, context: Context) -> web.StreamResponse:
        request = context.request
        path = request.path
        target = requests.parse(self.api.registry, request.method, path, context.query)
        if target is None:
            return self._other(context, path)
        context.target = target
        entry = Request(
            target.verb, target.resource.plural, target.namespace, target.name, target.subresource,
            request.headers.get("User-Agent", ""), path,
        )  # fmt: skip
        context.entry = entry
        self.faults.log(entry)
        context.rule = self.faults.match(entry)
        if context.rule is not None:
            await self._fail(context, context.rule)
        self._check(context, target, target.verb)
        response = await self._verbs[target.verb](context, target)
        if context.rule is not None and context.rule.answer == "lost":
            _reset(request)
        return response

    def _check(self, context: Context, target: Target, verb: str) -> None:
        """Refuse what access control does not allow the caller."""
        name = target.name or _selected_name(target, context.query)
        kind = target.resource
        namespace = target.name if kind is resources.NAMESPACES else target.namespace
        wanted = Attributes(verb, kind.group, kind.plural, target.subresource, namespace, name)
        access.check(self.api, context.user, wanted)

    async def _fail(self, context: Context, rule: Rule) -> None:
        """Fail a request as a fault rule says; returns for those that fail later."""
        if rule.answer == "reset":
            _reset(context.request)
        if rule.answer == "hang":
            await asyncio.Event().wait()
        if isinstance(rule.answer, int) and not (
            context.target and context.target.verb == "watch" and rule.answer == 410
        ):
            raise _injected(rule)

    def _other(self, context: Context, path: str) -> web.StreamResponse:
        """Discovery, OpenAPI, version and health: whatever is not a resource."""
        access.check(self.api, context.user, Attributes("get", path=path))
        if context.request.method not in ("GET", "HEAD"):
            raise status.method_not_supported()
        if path.partition("/")[2].partition("/")[0] in ("healthz", "livez", "readyz"):
            return web.Response(body=b"ok", content_type="text/plain")
        found = self._documents.answer(path)
        if found is not None:
            return _json(found)
        document, media = discovery.answer(
            self.api.registry, path, context.accept, context.request.host, self.api.kubernetes
        )
        return web.Response(body=representation.encode(document), headers={"Content-Type": media})

    # --- reading -------------------------------------------------------------------------------------------------

    async def _get(self, context: Context, target: Target) -> web.StreamResponse:
        query = context.query
        if target.subresource == "log":
            return await remote.logs(self.api, self.nodes, context.request, query, target.namespace, target.name)
        if target.subresource == "proxy":
            return await remote.proxy(self.api, self.nodes, context.request, target)
        if target.subresource in ("token", "eviction", "binding", "finalize"):
            raise status.method_not_supported()
        subresource = target.subresource or None
        form = representation.wanted(context.accept)
        document = self.api.get(target.resource, target.name, target.namespace, subresource=subresource)
        if subresource == "scale":
            return _json(representation.encode(document))
        include = query.get("includeObject", "Metadata")
        return _json(representation.one(self.api, target.resource, document, form, include))

    async def _list(self, context: Context, target: Target) -> web.StreamResponse:
        query = context.query
        form = representation.wanted(context.accept)
        page = self.api.page(
            target.resource,
            target.namespace or None,
            labels=query.get("labelSelector"),
            fields=query.get("fieldSelector"),
            limit=_number(query, "limit"),
            cont=query.get("continue"),
            resource_version=query.get("resourceVersion"),
            match=query.get("resourceVersionMatch"),
        )
        pieces = list(
            representation.many(self.api, target.resource, page, form, query.get("includeObject", "Metadata"))
        )
        if len(pieces) == 1:
            return _json(pieces[0])
        response = web.StreamResponse(headers=_JSON)
        await response.prepare(context.request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    # --- watching ------------------------------------------------------------------------------------------------

    async def _watch(self, context: Context, target: Target) -> web.StreamResponse:
        query, res = context.query, target.resource
        form = representation.wanted(context.accept)
        initial = query.get("sendInitialEvents")
        _check_watch_list(query)
        version = query.get("resourceVersion")
        if version and not version.isdigit():
            text = (
                f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
            )
            raise status.StatusError(500, "", text)
        if initial == "false" and version in (None, "", "0"):
            version = str(self.api.store.revision)
        elif truthy(initial):
            version = None
        error = _injected(context.rule) if context.rule is not None and context.rule.answer == 410 else None
        watch: Watch | None = None
        if error is None:
            try:
                watch = self.api.watch(
                    res, target.namespace or None, resource_version=version, labels=query.get("labelSelector"),
                    fields=query.get("fieldSelector"),
                )  # fmt: skip
            except status.StatusError as failure:
                if failure.code != 410:
                    raise
                error = failure
        response = web.StreamResponse(headers=_JSON)
        response.enable_chunked_encoding()
        await response.prepare(context.request)
        if watch is None or error is not None:
            document = error.document() if error is not None else {}
            await response.write(representation.encode({"type": "ERROR", "object": document}) + b"\n")
            await response.write_eof()
            return response
        stream = _Stream(self, watch, context, response, form)
        with contextlib.suppress(ConnectionError):
            await stream.run(initial=truthy(initial), bookmarks=truthy(query.get("allowWatchBookmarks")))
        return response

    # --- writing -------------------------------------------------------------------------------------------------

    async def _body(self, context: Context, media: str, duplicates: list[str] | None) -> Any:
        return bodies.read(await _read(context.request), media, duplicates)

    def _options(self, context: Context) -> Options:
        query = context.query
        if causes := requests.option_problems(query):
            raise status.invalid(_OPTIONS[context.request.method], "meta.k8s.io", "", causes)
        agent = context.request.headers.get("User-Agent", "")
        manager = query.get("fieldManager") or agent.partition("/")[0] or "unknown"
        return Options(
            manager=manager[:128], dry_run=query.get("dryRun") == "All",
            validation=query.get("fieldValidation") or "Warn", warnings=[], duplicates=[], user=context.user.encode(),
        )  # fmt: skip

    async def _sent(self, context: Context, options: Options) -> Document:
        media = _media(context.request)
        if media not in bodies.MEDIA_TYPES:
            raise status.unsupported_media_type(bodies.MEDIA_TYPES)
        duplicates = options.duplicates if context.query.get("fieldValidation") in ("Strict", "Warn") else None
        sent = await self._body(context, media, duplicates)
        if not isinstance(sent, dict):
            raise status.bad_request("the object provided is unrecognized (must be an object)")
        return sent

    async def _create(self, context: Context, target: Target) -> web.StreamResponse:
        options = self._options(context)
        sub = target.subresource
        if sub in ("exec", "attach", "portforward"):
            return await self._streamed(context, target)
        sent = await self._sent(context, options)
        if sub:
            document = self._create_in(target, sent, options)
            return _json(representation.encode(document), code=201, options=options)
        if target.name:
            raise status.method_not_supported()
        document = self.api.create(target.resource, sent, target.namespace or None, options=options)
        return self._written(context, target, document, options, code=201)

    async def _streamed(self, context: Context, target: Target) -> web.StreamResponse:
        answer = {"exec": remote.execute, "attach": remote.attach}.get(target.subresource)
        if answer is not None:
            return await answer(self.api, self.nodes, context.request, context.query, target.namespace, target.name)
        raise status.not_implemented("port forwarding is not offered by the lab; use `kubectl exec` to reach a program")

    def _create_in(self, target: Target, sent: Document, options: Options) -> Document:
        name, ns, sub = target.name, target.namespace, target.subresource
        if sub == "eviction":
            asked = sent.get("deleteOptions") or {}
            self.api.evict(
                name, ns, grace_period_s=asked.get("gracePeriodSeconds"), preconditions=asked.get("preconditions"),
                dry_run=options.dry_run or "All" in (asked.get("dryRun") or []),
            )  # fmt: skip
        elif sub == "binding":
            self.api.bind(name, ns, (sent.get("target") or {}).get("name", ""))
        elif sub == "token":
            return service_account_token(self.api, name, ns, sent)
        else:
            raise status.method_not_supported()
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    async def _update(self, context: Context, target: Target) -> web.StreamResponse:
        options = self._options(context)
        sent = await self._sent(context, options)
        document = self.api.update(
            target.resource, sent, ns=target.namespace or None, name=target.name,
            subresource=target.subresource or None, options=options,
        )  # fmt: skip
        return self._written(context, target, document, options)

    async def _patch(self, context: Context, target: Target) -> web.StreamResponse:
        options = self._options(context)
        media = _media(context.request)
        if media not in lab_api.PATCH_TYPES.values():
            return web.Response(text="415: Unsupported Media Type", status=415)
        if media == lab_api.APPLY_PATCH:
            options.manager = context.query.get("fieldManager") or ""
        duplicates = options.duplicates if context.query.get("fieldValidation") in ("Strict", "Warn") else None
        body = await self._body(context, media, duplicates)
        there = self.api.store.get(target.resource.storage, target.namespace, target.name) is not None
        if media == lab_api.APPLY_PATCH and not there:
            self._check(context, target, "create")  # an apply that makes the object needs both verbs
        document = self.api.patch(
            target.resource, target.name, body, ns=target.namespace or None, type=media,
            subresource=target.subresource or None, force=truthy(context.query.get("force")), options=options,
        )  # fmt: skip
        return self._written(context, target, document, options, code=200 if there else 201)

    def _written(
        self, context: Context, target: Target, document: Document, options: Options, code: int = 200
    ) -> web.StreamResponse:
        form = representation.wanted(context.accept)
        if target.subresource == "scale" or target.resource.verbs == ("create",):
            return _json(representation.encode(document), code=code, options=options)
        include = context.query.get("includeObject", "Metadata")
        return _json(representation.one(self.api, target.resource, document, form, include), code=code, options=options)

    async def _delete_options(self, context: Context) -> Document:
        body = await _read(context.request)
        asked = bodies.read(body, _media(context.request), None) if body else {}
        result: Document = asked if isinstance(asked, dict) else {}
        query = context.query
        if "gracePeriodSeconds" in query:
            result["gracePeriodSeconds"] = _number(query, "gracePeriodSeconds")
        if "propagationPolicy" in query:
            result["propagationPolicy"] = query["propagationPolicy"]
        if "orphanDependents" in query:
            result["orphanDependents"] = truthy(query["orphanDependents"])
        if query.get("dryRun"):
            result["dryRun"] = query.getall("dryRun")
        grace = result.get("gracePeriodSeconds")
        if grace is not None and not isinstance(grace, int):
            text = "cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64"
            raise status.bad_request(f"json: {text}")
        if causes := requests.deletion_problems(result):
            raise status.invalid("DeleteOptions", "meta.k8s.io", "", causes)
        return result

    async def _delete(self, context: Context, target: Target) -> web.StreamResponse:
        if target.subresource:
            raise status.method_not_supported()
        asked = await self._delete_options(context)
        res = target.resource
        document = self.api.delete(
            res, target.name, target.namespace or None,
            propagation=asked.get("propagationPolicy"),
            preconditions=asked.get("preconditions"),
            grace_period_s=asked.get("gracePeriodSeconds"),
            dry_run="All" in (asked.get("dryRun") or []),
            orphan_dependents=asked.get("orphanDependents"),
        )  # fmt: skip
        if self.api.store.get(res.storage, target.namespace, target.name) is not None:
            return _json(representation.document_bytes(self.api, res, conversion.outgoing(res, document)))
        details: Document = {"name": target.name, "group": res.group, "kind": res.plural}
        details["uid"] = document["metadata"]["uid"]
        details = {key: value for key, value in details.items() if value}
        answer = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return _json(representation.encode(answer))

    async def _delete_collection(self, context: Context, target: Target) -> web.StreamResponse:
        asked = await self._delete_options(context)
        document = self.api.delete_collection(
            target.resource, target.namespace or None,
            labels=context.query.get("labelSelector"),
            fields=context.query.get("fieldSelector"),
            propagation=asked.get("propagationPolicy"),
            grace_period_s=asked.get("gracePeriodSeconds"),
            dry_run="All" in (asked.get("dryRun") or []),
        )  # fmt: skip
        return _json(representation.encode(document))

    def opened(self, watch: Watch, resource: str, cut: Callable[[], None]) -> None:
        """Note a running watch."""
        self._streams.add(watch)
        self.faults.opened(resource, cut)

    def closed(self, watch: Watch, cut: Callable[[], None]) -> None:
        """Forget a watch that ended."""
        self._streams.discard(watch)
        self.faults.closed(cut)


class _Stream:
    """One watch on its way to a client."""

    def __init__(
        self, handler: Handler, watch: Watch, context: Context, response: web.StreamResponse, form: str
    ) -> None:
        self._handler = handler
        self._watch = watch
        self._response = response
        self._form = form
        self._request = context.request
        self._include = context.query.get("includeObject", "Metadata")
        self._began = False
        asked = _number(context.query, "timeoutSeconds")
        self._limit_s = float(asked) if asked else _WATCH_LIMIT_S

    def _cut(self) -> None:
        """Break the connection, as a failing network would."""
        self._watch.close()
        if self._request.transport is not None:
            self._request.transport.abort()

    async def run(self, *, initial: bool, bookmarks: bool) -> None:
        """Send events until the time is up, the client goes, or the server stops."""
        watch, handler = self._watch, self._handler
        cut = self._cut
        handler.opened(watch, watch.resource.plural, cut)
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._limit_s
        try:
            await self._send(watch.take())
            if initial:
                await self._bookmark(initial_end=True)
            next_bookmark = loop.time() + handler.bookmark_every_s
            next_write = loop.time()
            while (left := ends - loop.time()) > 0 and not (watch.closed and not watch.pending):
                pause = min(left, max(next_bookmark - loop.time(), 0)) if bookmarks else left
                if await watch.wait(pause):
                    await asyncio.sleep(next_write - loop.time())
                    await self._send(watch.take())
                    next_write = loop.time() + FLUSH_PAUSE_S
                if bookmarks and loop.time() >= next_bookmark:
                    await self._bookmark(initial_end=False)
                    next_bookmark = loop.time() + handler.bookmark_every_s
                if self._request.transport is None or self._request.transport.is_closing():
                    return
            await self._response.write_eof()
        finally:
            watch.close()
            handler.closed(watch, cut)

    async def _send(self, events: list[tuple[str, Event]]) -> None:
        if not events:
            return
        api, res = self._handler.api, self._watch.resource
        lines = [
            representation.event_line(
                api, res, kind, event, self._form, self._include, first=not (self._began or index)
            )
            for index, (kind, event) in enumerate(events)
        ]
        self._began = True
        for start in range(0, len(lines), 256):
            await self._response.write(b"".join(lines[start : start + 256]))

    async def _bookmark(self, *, initial_end: bool) -> None:
        if self._watch.pending:
            return
        revision = self._handler.api.store.revision
        line = representation.bookmark_line(self._watch.resource, revision, self._form, initial_end=initial_end)
        await self._response.write(line)


def _check_watch_list(query: Mapping[str, str]) -> None:
    match, initial = query.get("resourceVersionMatch"), query.get("sendInitialEvents")
    if initial is not None and match != "NotOlderThan":
        text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise status.StatusError(
            422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: {text}'
        )
    if match and initial is None:
        text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise status.StatusError(
            422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: {text}'
        )


def _number(query: Mapping[str, str], name: str) -> int | None:
    value = query.get(name)
    if not value:
        return None
    if not value.removeprefix("-").isdigit():
        raise status.bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax')
    return max(int(value), 0)


def _media(request: web.BaseRequest) -> str:
    return request.headers.get("Content-Type", "application/json").partition(";")[0].strip()


def _json(body: bytes, *, code: int = 200, options: Options | None = None) -> web.Response:
    response = web.Response(body=body, status=code, headers=_JSON)
    for warning in options.warnings if options is not None else ():
        response.headers.add("Warning", '299 - "' + warning.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return response


_YAML = "application/yaml"


def _as_yaml(response: web.StreamResponse) -> web.StreamResponse:
    """Return an answer as YAML for who asked for that; streams stay as they are."""
    if not isinstance(response, web.Response) or response.content_type != "application/json":
        return response
    text = yaml.safe_dump(msgspec.json.decode(response.text or ""), sort_keys=True)
    return web.Response(body=text.encode(), status=response.status, headers={"Content-Type": _YAML})


def _failure(error: status.StatusError) -> web.Response:
    response = _json(representation.encode(error.document()), code=error.code)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


_INJECTED = {
    409: ("Conflict", "the object has been modified; please apply your changes to the latest version and try again"),
    410: ("Expired", "too old resource version"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    500: ("InternalError", "Internal error occurred: injected fault"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}


def _injected(rule: Rule) -> status.StatusError:
    code = int(rule.answer)
    reason, message = _INJECTED.get(code, ("", f"injected fault {code}"))
    details = {"retryAfterSeconds": rule.retry_after} if rule.retry_after is not None else {}
    return status.StatusError(code, reason, message, details)


def _selected_name(target: Target, query: MultiDict[str]) -> str:
    """The one name a field selector allows: for access control such a list or watch asks for that object alone."""
    selector = query.get("fieldSelector", "")
    return (selectors.parse_fields(selector, target.resource).exact_name or "") if selector else ""


def _reset(request: web.BaseRequest) -> None:
    """Break the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("connection broken by a fault rule")
