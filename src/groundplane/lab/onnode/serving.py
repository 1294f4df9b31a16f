"""Ports of a real container that accept connections and say nothing, for stand-ins of programs without pages."""

import socket
import threading


def serve(port: int) -> int:
    """Accept connections on a port of all addresses until the process ends, and return it (0 takes a free one)."""
    listener = socket.create_server(("0.0.0.0", port))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.close()
