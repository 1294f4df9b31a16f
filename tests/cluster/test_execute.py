"""Commands in containers: on the lab's kubelets, and against servers that answer oddly."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from groundplane.cluster import errors
from groundplane.cluster.client import Client
from groundplane.cluster.config import Config
from groundplane.cluster.execute import UNKNOWN_CODE, CommandTimeout, NoSuchCommand, execute
from groundplane.cluster.kinds import POD
from groundplane.lab.cluster import Lab
from groundplane.lab.nodes import NodeSpec

WAITS = "trap 'exit 0' TERM; sleep 100000 & wait"


def pod(name: str, *containers: str) -> dict[str, Any]:
    made = [{"name": each, "image": "busybox", "command": ["sh", "-c", WAITS]} for each in containers]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": made}}


@contextlib.asynccontextmanager
async def a_pod(lab: Lab, client: Client, *containers: str) -> AsyncIterator[str]:
    await client.create(POD, pod("web", *containers))

    def running() -> bool:
        stored = lab.api.find(lab.api.of_kind("Pod", "v1"), "web", "default") or {}
        return bool(stored.get("status", {}).get("phase") == "Running")

    await lab.wait_until(running, timeout_s=60, what="the pod runs")
    yield "web"


async def test_output_errors_and_exit_code_come_back() -> None:
    async with (
        Lab([NodeSpec("n1")], operator=False, speed=100) as lab,
        lab.client() as client,
        a_pod(lab, client, "one") as name,
    ):
        ran = await execute(client, name, "default", ["sh", "-c", "echo 'a b & c=ä'; echo bad >&2; exit 7"])
        assert (ran.out.decode(), ran.err, ran.rc, ran.cut) == ("a b & c=ä\n", b"bad\n", 7, False)
        assert await execute(client, name, "default", ["true"], container="one") == (b"", b"", 0, False)
        assert client.requests["get", "pods/exec", 101] == 2
        missing = await execute(client, name, "default", ["no-such-program"])
        assert missing.rc == 127
        cut = await execute(client, name, "default", ["sh", "-c", "echo 0123456789; echo more"], limit_bytes=4)
        assert (cut.out, cut.rc, cut.cut) == (b"0123", UNKNOWN_CODE, True)
        with pytest.raises(CommandTimeout, match=r"exec sh in pod default/web: no end within 0\.3 s"):
            await execute(client, name, "default", ["sh", "-c", "sleep 100000"], timeout_s=0.3)
        with pytest.raises(errors.NotFound, match='pods "gone" not found'):
            await execute(client, "gone", "default", ["true"])
        with pytest.raises(errors.ApiError, match="container two is not valid for pod web"):
            await execute(client, name, "default", ["true"], container="two")


async def test_without_permission_the_servers_own_words_come_back() -> None:
    async with Lab(operator=False, rbac=True) as lab, Client(Config(server=lab.url, token="unknown")) as client:
        with pytest.raises(errors.ApiError) as refused:
            await execute(client, "web", "default", ["true"])
        assert refused.value.code in (401, 403)
        assert "not from a Kubernetes API server" not in str(refused.value)


# --- Servers that answer oddly ---------------------------------------------------------------------------------------

Talk = Callable[[web.WebSocketResponse], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(talk: Talk, *protocols: str) -> AsyncIterator[Client]:
    """A server that opens a WebSocket for any request and has a talk with it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=protocols)
        await socket.prepare(request)
        await talk(socket)
        return socket

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with Client(Config(server=f"http://{host}:{port}")) as client:
            yield client
    finally:
        await runner.cleanup()


def says(*messages: bytes, close: int | None = None) -> Talk:
    async def talk(socket: web.WebSocketResponse) -> None:
        for message in messages:
            await socket.send_bytes(message)
        await socket.close(code=close or 1000)

    return talk


def failure(**fields: Any) -> bytes:
    return b"\x03" + json.dumps({"kind": "Status", "status": "Failure", **fields}).encode()


V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


@pytest.mark.parametrize("protocol", [V4, V5])
async def test_either_protocol_is_spoken(protocol: str) -> None:
    done = b'\x03{"metadata":{},"status":"Success"}'
    async with server(says(b"\x01", b"\x01out", b"\x02err", b"\x01put", b"\x09?", b"", done), protocol) as client:
        assert await execute(client, "p", "ns", ["x"]) == (b"output", b"err", 0, False)


ODD: list[tuple[str, tuple[bytes, ...], type[errors.ClusterError], str]] = [
    ("cut off", (b"\x01half",), errors.ConnectionLost, "ended before the command"),
    ("no JSON", (b"\x03{",), errors.Unreadable, "not JSON"),
    ("no object", (b"\x03[1]",), errors.Unreadable, "no object"),
    ("refused", (failure(reason="InternalError", message="kubelet is away", code=500),), errors.ServerError, "away"),
    (
        "no program",
        (failure(reason="InternalError", message='exec: "x": executable file not found in $PATH', code=500),),
        NoSuchCommand,
        "not found in",
    ),
    (
        "code without a number",
        (failure(reason="NonZeroExitCode", message="ended", details={"causes": [{"reason": "ExitCode"}, 3]}),),
        errors.ApiError,
        "ended",
    ),
]


@pytest.mark.parametrize(("messages", "error", "words"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
async def test_an_odd_answer_is_a_typed_error(
    messages: tuple[bytes, ...], error: type[errors.ClusterError], words: str
) -> None:
    async with server(says(*messages), V5) as client:
        with pytest.raises(error, match=words):
            await execute(client, "p", "ns", ["x"])


async def test_a_server_that_speaks_neither_protocol_is_told() -> None:
    async with server(says(), "v1.channel.k8s.io") as client:
        with pytest.raises(errors.Unreadable, match="speaks none of"):
            await execute(client, "p", "ns", ["x"])


async def test_a_silent_command_is_given_up() -> None:
    async def silent(socket: web.WebSocketResponse) -> None:
        await socket.receive()

    async with server(silent, V5) as client:
        with pytest.raises(CommandTimeout):
            await execute(client, "p", "ns", ["x"], timeout_s=0.2)


async def test_no_server_is_a_lost_connection() -> None:
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    async with Client(Config(server=f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(errors.ConnectionLost):
            await execute(client, "p", "ns", ["x"])
