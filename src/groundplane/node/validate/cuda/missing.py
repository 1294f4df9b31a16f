"""Why a container has no GPU: the lowest layer that is missing, and what to do, by what can be seen from within.

CUDA's own codes do not tell a node without GPUs from a pod that asked for none. The machine's /sys does.
"""

from collections.abc import Iterator
from typing import Final

from ...process import Process
from ..driver import MODULE
from ..sandbox import nvidia_devices

WSL: Final = "/dev/dxg"
"""The GPU of a WSL guest, which is on no PCI bus and has no module."""
_ASK: Final = "request one in its limits (nvidia.com/gpu, or a MIG device), or in a resource claim"


def layer(process: Process, *, library: bool) -> str:
    """The layer, for a person; ``library`` says whether the driver's library is in the container."""
    return next(_layers(process, library))


def _layers(process: Process, library: bool) -> Iterator[str]:
    if not process.path(WSL).exists():
        if _bare(process):
            yield "hardware: this node has no NVIDIA GPU on its PCI bus"
        if not process.kernel.exists(MODULE):
            yield "driver: the kernel module nvidia is not loaded on this node; see the driver's pod there"
    if not library:
        yield (
            f"runtime: the driver's libraries are not in this container: this container was given no GPU; {_ASK}. If "
            "it does, see its runtime class, and the container toolkit's pod on this node"
        )
    yield f"device plugin: this container was given no GPU; {_ASK}. If it does, see the plugin's pod on this node"


def _bare(process: Process) -> bool:
    """Whether the bus can be seen, and has no GPU."""
    try:
        return not any(device.is_gpu for device in nvidia_devices(process.kernel))
    except OSError:
        return False
