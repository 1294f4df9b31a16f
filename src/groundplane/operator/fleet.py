"""What rendering must know of all nodes together, kept up to date one node at a time.

Five thousand nodes are a handful of shapes (kernel, operating system, runtime). A node that joins or leaves moves one
name in one shape's sorted list; only when a shape appears, disappears or changes its first or last name is there
anything new to render from. So one joining node costs one list insertion, not a scan.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping

import msgspec

from ..api import names
from ..cluster.views import NodeView
from ..operands.facts import GpuNode
from . import labels


class Shape(msgspec.Struct, frozen=True):
    """What distinguishes GPU nodes for rendering; an empty string is a missing label."""

    kernel: str
    os_id: str
    os_version: str
    ostree: str
    runtime: str
    """``status.nodeInfo.containerRuntimeVersion`` as the kubelet reports it."""


class Summary(msgspec.Struct, frozen=True):
    """The fleet in brief. ``nodes`` has one entry a shape (its first node by name), sorted by name.

    ``runtimes`` holds the runtime versions of the shapes in the order of each shape's last node name, so that "the
    last one" (contracts/control-plane.md 5.2) does not depend on the order of events.
    """

    nodes: tuple[GpuNode, ...] = ()
    runtimes: tuple[str, ...] = ()
    has_nfd: bool = False


def shape_of(node: NodeView) -> Shape | None:
    """The node's shape, ``None`` if it has no GPU (``nvidia.com/gpu.present`` is not ``true``)."""
    have = node.labels
    if have.get(names.GPU_PRESENT) != labels.TRUE:
        return None
    return Shape(
        have.get(names.KERNEL_VERSION, ""),
        have.get(names.OS_RELEASE_ID, ""),
        have.get(names.OS_RELEASE_VERSION_ID, ""),
        have.get(names.OSTREE_VERSION, ""),
        node.container_runtime,
    )


class Fleet:
    """All nodes, summed up."""

    def __init__(self) -> None:
        self._shape: dict[str, Shape] = {}
        self._names: dict[Shape, list[str]] = {}
        self._nfd: set[str] = set()
        self._unready: dict[str, str] = {}
        self._summary = Summary()

    @property
    def gpu_nodes(self) -> int:
        """Nodes with a GPU."""
        return len(self._shape)

    @property
    def summary(self) -> Summary:
        """The fleet as it is now."""
        return self._summary

    @property
    def unready(self) -> Mapping[str, str]:
        """GPU nodes that are not Ready, and why."""
        return self._unready

    def update(self, name: str, node: NodeView | None) -> bool:
        """Take in a node's new look, ``None`` when it is gone.

        Says whether :attr:`summary` or the names of :attr:`unready` changed by it.
        """
        changed = self._sum_up_shapes(name, node)
        return self._note_readiness(name, node) or changed

    def _note_readiness(self, name: str, node: NodeView | None) -> bool:
        before = self._unready.pop(name, None)
        if node is not None and name in self._shape and node.not_ready:
            self._unready[name] = node.not_ready
        return (before is None) != (name not in self._unready)

    def _sum_up_shapes(self, name: str, node: NodeView | None) -> bool:
        (self._nfd.add if node is not None and node.has_nfd else self._nfd.discard)(name)
        old, new = self._shape.get(name), shape_of(node) if node is not None else None
        touched = bool(self._nfd) != self._summary.has_nfd
        if old != new:
            touched |= self._leave(name, old)
            touched |= self._join(name, new)
        if not touched:
            return False
        before, self._summary = self._summary, self._sum_up()
        return before != self._summary

    def _join(self, name: str, shape: Shape | None) -> bool:
        if shape is None:
            return False
        members = self._names.setdefault(shape, [])
        insort(members, name)
        self._shape[name] = shape
        return name in (members[0], members[-1])

    def _leave(self, name: str, shape: Shape | None) -> bool:
        if shape is None:
            return False
        members = self._names[shape]
        at_edge = name in (members[0], members[-1])
        del members[bisect_left(members, name)], self._shape[name]
        if not members:
            del self._names[shape]
        return at_edge

    def _sum_up(self) -> Summary:
        firsts: dict[GpuNode, str] = {}
        for shape, members in self._names.items():
            bare = GpuNode(kernel=shape.kernel, os_id=shape.os_id, os_version=shape.os_version, ostree=shape.ostree)
            firsts[bare] = min(firsts.get(bare, members[0]), members[0])
        nodes = sorted((msgspec.structs.replace(bare, name=first) for bare, first in firsts.items()), key=_by_name)
        by_last = sorted((members[-1], shape.runtime) for shape, members in self._names.items())
        return Summary(tuple(nodes), tuple(runtime for _, runtime in by_last), bool(self._nfd))


def _by_name(node: GpuNode) -> str:
    return node.name
