"""Logs, commands, attached output and the pages of pods: what the kubelets answer, over HTTP and WebSocket.

WebSocket subprotocols v5 and v4.channel.k8s.io: the first byte of a message is its channel (0 stdin, 1 stdout,
2 stderr, 3 the final Status, 4 terminal size; 255 in v5 closes a channel).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from . import resources, status
from .api import Api
from .nodeaccess import NodeAccess
from .objects import Document
from .requests import Target, truthy

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, RESULT, CLOSE = 0, 1, 2, 3, 255
_SUCCESS: Document = {"metadata": {}, "status": "Success"}
_LISTS = ("containers", "initContainers", "ephemeralContainers")
_STATES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def container_of(pod: Document, asked: str) -> str:
    """Return the container a request is about; raises the 400 when the name is missing or wrong."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    known = [item["name"] for key in _LISTS for item in spec.get(key) or []]
    if asked:
        if asked not in known:
            raise status.bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    main = [item["name"] for item in spec["containers"]]
    if len(main) == 1:
        return str(main[0])
    default = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if default in main:
        return str(default)
    text = f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]"
    raise status.bad_request(text)


def _check_started(pod: Document, container: str) -> None:
    name = pod["metadata"]["name"]
    if not pod["spec"].get("nodeName"):
        raise status.bad_request(f"pod {name} does not have a host assigned")
    for key in _STATES:
        for state in pod.get("status", {}).get(key) or []:
            waiting = (state.get("state") or {}).get("waiting")
            if state["name"] == container and waiting is not None and not state.get("lastState", {}).get("terminated"):
                reason = waiting.get("reason", "ContainerCreating")
                text = f'container "{container}" in pod "{name}" is waiting to start: {reason}'
                raise status.bad_request(text)


async def logs(
    api: Api, nodes: NodeAccess | None, request: web.BaseRequest, query: Mapping[str, str], ns: str, name: str
) -> web.StreamResponse:
    """Answer `pods/log`."""
    pod = api.get(resources.PODS, name, ns)
    container = container_of(pod, query.get("container", ""))
    _check_started(pod, container)
    stream = _access(nodes).logs(
        ns,
        name,
        container,
        follow=truthy(query.get("follow")),
        tail_lines=int(query["tailLines"]) if query.get("tailLines") else None,
        since=_since(api, query),
        previous=truthy(query.get("previous")),
        timestamps=truthy(query.get("timestamps")),
    )
    left = int(query["limitBytes"]) if query.get("limitBytes") else None
    first = await anext(aiter(stream), b"")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    piece: bytes | None = first
    while piece is not None:
        if left is not None:
            piece, left = piece[:left], left - len(piece)
        await response.write(piece)
        if left is not None and left <= 0:
            break
        piece = await anext(aiter(stream), None)
    await response.write_eof()
    return response


async def proxy(api: Api, nodes: NodeAccess | None, request: web.BaseRequest, target: Target) -> web.StreamResponse:
    """Answer a GET of `pods/NAME[:PORT]/proxy/PATH`: the pod's own answer. Without a port, its first one."""
    name, _, port = target.name.removeprefix("http:").partition(":")
    pod = api.get(resources.PODS, name, target.namespace)
    number = port or _first_port(pod)
    if not number.isdecimal():
        raise status.bad_request(f"pod {name}: {port or 'it'} has no port number; ask for pods/{name}:PORT/proxy/")
    query = request.rel_url.raw_query_string
    path = f"{target.path}?{query}" if query else target.path
    code, text = await _access(nodes).http_get(target.namespace, name, int(number), path)
    return web.Response(status=code, text=text)


def _first_port(pod: Document) -> str:
    ports = (port["containerPort"] for container in pod["spec"]["containers"] for port in container.get("ports") or ())
    return str(next(ports, ""))


def _access(nodes: NodeAccess | None) -> NodeAccess:
    if nodes is None:
        raise status.internal("this API server has no kubelets; start it with nodes to read logs and run commands")
    return nodes


def _since(api: Api, query: Mapping[str, str]) -> datetime | None:
    if query.get("sinceSeconds"):
        return api.clock.now() - timedelta(seconds=int(query["sinceSeconds"]))
    if query.get("sinceTime"):
        return datetime.fromisoformat(query["sinceTime"].replace("Z", "+00:00"))
    return None


class _Session:
    """One WebSocket with its channels."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.gone = asyncio.Event()

    def output(self, channel: int, data: bytes) -> None:
        self._outgoing.put_nowait(bytes([channel]) + data)

    async def stdin(self) -> AsyncIterator[bytes]:
        while (piece := await self._incoming.get()) is not None:
            yield piece

    async def receive(self) -> None:
        """Sort incoming messages until the client goes."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN:
                self._incoming.put_nowait(data)
            elif channel == CLOSE and data[:1] == bytes([STDIN]):
                self._incoming.put_nowait(None)
        self._incoming.put_nowait(None)
        self.gone.set()

    async def send(self) -> None:
        while (piece := await self._outgoing.get()) is not None:
            await self._socket.send_bytes(piece)

    def end(self, result: Document) -> None:
        self.output(RESULT, msgspec.json.encode(result))
        self._outgoing.put_nowait(None)


async def execute(
    api: Api, nodes: NodeAccess | None, request: web.BaseRequest, query: Any, ns: str, name: str
) -> web.StreamResponse:
    """Answer `pods/exec`: run the command and stream its input and output."""
    pod = api.get(resources.PODS, name, ns)
    container = container_of(pod, query.get("container", ""))
    _check_started(pod, container)
    argv = query.getall("command", [])
    if not argv:
        raise status.bad_request("you must specify at least one command for the container")
    access = _access(nodes)
    return await _converse(request, lambda session: _run(access, session, query, ns, name, container, argv))


async def attach(
    api: Api, nodes: NodeAccess | None, request: web.BaseRequest, query: Any, ns: str, name: str
) -> web.StreamResponse:
    """Answer `pods/attach`: stream what a container's program prints from now on, until it ends.

    Input is read and dropped: a container's main program has no standard input in the lab.
    """
    pod = api.get(resources.PODS, name, ns)
    container = container_of(pod, query.get("container", ""))
    _check_started(pod, container)
    access = _access(nodes)
    return await _converse(request, lambda session: _follow(access, session, ns, name, container))


async def _converse(
    request: web.BaseRequest, work: Callable[[_Session], Coroutine[Any, Any, Document]]
) -> web.StreamResponse:
    """Open the WebSocket, do the work with it and send the Status that the work gives; the client may go any time."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise status.bad_request("the lab talks to containers over WebSocket only (kubectl 1.31 or later)")
    socket = web.WebSocketResponse(protocols=PROTOCOLS, heartbeat=None)
    await socket.prepare(request)
    session = _Session(socket)
    receiving, sending = asyncio.create_task(session.receive()), asyncio.create_task(session.send())
    working = asyncio.create_task(work(session))
    watching = asyncio.create_task(session.gone.wait())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            session.end(working.result())
            await sending
            await socket.close()
    finally:
        for task in (working, receiving, sending, watching):
            task.cancel()
        await asyncio.gather(working, receiving, sending, watching, return_exceptions=True)
    return socket


async def _follow(access: NodeAccess, session: _Session, ns: str, name: str, container: str) -> Document:
    """Hand on a container's output; return the Status for the result channel."""
    try:
        async for piece in access.logs(ns, name, container, follow=True, tail_lines=0):
            session.output(STDOUT, piece)
    except status.StatusError as error:
        return error.document()
    return dict(_SUCCESS)


async def _run(
    access: NodeAccess, session: _Session, query: Mapping[str, str], ns: str, name: str, container: str, argv: list[str]
) -> Document:
    """Run the command; return the Status for the result channel."""
    stdin = session.stdin() if truthy(query.get("stdin")) else None
    try:
        code = await access.exec(
            ns, name, container, argv, stdin,
            lambda data: session.output(STDOUT, data),
            lambda data: session.output(STDERR, data),
        )  # fmt: skip
    except status.StatusError as error:
        return error.document()
    if code == 0:
        return dict(_SUCCESS)
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
