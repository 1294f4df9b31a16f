"""Changing MIG on simulated GPUs: each call is one change of the machine's file, if the hardware would allow it.

It refuses what NVML refuses, with NVML's codes: what does not fit, what a client uses (``busy``), what is not there.
Whether something fits is ``geometry``'s knowledge; the file keeps where each instance is.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from . import geometry, models, nvmlerrors, profiles, simfile
from .mig import ComputeInstance, ComputeProfile, GpuInstance, InstanceProfile, MigGpu, Modes, NvidiaSmi, Placement
from .model import Profile
from .simfile import Card, Description, GpuInstanceMade, SimulatedMachine
from .source import DeviceError

VENDOR: Final = 0x10DE
TELLS_NONE_WITH_MIG_OFF: Final = 535
"""The newest driver branch that tells no profiles while MIG is off (contracts/mig-exporter-validator.md 2)."""
_OFFERED_COMPUTE: Final = {number: slices for number, slices in profiles.COMPUTE_INSTANCES.items() if number < 7}


class Opened(Protocol):
    """What is needed of the source whose GPUs are changed."""

    def open(self) -> None:
        """As :meth:`.source.Source.open`."""

    def close(self) -> None:
        """As :meth:`.source.Source.close`."""

    def card(self, gpu: str) -> Card:
        """A GPU that answers."""

    def machine(self) -> SimulatedMachine:
        """The machine as it is now."""

    def change(self, how: Callable[[SimulatedMachine], Description]) -> None:
        """Change the machine's file in one step."""


class SimulatedMig:
    """Changes MIG of the GPUs of a file, as a :class:`~.mig.MigControl`."""

    def __init__(self, source: Opened) -> None:
        self._source = source

    def gpus(self) -> tuple[MigGpu, ...]:
        """All GPUs by index."""
        cards = [self._source.card(uuid) for uuid in self._source.machine().cards]
        return tuple(
            MigGpu(
                index=card.gpu.index,
                uuid=card.gpu.uuid,
                bus_id=card.gpu.bus_id,
                name=card.gpu.name,
                memory_bytes=card.gpu.memory_bytes,
                pci_id=int(card.model.pci_id, 16) << 16 | VENDOR,
                subsystem_id=int(card.entry.subsystem_id or "0", 16),
            )
            for card in cards
        )

    def modes(self, gpu: str) -> Modes | None:
        """The GPU's MIG mode."""
        card = self._source.card(gpu)
        return Modes(card.entry.mig.enabled, card.entry.mig.after_reset) if card.model.mig else None

    def profiles(self, gpu: str) -> tuple[InstanceProfile, ...]:
        """The kinds of GPU instances; none with MIG off, where the driver is one that tells none then."""
        card = _capable(self._source.card(gpu))
        driver = self._source.machine().description.driver_version
        if not card.entry.mig.enabled and int(driver.partition(".")[0]) <= TELLS_NONE_WITH_MIG_OFF:
            return ()
        model = card.model
        return tuple(
            InstanceProfile(
                number=kind.number,
                id=model.instance_profile_id(kind),
                profile=profile,
                most=kind.most,
                memory_mib=model.instance_mib(kind),
                multiprocessors=kind.slices * model.sliced.multiprocessors,
                engines=kind.engines,
                placements=tuple(Placement(start, kind.size) for start in kind.starts),
            )
            for profile, kind in sorted(model.kinds.items(), key=lambda item: item[1].number)
        )

    def instances(self, gpu: str) -> tuple[GpuInstance, ...]:
        """The GPU instances."""
        card = _capable(self._source.card(gpu))
        made = sorted(simfile.gpu_instances(card.model, card.entry.mig))
        return tuple(_shown(card, each) for each in made)

    def compute_profiles(self, gpu: str, gi: int) -> tuple[ComputeProfile, ...]:
        """The kinds of compute instances of a GPU instance."""
        made = _found(_capable(self._source.card(gpu)), gi)
        return tuple(
            ComputeProfile(number, models.compute_profile_id(number), slices, made.profile.g // slices)
            for number, slices in _OFFERED_COMPUTE.items()
            if slices <= made.profile.g
        )

    def coupled(self, gpu: str) -> frozenset[str]:
        """The GPUs that NVLinks connect with one."""
        machine = self._source.machine()
        uuids = {card.place: uuid for uuid, card in machine.cards.items()}
        joined = [*machine.links, *map(frozenset, machine.description.reset_together)]
        found = {self._source.card(gpu).place}
        while more := {place for group in joined if group & found for place in group} - found:
            found |= more
        return frozenset(uuids[place] for place in found if place in uuids)

    def set_mode(self, gpu: str, enabled: bool) -> DeviceError | None:
        """Ask for a MIG mode: at once where no reset is needed, and else pending."""
        doing = f"{'enabling' if enabled else 'disabling'} MIG of GPU {gpu}"
        reasons: list[DeviceError] = []

        def change(machine: SimulatedMachine) -> Description:
            card = _capable(_of(machine, gpu))
            mig = card.entry.mig
            if enabled == mig.enabled:
                return _with_mig(machine, card, msgspec.structs.replace(mig, pending=None))
            if mig.instances or card.entry.busy:
                reasons.append(nvmlerrors.error(nvmlerrors.IN_USE, doing))
            elif card.reset_less:
                return _with_mig(machine, card, simfile.Mig(enabled))
            else:
                reasons.append(nvmlerrors.error(nvmlerrors.RESET_REQUIRED, doing))
            return _with_mig(machine, card, msgspec.structs.replace(mig, pending=enabled))

        self._source.change(change)
        return reasons[0] if reasons else None

    async def reset(self, gpus: Collection[str], nvidia_smi: NvidiaSmi) -> None:
        """Reset GPUs, all or none; `nvidia_smi` is not needed."""
        del nvidia_smi
        wanted = frozenset(gpus)

        def change(machine: SimulatedMachine) -> Description:
            cards = [_of(machine, gpu) for gpu in sorted(wanted)]
            _check_reset(machine, cards)
            description = machine.description
            for card in cards:
                mode = card.entry.mig.after_reset
                description = _described(description, card, simfile.Mig(mode))
            return description

        self._source.change(change)
        self._source.close()
        await asyncio.sleep(0)
        self._source.open()

    def create_gpu_instance(self, gpu: str, profile_id: int, placement: Placement) -> int:
        """Make a GPU instance."""
        doing = f"GPU {gpu}: making a GPU instance of profile {profile_id} at {placement.start}:{placement.size}"

        def change(card: Card, present: list[GpuInstanceMade]) -> list[GpuInstanceMade]:
            offered = {card.model.instance_profile_id(kind): profile for profile, kind in card.model.kinds.items()}
            profile = offered.get(profile_id)
            kind = None if profile is None else card.model.kinds[profile]
            if profile is None or kind is None or (placement.start, placement.size) not in kind.places:
                raise nvmlerrors.error(nvmlerrors.INVALID_ARGUMENT, doing)
            made = GpuInstanceMade(
                geometry.instance_id(card.model.sliced, kind, placement.start), profile, placement.start, ()
            )
            wanted = [geometry.Wanted(each.profile, each.start) for each in (*present, made)]
            try:
                geometry.place(card.model, wanted)
            except geometry.GeometryError as error:
                raise nvmlerrors.error(nvmlerrors.INSUFFICIENT_RESOURCES, doing, str(error)) from error
            ids.append(made.id)
            return [*present, made]

        ids: list[int] = []
        self._change_instances(gpu, doing, change)
        return ids[-1]

    def destroy_gpu_instance(self, gpu: str, gi: int) -> None:
        """End a GPU instance."""
        doing = f"GPU {gpu}: destroying GPU instance {gi}"

        def change(card: Card, present: list[GpuInstanceMade]) -> list[GpuInstanceMade]:
            if any(_found(card, gi).compute):
                raise nvmlerrors.error(nvmlerrors.IN_USE, doing, "it has compute instances")
            return [made for made in present if made.id != gi]

        self._change_instances(gpu, doing, change)

    def create_compute_instance(self, gpu: str, gi: int, profile_id: int) -> int:
        """Make a compute instance, with the lowest id that is free."""
        doing = f"GPU {gpu}: making a compute instance of profile {profile_id} in GPU instance {gi}"

        def change(card: Card, present: list[GpuInstanceMade]) -> list[GpuInstanceMade]:
            made = _found(card, gi)
            slices = next(
                (each for number, each in _OFFERED_COMPUTE.items() if models.compute_profile_id(number) == profile_id),
                0,
            )
            if not slices:
                raise nvmlerrors.error(nvmlerrors.INVALID_ARGUMENT, doing)
            if sum(each.c for each in made.compute if each is not None) + slices > made.profile.g:
                raise nvmlerrors.error(nvmlerrors.INSUFFICIENT_RESOURCES, doing)
            compute = [*made.compute, None]
            free = compute.index(None)
            compute[free] = msgspec.structs.replace(made.profile, c=slices)
            ids.append(free)
            return _with_compute(present, gi, compute)

        ids: list[int] = []
        self._change_instances(gpu, doing, change)
        return ids[-1]

    def destroy_compute_instance(self, gpu: str, gi: int, ci: int) -> None:
        """End a compute instance."""
        doing = f"GPU {gpu}: destroying compute instance {ci} of GPU instance {gi}"

        def change(card: Card, present: list[GpuInstanceMade]) -> list[GpuInstanceMade]:
            compute = list(_found(card, gi).compute)
            if ci >= len(compute) or compute[ci] is None:
                raise nvmlerrors.error(nvmlerrors.NOT_FOUND, doing)
            if card.entry.busy:
                raise nvmlerrors.error(nvmlerrors.IN_USE, doing)
            compute[ci] = None
            return _with_compute(present, gi, compute)

        self._change_instances(gpu, doing, change)

    def _change_instances(
        self, gpu: str, doing: str, how: Callable[[Card, list[GpuInstanceMade]], list[GpuInstanceMade]]
    ) -> None:
        def change(machine: SimulatedMachine) -> Description:
            card = _capable(_of(machine, gpu))
            mig = card.entry.mig
            if not mig.enabled:
                raise nvmlerrors.error(nvmlerrors.NOT_SUPPORTED, doing, "MIG is off")
            made = how(card, simfile.gpu_instances(card.model, mig))
            return _with_mig(machine, card, msgspec.structs.replace(mig, instances=tuple(map(_written, made))))

        self._source.change(change)


def _of(machine: SimulatedMachine, gpu: str) -> Card:
    card = machine.cards.get(gpu)
    if card is None:
        raise nvmlerrors.error(nvmlerrors.NOT_FOUND, f"GPU {gpu}")
    if card.entry.lost:
        raise nvmlerrors.error(nvmlerrors.GPU_IS_LOST, f"GPU {gpu}")
    return card


def _capable(card: Card) -> Card:
    if not card.model.mig:
        raise nvmlerrors.error(nvmlerrors.NOT_SUPPORTED, f"GPU {card.gpu.uuid}", "it knows no MIG")
    return card


def _found(card: Card, gi: int) -> GpuInstanceMade:
    for made in simfile.gpu_instances(card.model, card.entry.mig):
        if made.id == gi:
            return made
    raise nvmlerrors.error(nvmlerrors.NOT_FOUND, f"GPU {card.gpu.uuid}: GPU instance {gi}")


def _shown(card: Card, made: GpuInstanceMade) -> GpuInstance:
    kind = card.model.kinds[made.profile]
    numbers = {slices: number for number, slices in _OFFERED_COMPUTE.items()}
    compute = [
        ComputeInstance(ci, models.compute_profile_id(numbers[profile.c]))
        for ci, profile in enumerate(made.compute)
        if profile is not None
    ]
    return GpuInstance(made.id, card.model.instance_profile_id(kind), Placement(made.start, kind.size), tuple(compute))


def _written(made: GpuInstanceMade) -> simfile.Instance:
    """As the file has it, with the place, so that it stays there when others come and go."""
    compute = None if made.compute == (made.profile,) else tuple(_text(each) for each in made.compute)
    return simfile.Instance(str(made.profile), made.start, compute)


def _text(profile: Profile | None) -> str | None:
    return None if profile is None else str(profile)


def _with_compute(
    present: Sequence[GpuInstanceMade], gi: int, compute: Sequence[Profile | None]
) -> list[GpuInstanceMade]:
    kept = list(compute)
    while kept and kept[-1] is None:
        kept.pop()
    return [made._replace(compute=tuple(kept)) if made.id == gi else made for made in present]


def _with_mig(machine: SimulatedMachine, card: Card, mig: simfile.Mig) -> Description:
    return _described(machine.description, card, mig)


def _described(description: Description, card: Card, mig: simfile.Mig) -> Description:
    gpus = list(description.gpus)
    if mig.pending == mig.enabled:
        mig = msgspec.structs.replace(mig, pending=None)
    gpus[card.place] = msgspec.structs.replace(card.entry, mig=mig)
    return msgspec.structs.replace(description, gpus=tuple(gpus))


def _check_reset(machine: SimulatedMachine, cards: Sequence[Card]) -> None:
    for card in cards:
        if card.entry.busy:
            raise nvmlerrors.error(nvmlerrors.IN_USE, f"resetting GPU {card.gpu.bus_id}")
    places = {card.place for card in cards}
    present = {card.place for card in machine.cards.values()}
    for left in _apart(machine.description.reset_together, places, present):
        raise nvmlerrors.error(
            nvmlerrors.INVALID_ARGUMENT,
            f"resetting GPUs {sorted(places)}",
            f"GPU {left} is connected with them and must be reset together with them",
        )


def _apart(groups: Sequence[Sequence[int]], places: set[int], present: set[int]) -> Iterator[int]:
    """GPUs of groups of which only others are to be reset."""
    for group in groups:
        there = set(group) & present
        if there & places:
            yield from sorted(there - places)
