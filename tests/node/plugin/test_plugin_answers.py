"""Allocate: validation and every part of the answer (contracts/device-plugin-gfd.md 4.3, 4.4, 4.6, 6)."""

import re
from pathlib import Path
from typing import Any

import pytest
from node.fakeprocess import FakeProcess

from groundplane.api.release import Release
from groundplane.node import config as configs
from groundplane.node.config import PluginConfig
from groundplane.node.plugin.answers import Answers, Extras, RequestError
from groundplane.node.resources import Offer, PhysicalDevice
from groundplane.node.sharing import SharingStrategy

GPU = "nvidia.com/gpu"
A = PhysicalDevice(id="GPU-a", index="0", paths=("/dev/nvidia0",))
B = PhysicalDevice(id="GPU-b", index="1", paths=("/dev/nvidia5",))
M0 = PhysicalDevice(id="MIG-m0", index="2:0", paths=("/dev/nvidia2", "/dev/nvidia-caps/c3", "/dev/nvidia-caps/c4"))
M1 = PhysicalDevice(id="MIG-m1", index="2:1", paths=("/dev/nvidia2", "/dev/nvidia-caps/c5", "/dev/nvidia-caps/c6"))


def configured(folder: Path, release: Release = Release.DEFAULT, **env: str) -> PluginConfig:
    return configs.load_plugin(FakeProcess(folder, ["nvidia-device-plugin"], env, release=release))


def answers(
    folder: Path,
    *,
    replicas: int = 1,
    strategy: SharingStrategy = SharingStrategy.NONE,
    fail: bool = False,
    extras: Extras | None = None,
    present: tuple[str, ...] = (),
    resource: str = GPU,
    **env: str,
) -> Answers:
    offer = Offer(
        resource=resource,
        base=GPU,
        devices=(A, B, M0, M1),
        replicas=replicas,
        strategy=strategy,
        fail_requests_greater_than_one=fail,
    )
    return Answers(offer, configured(folder, **env), extras or Extras(), present.__contains__)


def plain(answer: Any) -> dict[str, Any]:
    """An answer's parts that are there; an annotation's random part is left out."""
    found = {
        "envs": dict(answer.envs),
        "mounts": [(mount.host_path, mount.container_path, mount.read_only) for mount in answer.mounts],
        "devices": [(each.host_path, each.container_path, each.permissions) for each in answer.devices],
        "annotations": {re.sub("_[-0-9a-f]{36}$", "_*", key): value for key, value in answer.annotations.items()},
        "cdi": [device.name for device in answer.cdi_devices],
    }
    return {name: value for name, value in found.items() if value}


CDI_A, CDI_B = (f"k8s.device-plugin.nvidia.com/gpu={name}" for name in ("GPU-a", "GPU-b"))
KEY = "cdi.k8s.io/nvidia-device-plugin_*"
VOLUMES = "/var/run/nvidia-container-devices"
IMEX = Extras(imex_channels=(0,))
CDI_IMEX = "k8s.device-plugin.nvidia.com/imex-channel=0"

ANSWERS: list[tuple[str, dict[str, Any], list[str], dict[str, Any]]] = [
    ("envvar", {}, ["GPU-b", "GPU-a"], {"envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"}}),
    ("envvar", {"DEVICE_ID_STRATEGY": "index"}, ["GPU-b", "MIG-m1"], {"envs": {"NVIDIA_VISIBLE_DEVICES": "1,2:1"}}),
    (
        "volume-mounts",
        {},
        ["GPU-a", "GPU-b"],
        {
            "envs": {"NVIDIA_VISIBLE_DEVICES": VOLUMES},
            "mounts": [("/dev/null", f"{VOLUMES}/GPU-a", False), ("/dev/null", f"{VOLUMES}/GPU-b", False)],
        },
    ),
    (
        "volume-mounts",
        {"DEVICE_ID_STRATEGY": "index", "extras": IMEX},
        ["GPU-b"],
        {
            "envs": {"NVIDIA_VISIBLE_DEVICES": VOLUMES},
            "mounts": [("/dev/null", f"{VOLUMES}/1", False), ("/dev/null", f"{VOLUMES}/imex/0", False)],
        },
    ),
    ("cdi-annotations", {}, ["GPU-a", "GPU-b"], {"annotations": {KEY: f"{CDI_A},{CDI_B}"}}),
    (
        "cdi-annotations",
        {"CDI_ANNOTATION_PREFIX": "x.io/"},
        ["GPU-a"],
        {"annotations": {"x.io/nvidia-device-plugin_*": CDI_A}},
    ),
    ("cdi-cri", {}, ["GPU-b", "GPU-a"], {"cdi": [CDI_B, CDI_A]}),
    ("cdi-cri", {"DEVICE_ID_STRATEGY": "index"}, ["MIG-m0"], {"cdi": ["k8s.device-plugin.nvidia.com/gpu=2:0"]}),
    ("cdi-cri", {"extras": IMEX}, ["GPU-a"], {"cdi": [CDI_A, CDI_IMEX]}),
    ("cdi-annotations,cdi-cri", {}, ["GPU-a"], {"annotations": {KEY: CDI_A}, "cdi": [CDI_A]}),
    ("cdi-annotations,cdi-cri", {"PASS_DEVICE_SPECS": "true", "present": ("/dev/nvidiactl",)}, [], {}),
    (
        "cdi-annotations,cdi-cri",
        {"PASS_DEVICE_SPECS": "true", "present": ("/dev/nvidiactl",), "extras": IMEX},
        ["GPU-a"],
        {"annotations": {KEY: f"{CDI_A},{CDI_IMEX}"}, "cdi": [CDI_A, CDI_IMEX]},
    ),
    (
        "envvar,volume-mounts",
        {},
        ["GPU-a"],
        {"envs": {"NVIDIA_VISIBLE_DEVICES": VOLUMES}, "mounts": [("/dev/null", f"{VOLUMES}/GPU-a", False)]},
    ),
    (
        "envvar,cdi-cri",
        {"PASS_DEVICE_SPECS": "true"},
        ["GPU-a"],
        {
            "envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-a"},
            "cdi": [CDI_A],
            "devices": [("/dev/nvidia0", "/dev/nvidia0", "rw")],
        },
    ),
    (
        "envvar",
        {"extras": IMEX},
        ["GPU-a"],
        {"envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-a", "NVIDIA_IMEX_CHANNELS": "0"}},
    ),
    (
        "envvar",
        {
            "PASS_DEVICE_SPECS": "true",
            "present": ("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidiactl"),
            "NVIDIA_DEV_ROOT": "/run/nvidia/driver",
            "extras": IMEX,
        },
        ["GPU-b", "MIG-m0", "MIG-m1"],
        {
            "envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-b,MIG-m0,MIG-m1", "NVIDIA_IMEX_CHANNELS": "0"},
            "devices": [
                (f"/run/nvidia/driver{path}", path, "rw")
                for path in (
                    *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/nvidia5", "/dev/nvidia2"),
                    *("/dev/nvidia-caps/c3", "/dev/nvidia-caps/c4", "/dev/nvidia-caps/c5", "/dev/nvidia-caps/c6"),
                    "/dev/nvidia-caps-imex-channels/channel0",
                )
            ],
        },
    ),
    (
        "envvar",
        {"PASS_DEVICE_SPECS": "true", "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver/"},
        ["GPU-a"],
        {
            "envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-a"},
            "devices": [("/run/nvidia/driver/dev/nvidia0", "/dev/nvidia0", "rw")],
        },
    ),
    (
        "envvar",
        {"GDRCOPY_ENABLED": "true", "GDS_ENABLED": "true", "MOFED_ENABLED": "true"},
        ["GPU-a"],
        {
            "envs": {
                "NVIDIA_VISIBLE_DEVICES": "GPU-a",
                "NVIDIA_GDRCOPY": "enabled",
                "NVIDIA_GDS": "enabled",
                "NVIDIA_MOFED": "enabled",
            }
        },
    ),
    (
        "cdi-cri",
        {
            "GDRCOPY_ENABLED": "true",
            "GDS_ENABLED": "true",
            "MOFED_ENABLED": "true",
            "extras": Extras((0,), ("gdrcopy", "mofed")),
        },
        ["GPU-a"],
        {
            "envs": {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"},
            "cdi": [
                CDI_A,
                CDI_IMEX,
                "k8s.device-plugin.nvidia.com/gdrcopy=all",
                "k8s.device-plugin.nvidia.com/mofed=all",
            ],
        },
    ),
    (
        "envvar",
        {"replicas": 3, "strategy": SharingStrategy.TIME_SLICING, "PASS_DEVICE_SPECS": "true"},
        ["GPU-b::2", "GPU-a::0", "GPU-b::0"],
        {
            "envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"},
            "devices": [("/dev/nvidia5", "/dev/nvidia5", "rw"), ("/dev/nvidia0", "/dev/nvidia0", "rw")],
        },
    ),
    (
        "cdi-cri",
        {
            "replicas": 2,
            "strategy": SharingStrategy.MPS,
            "resource": "nvidia.com/gpu.shared",
            "MPS_ROOT": "/run/nvidia/mps",
        },
        ["GPU-a::1"],
        {
            "cdi": [CDI_A],
            "envs": {"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu.shared/pipe"},
            "mounts": [
                ("/run/nvidia/mps/nvidia.com/gpu.shared/pipe", "/mps/nvidia.com/gpu.shared/pipe", False),
                ("/run/nvidia/mps/shm", "/dev/shm", False),
            ],
        },
    ),
]


@pytest.mark.parametrize(("strategies", "more", "requested", "expected"), ANSWERS)
def test_4_4_answers(
    tmp_path: Path, strategies: str, more: dict[str, Any], requested: list[str], expected: dict[str, Any]
) -> None:
    made = answers(tmp_path, DEVICE_LIST_STRATEGY=strategies, **more)
    assert plain(made.allocate(requested)) == expected


def test_4_4_annotation_keys_are_random(tmp_path: Path) -> None:
    made = answers(tmp_path, DEVICE_LIST_STRATEGY="cdi-annotations")
    keys = {key for _ in range(3) for key in made.allocate(["GPU-a"]).annotations}
    assert len(keys) == 3
    assert all(
        re.fullmatch(r"cdi\.k8s\.io/nvidia-device-plugin_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", key)
        for key in keys
    )


UNKNOWN = 'invalid allocation request for "nvidia.com/gpu": invalid request: unknown device: {}'
TOO_MANY = (
    'invalid allocation request for "nvidia.com/gpu": invalid request: '
    "maximum request size for shared resources is 1; found {}"
)


@pytest.mark.parametrize(
    ("replicas", "fail", "requested", "error"),
    [
        (1, False, ["GPU-x"], UNKNOWN.format("GPU-x")),
        (1, False, ["GPU-a", ""], UNKNOWN.format("")),
        (1, False, ["GPU-a::0"], UNKNOWN.format("GPU-a::0")),
        (2, False, ["GPU-a"], UNKNOWN.format("GPU-a")),
        (2, False, ["GPU-a::2"], UNKNOWN.format("GPU-a::2")),
        (2, True, ["GPU-a::0", "GPU-b::0"], TOO_MANY.format(2)),
        (2, True, ["GPU-a::0", "GPU-a::1", "GPU-b::0"], TOO_MANY.format(3)),
        (2, True, ["GPU-x", "GPU-a::0"], UNKNOWN.format("GPU-x")),
        (2, True, ["GPU-a::0"], None),
        (2, False, ["GPU-a::0", "GPU-b::0"], None),
        (1, True, ["GPU-a", "GPU-b"], None),
    ],
)
def test_4_3_validation(tmp_path: Path, replicas: int, fail: bool, requested: list[str], error: str | None) -> None:
    made = answers(tmp_path, replicas=replicas, fail=fail, strategy=SharingStrategy.TIME_SLICING)
    if error is None:
        assert made.allocate(requested).envs["NVIDIA_VISIBLE_DEVICES"]
        return
    with pytest.raises(RequestError) as caught:
        made.allocate(requested)
    assert str(caught.value) == error


def test_2_8_devices_without_nodes_have_no_control_nodes(tmp_path: Path) -> None:
    tegra = Offer(resource=GPU, base=GPU, devices=(PhysicalDevice(id="tegra", index="0", paths=()),))
    config = configured(tmp_path, PASS_DEVICE_SPECS="true")
    answer = Answers(tegra, config, Extras(), ("/dev/nvidiactl",).__contains__).allocate(["tegra"])
    assert plain(answer) == {"envs": {"NVIDIA_VISIBLE_DEVICES": "tegra"}}
