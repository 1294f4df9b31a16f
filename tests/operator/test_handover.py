"""Drivers that are handed over to NVIDIADriver: contracts/driver-lifecycle.md 3.9, contracts/control-plane.md 2.5."""

import pytest

from groundplane.operator import handover
from groundplane.operator.handover import DriverPod
from groundplane.operator.upgrade.states import State

OWNER = "nvidia.com/gpu-operator.driver.owner"
STATE = "nvidia.com/gpu-driver-upgrade-state"
SKIP = "nvidia.com/gpu-driver-upgrade.skip"
LIVE = {"live"}


def pod(**changes: object) -> DriverPod:
    return DriverPod(**{"node": "n", "component": "nvidia-driver", "owned": False, "running": True, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "orphan"),
    [
        (pod(), True),
        (pod(owned=True), False),
        (pod(running=False), False),
        (pod(node=""), False),
        (pod(component="nvidia-vgpu-host-manager"), False),
        (pod(component=""), False),
    ],
)
def test_3_9_what_an_orphan_is(found: DriverPod, orphan: bool) -> None:
    assert found.orphan is orphan
    assert handover.to_mark([found], {"n": {OWNER: "live"}}, LIVE) == (["n"] if orphan else [])


@pytest.mark.parametrize("state", State)
def test_3_9_a_node_whose_upgrade_is_under_way_is_left_alone(state: State) -> None:
    labels = {OWNER: "live", STATE: state.value}
    expected = ["n"] if state in (State.UNKNOWN, State.DONE) else []
    assert handover.to_mark([pod()], {"n": labels}, LIVE) == expected


@pytest.mark.parametrize("labels", [{}, {OWNER: "nobody"}, {OWNER: ""}])
def test_3_9_only_where_a_driver_that_is_upgraded_takes_over(labels: dict[str, str]) -> None:
    assert handover.to_mark([pod()], {"n": labels}, LIVE) == []


def test_3_9_each_node_once_and_in_order() -> None:
    nodes = {name: {OWNER: "live"} for name in ("b", "a", "c")}
    pods = [pod(node="b"), pod(node="a"), pod(node="b"), pod(node="gone")]
    assert handover.to_mark(pods, nodes, LIVE) == ["a", "b"]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("skip", ["true", "false", None])
def test_2_5_what_the_policy_waits_for(state: State, owned: bool, skip: str | None) -> None:
    labels = {STATE: state.value, **({OWNER: "live"} if owned else {}), **({SKIP: skip} if skip else {})}
    waits = owned and skip != "true" and state not in (State.UNKNOWN, State.DONE)
    assert handover.unfinished({"n": labels, "other": {}}) == (["n"] if waits else [])


def test_2_5_a_state_that_nobody_writes_is_waited_for() -> None:
    assert handover.unfinished({"n": {OWNER: "live", STATE: "half-way"}}) == ["n"]
