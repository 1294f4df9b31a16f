"""What becomes of a live driver DaemonSet that is ours, decided without touching any.

Driver DaemonSets are not pruned like other objects, because deleting one takes the driver from under running
workloads. The rules, from contracts/control-plane.md 4.6 and section 8 (issues 715 and 1368):

* A wanted one stays, whatever its status says. In particular one whose kernel a GPU node still runs stays
  while its pods are not scheduled (opted-out, tainted or not-ready nodes).
* Another *kind* than the wanted ones (precompiled or driver toolkit switched on or off) goes at once, and no new
  one is created until its last pod is gone: two drivers must not meet on a node.
* The same holds for one whose kernel a wanted one serves under another name, because its nodes were moved to another
  operating system with the same kernel: left alone, it would keep its successor off these nodes for ever.
* Any other one goes when it wants no pod and has none left over: its kernel or RHCOS left the cluster.
* While nothing is wanted (no GPU node, or their labels are not clear), nothing is decided and all stay.

The operator asks :func:`fate` for each live DaemonSet of an enabled driver state. Disabling the state is different: all
of them go then.
"""

import enum
from collections.abc import Collection, Mapping
from typing import Any

from ..api import names
from . import driver_pools

Document = Mapping[str, Any]
"""A DaemonSet as the API server gives it, or as it was rendered."""


class Fate(enum.Enum):
    """What to do about a live DaemonSet."""

    KEEP = "keep"
    DELETE = "delete"
    DELETE_FIRST = "delete, and create no new one until its pods are gone"


def fate(live: Document, wanted: Collection[Document]) -> Fate:
    """Decide for ``live``; ``wanted`` are all rendered DaemonSets of the same state."""
    if not wanted or live["metadata"]["name"] in {each["metadata"]["name"] for each in wanted}:
        return Fate.KEEP
    if _kind(live) not in {_kind(each) for each in wanted}:
        return Fate.DELETE_FIRST
    kernel = _kernel(live)
    if kernel and kernel in {_kernel(each) for each in wanted}:
        return Fate.DELETE_FIRST
    return Fate.DELETE if idle(live) else Fate.KEEP


def idle(live: Document) -> bool:
    """No node wants a pod of it and none is left where it should not be, as far as its controller has looked."""
    metadata, status = live["metadata"], live.get("status") or {}
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return False
    return not status.get("desiredNumberScheduled", 0) and not status.get("numberMisscheduled", 0)


def _kind(daemon_set: Document) -> driver_pools.Kind:
    return driver_pools.kind_of(daemon_set["metadata"].get("labels") or {})


def _kernel(daemon_set: Document) -> str:
    """The one kernel that it serves, empty when it serves any."""
    selector = daemon_set["spec"]["template"]["spec"].get("nodeSelector") or {}
    return str(selector.get(names.KERNEL_VERSION, ""))
