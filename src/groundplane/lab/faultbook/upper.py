"""Faults of what the stack is above a node's driver: runtime, device plugin, labels, workloads, telemetry and operator
(layers L4 to L9)."""

from collections.abc import Mapping
from typing import Any, Final

from ...api import names
from ...diagnose.findings import Layer
from .. import pulls
from ..host import SimulatedHost
from . import machine, objects
from .entries import unpullable, xid
from .machine import at, image
from .model import Fault
from .objects import DISCOVERY, DRIVER, EXPORTER, MIG, PAUSE, PLUGIN, TOOLKIT, both, then
from .on import ANY, CONTAINER, CONTAINERD, MIG_CONTAINER, MIG_NODE

_BUSYBOX: Final = "docker.io/library/busybox:1.36"
_SPEC: Final = "/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"

_SITE_FILE: Final = "/etc/containerd/conf.d/zz-site.toml"
_SITE: Final = """version = 3

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/runc"
"""
"""A handler of the toolkit's name that gives containers no driver."""
_LENIENT: Final[Mapping[objects.Path, Any]] = {("gfd", "env"): [{"name": "GFD_FAIL_ON_INIT_ERROR", "value": "false"}]}
_RENAMED: Final = """version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""
_BY_COMMAND: Final[Mapping[objects.Path, Any]] = {
    ("toolkit", "env"): [{"name": "RUNTIME_CONFIG_SOURCE", "value": "command"}]
}
_NO_MAPPING: Final[Mapping[objects.Path, Any]] = {
    ("dcgmExporter", "env"): [{"name": "DCGM_EXPORTER_KUBERNETES", "value": "false"}]
}
_HALF: Final = """version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  half:
  - devices: [0]
    mig-enabled: true
    mig-devices:
      1g.10gb: 7
  - devices: [1]
    mig-enabled: false
"""
_MIXED: Final[Mapping[objects.Path, Any]] = {
    ("mig", "strategy"): "mixed",
    ("driver", "version"): "570.148.08",
    ("driver", "upgradePolicy", "autoUpgrade"): False,  # the other nodes keep their driver
}
_OTHER_DRIVER: Final[Mapping[objects.Path, Any]] = {("driver", "version"): "580.126.20"}
_ASKS_NVML: Final = {"exec": {"command": ["nvidia-smi"]}, "periodSeconds": 10, "failureThreshold": 1}

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
            objects.workload("cdi", PAUSE, {names.GPU_RESOURCE: "1"}),
        ),
        both(objects.no_workload("cdi"), at(machine.put_back(_SPEC))),
        CONTAINERD,
    ),
    "containerd-off-path": Fault(
        Layer.RUNTIME,
        "the toolkit is to ask containerd for its configuration, and no containerd is on the host's PATH",
        ("S33",),
        both(at(machine.off_path("containerd")), objects.policy(_BY_COMMAND), objects.anew(TOOLKIT)),
        both(at(machine.off_path(None)), objects.policy_back(*_BY_COMMAND), objects.anew(TOOLKIT)),
        CONTAINERD,
        cluster=True,
    ),
    "runtime-file-of-another": Fault(
        Layer.RUNTIME,
        "the node runs K3s' containerd, whose configuration the toolkit is not told of",
        ("S34",),
        then(machine.k3s, PLUGIN, DISCOVERY),
        then(machine.no_k3s, PLUGIN, DISCOVERY),
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
        both(objects.plugin_configurations(), objects.label(names.DEVICE_PLUGIN_CONFIG, "no-such")),
        both(objects.label(names.DEVICE_PLUGIN_CONFIG, None), objects.no_plugin_configurations),
        ANY,
        cluster=True,
    ),
    "gpus-renamed": Fault(
        Layer.DEVICE_PLUGIN,
        "the device plugin's configuration shares GPUs under another name",
        ("S41",),
        objects.plugin_configurations(_RENAMED),
        objects.no_plugin_configurations,
        ANY,
        cluster=True,
        note=True,
    ),
    "invalid-push-buffer": xid(32, "a program gave it commands that are none", ("S38",), Layer.DEVICE_PLUGIN),
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
    "discovery-without-driver": Fault(
        Layer.LABELS,
        "GPU feature discovery began when containers got no driver, and goes on without one",
        ("S46",),
        both(
            at(machine.replace(_SITE_FILE, _SITE)),
            at(SimulatedHost.restart_runtime),
            objects.policy(_LENIENT),
            objects.unlabelled("nvidia.com/gpu.product"),
            at(machine.replace(_SITE_FILE, None)),
            at(SimulatedHost.restart_runtime),
        ),
        objects.policy_back(*_LENIENT),
        CONTAINERD,
        cluster=True,
    ),
    "mig-beside-whole-gpus": Fault(
        Layer.LABELS,
        "one GPU is divided and another is not, with a driver that cannot do both",
        ("S45",),
        both(
            objects.policy(_MIXED),
            objects.mig_layouts(_HALF),
            objects.driver_anew(),
            objects.ready(DRIVER),
            objects.label("nvidia.com/mig.config", "half"),
        ),
        both(
            objects.undivided,
            objects.no_mig_layouts,
            objects.policy_back(*_MIXED),
            objects.driver_anew(),
        ),
        MIG_CONTAINER,
        cluster=True,
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
        objects.workload("many", PAUSE, {names.GPU_RESOURCE: "64"}),
        objects.no_workload("many"),
        ANY,
    ),
    "no-such-resource": Fault(
        Layer.WORKLOAD,
        "a pod asks for a MIG device where no GPU is divided",
        ("S06",),
        objects.workload("mig", PAUSE, {"nvidia.com/mig-1g.5gb": "1"}),
        objects.no_workload("mig"),
        ANY,
    ),
    "taint-not-tolerated": Fault(
        Layer.WORKLOAD,
        "the node is kept for GPU work by a taint, which a pod does not tolerate",
        ("S49",),
        both(
            objects.node_taint(names.GPU_RESOURCE),
            objects.workload("taint", PAUSE, {names.GPU_RESOURCE: "1"}),
        ),
        both(objects.no_workload("taint"), objects.no_node_taint(names.GPU_RESOURCE)),
        ANY,
    ),
    "device-rules-dropped": Fault(
        Layer.WORKLOAD,
        "systemd was reloaded and took a running pod's GPU away, as it has no link in /dev/char",
        ("S50",),
        both(
            objects.workload("rules", PAUSE, {names.GPU_RESOURCE: "1"}, probe=_ASKS_NVML),
            objects.runs("rules"),
            at(machine.drop_rules),
        ),
        both(objects.no_workload("rules"), at(machine.links)),
        ANY,
    ),
    "application-fault": Fault(
        Layer.WORKLOAD,
        "a program uses memory that is not its own (Xid 31) and ends",
        ("XID-RESTART-APPLICATION",),
        both(
            objects.workload("segfault", _BUSYBOX, {names.GPU_RESOURCE: "1"}, command=["sh", "-c", "exit 139"]),
            objects.runs("segfault"),
            at(machine.xid(31)),
        ),
        both(objects.no_workload("segfault"), then(machine.recovered, PLUGIN)),
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
    "metrics-without-pods": Fault(
        Layer.TELEMETRY,
        "the exporter is told not to ask the kubelet whose the GPUs are",
        ("S52",),
        both(objects.policy(_NO_MAPPING), objects.workload("metrics", PAUSE, {names.GPU_RESOURCE: "1"})),
        both(objects.policy_back(*_NO_MAPPING), objects.no_workload("metrics")),
        ANY,
        cluster=True,
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
    "operator-out-of-memory": Fault(
        Layer.OPERATOR,
        "the operator's limit of memory is too low",
        ("S56",),
        objects.little_memory,
        objects.enough_memory,
        ANY,
        cluster=True,
    ),
    "upgrade-failed": Fault(
        Layer.OPERATOR,
        "a driver upgrade fails on a node, as a pod that nobody manages holds a GPU there",
        ("S58",),
        both(
            objects.workload("upgrade", PAUSE, {names.GPU_RESOURCE: "1"}),
            objects.runs("upgrade"),
            objects.policy(_OTHER_DRIVER),
        ),
        both(objects.no_workload("upgrade"), objects.policy_back(*_OTHER_DRIVER)),
        CONTAINER,
        cluster=True,
    ),
    "policy-deleted": Fault(
        Layer.OPERATOR,
        "somebody deleted the ClusterPolicy, and with it all operands",
        ("O02", "O01"),
        objects.no_policy,
        objects.policies_again,
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
