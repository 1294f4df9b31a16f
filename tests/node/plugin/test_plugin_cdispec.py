"""CDI specs of the plugin's devices: what is in them, and what the host calls it (device-plugin-gfd.md 4.5)."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from node.fakeprocess import FakeProcess

from groundplane.node import config as configs
from groundplane.node.cdi import model
from groundplane.node.devices.model import Gpu, MigDevice, Profile
from groundplane.node.plugin import cdispec
from groundplane.node.resources import PhysicalDevice

VERSION = "580.65.06"
LIB = "/usr/lib/x86_64-linux-gnu"
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
    paths = (gpu.device_node, "/dev/nvidia-caps/nvidia-cap4", "/dev/nvidia-caps/nvidia-cap3")
    return PhysicalDevice(id=mig.uuid, index=f"{gpu.index}:0", paths=paths, gpu=gpu, mig=mig)


class World:
    """A plugin's container with a driver, and the specs that it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = FakeProcess(folder)

    def add(self, *paths: str, root: str = "/driver-root") -> None:
        for path in paths:
            self.process.write(f"{root}{path}", "")

    def link(self, path: str, target: str) -> None:
        self.process.root.symlink(f"/driver-root{path}", target)

    def specs(
        self,
        devices: Any = (),
        channels: Any = (),
        describe: cdispec.DescribeNode | None = None,
        **env: str,
    ) -> dict[str, Any]:
        """Specs by class, as they are written."""
        self.process.env = {"DEVICE_LIST_STRATEGY": "cdi-cri", **env}
        config = configs.load_plugin(self.process)
        roots = cdispec.Roots.of(config, self.process)
        finder = cdispec.Finder(self.process, roots, describe or model.DeviceNode, any_kind=True)
        found = cdispec.specs(config, devices, channels, VERSION, finder, self.process.kernel, self.process.log)
        return {spec.device_class: msgspec.json.decode(model.encode(spec)) for spec in found}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def nodes(edits: dict[str, Any]) -> list[tuple[str, str]]:
    return [(node["path"], node.get("hostPath", "")) for node in edits.get("deviceNodes", [])]


def mounts(edits: dict[str, Any]) -> list[tuple[str, str]]:
    return [(mount["hostPath"], mount["containerPath"]) for mount in edits.get("mounts", [])]


def edits_of(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device["containerEdits"] for device in spec["devices"]}


def test_gpus_by_uuid(world: World) -> None:
    spec = world.specs([whole(gpu) for gpu in GPUS])["gpu"]
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert spec["cdiVersion"] == "0.3.0"
    assert {name: nodes(edits) for name, edits in edits_of(spec).items()} == {
        "GPU-0": [("/dev/nvidia4", "")],
        "GPU-1": [("/dev/nvidia5", "")],
    }
    assert spec["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}


def test_gpus_and_mig_devices_by_index(world: World) -> None:
    spec = world.specs([whole(GPUS[1]), part(GPUS[0])], DEVICE_ID_STRATEGY="index")["gpu"]
    assert spec["cdiVersion"] == "0.5.0"
    assert [device["name"] for device in spec["devices"]] == ["0:0", "1"]
    assert nodes(edits_of(spec)["0:0"]) == [
        ("/dev/nvidia4", ""),
        ("/dev/nvidia-caps/nvidia-cap3", ""),
        ("/dev/nvidia-caps/nvidia-cap4", ""),
    ]


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
    world.add("/dev/nvidiactl", "/dev/nvidia-uvm", root="/driver-root" if has_dev else "")
    world.add("/usr/bin/nvidia-smi")
    spec = world.specs([whole(GPUS[0])], **env)["gpu"]
    common = spec["containerEdits"]
    assert mounts(common) == [(f"{host_driver}/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi")]
    assert common["mounts"][0]["options"] == ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    assert nodes(common) == [
        (path, f"{host_dev}{path}" if host_dev else "") for path in ("/dev/nvidia-uvm", "/dev/nvidiactl")
    ]
    assert nodes(edits_of(spec)["GPU-0"]) == [("/dev/nvidia4", f"{host_dev}/dev/nvidia4" if host_dev else "")]
    assert "/dev/nvidia-modeset, /dev/nvidia-uvm-tools are not there" in world.process.stderr


def test_libraries_by_their_own_names_and_those_they_are_loaded_by(world: World) -> None:
    world.add(f"{LIB}/libcuda.so.{VERSION}", f"{LIB}/libnvidia-glcore.so.{VERSION}", f"{LIB}/libother.so.1")
    world.link(f"{LIB}/libcuda.so.1", f"libcuda.so.{VERSION}")
    world.add("/usr/lib64/libnvidia-ml.so.1")
    world.link("/usr/bin/nvidia-smi", "/opt/bin/nvidia-smi")  # absolute: within the driver's root, as on the host
    world.add("/opt/bin/nvidia-smi")
    spec = world.specs([whole(GPUS[0])], NVIDIA_DRIVER_ROOT="/run/d", NVIDIA_DEV_ROOT="/")["gpu"]
    assert mounts(spec["containerEdits"]) == [
        ("/run/d/opt/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
        ("/run/d/usr/lib64/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1"),
        (f"/run/d{LIB}/libcuda.so.{VERSION}", f"{LIB}/libcuda.so.1"),
        (f"/run/d{LIB}/libcuda.so.{VERSION}", f"{LIB}/libcuda.so.{VERSION}"),
        (f"/run/d{LIB}/libnvidia-glcore.so.{VERSION}", f"{LIB}/libnvidia-glcore.so.{VERSION}"),
    ]


def test_no_driver_file_is_told(world: World) -> None:
    world.specs([whole(GPUS[0])])
    assert "no file of the driver was found" in world.process.stderr


@pytest.mark.parametrize(
    ("device", "graphics"), [(whole(GPUS[0]), True), (part(GPUS[0]), False), (part(GPUS[0], "+gfx"), True)]
)
def test_graphics_nodes(world: World, device: PhysicalDevice, graphics: bool) -> None:
    for name in ("card1", "renderD128", "renderD129"):
        world.process.write_kernel(f"/sys/bus/pci/devices/0000:10:00.0/drm/{name}/dev", "")
    world.add("/dev/dri/card1", "/dev/dri/renderD128", root="")
    spec = world.specs([device])["gpu"]
    found = [path for path, _ in nodes(spec["devices"][0]["containerEdits"]) if path.startswith("/dev/dri")]
    assert found == (["/dev/dri/card1", "/dev/dri/renderD128"] if graphics else [])


def test_null_devices(world: World) -> None:
    world.add("/dev/nvidiactl", root="")
    spec = world.specs([whole(GPUS[0])], (0,), cdispec.describe_node(True))
    for edits in (spec["gpu"]["containerEdits"], spec["gpu"]["devices"][0]["containerEdits"]):
        assert [(node["type"], node["major"], node["minor"]) for node in edits["deviceNodes"]] == [("c", 1, 3)]
    assert spec["imex-channel"]["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] == 1


def test_imex_channels(world: World) -> None:
    path = "/dev/nvidia-caps-imex-channels/channel0"
    world.add(path, root="")
    spec = world.specs([], (0,), NVIDIA_DEV_ROOT="/run/d")["imex-channel"]
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/imex-channel"
    assert {name: nodes(edits) for name, edits in edits_of(spec).items()} == {"0": [(path, f"/run/d{path}")]}


MODES = [
    ("gdrcopy", "GDRCOPY_ENABLED", ["/dev/gdrdrv"], []),
    ("gds", "GDS_ENABLED", ["/dev/nvidia-fs0", "/dev/nvidia-fs1"], ["/etc/cufile.json", "/run/udev/x"]),
    ("mofed", "MOFED_ENABLED", ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"], []),
]


@pytest.mark.parametrize(("mode", "flag", "paths", "files"), MODES)
def test_modes(world: World, mode: str, flag: str, paths: list[str], files: list[str]) -> None:
    world.add(*paths, *files)
    spec = world.specs(**{flag: "true"})[mode]
    (name, edits), *more = edits_of(spec).items()
    assert (name, more) == ("all", [])
    assert [path for path, _ in nodes(edits)] == paths
    wanted = {"gds": ["/run/udev", "/etc/cufile.json"]}.get(mode, [])
    assert [host for host, _ in mounts(edits)] == wanted
    assert mode not in world.specs()


@pytest.mark.parametrize(("mode", "flag", "paths", "files"), MODES)
def test_a_mode_without_nodes_is_left_out(
    world: World, mode: str, flag: str, paths: list[str], files: list[str]
) -> None:
    world.add(*files)
    assert world.specs(**{flag: "true"}) == {}
    assert f"{mode} is enabled, but none of" in world.process.stderr


def test_only_character_devices_are_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add("/dev/nvidiactl", root="")
    finder = cdispec.Finder(world.process, cdispec.Roots("", "", "", ""), model.DeviceNode)
    assert not finder.is_node("/dev/nvidiactl")
    assert not finder.is_node("/dev/none")
    monkeypatch.setattr(cdispec.stat, "S_ISCHR", lambda _mode: True)
    assert finder.is_node("/dev/nvidiactl")


def test_specs_of_an_earlier_start_go(world: World) -> None:
    gpu = model.Spec(kind=cdispec.kind("gpu"), devices=(model.Device("a", model.ContainerEdits(env=("A=B",))),))
    gds = model.Spec(kind=cdispec.kind("gds"), devices=gpu.devices)
    folder = world.process.path("/var/run/cdi")
    assert cdispec.write_all([gpu, gds], world.process.path) == ("gpu", "gds")
    (folder / "other.json").write_text("")
    assert cdispec.write_all([gpu], world.process.path) == ("gpu",)
    assert sorted(path.name for path in folder.iterdir()) == ["k8s.device-plugin.nvidia.com-gpu.json", "other.json"]
