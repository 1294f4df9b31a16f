"""The exporter's pages: figures, whether it is well, and what it is doing (contracts/mig-exporter-validator.md 4).

What is on them is asked of an :class:`Exporter`; who may see them is ``webconfig``'s to say.
"""

import asyncio
import contextlib
import json
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol
from weakref import WeakSet

from aiohttp import web

from .. import requestlog
from ..process import Process
from .text import CONTENT_TYPE
from .webconfig import Gate, WebConfig, load_certificate

LIMIT_S: Final = 10.0
"""How long an answer may take."""

_PAGE: Final = (
    "<!DOCTYPE html><html><head><title>GPU exporter</title></head><body><h1>GPU exporter</h1>"
    '<p><a href="./metrics">Metrics</a></p></body></html>\n'
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScrapeError(RuntimeError):
    """The figures cannot be put together; the text says why."""


class Exporter(Protocol):
    """What the pages show."""

    @property
    def reloading(self) -> bool:
        """Whether the wanted series are being read anew."""

    async def scrape(self) -> bytes:
        """The figures. Raises :class:`ScrapeError`."""

    def state(self) -> dict[str, object]:
        """What the program holds, for a person who looks for a mistake of it."""


class Server:
    """The server; :attr:`gate` and :attr:`headers` can be replaced while it serves."""

    def __init__(self, exporter: Exporter, config: WebConfig, *, debug: bool) -> None:
        self._tls = config.tls
        self.configure(config)
        self._exporter = exporter
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._page)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        if debug:
            app.router.add_get("/debug/state", self._state)
            app.router.add_get("/debug/stacks", self._stacks)
        self._runner = web.AppRunner(app, access_log=None, logger=requestlog.LOGGER, shutdown_timeout=1.0)
        self._spoken: WeakSet[asyncio.BaseTransport] = WeakSet()
        """Connections over which something was asked."""

    def configure(self, config: WebConfig) -> None:
        """Let in whom a web config names, and show its certificate, from now on. Whether TLS is spoken stays."""
        if self._tls is not None and config.certificate is not None:
            load_certificate(self._tls, *config.certificate)
        self.gate = Gate(config.users)
        self.headers = dict(config.headers)

    @contextlib.asynccontextmanager
    async def serving(self, process: Process, host: str | None, port: int) -> AsyncIterator[int]:
        """Serve while the context lasts, which gives the port. OSError if it is taken."""
        await self._runner.setup()
        try:
            async with process.serve(self._connection, host, port, tls=self._tls) as number:
                yield number
        finally:
            await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        """A new connection; one over which nothing is asked in time is cut."""
        assert self._runner.server is not None
        handler = self._runner.server()

        def check() -> None:
            transport = handler.transport
            if transport is not None and transport not in self._spoken:
                transport.abort()

        asyncio.get_running_loop().call_later(LIMIT_S, check)
        return handler

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is not None:
            self._spoken.add(request.transport)
        if not await self.gate.admits(request.headers.get("Authorization")):
            answer: web.StreamResponse = web.Response(
                status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Basic"}
            )
        else:
            try:
                async with asyncio.timeout(LIMIT_S):
                    answer = await handler(request)
            except TimeoutError:
                answer = web.Response(status=503, text=f"no answer within {LIMIT_S:g} s\n")
            except web.HTTPException as error:
                answer = web.Response(status=error.status, text=f"{error.reason}\n")
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers.update(self.headers)
        return answer

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=_PAGE, content_type="text/html")

    async def _metrics(self, _: web.Request) -> web.Response:
        try:
            body = await self._exporter.scrape()
        except ScrapeError as error:
            return web.Response(status=500, text=f"{error}\n")
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, _: web.Request) -> web.Response:
        if not self._exporter.reloading:
            return web.Response(text="OK", headers={"X-Registry-Available": "true"})
        headers = {"X-Registry-Available": "false", "X-Reload-In-Progress": "true"}
        return web.Response(text="OK - reload in progress", headers=headers)

    async def _state(self, _: web.Request) -> web.Response:
        return web.Response(text=json.dumps(self._exporter.state(), indent=1) + "\n", content_type="application/json")

    async def _stacks(self, _: web.Request) -> web.Response:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        parts = [
            f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
        ]
        parts += [
            f"task {task.get_name()}\n{''.join(map(str, task.get_stack(limit=8)))}\n" for task in asyncio.all_tasks()
        ]
        return web.Response(text="\n".join(parts))
