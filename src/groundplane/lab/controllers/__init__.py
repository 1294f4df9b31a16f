"""The lab's controllers: what kube-controller-manager does, as far as the operator and its users can tell.

`Controllers` puts them together over one set of caches. Each controller is a module of its own; all are level-triggered
and quiet while nothing changes. Scheduling is `lab.scheduler`'s, running pods the kubelets'.
"""

import asyncio
from typing import Any

from ..api import Api
from ..clock import LabClock
from .daemonset import DaemonSetController
from .deployment import DeploymentController
from .disruption import DisruptionController
from .endpointslice import EndpointSliceController
from .everything import Everything
from .garbage import GarbageCollector
from .job import JobController
from .loop import Loop
from .namespace import NamespaceController
from .nodelifecycle import NodeLifecycleController, TaintEviction
from .podgc import PodGarbageCollector
from .replicaset import ReplicaSetController
from .shared import Shared

__all__ = ["Controllers"]


class Controllers:
    """All controllers of one API server.

    They see what is there when they are made and everything after; they act while `run` runs. `root_ca` is the text of
    the `kube-root-ca.crt` ConfigMaps.
    """

    def __init__(self, api: Api, clock: LabClock, *, root_ca: str = "") -> None:
        shared = Shared(api, clock)
        everything = Everything(shared)
        self.shared = shared
        self._daemon_sets = DaemonSetController(shared)
        self._pod_gc = PodGarbageCollector(shared)
        self._loops: list[Loop[Any]] = [
            NamespaceController(shared, everything, root_ca=root_ca).loop,
            NodeLifecycleController(shared).loop,
            TaintEviction(shared).loop,
            self._daemon_sets.loop,
            DeploymentController(shared).loop,
            ReplicaSetController(shared).loop,
            JobController(shared).loop,
            DisruptionController(shared).loop,
            EndpointSliceController(shared).loop,
            self._pod_gc.loop,
            GarbageCollector(shared, everything).loop,
        ]

    @property
    def idle(self) -> bool:
        """Whether no controller has work at hand; timers may still be running."""
        return not any(len(loop) for loop in self._loops)

    @property
    def resting(self) -> bool:
        """Whether no controller will do anything by itself: it is idle, repeats nothing, holds no status back, and
        no pod waits to be collected.

        Leases, deadlines and the like may still end.
        """
        pending = self._daemon_sets.pending or bool(self._pod_gc.loop.timers)
        return self.idle and not pending and not any(loop.failing for loop in self._loops)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for loop in self._loops:
                group.create_task(loop.run(), name=f"controller {loop.name}")
