"""What MIG is on a machine, kept in a file and made again from it: modes, instances and their places.

The file is JSON with profiles by NVML's numbers, which stay the same when ids do not
(contracts/mig-exporter-validator.md 1.12). GPUs that know no MIG are not in it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ..devices.mig import Placement
from . import change, state
from .change import World
from .errors import MigError
from .state import GpuState, Shape

VERSION: Final = "v1"
_MOST_SLICES: Final = 64
"""Memory slices of a GPU instance; GPUs have 8."""


class _Part(msgspec.Struct, frozen=True):
    pass


class _Compute(_Part, frozen=True):
    profile: int = msgspec.field(name="ProfileID")
    engine: int = msgspec.field(name="EngProfileID", default=0)


class _Place(_Part, frozen=True):
    start: int = msgspec.field(name="Start")
    size: int = msgspec.field(name="Size")


class _Instance(_Part, frozen=True):
    profile: int = msgspec.field(name="ProfileID")
    placement: _Place = msgspec.field(name="Placement")
    compute: list[_Compute] | None = msgspec.field(name="ComputeInstances", default=None)


class _Device(_Part, frozen=True):
    uuid: str = msgspec.field(name="UUID")
    mode: int = msgspec.field(name="MigMode")
    instances: list[_Instance] | None = msgspec.field(name="GpuInstances", default=None)


class _State(_Part, frozen=True):
    devices: list[_Device] | None = msgspec.field(name="Devices")


class _File(_Part, frozen=True):
    version: str = msgspec.field(name="Version")
    state: _State = msgspec.field(name="MigState")


class Kept(msgspec.Struct, frozen=True):
    """A GPU as it was: MIG mode and GPU instances."""

    enabled: bool
    shapes: tuple[Shape, ...] = ()


def dump(states: Sequence[GpuState]) -> str:
    """The file for a machine; nothing is written as null, as the Go program does."""
    devices = [_device(found) for found in states if found.modes is not None]
    return msgspec.json.encode(_File(VERSION, _State(devices or None))).decode()


def _device(found: GpuState) -> _Device:
    instances = [
        _Instance(shape.number, _Place(*shape.placement), [_Compute(number) for number in shape.compute] or None)
        for shape in (instance.shape for instance in found.instances)
    ]
    return _Device(found.gpu.uuid, int(found.enabled), instances or None)


def parse(text: str, source: str) -> dict[str, Kept]:
    """GPUs by UUID as they were; `source` names the file in errors. Raises :class:`~.errors.MigError`."""
    try:
        found = msgspec.json.decode(text, type=_File)
    except msgspec.DecodeError as error:
        raise MigError(f"checkpoint file {source}: {error}; expected what `checkpoint` has written") from error
    if found.version != VERSION:
        raise MigError(f"checkpoint file {source}: version {found.version!r}; the only version is {VERSION!r}")
    return {each.uuid: _kept(each, source) for each in found.state.devices or ()}


def _kept(device: _Device, source: str) -> Kept:
    if device.mode not in (0, 1):
        raise MigError(f"checkpoint file {source}: {device.uuid}: MigMode is {device.mode}; expected 0 or 1")
    for instance in device.instances or ():
        for compute in instance.compute or ():
            if compute.engine:
                raise MigError(
                    f"checkpoint file {source}: {device.uuid}: EngProfileID is {compute.engine}; "
                    "only 0 (shared engines) is known"
                )
    _check_places(device, source)
    shapes = (
        Shape(
            instance.profile,
            Placement(instance.placement.start, instance.placement.size),
            tuple(sorted(compute.profile for compute in instance.compute or ())),
        )
        for instance in device.instances or ()
    )
    return Kept(bool(device.mode), tuple(shapes) if device.mode else ())


def _check_places(device: _Device, source: str) -> None:
    """No two GPU instances can have been at one place. MigError."""
    used: set[int] = set()
    for instance in device.instances or ():
        place = instance.placement
        where = f"checkpoint file {source}: {device.uuid}: a GPU instance at {place.start}:{place.size}"
        if place.start < 0 or not 0 < place.size <= _MOST_SLICES:
            raise MigError(f"{where}; expected a start from 0 on, and a size of 1 to {_MOST_SLICES}")
        slices = set(range(place.start, place.start + place.size))
        if used & slices:
            raise MigError(f"{where} takes memory slice {min(used & slices)}, which another has")
        used |= slices


class CheckpointChange:
    """A machine as it was, as a :class:`~.change.Change`. GPUs that the checkpoint does not have are left alone."""

    def __init__(self, world: World, kept: Mapping[str, Kept]) -> None:
        self._world = world
        self._kept = kept

    def check(self, *, mode_only: bool) -> None:
        """Whether the GPUs are here, and know MIG."""
        del mode_only
        here = {found.gpu.uuid: found for found in state.read(self._world.control)}
        for uuid, kept in self._kept.items():
            if uuid not in here:
                raise MigError(f"GPU {uuid} of the checkpoint is not on this node; it has {', '.join(here) or 'none'}")
            if kept.enabled and here[uuid].modes is None:
                raise MigError(f"{here[uuid].named} knows no MIG, but the checkpoint has it enabled there")

    def mode_differences(self) -> tuple[str, ...]:
        """What differs in MIG mode."""
        return tuple(
            f"{found.named}: MIG mode is {'on' if found.enabled else 'off'}, and was not"
            for found in state.read(self._world.control)
            if found.gpu.uuid in self._kept and self._kept[found.gpu.uuid].enabled != found.enabled
        )

    async def apply_mode(self) -> None:
        """Make the modes as they were."""
        await change.set_modes(self._world, {uuid: kept.enabled for uuid, kept in self._kept.items()})
        if differences := self.mode_differences():
            raise MigError("; ".join(differences))

    def config_differences(self) -> tuple[str, ...]:
        """What differs in instances."""
        wanted = {uuid: kept.shapes for uuid, kept in self._kept.items()}
        return (*self.mode_differences(), *change.differing(state.read(self._world.control), wanted))

    async def apply_config(self) -> None:
        """Make the instances as they were, at the places they had."""
        work = [
            (found, self._kept[found.gpu.uuid].shapes)
            for found in state.read(self._world.control)
            if found.enabled and found.gpu.uuid in self._kept
        ]
        await change.remake_all(self._world, work)
