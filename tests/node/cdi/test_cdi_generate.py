"""Specs of GPUs and of management containers (contracts/toolkit-cdi.md 2, 3.1 to 3.7)."""

import os
import stat
from pathlib import Path

import msgspec
import pytest
from node.cdi import gpuworld
from node.cdi.gpuworld import World, gpu, hook_args, links, mig, mounts, named, node_paths
from node.cdi.loadercache import X86_64, cache

from groundplane.api.release import Release
from groundplane.node.cdi import generate, hooks
from groundplane.node.cdi.model import ContainerEdits, Device, DeviceNode, Mount, minimum_version
from groundplane.node.cdi.options import GenerateError, Libraries, Mode, Strategy
from groundplane.node.cdi.roots import Roots
from groundplane.node.devices.model import Profile
from testing.driverroots import Kind

ALL_STRATEGIES = (Strategy.INDEX, Strategy.TYPE_INDEX, Strategy.UUID)
ROOT = "/run/nvidia/driver"
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
IPC = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
GFX = Profile(1, 1, 12, "+gfx")
CAPABILITIES = ("gpu1/gi3/access 21", "gpu1/gi3/ci0/access 22", "gpu1/gi5/access 31", "gpu1/gi5/ci1/access 32")


def mig_world(folder: Path, *, graphics: bool = False) -> World:
    devices = (mig(0, 3, profile=GFX if graphics else None), mig(1, 5, ci=1))
    world = World(folder, (gpu(0, mig=True, mig_devices=devices), gpu(1, mig=False)))
    world.capabilities("config 1", "bad line", *CAPABILITIES)
    return world


# --- 3.1, 3.2: kinds, names, ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategies", "names"),
    [
        ((Strategy.INDEX,), ["0:0", "0:1", "1", "all"]),
        ((Strategy.TYPE_INDEX,), ["all", "gpu1", "mig0:0", "mig0:1"]),
        ((Strategy.UUID,), [gpu(1).uuid, mig(0, 3).uuid, mig(1, 5).uuid, "all"]),
        ((Strategy.INDEX, Strategy.INDEX), ["0:0", "0:1", "1", "all"]),
    ],
)
def test_names_of_devices(tmp_path: Path, strategies: tuple[Strategy, ...], names: list[str]) -> None:
    spec = mig_world(tmp_path).generate(strategies=strategies)
    assert named(spec) == names
    assert spec.kind == "nvidia.com/gpu"


def test_a_device_has_the_same_edits_under_each_of_its_names(tmp_path: Path) -> None:
    spec = World(tmp_path, (gpu(0),)).generate(strategies=ALL_STRATEGIES)
    assert named(spec) == ["0", gpu(0).uuid, "all", "gpu0"]
    assert len({each.container_edits for each in spec.devices}) == 1


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (("all",), ["0:0", "0:1", "1"]),
        (("1", "all"), ["0:0", "0:1", "1"]),
        (("1",), ["1"]),
        (("0:1",), ["0:1"]),
        ((gpu(1).uuid,), ["1"]),
        ((mig(0, 3).uuid, "0:0", "1"), ["0:0", "1"]),
        ((f"MIG-{gpu(0).uuid}/5/1",), ["0:1"]),
    ],
)
def test_ids_name_devices(tmp_path: Path, ids: tuple[str, ...], names: list[str]) -> None:
    assert named(mig_world(tmp_path).generate(device_ids=ids, all_device=False)) == names


@pytest.mark.parametrize(
    "text", ["7", "0:9", "GPU-none", "MIG-none", f"MIG-{gpu(0).uuid}/5/9", "gpu0", "", "-1", "1:0"]
)
def test_an_id_that_names_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(GenerateError, match=r"unknown device id .*there are 1, 0:0, 0:1"):
        mig_world(tmp_path).generate(device_ids=(text,))


@pytest.mark.parametrize("text", ["0", gpu(0).uuid])
def test_a_gpu_in_mig_mode_is_no_device(tmp_path: Path, text: str) -> None:
    with pytest.raises(GenerateError, match="is in MIG mode, and no device as a whole"):
        mig_world(tmp_path).generate(device_ids=(text,))


def test_none_anywhere_is_the_only_device_and_has_no_all_beside_it(tmp_path: Path) -> None:
    spec = World(tmp_path, (gpu(0),)).generate(device_ids=("0", "none", "all"))
    assert spec.devices == (Device("none", ContainerEdits(env=("NVCT_EMPTY_DEVICE=",))),)
    assert f"{LIBRARIES}/libcuda.so.{gpuworld.VERSION}" in mounts(spec)


def test_all_has_the_edits_of_every_device_and_may_be_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0), gpu(1)))
    assert node_paths(world.generate(), "all") == ["/dev/nvidia1", "/dev/nvidia2"]
    assert named(world.generate(all_device=False)) == ["0", "1"]


def test_mig_mode_without_mig_devices_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GenerateError, match=r"there are no devices .*empty device edits.*make MIG devices"):
        World(tmp_path, (gpu(0, mig=True),)).generate()


def test_no_device_nodes_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    (world.process.root.base / "dev/nvidia1").unlink()
    with pytest.raises(GenerateError, match=r"device 0: empty device edits; are the device nodes below /\?"):
        world.generate()


def test_a_library_that_is_missing_is_an_error_in_mode_nvml(tmp_path: Path) -> None:
    with pytest.raises(GenerateError, match=r"mode nvml: the GPUs cannot be read: libnvidia-ml\.so\.1"):
        World(tmp_path).generate()


def test_the_kind_may_be_given(tmp_path: Path) -> None:
    assert World(tmp_path, (gpu(0),)).generate(kind="example.com/x.y").kind == "example.com/x.y"


@pytest.mark.parametrize(
    ("files", "library", "gpus", "mode"),
    [
        ((), True, ("NVIDIA H100",), Mode.NVML),
        ((), False, (), Mode.NVML),
        (("/etc/nv_tegra_release",), False, (), Mode.CSV),
        (("/etc/nv_tegra_release",), True, ("NVIDIA H100",), Mode.NVML),
        (("/etc/nv_tegra_release",), True, ("Orin (nvgpu)",), Mode.CSV),
        (("/etc/nv_tegra_release",), True, ("Orin (nvgpu)", "NVIDIA RTX 6000"), Mode.NVML),
        (("/usr/lib/wsl/lib/libdxcore.so",), True, ("NVIDIA H100",), Mode.WSL),
    ],
)
def test_the_mode_auto_is_told_from_the_machine(
    tmp_path: Path, files: tuple[str, ...], library: bool, gpus: tuple[str, ...], mode: Mode
) -> None:
    world = World(tmp_path, [gpu(number, name=name) for number, name in enumerate(gpus)], driver=False)
    for path in files:
        world.process.write(path, "x")
    assert generate.resolve(world.process, world.source, Roots.of("/")) is mode
    assert ("kind is not known" in world.process.stderr) == (mode is Mode.NVML and not library)


# --- 3.3: device nodes ------------------------------------------------------------------------------------------------


def test_nodes_of_gpus_are_named_by_minor_number(tmp_path: Path) -> None:
    spec = World(tmp_path, (gpu(0, minor=7),)).generate()
    assert node_paths(spec, "0") == ["/dev/nvidia7"]


def test_common_nodes(tmp_path: Path) -> None:
    spec = World(tmp_path, (gpu(0),)).generate()
    found = [each.path for each in spec.container_edits.device_nodes]
    assert found == ["/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]


def test_a_common_node_that_is_missing_is_told_of_and_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    (world.process.root.base / "dev/nvidia-modeset").unlink()
    assert len(world.generate().container_edits.device_nodes) == 3
    assert "no device node /dev/nvidia-modeset" in world.process.stderr


def test_nodes_for_graphics_and_links_by_path(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0), gpu(1)))
    world.drm(gpu(0), 0)
    world.drm(gpu(1), 1)
    spec = world.generate()
    assert node_paths(spec, "1") == ["/dev/nvidia2", "/dev/dri/card1", "/dev/dri/renderD129"]
    (hook,) = next(each for each in spec.devices if each.name == "1").container_edits.hooks
    assert hook.args == (
        *("nvidia-cdi-hook", "create-symlinks", "--link", "../card1::/dev/dri/by-path/pci-0000:0b:00.0-card"),
        *("--link", "../renderD129::/dev/dri/by-path/pci-0000:0b:00.0-render"),
    )


def test_a_link_by_path_to_a_node_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    world.drm(gpu(0), 0)
    (world.process.root.base / "dev/dri/renderD128").unlink()
    (device, _) = world.generate().devices
    assert [each.args[2:] for each in device.container_edits.hooks] == [
        ("--link", "../card0::/dev/dri/by-path/pci-0000:0a:00.0-card")
    ]


@pytest.mark.parametrize("graphics", [False, True])
def test_nodes_of_mig_devices(tmp_path: Path, graphics: bool) -> None:
    world = mig_world(tmp_path, graphics=graphics)
    world.drm(gpu(0), 0)
    spec = world.generate()
    dri = ["/dev/dri/card0", "/dev/dri/renderD128"] if graphics else []
    assert node_paths(spec, "0:0") == [
        *("/dev/nvidia1", *dri, "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    ]
    assert node_paths(spec, "0:1") == [
        *("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap31", "/dev/nvidia-caps/nvidia-cap32")
    ]
    assert bool(spec.devices[0].container_edits.hooks) == graphics


def test_a_mig_device_without_capability_is_an_error(tmp_path: Path) -> None:
    world = mig_world(tmp_path)
    world.capabilities(*CAPABILITIES[:-1])
    with pytest.raises(GenerateError, match=r"capability gpu1/gi5/ci1/access is missing in /proc/driver/nvidia-caps"):
        world.generate()


def test_simulated_nodes_are_the_null_device(tmp_path: Path) -> None:
    spec = World(tmp_path, (gpu(0),)).generate()
    (node,) = spec.devices[0].container_edits.device_nodes
    assert node == DeviceNode("/dev/nvidia1", type="c", major=1, minor=3)


def test_an_ordinary_file_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(GenerateError, match="empty device edits"):
        World(tmp_path, (gpu(0),)).generate(null_devices=False)


def test_nodes_that_are_elsewhere_are_found_there(tmp_path: Path) -> None:
    """On a simulated machine the driver's nodes are not in the container's /dev (`ownprocess`)."""
    world = World(tmp_path)
    elsewhere = tmp_path / "machine"
    for name in ("nvidia0", "nvidia-caps/nvidia-cap1"):
        (elsewhere / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / "dev" / name).touch()
    plain = world.process.path
    world.process.path = lambda path: elsewhere / path[1:] if path.startswith("/dev/nvidia") else plain(path)  # type: ignore[method-assign]
    assert node_paths(world.generate(Mode.MANAGEMENT), "all") == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"]


def _made(path: Path, mode: int, device: tuple[int, int], gid: int = 0) -> None:
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(*device))
        path.chmod(mode)
        os.chown(path, 0, gid)
    except PermissionError:
        pytest.skip("device nodes cannot be made here")


@pytest.mark.parametrize(
    ("mode", "gid", "group"),
    [(0o666, 0, ()), (0o660, 44, (44,)), (0o664, 44, (44,)), (0o666, 44, ()), (0o662, 44, (44,)), (0o660, 0, ())],
)
def test_what_is_written_of_a_node(tmp_path: Path, mode: int, gid: int, group: tuple[int, ...]) -> None:
    world = World(tmp_path, (gpu(0),))
    for name, minor in (("nvidia1", 1), *((each, 255) for each in gpuworld.CONTROL)):
        _made(world.process.root.base / "dev" / name, mode, (195, minor), gid)
    spec = world.generate(null_devices=False)
    edits = spec.devices[0].container_edits
    assert edits.device_nodes == (
        DeviceNode("/dev/nvidia1", major=195, minor=1, file_mode=mode, permissions="rwm", gid=gid or None),
    )
    assert edits.additional_gids == group
    assert minimum_version(spec) == ("0.7.0" if group else "0.5.0")
    without = world.generate(null_devices=False, features=frozenset({"no-additional-gids-for-device-nodes"}))
    assert without.devices[0].container_edits.additional_gids == ()


def test_minor_number_0_is_not_written(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0, minor=0),))
    _made(world.process.root.base / "dev/nvidia0", 0o666, (195, 0))
    (node,) = world.generate(null_devices=False).devices[0].container_edits.device_nodes
    assert "minor" not in msgspec.to_builtins(node)


MANAGED = ("nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel7", "nvidia-vgpu0")
NOT_MANAGED = ("nvidia-fs0", "nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvlink", "dri/card0", "sda")


def test_management_containers_get_every_node_of_the_driver(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.nodes(*MANAGED, *NOT_MANAGED)
    spec = world.generate(Mode.MANAGEMENT)
    assert (spec.kind, named(spec)) == ("management.nvidia.com/gpu", ["all"])
    assert set(node_paths(spec, "all")) == {f"/dev/{each}" for each in (*MANAGED, *gpuworld.CONTROL)}
    assert not spec.container_edits.device_nodes


def test_management_without_nodes_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in gpuworld.CONTROL:
        (world.process.root.base / "dev" / name).unlink()
    world.nodes(*NOT_MANAGED)
    with pytest.raises(GenerateError, match="no NVIDIA device nodes found"):
        world.generate(Mode.MANAGEMENT)


# --- 3.4: what all containers get -------------------------------------------------------------------------------------


def test_environment(tmp_path: Path) -> None:
    spec = World(tmp_path, (gpu(0),)).generate()
    assert spec.container_edits.env == (f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}", "NVIDIA_VISIBLE_DEVICES=void")


@pytest.mark.parametrize(
    ("release", "folders"),
    [(Release.V26_3, LIBRARIES), (Release.V26_7, f"{LIBRARIES}:{LIBRARIES}/nvidia/current")],
)
def test_libraries_in_several_folders(tmp_path: Path, release: Release, folders: str) -> None:
    world = World(tmp_path, (gpu(0),), release=release)
    other = f"{LIBRARIES}/nvidia/current/libnvidia-other.so.{gpuworld.VERSION}"
    world.process.write(other, "x")
    spec = world.generate()
    assert spec.container_edits.env[0] == f"NVIDIA_CTK_LIBCUDA_DIR={folders}"
    assert (other in mounts(spec)) == (release is Release.V26_7)


@pytest.mark.parametrize("release", list(Release))
def test_every_versioned_library_is_mounted_and_no_other(tmp_path: Path, release: Release) -> None:
    world = World(tmp_path, (gpu(0),), release=release)
    for name in ("libc.so.6", "libnvidia-ml.so.570.1", "other.so"):
        world.process.write(f"{LIBRARIES}/{name}", "x")
    found = mounts(world.generate(Mode.MANAGEMENT))
    there = {path.name for path in (world.process.root.base / LIBRARIES[1:]).iterdir() if not path.is_symlink()}
    versioned = {name for name in there if name.endswith(f".so.{gpuworld.VERSION}")}
    extra = {"libnvidia-nvvm70.so.4"} if release is Release.V26_7 else set()
    in_folder = {path.rpartition("/")[2] for path in found if path.startswith(f"{LIBRARIES}/lib")}
    assert in_folder == versioned | extra
    assert found[f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{gpuworld.VERSION}"]


def test_mounts_are_read_only_but_for_sockets(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    (world.process.root.base / "tmp/nvidia-mps").mkdir(parents=True)
    for mount in world.generate().container_edits.mounts:
        ipc = mount.container_path in ("/run/nvidia-persistenced/socket", "/tmp/nvidia-mps")
        assert mount.options == (IPC if ipc else READ_ONLY)
        assert mount.host_path == mount.container_path or mount.container_path.startswith("/etc/vulkan/")


IPC_CASES = [
    (("/run/nvidia-persistenced/socket",), ("/run/nvidia-persistenced/socket",)),
    (("/var/run/nvidia-fabricmanager/socket",), ("/var/run/nvidia-fabricmanager/socket",)),
    (
        ("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
        ("/run/nvidia-fabricmanager/socket",),
    ),
    (("/tmp/nvidia-mps/control",), ("/tmp/nvidia-mps",)),
    ((), ()),
]


@pytest.mark.parametrize(("files", "expected"), IPC_CASES)
def test_sockets_of_daemons(tmp_path: Path, files: tuple[str, ...], expected: tuple[str, ...]) -> None:
    world = World(tmp_path, driver=False)
    world.process.write(f"{LIBRARIES}/libcuda.so.1.2", "x")
    for path in files:
        world.process.write(path, "")
    spec = world.generate(Mode.MANAGEMENT)
    assert tuple(each.container_path for each in spec.container_edits.mounts if each.options == IPC) == expected
    without = world.generate(Mode.MANAGEMENT, features=frozenset({"disable-ipc-discoverer"}))
    assert not [each for each in without.container_edits.mounts if each.options == IPC]


@pytest.mark.parametrize(
    "folder",
    [
        "/custom/fw",
        "/lib/firmware/updates/6.8.0-test",
        "/lib/firmware/updates",
        "/lib/firmware/6.8.0-test",
        "/lib/firmware",
    ],
)
def test_firmware(tmp_path: Path, folder: str) -> None:
    world = World(tmp_path, driver=False)
    world.process.write(f"{LIBRARIES}/libcuda.so.1.2", "x")
    world.process.write_kernel("/sys/module/firmware_class/parameters/path", "/custom/fw\n")
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin", "other.bin"):
        world.process.write(f"{folder}/nvidia/1.2/{name}", "x")
    found = [path for path in mounts(world.generate(Mode.MANAGEMENT)) if "firmware" in path or "/fw/" in path]
    assert found == [f"{folder}/nvidia/1.2/gsp_ga10x.bin", f"{folder}/nvidia/1.2/gsp_tu10x.bin"]


MANAGED_BINARIES = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nvidia-imex", "nvidia-imex-ctl"),
)


def test_programs_are_the_first_executable_in_the_search_path(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),), driver=False, env={"PATH": "/opt/bin:/usr/bin:relative"})
    world.process.write(f"{LIBRARIES}/libcuda.so.{gpuworld.VERSION}", "x")
    for name in (*MANAGED_BINARIES, "nvidia-xconfig", "other"):
        for folder, mode in (("/opt/bin", 0o644), ("/bin", 0o755), ("/usr/local/sbin", 0o755)):
            world.process.write(f"{folder}/{name}", "x").chmod(mode)
    found = set(mounts(world.generate(Mode.MANAGEMENT)))
    assert found == {
        f"{LIBRARIES}/libcuda.so.{gpuworld.VERSION}",
        *(f"/usr/local/sbin/{each}" for each in MANAGED_BINARIES),
    }
    assert set(mounts(world.generate())) - found == {"/usr/local/sbin/nvidia-xconfig"}


CONFIGS = (
    *("glvnd/egl_vendor.d/10_nvidia.json", "egl/egl_external_platform.d/15_nvidia_gbm.json"),
    *("egl/egl_external_platform.d/10_nvidia_wayland.json", "egl/egl_external_platform.d/09_nvidia_wayland2.json"),
    *("egl/egl_external_platform.d/20_nvidia_xcb.json", "egl/egl_external_platform.d/20_nvidia_xlib.json"),
    *("nvidia/nvoptix.bin", "X11/xorg.conf.d/10-nvidia.conf", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    "OpenCL/vendors/nvidia.icd",
)
VULKAN = (
    *("vulkan/icd.d/nvidia_icd.json", "vulkan/icd.d/nvidia_layers.json", "vulkan/implicit_layer.d/nvidia_layers.json"),
    "vulkan/icd.d/nvidia_icd.x86_64.json",
)


def bare(folder: Path, **more: object) -> World:
    """A machine with a GPU and one library of a driver."""
    world = World(folder, (gpu(0),), driver=False, **more)  # type: ignore[arg-type]
    world.process.write(f"{LIBRARIES}/libcuda.so.{gpuworld.VERSION}", "x")
    return world


@pytest.mark.parametrize("folder", ["/etc", "/usr/local/share", "/usr/share"])
@pytest.mark.parametrize("name", CONFIGS)
def test_configuration_files(tmp_path: Path, folder: str, name: str) -> None:
    world = bare(tmp_path)
    world.process.write(f"{folder}/{name}", "x")
    assert mounts(world.generate())[f"{folder}/{name}"] == f"{folder}/{name}"
    assert not any(name in path for path in mounts(world.generate(Mode.MANAGEMENT)))


def test_opencl_is_there_since_1_20(tmp_path: Path) -> None:
    world = bare(tmp_path, release=Release.V26_3)
    world.process.write("/etc/OpenCL/vendors/nvidia.icd", "x")
    assert not any("OpenCL" in path for path in mounts(world.generate()))


def test_folders_of_data_are_those_of_the_environment(tmp_path: Path) -> None:
    world = bare(tmp_path, env={"XDG_DATA_DIRS": "/opt/share:/other"})
    for folder in ("/opt/share", "/usr/share"):
        world.process.write(f"{folder}/nvidia/nvoptix.bin", "x")
    assert [path for path in mounts(world.generate()) if "nvoptix" in path] == ["/opt/share/nvidia/nvoptix.bin"]


def test_folders_of_configuration_may_be_given(tmp_path: Path) -> None:
    world = bare(tmp_path)
    for folder in ("/opt/config", "/etc"):
        world.process.write(f"{folder}/nvidia/nvoptix.bin", "x")
    found = mounts(world.generate(config_search_paths=("/opt/config",)))
    assert [path for path in found if "nvoptix" in path] == ["/opt/config/nvidia/nvoptix.bin"]


@pytest.mark.parametrize("folder", ["/etc", "/usr/share", ""])
@pytest.mark.parametrize("name", VULKAN)
def test_vulkan_files_are_below_etc_in_the_container(tmp_path: Path, folder: str, name: str) -> None:
    world = bare(tmp_path)
    world.process.write(f"{folder}/{name}", "x")
    assert mounts(world.generate())[f"/etc/{name}"] == f"{folder}/{name}"


@pytest.mark.parametrize(
    "name",
    [
        "libnvidia-egl-gbm.so.1.1.2",
        "libnvidia-egl-wayland.so.1.1.19",
        "libnvidia-egl-wayland2.so.1.0.0",
        "libnvidia-egl-xcb.so.1.0.3",
        "libnvidia-egl-xlib.so.1.0.3",
    ],
)
def test_graphics_libraries_have_versions_of_their_own(tmp_path: Path, name: str) -> None:
    world = bare(tmp_path)
    world.process.write(f"{LIBRARIES}/{name}", "x")
    assert f"{LIBRARIES}/{name}" in mounts(world.generate())
    assert f"{LIBRARIES}/{name}" not in mounts(world.generate(Mode.MANAGEMENT))


@pytest.mark.parametrize(
    "folder",
    [
        f"{LIBRARIES}/nvidia/xorg",
        f"{LIBRARIES}/xorg/modules/drivers",
        "/usr/lib/xorg/modules/extensions",
        "/usr/lib64/xorg/modules/updates/drivers",
        "/usr/X11R6/lib64/modules/extensions",
    ],
)
def test_modules_of_x(tmp_path: Path, folder: str) -> None:
    world = bare(tmp_path)
    names = ("nvidia_drv.so", f"libglxserver_nvidia.so.{gpuworld.VERSION}")
    for name in names:
        world.process.write(f"{folder}/{name}", "x")
    spec = world.generate()
    assert {f"{folder}/{name}" for name in names} <= set(mounts(spec))
    assert f"{names[1]}::{folder}/libglxserver_nvidia.so" in links(spec)


def test_features_add_and_remove_libraries(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    world.process.write(f"{LIBRARIES}/libEGL.so", "x")
    plain = set(mounts(world.generate()))
    explicit = set(mounts(world.generate(features=frozenset({"enable-explicit-driver-libraries"}))))
    assert explicit - plain == {f"{LIBRARIES}/libEGL.so"}
    without = set(mounts(world.generate(features=frozenset({"disable-graphics"}))))
    assert without < plain
    assert not [path for path in without if "GLX" in path or "egl" in path or "xorg" in path]
    assert f"{LIBRARIES}/libnvidia-encode.so.{gpuworld.VERSION}" in without


# --- the driver's version ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("libraries", "version"),
    [
        (("libcuda.so.580.95.05",), "580.95.05"),
        (("libcuda.so.580.95",), "580.95"),
        (("libnvidia-ml.so.570.1.2",), "570.1.2"),
        (("libcuda.so.580.1.1", "libnvidia-ml.so.570.1.2"), "580.1.1"),
    ],
)
def test_the_version_is_told_from_files_where_the_library_does_not_tell(
    tmp_path: Path, libraries: tuple[str, ...], version: str
) -> None:
    world = World(tmp_path, driver=False)
    for name in libraries:
        world.process.write(f"/usr/lib64/{name}", "x")
    args = {each[0]: each for each in hook_args(world.generate(Mode.MANAGEMENT))}
    assert args["enable-cuda-compat"] == ("enable-cuda-compat", f"--host-driver-version={version}")


def test_of_two_versions_the_one_that_programs_load_counts(tmp_path: Path) -> None:
    world = World(tmp_path, version="580.95.05")
    world.process.write(f"{LIBRARIES}/libcuda.so.535.1.1", "left behind")
    assert f"{LIBRARIES}/libcuda.so.580.95.05" in mounts(world.generate(Mode.MANAGEMENT))


def test_what_the_library_says_counts(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),), version="580.95.05")
    world.process.write(f"{LIBRARIES}/libcuda.so.999.1.1", "newer")
    assert f"{LIBRARIES}/libcuda.so.999.1.1" not in mounts(world.generate())


@pytest.mark.parametrize("mode", [Mode.NVML, Mode.MANAGEMENT])
def test_no_version_is_an_error(tmp_path: Path, mode: Mode) -> None:
    with pytest.raises(GenerateError, match=r"failed to determine driver version: libcuda\.so\..* below /;"):
        World(tmp_path, (gpu(0),), driver=False).generate(mode)


def test_libraries_are_found_by_the_loaders_cache(tmp_path: Path) -> None:
    world = World(tmp_path, driver=False)
    folder = "/opt/nvidia/lib"
    world.process.write(f"{folder}/libcuda.so.580.1", "x")
    world.process.root.symlink(f"{folder}/libcuda.so.1", "libcuda.so.580.1")
    world.process.write("/etc/ld.so.cache", cache((X86_64, f"{folder}/libcuda.so.1"), (X86_64, "/gone/libx.so.1")))
    assert list(mounts(world.generate(Mode.MANAGEMENT))) == [f"{folder}/libcuda.so.580.1"]


def test_a_cache_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    world = World(tmp_path, driver=False)
    world.process.write("/etc/ld.so.cache", "no cache")
    with pytest.raises(GenerateError, match="failed to determine driver version"):
        world.generate(Mode.MANAGEMENT)
    assert "/etc/ld.so.cache cannot be used" in world.process.stderr


def test_folders_of_libraries_may_be_given(tmp_path: Path) -> None:
    world = World(tmp_path, driver=False, driver_root=ROOT)
    world.process.write(f"{ROOT}/opt/lib/libcuda.so.580.1", "x")
    spec = world.generate(Mode.MANAGEMENT, library_search_paths=(f"{ROOT}/opt/lib",))
    assert mounts(spec) == {"/opt/lib/libcuda.so.580.1": f"{ROOT}/opt/lib/libcuda.so.580.1"}


FOLDERS = (
    *("/", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/lib/x86_64-linux-gnu"),
    *("/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current"),
    *("/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu/nvidia/current", "/lib/aarch64-linux-gnu/nvidia/current"),
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_that_are_searched(tmp_path: Path, folder: str) -> None:
    world = World(tmp_path, driver=False)
    world.process.write(f"{folder}/libcuda.so.580.1", "x")
    assert list(mounts(world.generate(Mode.MANAGEMENT))) == [f"{folder.rstrip('/')}/libcuda.so.580.1"]


# --- 3.5: hooks -------------------------------------------------------------------------------------------------------


ORDER = ["create-symlinks", "create-symlinks", "enable-cuda-compat", "update-ldcache"]
CASES = [
    (Mode.NVML, Release.V26_7, [*ORDER, "disable-device-node-modification", "update-application-profile"]),
    (Mode.NVML, Release.V26_3, [*ORDER, "disable-device-node-modification"]),
    (Mode.MANAGEMENT, Release.V26_7, ORDER[1:]),
    (Mode.MANAGEMENT, Release.V26_3, ["create-symlinks", "update-ldcache"]),
]


@pytest.mark.parametrize(("mode", "release", "names"), CASES)
def test_which_hooks_there_are_in_which_order(tmp_path: Path, mode: Mode, release: Release, names: list[str]) -> None:
    spec = World(tmp_path, (gpu(0),), release=release).generate(mode)
    assert [args[0] for args in hook_args(spec)] == names


def test_how_a_hook_is_written(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    for hook in world.generate().container_edits.hooks:
        assert (hook.hook_name, hook.path, hook.args[0]) == (
            "createContainer",
            "/usr/bin/nvidia-cdi-hook",
            "nvidia-cdi-hook",
        )
        assert (hook.env, hook.timeout) == (("NVIDIA_CTK_DEBUG=false",), None)
    for hook in world.generate(hook_path="/opt/bin/nvidia-ctk").container_edits.hooks:
        assert (hook.path, hook.args[:2]) == ("/opt/bin/nvidia-ctk", ("nvidia-ctk", "hook"))


def test_arguments_of_hooks(tmp_path: Path) -> None:
    spec = World(tmp_path, (gpu(0),)).generate(ldconfig_path="@/sbin/ldconfig")
    found = hook_args(spec)
    assert found[2] == ("enable-cuda-compat", f"--host-driver-version={gpuworld.VERSION}")
    assert found[3] == (
        *("update-ldcache", "--ldconfig-path", "@/sbin/ldconfig", "--folder", LIBRARIES),
        *("--folder", f"{LIBRARIES}/vdpau"),
    )
    assert found[4:] == [("disable-device-node-modification",), ("update-application-profile",)]


@pytest.mark.parametrize("release", list(Release))
def test_without_folders_there_is_no_hook_for_the_cache_since_1_20(tmp_path: Path, release: Release) -> None:
    world = World(tmp_path, driver=False, release=release)
    made = hooks.Hooks(world.wanted(), release).update_ldcache(())
    assert [each.args[1:] for each in made] == ([] if release is Release.V26_7 else [("update-ldcache",)])


def test_links_that_hooks_make(tmp_path: Path) -> None:
    found = links(World(tmp_path, (gpu(0),), kind=Kind.CONTAINER).generate())
    version = gpuworld.VERSION
    assert {
        f"libcuda.so.1::{LIBRARIES}/libcuda.so",
        f"libcuda.so.{version}::{LIBRARIES}/libcuda.so.1",
        f"libGLX_nvidia.so.{version}::{LIBRARIES}/libGLX_indirect.so.0",
        f"libnvidia-opticalflow.so.1::{LIBRARIES}/libnvidia-opticalflow.so",
        f"libnvidia-ml.so.{version}::{LIBRARIES}/libnvidia-ml.so.1",
        f"libnvidia-ml.so.1::{LIBRARIES}/libnvidia-ml.so",
        f"../libnvidia-allocator.so.1::{LIBRARIES}/gbm/nvidia-drm_gbm.so",
        f"libvdpau_nvidia.so.{version}::{LIBRARIES}/vdpau/libvdpau_nvidia.so.1",
    } <= found
    assert not [link for link in found if link.startswith("libnvidia-glcore")]


def test_a_link_that_the_host_has_not_is_not_made(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    (world.process.root.base / LIBRARIES[1:] / "libnvidia-ml.so.1").unlink()
    assert not [link for link in links(world.generate()) if link.endswith("/libnvidia-ml.so.1")]


HOOK_CASES = [
    (
        {"disabled_hooks": {"update-ldcache"}},
        {"create-symlinks", "enable-cuda-compat", "disable-device-node-modification"},
    ),
    ({"disabled_hooks": {"all"}}, set()),
    ({"disabled_hooks": {"all"}, "enabled_hooks": {"update-ldcache"}}, {"update-ldcache"}),
    (
        {"disabled_hooks": {"update-ldcache"}, "enabled_hooks": {"update-ldcache"}},
        {"update-ldcache", "create-symlinks"},
    ),
    ({"libraries": Libraries.HOOKLESS}, set()),
    ({"libraries": Libraries.HOOKLESS, "enabled_hooks": {"chmod"}}, set()),
]


@pytest.mark.parametrize(("options", "expected"), HOOK_CASES)
def test_hooks_may_be_disabled_and_enabled(tmp_path: Path, options: dict[str, object], expected: set[str]) -> None:
    given = {key: frozenset(value) if isinstance(value, set) else value for key, value in options.items()}
    world = World(tmp_path, (gpu(0),))
    world.drm(gpu(0), 0)
    spec = world.generate(**given)  # type: ignore[arg-type]
    found = {args[0] for args in hook_args(spec)}
    assert expected <= found
    assert bool(found) == bool(expected)
    disabled = options.get("disabled_hooks", set()) - options.get("enabled_hooks", set())  # type: ignore[operator]
    assert not found & disabled
    if not expected:
        assert not [hook for device in spec.devices for hook in device.container_edits.hooks]


def test_all_hooks_cannot_be_enabled(tmp_path: Path) -> None:
    with pytest.raises(GenerateError, match="enabling all hooks is not supported"):
        World(tmp_path, (gpu(0),)).generate(enabled_hooks=frozenset({"all"}))


def test_the_hook_for_folders_is_there_if_it_is_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    world.drm(gpu(0), 0)
    world.nodes("nvidia-caps/nvidia-cap1")
    enabled = frozenset({"chmod"})
    (device, *_) = world.generate(enabled_hooks=enabled).devices
    assert device.container_edits.hooks[-1].args[1:] == ("chmod", "--mode", "755", "--path", "/dev/dri")
    (device,) = world.generate(Mode.MANAGEMENT, enabled_hooks=enabled).devices
    assert [each.args[1:] for each in device.container_edits.hooks] == [
        ("chmod", "--mode", "755", "--path", "/dev/nvidia-caps")
    ]


def test_nodes_may_be_made_in_management_containers_whatever_is_enabled(tmp_path: Path) -> None:
    spec = World(tmp_path).generate(
        Mode.MANAGEMENT, enabled_hooks=frozenset({"disable-device-node-modification", "update-application-profile"})
    )
    assert [args[0] for args in hook_args(spec)] == ORDER[1:]


# --- 3.7: roots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.NVML, Mode.MANAGEMENT])
@pytest.mark.parametrize("host", [None, "/", "/run/nvidia/driver", "/opt/driver"])
def test_paths_are_the_hosts(tmp_path: Path, mode: Mode, host: str | None) -> None:
    world = World(tmp_path, (gpu(0),), kind=Kind.CONTAINER, driver_root="/driver-root")
    spec = world.generate(mode, host_root=host)
    root = ("/driver-root" if host is None else host).rstrip("/")
    for edits in (spec.container_edits, *(each.container_edits for each in spec.devices)):
        for mount in edits.mounts:
            assert mount.host_path.startswith(f"{root}/")
            assert not mount.container_path.startswith("/driver-root")
        for node in edits.device_nodes:
            assert node.host_path == (f"{root}{node.path}" if root else "")
    assert spec.container_edits.env[0] == f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}"


def test_nodes_may_have_a_root_of_their_own(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),), driver_root="/driver-root")
    world.process.write("/host/dev/nvidia1", "")
    roots = Roots.of("/driver-root", "/host", host_driver=ROOT, host_dev="/")
    spec = generate.generate(world.process, world.source, msgspec.structs.replace(world.wanted(), roots=roots))
    assert spec.devices[0].container_edits.device_nodes[0].host_path == ""
    assert mounts(spec)["/usr/bin/nvidia-smi"] == f"{ROOT}/usr/bin/nvidia-smi"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/etc/alternatives/smi", "/etc/alternatives/smi"),
        ("../../../../../etc/alternatives/smi", "/etc/alternatives/smi"),
    ],
)
def test_a_link_that_leads_out_of_the_drivers_root_is_followed_below_it(
    tmp_path: Path, target: str, expected: str
) -> None:
    world = World(tmp_path, (gpu(0),), driver_root=ROOT)
    world.process.write(f"{ROOT}/etc/alternatives/smi", "x").chmod(0o755)
    smi = world.real("/usr/bin/nvidia-smi")
    smi.unlink(missing_ok=True) if not smi.is_dir() else smi.rmdir()
    smi.symlink_to(target)
    assert mounts(world.generate())["/usr/bin/nvidia-smi"] == f"{ROOT}{expected}"


def test_a_link_that_leads_nowhere_is_told_of_and_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    path = f"{LIBRARIES}/libnvidia-fbc.so.{gpuworld.VERSION}"
    world.process.root.symlink(path, "gone")
    assert path not in mounts(world.generate())
    assert f"{path} is a link that leads nowhere" in world.process.stderr


def test_links_that_go_round_are_told_of_and_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),))
    path = f"{LIBRARIES}/libnvidia-fbc.so.{gpuworld.VERSION}"
    world.process.root.symlink(path, path)
    assert path not in mounts(world.generate())
    assert "more than 40 symbolic links" in world.process.stderr


def test_what_is_missing_is_one_warning(tmp_path: Path) -> None:
    world = bare(tmp_path)
    spec = world.generate()
    assert list(mounts(spec)) == [f"{LIBRARIES}/libcuda.so.{gpuworld.VERSION}"]
    assert [line for line in world.process.stderr.splitlines() if "not found below /" in line and "nvidia-smi" in line]


def test_mounts_are_written_as_the_contract_has_them(tmp_path: Path) -> None:
    spec = World(tmp_path, driver_root=ROOT).generate(Mode.MANAGEMENT, host_root=ROOT)
    path = f"{LIBRARIES}/libcuda.so.{gpuworld.VERSION}"
    assert Mount(f"{ROOT}{path}", path, READ_ONLY) in spec.container_edits.mounts


# --- 3.9: coherent GPUs -----------------------------------------------------------------------------------------------


def test_specs_of_coherent_and_other_gpus(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0, coherent=True), gpu(1)))
    wanted = world.wanted(features=frozenset({"enable-coherent-annotations"}))
    made = generate.generate_all(world.process, world.source, wanted)
    assert {infix: (spec.kind, named(spec)) for infix, spec in made.items()} == {
        "": ("nvidia.com/gpu", ["0", "1", "all"]),
        ".coherent": ("nvidia.com/gpu.coherent", ["0", "all"]),
        ".noncoherent": ("nvidia.com/gpu.noncoherent", ["1", "all"]),
    }
    assert not [each for spec in made.values() for each in spec.devices if each.annotations]
    assert list(generate.generate_all(world.process, world.source, world.wanted())) == [""]


def test_generation_is_the_same_each_time(tmp_path: Path) -> None:
    world = World(tmp_path, tuple(gpu(number) for number in range(8)))
    assert world.generate() == world.generate()
