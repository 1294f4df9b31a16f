"""Pages of programs that have servers of their own: a real request, over a connection within this process.

A shipped program of the lab serves whatever connections it is given. No port of this machine is taken for it, as the
lab may have hundreds of nodes with the same ports: who asks a container's port gets a connection of its own, a pair of
sockets, at whose other end the program's server is. With TLS if the server speaks it; who asks believes any
certificate, as a kubelet's probe does.
"""

import asyncio
import http.client
import io
import socket
import ssl
from collections.abc import Callable
from typing import Any

from .programs import Response


class Pages:
    """Asks a server, given by the function that makes its end of a connection; OSError where it does not answer."""

    def __init__(self, connection: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None) -> None:
        self._connection = connection
        self._tls = tls

    async def __call__(self, path: str) -> Response:
        """GET a path (with query)."""
        near, far = socket.socketpair()
        far.setblocking(False)
        loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(loop.connect_accepted_socket(self._connection, far, ssl=self._tls))
        try:
            data = await self._ask(near, path)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        return _response(data)

    async def _ask(self, near: socket.socket, path: str) -> bytes:
        context = _believing() if self._tls else None
        reader, writer = await asyncio.open_connection(sock=near, ssl=context, server_hostname="" if context else None)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n".encode())
            return await reader.read()
        finally:
            writer.close()


def _believing() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class _Received:
    """What was received, as http.client reads it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._data)


def _response(data: bytes) -> Response:
    answer = http.client.HTTPResponse(_Received(data))  # type: ignore[arg-type]
    try:
        answer.begin()
        body = answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"no HTTP answer: {error!r}") from error
    return Response(answer.status, body.decode(errors="replace"), answer.getheader("Content-Type", ""))
