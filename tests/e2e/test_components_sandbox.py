"""The operands for virtual machines on and off again, alone and together, with the nodes' deploy labels (3.2)."""

import pytest
from e2e.changes import picture, step
from e2e.switches import GPU_NODES, NO_UPGRADES, WORKLOADS, Switch, check, objects, reverse, rights, start, told
from e2e.world import World

from groundplane.api import names
from groundplane.api.release import Release

SANDBOX = {"sandboxWorkloads": {"enabled": True}, "vgpuManager": {"enabled": True}}
KATA = {
    "sandboxWorkloads": {"enabled": True, "mode": "kata"},
    "kataManager": {
        "enabled": True,
        "repository": "registry.example",
        "image": "kata-manager",
        "version": "v1",
        "config": {"runtimeClasses": [{"name": "kata-gpu", "artifacts": {"url": "registry.example/kata:1"}}]},
    },
}
VALIDATOR = "daemonsets/nvidia-sandbox-validator"
CC_CHECK = told("4.3", "container cc-manager-validation")

MEMBERS = {
    "vgpuManager": objects("daemonsets/nvidia-vgpu-manager-daemonset") | rights("nvidia-vgpu-manager"),
    "vgpuDeviceManager": objects("daemonsets/nvidia-vgpu-device-manager", "configmaps/default-vgpu-devices-config")
    | rights("nvidia-vgpu-device-manager"),
    "vfioManager": objects("daemonsets/nvidia-vfio-manager") | rights("nvidia-vfio-manager"),
    "sandboxDevicePlugin": objects("daemonsets/nvidia-sandbox-device-plugin-daemonset")
    | rights("nvidia-sandbox-device-plugin"),
}
"""Objects of the operands of mode ``kubevirt``, by section (4.1)."""
KATA_PLUGIN = objects("daemonsets/nvidia-kata-sandbox-device-plugin-daemonset") | rights(
    "nvidia-kata-sandbox-device-plugin"
)
CC_MANAGER = objects("daemonsets/nvidia-cc-manager") | rights("nvidia-cc-manager")
KATA_MANAGER = (
    objects("daemonsets/nvidia-kata-manager", "runtimeclasses/kata-gpu")
    | objects("configmaps/nvidia-kata-manager-config", "configmaps/nvidia-kata-manager-entrypoint")
    | rights("nvidia-kata-manager")
)


def deploy(sign: str, *operands: str) -> frozenset[str]:
    return frozenset(f"{sign}{names.DEPLOY_PREFIX}{operand}=true" for operand in operands)


CONTAINER_AWAY = deploy(
    "-",
    *("driver", "gpu-feature-discovery", "container-toolkit", "device-plugin"),
    *("dcgm", "dcgm-exporter", "node-status-exporter", "operator-validator"),
)
"""``client`` is of every workload config, so it stays (3.2)."""
PASSTHROUGH = CONTAINER_AWAY | deploy(
    "+", "sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager"
)
VGPU = CONTAINER_AWAY | deploy(
    "+", "sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator", "cc-manager"
)
MARKS_OF_SANDBOX = {
    node: NO_UPGRADES | {"vm-a": PASSTHROUGH, "vm-b": VGPU}.get(node, frozenset()) for node in GPU_NODES
}

SWITCHES = {
    **{
        f"sandboxWorkloads, {release}": Switch(
            "sandboxWorkloads",
            "enabled",
            True,
            base={"vgpuManager": {"enabled": True}},
            came=frozenset().union(*MEMBERS.values(), objects(VALIDATOR), rights("nvidia-sandbox-validator")),
            marks=MARKS_OF_SANDBOX,
            release=release,
        )
        for release in (Release.V26_3, Release.V26_7)
    },
    **{section: Switch(section, "enabled", False, base=SANDBOX, gone=gone) for section, gone in MEMBERS.items()},
    "sandboxWorkloads.mode": Switch(
        "sandboxWorkloads",
        "mode",
        "kata",
        base=SANDBOX,
        gone=MEMBERS["sandboxDevicePlugin"],
        came=KATA_PLUGIN | CC_MANAGER,
        told={VALIDATOR: CC_CHECK},
        marks={"vm-a": deploy("-", "sandbox-device-plugin") | deploy("+", "kata-sandbox-device-plugin")},
    ),
    "kataSandboxDevicePlugin": Switch("kataSandboxDevicePlugin", "enabled", False, base=KATA, gone=KATA_PLUGIN),
    "ccManager": Switch("ccManager", "enabled", False, base=KATA, gone=CC_MANAGER, told={VALIDATOR: CC_CHECK}),
    "kataManager, 26.3.3": Switch("kataManager", "enabled", False, base=KATA, gone=KATA_MANAGER, release=Release.V26_3),
    "kataManager is ignored by 26.7": Switch("kataManager", "enabled", False, base=KATA),
}


@pytest.mark.parametrize("name", SWITCHES)
async def test_off_and_on_again(name: str) -> None:
    await check(SWITCHES[name])


@pytest.mark.parametrize(("workload", "marks"), [("vm-passthrough", PASSTHROUGH), ("vm-vgpu", VGPU)])
async def test_a_node_that_changes_its_workload_swaps_its_labels_in_one_patch(
    workload: str, marks: frozenset[str]
) -> None:
    async with World() as world:
        await start(world, Release.V26_7, SANDBOX)
        before = picture(world)
        for value, expected in ((workload, marks), (None, reverse({"gpu-a": marks})["gpu-a"])):
            world.set_workload("gpu-a", value)
            await world.at_rest()
            now = picture(world)
            done = step(world, before, now)
            asked = {f"{'+' if value else '-'}{names.WORKLOAD_CONFIG}={workload}"}
            assert done.marks == {"gpu-a": expected | asked}
            assert done.node_writes == {"gpu-a": 1}
            assert not (done.gone or done.came or done.told or done.written)
            before = now


async def test_workload_labels_mean_nothing_without_sandbox_workloads() -> None:
    async with World() as world:
        await start(world, Release.V26_7, {})
        before = picture(world)
        for name in WORKLOADS:
            world.set_workload(name, None)
        await world.at_rest()
        assert step(world, before, picture(world)).node_writes == {}
