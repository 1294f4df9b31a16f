"""Asserting and applying layouts on simulated GPUs (contracts/mig-exporter-validator.md 1.9 to 1.11, 9)."""

import asyncio
import contextlib
import random
from collections.abc import Sequence

import msgspec
import pytest
from node.fakeprocess import FakeProcess
from node.mig.migworld import Failing, InMemory, Killed, Node, counts, entry

from groundplane.node.devices import geometry, models, nvmlerrors
from groundplane.node.devices.model import Profile
from groundplane.node.devices.simfile import Links
from groundplane.node.devices.simulated import GpuEntry, Instance, Mig
from groundplane.node.mig import change, compare, layout, state
from groundplane.node.mig.errors import MigError, NotApplied, PlanError
from groundplane.node.mig.hooks import Hooks

A100, H100, T4 = "A100-SXM4-40GB", "H100-SXM5-80GB", "T4"


def on(model: str, *instances: str | Instance, **more) -> GpuEntry:
    return GpuEntry(model, mig=Mig(True, instances), **more)


async def apply(
    found: Node, *entries: layout.Entry, mode_only: bool = False, skip_reset: bool = False, control=None
) -> None:
    wanted = change.LayoutChange(found.world(control), entries, skip_reset=skip_reset)
    await change.run(wanted, Hooks(FakeProcess(found.machine.file.parent), {}, {}), mode_only=mode_only)


def applied(found: Node, *entries: layout.Entry) -> bool:
    states = found.states()
    return not (compare.mode(entries, states) + compare.config(entries, states))


# --- 1.11 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "entries", "mode", "config"),
    [
        ([A100], [entry(None)], True, True),
        ([A100], [entry("")], False, False),
        ([on(A100)], [entry("")], True, True),
        ([on(A100)], [entry(None)], False, False),
        ([on(A100, "1g.5gb")], [entry("1g.5gb:1")], True, True),
        ([on(A100, "1g.5gb")], [entry("1c.1g.5gb:1")], True, True),
        ([on(A100, "1g.5gb")], [entry("1g.5gb:2")], True, False),
        ([on(A100, "1g.5gb")], [entry("")], True, False),
        (
            [on(A100, Instance("3g.20gb", compute=("1c.3g.20gb", "2c.3g.20gb")))],
            [entry("2c.3g.20gb:1 1c.3g.20gb:1")],
            True,
            True,
        ),
        ([on(A100, Instance("3g.20gb", compute=()))], [entry("")], True, False),
        ([A100, A100], [entry(None, (0,))], True, False),
        ([A100, A100], [entry(None, (0,)), entry(None, (1,))], True, True),
        ([on(A100), A100], [entry(None), entry("", (0,))], True, True),
        ([on(A100), A100], [entry("", (0,)), entry(None)], False, False),
        ([A100, T4], [entry(None)], True, True),
        ([on(A100, "7g.40gb"), T4], [entry("7g.40gb:1")], True, True),
        ([on(A100, "7g.40gb"), T4], [entry("7g.40gb:1", (0, 1))], False, False),
        ([T4], [entry(None, (0,))], True, True),
        ([on(A100), H100], [entry("", filters=("0x20B010DE",)), entry(None, filters=("0x233010DE",))], True, True),
        ([on(A100), H100], [entry("", filters=("0x20B010DE",))], True, False),
        ([A100], [entry(None, filters=("junk",))], True, False),
        ([], [entry("1g.5gb:7")], True, True),
        ([GpuEntry(A100, mig=Mig(False, (), True))], [entry("")], False, False),
    ],
)
def test_1_11_asserting(node, gpus, entries, mode: bool, config: bool) -> None:
    states = node(*gpus).states()
    assert (compare.mode(tuple(entries), states) == ()) == mode
    assert (compare.config(tuple(entries), states) == ()) == config


def test_1_11_differences_are_told(node) -> None:
    states = node(on(A100, "1g.5gb", "1g.5gb"), H100, T4).states()
    differences = compare.config((entry("1g.5gb:1", (0,)), entry("", (1, 2))), states)
    assert [each.split(": ", 1)[-1] if i else each for i, each in enumerate(differences)] == [
        "GPU 0 (NVIDIA A100-SXM4-40GB, 00000000:10:00.0) has 1g.5gb: 2, wanted is 1g.5gb: 1",
        "MIG mode is off, wanted is on",
        "GPU 2 (Tesla T4, 00000000:20:00.0) knows no MIG, but mig-configs.a[0] enables it there; take its index out",
    ]
    with pytest.raises(NotApplied, match=r"selected configuration not currently applied$") as raised:
        compare.require(differences)
    assert raised.value.differences == differences


# --- applying ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "entries", "after"),
    [
        ([A100, H100], [entry(None)], [{}, {}]),
        ([A100, H100], [entry("")], [{}, {}]),
        ([A100] * 2, [entry("1g.5gb:4 3g.20gb:1")], [{"1g.5gb": 4, "3g.20gb": 1}] * 2),
        ([A100], [entry("1c.3g.20gb:6")], [{"1c.3g.20gb": 6}]),
        ([on(A100, "7g.40gb")], [entry("1g.5gb:7")], [{"1g.5gb": 7}]),
        ([on(A100, Instance("7g.40gb", compute=()))], [entry("1g.5gb:7")], [{"1g.5gb": 7}]),
        ([on(A100, Instance("7g.40gb", compute=()))], [entry("")], [{}]),
        ([on(A100, "7g.40gb")], [entry(None)], [{}]),
        ([on(H100, "7g.80gb")], [entry(None)], [{}]),
        (
            [A100, H100],
            [entry("1g.10gb:4", filters=("0x20B010DE",)), entry("1g.10gb:7", filters=("0x233010DE",))],
            [{"1g.10gb": 4}, {"1g.10gb": 7}],
        ),
        ([A100, T4], [entry("7g.40gb:1")], [{"7g.40gb": 1}, {}]),
        ([A100, A100], [entry("1g.5gb:1"), entry("2g.10gb:1", (1,))], [{"1g.5gb": 1}, {"2g.10gb": 1}]),
        (["A30"], [entry("2g.12gb+me:1 2g.12gb:1")], [{"2g.12gb": 1, "2g.12gb+me": 1}]),
        (["RTX-PRO-6000"], [entry("1g.24gb-me:2 2g.48gb+gfx:1")], [{"1g.24gb-me": 2, "2g.48gb+gfx": 1}]),
    ],
)
async def test_1_9_1_10_applying(node, gpus, entries, after) -> None:
    found = node(*gpus)
    await apply(found, *entries)
    assert found.configs() == after
    assert applied(found, *entries)
    before = found.machine.file.stat().st_mtime_ns
    await apply(found, *entries)
    assert found.machine.file.stat().st_mtime_ns == before, "what is applied is left alone"


async def test_gpus_that_the_layout_is_not_about_are_told_and_left_alone(node) -> None:
    found = node(on(A100, "1g.5gb"), on(A100, "7g.40gb"), H100)
    await apply(found, entry("2g.10gb:1", (0,)))
    assert found.configs() == [{"2g.10gb": 1}, {"7g.40gb": 1}, {}]
    assert [each.split(" is matched")[0] for each in found.warned] == [
        "GPU 1 (NVIDIA A100-SXM4-40GB, 00000000:18:00.0)",
        "GPU 2 (NVIDIA H100 80GB HBM3, 00000000:20:00.0)",
    ]
    assert not applied(found, entry("2g.10gb:1", (0,)))


async def test_gpus_that_match_are_left_alone(node) -> None:
    found = node(on(A100, "1g.5gb", busy=True), on(A100, "1g.5gb"))
    await apply(found, entry("1g.5gb:1", (0,)), entry("2g.10gb:1", (1,)))
    assert found.configs() == [{"1g.5gb": 1}, {"2g.10gb": 1}]


def _random_layout(model: models.Model, chance: random.Random) -> dict[Profile, int]:
    """As many instances as chance and the GPU allow; compute instances maybe smaller than their GPU instance."""
    wanted: list[Profile] = []
    for _ in range(chance.randrange(1, 12)):
        more = chance.choice(list(model.kinds))
        try:
            geometry.place(model, [geometry.Wanted(each) for each in (*wanted, more)])
        except geometry.GeometryError:
            continue
        wanted.append(more)
    found: dict[Profile, int] = {}
    for whole in wanted:
        sizes = [size for size in (1, 2, 3, 4, 7) if size <= whole.g]
        part = Profile(chance.choice(sizes), whole.g, whole.gb, whole.suffix)
        found[part] = found.get(part, 0) + whole.g // part.c
    items = list(found.items())
    chance.shuffle(items)
    return dict(items)


@pytest.mark.parametrize("name", ["A30", A100, H100, "B200", "RTX-PRO-6000", "RTX-PRO-5000", "RTX-PRO-4500"])
async def test_1_9_random_layouts_one_after_the_other(tmp_path, name: str) -> None:
    chance = random.Random(name)
    machine = InMemory([on(name)])
    (gpu,) = machine.control.gpus()
    for _ in range(40):
        wanted = _random_layout(models.MODELS[name], chance)
        one = layout.Entry(devices=None, enabled=True, instances=wanted)
        await change.run(
            change.LayoutChange(machine.world(), (one,)), Hooks(FakeProcess(tmp_path), {}, {}), mode_only=False
        )
        assert state.read_gpu(machine.control, gpu).config == wanted


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "entries", "words"),
    [
        ([on(A100, "1g.5gb")], [entry("1g.5gb:8")], "room for 7 x 1"),
        ([on(A100, "1g.5gb"), on(H100, "7g.80gb")], [entry("1g.10gb:5")], "room for 4 x 1"),
        ([A100], [entry("0g.0gb:1")], "0g.0gb is no profile of this GPU"),
        ([on(A100, "1g.5gb"), T4], [entry("1g.5gb:2", (0, 1))], "cannot set MIG mode on non MIG-capable GPU: GPU 1"),
        ([on(A100, "1g.5gb"), A100], [entry("1g.5gb:2", (7,))], "selected configuration not currently applied"),
        ([on(A100, "1g.5gb")], [entry("1g.5gb:2", filters=("junk",))], "selected configuration not currently applied"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_touched(node, gpus, entries, words: str) -> None:
    found = node(*gpus)
    before = found.machine.file.read_bytes()
    with pytest.raises(MigError) as raised:
        await apply(found, *entries)
    assert words in str(raised.value)
    assert found.machine.file.read_bytes() == before


async def test_1_9_5_the_error_names_gpu_entry_and_profile(node) -> None:
    with pytest.raises(PlanError) as raised:
        await apply(node(on(H100), on(A100)), entry("1g.10gb:5"))
    assert str(raised.value).startswith("GPU 1 (NVIDIA A100-SXM4-40GB, 00000000:18:00.0): mig-configs.a[0]: 1g.10gb: ")


async def test_a_busy_gpu_keeps_its_instances(node) -> None:
    found = node(on(A100, "1g.5gb"), on(A100, "1g.5gb", Instance("3g.20gb", compute=()), busy=True))
    before = found.shapes()
    with pytest.raises(
        MigError, match=r"GPU 1 .*cannot clear its instances.*ERROR_IN_USE.*end the pods and host services"
    ):
        await apply(found, entry("7g.40gb:1"))
    assert found.shapes() == before
    assert found.warned == []
    found.machine.set_busy(1, False)
    await apply(found, entry("7g.40gb:1"))
    assert found.configs() == [{"7g.40gb": 1}] * 2


STEPS = (
    entry("2g.10gb:1 1c.3g.20gb:2 1g.5gb:1", (0,)),
    entry(None, (1,)),
    entry("1g.10gb:2", (2,)),
    entry("3g.40gb:1 1c.4g.40gb:2", (3,)),
)


def _before() -> Sequence[GpuEntry]:
    return (
        on(A100, Instance("3g.20gb", 4, ("1c.3g.20gb", "2c.3g.20gb")), "1g.5gb", Instance("1g.5gb", compute=())),
        GpuEntry(H100),
        on(A100, "7g.40gb"),
        on(H100, *["1g.10gb"] * 7),
    )


async def _changes(folder) -> int:
    """How many changing calls the layout takes."""
    found = Node(folder, _before())
    counting = Failing(found.control, 10_000)
    await apply(found, *STEPS, control=counting)
    assert applied(found, *STEPS)
    return counting.calls


async def test_9_a_failure_at_any_step_leaves_what_was_there(tmp_path) -> None:
    total = await _changes(tmp_path)
    assert total > 30
    for at in range(1, total + 1):
        found = Node(tmp_path, _before())
        before = found.shapes()
        error = nvmlerrors.error(nvmlerrors.UNKNOWN, "something")
        with pytest.raises(MigError, match="ERROR_UNKNOWN"):
            await apply(found, *STEPS, control=Failing(found.control, at, error=error))
        assert found.shapes() == before, f"after a failure of call {at}"
        assert found.warned == []


MODES = {
    "off": (
        (on(A100, "3g.20gb", Instance("1g.5gb", compute=())), on(H100, "7g.80gb"), GpuEntry(A100)),
        (entry(None),),
    ),
    "on": ((GpuEntry(H100), GpuEntry(A100), on(A100, "1g.5gb")), (entry(""),)),
    "both": ((GpuEntry(H100), on(H100, "1g.10gb"), on(A100, "7g.40gb")), (entry("", (0,)), entry(None, (1, 2)))),
}


@pytest.mark.parametrize("name", MODES)
async def test_9_a_failure_while_modes_are_changed_leaves_what_was_there(tmp_path, name: str) -> None:
    gpus, layout = MODES[name]

    async def failing(at: int) -> tuple[Node, Failing]:
        found = Node(tmp_path, gpus)
        control = Failing(found.control, at, error=nvmlerrors.error(nvmlerrors.UNKNOWN, "something"))
        with contextlib.suppress(MigError):
            await apply(found, *layout, control=control, mode_only=True)
        return found, control

    counting = await failing(10_000)
    assert not compare.mode(layout, counting[0].states())
    for at in range(1, counting[1].calls + 1):
        before = Node(tmp_path, gpus)
        shapes, modes = before.shapes(), [each.modes for each in before.states()]
        found, _ = await failing(at)
        assert (found.shapes(), [each.modes for each in found.states()]) == (shapes, modes), f"after call {at} failed"
        assert found.warned == []


@pytest.mark.parametrize("model", [A100, H100])
async def test_9_a_busy_gpu_keeps_the_modes_and_instances_of_all(node, model: str) -> None:
    found = node(on(model, *ONE[model]), on(model, *ONE[model], busy=True), GpuEntry(model))
    before = found.shapes(), [each.modes for each in found.states()]
    with pytest.raises(MigError, match=r"GPU 1 .*cannot turn MIG off.*ERROR_IN_USE.*end the pods and host services"):
        await apply(found, entry(None))
    assert (found.shapes(), [each.modes for each in found.states()]) == before
    assert found.warned == []


ONE = {A100: ("3g.20gb", "1g.5gb"), H100: ("3g.40gb", "1g.10gb")}


async def test_a_kill_at_any_step_is_made_good_by_the_next_run(tmp_path) -> None:
    total = await _changes(tmp_path)
    for at in range(1, total + 1, 3):
        found = Node(tmp_path, _before())
        with pytest.raises(Killed):
            await apply(found, *STEPS, control=Failing(found.control, at))
        await apply(found, *STEPS)
        assert applied(found, *STEPS), f"after a kill at call {at}"


async def test_a_run_that_is_ended_between_two_gpus_leaves_what_was_there(node) -> None:
    found = node(on(A100, "7g.40gb"), on(A100, "3g.20gb"), on(A100))
    before = found.shapes()

    class Ending(Failing):
        def create_gpu_instance(self, *arguments: object) -> int:
            running.cancel()
            return found.control.create_gpu_instance(*arguments)

    running = asyncio.ensure_future(apply(found, entry("1g.5gb:7"), control=Ending(found.control, 10_000)))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert found.shapes() == before


async def test_9_4_success_is_not_said_where_the_driver_only_claims_it(node) -> None:
    class Deaf(Failing):
        def create_compute_instance(self, *arguments: object) -> int:
            return 0

    found = node(on(A100))
    with pytest.raises(NotApplied) as raised:
        await apply(found, entry("1g.5gb:1"), control=Deaf(found.control, 10_000))
    assert "has no instances, wanted is 1g.5gb: 1" in raised.value.differences[0]


async def test_1_9_4_other_names_than_asked_for_are_an_error(node) -> None:
    found = node(on(A100, "7g.40gb"))

    class Odd(Failing):
        def create_gpu_instance(self, gpu: str, profile: int, place: object) -> int:
            two = next(each for each in found.control.profiles(gpu) if str(each.profile) == "2g.10gb")
            return found.control.create_gpu_instance(gpu, two.id, two.placements[0])

    with pytest.raises(MigError, match=r"the driver made 2g\.10gb, asked for was 1g\.5gb"):
        await apply(found, entry("1g.5gb:1"), control=Odd(found.control, 10_000))
    assert found.configs() in ([{}], [{"7g.40gb": 1}])


async def test_compute_instances_are_made_in_another_order_if_the_driver_places_them_badly(node) -> None:
    """A driver that puts 3 slices where 2 and 2 would have to go takes them last."""
    found = node(on(A100))

    class Picky(Failing):
        def create_compute_instance(self, gpu: str, gi: int, profile: int) -> int:
            slices = {each.id: each.slices for each in found.control.compute_profiles(gpu, gi)}
            there = [slices[each.profile_id] for each in found.control.instances(gpu)[0].compute]
            if slices[profile] == 2 and 3 in there:
                raise nvmlerrors.error(nvmlerrors.INSUFFICIENT_RESOURCES, "making a compute instance")
            return found.control.create_compute_instance(gpu, gi, profile)

    await apply(found, entry("3c.7g.40gb:1 2c.7g.40gb:2"), control=Picky(found.control, 10_000))
    assert found.configs() == [{"2c.7g.40gb": 2, "3c.7g.40gb": 1}]


# --- modes (1.10) -----------------------------------------------------------------------------------------------------


class Resets(Failing):
    """Notes which GPUs are reset."""

    def __init__(self, control) -> None:
        super().__init__(control, 10_000)
        self.reset_: list[list[int]] = []

    async def reset(self, gpus, nvidia_smi) -> None:
        self.reset_.append(sorted(each.index for each in self._control.gpus() if each.uuid in gpus))
        await self._control.reset(gpus, nvidia_smi)


async def test_9_3_only_gpus_with_a_pending_change_are_reset(node) -> None:
    found = node(on(A100, "7g.40gb"), A100, H100, A100, T4)
    control = Resets(found.control)
    await apply(found, entry("", (1, 2)), entry("7g.40gb:1", (0,)), entry(None, (3, 4)), control=control)
    assert control.reset_ == [[1]]
    assert found.shapes()[0][0] is True
    assert found.configs() == [{"7g.40gb": 1}, {}, {}, {}, {}]


async def test_1_10_gpus_that_the_driver_resets_only_together(node) -> None:
    found = node(on(A100, "7g.40gb"), A100, A100, reset_together=((0, 1),))
    control = Resets(found.control)
    await apply(found, entry("7g.40gb:1", (0,)), entry("1g.5gb:7", (1,)), entry(None, (2,)), control=control)
    assert control.reset_ == [[1], [0, 1]]
    assert found.configs() == [{"7g.40gb": 1}, {"1g.5gb": 7}, {}]
    assert "resetting all 2 GPUs connected by NVLink" in found.warned[0]


async def test_a_reset_of_a_busy_gpu_is_refused_and_others_are_not_tried(node) -> None:
    found = node(GpuEntry(A100, busy=True), A100, nvlinks=(Links((0, 1), 2),))
    control = Resets(found.control)
    with pytest.raises(MigError, match=r"cannot reset GPU 0 .*ERROR_IN_USE.*end the pods and host services"):
        await apply(found, entry("", (0,)), entry(None, (1,)), control=control)
    assert control.reset_ == [[0]]
    assert found.states()[0].modes == (False, True), "a reboot brings the mode"
    found.machine.set_busy(0, False)
    await apply(found, entry("", (0,)), entry(None, (1,)))
    assert found.states()[0].modes == (True, True)


async def test_a_reset_that_fails_puts_the_instances_back(node) -> None:
    found = node(on(A100, "7g.40gb"), A100)

    class Stuck(Failing):
        async def reset(self, gpus, nvidia_smi) -> None:
            raise nvmlerrors.error(nvmlerrors.UNKNOWN, "resetting GPUs")

    with pytest.raises(MigError, match=r"cannot reset GPU 0 .*ERROR_UNKNOWN; reset them, or reboot the node"):
        await apply(found, entry(None), control=Stuck(found.control, 10_000))
    assert found.configs() == [{"7g.40gb": 1}, {}]
    assert found.states()[0].modes == (True, False), "a reboot brings the mode"


async def test_1_10_skip_reset_leaves_modes_pending(node) -> None:
    found = node(A100, H100)
    await apply(found, entry(""), mode_only=True, skip_reset=True)
    assert [each.modes for each in found.states()] == [(False, True), (True, True)]
    assert "the MIG mode is pending on GPU 0" in found.warned[0]
    with pytest.raises(
        MigError, match=r"MIG mode is off, wanted is on .pending until the GPU is reset.; change the mode first"
    ):
        await apply(found, entry("1g.10gb:1"), skip_reset=True)
    assert found.configs() == [{}, {}]


async def test_mode_only_makes_no_instances(node) -> None:
    found = node(A100, on(A100, "7g.40gb"))
    await apply(found, entry("1g.5gb:7"), mode_only=True)
    assert found.shapes()[0] == (True, [])
    assert found.configs() == [{}, {"7g.40gb": 1}]


async def test_a_mode_that_the_driver_does_not_take_puts_the_instances_back(node) -> None:
    found = node(on(H100, "1g.10gb"))

    class Deaf(Failing):
        def set_mode(self, gpu: str, enabled: bool) -> None:
            return None

    before = found.shapes()
    with pytest.raises(MigError, match="cannot turn MIG off"):
        await apply(found, entry(None), control=Deaf(found.control, 10_000))
    assert found.shapes() == before


async def test_2_with_an_old_driver_the_mode_is_changed_before_instances_are_planned(node) -> None:
    found = node(A100)
    found.machine.set_driver("535.230.02")
    (gpu,) = found.control.gpus()
    assert state.offered(found.control, gpu) == ()
    with pytest.raises(PlanError, match="room for 7 x 1"):
        await apply(found, entry("1g.5gb:8"))
    assert found.shapes() == [(True, [])]
    await apply(found, entry("1g.5gb:7"))
    assert found.configs() == [{"1g.5gb": 7}]


def test_1_6_the_driver_counts_wrongly_on_an_a30(node) -> None:
    found = node("A30")
    (gpu,) = found.control.gpus()

    class Wrong(Failing):
        def profiles(self, gpu: str):
            return tuple(msgspec.structs.replace(each, most=9) for each in found.control.profiles(gpu))

    assert {str(each.profile): each.most for each in state.offered(Wrong(found.control, 1), gpu)} == {
        "1g.6gb": 4,
        "1g.6gb+me": 1,
        "2g.12gb": 2,
        "2g.12gb+me": 1,
        "4g.24gb": 1,
    }


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("B200", "1g.23gb 2g.45gb 3g.90gb 1g.23gb+me"),
        ("H200-SXM5-141GB", "1g.18gb 3g.71gb 2g.35gb"),
        ("GB200", "1g.47gb 3g.93gb 1g.23gb"),
        ("RTX-PRO-6000", "1g.24gb+me.all 1g.24gb-me 2g.48gb-me"),
    ],
)
async def test_1_6_live_instances_bear_the_names_they_were_asked_for_by(node, model: str, names: str) -> None:
    found = node(model)
    await apply(found, entry(" ".join(f"{name}:1" for name in names.split())))
    assert found.states()[0].config == counts(" ".join(f"{name}:1" for name in names.split()))
