"""What a ClusterPolicy's status says, decided from how a pass ended (contracts/control-plane.md 1.7).

An :class:`Outcome` is one row of the contract's table; :func:`next_status` turns it into the status to write, or into
nothing when the stored one says the same already, so that ``lastTransitionTime`` moves only with a condition's status.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ..api import names
from ..api.clusterpolicy import ClusterPolicyStatus, Condition
from ..api.release import Release
from ..cluster.views import earlier

log = logging.getLogger(__name__)

READY: Final = "ready"
NOT_READY: Final = "notReady"
IGNORED: Final = "ignored"

TYPE_READY: Final = "Ready"
TYPE_ERROR: Final = "Error"

SCHEMA_OUTDATED: Final = "SchemaOutdated"
GPU_NODES_NOT_READY: Final = "GPUNodesNotReady"
DRIVER_UPGRADE_HELD_UP: Final = "DriverUpgradeHeldUp"
WARNINGS: Final = (SCHEMA_OUTDATED, GPU_NODES_NOT_READY, DRIVER_UPGRADE_HELD_UP)
"""Types of conditions that are there only while they are true. They leave ``Ready`` as it is."""

RECONCILED: Final = "Reconciled"
NO_GPU_NODES: Final = "NoGPUNodes"
NFD_LABELS_MISSING: Final = "NFDLabelsMissing"
OPERAND_NOT_READY: Final = "OperandNotReady"
RECONCILE_FAILED: Final = "ReconcileFailed"

SEPARATOR: Final = {Release.V26_3: ", ", Release.V26_7: "; "}
"""What stands between the parts of a message, by release."""


class Warned(msgspec.Struct, frozen=True):
    """Something that a person should mend although the stack works: a condition of a type of its own."""

    type: str
    reason: str
    message: str


class Blocked(msgspec.Struct, frozen=True):
    """The cause of a state that does not become ready by itself: the reason of an event, and its message."""

    reason: str
    message: str


class Outcome(msgspec.Struct, frozen=True):
    """How a pass ended: the state, and the reason and message of the condition that is true."""

    state: str
    reason: str
    message: str
    blocked: tuple[Blocked, ...] = ()
    """What of ``message`` is worth an event of its own."""

    @property
    def ready(self) -> bool:
        """Everything is as the policy wants it."""
        return self.state == READY

    @property
    def ignored(self) -> bool:
        """Another policy is the active one."""
        return self.state == IGNORED


def reconciled(notes: Sequence[str] = (), *, release: Release = Release.DEFAULT) -> Outcome:
    """All states are ready or disabled, and there are GPU nodes."""
    return _ready(RECONCILED, "All resources have been reconciled", notes, release)


def no_gpu_nodes(notes: Sequence[str] = (), *, release: Release = Release.DEFAULT) -> Outcome:
    """Nodes carry NFD labels, but none has a GPU."""
    labels = ", ".join(names.PCI_GPU_LABELS)
    message = (
        "No GPU node exists; waiting for one to join the cluster: a node on which node feature discovery (NFD) sets "
        f"one of these labels to true: {labels}"
    )
    return _ready(NO_GPU_NODES, message, notes, release)


def nfd_labels_missing(notes: Sequence[str] = (), *, release: Release = Release.DEFAULT) -> Outcome:
    """No node carries any NFD label, so GPUs cannot be seen."""
    message = "No node carries a node feature discovery (NFD) label; check that NFD runs on the GPU nodes"
    return _ready(NFD_LABELS_MISSING, message, notes, release)


def operands_not_ready(
    states: Sequence[str],
    notes: Sequence[str] = (),
    *,
    blocked: Sequence[Blocked] = (),
    release: Release = Release.DEFAULT,
) -> Outcome:
    """Some states, named in apply order, are not ready yet.

    The part with the states comes first and is as NVIDIA's operator writes it; ``notes`` are further parts after it.
    """
    parts = [f"states not ready: [{' '.join(states)}]", *notes]
    return Outcome(NOT_READY, OPERAND_NOT_READY, SEPARATOR[release].join(parts), tuple(blocked))


def failed(error: str, *, state: str = "", notes: Sequence[str] = (), release: Release = Release.DEFAULT) -> Outcome:
    """A pass stopped at an error: of one state, or before any (validation, OS information, namespace labels)."""
    text = f"{state}: {error}" if state else error
    return Outcome(NOT_READY, RECONCILE_FAILED, SEPARATOR[release].join([text, *notes]))


def passed_over(active: str) -> Outcome:
    """Another policy, ``active``, is older."""
    message = f"ClusterPolicy {active!r} is older and is the one in force; delete it to promote this one"
    return Outcome(IGNORED, "Ignored", message)


def _ready(reason: str, message: str, notes: Sequence[str], release: Release) -> Outcome:
    return Outcome(READY, reason, SEPARATOR[release].join([message, *notes]))


def stored(document: Mapping[str, Any]) -> ClusterPolicyStatus:
    """The status of a ClusterPolicy or an NVIDIADriver, read by itself: a broken spec must not hide it."""
    try:
        return msgspec.convert(document.get("status") or {}, ClusterPolicyStatus)
    except msgspec.ValidationError as error:
        what = f"{document['kind']} {document['metadata']['name']}"
        log.warning("status of %s is unreadable (%s), writing it anew", what, error)
        return ClusterPolicyStatus()


class Answers:
    """Answers to our last writes of statuses: newer than what the watch says, until their echo has come."""

    def __init__(self) -> None:
        self._found: dict[str, Mapping[str, Any]] = {}

    def answered(self, document: Mapping[str, Any]) -> None:
        """The API server has stored a document's status for us."""
        self._found[document["metadata"]["name"]] = document

    def newest(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The document as the watch says, or as our write of its status was answered if that is newer."""
        answer = self._found.get(document["metadata"]["name"])
        if answer is not None and not _older(document, answer):
            self.forget(document)
            return document
        return answer or document

    def forget(self, document: Mapping[str, Any]) -> None:
        """The document is gone, or its echo has come."""
        self._found.pop(document["metadata"]["name"], None)


def _older(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether ``one`` is an earlier version of the same object than ``other``."""
    a, b = one["metadata"], other["metadata"]
    return a.get("uid") == b.get("uid") and earlier(a.get("resourceVersion", ""), b.get("resourceVersion", ""))


def next_status(
    current: ClusterPolicyStatus,
    outcome: Outcome,
    *,
    namespace: str,
    generation: int,
    now: str,
    warnings: Sequence[Warned] = (),
) -> ClusterPolicyStatus | None:
    """The status to store, or ``None`` when ``current`` says it already.

    ``now`` is the time in RFC 3339; ``generation`` is that of the spec the outcome is about. ``warnings`` stand in the
    order of :data:`WARNINGS`; those not given go. Conditions of other types are kept as they are.
    """
    wanted = [*_conditions(outcome, generation), *(_warning(each, generation) for each in warnings)]
    ours = (TYPE_READY, TYPE_ERROR, *WARNINGS)
    before = {condition.type: condition for condition in current.conditions}
    merged = [_carry_over(before.get(condition.type), condition, now) for condition in wanted]
    others = [condition for condition in current.conditions if condition.type not in ours]
    status = ClusterPolicyStatus(state=outcome.state, namespace=namespace, conditions=[*merged, *others])
    ordered = ClusterPolicyStatus(
        state=current.state,
        namespace=current.namespace,
        conditions=[before[kind] for kind in ours if kind in before] + others,
    )
    return None if status == ordered else status


def patch(status: ClusterPolicyStatus) -> dict[str, Any]:
    """The merge patch for the status subresource. Every field is written, empty messages included."""
    return {
        "status": {
            "state": status.state,
            "namespace": status.namespace,
            "conditions": [_document(condition) for condition in status.conditions],
        }
    }


def _document(condition: Condition) -> dict[str, Any]:
    values = {key: getattr(condition, key) for key in condition.__struct_fields__}
    return {key: value for key, value in values.items() if value is not None}


def _conditions(outcome: Outcome, generation: int) -> tuple[Condition, Condition]:
    """The pair of conditions of an outcome: the true one carries the reason and message."""

    def condition(kind: str, status: str, reason: str, message: str) -> Condition:
        return Condition(type=kind, status=status, reason=reason, message=message, observedGeneration=generation)

    said = (outcome.reason, outcome.message)
    if outcome.ready:
        return condition(TYPE_READY, "True", *said), condition(TYPE_ERROR, "False", TYPE_READY, "")
    if outcome.ignored:
        return condition(TYPE_READY, "False", *said), condition(TYPE_ERROR, "False", outcome.reason, "")
    return condition(TYPE_READY, "False", TYPE_ERROR, ""), condition(TYPE_ERROR, "True", *said)


def _warning(warned: Warned, generation: int) -> Condition:
    return Condition(
        type=warned.type,
        status="True",
        reason=warned.reason,
        message=warned.message,
        observedGeneration=generation,
    )


def _carry_over(before: Condition | None, after: Condition, now: str) -> Condition:
    """``after`` with the time at which its status last changed."""
    since = before.lastTransitionTime if before and before.status == after.status else None
    return msgspec.structs.replace(after, lastTransitionTime=since or now)
