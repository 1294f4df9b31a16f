"""Which NVIDIADriver a GPU node belongs to, decided from all of them and the nodes' labels.

In 26.7 the answer is written on the node (``nvidia.com/gpu-operator.driver.owner``), and everything else goes by that
label; 26.3 has neither the label nor default drivers, and only refuses drivers that meet on a node. Nothing is changed
while the drivers contradict each other: a node never changes hands because of a mistake. Source:
contracts/control-plane.md 2.3.

Nodes are given as their labels by name; those without ``nvidia.com/gpu.present=true`` do not count, so that a selector
that also fits a node without GPUs is no conflict (NVIDIA's validation counts these, too).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import field

from ..api import names
from ..api.nvidiadriver import NVIDIADriver
from ..api.release import Release

Nodes = Mapping[str, Mapping[str, str]]
"""Labels of nodes by the nodes' names."""

CONFLICTING_SELECTOR: Final = "ConflictingNodeSelector"
RECONCILE_FAILED: Final = "ReconcileFailed"
EVERY_GPU_NODE: Final = {names.GPU_PRESENT: "true"}


class Conflict(msgspec.Struct, frozen=True):
    """Why nodes cannot be given to drivers. ``reason`` is the condition's (contracts/control-plane.md 2.2).

    ``drivers`` are those that contradict each other, sorted; the conflict holds up all drivers, those included.
    """

    reason: str
    message: str
    drivers: tuple[str, ...]


class Ownership(msgspec.Struct, frozen=True):
    """Whose each GPU node is.

    ``owners`` holds every GPU node that has an owner. ``changes`` are the labels to write: the owner by node, ``None``
    where the label must go; nodes whose label is right are not in it. Both are empty in a conflict, ``changes`` always
    in 26.3.
    """

    owners: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str | None] = field(default_factory=dict)
    conflict: Conflict | None = None

    def nodes_of(self, driver: str) -> list[str]:
        """Names of the nodes that belong to a driver, sorted."""
        return sorted(node for node, owner in self.owners.items() if owner == driver)


def gpu_nodes(nodes: Nodes) -> Nodes:
    """The nodes that drivers are for."""
    return {name: labels for name, labels in nodes.items() if labels.get(names.GPU_PRESENT) == "true"}


def selector(driver: NVIDIADriver) -> Mapping[str, str]:
    """The labels that a driver asks of a node: its node selector, or every GPU node without one."""
    return driver.spec.nodeSelector if driver.spec.nodeSelector is not None else EVERY_GPU_NODE


def fits(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node has every label of a node selector."""
    return selector.items() <= labels.items()


def assign(drivers: Iterable[NVIDIADriver], nodes: Nodes, release: Release) -> Ownership:
    """Give every GPU node to its driver. Drivers that are being deleted are left out."""
    live = sorted((driver for driver in drivers if not driver.deleting), key=lambda driver: driver.name)
    fallback = release is not Release.V26_3
    defaults = [driver for driver in live if fallback and driver.spec.default]
    others = [driver for driver in live if not (fallback and driver.spec.default)]
    conflict = _selector_fault(live, release) or _several_defaults(defaults)
    if conflict:
        return Ownership(conflict=conflict)
    found = gpu_nodes(nodes)
    rest = defaults[0].name if defaults else ""
    asked = [(driver.name, selector(driver)) for driver in others]
    owners = {}
    for node in sorted(found):
        labels = found[node]
        claims = [name for name, wanted in asked if fits(wanted, labels)]
        if len(claims) > 1:
            return Ownership(conflict=_contested(node, claims))
        if owner := claims[0] if claims else rest:
            owners[node] = owner
    changes = {} if release is Release.V26_3 else _changes(found, owners)
    return Ownership(owners, changes)


def abandoned(drivers: Iterable[str], nodes: Nodes) -> dict[str, str | None]:
    """The labels to take off GPU nodes: those that name none of ``drivers``.

    For the time in which no node is given to a driver, as there is none or ClusterPolicy deploys its own.
    """
    there = frozenset(drivers)
    owners = {name: labels.get(names.DRIVER_OWNER) for name, labels in gpu_nodes(nodes).items()}
    return {name: None for name, owner in sorted(owners.items()) if owner is not None and owner not in there}


def _changes(nodes: Nodes, owners: Mapping[str, str]) -> dict[str, str | None]:
    wanted = {node: owners.get(node) for node in sorted(nodes)}
    return {node: owner for node, owner in wanted.items() if nodes[node].get(names.DRIVER_OWNER) != owner}


def _selector_fault(drivers: Sequence[NVIDIADriver], release: Release) -> Conflict | None:
    """A selector that may not be. The API server refuses a default driver with one, but older objects may have it."""
    if release is Release.V26_3:
        return None
    for driver in drivers:
        wanted = driver.spec.nodeSelector or {}
        if driver.spec.default and wanted:
            what = "spec.default is true and spec.nodeSelector is set: clear nodeSelector, or set default to false"
        elif names.DRIVER_OWNER in wanted:
            what = f"spec.nodeSelector uses {names.DRIVER_OWNER}, which the operator itself writes: use another label"
        else:
            continue
        return Conflict(CONFLICTING_SELECTOR, f"NVIDIADriver {driver.name}: {what}", (driver.name,))
    return None


def _several_defaults(defaults: Sequence[NVIDIADriver]) -> Conflict | None:
    if len(defaults) < 2:
        return None
    found = tuple(driver.name for driver in defaults)
    text = f"several NVIDIADrivers are the default: {_listed(found)}; set spec.default to false on all but one"
    return Conflict(RECONCILE_FAILED, text, found)


def _contested(node: str, claims: Sequence[str]) -> Conflict:
    text = (
        f"several NVIDIADrivers select node {node}: {_listed(claims)}; "
        "change their spec.nodeSelector so that no node fits two of them"
    )
    return Conflict(CONFLICTING_SELECTOR, text, tuple(claims))


def _listed(drivers: Sequence[str]) -> str:
    return f"[{' '.join(drivers)}]"
