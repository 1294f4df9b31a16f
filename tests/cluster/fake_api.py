"""A small API server for the tests of groundplane.cluster: a store with history, and answers that go wrong on order."""

import asyncio
import contextlib
import copy
import json
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[["Call"], Awaitable[web.StreamResponse]]


@dataclass
class Call:
    """One request as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    request: web.Request

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def watching(self) -> bool:
        return self.query.get("watch") == "true"


def status_body(code: int, reason: str, message: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        **more,
    }


def reply(code: int, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """A JSON document, or text or bytes as they are."""

    async def answer(call: Call) -> web.StreamResponse:
        data = (
            body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        )
        kind = "application/json" if isinstance(body, dict) else "text/plain"
        return web.Response(status=code, body=data, headers={"Content-Type": kind, **(headers or {})})

    return answer


def refuse(code: int, reason: str, message: str = "no", *, retry_after: str | None = None, **more: Any) -> Answer:
    headers = {"Retry-After": retry_after} if retry_after is not None else None
    return reply(code, status_body(code, reason, message, **more), headers)


def reset(partial: bytes | None = None) -> Answer:
    """Cut the connection: before the answer, or in the middle of a body of which ``partial`` is the beginning."""

    async def answer(call: Call) -> web.StreamResponse:
        if partial is not None:
            response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100000"})
            await response.prepare(call.request)
            await response.write(partial)
            await asyncio.sleep(0)
        assert call.request.transport is not None
        call.request.transport.abort()
        return web.Response()

    return answer


def stream(*chunks: bytes, end: bool = True) -> Answer:
    """A chunked answer; ``end=False`` keeps it open and silent until the client goes."""

    async def answer(call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(call.request)
        for chunk in chunks:
            await response.write(chunk)
        if not end:
            await asyncio.Event().wait()
        return response

    return answer


def event(type: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": type, "object": obj}).encode() + b"\n"


@dataclass
class Watch:
    call: Call
    path: str
    response: web.StreamResponse
    position: int
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    orders: deque[bytes | None] = field(default_factory=deque)
    """Bytes to send out of turn; None: cut the connection."""


class FakeApi:
    """Objects by collection path; ``orders`` are scripted answers, consumed by the first call that fits each."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.url = ""
        self.token: str | None = None
        """The only bearer token that is let in; None lets everybody in."""
        self.version = 100
        self.oldest = 0
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.watches: list[Watch] = []
        self._orders: list[tuple[Callable[[Call], bool], Answer]] = []
        self._snapshots: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._uids = 0

    # --- scripting ---------------------------------------------------------------------------------------------------

    def order(self, *answers: Answer, when: Callable[[Call], bool] = lambda call: True) -> None:
        self._orders += [(when, answer) for answer in answers]

    def count(self) -> Counter[str]:
        return Counter("WATCH" if call.watching else call.method for call in self.calls)

    def compact(self) -> None:
        """Forget history: watches from before now, and unfinished listings, are Gone."""
        self.oldest = self.version
        self._snapshots.clear()

    def tell_watches(self, data: bytes | None) -> None:
        for watch in self.watches:
            watch.orders.append(data)
            watch.wake.set()

    # --- the store ---------------------------------------------------------------------------------------------------

    def put(self, path: str, name: str, **more: Any) -> dict[str, Any]:
        """Create or change an object directly."""
        old = self.objects.get(path, {}).get(name)
        obj = copy.deepcopy({"metadata": {"name": name}, **more})
        obj["metadata"]["name"] = name
        if "/namespaces/" in path:
            obj["metadata"].setdefault("namespace", path.split("/namespaces/")[1].split("/")[0])
        if old is None:
            self._uids += 1
        obj["metadata"]["uid"] = old["metadata"]["uid"] if old else f"uid-{self._uids}"
        return self._commit("MODIFIED" if old else "ADDED", path, obj)

    def remove(self, path: str, name: str) -> None:
        self._commit("DELETED", path, copy.deepcopy(self.objects[path].pop(name)))

    def _commit(self, type: str, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        if type != "DELETED":
            self.objects.setdefault(path, {})[obj["metadata"]["name"]] = obj
        self.history.append((self.version, type, path, obj))
        for watch in self.watches:
            watch.wake.set()
        return obj

    # --- HTTP --------------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(
            request.method, request.path, dict(request.query), dict(request.headers), await request.read(), request
        )
        self.calls.append(call)
        if self.token is not None and call.headers.get("Authorization") != f"Bearer {self.token}":
            return await refuse(401, "Unauthorized")(call)
        for index, (when, answer) in enumerate(self._orders):
            if when(call):
                del self._orders[index]
                return await answer(call)
        handler = getattr(self, f"_{call.method.lower()}", None)
        assert handler is not None, call
        return await handler(call)  # type: ignore[no-any-return]

    def _split(self, path: str) -> tuple[str, str | None]:
        """Collection path and name."""
        parts = path.strip("/").split("/")
        start = 2 if parts[0] == "api" else 3
        if len(parts) > start + 1 and parts[start] == "namespaces":
            start += 2
        if len(parts) <= start + 1:
            return path, None
        return "/" + "/".join(parts[: start + 1]), parts[start + 1]

    async def _get(self, call: Call) -> web.StreamResponse:
        path, name = self._split(call.path)
        if name is not None:
            found = self.objects.get(path, {}).get(name)
            return await (reply(200, found) if found else refuse(404, "NotFound", f'"{name}" not found'))(call)
        return await (self._watch(call) if call.watching else self._list(call))

    async def _list(self, call: Call) -> web.StreamResponse:
        token, limit = call.query.get("continue"), int(call.query.get("limit", "0"))
        if token:
            if token not in self._snapshots:
                return await refuse(410, "Expired", "The provided continue parameter is too old")(call)
            version, items = self._snapshots.pop(token)
        else:
            version, items = self.version, list(self.objects.get(call.path, {}).values())
        meta = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            meta["continue"] = f"{version}-{len(items) - limit}-{len(self.calls)}"
            self._snapshots[meta["continue"]] = (version, items[limit:])
            items = items[:limit]
        return await reply(200, {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items})(call)

    async def _watch(self, call: Call) -> web.StreamResponse:
        since = int(call.query["resourceVersion"])
        if since < self.oldest:
            return await refuse(410, "Expired", f"too old resource version: {since} ({self.oldest})")(call)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(call.request)
        watch = Watch(
            call, call.path, response, next((i for i, h in enumerate(self.history) if h[0] > since), len(self.history))
        )
        self.watches.append(watch)
        try:
            while await self._feed(watch):
                await watch.wake.wait()
        except ConnectionResetError:
            pass
        finally:
            self.watches.remove(watch)
        return response

    async def _feed(self, watch: Watch) -> bool:
        watch.wake.clear()
        while watch.orders:
            data = watch.orders.popleft()
            if data is None:
                assert watch.call.request.transport is not None
                watch.call.request.transport.abort()
                return False
            await watch.response.write(data)
        while watch.position < len(self.history):
            _, change, path, obj = self.history[watch.position]
            watch.position += 1
            if path == watch.path:
                await watch.response.write(event(change, obj))
        return True

    async def _post(self, call: Call) -> web.StreamResponse:
        path, _ = self._split(call.path)
        name = call.json["metadata"]["name"]
        if name in self.objects.get(path, {}):
            return await refuse(409, "AlreadyExists", f'"{name}" already exists')(call)
        if call.query.get("dryRun"):
            return await reply(201, call.json)(call)
        return await reply(201, self.put(path, **_named(call.json)))(call)

    async def _put(self, call: Call) -> web.StreamResponse:
        path, name = self._split(call.path)
        old = self.objects.get(path, {}).get(name or "")
        if old is None:
            return await refuse(404, "NotFound", f'"{name}" not found')(call)
        if call.json["metadata"].get("resourceVersion", "") not in ("", old["metadata"]["resourceVersion"]):
            return await refuse(409, "Conflict", "the object has been modified")(call)
        return await reply(200, self.put(path, **_named(call.json)))(call)

    async def _patch(self, call: Call) -> web.StreamResponse:
        path, name = self._split(call.path)
        old = self.objects.get(path, {}).get(name or "")
        if old is None and "apply" not in call.headers["Content-Type"]:
            return await refuse(404, "NotFound", f'"{name}" not found')(call)
        return await reply(200, self.put(path, **_named(merge(old or {}, call.json), name)))(call)

    async def _delete(self, call: Call) -> web.StreamResponse:
        path, name = self._split(call.path)
        old = self.objects.get(path, {}).get(name or "")
        if old is None:
            return await refuse(404, "NotFound", f'"{name}" not found')(call)
        uid = call.json.get("preconditions", {}).get("uid")
        if uid not in (None, old["metadata"]["uid"]):
            return await refuse(409, "Conflict", "the UID in the precondition does not match")(call)
        self.remove(path, name or "")
        return await reply(200, status_body(200, "", "") | {"status": "Success"})(call)


def _named(obj: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    return {"name": name or obj["metadata"]["name"], **obj}


def merge(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """JSON merge patch."""
    new = dict(old)
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict):
            new[key] = merge(new.get(key) if isinstance(new.get(key), dict) else {}, value)
        else:
            new[key] = value
    return new


@contextlib.asynccontextmanager
async def serving(api: FakeApi, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield api
    finally:
        await runner.cleanup()
