"""The node pools of an NVIDIADriver, one DaemonSet each, and what their objects are called.

A pool is the nodes that one image serves: those with one operating system; with a precompiled driver also one kernel;
on OpenShift one version of RHCOS instead. Nodes that node feature discovery has not described are left out, with a word
why. Source: contracts/control-plane.md 2.4. NVIDIA's operator tells pools apart by names that leave something out (the
architecture of a kernel, the minor version of Rocky Linux in 26.3) and serves one of those that share a name only; here
each has its own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from ..api import names
from ..api import nvidiadriver as nvd
from ..api.release import Release
from . import build, driver_digest, driver_owners, driver_pools, images
from .driver_owners import Nodes
from .driver_pools import Kind, Pool
from .errors import problem
from .facts import ClusterFacts

NAME_MAX: Final = 63
"""A DaemonSet's name is also a label's value."""
ACCOUNT_MAX: Final = 253
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


class NodePool(msgspec.Struct, frozen=True, kw_only=True):
    """Some nodes of a driver and the DaemonSet for them, ``pool.name``.

    ``title`` is what people call it, such as ``ubuntu24.04``. ``account`` is the name of the ServiceAccount and of what
    belongs to it. ``node_selector`` is what the DaemonSet asks of a node besides the deploy label.
    """

    title: str
    pool: Pool
    account: str
    node_selector: Mapping[str, str]
    nodes: tuple[str, ...]


class Pools(msgspec.Struct, frozen=True):
    """All pools of a driver, in order of operating system and kernel, and why each of the other nodes is in none."""

    pools: list[NodePool]
    skipped: dict[str, str]


def selector(driver: nvd.NVIDIADriver, release: Release) -> dict[str, str]:
    """The node selector of a driver's own nodes; its ``nodeSelector`` cannot override what the operator adds."""
    own = {names.GPU_PRESENT: "true"}
    if release is not Release.V26_3:
        own[names.DRIVER_OWNER] = driver.name
    return {**(driver.spec.nodeSelector or {}), **own}


def pools(driver: nvd.NVIDIADriver, nodes: Nodes, facts: ClusterFacts) -> Pools:
    """The pools of a driver among ``nodes``.

    Raises RenderError when two pools would have one DaemonSet name, which takes very long names.
    """
    kind = _kind(driver, facts)
    groups: dict[tuple[str, str], list[str]] = {}
    skipped = {}
    chosen = selector(driver, facts.release)
    for node in sorted(name for name, labels in nodes.items() if driver_owners.fits(chosen, labels)):
        needed = _needed(kind, facts, nodes[node])
        if missing := [key for key in needed if not nodes[node].get(key)]:
            skipped[node] = f"no label {' and '.join(missing)}; is node feature discovery running there?"
        else:
            groups.setdefault(_group(kind, facts, nodes[node]), []).append(node)
    made = []
    for (_, detail), members in sorted(groups.items()):
        version, unversioned = _version_selector([nodes[node] for node in members], facts.release)
        skipped.update(dict.fromkeys((members[index] for index in unversioned), _NO_MAJOR))
        if served := [node for index, node in enumerate(members) if index not in unversioned]:
            made.append(_pool(driver, kind, facts, nodes[served[0]], detail, {**chosen, **version}, served))
    _refuse_same_names(made)
    return Pools(made, dict(sorted(skipped.items())))


# --- Grouping ---------------------------------------------------------------------------------------------------------
_NO_MAJOR: Final = f"no label {names.OS_RELEASE_VERSION_MAJOR}; is node feature discovery running there?"


def _kind(driver: nvd.NVIDIADriver, facts: ClusterFacts) -> Kind:
    if build.on(driver.spec.usePrecompiled):
        return Kind.PRECOMPILED
    return Kind.TOOLKIT if facts.openshift and facts.openshift.driver_toolkit is not None else Kind.ORDINARY


def _detail_key(kind: Kind, facts: ClusterFacts) -> str:
    """The label by which nodes of one operating system are told apart, empty for none."""
    if kind is Kind.PRECOMPILED:
        return names.KERNEL_VERSION
    return names.OSTREE_VERSION if facts.openshift else ""


def _needed(kind: Kind, facts: ClusterFacts, labels: Mapping[str, str]) -> list[str]:
    detail = _detail_key(kind, facts)
    return [names.OS_RELEASE_ID, names.OS_RELEASE_VERSION_ID, *([detail] if detail else [])]


def _os_tag(labels: Mapping[str, str], release: Release) -> str:
    return images.os_tag(labels[names.OS_RELEASE_ID], labels[names.OS_RELEASE_VERSION_ID], release)


def _group(kind: Kind, facts: ClusterFacts, labels: Mapping[str, str]) -> tuple[str, str]:
    detail = _detail_key(kind, facts)
    return _os_tag(labels, facts.release), labels[detail] if detail else ""


def _version_selector(members: Sequence[Mapping[str, str]], release: Release) -> tuple[dict[str, str], set[int]]:
    """The operating system that a pool asks of a node, and which of its nodes lack a label for it, by position.

    Where the image's tag has the major version only, so has the selector: in 26.7 always, in 26.3 if the nodes differ.
    """
    first = members[0]
    system = {names.OS_RELEASE_ID: first[names.OS_RELEASE_ID]}
    version = first[names.OS_RELEASE_VERSION_ID]
    shortened = not _os_tag(first, release).endswith(version)
    differ = len({labels[names.OS_RELEASE_VERSION_ID] for labels in members}) > 1
    if not differ and not (shortened and release is not Release.V26_3):
        return {**system, names.OS_RELEASE_VERSION_ID: version}, set()
    without = {index for index, labels in enumerate(members) if not labels.get(names.OS_RELEASE_VERSION_MAJOR)}
    majors = [labels[names.OS_RELEASE_VERSION_MAJOR] for index, labels in enumerate(members) if index not in without]
    return {**system, names.OS_RELEASE_VERSION_MAJOR: majors[0] if majors else ""}, without


def _pool(
    driver: nvd.NVIDIADriver,
    kind: Kind,
    facts: ClusterFacts,
    labels: Mapping[str, str],
    detail: str,
    node_selector: Mapping[str, str],
    nodes: Sequence[str],
) -> NodePool:
    tag = _os_tag(labels, facts.release)
    kernel, rhcos = (detail, "") if kind is Kind.PRECOMPILED else ("", detail)
    toolkit = (facts.openshift.driver_toolkit if facts.openshift else None) or {}
    key = _detail_key(kind, facts)
    return NodePool(
        title=_TITLES[kind](tag, detail) if detail else tag,
        pool=Pool(
            name=daemon_set_name(driver, tag, detail),
            kind=kind,
            os_id=labels[names.OS_RELEASE_ID],
            os_tag=tag,
            kernel=kernel,
            rhcos=rhcos,
            toolkit_image=toolkit.get(rhcos, "") if kind is Kind.TOOLKIT else "",
        ),
        account=account_name(driver, tag),
        node_selector={**node_selector, **({key: detail} if key else {})},
        nodes=tuple(nodes),
    )


_TITLES: Final[Mapping[Kind, Callable[[str, str], str]]] = {
    Kind.ORDINARY: lambda tag, rhcos: rhcos or tag,
    Kind.PRECOMPILED: lambda tag, kernel: f"{tag}-{driver_pools.sanitised(kernel)}",
    Kind.TOOLKIT: lambda tag, rhcos: rhcos,
}


def _refuse_same_names(found: Sequence[NodePool]) -> None:
    by_name: dict[str, NodePool] = {}
    for each in found:
        other = by_name.setdefault(each.pool.name, each)
        if other is not each:
            raise problem(
                f"node pools {other.title} ({other.pool.os_tag}) and {each.title} ({each.pool.os_tag}) would share the "
                f"DaemonSet {each.pool.name}: give one of them an NVIDIADriver of its own"
            )


# --- Names ------------------------------------------------------------------------------------------------------------
def daemon_set_name(driver: nvd.NVIDIADriver, os_tag: str, detail: str = "") -> str:
    """The name of a pool's DaemonSet, which is also its label ``app``; ``detail`` is the full kernel or RHCOS version.

    The end is drawn from the driver's UID, so that a driver that is deleted and made again gets other names.
    """
    drawn = short_hash(f"{driver.metadata.uid}-{detail}" if detail else driver.metadata.uid)
    prefix = f"nvidia-{nvd.driver_type(driver.spec)}-driver-{_usable(os_tag)}"
    return f"{prefix[: NAME_MAX - len(drawn) - 1].rstrip('.')}-{drawn}"


def account_name(driver: nvd.NVIDIADriver, os_tag: str) -> str:
    """The name of the ServiceAccount, Role, ClusterRole, their bindings and the SCC of a pool."""
    kind = nvd.driver_type(driver.spec)
    base = "nvidia-vgpu-manager" if kind == nvd.VGPU_HOST_MANAGER else f"nvidia-{kind}-driver"
    return f"{base}-{driver.name}-{_usable(os_tag)}"[:ACCOUNT_MAX].rstrip(".-")


def kernel_label(kernel: str) -> str:
    """A kernel as a label's value: as in names of objects, at most :data:`NAME_MAX` characters."""
    return driver_pools.sanitised(kernel)[:NAME_MAX].rstrip(".-")


def _usable(os_tag: str) -> str:
    """An operating system's tag as names of objects may hold it (``sles15-SP5``)."""
    return re.sub(r"[^a-z0-9.-]", "-", os_tag.lower())


def short_hash(text: str) -> str:
    """The decimal FNV-1a hash of ``text`` with each digit replaced by a letter or digit that makes no words."""
    number = str(driver_digest.fnv1a(text.encode()))
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in number)
