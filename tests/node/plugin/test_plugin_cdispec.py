"""CDI specs of the plugin's devices: what is in them, and what the host calls it (device-plugin-gfd.md 4.5)."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node import config as configs
from groundplane.node.cdi import model
from groundplane.node.cdi.hooks import NAMES
from groundplane.node.cdi.options import GenerateError
from groundplane.node.devices.model import Gpu, Inventory, MigDevice, Profile
from groundplane.node.platforms import Platform
from groundplane.node.plugin import cdispec
from groundplane.node.resources import TEGRA_DEVICE, WSL_DEVICE, PhysicalDevice

VERSION = "580.65.06"
LIB = "/usr/lib/x86_64-linux-gnu"
CUDA = f"{LIB}/libcuda.so.{VERSION}"
GPUS = [
    Gpu(
        index=number,
        uuid=f"GPU-{number}",
        minor=number + 4,
        name="NVIDIA H100",
        bus_id=f"00000000:1{number}:00.0",
        memory_bytes=0,
        compute=(9, 0),
    )
    for number in range(2)
]
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def whole(gpu: Gpu) -> PhysicalDevice:
    return PhysicalDevice(id=gpu.uuid, index=str(gpu.index), paths=(gpu.device_node,), gpu=gpu)


def part(gpu: Gpu, suffix: str = "") -> PhysicalDevice:
    mig = MigDevice(
        slot=0,
        uuid="MIG-1",
        gi=1,
        ci=0,
        profile=Profile(1, 1, 10, suffix),
        memory_mib=0,
        multiprocessors=16,
        gi_slices=1,
        ci_slices=1,
    )
    gpu = msgspec.structs.replace(gpu, mig=True, mig_devices=(mig,))
    return PhysicalDevice(id=mig.uuid, index=f"{gpu.index}:0", gpu=gpu, mig=mig)


class World:
    """A plugin's container with a driver, and the specs that it writes. GPUs are simulated: any file is a node."""

    def __init__(self, folder: Path) -> None:
        self.process = FakeProcess(folder)
        self.platform = Platform.NVML
        self.inventory = Inventory(VERSION, 13000)
        caps = "gpu4/gi1/access 3\ngpu4/gi1/ci0/access 4\n"
        self.process.write_kernel("/proc/driver/nvidia-caps/mig-minors", caps)

    def add(self, *paths: str, root: str = "/driver-root") -> None:
        for path in paths:
            self.process.write(f"{root}{path}", "")

    def link(self, path: str, target: str) -> None:
        self.process.root.symlink(f"/driver-root{path}", target)

    def add_driver(self, root: str = "") -> None:
        """A driver, and nodes below a dev root."""
        caps = "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"
        self.add(*CONTROL, *caps, *(gpu.device_node for gpu in GPUS), root=root)
        self.add(CUDA)
        self.link(f"{LIB}/libcuda.so.1", f"libcuda.so.{VERSION}")

    def specs(self, *devices: PhysicalDevice, channels: tuple[int, ...] = (), **env: str) -> dict[str, Any]:
        """Specs by class, as they are written."""
        self.process.env = {"DEVICE_LIST_STRATEGY": "cdi-cri", "GROUNDPLANE_NULL_DEVICES": "true", **env}
        config = configs.load_plugin(self.process)
        offered = cdispec.Offered(self.platform, self.inventory, devices, channels)
        found = cdispec.specs(self.process, config, offered)
        return {spec.device_class: msgspec.json.decode(model.encode(spec)) for spec in found}

    def gpu(self, *devices: PhysicalDevice, **env: str) -> Any:
        """The spec of GPUs."""
        return self.specs(*(devices or (whole(GPUS[0]),)), **env)["gpu"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def driver(world: World) -> World:
    world.add_driver()
    return world


def nodes(edits: dict[str, Any]) -> list[tuple[str, str]]:
    return [(node["path"], node.get("hostPath", "")) for node in edits.get("deviceNodes", [])]


def mounts(edits: dict[str, Any]) -> list[tuple[str, str]]:
    return [(mount["hostPath"], mount["containerPath"]) for mount in edits.get("mounts", [])]


def edits_of(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device["containerEdits"] for device in spec["devices"]}


def test_gpus_by_uuid(driver: World) -> None:
    spec = driver.gpu(*map(whole, GPUS))
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert spec["cdiVersion"] == "0.3.0"
    assert {name: nodes(edits) for name, edits in edits_of(spec).items()} == {
        "GPU-0": [("/dev/nvidia4", "")],
        "GPU-1": [("/dev/nvidia5", "")],
    }
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec["containerEdits"]["env"]
    assert sorted(nodes(spec["containerEdits"])) == sorted((path, "") for path in CONTROL)


def test_gpus_and_mig_devices_by_index(driver: World) -> None:
    spec = driver.gpu(whole(GPUS[1]), part(GPUS[0]), DEVICE_ID_STRATEGY="index")
    assert spec["cdiVersion"] == "0.5.0"
    assert [device["name"] for device in spec["devices"]] == ["0:0", "1"]
    assert nodes(edits_of(spec)["0:0"]) == [
        ("/dev/nvidia4", ""),
        ("/dev/nvidia-caps/nvidia-cap3", ""),
        ("/dev/nvidia-caps/nvidia-cap4", ""),
    ]


def test_only_what_is_offered_is_there(driver: World) -> None:
    """With MIG strategy none a GPU is handed out as a whole, whatever its MIG mode."""
    in_mig_mode = part(GPUS[0]).gpu
    assert in_mig_mode is not None
    assert list(edits_of(driver.gpu(whole(in_mig_mode)))) == ["GPU-0"]
    assert list(edits_of(driver.gpu(part(GPUS[0])))) == ["MIG-1"]


@pytest.mark.parametrize(
    ("has_dev", "env", "host_driver", "host_dev"),
    [
        (False, {}, "", ""),
        (True, {}, "", ""),
        (True, {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"}, "/run/nvidia/driver", "/run/nvidia/driver"),
        (False, {"NVIDIA_DRIVER_ROOT": "/run/d/", "NVIDIA_DEV_ROOT": "/"}, "/run/d", ""),
        (True, {"NVIDIA_DRIVER_ROOT": "/run/d", "NVIDIA_DEV_ROOT": "/other"}, "/run/d", "/other"),
    ],
)
def test_paths_are_the_hosts(world: World, has_dev: bool, env: dict[str, str], host_driver: str, host_dev: str) -> None:
    world.add_driver("/driver-root" if has_dev else "")
    spec = world.gpu(**env)
    common = spec["containerEdits"]
    assert {host for host, _ in mounts(common)} == {f"{host_driver}{CUDA}"}
    assert common["mounts"][0]["options"] == ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    assert sorted(nodes(common)) == sorted((path, f"{host_dev}{path}" if host_dev else "") for path in CONTROL)
    assert nodes(edits_of(spec)["GPU-0"]) == [("/dev/nvidia4", f"{host_dev}/dev/nvidia4" if host_dev else "")]


def test_missing_nodes_are_told(driver: World) -> None:
    driver.process.path("/dev/nvidia-modeset").unlink()
    assert ("/dev/nvidia-modeset", "") not in nodes(driver.gpu()["containerEdits"])
    assert "no device node /dev/nvidia-modeset" in driver.process.stderr


def test_a_gpu_without_its_node_is_no_device(driver: World) -> None:
    driver.process.path("/dev/nvidia4").unlink()
    with pytest.raises(GenerateError, match="device GPU-0: empty device edits"):
        driver.gpu()


def test_no_driver_is_an_error(world: World) -> None:
    with pytest.raises(GenerateError, match="failed to determine driver version"):
        world.gpu()


def test_libraries_without_hooks_is_the_default(driver: World) -> None:
    common = driver.gpu()["containerEdits"]
    assert "hooks" not in common
    assert {at.rpartition("/")[2] for _, at in mounts(common)} == {"libcuda.so.1", "libcuda.so"}


def hooks(common: dict[str, Any]) -> list[str]:
    return [hook["args"][1] for hook in common.get("hooks", [])]


def test_libraries_by_hooks(driver: World) -> None:
    common = driver.gpu(CDI_LIBRARIES="hooks", NVIDIA_CDI_HOOK_PATH="/usr/local/nvidia/toolkit/nvidia-cdi-hook")[
        "containerEdits"
    ]
    assert mounts(common) == [(CUDA, CUDA)]
    assert {hook["path"] for hook in common["hooks"]} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
    assert {hook["args"][0] for hook in common["hooks"]} == {"nvidia-cdi-hook"}
    assert hooks(common) == [name for name in NAMES if name != "chmod"]


def test_the_hooks_program_if_nothing_else_is_said(driver: World) -> None:
    for hook in driver.gpu(CDI_LIBRARIES="hooks")["containerEdits"]["hooks"]:
        assert hook["path"] == "/usr/bin/nvidia-ctk"
        assert hook["args"][:2] == ["nvidia-ctk", "hook"]


@pytest.mark.parametrize(
    ("disabled", "left"),
    [
        ("all", []),
        ("enable-cuda-compat,update-ldcache", ["create-symlinks", "disable-device-node-modification"]),
    ],
)
def test_hooks_that_are_left_out(driver: World, disabled: str, left: list[str]) -> None:
    found = hooks(
        driver.gpu(CDI_LIBRARIES="hooks", CDI_DISABLE_HOOKS=disabled, NVIDIA_CDI_HOOK_PATH="/h")["containerEdits"]
    )
    assert [name for name in found if name != "update-application-profile"] == left
    assert "no effect" not in driver.process.stderr


def test_features(driver: World) -> None:
    library = f"{LIB}/libnvidia-api.so"
    driver.add(library)
    hosts = {
        feature: {host for host, _ in mounts(driver.gpu(CDI_FEATURE_FLAGS=feature)["containerEdits"])}
        for feature in (
            "enable-explicit-driver-libraries",
            "",
        )
    }
    assert library in hosts["enable-explicit-driver-libraries"]
    assert library not in hosts[""]


@pytest.mark.parametrize(
    ("env", "warning"),
    [
        ({"CDI_FEATURE_FLAGS": "warp"}, "unknown CDI features: warp; known are "),
        (
            {"CDI_DISABLE_HOOKS": "warp", "CDI_LIBRARIES": "hooks"},
            "unknown CDI hooks to leave out: warp; known are all",
        ),
        ({"CDI_DISABLE_HOOKS": "all"}, "have no effect: libraries get into containers without any"),
    ],
)
def test_what_has_no_effect_is_told(driver: World, env: dict[str, str], warning: str) -> None:
    driver.gpu(**env)
    assert warning in driver.process.stderr


def test_1_19_knows_no_disabled_hooks(driver: World) -> None:
    driver.process.release = Release.V26_3
    assert hooks(
        driver.gpu(CDI_LIBRARIES="hooks", CDI_DISABLE_HOOKS="all", NVIDIA_CDI_HOOK_PATH="/h")["containerEdits"]
    )


@pytest.mark.parametrize(
    ("device", "graphics"), [(whole(GPUS[0]), True), (part(GPUS[0]), False), (part(GPUS[0], "+gfx"), True)]
)
def test_graphics_nodes(driver: World, device: PhysicalDevice, graphics: bool) -> None:
    for name in ("card1", "renderD128", "renderD129"):
        driver.process.write_kernel(f"/sys/bus/pci/devices/0000:10:00.0/drm/{name}/dev", "")
    driver.add("/dev/dri/card1", "/dev/dri/renderD128", root="")
    found = nodes(driver.gpu(device)["devices"][0]["containerEdits"])
    dri = [path for path, _ in found if path.startswith("/dev/dri")]
    assert dri == (["/dev/dri/card1", "/dev/dri/renderD128"] if graphics else [])


def test_null_devices(driver: World) -> None:
    spec = driver.gpu()
    for edits in (spec["containerEdits"], spec["devices"][0]["containerEdits"]):
        assert {(node["type"], node["major"], node["minor"]) for node in edits["deviceNodes"]} == {("c", 1, 3)}


def test_only_character_devices_are_nodes(driver: World) -> None:
    with pytest.raises(GenerateError, match="empty device edits"):
        driver.gpu(GROUNDPLANE_NULL_DEVICES="false")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_real_nodes_are_looked_up(driver: World) -> None:
    real = driver.process.path("/dev/nvidia4")
    real.unlink()
    try:
        os.mknod(real, 0o020666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    (node,) = driver.gpu(GROUNDPLANE_NULL_DEVICES="false")["devices"][0]["containerEdits"]["deviceNodes"]
    assert (node["major"], node["minor"], node["permissions"]) == (1, 3, "rwm")


@pytest.mark.parametrize("strategy", ["uuid", "index"])
def test_wsl_has_one_device(world: World, strategy: str) -> None:
    world.platform = Platform.WSL
    world.add("/dev/dxg", root="")
    world.add("/usr/lib/wsl/drivers/nv_1/libcuda.so.1.1", "/usr/lib/wsl/lib/libdxcore.so")
    spec = world.gpu(WSL_DEVICE, DEVICE_ID_STRATEGY=strategy)
    assert {name: nodes(edits) for name, edits in edits_of(spec).items()} == {"all": [("/dev/dxg", "")]}
    assert "/usr/lib/wsl/lib/libdxcore.so" in {host for host, _ in mounts(spec["containerEdits"])}


@pytest.mark.parametrize(("strategy", "name"), [("uuid", "tegra"), ("index", "0")])
@pytest.mark.parametrize("asked", [False, True])
def test_tegra_has_one_device_by_the_name_that_is_handed_out(
    world: World, strategy: str, name: str, asked: bool
) -> None:
    world.platform = Platform.TEGRA
    world.inventory = Inventory(VERSION if asked else "", 13000 if asked else 0)
    world.add("/dev/nvhost-gpu", root="")
    world.process.write(
        "/etc/nvidia-container-runtime/host-files-for-container.d/devices.csv", "dev, /dev/nvhost-gpu\n"
    )
    spec = world.gpu(TEGRA_DEVICE, DEVICE_ID_STRATEGY=strategy, CDI_LIBRARIES="hooks")
    assert ("--host-cuda-version=13.0" in str(spec)) == ("host-cuda-version" in str(spec)) == asked
    assert {name: nodes(edits) for name, edits in edits_of(spec).items()} == {name: [("/dev/nvhost-gpu", "")]}


def test_imex_channels(world: World) -> None:
    path = "/dev/nvidia-caps-imex-channels/channel0"
    world.add(path, root="")
    spec = world.specs(channels=(0,), NVIDIA_DEV_ROOT="/run/d")["imex-channel"]
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/imex-channel"
    assert {name: nodes(edits) for name, edits in edits_of(spec).items()} == {"0": [(path, f"/run/d{path}")]}
    assert spec["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_an_imex_channels_numbers_are_left_to_the_runtime(world: World) -> None:
    path = "/dev/nvidia-caps-imex-channels/channel0"
    real = world.process.path(path)
    real.parent.mkdir(parents=True)
    try:
        os.mknod(real, 0o020666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    spec = world.specs(channels=(0,), GROUNDPLANE_NULL_DEVICES="false")["imex-channel"]
    assert spec["devices"][0]["containerEdits"] == {"deviceNodes": [{"path": path}]}


MODES = [
    ("gdrcopy", "GDRCOPY_ENABLED", ["/dev/gdrdrv"], []),
    ("gds", "GDS_ENABLED", ["/dev/nvidia-fs0", "/dev/nvidia-fs1"], ["/etc/cufile.json", "/run/udev/x"]),
    ("mofed", "MOFED_ENABLED", ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"], []),
]


@pytest.mark.parametrize(("mode", "flag", "paths", "files"), MODES)
def test_modes(world: World, mode: str, flag: str, paths: list[str], files: list[str]) -> None:
    world.add(*paths, *files)
    spec = world.specs(**{flag: "true"})[mode]
    assert spec["kind"] == f"k8s.device-plugin.nvidia.com/{mode}"
    (name, edits), *more = edits_of(spec).items()
    assert (name, more) == ("all", [])
    assert [path for path, _ in nodes(edits)] == paths
    wanted = {"gds": ["/etc/cufile.json", "/run/udev"]}.get(mode, [])
    assert [host for host, _ in mounts(edits)] == wanted
    assert mode not in world.specs()


@pytest.mark.parametrize(("mode", "flag", "paths", "files"), MODES)
def test_a_mode_without_nodes_is_left_out(
    world: World, mode: str, flag: str, paths: list[str], files: list[str]
) -> None:
    world.add(*files)
    assert world.specs(**{flag: "true"}) == {}
    assert f"{mode} is enabled, but none of" in world.process.stderr


def test_specs_of_an_earlier_start_go(world: World) -> None:
    gpu = model.Spec(kind=cdispec.kind("gpu"), devices=(model.Device("a", model.ContainerEdits(env=("A=B",))),))
    gds = model.Spec(kind=cdispec.kind("gds"), devices=gpu.devices)
    folder = world.process.path("/var/run/cdi")
    assert cdispec.write_all([gpu, gds], world.process.path) == ("gpu", "gds")
    (folder / "other.json").write_text("")
    assert cdispec.write_all([gpu], world.process.path) == ("gpu",)
    assert sorted(path.name for path in folder.iterdir()) == ["k8s.device-plugin.nvidia.com-gpu.json", "other.json"]
