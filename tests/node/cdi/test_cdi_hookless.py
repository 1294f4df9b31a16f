"""Libraries without hooks: each is there under the names that it is loaded by, where loaders look for it."""

from pathlib import Path

import pytest
from node.cdi import gpuworld
from node.cdi.gpuworld import World, gpu, mounts

from groundplane.node.cdi import libraries
from groundplane.node.cdi.model import Spec
from groundplane.node.cdi.options import Libraries, Mode
from testing.driverroots import VERSIONS, Kind, elf, files

V = gpuworld.VERSION
LOADERS = {
    "glibc of Debian and Ubuntu": ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"),
    "glibc of RHEL, Fedora and SUSE": ("/lib64", "/usr/lib64"),
    "musl": ("/lib", "/usr/local/lib", "/usr/lib"),
}
"""Folders that loaders search without a cache, in order."""


def generated(folder: Path, kind: Kind = Kind.UBUNTU, version: str = V, mode: Mode = Mode.NVML) -> Spec:
    return World(folder, (gpu(0),), kind=kind, version=version).generate(mode, libraries=Libraries.HOOKLESS)


def sonames(version: str) -> set[str]:
    """Names by which the driver's libraries are loaded."""
    major = int(version.partition(".")[0])
    return {
        f"{each.stem}.{each.soname or each.version or version}"
        for each in files.LIBRARIES
        if each.since <= major <= each.until and not each.folder and each.stem not in libraries.UNUSED
    } - {"libnvidia-api.so.1"}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", list(Kind))
def test_every_loader_finds_every_library(tmp_path: Path, kind: Kind, version: str, loader: str) -> None:
    found = mounts(generated(tmp_path, kind, version))
    for name in sonames(version):
        paths = [f"{folder}/{name}" for folder in LOADERS[loader] if f"{folder}/{name}" in found]
        assert paths, f"{name} is not where {loader} looks"
        assert found[paths[0]].rpartition("/")[2].startswith(name.partition(".so")[0])


@pytest.mark.parametrize("kind", list(Kind))
def test_there_are_no_hooks_and_no_other_environment(tmp_path: Path, kind: Kind) -> None:
    world = World(tmp_path, (gpu(0),), kind=kind)
    world.drm(gpu(0), 0)
    for mode in (Mode.NVML, Mode.MANAGEMENT):
        spec = world.generate(mode, libraries=Libraries.HOOKLESS)
        assert spec.container_edits.env == ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64:/usr/lib", "NVIDIA_VISIBLE_DEVICES=void")
        assert not [hook for _, edits in spec.edits() for hook in edits.hooks]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("libcuda.so", f"libcuda.so.{V}"),
        ("libcuda.so.1", f"libcuda.so.{V}"),
        ("libGLX_indirect.so.0", f"libGLX_nvidia.so.{V}"),
        ("libnvidia-opticalflow.so", f"libnvidia-opticalflow.so.{V}"),
        ("libnvidia-nvvm.so.4", f"libnvidia-nvvm.so.{V}"),
        ("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4"),
        (f"libnvidia-glcore.so.{V}", f"libnvidia-glcore.so.{V}"),
        ("libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2"),
    ],
)
def test_names_of_libraries(tmp_path: Path, name: str, target: str) -> None:
    found = mounts(generated(tmp_path))
    for folder in libraries.LOADER_FOLDERS:
        assert found[f"{folder}/{name}"].rpartition("/")[2] == target


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("vdpau/libvdpau_nvidia.so.1", f"libvdpau_nvidia.so.{V}"),
        ("gbm/nvidia-drm_gbm.so", f"libnvidia-allocator.so.{V}"),
    ],
)
def test_modules_are_in_the_folders_of_distributions(tmp_path: Path, path: str, target: str) -> None:
    found = mounts(generated(tmp_path))
    for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
        assert found[f"{folder}/{path}"].rpartition("/")[2] == target


def test_modules_of_x_are_at_their_place_under_the_name_that_x_loads(tmp_path: Path) -> None:
    found = mounts(generated(tmp_path, Kind.RHEL))
    extension = "/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so"
    assert found[extension] == f"{extension}.{V}"
    assert "/usr/lib64/xorg/modules/drivers/nvidia_drv.so" in found


def test_only_libraries_that_images_hold_are_in_debians_folder(tmp_path: Path) -> None:
    folder = "/usr/lib/x86_64-linux-gnu/"
    found = {path.removeprefix(folder) for path in mounts(generated(tmp_path, Kind.RHEL)) if path.startswith(folder)}
    assert {name for name in found if "/" not in name} == {
        *("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1"),
        *("libnvcuvid.so.1", "libnvidia-encode.so.1"),
    }


def test_on_arm_debians_folder_is_arms(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),), driver=False)
    world.process.write(f"/usr/lib64/libcuda.so.{V}", elf.library("libcuda.so.1", "aarch64"))
    found = mounts(world.generate(libraries=Libraries.HOOKLESS))
    assert "/usr/lib/aarch64-linux-gnu/libcuda.so.1" in found
    assert not [path for path in found if "x86_64" in path]


def test_a_library_that_is_no_elf_file_has_the_names_of_its_links(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),), driver=False)
    for name in ("libcuda.so", "libnvidia-glcore.so"):
        world.process.write(f"/usr/lib64/{name}.{V}", "simulated")
    world.process.root.symlink("/usr/lib64/libcuda.so.1", f"libcuda.so.{V}")
    world.process.root.symlink("/usr/lib64/libcuda.so", "libcuda.so.1")
    assert set(mounts(world.generate(libraries=Libraries.HOOKLESS))) == {
        f"{folder}/{name}"
        for folder in ("/usr/lib", "/usr/lib64")
        for name in ("libcuda.so", "libcuda.so.1", f"libnvidia-glcore.so.{V}")
    }


def test_of_two_libraries_of_one_name_the_first_is_there(tmp_path: Path) -> None:
    world = World(tmp_path, (gpu(0),), driver=False)
    for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
        world.process.write(f"{folder}/libcuda.so.{V}", elf.library("libcuda.so.1"))
    assert mounts(world.generate(libraries=Libraries.HOOKLESS))["/usr/lib/libcuda.so.1"] == f"/usr/lib64/libcuda.so.{V}"


def test_a_container_path_is_mounted_once(tmp_path: Path) -> None:
    paths = [each.container_path for each in generated(tmp_path, Kind.CONTAINER).container_edits.mounts]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("version", VERSIONS)
def test_without_graphics_there_are_about_half_as_many_mounts(tmp_path: Path, version: str) -> None:
    world = World(tmp_path, (gpu(0),), version=version, kind=Kind.CONTAINER)
    full = world.generate(libraries=Libraries.HOOKLESS)
    less = world.generate(libraries=Libraries.HOOKLESS, features=frozenset({libraries.NO_GRAPHICS}))
    assert len(full.container_edits.mounts) <= 115
    assert len(less.container_edits.mounts) <= 50
