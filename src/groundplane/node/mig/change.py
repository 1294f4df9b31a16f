"""Changing a machine's MIG: modes, then instances, with hooks around; and undoing what fails midway.

What a GPU cannot hold is found before anything is touched. What fails later is undone: the GPUs that were changed get
back the instances they had, at the places they had, so that nothing of the attempt stays behind. A run that is killed
leaves a state that the next one starts from. Success is said only when the machine, read again, is as it should be
(contracts/mig-exporter-validator.md 1.9 to 1.13, 9).
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ..devices import nvmlerrors, profiles
from ..devices.mig import ComputeProfile, InstanceProfile, MigControl, MigGpu, NvidiaSmi
from ..devices.source import DeviceError
from . import compare, planner, state
from .errors import MigError, PlanError
from .hooks import Hooks
from .layout import Entry, Layout, targets
from .state import GpuState, Shape

_BUSY_ADVICE: Final = (
    "a client still uses the GPU; end the pods and host services that use it (nvidia-smi lists processes), "
    "and apply again"
)


class World(NamedTuple):
    """What changes are made with: the GPUs, the driver's nvidia-smi, and where debugging and warnings go."""

    control: MigControl
    nvidia_smi: NvidiaSmi
    debug: Callable[[str], None]
    warn: Callable[[str], None]


class Change(Protocol):
    """A state of the machine that is wanted."""

    def check(self, *, mode_only: bool) -> None:
        """Raise :class:`~.errors.MigError` if it can never be had. Touches nothing."""

    def mode_differences(self) -> tuple[str, ...]:
        """What differs in MIG mode."""

    async def apply_mode(self) -> None:
        """Make the modes as wanted. Raises :class:`~.errors.MigError`."""

    def config_differences(self) -> tuple[str, ...]:
        """What differs in instances."""

    async def apply_config(self) -> None:
        """Make the instances as wanted. Raises :class:`~.errors.MigError`, and has then changed nothing."""


async def run(change: Change, hooks: Hooks, *, mode_only: bool) -> None:
    """Make a change where it is needed, with the hooks in their order (1.13). Raises :class:`~.errors.MigError`."""
    await hooks.run("apply-start")
    try:
        await _changed(change, hooks, mode_only=mode_only)
    except BaseException:
        try:
            await hooks.run("apply-exit")
        except MigError as error:
            hooks.warn(f"Error running apply-exit hook: {error}")
        raise
    await hooks.run("apply-exit")


async def _changed(change: Change, hooks: Hooks, *, mode_only: bool) -> None:
    change.check(mode_only=mode_only)
    if change.mode_differences():
        await hooks.run("pre-apply-mode")
        await change.apply_mode()
    if mode_only:
        return
    if change.config_differences():
        await hooks.run("pre-apply-config")
        await change.apply_config()
        compare.require(change.config_differences())


class LayoutChange:
    """A layout that is wanted, as a :class:`Change`. With `skip_reset`, modes may stay pending."""

    def __init__(self, world: World, layout: Layout, *, skip_reset: bool = False) -> None:
        self._world = world
        self._layout = layout
        self._skip_reset = skip_reset

    def check(self, *, mode_only: bool) -> None:
        """Whether each GPU can be as wanted, and the layout is about any; those it is not about are told."""
        states = state.read(self._world.control)
        left_out = compare.uncovered(self._layout, states)
        if not mode_only and len(left_out) == len(states):
            compare.require(left_out)
        for text in left_out:
            self._world.warn(f"{text}; it is left as it is")
        for found, entry in self._wanted():
            if found.modes is None and entry.enabled and entry.explicit:
                raise MigError(
                    f"cannot set MIG mode on non MIG-capable GPU: {found.named} knows no MIG, but {entry.where} names "
                    "its index; take it out"
                )
            if mode_only or found.modes is None or not entry.enabled or not entry.instances:
                continue
            offered = state.offered(self._world.control, found.gpu)
            if offered or found.enabled:
                _planned(found, offered, entry)

    def mode_differences(self) -> tuple[str, ...]:
        """What differs in MIG mode."""
        return compare.mode(self._layout, state.read(self._world.control))

    async def apply_mode(self) -> None:
        """Make the modes as wanted."""
        wanted = {found.gpu.uuid: entry.enabled for found, entry in self._wanted()}
        await set_modes(self._world, wanted, skip_reset=self._skip_reset)
        if not self._skip_reset:
            compare.require(self.mode_differences())

    def config_differences(self) -> tuple[str, ...]:
        """What differs in instances, on the GPUs that the layout is about."""
        states = state.read(self._world.control)
        return compare.config(self._layout, compare.covered(self._layout, states))

    async def apply_config(self) -> None:
        """Make the instances as wanted, on the GPUs where they differ."""
        work: list[tuple[GpuState, tuple[planner.Planned, ...]]] = []
        for found, entry in self._wanted():
            if found.modes is None:
                continue
            if differing := compare.mode((entry,), (found,)):
                raise MigError(f"cannot apply the MIG configuration: {differing[0]}; change the mode first")
            if entry.enabled and compare.config((entry,), (found,)):
                offered = state.offered(self._world.control, found.gpu)
                work.append((found, _planned(found, offered, entry)))
        await make_all(self._world, work)

    def _wanted(self) -> list[tuple[GpuState, Entry]]:
        """The GPUs that the layout is about, with what it wants."""
        states = state.read(self._world.control)
        entries = targets(self._layout, [each.gpu for each in states])
        return [(each, entries[each.gpu.index]) for each in states if each.gpu.index in entries]


def _planned(found: GpuState, offered: Sequence[InstanceProfile], entry: Entry) -> tuple[planner.Planned, ...]:
    try:
        return planner.plan(offered, entry.instances)
    except PlanError as error:
        raise PlanError(f"{found.named}: {entry.where}: {error}") from error


# --- modes (1.10) -----------------------------------------------------------------------------------------------------


async def set_modes(world: World, wanted: Mapping[str, bool], *, skip_reset: bool = False) -> None:
    """Set the MIG mode of GPUs, by UUID, and reset those on which it is pending.

    GPUs that have their mode are left alone. Raises :class:`~.errors.MigError`; all GPUs have then what they had, but
    that what is pending stays so after a failed reset: a reboot brings it.
    """
    changed: list[GpuState] = []
    pending: list[GpuState] = []
    try:
        for found in state.read(world.control):
            if found.modes is None or found.gpu.uuid not in wanted:
                continue
            mode = wanted[found.gpu.uuid]
            if found.modes == (mode, mode):
                continue
            world.debug(f"{found.named}: turning MIG {_on(mode)}")
            changed.append(found)
            if _set_mode(world, found, mode):
                pending.append(found)
            await asyncio.sleep(0)
    except BaseException:
        for found in reversed(changed):
            _put_mode_back(world, found)
        raise
    if not pending:
        return
    listed = ", ".join(found.named for found in pending)
    if skip_reset:
        world.warn(f"the MIG mode is pending on {listed} until the GPU is reset or the node is rebooted")
        return
    try:
        await _reset(world, pending)
    except BaseException:
        for found in pending:
            _put_back(world, found)
        raise


def _set_mode(world: World, found: GpuState, mode: bool) -> bool:
    """Set a GPU's mode; whether it is pending now."""
    try:
        if found.enabled and not mode:
            clear(world.control, found.gpu.uuid)
        reason = world.control.set_mode(found.gpu.uuid, mode)
        after = world.control.modes(found.gpu.uuid)
        if after is None or after.pending != mode:
            raise reason or nvmlerrors.error(nvmlerrors.UNKNOWN, "the driver accepted the mode and did not take it")
    except DeviceError as error:
        raise _told(found, f"cannot turn MIG {_on(mode)}", error) from error
    if reason is not None:
        world.debug(f"{found.named}: {reason}")
    return after.current != mode


def _on(mode: bool) -> str:
    return "on" if mode else "off"


async def _reset(world: World, pending: Sequence[GpuState]) -> None:
    """Reset GPUs; where the driver refuses that, also those that NVLinks connect with them (1.10)."""
    uuids = frozenset(found.gpu.uuid for found in pending)
    listed = ", ".join(found.named for found in pending)
    world.debug(f"resetting {listed}")
    try:
        await world.control.reset(uuids, world.nvidia_smi)
    except DeviceError as error:
        together = uuids.union(*(world.control.coupled(uuid) for uuid in uuids))
        if error.code == nvmlerrors.IN_USE or together == uuids:
            advice = _BUSY_ADVICE if error.code == nvmlerrors.IN_USE else "reset them, or reboot the node"
            raise MigError(f"cannot reset {listed}, on which the MIG mode is pending: {error}; {advice}") from error
        world.warn(f"cannot reset {listed} alone: {error}; resetting all {len(together)} GPUs connected by NVLink")
        await _reset_together(world, together - uuids, together)


async def _reset_together(world: World, others: Collection[str], together: Collection[str]) -> None:
    """Reset connected GPUs; those that need none get their instances back."""
    before = [found for found in state.read(world.control) if found.gpu.uuid in others]
    try:
        await world.control.reset(together, world.nvidia_smi)
    except DeviceError as error:
        raise MigError(f"cannot reset GPUs connected by NVLink: {error}; end what uses them, or reboot") from error
    for found in before:
        _put_back(world, found)


# --- instances (1.9) --------------------------------------------------------------------------------------------------


async def make_all(world: World, work: Sequence[tuple[GpuState, Sequence[planner.Planned]]]) -> None:
    """Make instances on GPUs, in place of those that are there, on all of them or on none."""
    changed: list[GpuState] = []
    try:
        for found, planned in work:
            changed.append(found)
            _make(world, found, planned)
            await asyncio.sleep(0)
    except BaseException:
        for found in reversed(changed):
            _put_back(world, found)
        raise


async def remake_all(world: World, work: Sequence[tuple[GpuState, Sequence[Shape]]]) -> None:
    """Let GPUs have these GPU instances and no others, all of them or none."""
    changed: list[GpuState] = []
    try:
        for found, shapes in work:
            changed.append(found)
            try:
                become(world.control, found.gpu, shapes)
            except DeviceError as error:
                raise _told(found, "cannot restore its instances", error) from error
            await asyncio.sleep(0)
    except BaseException:
        for found in reversed(changed):
            _put_back(world, found)
        raise


def clear(control: MigControl, gpu: str) -> None:
    """End all compute instances, then all GPU instances, also those without any. Raises DeviceError."""
    live = control.instances(gpu)
    for instance in live:
        for compute in instance.compute:
            control.destroy_compute_instance(gpu, instance.id, compute.id)
    for instance in live:
        control.destroy_gpu_instance(gpu, instance.id)


def _make(world: World, found: GpuState, planned: Sequence[planner.Planned]) -> None:
    control, gpu = world.control, found.gpu
    doing = "cannot clear its instances"
    try:
        clear(control, gpu.uuid)
        for each in planned:
            place = each.placement
            doing = f"cannot create {each.profile.profile} at memory slice {place.start}"
            world.debug(f"{found.named}: creating {each.profile.profile} at {place.start}:{place.size}")
            gi = control.create_gpu_instance(gpu.uuid, each.profile.id, place)
            doing = f"cannot create compute instances of {each.compute} slices in {each.profile.profile}"
            _fill(control, gpu.uuid, gi, each.compute)
    except DeviceError as error:
        raise _told(found, doing, error) from error
    _check_names(control, gpu, planned)


def _fill(control: MigControl, gpu: str, gi: int, slices: Sequence[int]) -> None:
    """Make compute instances. The driver places them, so that an order that does not fit is followed by another."""
    by_slices = {each.slices: each for each in reversed(_plain(control.compute_profiles(gpu, gi)))}
    refused: DeviceError | None = None
    for ordering in planner.orderings(slices):
        made: list[int] = []
        try:
            for each in ordering:
                kind = by_slices.get(each)
                if kind is None:
                    raise nvmlerrors.error(nvmlerrors.NOT_SUPPORTED, f"a compute instance of {each} slices")
                made.append(control.create_compute_instance(gpu, gi, kind.id))
            return
        except DeviceError as error:
            if error.code != nvmlerrors.INSUFFICIENT_RESOURCES:
                raise
            refused = error
            for ci in made:
                control.destroy_compute_instance(gpu, gi, ci)
    if refused is not None:
        raise refused


def _plain(kinds: Sequence[ComputeProfile]) -> list[ComputeProfile]:
    return [kind for kind in kinds if kind.number in profiles.COMPUTE_INSTANCES]


def _check_names(control: MigControl, gpu: MigGpu, planned: Sequence[planner.Planned]) -> None:
    """Whether what was made bears the names that were asked for (1.9)."""
    wanted = sorted(str(each.profile.profile) for each in planned)
    kinds = {kind.id: str(kind.profile) for kind in control.profiles(gpu.uuid)}
    found = sorted(kinds.get(each.profile_id, f"profile {each.profile_id}") for each in control.instances(gpu.uuid))
    if found != wanted:
        raise MigError(
            f"GPU {gpu.index}: the driver made {', '.join(found) or 'nothing'}, asked for was {', '.join(wanted)}"
        )


def _told(found: GpuState, doing: str, error: DeviceError) -> MigError:
    advice = f"; {_BUSY_ADVICE}" if error.code == nvmlerrors.IN_USE else ""
    return MigError(f"{found.named}: {doing}: {error}{advice}")


# --- going back -------------------------------------------------------------------------------------------------------


def _put_mode_back(world: World, before: GpuState) -> None:
    """Give a GPU back its MIG mode, or what was pending of it, and then its instances."""
    assert before.modes is not None
    try:
        if world.control.modes(before.gpu.uuid) != before.modes:
            reason = world.control.set_mode(before.gpu.uuid, before.modes.pending)
            if reason is not None and world.control.modes(before.gpu.uuid) != before.modes:
                raise reason
    except DeviceError as error:
        world.warn(f"{before.named}: its former MIG mode ({_on(before.enabled)}) is not back: {error}")
    else:
        _put_back(world, before)


def _put_back(world: World, before: GpuState) -> None:
    """Give a GPU back the instances it had, as far as the driver lets that be; it says where not."""
    if not before.enabled:
        return
    try:
        become(world.control, before.gpu, [instance.shape for instance in before.instances])
    except (DeviceError, MigError) as error:
        world.warn(f"{before.named}: its former instances ({compare.counted(before.config)}) are not back: {error}")


def become(control: MigControl, gpu: MigGpu, shapes: Sequence[Shape]) -> None:
    """Let a GPU have these GPU instances and no others, touching none that is as it should be. Raises DeviceError."""
    wanted = {(shape.number, shape.placement): shape for shape in shapes}
    here = {(each.number, each.placement): each for each in state.read_gpu(control, gpu).instances}
    for key, instance in here.items():
        if key in wanted and instance.shape == wanted[key]:
            continue
        for compute in instance.compute:
            control.destroy_compute_instance(gpu.uuid, instance.id, compute.id)
        if key not in wanted:
            control.destroy_gpu_instance(gpu.uuid, instance.id)
    ids = {kind.number: kind.id for kind in control.profiles(gpu.uuid)}
    for (number, place), shape in wanted.items():
        present = here.get((number, place))
        if present is not None and present.shape == shape:
            continue
        if number not in ids:
            raise MigError(f"GPU {gpu.index} offers no GPU instance of profile number {number}")
        gi = present.id if present is not None else control.create_gpu_instance(gpu.uuid, ids[number], place)
        _compute(control, gpu, gi, shape.compute)


def _compute(control: MigControl, gpu: MigGpu, gi: int, numbers: Sequence[int]) -> None:
    ids = {kind.number: kind.id for kind in control.compute_profiles(gpu.uuid, gi)} if numbers else {}
    for number in numbers:
        if number not in ids:
            raise MigError(f"GPU {gpu.index}: GPU instance {gi} offers no compute instance of profile number {number}")
    for number in sorted(numbers, key=lambda each: -profiles.COMPUTE_INSTANCES.get(each, 0)):
        control.create_compute_instance(gpu.uuid, gi, ids[number])


def differing(states: Sequence[GpuState], wanted: Mapping[str, Sequence[Shape]]) -> Iterator[str]:
    """GPUs, by UUID, whose instances are not these."""
    for found in states:
        shapes = wanted.get(found.gpu.uuid)
        if shapes is not None and sorted(each.shape for each in found.instances) != sorted(shapes):
            yield f"{found.named} has other instances than wanted: {compare.counted(found.config)}"
