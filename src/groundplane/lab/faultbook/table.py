"""The faults, by the name that a person types: from the bus up, each with what the doctor has to find."""

from collections.abc import Mapping
from typing import Any, Final

from ...api import names
from ...diagnose.findings import Layer
from .. import driverfaults, pulls
from ..host import SimulatedHost
from . import machine, objects
from .machine import at, image
from .model import Act, Fault, Kind
from .objects import DISCOVERY, DRIVER, EXPORTER, MIG, PLUGIN, TOOLKIT, VALIDATOR, both, then

# --- On which nodes ---------------------------------------------------------------------------------------------------


def _gpus(host: SimulatedHost) -> bool:
    return bool(host.gpus)


def _container(host: SimulatedHost) -> bool:
    return bool(host.gpus) and not host.spec.host_driver


def _own(host: SimulatedHost) -> bool:
    return bool(host.gpus) and bool(host.spec.host_driver)


def _red_hat(host: SimulatedHost) -> bool:
    return _container(host) and host.spec.os.id in ("rhel", "rhcos")


def _other(host: SimulatedHost) -> bool:
    return _container(host) and not _red_hat(host)


def _containerd(host: SimulatedHost) -> bool:
    return bool(host.gpus) and host.spec.runtime.name == "containerd"


def _mig(host: SimulatedHost) -> bool:
    return bool(host.gpus) and all(gpu.model.mig for gpu in host.gpus)


def _old(host: SimulatedHost) -> bool:
    return _container(host) and any(gpu.model.compute < (7, 5) for gpu in host.gpus)


ANY: Final = Kind("nodes with GPUs", _gpus)
CONTAINER: Final = Kind("GPU nodes whose driver comes in a container", _container)
OWN: Final = Kind("GPU nodes with a driver of their own", _own)
RED_HAT: Final = Kind("GPU nodes of Red Hat's whose driver comes in a container", _red_hat)
OTHER: Final = Kind("GPU nodes of other distributions than Red Hat's whose driver comes in a container", _other)
CONTAINERD: Final = Kind("GPU nodes with containerd", _containerd)
MIG_NODE: Final = Kind("nodes whose GPUs can be divided", _mig)
OLD: Final = Kind("nodes with a GPU older than Turing whose driver comes in a container", _old)


# --- Kinds of faults --------------------------------------------------------------------------------------------------


def _xid(number: int, what: str, causes: tuple[str, ...], layer: Layer = Layer.HARDWARE) -> Fault:
    """An error of a GPU that the driver reports; it goes with the machine's reboot."""
    return Fault(
        layer,
        f"a GPU reports Xid {number}: {what}",
        causes,
        at(machine.xid(number)),
        then(machine.recovered, PLUGIN),
        ANY,
    )


def _board(defect: str, what: str, cause: str) -> Fault:
    return Fault(
        Layer.HARDWARE,
        what,
        (cause,),
        then(machine.defect(defect), VALIDATOR),
        then(machine.defect("none"), VALIDATOR),
        ANY,
    )


def _driver(name: str, layer: Layer, title: str, causes: tuple[str, ...], on: Kind, clear: Act | None = None) -> Fault:
    """What the driver's container meets on its start (``driverfaults``)."""
    fault = driverfaults.fault(name)
    return Fault(layer, title, causes, objects.driver_anew(fault.inject), clear or then(fault.cure, DRIVER), on)


def _image(
    layer: Layer, what: str, pattern: str, answer: str, causes: tuple[str, ...], app: str, on: Kind = ANY
) -> Fault:
    """An image that the node cannot pull."""
    return Fault(layer, what, causes, then(image(pattern, answer), app), then(image(pattern, None), app), on)


def _policy(
    layer: Layer, title: str, causes: tuple[str, ...], changes: Mapping[objects.Path, Any], on: Kind, *apps: str
) -> Fault:
    """Wrong settings in the ClusterPolicy."""
    back = objects.policy_back(*changes)
    return Fault(
        layer,
        title,
        causes,
        both(objects.policy(changes), objects.anew(*apps)),
        both(back, objects.anew(*apps)),
        on,
        cluster=True,
    )


_CUDA: Final = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0"
_PAUSE: Final = "registry.k8s.io/pause:3.10"
_DRIVER_IMAGE: Final = "nvcr.io/nvidia/driver:*"
_SPEC: Final = "/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"

_PRECOMPILED: Final[Mapping[objects.Path, Any]] = {("driver", "usePrecompiled"): True, ("driver", "version"): "595"}

FAULTS: Final[Mapping[str, Fault]] = {
    # L0
    "gpu-off-the-bus": Fault(
        Layer.HARDWARE,
        "a GPU falls off the bus (Xid 79)",
        ("S25",),
        at(machine.lost),
        then(machine.recovered, PLUGIN, VALIDATOR, DISCOVERY, EXPORTER),
        ANY,
    ),
    "double-bit-error": _xid(48, "a double bit error of its memory", ("S28",)),
    "row-remap-failed": _xid(64, "a row of its memory could not be remapped", ("S28",)),
    "row-remapped": _xid(63, "a row of its memory is to be remapped", ("S28",)),
    "single-bit-errors": _xid(92, "many single bit errors", ("S28",)),
    "contained-memory-error": _xid(94, "a memory error that one program met", ("S28",)),
    "uncontained-memory-error": _xid(95, "a memory error that all programs meet", ("S28",)),
    "unrecovered-memory-error": _xid(140, "a memory error that is not recovered", ("S28",)),
    "nvlink-error": _xid(74, "an error of NVLink", ("XID-WORKFLOW",)),
    "gpu-halted": _xid(62, "its own controller halted", ("XID-RESET-GPU",)),
    "inforom-corrupt": _board("inforom", "the InfoROM of a GPU is corrupt", "S26"),
    "power-cable": _board("power", "the board of a GPU lacks external power", "RC08"),
    "interrupts": _board("interrupts", "the interrupts of a GPU do not arrive", "RC10"),
    # L1
    "no-kernel-headers": _driver(
        "no-kernel-headers", Layer.KERNEL, "no repository has the headers of the running kernel", ("S10",), OTHER
    ),
    "repositories-unreachable": _driver(
        "repositories-unreachable", Layer.KERNEL, "no package repository can be reached", ("S11",), OTHER
    ),
    "rhel-repositories-unreachable": _driver(
        "rhel-repositories-unreachable", Layer.KERNEL, "no repository of Red Hat's can be reached", ("S11",), RED_HAT
    ),
    "rhel-metadata": _driver(
        "rhel-metadata", Layer.KERNEL, "the index of the repositories cannot be read", ("D01",), RED_HAT
    ),
    "rhel-entitlement": _driver(
        "rhel-entitlement",
        Layer.KERNEL,
        "the node has no entitlement of Red Hat's",
        ("S12",),
        RED_HAT,
        then(driverfaults.fault("no-kernel-headers").cure, DRIVER),
    ),
    "own-kernel": Fault(
        Layer.KERNEL,
        "a kernel that is none of the distribution's was booted",
        ("S10", "D03"),
        objects.driver_anew(machine.own_kernel),
        then(machine.distributions_kernel, DRIVER),
        RED_HAT,
    ),
    "kernel-image-unreadable": _driver(
        "kernel-image-unreadable", Layer.KERNEL, "no version can be read from the kernel's image", ("D02",), OTHER
    ),
    "secure-boot": _driver(
        "secure-boot", Layer.KERNEL, "the machine boots only what is signed, and the driver is not", ("S13",), CONTAINER
    ),
    "nouveau": Fault(
        Layer.KERNEL,
        "the kernel's own driver nouveau took the GPUs",
        ("S14",),
        objects.driver_anew(machine.nouveau),
        then(machine.no_nouveau, DRIVER),
        CONTAINER,
    ),
    # L2
    "driver-image-gone": _image(
        Layer.DRIVER, "the mirror lacks the driver's image", _DRIVER_IMAGE, pulls.GONE, ("S15",), DRIVER, CONTAINER
    ),
    "driver-image-refused": _image(
        Layer.DRIVER,
        "the registry refuses the driver's image",
        _DRIVER_IMAGE,
        pulls.REFUSED,
        ("P01",),
        DRIVER,
        CONTAINER,
    ),
    "driver-registry-unreachable": _image(
        Layer.DRIVER,
        "the driver's registry cannot be reached",
        _DRIVER_IMAGE,
        pulls.UNREACHABLE,
        ("P02",),
        DRIVER,
        CONTAINER,
    ),
    "driver-registry-untrusted": _image(
        Layer.DRIVER,
        "the node does not trust the certificate of the driver's registry",
        _DRIVER_IMAGE,
        pulls.UNTRUSTED,
        ("P02",),
        DRIVER,
        CONTAINER,
    ),
    "driver-manager-image-gone": _image(
        Layer.DRIVER,
        "the mirror lacks the driver manager's image",
        "*/k8s-driver-manager:*",
        pulls.GONE,
        ("P08",),
        DRIVER,
        CONTAINER,
    ),
    "driver-in-use": _driver(
        "driver-in-use",
        Layer.DRIVER,
        "a process of the host holds the driver, which is to be replaced",
        ("S18",),
        CONTAINER,
    ),
    "driver-build-slow": Fault(
        Layer.DRIVER,
        "the driver's build takes longer than its startup probe allows",
        ("S20",),
        objects.driver_anew(machine.slow),
        then(driverfaults.fault("no-kernel-headers").cure, DRIVER),
        CONTAINER,
    ),
    "driver-libraries-updated": Fault(
        Layer.DRIVER,
        "a package brought other libraries of the driver than the module that is loaded",
        ("S21",),
        then(machine.other_libraries, VALIDATOR),
        then(machine.host_files, VALIDATOR),
        OWN,
    ),
    "driver-module-gone": Fault(
        Layer.DRIVER,
        "the host's driver is not loaded, as after a kernel update without it",
        ("RC09", "S03", "V01"),
        then(machine.unload, VALIDATOR),
        then(machine.load, VALIDATOR),
        OWN,
    ),
    "driver-libraries-removed": Fault(
        Layer.DRIVER,
        "the libraries of the host's driver were removed",
        ("RC12",),
        then(machine.no_libraries, VALIDATOR),
        then(machine.host_files, VALIDATOR),
        OWN,
    ),
    "driver-second-instance": Fault(
        Layer.DRIVER,
        "a second driver pod is on the node",
        ("D04",),
        objects.second_driver,
        objects.no_second_driver,
        CONTAINER,
    ),
    "gsp-timeout": _xid(119, "its system processor does not answer", ("S27",), Layer.DRIVER),
    "gsp-error": _xid(120, "its system processor failed", ("S27",), Layer.DRIVER),
    "nvlink5-prerequisites": _driver(
        "nvlink5-prerequisites", Layer.DRIVER, "NVLink 5 lacks the network's driver", ("D08",), CONTAINER
    ),
    "host-driver-installed": Fault(
        Layer.DRIVER,
        "an administrator installed a driver on the host, so that the operator's leaves the node",
        ("S19",),
        objects.driver_anew(machine.install_driver),
        both(at(machine.remove_driver), objects.label(names.DEPLOY_DRIVER, "true")),
        CONTAINER,
        note=True,
    ),
    "upgrade-abandoned": Fault(
        Layer.DRIVER,
        "the driver manager died and left the operands paused",
        ("S23",),
        both(
            objects.label("nvidia.com/gpu.deploy.device-plugin", "paused-for-driver-upgrade"),
            objects.label("nvidia.com/gpu.deploy.dcgm-exporter", "paused-for-driver-upgrade"),
        ),
        both(
            objects.label("nvidia.com/gpu.deploy.device-plugin", "true"),
            objects.label("nvidia.com/gpu.deploy.dcgm-exporter", "true"),
        ),
        CONTAINER,
    ),
    "driver-version-unknown": _policy(
        Layer.DRIVER,
        "the policy asks for a driver version that nobody published",
        ("S15",),
        {("driver", "version"): "999.10.01"},
        CONTAINER,
        DRIVER,
    ),
    "module-type-unknown": _policy(
        Layer.DRIVER,
        "the policy's environment asks for a kind of module that does not exist",
        ("D10",),
        {("driver", "env"): [{"name": "KERNEL_MODULE_TYPE", "value": "closed"}]},
        CONTAINER,
        DRIVER,
    ),
    "module-type-unfit": _policy(
        Layer.DRIVER,
        "the policy asks for open modules, which do not drive the node's old GPU",
        ("S22", "D13"),
        {("driver", "kernelModuleType"): "open"},
        OLD,
        DRIVER,
    ),
    "precompiled-image-gone": Fault(
        Layer.DRIVER,
        "precompiled drivers are asked for, and there is no image for the running kernel",
        ("S16",),
        both(at(image("*/driver:595-*", pulls.GONE)), objects.policy(_PRECOMPILED), objects.driver_anew()),
        both(at(image("*/driver:595-*", None)), objects.policy_back(*_PRECOMPILED), objects.driver_anew()),
        CONTAINER,
        cluster=True,
    ),
    "precompiled-full-version": _policy(
        Layer.DRIVER,
        "precompiled drivers are asked for with a full version",
        ("S17",),
        {("driver", "usePrecompiled"): True},
        CONTAINER,
    ),
    # L3
    "fabric-in-progress": Fault(
        Layer.FABRIC,
        "the GPUs do not join the NVLink fabric",
        ("S29",),
        then(machine.fabric("inProgress"), VALIDATOR),
        then(machine.no_fabric, VALIDATOR),
        ANY,
    ),
    "fabric-manager-failed": Fault(
        Layer.FABRIC,
        "the host's Fabric Manager failed",
        ("S30", "S29"),
        then(machine.fabric_manager("failed"), VALIDATOR),
        then(machine.no_fabric, VALIDATOR),
        OWN,
    ),
    "fabric-manager-stopped": Fault(
        Layer.FABRIC,
        "the host's Fabric Manager was stopped",
        ("S30", "S29"),
        then(machine.fabric_manager("inactive"), VALIDATOR),
        then(machine.no_fabric, VALIDATOR),
        OWN,
    ),
    # L4
    "runtime-handler-lost": Fault(
        Layer.RUNTIME,
        "containerd's configuration was written anew without the toolkit's, and containerd restarted",
        ("S04",),
        both(
            at(machine.replace(machine.RUNTIME_FILE, "version = 3\n")),
            then(SimulatedHost.restart_runtime, PLUGIN, DISCOVERY),
        ),
        both(
            at(machine.put_back(machine.RUNTIME_FILE)),
            at(SimulatedHost.restart_runtime),
            objects.anew(TOOLKIT, PLUGIN, DISCOVERY),
        ),
        CONTAINERD,
    ),
    "runtime-configuration-malformed": Fault(
        Layer.RUNTIME,
        "containerd's configuration is no TOML",
        ("R01", "V04"),
        then(machine.replace(machine.RUNTIME_FILE, "version = 3\n[plugins\n"), TOOLKIT),
        then(machine.put_back(machine.RUNTIME_FILE), TOOLKIT),
        CONTAINERD,
    ),
    "cdi-spec-removed": Fault(
        Layer.RUNTIME,
        "the CDI specification of the device plugin was removed",
        ("S32",),
        both(
            at(machine.replace(_SPEC, None)),
            objects.workload("cdi", _PAUSE, {names.GPU_RESOURCE: "1"}),
        ),
        both(objects.no_workload("cdi"), at(machine.put_back(_SPEC))),
        CONTAINERD,
    ),
    "toolkit-image-gone": _image(
        Layer.RUNTIME,
        "the mirror lacks the toolkit's image",
        "*/container-toolkit:*",
        pulls.GONE,
        ("P03",),
        TOOLKIT,
    ),
    # L5
    "plugin-image-gone": _image(
        Layer.DEVICE_PLUGIN,
        "the mirror lacks the device plugin's image",
        "*/k8s-device-plugin:*",
        pulls.GONE,
        ("P04",),
        PLUGIN,
    ),
    "plugin-image-refused": _image(
        Layer.DEVICE_PLUGIN,
        "the registry refuses the device plugin's image",
        "*/k8s-device-plugin:*",
        pulls.REFUSED,
        ("P04",),
        PLUGIN,
    ),
    "plugin-configuration-unknown": Fault(
        Layer.DEVICE_PLUGIN,
        "the node's label asks for a configuration of the device plugin that the ConfigMap has not",
        ("S40",),
        both(objects.plugin_configurations, objects.label(names.DEVICE_PLUGIN_CONFIG, "no-such")),
        both(objects.label(names.DEVICE_PLUGIN_CONFIG, None), objects.no_plugin_configurations),
        ANY,
        cluster=True,
    ),
    # L6
    "mig-layout-unknown": Fault(
        Layer.LABELS,
        "the node asks for a MIG layout that does not exist",
        ("S43",),
        objects.label("nvidia.com/mig.config", "all-9g.999gb"),
        objects.label("nvidia.com/mig.config", "all-disabled"),
        MIG_NODE,
    ),
    "mig-gpu-in-use": Fault(
        Layer.LABELS,
        "a client holds the GPU that is to be divided",
        ("S42",),
        both(at(lambda host: host.machine.set_busy(0)), objects.label("nvidia.com/mig.config", "all-1g.10gb")),
        both(at(lambda host: host.machine.set_busy(0, False)), objects.label("nvidia.com/mig.config", "all-disabled")),
        MIG_NODE,
    ),
    "mig-without-devices": Fault(
        Layer.LABELS,
        "MIG was switched on by hand, and no devices were made",
        ("S44",),
        then(lambda host: host.machine.set_mig(0, True), PLUGIN),
        then(lambda host: host.machine.set_mig(0, False), PLUGIN),
        MIG_NODE,
    ),
    "mig-manager-image-gone": _image(
        Layer.LABELS,
        "the mirror lacks the MIG manager's image",
        "*/k8s-mig-manager:*",
        pulls.GONE,
        ("P05",),
        MIG,
        MIG_NODE,
    ),
    "discovery-image-gone": _image(
        Layer.LABELS,
        "the mirror lacks the image of GPU feature discovery",
        "*/k8s-device-plugin:*",
        pulls.GONE,
        ("P05",),
        DISCOVERY,
    ),
    # L7
    "too-many-gpus": Fault(
        Layer.WORKLOAD,
        "a pod asks for more GPUs than any node has",
        ("S48",),
        objects.workload("many", _PAUSE, {names.GPU_RESOURCE: "64"}),
        objects.no_workload("many"),
        ANY,
    ),
    "no-such-resource": Fault(
        Layer.WORKLOAD,
        "a pod asks for a MIG device where no GPU is divided",
        ("S06",),
        objects.workload("mig", _PAUSE, {"nvidia.com/mig-1g.5gb": "1"}),
        objects.no_workload("mig"),
        ANY,
    ),
    "taint-not-tolerated": Fault(
        Layer.WORKLOAD,
        "the node is kept for GPU work by a taint, which a pod does not tolerate",
        ("S49",),
        both(
            objects.node_taint(names.GPU_RESOURCE),
            objects.workload("taint", _PAUSE, {names.GPU_RESOURCE: "1"}),
        ),
        both(objects.no_workload("taint"), objects.no_node_taint(names.GPU_RESOURCE)),
        ANY,
    ),
    "workload-image-refused": Fault(
        Layer.WORKLOAD,
        "the registry refuses a pod's image",
        ("P06",),
        both(
            at(image("registry.example.com/*", pulls.REFUSED)),
            objects.workload("refused", "registry.example.com/team/pause:1", {names.GPU_RESOURCE: "1"}),
        ),
        both(objects.no_workload("refused"), at(image("registry.example.com/*", None))),
        ANY,
    ),
    "workload-image-gone": Fault(
        Layer.WORKLOAD,
        "a pod's image does not exist",
        ("P06",),
        objects.workload("image", "docker.io/library/no-such-image:1", {names.GPU_RESOURCE: "1"}),
        objects.no_workload("image"),
        ANY,
    ),
    # L8
    "exporter-image-gone": _image(
        Layer.TELEMETRY,
        "the mirror lacks the exporter's image",
        "*/dcgm-exporter:*",
        pulls.GONE,
        ("P07",),
        EXPORTER,
    ),
    "exporter-image-untrusted": _image(
        Layer.TELEMETRY,
        "the node does not trust the certificate of the exporter's registry",
        "*/dcgm-exporter:*",
        pulls.UNTRUSTED,
        ("P07",),
        EXPORTER,
    ),
    # L9
    "features-not-discovered": Fault(
        Layer.OPERATOR,
        "node feature discovery was taken away, and its labels with it",
        ("S55",),
        objects.no_discovery,
        objects.discovery,
        ANY,
        cluster=True,
    ),
    "definitions-old": Fault(
        Layer.OPERATOR,
        "the ClusterPolicy's definition is older than the operator",
        ("S57",),
        objects.old_definition,
        objects.new_definition,
        ANY,
        cluster=True,
    ),
    "nodes-tainted": Fault(
        Layer.OPERATOR,
        "all GPU nodes have a taint that no operand tolerates",
        ("S54",),
        objects.taint("example.com/maintenance"),
        objects.no_taint("example.com/maintenance"),
        ANY,
        cluster=True,
    ),
}
"""Faults by name."""
