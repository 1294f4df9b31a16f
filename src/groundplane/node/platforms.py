"""What kind of machine this is, from its files: one with NVML, Tegra, or Windows' subsystem for Linux.

contracts/device-plugin-gfd.md 2.1. What is offered or labelled on each kind, the programs decide.
"""

import enum
from collections.abc import Iterable
from typing import Final

from .devices.model import Inventory
from .process import Process

AUTO: Final = "auto"
WSL_LIBRARY: Final = "libdxcore.so"
WSL_FOLDERS: Final = (
    *("/usr/lib/wsl/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/lib/x86_64-linux-gnu", "/usr/lib"),
)
TEGRA_RELEASE: Final = "/etc/nv_tegra_release"
TEGRA_FAMILY: Final = "/sys/devices/soc0/family"
TEGRA_NAMES: Final = ("(nvgpu)", "NVIDIA Thor")
"""Parts of the names of GPUs that NVML shows but that are a Tegra's."""


class Platform(enum.Enum):
    """How devices are found and named."""

    NVML = "nvml"
    WSL = "wsl"
    TEGRA = "tegra"


def resolve(process: Process, strategy: str, container_driver_root: str, *, has_library: bool) -> Platform:
    """The kind of machine, as far as its files tell; ``strategy`` is the configured discovery."""
    if strategy == "tegra":
        return Platform.TEGRA
    if is_wsl(process, (container_driver_root,)):
        return Platform.WSL
    if strategy == AUTO and not has_library and is_tegra(process):
        return Platform.TEGRA
    return Platform.NVML


def has_tegra_gpu(inventory: Inventory) -> bool:
    """Whether one of NVML's GPUs is a Tegra's."""
    return any(part in gpu.name for gpu in inventory.gpus for part in TEGRA_NAMES)


def is_wsl(process: Process, roots: Iterable[str] = ()) -> bool:
    """Whether the library of Windows' GPUs is there, in the container or below one of more roots."""
    folders = dict.fromkeys(("", *(root.rstrip("/") for root in roots)))
    return any(process.path(f"{root}{folder}/{WSL_LIBRARY}").exists() for root in folders for folder in WSL_FOLDERS)


def is_tegra(process: Process) -> bool:
    """Whether the machine's files say that it is a Tegra."""
    if process.path(TEGRA_RELEASE).exists():
        return True
    try:
        return process.kernel.read_text(TEGRA_FAMILY).lower().startswith("tegra")
    except OSError:
        return False
