"""What MIG is on each GPU of a machine at one moment, with profiles by name.

Read through ``devices.mig``; a profile's id is looked up among those of its own GPU, since one name may have other ids
on the next (contracts/mig-exporter-validator.md 1.6, 1.7).
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from ..devices import profiles
from ..devices.mig import GpuInstance, InstanceProfile, MigControl, MigGpu, Modes, Placement
from ..devices.model import Profile
from .errors import MigError

A30: Final = 0x20B710DE
_A30_MOST: Final = {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1}
"""How many of each fit an A30, where the driver tells wrong numbers (1.6, 1.8)."""


class Compute(msgspec.Struct, frozen=True):
    """A compute instance: its id, its profile's number, and its name."""

    id: int
    number: int
    profile: Profile


class Instance(msgspec.Struct, frozen=True):
    """A GPU instance; ``number`` is its profile's."""

    id: int
    number: int
    placement: Placement
    compute: tuple[Compute, ...]

    @property
    def shape(self) -> "Shape":
        """What makes another instance the same."""
        return Shape(self.number, self.placement, tuple(sorted(each.number for each in self.compute)))


class Shape(msgspec.Struct, frozen=True, order=True):
    """A GPU instance as it is made: profile, place, and the profiles of its compute instances, all by number."""

    number: int
    placement: Placement
    compute: tuple[int, ...] = ()


class GpuState(msgspec.Struct, frozen=True):
    """A GPU. ``modes`` is None where it knows no MIG."""

    gpu: MigGpu
    modes: Modes | None
    instances: tuple[Instance, ...] = ()

    @property
    def enabled(self) -> bool:
        """Whether MIG is on."""
        return self.modes is not None and self.modes.current

    @property
    def config(self) -> Mapping[Profile, int]:
        """How many compute instances of each profile it has."""
        return Counter(compute.profile for instance in self.instances for compute in instance.compute)

    @property
    def bare(self) -> int:
        """How many GPU instances have no compute instance; they take their place all the same."""
        return sum(not instance.compute for instance in self.instances)

    @property
    def named(self) -> str:
        """The GPU for a person."""
        return f"GPU {self.gpu.index} ({self.gpu.name}, {self.gpu.bus_id or self.gpu.uuid})"


def read(control: MigControl) -> tuple[GpuState, ...]:
    """All GPUs by index. Raises :class:`~..devices.source.DeviceError` or :class:`~.errors.MigError`."""
    return tuple(read_gpu(control, gpu) for gpu in control.gpus())


def read_gpu(control: MigControl, gpu: MigGpu) -> GpuState:
    """One GPU, as :func:`read`."""
    modes = control.modes(gpu.uuid)
    if modes is None or not modes.current:
        return GpuState(gpu, modes)
    live = control.instances(gpu.uuid)
    kinds = {kind.id: kind for kind in control.profiles(gpu.uuid)} if live else {}
    return GpuState(gpu, modes, tuple(_instance(control, gpu, kinds, each) for each in live))


def offered(control: MigControl, gpu: MigGpu) -> tuple[InstanceProfile, ...]:
    """The kinds of GPU instances that a GPU offers."""
    kinds = control.profiles(gpu.uuid)
    if gpu.pci_id != A30:
        return kinds
    return tuple(
        msgspec.structs.replace(kind, most=_A30_MOST[str(kind.profile)]) if str(kind.profile) in _A30_MOST else kind
        for kind in kinds
    )


def _instance(control: MigControl, gpu: MigGpu, kinds: Mapping[int, InstanceProfile], live: GpuInstance) -> Instance:
    where = f"GPU {gpu.index}: GPU instance {live.id}"
    kind = kinds.get(live.profile_id)
    if kind is None:
        raise MigError(f"{where} has profile {live.profile_id}, which is none that the driver says the GPU offers")
    numbers = {each.id: each.number for each in control.compute_profiles(gpu.uuid, live.id)} if live.compute else {}
    compute = []
    for each in live.compute:
        if each.profile_id not in numbers:
            raise MigError(
                f"{where}: compute instance {each.id} has profile {each.profile_id}, which it does not offer"
            )
        number = numbers[each.profile_id]
        slices = profiles.COMPUTE_INSTANCES[number]
        compute.append(Compute(each.id, number, msgspec.structs.replace(kind.profile, c=slices)))
    return Instance(live.id, kind.number, live.placement, tuple(compute))
