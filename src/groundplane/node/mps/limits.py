"""What each client of a shared GPU gets, and how many clients there may be (contracts/device-plugin-gfd.md 6). Pure."""

from collections.abc import Iterator
from typing import Final

from ..resources import Offer

_MIB: Final = 1 << 20
_FULL: Final = 100
_MANY_CLIENTS_SINCE: Final = (7, 5)
_MANY, _FEW = 48, 16


def max_replicas(compute: tuple[int, int]) -> int:
    """The clients that a GPU of some CUDA compute capability takes. Volta (7.0) counts as an old one."""
    return _MANY if compute >= _MANY_CLIENTS_SINCE else _FEW


def too_many(offer: Offer) -> str:
    """Which GPU of a resource is shared by more clients than it takes, for a person; empty if none is."""
    for device in offer.devices:
        compute = device.compute
        if compute is not None and offer.replicas > max_replicas(compute):
            return (
                f"{offer.resource} has {offer.replicas} replicas, but GPU {device.index} ({device.id}, compute "
                f"capability {compute[0]}.{compute[1]}) takes at most {max_replicas(compute)} MPS clients: "
                f"lower the replicas in sharing.mps"
            )
    return ""


def commands(offer: Offer) -> Iterator[str]:
    """The control commands that give each client of a resource its part of memory and threads.

    A GPU is named by its index, as the commands take no UUID; one whose memory is unknown gets no limit.
    """
    for device in offer.devices:
        if device.memory_bytes:
            limit = device.memory_bytes // offer.replicas // _MIB
            yield f"set_default_device_pinned_mem_limit {device.index} {limit}M"
    yield f"set_default_active_thread_percentage {_FULL // offer.replicas}"
