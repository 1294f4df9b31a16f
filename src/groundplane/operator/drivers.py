"""The NVIDIADriver loop: give every GPU node its driver, keep each driver's objects right, report.

One key for all drivers: whose a node is follows from all of them together, so any change of one is a change for the
others (contracts/control-plane.md 2.2, 2.3). Decisions are made elsewhere: ``operands/driver_owners.py`` (whose is a
node), ``operands/nvidiadriver.py`` (what to run), ``decide.py`` (what differs), ``readiness.py`` (is it there); running
drivers are replaced by ``upgrade/``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from ..api.nvidiadriver import NVIDIADriver
from ..api.release import Release
from ..cluster import kinds
from ..cluster.client import Client, PatchType
from ..cluster.errors import ClusterError, NotFound
from ..cluster.events import EventRecorder
from ..cluster.queue import Controller, Requeue
from ..cluster.views import NodeMetaView, NodeView
from ..operands.facts import ClusterFacts
from . import denials as places
from . import status
from .caches import Caches
from .clock import Clock, rfc3339
from .denials import Denials
from .driverstore import DriverStore, Known
from .nodes import NodeStore
from .observe import Observer, Unknown
from .policy import InForce
from .retries import Backoff, Guard
from .rollouts import Rollouts
from .schema_check import SchemaCheck
from .settings import Settings
from .status import Outcome
from .writer import Ended, Refused, Writer

if TYPE_CHECKING:  # what renders operands is imported by the first pass, and only where there is an NVIDIADriver
    from ..operands.driver_owners import Ownership
    from .decide import Step

log = logging.getLogger(__name__)

KEY: Final = "nvidiadrivers"
GATHER_S: Final = 0.2
DISABLED: Final = "disabled"
DRIVER_NOT_READY: Final = "DriverNotReady"
OWN: Final = frozenset({names.UPGRADE_STATE, names.UPGRADE_SKIP})
PLACED_BY: Final = frozenset({names.DEPLOY_DRIVER, names.DEPLOY_VGPU_MANAGER})
"""Of the upgrade's labels and the deploy labels, only these decide anything here."""


class Drivers:
    """The controller."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        nodes: NodeStore,
        store: DriverStore,
        settings: Settings,
        *,
        policy: Callable[[], InForce],
        rollouts: Rollouts,
        writer: Writer,
        clock: Clock,
        events: EventRecorder,
        denials: Denials,
        held_up: Callable[[], str] = lambda: "",
        guard: Guard = lambda reconcile: reconcile,
    ) -> None:
        self._client = client
        self._caches = caches
        self._nodes = nodes
        self._store = store
        self._settings = settings
        self._policy = policy
        self._rollouts = rollouts
        self._writer = writer
        self._clock = clock
        self._events = events
        self._denials = denials
        self._held_up = held_up
        self._observer = Observer(caches, settings, nodes.fleet)
        self._schema = SchemaCheck(client, caches.crds, kinds.NVIDIA_DRIVER, settings.release)
        self._backoff: Backoff[str] = Backoff()
        self._answers = status.Answers()
        self._owned: set[str] = set()
        """Nodes with the label of an owner."""
        self._controller: Controller[str] = Controller(
            KEY, guard(self._reconcile), workers=1, clock=clock.monotonic, sleep=clock.sleep
        )

    @property
    def idle(self) -> bool:
        """Nothing is being worked on or waits for its time."""
        return self._controller.queue.idle

    def start(self) -> None:
        """Listen to everything a pass depends on."""
        self._caches.on_drivers(self.wake)
        self._caches.on_change(self.wake)
        self._nodes.on_change(self._node_changed)
        self._owned = {name for name, labels in self._labels().items() if names.DRIVER_OWNER in labels}
        self.wake()

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    def wake(self) -> None:
        """Something changed that a pass may depend on; where there never was a driver there is nothing to do."""
        if self._caches.drivers or self._owned:
            self._controller.add_after(KEY, GATHER_S)

    def _node_changed(self, name: str, old: NodeView | None, new: NodeView | None) -> None:
        if new is not None and names.DRIVER_OWNER in new.labels:
            self._owned.add(name)
        else:
            self._owned.discard(name)
        if old is None or new is None or _differ(old.labels, new.labels):
            self.wake()

    # --- one pass -----------------------------------------------------------------------------------------------------

    async def _reconcile(self, _key: str) -> Requeue | None:
        drivers, in_force = self._store.all(), self._policy()
        if drivers is None or self._caches.nodes.refreshing:
            return None
        try:
            if in_force is None:
                return await self._wait(drivers)
            return await self._pass(drivers, in_force[0])
        except ClusterError as error:
            log.warning("NVIDIADrivers: %s", error)
            return self._backoff.failed(KEY, error)

    async def _wait(self, drivers: Sequence[Known]) -> Requeue | None:
        """Drivers stay as they are while it cannot be told whose the nodes are; say so where that takes a person."""
        if why := self._held_up():
            return self._again(
                await self._report_all(drivers, lambda _: status.failed(why, release=self._settings.release))
            )
        return None

    async def _put_off(self, drivers: Sequence[Known], told: Callable[[Known], Outcome]) -> Requeue | None:
        """Drivers are not the ones to drive nodes: only labels that name a driver which is gone are touched."""
        from ..operands import driver_owners

        refused = None
        if self._settings.release is not Release.V26_3:
            refused = await self._own(driver_owners.abandoned([each.name for each in drivers], self._labels()))
        return self._again(refused or await self._report_all(drivers, told))

    def _again(self, error: ClusterError | None) -> Requeue | None:
        if error is not None:
            return self._backoff.failed(KEY, error)
        self._backoff.succeeded(KEY)
        return None

    async def _pass(self, drivers: Sequence[Known], spec: ClusterPolicySpec | None) -> Requeue | None:
        release = self._settings.release
        if not drivers or _is_put_off(spec, release):
            return await self._put_off(drivers, lambda each: _why_put_off(spec, release, bool(self._live(each.uid))))
        from ..operands import driver_owners

        if outdated := await self._schema.warning():
            drivers = [msgspec.structs.replace(each, notes=(*each.notes, outdated.message)) for each in drivers]
        readable = [each.driver for each in drivers if each.driver is not None]
        owned = driver_owners.assign(readable, self._labels(), release)
        unread = [each for each in drivers if each.driver is None]
        retry = await self._own(owned.changes) if not unread else None
        outcomes: dict[str, Outcome] = {}
        overdue = self._caches.objects.expire(self._clock.monotonic())
        for each in drivers:
            if each.deleting:
                continue
            outcomes[each.uid], error = await self._one(each, readable, spec, owned, unread)
            retry = retry or error
        there = [each for each in drivers if each.uid in outcomes]
        retry = await self._report_all(there, lambda each: outcomes[each.uid]) or retry
        again = self._again(retry)
        return again or (Requeue(overdue) if overdue is not None else None)

    async def _own(self, changes: Mapping[str, str | None]) -> ClusterError | None:
        """Write whose the nodes are; the first refusal."""
        limit = asyncio.Semaphore(self._settings.node_writes_in_flight)
        errors: list[ClusterError] = []

        async def label(name: str, owner: str | None) -> None:
            body = {"metadata": {"labels": {names.DRIVER_OWNER: owner}}}
            async with limit:
                try:
                    stored = await self._client.patch(
                        kinds.NODE,
                        name,
                        body,
                        type=PatchType.STRATEGIC,
                        field_manager=names.FIELD_MANAGER,
                        view=NodeMetaView,
                    )
                except NotFound:
                    return
                except ClusterError as error:
                    errors.append(error)
                    return
            log.info("node %s: driver of NVIDIADriver %s", name, owner or "(none)")
            before = self._nodes.get(name)
            if before is not None:
                self._nodes.answered(msgspec.structs.replace(before, metadata=stored.metadata), tell=True)

        async with asyncio.TaskGroup() as group:
            for name, owner in changes.items():
                group.create_task(label(name, owner))
        self._denials.note(places.DRIVER_OWNERS, errors[0] if errors else None, "nodes of NVIDIADrivers")
        return errors[0] if errors else None

    async def _one(
        self,
        known: Known,
        drivers: Sequence[NVIDIADriver],
        spec: ClusterPolicySpec | None,
        owned: "Ownership",
        unread: Sequence[Known],
    ) -> tuple[Outcome, ClusterError | None]:
        """See to one driver: how that ended, and the error for which it is worth trying again by itself."""
        release = self._settings.release
        if known.driver is None:
            return status.failed(known.problem, release=release), None
        if unread:
            others = ", ".join(each.name for each in unread)
            return status.failed(f"no node changes hands while NVIDIADriver {others} cannot be read"), None
        if owned.conflict is not None:
            return Outcome(status.NOT_READY, owned.conflict.reason, owned.conflict.message), None
        try:
            step = await self._make_so(known.driver, drivers, spec)
        except Ended as end:
            return status.failed(end.message, state=end.state, notes=known.notes, release=release), end.error
        return self._judge(known, step), None

    async def _make_so(
        self, driver: NVIDIADriver, drivers: Sequence[NVIDIADriver], spec: ClusterPolicySpec | None
    ) -> "Step":
        """Render a driver, compare and write. Raises :class:`Ended`."""
        from ..api import validate_driver
        from ..operands import nvidiadriver
        from ..operands.driver_cleanup import Fate
        from ..operands.errors import RenderError
        from . import decide

        if problems := validate_driver.problems(driver.spec, self._settings.release):
            raise Ended("; ".join(each.message for each in problems))
        facts = await self._facts(drivers)
        live, labels = self._live(driver.metadata.uid), self._labels()
        sets = [each for each in live if kinds.of(each) is kinds.DAEMON_SET]
        host_root = (spec.hostPaths.rootFS if spec is not None else None) or "/"
        try:
            rendered = nvidiadriver.render(driver, labels, facts, host_root=host_root, live=sets)
            shared = nvidiadriver.shared(drivers, facts)
        except RenderError as error:
            raise Ended(error.message) from error
        about = decide.Context(
            store=self._caches.objects,
            served=self._caches.served,
            owner_uid=driver.metadata.uid,
            gpu_nodes=True,
            unreadable=frozenset(self._caches.unreadable),
        )
        keep = [each for each in sets if nvidiadriver.fate(each, rendered.daemon_sets, labels) is Fate.KEEP]
        there = {each["metadata"]["name"] for each in keep}
        wanted = [
            each
            for each in (*shared, *rendered.objects)
            if each["kind"] != kinds.DAEMON_SET.kind
            or each["metadata"]["name"] in there
            or nvidiadriver.placeable(each, labels)
        ]
        step = decide.driver_step(driver.name, wanted, live, keep, about)
        step.waiting += [f"node {node} gets no driver: {why}" for node, why in rendered.skipped.items()]
        denied = Refused()
        try:
            await self._writer.carry_out(step, denied)
        finally:
            self._denials.set(f"{places.OBJECTS} of NVIDIADriver {driver.name}", denied.found)
        if denied.error is not None:
            raise Ended(places.tell(denied.found), error=denied.error)
        return step

    def _judge(self, known: Known, step: "Step") -> Outcome:
        """Ready when every DaemonSet is (2.2)."""
        reasons = list(step.waiting)
        for key in step.daemon_sets:
            verdict = self._rollouts.verdict(self._caches.objects.get(key))
            if not verdict.ready:
                reasons.append(f"{key}: {verdict.why}")
        if not reasons:
            return status.reconciled(known.notes, release=self._settings.release)
        text = status.SEPARATOR[self._settings.release].join(["waiting for driver pods", *reasons, *known.notes])
        return Outcome(status.NOT_READY, DRIVER_NOT_READY, text)

    # --- what is ------------------------------------------------------------------------------------------------------

    def _labels(self) -> dict[str, Mapping[str, str]]:
        """All nodes' labels, as far as anything depends on them."""
        views = (self._nodes.get(name) for name in self._nodes.names())
        return {view.name: view.labels for view in views if view is not None}

    async def _facts(self, drivers: Sequence[NVIDIADriver]) -> ClusterFacts:
        from ..operands import nvidiadriver

        wanted = nvidiadriver.references([driver.spec for driver in drivers])
        try:
            return await self._observer.facts(wanted, None)
        except Unknown as unknown:
            raise Ended(str(unknown), error=ClusterError(str(unknown))) from unknown

    def _live(self, uid: str) -> list[dict[str, Any]]:
        """What there is of a driver's own objects."""
        return [
            each
            for each in self._caches.objects.ours()
            if uid
            in {owner.get("uid") for owner in each["metadata"].get("ownerReferences") or () if owner.get("controller")}
        ]

    # --- reporting ----------------------------------------------------------------------------------------------------

    async def _report_all(self, drivers: Iterable[Known], told: Callable[[Known], Outcome]) -> ClusterError | None:
        """Report on each; a status that may not be written keeps no other driver from its own. The first error."""
        first: ClusterError | None = None
        for each in drivers:
            try:
                await self._report(each, told(each))
            except ClusterError as error:
                log.warning("the status of NVIDIADriver %s cannot be written: %s", each.name, error)
                first = first or error
        self._denials.note(places.DRIVER_STATUS, first)
        return first

    async def _report(self, known: Known, outcome: Outcome) -> None:
        """Store the status if it says something new, and tell it as an event too."""
        meta = known.document["metadata"]
        current = status.stored(self._answers.newest(known.document))
        new = status.next_status(
            current,
            outcome,
            namespace=self._settings.namespace,
            generation=int(meta.get("generation", 0)),
            now=rfc3339(self._clock.now()),
        )
        if new is None:
            return
        try:
            answer = await self._client.patch(
                kinds.NVIDIA_DRIVER,
                known.name,
                status.patch(new),
                subresource="status",
                field_manager=names.FIELD_MANAGER,
            )
        except NotFound:
            return
        self._answers.answered(answer)
        said = {condition.message for condition in current.conditions}
        if outcome.message not in said:
            log.info("NVIDIADriver %s: %s (%s): %s", known.name, outcome.state, outcome.reason, outcome.message)
            kind: Literal["Normal", "Warning"] = "Normal" if outcome.ready else "Warning"
            if outcome.reason != DRIVER_NOT_READY:
                self._events.event(known.document, kind, outcome.reason, outcome.message)


def _is_put_off(spec: ClusterPolicySpec | None, release: Release) -> bool:
    """Whether NVIDIADrivers are not the ones to drive nodes (2.2)."""
    return release is Release.V26_3 if spec is None else not spec.driver.useNvidiaDriverCRD


def _why_put_off(spec: ClusterPolicySpec | None, release: Release, deployed: bool) -> Outcome:
    """What is said of a driver that is put off; ``deployed``: it has objects, which are left as they are."""
    if spec is None:
        missing = "there is no ClusterPolicy, without which this release deploys no driver: create one"
        return status.failed(missing, release=release)
    text = "the ClusterPolicy deploys the driver itself: set its spec.driver.useNvidiaDriverCRD to true to use this one"
    if deployed:
        text += "; its driver pods stay, and keep the ClusterPolicy's off their nodes, until it is deleted"
    return Outcome(DISABLED, status.RECONCILED, text)


def _differ(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    if old == new:
        return False
    return any(
        old.get(key) != new.get(key)
        for key in old.keys() | new.keys()
        if key in PLACED_BY or not (key in OWN or key.startswith(names.DEPLOY_PREFIX))
    )
