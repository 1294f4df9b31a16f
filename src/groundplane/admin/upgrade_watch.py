"""Drivers while they are replaced: each node's state, how long it has been in it, what it waits for, and what is stuck.

contracts/admin-workflow.md 9.3, A99 to A102. Pure: surveys go in, one after the other, and :class:`Watch` keeps since
when it has seen a state. A node without a state says why it has none (contracts/admin-workflow.md 16): a table that is
empty there tells nobody anything.
"""

import calendar
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ..api import names
from ..diagnose import pods
from ..diagnose.findings import Action, Evidence, Finding, Layer, Outcome
from ..diagnose.survey import Object, Survey
from ..operator.upgrade import states
from ..operator.upgrade.states import State
from .upgrade_checks import AGAIN, some

KINDS: Final = ("nodes", "pods", "daemonsets", "controllerrevisions", "clusterpolicies", "nvidiadrivers", "events")
EVENT: Final = "GPUDriverUpgrade"
"""Reason of the events on nodes by which an operator tells of upgrades."""
HASH: Final = "controller-revision-hash"
PATIENCE_S: Final[Mapping[State, float]] = {
    State.CORDON_REQUIRED: 120.0,
    State.WAIT_FOR_JOBS_REQUIRED: 3600.0,
    State.POD_DELETION_REQUIRED: 600.0,
    State.DRAIN_REQUIRED: 600.0,
    State.POD_RESTART_REQUIRED: 1800.0,
    State.VALIDATION_REQUIRED: 900.0,
    State.UNCORDON_REQUIRED: 120.0,
}
"""Seconds after which a node counts as stuck in a state. A driver may be built for 20 minutes; a node that has not yet
begun waits for its turn, and is stuck only if none is under way."""
_WHY: Final[Mapping[State, str]] = {
    State.CORDON_REQUIRED: "the operator does not cordon it: is the operator running?",
    State.WAIT_FOR_JOBS_REQUIRED: "jobs that waitForCompletion selects still run",
    State.POD_DELETION_REQUIRED: "pods with GPUs do not leave: a PodDisruptionBudget, or a pod nothing makes anew",
    State.DRAIN_REQUIRED: "pods do not leave: a PodDisruptionBudget, or a pod that nothing makes anew",
    State.POD_RESTART_REQUIRED: "the new driver does not become ready",
    State.VALIDATION_REQUIRED: "the validator does not become ready with the new driver",
    State.UNCORDON_REQUIRED: "the operator does not uncordon it: is the operator running?",
}


class Row(NamedTuple):
    """A GPU node while drivers are replaced.

    ``state`` is the label's value, ``why`` says why there is none, or what the node waits for. ``age_s`` is how long it
    has been in it, None if that is not known. ``current``: it has the driver that it is to have, ready.
    """

    node: str
    state: str
    why: str
    age_s: float | None
    current: bool
    stuck: bool = False
    failed: bool = False
    skipped: bool = False
    """Somebody keeps it from being upgraded, by its label."""
    host: bool = False

    def __str__(self) -> str:
        """A line for people."""
        age = f", for {told_age(self.age_s)}" if self.age_s is not None and self.state else ""
        return f"{self.node}: {self.state or 'no state'}{age}{f' ({self.why})' if self.why else ''}"


def told_age(seconds: float) -> str:
    """``3m20s``."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{whole % 60:02}s"


class Watch:
    """Since when which node has been in its state: as its last event tells, and as it was seen."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float | None]] = {}

    def look(self, survey: Survey, now: float, *, automatic: bool = True) -> list[Row]:
        """Every GPU node; ``now`` in Unix seconds. ``automatic``: the operator replaces drivers by itself."""
        told = _events(survey)
        drivers = driver_pods(survey)
        newest = newest_hashes(survey)
        rows = [
            self._row(node, drivers.get(_name(node), ()), newest, told.get(_name(node)), now, automatic)
            for node in survey.of_kind("nodes")
            if _labels(node).get(names.GPU_PRESENT) == "true"
        ]
        under_way = any(states.parse(row.state) in states.IN_PROGRESS for row in rows if row.state)
        return [_waiting(row) if _stands(row, under_way) else row for row in rows]

    def _row(
        self,
        node: Object,
        drivers: Collection[Object],
        newest: Mapping[str, str],
        event: float | None,
        now: float,
        automatic: bool,
    ) -> Row:
        name, state = _name(node), _labels(node).get(names.UPGRADE_STATE, "")
        before = self._since.get(name)
        if before is None:
            self._since[name] = (state, event)
        elif before[0] != state:
            self._since[name] = (state, now)
        since = self._since[name][1]
        age = max(now - since, 0.0) if since is not None else None
        if since is None:
            self._since[name] = (state, now)
        parsed = states.parse(state)
        host = not drivers and _labels(node).get(names.DEPLOY_DRIVER) in ("pre-installed", "false")
        why = _why(parsed, state, node, drivers, automatic=automatic)
        limit = PATIENCE_S.get(parsed) if parsed is not None else None
        stuck = limit is not None and age is not None and age > limit
        if stuck and parsed is not None:
            why = f"stuck: {_WHY[parsed]}; {why}" if why else f"stuck: {_WHY[parsed]}"
        return Row(
            node=name,
            state=state,
            why=why,
            age_s=age,
            current=any(_current(pod, newest) for pod in drivers),
            stuck=stuck,
            failed=parsed is State.FAILED,
            skipped=_labels(node).get(names.UPGRADE_SKIP) == "true",
            host=host,
        )


NOT_BEGUN_S: Final = 600.0
"""Seconds after which nodes that wait while none is under way count as stuck."""


def _stands(row: Row, under_way: bool) -> bool:
    waiting = row.state == State.UPGRADE_REQUIRED.value and not row.skipped
    return waiting and not under_way and row.age_s is not None and row.age_s > NOT_BEGUN_S


def _waiting(row: Row) -> Row:
    why = (
        "stuck: no node is under way; cordoned or not-ready nodes use up maxUnavailable, or the operator is not running"
    )
    return row._replace(stuck=True, why=why)


def _why(
    state: State | None, label: str, node: Object, drivers: Collection[Object], *, automatic: bool
) -> str:  # fmt: skip
    if state is None:
        return f"{label!r} is no state that a release writes"
    if _labels(node).get(names.UPGRADE_SKIP) == "true":
        return f"held by label {names.UPGRADE_SKIP}=true"
    if state in (State.POD_RESTART_REQUIRED, State.VALIDATION_REQUIRED, State.FAILED):
        return "; ".join(filter(None, (_pod_waits(pod) for pod in drivers)))
    if state is State.UNKNOWN:
        if not drivers:
            return "the operator manages no driver here"
        return "the operator has not yet looked at it" if automatic else "driver.upgradePolicy.autoUpgrade is off"
    return ""


def _pod_waits(pod: Object) -> str:
    for part in ("initContainerStatuses", "containerStatuses"):
        for each in (pod.get("status") or {}).get(part) or ():
            waiting = (each.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") and waiting["reason"] != "PodInitializing":
                return f"pod {_name(pod)}: {each.get('name')} {waiting['reason']}"
    return "" if pods.ready(pod) else f"pod {_name(pod)} is not ready"


# --- Drivers ------------------------------------------------------------------------------------------------------


def is_driver(thing: Object) -> bool:
    """Whether a pod or a DaemonSet is of drivers: by component too, as NVIDIADrivers have an ``app`` of their own."""
    template = ((thing.get("spec") or {}).get("template") or {}).get("metadata") or {}
    labels = {**(template.get("labels") or {}), **_labels(thing)}
    return labels.get("app") == "nvidia-driver-daemonset" or labels.get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT


def driver_pods(survey: Survey) -> Mapping[str, list[Object]]:
    """Driver pods by node."""
    found: dict[str, list[Object]] = {}
    for pod in survey.of_kind("pods"):
        node = (pod.get("spec") or {}).get("nodeName")
        if node and is_driver(pod) and pod["metadata"].get("namespace") == survey.namespace:
            found.setdefault(node, []).append(pod)
    return found


def generations(survey: Survey) -> dict[str, int]:
    """The generation of each driver DaemonSet, by name: it grows when the operator changes one."""
    return {
        _name(each): int(each["metadata"].get("generation") or 0)
        for each in survey.of_kind("daemonsets")
        if is_driver(each)
    }


def newest_hashes(survey: Survey) -> dict[str, str]:
    """The hash of the newest revision of each driver DaemonSet, by its UID."""
    uids = {str(each["metadata"].get("uid") or "") for each in survey.of_kind("daemonsets") if is_driver(each)}
    newest: dict[str, tuple[int, str]] = {}
    for each in survey.of_kind("controllerrevisions"):
        for owner in each["metadata"].get("ownerReferences") or ():
            uid = str(owner.get("uid") or "")
            if uid in uids:
                mine = (int(each.get("revision") or 0), _labels(each).get(HASH, ""))
                newest[uid] = max(newest.get(uid, (0, "")), mine)
    return {uid: text for uid, (_, text) in newest.items()}


def _current(pod: Object, newest: Mapping[str, str]) -> bool:
    owners = [str(each.get("uid") or "") for each in pod["metadata"].get("ownerReferences") or ()]
    mine = next((newest[uid] for uid in owners if uid in newest), None)
    alive = not pod["metadata"].get("deletionTimestamp")
    return mine is not None and alive and _labels(pod).get(HASH) == mine and pods.ready(pod)


# --- The end ------------------------------------------------------------------------------------------------------


class Expected(msgspec.Struct, frozen=True):
    """What has to come: driver DaemonSets as they were (:func:`generations`), and whether all of them change."""

    before: Mapping[str, int] = {}
    changes: bool = False
    automatic: bool = True


def waits(survey: Survey, rows: Iterable[Row], expected: Expected, only: Collection[str] = ()) -> Iterator[str]:
    """What is still waited for, a line each; nothing: the drivers are as they are to be.

    ``only``: only these nodes count. Nodes that are held, host drivers, and all nodes where drivers are not replaced by
    the operator, are not waited for.
    """
    now = generations(survey)
    if expected.changes:
        for name, generation in expected.before.items():
            if now.get(name) == generation:
                yield f"the operator has not changed DaemonSet {name} yet"
    for each in survey.of_kind("daemonsets"):
        observed = int((each.get("status") or {}).get("observedGeneration") or 0)
        if is_driver(each) and observed < int(each["metadata"].get("generation") or 0):
            yield f"DaemonSet {_name(each)} has not been looked at yet"
    for policy in survey.of_kind("clusterpolicies"):
        state = (policy.get("status") or {}).get("state")
        if not only and state not in ("ready", "ignored", "disabled"):
            yield f"ClusterPolicy {_name(policy)} is {state or 'not looked at yet'}"
    if expected.automatic:
        yield from (str(row) for row in rows if (not only or row.node in only) and not _settled(row))


def _settled(row: Row) -> bool:
    if row.skipped or row.host:
        return True
    managed = row.why != "the operator manages no driver here"
    return not managed or (row.current and row.state in ("", State.DONE.value))


def judge(rows: Iterable[Row], *, automatic: bool = True) -> Iterator[Finding]:
    """A99 to A102, at the end, or at any moment."""
    found = list(rows)
    groups: tuple[tuple[str, Outcome, str, list[Row], tuple[str, ...]], ...] = (
        ("A101", Outcome.FAIL, "the driver upgrade has failed", [row for row in found if row.failed], AGAIN),
        (
            "A100",
            Outcome.FAIL,
            "the driver upgrade is stuck",
            [row for row in found if row.stuck and not row.failed],
            (),
        ),
        ("A102", Outcome.SKIP, "the driver is the host's: it was not upgraded", [row for row in found if row.host], ()),
        ("A101", Outcome.WARN, "held: the node keeps its driver", [row for row in found if row.skipped], ()),
        ("A101", Outcome.PASS, "the driver is upgraded", [row for row in found if _well(row)], ()),
    )
    for number, outcome, title, mine, fix in groups:
        for row in mine:
            action = Action.UPGRADE_COMPONENT if outcome is Outcome.FAIL else Action.NONE
            said = (
                (Evidence(f"node/{row.node} {names.UPGRADE_STATE}", str(row)),) if outcome is not Outcome.PASS else ()
            )
            yield Finding(
                id=number, layer=Layer.DRIVER, outcome=outcome, title=title, node=row.node, evidence=said, fix=fix,
                action=action,
            )  # fmt: skip
    told = {row.node for _, _, _, mine, _ in groups for row in mine}
    left = [row for row in found if row.node not in told]
    for row in left:
        title = "the driver is not upgraded yet"
        if not automatic:
            title = "the driver is not replaced by itself (autoUpgrade is off): delete its driver pod"
        said = (Evidence(f"node/{row.node}", str(row)),)
        yield Finding(id="A99", layer=Layer.DRIVER, outcome=Outcome.WARN, title=title, node=row.node, evidence=said)
    if not found:
        yield Finding(id="A100", layer=Layer.DRIVER, outcome=Outcome.SKIP, title="no node has a GPU")


def _well(row: Row) -> bool:
    return (
        row.current and not (row.failed or row.stuck or row.host or row.skipped) and row.state in ("", "upgrade-done")
    )


def summary(rows: Iterable[Row]) -> str:
    """How far it is, in a line."""
    found = list(rows)
    done = sum(_settled(row) for row in found)
    busy = [row.node for row in found if states.parse(row.state) in states.IN_PROGRESS]
    return f"{done} of {len(found)} nodes done" + (f"; under way: {some(busy)}" if busy else "")


def _events(survey: Survey) -> Mapping[str, float]:
    """When an operator has last told of a node's upgrade."""
    found: dict[str, float] = {}
    for each in survey.of_kind("events"):
        about = each.get("involvedObject") or each.get("regarding") or {}
        if each.get("reason") != EVENT or about.get("kind") != "Node":
            continue
        text = str(
            each.get("lastTimestamp") or each.get("eventTime") or each["metadata"].get("creationTimestamp") or ""
        )
        at = _seconds(text)
        if at is not None:
            node = str(about.get("name"))
            found[node] = max(found.get(node, 0.0), at)
    return found


def _seconds(text: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def _labels(thing: Object) -> Mapping[str, str]:
    return (thing.get("metadata") or {}).get("labels") or {}
