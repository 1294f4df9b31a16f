"""The boundary of a rollback: what ``helm rollback`` takes back, what it leaves, and whether it can be done at all.

contracts/admin-workflow.md 10: the table is data, filled in for one rollback from a snapshot of the cluster, so that it
can be printed before and checked after. Taking the snapshot, and rolling back, is left to commands. What has not been
looked at is told as such, never as being in order.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ..api import names
from ..operator.labels import PAUSED_PREFIX
from ..operator.upgrade import states
from .disruption import Effect, Estimate, Pool
from .hops import Catalogue, Version
from .selectors import Document
from .versions import Minor, minor_text

HISTORY: Final = 10
"""So many revisions Helm keeps unless told otherwise."""
_RESTORABLE: Final = ("superseded", "deployed")


class Reverts(enum.StrEnum):
    """Whether ``helm rollback`` brings a layer back."""

    YES = "yes"
    INDIRECTLY = "indirectly"
    PARTLY = "partly"
    NO = "no"


class NewKind(NamedTuple):
    """A kind of custom resource that an older release has not; the upgrade hook brings its CRD if ``by_hook``."""

    since: Version
    kind: str
    crd: str
    by_hook: bool


NEW_KINDS: Final = (
    NewKind(Version(26, 7, 0), "ComputeDomain", "computedomains.resource.nvidia.com", False),
    NewKind(Version(26, 7, 0), "GPUCluster", "gpuclusters.nvidia.com", True),
)
"""In the order in which their objects have to be deleted: what a controller must clear up, before the controller."""

CHANGED_CRDS: Final[Mapping[Version, tuple[str, ...]]] = {
    Version(26, 7, 0): ("clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com")
}
"""CRDs that were there before and that a release's upgrade hook changes (contracts/admin-workflow.md 9.2)."""


class CrdChanges(NamedTuple):
    """What an upgrade does to CRDs: the hook changes and adds some; others have to be applied by hand where wanted."""

    changed: tuple[str, ...]
    added: tuple[str, ...]
    by_hand: tuple[str, ...]


def crd_changes(source: Version, target: Version) -> CrdChanges:
    """The CRDs that change with an upgrade."""
    changed = {crd for at, crds in CHANGED_CRDS.items() if source < at <= target for crd in crds}
    new = [each for each in NEW_KINDS if source < each.since <= target]
    added, by_hand = ([each.crd for each in new if each.by_hook is hook] for hook in (True, False))
    return CrdChanges(tuple(sorted(changed)), tuple(added), tuple(by_hand))


Pairs = Mapping[str, tuple[str, str]]
"""By node: what the baseline says, and what is now."""


class Snapshot(msgspec.Struct, frozen=True):
    """What is known of a cluster that is to be, or was, rolled back; None where nobody has looked.

    ``edited``: paths of ClusterPolicy and NVIDIADriver that were changed past Helm. ``pools``, ``estimate``: what the
    way back does to drivers and workloads. ``rejected``: stored objects that the old operator would not accept.
    ``definitions``: names of the CRDs that the cluster has. ``custom``: names of custom resources by kind.
    ``host_files``: by node, what a toolkit has left there. ``runtime_class``: it is there, ``nri``: the old values
    inject GPUs by NRI. ``mig``, ``kernels``, ``runtimes`` (with kubelet) and ``firmware`` by node. ``evicted``: pods
    that the upgrade has taken off their nodes.
    """

    edited: tuple[str, ...] | None = None
    pools: tuple[Pool, ...] | None = None
    estimate: Estimate | None = None
    rejected: tuple[str, ...] | None = None
    definitions: frozenset[str] | None = None
    custom: Mapping[str, tuple[str, ...]] | None = None
    nodes: tuple[Document, ...] | None = None
    host_files: Mapping[str, tuple[str, ...]] | None = None
    runtime_class: bool | None = None
    nri: bool | None = None
    mig: Pairs | None = None
    kernels: Pairs | None = None
    runtimes: Pairs | None = None
    firmware: Pairs | None = None
    evicted: tuple[str, ...] | None = None


class Rollback(NamedTuple):
    """A way back: the release that runs, the older one that is wanted, and the cluster, ``after`` it or before."""

    running: Version
    wanted: Version
    snapshot: Snapshot
    after: bool = False


Found = tuple[str, ...] | None
"""What a layer shows on this cluster, a line each; None if nobody has looked."""


class Row(NamedTuple):
    """A layer of the table: whether Helm brings it back, what is said and done, and how to see it on a cluster."""

    layer: str
    reverts: Reverts
    helm: str
    tool: str
    find: Callable[[Rollback], Found] | None = None


class Line(NamedTuple):
    """A row filled in for one cluster. ``found`` is None if nobody has looked, and empty if there is nothing to do."""

    layer: str
    reverts: Reverts
    helm: str
    tool: str
    found: Found

    @property
    def done(self) -> bool:
        """After a rollback: nothing is left to do in this layer."""
        return self.found == ()


def boundary(rollback: Rollback) -> tuple[Line, ...]:
    """The whole table for one rollback, in the contract's order, top of the stack to its bottom."""
    return tuple(
        Line(row.layer, row.reverts, row.helm, row.tool, row.find(rollback) if row.find is not None else ())
        for row in TABLE
    )


# --- What a cluster shows ---------------------------------------------------------------------------------------------


def _edited(rollback: Rollback) -> Found:
    edited = rollback.snapshot.edited
    said = "not as the old revision has it" if rollback.after else "lost"
    return None if edited is None else tuple(f"{said}: {path}" for path in edited)


def _drivers(rollback: Rollback) -> Found:
    pools, estimate = rollback.snapshot.pools, rollback.snapshot.estimate
    if pools is None:
        return None
    reloads = [
        f"{', '.join(pool.nodes)}: {pool.before} -> {pool.after}" for pool in pools if pool.effect == Effect.RELOAD
    ]
    return (*reloads, str(estimate)) if reloads and estimate is not None else tuple(reloads)


def _holders(rollback: Rollback) -> Found:
    estimate = rollback.snapshot.estimate
    if estimate is None:
        return None
    gpu = [each for each in estimate.holders if each.gpu]
    return tuple(f"{each.node}: {each.pod}{_reasons(each.blockers)}" for each in gpu)


def _reasons(blockers: Sequence[str]) -> str:
    return f" ({'; '.join(blockers)})" if blockers else ""


def _crds(rollback: Rollback) -> Found:
    changes = crd_changes(rollback.wanted, rollback.running)
    there = rollback.snapshot.definitions
    names = [crd for crd in (*changes.changed, *changes.added) if there is None or crd in there]
    newer = tuple(f"{crd} keeps the schema of {rollback.running}" for crd in names)
    rejected = rollback.snapshot.rejected
    if rejected is None:
        return newer or None
    first = "" if rollback.after else " first"
    return newer + tuple(f"{name} is not valid for {rollback.wanted}: change it{first}" for name in rejected)


def _custom(rollback: Rollback) -> Found:
    custom = rollback.snapshot.custom
    new = [each.kind for each in NEW_KINDS if rollback.wanted < each.since <= rollback.running]
    if not new:
        return ()
    if custom is None:
        return None
    first = "" if rollback.after else " first"
    return tuple(f"delete {kind} {name}{first}" for kind in new for name in sorted(custom.get(kind, ())))


def _host_files(rollback: Rollback) -> Found:
    found = rollback.snapshot.host_files
    return None if found is None else tuple(f"{node}: {path}" for node in sorted(found) for path in found[node])


def _runtime_class(rollback: Rollback) -> Found:
    there, nri = rollback.snapshot.runtime_class, rollback.snapshot.nri
    if there is None or nri is None:
        return None
    if there and nri:
        return ("RuntimeClass nvidia is there, and with NRI none is made",)
    return () if there or nri else ("RuntimeClass nvidia is not there",)


def _labels(rollback: Rollback) -> Found:
    nodes = rollback.snapshot.nodes
    return None if nodes is None else tuple(line for node in nodes for line in leftovers(node))


def leftovers(node: Document) -> Iterator[str]:
    """What an upgrade that did not end has left on a node: a cordon, operands off it, a state that is none of rest."""
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    if (node.get("spec") or {}).get("unschedulable"):
        yield f"{name}: cordoned"
    for label, value in sorted(labels.items()):
        if label.startswith(names.DEPLOY_PREFIX) and value.startswith(PAUSED_PREFIX):
            yield f"{name}: {label}={value}"
    if names.HELD_FOR_CANARY in (node["metadata"].get("annotations") or {}):
        yield f"{name}: {names.UPGRADE_SKIP}={labels.get(names.UPGRADE_SKIP, '')}, of an upgrade with canaries"
    state = labels.get(names.UPGRADE_STATE, "")
    if state and states.parse(state) not in states.AT_REST:
        yield f"{name}: {names.UPGRADE_STATE}={state}"


def _pairs(pairs: Pairs | None) -> Found:
    if pairs is None:
        return None
    return tuple(f"{node}: {was} -> {now}" for node, (was, now) in sorted(pairs.items()) if was != now)


def _evicted(rollback: Rollback) -> Found:
    return rollback.snapshot.evicted


TABLE: Final = (
    Row(
        "operator Deployment, RBAC, ConfigMaps, NFD objects",
        Reverts.YES,
        "Helm brings them back",
        "nothing to do",
    ),
    Row(
        "ClusterPolicy and default NVIDIADriver",
        Reverts.YES,
        "as the old revision rendered them; edits made past Helm are lost",
        "look at the difference first",
        _edited,
    ),
    Row(
        "operand DaemonSets other than the driver",
        Reverts.INDIRECTLY,
        "the old operator renders them again, and their pods are replaced one after the other",
        "watch them become ready",
    ),
    Row(
        "driver pods",
        Reverts.PARTLY,
        "their DaemonSet comes back, the pods do not: they are replaced on deletion only",
        "needs another driver upgrade of these nodes: evict, unload, load the old driver",
        _drivers,
    ),
    Row(
        "loaded kernel modules",
        Reverts.NO,
        "not Helm's",
        "can be unloaded when nothing uses a GPU, else only by a reboot; these pods use one",
        _holders,
    ),
    Row(
        "CRDs",
        Reverts.NO,
        "never taken back: the hook runs before upgrades only",
        "the newer schema stays; an older operator ignores what it does not know, and may reject stored objects",
        _crds,
    ),
    Row(
        "custom resources of new kinds",
        Reverts.NO,
        "the older operator does not know them",
        "delete them before the rollback, in this order",
        _custom,
    ),
    Row(
        "host files: /usr/local/nvidia, /run/nvidia, CDI specs, runtime configuration",
        Reverts.PARTLY,
        "the toolkit takes its runtime configuration back when it stops; installed files, the CDI spec and edits by "
        "another method stay",
        "compare, and clean up what is left",
        _host_files,
    ),
    Row(
        "RuntimeClass nvidia",
        Reverts.INDIRECTLY,
        "made or removed by the operator, as NRI is off or on",
        "check that it is as the old values ask",
        _runtime_class,
    ),
    Row(
        "node labels, taints, cordon",
        Reverts.NO,
        "not Helm's; the operator sets its own right again, a cordon or a pause may be left",
        "uncordon, and remove what is left",
        _labels,
    ),
    Row(
        "MIG geometry, GPU mode, ECC, persistence, clocks",
        Reverts.NO,
        "not Helm's",
        "set them as the baseline has them",
        lambda rollback: _pairs(rollback.snapshot.mig),
    ),
    Row(
        "kernel, initramfs, nouveau denylist, Secure Boot keys, packages",
        Reverts.NO,
        "the node image's",
        "go back to the old node image where the old driver needs it",
        lambda rollback: _pairs(rollback.snapshot.kernels),
    ),
    Row(
        "container runtime, kubelet and Kubernetes versions",
        Reverts.NO,
        "the platform's",
        "check that the old release works with them",
        lambda rollback: _pairs(rollback.snapshot.runtimes),
    ),
    Row(
        "firmware, VBIOS, InfoROM",
        Reverts.NO,
        "the hardware's",
        "check that the old driver works with them",
        lambda rollback: _pairs(rollback.snapshot.firmware),
    ),
    Row(
        "evicted workloads",
        Reverts.NO,
        "their controllers make them anew, bare pods are gone",
        "start again what was evicted and has no controller",
        _evicted,
    ),
    Row(
        "Helm hooks and their jobs",
        Reverts.NO,
        "do not run in reverse",
        "nothing to do",
    ),
)
"""contracts/admin-workflow.md 10."""


# --- Whether it can be done -------------------------------------------------------------------------------------------


class Revision(NamedTuple):
    """A line of ``helm history``; ``chart`` is its version, with or without ``v``."""

    number: int
    chart: str
    status: str


class Check(NamedTuple):
    """A precondition; ``met`` is None if it is not known."""

    name: str
    met: bool | None
    text: str
    fix: str = ""


class Preconditions(NamedTuple):
    """The four that a rollback needs, and the revision to go to (None if there is none)."""

    revision: Revision | None
    checks: tuple[Check, ...]

    @property
    def met(self) -> bool:
        """All are known to be met."""
        return all(each.met for each in self.checks)


def preconditions(
    wanted: Version,
    history: Sequence[Revision],
    images: Mapping[str, bool | None] | None,
    drivers: Mapping[str, str | None] | None,
    cluster: Minor | None,
    catalogue: Catalogue,
    system: str | None = None,
) -> Preconditions:
    """Whether a rollback to a release can be done (contracts/admin-workflow.md 10, end).

    ``images`` are those of the old release: whether each can be pulled, None if not known. ``drivers`` are the nodes
    with a driver of the operator: why the old one cannot be built on the kernel that runs there, empty if it can, None
    if not known. ``system`` is the nodes' operating system, as the support matrix names it.
    """
    revision = find_revision(history, wanted)
    return Preconditions(
        revision,
        (
            _has_revision(revision, history, wanted),
            _verdict("old images can be pulled", _images(images), "mirror them, or make their registry reachable"),
            _verdict(
                "the old driver can be built on the running kernels",
                drivers,
                "boot a kernel that it supports, give its headers, or take a precompiled driver",
            ),
            _kubernetes(wanted, cluster, catalogue, system),
        ),
    )


def find_revision(history: Iterable[Revision], wanted: Version) -> Revision | None:
    """The newest revision of a release that can be gone back to."""
    fitting = [each for each in history if each.status in _RESTORABLE and each.chart.removeprefix("v") == wanted.number]
    return max(fitting, default=None)


def _has_revision(revision: Revision | None, history: Sequence[Revision], wanted: Version) -> Check:
    name = "a revision to go back to"
    if revision is not None:
        return Check(name, True, f"revision {revision.number} is {wanted}")
    cut = f"; Helm keeps {HISTORY} unless told otherwise" if len(history) >= HISTORY else ""
    text = f"none of the {len(history)} revisions in helm history is a complete {wanted}{cut}"
    return Check(name, False, text, f"install {wanted} as an upgrade, with the values of the snapshot")


def _images(images: Mapping[str, bool | None] | None) -> Mapping[str, str | None] | None:
    words = {True: "", False: "cannot be pulled", None: None}
    return None if images is None else {image: words[pullable] for image, pullable in images.items()}


def _verdict(name: str, found: Mapping[str, str | None] | None, fix: str) -> Check:
    """A check of many things: each has the reason why not, empty if it is well, None if it is not known."""
    if found is None:
        return Check(name, None, "not looked at")
    bad = [f"{thing}: {why}" for thing, why in sorted(found.items()) if why]
    unknown = sorted(thing for thing, why in found.items() if why is None)
    if bad:
        return Check(name, False, "; ".join(bad), fix)
    if unknown:
        return Check(name, None, f"not known of {', '.join(unknown)}")
    return Check(name, True, f"{len(found)} of {len(found)}")


def _kubernetes(wanted: Version, cluster: Minor | None, catalogue: Catalogue, system: str | None) -> Check:
    name = "Kubernetes is one that the old release was validated with"
    if cluster is None:
        return Check(name, None, "the cluster's version is not known")
    fits = catalogue.kubernetes(wanted, system)
    text = f"{wanted} was validated with Kubernetes {fits}, the cluster has {minor_text(cluster)}"
    return Check(name, cluster in fits, text, "" if cluster in fits else "roll back to a release that fits")
