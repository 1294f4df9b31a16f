"""What preflight is asked, made of what a person gave and of what was seen: the release, the settings, the inquiry.

Pure: commands read files and clusters, and bring what they have read.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..api import names
from ..diagnose.evidence import NodeFacts
from ..diagnose.survey import Survey
from . import preflight_platform, releases, trees
from .hops import Version
from .inquiry import Inquiry
from .lookups import Target
from .matrix import Matrix
from .releases import Revision
from .snapshot import KINDS, Settings, Snapshot
from .values_file import ValuesFile
from .versions import numbers, os_parts


class Wanted(NamedTuple):
    """What a person asks preflight for.

    ``release`` empty: the one that is installed, else the newest of the matrix. ``values``: the files that are to be
    installed, later ones over earlier ones.
    """

    matrix: Matrix
    release: str = ""
    values: tuple[ValuesFile, ...] = ()
    vgpu: bool = False

    @property
    def overrides(self) -> dict[str, object]:
        """The values files as one."""
        made: dict[str, object] = {}
        for file in self.values:
            made = trees.layer(made, file.tree)
        return made


def installed(survey: Survey) -> Revision | None:
    """The revision of the operator's chart that is in force; None without one, or where Helm's releases are unread."""
    history = releases.history(survey)
    return history.deployed() or history.last()


def target_of(wanted: Wanted, revision: Revision | None) -> Target:
    """The release that preflight judges for. Raises ValueError for what is no release."""
    if wanted.release:
        return Target.of(wanted.matrix, wanted.release)
    running = revision.behaves_like if revision is not None else None
    return Target.of(wanted.matrix, str(running or max(wanted.matrix.releases, key=numbers)))


def inquiry_of(
    wanted: Wanted,
    survey: Survey,
    node_facts: Mapping[str, NodeFacts] | None = None,
    node_unread: Mapping[str, str] | None = None,
) -> Inquiry:
    """The inquiry. Raises ValueError for what is no release.

    The settings are those of the values files; for another release than the installed one, those of the installed
    values under the new defaults (what an upgrade with the same values would give); else the ClusterPolicy's.
    """
    revision = installed(survey)
    target = target_of(wanted, revision)
    planned, source = _planned(wanted, revision, target)
    if planned is None and survey.unread.get("clusterpolicies") in (ONLY_THIS_NODE, NO_CLUSTER):
        planned, source = Settings(), "chart defaults"
    return Inquiry(
        target=target,
        snapshot=_with_seen(Snapshot.of_survey(survey), node_facts or {}),
        planned=planned,
        planned_source=source,
        vgpu=wanted.vgpu,
        node_facts=node_facts or {},
        node_unread=node_unread or {},
    )


def _with_seen(snapshot: Snapshot, node_facts: Mapping[str, NodeFacts]) -> Snapshot:
    """The nodes with the GPUs that were found on them, which no label may tell yet."""
    gpus = {name: len(seen.facts.get("gpus") or ()) for name, seen in node_facts.items()}
    nodes = (replace(node, seen_gpus=gpus[node.name]) if gpus.get(node.name) else node for node in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))


ONLY_THIS_NODE: Final = "only this node was looked at, not the cluster"
NO_CLUSTER: Final = "there is no cluster to look at"


def of_node(seen: NodeFacts) -> Survey:
    """A survey of the one node that was looked at from inside: no cluster is needed, and nothing else is known."""
    facts = seen.facts
    runtimes = {"containerd": "containerd", "crio": "cri-o", "docker": "docker"}
    versions = [f"{scheme}://{found}" for name, scheme in runtimes.items() if (found := _version_of(facts.get(name)))]
    labels = {names.OS_RELEASE_ID: facts.get("os"), names.OS_RELEASE_VERSION_ID: facts.get("os_version")}
    if "gpus" in facts:
        labels[names.PCI_GPU_LABELS[0]] = str(bool(facts["gpus"])).lower()
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": seen.name, "labels": {name: str(value) for name, value in labels.items() if value}},
        "status": {
            "nodeInfo": {
                "osImage": f"{facts.get('os', '')} {facts.get('os_version', '')}".strip(),
                "kernelVersion": str(facts.get("kernel") or ""),
                "containerRuntimeVersion": next(iter(versions), ""),
                "kubeletVersion": str(facts.get("kubelet_version") or ""),
            },
        },
    }
    unread = {plural: ONLY_THIS_NODE for plural in KINDS if plural != "nodes"}
    return Survey(objects={"nodes": (node,)}, unread=unread)


def _version_of(configured: object) -> str:
    return str(configured.get("version") or "") if isinstance(configured, Mapping) else ""


def of_nothing() -> Survey:
    """A survey of no cluster at all, for values that are judged before there is one."""
    return Survey(unread=dict.fromkeys(KINDS, NO_CLUSTER))


_REPOSITORIES: Final[Mapping[str, str]] = {
    "ubuntu": "http://archive.ubuntu.com/ubuntu/dists/",
    "debian": "http://deb.debian.org/debian/dists/",
    "rhel": "https://cdn.redhat.com/",
    "rocky": "https://dl.rockylinux.org/pub/rocky/",
    "almalinux": "https://repo.almalinux.org/almalinux/",
}
"""Where systems get their packages from, unless they are told otherwise."""


def reaching(inquiry: Inquiry, more: Sequence[str] = ()) -> list[str]:
    """Addresses that nodes have to reach: of package repositories, where drivers are built, and ``more``."""
    settings = inquiry.settings
    driver = settings.tree.get("driver") or {}
    found: list[str] = []
    if settings.driver and not settings.precompiled and not (driver.get("repoConfig") or {}).get("configMapName"):
        systems = {os_parts(inquiry.snapshot.os_key(node))[0] for node in inquiry.served}
        found = [_REPOSITORIES[each] for each in sorted(systems) if each in _REPOSITORIES]
    return [*found, *more]


def _planned(wanted: Wanted, revision: Revision | None, target: Target) -> tuple[Settings | None, str]:
    if wanted.values:
        return Settings.of(wanted.overrides), ", ".join(file.source for file in wanted.values)
    if revision is None or revision.behaves_like in (None, Version.parse(target.version)):
        return None, ""
    return Settings.of(revision.values), f"values of release {revision.where}, revision {revision.revision}"


def about(inquiry: Inquiry, survey: Survey) -> dict[str, object]:
    """What was looked at, with what: said before the findings."""
    revision = installed(survey)
    snapshot, target = inquiry.snapshot, inquiry.target
    return {
        "cluster": {
            "server": survey.server,
            "kubernetes": snapshot.version,
            "nodes": len(snapshot.nodes),
            "gpuNodes": len(snapshot.gpu_nodes),
            "nodesLookedAt": len(inquiry.node_facts),
        },
        "target": {"release": f"v{target.version}", "lifecycle": target.lifecycle().reason},
        "installed": f"{revision.chart} {revision.chart_version} ({revision.where}, {revision.status})"
        if revision is not None
        else "",
        "settings": inquiry.settings_source,
        "matrix": {"dataAsOf": str(target.matrix.data_as_of)},
    }


def needs(inquiry: Inquiry) -> dict[str, object]:
    """Every image and package of the release on this cluster, as ``about`` says them."""
    needed = preflight_platform.needed(inquiry)
    return {"images": [each.reference for each in needed.images], "packages": list(needed.packages)}
