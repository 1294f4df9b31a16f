"""One connection between the plugin and a runtime, from its opening to its loss.

It reads on its own from the start: the runtime may ask before the plugin's registration is answered. Whether to
connect again is for `plugin` to decide.
"""

import asyncio
from functools import partial
from typing import Final

from ...process import wait_any
from . import mux, service, ttrpc
from .stubs import nri_pb2 as wire

CLOSED: Final = "the runtime closed the connection"


class Session:
    """A connection; `close` it at the end. Make it where an event loop runs."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        plugin: service.PluginService,
    ) -> None:
        self._plugin = plugin
        self._mux = mux.Mux(reader, writer)
        self._client = ttrpc.Client(partial(self._mux.send, mux.RUNTIME_SERVICE))
        server = ttrpc.Server(plugin.services(), partial(self._mux.send, mux.PLUGIN_SERVICE))
        self._mux.open(mux.RUNTIME_SERVICE, self._client.receive)
        self._mux.open(mux.PLUGIN_SERVICE, server.receive)
        self._reading = asyncio.create_task(self._read(), name="NRI connection")

    async def _read(self) -> str:
        """Serve until the connection is lost; why it is."""
        reason = CLOSED
        try:
            await self._mux.run()
        except OSError as error:
            reason = f"the connection is lost: {error}"
        except Exception as error:  # noqa: BLE001 - a mistake of this program costs a connection, never the plugin
            reason = f"the connection is given up for an internal error: {type(error).__name__}: {error}"
        finally:
            self._client.close(reason)
            self._mux.close()
        return reason

    async def register(self, name: str, index: str, within_s: float) -> None:
        """Register the plugin, and wait until the runtime has configured it.

        Raises:
            ttrpc.RpcError: the runtime refused, was too slow, or went away.
        """
        request = wire.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        payload = request.SerializeToString()
        await self._client.call(service.RUNTIME_SERVICE, "RegisterPlugin", payload, within_s)
        try:
            async with asyncio.timeout(within_s):
                await wait_any(self._plugin.configured.wait(), self.lost())
        except TimeoutError:
            text = f"the runtime registered the plugin but did not configure it within {within_s:g} s"
            raise ttrpc.RpcError(ttrpc.Code.DEADLINE_EXCEEDED, text) from None
        if not self._plugin.configured.is_set():
            raise ttrpc.RpcError(ttrpc.Code.UNAVAILABLE, f"{await self.lost()} before it configured the plugin")

    async def lost(self) -> str:
        """Wait until the connection is lost; why it is."""
        return await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Close the connection."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._mux.close()
