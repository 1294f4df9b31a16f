"""Which GPU the demo slices, and how: a layout that the MIG manager accepts, for every model that knows MIG."""

import pytest

from groundplane.lab import demo_mig, nodes
from groundplane.node.devices.models import MODELS
from groundplane.node.mig import layout


def specs(**gpus: list[tuple[str, int]]) -> dict[str, nodes.NodeSpec]:
    return {
        name: nodes.NodeSpec(name, tuple(nodes.GpuSpec(model, count) for model, count in groups))
        for name, groups in gpus.items()
    }


@pytest.mark.parametrize(
    ("model", "slices"),
    [
        ("H100-SXM5-80GB", {"mig-1g.10gb": 2, "mig-2g.20gb": 1, "mig-3g.40gb": 1}),
        ("A100-SXM4-40GB", {"mig-1g.5gb": 2, "mig-2g.10gb": 1, "mig-3g.20gb": 1}),
        ("A30", {"mig-1g.6gb": 2, "mig-2g.12gb": 1}),
        ("B200", {"mig-1g.23gb": 2, "mig-2g.45gb": 1, "mig-3g.90gb": 1}),
    ],
)
def test_a_gpu_is_cut_into_a_balanced_layout(model: str, slices: dict[str, int]) -> None:
    found = demo_mig.choose(specs(a=[(model, 1)]))
    assert found is not None
    assert found.slices == {f"nvidia.com/{name}": count for name, count in slices.items()}


@pytest.mark.parametrize("model", sorted(name for name, model in MODELS.items() if model.kinds))
def test_the_layouts_are_valid_and_about_one_gpu(model: str) -> None:
    found = demo_mig.choose(specs(a=[("T4", 2), (model, 3)]))
    assert found is not None
    assert (found.node, found.index, found.gpus) == ("a", 2, 5)
    read = layout.parse(found.config_map()["data"]["config.yaml"], "config.yaml")
    whole, one = layout.select(read, demo_mig.WHOLE), layout.select(read, demo_mig.SLICED)
    assert [(entry.devices, entry.enabled) for entry in whole] == [(None, False)]
    assert [(entry.devices, entry.enabled) for entry in one] == [(None, False), ((2,), True)]
    assert sum(found.slices.values()) >= 2


def test_the_first_node_with_a_gpu_that_knows_mig_is_taken() -> None:
    found = demo_mig.choose(specs(a=[("T4", 1)], b=[("A30", 1)], c=[("H100", 8)]))
    assert found is not None and found.node == "b"
    assert demo_mig.choose(specs(a=[("T4", 1)], b=[("L40S", 4)])) is None
    assert demo_mig.choose({}) is None
