"""The comparison with NVIDIA's node programs: what counts as a difference, and which scenarios there are."""

import re

import pytest

from bench.peer import featurescenarios, nodecompare, pluginscenarios
from bench.peer.nodecompare import ABSENT, Difference, differences, reason

NODES = ["/dev/nvidiactl", "/dev/nvidia0"]


BY_UUID = ["GPU-a", "GPU-b"]
REFUSED, REFUSED_ELSE = ["UNKNOWN", "a"], ["UNKNOWN", "b"]


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ({"exit": 1, "error": "a"}, {"exit": 1, "error": "b"}, []),
        ({"exit": 0}, {}, [Difference("/exit", 0, ABSENT)]),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, [Difference("/a/1/b", 2, 3)]),
        ({"devices": [NODES]}, {"devices": [NODES, NODES]}, []),
        ({"devices": [NODES[:1]]}, {"devices": [NODES]}, [Difference("/devices", [NODES[:1]], [NODES])]),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, {"NVIDIA_VISIBLE_DEVICES": "1,0"}, []),
        ({"cdi": BY_UUID}, {"cdi": BY_UUID[::-1]}, [Difference("/cdi", BY_UUID, BY_UUID[::-1])]),
        ({"prefer": {"x": REFUSED}}, {"prefer": {"x": REFUSED_ELSE}}, []),
        ({"allocate": REFUSED}, {"allocate": REFUSED_ELSE}, [Difference("/allocate", REFUSED, REFUSED_ELSE)]),
    ],
)
def test_differences(ours: object, theirs: object, found: list[Difference]) -> None:
    assert list(differences(ours, theirs)) == found


def test_a_difference_may_be_meant_in_one_release() -> None:
    spread = Difference("/resources/r/prefer/x/spread", [1], [2])
    assert reason("plugin", "26.3", "sharing", spread) == "NVIDIA's 0.19 picks by chance among equals"
    assert reason("plugin", "26.7", "sharing", spread) is None
    assert reason("features", "26.3", "sharing", spread) is None


@pytest.mark.parametrize(("program", "module"), [("plugin", pluginscenarios), ("features", featurescenarios)])
def test_scenarios_have_names_of_their_own_and_known_differences_are_theirs(program: str, module: object) -> None:
    names = [each.name for each in module.scenarios()]  # type: ignore[attr-defined]
    assert len(set(names)) == len(names)
    for known in nodecompare.KNOWN[program]:
        assert any(re.search(known.scenario, name) for name in names), known.scenario
