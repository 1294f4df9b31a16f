"""What preflight is asked, made of what a person gave and of what was seen: the release, the settings, the inquiry.

Pure: commands read files and clusters, and bring what they have read.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..diagnose.evidence import NodeFacts
from ..diagnose.survey import Survey
from . import preflight_platform, releases, trees
from .hops import Version
from .inquiry import Inquiry
from .lookups import Target
from .matrix import Matrix
from .releases import Revision
from .snapshot import Settings, Snapshot
from .values_file import ValuesFile
from .versions import numbers


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
    return Inquiry(
        target=target,
        snapshot=Snapshot.of_survey(survey),
        planned=planned,
        planned_source=source,
        vgpu=wanted.vgpu,
        node_facts=node_facts or {},
        node_unread=node_unread or {},
    )


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
