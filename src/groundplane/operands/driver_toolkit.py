"""OpenShift's driver toolkit: a sidecar with the compiler and headers of the node's RHCOS builds the modules.

The driver containers then start from the entrypoint that hands the build over, through a folder that both
mount. Source: contracts/control-plane.md 5.4, contracts/driver-lifecycle.md 6.2 and 6.9. When the imagestream has no
image for a node's RHCOS, the sidecar runs the driver's own image in its fallback mode.
"""

from collections.abc import Sequence
from typing import Final

from lightkube.models.core_v1 import Container

from . import build, scripts
from .driver_pools import Kind, Pool

NAME: Final = "openshift-driver-toolkit-ctr"
VOLUME: Final = "shared-nvidia-driver-toolkit"
SHARED_DIR: Final = "/mnt/shared-nvidia-driver-toolkit"
ENTRYPOINT: Final = "ocp_dtk_entrypoint"

# What each container does instead of its own command.
VERBS: Final = {
    "nvidia-driver-ctr": "nv-ctr-run-with-dtk",
    "nvidia-vgpu-manager-ctr": "nv-ctr-run-with-dtk",
    "nvidia-fs-ctr": "nv-fs-ctr-run-with-dtk",
    "nvidia-gdrcopy-ctr": "gdrcopy-ctr-run-with-dtk",
}

_WAIT_AND_BUILD: Final = (
    f"{scripts.STOP_WHEN_ASKED}; until [ -f {SHARED_DIR}/dir_prepared ]; do "
    "echo 'waiting for the driver container to prepare the shared folder'; sleep 10; done; "
    f"exec {SHARED_DIR}/{ENTRYPOINT} dtk-build-driver"
)


def missing_image_env(pool: Pool) -> list[str]:
    """Environment rows of a driver container whose RHCOS has no toolkit image."""
    if pool.kind is not Kind.TOOLKIT or pool.toolkit_image:
        return []
    return ["RHCOS_IMAGE_MISSING=true", f"RHCOS_VERSION={pool.rhcos}"]


def hand_over(container: Container, pool: Pool) -> Container:
    """Let ``container`` start from the toolkit's entrypoint, where the pool builds with it."""
    if pool.kind is Kind.TOOLKIT:
        container.command = [ENTRYPOINT]
        container.args = [VERBS[container.name]]
        container.volumeMounts = [*(container.volumeMounts or ()), *build.mounts(f"{VOLUME}:{SHARED_DIR}")]
    return container


def sidecar(pool: Pool, driver_image: str, *, env: Sequence[str], mounts: Sequence[str]) -> list[Container]:
    """The toolkit's container, or none; ``env`` are rows about what to build besides the driver."""
    if pool.kind is not Kind.TOOLKIT:
        return []
    missing = [] if pool.toolkit_image else ["RHCOS_IMAGE_MISSING=true"]
    made = build.container(
        NAME,
        pool.toolkit_image or driver_image,
        pull=None,
        command=("bash", "-xc"),
        args=(_WAIT_AND_BUILD,),
        env=build.env(f"RHCOS_VERSION={pool.rhcos}", "NVIDIA_VISIBLE_DEVICES=void", *env, *missing),
        mounts=build.mounts(f"{VOLUME}:{SHARED_DIR}", *mounts),
        security="S0",
    )
    return [made]
