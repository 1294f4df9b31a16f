"""The alert rules that the chart brings: of GPUs, of the layers on a node, and of the operator.

What the operator itself installs on OpenShift (`operands`) is taken from there, in groups of its own, so that the chart
can leave those out where they are there already. Xid errors are sorted by the exporter's catalogue of them
(contracts/mig-exporter-validator.md 8): what a program does to itself never alerts.

The exporter repeats what is known of a board on the row of each of its MIG instances; all rules of boards take the
maximum over a GPU's rows (9 #7). The label of the node is `Hostname` or `hostname`, by the exporter's version, and
rules keep both. Whose the GPU is stands in labels that depend on how Prometheus scrapes (`honorLabels`); a description
finds the pods by a query of its own.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

from groundplane.api.xids import XIDS, Action
from groundplane.operands import node_status_exporter, operator_metrics
from groundplane.operands.monitoring import Alert, alert_group

RUNBOOK: Final = "docs/monitoring.md"
"""Where every alert has a heading of its own; the chart's value `monitoring.alerts.runbook` replaces it."""
HEADER: Final = "# Written by deploy/chart/generate.py: alert rules, as a Prometheus reads them from a file.\n"

CRITICAL, WARNING, INFO = "critical", "warning", "info"
GPU: Final = ("Hostname", "hostname", "gpu", "UUID", "modelName")
_NODE: Final = "node {{ $labels.Hostname }}{{ $labels.hostname }}"
_GPU: Final = "GPU {{ $labels.gpu }} ({{ $labels.modelName }}, {{ $labels.UUID }}) of " + _NODE
_HOLD: Final = "1h"
"""How long an error that came and went is still worth an alert."""


def _per_gpu(expr: str, *more: str) -> str:
    return f"max by ({', '.join((*GPU, *more))}) ({expr})"


def _pods_by(namespace: str, pod: str, matchers: str) -> str:
    query = f'group by ({namespace}, {pod}) (last_over_time(DCGM_FI_DEV_FB_USED{{UUID="%s",{matchers}}}[{_HOLD}]))'
    each = f"{{{{ range . }}}} {{{{ .Labels.{namespace} }}}}/{{{{ .Labels.{pod} }}}}{{{{ end }}}}."
    return f"{{{{ with printf `{query}` $labels.UUID | query }}}} Pods on it:{each}{{{{ end }}}}"


PODS: Final = _pods_by("exported_namespace", "exported_pod", 'exported_pod!=""') + _pods_by(
    "namespace", "pod", 'exported_pod="",pod!="",container!="nvidia-dcgm-exporter"'
)
"""Names the pods that have the GPU: with `honorLabels: false`, and with true."""

# --- Xid errors -------------------------------------------------------------------------------------------------------

CLEAN_UP: Final = 45
"""Follows another error, which alerts by itself; alone it is a program's end."""
DOUBLE_BIT: Final = 48
NVLINK: Final = (74, *range(144, 151))

_XID: Final = (
    'Xid {{ $labels.xid }}{{ with printf `DCGM_FI_DEV_XID_ERRORS{UUID="%s",err_code="%s"}` $labels.UUID $labels.xid'
    " | query }} ({{ (. | first).Labels.err_msg }}){{ end }} on " + _GPU + ". "
)


def _of(*actions: Action) -> set[int]:
    return {code for code, xid in XIDS.items() if xid.action in actions}


def _xid(name: str, codes: Collection[int], severity: str, summary: str, advice: str) -> Alert:
    pattern = "|".join(map(str, sorted(codes)))
    counts = f'max_over_time(DCGM_EXP_XID_ERRORS_COUNT{{xid=~"{pattern}"}}[{_HOLD}])'
    return Alert(name, f"{_per_gpu(counts, 'xid')} > 0", 0, summary, f"{_XID}{advice}{PODS}", severity)


XID_ALERTS: Final = (
    _xid(
        "GPUXidRestartNode",
        _of(Action.RESTART_NODE, Action.RESTART_VM),
        CRITICAL,
        "A GPU is gone until its node restarts",
        "Drain the node and restart it. If it comes back with the same error, reseat or replace the GPU.",
    ),
    _xid(
        "GPUXidResetGPU",
        _of(Action.RESET_GPU),
        CRITICAL,
        "A GPU needs a reset",
        "Move its pods away and reset it (nvidia-smi -r -i <index>), or restart the node.",
    ),
    _xid(
        "GPUXidUncorrectableMemory",
        {DOUBLE_BIT},
        CRITICAL,
        "A GPU had an uncorrectable memory error",
        "Results computed there since are doubtful. Xid 63 beside it: reset the GPU at the next occasion; 64: now.",
    ),
    _xid(
        "GPUXidNVLink",
        NVLINK,
        WARNING,
        "A GPU has trouble with NVLink",
        "Jobs over several GPUs hang or fail. Reset the GPUs of the node together; check the fabric manager, and the "
        "NVSwitches if it returns.",
    ),
    _xid(
        "GPUXidPower",
        _of(Action.CHECK_MECHANICS),
        WARNING,
        "A GPU is not supplied with power as it should be",
        "Check the auxiliary power cable and the supply of the machine.",
    ),
    _xid(
        "GPUXidSoftware",
        _of(Action.UPDATE),
        WARNING,
        "A GPU needs newer software",
        "Update driver and firmware of the node.",
    ),
    _xid(
        "GPUXidLookFurther",
        _of(Action.WORKFLOW) - {CLEAN_UP, DOUBLE_BIT, *NVLINK},
        WARNING,
        "A GPU tells of a state that needs a look",
        "nvidia-smi -q says which recovery action it asks for; look at the Xid errors beside it in the kernel's log.",
    ),
    _xid(
        "GPUXidSupport",
        _of(Action.SUPPORT),
        WARNING,
        "A GPU had an error that its vendor is to look at",
        "If it returns, take the GPU out of use, run nvidia-bug-report.sh there and open a case.",
    ),
)

# --- GPUs -------------------------------------------------------------------------------------------------------------

_SHOWN: Final = "DCGM_FI_DEV_FB_USED"
"""A series that every GPU has for as long as it answers."""
_LISTED: Final = "DCGM_FI_DEV_XID_ERRORS"
"""A series that the exporter has of a GPU that does not answer, too."""
_LINK_ERRORS: Final = ("CRC_FLIT", "CRC_DATA", "REPLAY")


def _increase(name: str, over: str) -> str:
    return f"increase({name}[{over}])"


def _clocks(reasons: str) -> str:
    return _per_gpu(f'DCGM_EXP_CLOCK_EVENTS_COUNT{{clock_event=~"{reasons}"}}', "clock_event") + " > 0"


GPU_ALERTS: Final = (
    Alert(
        "GPULost",
        f"({_per_gpu(_LISTED)} unless on (UUID) {_SHOWN}) or ("
        f"{_per_gpu(f'last_over_time({_SHOWN}[{_HOLD}])')} unless on (UUID) {_SHOWN} "
        f"and on (Hostname, hostname) {_LISTED})",
        5,
        "A GPU does not answer any more",
        f"{_GPU} gives no figures, though the exporter there runs. Look for NVRM: Xid in the node's kernel log; drain "
        f"the node and restart it. A GPU that was taken away on purpose is forgotten after an hour.{PODS}",
        CRITICAL,
    ),
    Alert(
        "GPUUncorrectableECC",
        _per_gpu(_increase("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _HOLD)) + " > 0",
        0,
        "A GPU had an uncorrectable memory error",
        f"{_GPU} counted a double-bit ECC error within the last hour. Results computed there are doubtful; move its "
        f"pods away and reset it.{PODS}",
        CRITICAL,
    ),
    Alert(
        "GPURowRemapFailed",
        _per_gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE") + " > 0",
        0,
        "A GPU's memory cannot be repaired",
        f"{_GPU} has a faulty memory row and none left to put in its place. Take it out of use and replace it.{PODS}",
        CRITICAL,
    ),
    Alert(
        "GPURowRemapPending",
        _per_gpu("DCGM_FI_DEV_ROW_REMAP_PENDING or DCGM_FI_DEV_RETIRED_PENDING") + " > 0",
        0,
        "A GPU needs a reset to repair its memory",
        f"{_GPU} has a faulty memory row or page, which is replaced at its next reset. Reset it when its pods are "
        "done, or restart the node.",
    ),
    Alert(
        "GPUHealthFailed",
        _per_gpu(
            'DCGM_EXP_GPU_HEALTH_STATUS{health_watch=~"INFOROM|MCU|PMU|SM|PCIE"}', "health_watch", "health_error_code"
        )
        + " >= 20",
        5,
        "A part of a GPU has failed",
        f"{_GPU}: {{{{ $labels.health_watch }}}} has failed ({{{{ $labels.health_error_code }}}}). Reset it; if that "
        "does not help, run dcgmi diag -r 3 there and replace it.",
    ),
    Alert(
        "GPUThermalSlowdown",
        _clocks("hw_thermal|sw_thermal"),
        10,
        "A GPU is slowed down by heat",
        f"{_GPU} has lowered its clocks to keep cool ({{{{ $labels.clock_event }}}}) for 10 minutes. Check fans, air "
        "flow, and what else is in the machine.",
    ),
    Alert(
        "GPUPowerBrake",
        _clocks("hw_power_brake"),
        10,
        "A GPU is slowed down by its power supply",
        f"{_GPU} is told from outside to draw less ({{{{ $labels.clock_event }}}}). Check its power supplies.",
    ),
    Alert(
        "GPUPowerLimited",
        _per_gpu("rate(DCGM_FI_DEV_POWER_VIOLATION[5m])") + " / 1e9 > 0.5",
        30,
        "A GPU works at its power limit",
        f"{_GPU} was slowed down by its power limit more than half of the last 30 minutes. That is usual under full "
        "load; raise the limit (nvidia-smi -pl) if it was lowered.",
        INFO,
    ),
    Alert(
        "GPUTemperatureHigh",
        _per_gpu("DCGM_FI_DEV_GPU_TEMP") + " >= 87",
        10,
        "A GPU is hot",
        f"{_GPU} has been at {{{{ $value }}}} °C for 10 minutes; it will slow down or switch off. Check cooling.",
    ),
    Alert(
        "GPUMemoryTemperatureHigh",
        _per_gpu("DCGM_FI_DEV_MEMORY_TEMP") + " >= 95",
        10,
        "The memory of a GPU is hot",
        f"The memory of {_GPU} has been at {{{{ $value }}}} °C for 10 minutes; the GPU will slow down. Check cooling.",
    ),
    Alert(
        "GPUNVLinkErrors",
        _per_gpu(
            " or ".join(
                f"{_increase(f'DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL', _HOLD)} >= {least}"
                for kind, least in (("RECOVERY", 1), *((each, 100) for each in _LINK_ERRORS))
            )
        )
        + " > 0",
        0,
        "NVLinks of a GPU make errors",
        f"NVLinks of {_GPU} had to recover, or made more than 100 errors, within an hour. nvidia-smi nvlink -e says "
        "which; reset the GPUs of the node together, and have bridge or board checked if it returns.",
    ),
    Alert(
        "GPUPCIeReplays",
        _per_gpu(_increase("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "15m")) + " > 10",
        15,
        "The PCIe link of a GPU makes errors",
        f"{_GPU} sent again over PCIe {{{{ $value | humanize }}}} times in 15 minutes. Reseat the board; check riser "
        "and slot.",
    ),
    Alert(
        "GPUMemoryFull",
        _per_gpu("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", "GPU_I_ID", "GPU_I_PROFILE")
        + " > 0.98",
        15,
        "The memory of a GPU is full",
        f"{{{{ $value | humanizePercentage }}}} of the memory of {_GPU}{{{{ with $labels.GPU_I_ID }}}}, instance "
        f"{{{{ . }}}},{{{{ end }}}} has been in use for 15 minutes. Programs that take all memory at their start do "
        f"this by design; others are about to fail.{PODS}",
        INFO,
    ),
    Alert(
        "GPUExporterDown",
        'up{job="nvidia-dcgm-exporter"} == 0',
        10,
        "A metrics exporter of GPUs cannot be scraped",
        "Prometheus cannot read {{ $labels.instance }} (pod {{ $labels.namespace }}/{{ $labels.pod }}): nothing is "
        "known of the GPUs there. Look at that pod; a scrape longer than the time-out counts as down.",
    ),
    Alert(
        "GPUExporterMissing",
        f"(gpu_operator_node_driver_validation == 1 unless on (node) (label_replace({_LISTED}, "
        f'"node", "$1", "Hostname", "(.+)") or label_replace({_LISTED}, "node", "$1", "hostname", "(.+)"))) '
        f"and on () count({_LISTED}) > 0",
        30,
        "A GPU node has no metrics of its GPUs",
        "On node {{ $labels.node }} the driver works, but no exporter tells of its GPUs. Look for the pod of "
        "nvidia-dcgm-exporter there, and at the node's label nvidia.com/gpu.deploy.dcgm-exporter.",
    ),
)

_WHY: Final = (
    '{{ with printf `groundplane_node_cause{node="%s"}` $labels.node | query }}'
    "{{ with first . }} Cause {{ .Labels.cause }}: {{ .Labels.title }}.{{ end }}{{ end }}"
)

NODE_ALERTS: Final = (
    Alert(
        "GPUNodeLayerFailing",
        "max by (node, layer) (groundplane_node_layer_failing) == 1",
        10,
        "A layer of the GPU stack fails on a node",
        "On node {{ $labels.node }} the lowest failing layer is {{ $labels.layer }}." + _WHY + " kubectl describe node "
        "shows the Event GPUStackFailing with what to do; groundplane doctor --node {{ $labels.node }} shows the "
        "evidence.",
    ),
    Alert(
        "GPUNodeStatusExporterDown",
        'up{job="nvidia-node-status-exporter"} == 0',
        10,
        "The node-status exporter of a GPU node cannot be scraped",
        "Prometheus cannot read {{ $labels.instance }} (pod {{ $labels.namespace }}/{{ $labels.pod }}), so that no "
        "other alert of that node's driver, toolkit and CUDA can fire. Look at that pod.",
    ),
)

# --- the operator -----------------------------------------------------------------------------------------------------

OPERATOR_ALERTS: Final = (
    Alert(
        "GPUOperatorDown",
        'absent(up{job="gpu-operator"} == 1)',
        15,
        "The GPU operator does not run, or Prometheus does not see it",
        "No operator of GPUs could be scraped for 15 minutes. Look at the Deployment gpu-operator; if its pod is "
        "ready, see whether Prometheus selects the ServiceMonitor gpu-operator.",
    ),
    Alert(
        "GPUOperatorPolicyUnavailable",
        "gpu_operator_reconciliation_status == -1",
        15,
        "The GPU operator has no policy to follow",
        "The ClusterPolicy is missing, is not the only one or cannot be used. kubectl describe clusterpolicy says why.",
    ),
    Alert(
        "GPUOperatorMissingPermissions",
        "gpu_operator_missing_permissions > 0",
        15,
        "The GPU operator lacks permissions",
        "{{ $value }} permissions that it asked for were denied; /readyz of the operator and its log name them. "
        "Install the chart's roles again.",
    ),
    Alert(
        "GPUOperatorClusterCause",
        "max by (cause, layer, title) (groundplane_diagnosis_cause_nodes == bool 0) == 1",
        10,
        "Something of the GPU stack fails that is no node's",
        "Layer {{ $labels.layer }}, cause {{ $labels.cause }}: {{ $labels.title }}. The Events of the ClusterPolicy "
        "say what to do; groundplane doctor shows the evidence.",
    ),
    Alert(
        "GPUOperatorDiagnosisStale",
        "time() - groundplane_diagnosis_last_success_timestamp_seconds > 5 * groundplane_diagnosis_interval_seconds",
        10,
        "The GPU operator's diagnosis of nodes is old",
        "The last one that succeeded ended {{ $value | humanizeDuration }} ago: the alerts of nodes' layers show that "
        "time. The operator's log says why it fails.",
    ),
    Alert(
        "GPUOperatorDriverUpgradesPending",
        "gpu_operator_driver_auto_upgrade_enabled == 1 and gpu_operator_nodes_upgrades_pending > 0 "
        "and gpu_operator_nodes_upgrades_in_progress == 0",
        120,
        "Nodes wait for a driver upgrade that does not begin",
        "{{ $value }} nodes have waited for two hours while none is upgraded. A failed node takes a slot until it is "
        "mended, and so do nodes that are unavailable: see maxParallelUpgrades and maxUnavailable of the policy.",
    ),
    Alert(
        "GPUOperatorDriverUpgradesStuck",
        "gpu_operator_nodes_upgrades_in_progress > 0 and changes(gpu_operator_nodes_upgrades_done[2h]) == 0",
        120,
        "A driver upgrade does not get on",
        "{{ $value }} nodes are being upgraded and none was finished for hours. Their label "
        "nvidia.com/gpu-driver-upgrade-state says where they are; pods that cannot be evicted are the usual cause.",
    ),
)

_OPENSHIFT_ONLY: Final = "GPUOperatorOpenshift"
SHIPPED: Final = {
    "gpu-operator": tuple(each for each in operator_metrics.ALERTS if not each.name.startswith(_OPENSHIFT_ONLY)),
    "gpu-operator-node-status": node_status_exporter.ALERTS,
}
"""Groups that the operator installs itself on OpenShift."""
OWN: Final = {
    "gpu-xid": XID_ALERTS,
    "gpu": GPU_ALERTS,
    "gpu-node-status": NODE_ALERTS,
    "gpu-operator-own": OPERATOR_ALERTS,
}
GROUPS: Final = {**OWN, **SHIPPED}


def every() -> Iterable[Alert]:
    """All alerts."""
    return (alert for alerts in GROUPS.values() for alert in alerts)


def groups() -> list[dict[str, Any]]:
    """The groups as Prometheus has them, each rule with the place of its explanation."""
    found = []
    for name, alerts in GROUPS.items():
        group = alert_group(name, alerts)
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"{RUNBOOK}#{rule['alert'].lower()}"
        found.append(group)
    return found
