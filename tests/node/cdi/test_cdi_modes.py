"""Gated modes, IMEX channels, WSL and Tegra (contracts/toolkit-cdi.md 3.8), and what the runtime shim reads."""

from pathlib import Path

import pytest
from node.cdi import gpuworld
from node.cdi.gpuworld import World, gpu, hook_args, links, mig, mounts, named, node_paths

from groundplane.api.release import Release
from groundplane.node.cdi import generate, tegra
from groundplane.node.cdi.model import ContainerEdits, Device, encode
from groundplane.node.cdi.options import GenerateError, Libraries, Mode, Strategy
from groundplane.node.cdi.roots import Roots
from testing.driverroots import elf

# --- gated modes ------------------------------------------------------------------------------------------------------

GATED = [
    (Mode.GDS, ("nvidia-fs", "nvidia-fs0", "nvidia-fs15"), ("/run/udev", "/etc/cufile.json")),
    (Mode.MOFED, ("infiniband/uverbs0", "infiniband/uverbs1", "infiniband/rdma_cm"), ()),
    (Mode.GDRCOPY, ("gdrdrv",), ()),
    (Mode.NVSWITCH, ("nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch1"), ()),
]
OTHERS = ("nvidia0", "infiniband/umad0", "gdrdrv2", "nvidia-uvm")


@pytest.mark.parametrize(("mode", "nodes", "files"), GATED)
@pytest.mark.parametrize("root", ["", "/run/nvidia/driver"])
def test_what_a_gated_mode_gives(
    tmp_path: Path, root: str, mode: Mode, nodes: tuple[str, ...], files: tuple[str, ...]
) -> None:
    world = World(tmp_path, driver_root=root, driver=False)
    world.nodes(*nodes, *OTHERS)
    world.process.write(f"{root}/run/udev/data", "")
    world.process.write(f"{root}/etc/cufile.json", "{}")
    spec = world.generate(mode)
    assert (spec.kind, named(spec)) == (f"nvidia.com/{mode.value}", ["all"])
    assert set(node_paths(spec, "all")) == {f"/dev/{each}" for each in nodes}
    (device,) = spec.devices
    assert {each.container_path: each.host_path for each in device.container_edits.mounts} == {
        path: f"{root}{path}" for path in files
    }
    assert spec.container_edits == ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))


@pytest.mark.parametrize(("mode", "nodes", "files"), GATED)
def test_a_gated_mode_without_nodes_is_an_error(
    tmp_path: Path, mode: Mode, nodes: tuple[str, ...], files: tuple[str, ...]
) -> None:
    world = World(tmp_path, driver=False)
    world.nodes(*OTHERS)
    for path in files:
        world.process.write(path, "x")
    with pytest.raises(GenerateError, match=r"device all: empty device edits: no device node /dev/.* below /"):
        world.generate(mode)
    assert nodes


# --- IMEX channels ----------------------------------------------------------------------------------------------------


def channels(folder: Path, *numbers: int, release: Release = Release.DEFAULT, root: str = "") -> World:
    world = World(folder, driver=False, release=release, driver_root=root)
    world.nodes(*(f"nvidia-caps-imex-channels/channel{each}" for each in numbers))
    return world


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (("all",), ["0", "10", "2047"]),
        (("channelall",), None),
        (("10",), ["10"]),
        (("channel2047", "10", "10"), ["10", "2047"]),
    ],
)
def test_channels(tmp_path: Path, ids: tuple[str, ...], names: list[str] | None) -> None:
    world = channels(tmp_path, 0, 10, 2047)
    if names is None:
        with pytest.raises(GenerateError, match="invalid channel ID channelall"):
            world.generate(Mode.IMEX, device_ids=ids)
        return
    spec = world.generate(Mode.IMEX, device_ids=ids, all_device=False)
    assert (spec.kind, named(spec)) == ("nvidia.com/imex-channel", names)
    assert node_paths(spec, "10") == ["/dev/nvidia-caps-imex-channels/channel10"]


@pytest.mark.parametrize("text", ["x", "channel", "-1", "1.5", "channelx", "²", "1 "])
@pytest.mark.parametrize("release", list(Release))
def test_an_id_that_is_no_number_is_an_error(tmp_path: Path, text: str, release: Release) -> None:
    with pytest.raises(GenerateError, match="invalid channel ID"):
        channels(tmp_path, 0, release=release).generate(Mode.IMEX, device_ids=(text,))


def test_ids_beyond_the_last_and_channels_that_are_missing_are_errors_since_1_20(tmp_path: Path) -> None:
    world = channels(tmp_path, 0)
    with pytest.raises(GenerateError, match=r"must be in the range \[0, 1048575\]"):
        world.generate(Mode.IMEX, device_ids=("1048576",))
    with pytest.raises(GenerateError, match="IMEX channel 1048575 not found at /dev/nvidia-caps-imex-channels/"):
        world.generate(Mode.IMEX, device_ids=("1048575",))


def test_before_1_20_any_number_passed(tmp_path: Path) -> None:
    world = channels(tmp_path, 0, release=Release.V26_3)
    spec = world.generate(Mode.IMEX, device_ids=("1048576",), all_device=False)
    assert named(spec) == ["1048576"]


def test_no_channels_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(GenerateError, match="there are no devices"):
        channels(tmp_path).generate(Mode.IMEX)


def test_a_channels_host_path(tmp_path: Path) -> None:
    spec = channels(tmp_path, 3, root="/drv").generate(Mode.IMEX)
    (node,) = spec.devices[0].container_edits.device_nodes
    assert node.host_path == "/drv/dev/nvidia-caps-imex-channels/channel3"


# --- WSL --------------------------------------------------------------------------------------------------------------

STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef"
REQUIRED = (
    *("libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ml.so.1"),
    *("libnvidia-ml_loader.so", "libnvdxgdmal.so.1", "nvcubins.bin", "nvidia-smi"),
)
OTHER_FILES = ("libnvcuvid.so.1", "nvcubins2.bin", "nvapi.dll")


def wsl(folder: Path, release: Release = Release.DEFAULT) -> World:
    world = World(folder, driver=False, release=release)
    world.nodes("dxg")
    world.process.write("/usr/lib/wsl/lib/libdxcore.so", elf.library("libdxcore.so"))
    world.process.write("/usr/lib/wsl/drivers/other.inf/x.dll", "x")
    for name in (*REQUIRED, *OTHER_FILES, "readme.txt"):
        world.process.write(f"{STORE}/{name}", elf.library("libcuda.so.1") if name == "libcuda_loader.so" else "x")
    return world


@pytest.mark.parametrize("release", list(Release))
def test_wsl(tmp_path: Path, release: Release) -> None:
    spec = wsl(tmp_path, release).generate(Mode.AUTO)
    others = OTHER_FILES if release is Release.V26_7 else ()
    assert (spec.kind, named(spec), node_paths(spec, "all")) == ("nvidia.com/gpu", ["all"], ["/dev/dxg"])
    expected = {"/usr/lib/wsl/lib/libdxcore.so", *(f"{STORE}/{name}" for name in (*REQUIRED, *others))}
    assert mounts(spec) == {path: path for path in expected}
    assert hook_args(spec) == [
        ("create-symlinks", "--link", f"{STORE}/nvidia-smi::/usr/bin/nvidia-smi"),
        ("update-ldcache", "--folder", STORE, "--folder", "/usr/lib/wsl/lib"),
    ]


def test_wsl_without_hooks(tmp_path: Path) -> None:
    spec = wsl(tmp_path).generate(Mode.WSL, libraries=Libraries.HOOKLESS)
    found = mounts(spec)
    assert found["/usr/bin/nvidia-smi"] == f"{STORE}/nvidia-smi"
    assert found["/usr/lib/libcuda.so.1"] == f"{STORE}/libcuda_loader.so"
    assert found["/usr/lib64/libdxcore.so"] == "/usr/lib/wsl/lib/libdxcore.so"
    assert not spec.container_edits.hooks


def test_wsl_without_a_driver_of_nvidias_is_an_error(tmp_path: Path) -> None:
    world = wsl(tmp_path)
    (world.process.root.base / STORE[1:] / "libcuda.so.1.1").unlink()
    with pytest.raises(GenerateError, match=r"no folder in /usr/lib/wsl/drivers has libcuda\.so\.1\.1"):
        world.generate(Mode.WSL)


# --- Tegra ------------------------------------------------------------------------------------------------------------

FOLDER = "/etc/nvidia-container-runtime/host-files-for-container.d"
LISTS = {
    "devices.csv": "dev, /dev/nvhost-gpu\ndev,/dev/nvmap\ndev, /dev/gone\n",
    "drivers.csv": "lib, /usr/lib/tegra/libcuda.so.1.1\nsym, /usr/lib/tegra/libcuda.so\nbad\nxyz, /a\nlib,\n",
    "l4t.csv": "dir, /usr/lib/tegra/folder\n sym , /usr/lib/gone.so \nlib, /usr/lib/gone2.so\n",
    "extra.csv": "lib, /usr/lib/tegra/libextra.so.1\n",
}


def tegra_world(folder: Path, *gpus: str) -> World:
    world = World(folder, [gpu(number, name=name) for number, name in enumerate(gpus)], driver=False)
    for name, text in LISTS.items():
        world.process.write(f"{FOLDER}/{name}", text)
    world.nodes("nvhost-gpu", "nvmap")
    world.process.write("/etc/nv_tegra_release", "R36")
    world.process.write("/usr/lib/tegra/libcuda.so.1.1", elf.library("libcuda.so.1", "aarch64"))
    world.process.write("/usr/lib/tegra/libextra.so.1", "x")
    world.process.write("/usr/lib/tegra/folder/x", "x")
    world.process.root.symlink("/usr/lib/tegra/libcuda.so", "libcuda.so.1")
    world.process.root.symlink("/usr/lib/tegra/libcuda.so.1", "libcuda.so.1.1")
    return world


def test_tegra(tmp_path: Path) -> None:
    spec = tegra_world(tmp_path).generate(Mode.AUTO)
    assert (named(spec), node_paths(spec, "0")) == (["0", "all"], ["/dev/nvhost-gpu", "/dev/nvmap"])
    paths = ("/etc/nv_tegra_release", "/usr/lib/tegra/folder", "/usr/lib/tegra/libcuda.so.1.1")
    assert mounts(spec) == {path: path for path in paths}
    assert links(spec) == {
        "libcuda.so.1::/usr/lib/tegra/libcuda.so",
        "libcuda.so.1.1::/usr/lib/tegra/libcuda.so.1",
    }
    assert hook_args(spec)[-1] == ("update-ldcache", "--folder", "/usr/lib/tegra")


def test_tegra_without_hooks(tmp_path: Path) -> None:
    spec = tegra_world(tmp_path).generate(Mode.CSV, libraries=Libraries.HOOKLESS)
    library = "/usr/lib/tegra/libcuda.so.1.1"
    places = {path for path, host in mounts(spec).items() if host == library}
    assert places == {
        *(library, "/usr/lib/tegra/libcuda.so", "/usr/lib/tegra/libcuda.so.1"),
        *(f"{folder}/{name}" for folder in ("/usr/lib", "/usr/lib64") for name in ("libcuda.so", "libcuda.so.1")),
        *(f"/usr/lib/aarch64-linux-gnu/{name}" for name in ("libcuda.so", "libcuda.so.1")),
    }
    assert not spec.container_edits.hooks


@pytest.mark.parametrize(
    ("names", "root", "expected"),
    [
        (
            ("Orin (nvgpu)",),
            "",
            ("--host-cuda-version=13.0", "--cuda-compat-container-root=/usr/local/cuda/compat_orin"),
        ),
        (("Orin (nvgpu)",), "/c", ("--host-cuda-version=13.0", "--cuda-compat-container-root=/c")),
        (("NVIDIA Thor",), "", ("--host-cuda-version=13.0",)),
    ],
)
def test_compatibility_libraries(tmp_path: Path, names: tuple[str, ...], root: str, expected: tuple[str, ...]) -> None:
    spec = tegra_world(tmp_path, *names).generate(Mode.CSV, csv_compat_root=root)
    assert ("enable-cuda-compat", *expected) in hook_args(spec)


def test_other_lists_are_used_only_if_named(tmp_path: Path) -> None:
    world = tegra_world(tmp_path)
    assert "/usr/lib/tegra/libextra.so.1" not in mounts(world.generate(Mode.CSV))
    named_list = (f"{FOLDER}/extra.csv", f"{FOLDER}/devices.csv")
    assert "/usr/lib/tegra/libextra.so.1" in mounts(world.generate(Mode.CSV, csv_files=named_list))


@pytest.mark.parametrize("pattern", ["**/libcuda.so", "/usr/lib/tegra/libcuda*"])
def test_links_may_be_ignored(tmp_path: Path, pattern: str) -> None:
    listed = tegra.entries(
        tegra_world(tmp_path).process, World(tmp_path / "x").wanted(Mode.CSV, csv_ignore_patterns=(pattern,))
    )
    assert [each.path for each in listed if each.kind == "sym"] == ["/usr/lib/gone.so"]


def test_tegras_device_names(tmp_path: Path) -> None:
    world = tegra_world(tmp_path)
    spec = world.generate(Mode.CSV, strategies=(Strategy.INDEX, Strategy.TYPE_INDEX, Strategy.UUID))
    assert named(spec) == ["0", "all", "gpu0"]
    with pytest.raises(GenerateError, match="unsupported device id: 1"):
        world.generate(Mode.CSV, device_ids=("1",))


def test_without_lists_there_is_no_tegra(tmp_path: Path) -> None:
    with pytest.raises(GenerateError, match=r"devices\.csv, .*lists anything: is this a Tegra\?"):
        World(tmp_path, driver=False).generate(Mode.CSV)


# --- what the host's runtime shim reads -------------------------------------------------------------------------------

NULL = {"GROUNDPLANE_NULL_DEVICES": "true"}


def test_specs_for_the_shim(tmp_path: Path) -> None:
    gpus = (gpu(0), gpu(1, mig=True, mig_devices=(mig(0, 3),)))
    world = World(tmp_path, gpus, env=NULL)
    world.capabilities("gpu2/gi3/access 21", "gpu2/gi3/ci0/access 22")
    world.nodes("gdrdrv", "nvidia-caps-imex-channels/channel4")
    specs = generate.specs_for_shim(world.process, world.source, Roots.of("/"))
    assert {spec.kind: named(spec) for spec in specs} == {
        "runtime.nvidia.com/gpu": ["0", "1:0", gpu(0).uuid, mig(0, 3).uuid, "all", "none"],
        "nvidia.com/gdrcopy": ["all"],
        "nvidia.com/imex-channel": ["4", "all"],
    }
    assert specs[0].devices[-1] == Device("none", ContainerEdits(env=("NVCT_EMPTY_DEVICE=",)))
    assert not specs[0].container_edits.hooks
    assert node_paths(specs[0], "all") == [
        *("/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    ]
    for spec in specs:
        encode(spec)


def test_the_shim_may_have_hooks(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),), env=NULL)
    (spec,) = generate.specs_for_shim(
        world.process, world.source, Roots.of("/"), libraries=Libraries.HOOKS, hook_path="/usr/local/nvidia/toolkit/h"
    )
    assert {hook.path for hook in spec.container_edits.hooks} == {"/usr/local/nvidia/toolkit/h"}


def test_a_machine_without_a_device_still_offers_the_drivers_files_to_the_shim(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0, mig=True),), env=NULL)
    (spec,) = generate.specs_for_shim(world.process, world.source, Roots.of("/"))
    assert named(spec) == ["none"]
    assert f"/usr/lib/libnvidia-glcore.so.{gpuworld.VERSION}" in mounts(spec)


def test_without_a_driver_there_is_nothing_for_the_shim(tmp_path: Path) -> None:
    world = World(tmp_path, driver=False, env=NULL)
    with pytest.raises(GenerateError, match="the GPUs cannot be read"):
        generate.specs_for_shim(world.process, world.source, Roots.of("/"))


def test_properties_for_requirements(tmp_path: Path) -> None:
    sliced = gpu(0, mig=True, mig_devices=(gpuworld.mig(0, 7), gpuworld.mig(1, 8, 1)))
    world = World(tmp_path, (sliced, gpu(1, name="NVIDIA GeForce RTX 4090", compute=(8, 9))))
    assert generate.properties(world.source) == {
        "driver": gpuworld.VERSION,
        "cuda": "13.0",
        "gpus": [
            {"uuid": gpu(0).uuid, "arch": "9.0", "brand": "Nvidia"},
            {"uuid": gpu(1).uuid, "arch": "8.9", "brand": "GeForceRTX"},
        ],
        "aliases": {
            f"MIG-{gpu(0).uuid}/7/0": gpuworld.mig(0, 7).uuid,
            f"MIG-{gpu(0).uuid}/8/1": gpuworld.mig(1, 8, 1).uuid,
        },
    }


@pytest.mark.parametrize(
    ("name", "brand"),
    [
        ("NVIDIA A100-SXM4-80GB", "Nvidia"),
        ("Tesla T4", "Tesla"),
        ("Tesla V100-SXM2-32GB", "Tesla"),
        ("NVIDIA GeForce GTX 1080", "GeForce"),
        ("NVIDIA TITAN RTX", "TitanRTX"),
        ("NVIDIA TITAN V", "Titan"),
        ("Quadro RTX 6000", "QuadroRTX"),
        ("Quadro P4000", "Quadro"),
        ("NVIDIA RTX A6000", "NvidiaRTX"),
        ("NVIDIA RTX 6000 Ada Generation", "NvidiaRTX"),
        ("GRID T4-16Q", "GRID"),
    ],
)
def test_brands(name: str, brand: str) -> None:
    assert generate.brand(name) == brand
