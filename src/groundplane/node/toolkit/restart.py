"""Making the container runtime read its configuration again: by SIGHUP, by systemd, or not at all.

contracts/toolkit-cdi.md 5.6. Which process serves the runtime's socket, the kernel says: a socket that asks for it
(SO_PASSCRED) gets each message with its sender's process number. Whether a restart is needed is decided elsewhere, and
remembered in a file (:class:`Pending`), since a toolkit may end between the change and the restart.
"""

import asyncio
import enum
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ..process import Process
from ..unixsocket import reachable

ATTEMPTS: Final = 6
PAUSE_S: Final = 5.0
ANSWER_S: Final = 5.0
"""How long the runtime may take to send its first bytes, in real seconds."""
GREETINGS: Final = {"containerd": b"", "docker": b"GET /info HTTP/1.0\r\n\r\n"}
"""What makes a runtime send something: containerd does at once."""
SERVICES: Final = {"containerd": "containerd", "crio": "crio", "docker": "docker"}
_CREDENTIALS: Final = struct.Struct("3i")
"""``struct ucred``: process, user and group."""


class Mode(enum.Enum):
    """How a runtime is restarted."""

    SIGNAL = "signal"
    SYSTEMD = "systemd"
    NONE = "none"


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Which runtime is to be restarted, and how. ``socket`` is a path of this container."""

    runtime: str
    mode: Mode
    socket: str
    host_root: str


class RestartError(RuntimeError):
    """The runtime could not be restarted; the text says what to do."""


class Pending:
    """A note that the runtime has not read its configuration yet.

    Its file is on a file system that a reboot empties, as a reboot is a restart too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __bool__(self) -> bool:
        return self._path.exists()

    def set(self) -> None:
        """Note that a restart is needed. OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()

    def clear(self) -> None:
        """Note that none is."""
        self._path.unlink(missing_ok=True)


def _nothing() -> None:
    pass


async def restart(process: Process, wanted: Restart, begun: Callable[[], None] = _nothing) -> None:
    """Restart the runtime. ``begun`` is called at the moment from which on it cannot be stopped any more.

    The restart may end this very container. Raises :class:`RestartError`.
    """
    if wanted.mode is Mode.NONE:
        process.log.warning(
            f"Skipping restart of {wanted.runtime} due to --restart-mode=none: restart it for its new configuration"
        )
        begun()
    elif wanted.mode is Mode.SYSTEMD:
        await _by_systemd(process, wanted, begun)
    else:
        await _by_signal(process, wanted, begun)


async def _by_systemd(process: Process, wanted: Restart, begun: Callable[[], None]) -> None:
    chroot = ("chroot", wanted.host_root) if wanted.host_root not in ("", "/") else ()
    command = (*chroot, "systemctl", "restart", SERVICES[wanted.runtime])
    shown = " ".join(command)
    process.log.info(f"Restarting {wanted.runtime} using systemd: {shown}")
    begun()
    try:
        done = await process.execute(command)
    except FileNotFoundError as error:
        raise RestartError(f"error restarting {wanted.runtime} using systemd: {shown}: {error}") from None
    if done.code != 0:
        said = (done.err or done.out).strip() or "it said nothing"
        raise RestartError(
            f"error restarting {wanted.runtime} using systemd: {shown} ended with {done.code}: {said}; see "
            f"journalctl -u {SERVICES[wanted.runtime]} on the host"
        )


async def _by_signal(process: Process, wanted: Restart, begun: Callable[[], None]) -> None:
    greeting = GREETINGS.get(wanted.runtime)
    if greeting is None:
        raise RestartError(f"{wanted.runtime} cannot be restarted by a signal; use --restart-mode=systemd or none")
    process.log.info(f"Sending SIGHUP signal to {wanted.runtime}")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            process.kill(await _server(process.path(wanted.socket), greeting), signal.SIGHUP)
        except (OSError, TimeoutError, _Unknown) as error:
            said = _said(error, wanted)
            if attempt == ATTEMPTS:
                raise RestartError(
                    f"unable to signal {wanted.runtime} in {ATTEMPTS} attempts: {said}; see that it runs and that "
                    f"--socket ({wanted.socket}) is its socket, or choose --restart-mode=systemd or none"
                ) from None
            process.log.warning(f"Error signaling {wanted.runtime}, attempt {attempt}/{ATTEMPTS}: {said}")
            await process.sleep(PAUSE_S)
        else:
            begun()
            process.log.info(f"Successfully signaled {wanted.runtime}")
            return


class _Unknown(Exception):  # noqa: N818 - what is known of the process, not what is wrong
    """The kernel did not say which process serves the socket."""


def _said(error: Exception, wanted: Restart) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came from {wanted.socket} in {ANSWER_S:g} s"
    if isinstance(error, ProcessLookupError):
        return "its process has ended meanwhile"
    if isinstance(error, OSError):
        return f"{wanted.socket}: {error.strerror or error}"
    return str(error)


async def _server(path: Path, greeting: bytes) -> int:
    """The number of the process that serves a socket. OSError, TimeoutError or :class:`_Unknown`."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, reachable(path) as address:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before there is anything to receive
        async with asyncio.timeout(ANSWER_S):
            await loop.sock_connect(connection, address)
            await loop.sock_sendall(connection, greeting)
            await _readable(connection)
        data, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not data:
        raise _Unknown("the runtime closed the connection without a word")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) >= _CREDENTIALS.size:
            pid: int = _CREDENTIALS.unpack_from(content)[0]
            if pid > 0:  # to signal 0 would be to signal the toolkit itself and all its own
                return pid
            raise _Unknown("the runtime's process is in no PID namespace of this container; it needs hostPID: true")
    raise _Unknown("the kernel did not say which process serves the socket")


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, tell)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
