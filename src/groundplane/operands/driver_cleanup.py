"""Which live driver DaemonSets may go, decided without touching any: the operator carries it out.

Driver DaemonSets are not pruned like other objects, because deleting one takes the driver from under running
workloads. The rules, from contracts/control-plane.md 4.6 and section 8 (issues 715 and 1368):

* Another *kind* than the wanted one (precompiled switched on or off, driver toolkit on or off) is deleted at once,
  and nothing new is applied until its last pod is gone: two drivers must not meet on a node.
* A wanted DaemonSet is never touched, whatever its status says. In particular one whose kernel a GPU node still
  runs stays when its pods are not scheduled (opted-out, tainted or not-ready nodes).
* Any other is deleted only when it wants no pod and has none left over: its kernel or RHCOS left the cluster.
* A DaemonSet of a kernel that now runs on another operating system gives way to its successor.
* While the cluster has no GPU node, nothing is touched.

How the operator uses it, once a pass, for ``state-driver`` and ``state-vgpu-manager``::

    plan = driver_cleanup.cleanup(driver.STATE, live_daemon_sets, pod_labels, spec, facts)
    delete every name of plan.delete; if plan.hold: state is notReady for that reason, and its
    DaemonSets are not applied in this pass; else apply what driver.render() returned.

Disabling the state is different: every DaemonSet of which :func:`belongs` is true goes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from ..api import clusterpolicy as cp
from ..api import names
from . import driver, driver_pools, vgpu_manager
from .driver_pools import Kind, Pool
from .facts import ClusterFacts


class Family(msgspec.Struct, frozen=True):
    """The DaemonSets of one state: their common name, and what is wanted of them."""

    base: str
    kind: Callable[[cp.ClusterPolicySpec, ClusterFacts], Kind]
    pools: Callable[[cp.ClusterPolicySpec, ClusterFacts], list[Pool]]


FAMILIES: Final[Mapping[str, Family]] = {
    driver.STATE: Family(driver.BASE, driver_pools.driver_kind, driver.pools),
    vgpu_manager.STATE: Family(vgpu_manager.BASE, driver_pools.vgpu_manager_kind, vgpu_manager.pools),
}


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A live DaemonSet as far as these rules look at it."""

    name: str
    labels: dict[str, str] = {}
    kernel: str = ""
    desired: int = 0
    misscheduled: int = 0
    observed: bool = True

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Live":
        """From the API server's document. A status that lags behind the spec counts for nothing."""
        metadata, status = document["metadata"], document.get("status") or {}
        selector = document["spec"]["template"]["spec"].get("nodeSelector") or {}
        return cls(
            name=metadata["name"],
            labels=metadata.get("labels") or {},
            kernel=selector.get(names.KERNEL_VERSION, ""),
            desired=status.get("desiredNumberScheduled", 0),
            misscheduled=status.get("numberMisscheduled", 0),
            observed=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        )

    @property
    def idle(self) -> bool:
        """It wants no pod, and none of its pods is left on a node that it no longer matches."""
        return self.observed and self.desired == 0 and self.misscheduled == 0


class Cleanup(msgspec.Struct, frozen=True):
    """What to do before applying a driver state: names to delete, and why to hold back (empty: go ahead)."""

    delete: tuple[str, ...] = ()
    hold: str = ""


def belongs(state: str, name: str) -> bool:
    """Whether a DaemonSet of that name is one of ``state``'s, plain or for a kernel or RHCOS version."""
    base = FAMILIES[state].base
    return name == base or name.startswith(f"{base}-")


def cleanup(
    state: str,
    daemon_sets: Iterable[Mapping[str, Any]],
    pods: Iterable[Mapping[str, str]],
    spec: cp.ClusterPolicySpec,
    facts: ClusterFacts,
) -> Cleanup:
    """Decide for one enabled driver state.

    ``daemon_sets`` are the live documents in the operator's namespace and ``pods`` the labels of the pods
    there; what does not belong to ``state`` is ignored. Raises RenderError as rendering does, when the
    nodes' labels do not say what is wanted; nothing may be deleted then.
    """
    if not facts.nodes:
        return Cleanup()
    family = FAMILIES[state]
    live = [Live.of(document) for document in daemon_sets if belongs(state, document["metadata"]["name"])]
    kind = family.kind(spec, facts)
    other = sorted(each.name for each in live if driver_pools.kind_of(each.labels) is not kind)
    leaving = [labels for labels in pods if belongs(state, labels.get("app", ""))]
    waiting = sum(driver_pools.kind_of(labels) is not kind for labels in leaving)
    if other or waiting:
        return Cleanup(tuple(other), _hold_text(kind, other, waiting))
    return Cleanup(tuple(sorted(stale(live, family.pools(spec, facts)))))


def _hold_text(kind: Kind, other: list[str], waiting: int) -> str:
    what = f"DaemonSets {', '.join(other)}" if other else f"{waiting} pods of another kind of driver"
    return f"the {kind.value} driver waits until {what} are gone"


def stale(live: Iterable[Live], wanted: Iterable[Pool]) -> list[str]:
    """Names of the DaemonSets, all of the wanted kind, that may go."""
    pools = list(wanted)
    kept, kernels = {pool.name for pool in pools}, {pool.kernel for pool in pools if pool.kernel}
    return [each.name for each in live if each.name not in kept and (each.idle or each.kernel in kernels)]
