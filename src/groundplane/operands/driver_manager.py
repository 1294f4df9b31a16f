"""``k8s-driver-manager``, the init container that clears a node before a kernel driver is installed or bound.

It goes before the GPU driver, the vGPU manager and the VFIO manager. What it does on the node is
contracts/driver-lifecycle.md 5; this module only says how it is started.
"""

from collections.abc import Sequence
from typing import Final

from lightkube.models.core_v1 import Container

from ..api import clusterpolicy as cp
from . import build, images
from .facts import ClusterFacts

NAME: Final = "k8s-driver-manager"

_ENV: Final = ("NODE_NAME<-spec.nodeName", "NVIDIA_VISIBLE_DEVICES=void")
_NAMESPACE: Final = "OPERATOR_NAMESPACE<-metadata.namespace"

GPU_DRIVER: Final = (
    *_ENV,
    "ENABLE_GPU_POD_EVICTION=true",
    "ENABLE_AUTO_DRAIN=false",
    "DRAIN_USE_FORCE=false",
    "DRAIN_POD_SELECTOR_LABEL=",
    "DRAIN_TIMEOUT_SECONDS=0s",
    "DRAIN_DELETE_EMPTYDIR_DATA=false",
    _NAMESPACE,
)
"""Environment before the GPU driver: pods that use a GPU are evicted."""

VM_HOST: Final = (*_ENV, "ENABLE_GPU_POD_EVICTION=false", "ENABLE_AUTO_DRAIN=false", _NAMESPACE)
"""Environment on nodes whose GPUs go to virtual machines: nothing is evicted."""

MOUNTS: Final = ("run-nvidia:/run/nvidia:B", "host-root:/host:ro:H", "host-sys:/sys")


def container(
    section: cp.DriverManager,
    where: str,
    facts: ClusterFacts,
    *,
    env: Sequence[str],
    mounts: Sequence[str] = MOUNTS,
    resources: cp.JSON | None,
) -> Container:
    """The init container; ``env`` and ``mounts`` are rows, ``where`` the section's path in the policy."""
    variables = build.env(*env)
    build.user_env(variables, section.env)
    return build.container(
        NAME,
        images.resolve(section, where, "DRIVER_MANAGER_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        command=("driver-manager",),
        args=("uninstall_driver",),
        env=variables,
        mounts=build.mounts(*mounts),
        resources=build.init_resources(facts, resources),
    )
