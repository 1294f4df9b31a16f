"""The toolkit's NRI plugin: it stays connected to the node's container runtime (contracts/toolkit-cdi.md 7).

Where containers need no runtime class: a pod's annotation asks, the runtime asks the plugin when it makes a container,
the plugin names CDI devices, the runtime injects them. While the plugin is away containers start without.
"""

import asyncio
import contextlib
import socket as sockets
from collections.abc import Sequence
from typing import Final

from ... import unixsocket
from ...process import Process
from . import injection, ttrpc
from .service import PluginService
from .session import Session

NAME: Final = "nvidia-toolkit"
"""As which the plugin registers: NVIDIA's registers under its program's name, which is this in the operand."""
DEFAULT_SOCKET: Final = "/var/run/nri/nri.sock"
REGISTRATION_TIMEOUT_S: Final = 5.0
"""NRI's own default, until a runtime says otherwise."""
RECONNECT_S: Final = 2.0

SOCKET_ENV: Final = "NRI_PLUGIN_SOCKET"
"""Set by a runtime that started the plugin itself: number of an open socket. The next two come with it."""
NAME_ENV: Final = "NRI_PLUGIN_NAME"
INDEX_ENV: Final = "NRI_PLUGIN_IDX"


class NriError(RuntimeError):
    """The plugin cannot be connected to the runtime. The text says why and what to do."""


class NriPlugin:
    """The plugin, connected between `start` and `stop`.

    `socket` is the path of the runtime's NRI socket, `index` (0 to 99) the plugin's place among others, `namespace` the
    toolkit's own; pods of `management_namespaces` may manage GPUs too (from release 26.7 on).
    """

    def __init__(
        self,
        process: Process,
        *,
        socket: str = DEFAULT_SOCKET,
        index: int,
        namespace: str,
        management_namespaces: Sequence[str] = (),
    ) -> None:
        if not 0 <= index <= 99:
            raise ValueError(f"NRI plugin index {index}: it must be between 0 and 99")
        self._process = process
        self._socket = socket
        self._name = process.env.get(NAME_ENV) or NAME
        self._index = process.env.get(INDEX_ENV) or f"{index:02d}"
        self._rule = injection.Rule(
            release=process.release, namespace=namespace, management_namespaces=tuple(management_namespaces)
        )
        self._inherited = process.env.get(SOCKET_ENV, "")
        self._registration_timeout_s = REGISTRATION_TIMEOUT_S
        self._session: Session | None = None
        self._staying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, register, and from then on stay connected; returns once the runtime has configured the plugin.

        Raises:
            NriError: there is no socket, or the runtime did not take the plugin. A later loss raises nothing.
        """
        if self._staying is not None:
            raise NriError("the NRI plugin is started already")
        if not self._inherited:
            self._look()
        self._session = await self._connect()
        self._staying = asyncio.create_task(self._stay(self._session), name="NRI plugin")

    def _look(self) -> None:
        """NriError if there is nothing at the socket's path."""
        try:
            there = self._process.path(self._socket).exists()
        except OSError as error:
            raise NriError(f"the NRI socket {self._socket} cannot be looked for: {error}") from error
        if not there:
            raise NriError(
                f"no NRI socket at {self._socket}: is NRI enabled in the container runtime, and the socket's folder "
                "mounted? NRI_SOCKET names the socket"
            )

    async def stop(self) -> None:
        """Disconnect, and stay so. Nothing if it is not started."""
        staying, self._staying = self._staying, None
        if staying is None:
            return
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        self._process.log.info("NRI plugin stopped")

    async def _stay(self, session: Session) -> None:
        """Serve a connection, and the next when it is lost, until cancelled."""
        while True:
            reason = await session.lost()
            await session.close()
            self._process.log.warning(
                f"NRI: {reason}; new containers get no devices by annotation until the plugin is connected again. "
                f"Trying {self._socket} every {RECONNECT_S:g} s"
            )
            session = self._session = await self._reconnect()

    async def _reconnect(self) -> Session:
        """The next connection, tried for until there is one. A failure is logged unless it is the one before again."""
        told = ""
        while True:
            await self._process.sleep(RECONNECT_S)
            try:
                session = await self._connect()
            except NriError as error:
                if str(error) != told:
                    told = str(error)
                    self._process.log.warning(told)
            else:
                self._process.log.info(f"NRI plugin connected to {self._socket} again")
                return session

    async def _connect(self) -> Session:
        """One attempt at a connection on which the plugin is registered and configured. NriError if it fails."""
        service = PluginService(self._rule, self._process.log)
        session = Session(*await self._open(), service)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(session.close)
            try:
                await session.register(self._name, self._index, self._registration_timeout_s)
            except ttrpc.RpcError as error:
                raise NriError(
                    f"the runtime at {self._socket} did not take NRI plugin {self._index}-{self._name}: {error}; "
                    "its own log says more"
                ) from error
            undo.pop_all()
        self._registration_timeout_s = service.registration_timeout_s or REGISTRATION_TIMEOUT_S
        self._process.log.info(f"NRI plugin {self._index}-{self._name} registered")
        return session

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The runtime's socket: once the one that was inherited, if any, then the one at the path. NriError."""
        inherited, self._inherited = self._inherited, ""
        if inherited:
            return await _open_inherited(inherited)
        try:
            with unixsocket.reachable(self._process.path(self._socket)) as address:
                return await asyncio.open_unix_connection(address)
        except OSError as error:
            raise NriError(
                f"cannot connect to the NRI socket {self._socket}: {error.strerror or error}; does the container "
                "runtime run, with NRI enabled?"
            ) from error


async def _open_inherited(number: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(sock=sockets.socket(fileno=int(number)))
    except (ValueError, OSError) as error:
        raise NriError(f"{SOCKET_ENV}={number} is not the number of an open socket: {error}") from error
