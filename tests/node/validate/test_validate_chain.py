"""The validator's pod as a whole: init containers in their order (contracts/mig-exporter-validator.md 6.6)."""

from pathlib import Path

import pytest
from node.validate.validator_world import World

from groundplane.api import names
from groundplane.node import controlnodes
from groundplane.node.validate import context, driver

CHAIN = {
    "driver": {"WITH_WAIT": "true"},
    "toolkit": {"NVIDIA_VISIBLE_DEVICES": "all", "WITH_WAIT": "false"},
    "cuda": {"WITH_WAIT": "false"},
    "plugin": {"WITH_WAIT": "false", "WITH_WORKLOAD": "false", "MIG_STRATEGY": ""},
}
"""The init containers and their variables, in their order."""


@pytest.fixture(autouse=True)
def no_real_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlnodes, "make_node", lambda path, _major, _minor: path.write_text(""))


async def test_6_6_a_healthy_node(released: World) -> None:
    released.container_driver(dev=True)
    released.driver_container("GDS_ENABLED: false\n")
    released.devices()
    released.validator()
    released.resources({"nvidia.com/gpu": "8"})
    released.start_kubelet()
    for number, (component, env) in enumerate(CHAIN.items(), start=1):
        assert await released.run(component, **env) == 0
        assert len(released.files() - {".driver-ctr-ready"}) == number
    assert released.files() == {".driver-ctr-ready", *(f"{component}-ready" for component in CHAIN)}


async def test_6_6_a_failure_takes_away_what_was_valid(world: World) -> None:
    for component in CHAIN:
        world.process.write(f"{names.VALIDATIONS_DIR}/{component}-ready", "")
    world.process.commands = {}
    assert await world.run("toolkit", **CHAIN["toolkit"]) == 1
    assert world.files() == {"driver-ready", "cuda-ready", "plugin-ready"}


async def test_the_api_server_is_asked_seldom_while_all_nodes_wait(world: World) -> None:
    """A cluster's nodes all wait at once when it begins."""
    world.driver_container(ready=False)
    began = world.process.monotonic()
    world.start("driver", WITH_WAIT="true", SLEEP_INTERVAL_SECONDS="1")
    while world.process.monotonic() - began < 120:
        await world.process.sleep(5)
    assert world.faults.count("list", user_agent="groundplane") == 1
    assert await world.stop() == 1


async def test_labels_are_asked_for_again_after_a_while(world: World) -> None:
    world.label(**{"nvidia.com/cc.capable": "true"})
    world.start("cc-manager", WITH_WAIT="true", SLEEP_INTERVAL_SECONDS="1")
    await world.logged("cc-manager is not ready")
    began = world.process.monotonic()
    world.label(**{"nvidia.com/cc.capable": "false"})
    assert await world.ended() == 0
    elapsed = world.process.monotonic() - began
    assert world.faults.count("get", user_agent="groundplane") <= 2 + elapsed / context.LABELS_S


@pytest.mark.parametrize("folder", ["/", "//", "/run/..", "/link"])
async def test_the_root_is_no_folder_for_status_files(world: World, folder: str) -> None:
    world.process.path("/link").symlink_to("/")
    world.process.write("/keep", "mine")
    assert await world.run("toolkit", OUTPUT_DIR=folder, CLEANUP_ALL="true") == 1
    assert "is the whole file system" in world.process.stderr
    assert world.process.root.read_text("/keep") == "mine"


async def test_a_folder_that_cannot_be_resolved_is_told(world: World) -> None:
    world.process.root.path("/loop", follow=False).symlink_to("loop")
    assert await world.run("toolkit", OUTPUT_DIR="/loop/status") == 1
    assert "Error: the folder of status files cannot be found: host path '/loop/status': more" in world.process.stderr


def test_where_things_are_in_the_validators_pod() -> None:
    assert (driver.HOST, driver.DEV_CHAR) == ("/host", "/host-dev-char")
    assert Path(names.VALIDATIONS_DIR).parent == Path("/run/nvidia")
