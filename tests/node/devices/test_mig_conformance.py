"""What every source that changes MIG does, simulated or NVML (contracts/mig-exporter-validator.md 1.7 to 1.10, 7)."""

from collections.abc import Sequence

import pytest

from groundplane.node.devices import models
from groundplane.node.devices.mig import MigControl, Modes, Placement
from groundplane.node.devices.simfile import Links
from groundplane.node.devices.simulated import GpuEntry, Instance, Mig
from groundplane.node.devices.source import DeviceError, Lost, NotFound, NotSupported, Source
from groundplane.node.process import Completed

A100, H100 = "A100-SXM4-40GB", "H100-SXM5-80GB"
ON = Mig(True)
MIG_MODELS = sorted(name for name, model in models.MODELS.items() if model.mig)
IN_USE, INSUFFICIENT, RESET_REQUIRED, INVALID, NOT_SUPPORTED = 19, 23, 16, 2, 3


class Smi:
    """The driver's nvidia-smi: it resets the mock library's GPUs, as its file has them."""

    def __init__(self, world) -> None:
        self.world = world
        self.asked: list[tuple[str, ...]] = []

    async def __call__(self, arguments: Sequence[str]) -> Completed:
        self.asked.append(tuple(arguments))
        machine = self.world.read()
        addresses = arguments[2].split(",")
        cards = [card for card in machine.cards.values() if card.gpu.bus_id in addresses]
        together = [set(group) for group in machine.description.reset_together]
        places = {card.place for card in cards}
        if any(card.entry.busy for card in cards):
            return Completed(255, "GPU 00000000:10:00.0: In use by another client", "")
        if any(group & places and not group <= places for group in together):
            return Completed(3, "GPUs connected by NVLink must be reset together", "")
        with self.world.file.with_name("nvml.txt").open("a") as file:
            file.writelines(f"do {card.gpu.index} reset\n" for card in cards)
        return Completed(0, "All done.", "")


def opened(world) -> tuple[Source, MigControl, list[str]]:
    source = world.opened()
    control = source.mig()
    return source, control, [gpu.uuid for gpu in control.gpus()]


def code(call, *arguments) -> int:
    with pytest.raises(DeviceError) as raised:
        call(*arguments)
    return raised.value.code


def by_name(control: MigControl, gpu: str) -> dict:
    return {str(each.profile): each for each in control.profiles(gpu)}


def compute(control: MigControl, gpu: str, gi: int, slices: int) -> int:
    return next(each.id for each in control.compute_profiles(gpu, gi) if each.slices == slices)


def test_gpus_have_index_address_and_pci_ids(make) -> None:
    _, control, _ = opened(make([A100, "DGX-DISPLAY", GpuEntry(H100, subsystem_id="0x14A910DE")]))
    assert [(each.index, each.bus_id, f"{each.pci_id:08X}", f"{each.subsystem_id:08X}") for each in control.gpus()] == [
        (0, "00000000:10:00.0", "20B010DE", "00000000"),
        (1, "00000000:18:00.0", "25B010DE", "00000000"),
        (2, "00000000:20:00.0", "233010DE", "14A910DE"),
    ]
    assert control.gpus()[0].memory_bytes == 40960 << 20


@pytest.mark.parametrize("model", MIG_MODELS)
def test_1_7_1_8_profiles_and_placements_with_mig_off(make, model: str) -> None:
    _, control, (gpu,) = opened(make([model]))
    known = models.MODELS[model]
    assert {
        str(each.profile): (each.number, each.most, each.memory_mib, each.engines, each.placements)
        for each in control.profiles(gpu)
    } == {
        str(profile): (
            kind.number,
            kind.most,
            known.instance_mib(kind),
            kind.engines,
            tuple(Placement(start, kind.size) for start in kind.starts),
        )
        for profile, kind in known.kinds.items()
    }
    numbers = [each.number for each in control.profiles(gpu)]
    assert numbers == sorted(numbers)
    assert len({each.id for each in control.profiles(gpu)}) == len(numbers)
    assert [each.id for each in control.profiles(gpu)] != numbers


def test_a_gpu_without_mig(make) -> None:
    _, control, (gpu,) = opened(make(["T4"]))
    assert control.modes(gpu) is None
    assert code(control.set_mode, gpu, True) == NOT_SUPPORTED


def test_1_10_a_mode_that_changes_without_a_reset(make) -> None:
    _, control, (gpu,) = opened(make([H100]))
    assert control.modes(gpu) == Modes(False, False)
    assert control.set_mode(gpu, True) is None
    assert control.modes(gpu) == Modes(True, True)
    assert control.instances(gpu) == ()
    assert control.set_mode(gpu, False) is None
    assert control.modes(gpu) == Modes(False, False)


async def test_1_10_a_mode_that_a_reset_brings(make) -> None:
    world = make([A100, A100])
    _, control, (gpu, other) = opened(world)
    pending = control.set_mode(gpu, True)
    assert pending is not None and pending.code == RESET_REQUIRED
    assert control.modes(gpu) == Modes(False, True)
    assert control.set_mode(gpu, False) is None, "it can be taken back"
    assert control.modes(gpu) == Modes(False, False)
    control.set_mode(gpu, True)
    control.set_mode(other, True)
    await control.reset([gpu], Smi(world))
    assert (control.modes(gpu), control.modes(other)) == (Modes(True, True), Modes(False, True))


async def test_1_9_6_instances_end_with_a_reset(make) -> None:
    world = make([GpuEntry(A100, mig=Mig(True, ("1g.5gb",)))])
    _, control, (gpu,) = opened(world)
    await control.reset([gpu], Smi(world))
    assert (control.modes(gpu), control.instances(gpu)) == (Modes(True, True), ())


@pytest.mark.parametrize("model", [A100, H100])
async def test_a_busy_gpu_is_refused(make, model: str) -> None:
    world = make([GpuEntry(model, mig=Mig(True, ("3g.20gb" if model == A100 else "3g.40gb",)), busy=True)])
    _, control, (gpu,) = opened(world)
    (instance,) = control.instances(gpu)
    assert code(control.destroy_compute_instance, gpu, instance.id, 0) == IN_USE
    assert code(control.destroy_gpu_instance, gpu, instance.id) == IN_USE
    assert control.instances(gpu) == (instance,)
    refused = control.set_mode(gpu, False)
    assert refused is not None and refused.code == IN_USE
    assert control.modes(gpu) == Modes(True, False)
    with pytest.raises(DeviceError, match="ERROR_IN_USE"):
        await control.reset([gpu], Smi(world))
    assert control.modes(gpu) == Modes(True, False)


async def test_gpus_that_are_reset_only_together(make) -> None:
    world = make([A100, A100, A100], reset_together=((0, 1),))
    source, control, uuids = opened(world)
    control.set_mode(uuids[0], True)
    with pytest.raises(DeviceError, match="together"):
        await control.reset(uuids[:1], Smi(world))
    assert control.modes(uuids[0]) == Modes(False, True)
    await control.reset(uuids[:2], Smi(world))
    assert [control.modes(each) for each in uuids] == [Modes(True, True), Modes(False, False), Modes(False, False)]
    assert len(source.inventory().gpus) == 3


def test_instances_come_and_go_where_they_are_wanted(make) -> None:
    source, control, (gpu,) = opened(make([GpuEntry(A100, mig=ON)]))
    offered = by_name(control, gpu)
    three = control.create_gpu_instance(gpu, offered["3g.20gb"].id, Placement(4, 4))
    one = control.create_gpu_instance(gpu, offered["1g.5gb"].id, Placement(2, 1))
    found = {each.id: each for each in control.instances(gpu)}
    assert {gi: (each.profile_id, each.placement, each.compute) for gi, each in found.items()} == {
        three: (offered["3g.20gb"].id, (4, 4), ()),
        one: (offered["1g.5gb"].id, (2, 1), ()),
    }
    assert source.inventory().gpus[0].mig_devices == (), "a bare GPU instance is no MIG device"
    assert control.create_compute_instance(gpu, three, compute(control, gpu, three, 2)) == 0
    assert control.create_compute_instance(gpu, three, compute(control, gpu, three, 1)) == 1
    assert [str(each.profile) for each in source.inventory().gpus[0].mig_devices] == ["2c.3g.20gb", "1c.3g.20gb"]
    control.destroy_compute_instance(gpu, three, 0)
    assert [each.id for each in next(i for i in control.instances(gpu) if i.id == three).compute] == [1]
    assert code(control.destroy_gpu_instance, gpu, three) == IN_USE
    control.destroy_compute_instance(gpu, three, 1)
    control.destroy_gpu_instance(gpu, three)
    control.destroy_gpu_instance(gpu, one)
    assert control.instances(gpu) == ()


def test_what_does_not_fit_is_refused_and_changes_nothing(make) -> None:
    _, control, (gpu,) = opened(make([GpuEntry(A100, mig=ON)]))
    offered = by_name(control, gpu)
    control.create_gpu_instance(gpu, offered["3g.20gb"].id, Placement(0, 4))
    before = control.instances(gpu)
    create = control.create_gpu_instance
    assert code(create, gpu, offered["1g.5gb"].id, Placement(2, 1)) == INSUFFICIENT
    assert code(create, gpu, offered["7g.40gb"].id, Placement(0, 8)) == INSUFFICIENT
    assert code(create, gpu, offered["3g.20gb"].id, Placement(2, 4)) == INVALID
    assert code(create, gpu, offered["3g.20gb"].id, Placement(4, 3)) == INVALID
    assert code(create, gpu, 999, Placement(4, 1)) == INVALID
    create(gpu, offered["1g.5gb+me"].id, Placement(4, 1))
    assert code(create, gpu, offered["1g.5gb+me"].id, Placement(5, 1)) == INSUFFICIENT
    assert [each for each in control.instances(gpu) if each in before] == list(before)
    assert len(control.instances(gpu)) == 2


def test_compute_instances_fill_their_gpu_instance_and_no_more(make) -> None:
    _, control, (gpu,) = opened(make([GpuEntry(A100, mig=Mig(True, (Instance("3g.20gb", 4, ()),)))]))
    (instance,) = control.instances(gpu)
    offered = control.compute_profiles(gpu, instance.id)
    assert [(each.number, each.slices, each.most, each.engine) for each in offered] == [
        (0, 1, 3, 0),
        (1, 2, 1, 0),
        (2, 3, 1, 0),
    ]
    assert [each.id for each in offered] != [each.number for each in offered]
    control.create_compute_instance(gpu, instance.id, compute(control, gpu, instance.id, 2))
    assert code(control.create_compute_instance, gpu, instance.id, offered[1].id) == INSUFFICIENT
    assert code(control.create_compute_instance, gpu, instance.id, 999) == INVALID
    control.create_compute_instance(gpu, instance.id, offered[0].id)
    assert len(control.instances(gpu)[0].compute) == 2


def test_what_is_not_there(make) -> None:
    world = make([GpuEntry(A100, mig=ON), A100])
    _, control, (gpu, off) = opened(world)
    for call in (
        lambda: control.modes("GPU-00000000-0000-0000-0000-000000000000"),
        lambda: control.compute_profiles(gpu, 3),
        lambda: control.destroy_gpu_instance(gpu, 3),
        lambda: control.create_compute_instance(gpu, 3, 40),
        lambda: control.destroy_compute_instance(gpu, 3, 0),
    ):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(NotSupported):
        control.create_gpu_instance(off, by_name(control, off)["1g.5gb"].id, Placement(0, 1))
    assert control.instances(off) == ()


def test_a_lost_gpu_is_told(make) -> None:
    world = make([A100, A100])
    _, control, (gpu, _) = opened(world)
    world.lose(0)
    for call in (control.gpus, lambda: control.modes(gpu), lambda: control.set_mode(gpu, True)):
        with pytest.raises(Lost):
            call()


def test_nothing_without_an_open_source(make) -> None:
    source, control, (gpu,) = opened(make([A100]))
    source.close()
    for call in (control.gpus, lambda: control.modes(gpu), lambda: control.set_mode(gpu, True)):
        with pytest.raises(DeviceError, match="ERROR_UNINITIALIZED"):
            call()


def test_gpus_that_nvlinks_connect(make) -> None:
    _, control, uuids = opened(make([A100] * 4, nvlinks=(Links((0, 1), 2), Links((1, 2), 2))))
    assert control.coupled(uuids[0]) == frozenset(uuids[:3])
    assert control.coupled(uuids[3]) == frozenset(uuids[3:])
