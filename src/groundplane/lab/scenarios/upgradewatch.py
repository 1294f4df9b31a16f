"""Watches a driver upgrade from outside: which states each node went through, and whether its limits were kept.

Every change of a Node is looked at, so that nothing that lasted for a moment only is missed. What it sees are labels,
cordons and conditions; nothing is asked of the operator.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...api import names
from ...operator.upgrade import states
from ...operator.upgrade.states import State
from .. import resources
from ..api import Api

Document = Mapping[str, Any]


class Limits(msgspec.Struct, frozen=True):
    """What the policy in force allows, as numbers of nodes."""

    parallel: int
    unavailable: int


class Maxima(msgspec.Struct):
    """The most that was seen at any moment."""

    in_progress: int = 0
    unavailable: int = 0


class UpgradeWatch:
    """Looks at every change of every node that it is told of: by :meth:`look` and :meth:`gone`, or by a lab's API."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.maxima = Maxima()
        self.broken: list[str] = []
        """Moments at which a limit was not kept, in words."""
        self.paths: dict[str, list[str]] = {}
        """The states that each node went through, the first one seen first; no state is an empty text."""
        self._busy: set[str] = set()
        self._down: set[str] = set()

    def follow(self, api: Api) -> Callable[[], None]:
        """Look at a lab's nodes and at every change of them; returns how to look no more."""
        for node in api.list(resources.NODES)["items"]:
            self.look(node)
        return api.on_change(resources.NODES, self._changed)

    # --- questions ----------------------------------------------------------------------------------------------------

    def state(self, node: str) -> str:
        """The state that a node is in; empty without one."""
        return self.paths[node][-1] if node in self.paths else ""

    def upgraded(self, node: str) -> bool:
        """Whether a node has been through an upgrade and is done."""
        path = self.paths.get(node, [""])
        return State.UPGRADE_REQUIRED in path and path[-1] == State.DONE

    def counted(self) -> Counter[str]:
        """How many nodes are in each state."""
        return Counter(path[-1] for path in self.paths.values())

    def states(self) -> dict[str, str]:
        """The state of every node."""
        return {node: path[-1] for node, path in self.paths.items()}

    # --- changes ------------------------------------------------------------------------------------------------------

    def _changed(self, kind: str, new: Document, _old: Document | None) -> None:
        if kind == "DELETED":
            self.gone(new["metadata"]["name"])
        else:
            self.look(new)

    def gone(self, name: str) -> None:
        """A node is no more; the way that it went is kept."""
        self._busy.discard(name)
        self._down.discard(name)

    def look(self, node: Document) -> None:
        """Take note of how a node is."""
        meta = node["metadata"]
        name, label = meta["name"], (meta.get("labels") or {}).get(names.UPGRADE_STATE, "")
        path = self.paths.setdefault(name, [label])
        if path[-1] != label:
            path.append(label)
        busy = states.parse(label) in states.IN_PROGRESS
        down = bool(node["spec"].get("unschedulable")) or not _ready(node)
        grew = (busy and name not in self._busy, down and name not in self._down)
        for yes, found in ((busy, self._busy), (down, self._down)):
            found.add(name) if yes else found.discard(name)
        self._count(name, grew)

    def _count(self, name: str, grew: Sequence[bool]) -> None:
        busy, down, most = len(self._busy), len(self._down), self.maxima
        most.in_progress, most.unavailable = max(most.in_progress, busy), max(most.unavailable, down)
        if grew[0] and self.limits.parallel and busy > self.limits.parallel:
            self.broken.append(f"{name} is in progress as number {busy} of at most {self.limits.parallel}")
        if grew[1] and down > self.limits.unavailable:
            self.broken.append(f"{name} is unavailable as number {down} of at most {self.limits.unavailable}")


def _ready(node: Document) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(each["status"] == "True" for each in conditions if each["type"] == "Ready")
