"""Frames of the connection multiplexer (contracts/toolkit-cdi.md 7.1, "Mux frame")."""

import asyncio
import itertools
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.toolkit.nri import mux


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The bytes, cut at some places."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def test_7_1_a_frame_on_the_wire() -> None:
    assert list(mux.frames(1, b"abc")) == [bytes.fromhex("00000001 00000003") + b"abc"]
    assert list(mux.frames(2**32 - 1, b"\0")) == [bytes.fromhex("ffffffff 00000001 00")]
    assert mux.MAX_PAYLOAD == 4 * 1024 * 1024 + 10
    assert (mux.RESERVED, mux.PLUGIN_SERVICE, mux.RUNTIME_SERVICE) == (0, 1, 2)


def test_what_is_longer_than_a_frame_goes_in_several() -> None:
    data = bytes(2 * mux.MAX_PAYLOAD + 1)
    sent = list(mux.frames(7, data))
    assert [len(frame) - mux.HEADER.size for frame in sent] == [mux.MAX_PAYLOAD, mux.MAX_PAYLOAD, 1]
    got = list(mux.Decoder().feed(b"".join(sent)))
    assert {frame.channel for frame in got} == {7}
    assert b"".join(frame.payload for frame in got) == data


@given(
    sent=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=8),
    places=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_frames_come_through_however_they_are_cut(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    wire = b"".join(mux.HEADER.pack(channel, len(payload)) + payload for channel, payload in sent)
    decoder = mux.Decoder()
    got = [frame for piece in cut(wire, places) for frame in decoder.feed(piece)]
    assert got == sent


@pytest.mark.parametrize("length", [mux.MAX_PAYLOAD + 1, 2**32 - 1])
def test_a_frame_that_is_too_long_ends_it(length: int) -> None:
    got = []
    with pytest.raises(mux.ProtocolError, match=rf"a frame of {length} bytes came on channel 9; at most 4194314 may"):
        for frame in mux.Decoder().feed(mux.HEADER.pack(1, 1) + b"x" + mux.HEADER.pack(9, length)):
            got.append(frame)  # noqa: PERF402 - what came before the bad one counts
    assert got == [(1, b"x")]


@given(st.binary(max_size=200))
def test_garbage_is_frames_or_an_error_of_its_own(data: bytes) -> None:
    decoder = mux.Decoder()
    try:
        got = list(decoder.feed(data))
    except mux.ProtocolError:
        return
    assert sum(len(frame.payload) + mux.HEADER.size for frame in got) <= len(data)


async def connected() -> tuple[mux.Mux, asyncio.StreamReader, asyncio.StreamWriter]:
    """A multiplexer, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    return mux.Mux(*await asyncio.open_unix_connection(sock=ours)), reader, writer


async def test_channels_are_apart_and_strangers_are_dropped() -> None:
    ours, _, writer = await connected()
    got: dict[int, bytes] = {1: b"", 2: b""}
    for channel in got:
        ours.open(channel, lambda data, channel=channel: got.update({channel: got[channel] + data}))
    for channel, data in ((1, b"a"), (2, b"x"), (0, b"?"), (77, b"?"), (1, b""), (1, b"b")):
        writer.write(mux.HEADER.pack(channel, len(data)) + data)
    writer.close()
    await ours.run()
    ours.close()
    assert got == {1: b"ab", 2: b"x"}


async def test_the_reserved_channel_cannot_be_opened() -> None:
    ours, _, writer = await connected()
    with pytest.raises(ValueError, match="reserved"):
        ours.open(0, lambda _data: None)
    ours.close()
    writer.close()


async def test_a_peer_that_does_not_read_is_not_listened_to() -> None:
    """What it is owed would pile up in memory otherwise."""
    ours, reader, writer = await connected()
    owed = bytes(1 << 20)
    asked = []

    def answer(data: bytes) -> None:
        asked.append(data)
        ours.send(1, owed)

    ours.open(1, answer)
    running = asyncio.create_task(ours.run())
    for _ in range(50):
        writer.write(mux.HEADER.pack(1, 1) + b"?")
        await writer.drain()
        await asyncio.sleep(0.001)
    assert len(asked) < 10, "it has stopped reading"
    read = 0
    while read < 50 * (len(owed) + mux.HEADER.size):
        read += len(await reader.read(1 << 20))
    assert len(asked) == 50, "and goes on when the peer does"
    writer.close()
    await running
    ours.close()
