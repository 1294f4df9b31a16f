"""Where an MPS daemon and its clients meet: the folders below the MPS root (contracts/device-plugin-gfd.md 6).

The root is `/mps` in the containers of the daemon, of the device plugin and of clients, and `mpsRoot` on the host. A
resource is named in full as it is advertised, ``nvidia.com/gpu`` or ``nvidia.com/gpu.shared``.
"""

from typing import Final

ROOT: Final = "/mps"
READY: Final = f"{ROOT}/.ready"
"""There while all daemons that are wanted run, also where none is."""
SHM: Final = f"{ROOT}/shm"
"""What is mounted at `/dev/shm` of the plugin, the daemon and the clients."""

PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
CONTROL: Final = "nvidia-cuda-mps-control"
"""The executable that starts a daemon and speaks to it; it comes with the driver."""


def folder(resource: str) -> str:
    """A resource's folder in a container."""
    return f"{ROOT}/{resource}"


def pipe_dir(resource: str) -> str:
    """Where a resource's daemon listens."""
    return f"{folder(resource)}/pipe"


def log_dir(resource: str) -> str:
    """Where a resource's daemon and its servers write their logs."""
    return f"{folder(resource)}/log"


def started_marker(resource: str) -> str:
    """There while a resource's daemon runs."""
    return f"{folder(resource)}/.started"
