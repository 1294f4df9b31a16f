"""Faults of what the stack is above a node's driver: runtime, device plugin, labels, workloads, telemetry and operator
(layers L4 to L9)."""

from collections.abc import Mapping
from typing import Final

from ...api import names
from ...diagnose.findings import Layer
from .. import pulls
from ..host import SimulatedHost
from . import machine, objects
from .entries import unpullable
from .machine import at, image
from .model import Fault
from .objects import DISCOVERY, EXPORTER, MIG, PLUGIN, TOOLKIT, both, then
from .on import ANY, CONTAINERD, MIG_NODE

_PAUSE: Final = "registry.k8s.io/pause:3.10"
_SPEC: Final = "/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"

UPPER: Final[Mapping[str, Fault]] = {
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
    "toolkit-image-gone": unpullable(
        Layer.RUNTIME,
        "the mirror lacks the toolkit's image",
        "*/container-toolkit:*",
        pulls.GONE,
        ("P03",),
        TOOLKIT,
    ),
    # L5
    "plugin-image-gone": unpullable(
        Layer.DEVICE_PLUGIN,
        "the mirror lacks the device plugin's image",
        "*/k8s-device-plugin:*",
        pulls.GONE,
        ("P04",),
        PLUGIN,
    ),
    "plugin-image-refused": unpullable(
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
    "mig-manager-image-gone": unpullable(
        Layer.LABELS,
        "the mirror lacks the MIG manager's image",
        "*/k8s-mig-manager:*",
        pulls.GONE,
        ("P05",),
        MIG,
        MIG_NODE,
    ),
    "discovery-image-gone": unpullable(
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
    "exporter-image-gone": unpullable(
        Layer.TELEMETRY,
        "the mirror lacks the exporter's image",
        "*/dcgm-exporter:*",
        pulls.GONE,
        ("P07",),
        EXPORTER,
    ),
    "exporter-image-untrusted": unpullable(
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
"""Faults by name, from the runtime up."""
