"""The node-status exporter: what is valid on this node, as metrics (contracts/mig-exporter-validator.md 6.7).

Everything is looked at in the background, each thing at its own pace; a scrape shows what was found last and waits for
nothing. The driver is looked at without waiting and without touching status files, as other operands wait for those.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    gc_collector,
    generate_latest,
    platform_collector,
    process_collector,
)

from ...api import names
from .. import requestlog
from . import driver, layers, sandbox
from .components import MODULES
from .context import Context
from .errors import NotReady, ValidationError

PREFIX: Final = "gpu_operator_node"
GAUGES: Final[Mapping[str, str]] = {
    f"{PREFIX}_metrics_ready_ts_seconds": "When this exporter began, in seconds since the epoch",
    f"{PREFIX}_driver_ready": "Whether the driver was validated on this node (1) or not (0)",
    f"{PREFIX}_toolkit_ready": "Whether the container toolkit was validated on this node (1) or not (0)",
    f"{PREFIX}_plugin_ready": "Whether the device plugin was validated on this node (1) or not (0)",
    f"{PREFIX}_cuda_ready": "Whether CUDA was validated on this node (1) or not (0)",
    f"{PREFIX}_driver_validation": "Whether the driver works at present (1) or not (0)",
    f"{PREFIX}_driver_validation_last_success_ts_seconds": "When the driver was last found to work",
    f"{PREFIX}_device_plugin_devices_total": "GPU devices that the node offers; -1 if that cannot be found out",
    f"{PREFIX}_device_plugin_validation_last_success_ts_seconds": "When the node was last found to offer GPU devices",
    "gpu_operator_nvidia_pci_devices_total": "NVIDIA devices on the PCI bus; -1 if that cannot be found out",
}
READY_FILES: Final = ("driver", "toolkit", "plugin", "cuda")
FILES_S, DRIVER_S, DEVICES_S, PCI_S = 30.0, 60.0, 30.0, 60.0
"""Seconds between two looks."""
UNKNOWN: Final = -1
PATH: Final = "/metrics"


class Exporter:
    """Looks at the node and serves what it finds."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._registry = CollectorRegistry()
        node = context.settings.node
        self._gauges: dict[str, Gauge] = {
            name: Gauge(name, text, ["node"], registry=self._registry).labels(node) for name, text in GAUGES.items()
        }
        for collector in (
            process_collector.ProcessCollector,
            platform_collector.PlatformCollector,
            gc_collector.GCCollector,
        ):
            collector(registry=self._registry)

    def text(self) -> bytes:
        """The metrics, in Prometheus' text format."""
        return generate_latest(self._registry)

    async def run(self) -> None:
        """Serve until cancelled. Raises :class:`~.errors.ValidationError` if it cannot listen."""
        self._set(f"{PREFIX}_metrics_ready_ts_seconds", self._now())
        app = web.Application()
        app.router.add_get(PATH, self._metrics)
        runner = web.AppRunner(app, access_log=None, logger=requestlog.LOGGER)
        await runner.setup()
        assert runner.server is not None
        process, port = self._context.process, self._context.settings.port
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(runner.cleanup)
            try:
                await stack.enter_async_context(process.serve(runner.server, None, port))
            except OSError as error:
                reason = error.strerror or error
                raise ValidationError(f"cannot listen on port {port} for the metrics: {reason}") from error
            process.log.info(f"Serving the node's metrics on port {port}, {PATH}")
            await self._look()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _look(self) -> None:
        await asyncio.gather(
            self._every(FILES_S, self.look_at_files),
            self._every(DRIVER_S, self.look_at_driver),
            self._every(DEVICES_S, self.look_at_devices),
            self._every(PCI_S, self.look_at_bus),
        )

    async def _every(self, seconds: float, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            await look()
            await self._context.process.sleep(seconds)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def look_at_files(self) -> None:
        """Which status files are there."""
        for component in READY_FILES:
            there = self._context.status.has(f"{component}-ready")
            self._context.note(component, f"{component} is {'' if there else 'not '}ready")
            self._set(f"{PREFIX}_{component}_ready", int(there))

    async def look_at_driver(self) -> None:
        """Whether the driver works, with the modules that its container says it has loaded."""
        try:
            found = await driver.check(self._context, quiet=True)
            for extra in found.extras:
                await layers.require_module(self._context, MODULES[extra])
        except ValidationError as error:
            self._context.note("driver-validation", f"The driver does not work: {error}")
            self._set(f"{PREFIX}_driver_validation", 0)
            return
        self._context.note("driver-validation", "The driver works")
        self._set(f"{PREFIX}_driver_validation", 1)
        self._set(f"{PREFIX}_driver_validation_last_success_ts_seconds", self._now())

    async def look_at_devices(self) -> None:
        """How many GPU devices the node offers."""
        try:
            node = await self._context.node("the metrics")
        except NotReady as error:
            self._context.note("devices", f"The node's devices cannot be counted: {error}")
            self._set(f"{PREFIX}_device_plugin_devices_total", UNKNOWN)
            return
        prefixes = (names.GPU_RESOURCE, names.MIG_RESOURCE_PREFIX)
        capacity = node.status.capacity or {}
        total = sum(layers.count(value) for name, value in capacity.items() if name.startswith(prefixes))
        self._context.note("devices", f"The node offers {total} GPU devices")
        self._set(f"{PREFIX}_device_plugin_devices_total", total)
        if total:
            self._set(f"{PREFIX}_device_plugin_validation_last_success_ts_seconds", self._now())

    async def look_at_bus(self) -> None:
        """How many devices of NVIDIA's are on the PCI bus: GPUs, their audio functions, switches."""
        try:
            total = sum(1 for _ in sandbox.nvidia_devices(self._context.process.kernel))
        except OSError as error:
            self._context.note("bus", f"NVIDIA's PCI devices cannot be counted: {error}")
            total = UNKNOWN
        else:
            self._context.note("bus", f"NVIDIA's devices on the PCI bus: {total}")
        self._set("gpu_operator_nvidia_pci_devices_total", total)

    def _set(self, name: str, value: float) -> None:
        self._gauges[name].set(value)

    def _now(self) -> int:
        return int(self._context.process.now().timestamp())
