"""ttrpc, containerd's small RPC protocol, over one channel: frames, client, server (contracts/toolkit-cdi.md 7.1).

Only single requests and answers, which is all that NRI uses. Client and server are fed the channel's bytes and are
given a function that sends bytes: what carries them is `mux`'s concern. Payloads stay bytes here; `service` reads them.
"""

import asyncio
import enum
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from .mux import ProtocolError
from .stubs import ttrpc_pb2 as wire

HEADER: Final = struct.Struct(">IIBB")
MAX_DATA: Final = 4 << 20
"""Bytes of the longest message without its header."""
_NO_MESSAGE: Final = 1 << 24
"""The first byte of a header is reserved and zero: from here on a length says that this is not ttrpc at all."""

Send: TypeAlias = Callable[[bytes], None]
Method: TypeAlias = Callable[[bytes], bytes]
"""Answers a request's payload with the answer's; it must not wait. RpcError refuses; it may raise nothing else."""
Services: TypeAlias = Mapping[str, Mapping[str, Method]]
"""Methods by their service's full name and their own."""


class Kind(enum.IntEnum):
    """What a message is."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Code(enum.IntEnum):
    """gRPC's status codes that are said here."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcError(RuntimeError):
    """A request failed; `code` is a gRPC status code, known to :class:`Code` or not."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        name = Code(self.code).name if self.code in list(Code) else f"code {self.code}"
        return f"{self.message} ({name})"


class Message(NamedTuple):
    """A message; `data` is None for one that is longer than :data:`MAX_DATA`, whose bytes are dropped."""

    stream: int
    kind: int
    data: bytes | None
    flags: int = 0


def encode(message: Message) -> bytes:
    """A message as it goes over the channel. RpcError (RESOURCE_EXHAUSTED) if it is too long."""
    data = message.data or b""
    if len(data) > MAX_DATA:
        raise RpcError(Code.RESOURCE_EXHAUSTED, f"message length {len(data)} exceeds the maximum of {MAX_DATA}")
    return HEADER.pack(len(data), message.stream, message.kind, message.flags) + data


class Decoder:
    """Finds messages in what comes on a channel, however it is cut into pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._drop = 0
        """So many bytes still to come belong to a message that is too long."""

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with `data`; iterate to the end before the next call.

        Raises:
            ProtocolError: what came cannot be ttrpc.
        """
        self._buffer += data
        while True:
            dropped = min(self._drop, len(self._buffer))
            del self._buffer[:dropped]
            self._drop -= dropped
            if len(self._buffer) < HEADER.size:
                return
            length, stream, kind, flags = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if length >= _NO_MESSAGE:
                raise ProtocolError(f"what came is no ttrpc message: its header is {self._buffer[: HEADER.size].hex()}")
            if length > MAX_DATA:
                self._drop = end
                yield Message(stream, kind, None, flags)
            elif len(self._buffer) < end:
                return
            else:
                payload = bytes(memoryview(self._buffer)[HEADER.size : end])
                del self._buffer[:end]
                yield Message(stream, kind, payload, flags)


class Server:
    """Answers requests, each as soon as it has come, so that no deadline of the asker matters."""

    def __init__(self, services: Services, send: Send) -> None:
        self._services = services
        self._send = send
        self._decoder = Decoder()
        self._last = 0

    def receive(self, data: bytes) -> None:
        """Take bytes of the channel. ProtocolError if they cannot be ttrpc."""
        for message in self._decoder.feed(data):
            try:
                payload = self._answer(message)
            except RpcError as error:
                self._respond(message.stream, wire.Response(status=wire.Status(code=error.code, message=error.message)))
            else:
                if payload is not None:
                    self._respond(message.stream, wire.Response(payload=payload))

    def _respond(self, stream: int, response: wire.Response) -> None:
        try:
            encoded = encode(Message(stream, Kind.RESPONSE, response.SerializeToString()))
        except RpcError as error:
            refusal = wire.Response(status=wire.Status(code=error.code, message=error.message))
            encoded = encode(Message(stream, Kind.RESPONSE, refusal.SerializeToString()))
        self._send(encoded)

    def _answer(self, message: Message) -> bytes | None:
        """The payload of the answer; None where the message is not to be answered. RpcError refuses."""
        if message.data is None:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"the message is longer than the {MAX_DATA} bytes that are allowed")
        if message.stream % 2 == 0:
            raise RpcError(Code.INVALID_ARGUMENT, "StreamID must be odd for client initiated streams")
        if message.kind == Kind.DATA:
            raise RpcError(Code.INVALID_ARGUMENT, "StreamID is no longer active")
        if message.kind != Kind.REQUEST:
            return None
        if message.stream <= self._last:
            raise RpcError(Code.INVALID_ARGUMENT, "StreamID cannot be re-used and must increment")
        self._last = message.stream
        try:
            request = wire.Request.FromString(message.data)
        except DecodeError as error:
            raise RpcError(Code.INVALID_ARGUMENT, f"unmarshal request error: {error}") from error
        return self._call(request)

    def _call(self, request: wire.Request) -> bytes:
        methods = self._services.get(request.service)
        if methods is None:
            raise RpcError(Code.UNIMPLEMENTED, f"service {request.service}")
        method = methods.get(request.method)
        if method is None:
            raise RpcError(Code.UNIMPLEMENTED, f"method {request.method}")
        return method(request.payload)


class Client:
    """Asks the peer. One that has been closed refuses every call."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._decoder = Decoder()
        self._next = 1
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._closed = ""

    async def call(self, service: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask, and wait so many seconds for the answer's payload; a later one is dropped.

        Raises:
            RpcError: the peer refused, did not answer in time (DEADLINE_EXCEEDED), answered what makes no sense
                (INTERNAL), or the connection is lost (UNAVAILABLE).
        """
        if self._closed:
            raise RpcError(Code.UNAVAILABLE, self._closed)
        timeout_nano = int(timeout_s * 1e9)
        request = wire.Request(service=service, method=method, payload=payload, timeout_nano=timeout_nano)
        stream, self._next = self._next, self._next + 2
        encoded = encode(Message(stream, Kind.REQUEST, request.SerializeToString()))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = answer
        try:
            self._send(encoded)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RpcError(Code.DEADLINE_EXCEEDED, f"{method} was not answered within {timeout_s:g} s") from None
        finally:
            del self._waiting[stream]

    def receive(self, data: bytes) -> None:
        """Take bytes of the channel. ProtocolError if they cannot be ttrpc."""
        for message in self._decoder.feed(data):
            answer = self._waiting.get(message.stream)
            if answer is None or answer.done():
                continue
            try:
                answer.set_result(_payload(message))
            except RpcError as error:
                answer.set_exception(error)

    def close(self, reason: str) -> None:
        """The connection is lost: all that wait for an answer are told why."""
        self._closed = reason
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RpcError(Code.UNAVAILABLE, reason))


def _payload(message: Message) -> bytes:
    """What a client's answer says. RpcError if it is a refusal, or no answer."""
    if message.data is None:
        raise RpcError(Code.RESOURCE_EXHAUSTED, f"the answer is longer than the {MAX_DATA} bytes that are allowed")
    if message.kind != Kind.RESPONSE:
        raise RpcError(Code.INTERNAL, f"a message of type {message.kind} came instead of an answer")
    try:
        response = wire.Response.FromString(message.data)
    except DecodeError as error:
        raise RpcError(Code.INTERNAL, f"the answer cannot be read: {error}") from error
    if response.status.code != Code.OK:
        raise RpcError(response.status.code, response.status.message)
    return response.payload
