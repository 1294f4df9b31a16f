"""Ports of a real container: HTTP servers whose answers a stand-in's handler gives, and ports that only accept."""

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..programs import Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    handler: Handler


class _Request(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer with what the program says."""
        response = self.server.handler(self.path)
        body = response.body.encode()
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes ask every few seconds: they are not logged."""


def serve(port: int, handler: Handler | None) -> int:
    """Listen on a port of all addresses until the process ends, and return it (0 takes a free one).

    With a handler GET requests are answered by it, in threads; without one connections succeed and are closed.
    """
    if handler is None:
        listener = socket.create_server(("0.0.0.0", port))
        _in_background(lambda: _accept(listener))
        return int(listener.getsockname()[1])
    server = _Server(("0.0.0.0", port), _Request)
    server.handler = handler
    _in_background(server.serve_forever)
    return int(server.server_address[1])


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.close()


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
