"""The protocol for changing MIG on a machine's GPUs, and its data, in NVML's terms.

A source gives it (``source.Source.mig``). It does what one call of the driver does and no more: which layout somebody
wants, in which order and what is done when the driver refuses is ``node/mig``'s part. Two sources exist, as of reading:
``nvmlmig`` and ``simulatedmig``; the same tests hold for both. Errors are :class:`~.source.DeviceError` with NVML's
name and code (contracts/mig-exporter-validator.md 7): 19 IN_USE for what a client still uses, 23
INSUFFICIENT_RESOURCES for what does not fit, 3 NOT_SUPPORTED for what the GPU has not got.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from ..process import Completed
from .model import Profile
from .models import Engines
from .source import DeviceError

NvidiaSmi: TypeAlias = Callable[[Sequence[str]], Awaitable[Completed]]
"""Runs the driver's `nvidia-smi` with some arguments. FileNotFoundError if there is none."""


class MigGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as layouts name it: by index and by PCI ids, each the device in the high half and the vendor in the low.

    ``subsystem_id`` is the board's, 0 where it is not known; ``bus_id`` is NVML's.
    """

    index: int
    uuid: str
    bus_id: str
    name: str
    memory_bytes: int
    pci_id: int
    subsystem_id: int


class Modes(NamedTuple):
    """Whether MIG is on, and whether it will be after the GPU's next reset."""

    current: bool
    pending: bool


class Placement(NamedTuple):
    """Where a GPU instance is or may be: first memory slice, and how many."""

    start: int
    size: int


class InstanceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU instance that a GPU offers. ``number`` asks for it, ``id`` is what instances of it bear.

    ``profile`` is its full name, ``most`` how many fit at most, ``placements`` where they may be (none where the driver
    does not tell).
    """

    number: int
    id: int
    profile: Profile
    most: int
    memory_mib: int
    multiprocessors: int
    engines: Engines
    placements: tuple[Placement, ...]


class ComputeProfile(NamedTuple):
    """A kind of compute instance that a GPU instance offers, with its slices and how many fit at most."""

    number: int
    id: int
    slices: int
    most: int
    engine: int = 0


class ComputeInstance(NamedTuple):
    """A compute instance; ``profile_id`` is a :class:`ComputeProfile`'s ``id``."""

    id: int
    profile_id: int


class GpuInstance(msgspec.Struct, frozen=True):
    """A GPU instance; ``profile_id`` is an :class:`InstanceProfile`'s ``id``."""

    id: int
    profile_id: int
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()


class MigControl(Protocol):
    """Reads and changes MIG of the GPUs of an open source. GPUs are named by UUID."""

    def gpus(self) -> tuple[MigGpu, ...]:
        """All GPUs by index, display-only ones too. Raises :class:`~.source.Lost` if one has fallen off the bus."""

    def modes(self, gpu: str) -> Modes | None:
        """The GPU's MIG mode; None if it knows no MIG."""

    def profiles(self, gpu: str) -> tuple[InstanceProfile, ...]:
        """The kinds of GPU instances by number, as far as the driver tells; old drivers tell none with MIG off."""

    def instances(self, gpu: str) -> tuple[GpuInstance, ...]:
        """The GPU instances by id, with or without compute instances; none with MIG off."""

    def compute_profiles(self, gpu: str, gi: int) -> tuple[ComputeProfile, ...]:
        """The kinds of compute instances that a GPU instance offers, by number."""

    def coupled(self, gpu: str) -> frozenset[str]:
        """The GPUs that NVLinks, directly or through switches, connect with one, and itself."""

    def set_mode(self, gpu: str, enabled: bool) -> DeviceError | None:
        """Ask for a MIG mode. If it is not in force at once: why, as the driver has it (it may be pending then)."""

    async def reset(self, gpus: Collection[str], nvidia_smi: NvidiaSmi) -> None:
        """Reset GPUs, which ends all their instances; pending modes come into force.

        The driver's library is given back for as long as it takes, since nobody may use a GPU that is reset.
        """

    def create_gpu_instance(self, gpu: str, profile_id: int, placement: Placement) -> int:
        """Make a GPU instance, and return its id."""

    def destroy_gpu_instance(self, gpu: str, gi: int) -> None:
        """End a GPU instance, which must have no compute instances."""

    def create_compute_instance(self, gpu: str, gi: int, profile_id: int) -> int:
        """Make a compute instance, and return its id."""

    def destroy_compute_instance(self, gpu: str, gi: int, ci: int) -> None:
        """End a compute instance, which nobody may use."""
