"""Where an operand's image comes from, and which operating system suffix a driver image carries.

Source: contracts/control-plane.md 1.6. Both releases follow the 26.7 rule for incomplete references:
a repository or version without the other two is an error, never a malformed reference.
"""

import re
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
    instead = f", or the operator's environment variable {variable}" if variable else ""
    raise problem(f"{where}: no image: set repository, image and version there{instead}")


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


# --- Images of an NVIDIADriver (contracts/control-plane.md 2.1) -------------------------------------------------------
_NAME: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_REFERENCE: Final = re.compile(
    rf"(?:{_HOST}/)?{_NAME}(?:/{_NAME})*(?::{_TAG})?(?:@{DIGEST}[0-9a-fA-F]{{32,}})?", re.ASCII
)


def of_driver(section: ImageSpec, where: str, tag: str, kernel: str = "") -> str:
    """The image of one section of an NVIDIADriver for nodes with the operating system ``tag``.

    With a ``kernel``, that of a driver built for it. No variable of the operator's environment stands in. Raises
    RenderError when no reference comes about, also for an image without a tag, such as the one that the API server
    fills in: a suffix would turn it into another repository's name.
    """
    reference = _complete(section, where)
    if kernel and DIGEST in reference:
        raise problem(f"{where}: a precompiled driver cannot be pinned by digest; give a version such as '580'")
    made = with_os(f"{reference}-{kernel}" if kernel else reference, tag)
    if not _REFERENCE.fullmatch(made):
        raise problem(
            f"{where}: the image comes to {made!r}, which is no image reference: check repository, image and version"
        )
    return made


def _complete(section: ImageSpec, where: str) -> str:
    """What a section says, as a reference with a tag or a digest."""
    repository, image, version = section.repository or "", section.image or "", section.version or ""
    pinned = bool(re.search("[:@]", image.rpartition("/")[2]))
    if repository and image and version:
        if pinned:
            raise problem(
                f"{where}.image: {image!r} holds a tag or a digest, and {where}.repository and {where}.version are set "
                "too: write the name alone, or clear the other two"
            )
        if image.startswith(f"{repository}/"):
            raise problem(
                f"{where}.image: {image!r} begins with {where}.repository, so that it would be there twice: "
                f"write {image.removeprefix(repository + '/')!r}"
            )
        return joined(repository, image, version)
    if image and not pinned and not repository and not version:
        raise problem(
            f"{where}.image: {image!r} has neither a tag nor a digest, so no version is chosen: set "
            f"{where}.repository, {where}.image and {where}.version, or {where}.image to a full reference"
        )
    return resolve(section, where, "", {})


# --- Operating systems ------------------------------------------------------------------------------------------------
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
