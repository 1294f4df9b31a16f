"""Which driver DaemonSets a cluster needs, and for which nodes each is.

An ordinary driver needs one DaemonSet. A precompiled driver needs one for each kernel, with the image for
the operating system of that kernel's own nodes (contracts/control-plane.md 1.6 and 4.6; NVIDIA's operator takes
the operating system of an arbitrary node). With OpenShift's driver toolkit there is one for each version of
RHCOS (5.4). What is inside a DaemonSet is decided in driver.py and vgpu_manager.py.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from ..api import clusterpolicy as cp
from ..api import names
from . import build, images
from .errors import problem
from .facts import ClusterFacts, GpuNode

TOOLKIT_LABEL: Final = "openshift.driver-toolkit"
RHCOS_LABEL: Final = "openshift.driver-toolkit.rhcos"
RHCOS_IMAGE_MISSING_LABEL: Final = "openshift.driver-toolkit.rhcos-image-missing"


class Kind(enum.Enum):
    """How the kernel modules come about, which decides how many DaemonSets there are."""

    ORDINARY = "ordinary"
    PRECOMPILED = "precompiled"
    TOOLKIT = "driver toolkit"


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that one driver DaemonSet serves.

    ``os_tag`` and ``os_id`` are empty when the cluster has no GPU node. ``kernel`` is set for a
    precompiled driver, ``rhcos`` with the driver toolkit; ``toolkit_image`` is then the image to build
    modules with, empty when the imagestream has no tag for that version.
    """

    name: str
    kind: Kind = Kind.ORDINARY
    os_id: str = ""
    os_tag: str = ""
    kernel: str = ""
    rhcos: str = ""
    toolkit_image: str = ""

    @property
    def node_selector(self) -> dict[str, str]:
        """What the pool asks of a node besides the deploy label."""
        chosen = {names.KERNEL_VERSION: self.kernel, names.OSTREE_VERSION: self.rhcos}
        return {key: value for key, value in chosen.items() if value}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the DaemonSet and its pods that tell the pool's kind (read back by :func:`kind_of`)."""
        if self.kind is not Kind.TOOLKIT:
            return {}
        missing = {} if self.toolkit_image else {RHCOS_IMAGE_MISSING_LABEL: "true"}
        return {TOOLKIT_LABEL: "true", RHCOS_LABEL: self.rhcos, **missing}


def kind_of(labels: Mapping[str, str]) -> Kind:
    """The kind of a live driver DaemonSet or pod, from its labels."""
    if labels.get(TOOLKIT_LABEL) == "true":
        return Kind.TOOLKIT
    return Kind.PRECOMPILED if labels.get(names.PRECOMPILED) == "true" else Kind.ORDINARY


def toolkit_on(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """OpenShift's driver toolkit builds the modules: not switched off, installed, and a node says its RHCOS."""
    return (
        facts.openshift is not None
        and facts.openshift.driver_toolkit is not None
        and build.on(spec.operator.use_ocp_driver_toolkit, True)
        and any(node.ostree for node in facts.nodes)
    )


def driver_kind(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> Kind:
    """How the GPU driver's modules come about; precompiled beats the driver toolkit."""
    if build.on(spec.driver.usePrecompiled):
        return Kind.PRECOMPILED
    return Kind.TOOLKIT if toolkit_on(spec, facts) else Kind.ORDINARY


def vgpu_manager_kind(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> Kind:
    """How the vGPU manager's modules come about; it is never precompiled."""
    return Kind.TOOLKIT if toolkit_on(spec, facts) else Kind.ORDINARY


def pools(base: str, kind: Kind, facts: ClusterFacts) -> list[Pool]:
    """The DaemonSets of one kind, in order of name; ``base`` is the name that all of them start with.

    Raises RenderError naming the nodes when a needed label is missing or one image cannot serve a group.
    """
    return sorted(_POOLS[kind](base, facts), key=lambda pool: pool.name)


def _ordinary(base: str, facts: ClusterFacts) -> Iterable[Pool]:
    if not facts.nodes:
        return [Pool(name=base)]
    node = min(facts.nodes, key=lambda node: node.name)
    return [Pool(name=base, os_id=node.os_id, os_tag=images.node_os_tag(node, facts.release))]


def _precompiled(base: str, facts: ClusterFacts) -> Iterable[Pool]:
    unlabelled = [node for node in facts.nodes if not node.kernel]
    if unlabelled:
        raise problem(
            f"spec.driver.usePrecompiled: the kernel of {listed(unlabelled)} is unknown: label {names.KERNEL_VERSION} "
            "is missing; is node feature discovery running there?"
        )
    groups = _grouped(facts.nodes, lambda node: node.kernel)
    titles = _titles(groups)
    for kernel, nodes in groups.items():
        node = _one_system(f"kernel {kernel}", nodes, facts)
        yield Pool(
            name=f"{base}-{titles[kernel]}-{sanitised(node.os_id + node.os_version)}",
            kind=Kind.PRECOMPILED,
            os_id=node.os_id,
            os_tag=images.node_os_tag(node, facts.release),
            kernel=kernel,
        )


def _toolkit(base: str, facts: ClusterFacts) -> Iterable[Pool]:
    found = (facts.openshift.driver_toolkit if facts.openshift else None) or {}
    for rhcos, nodes in _grouped(facts.nodes, lambda node: node.ostree).items():
        if not rhcos:
            continue  # not an RHCOS node: the driver toolkit has no image for it
        node = _one_system(f"RHCOS {rhcos}", nodes, facts)
        yield Pool(
            name=f"{base}-{rhcos}",
            kind=Kind.TOOLKIT,
            os_id=node.os_id,
            os_tag=images.node_os_tag(node, facts.release),
            rhcos=rhcos,
            toolkit_image=found.get(rhcos, ""),
        )


_POOLS: Final[dict[Kind, Callable[[str, ClusterFacts], Iterable[Pool]]]] = {
    Kind.ORDINARY: _ordinary,
    Kind.PRECOMPILED: _precompiled,
    Kind.TOOLKIT: _toolkit,
}


def _grouped(nodes: Iterable[GpuNode], key: Callable[[GpuNode], str]) -> dict[str, list[GpuNode]]:
    """Nodes by ``key``, keys and names sorted, so that the order of listing never shows."""
    groups: dict[str, list[GpuNode]] = {}
    for node in sorted(nodes, key=lambda node: (key(node), node.name)):
        groups.setdefault(key(node), []).append(node)
    return groups


def _one_system(what: str, nodes: list[GpuNode], facts: ClusterFacts) -> GpuNode:
    """A node that stands for all of ``nodes``; RenderError when they run different operating systems."""
    for node in nodes:
        images.node_os_tag(node, facts.release)  # raises when a label is missing
    systems = _grouped(nodes, lambda node: node.os_id + node.os_version)
    if len(systems) > 1:
        found = "; ".join(f"{system} on {listed(members)}" for system, members in systems.items())
        raise problem(
            f"{what} runs on different operating systems, and one driver image cannot serve both: {found}. "
            "Bring these nodes to one operating system, or take the GPU operands off some of them"
        )
    return nodes[0]


_ARCHITECTURE: Final = re.compile(r"(?:x86_64|aarch64)(?:_64k)?")


_BETWEEN_PARTS: Final = re.compile(r"[.-]*\.[.-]*")
"""Around a dot, a name of a Kubernetes object may have neither a dot nor a hyphen."""


def sanitised(kernel: str) -> str:
    """A kernel version as DaemonSet names carry it: without architecture, ``_`` as ``.``, lower case (2.4).

    What the architecture leaves behind (``el9.x86_64_rt`` of a real-time kernel) is closed up, as two dots in a row
    make no valid name.
    """
    return _BETWEEN_PARTS.sub(".", _ARCHITECTURE.sub("", kernel).replace("_", ".")).removesuffix(".").lower()


def _titles(kernels: Iterable[str]) -> dict[str, str]:
    """The part of its DaemonSet's name that stands for each kernel, no two alike.

    Kernels that differ in architecture only would get one name; the first in order keeps the short form
    and the others add their architecture, so that each has a DaemonSet of its own.
    """
    titles: dict[str, str] = {}
    for kernel in sorted(kernels, key=lambda kernel: ("x86_64" not in kernel, len(kernel), kernel)):
        title = sanitised(kernel)
        if title in titles.values():
            found = _ARCHITECTURE.search(kernel)
            title += "-" + (found[0] if found else kernel).replace("_", "-").lower()
        titles[kernel] = title
    return titles


def listed(nodes: Iterable[GpuNode], limit: int = 5) -> str:
    """Node names for an error: ``node a``, ``nodes a, b`` or ``nodes a, b, c, d, e and 7 more``."""
    found = sorted(node.name or "(unnamed)" for node in nodes)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return f"{'node' if len(found) == 1 else 'nodes'} {', '.join(found[:limit])}{more}"
