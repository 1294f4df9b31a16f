"""Faults of a node's own: its hardware, kernel, driver and fabric (layers L0 to L3)."""

from collections.abc import Mapping
from typing import Any, Final

from ...api import names
from ...diagnose.findings import Layer
from .. import driverfaults, pulls
from . import machine, objects
from .entries import board, driver, settings, unpullable, xid
from .machine import at, image
from .model import Fault
from .objects import DISCOVERY, DRIVER, EXPORTER, PAUSE, PLUGIN, VALIDATOR, both, then
from .on import ANY, CONTAINER, OLD, OTHER, OWN, RED_HAT

_DRIVER_IMAGE: Final = "nvcr.io/nvidia/driver:*"
_RDMA: Final[Mapping[objects.Path, Any]] = {
    ("driver", "rdma", "enabled"): True,
    ("driver", "upgradePolicy", "autoUpgrade"): False,  # the other nodes keep their driver
}
_NO_DRAIN: Final[Mapping[objects.Path, Any]] = {
    ("driver", "upgradePolicy", "autoUpgrade"): False,
    ("driver", "manager", "env"): [{"name": "ENABLE_AUTO_DRAIN", "value": "false"}],
}
_PRECOMPILED: Final[Mapping[objects.Path, Any]] = {("driver", "usePrecompiled"): True, ("driver", "version"): "595"}

_KARPENTER: Final = "karpenter.k8s.aws/instance-gpu-manufacturer"

LOWER: Final[Mapping[str, Fault]] = {
    # L0
    "gpu-off-the-bus": Fault(
        Layer.HARDWARE,
        "a GPU falls off the bus (Xid 79)",
        ("S25",),
        at(machine.lost),
        then(machine.recovered, PLUGIN, VALIDATOR, DISCOVERY, EXPORTER),
        ANY,
    ),
    "gpu-not-passed-through": Fault(
        Layer.HARDWARE,
        "a node made from a type of instance with GPUs has none on its bus",
        ("S01",),
        both(at(machine.off_the_machine), objects.label(_KARPENTER, "nvidia")),
        both(at(machine.on_the_machine), objects.label(_KARPENTER, None)),
        ANY,
    ),
    "double-bit-error": xid(48, "a double bit error of its memory", ("S28",)),
    "row-remap-failed": xid(64, "a row of its memory could not be remapped", ("S28",)),
    "row-remapped": xid(63, "a row of its memory is to be remapped", ("S28",)),
    "single-bit-errors": xid(92, "many single bit errors", ("S28",)),
    "contained-memory-error": xid(94, "a memory error that one program met", ("S28",)),
    "uncontained-memory-error": xid(95, "a memory error that all programs meet", ("S28",)),
    "unrecovered-memory-error": xid(140, "a memory error that is not recovered", ("S28",)),
    "nvlink-error": xid(74, "an error of NVLink", ("XID-WORKFLOW",)),
    "gpu-halted": xid(62, "its own controller halted", ("XID-RESET-GPU",)),
    "auxiliary-power": xid(54, "its board has no auxiliary power", ("XID-CHECK-MECHANICS",)),
    "controller-warning": xid(61, "its own controller warns of an error in it", ("XID-SUPPORT",)),
    "key-rotation-failed": xid(151, "a virtual machine's keys could not be changed", ("XID-RESTART-VM",)),
    "pcie-timeout": xid(167, "PCIe did not answer in time", ("XID-NONE",)),
    "inforom-corrupt": board("inforom", "the InfoROM of a GPU is corrupt", "S26"),
    "power-cable": board("power", "the board of a GPU lacks external power", "RC08"),
    "interrupts": board("interrupts", "the interrupts of a GPU do not arrive", "RC10"),
    # L1
    "no-kernel-headers": driver(
        "no-kernel-headers", Layer.KERNEL, "no repository has the headers of the running kernel", ("S10",), OTHER
    ),
    "repositories-unreachable": driver(
        "repositories-unreachable", Layer.KERNEL, "no package repository can be reached", ("S11",), OTHER
    ),
    "rhel-repositories-unreachable": driver(
        "rhel-repositories-unreachable", Layer.KERNEL, "no repository of Red Hat's can be reached", ("S11",), RED_HAT
    ),
    "rhel-metadata": driver(
        "rhel-metadata", Layer.KERNEL, "the index of the repositories cannot be read", ("D01",), RED_HAT
    ),
    "rhel-entitlement": driver(
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
    "kernel-image-unreadable": driver(
        "kernel-image-unreadable", Layer.KERNEL, "no version can be read from the kernel's image", ("D02",), OTHER
    ),
    "secure-boot": driver(
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
    "driver-image-gone": unpullable(
        Layer.DRIVER, "the mirror lacks the driver's image", _DRIVER_IMAGE, pulls.GONE, ("S15",), DRIVER, CONTAINER
    ),
    "driver-image-refused": unpullable(
        Layer.DRIVER,
        "the registry refuses the driver's image",
        _DRIVER_IMAGE,
        pulls.REFUSED,
        ("P01",),
        DRIVER,
        CONTAINER,
    ),
    "driver-registry-unreachable": unpullable(
        Layer.DRIVER,
        "the driver's registry cannot be reached",
        _DRIVER_IMAGE,
        pulls.UNREACHABLE,
        ("P02",),
        DRIVER,
        CONTAINER,
    ),
    "driver-registry-untrusted": unpullable(
        Layer.DRIVER,
        "the node does not trust the certificate of the driver's registry",
        _DRIVER_IMAGE,
        pulls.UNTRUSTED,
        ("P02",),
        DRIVER,
        CONTAINER,
    ),
    "driver-manager-image-gone": unpullable(
        Layer.DRIVER,
        "the mirror lacks the driver manager's image",
        "*/k8s-driver-manager:*",
        pulls.GONE,
        ("P08",),
        DRIVER,
        CONTAINER,
    ),
    "driver-in-use": driver(
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
    "gsp-timeout": xid(119, "its system processor does not answer", ("S27",), Layer.DRIVER),
    "virtual-gpu-not-started": xid(78, "a virtual GPU could not be started", ("XID-UPDATE",), Layer.DRIVER),
    "gsp-error": xid(120, "its system processor failed", ("S27",), Layer.DRIVER),
    "nvlink5-prerequisites": driver(
        "nvlink5-prerequisites", Layer.DRIVER, "NVLink 5 lacks the network's driver", ("D08", "S18"), CONTAINER
    ),
    "network-driver-missing": Fault(
        Layer.DRIVER,
        "GPUDirect RDMA is on, and the network cards' driver is not installed",
        ("D07",),
        both(at(machine.network_card), objects.policy(_RDMA), objects.driver_anew()),
        both(at(machine.no_network_card), objects.policy_back(*_RDMA), objects.driver_anew()),
        CONTAINER,
        cluster=True,
    ),
    "peermem-not-loaded": Fault(
        Layer.DRIVER,
        "GPUDirect RDMA is on, and the GPU driver's module for it was taken away",
        ("D11",),
        both(
            at(machine.network_card),
            at(machine.network_driver),
            objects.policy(_RDMA),
            objects.driver_anew(),
            objects.ready(DRIVER),
            at(machine.no_peermem),
        ),
        both(at(machine.no_network_card), objects.policy_back(*_RDMA), objects.driver_anew()),
        CONTAINER,
        cluster=True,
    ),
    "gpu-pods-hold-driver": Fault(
        Layer.DRIVER,
        "a pod that nobody manages uses a GPU, and the driver manager may not drain the node",
        ("D05",),
        both(
            objects.workload("holder", PAUSE, {names.GPU_RESOURCE: "1"}),
            objects.runs("holder"),
            objects.policy(_NO_DRAIN),
            objects.driver_anew(),
        ),
        both(objects.no_workload("holder"), objects.policy_back(*_NO_DRAIN), objects.driver_anew()),
        CONTAINER,
        cluster=True,
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
    "driver-version-unknown": settings(
        Layer.DRIVER,
        "the policy asks for a driver version that nobody published",
        ("S15",),
        {("driver", "version"): "999.10.01"},
        CONTAINER,
        DRIVER,
    ),
    "module-type-unknown": settings(
        Layer.DRIVER,
        "the policy's environment asks for a kind of module that does not exist",
        ("D10",),
        {("driver", "env"): [{"name": "KERNEL_MODULE_TYPE", "value": "closed"}]},
        CONTAINER,
        DRIVER,
    ),
    "module-type-unfit": settings(
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
    "precompiled-full-version": settings(
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
}
"""Faults by name, from the bus up."""
