"""The ClusterPolicy loop: observe, decide, carry out, report. One key a policy, one worker.

Every pass looks at the whole present state, so it does not matter which event asked for it or where an earlier pass was
killed. The decisions are made elsewhere (``election.py``, ``decide.py``, ``readiness.py``, ``status.py``); here they
are put in order and carried out (contracts/control-plane.md 1.5, 1.7, 1.8, 4.1 and 4.2). A pass that finds everything
right makes no request.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from ..api import codec, names, validate
from ..api.clusterpolicy import ClusterPolicy, ClusterPolicySpec, ClusterPolicyStatus
from ..api.release import Release
from ..cluster import kinds, permissions
from ..cluster.client import Client
from ..cluster.errors import ClusterError, NotFound
from ..cluster.events import EventRecorder
from ..cluster.informer import Change
from ..cluster.permissions import Denied
from ..cluster.queue import Controller, Requeue
from ..operands.facts import ClusterFacts, Owner, references
from . import causes, denials, election, handover, labels, lookout, metrics, openshift, status
from .caches import Caches, Trouble
from .clock import Clock, rfc3339
from .denials import Denials
from .driverstore import DriverStore
from .lookout import Found, Lookout
from .metrics import Metrics
from .nodes import NodeLabelling, NodeStore
from .observe import LOOK_UP_S, Observer, Unknown
from .retries import Backoff, Guard
from .rollouts import Rollouts
from .schema_check import SchemaCheck
from .settings import Settings
from .status import SEPARATOR, Blocked, Outcome, Warned
from .takeover import Leftovers
from .writer import Ended, Refused, Writer

if TYPE_CHECKING:  # what renders operands is imported by the first pass: node labelling need not wait for it
    from ..operands.stack import Rendered
    from .decide import Step
    from .upgrade.model import Problem

log = logging.getLogger(__name__)

GATHER_S: Final = 1.0
"""Refusals come in flocks: so long a pass waits for the rest of one."""
PSA_LABELS: Final = tuple(f"pod-security.kubernetes.io/{mode}" for mode in ("enforce", "audit", "warn"))
PRIVILEGED: Final = "privileged"
MONITORING_LABEL: Final = "openshift.io/cluster-monitoring"


InForce: TypeAlias = tuple[ClusterPolicySpec | None, bool] | None
"""The spec of the policy in force, and whether OpenShift's driver toolkit builds its drivers.

The spec is None where there is no policy. None says that it cannot be told at present, or that the policy may not be
carried out: then nothing may be concluded.
"""


class Decoded(msgspec.Struct, frozen=True):
    """A policy as read, or why it cannot be. ``notes`` are remarks for the status: unknown fields."""

    policy: ClusterPolicy | None = None
    problem: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What to tell beside the outcome."""
        return [f"unknown fields are ignored: {', '.join(map(_with_hint, self.unknown))}"] if self.unknown else []


def _with_hint(path: str) -> str:
    meant = codec.suggest(path)
    return f"{path} (did you mean {meant}?)" if meant else path


def decode(document: Mapping[str, Any]) -> Decoded:
    """Read a policy document; never raises for what a person may have written. Its status does not count."""
    try:
        loaded = codec.load_cluster_policy({key: value for key, value in document.items() if key != "status"})
    except codec.PolicyError as error:
        return Decoded(problem=str(error))
    return Decoded(loaded.policy, unknown=tuple(loaded.unknown))


def candidate(document: Mapping[str, Any]) -> election.Candidate:
    """A policy document as a candidate of the election."""
    meta = document["metadata"]
    return election.Candidate(str(meta.get("creationTimestamp") or ""), str(meta["name"]))


def refusals(spec: ClusterPolicySpec, release: Release) -> dict[str, str]:
    """What validation finds wrong, by the state concerned; the empty state is the policy as a whole."""
    found: dict[str, list[str]] = {}
    for problem in validate.problems(spec, release):
        found.setdefault(problem.state or "", []).append(problem.message)
    return {state: "; ".join(messages) for state, messages in found.items()}


def namespace_labels(
    spec: ClusterPolicySpec, namespace: str, have: Mapping[str, str], *, on_openshift: bool
) -> dict[str, str]:
    """Labels that the operator's namespace lacks (5.3). They are never taken away again."""
    ours = not on_openshift or namespace == openshift.MONITORED_NAMESPACE
    want: dict[str, str] = {}
    if spec.psa.enabled and ours:
        want |= dict.fromkeys(PSA_LABELS, PRIVILEGED)
    missing = {key: value for key, value in want.items() if have.get(key) != value}
    if on_openshift and ours and MONITORING_LABEL not in have:
        missing[MONITORING_LABEL] = "true"
    return missing


class Policies:
    """The controller."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        nodes: NodeStore,
        drivers: DriverStore,
        settings: Settings,
        *,
        clock: Clock,
        figures: Metrics,
        events: EventRecorder,
        denials: Denials,
        guard: Guard = lambda reconcile: reconcile,
    ) -> None:
        self._client = client
        self._denials = denials
        self._caches = caches
        self._nodes = nodes
        self._drivers = drivers
        self._settings = settings
        self._clock = clock
        self._figures = figures
        self._events = events
        self._backoff: Backoff[str] = Backoff()
        self._decoded: dict[str, tuple[tuple[str, int], Decoded]] = {}
        self._answers = status.Answers()
        self._rendered: tuple[ClusterPolicySpec, ClusterFacts, list[Rendered]] | None = None
        self._active: str | None = None
        self._elected: list[Callable[[], None]] = []
        self._rolled: list[Callable[[], None]] = []
        self._problems: Callable[[], Sequence[Problem]] = tuple
        self._waits_for_nodes = False
        self._only_looks = False
        """What is due next is another look at what is not ready, and nothing else."""
        self._leftovers = Leftovers(client, settings.namespace, denials)
        self.writer = Writer(client, caches, self._leftovers, clock)
        self._schema = SchemaCheck(client, caches.crds)
        self._lookout = Lookout(client, settings.namespace, clock=clock, denials=denials)
        self._observer = Observer(caches, settings, nodes.fleet)
        self._rollouts = Rollouts(
            lambda: caches.objects.of_kind(kinds.DAEMON_SET),
            caches.revisions,
            caches.pods_behind,
            start=lambda informer: caches.start(informer, self._rollouts.pods_synced),
            stop=caches.stop,
            flipped=self._flipped,
        )
        self._labelling = NodeLabelling(
            client,
            nodes,
            clock=clock,
            in_flight=settings.node_writes_in_flight,
            on_settled=self._nodes_settled,
            denials=denials,
            guard=guard,
        )
        self._controller: Controller[str] = Controller(
            "clusterpolicy",
            guard(self._reconcile),
            workers=1,
            on_error=self._failed,
            clock=clock.monotonic,
            sleep=clock.sleep,
        )

    @property
    def rollouts(self) -> Rollouts:
        """The verdicts on all our DaemonSets, the drivers' included."""
        return self._rollouts

    @property
    def labelling(self) -> NodeLabelling:
        """The node labelling controller, which takes its orders from here."""
        return self._labelling

    @property
    def active(self) -> str | None:
        """Name of the policy in force."""
        return self._active

    @property
    def in_force(self) -> InForce:
        """The policy in force, as other loops have to know it."""
        if not self._caches.policies.synced or not self._caches.crds.synced:
            return None
        if self._active is None:
            return None, False
        if self._caches.gpu_clusters:
            return None
        decoded = self._decode(self._active)
        if decoded is None or decoded.policy is None:
            return None
        spec = decoded.policy.spec
        if self._caches.cluster_version is None:
            return spec, False
        if self._rendered is None:
            return None
        from ..operands import driver_pools

        return spec, driver_pools.driver_kind(spec, self._rendered[1]) is driver_pools.Kind.TOOLKIT

    @property
    def held_up(self) -> str:
        """Why :attr:`in_force` cannot be told, where a person has to see to it; empty otherwise."""
        decoded = self._decode(self._active) if self._active else None
        if decoded is not None and self._caches.gpu_clusters:
            return _both_exist(str(self._active), self._caches.gpu_clusters[0])
        if decoded is not None and decoded.policy is None:
            return f"ClusterPolicy {self._active} cannot be read: {decoded.problem}"
        return ""

    def on_election(self, elected: Callable[[], None]) -> None:
        """Have ``elected`` called when :attr:`in_force` may be another one."""
        self._elected.append(elected)

    def on_rollout(self, flipped: Callable[[], None]) -> None:
        """Have ``flipped`` called when the verdict on a DaemonSet is another one."""
        self._rolled.append(flipped)

    def upgrade_problems(self, problems: "Callable[[], Sequence[Problem]]") -> None:
        """Where what keeps drivers from being upgraded is told, for the policy's conditions."""
        self._problems = problems

    @property
    def idle(self) -> bool:
        """Nothing is being worked on or waits for its time: only news from a watch will bring work."""
        queue = self._controller.queue
        looking_again = queue.resting and self._only_looks and not self._lookout.waits
        return (queue.idle or looking_again) and self._labelling.idle

    def start(self) -> None:
        """Listen to everything a pass depends on."""
        self._caches.on_change(self._wake)
        self._caches.on_daemon_set(self._rollouts.daemon_set_changed)
        self._caches.on_drivers(self._order_labels)
        self._denials.on_change(self._denials_changed)
        self._rollouts.start()
        self._labelling.start()
        self._nodes.on_summary(self._wake)
        self._nodes.start()
        self._caches.policies.subscribe(self._policy_changed)
        if not self._caches.policies.values():
            self._no_policy()

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    # --- news ---------------------------------------------------------------------------------------------------------

    def _policy_changed(self, change: Change[dict[str, Any]]) -> None:
        """Elect, and look at every policy again if the winner is another one, else at this one."""
        name = change.object["metadata"]["name"]
        if change.new is None:
            self._decoded.pop(name, None)
            self._answers.forget(change.object)
            self._backoff.succeeded(name)
        winner = election.active(map(candidate, self._caches.policies.values()))
        others = winner != self._active
        self._active = winner
        for each in [policy["metadata"]["name"] for policy in self._caches.policies.values()] if others else [name]:
            self._controller.add(each)
        self._order_labels()
        for listener in self._elected:
            listener()

    def _order_labels(self) -> None:
        """Tell node labelling what the policy in force wants; without a usable one no node is touched (3.4)."""
        decoded = self._decode(self._active) if self._active else None
        if decoded is None:
            self._no_policy()
        policy = decoded.policy if decoded else None
        clash = bool(self._caches.gpu_clusters) or not self._caches.crds.synced
        upgraded = self._drivers.upgraded()
        want = labels.label_policy(policy.spec, self._settings.release, upgraded) if policy and not clash else None
        self._labelling.want(want)

    def _denials_changed(self) -> None:
        """A permission is missing or has been granted: several mostly are, one after another, and are told together."""
        if self._active is not None:
            self._controller.add_after(self._active, GATHER_S)

    def _no_policy(self) -> None:
        self._figures.set("reconciliation_status", metrics.POLICY_UNAVAILABLE)

    def wake(self) -> None:
        """Something outside of the caches changed that a pass depends on."""
        self._wake()

    def _flipped(self) -> None:
        self._wake()
        for listener in self._rolled:
            listener()

    def _wake(self) -> None:
        """Something changed that the policy in force may depend on."""
        self._figures.set("gpu_nodes_total", self._nodes.fleet.gpu_nodes)
        if self._active is not None:
            self._controller.add(self._active)

    def _failed(self, name: str, error: Exception) -> None:
        """A pass raised what it should not: the operator itself is wrong (5.6)."""
        if name == self._active:
            self._figures.count_pass(failed=True)
            self._figures.set("reconciliation_status", metrics.OPERATOR_ERROR)
            document = self._caches.policies.get(name)
            if document is not None:
                self._events.event(document, "Warning", "OperatorError", f"the operator failed: {error!r}")

    def _nodes_settled(self) -> None:
        if self._waits_for_nodes:
            self._waits_for_nodes = False
            self._wake()

    def _decode(self, name: str) -> Decoded | None:
        document = self._caches.policies.get(name)
        if document is None:
            return None
        meta = document["metadata"]
        version = (str(meta.get("uid", "")), int(meta.get("generation", 0)))
        known = self._decoded.get(name)
        if known is None or known[0] != version:
            known = version, decode(document)
            self._decoded[name] = known
        return known[1]

    # --- one policy ---------------------------------------------------------------------------------------------------

    async def _reconcile(self, name: str) -> Requeue | None:
        document, decoded = self._caches.policies.get(name), self._decode(name)
        if document is None or decoded is None:
            return None
        try:
            if name != self._active:
                await self._report(document, decoded, status.passed_over(self._active or ""))
                return None
            return await self._reconcile_active(document, decoded)
        except NotFound:
            log.info("ClusterPolicy %s is gone", name)
            return None
        except ClusterError as error:
            log.warning("ClusterPolicy %s: %s", name, error)
            return self._backoff.failed(name, error)

    async def _reconcile_active(self, document: dict[str, Any], decoded: Decoded) -> Requeue | None:
        name = document["metadata"]["name"]
        self._order_labels()
        if document["metadata"].get("deletionTimestamp"):
            return None
        if not self._labelling.settled and not self._nodes.fleet.gpu_nodes:
            self._waits_for_nodes = True
            return None
        try:
            outcome = await self._pass(decoded)
            retry, figure = None, metrics.SUCCESS if outcome.ready else metrics.NOT_READY
        except Ended as end:
            figure = end.figure
            outcome = status.failed(end.message, state=end.state, notes=decoded.notes, release=self._settings.release)
            retry = self._backoff.failed(name, end.error) if end.error else None
        if outcome.ready and not self._labelling.settled:
            self._waits_for_nodes = True
            return None
        self._measure(decoded, outcome, figure)
        await self._report(document, decoded, outcome, await self._warnings())
        if retry is None:
            self._backoff.succeeded(name)
            overdue, look = self._caches.objects.expire(self._clock.monotonic()), self._lookout.next_s()
            self._only_looks = overdue is None
            waits = [each for each in (overdue, look) if each is not None]
            retry = Requeue(min(waits)) if waits else None
        else:
            self._only_looks = False
        return retry

    async def _warnings(self) -> list[Warned]:
        """What is worth a condition beside the outcome, in the order of :data:`status.WARNINGS`."""
        found = (await self._schema.warning(), self._nodes_warning(), self._upgrade_warning())
        return [each for each in found if each is not None]

    def _upgrade_warning(self) -> Warned | None:
        """The first thing that keeps drivers from being upgraded, and how many more there are."""
        problems = self._problems()
        if not problems:
            return None
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Warned(status.DRIVER_UPGRADE_HELD_UP, problems[0].reason, problems[0].message + more)

    def _nodes_warning(self) -> Warned | None:
        unready = self._lookout.nodes(self._nodes.fleet.unready)
        if not unready:
            return None
        shown = [f"{name} ({causes.short(unready[name])})" for name in sorted(unready)[: causes.NODES_MAX]]
        more = f" and {len(unready) - len(shown)} more" if len(unready) > len(shown) else ""
        message = f"GPU nodes that are not Ready run no new operands: {', '.join(shown)}{more}"
        return Warned(status.GPU_NODES_NOT_READY, causes.NODE_NOT_READY, message)

    async def _pass(self, decoded: Decoded) -> Outcome:
        """One pass over the policy in force. Raises :class:`Ended` where it cannot go on, or must say what it may not.

        A missing permission does not end it: whatever does not need that permission is done all the same.
        """
        from . import decide

        if decoded.policy is None:
            raise Ended(decoded.problem)
        spec, release = decoded.policy.spec, self._settings.release
        if clash := self._caches.gpu_clusters:
            raise Ended(_both_exist(decoded.policy.metadata.name, clash[0]))
        refused = refusals(spec, release)
        if problem := refused.pop("", ""):
            raise Ended(problem)
        if blind := self._caches.blind:
            raise Ended(self._told_of(denials.tell(self._forbidden()), blind))
        denied = Refused()
        await self._label_namespace(spec, denied)
        facts = await self._facts(decoded.policy)
        self._caches.objects.expire(self._clock.monotonic())
        unreadable = self._caches.unreadable
        store, served = self._caches.objects, self._caches.served
        owner = facts.owner.uid if facts.owner else ""
        left = await self._leftovers.of(owner, store.sources.keys() - unreadable.keys())
        about = decide.context(spec, facts, store, served, unreadable, left)
        steps = decide.steps(self._render(spec, facts), about, refused)
        try:
            for step in steps:
                await self.writer.carry_out(step, denied)
        finally:
            self._denials.set(denials.OBJECTS, denied.found)
        await self._rollouts.known(LOOK_UP_S)
        troubles = [*unreadable.values(), *(self._caches.unread_drivers if spec.driver.useNvidiaDriverCRD else ())]
        if (forbidden := self._forbidden()) or troubles:
            text = self._told_of(denials.tell(forbidden), troubles)
            raise Ended(text, error=denied.error, figure=metrics.NOT_READY)
        found = await self._lookout.look(self._suspects(steps), self._nodes.fleet.unready)
        return self._judge(steps, decoded, lookout.telling(found))

    def _suspects(self, steps: "Iterable[Step]") -> dict[str, list[Mapping[str, Any]]]:
        """The DaemonSets that are there and not ready, by their states in apply order."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for step in steps:
            for key in step.daemon_sets if step.enabled else ():
                live = self._caches.objects.get(key)
                if live is not None and not self._rollouts.verdict(live).ready:
                    found.setdefault(step.state, []).append(live)
        return found

    def _forbidden(self) -> frozenset[Denied]:
        """The missing permissions that a policy's conditions tell."""
        return self._denials.present(but=denials.UNSAID)

    def _told_of(self, text: str, troubles: Iterable[Trouble]) -> str:
        """``text`` and the collections that cannot be read for other reasons than a missing permission."""
        others = [str(each) for each in troubles if not permissions.missing(each.error)]
        return SEPARATOR[self._settings.release].join(filter(None, [text, *others]))

    async def _label_namespace(self, spec: ClusterPolicySpec, denied: Refused) -> None:
        namespace = self._settings.namespace
        if self._caches.namespaces.trouble:
            return
        view = self._caches.namespaces.get(namespace)
        on_openshift = self._caches.cluster_version is not None
        have = view.metadata.labels if view else {}
        missing = namespace_labels(spec, namespace, have, on_openshift=on_openshift)
        if not missing:
            return
        body = {"metadata": {"labels": missing}}
        try:
            await self._client.patch(kinds.NAMESPACE, namespace, body, field_manager=names.FIELD_MANAGER)
        except ClusterError as error:
            if denied.take(error, f"labels of namespace {namespace}"):
                return
            raise Ended(f"namespace {namespace} cannot be labelled: {error}", error=error) from error

    async def _facts(self, policy: ClusterPolicy) -> ClusterFacts:
        try:
            owner = Owner(name=policy.metadata.name, uid=policy.metadata.uid)
            return await self._observer.facts(references(policy.spec), owner)
        except Unknown as unknown:
            text = denials.tell(self._forbidden()) or str(unknown)
            raise Ended(text, error=ClusterError(str(unknown))) from unknown

    def _render(self, spec: ClusterPolicySpec, facts: ClusterFacts) -> "list[Rendered]":
        """Rendering is pure: the same policy and facts need it once."""
        from ..operands import stack

        if self._rendered is None or self._rendered[:2] != (spec, facts):
            self._rendered = spec, facts, stack.render(spec, facts)
        return self._rendered[2]

    # --- what came of it ----------------------------------------------------------------------------------------------

    def _judge(self, steps: "list[Step]", decoded: Decoded, found: Sequence[Found]) -> Outcome:
        """Ready or not, from the DaemonSets' verdicts and what the steps wait for."""
        release, notes = self._settings.release, decoded.notes
        unready = [step.state for step in steps if self._why_not(step)]
        upgrading = self._upgrading(decoded.policy.spec) if decoded.policy is not None else ""
        if upgrading and not unready:
            return Outcome(status.NOT_READY, status.OPERAND_NOT_READY, SEPARATOR[release].join([upgrading, *notes]))
        if unready:
            outdated = [f"{step.state}: pod is outdated, upgrade pending" for step in steps if self._outdated(step)]
            obstacles = [f"{step.state}: {step.obstacle}" for step in steps if step.obstacle]
            told = [str(each) for each in found if each.state in unready]
            notes = [*outdated, *obstacles, *told, *notes]
            blocked = [Blocked(each.cause.reason, str(each)) for each in found if each.cause.blocks]
            return status.operands_not_ready(unready, notes, blocked=blocked, release=release)
        summary = self._nodes.fleet.summary
        if summary.nodes:
            return status.reconciled(notes, release=release)
        row = status.no_gpu_nodes if summary.has_nfd else status.nfd_labels_missing
        return row(notes, release=release)

    def _upgrading(self, spec: ClusterPolicySpec) -> str:
        """The nodes of NVIDIADrivers that have yet to be upgraded, for a person (2.5); empty where none has."""
        if not spec.driver.useNvidiaDriverCRD or self._settings.release is Release.V26_3:
            return ""
        views = (self._nodes.get(name) for name in self._nodes.names())
        nodes = handover.unfinished({view.name: view.labels for view in views if view is not None})
        shown = ", ".join(nodes[: causes.NODES_MAX])
        more = f" and {len(nodes) - causes.NODES_MAX} more" if len(nodes) > causes.NODES_MAX else ""
        return f"driver upgrades are under way on {len(nodes)} nodes: {shown}{more}" if nodes else ""

    def _why_not(self, step: "Step") -> list[str]:
        """Why the state is not ready, nothing when it is; a disabled state never holds up the others."""
        if not step.enabled:
            return []
        reasons = list(step.waiting)
        for key in step.daemon_sets:
            verdict = self._rollouts.verdict(self._caches.objects.get(key))
            if not verdict.ready:
                reasons.append(f"{key}: {verdict.why}")
        if reasons:
            log.debug("%s is not ready: %s", step.state, "; ".join(reasons))
        return reasons

    def _outdated(self, step: "Step") -> bool:
        """Whether the state waits for pods of an older revision to be replaced, which is nobody's fault (667)."""
        live = [self._caches.objects.get(key) for key in step.daemon_sets]
        return step.enabled and any(self._rollouts.verdict(each).outdated for each in live)

    def _measure(self, decoded: Decoded, outcome: Outcome, figure: int) -> None:
        """Set the metrics of a pass (5.6); ``figure`` is the value of ``reconciliation_status``."""
        figures, summary = self._figures, self._nodes.fleet.summary
        figures.count_pass(failed=not outcome.ready)
        figures.set("gpu_nodes_total", self._nodes.fleet.gpu_nodes)
        figures.set("reconciliation_has_nfd_labels", summary.has_nfd)
        figures.set("reconciliation_status", figure)
        if outcome.ready and outcome.reason != status.NFD_LABELS_MISSING:
            figures.set("reconciliation_last_success_ts_seconds", self._clock.now().timestamp())
        if decoded.policy is not None:
            spec = decoded.policy.spec
            stream = self._caches.image_stream
            found = openshift.facts(self._caches.cluster_version, stream)
            openshift.report(figures, spec, found, stream, summary)

    async def _report(
        self, document: dict[str, Any], decoded: Decoded, outcome: Outcome, warnings: Sequence[Warned] = ()
    ) -> None:
        """Store the status if it says something new, and tell it as an event too."""
        meta = document["metadata"]
        current = status.stored(self._answers.newest(document))
        new = status.next_status(
            current,
            outcome,
            namespace=self._settings.namespace,
            generation=int(meta.get("generation", 0)),
            now=rfc3339(self._clock.now()),
            warnings=warnings,
        )
        if new is None:
            return
        try:
            answer = await self._client.patch(
                kinds.CLUSTER_POLICY,
                meta["name"],
                status.patch(new),
                subresource="status",
                field_manager=names.FIELD_MANAGER,
            )
        except ClusterError as error:
            self._denials.note(denials.STATUS, error, f"ClusterPolicy {meta['name']}")
            raise
        self._answers.answered(answer)
        self._denials.note(denials.STATUS, None)
        self._tell(document, decoded, current, outcome)
        self._warn(document, current, outcome, warnings)

    def _tell(self, document: dict[str, Any], decoded: Decoded, before: ClusterPolicyStatus, outcome: Outcome) -> None:
        """Events for what is news to a person: another state, another reason, another error."""
        said = {condition.message for condition in before.conditions}
        reasons = {condition.reason for condition in before.conditions}
        failed = outcome.reason == status.RECONCILE_FAILED
        if before.state != outcome.state or outcome.reason not in reasons or (failed and outcome.message not in said):
            name = document["metadata"]["name"]
            log.info("ClusterPolicy %s: %s (%s): %s", name, outcome.state, outcome.reason, outcome.message)
            kind: Literal["Normal", "Warning"] = "Warning" if failed or outcome.ignored else "Normal"
            self._events.event(document, kind, outcome.reason, outcome.message)
        if decoded.notes and not any(note in message for note in decoded.notes for message in said):
            self._events.event(document, "Warning", "UnknownField", decoded.notes[0])

    def _warn(
        self, document: dict[str, Any], before: ClusterPolicyStatus, outcome: Outcome, warnings: Sequence[Warned]
    ) -> None:
        """A warning a cause: those that the stored status did not tell yet."""
        said = [condition.message for condition in before.conditions]
        news = [(each.type, each.message) for each in warnings]
        news += [(each.reason, each.message) for each in outcome.blocked]
        for reason, text in news:
            if not any(text in message for message in said):
                log.warning("ClusterPolicy %s: %s: %s", document["metadata"]["name"], reason, text)
                self._events.event(document, "Warning", reason, text)


def _both_exist(policy: str, cluster: str) -> str:
    return (
        f"ClusterPolicy {policy!r} and GPUCluster {cluster!r} both exist: "
        "delete one of them, as both would manage the same nodes"
    )
