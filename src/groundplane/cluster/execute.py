"""Run a command in a container and have what it printed and how it ended, over the API server's ``pods/exec``.

WebSocket with the subprotocol v5.channel.k8s.io, or v4 of a server that has no later one: the first byte of a message
says what the rest is (1 standard output, 2 standard error, 3 the final Status). Standard input is not offered: nothing
here converses with a program. Which command is worth running is left to the callers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from .client import Client
from .errors import ApiError, ClusterError, ConnectionLost, Unreadable, from_status
from .http import aiohttp
from .kinds import POD

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
OUTPUT, ERROR, RESULT = 1, 2, 3
"""Channels of the protocols."""
UNKNOWN_CODE: Final = -1
"""The exit code of a command that was left before it ended, as it printed more than was wanted."""
NO_SUCH_COMMAND: Final = frozenset({126, 127})
"""Exit codes by which runtimes and shells say that there is no such program, or that it cannot be executed."""


class Ran(NamedTuple):
    """What a command printed, and its exit code; ``cut`` when more was printed than was wanted, the rest is gone."""

    out: bytes
    err: bytes
    rc: int
    cut: bool


class CommandTimeout(ClusterError):  # noqa: N818  (what it is, as its neighbours in ``errors``)
    """The command did not end in time. It may still run in the container."""


class NoSuchCommand(ClusterError):  # noqa: N818
    """The container has no such program, or the runtime could not start it; the message is the runtime's."""


async def execute(
    client: Client,
    pod: str,
    namespace: str,
    command: Sequence[str],
    *,
    container: str | None = None,
    timeout_s: float = 30.0,
    limit_bytes: int = 8 << 20,
) -> Ran:
    """Run a command in a running container to its end; an exit code that is not 0 is no error.

    Without ``container``, the pod must have one only, or name its default. Output beyond ``limit_bytes`` (standard
    output and error together) ends the look: what came before is kept, the exit code is :data:`UNKNOWN_CODE`.

    Raises:
        CommandTimeout: it took longer than ``timeout_s`` seconds, the connection included.
        NoSuchCommand: the container has no such program.
        ApiError: the API server or the kubelet refused (Forbidden: ``get`` and ``create`` of ``pods/exec`` are needed).
        ConnectionLost: the connection ended before the command did.
    """
    what = f"exec {command[0] if command else ''} in pod {namespace}/{pod}"
    params = [("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")]
    if container is not None:
        params.append(("container", container))
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.websocket(
                POD, POD.path(namespace, pod, "exec"), params, label="pods/exec", protocols=PROTOCOLS
            ) as socket,
        ):
            if socket.protocol not in PROTOCOLS:
                raise Unreadable(f"{what}: the server speaks none of {', '.join(PROTOCOLS)}")
            return await _received(socket, what, limit_bytes)
    except TimeoutError:
        raise CommandTimeout(f"{what}: no end within {timeout_s:g} s") from None


async def _received(socket: aiohttp.ClientWebSocketResponse, what: str, limit_bytes: int) -> Ran:
    """All that comes over the socket until the Status."""
    printed = {OUTPUT: bytearray(), ERROR: bytearray()}
    left = limit_bytes
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == RESULT:
            return Ran(bytes(printed[OUTPUT]), bytes(printed[ERROR]), _code(data, what), cut=False)
        if channel in printed:
            printed[channel] += data[:left]
            left -= len(data)
            if left < 0:
                return Ran(bytes(printed[OUTPUT]), bytes(printed[ERROR]), UNKNOWN_CODE, cut=True)
    closed = f" (WebSocket code {socket.close_code})" if socket.close_code is not None else ""
    raise ConnectionLost(f"{what}: the connection ended before the command{closed}")


def _code(result: bytes, what: str) -> int:
    """The exit code that a final Status tells. Raises what else it tells."""
    try:
        status: Any = msgspec.json.decode(result)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{what}: its final status is not JSON: {error}") from error
    if not isinstance(status, dict):
        raise Unreadable(f"{what}: its final status is no object: {status!r}")
    if status.get("status") == "Success":
        return 0
    failure = from_status(status, what)
    told = [message for reason, message in _causes(failure) if reason == "ExitCode"]
    if status.get("reason") == "NonZeroExitCode" and told and told[0].lstrip("-").isdecimal():
        return int(told[0])
    if any(sign in failure.message for sign in _NOT_STARTED):
        raise NoSuchCommand(failure.message)
    raise failure


_NOT_STARTED: Final = ("executable file not found", "no such file or directory", "permission denied: unknown")
"""How runtimes say that a program could not be started in a container that runs."""


def _causes(failure: ApiError) -> list[tuple[str, str]]:
    causes = failure.details.get("causes")
    if not isinstance(causes, list):
        return []
    return [(str(each.get("reason", "")), str(each.get("message", ""))) for each in causes if isinstance(each, dict)]
