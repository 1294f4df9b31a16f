"""Which state machines there are, over which nodes and by which policy (contracts/driver-lifecycle.md 1).

Pure. :func:`of` reads ClusterPolicy and NVIDIADrivers, :func:`decide` runs one pass of every machine over the nodes of
the cluster and adds what has to be said or cleared on the nodes that belong to none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ...api import names
from ...api.clusterpolicy import ClusterPolicySpec, UpgradePolicy
from ...api.release import Release
from . import machine, slots
from .model import (
    Counts,
    DaemonSetFacts,
    Decision,
    Drain,
    NodeFacts,
    Pass,
    PodDeletion,
    Policy,
    Problem,
    Snapshot,
    Work,
)

REQUEUE_S: Final = 120
"""An active pass is followed by another after this time, if nothing happens before (1.2)."""

BY_APP: Final = ("app", "nvidia-driver-daemonset")
BY_TOOLKIT: Final = ("openshift.driver-toolkit", "true")
BY_COMPONENT: Final = (names.COMPONENT_LABEL, names.DRIVER_COMPONENT)
SELECTORS: Final = (BY_APP, BY_TOOLKIT, BY_COMPONENT)
"""Labels of driver DaemonSets and of their pods; a change of a DaemonSet that has one of them starts a pass."""

_NOT_SKIPPED: Final = f"{names.UPGRADE_DRAIN_SKIP}!=true"


class Scope(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What upgrades are about now.

    ``selector`` is the label of driver DaemonSets and pods. ``machines`` has a policy for each NVIDIADriver whose nodes
    are upgraded; the key is empty for a machine of the whole cluster. ``enabled`` is the gauge
    ``gpu_operator_driver_auto_upgrade_enabled``, None leaves it as it is. The state label is to be removed from the
    nodes of the owners in ``cleared``; with ``clears_all`` from every node. ``off`` says why upgrades are off.
    ``unreadable`` says of NVIDIADrivers why they cannot be read: their nodes stay as they are.
    """

    selector: tuple[str, str] = BY_APP
    machines: Mapping[str, Policy] = msgspec.field(default_factory=dict)
    enabled: bool | None = None
    cleared: frozenset[str] = frozenset()
    clears_all: bool = False
    off: str = ""
    unreadable: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def requeue_s(self) -> int | None:
        """Seconds until the next pass; None waits for a trigger."""
        return REQUEUE_S if self.machines else None


class Outcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One pass of all machines.

    ``decisions`` are those of all nodes of all machines, then those of nodes of none. ``counts`` are sums over the
    machines, None when there is none: gauges keep their values then (3.12).
    """

    decisions: tuple[Decision, ...]
    passes: Mapping[str, Pass]
    counts: Counts | None
    problems: tuple[Problem, ...] = ()


def policy(given: UpgradePolicy, release: Release) -> Policy:
    """The policy in force, of ClusterPolicy's or of what ``nvidiadriver.upgrade_policy`` says (1.1).

    An unset ``maxParallelUpgrades`` is 0, as the API server would have filled the default in; an unset
    ``maxUnavailable`` sets no limit. What is missing of the other parts has their defaults; a missing ``drain`` is
    an empty one, with which release 26.3 crashed.
    """
    deletion, waiting, drain = given.podDeletion, given.waitForCompletion, given.drain
    return Policy(
        release=release,
        max_parallel=given.maxParallelUpgrades or 0,
        max_unavailable=None if given.maxUnavailable in (None, "") else given.maxUnavailable,
        jobs_selector=(waiting.podSelector or "").strip(),
        jobs_timeout_s=waiting.timeoutSeconds or 0,
        pod_deletion=PodDeletion(
            force=bool(deletion.force),
            timeout_s=_or_default(deletion.timeoutSeconds),
            delete_empty_dir=bool(deletion.deleteEmptyDir),
        ),
        drain=Drain(
            enable=bool(drain.enable),
            force=bool(drain.force),
            selector=drain_selector(drain.podSelector or ""),
            timeout_s=_or_default(drain.timeoutSeconds),
            delete_empty_dir=bool(drain.deleteEmptyDir),
        ),
    )


def drain_selector(given: str) -> str:
    """What a user selects for draining, without the pods that are to stay (1.1)."""
    return f"{given},{_NOT_SKIPPED}" if given.strip() else _NOT_SKIPPED


def _or_default(timeout_s: int | None) -> int:
    return 300 if timeout_s is None else timeout_s


def of(
    cluster: ClusterPolicySpec | None,
    drivers: Mapping[str, UpgradePolicy],
    release: Release,
    *,
    driver_toolkit: bool = False,
    unreadable: Mapping[str, str] = {},
) -> Scope:
    """The scope, of ClusterPolicy if there is one and of the policies in force of the NVIDIADrivers there are (1.2).

    ``driver_toolkit``: on OpenShift, drivers are built by its driver toolkit. ``unreadable``: NVIDIADrivers that are
    there beside ``drivers``, and why they cannot be read; they hold up no other.
    """
    if asks_drivers(cluster, release):
        return _per_driver(drivers, release, unreadable)
    if cluster is None:
        return Scope(off="there is no ClusterPolicy")
    by_crd = bool(cluster.driver.useNvidiaDriverCRD)
    if off := _why_off(cluster, by_crd):
        return Scope(enabled=False, clears_all=True, off=off)
    selector = BY_COMPONENT if by_crd else BY_TOOLKIT if driver_toolkit else BY_APP
    return Scope(selector=selector, machines={"": policy(cluster.driver.upgradePolicy, release)}, enabled=True)


def asks_drivers(cluster: ClusterPolicySpec | None, release: Release) -> bool:
    """Whether NVIDIADrivers are upgraded by policies of their own, so that they must be known (1.2)."""
    return release is not Release.V26_3 and (cluster is None or bool(cluster.driver.useNvidiaDriverCRD))


def _why_off(cluster: ClusterPolicySpec, by_crd: bool) -> str:
    if cluster.sandboxWorkloads.enabled:
        return "spec.sandboxWorkloads.enabled is true, with which drivers are not upgraded"
    if not cluster.driver.upgradePolicy.autoUpgrade:
        return "spec.driver.upgradePolicy.autoUpgrade is not true"
    if cluster.driver.enabled is False and not by_crd:
        return "spec.driver.enabled is false"
    return ""


def _per_driver(drivers: Mapping[str, UpgradePolicy], release: Release, unreadable: Mapping[str, str]) -> Scope:
    """1.3: every NVIDIADriver by its own policy; the nodes of those that do not want upgrades are cleared."""
    on = {name: policy(given, release) for name, given in sorted(drivers.items()) if given.autoUpgrade}
    if unreadable:
        cleared = frozenset(drivers) - frozenset(on)
        enabled = True if on else None
        return Scope(selector=BY_COMPONENT, machines=on, enabled=enabled, cleared=cleared, unreadable=unreadable)
    if not on:
        off = "no NVIDIADriver has upgradePolicy.autoUpgrade true" if drivers else "there is no NVIDIADriver"
        return Scope(selector=BY_COMPONENT, enabled=False, clears_all=True, off=off)
    return Scope(selector=BY_COMPONENT, machines=on, enabled=True, cleared=frozenset(drivers) - frozenset(on))


def decide(
    scope: Scope,
    now: int,
    nodes: Sequence[NodeFacts],
    daemon_sets: Mapping[str, DaemonSetFacts],
    work: Mapping[str, Work] | None = None,
) -> Outcome:
    """One pass of all machines over all nodes that have a driver pod or a state label."""
    if scope.clears_all:
        return Outcome(decisions=machine.clear(nodes), passes={}, counts=None)
    if not scope.machines and not scope.unreadable:
        return Outcome(decisions=(), passes={}, counts=None)
    buckets = _buckets(scope, nodes)
    passes = {
        owner: machine.decide(
            Snapshot(
                now=now,
                policy=in_force,
                nodes=buckets.get(owner, ()),
                daemon_sets=daemon_sets,
                work=work or {},
                owner=owner,
            )
        )
        for owner, in_force in scope.machines.items()
    }
    looked_after = passes.keys() | scope.cleared | scope.unreadable.keys()
    left = [node for owner, some in buckets.items() if owner not in looked_after for node in some]
    cleared = [node for owner in scope.cleared for node in buckets.get(owner, ())]
    decided = [
        *(each for one in passes.values() for each in one.decisions),
        *machine.clear(cleared),
        *machine.unowned(left),
        *(each for owner in scope.unreadable for each in machine.unread(owner, buckets.get(owner, ()))),
    ]
    return Outcome(
        decisions=tuple(decided),
        passes=passes,
        counts=slots.total(passes.values()) if passes else None,
        problems=(*_unreadable(scope), *_problems(passes.values(), decided)),
    )


def _buckets(scope: Scope, nodes: Sequence[NodeFacts]) -> Mapping[str, Sequence[NodeFacts]]:
    """Nodes by the NVIDIADriver that owns them; those without one under the empty name."""
    if "" in scope.machines:
        return {"": nodes}
    buckets: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        buckets.setdefault(node.labels.get(names.DRIVER_OWNER, ""), []).append(node)
    return buckets


def _unreadable(scope: Scope) -> Iterable[Problem]:
    for name, why in sorted(scope.unreadable.items()):
        text = f"NVIDIADriver {name} cannot be read, so the drivers of its nodes are not upgraded: {why}"
        yield Problem("NVIDIADriverUnreadable", text)


def _problems(passes: Iterable[Pass], decisions: Iterable[Decision]) -> Iterable[Problem]:
    for one in passes:
        yield from one.problems
    for decision in decisions:
        if decision.problem is not None:
            yield decision.problem
