"""The operator's HTTP endpoints: ``/metrics`` on one address, ``/healthz`` and ``/readyz`` on another (5.7).

They answer from memory; a probe costs the API server nothing. What "alive" and "ready" mean is the process's to say.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from . import metrics as figures
from .settings import split_address

Check = Callable[[], str | None]
"""Says what is wrong, or ``None``."""
Remarks = Callable[[], str]
"""What a person should know although all is well, one remark a line; empty without any."""


def metrics_app(metrics: figures.Metrics) -> web.Application:
    """Serves ``/metrics``."""

    async def expose(_: web.Request) -> web.Response:
        return web.Response(body=metrics.expose(), headers={"Content-Type": figures.CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", expose)
    return app


def probes_app(alive: Check, ready: Check, remarks: Remarks = str) -> web.Application:
    """Serves ``/healthz`` from ``alive`` and ``/readyz`` from ``ready``: 200 ``ok``, or 503 and the reason.

    ``remarks`` follow on ``/readyz``, whatever its status.
    """
    app = web.Application()
    app.router.add_get("/healthz", _probe(alive, str))
    app.router.add_get("/readyz", _probe(ready, remarks))
    return app


def _probe(check: Check, remarks: Remarks) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        problem = check()
        lines = [problem or "ok", remarks()]
        return web.Response(text="\n".join(filter(None, lines)), status=503 if problem else 200)

    return answer


class Endpoint:
    """One application listening on one address."""

    def __init__(self, app: web.Application, address: str) -> None:
        self._runner = web.AppRunner(app, access_log=None)
        self._address = address
        self.port = 0

    async def __aenter__(self) -> "Endpoint":
        if not self._address:
            return self
        host, port = split_address(self._address)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
