"""The modes of a spec as tables: the kind of each, and what the gated ones hold (contracts/toolkit-cdi.md 3.1, 3.8)."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...api import names
from .options import Mode

_GPU: Final = "nvidia.com/gpu"
KINDS: Final[Mapping[Mode, str]] = {
    Mode.NVML: _GPU,
    Mode.CSV: _GPU,
    Mode.WSL: _GPU,
    Mode.MANAGEMENT: names.MANAGEMENT_CDI_KIND,
    Mode.GDS: "nvidia.com/gds",
    Mode.MOFED: "nvidia.com/mofed",
    Mode.GDRCOPY: "nvidia.com/gdrcopy",
    Mode.NVSWITCH: "nvidia.com/nvswitch",
    Mode.IMEX: "nvidia.com/imex-channel",
}
"""The kind of a mode's spec if none is asked for."""


class Gated(NamedTuple):
    """What a mode's one device gives: nodes, and where there are some, also files and folders of the driver root."""

    nodes: tuple[str, ...]
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


GATED: Final[Mapping[Mode, Gated]] = {
    Mode.GDS: Gated(("/dev/nvidia-fs*",), ("/etc/cufile.json",), ("/run/udev",)),
    Mode.MOFED: Gated(("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm")),
    Mode.GDRCOPY: Gated(("/dev/gdrdrv",)),
    Mode.NVSWITCH: Gated(("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*")),
}

MANAGEMENT_NODES: Final = (
    *("/dev/nvidia*", "/dev/nvidia-caps/nvidia-cap*", "/dev/nvidia-modeset", "/dev/nvidia-uvm-tools"),
    *("/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia-caps-imex-channels/channel*"),
)
NO_MANAGEMENT_NODES: Final = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
"""How nodes begin that management containers do not get."""

IMEX_NODE: Final = "/dev/nvidia-caps-imex-channels/channel{}"
MAX_IMEX_CHANNEL: Final = (1 << 20) - 1
