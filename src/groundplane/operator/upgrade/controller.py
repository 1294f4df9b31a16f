"""The upgrade controller: observe, let the state machine decide, carry out, count (contracts/driver-lifecycle.md 1-3).

One key, one worker: a pass looks at every node with a driver, so there is nothing to do side by side but the writes.
Who is upgraded by which policy says ``scope``, what happens next to a node ``machine``; here facts are gathered for
them (``bynode``, ``work``) and their decisions are carried out, each node's in one patch. Nothing is remembered that
matters: the labels and annotations of the nodes are the truth, and a process that starts anew goes on from there.

Where NVIDIA's controller looks every two minutes and when a state label has changed, this one also hears of pods,
cordons and readiness, so a node moves on when it can.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from ...api import names, nvidiadriver
from ...cluster import kinds
from ...cluster.client import Client, PatchType
from ...cluster.errors import ClusterError, Conflict, NotFound
from ...cluster.events import EventRecorder, Reference
from ...cluster.queue import Controller, Requeue
from ...cluster.views import NodeView, PodView
from .. import denials as places
from ..caches import Caches
from ..clock import Clock
from ..denials import Denials
from ..driverstore import DriverStore
from ..metrics import Metrics
from ..nodes import NodeStore
from ..policy import InForce
from ..retries import Backoff, Guard
from ..settings import Settings
from . import bynode, machine, observed, scope
from .bynode import ByNode, DriverPodView
from .model import (
    DaemonSetFacts,
    Decision,
    DeletePod,
    DriverPod,
    NodeFacts,
    Problem,
    StartEviction,
    ValidatorPod,
    Work,
)
from .scope import Outcome, Scope
from .states import State
from .troubles import Troubles
from .work import Works

log = logging.getLogger(__name__)

KEY: Final = "upgrades"
REASON: Final = "GPUDriverUpgrade"
GATHER_S: Final = 0.2
"""News comes in flocks, and a pass looks at everything: so long it waits for the rest of one."""
JOBS_S: Final = 15.0
"""While nodes wait for jobs to end, these are looked at so often: pods of the user's choice are not watched."""
SOON_S: Final = 5.0
"""When a pass is repeated that could not begin."""
PODS_S: Final = 30.0
"""How long a pass waits for the first listing of pods."""
LABELLING_S: Final = 5.0

GAUGES: Final = {
    "in_progress": "nodes_upgrades_in_progress",
    "done": "nodes_upgrades_done",
    "slots": "nodes_upgrades_available",
    "failed": "nodes_upgrades_failed",
    "pending": "nodes_upgrades_pending",
}
"""Counts of a pass, and the gauges that tell them (3.13)."""


class Upgrades:
    """The controller."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        nodes: NodeStore,
        drivers: DriverStore,
        settings: Settings,
        *,
        policy: Callable[[], InForce],
        clock: Clock,
        figures: Metrics,
        events: EventRecorder,
        denials: Denials,
        told: Callable[[], None] = lambda: None,
        labelled: Callable[[], Awaitable[None]] | None = None,
        guard: Guard = lambda reconcile: reconcile,
    ) -> None:
        self._client = client
        self._caches = caches
        self._nodes = nodes
        self._drivers = drivers
        self._settings = settings
        self._policy = policy
        self._clock = clock
        self._figures = figures
        self._events = events
        self._denials = denials
        self._told = told
        self._labelled = labelled
        self._backoff: Backoff[str] = Backoff()
        self._writes = asyncio.Semaphore(settings.node_writes_in_flight)
        self._works = Works(
            client,
            settings.release,
            sleep=clock.sleep,
            ended=lambda _node: self.wake(),
            heard=lambda error: denials.note(places.EVICTIONS, error),
        )
        self._pods: ByNode[DriverPodView, DriverPod] | None = None
        self._selector = ""
        self._validators: ByNode[PodView, ValidatorPod] | None = None
        self._troubles = Troubles()
        self._problems: tuple[Problem, ...] = ()
        self._controller: Controller[str] = Controller(
            KEY, guard(self._reconcile), workers=1, clock=clock.monotonic, sleep=clock.sleep
        )

    @property
    def idle(self) -> bool:
        """Nothing is being worked on, and nothing is under way on a node."""
        return self._controller.queue.resting and not any(not work.done for work in self._works.all.values())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What an administrator has to look at, as of the last pass and lasting."""
        return self._problems

    def start(self) -> None:
        """Listen to everything a pass depends on."""
        self._nodes.on_change(self._node_changed)
        self._caches.revisions.subscribe(lambda _change: self.wake())
        self._caches.on_daemon_set(self._daemon_set_changed)
        self._caches.on_drivers(self.wake)
        self.wake()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._controller.run()
        finally:
            await self._works.aclose()

    def wake(self) -> None:
        """Something changed that a pass may depend on."""
        self._controller.add_after(KEY, GATHER_S)

    # --- news ---------------------------------------------------------------------------------------------------------

    def _node_changed(self, name: str, old: NodeView | None, new: NodeView | None) -> None:
        del name
        if _node_facts_of(old) != _node_facts_of(new):
            self.wake()

    def _daemon_set_changed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        labels = ((new or old or {}).get("metadata") or {}).get("labels") or {}
        if any(labels.get(key) == value for key, value in scope.SELECTORS):
            self.wake()

    def _validator_changed(self, node: str) -> None:
        view = self._nodes.get(node)
        state = view.labels.get(names.UPGRADE_STATE, "") if view is not None else ""
        if state in observed.VALIDATED:
            self.wake()

    # --- one pass -----------------------------------------------------------------------------------------------------

    async def _reconcile(self, _key: str) -> Requeue | None:
        await self._after_labelling()
        now_in_force = self._scope()
        if now_in_force is None:
            return None
        try:
            return await self._pass(now_in_force)
        except ClusterError as error:
            if not self._denials.note(places.UPGRADES, error):
                log.warning("driver upgrades: %s", error)
            return self._backoff.failed(KEY, error)

    async def _after_labelling(self) -> None:
        """Let node labelling write first: two patches of one node at once would cost one of them another try."""
        if self._labelled is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LABELLING_S):
                    await self._labelled()

    async def _pass(self, about: Scope) -> Requeue | None:
        if about.enabled is not None:
            self._figures.set("driver_auto_upgrade_enabled", about.enabled)
        if not about.machines:
            await self._stop_watching()
        elif not await self._watching(about.selector):
            return Requeue(SOON_S)
        if orphans := self._orphans(about):
            failed = await self._carry_out(orphans)
            return self._backoff.failed(KEY, failed) if failed is not None else Requeue(GATHER_S)
        daemon_sets = self._daemon_sets(about.selector) if about.machines else {}
        nodes = await self._node_facts(about, daemon_sets)
        outcome = scope.decide(about, int(self._clock.now().timestamp()), nodes, daemon_sets, self._works.all)
        if outcome.counts is not None:
            for field, gauge in GAUGES.items():
                self._figures.set(gauge, getattr(outcome.counts, field))
        lasting, again_s = self._troubles.found(outcome.problems, self._clock.monotonic())
        failed = await self._carry_out(self._due(each) for each in outcome.decisions)
        self._denials.note(places.UPGRADES, failed)
        self._tell(outcome, lasting)
        if failed is not None:
            return self._backoff.failed(KEY, failed)
        self._backoff.succeeded(KEY)
        return self._next(about, outcome, again_s)

    def _due(self, decision: Decision) -> Decision:
        """The decision, without the event of a problem that is not to be told now."""
        problem = decision.problem
        if problem is None or self._troubles.due(problem, self._clock.monotonic()):
            return decision
        return msgspec.structs.replace(decision, events=())

    def _next(self, about: Scope, outcome: Outcome, again_s: float | None) -> Requeue | None:
        """When to look again, though nothing happens."""
        if about.requeue_s is None:
            return Requeue(again_s) if again_s is not None else None
        waits = [float(about.requeue_s)]
        if any(decision.to is not None for decision in outcome.decisions):
            waits.append(GATHER_S)
        if any(decision.state is State.WAIT_FOR_JOBS_REQUIRED for decision in outcome.decisions):
            waits.append(JOBS_S)
        if again_s is not None:
            waits.append(again_s)
        return Requeue(min(waits))

    def _tell(self, outcome: Outcome, problems: tuple[Problem, ...]) -> None:
        """Keep what the pass has to say to a person; the policy's conditions tell it."""
        moved = any(decision.to is not None for decision in outcome.decisions)
        if problems != self._problems or moved:
            self._problems = problems
            self._told()

    # --- what is in force ---------------------------------------------------------------------------------------------

    def _scope(self) -> Scope | None:
        """What upgrades are about now; None if that cannot be told, so that nothing may be concluded."""
        policy, release = self._policy(), self._settings.release
        if policy is None:
            return None
        spec, toolkit = policy
        known = self._drivers.all() if scope.asks_drivers(spec, release) else []
        if known is None:
            return None
        there = [each for each in known if not each.deleting]
        return scope.of(
            spec,
            {each.name: nvidiadriver.upgrade_policy(each.driver.spec) for each in there if each.driver is not None},
            release,
            driver_toolkit=toolkit,
            unreadable={each.name: each.problem for each in there if each.driver is None},
        )

    # --- what is ------------------------------------------------------------------------------------------------------

    async def _watching(self, selector: tuple[str, str]) -> bool:
        """Watch driver pods and validator pods; says whether all are known."""
        text = "=".join(selector)
        if self._pods is None or self._selector != text:
            await self._stop_watching()
            self._selector = text
            pods = self._caches.pods_as(DriverPodView, text, here=True)
            self._pods = ByNode(pods, DriverPodView.facts, lambda _node: self.wake())
            validators = self._caches.pods_as(PodView, bynode.VALIDATORS, here=False)
            self._validators = ByNode(validators, bynode.validator, self._validator_changed)
            self._caches.start(pods)
            self._caches.start(validators)
        informers = [each.informer for each in (self._pods, self._validators) if each is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PODS_S):
                for informer in informers:
                    await informer.wait_settled()
        return all(informer.synced for informer in informers)

    async def _stop_watching(self) -> None:
        for each in (self._pods, self._validators):
            if each is not None:
                self._caches.stop(each.informer)
        self._pods = self._validators = None
        self._selector = ""

    def _daemon_sets(self, selector: tuple[str, str]) -> dict[str, DaemonSetFacts]:
        """The driver DaemonSets, by UID."""
        pods = self._pods.informer.values() if self._pods is not None else ()
        live = self._caches.objects.of_kind(kinds.DAEMON_SET)
        views = (self._nodes.get(name) for name in self._pods.nodes) if self._pods is not None else ()
        unready = observed.unready(view for view in views if view is not None)
        return observed.daemon_sets(live, selector, pods, self._caches.revisions.values(), unready)

    def _orphans(self, about: Scope) -> list[Decision]:
        """Nodes whose driver ClusterPolicy has left to an NVIDIADriver (3.9)."""
        if self._pods is None:
            return []
        views = [view for name in self._pods.nodes if (view := self._nodes.get(name)) is not None]
        return observed.orphans(about, self._settings.release, self._pods.informer.values(), views)

    async def _node_facts(self, about: Scope, daemon_sets: Mapping[str, DaemonSetFacts]) -> list[NodeFacts]:
        """Every node with a driver pod or a state label; what costs a request is looked at where it is needed."""
        found = self._pods.nodes if self._pods is not None else ()
        views = [
            view
            for name in self._nodes.names()
            if (view := self._nodes.get(name)) is not None and (names.UPGRADE_STATE in view.labels or name in found)
        ]
        self._works.forget_all_but(self._is_wanted)
        jobs, unread = await observed.jobs(self._client, about, views)
        held = await observed.gpu_pods(self._works, about, views)
        return [
            observed.node(
                view,
                self._pods.on(view.name) if self._pods is not None else (),
                daemon_sets,
                jobs=jobs,
                gpu_pods=held.get(view.name),
                validators=self._validators.on(view.name) if self._validators is not None else (),
                unread=unread,
            )
            for view in views
        ]

    def _is_wanted(self, node: str, work: Work) -> bool:
        view = self._nodes.get(node)
        return view is not None and view.labels.get(names.UPGRADE_STATE, "") == work.state

    # --- carrying out -------------------------------------------------------------------------------------------------

    async def _carry_out(self, decisions: Iterable[Decision]) -> ClusterError | None:
        """Do what was decided, node by node side by side; the first error that is worth another pass soon."""
        errors: list[ClusterError] = []

        async def one(decision: Decision) -> None:
            async with self._writes:
                try:
                    await self._do(decision)
                except NotFound:
                    log.debug("node %s or its driver pod is gone", decision.node)
                except Conflict:
                    log.debug("node %s has changed meanwhile: it is decided on anew", decision.node)
                    self.wake()
                except ClusterError as error:
                    errors.append(error)
                    self._event(decision.node, *machine.failure(decision, str(error)))

        async with asyncio.TaskGroup() as group:
            for decision in decisions:
                if not decision.idle:
                    group.create_task(one(decision))
        return errors[0] if errors else None

    async def _do(self, decision: Decision) -> None:
        if decision.patch:
            stored = await self._client.patch(
                kinds.NODE,
                decision.node,
                decision.patch.document(decision.resource_version),
                type=PatchType.MERGE,
                field_manager=names.FIELD_MANAGER,
                view=NodeView,
            )
            self._nodes.answered(stored)
        if decision.to is not None:
            log.info("node %s: %s -> %s", decision.node, decision.state, decision.to or "(no state)")
            self._works.forget(decision.node)
        for action in decision.actions:
            if isinstance(action, DeletePod):
                await self._delete(action)
            elif isinstance(action, StartEviction):
                self._works.evict(decision.node, action.rules)
            else:
                self._works.drain(decision.node, action.rules)
        for event in decision.events:
            self._event(decision.node, *event)

    async def _delete(self, pod: DeletePod) -> None:
        """Delete a driver pod; that it cannot be is told at the pod too (3.13)."""
        try:
            await self._client.delete(kinds.POD, pod.name, pod.namespace, uid=pod.uid)
        except (NotFound, Conflict):
            raise
        except ClusterError as error:
            about = Reference("v1", "Pod", pod.name, pod.namespace, uid=pod.uid)
            self._events.event(about, "Warning", REASON, f"Cannot delete the driver pod: {error}; it is tried again")
            raise

    def _event(self, node: str, type: str, message: str) -> None:
        view = self._nodes.get(node)
        if view is None:
            return
        about = Reference("v1", "Node", node, uid=view.metadata.uid, resource_version=view.metadata.resourceVersion)
        kind: Literal["Normal", "Warning"] = "Warning" if type == machine.WARNING else "Normal"
        self._events.event(about, kind, REASON, message)


class _Noted(msgspec.Struct, frozen=True, gc=False):
    """What a pass looks at of a node: its other labels, its addresses and heartbeats start none."""

    keys: tuple[str, ...]
    unschedulable: bool
    ready: bool


_LABELS: Final = (names.UPGRADE_STATE, names.UPGRADE_SKIP, names.DRIVER_OWNER)
_ANNOTATIONS: Final = (
    names.UPGRADE_REQUESTED,
    names.UPGRADE_SAFE_LOAD,
    names.UPGRADE_INITIAL_STATE,
    names.UPGRADE_JOBS_START,
    names.UPGRADE_VALIDATION_START,
)


def _node_facts_of(view: NodeView | None) -> _Noted | None:
    if view is None:
        return None
    labels, annotations = view.labels, view.annotations
    keys = (*(labels.get(key, "") for key in _LABELS), *(annotations.get(key, "") for key in _ANNOTATIONS))
    return _Noted(keys, view.spec.unschedulable, not view.status.conditions)
