"""Which container runtime the GPU nodes use (contracts/control-plane.md 5.2), from what their kubelets report."""

from collections.abc import Iterable
from typing import Final

CONTAINERD: Final = "containerd"
CRIO: Final = "crio"
DOCKER: Final = "docker"

_PREFIXES: Final = ((CONTAINERD, CONTAINERD), ("cri-o", CRIO), (DOCKER, DOCKER))


def recognise(version: str) -> str | None:
    """The runtime of a ``containerRuntimeVersion`` such as ``cri-o://1.33.1``; ``None`` for one we do not know."""
    return next((runtime for prefix, runtime in _PREFIXES if version.startswith(prefix)), None)


def detect(versions: Iterable[str], *, openshift: bool = False) -> str:
    """The one runtime the operands are configured for.

    ``versions`` are the ``containerRuntimeVersion`` of the GPU nodes, in the order of their names. OpenShift always
    runs CRI-O; elsewhere containerd wins if any node has it, else the last runtime recognised, else containerd.
    """
    if openshift:
        return CRIO
    found = [runtime for runtime in map(recognise, versions) if runtime]
    return CONTAINERD if not found or CONTAINERD in found else found[-1]
