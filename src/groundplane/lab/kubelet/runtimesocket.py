"""The container runtime's socket on a simulated node, by which a toolkit finds the process to send SIGHUP to.

Nothing of the runtime's API is served. Whoever connects gets a few bytes, as containerd's and Docker's servers send
some first, and the kernel says with them which process sent them: this one. The lab's `kill` knows what that means
(`groundplane.lab.nodeprograms`).
"""

import asyncio
import contextlib
from typing import Final

from ..host import SimulatedHost

SOCKETS: Final = {"containerd": "/run/containerd/containerd.sock", "docker": "/run/docker.sock"}
"""Sockets by runtime; CRI-O is restarted through systemd."""
_GREETING: Final = b"HTTP/1.0 200 OK\r\n\r\n"


class RuntimeSocket:
    """The socket of one node's runtime, where it has one."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._path = SOCKETS.get(host.spec.runtime.name, "")
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, unless that is so already."""
        if self._path and self._server is None:
            path = self._host.root.path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(_greet, path)

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
            self._host.root.remove(self._path)


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # who asks for the process alone need not stay for more
        writer.write(_GREETING)
        await writer.drain()
        await reader.read()
    writer.close()
