"""The operator as a whole: caches, controllers, servers, lease, and an orderly end.

:func:`run` is what the ``gpu-operator`` executable and the lab call. Everything it needs is a parameter. It holds no
state that matters: it may be killed at any point and started anywhere else.
"""

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from ..api import names
from ..cluster.client import Client
from ..cluster.events import EventRecorder
from ..cluster.lease import LeaderLease
from ..cluster.views import GpuNodeView, NodeView
from . import denials
from .caches import Caches
from .clock import Clock, SystemClock
from .denials import Denials
from .drivers import Drivers
from .driverstore import DriverStore
from .metrics import Metrics
from .nodes import NodeStore
from .policy import Policies
from .retries import Gate
from .settings import Settings
from .upgrade.controller import Upgrades

__all__ = ["Operator", "Settings", "run"]

log = logging.getLogger(__name__)

COMPONENT: Final = "nvidia-gpu-operator"
HEAD_START_S: Final = 10.0
"""How long the first pass over the policy lets the nodes get their labels first.

Pods are placed by them, and until they are there all that a pass writes only takes the API server's time from them.
"""
DRAIN_S: Final = 10.0
"""How long writes in flight may take to end when the process is asked to stop."""


class Operator:
    """One operator process. :meth:`run` may be called once."""

    def __init__(self, settings: Settings, client: Client, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.metrics_port = 0
        self.health_port = 0
        self.leading = asyncio.Event()
        self._client = client
        self._clock = clock or SystemClock()
        self._caches: Caches | None = None
        self._denials = Denials()
        self._denials.on_change(lambda: self.metrics.set("missing_permissions", self._denials.count))
        self._controllers: tuple[Policies | Drivers | Upgrades, ...] = ()

    @property
    def idle(self) -> bool:
        """We lead, know the cluster, and have nothing to do until a watch brings news."""
        return bool(self._controllers) and all(each.idle for each in self._controllers)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve, lead and work until ``stop`` is set. Raises :class:`~..cluster.lease.LeaseLost` if another leads."""
        serving = asyncio.create_task(self._serve(), name="endpoints")
        working = asyncio.create_task(self._elect(stop), name="work")
        try:
            done, _ = await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            working.cancel()
            await asyncio.wait({working})
            serving.cancel()
            await asyncio.wait({serving})

    async def _serve(self) -> None:
        """Serve metrics and probes until cancelled. Raises :class:`OSError` if an address cannot be listened on.

        The web server's modules are loaded beside the first requests: nobody asks for them in the first moment.
        """
        await asyncio.to_thread(importlib.import_module, f"{__package__}.health")
        from . import health

        async with contextlib.AsyncExitStack() as stack:
            figures = health.Endpoint(health.metrics_app(self.metrics), self.settings.metrics_address)
            checks = health.probes_app(self._alive, self._ready, self._remarks)
            probes = health.Endpoint(checks, self.settings.health_address)
            self.metrics_port = (await stack.enter_async_context(figures)).port
            self.health_port = (await stack.enter_async_context(probes)).port
            await asyncio.Event().wait()

    def _alive(self) -> str | None:
        """Answering at all is being alive: a controller that dies takes the process with it."""
        return None

    def _ready(self) -> str | None:
        """A candidate for the lease is ready to take over; a leader once it knows the cluster and may say so."""
        if not self.leading.is_set():
            return "the lease may not be taken" if self._denials.at(denials.LEASE) else None
        waiting = self._caches.unsynced if self._caches else ["nothing is known yet"]
        if waiting:
            return "\n".join(["the first listing of the cluster is not complete", *waiting])
        return "the status of the ClusterPolicy cannot be written" if self._denials.at(denials.STATUS) else None

    def _remarks(self) -> str:
        """Every permission that is missing now: for some of them there is no other place to say so."""
        return denials.tell(self._denials.present())

    async def _elect(self, stop: asyncio.Event) -> None:
        """Wait for the lease if there is one to hold, then work; a stop ends the waiting too."""
        if not self.settings.leader_elect:
            await self._lead(stop)
            return
        lease = LeaderLease(
            self._client,
            names.LEASE_NAME,
            self.settings.lease_namespace,
            self.settings.identity,
            duration_s=self.settings.lease_duration_s,
            renew_deadline_s=self.settings.renew_deadline_s,
            clock=self._clock.monotonic,
            sleep=self._clock.sleep,
            now=self._clock.now,
            heard=lambda error: self._denials.note(denials.LEASE, error),
        )
        candidacy = asyncio.create_task(lease.run(lambda: self._lead(stop)), name="leader election")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({candidacy, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self.leading.is_set() or candidacy.done():
                await candidacy
        finally:
            for task in (candidacy, stopped):
                task.cancel()
            await asyncio.wait({candidacy, stopped})

    async def _lead(self, stop: asyncio.Event) -> None:
        """Watch and work until ``stop``; then let writes in flight finish."""
        self.leading.set()
        gate = Gate()
        caches = self._caches = Caches(
            self._client,
            self.settings.namespace,
            clock=self._clock,
            denials=self._denials,
            node_view=GpuNodeView if self.settings.diagnosis else NodeView,
        )
        events = EventRecorder(
            self._client,
            COMPONENT,
            self.settings.namespace,
            instance=self.settings.identity,
            now=self._clock.now,
            clock=self._clock.monotonic,
            sleep=self._clock.sleep,
            heard=lambda error: self._denials.note(denials.EVENTS, error),
        )
        async with events, contextlib.aclosing(caches):
            await _until(stop, caches.open_first())
            if stop.is_set():
                return
            nodes, store = NodeStore(caches.nodes), DriverStore(caches)
            policies = Policies(
                self._client,
                caches,
                nodes,
                store,
                self.settings,
                clock=self._clock,
                figures=self.metrics,
                events=events,
                denials=self._denials,
                guard=gate.guard,
            )
            upgrades = Upgrades(
                self._client,
                caches,
                nodes,
                store,
                self.settings,
                policy=lambda: policies.in_force,
                clock=self._clock,
                figures=self.metrics,
                events=events,
                denials=self._denials,
                told=policies.wake,
                labelled=policies.labelling.wait_settled,
                guard=gate.guard,
            )
            drivers = Drivers(
                self._client,
                caches,
                nodes,
                store,
                self.settings,
                policy=lambda: policies.in_force,
                rollouts=policies.rollouts,
                writer=policies.writer,
                clock=self._clock,
                events=events,
                denials=self._denials,
                held_up=lambda: policies.held_up,
                guard=gate.guard,
            )
            policies.on_election(upgrades.wake)
            policies.on_election(drivers.wake)
            policies.on_rollout(drivers.wake)
            policies.upgrade_problems(lambda: upgrades.problems)
            policies.start()
            controllers = [
                asyncio.create_task(self._work(caches, policies, drivers, upgrades, events), name="work"),
                asyncio.create_task(policies.labelling.run(), name="nodes"),
            ]
            try:
                await _first(stop, controllers)
                log.info("stopping: finishing what is being written")
                if not await gate.close(DRAIN_S):
                    log.warning("some writes did not end within %g s", DRAIN_S)
            finally:
                self._controllers = ()
                for task in controllers:
                    task.cancel()
                await asyncio.gather(*controllers, return_exceptions=True)

    async def _work(
        self, caches: Caches, policies: Policies, drivers: Drivers, upgrades: Upgrades, events: EventRecorder
    ) -> None:
        """Policies and drivers, once the nodes have had their head start and the rest of the cluster is known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START_S):
                await caches.nodes.wait_settled()
                await policies.labelling.wait_settled()
        await caches.open()
        self._controllers = (policies, drivers, upgrades)
        log.info("working: %d nodes, %d policies", len(caches.nodes), len(caches.policies))
        drivers.start()
        upgrades.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(policies.run(), name="policies")
            group.create_task(drivers.run(), name="drivers")
            group.create_task(upgrades.run(), name="upgrades")
            if self.settings.diagnosis:
                group.create_task(self._diagnose(caches, events), name="diagnosis")

    async def _diagnose(self, caches: Caches, events: EventRecorder) -> None:
        """The doctor's verdict on the nodes. Its modules are loaded by those who ask for it, beside other work."""
        await asyncio.to_thread(importlib.import_module, f"{__package__}.diagnosis.loop")
        from .diagnosis.loop import Diagnosis

        diagnosis = Diagnosis(
            self._client, caches, self.settings, clock=self._clock, events=events, denied=self._denials
        )
        self.metrics.more = (diagnosis.figures,)
        try:
            await diagnosis.run()
        finally:
            self.metrics.more = ()


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``, or abandon it when ``stop`` is set."""
    task = asyncio.create_task(work)
    try:
        await _first(stop, [task])
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _first(stop: asyncio.Event, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Until ``stop`` is set or one of ``tasks`` ends; raises what it raised."""
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    for task in tasks:
        if task.done():
            task.result()


async def run(settings: Settings, client: Client, *, stop: asyncio.Event, clock: Clock | None = None) -> None:
    """Run one operator until ``stop`` is set."""
    await Operator(settings, client, clock=clock).run(stop)
