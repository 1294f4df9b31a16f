"""The layers above the driver, modules, and nodes for virtual machines: contracts/mig-exporter-validator.md 6.3."""

import asyncio
from collections.abc import Mapping

import pytest
from node.fakeprocess import until
from node.validate.validator_world import SMI, World

from groundplane.api import names
from groundplane.api.release import Release
from groundplane.node.process import Completed
from groundplane.node.validate import layers, smi

WORKLOAD = "nvidia.com/gpu.workload.config"

# --- toolkit ----------------------------------------------------------------------------------------------------------


async def test_6_3_toolkit(world: World) -> None:
    assert await world.run("toolkit") == 0
    assert world.status("toolkit-ready") == ""
    assert world.process.executed == [("nvidia-smi",)]
    assert world.process.stdout.startswith("NVIDIA-SMI")


async def test_6_3_toolkit_that_did_not_inject(world: World) -> None:
    world.process.commands = {}
    assert await world.run("toolkit") == 1
    assert "Error: toolkit validation: nvidia-smi: there is no such command: the container runtime has not brought" in (
        world.process.stderr
    )
    assert world.status("toolkit-ready") is None


async def test_6_3_toolkit_waits(world: World) -> None:
    world.smi_code = 15
    world.start("toolkit", WITH_WAIT="true")
    await world.logged(
        "nvidia-smi ended with code 15 (ERROR_GPU_IS_LOST): NVIDIA-SMI has failed; awaited: a driver with"
    )
    world.smi_code = 0
    assert await world.ended() == 0
    assert world.status("toolkit-ready") == ""


async def test_a_tool_that_hangs_is_told_of(world: World) -> None:
    go = asyncio.Event()

    async def execute(*_args: object, **_more: object) -> Completed:
        await go.wait()
        return Completed(0, "", "")

    world.process.execute = execute  # type: ignore[method-assign]
    world.start("toolkit")
    await world.logged(f"nvidia-smi has not ended after {smi.SLOW_S * 2:g} s; the driver may hang")
    go.set()
    assert await world.ended() == 0


async def test_a_tool_that_cannot_be_executed(world: World) -> None:
    async def execute(*_args: object, **_more: object) -> Completed:
        raise PermissionError(13, "Permission denied", SMI)

    world.process.execute = execute  # type: ignore[method-assign]
    assert await world.run("toolkit") == 1
    assert "nvidia-smi cannot be run: Permission denied" in world.process.stderr


def test_exit_codes_by_name() -> None:
    assert [smi.ended(code) for code in (9, 77, -11)] == ["code 9 (ERROR_DRIVER_NOT_LOADED)", "code 77", "signal 11"]


# --- modules ----------------------------------------------------------------------------------------------------------

MODULES = [("nvidia-fs", "nvidia_fs"), ("gdrcopy", "gdrdrv"), ("nvidia-peermem", "nvidia_peermem")]


@pytest.mark.parametrize(("component", "module"), MODULES)
async def test_6_3_modules(world: World, component: str, module: str) -> None:
    world.modules("nvidia", f"x{module}", f"{module}_x")
    assert await world.run(component) == 1
    assert f"kernel module {module} is not loaded" in world.process.stderr
    world.start(component, WITH_WAIT="true")
    await world.logged(f"{component} is not ready")
    assert world.status(f"{component}-ready") is None
    world.modules("nvidia", module)
    assert await world.ended() == 0
    assert world.status(f"{component}-ready") == ""


async def test_6_3_modules_without_a_list(world: World) -> None:
    assert await world.run("gdrcopy") == 1
    assert "/proc/modules cannot be read" in world.process.stderr


# --- MOFED ------------------------------------------------------------------------------------------------------------

RDMA = {"GPU_DIRECT_RDMA_ENABLED": "true"}


@pytest.mark.parametrize(
    ("env", "labels"),
    [
        ({}, {layers.MELLANOX: "true"}),
        ({"GPU_DIRECT_RDMA_ENABLED": "false"}, {layers.MELLANOX: "true"}),
        (RDMA, {}),
        (RDMA, {layers.MELLANOX: "false"}),
    ],
)
async def test_6_3_mofed_is_skipped_and_leaves_its_file_alone(
    world: World, env: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    world.label(**labels)
    world.process.write(f"{names.VALIDATIONS_DIR}/mofed-ready", "old")
    assert await world.run("mofed", **env) == 0
    assert world.status("mofed-ready") == "old"


async def test_6_3_mofed_of_its_container(world: World) -> None:
    world.label(**{layers.MELLANOX: "true"})
    assert await world.run("mofed", **RDMA) == 1
    assert "/run/mellanox/drivers/.driver-ready is not there; awaited: the MOFED driver's pod" in world.process.stderr
    world.start("mofed", WITH_WAIT="true", **RDMA)
    await world.logged("mofed is not ready")
    world.process.write("/run/mellanox/drivers/.driver-ready", "")
    assert await world.ended() == 0
    assert world.status("mofed-ready") == ""


async def test_6_3_mofed_of_the_host(world: World) -> None:
    world.label(**{layers.MELLANOX: "true"})
    world.modules("nvidia")
    assert await world.run("mofed", USE_HOST_MOFED="true", **RDMA) == 1
    world.modules("mlx5_core")
    assert await world.run("mofed", USE_HOST_MOFED="true", **RDMA) == 0


async def test_6_3_mofed_needs_the_nodes_name(world: World) -> None:
    assert await world.run("mofed", NODE_NAME="-", **RDMA) == 1
    assert "needs the node's name; awaited: the node's name in NODE_NAME" in world.process.stderr


# --- confidential computing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{}, {layers.CC_CAPABLE: "false"}])
async def test_6_3_cc_manager_where_it_is_not_needed(world: World, labels: Mapping[str, str]) -> None:
    world.label(**labels)
    assert await world.run("cc-manager") == 0
    assert world.status("cc-manager-ready") == ""


async def test_6_3_cc_manager(world: World) -> None:
    world.label(**{layers.CC_CAPABLE: "true"})
    assert await world.run("cc-manager") == 1
    world.start("cc-manager", WITH_WAIT="true")
    await world.logged("cc-manager is not ready")
    world.process.write("/run/nvidia/validations/.cc-manager-ctr-ready", "")
    assert await world.ended() == 0
    assert world.status("cc-manager-ready") == ""


# --- plugin -----------------------------------------------------------------------------------------------------------

NO_WORKLOAD = {"WITH_WORKLOAD": "false"}


@pytest.mark.parametrize(
    "capacity",
    [
        {"nvidia.com/gpu": "8"},
        {"nvidia.com/gpu.shared": "80"},
        {"nvidia.com/mig-1g.10gb": "1"},
        {"nvidia.com/gpu": "0", "nvidia.com/mig-3g.40gb": "2"},
        {"nvidia.com/gpu": "1k"},
    ],
)
async def test_6_3_plugin(world: World, capacity: Mapping[str, str]) -> None:
    world.resources(capacity)
    assert await world.run("plugin", **NO_WORKLOAD) == 0
    assert world.status("plugin-ready") == ""


@pytest.mark.parametrize("capacity", [{}, {"nvidia.com/gpu": "0"}, {"cpu": "8"}, {"nvidia.com/pgpu": "1"}])
async def test_6_3_plugin_without_gpus(world: World, capacity: Mapping[str, str]) -> None:
    """30 looks, 5 s apart; the error lists what the node has (9 #17)."""
    world.resources(capacity)
    began = world.process.monotonic()
    assert await world.run("plugin", WITH_WAIT="true", **NO_WORKLOAD) == 1
    assert world.process.monotonic() - began >= (layers.TRIES - 1) * layers.TRY_S
    assert world.faults.count("get", user_agent="groundplane") == layers.TRIES
    seen = ", ".join(f"{name}={value}" for name, value in capacity.items()) or "none"
    assert "node n1 offers neither nvidia.com/gpu nor nvidia.com/mig-*, after 30 looks" in world.process.stderr
    assert f"its resources: {seen}; awaited: GPUs offered by the device plugin" in world.process.stderr
    assert world.status("plugin-ready") is None


async def test_6_3_plugin_whose_gpus_come_later(world: World) -> None:
    world.start("plugin", **NO_WORKLOAD)
    await world.logged("The node offers no GPU yet")
    world.resources({"nvidia.com/gpu": "8"})
    assert await world.ended() == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("8", 8),
        ("1k", 1000),
        ("2Ki", 2048),
        ("1M", 10**6),
        ("", 0),
        ("-1", 0),
        ("100m", 0),
        ("x", 0),
        ("1kk", 0),
    ],
)
def test_quantities(text: str, number: int) -> None:
    assert layers.count(text) == number


# --- virtual machines -------------------------------------------------------------------------------------------------

SANDBOX = {"vfio-pci": "vm-passthrough", "vgpu-manager": "vm-vgpu", "vgpu-devices": "vm-vgpu"}
KINDS = ["container", "vm-passthrough", "vm-vgpu"]


@pytest.mark.parametrize("component", SANDBOX)
@pytest.mark.parametrize("kind", KINDS)
async def test_6_3_sandbox_components_of_other_workloads_are_skipped(world: World, component: str, kind: str) -> None:
    world.label(**{WORKLOAD: kind})
    world.process.write(f"{names.VALIDATIONS_DIR}/{component}-ready", "old")
    code = await world.run(component)
    assert world.status("workload-type") == f"{kind}\n", "also where the component is skipped"
    if kind != SANDBOX[component]:
        assert code == 0
        assert world.status(f"{component}-ready") == "old"


@pytest.mark.parametrize("label", [None, "", "nonsense"])
@pytest.mark.parametrize("default", ["", "nonsense", *KINDS])
async def test_6_3_workload_configuration_by_default(world: World, label: str | None, default: str) -> None:
    world.label(**{WORKLOAD: label})
    await world.run("vgpu-devices", DEFAULT_GPU_WORKLOAD_CONFIG=default)
    assert world.status("workload-type") == f"{default if default in KINDS else 'vm-passthrough'}\n"


@pytest.mark.parametrize(
    ("bound", "code"),
    [
        (("vfio-pci", "vfio-pci"), 0),
        (("nvgrace_gpu_vfio_pci", "vfio-pci"), 0),
        (("vfio-pci", "nvidia"), 1),
        (("vfio-pci", ""), 1),
    ],
)
async def test_6_3_vfio_pci(world: World, bound: tuple[str, str], code: int) -> None:
    world.label(**{WORKLOAD: "vm-passthrough"})
    world.pci("0000:10:00.0", bound=bound[0])
    world.pci("0000:20:00.0", bound=bound[1], kind="0x030000")
    world.pci("0000:30:00.0", bound="snd_hda_intel", kind="0x040300")
    world.pci("0000:40:00.0", bound="mlx5_core", vendor="0x15b3", kind="0x020000")
    world.pci("0000:10:00.4", bound="nvidia", physfn="")
    assert await world.run("vfio-pci", WITH_WAIT="true") == code
    assert (world.status("vfio-pci-ready") == "") is (code == 0)
    assert (f"0000:20:00.0 ({bound[1] or 'no driver'})" in world.process.stderr) is (code == 1)


async def test_6_3_vfio_pci_without_a_bus(world: World) -> None:
    world.label(**{WORKLOAD: "vm-passthrough"})
    assert await world.run("vfio-pci") == 1
    assert "/sys/bus/pci/devices cannot be read" in world.process.stderr


PFS = [
    # (total, enabled) of each GPU, mdev parents, ready in v26.3.3, in v26.7.0
    ([(0, 0)], 0, True, False),
    ([(0, 0)], 1, True, True),
    ([(16, 16), (16, 16)], 0, True, True),
    ([(16, 16), (16, 0)], 0, False, False),
    ([(16, 0)], 0, False, False),
    ([(16, 0)], 2, False, True),
    ([(16, 4)], 2, False, False),
]


@pytest.mark.parametrize(("functions", "parents", "v26_3", "v26_7"), PFS)
async def test_6_3_vgpu_manager(
    released: World, functions: list[tuple[int, int]], parents: int, v26_3: bool, v26_7: bool
) -> None:
    released.label(**{WORKLOAD: "vm-vgpu"})
    for index, (total, enabled) in enumerate(functions):
        released.pci(f"0000:{index + 1}0:00.0", sriov_totalvfs=str(total), sriov_numvfs=str(enabled))
    for index in range(parents):
        device = f"/sys/devices/pci/0000:{index + 1}0:00.4"
        released.process.write_kernel(f"{device}/vendor", "0x10de\n")
        released.process.kernel.symlink(f"/sys/class/mdev_bus/0000:{index + 1}0:00.4", device)
    ready = v26_3 if released.process.release is Release.V26_3 else v26_7
    began = released.process.monotonic()
    assert await released.run("vgpu-manager") == (0 if ready else 1)
    assert released.process.executed == [("chroot", "/run/nvidia/driver", "nvidia-smi")]
    assert (released.status("vgpu-manager-ready") == "") is ready
    if not ready:
        assert released.process.monotonic() - began >= 290
        assert "300 s after the vGPU manager was there" in released.process.stderr


async def test_6_3_a_vgpu_manager_on_the_host(released: World) -> None:
    released.label(**{WORKLOAD: "vm-vgpu"})
    released.process.write(f"{names.VALIDATIONS_DIR}/vgpu-manager-ready", "")
    released.host_tool()
    released.pci("0000:10:00.0", sriov_totalvfs="4", sriov_numvfs="4")
    assert await released.run("vgpu-manager") == 0
    assert released.status("host-vgpu-manager-ready") == ""
    assert released.status("vgpu-manager-ready") is None
    assert released.process.executed[0][:2] == ("chroot", "/host")


async def test_6_3_vgpu_manager_waits_for_the_tool_but_5_minutes_for_devices(world: World) -> None:
    world.label(**{WORKLOAD: "vm-vgpu"})
    world.pci("0000:10:00.0", sriov_totalvfs="4", sriov_numvfs="2")
    world.smi_code = 9
    world.start("vgpu-manager", WITH_WAIT="true")
    await world.logged("vgpu-manager is not ready")
    world.smi_code = 0
    await world.logged("The vGPU manager's devices are not there yet: 2 of 4 virtual functions are enabled")
    assert await world.ended() == 1
    assert "Error: vgpu-manager validation: 2 of 4 virtual functions" in world.process.stderr


async def test_6_3_vgpu_devices(world: World) -> None:
    world.label(**{WORKLOAD: "vm-vgpu"})
    assert await world.run("vgpu-devices") == 1
    assert "there are no vGPU devices; awaited: the vGPU device manager's pod" in world.process.stderr
    world.start("vgpu-devices", WITH_WAIT="true")
    await world.logged("vgpu-devices is not ready")
    _mdev(world, "0x8086", "a")
    assert world.status("vgpu-devices-ready") is None
    _mdev(world, "0x10de", "b")
    assert await world.ended() == 0
    await until(lambda: world.status("vgpu-devices-ready") == "")


def _mdev(world: World, vendor: str, name: str) -> None:
    parent = f"/sys/devices/pci/0000:{name}0:00.4"
    world.process.write_kernel(f"{parent}/vendor", f"{vendor}\n")
    world.process.kernel.mkdir(f"{parent}/{name}")
    world.process.kernel.symlink(f"/sys/bus/mdev/devices/{name}", f"{parent}/{name}")
