"""What a pass has to write and delete, state by state: rendered objects against what is there.

Pure: :func:`steps` compares and decides; ``policy.py`` carries the steps out, ``plan.py`` prints them. The rules that
are more than "make it so" are here: DaemonSets wait for a GPU node, a ServiceAccount that exists is left alone, a
driver DaemonSet that still serves nodes is not pruned, and drivers of one kind leave before those of another come
(contracts/control-plane.md 4.1 and 4.6).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import field

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from ..api.release import Release
from ..cluster import apply, kinds, managers
from ..cluster.apply import Key
from ..cluster.kinds import Kind
from ..operands import driver, driver_cleanup, vgpu_manager
from ..operands.driver_cleanup import Fate
from ..operands.facts import ClusterFacts
from ..operands.stack import Rendered
from .owned import Object, OwnedObjects, deleting, of_a_driver, state_of
from .takeover import FORMER_MANAGERS

_MANAGERS: Final = "metadata.managedFields"
BACKGROUND: Final = "Background"
FOREGROUND: Final = "Foreground"
"""The owner stays until its pods are gone, so their absence can be waited for."""
ORPHAN: Final = "Orphan"

DRIVER_STATES: Final = frozenset({driver.STATE, vgpu_manager.STATE})


LEFT_BY_NVIDIA: Final = "left by NVIDIA's operator"
"""Stands for the state of a left object that is no driver. It is no operand state, and never on an object."""
_LEFT_DRIVERS: Final = {driver.BASE: driver.STATE, vgpu_manager.BASE: vgpu_manager.STATE}


class Write(msgspec.Struct, frozen=True):
    """An object to apply. ``drift`` lists the paths that differ in the live object; it is empty for a new one.

    ``former`` is the live object where NVIDIA's operator still owns fields of it: those are taken over first.
    """

    obj: dict[str, Any]
    drift: tuple[str, ...] = ()
    new: bool = False
    former: Object | None = None


class Deletion(msgspec.Struct, frozen=True):
    """A live object to delete, and what becomes of its dependents."""

    obj: Object
    propagation: str = BACKGROUND


class Step(msgspec.Struct):
    """What to do about one state."""

    state: str
    enabled: bool = True
    writes: list[Write] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Why the state cannot be ready yet, besides its DaemonSets' own verdicts."""
    obstacle: str = ""
    """What a person must change before the state can be ready; empty when time alone may do."""
    daemon_sets: list[Key] = field(default_factory=list)
    """Those whose verdict decides whether the state is ready."""
    error: str = ""
    """The state could not be rendered: nothing of it is touched, and no later state is looked at."""


class Context(msgspec.Struct, frozen=True):
    """What deciding needs besides the rendered objects."""

    store: OwnedObjects
    served: Callable[[Kind], bool]
    owner_uid: str
    gpu_nodes: bool
    drivers_by_crd: bool = False
    """Drivers belong to NVIDIADriver objects: ours are handed over (2.5)."""
    orphan_drivers: bool = False
    """Leave the pods of handed-over drivers running."""
    leftovers: Sequence[Object] = ()
    """What NVIDIA's operator made for this policy and nobody has adopted."""
    unreadable: frozenset[Kind] = frozenset()
    """Kinds whose live objects are not known: nothing of them is written or deleted."""


def context(
    spec: ClusterPolicySpec,
    facts: ClusterFacts,
    store: OwnedObjects,
    served: Callable[[Kind], bool],
    unreadable: Iterable[Kind] = (),
    leftovers: Sequence[Object] = (),
) -> Context:
    """The context of a pass over ``spec``."""
    by_crd = bool(spec.driver.useNvidiaDriverCRD)
    return Context(
        store=store,
        served=served,
        owner_uid=facts.owner.uid if facts.owner else "",
        gpu_nodes=bool(facts.nodes),
        drivers_by_crd=by_crd,
        orphan_drivers=by_crd and facts.release is not Release.V26_3,
        unreadable=frozenset(unreadable),
        leftovers=leftovers,
    )


def steps(rendered: Sequence[Rendered], about: Context, refused: Mapping[str, str] | None = None) -> list[Step]:
    """The steps in apply order, up to and including the first state with an error.

    ``refused`` maps states to what validation found wrong with them. Objects of states that no longer exist come
    last, and only when no state failed.
    """
    refused = refused or {}
    found: list[Step] = []
    ours: dict[str, list[dict[str, Any]]] = {}
    for obj in about.store.ours():
        if kinds.of(obj) in about.unreadable or of_a_driver(obj):
            continue
        ours.setdefault(state_of(obj), []).append(obj)
    for state, obj in _left(rendered, about):
        ours.setdefault(state, []).append(obj)
    for result in rendered:
        live = ours.pop(result.state, [])
        problem = refused.get(result.state) if result.enabled else None
        if problem or result.error:
            message = problem or (result.error.message if result.error else "")
            return [*found, Step(result.state, error=message)]
        found.append(_enabled(result, live, about) if result.enabled else _disabled(result.state, live, about))
    return found + [_disabled(state, live, about) for state, live in sorted(ours.items())]


def _left(rendered: Sequence[Rendered], about: Context) -> Iterable[tuple[str, dict[str, Any]]]:
    """Left objects that nobody wants, by the state that decides on them: drivers are pruned by rules of their own."""
    wanted = {Key.of(obj) for result in rendered if result.enabled for obj in result.objects}
    for obj in about.leftovers:
        key = Key.of(obj)
        if key not in wanted and key.kind not in about.unreadable:
            drivers = (state for base, state in _LEFT_DRIVERS.items() if key.name.startswith(base))
            state = next(drivers, LEFT_BY_NVIDIA) if key.kind is kinds.DAEMON_SET else LEFT_BY_NVIDIA
            yield state, dict(obj)


def _disabled(state: str, live: Iterable[Object], about: Context) -> Step:
    """Everything of the state goes; drivers that were handed over leave only as DaemonSets."""
    step = Step(state, enabled=False)
    handed_over = about.drivers_by_crd and state in DRIVER_STATES
    for obj in live:
        is_daemon_set = kinds.of(obj) is kinds.DAEMON_SET
        if deleting(obj) or (handed_over and not is_daemon_set):
            continue
        orphan = handed_over and about.orphan_drivers
        step.deletions.append(Deletion(obj, ORPHAN if orphan else BACKGROUND))
    return step


def _enabled(result: Rendered, live: Iterable[Object], about: Context) -> Step:
    step = Step(result.state, obstacle=result.not_ready)
    if result.not_ready:
        step.waiting.append(result.not_ready)
    desired = {Key.of(obj): obj for obj in result.objects}
    blocked = _prune(step, live, desired, about)
    for key, obj in desired.items():
        if key.kind is kinds.DAEMON_SET:
            if not about.gpu_nodes:
                continue
            step.daemon_sets.append(key)
            if blocked and about.store.get(key) is None:
                step.waiting.append(f"{key} waits until the drivers of another kind are gone")
                continue
        _compare(step, key, obj, about)
    return step


def _prune(step: Step, live: Iterable[Object], desired: Mapping[Key, Object], about: Context) -> bool:
    """Delete what is no longer wanted. Says whether new DaemonSets must wait for that."""
    wanted = [obj for key, obj in desired.items() if key.kind is kinds.DAEMON_SET]
    blocked = False
    for obj in live:
        if Key.of(obj) in desired:
            continue
        propagation = BACKGROUND
        if kinds.of(obj) is kinds.DAEMON_SET:
            fate = _fate(step.state, obj, wanted, about)
            if fate is Fate.KEEP:
                continue
            if fate is Fate.DELETE_FIRST:
                blocked, propagation = True, FOREGROUND
        if not deleting(obj):
            step.deletions.append(Deletion(obj, propagation))
    return blocked


def _fate(state: str, daemon_set: Object, wanted: list[Object], about: Context) -> Fate:
    """What becomes of a DaemonSet that is not wanted; without GPU nodes nothing is touched (4.1)."""
    if not about.gpu_nodes:
        return Fate.KEEP
    return driver_cleanup.fate(daemon_set, wanted) if state in DRIVER_STATES else Fate.DELETE


def driver_step(
    name: str, wanted: Iterable[dict[str, Any]], live: Iterable[Object], keep: Iterable[Object], about: Context
) -> Step:
    """What to do about one NVIDIADriver. ``live`` are its own objects; of those not wanted, ``keep`` stay (2.4)."""
    step = Step(name)
    desired = {Key.of(obj): obj for obj in wanted}
    kept = {Key.of(obj) for obj in keep} | desired.keys()
    step.deletions = [Deletion(obj) for obj in live if Key.of(obj) not in kept and not deleting(obj)]
    for key, obj in desired.items():
        if key.kind is kinds.DAEMON_SET:
            step.daemon_sets.append(key)
        _compare(step, key, obj, about)
    return step


def _compare(step: Step, key: Key, obj: dict[str, Any], about: Context) -> None:
    """One wanted object against the live one."""
    kind = key.kind
    if not about.served(kind):
        step.waiting.append(f"{key} cannot be created: its CRD {kind.resource} is not installed")
        return
    if kind in about.unreadable:
        step.waiting.append(f"{key} is not looked after: {kind.resource} cannot be read")
        return
    if about.store.in_flight(key):
        if kind is kinds.DAEMON_SET:
            step.waiting.append(f"{key} has just been written")
        return
    live = about.store.get(key)
    if live is None:
        left = next((each for each in about.leftovers if Key.of(each) == key), None)
        step.writes.append(Write(apply.stamp(obj), new=True, former=left))
    elif deleting(live):
        step.waiting.append(f"{key} is being deleted")
    elif kind is kinds.SERVICE_ACCOUNT:
        if not state_of(live) and about.owner_uid in _owners(live):
            step.writes.append(Write(apply.stamp(obj), (f"metadata.labels[{names.STATE_LABEL}]",)))
    else:
        former = live if managers.former_entries(live, FORMER_MANAGERS) else None
        plan = apply.diff_set([obj], [live])
        step.writes += [Write(update.desired, tuple(update.paths), former=former) for update in plan.update]
        if former is not None and not plan.update:
            step.writes.append(Write(apply.stamp(obj), (_MANAGERS,), former=former))


def _owners(obj: Object) -> set[str]:
    return {reference.get("uid", "") for reference in obj["metadata"].get("ownerReferences") or ()} - {""}
