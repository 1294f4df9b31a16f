"""The images of the lab's world: which executables each holds and what it runs by default.

Keys are the last component of an image's repository. Every image has a base system (`BASE`) and a shell besides.
"""

from ..node.metrics.settings import files as counters_files
from ..node.toolkit.settings import HOST_PROGRAM
from . import driver, operatorpod
from .driver import fabric
from .nodeprograms import program
from .programs import Image, Program
from .shell import hostcommands, interpreter, utilities
from .standins import cuda_sample, dcgm, generic, mps_control, nvidia_smi, sandbox

INTERPRETER: Program = interpreter.main
SHELLS: dict[str, Program] = dict.fromkeys(("sh", "bash", "ash", "dash"), interpreter.main)
BASE: dict[str, Program] = {**utilities.PROGRAMS, **SHELLS, "chroot": hostcommands.chroot}
INJECTED: dict[str, Program] = {"nvidia-smi": nvidia_smi.run, "nvidia-cuda-mps-control": mps_control.run}
"""What the container runtime brings into a container along with a GPU."""

_PLUGIN: dict[str, Program] = {
    name: program(name)
    for name in ("nvidia-device-plugin", "gpu-feature-discovery", "mps-control-daemon", "config-manager")
}
_INSPECT: dict[str, Program] = {"groundplane-inspect": program("groundplane-inspect")}
"""What the operands' own image has and NVIDIA's have not; the lab's driver is a stand-in for NVIDIA's."""
"""The shipped node programs of the device plugin's image."""
_GPU_ENV = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""What images made from NVIDIA's CUDA images carry: with the NVIDIA runtime they see all GPUs."""

_CUDA: dict[str, Program] = {"vectorAdd": program("vectorAdd")}
_VALIDATOR: dict[str, Program] = {"nvidia-validator": program("nvidia-validator"), **_CUDA, **_INSPECT}

IMAGES: dict[str, Image] = {
    # the operator's operands
    "gpu-operator": Image(("nvidia-validator",), {**_VALIDATOR, "vfio-manage": program("vfio-manage")}),
    "gpu-operator-validator": Image(("nvidia-validator",), _VALIDATOR),
    "driver": Image(
        ("nvidia-driver", "init"),
        {"nvidia-driver": driver.run, "ocp_dtk_entrypoint": driver.entrypoint, "nvidia-smi": nvidia_smi.run},
        files={fabric.CONFIG: fabric.DEFAULT_CONFIG},
    ),
    "ocp-v4.0-art-dev": Image((), {"ocp_dtk_entrypoint": driver.entrypoint}, command=("bash",)),
    "k8s-driver-manager": Image(
        ("driver-manager",), {name: program(name) for name in ("driver-manager", "vfio-manage")}
    ),
    "nvidia-fs": Image(
        ("nvidia-gds-driver", "install"), {"nvidia-gds-driver": driver.extra, "ocp_dtk_entrypoint": driver.entrypoint}
    ),
    "gdrdrv": Image(
        ("nvidia-gdrcopy-driver", "install"),
        {"nvidia-gdrcopy-driver": driver.extra, "ocp_dtk_entrypoint": driver.entrypoint},
    ),
    "container-toolkit": Image(
        ("nvidia-toolkit",),
        {**{name: program(name) for name in ("nvidia-toolkit", "nvidia-ctk")}, **_INSPECT},
        files={HOST_PROGRAM: "#!/bin/sh\n# stands for the host's program, which the lab does not run\n"},
    ),
    "k8s-device-plugin": Image(("nvidia-device-plugin",), _PLUGIN, _GPU_ENV),
    "dcgm": Image(("nv-hostengine",), {"nv-hostengine": dcgm.run}, _GPU_ENV),
    "dcgm-exporter": Image(
        ("dcgm-exporter",), {"dcgm-exporter": program("dcgm-exporter")}, _GPU_ENV, files=counters_files()
    ),
    "k8s-mig-manager": Image(
        ("nvidia-mig-manager",),
        {name: program(name) for name in ("nvidia-mig-manager", "nvidia-mig-parted")},
        _GPU_ENV,
    ),
    "vgpu-manager": Image(("nvidia-driver", "init"), {"nvidia-driver": sandbox.vgpu_manager}),
    "vgpu-device-manager": Image(("nvidia-vgpu-dm",), {"nvidia-vgpu-dm": sandbox.vgpu_device_manager}),
    "k8s-cc-manager": Image(("nvidia-cc-manager",), {"nvidia-cc-manager": sandbox.cc_manager}),
    "k8s-kata-manager": Image(("k8s-kata-manager",), {"k8s-kata-manager": sandbox.idle}),
    "kubevirt-gpu-device-plugin": Image(
        ("nvidia-kubevirt-gpu-device-plugin",), {"nvidia-kubevirt-gpu-device-plugin": sandbox.idle}
    ),
    "nvidia-sandbox-device-plugin": Image(
        ("nvidia-sandbox-device-plugin",), {"nvidia-sandbox-device-plugin": sandbox.idle}
    ),
    "groundplane": Image(
        ("groundplane-inspect",),
        {
            "gpu-operator": operatorpod.operator,
            "manage-crds": operatorpod.definitions,
            "node-features": program("node-features"),
            **_INSPECT,
        },
    ),
    # people's pods
    "cuda-sample": Image((), {"vectorAdd": cuda_sample.run}, _GPU_ENV, command=("vectorAdd",)),
    "cuda": Image((), _CUDA, _GPU_ENV, command=("bash",)),
    "pause": Image(("pause",), {"pause": generic.pause}),
    "nginx": Image((), {"nginx": generic.web}, command=("nginx",)),
    "busybox": Image((), {}, command=("sh",)),
    "alpine": Image((), {}, command=("sh",)),
    "debian": Image((), {}, command=("bash",)),
    "ubuntu": Image((), {}, command=("bash",)),
}
