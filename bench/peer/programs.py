"""The programs under test: how each is started, and as whom it speaks to the API server.

NVIDIA's operator is used only as a built binary that the environment names; nothing of it is part of this project:

``GROUNDPLANE_PEER_OPERATOR``
    the binary (``go build ./cmd/gpu-operator`` in its repository)
``GROUNDPLANE_PEER_ASSETS``
    a folder with what its image has in ``/opt/gpu-operator``: the contents of the repository's ``assets/``, and
    ``manifests/``; and ``crds/`` with its CRDs. It is shown to the program at that path in a mount namespace.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

NAMESPACE = "gpu-operator"
OPERATOR_VARIABLE = "GROUNDPLANE_PEER_OPERATOR"
ASSETS_VARIABLE = "GROUNDPLANE_PEER_ASSETS"
RELEASE = "26.3.3"
"""The release that both operators behave as, and the policies are of."""
DRIVER_MANAGER_IMAGE = "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.9.1"
"""The peer does not start without one."""
REFERENCE_IN_FLIGHT = 16
"""Of the bare client that the limit is stated for."""
OPT = "/opt/gpu-operator"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
AS_IN_ITS_IMAGE = (
    f'mount -t tmpfs none /opt && mkdir {OPT} && mount --bind "$0" {OPT}'
    f" && mount -t tmpfs none /var/run && mkdir -p {ACCOUNT} && printf {NAMESPACE} > {ACCOUNT}/namespace"
    ' && exec "$@"'
)
"""The files that the peer looks for: its assets, and which namespace it runs in, which its leader election needs."""
_FLAGS = ("--leader-elect", "--health-probe-bind-address", "127.0.0.1:0")


class Unusable(Exception):  # noqa: N818
    """The environment names a peer that cannot be run; the message says what to change."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One program. ``crds`` is a folder of CRDs to install instead of ours; ``limited``: run under the memory limit."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}
    crds: Path | None = None
    limited: bool = False

    @property
    def user(self) -> str:
        """Its user name at the API server: a service account's, so that it is queued as a pod's requests are."""
        return f"system:serviceaccount:{NAMESPACE}:{self.name}"


def bare(in_flight: int = REFERENCE_IN_FLIGHT) -> Program:
    """The bare client."""
    return Program(name="bare", argv=(sys.executable, "-m", "bench.peer.bare", str(in_flight)))


def groundplane() -> Program:
    """The shipped operator."""
    return Program(
        name="groundplane",
        argv=(sys.executable, "-m", "groundplane", "operator", *_FLAGS, "--metrics-bind-address", "127.0.0.1:0"),
        environment={"OPERATOR_NAMESPACE": NAMESPACE, "GROUNDPLANE_RELEASE": RELEASE},
        limited=True,
    )


def peer(environ: Mapping[str, str] = os.environ) -> Program | None:
    """NVIDIA's operator, ``None`` where the environment names none. Raises :class:`Unusable`."""
    binary, assets = environ.get(OPERATOR_VARIABLE, ""), environ.get(ASSETS_VARIABLE, "")
    if not binary:
        return None
    if not os.access(binary, os.X_OK):
        raise Unusable(f"{OPERATOR_VARIABLE} is {binary!r}: not an executable file")
    for folder in ("manifests", "crds"):
        if not (Path(assets) / folder).is_dir():
            raise Unusable(
                f"{ASSETS_VARIABLE} is {assets!r}: it must be a folder with the contents of assets/ of NVIDIA's "
                f"repository, its manifests/, and crds/ with its CRDs; {folder}/ is not there"
            )
    show = ("unshare", "--mount", "sh", "-c", AS_IN_ITS_IMAGE, str(Path(assets).resolve()))
    return Program(
        name="nvidia",
        argv=(*show, str(Path(binary).resolve()), *_FLAGS, "--metrics-bind-address", "0"),
        environment={"OPERATOR_NAMESPACE": NAMESPACE, "DRIVER_MANAGER_IMAGE": DRIVER_MANAGER_IMAGE},
        crds=Path(assets) / "crds",
    )
