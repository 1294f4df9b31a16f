"""Each component off and on again, one by one: its objects go and return, and no other object is written."""

import pytest
from e2e.world import POLICY, World, operand_objects, policy_document

from groundplane.api import names

COMPONENTS = {
    "driver": "state-driver",
    "toolkit": "state-container-toolkit",
    "dcgm": "state-dcgm",
    "dcgmExporter": "state-dcgm-exporter",
    "gfd": "gpu-feature-discovery",
    "migManager": "state-mig-manager",
    "nodeStatusExporter": "state-node-status-exporter",
}
"""Sections whose switch is about one state alone, and that state."""

TOLD = {
    "toolkit": {"daemonsets/nvidia-mig-manager", "daemonsets/nvidia-device-plugin-daemonset"},
    "dcgm": {"daemonsets/nvidia-dcgm-exporter"},
}
"""Objects of other states whose environment says whether the component is there: they are written too."""


def _versions(world: World, *, without: str) -> dict[str, str]:
    """The versions of all objects but those of a state. DaemonSets by generation: their status may move."""
    found = {}
    for key, obj in operand_objects(world.lab).items():
        meta = obj["metadata"]
        if meta["labels"].get(names.STATE_LABEL) != without:
            found[key] = str(meta["generation"] if obj["kind"] == "DaemonSet" else meta["resourceVersion"])
    return found


def _objects_of(world: World, state: str) -> set[str]:
    found = operand_objects(world.lab).items()
    return {key for key, obj in found if obj["metadata"]["labels"].get(names.STATE_LABEL) == state}


@pytest.mark.parametrize("section", COMPONENTS)
async def test_off_and_on_again(section: str) -> None:
    state = COMPONENTS[section]
    async with World() as world:
        world.join("gpu-a", "mig")
        world.start_operator()
        await world.create_policy(policy_document())
        world.edit_policy(POLICY, section, "enabled", True)
        await world.at_rest()
        objects, others = _objects_of(world, state), _versions(world, without=state)
        assert any(key.startswith("daemonsets/") for key in objects)
        world.edit_policy(POLICY, section, "enabled", False)
        await world.converged()
        assert _objects_of(world, state) == set()
        world.edit_policy(POLICY, section, "enabled", True)
        await world.converged()
        assert _objects_of(world, state) == objects
        now = _versions(world, without=state)
        assert {key for key in now if now[key] != others.get(key)} == TOLD.get(section, set())
        assert now.keys() == others.keys()
