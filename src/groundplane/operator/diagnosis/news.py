"""What of a look at the cluster is news: which Events to record, and what was said until now.

Pure. A cause is told when two looks in succession have found it, and its end likewise, so that a pod that is just
being replaced makes no noise. What has been told is kept in no place of its own: the Events that are there say it, also
to the operator that starts next (:func:`restored`). They are renewed while their cause lasts, as the API server forgets
an Event after an hour. Of many nodes that fall ill at once, some get Events of their own and the rest one on the
policy.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from ...api import names
from ...cluster.views import parse_time
from .picture import Ill, Picture

NODE_EVENTS_MOST: Final = 20
"""Nodes that get an Event of their own after one look."""
NAMED: Final = 5
"""Nodes that an Event about many names."""
RENEW_S: Final = 1800.0
"""Age of an Event about a lasting cause at which it is renewed: half of what the API server keeps it."""
WAITING_S: Final = 1800.0
"""What waits for no known reason is sick after so long: a driver that is built on the node may take this."""
CLUSTER: Final = "/"
"""Begins the subjects that are no nodes; no node's name can hold it."""


class Note(msgspec.Struct, frozen=True):
    """An Event to be recorded; ``node`` is empty for one on the ClusterPolicy."""

    node: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Told(msgspec.Struct, frozen=True):
    """What was said of a subject: a node by its name, or a cause of the cluster as ``/<id>``."""

    what: str
    message: str = ""
    """Of the subject's own Event; empty if it was told among many."""
    at: float = 0.0
    """When it was last recorded, Unix seconds."""


class Memory(msgspec.Struct, frozen=True):
    """What is known from earlier looks."""

    told: Mapping[str, Told] = {}
    many: frozenset[str] = frozenset()
    """Causes that an Event on the policy told of further nodes before this process began; for its first look."""
    pending: Mapping[str, str] = {}
    """What the last look found for the first time, by subject; empty text for a cause that has gone."""
    waiting: Mapping[str, float] = {}
    """Since when nodes wait for no known reason."""


class Step(msgspec.Struct, frozen=True):
    """What follows from a look."""

    memory: Memory
    notes: tuple[Note, ...]
    sick: Mapping[str, Ill]
    """The nodes that count as sick: those of the picture, and those that have waited for too long."""

    @property
    def unsure(self) -> bool:
        """Something was seen that a second look has to confirm."""
        return bool(self.memory.pending)


def step(before: Memory, picture: Picture, now: float, *, present: Collection[str], unseen: Collection[str]) -> Step:
    """What to remember and to record after a look.

    Args:
        before: what earlier looks left.
        picture: what this one has shown.
        now: Unix seconds.
        present: nodes that there are; of others nothing is said any more.
        unseen: nodes that were not looked at for their number: what was said of them stays.
    """
    waiting = {node: before.waiting.get(node, now) for node in picture.waiting}
    sick = dict(picture.nodes)
    sick |= {node: ill for node, ill in picture.waiting.items() if now - waiting[node] >= WAITING_S}
    ills = {**sick, **{CLUSTER + each.cause: each for each in picture.cluster}}
    told = {subject: each for subject, each in before.told.items() if subject[:1] == CLUSTER or subject in present}
    told |= {node: Told(ill.what) for node, ill in sick.items() if node not in told and ill.what in before.many}
    fresh, gone, pending = _changes(told, ills, before.pending, unseen)
    notes = list(_record(told, {subject: ills[subject] for subject in fresh}, now))
    notes += _recovered(told, gone)
    notes += _renewed(told, ills, now, NODE_EVENTS_MOST - len(notes))
    return Step(Memory(told=told, pending=pending, waiting=waiting), tuple(notes), sick)


def _changes(
    told: Mapping[str, Told], ills: Mapping[str, Ill], pending: Mapping[str, str], unseen: Collection[str]
) -> tuple[list[str], list[str], dict[str, str]]:
    """Subjects of which something is to be told, those that are well again, and what a second look has to confirm."""
    fresh: list[str] = []
    gone: list[str] = []
    next_time: dict[str, str] = {}
    for subject in dict.fromkeys((*ills, *told)):
        now = ills[subject].what if subject in ills else ""
        said = told[subject].what if subject in told else ""
        if now == said or (not now and subject in unseen):
            continue
        if pending.get(subject) != now:
            next_time[subject] = now
        else:
            (fresh if now else gone).append(subject)
    return fresh, gone, next_time


def _record(told: dict[str, Told], ills: Mapping[str, Ill], now: float) -> Iterator[Note]:
    """Events about what is ill, and what is told by them."""
    left = NODE_EVENTS_MOST
    many: dict[str, list[str]] = {}
    for subject, ill in ills.items():
        of_node = subject[:1] != CLUSTER
        if of_node and not left:
            told[subject] = Told(ill.what)
            many.setdefault(ill.what, []).append(subject)
            continue
        left -= of_node
        message = ill.what + ill.remedy
        told[subject] = Told(ill.what, message, now)
        yield Note(subject if of_node else "", "Warning", names.GPU_STACK_FAILING, message)
    for what, nodes in many.items():
        remedy = ills[nodes[0]].remedy
        yield Note("", "Warning", names.GPU_STACK_FAILING_NODES, f"{what}; on {_more(nodes)}{remedy}")


def _recovered(told: dict[str, Told], subjects: Iterable[str]) -> Iterator[Note]:
    left = NODE_EVENTS_MOST
    many: list[str] = []
    for subject in subjects:
        what = told.pop(subject).what
        of_node = subject[:1] != CLUSTER
        if of_node and not left:
            many.append(subject)
            continue
        left -= of_node
        yield Note(subject if of_node else "", "Normal", names.GPU_STACK_RECOVERED, f"{what}; this is over")
    if many:
        yield Note("", "Normal", names.GPU_STACK_RECOVERED, f"what failed; is over on {_more(many)}")


def _renewed(told: dict[str, Told], ills: Mapping[str, Ill], now: float, most: int) -> Iterator[Note]:
    """Events about what lasts, before they are forgotten."""
    due = [
        subject
        for subject, each in told.items()
        if each.message and subject in ills and ills[subject].what == each.what and now - each.at >= RENEW_S
    ]
    for subject in due[: max(0, most)]:
        told[subject] = msgspec.structs.replace(told[subject], at=now)
        node = "" if subject[:1] == CLUSTER else subject
        yield Note(node, "Warning", names.GPU_STACK_FAILING, told[subject].message)


def _more(nodes: list[str]) -> str:
    shown, left = ", ".join(nodes[:NAMED]), len(nodes) - NAMED
    return f"{len(nodes)} more nodes ({shown}{f' and {left} more' if left > 0 else ''})"


# --- What was said before ---------------------------------------------------------------------------------------------


def restored(events: Iterable[Mapping[str, Any]]) -> Memory:
    """What the Events of an earlier process say: of each subject, the last one counts."""
    told: dict[str, Told] = {}
    many: set[str] = set()
    for event in _in_order(events):
        about, reason = event.get("involvedObject") or {}, event.get("reason")
        what, _, _ = str(event.get("message") or "").partition("; ")
        subject = str(about.get("name") or "") if about.get("kind") == "Node" else CLUSTER + _cause(what)
        if reason == names.GPU_STACK_FAILING_NODES:
            many.add(what)
        elif reason == names.GPU_STACK_FAILING:
            told[subject] = Told(what, str(event["message"]), _when(event))
        elif reason == names.GPU_STACK_RECOVERED:
            told.pop(subject, None)
    return Memory(told=told, many=frozenset(many))


def _cause(what: str) -> str:
    """The cause's id in ``L9 S55: title``."""
    head, _, _ = what.partition(": ")
    return head.partition(" ")[2]


def _in_order(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Events as they were recorded; those of one second by their versions."""

    def key(event: Mapping[str, Any]) -> tuple[float, int]:
        version = str((event.get("metadata") or {}).get("resourceVersion") or "")
        return _when(event), int(version) if version.isdecimal() else 0

    return sorted(events, key=key)


def _when(event: Mapping[str, Any]) -> float:
    moment = parse_time(event.get("lastTimestamp") or (event.get("metadata") or {}).get("creationTimestamp"))
    return moment.timestamp() if moment else 0.0
