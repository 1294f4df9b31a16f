"""What a generated CDI spec may be asked to be: its mode, how its devices are named, how libraries get into containers.

Tables of contracts/toolkit-cdi.md 3.1, 3.2, 3.5 and 3.9. Which options a program has and what their defaults are, the
program decides.
"""

import enum
from typing import Final

import msgspec

from .roots import Roots

LIBRARIES_ENV: Final = "CDI_LIBRARIES"
"""Environment variable by which an operand is told how libraries get into containers (see :class:`Libraries`)."""
HOOK_PATH: Final = "/usr/bin/nvidia-cdi-hook"
"""Where the hook executable is if nothing else is said."""
RUNTIME_KIND: Final = "runtime.nvidia.com/gpu"
"""The kind of the spec that the host's runtime shim reads for requests by ``NVIDIA_VISIBLE_DEVICES``."""


class Mode(enum.Enum):
    """What a spec is of (contracts/toolkit-cdi.md 3.1)."""

    AUTO = "auto"
    NVML = "nvml"
    MANAGEMENT = "management"
    CSV = "csv"
    WSL = "wsl"
    GDS = "gds"
    MOFED = "mofed"
    GDRCOPY = "gdrcopy"
    NVSWITCH = "nvswitch"
    IMEX = "imex"


class Strategy(enum.Enum):
    """How devices are named (3.2)."""

    INDEX = "index"
    TYPE_INDEX = "type-index"
    UUID = "uuid"


class Libraries(enum.StrEnum):
    """How the driver's libraries get into a container.

    ``HOOKLESS``: each is mounted under the names that it is loaded by, in folders that the loader searches; nothing
    runs on the host. ``HOOKS``: each is mounted where the host has it, and hooks make links and the loader's cache.
    """

    HOOKLESS = "hookless"
    HOOKS = "hooks"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a spec is to hold. ``kind`` is ``<vendor>/<class>``, empty for the mode's own."""

    mode: Mode
    roots: Roots
    kind: str = ""
    strategies: tuple[Strategy, ...] = (Strategy.INDEX,)
    libraries: Libraries = Libraries.HOOKS
    hook_path: str = HOOK_PATH
    ldconfig_path: str = ""
    disabled_hooks: frozenset[str] = frozenset()
    enabled_hooks: frozenset[str] = frozenset()
    device_ids: tuple[str, ...] = ("all",)
    all_device: bool = True
    features: frozenset[str] = frozenset()
    config_search_paths: tuple[str, ...] = ()
    library_search_paths: tuple[str, ...] = ()
    csv_files: tuple[str, ...] = ()
    csv_ignore_patterns: tuple[str, ...] = ()
    csv_compat_root: str = ""
    null_devices: bool = False


class GenerateError(RuntimeError):
    """No spec can be made; the text says what is missing where, and what to do."""
