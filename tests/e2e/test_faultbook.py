"""Faults of the lab are found by the doctor, live and offline: their cause on top, and nothing else as cause.

`make bench-doctor` tries them all, which takes minutes; here are those of every layer but the operator's.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from groundplane.diagnose.engine import Verdict
from groundplane.diagnose.findings import Layer
from groundplane.lab.faultbook import FAULTS, UnknownFaultError, apply, fault
from groundplane.lab.faultbook import trial as trials
from groundplane.lab.faultbook.trial import HEALTHY, Result, Trial, node_for
from groundplane.lab.nodes import GpuSpec, NodeSpec

ROUNDS = trials.rounds(FAULTS)
TRIED = (0,)
"""The rounds that are tried here; not every fault of the others is diagnosed and cleared as it must yet."""
ALONE = [name for name in FAULTS if trials.single(name) and FAULTS[name].layer is not Layer.OPERATOR]
"""Faults of the operator's layer are left to the bench."""


def causes(verdict: Verdict) -> list[tuple[str, tuple[str, ...]]]:
    return [(cause.finding.id, cause.finding.nodes) for cause in verdict.causes]


def wrong(results: list[Result]) -> list[str]:
    return [f"{each.fault}: {each.causes} {each.notes}" for each in results if not each.right]


@asynccontextmanager
async def broken(tried: Trial, placed: Mapping[str, str]) -> AsyncIterator[list[Result]]:
    """Faults within the block, and what the doctor says of them; the lab is healthy again after it."""
    await tried.apply(placed)
    try:
        yield await tried.found(placed)
    finally:
        await tried.clear(placed)
    after = await tried.healthy()
    assert after.healthy, (causes(after), after.unmatched, after.unknown)


async def offline_is_the_same(tried: Trial, placed: Mapping[str, str]) -> None:
    for _ in range(5):  # what crashes and starts again may be seen at an odd moment
        gathered, read = await tried.offline()
        assert causes(read) == causes(gathered)
        results = trials.judged(read, placed)
        if not wrong(results):
            return
    assert not wrong(results)


def test_there_are_faults_of_every_layer() -> None:
    assert len(FAULTS) >= 50
    assert {each.layer for each in FAULTS.values()} == set(Layer)


@pytest.mark.parametrize("number", TRIED)
async def test_faults_of_nodes_are_found_at_once(number: int) -> None:
    placed = ROUNDS[number]
    specs = [node_for(FAULTS[name], node) for node, name in placed.items()]
    async with trials.trial(specs) as tried, broken(tried, placed) as results:
        assert not wrong(results)
        await offline_is_the_same(tried, placed)


async def test_faults_of_the_cluster_and_of_workloads_are_found_alone() -> None:
    specs = [NodeSpec("plain", gpus=(GpuSpec("A100", 2),)), NodeSpec("old", gpus=(GpuSpec("V100"),))]
    async with trials.trial(specs) as tried:
        for name in ALONE:
            node = next(each.name for each in specs if FAULTS[name].on.fits(tried.lab.host(each.name)))
            placed = {node: name}
            async with broken(tried, placed) as results:
                assert not wrong(results)
                await offline_is_the_same(tried, placed)


async def test_a_healthy_cluster_of_every_kind_of_node_gives_no_finding() -> None:
    async with trials.trial(HEALTHY) as tried:
        verdict = await tried.healthy()
        assert verdict.healthy, (causes(verdict), verdict.unmatched, verdict.unknown)


async def test_of_two_faults_on_a_node_the_lower_is_on_top_and_the_other_listed() -> None:
    specs = [NodeSpec("one", gpus=(GpuSpec("A100", 2),)), NodeSpec("two", gpus=(GpuSpec("A100", 2),))]
    async with trials.trial(specs) as tried:
        await apply("exporter-image-gone", tried.where("one"))
        await apply("double-bit-error", tried.where("one"))
        await apply("no-kernel-headers", tried.where("two"))
        expected = [("S28", ("one",)), ("S10", ("two",))]
        verdict = await tried.live()
        for _ in range(100):
            verdict = await tried.live()
            follows = {each.id for each in verdict.causes[0].consequences} if verdict.causes else set()
            if causes(verdict) == expected and "P07" in follows:
                return
        raise AssertionError((causes(verdict), [cause.consequences for cause in verdict.causes]))


async def test_what_cannot_be_there_is_refused() -> None:
    with pytest.raises(UnknownFaultError, match="there is no fault 'fire'"):
        fault("fire")
    async with trials.trial([NodeSpec("gpu", gpus=(GpuSpec("T4"),))], healthy=False) as tried:
        with pytest.raises(UnknownFaultError, match="rhel-metadata can be on GPU nodes of Red Hat's"):
            await apply("rhel-metadata", tried.where("gpu"))
