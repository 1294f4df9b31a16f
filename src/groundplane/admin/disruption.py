"""Whose work an upgrade stops: which nodes get their driver anew, and which pods have to leave them for it.

contracts/admin-workflow.md 9.3, on documents: the driver DaemonSets as they are and as they will be, nodes, pods and
PodDisruptionBudgets. Which pods hold a GPU is what the operator's upgrade counts (``cluster.gpupods``), and which may
go what its eviction permits (``cluster.eviction``). Rendering, and asking the API server, is left to commands.
"""

import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ..api import names
from ..cluster import eviction, gpupods
from ..cluster.eviction import Pod, Rules
from ..operator.upgrade import states
from ..operator.upgrade.slots import scaled
from . import selectors
from .hops import Version
from .selectors import Document

IN_PLACE_SINCE: Final = Version(26, 7, 0)
"""From this release on, a driver whose configuration digest has not changed restarts in place."""
UPGRADE_STATES: Final = tuple(
    str(state.value)
    for state in (
        states.State.UPGRADE_REQUIRED,
        states.State.CORDON_REQUIRED,
        states.State.WAIT_FOR_JOBS_REQUIRED,
        states.State.POD_DELETION_REQUIRED,
        states.State.DRAIN_REQUIRED,
        states.State.POD_RESTART_REQUIRED,
        states.State.VALIDATION_REQUIRED,
        states.State.UNCORDON_REQUIRED,
        states.State.DONE,
    )
)
"""The states a node passes, in their order; ``drain-required`` only where drain is enabled."""


_NAMED: Final = 5
"""So many nodes are named in a sentence."""


class Effect(enum.IntEnum):
    """What an upgrade does to the driver of a node, least first."""

    NONE = 0
    RESTART = 1
    """The driver's pod is replaced, its kernel modules stay loaded, and no GPU pod leaves."""
    RELOAD = 2
    """GPU pods leave, the kernel modules are unloaded, and the driver is installed anew."""

    def __str__(self) -> str:
        return self.name.lower()


class Compared(NamedTuple):
    """What replacing one driver DaemonSet by another does to its nodes, and why, in words."""

    effect: Effect
    why: tuple[str, ...] = ()


class Pool(NamedTuple):
    """Nodes that have the same driver DaemonSet before and after; a name is empty where there is none.

    ``before`` and ``after`` are the drivers' images.
    """

    old: str
    new: str
    nodes: tuple[str, ...]
    effect: Effect
    why: tuple[str, ...]
    before: str
    after: str


class Holder(NamedTuple):
    """A pod that has to leave its node.

    ``controller`` is what makes it anew (``ReplicaSet train-5c9``), empty for a bare pod; ``gpu``: it holds a GPU;
    ``blockers`` are what keeps it from leaving, in words.
    """

    pod: str
    node: str
    controller: str
    gpu: bool
    empty_dir: bool
    blockers: tuple[str, ...]

    @property
    def bare(self) -> bool:
        """Nothing makes it anew."""
        return not self.controller


class Estimate(NamedTuple):
    """What it costs to clear some nodes for their drivers; ``idle`` nodes have nothing to lose."""

    holders: tuple[Holder, ...]
    idle: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes with pods that have to leave."""
        return tuple(sorted({each.node for each in self.holders}))

    @property
    def blocked(self) -> tuple[Holder, ...]:
        """Pods at which the upgrade of their node stands still, or fails."""
        return tuple(each for each in self.holders if each.blockers)

    def __str__(self) -> str:
        bare, local = sum(each.bare for each in self.holders), sum(each.empty_dir for each in self.holders)
        return (
            f"{len(self.holders)} pods on {len(self.nodes)} nodes have to leave ({bare} bare, {local} with emptyDir, "
            f"{len(self.blocked)} blocked); {len(self.idle)} nodes are idle"
        )


# --- Drivers ----------------------------------------------------------------------------------------------------------


def compare(old: Document | None, new: Document | None, source: Version, target: Version) -> Compared:
    """What becomes of the driver on nodes whose DaemonSet ``old`` is replaced by ``new``, both as they are rendered.

    The release that will run decides: before 26.7.0 any change of the pod's template reloads the driver, and the first
    upgrade into 26.7.0 does so too.
    """
    if old is None or new is None:
        return _one_only(old, new)
    changes = tuple(changed(_template(old), _template(new)))
    if not changes:
        return Compared(Effect.NONE)
    if target < IN_PLACE_SINCE:
        return Compared(Effect.RELOAD, (f"with {target} any change of the driver's pod reloads the driver", *changes))
    if source < IN_PLACE_SINCE:
        rule = f"the first upgrade into {IN_PLACE_SINCE} or later reloads every driver"
        return Compared(Effect.RELOAD, (rule, *changes))
    if digest(old) and digest(old) == digest(new):
        return Compared(Effect.RESTART, ("the driver's configuration digest is the same", *changes))
    return Compared(Effect.RELOAD, changes)


def _one_only(old: Document | None, new: Document | None) -> Compared:
    if new is not None:
        return Compared(Effect.RELOAD, ("the operator's driver comes to nodes that had none of it",))
    if old is not None:
        return Compared(Effect.RELOAD, ("the operator's driver goes, and nothing takes its place",))
    return Compared(Effect.NONE, ("the operator does not manage the driver here",))


def digest(daemon_set: Document) -> str:
    """The configuration digest that a driver DaemonSet carries; empty for operators that have none."""
    for container in _containers(_template(daemon_set)):
        for variable in container.get("env") or ():
            if variable.get("name") == names.DRIVER_CONFIG_DIGEST:
                return str(variable.get("value") or "")
    return ""


def image(daemon_set: Document | None) -> str:
    """The image of the driver: that of the DaemonSet's first container; empty if there is none."""
    if daemon_set is None:
        return ""
    containers = (_template(daemon_set).get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("image") or "")


def by_pool(
    old: Sequence[Document], new: Sequence[Document], nodes: Iterable[Document], source: Version, target: Version
) -> tuple[Pool, ...]:
    """The GPU nodes by what becomes of their driver, worst first. Nodes without GPUs are left out."""
    pools: dict[tuple[str, str], list[str]] = defaultdict(list)
    sets = {_name(each): each for each in old}, {_name(each): each for each in new}
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        if labels.get(names.GPU_PRESENT) == "true":
            before, after = (_chosen(each.values(), _name(node), labels) for each in sets)
            pools[before, after].append(_name(node))
    made = (_pool(sets[0].get(before), sets[1].get(after), on, source, target) for (before, after), on in pools.items())
    return tuple(sorted(made, key=lambda pool: (-pool.effect, pool.nodes)))


def _pool(old: Document | None, new: Document | None, nodes: list[str], source: Version, target: Version) -> Pool:
    compared = compare(old, new, source, target)
    before, after = ("" if each is None else _name(each) for each in (old, new))
    return Pool(before, after, tuple(sorted(nodes)), *compared, image(old), image(new))


def _chosen(daemon_sets: Iterable[Document], node: str, labels: Mapping[str, str]) -> str:
    """The driver DaemonSet that runs on a node: if several might, the one that asks for most; empty if none."""
    fitting = [each for each in daemon_sets if selectors.may_run(_template(each).get("spec") or {}, node, labels)]
    return max(map(_rank, fitting), default=(0, ""))[1]


def _rank(daemon_set: Document) -> tuple[int, str]:
    return len((_template(daemon_set).get("spec") or {}).get("nodeSelector") or {}), _name(daemon_set)


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])


def _template(daemon_set: Document) -> Document:
    found: Document = daemon_set["spec"]["template"]
    return found


def _containers(template: Document) -> Iterator[Document]:
    spec = template.get("spec") or {}
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


# --- What has changed -------------------------------------------------------------------------------------------------

_KEYS: Final = ("name", "mountPath", "key", "containerPort", "ip")
"""Fields by which the entries of a list are told apart, as in the API: the first that all of them have."""
_SHOWN: Final = ("image", "app.kubernetes.io/version", "helm.sh/chart")
"""What is shown as it was and is; of all else only the name, as it may be secret."""


def changed(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """What two documents differ in, one line each: a path, and the values where those are no secret."""
    if old == new or (_absent(old) and _absent(new)):
        return
    one, other = _fields(old), _fields(new)
    if one is None or other is None:
        last = next((name for name in _SHOWN if at == name or at.endswith(f".{name}")), None)
        yield f"{at}: {old} -> {new}" if last is not None else at
        return
    for key in sorted(one.keys() | other.keys()):
        yield from changed(one.get(key), other.get(key), f"{at}{key}" if key[0] == "[" else f"{at}.{key}".lstrip("."))


def _absent(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _fields(value: Any) -> dict[str, Any] | None:
    """The parts of a map, or of a list whose entries have names; None for anything else."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        key = next((name for name in _KEYS if all(name in each for each in value)), None)
        named = {f"[{each[key]}]": each for each in value} if key is not None else {}
        return named if len(named) == len(value) else None
    return {} if value is None or value == [] else None


# --- Workloads --------------------------------------------------------------------------------------------------------


def estimate(
    nodes: Collection[str],
    pods: Iterable[Document],
    budgets: Sequence[Document],
    rules: Rules,
    *,
    claims: gpupods.Claims | None = None,
    drain: bool = False,
) -> Estimate:
    """Which pods have to leave some nodes before their driver can be unloaded, and what keeps them.

    ``rules`` are those of ``gpuPodDeletion``, or of ``drain`` if that is on: then all pods leave, not only those that
    hold a GPU. ``claims`` are ResourceClaims by key, None where they do not count (before 26.7).
    """
    there = [pod for pod in (msgspec.convert(each, Pod) for each in pods) if pod.spec.nodeName in nodes]
    holding = {pod.key for pod in gpupods.to_upgrade(there, claims)}
    leaving = [pod for pod in there if pod.key in holding or (drain and not pod.finished)]
    holders = tuple(_holders(leaving, holding, budgets, rules))
    return Estimate(holders, tuple(sorted(set(nodes) - {each.node for each in holders})))


def _holders(
    leaving: Sequence[Pod], holding: Collection[eviction.Key], budgets: Sequence[Document], rules: Rules
) -> Iterator[Holder]:
    choice = eviction.choose(leaving, rules)
    kept = {each.pod.key: each.reason for each in choice.kept}
    ignored = {each.pod.key for each in choice.ignored}
    guards = _Guards(budgets)
    for pod in sorted(leaving, key=lambda pod: (pod.spec.nodeName, pod.key)):
        gpu = pod.key in holding
        if pod.key in ignored and not gpu:
            continue
        reasons = [kept[pod.key]] if pod.key in kept else list(_held_back(guards.of(pod)))
        owner = f"{pod.controller.kind} {pod.controller.name}" if pod.controller is not None else ""
        local = any(volume.emptyDir is not None for volume in pod.spec.volumes)
        yield Holder(str(pod), pod.spec.nodeName, owner, gpu, local, tuple(reasons))


class _Guards:
    """The PodDisruptionBudgets of pods; pods of one controller are looked up once."""

    def __init__(self, budgets: Sequence[Document]) -> None:
        self._by_namespace: dict[str, list[Document]] = defaultdict(list)
        for each in budgets:
            self._by_namespace[str(each["metadata"].get("namespace") or "")].append(each)
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], list[Document]] = {}

    def of(self, pod: Pod) -> list[Document]:
        """The budgets that select a pod."""
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        if namespace not in self._by_namespace:
            return []
        key = (namespace, frozenset(labels.items()))
        if key not in self._known:
            here = self._by_namespace[namespace]
            self._known[key] = [
                each for each in here if selectors.selects((each.get("spec") or {}).get("selector"), labels)
            ]
        return self._known[key]


def _held_back(mine: Sequence[Document]) -> Iterator[str]:
    """What PodDisruptionBudgets that select a pod have against its eviction."""
    if len(mine) > 1:
        named = ", ".join(sorted(map(_name, mine)))
        yield f"PodDisruptionBudgets {named} all select it, and the API server evicts no pod of more than one"
        return
    for budget in mine:
        status = budget.get("status") or {}
        if not status.get("disruptionsAllowed"):
            healthy = f"{status.get('currentHealthy', '?')} healthy, {status.get('desiredHealthy', '?')} needed"
            yield f"PodDisruptionBudget {_name(budget)} allows no disruption ({healthy})"


def standstill(nodes: Iterable[Document], limit: int | str | None) -> str:
    """Why an upgrade would not begin, if so: nodes that are cordoned or not ready use up ``maxUnavailable``.

    ``nodes`` are those with a managed driver. Raises ValueError for a limit that is none.
    """
    managed = list(nodes)
    down = sorted(_name(node) for node in managed if _down(node))
    allowed = scaled(limit, len(managed))
    if not managed or len(down) < allowed:
        return ""
    if not down:
        return f"maxUnavailable {limit} lets no node be unavailable: allow 1 or more"
    named = ", ".join((*down[:_NAMED], *(["..."] if len(down) > _NAMED else ())))
    return (
        f"{len(down)} of {len(managed)} nodes are cordoned or not ready ({named}), and maxUnavailable {limit} allows "
        f"{allowed}: no node would be upgraded until they are back"
    )


def _down(node: Document) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return bool((node.get("spec") or {}).get("unschedulable")) or not ready
