"""What an upgrade pass is decided from, and what it decides: plain data, without behaviour of its own.

The shell fills a :class:`Snapshot` from its caches and carries the :class:`Pass` out. Nothing is copied on the way: a
node's labels and annotations are the cache's own mappings, and a fleet of 5,000 nodes is one list of small Structs.
Facts that cost a request (a node's jobs, its GPU pods, its validators) are ``None`` until somebody looked;
:data:`NEEDS` says in which states they are worth looking at. Times are whole Unix seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ...api import names
from ...api.release import Release
from .states import State

NO_PAIRS: Final[Mapping[str, str]] = {}
PRESENT: Final = "true"


# --- What is in force ------------------------------------------------------------------------------------------------
class PodDeletion(msgspec.Struct, frozen=True, gc=False):
    """``podDeletion``: what may be evicted, and for how long it is tried. A timeout of 0 never ends."""

    force: bool = False
    timeout_s: int = 300
    delete_empty_dir: bool = False


class Drain(msgspec.Struct, frozen=True, gc=False):
    """``drain``, and the selector of the pods that go, which always leaves out what carries the skip label (1.1)."""

    enable: bool = False
    force: bool = False
    selector: str = f"{names.UPGRADE_DRAIN_SKIP}!=true"
    timeout_s: int = 300
    delete_empty_dir: bool = False


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The upgrade policy in force for one machine; ``scope.policy`` makes it of what the user wrote.

    ``max_parallel`` 0 sets no limit. ``max_unavailable`` is a number or a percentage of the managed nodes; None sets no
    limit. An empty ``jobs_selector`` waits for nothing; ``jobs_timeout_s`` 0 waits for ever. ``pod_deletion`` None was
    not given, which is an error as soon as a node gets there (1.1).
    """

    release: Release = Release.DEFAULT
    max_parallel: int = 1
    max_unavailable: int | str | None = "25%"
    jobs_selector: str = ""
    jobs_timeout_s: int = 0
    pod_deletion: PodDeletion | None = PodDeletion()
    drain: Drain = Drain()


# --- What is ---------------------------------------------------------------------------------------------------------
class DaemonSetFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A driver DaemonSet.

    ``desired`` is ``status.desiredNumberScheduled``, ``pods`` how many pods it is the first owner of, placed or not.
    ``unready`` are how many of them on nodes that are not Ready: a DaemonSet wants no pod there, but keeps the one that
    is, and its status tells so when it comes to it. ``waiting`` are how many have no node yet.
    ``revision`` is the hash of its newest ControllerRevision (``readiness.newest_revision``), empty when there is none.
    ``digest`` is the template's ``DRIVER_CONFIG_DIGEST``: its first value that is not empty, init containers first.
    Of a ``precompiled`` driver no digest is kept on the node (3.7). ``driver`` names the NVIDIADriver that owns it,
    empty for ClusterPolicy's.
    """

    name: str
    uid: str
    driver: str = ""
    desired: int
    pods: int
    unready: int = 0
    waiting: int = 0
    revision: str = ""
    digest: str = ""
    precompiled: bool = False


class DriverPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A driver pod that is placed on a node.

    ``daemon_set`` is the UID of the DaemonSet that is its first owner, empty for an orphan: a pod without any owner.
    Pods that others own are not driver pods (3.2). ``hash`` is the label ``controller-revision-hash``. ``ready``: at
    least one container is reported, and all are Ready. ``restarts`` is the highest restart count among its init and
    main containers that are not ready, ``digest`` its own ``DRIVER_CONFIG_DIGEST``.
    """

    namespace: str
    name: str
    uid: str
    daemon_set: str = ""
    hash: str = ""
    phase: str = "Running"
    ready: bool = True
    terminating: bool = False
    restarts: int = 0
    digest: str = ""

    @property
    def orphan(self) -> bool:
        """No DaemonSet would put another in its place."""
        return not self.daemon_set


class ValidatorPod(msgspec.Struct, frozen=True, gc=False):
    """A pod ``app=nvidia-operator-validator`` on the node; ready: Running, and all containers (at least one) Ready."""

    name: str
    ready: bool


class GpuPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds a GPU (3.11); ``kept`` says why the policy does not let it be evicted, empty if it does."""

    name: str
    kept: str = ""


class NodeFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A node with a driver pod on it, or with an upgrade state.

    ``ready`` is False only where a condition Ready is there and not True (3.6). ``driver_pods`` are those of 3.2.
    ``jobs`` are the names (``namespace/name``) of pods that the policy waits for and that are Running or Pending.
    ``unread`` says why a fact could not be had, for a person.
    """

    name: str
    labels: Mapping[str, str] = NO_PAIRS
    annotations: Mapping[str, str] = NO_PAIRS
    resource_version: str = ""
    unschedulable: bool = False
    ready: bool = True
    driver_pods: tuple[DriverPod, ...] = ()
    jobs: tuple[str, ...] | None = None
    gpu_pods: tuple[GpuPod, ...] | None = None
    validators: tuple[ValidatorPod, ...] | None = None
    unread: str = ""

    @property
    def label(self) -> str:
        """The value of its state label, whether it makes sense or not."""
        return self.labels.get(names.UPGRADE_STATE, "")

    @property
    def skip(self) -> bool:
        """Its administrator does not want it upgraded now."""
        return self.labels.get(names.UPGRADE_SKIP) == PRESENT

    @property
    def cordoned_before(self) -> bool:
        """It was cordoned when its upgrade began, so it stays so."""
        return names.UPGRADE_INITIAL_STATE in self.annotations


class Work(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An eviction or a drain that this process began for a node: of which state, and how it ended.

    It is running while ``done`` is False; ``failure`` says why it failed. A process that starts anew has none, and the
    node is simply started again (3.12). Work counts only while the node is in the state that it was begun in.
    """

    state: State
    done: bool = False
    failure: str = ""


class Snapshot(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """All that one machine's pass is decided from. ``daemon_sets`` by UID, ``work`` by node name.

    ``owner`` is the NVIDIADriver whose nodes these are, empty for a machine of the whole cluster. A node may still have
    a pod of another driver, so ``daemon_sets`` are those of all drivers.
    """

    now: int
    policy: Policy
    nodes: Sequence[NodeFacts]
    daemon_sets: Mapping[str, DaemonSetFacts]
    work: Mapping[str, Work] = msgspec.field(default_factory=dict)
    owner: str = ""


NEEDS: Final[Mapping[State, frozenset[str]]] = {
    State.WAIT_FOR_JOBS_REQUIRED: frozenset({"jobs"}),
    State.POD_DELETION_REQUIRED: frozenset({"gpu_pods"}),
    State.POD_RESTART_REQUIRED: frozenset({"validators"}),
    State.VALIDATION_REQUIRED: frozenset({"validators"}),
}
"""The facts of :class:`NodeFacts` that are looked at in a state; ``jobs`` only if the policy has a selector."""


# --- What to do ------------------------------------------------------------------------------------------------------
class DeletePod(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Delete a driver pod, this very one (by UID), with its own grace period."""

    namespace: str
    name: str
    uid: str


class StartEviction(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Begin to evict the node's GPU pods, all of which the policy lets go; 0 in ``timeout_s`` never gives up."""

    rules: PodDeletion


class StartDrain(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Begin to drain the node of the pods that ``rules.selector`` selects. Its patch has cordoned it before."""

    rules: Drain


Action = DeletePod | StartEviction | StartDrain


class Event(NamedTuple):
    """An event on the node, reason ``GPUDriverUpgrade``. Texts do not count time, so that repeats add up."""

    type: str
    message: str


class Problem(NamedTuple):
    """What an administrator has to look at: a word for a condition's reason, and a sentence."""

    reason: str
    message: str


class Patch(msgspec.Struct, frozen=True, gc=False):
    """What changes on a node, all in one request: None removes a key, ``unschedulable`` None leaves it as it is."""

    labels: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    unschedulable: bool | None = None

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations) or self.unschedulable is not None

    def document(self, resource_version: str = "") -> dict[str, Any]:
        """The merge patch. With ``resource_version`` it applies to that version of the node only (else 409)."""
        metadata: dict[str, Any] = {}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        if self.labels:
            metadata["labels"] = dict(self.labels)
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        document: dict[str, Any] = {"metadata": metadata} if metadata else {}
        if self.unschedulable is not None:
            document["spec"] = {"unschedulable": self.unschedulable or None}
        return document


NO_PATCH: Final = Patch()


class Decision(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the pass makes of one node.

    ``state`` is the label's, None for a value that names no state; ``to`` the state it moves to, None if it stays.
    Carry out ``patch`` first, under the node's ``resource_version``; if that fails do nothing else of this decision
    (the next pass decides anew) and report :func:`groundplane.operator.upgrade.machine.failure`. Then ``actions``, then
    ``events``. ``waits_for`` tells a person why it stays and what would move it on; empty for a node that moves or has
    nothing to wait for. After a move, forget the node's work.
    """

    node: str
    state: State | None
    to: State | None = None
    resource_version: str = ""
    patch: Patch = NO_PATCH
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    waits_for: str = ""
    problem: Problem | None = None

    @property
    def idle(self) -> bool:
        """There is nothing to carry out."""
        return not (self.patch or self.actions or self.events)


class Counts(NamedTuple):
    """The numbers of 3.6, of the snapshot: before the pass. ``slots`` may be negative."""

    total: int = 0
    in_progress: int = 0
    done: int = 0
    failed: int = 0
    pending: int = 0
    unavailable: int = 0
    max_unavailable: int = 0
    slots: int = 0


class Pass(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One pass: a decision for every node of the snapshot, in its order, and what they were counted to be.

    ``held`` says why no node may start although there were slots (3.2), ``problems`` what concerns more than one node:
    the pass went on.
    """

    decisions: tuple[Decision, ...]
    counts: Counts
    held: str = ""
    problems: tuple[Problem, ...] = ()
