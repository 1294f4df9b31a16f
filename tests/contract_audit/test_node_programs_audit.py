"""Node programs against contracts/device-plugin-gfd.md: whole transcripts, written by hand from the contract alone."""

import asyncio
import contextlib
import json
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
import pytest
from node.fakeprocess import FakeProcess, until

from groundplane.api.release import Release
from groundplane.node import config as configs
from groundplane.node import resources
from groundplane.node.cdi import model as cdi
from groundplane.node.configmanager import main as configmanager
from groundplane.node.devices.model import Fabric, Gpu, Inventory, MigDevice, Placed, Profile
from groundplane.node.devices.source import DeviceError, DriverNotLoaded
from groundplane.node.features import main as features
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2 as wire
from groundplane.node.kubeletapi.stubs import deviceplugin_pb2_grpc as rpc
from groundplane.node.mps import main as mps
from groundplane.node.platforms import Platform
from groundplane.node.plugin import cdispec, imex
from groundplane.node.plugin import main as plugin
from groundplane.node.plugin.answers import Answers, Extras
from groundplane.node.process import NodeProgram
from groundplane.node.sharing import Resources, SharingStrategy

OLD, NEW = Release.V26_3, Release.V26_7
BOTH = pytest.mark.parametrize("release", [OLD, NEW])


class Driver:
    """A driver that knows some GPUs, and no more."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def has_library(self) -> bool:
        return True

    def inventory(self) -> Inventory:
        return self._inventory

    def placement(self, _mig_uuid: str) -> Placed:
        return Placed("", 0, 0)

    def watch(self, *_: object) -> Any:
        raise DeviceError("watching GPUs: ERROR_NOT_SUPPORTED", 3)


# --- 1: the effective configuration -----------------------------------------------------------------------------------

OPERATOR = {
    "PASS_DEVICE_SPECS": "true",
    "FAIL_ON_INIT_ERROR": "true",
    "DEVICE_LIST_STRATEGY": "envvar",
    "DEVICE_ID_STRATEGY": "uuid",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "all",
    "MPS_ROOT": "/run/nvidia/mps",
}
"""Section 14."""
WITH_CDI = {
    **OPERATOR,
    "CDI_ENABLED": "true",
    "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri",
    "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/",
    "NVIDIA_CDI_HOOK_PATH": "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "MIG_STRATEGY": "single",
    "NVIDIA_MIG_MONITOR_DEVICES": "all",
}


def effective(text: str) -> str:
    """The configuration that a log holds, as it was written."""
    lines = [re.sub(r"^I\d{4} [\d:.]+ +\d+ ?", "", line) for line in text.splitlines()]
    first = lines.index("Running with config:") + 1
    last = lines.index("}", first)
    return "\n".join(lines[first : last + 1])


@pytest.mark.parametrize(
    ("release", "policy"), [(OLD, ""), (NEW, ',\n      "sharedDevicesAllocationPolicy": "distributed"')]
)
def test_1_and_14_effective_configuration_of_the_plugin_with_cdi(tmp_path: Path, release: Release, policy: str) -> None:
    process = FakeProcess(tmp_path, ["nvidia-device-plugin"], WITH_CDI, release=release)
    config = configs.load_plugin(process)
    assert (
        config.effective(resources.patterns(config.mig_strategy, Inventory("", 0)))
        == """\
{
  "version": "v1",
  "flags": {
    "migStrategy": "single",
    "failOnInitError": true,
    "mpsRoot": "/run/nvidia/mps",
    "nvidiaDriverRoot": "/",
    "nvidiaDevRoot": "/",
    "gdrcopyEnabled": false,
    "gdsEnabled": false,
    "mofedEnabled": false,
    "useNodeFeatureAPI": null,
    "deviceDiscoveryStrategy": "auto",
    "plugin": {
      "passDeviceSpecs": true,
      "deviceListStrategy": [
        "cdi-annotations",
        "cdi-cri"
      ],
      "deviceIDStrategy": "uuid",
      "cdiAnnotationPrefix": "cdi.k8s.io/",
      "nvidiaCTKPath": "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
      "containerDriverRoot": "/driver-root\""""
        + policy
        + """
    }
  },
  "resources": {
    "gpus": [
      {
        "pattern": "*",
        "name": "nvidia.com/gpu"
      }
    ],
    "mig": [
      {
        "pattern": "*",
        "name": "nvidia.com/gpu"
      }
    ]
  },
  "sharing": {
    "timeSlicing": {}
  },
  "imex": {}
}"""
    )


@pytest.mark.parametrize(("release", "policy"), [(OLD, ""), (NEW, ',\n      "sharedDevicesAllocationPolicy": null')])
def test_1_and_14_effective_configuration_of_gfd(tmp_path: Path, release: Release, policy: str) -> None:
    env = {
        "GFD_SLEEP_INTERVAL": "90s",
        "GFD_FAIL_ON_INIT_ERROR": "true",
        "NAMESPACE": "gpu-operator",
        "NODE_NAME": "n",
        "POD_NAME": "p",
        "GFD_MIG_STRATEGY": "none",
        "MIG_STRATEGY": "single",
    }
    process = FakeProcess(tmp_path, ["gpu-feature-discovery"], env, release=release)
    config = configs.load_gfd(process)
    assert (
        config.effective(Resources())
        == """\
{
  "version": "v1",
  "flags": {
    "migStrategy": "none",
    "failOnInitError": true,
    "gdrcopyEnabled": null,
    "gdsEnabled": null,
    "mofedEnabled": null,
    "useNodeFeatureAPI": true,
    "deviceDiscoveryStrategy": "auto",
    "plugin": {
      "passDeviceSpecs": null,
      "deviceListStrategy": null,
      "deviceIDStrategy": null,
      "cdiAnnotationPrefix": null,
      "nvidiaCTKPath": null,
      "containerDriverRoot": "/driver-root\""""
        + policy
        + """
    },
    "gfd": {
      "oneshot": false,
      "noTimestamp": false,
      "sleepInterval": "1m30s",
      "outputFile": "/etc/kubernetes/node-feature-discovery/features.d/gfd",
      "machineTypeFile": "/sys/class/dmi/id/product_name"
    }
  },
  "resources": {
    "gpus": null
  },
  "sharing": {
    "timeSlicing": {}
  },
  "imex": {}
}"""
    )


# --- 8: all labels of whole nodes -------------------------------------------------------------------------------------


def gpu(index: int, name: str, memory_mib: int, compute: tuple[int, int], *mig: MigDevice, **more: Any) -> Gpu:
    values: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-0000000{index}-0000-4000-8000-000000000000",
        "minor": index,
        "name": name,
        "bus_id": f"00000000:0{index}:00.0",
        "memory_bytes": (memory_mib << 20) + 4711,
        "compute": compute,
        "mig_devices": mig,
    }
    return Gpu(**{**values, **more})


def part(slot: int, profile: Profile, memory_mib: int, *engines: int) -> MigDevice:
    """A MIG device; engines are multiprocessors, GPU and compute slices, then copy, decoder, encoder, JPEG, OFA."""
    fields = (
        *("multiprocessors", "gi_slices", "ci_slices"),
        *("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines"),
    )
    return MigDevice(
        slot=slot,
        uuid=f"MIG-0000000{slot}-0000-4000-8000-000000000000",
        gi=slot + 7,
        ci=0,
        profile=profile,
        memory_mib=memory_mib,
        **dict(zip(fields, engines, strict=True)),
    )


SMALL = (Profile(1, 1, 5), 4864, 14, 1, 1, 1, 0, 0, 0, 0)
HALF = (Profile(3, 3, 20), 19968, 42, 3, 3, 3, 2, 0, 0, 0)
THIRD = (Profile(1, 3, 20), 19968, 14, 3, 1, 3, 2, 0, 0, 0)
H100 = [gpu(index, "NVIDIA H100 80GB HBM3", 81559, (9, 0), mig=False) for index in range(2)]
MIXED = [
    gpu(0, "NVIDIA A100-SXM4-40GB", 40960, (8, 0), mig=False),
    gpu(1, "NVIDIA A100-SXM4-40GB", 40960, (8, 0), part(0, *SMALL), part(1, *SMALL), part(2, *THIRD), mig=True),
    gpu(2, "NVIDIA A100-SXM4-40GB", 40960, (8, 0), mig=True),
]
UNIFORM = [
    gpu(index, "NVIDIA A100-SXM4-40GB", 40960, (8, 0), part(0, *HALF), part(1, *HALF), mig=True) for index in range(2)
]

SLICED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
RENAMED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
PARTS_SLICED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 3}]}}"
MPS = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}"

COMMON = {
    "nvidia.com/gpu.machine": "Standard-PC-Q35-ICH9-2009",
    "nvidia.com/cuda.driver-version.major": "580",
    "nvidia.com/cuda.driver-version.minor": "65",
    "nvidia.com/cuda.driver-version.revision": "06",
    "nvidia.com/cuda.driver-version.full": "580.65.06",
    "nvidia.com/cuda.driver.major": "580",
    "nvidia.com/cuda.driver.minor": "65",
    "nvidia.com/cuda.driver.rev": "06",
    "nvidia.com/cuda.runtime-version.major": "13",
    "nvidia.com/cuda.runtime-version.minor": "0",
    "nvidia.com/cuda.runtime-version.full": "13.0",
    "nvidia.com/cuda.runtime.major": "13",
    "nvidia.com/cuda.runtime.minor": "0",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mps.capable": "false",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/vgpu.present": "false",
}
OF_H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
}
OF_A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.count": "3",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/gpu.memory": "40960",
    "nvidia.com/gpu.family": "ampere",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
}
OF_PARTS = {
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    "nvidia.com/mig-1g.5gb.count": "2",
    "nvidia.com/mig-1g.5gb.replicas": "1",
    "nvidia.com/mig-1g.5gb.sharing-strategy": "none",
    "nvidia.com/mig-1g.5gb.memory": "4864",
    "nvidia.com/mig-1g.5gb.multiprocessors": "14",
    "nvidia.com/mig-1g.5gb.slices.gi": "1",
    "nvidia.com/mig-1g.5gb.slices.ci": "1",
    "nvidia.com/mig-1g.5gb.engines.copy": "1",
    "nvidia.com/mig-1g.5gb.engines.decoder": "0",
    "nvidia.com/mig-1g.5gb.engines.encoder": "0",
    "nvidia.com/mig-1g.5gb.engines.jpeg": "0",
    "nvidia.com/mig-1g.5gb.engines.ofa": "0",
    "nvidia.com/mig-1c.3g.20gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1c.3g.20gb",
    "nvidia.com/mig-1c.3g.20gb.count": "1",
    "nvidia.com/mig-1c.3g.20gb.replicas": "1",
    "nvidia.com/mig-1c.3g.20gb.sharing-strategy": "none",
    "nvidia.com/mig-1c.3g.20gb.memory": "19968",
    "nvidia.com/mig-1c.3g.20gb.multiprocessors": "14",
    "nvidia.com/mig-1c.3g.20gb.slices.gi": "3",
    "nvidia.com/mig-1c.3g.20gb.slices.ci": "1",
    "nvidia.com/mig-1c.3g.20gb.engines.copy": "3",
    "nvidia.com/mig-1c.3g.20gb.engines.decoder": "2",
    "nvidia.com/mig-1c.3g.20gb.engines.encoder": "0",
    "nvidia.com/mig-1c.3g.20gb.engines.jpeg": "0",
    "nvidia.com/mig-1c.3g.20gb.engines.ofa": "0",
}
OF_UNIFORM = {
    **OF_A100,
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.memory": "19968",
    "nvidia.com/gpu.multiprocessors": "42",
    "nvidia.com/gpu.slices.gi": "3",
    "nvidia.com/gpu.slices.ci": "3",
    "nvidia.com/gpu.engines.copy": "3",
    "nvidia.com/gpu.engines.decoder": "2",
    "nvidia.com/gpu.engines.encoder": "0",
    "nvidia.com/gpu.engines.jpeg": "0",
    "nvidia.com/gpu.engines.ofa": "0",
}
INVALID = {
    **OF_A100,
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID",
    "nvidia.com/gpu.count": "0",
    "nvidia.com/gpu.replicas": "0",
    "nvidia.com/gpu.memory": "0",
    "nvidia.com/gpu.sharing-strategy": "",
}
NODES: dict[str, tuple[list[Gpu], str, str, dict[str, str]]] = {
    "whole GPUs": (H100, "none", "", OF_H100),
    "whole GPUs, single": (H100, "single", "", {**OF_H100, "nvidia.com/mig.strategy": "single"}),
    "whole GPUs, mixed": (H100, "mixed", "", {**OF_H100, "nvidia.com/mig.strategy": "mixed"}),
    "time-sliced": (
        H100,
        "none",
        SLICED,
        {
            **OF_H100,
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
            "nvidia.com/gpu.replicas": "4",
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
        },
    ),
    "time-sliced and renamed": (
        H100,
        "none",
        RENAMED,
        {**OF_H100, "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
    ),
    "shared by MPS": (
        H100,
        "none",
        MPS,
        {
            **OF_H100,
            "nvidia.com/mps.capable": "true",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
            "nvidia.com/gpu.replicas": "10",
            "nvidia.com/gpu.sharing-strategy": "mps",
        },
    ),
    "MIG and not, none": (MIXED, "none", "", OF_A100),
    "MIG and not, mixed": (MIXED, "mixed", "", {**OF_A100, **OF_PARTS}),
    "MIG and not, mixed, parts time-sliced": (
        MIXED,
        "mixed",
        PARTS_SLICED,
        {
            **OF_A100,
            **OF_PARTS,
            "nvidia.com/mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
            "nvidia.com/mig-1g.5gb.replicas": "3",
            "nvidia.com/mig-1g.5gb.sharing-strategy": "time-slicing",
        },
    ),
    "MIG and not, single": (MIXED, "single", "", INVALID),
    "MIG throughout, none, time-sliced": (
        UNIFORM,
        "none",
        SLICED,
        {**OF_A100, "nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "0"},
    ),
    "MIG throughout, single": (UNIFORM, "single", "", OF_UNIFORM),
    "MIG throughout, single, time-sliced": (
        UNIFORM,
        "single",
        SLICED,
        {
            **OF_UNIFORM,
            "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED",
            "nvidia.com/gpu.replicas": "4",
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
        },
    ),
}
FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"


async def labelled(folder: Path, release: Release, inventory: Inventory, strategy: str, config: str = "") -> bytes:
    """What gpu-feature-discovery writes into its file in one pass."""
    env = {"GFD_NO_TIMESTAMP": "true", "GFD_USE_NODE_FEATURE_API": "false", "GFD_MIG_STRATEGY": strategy}
    argv = ["gpu-feature-discovery", "--oneshot", *(["--config-file=/config/c.yaml"] if config else [])]
    process = FakeProcess(folder, argv, env, source=Driver(inventory), release=release)
    process.write("/config/c.yaml", config)
    process.write_kernel("/sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n")
    process.write_kernel("/sys/bus/pci/devices/0000:7f:00.0/vendor", "0x8086\n")
    for each in inventory.gpus:
        process.write_kernel(f"{each.sysfs}/class", "0x030200\n")
        process.write_kernel(f"{each.sysfs}/vendor", "0x10de\n")
        process.write_kernel(f"{each.sysfs}/config", b"\xde\x10" + bytes(254))
    assert await features.run(process) == 0, process.stderr
    file: Path = process.path(FILE)
    assert file.stat().st_mode & 0o777 == 0o644
    return file.read_bytes()


@BOTH
@pytest.mark.parametrize("node", NODES)
async def test_8_all_labels_of_a_node(tmp_path: Path, release: Release, node: str) -> None:
    gpus, strategy, config, expected = NODES[node]
    written = await labelled(tmp_path, release, Inventory("580.65.06", 13000, tuple(gpus)), strategy, config)
    assert dict(line.split("=", 1) for line in written.decode().splitlines()) == {**COMMON, **expected}


@pytest.mark.parametrize(("release", "family"), [(OLD, "undefined"), (NEW, "rubin")])
async def test_8_and_13_the_whole_file_of_a_rubin_node_in_a_fabric(
    tmp_path: Path, release: Release, family: str
) -> None:
    fabric = Fabric("4f8e7a52-0c0e-4d5f-9b1e-0a1b2c3d4e5f", 32766, completed=True, succeeded=True)
    gpus = tuple(gpu(index, "NVIDIA VR200", 0, (13, 0), mig=None, memory_bytes=0, fabric=fabric) for index in range(2))
    written = await labelled(tmp_path, release, Inventory("600.01", 14020, gpus), "none")
    assert (
        written.decode()
        == f"""\
nvidia.com/cuda.driver-version.full=600.01
nvidia.com/cuda.driver-version.major=600
nvidia.com/cuda.driver-version.minor=01
nvidia.com/cuda.driver-version.revision=
nvidia.com/cuda.driver.major=600
nvidia.com/cuda.driver.minor=01
nvidia.com/cuda.driver.rev=
nvidia.com/cuda.runtime-version.full=14.2
nvidia.com/cuda.runtime-version.major=14
nvidia.com/cuda.runtime-version.minor=2
nvidia.com/cuda.runtime.major=14
nvidia.com/cuda.runtime.minor=2
nvidia.com/gpu.clique=4f8e7a52-0c0e-4d5f-9b1e-0a1b2c3d4e5f.32766
nvidia.com/gpu.compute.major=13
nvidia.com/gpu.compute.minor=0
nvidia.com/gpu.count=2
nvidia.com/gpu.family={family}
nvidia.com/gpu.machine=Standard-PC-Q35-ICH9-2009
nvidia.com/gpu.mode=compute
nvidia.com/gpu.product=NVIDIA-VR200
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/mig.capable=false
nvidia.com/mps.capable=false
nvidia.com/vgpu.present=false
"""
    )


# --- 4.4: all combinations of device list strategies ------------------------------------------------------------------

VOLUMES = "/var/run/nvidia-container-devices"
A, B = "GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbbbbbb-0000-4000-8000-000000000000"
CDI_NAMES = [
    f"k8s.device-plugin.nvidia.com/gpu={B}",
    f"k8s.device-plugin.nvidia.com/gpu={A}",
    "k8s.device-plugin.nvidia.com/imex-channel=0",
    "k8s.device-plugin.nvidia.com/gdrcopy=all",
]
ALWAYS = {"NVIDIA_GDRCOPY": "enabled", "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}
MPS_MOUNTS = [
    ("/run/nvidia/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe", False),
    ("/run/nvidia/mps/shm", "/dev/shm", False),
]
NODES_OF_GPUS = [
    ("/run/nvidia/driver/dev/nvidiactl", "/dev/nvidiactl", "rw"),
    ("/run/nvidia/driver/dev/nvidia-uvm", "/dev/nvidia-uvm", "rw"),
    ("/run/nvidia/driver/dev/nvidia7", "/dev/nvidia7", "rw"),
    ("/run/nvidia/driver/dev/nvidia2", "/dev/nvidia2", "rw"),
    (
        "/run/nvidia/driver/dev/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-caps-imex-channels/channel0",
        "rw",
    ),
]
BY_ENV = {"NVIDIA_VISIBLE_DEVICES": f"{B},{A}", "NVIDIA_IMEX_CHANNELS": "0"}
BY_VOLUMES = {"NVIDIA_VISIBLE_DEVICES": VOLUMES}
VOLUME_MOUNTS = [
    ("/dev/null", f"{VOLUMES}/{B}", False),
    ("/dev/null", f"{VOLUMES}/{A}", False),
    ("/dev/null", f"{VOLUMES}/imex/0", False),
]
ENV, VOL, ANN, CRI = "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"
COMBINATIONS: list[tuple[tuple[str, ...], dict[str, str], bool, bool, bool, bool]] = [
    # strategies, variables, mounts of volumes, device nodes, annotation, field of the CRI
    ((ENV,), BY_ENV, False, True, False, False),
    ((VOL,), BY_VOLUMES, True, True, False, False),
    ((ANN,), {}, False, False, True, False),
    ((CRI,), {}, False, False, False, True),
    ((ENV, VOL), {**BY_ENV, **BY_VOLUMES}, True, True, False, False),
    ((ENV, ANN), BY_ENV, False, True, True, False),
    ((ENV, CRI), BY_ENV, False, True, False, True),
    ((VOL, ANN), BY_VOLUMES, True, True, True, False),
    ((VOL, CRI), BY_VOLUMES, True, True, False, True),
    ((ANN, CRI), {}, False, False, True, True),
    ((ENV, VOL, ANN), {**BY_ENV, **BY_VOLUMES}, True, True, True, False),
    ((ENV, VOL, CRI), {**BY_ENV, **BY_VOLUMES}, True, True, False, True),
    ((ENV, ANN, CRI), BY_ENV, False, True, True, True),
    ((VOL, ANN, CRI), BY_VOLUMES, True, True, True, True),
    ((ENV, VOL, ANN, CRI), {**BY_ENV, **BY_VOLUMES}, True, True, True, True),
]


@BOTH
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("strategies", "env", "volumes", "nodes", "annotation", "cri"), COMBINATIONS)
def test_4_4_every_combination_of_strategies_with_all_that_can_be_added(
    tmp_path: Path,
    release: Release,
    turned: bool,
    strategies: tuple[str, ...],
    env: dict[str, str],
    volumes: bool,
    nodes: bool,
    annotation: bool,
    cri: bool,
) -> None:
    """Two replicas of one GPU and one of another, shared by MPS, with IMEX, GDRCopy and device nodes."""
    variables = {
        **OPERATOR,
        "DEVICE_LIST_STRATEGY": ",".join(reversed(strategies) if turned else strategies),
        "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
        "GDRCOPY_ENABLED": "true",
        "IMEX_CHANNEL_IDS": "0",
    }
    config = configs.load_plugin(FakeProcess(tmp_path, ["nvidia-device-plugin"], variables, release=release))
    devices = tuple(
        resources.PhysicalDevice(id=uuid, index=index, paths=(path,))
        for uuid, index, path in ((A, "0", "/dev/nvidia2"), (B, "1", "/dev/nvidia7"))
    )
    offer = resources.Offer(
        resource="nvidia.com/gpu",
        base="nvidia.com/gpu",
        devices=devices,
        replicas=3,
        strategy=SharingStrategy.MPS,
    )
    there = {"/dev/nvidia-uvm", "/dev/nvidiactl"}.__contains__
    answer = Answers(offer, config, Extras((0,), ("gdrcopy",)), there).allocate([f"{B}::2", f"{A}::0", f"{B}::0"])
    assert dict(answer.envs) == {**ALWAYS, **env}
    mounts = [(each.host_path, each.container_path, each.read_only) for each in answer.mounts]
    assert sorted(mounts) == sorted([*MPS_MOUNTS, *(VOLUME_MOUNTS if volumes else ())])
    specs = [(each.host_path, each.container_path, each.permissions) for each in answer.devices]
    assert specs == (NODES_OF_GPUS if nodes else [])
    assert list(answer.annotations.values()) == ([",".join(CDI_NAMES)] if annotation else [])
    assert all(re.fullmatch(ANNOTATION, key) for key in answer.annotations)
    assert [each.name for each in answer.cdi_devices] == (CDI_NAMES if cri else [])


ANNOTATION = r"cdi\.k8s\.io/nvidia-device-plugin_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


# --- once found wrong -------------------------------------------------------------------------------------------------


class Missing(Driver):
    """No driver is there, or it is there and says nothing."""

    def __init__(self, silent: bool) -> None:
        super().__init__(Inventory("", 0))
        self._silent = silent

    def open(self) -> None:
        if not self._silent:
            raise DriverNotLoaded("initialising NVML: ERROR_DRIVER_NOT_LOADED", 9)

    def inventory(self) -> Inventory:
        raise DeviceError("counting the GPUs: ERROR_UNKNOWN", 999)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("program", [plugin.run, mps.run])
async def test_1_the_configuration_is_logged_at_each_start_also_without_a_driver(
    tmp_path: Path, program: NodeProgram, silent: bool
) -> None:
    process = FakeProcess(tmp_path, env={**OPERATOR, "CONFIG_FILE": "/c.yaml"}, source=Missing(silent))
    process.write("/c.yaml", MPS)
    process.path("/var/lib/kubelet/device-plugins").mkdir(parents=True)
    assert await program(process) == 1
    shown = json.loads(effective(process.stderr))
    assert shown["flags"]["migStrategy"] == "none"
    assert shown["resources"] == {"gpus": [{"pattern": "*", "name": "nvidia.com/gpu"}]}
    assert process.stderr.splitlines()[-1].startswith("E")


@pytest.mark.parametrize(
    ("below", "host"),
    [
        ("/driver-root", {"hostPath": "/run/nvidia/driver/dev/nvidia-caps-imex-channels/channel0"}),
        ("", {}),
    ],
)
def test_4_5_and_4_6_an_imex_channel_is_named_where_the_host_has_it(
    tmp_path: Path, below: str, host: dict[str, str]
) -> None:
    """Only what is below the container's dev root is rewritten; a channel at its plain path is the host's."""
    channel = "/dev/nvidia-caps-imex-channels/channel0"
    env = {"DEVICE_LIST_STRATEGY": "cdi-cri", "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "IMEX_CHANNEL_IDS": "0"}
    process = FakeProcess(tmp_path, env={**env, "GROUNDPLANE_NULL_DEVICES": "true"})
    process.path("/driver-root/dev").mkdir(parents=True)
    process.write(f"{below}{channel}", "")
    config = configs.load_plugin(process)
    dev_root = cdispec.roots(config, process).dev
    channels = imex.available(process, config.imex_channels, dev_root, required=True, any_kind=True)
    offered = cdispec.Offered(Platform.NVML, Inventory("580.65.06", 13000), channels=channels)
    (spec,) = cdispec.specs(process, config, offered)
    null = {"type": "c", "major": 1, "minor": 3}
    assert json.loads(cdi.encode(spec)) == {
        "cdiVersion": "0.5.0",
        "kind": "k8s.device-plugin.nvidia.com/imex-channel",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": channel, **host, **null}]}}],
    }


class MuteServer:
    """An API server that takes connections and says nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def get(self, *_: object, **__: object) -> Any:
        self.asked.set()
        await asyncio.Event().wait()


async def test_7_an_init_container_that_waits_for_the_api_server_ends_when_asked_and_has_not_succeeded(
    tmp_path: Path,
) -> None:
    server = MuteServer()
    env = {"ONESHOT": "true", "SIGNAL": "", "NODE_NAME": "n", "CONFIG_FILE_SRCDIR": "/c", "CONFIG_FILE_DST": "/d/c"}
    process = FakeProcess(tmp_path, ["config-manager"], env, make_client=lambda: server)
    process.write("/c/a", "version: v1")
    running = asyncio.create_task(configmanager.run(process))
    await server.asked.wait()
    process.send(signal.SIGTERM)
    assert await asyncio.wait_for(running, 20) == 1
    assert not process.path("/d/c").exists()


class Kubelet(rpc.RegistrationServicer):
    """A kubelet that refuses one resource, and a plugin with a GPU and two MIG profiles that registers with it."""

    def __init__(self, folder: Path, refused: str) -> None:
        self._refused = refused
        self.asked: list[str] = []
        parts = [part(0, *SMALL), part(1, *HALF)]
        inventory = Inventory("580.65.06", 13000, (MIXED[0], gpu(1, "A100", 40960, (8, 0), *parts, mig=True)))
        self.process = FakeProcess(folder, env={"MIG_STRATEGY": "mixed"}, source=Driver(inventory))
        access = [f"gpu1/gi{gi}/{name} {minor}" for gi in (7, 8) for minor, name in enumerate(("access", "ci0/access"))]
        self.process.write_kernel("/proc/driver/nvidia-caps/mig-minors", "\n".join(access))
        self.folder = self.process.path("/var/lib/kubelet/device-plugins")
        self.folder.mkdir(parents=True)

    @property
    def sockets(self) -> list[str]:
        return sorted(each.name for each in self.folder.glob("nvidia-*"))

    async def Register(self, request: Any, context: Any) -> Any:
        self.asked.append(request.resource_name)
        if request.resource_name == self._refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not this one")
        return wire.Empty()


@contextlib.asynccontextmanager
async def kubelet(refused: str = "") -> AsyncIterator[Kubelet]:
    with tempfile.TemporaryDirectory(prefix="gp") as folder:  # unix sockets have short paths
        made = Kubelet(Path(folder), refused)
        server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(made, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{made.folder / 'kubelet.sock'}")
        await server.start()
        yield made
        await server.stop(None)


async def test_3_a_refused_resource_is_stopped_alone_until_the_whole_set_is_tried_again() -> None:
    """Registration fails for the second of three: the first goes on serving, the third is not started."""
    async with kubelet(refused="nvidia.com/mig-1g.5gb") as there:
        running = asyncio.create_task(plugin.run(there.process))
        await until(lambda: "trying again in 30 s" in there.process.stderr)
        assert there.asked == ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]
        await until(lambda: there.sockets == ["nvidia-gpu.sock"])
        async with grpc.aio.insecure_channel(f"unix:{there.folder / 'nvidia-gpu.sock'}") as channel:
            stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
            assert (await stub.GetDevicePluginOptions(wire.Empty(), timeout=20)).get_preferred_allocation_available
        there.process.send(signal.SIGTERM)
        assert await asyncio.wait_for(running, 20) == 0
        assert there.sockets == []


async def test_3_the_whole_set_is_tried_again_in_30_s_and_one_server_too_many_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other resources that are served do not keep it from either."""
    servers: list[Any] = []
    make = grpc.aio.server

    def made() -> Any:
        servers.append(make())
        return servers[-1]

    async with kubelet() as there:
        monkeypatch.setattr(grpc.aio, "server", made)
        (there.folder / "nvidia-mig-3g.20gb.sock").mkdir()  # no socket can take its place
        there.process.pace = 100.0
        running = asyncio.create_task(plugin.run(there.process))
        await until(lambda: "trying again in 30 s" in there.process.stderr)
        (there.folder / "nvidia-mig-3g.20gb.sock").rmdir()
        await until(lambda: there.asked[-1:] == ["nvidia.com/mig-3g.20gb"])
        assert there.asked[:2] == ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]
        for _ in range(6):
            asked = len(there.asked)
            await servers[-1].stop(None)
            await until(lambda asked=asked: len(there.asked) > asked or running.done())  # type: ignore[misc]
        assert await asyncio.wait_for(running, 20) == 1
        assert there.sockets == []
