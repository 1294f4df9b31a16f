"""Keeping and restoring the state of MIG (contracts/mig-exporter-validator.md 1.12)."""

import json

import pytest
from node.fakeprocess import FakeProcess
from node.mig.migworld import Failing, entry

from groundplane.node.devices import nvmlerrors
from groundplane.node.devices.simulated import GpuEntry, Instance, Mig
from groundplane.node.mig import change, checkpoint
from groundplane.node.mig.errors import MigError
from groundplane.node.mig.hooks import Hooks

A100, H100, T4 = "A100-SXM4-40GB", "H100-SXM5-80GB", "T4"
GPUS = (
    GpuEntry(A100, mig=Mig(True, (Instance("3g.20gb", 4, ("1c.3g.20gb", "2c.3g.20gb")), Instance("1g.5gb", 2)))),
    GpuEntry(H100),
    GpuEntry(H100, mig=Mig(True, (Instance("7g.80gb", compute=()),))),
    GpuEntry(T4),
)


async def restore(found, text: str, *, mode_only: bool = False, control=None) -> None:
    wanted = checkpoint.CheckpointChange(found.world(control), checkpoint.parse(text, "file.json"))
    await change.run(wanted, Hooks(FakeProcess(found.machine.file.parent), {}, {}), mode_only=mode_only)


async def other(found) -> None:
    wanted = change.LayoutChange(found.world(), (entry("1g.10gb:3", (0, 1)), entry(None, (2, 3))))
    await change.run(wanted, Hooks(FakeProcess(found.machine.file.parent), {}, {}), mode_only=False)


def test_1_12_the_file(node) -> None:
    found = node(*GPUS)
    uuids = [gpu.uuid for gpu in found.control.gpus()]
    assert json.loads(checkpoint.dump(found.states())) == {
        "Version": "v1",
        "MigState": {
            "Devices": [
                {
                    "UUID": uuids[0],
                    "MigMode": 1,
                    "GpuInstances": [
                        {
                            "ProfileID": 2,
                            "Placement": {"Start": 4, "Size": 4},
                            "ComputeInstances": [
                                {"ProfileID": 0, "EngProfileID": 0},
                                {"ProfileID": 1, "EngProfileID": 0},
                            ],
                        },
                        {
                            "ProfileID": 0,
                            "Placement": {"Start": 2, "Size": 1},
                            "ComputeInstances": [{"ProfileID": 0, "EngProfileID": 0}],
                        },
                    ],
                },
                {"UUID": uuids[1], "MigMode": 0, "GpuInstances": None},
                {
                    "UUID": uuids[2],
                    "MigMode": 1,
                    "GpuInstances": [{"ProfileID": 4, "Placement": {"Start": 0, "Size": 8}, "ComputeInstances": None}],
                },
            ]
        },
    }


async def test_1_12_instances_are_restored_at_their_places(node) -> None:
    found = node(*GPUS)
    before, text = found.shapes(), checkpoint.dump(found.states())
    await other(found)
    assert found.shapes() != before
    await restore(found, text)
    assert found.shapes() == before
    unchanged = found.machine.file.stat().st_mtime_ns
    await restore(found, text)
    assert found.machine.file.stat().st_mtime_ns == unchanged


async def test_only_modes_are_restored(node) -> None:
    found = node(*GPUS)
    text = checkpoint.dump(found.states())
    await other(found)
    await restore(found, text, mode_only=True)
    assert [mode for mode, _ in found.shapes()] == [True, False, True, None]
    assert found.configs() == [{"1g.10gb": 3}, {}, {}, {}]


async def test_a_failure_puts_back_what_was_there(node) -> None:
    found = node(*GPUS)
    text = checkpoint.dump(found.states())
    await change.run(
        change.LayoutChange(found.world(), (entry("1g.10gb:3", (0, 2)), entry(None, (1, 3)))),
        Hooks(FakeProcess(found.machine.file.parent), {}, {}),
        mode_only=False,
    )
    before = found.shapes()
    counting = Failing(found.control, 10_000)
    await restore(found, text, control=counting)
    assert counting.calls > 10
    for at in range(1, counting.calls + 1):
        fresh = node(*GPUS)
        fresh.machine.set_mig(0, True, ["1g.10gb"] * 3)
        fresh.machine.set_mig(2, True, ["1g.10gb"] * 3)
        before = fresh.shapes()
        error = nvmlerrors.error(nvmlerrors.UNKNOWN, "something")
        with pytest.raises(MigError, match=r"cannot restore its instances.*ERROR_UNKNOWN"):
            await restore(fresh, text, control=Failing(fresh.control, at, error=error))
        assert fresh.shapes() == before, f"after a failure of call {at}"


def placed(*places: str) -> str:
    """A checkpoint of a GPU with instances at places, each its start and size."""
    pairs = (place.split(", ") for place in places)
    instances = ",".join(f'{{"ProfileID":0,"Placement":{{"Start":{start},"Size":{size}}}}}' for start, size in pairs)
    return f'{{"Version":"v1","MigState":{{"Devices":[{{"UUID":"a","MigMode":1,"GpuInstances":[{instances}]}}]}}}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "checkpoint file file.json: "),
        ("[]", "expected what `checkpoint` has written"),
        ("{}", "missing required field `Version`"),
        ('{"Version": "v2", "MigState": {"Devices": []}}', "version 'v2'; the only version is 'v1'"),
        ('{"Version": "v1", "MigState": {"Devices": [{"UUID": "a", "MigMode": 2}]}}', "MigMode is 2; expected 0 or 1"),
        ('{"Version": "v1", "MigState": {"Devices": [{"UUID": 1}]}}', "Expected `str`, got `int`"),
        (
            '{"Version":"v1","MigState":{"Devices":[{"UUID":"a","MigMode":1,"GpuInstances":[{"ProfileID":0,"Placement":'
            '{"Start":0,"Size":1},"ComputeInstances":[{"ProfileID":0,"EngProfileID":1}]}]}]}}',
            "EngProfileID is 1",
        ),
        (placed("0, 2", "1, 1"), "a: a GPU instance at 1:1 takes memory slice 1, which another has"),
        (placed("3, 1", "3, 1"), "at 3:1 takes memory slice 3, which another has"),
        (placed("-1, 1"), "at -1:1; expected a start from 0 on"),
        (placed("0, 0"), "at 0:0; expected a start from 0 on, and a size of 1 to 64"),
        (placed("0, 99999999"), "and a size of 1 to 64"),
    ],
)
def test_bad_files(text: str, words: str) -> None:
    with pytest.raises(MigError) as raised:
        checkpoint.parse(text, "file.json")
    assert words in str(raised.value)


@pytest.mark.parametrize("text", ['{"Version":"v1","MigState":{"Devices":null}}'])
def test_no_gpus(text: str) -> None:
    assert checkpoint.parse(text, "file.json") == {}


async def test_gpus_that_are_not_here(node) -> None:
    found = node(A100, T4)
    uuid = found.control.gpus()[1].uuid
    for device, words in ((uuid, "knows no MIG"), ("GPU-1", "GPU GPU-1 of the checkpoint is not on this node")):
        text = json.dumps({"Version": "v1", "MigState": {"Devices": [{"UUID": device, "MigMode": 1}]}})
        with pytest.raises(MigError, match=words):
            await restore(found, text)
