"""A manager that is killed at any point and run again comes to the right end (contracts/driver-lifecycle.md 9.5)."""

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node.driver.driverworld import DRIVER, OPERANDS, PID, STATE, Gate, World
from node.driver.test_driver_flow import PLUGIN, with_dra

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.node.driver import labels


class Case(msgspec.Struct, frozen=True):
    """A node before the manager runs, and how that is asked."""

    release: Release = Release.V26_7
    digest: str | None = "old"
    loaded: bool = True
    policy: bool = False
    cordoned: bool = False
    dra: bool = False
    evict: bool = True
    drain: bool = False

    async def world(self, folder: Path) -> World:
        world = World(folder, self.release)
        if self.loaded:
            world.load(*DRIVER, digest=self.digest)
        if self.policy:
            world.policy()
        if self.cordoned:
            world.change(cordon=True)
        if self.dra:
            with_dra(world)
        world.change(labels={names.DEPLOY_MIG_MANAGER: "custom"})
        world.job("train")
        return world

    @property
    def env(self) -> dict[str, str]:
        return {
            "ENABLE_GPU_POD_EVICTION": str(self.evict).lower(),
            "ENABLE_AUTO_DRAIN": str(self.drain).lower(),
        }


async def check(case: Case, world: World) -> None:
    """The node is cleared, and as it was besides."""
    kept = case.loaded and case.digest == "new"
    assert world.loaded() == (set(DRIVER) if kept else set()), world.log
    assert (world.file(STATE) is not None) is kept
    assert world.file(PID) is None and world.mounted() == []
    found = world.labels
    wanted = dict.fromkeys(OPERANDS, "true") | {names.DEPLOY_MIG_MANAGER: "custom", names.DEPLOY_DRIVER: "true"}
    assert {key: found.get(key) for key in wanted} == wanted
    assert not [value for value in found.values() if labels.PAUSED in value]
    assert world.cordoned is case.cordoned
    assert names.DRIVER_MANAGER_CORDONED not in world.annotations
    if case.dra:
        assert found[names.DEPLOY_DRA_DRIVER] == "true"
        if case.release is Release.V26_7:
            assert PLUGIN not in world.pods("gpu-operator")


CASES = {
    "whole way": Case(),
    "26.3": Case(release=Release.V26_3),
    "kept": Case(digest="new"),
    "nothing loaded": Case(loaded=False),
    "nothing loaded, 26.3": Case(loaded=False, release=Release.V26_3),
    "policy on": Case(policy=True),
    "a person's cordon": Case(cordoned=True),
    "with the DRA plugin": Case(dra=True),
    "drain alone": Case(evict=False, drain=True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_killed_after_each_act(tmp_path: Path, case: Case) -> None:
    for at in itertools.count():
        async with (await case.world(tmp_path / str(at))).serving() as world:
            world.gate = Gate(at)
            code = await world.run(**case.env)
            if code == -1:
                world.gate = Gate()
                code = await world.run(**case.env)
                assert code == 0, f"killed before act {at}: {world.log}"
                await check(case, world)
                continue
            assert code == 0, world.log
            await check(case, world)
            assert at >= 4  # there was something to kill
            return


number = itertools.count()
cases = st.builds(
    Case,
    st.sampled_from(list(Release)),
    st.sampled_from(["old", "new", None]),
    *(st.booleans() for _ in range(6)),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases, kills=st.lists(st.integers(0, 14), max_size=3))
async def test_killed_several_times(tmp_path: Path, case: Case, kills: list[int]) -> None:
    async with (await case.world(tmp_path / str(next(number)))).serving() as world:
        for at in kills:
            world.gate = Gate(at)
            await world.run(**case.env)
        world.gate = Gate()
        assert await world.run(**case.env) == 0, world.log
        await check(case, world)


async def test_a_driver_that_lost_a_module_when_it_was_killed_is_not_kept(tmp_path: Path) -> None:
    case = Case()
    async with (await case.world(tmp_path)).serving() as world:
        assert await world.run(**case.env) == 0
        at = world.gate.acts.index("rmmod nvidia_uvm")
    async with (await case.world(tmp_path / "again")).serving() as world:
        world.gate = Gate(at)
        assert await world.run(**case.env) == -1
        assert world.loaded() == {"nvidia", "nvidia_uvm"}
        world.gate = Gate()
        assert await world.run(**case.env, DRIVER_CONFIG_DIGEST="old") == 0  # the policy went back meanwhile
        assert world.loaded() == set()
