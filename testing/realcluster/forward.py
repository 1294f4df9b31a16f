"""Hands connections on from one network namespace into another: `python -m testing.realcluster.forward FD HOST PORT`.

The listening socket FD was made where the callers are and is inherited; this program runs where HOST:PORT can be
reached. So callers on the machine's loopback address reach a server in a namespace, and the machine's own network
stays as it is.
"""

import asyncio
import contextlib
import socket
import sys

CHUNK = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError, OSError):
        writer.write_eof()


async def _main(fd: int, host: str, port: int) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:  # nobody listens there: the caller sees its connection closed, as without us
            writer.close()
            return
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            back.close()
            writer.close()

    server = await asyncio.start_server(accepted, sock=socket.socket(fileno=fd), limit=CHUNK)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
