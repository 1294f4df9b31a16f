"""The state machine: from what is, to what to do next for every node (contracts/driver-lifecycle.md 3).

Pure and cheap: no copies, no order but that in which nodes get slots. :data:`RULES` has one function a state; each
looks at one node and answers with one decision, so what is wrong with one node holds up no other. Counting is left to
``slots``, which nodes belong to the machine to ``scope``, carrying out to the shell.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from ...api import names
from ...api.release import Release
from . import slots, states, verdicts
from .model import (
    NO_PATCH,
    PRESENT,
    Action,
    Decision,
    DeletePod,
    Event,
    NodeFacts,
    Pass,
    Patch,
    Policy,
    Problem,
    Snapshot,
    StartDrain,
    StartEviction,
    ValidatorPod,
    Work,
)
from .states import State
from .verdicts import Drivers

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
VALIDATION_TIMEOUT_S: Final = 600
"""How long the node's validators may take (3.8)."""

Annotations = dict[str, str | None]


class Surroundings(msgspec.Struct, frozen=True, gc=False):
    """What a node's decision depends on beside the node: the snapshot, who starts, why others do not."""

    snapshot: Snapshot
    starting: frozenset[str]
    no_start: str
    missing: str

    @property
    def now(self) -> int:
        """Unix seconds."""
        return self.snapshot.now

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.snapshot.policy

    def work(self, node: NodeFacts) -> Work | None:
        """What this process does for the node, or has done, in the state that it is in."""
        work = self.snapshot.work.get(node.name)
        return work if work is not None and work.state == node.label else None


def decide(snapshot: Snapshot) -> Pass:
    """One pass over all nodes of one machine; every node moves one state at most (3.2 step 5).

    Where NVIDIA's controller ends the pass at the first error, this one leaves the node concerned where it is, says so
    in its decision, and goes on. While a DaemonSet has not all the pods it wants, no node starts, as the missing pod's
    node would be in no count. Nodes that have started go on.
    """
    unplaced = slots.unplaced(snapshot)
    missing = unplaced or slots.uncertain(snapshot)
    found = slots.tally(snapshot, incomplete=bool(missing))
    held = f"no upgrade starts while driver pods are missing: {unplaced}" if unplaced else ""
    starting = () if held else _starting(snapshot, found.counts.slots)
    no_start = held or slots.why_none(found, snapshot.policy, starting)
    around = Surroundings(snapshot, frozenset(starting), no_start, missing)
    problems = [Problem("UnscheduledPods", held)] if held else []
    return Pass(
        decisions=tuple([_decision(node, around) for node in snapshot.nodes]),
        counts=found.counts,
        held=held,
        problems=(*problems, *([found.problem] if found.problem else [])),
    )


def failure(decision: Decision, why: str) -> Event:
    """The event for a decision whose patch or action the API server did not take."""
    what = f"move the node from {_name(decision.state)} to {decision.to}" if decision.to else "act on the node"
    return Event(WARNING, f"Cannot {what}: {why}; it is tried again")


def clear(nodes: Iterable[NodeFacts]) -> tuple[Decision, ...]:
    """Take the state label off every node that has one: upgrades are off (1.2, 3.12).

    Cordons and annotations stay as they are; a node that its upgrade had cordoned gets an event that says so.
    """
    return tuple(_cleared(node) for node in nodes if names.UPGRADE_STATE in node.labels)


def _cleared(node: NodeFacts) -> Decision:
    events: tuple[Event, ...] = ()
    waits_for = ""
    if slots.cordoned_by_upgrade(node):
        waits_for = (
            f"driver upgrades were turned off while it was in {node.label}: it stays cordoned; "
            f"make it schedulable with: kubectl uncordon {node.name}"
        )
        events = (Event(WARNING, f"Node stays cordoned: {waits_for}"),)
    return Decision(
        node=node.name,
        state=states.parse(node.label),
        to=State.UNKNOWN,
        resource_version=node.resource_version,
        patch=Patch({names.UPGRADE_STATE: None}),
        events=events,
        waits_for=waits_for,
    )


def unowned(nodes: Iterable[NodeFacts]) -> tuple[Decision, ...]:
    """Nodes that no NVIDIADriver owns, and so no machine looks after (1.3): who is amid an upgrade is told."""
    return tuple(_unowned(node) for node in nodes if states.parse(node.label) not in states.AT_REST)


def _unowned(node: NodeFacts) -> Decision:
    why = (
        f"no NVIDIADriver owns the node (see its label {names.DRIVER_OWNER}), so its upgrade does not go on; let one "
        f"select it, or remove label {names.UPGRADE_STATE}" + _cordon_note(node)
    )
    return _stuck(node, states.parse(node.label), "NoDriverOwner", why)


def left_cordoned(nodes: Iterable[NodeFacts]) -> tuple[Decision, ...]:
    """Nodes that no upgrade looks at, for a person: of those that are cordoned it is said that they stay so (3.12)."""
    return tuple(_quiet(node, State.UNKNOWN) for node in nodes if node.unschedulable)


def orphaned(node: NodeFacts) -> Decision:
    """Mark a node whose driver pod ClusterPolicy has left to an NVIDIADriver: no DaemonSet looks after it (3.9)."""
    to = State.UPGRADE_REQUIRED
    why = "its driver pod is no DaemonSet's any more: the driver of its NVIDIADriver takes its place"
    return Decision(
        node=node.name,
        state=states.parse(node.label),
        to=to,
        resource_version=node.resource_version,
        patch=Patch({names.UPGRADE_STATE: to.value}),
        events=(Event(NORMAL, f"Driver upgrade: {to}: {why}"),),
    )


def unread(driver: str, nodes: Iterable[NodeFacts]) -> tuple[Decision, ...]:
    """Nodes whose NVIDIADriver cannot be read, so that nothing is known of its policy: who is amid an upgrade waits."""
    why = f"NVIDIADriver {driver}, whose node this is, cannot be read, so its upgrade does not go on; correct it"
    return tuple(
        _stuck(node, states.parse(node.label), "NVIDIADriverUnreadable", why + _cordon_note(node))
        for node in nodes
        if states.parse(node.label) not in states.AT_REST
    )


# --- Who starts ------------------------------------------------------------------------------------------------------
def _starting(snapshot: Snapshot, free: int) -> tuple[str, ...]:
    """The nodes that leave ``upgrade-required`` in this pass (3.5).

    A node that is cordoned already makes no more nodes unavailable, so it starts also without a slot, and takes one;
    such nodes come first, then the others by name, so that two passes over the same cluster agree.
    """
    waiting = [
        node for node in snapshot.nodes if node.label == State.UPGRADE_REQUIRED and node.driver_pods and not node.skip
    ]
    waiting.sort(key=lambda node: (not node.unschedulable, node.name))
    starting = []
    for node in waiting:
        if free > 0 or node.unschedulable:
            starting.append(node.name)
            free -= 1
    return tuple(starting)


# --- One node --------------------------------------------------------------------------------------------------------
def _decision(node: NodeFacts, around: Surroundings) -> Decision:
    state = states.parse(node.label)
    if state is None or state in states.MAINTENANCE:
        return _no_such_state(node, state)
    if not node.driver_pods:
        return _no_driver_pod(node, state, around)
    return RULES[state](node, state, around)


def _no_such_state(node: NodeFacts, state: State | None) -> Decision:
    """Somebody else wrote the label. What it should have been cannot be told, so nothing is done to the node."""
    what = "needs a maintenance operator, which is not used here" if state else "is no state of a driver upgrade"
    return _stuck(
        node,
        state,
        "UnknownUpgradeState",
        f"label {names.UPGRADE_STATE}={node.label} {what}; nothing is done to the node until it is set to "
        f"{State.UPGRADE_REQUIRED} (upgrade it) or removed (look at it anew)" + _cordon_note(node),
    )


def _no_driver_pod(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """Between two driver pods, or not a node of any driver any more (3.2)."""
    if state in states.AT_REST:
        return _quiet(node, state)
    if around.missing:
        return _stay(node, state, f"it has no driver pod yet: {around.missing}")
    return _stuck(
        node,
        state,
        "NoDriverPod",
        f"no driver DaemonSet wants a pod on the node (see its label {names.DEPLOY_DRIVER} and the driver's node "
        f"selector), so its upgrade does not go on; if that is meant, remove label {names.UPGRADE_STATE}"
        + _cordon_note(node),
    )


def _cordon_note(node: NodeFacts) -> str:
    if not node.unschedulable:
        return ""
    why = "since before its upgrade" if node.cordoned_before else "perhaps by its upgrade"
    return f"; it is cordoned, {why}: kubectl uncordon {node.name} makes it schedulable"


def _at_rest(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """unknown and upgrade-done: is there anything to upgrade (3.5)?"""
    drivers = verdicts.judge(node, around.snapshot.daemon_sets)
    if drivers.error:
        return _stuck(node, state, "DriverRevisionUnknown", drivers.error)
    if why := _why_upgrade(node, drivers):
        return _move(node, state, State.UPGRADE_REQUIRED, why, annotations=_initial_state(node))
    if state is State.UNKNOWN:
        return _move(
            node, state, State.DONE, "its driver pod is up to date" if not drivers.orphans else "it has a driver"
        )
    return _quiet(node, state)


def _quiet(node: NodeFacts, state: State) -> Decision:
    """Nothing to do; but a cordon that no upgrade will undo is told."""
    note = f"it is cordoned, and no upgrade will undo that: kubectl uncordon {node.name}" if node.unschedulable else ""
    return Decision(node=node.name, state=state, waits_for=note)


def _why_upgrade(node: NodeFacts, drivers: Drivers) -> str:
    if drivers.outdated:
        return f"driver pod {drivers.outdated[0].name} is of an older revision"
    if node.annotations.get(names.UPGRADE_SAFE_LOAD):
        return "its driver waits to be loaded safely"
    if node.annotations.get(names.UPGRADE_REQUESTED) == PRESENT:
        return "an upgrade was requested"
    return ""


def _initial_state(node: NodeFacts) -> Annotations:
    """Remember that it is cordoned, or forget that it was when an upgrade that never ended began."""
    if node.unschedulable:
        return (
            {}
            if node.annotations.get(names.UPGRADE_INITIAL_STATE) == PRESENT
            else {names.UPGRADE_INITIAL_STATE: PRESENT}
        )
    return _without(node, names.UPGRADE_INITIAL_STATE)


def _upgrade_required(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """A request is taken off whether the node starts or not (3.5)."""
    requested = node.annotations.get(names.UPGRADE_REQUESTED) == PRESENT
    annotations: Annotations = {names.UPGRADE_REQUESTED: None} if requested else {}
    if node.skip:
        why = f"it is skipped: remove label {names.UPGRADE_SKIP}={PRESENT} to have it upgraded"
        return _stay(node, state, why, annotations=annotations)
    if node.name not in around.starting:
        return _stay(node, state, around.no_start, annotations=annotations)
    if not requested and _restart_only(node, around):
        return _move(
            node,
            state,
            State.POD_RESTART_REQUIRED,
            "the driver's configuration is unchanged, only its pod has to be replaced",
            cordon=True,
        )
    return _move(node, state, State.CORDON_REQUIRED, "it got a slot", annotations=annotations)


def _restart_only(node: NodeFacts, around: Surroundings) -> bool:
    """The new pod will load the very driver that runs, so workloads may stay (3.7, release 26.7).

    A precompiled driver is unloaded all the same, as it leaves no record on the node. What a pod that does not run has
    loaded is not known.
    """
    if around.policy.release is Release.V26_3 or node.annotations.get(names.UPGRADE_SAFE_LOAD):
        return False
    return all(
        (owner := around.snapshot.daemon_sets.get(pod.daemon_set)) is not None
        and verdicts.is_healthy(pod)
        and not owner.precompiled
        and pod.digest != ""
        and pod.digest == owner.digest
        for pod in node.driver_pods
    )


def _cordon_required(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """Cordon, and begin the wait with no start of an earlier one."""
    annotations = _without(node, names.UPGRADE_JOBS_START)
    return _move(node, state, State.WAIT_FOR_JOBS_REQUIRED, "it is cordoned", annotations=annotations, cordon=True)


def _wait_for_jobs(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """Let jobs end, for as long as the policy gives them."""
    gone = _without(node, names.UPGRADE_JOBS_START)
    selector, timeout_s = around.policy.jobs_selector, around.policy.jobs_timeout_s
    if not selector:
        return _move(node, state, State.POD_DELETION_REQUIRED, "no jobs are waited for", annotations=gone)
    if node.jobs is None:
        return _unread(node, state, f"pods that match {selector}")
    if not node.jobs:
        return _move(node, state, State.POD_DELETION_REQUIRED, "its jobs have ended", annotations=gone)
    jobs = f"it waits for {slots.listed(node.jobs)}"
    if not timeout_s:
        return _stay(node, state, f"{jobs}, without end as waitForCompletion.timeoutSeconds is 0")
    timer = _Timer(names.UPGRADE_JOBS_START, timeout_s, node, around.now)
    if timer.error:
        return _stuck(node, state, "InvalidUpgradeTimer", f"{jobs}; {timer.error}")
    if timer.expired:
        why = f"{slots.listed(node.jobs)} did not end within {timeout_s} s"
        return _move(node, state, State.POD_DELETION_REQUIRED, why, annotations=gone)
    return _stay(node, state, f"{jobs}, for another {timer.left_s} s at most", annotations=timer.started)


def _pod_deletion(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """Evict what holds a GPU: all of it, or nothing (3.11)."""
    rules = around.policy.pod_deletion
    if (work := around.work(node)) is not None:
        if not work.done:
            return _stay(node, state, "its GPU pods are being evicted")
        if work.failure:
            return _without_eviction(node, state, around, f"its GPU pods could not be evicted: {work.failure}")
        return _move(node, state, State.POD_RESTART_REQUIRED, "its GPU pods are gone")
    if rules is None:
        return _stuck(
            node, state, "InvalidUpgradePolicy", "the policy has no podDeletion, which this state needs; set it"
        )
    if node.gpu_pods is None:
        return _unread(node, state, "GPU pods")
    if not node.gpu_pods:
        return _move(node, state, State.POD_RESTART_REQUIRED, "it has no GPU pods")
    if kept := [f"{pod.name} ({pod.kept})" for pod in node.gpu_pods if pod.kept]:
        why = f"no GPU pod was evicted, as not all may be: {slots.listed(kept)}"
        return _without_eviction(node, state, around, why)
    evicted = slots.listed([pod.name for pod in node.gpu_pods])
    return _stay(node, state, f"its GPU pods are evicted: {evicted}", actions=(StartEviction(rules),))


def _without_eviction(node: NodeFacts, state: State, around: Surroundings, why: str) -> Decision:
    if around.policy.drain.enable:
        return _move(node, state, State.DRAIN_REQUIRED, f"{why}; the node is drained instead", type=WARNING)
    return _move(node, state, State.FAILED, f"{why}; drain.enable is false", type=WARNING)


def _drain(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    rules = around.policy.drain
    if not rules.enable:
        return _move(node, state, State.POD_RESTART_REQUIRED, "drain.enable is false")
    work = around.work(node)
    if work is None:
        return _stay(node, state, "it is being drained", cordon=True, actions=(StartDrain(rules),))
    if not work.done:
        return _stay(node, state, "it is being drained")
    if work.failure:
        return _move(node, state, State.FAILED, f"it could not be drained: {work.failure}", type=WARNING)
    return _move(node, state, State.POD_RESTART_REQUIRED, "it is drained")


def _pod_restart(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """Replace what is not up to date, then wait for what took its place."""
    drivers = verdicts.judge(node, around.snapshot.daemon_sets)
    if drivers.error:
        return _stuck(node, state, "DriverRevisionUnknown", drivers.error)
    if replaced := (*drivers.outdated, *drivers.orphans):
        deletions = tuple(DeletePod(pod.namespace, pod.name, pod.uid) for pod in replaced if not pod.terminating)
        listed = slots.listed([pod.name for pod in replaced])
        return _stay(node, state, f"driver pod {listed} is on its way out", actions=deletions)
    annotations: Annotations = {names.UPGRADE_SAFE_LOAD: None} if node.annotations.get(names.UPGRADE_SAFE_LOAD) else {}
    if drivers.healthy:
        timer = _validation_timer(node, around)
        return _move(node, state, State.VALIDATION_REQUIRED, "its new driver runs", annotations=annotations | timer)
    if drivers.failing:
        why = f"its new driver does not come up: {drivers.trouble}"
        return _move(node, state, State.FAILED, why, annotations=annotations, type=WARNING)
    return _stay(node, state, f"its new driver does not run yet: {drivers.trouble}", annotations=annotations)


def _validation_timer(node: NodeFacts, around: Surroundings) -> Annotations:
    """Begin with the time that validators get, where one is seen that is not ready; never with an earlier start."""
    if any(not pod.ready for pod in node.validators or ()):
        return {names.UPGRADE_VALIDATION_START: str(around.now)}
    return _without(node, names.UPGRADE_VALIDATION_START)


def _validation(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """The node's validators must all be ready (3.8)."""
    if node.validators is None:
        return _unread(node, state, "validator pods")
    if not node.validators:
        return _stuck(
            node,
            state,
            "NoValidatorPod",
            f"no validator pod (app={names.VALIDATOR_APP}) is on the node, so its driver is never found valid; see the "
            f"node's label {names.DEPLOY_OPERATOR_VALIDATOR}, where a driver manager may have left a value "
            "paused-for-driver-upgrade, and the validator's DaemonSet" + _cordon_note(node),
        )
    unready: ValidatorPod | None = next((pod for pod in node.validators if not pod.ready), None)
    gone = _without(node, names.UPGRADE_VALIDATION_START)
    if unready is None:
        return _finish(node, state, "its validators are ready", gone)
    timer = _Timer(names.UPGRADE_VALIDATION_START, VALIDATION_TIMEOUT_S, node, around.now)
    if timer.error:
        return _stuck(node, state, "InvalidUpgradeTimer", f"validator pod {unready.name} is not ready; {timer.error}")
    if timer.expired:
        why = f"validator pod {unready.name} was not ready within {VALIDATION_TIMEOUT_S} s"
        return _move(node, state, State.FAILED, why, annotations=gone, type=WARNING)
    why = f"validator pod {unready.name} is not ready; the upgrade fails in {timer.left_s} s"
    return _stay(node, state, why, annotations=timer.started)


def _uncordon(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """Uncordon what the upgrade cordoned. The label may be set by hand, so what was cordoned before is looked at."""
    gone = _without(node, names.UPGRADE_INITIAL_STATE)
    if gone:
        return _move(node, state, State.DONE, "it stays as cordoned as it was before", annotations=gone)
    return _move(node, state, State.DONE, "it is schedulable again", uncordon=True)


def _failed(node: NodeFacts, state: State, around: Surroundings) -> Decision:
    """At rest, until its driver pod is healthy after all or an administrator tries again.

    A driver that still waits for safe load would only bring the node back here, again and again, so it stays.
    """
    drivers = verdicts.judge(node, around.snapshot.daemon_sets)
    if drivers.error:
        return _stuck(node, state, "DriverRevisionUnknown", drivers.error)
    waiting = bool(node.annotations.get(names.UPGRADE_SAFE_LOAD))
    if drivers.healthy and not waiting:
        return _finish(node, state, "its driver pod is healthy after all", {})
    return _stuck(
        node,
        state,
        "DriverUpgradeFailed",
        f"its upgrade failed: {drivers.trouble or 'its driver still waits to be loaded safely'}; it recovers when its "
        "driver pod is up to date and ready, or try again with: "
        f"kubectl label node {node.name} --overwrite {names.UPGRADE_STATE}={State.UPGRADE_REQUIRED}",
    )


def _finish(node: NodeFacts, state: State, why: str, annotations: Annotations) -> Decision:
    """The upgrade worked; what was cordoned before it is left so (3.5)."""
    if node.cordoned_before:
        annotations = {**annotations, names.UPGRADE_INITIAL_STATE: None}
        return _move(node, state, State.DONE, f"{why}; it was cordoned before and stays so", annotations=annotations)
    return _move(node, state, State.UNCORDON_REQUIRED, why, annotations=annotations)


Rule = Callable[[NodeFacts, State, Surroundings], Decision]
RULES: Final[Mapping[State, Rule]] = {
    State.UNKNOWN: _at_rest,
    State.DONE: _at_rest,
    State.UPGRADE_REQUIRED: _upgrade_required,
    State.CORDON_REQUIRED: _cordon_required,
    State.WAIT_FOR_JOBS_REQUIRED: _wait_for_jobs,
    State.POD_DELETION_REQUIRED: _pod_deletion,
    State.DRAIN_REQUIRED: _drain,
    State.POD_RESTART_REQUIRED: _pod_restart,
    State.FAILED: _failed,
    State.VALIDATION_REQUIRED: _validation,
    State.UNCORDON_REQUIRED: _uncordon,
}
"""What is decided in each state, in the order of 3.4, which does not matter here: no rule looks at another node."""


# --- Timers ----------------------------------------------------------------------------------------------------------
class _Timer:
    """Time that runs since the Unix second in an annotation; it has run out strictly after its end (3.5, 3.8)."""

    def __init__(self, key: str, timeout_s: int, node: NodeFacts, now: int) -> None:
        text = node.annotations.get(key)
        self.started: Annotations = {key: str(now)} if text is None else {}
        self.error = ""
        start = now
        if text is not None:
            if re.fullmatch(r"[+-]?[0-9]{1,19}", text, re.ASCII):
                start = int(text)
            else:
                self.error = f"annotation {key}={text!r} is not a time in Unix seconds; remove it to begin anew"
        self.left_s = start + timeout_s - now
        self.expired = self.left_s < 0


def _without(node: NodeFacts, key: str) -> Annotations:
    return {key: None} if key in node.annotations else {}


# --- Decisions -------------------------------------------------------------------------------------------------------
def _move(
    node: NodeFacts,
    state: State,
    to: State,
    why: str,
    *,
    annotations: Mapping[str, str | None] = {},
    cordon: bool = False,
    uncordon: bool = False,
    type: str = NORMAL,
) -> Decision:
    return Decision(
        node=node.name,
        state=state,
        to=to,
        resource_version=node.resource_version,
        patch=_patch(node, {names.UPGRADE_STATE: str(to)}, annotations, cordon, uncordon),
        events=(Event(type, f"Driver upgrade: {_name(state)} -> {to}: {why}{_changes(annotations)}"),),
    )


def _stay(
    node: NodeFacts,
    state: State,
    waits_for: str,
    *,
    annotations: Mapping[str, str | None] = {},
    cordon: bool = False,
    actions: tuple[Action, ...] = (),
) -> Decision:
    changes = _changes(annotations)
    return Decision(
        node=node.name,
        state=state,
        resource_version=node.resource_version,
        patch=_patch(node, {}, annotations, cordon),
        actions=actions,
        events=(Event(NORMAL, f"Driver upgrade: {_name(state)}{changes}"),) if changes else (),
        waits_for=waits_for,
    )


def _stuck(node: NodeFacts, state: State | None, reason: str, why: str) -> Decision:
    """It stays, and will until a person does something."""
    return Decision(
        node=node.name,
        state=state,
        events=(Event(WARNING, f"Driver upgrade: {_name(state, node.label)}: {why}"),),
        waits_for=why,
        problem=Problem(reason, f"node {node.name}: {why}"),
    )


def _unread(node: NodeFacts, state: State, what: str) -> Decision:
    """A fact that is needed is not there: not looked at yet, or it could not be had."""
    if node.unread:
        return _stuck(node, state, "FactsMissing", f"its {what} could not be looked at: {node.unread}")
    return _stay(node, state, f"its {what} have not been looked at yet")


def _patch(
    node: NodeFacts,
    labels: Mapping[str, str | None],
    annotations: Mapping[str, str | None],
    cordon: bool = False,
    uncordon: bool = False,
) -> Patch:
    unschedulable = True if cordon and not node.unschedulable else False if uncordon and node.unschedulable else None
    if not (labels or annotations) and unschedulable is None:
        return NO_PATCH
    return Patch(labels, annotations, unschedulable)


def _changes(annotations: Mapping[str, str | None]) -> str:
    """The annotations that change, for an event."""
    return "".join(
        f"; annotation {key} {'removed' if value is None else f'set to {value}'}" for key, value in annotations.items()
    )


def _name(state: State | None, label: str = "") -> str:
    return state or label or "no state"
