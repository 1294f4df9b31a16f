"""The ``gpu-operator`` executable: read the flags, reach the cluster, run until told to stop."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

from .. import __version__
from ..cluster.client import Client
from ..cluster.config import Config
from ..cluster.errors import ClusterError
from . import logs, process, settings
from .settings import Settings, SettingsError

log = logging.getLogger(__name__)

EXTRA_IN_FLIGHT = 16
"""Requests at once besides node patches."""

USER_AGENT = f"gpu-operator/{__version__}"
"""How the operator names itself to the API server, whose audit log tells it from the commands by it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator; the exit status. 1 for settings that cannot work or a cluster that cannot be reached."""
    try:
        chosen = settings.parse(sys.argv[1:] if argv is None else argv)
        for address in filter(None, (chosen.metrics_address, chosen.health_address)):
            settings.split_address(address)
        config = Config.detect(kubeconfig=chosen.kubeconfig)
    except (SettingsError, ClusterError) as error:
        sys.stderr.write(f"gpu-operator: {error}\n")
        return 1
    logs.configure(level=chosen.log_level, devel=chosen.log_devel, time_encoding=chosen.log_time)
    log.info("groundplane %s, as GPU Operator %s, in namespace %s", __version__, chosen.release, chosen.namespace)
    try:
        asyncio.run(_run(chosen, config))
    except (ClusterError, OSError) as error:
        log.error("stopped: %s", error)
        return 1
    return 0


async def _run(chosen: Settings, config: Config) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # a platform without signal handlers in the event loop
            loop.add_signal_handler(number, stop.set)
    in_flight = chosen.node_writes_in_flight + EXTRA_IN_FLIGHT
    async with Client(config, user_agent=USER_AGENT, max_in_flight=in_flight) as client:
        await process.run(chosen, client, stop=stop)
