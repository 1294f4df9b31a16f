"""Undoing what a run has paused and stopped, whoever did it and however it ended.

contracts/mig-exporter-validator.md 3.6. What there is to undo is told by the node's labels and by the record of stopped
services, never by this program's memory: what an earlier run left behind is undone too.
"""

from collections.abc import Mapping
from typing import Final

from ....cluster.errors import ClusterError
from ...process import Log
from . import operands
from .cluster import Cluster, State
from .errors import EXPECTED
from .services import Services

UNFINISHED: Final = frozenset({State.PENDING.value, State.REBOOTING.value})
"""States that a run leaves only if it was killed or the node was rebooted."""
_KILLED: Final = "an earlier run did not come to its end, and the label no longer asks for a layout"


class Undo:
    """Lets the host's services and the operands go on."""

    def __init__(self, cluster: Cluster, services: Services, log: Log) -> None:
        self._cluster = cluster
        self._services = services
        self._log = log

    async def failed(self, failure: str) -> bool:
        """Undo, and let the state be ``failed``; whether all of that is done. What is not, the log says."""
        services = await self._start_services()
        labels: Mapping[str, str] = {}
        done = services
        try:
            labels = operands.paused((await self._cluster.now()).labels)
        except ClusterError as error:  # labels that cannot be read are not written
            self._log.error(f"restoring operands: {error}")
            done = False
        try:
            await self._cluster.write(State.FAILED, labels, failure=failure)
        except ClusterError as error:
            self._log.error(f"setting the state to {State.FAILED}: {error}")
            done = False
        return done

    async def leftovers(self) -> bool:
        """Undo what was left behind, if anything was; whether nothing is left."""
        services = await self._start_services()
        try:
            now = await self._cluster.now()
            labels = operands.paused(now.labels)
            if now.state in UNFINISHED:
                await self._cluster.write(State.FAILED, labels, failure=_KILLED)
            else:
                await self._cluster.label(labels)
        except ClusterError as error:
            self._log.error(f"restoring operands: {error}")
            return False
        return services

    async def _start_services(self) -> bool:
        try:
            await self._services.restart()
        except EXPECTED as error:
            self._log.error(f"starting host services: {error}")
            return False
        return True
