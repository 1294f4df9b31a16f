"""Every fault of the lab is found by the doctor, live and offline: its cause on top, and nothing else as cause.

`make bench-doctor` prints the same as a table.
"""

import pytest

from groundplane.diagnose.findings import Layer
from groundplane.lab.faultbook import FAULTS, UnknownFaultError, apply, fault
from groundplane.lab.faultbook import trial as trials
from groundplane.lab.faultbook.trial import HEALTHY, Result, node_for, told
from groundplane.lab.nodes import GpuSpec, NodeSpec

ROUNDS = trials.rounds(FAULTS)
ALONE = trials.alone(FAULTS)


def unsound(results: list[Result]) -> list[Result]:
    return [each for each in results if not each.sound]


def test_there_are_faults_of_every_layer() -> None:
    assert len(FAULTS) >= 50
    assert {each.layer for each in FAULTS.values()} == set(Layer)


@pytest.mark.parametrize("number", range(len(ROUNDS)))
async def test_faults_of_nodes_are_found_at_once(number: int) -> None:
    placed = ROUNDS[number]
    specs = [node_for(FAULTS[name], node) for node, name in placed.items()]
    async with trials.trial(specs) as tried:
        assert not unsound(await tried.whole(placed))


@pytest.mark.parametrize("number", range(len(ALONE)))
async def test_faults_of_the_cluster_and_of_workloads_are_found_alone(number: int) -> None:
    async with trials.trial(trials.COMMON) as tried:
        for name in ALONE[number]:
            assert not unsound(await tried.whole({tried.place(name): name}))


async def test_a_healthy_cluster_of_every_kind_of_node_gives_no_finding() -> None:
    async with trials.trial(HEALTHY) as tried:
        verdict = await tried.healthy()
        assert verdict.healthy, (told(verdict), verdict.unmatched, verdict.unknown)


DOUBLE = {
    "one": ("exporter-image-gone", "double-bit-error"),
    "two": ("exporter-image-gone", "mig-layout-unknown"),
    "three": ("mig-layout-unknown", "power-cable"),
    "four": ("discovery-image-gone", "gsp-timeout"),
    "five": ("exporter-image-untrusted", "fabric-in-progress"),
}
"""By node: a fault, and one of a lower layer that comes to it."""


async def test_of_two_faults_on_a_node_the_lower_is_on_top_and_the_other_listed() -> None:
    specs = [node_for(FAULTS[lower], node) for node, (_, lower) in DOUBLE.items()]
    upper = {node: upper for node, (upper, _) in DOUBLE.items()}
    lower = {node: lower for node, (_, lower) in DOUBLE.items()}
    async with trials.trial(specs) as tried:
        await tried.apply(upper)
        assert all(each.right for each in await tried.found(upper))
        await tried.apply(lower)
        assert all(each.right for each in await tried.found(lower))
        verdict = await tried.listed(upper)
        listed = {node: set(trials.consequences(verdict, node)) for node in DOUBLE}
        assert {node: listed[node] & set(FAULTS[name].causes) for node, name in upper.items()} == {
            node: {FAULTS[name].causes[0]} for node, name in upper.items()
        }
        assert [cause.finding.layer for cause in verdict.causes] == sorted(
            cause.finding.layer for cause in verdict.causes
        )


async def test_what_cannot_be_there_is_refused() -> None:
    with pytest.raises(UnknownFaultError, match="there is no fault 'fire'"):
        fault("fire")
    async with trials.trial([NodeSpec("gpu", gpus=(GpuSpec("T4"),))], healthy=False) as tried:
        with pytest.raises(UnknownFaultError, match="rhel-metadata can be on GPU nodes of Red Hat's"):
            await apply("rhel-metadata", tried.where("gpu"))
