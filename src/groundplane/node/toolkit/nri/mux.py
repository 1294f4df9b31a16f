"""Several byte streams ("channels") over one socket, as NRI lays them there (contracts/toolkit-cdi.md 7.1).

A frame is a channel's number, a length, and so many bytes of that channel's stream. Where a message begins and ends is
no concern of this module: `ttrpc` finds out. What comes is handed on at once, so nothing is kept here but a frame that
has not wholly come.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

HEADER: Final = struct.Struct(">II")
MAX_PAYLOAD: Final = (4 << 20) + 10
"""Bytes of the longest payload of a frame: the longest ttrpc message with its header."""

RESERVED: Final = 0
PLUGIN_SERVICE: Final = 1
"""The channel on which the runtime asks and the plugin answers."""
RUNTIME_SERVICE: Final = 2
"""The channel on which the plugin asks and the runtime answers."""

_CHUNK: Final = 64 << 10

Receive: TypeAlias = Callable[[bytes], None]


class ProtocolError(ConnectionError):
    """What came is not what the protocol allows; the connection is of no more use. The text says what came."""


class Frame(NamedTuple):
    """A piece of a channel's stream."""

    channel: int
    payload: bytes


def frames(channel: int, data: bytes) -> Iterator[bytes]:
    """The frames, as they go over the socket, that carry some bytes of a channel; none for no bytes."""
    for start in range(0, len(data), MAX_PAYLOAD):
        payload = data[start : start + MAX_PAYLOAD]
        yield HEADER.pack(channel, len(payload)) + payload


class Decoder:
    """Finds frames in what comes from a socket, however it is cut into pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with `data`; iterate to the end before the next call.

        Raises:
            ProtocolError: a frame is longer than :data:`MAX_PAYLOAD`.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            channel, length = HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                raise ProtocolError(f"a frame of {length} bytes came on channel {channel}; at most {MAX_PAYLOAD} may")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(memoryview(self._buffer)[HEADER.size : end])
            del self._buffer[:end]
            yield Frame(channel, payload)


class Mux:
    """The channels of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._receivers: dict[int, Receive] = {}

    def open(self, channel: int, receive: Receive) -> None:
        """Have the bytes of a channel handed to `receive`, in order; those of channels not opened are dropped."""
        if channel == RESERVED:
            raise ValueError("channel 0 is reserved")
        self._receivers[channel] = receive

    def send(self, channel: int, data: bytes) -> None:
        """Send bytes on a channel; what is sent at once is not torn apart by other channels.

        Does not wait: a peer that does not read is not listened to either (`run`), which bounds what can pile up.
        """
        for frame in frames(channel, data):
            self._writer.write(frame)

    async def run(self) -> None:
        """Hand on what comes until the peer closes the connection.

        Raises:
            ProtocolError: a frame is too long, or a receiver has said that its channel's bytes make no sense.
            OSError: the connection is lost.
        """
        decoder = Decoder()
        while data := await self._reader.read(_CHUNK):
            for channel, payload in decoder.feed(data):
                if receive := self._receivers.get(channel):
                    receive(payload)
            await self._writer.drain()

    def close(self) -> None:
        """Close the connection, with what has not been sent yet given up."""
        self._writer.transport.abort()
