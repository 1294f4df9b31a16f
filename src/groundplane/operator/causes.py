"""Why a DaemonSet's pods do not run, from what the cluster says of them: an image, a node, a container, a sandbox.

Pure: pods, nodes that are not Ready and the events of one pod go in, one sentence comes out. A pod says a lot while it
starts; what is told is the nearest thing that somebody must mend, and only without that what the pod waits for. Wording
does not move with time (no counts of restarts, no back-off times), so that a cause that stays is told once. When to
look is ``lookout.py``'s to decide.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ..cluster.views import Meta

NODE_NOT_READY: Final = "NodeNotReady"
UNSCHEDULABLE: Final = "PodUnschedulable"
IMAGE: Final = "ImagePullFailed"
NOT_STARTED: Final = "ContainerNotStarted"
CRASHING: Final = "ContainerCrashing"
POD_FAILED: Final = "PodFailed"
SANDBOX: Final = "PodSandboxFailed"
WAITING: Final = "PodStarting"

RANK: Final = (NODE_NOT_READY, IMAGE, NOT_STARTED, CRASHING, UNSCHEDULABLE, POD_FAILED, SANDBOX, WAITING)
"""Reasons, those that explain most first; a reason is also that of the event about it."""

PULLING: Final = frozenset(
    {
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons of a waiting container that has no image."""
STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of a container that waits for its turn."""
BACK_OFF: Final = "CrashLoopBackOff"

NODES_MAX: Final = 3
"""So many nodes are named; the rest are counted."""
TEXT_MAX: Final = 300
"""Characters of a kubelet's or scheduler's message that are told."""
_BACKING_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*"(?:: )?')
_PER_POD: Final = re.compile(r'"[0-9a-f]{64}"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b')


class Waiting(msgspec.Struct, frozen=True):
    """A container that is not running yet."""

    reason: str = ""
    message: str = ""


class Terminated(msgspec.Struct, frozen=True):
    """A container that has ended."""

    exitCode: int = 0
    reason: str = ""
    message: str = ""


class State(msgspec.Struct, frozen=True):
    """What a container does, or did last; one field is set."""

    waiting: Waiting | None = None
    running: dict[str, str] | None = None
    terminated: Terminated | None = None


class Container(msgspec.Struct, frozen=True):
    """A container as its kubelet reports it."""

    name: str = ""
    image: str = ""
    ready: bool = False
    state: State = State()
    lastState: State = State()


class Condition(msgspec.Struct, frozen=True):
    """A condition of a pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Status(msgspec.Struct, frozen=True):
    """``status`` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    initContainerStatuses: tuple[Container, ...] = ()
    containerStatuses: tuple[Container, ...] = ()


class Spec(msgspec.Struct, frozen=True):
    """``spec`` of a pod: where it runs."""

    nodeName: str = ""


class Pod(msgspec.Struct, frozen=True):
    """A pod with everything that may explain why it does not run."""

    metadata: Meta = Meta()
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def running(self) -> bool:
        """Running, and every container Ready."""
        return self.status.phase == "Running" and all(each.ready for each in self.status.containerStatuses)

    @property
    def sandboxed(self) -> bool:
        """Some container has come further than waiting for its turn: the pod has a sandbox and a network."""
        both = (*self.status.initContainerStatuses, *self.status.containerStatuses)
        return any(each.state.waiting is None or each.state.waiting.reason not in STARTING for each in both)


class EventView(msgspec.Struct, frozen=True):
    """An event about a pod."""

    type: str = ""
    reason: str = ""
    message: str = ""
    lastTimestamp: str | None = None
    eventTime: str | None = None


class Cause(msgspec.Struct, frozen=True):
    """Why one pod does not run: ``reason`` of the table, the sentence, and in ``detail`` somebody's own words."""

    reason: str
    text: str
    detail: str = ""

    @property
    def blocks(self) -> bool:
        """Somebody must mend something; otherwise the pod may still be on its way."""
        return self.reason != WAITING

    def told(self, nodes: Sequence[str]) -> str:
        """The sentence for all ``nodes`` on which it is true; those of an unscheduled pod are not known."""
        shown = ", ".join(nodes[:NODES_MAX]) + (", ..." if len(nodes) > NODES_MAX else "")
        where = f" on {len(nodes)} node{'s' if len(nodes) > 1 else ''} ({shown})" if nodes else ""
        return f"{self.text}{where}{': ' + self.detail if self.detail else ''}"


def short(message: str) -> str:
    """Another program's message in one line, without what differs from pod to pod, cut."""
    text = " ".join(_PER_POD.sub("(id)", message).split())
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def of_pod(pod: Pod, unready: Mapping[str, str]) -> Cause | None:
    """The cause of one pod, ``None`` for a pod that runs. ``unready`` says why a node is not Ready, by its name."""
    if pod.running or pod.status.phase == "Succeeded":
        return None
    node = pod.spec.nodeName
    if node in unready:
        return Cause(NODE_NOT_READY, "the node is not Ready", short(unready[node]))
    if pod.status.phase == "Failed":
        why = pod.status.reason or "no reason given"
        return Cause(POD_FAILED, f"the pod failed ({why})", short(pod.status.message))
    scheduled = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    if scheduled is not None and scheduled.status == "False":
        why = scheduled.message.partition(" preemption:")[0]
        return Cause(UNSCHEDULABLE, "the pod cannot be scheduled", short(why))
    init = _containers(pod.status.initContainerStatuses, "init container")
    found = [*init, *_containers(pod.status.containerStatuses)]
    return min(found, key=lambda cause: RANK.index(cause.reason), default=Cause(WAITING, "the pod is being started"))


def _containers(statuses: Iterable[Container], what: str = "container") -> list[Cause]:
    init = what != "container"
    return [cause for each in statuses if (cause := _container(each, f"{what} {each.name}", init=init)) is not None]


def _container(status: Container, name: str, *, init: bool) -> Cause | None:
    """What one container says, ``None`` if it waits for its turn, is done or runs well."""
    state = status.state
    if state.waiting is not None:
        return _waiting(state.waiting, status, name)
    if state.terminated is not None:
        return _ended(state.terminated, name) if state.terminated.exitCode else None
    if state.running is None or status.ready:
        return None
    before = status.lastState.terminated
    if before is not None and before.exitCode:
        return _ended(before, name)
    return Cause(WAITING, f"{name} is running{'' if init else ' and not ready yet'}")


def _waiting(waiting: Waiting, status: Container, name: str) -> Cause | None:
    if waiting.reason in STARTING:
        return None
    if waiting.reason in PULLING:
        detail = _BACKING_OFF.sub("", waiting.message)
        return Cause(IMAGE, f"image {status.image} cannot be pulled", short(detail))
    if waiting.reason == BACK_OFF:
        return _ended(status.lastState.terminated or Terminated(), name)
    return Cause(NOT_STARTED, f"{name} cannot be started ({waiting.reason})", short(waiting.message))


def _ended(ended: Terminated, name: str) -> Cause:
    reason = f" ({ended.reason})" if ended.reason and ended.reason != "Error" else ""
    return Cause(CRASHING, f"{name} ends with exit code {ended.exitCode}{reason}", short(ended.message))


def of_events(events: Iterable[EventView]) -> Cause | None:
    """The cause of a pod without a sandbox, from the newest warning about it; ``None`` without any."""
    warnings = [each for each in events if each.type == "Warning"]
    newest = max(warnings, key=lambda each: each.lastTimestamp or each.eventTime or "", default=None)
    if newest is None:
        return None
    return Cause(SANDBOX, f"the pod cannot be started ({newest.reason})", short(newest.message))


def summary(found: Mapping[Cause, Sequence[str]]) -> tuple[Cause, str] | None:
    """The most telling of several causes, with the nodes of the pods it is true for; ``None`` without any.

    Causes that say the same in other words (a registry's answer has an address in it) count as one.
    """
    nodes: dict[tuple[str, str], set[str]] = {}
    first: dict[tuple[str, str], Cause] = {}
    for cause in sorted(found, key=lambda each: (each.text, each.detail)):
        key = cause.reason, cause.text
        first.setdefault(key, cause)
        nodes.setdefault(key, set()).update(filter(None, found[cause]))
    if not first:
        return None
    chosen = min(first, key=lambda key: (RANK.index(key[0]), -len(nodes[key]), key[1]))
    return first[chosen], first[chosen].told(sorted(nodes[chosen]))
