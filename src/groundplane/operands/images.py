"""Where an operand's image comes from, and which operating system suffix a driver image carries.

Source: contracts/control-plane.md 1.6. Both releases follow the 26.7 rule for incomplete references:
a repository or version without the other two is an error, never a malformed reference.
"""

from collections.abc import Mapping
from typing import Final

from ..api.clusterpolicy import ImageSpec
from ..api.release import Release
from .errors import problem
from .facts import ClusterFacts, GpuNode

DIGEST: Final = "sha256:"

PULL_POLICIES: Final = frozenset({"Always", "Never", "IfNotPresent"})


def pull_policy(value: str | None) -> str:
    """The container's ``imagePullPolicy``; an unknown or empty value means ``IfNotPresent``."""
    return value if value in PULL_POLICIES else "IfNotPresent"


def resolve(section: ImageSpec, where: str, variable: str, defaults: Mapping[str, str]) -> str:
    """The image reference of one section.

    ``where`` is the section's path in the policy (``spec.toolkit``), for the error; ``variable`` names
    the operator's environment variable that stands in when the section says nothing, looked up in
    ``defaults``. Raises RenderError when no complete reference can be made.
    """
    repository, image, version = section.repository or "", section.image or "", section.version or ""
    if repository and image and version:
        return joined(repository, image, version)
    if repository or version:
        raise problem(
            f"{where}: repository, image and version must be set together, or image alone with a full reference; "
            f"found repository={repository!r}, image={image!r}, version={version!r}"
        )
    if image:
        return image
    if default := defaults.get(variable, ""):
        return default
    raise problem(
        f"{where}: no image: set repository, image and version there, or the operator's environment variable {variable}"
    )


def joined(repository: str, image: str, version: str) -> str:
    """``repository/image:version``, with ``@`` before a digest."""
    separator = "@" if version.startswith(DIGEST) else ":"
    return f"{repository}/{image}{separator}{version}"


def with_os(reference: str, tag: str) -> str:
    """``reference`` with the operating system suffix that driver images carry; a digest stays as it is."""
    return reference if DIGEST in reference else f"{reference}-{tag}"


def precompiled(section: ImageSpec, where: str, kernel: str, tag: str) -> str:
    """The image of a driver built for one kernel; there is no environment fallback.

    ``kernel`` is the full NFD value, architecture included. Raises RenderError when the section names
    no image, only a part of one, or a digest (which cannot be specific to a kernel).
    """
    repository, image, version = section.repository or "", section.image or "", section.version or ""
    if version.startswith(DIGEST) or DIGEST in image:
        raise problem(f"{where}: a precompiled driver cannot be pinned by digest; give a version such as '580'")
    if not repository and not version and not image:
        raise problem(f"{where}: usePrecompiled needs repository, image and version; none is set")
    base = resolve(section, where, "", {})
    return f"{base}-{kernel}-{tag}"


# Which distributions publish driver images for a major version only; a minimum major where one applies.
MAJOR_ONLY: Final[Mapping[Release, Mapping[str, int]]] = {
    Release.V26_3: {"rocky": 0, "rhel": 10},
    Release.V26_7: {"rocky": 0, "rhel": 0, "ol": 0},
}


def os_tag(os_id: str, version: str, release: Release) -> str:
    """``<ID><VERSION_ID>`` of /etc/os-release as image tags spell it, e.g. ``ubuntu24.04`` or ``rhel9``."""
    minimum = MAJOR_ONLY[release].get(os_id)
    if minimum is None:
        return os_id + version
    major = version.partition(".")[0]
    if minimum and not (major.isdigit() and int(major) >= minimum):
        return os_id + version
    return os_id + major


def node_os_tag(node: GpuNode, release: Release) -> str:
    """The tag of one node; RenderError when NFD has not labelled its operating system."""
    missing = [key for key, value in (("ID", node.os_id), ("VERSION_ID", node.os_version)) if not value]
    if missing:
        keys = " and ".join(f"feature.node.kubernetes.io/system-os_release.{key}" for key in missing)
        raise problem(f"node {node.name or '(unnamed)'} has no label {keys}; is node feature discovery running there?")
    return os_tag(node.os_id, node.os_version, release)


def cluster_os_tag(facts: ClusterFacts) -> str | None:
    """The tag of the first GPU node, or None without GPU nodes."""
    return node_os_tag(facts.nodes[0], facts.release) if facts.nodes else None
