"""ttrpc: frames, requests and answers (contracts/toolkit-cdi.md 7.1, "ttrpc frame" to "Response proto")."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.toolkit.nri import ttrpc
from groundplane.node.toolkit.nri.mux import ProtocolError
from groundplane.node.toolkit.nri.stubs import ttrpc_pb2 as wire
from groundplane.node.toolkit.nri.ttrpc import Client, Code, Decoder, Kind, Message, RpcError, Server, encode


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


# --- frames -----------------------------------------------------------------------------------------------------------


def test_7_1_a_message_on_the_wire() -> None:
    assert encode(Message(5, Kind.RESPONSE, b"ab")) == bytes.fromhex("00000002 00000005 02 00") + b"ab"
    assert [Kind.REQUEST, Kind.RESPONSE, Kind.DATA] == [1, 2, 3]
    assert ttrpc.MAX_DATA == 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (wire.Request, {"service": 1, "method": 2, "payload": 3, "timeout_nano": 4}),
        (wire.Response, {"status": 1, "payload": 2}),
        (wire.Status, {"code": 1, "message": 2}),
    ],
)
def test_7_1_field_numbers(message: type, numbers: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == numbers


messages = st.builds(
    Message,
    stream=st.integers(0, 2**32 - 1),
    kind=st.integers(0, 255),
    data=st.binary(max_size=60),
    flags=st.integers(0, 255),
)


@given(sent=st.lists(messages, max_size=6), places=st.lists(st.integers(0, 10_000), max_size=12))
def test_messages_come_through_however_they_are_cut(sent: list[Message], places: list[int]) -> None:
    decoder = Decoder()
    got = [message for piece in cut(b"".join(map(encode, sent)), places) for message in decoder.feed(piece)]
    assert got == sent


@pytest.mark.parametrize("chunk", [1 << 20, 1234567])
def test_a_message_that_is_too_long_is_dropped_and_those_around_it_come(chunk: int) -> None:
    length = ttrpc.MAX_DATA + 1
    long = ttrpc.HEADER.pack(length, 3, Kind.REQUEST, 0) + bytes(length)
    data = encode(Message(1, Kind.REQUEST, b"a")) + long + encode(Message(5, Kind.REQUEST, b"b"))
    decoder = Decoder()
    pieces = [data[start : start + chunk] for start in range(0, len(data), chunk)]
    got = [message for piece in pieces for message in decoder.feed(piece)]
    assert got == [
        Message(1, Kind.REQUEST, b"a"),
        Message(3, Kind.REQUEST, None),
        Message(5, Kind.REQUEST, b"b"),
    ]


def test_the_longest_message_comes_whole() -> None:
    longest = Message(1, Kind.REQUEST, bytes(ttrpc.MAX_DATA))
    assert list(Decoder().feed(encode(longest))) == [longest]
    with pytest.raises(RpcError, match="message length 4194305 exceeds the maximum of 4194304"):
        encode(Message(1, Kind.REQUEST, bytes(ttrpc.MAX_DATA + 1)))


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10, bytes.fromhex("01000000 00000001 01 00")])
def test_what_is_no_ttrpc_is_said_to_be_none(garbage: bytes) -> None:
    """The first byte of a header is reserved: it is zero."""
    with pytest.raises(ProtocolError, match=garbage[:10].hex()):
        list(Decoder().feed(garbage))


# --- server -----------------------------------------------------------------------------------------------------------


class Asking:
    """A server, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.server = Server({"s.S": {"Echo": lambda payload: b"<" + payload + b">", "Fail": self._fail}}, self._send)

    def _send(self, data: bytes) -> None:
        self.sent.append(data)

    @staticmethod
    def _fail(_payload: bytes) -> bytes:
        raise RpcError(42, "not today")

    def answers(self) -> list[tuple[int, int, str, bytes]]:
        """Stream, status code, status message and payload of each answer."""
        got = list(Decoder().feed(b"".join(self.sent)))
        assert all(message.kind == Kind.RESPONSE and message.flags == 0 for message in got)
        read = [(message.stream, wire.Response.FromString(message.data or b"")) for message in got]
        return [(stream, each.status.code, each.status.message, each.payload) for stream, each in read]


def request(method: str = "Echo", payload: bytes = b"", service: str = "s.S") -> bytes:
    return wire.Request(service=service, method=method, payload=payload, timeout_nano=1).SerializeToString()


@pytest.mark.parametrize(
    ("message", "code", "text", "payload"),
    [
        (Message(1, Kind.REQUEST, request(payload=b"x")), 0, "", b"<x>"),
        (Message(2**32 - 1, Kind.REQUEST, request()), 0, "", b"<>"),
        (Message(1, Kind.REQUEST, request("Nothing")), 12, "method Nothing", b""),
        (Message(1, Kind.REQUEST, request(service="s.T")), 12, "service s.T", b""),
        (Message(1, Kind.REQUEST, b""), 12, "service ", b""),
        (Message(1, Kind.REQUEST, request("Fail")), 42, "not today", b""),
        (Message(1, Kind.REQUEST, b"\xff\xff"), 3, "unmarshal request error: ", b""),
        (Message(2, Kind.REQUEST, request()), 3, "StreamID must be odd for client initiated streams", b""),
        (Message(1, Kind.DATA, b"x"), 3, "StreamID is no longer active", b""),
    ],
)
def test_7_1_every_request_is_answered_on_its_stream(message: Message, code: int, text: str, payload: bytes) -> None:
    asking = Asking()
    asking.server.receive(encode(message))
    ((stream, got_code, got_text, got_payload),) = asking.answers()
    assert (stream, got_code, got_payload) == (message.stream, code, payload)
    assert got_text.startswith(text)


@pytest.mark.parametrize("kind", [Kind.RESPONSE, 0, 4, 255])
def test_messages_of_no_use_to_a_server_are_passed_over(kind: int) -> None:
    asking = Asking()
    asking.server.receive(encode(Message(1, kind, request())))
    assert asking.sent == []
    asking.server.receive(encode(Message(1, Kind.REQUEST, request())))
    assert [code for _, code, _, _ in asking.answers()] == [0]


def test_streams_only_go_up() -> None:
    asking = Asking()
    for stream in (5, 5, 3, 7):
        asking.server.receive(encode(Message(stream, Kind.REQUEST, request())))
    assert [(stream, code) for stream, code, _, _ in asking.answers()] == [(5, 0), (5, 3), (3, 3), (7, 0)]


def test_an_oversized_request_is_refused_and_the_next_answered() -> None:
    asking = Asking()
    length = ttrpc.MAX_DATA + 1
    asking.server.receive(ttrpc.HEADER.pack(length, 1, Kind.REQUEST, 0) + bytes(length))
    asking.server.receive(encode(Message(3, Kind.REQUEST, request())))
    assert [(stream, code) for stream, code, _, _ in asking.answers()] == [(1, Code.RESOURCE_EXHAUSTED), (3, 0)]


def test_an_answer_that_is_too_long_is_a_refusal() -> None:
    sent: list[bytes] = []
    server = Server({"s.S": {"Long": lambda _payload: bytes(ttrpc.MAX_DATA)}}, sent.append)
    server.receive(encode(Message(1, Kind.REQUEST, request("Long"))))
    (answer,) = Decoder().feed(sent[0])
    assert wire.Response.FromString(answer.data or b"").status.code == Code.RESOURCE_EXHAUSTED


# --- client -----------------------------------------------------------------------------------------------------------


class Asked:
    """A client whose requests are answered by hand."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.client = Client(self._send)

    def _send(self, data: bytes) -> None:
        self.sent.extend(Decoder().feed(data))

    async def ask(self, payload: bytes = b"", timeout_s: float = 20.0) -> asyncio.Task[bytes]:
        """Have it ask; the request has been sent."""
        before = len(self.sent)
        task = asyncio.create_task(self.client.call("s.S", "M", payload, timeout_s))
        while len(self.sent) == before:
            await asyncio.sleep(0)
        return task

    def answer(self, stream: int, response: wire.Response) -> None:
        self.client.receive(encode(Message(stream, Kind.RESPONSE, response.SerializeToString())))


async def test_7_1_a_client_asks_on_odd_streams_that_go_up() -> None:
    asked = Asked()
    tasks = [await asked.ask(b"a", 5), await asked.ask(b"b")]
    assert [(message.stream, message.kind, message.flags) for message in asked.sent] == [(1, 1, 0), (3, 1, 0)]
    first = wire.Request.FromString(asked.sent[0].data or b"")
    assert (first.service, first.method, first.payload, first.timeout_nano) == ("s.S", "M", b"a", 5_000_000_000)
    asked.answer(3, wire.Response(payload=b"B"))
    asked.answer(1, wire.Response(payload=b"A", status=wire.Status(code=0, message="fine")))
    assert await asyncio.gather(*tasks) == [b"A", b"B"]


async def test_refusals_carry_code_and_text() -> None:
    asked = Asked()
    task = await asked.ask()
    asked.answer(1, wire.Response(status=wire.Status(code=12, message="method M"), payload=b"ignored"))
    with pytest.raises(RpcError, match=r"method M \(UNIMPLEMENTED\)") as refused:
        await task
    assert refused.value.code == 12
    assert str(RpcError(99, "odd")) == "odd (code 99)"


async def test_an_answer_that_comes_too_late_is_dropped() -> None:
    asked = Asked()
    task = await asked.ask(timeout_s=0.01)
    with pytest.raises(RpcError, match=r"M was not answered within 0.01 s \(DEADLINE_EXCEEDED\)"):
        await task
    second = await asked.ask()
    asked.answer(1, wire.Response(payload=b"late"))
    asked.answer(3, wire.Response(payload=b"right"))
    asked.answer(3, wire.Response(payload=b"twice"))
    assert await second == b"right"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (encode(Message(1, Kind.DATA, b"x")), Code.INTERNAL),
        (encode(Message(1, Kind.RESPONSE, b"\xff\xff")), Code.INTERNAL),
        (ttrpc.HEADER.pack(ttrpc.MAX_DATA + 1, 1, Kind.RESPONSE, 0), Code.RESOURCE_EXHAUSTED),
    ],
)
async def test_what_is_no_answer_fails_the_call_at_once(data: bytes, code: Code) -> None:
    asked = Asked()
    task = await asked.ask()
    asked.client.receive(data)
    with pytest.raises(RpcError) as failed:
        await task
    assert failed.value.code == code


async def test_a_lost_connection_fails_what_waits_and_what_is_asked_after() -> None:
    asked = Asked()
    task = await asked.ask()
    asked.client.close("the runtime is gone")
    for call in (task, asked.client.call("s.S", "M", b"", 1)):
        with pytest.raises(RpcError, match=r"the runtime is gone \(UNAVAILABLE\)"):
            await call
    assert len(asked.sent) == 1


async def test_a_call_that_is_cancelled_leaves_nothing_behind() -> None:
    asked = Asked()
    task = await asked.ask()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    asked.answer(1, wire.Response(payload=b"late"))
    second = await asked.ask()
    asked.answer(3, wire.Response(payload=b"right"))
    assert await second == b"right"


@given(st.binary(max_size=100))
def test_garbage_is_answered_or_an_error_of_its_own(data: bytes) -> None:
    asking = Asking()
    try:
        asking.server.receive(data)
        Client(lambda _data: None).receive(data)
    except ProtocolError:
        return
    asking.answers()
