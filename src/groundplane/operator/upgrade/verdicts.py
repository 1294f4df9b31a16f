"""Whether a node's driver pods are up to date, healthy or failing (contracts/driver-lifecycle.md 3.3). Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from .model import DaemonSetFacts, DriverPod, NodeFacts

FAILING_RESTARTS: Final = 10
"""A container that is not ready and was restarted more often makes its pod a failing one."""


class Drivers(msgspec.Struct, frozen=True, gc=False):
    """The verdict on a node's driver pods.

    ``outdated`` are of another revision than their DaemonSet's newest; ``orphans`` are never in sync, and have to be
    replaced by a DaemonSet's pod in an upgrade, but are no reason for one. ``healthy``: all in sync, running, ready and
    not on their way out. ``failing`` and ``trouble`` are about those in sync; ``trouble`` is for a person. With an
    ``error`` nothing else is known.
    """

    outdated: tuple[DriverPod, ...] = ()
    orphans: tuple[DriverPod, ...] = ()
    healthy: bool = False
    failing: bool = False
    trouble: str = ""
    error: str = ""


HEALTHY: Final = Drivers(healthy=True)


def is_healthy(pod: DriverPod) -> bool:
    """Phase Running, all containers Ready, and not on its way out."""
    return pod.ready and pod.phase == "Running" and not pod.terminating


def judge(node: NodeFacts, daemon_sets: Mapping[str, DaemonSetFacts]) -> Drivers:
    """Look at the driver pods of a node that has one."""
    outdated, orphans, troubled = [], [], []
    for pod in node.driver_pods:
        if pod.orphan:
            orphans.append(pod)
            continue
        owner = daemon_sets.get(pod.daemon_set)
        if owner is None or not owner.revision or not pod.hash:
            return Drivers(error=_unclear(pod, owner))
        if pod.hash != owner.revision:
            outdated.append(pod)
        elif not is_healthy(pod):
            troubled.append(pod)
    if not (outdated or orphans or troubled):
        return HEALTHY
    old = [f"driver pod {pod.name} is not up to date" for pod in (*outdated, *orphans)]
    return Drivers(
        outdated=tuple(outdated),
        orphans=tuple(orphans),
        failing=any(pod.restarts > FAILING_RESTARTS and not pod.terminating for pod in troubled),
        trouble=", ".join([*map(_trouble, troubled), *old]),
    )


def _unclear(pod: DriverPod, owner: DaemonSetFacts | None) -> str:
    """Why it cannot be told whether the pod is up to date, and what to do."""
    if owner is None:
        return f"driver pod {pod.name} belongs to a DaemonSet that is not there; it goes with it, or delete it"
    if not owner.revision:
        return (
            f"DaemonSet {owner.name} has no ControllerRevision yet, which says what pods that are up to date look like"
        )
    return f"driver pod {pod.name} has no label controller-revision-hash; delete it to have a proper one made"


def _trouble(pod: DriverPod) -> str:
    state = "is being deleted" if pod.terminating else "is not ready" if pod.phase == "Running" else f"is {pod.phase}"
    return f"driver pod {pod.name} {state}" + (f", restarted {pod.restarts} times" if pod.restarts else "")
