"""From ClusterPolicy's driver to NVIDIADriver's without taking the driver from under running workloads (26.7).

When drivers are handed over, ClusterPolicy's DaemonSets are deleted but their pods stay (decide.py). Here it is decided
which nodes are then marked for the upgrade controller, which replaces such an orphan as it replaces an outdated driver,
and how long the ClusterPolicy is not ready for it. Sources: contracts/driver-lifecycle.md 3.9 and 3.14,
contracts/control-plane.md 2.5. In 26.3 drivers leave with their DaemonSets, and nothing here is asked.
"""

from collections.abc import Collection, Iterable

import msgspec

from ..api import names
from ..operands.driver_owners import Nodes
from .upgrade import states


class DriverPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of the operator's namespace, as far as it may be an orphaned driver.

    ``component`` is its label ``app.kubernetes.io/component``; it is ``owned`` when it has any ownerReference, and
    ``running`` when its phase is Running. ``node`` is empty before it is scheduled.
    """

    node: str
    component: str
    owned: bool
    running: bool

    @property
    def orphan(self) -> bool:
        """It drives a node's GPUs and no DaemonSet looks after it: one was deleted and left its pods."""
        return bool(self.node) and self.running and not self.owned and self.component == names.DRIVER_COMPONENT


def to_mark(pods: Iterable[DriverPod], nodes: Nodes, drivers: Collection[str]) -> list[str]:
    """Nodes to be labelled ``upgrade-required``, sorted, so that their orphaned drivers are replaced node by node.

    That is where an orphan runs, one of ``drivers`` owns the node (by its label), and no upgrade is under way: the
    label of its state is missing, empty or ``upgrade-done``. ``drivers`` names those that are not being deleted and
    whose nodes are upgraded.
    """
    places = {pod.node for pod in pods if pod.orphan}
    return sorted(
        node
        for node in places
        if nodes.get(node, {}).get(names.DRIVER_OWNER) in drivers and _at_rest(nodes[node].get(names.UPGRADE_STATE, ""))
    )


def unfinished(nodes: Nodes) -> list[str]:
    """Nodes of NVIDIADrivers whose upgrade is not finished, sorted: ClusterPolicy is not ready before they are.

    Nodes that a person took out of upgrades (``nvidia.com/gpu-driver-upgrade.skip=true``) do not count.
    """
    return sorted(
        node
        for node, labels in nodes.items()
        if names.DRIVER_OWNER in labels
        and not _at_rest(labels.get(names.UPGRADE_STATE, ""))
        and labels.get(names.UPGRADE_SKIP) != "true"
    )


def _at_rest(state: str) -> bool:
    return states.parse(state) in states.AT_REST
