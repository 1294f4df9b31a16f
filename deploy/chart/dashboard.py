"""The Grafana dashboard that the chart brings: GPUs from the fleet down to a pod, and the layers below them.

A table of rows and panels; the document that Grafana reads is made of it. Every query is kept to the chosen cluster,
nodes and GPUs. What is known of a board only is taken once a GPU, by its maximum over the rows of MIG instances
(contracts/mig-exporter-validator.md 9 #7); what an instance has of its own is shown by instance. The exporter's label
of the node is `Hostname` or `hostname` by its version: a variable finds out which. Whose a GPU is stands in `pod` or
`exported_pod`, by `honorLabels`: queries of pods take either.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

Json = dict[str, Any]

UID: Final = "groundplane-gpus"
TITLE: Final = "NVIDIA GPUs"
SCHEMA: Final = 39
"""The version of the document's form, that of Grafana 10.4; newer ones read it."""
DATASOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}

GPU: Final = 'cluster=~"$cluster",$host=~"$node",gpu=~"$gpu"'
NODE: Final = 'cluster=~"$cluster",node=~"$node"'
CLUSTER: Final = 'cluster=~"$cluster"'
LISTED: Final = "DCGM_FI_DEV_XID_ERRORS"
_BOARD: Final = "$host, gpu, UUID"
_ANY: Final = f"{_BOARD}, GPU_I_ID, GPU_I_PROFILE"
_POD: Final = "namespace, pod, container"
BOARD_NAME: Final = "{{Hostname}}{{hostname}} GPU {{gpu}}"
ANY_NAME: Final = f"{BOARD_NAME} {{{{GPU_I_PROFILE}}}} {{{{GPU_I_ID}}}}"
POD_NAME: Final = "{{namespace}}/{{pod}}/{{container}}"
NODE_NAME: Final = "{{node}}"


def board(expr: str, by: str = _BOARD) -> str:
    """The value of each GPU of `NAME` or `f(NAME[…])`, whose series stands for `@`."""
    return f"max by ({by}) ({expr})"


def of(name: str, more: str = "") -> str:
    """A series of the chosen GPUs."""
    return f"{name}{{{GPU}{',' + more if more else ''}}}"


def gauge(name: str) -> str:
    """A board's own figure."""
    return board(of(name))


def each(name: str) -> str:
    """A figure that MIG instances have of their own."""
    return board(of(name), _ANY)


def increase(name: str) -> str:
    """How much a board's counter has grown within 5 minutes."""
    return board(f"increase({of(name)}[5m])")


def rate(name: str) -> str:
    """How fast a board's counter grows."""
    return board(f"rate({of(name)}[$__rate_interval])")


def by_pod(name: str, device: str = _ANY) -> str:
    """A figure by the container that has the GPU or instance, whichever labels Prometheus gave it."""
    kept = of(name, 'exported_pod!=""')
    for label in ("namespace", "pod", "container"):
        kept = f'label_replace({kept}, "{label}", "$1", "exported_{label}", "(.*)")'
    own = of(name, 'exported_pod="",pod!="",container!="nvidia-dcgm-exporter"')
    by = f"{_POD}, {device}"
    return f"max by ({by}) ({kept}) or max by ({by}) ({own})"


class Query(NamedTuple):
    """A query, and what each of its series is called."""

    expr: str
    legend: str = BOARD_NAME


class Panel(NamedTuple):
    """A panel: what it is of, its unit as Grafana calls it, how wide it is of 24."""

    title: str
    unit: str
    queries: Sequence[Query]
    about: str
    width: int = 8
    kind: str = "timeseries"
    steps: Sequence[tuple[float, str]] = ()
    """Values from which on a colour holds."""
    limit: float | None = None
    """The largest value there is."""
    words: Sequence[tuple[str, str, str]] = ()
    """Values that are shown as a word, and its colour."""
    columns: Sequence[str] = ()
    """For a table: what its queries' values are called."""


class Row(NamedTuple):
    """Panels under a heading, open or closed at first."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


def graph(title: str, unit: str, expr: str, about: str, legend: str = BOARD_NAME, **more: Any) -> Panel:
    """A panel of one query over time."""
    return Panel(title, unit, (Query(expr, legend),), about, **more)


def stat(title: str, unit: str, expr: str, about: str, **more: Any) -> Panel:
    """A single figure."""
    return Panel(title, unit, (Query(expr, ""),), about, width=4, kind="stat", **more)


YES_NO: Final = (("0", "no", "red"), ("1", "yes", "green"))
HEAT: Final = ((0, "green"), (80, "orange"), (87, "red"))
NONE_IS_GOOD: Final = ((0, "green"), (1, "red"))
SHARE: Final = ((0, "green"), (0.8, "orange"), (0.95, "red"))

_USED_MIB: Final = each("DCGM_FI_DEV_FB_USED")
_FREE_MIB: Final = each("DCGM_FI_DEV_FB_FREE")
_USED: Final = f"sum({_USED_MIB}) / (sum({_USED_MIB}) + sum({_FREE_MIB}))"
_WITH_POD: Final = f"count(count by ({_ANY}) ({by_pod('DCGM_FI_DEV_FB_USED')}))"

FLEET: Final = Row(
    "Fleet",
    (
        stat("GPUs", "none", f"count({gauge(LISTED)})", "GPUs that an exporter lists."),
        stat(
            "MIG instances",
            "none",
            f"count({each('DCGM_FI_DEV_FB_USED')}) or vector(0)",
            "GPUs and MIG instances that can be used one by one.",
        ),
        stat("In use", "none", f"{_WITH_POD} or vector(0)", "GPUs and MIG instances that a pod has."),
        stat(
            "Not answering",
            "none",
            f"count({gauge(LISTED)} unless on (UUID) {of('DCGM_FI_DEV_FB_USED')}) or vector(0)",
            "GPUs that are listed and give no figures.",
            steps=NONE_IS_GOOD,
        ),
        stat("Memory in use", "percentunit", _USED, "Of all GPUs together.", steps=SHARE, limit=1),
        stat("Power", "watt", f"sum({gauge('DCGM_FI_DEV_POWER_USAGE')})", "Of all boards together."),
        Panel(
            "GPUs",
            "none",
            (
                Query(board(of(LISTED), f"{_BOARD}, modelName")),
                Query(gauge("DCGM_FI_DEV_GPU_TEMP")),
                Query(gauge("DCGM_FI_DEV_POWER_USAGE")),
                Query(f"sum by ({_BOARD}) ({each('DCGM_FI_DEV_FB_USED')})"),
                Query(f"sum by ({_BOARD}) ({each('DCGM_FI_PROF_GR_ENGINE_ACTIVE')})"),
            ),
            "Last Xid error (0: none), temperature (°C), power (W), memory in use (MiB), and the part of the time in "
            "which engines were active, added up over MIG instances.",
            width=24,
            kind="table",
            columns=("Last Xid", "Temperature", "Power", "Memory used", "Engines active"),
        ),
    ),
)

UTILISATION: Final = Row(
    "Utilisation",
    (
        graph(
            "Engines active",
            "percentunit",
            each("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
            "Part of the time in which the graphics or compute engine was active; also of MIG instances.",
            ANY_NAME,
            limit=1,
        ),
        graph(
            "GPU utilisation",
            "percent",
            gauge("DCGM_FI_DEV_GPU_UTIL"),
            "Part of the time in which a kernel ran. A GPU in MIG mode does not tell.",
            limit=100,
        ),
        graph(
            "Multiprocessors active",
            "percentunit",
            each("DCGM_FI_PROF_SM_ACTIVE"),
            "Part of the multiprocessors that had work.",
            ANY_NAME,
            limit=1,
        ),
        graph(
            "Tensor cores active",
            "percentunit",
            each("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
            "Part of the time in which tensor cores were active.",
            ANY_NAME,
            limit=1,
        ),
        graph(
            "Memory active",
            "percentunit",
            each("DCGM_FI_PROF_DRAM_ACTIVE"),
            "Part of the time in which memory was accessed.",
            ANY_NAME,
            limit=1,
        ),
        graph(
            "Memory copies",
            "percent",
            gauge("DCGM_FI_DEV_MEM_COPY_UTIL"),
            "Part of the time in which memory was read or written.",
            limit=100,
        ),
        graph("Video encoders", "percent", gauge("DCGM_FI_DEV_ENC_UTIL"), "Use of the encoders.", width=6, limit=100),
        graph("Video decoders", "percent", gauge("DCGM_FI_DEV_DEC_UTIL"), "Use of the decoders.", width=6, limit=100),
        Panel(
            "PCIe",
            "Bps",
            (
                Query(gauge("DCGM_FI_PROF_PCIE_TX_BYTES"), f"{BOARD_NAME} sent"),
                Query(gauge("DCGM_FI_PROF_PCIE_RX_BYTES"), f"{BOARD_NAME} received"),
            ),
            "Data over PCIe.",
            width=6,
        ),
        graph(
            "NVLink",
            "KiBs",
            rate("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
            "Data sent and received over all NVLinks.",
            width=6,
        ),
    ),
)

MEMORY: Final = Row(
    "Memory",
    (
        graph("Memory in use", "mbytes", each("DCGM_FI_DEV_FB_USED"), "By GPU or MIG instance.", ANY_NAME, width=12),
        graph(
            "Part of memory in use",
            "percentunit",
            f"{_USED_MIB} / ({_USED_MIB} + {_FREE_MIB})",
            "Of what programs can have.",
            ANY_NAME,
            width=6,
            limit=1,
        ),
        graph(
            "Memory kept by the driver",
            "mbytes",
            each("DCGM_FI_DEV_FB_RESERVED"),
            "What driver and firmware keep.",
            ANY_NAME,
            width=6,
        ),
    ),
)

_ENERGY: Final = of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
POWER: Final = Row(
    "Temperature and power",
    (
        graph(
            "Temperature of GPUs",
            "celsius",
            gauge("DCGM_FI_DEV_GPU_TEMP"),
            "The alert GPUTemperatureHigh is at 87.",
            steps=HEAT,
        ),
        graph(
            "Temperature of memory",
            "celsius",
            gauge("DCGM_FI_DEV_MEMORY_TEMP"),
            "GPUs with HBM. The alert GPUMemoryTemperatureHigh is at 95.",
            steps=((0, "green"), (85, "orange"), (95, "red")),
        ),
        graph("Power", "watt", gauge("DCGM_FI_DEV_POWER_USAGE"), "Of each board."),
        graph(
            "Energy",
            "watth",
            f"{board(f'increase({_ENERGY}[1h])')} / 3.6e6",
            "Used within an hour.",
        ),
        graph(
            "Clock of multiprocessors",
            "hertz",
            f"{gauge('DCGM_FI_DEV_SM_CLOCK')} * 1e6",
            "Falls when the GPU is slowed down.",
        ),
        graph("Clock of memory", "hertz", f"{gauge('DCGM_FI_DEV_MEM_CLOCK')} * 1e6", "Clock of the memory."),
    ),
)

_INSTANCE: Final = 'GPU_I_ID!=""'
MIG: Final = Row(
    "MIG instances",
    (
        graph(
            "Instances by profile",
            "none",
            f"count by (GPU_I_PROFILE) ({board(of('DCGM_FI_DEV_FB_USED', _INSTANCE), _ANY)})",
            "How many there are.",
            "{{GPU_I_PROFILE}}",
        ),
        graph(
            "Engines active",
            "percentunit",
            board(of("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _INSTANCE), _ANY),
            "Against the whole GPU's: a small instance does not reach 100 %.",
            ANY_NAME,
            limit=1,
        ),
        graph("Memory in use", "mbytes", board(of("DCGM_FI_DEV_FB_USED", _INSTANCE), _ANY), "By instance.", ANY_NAME),
    ),
    collapsed=True,
)

_LAST: Final = board(of(LISTED), f"{_BOARD}, err_code, err_msg")
_UNWELL: Final = board(
    of("DCGM_EXP_GPU_HEALTH_STATUS", 'health_watch!="ALL"'), f"{_BOARD}, health_watch, health_error_code"
)
HEALTH: Final = Row(
    "Health",
    (
        graph(
            "Xid errors",
            "none",
            board(of("DCGM_EXP_XID_ERRORS_COUNT", 'xid!=""'), f"{_BOARD}, xid"),
            "In the exporter's window of 5 minutes, by number.",
            f"{BOARD_NAME} Xid {{{{xid}}}}",
        ),
        Panel(
            "Last Xid error",
            "none",
            (Query(f"{_LAST} > 0"),),
            "Stays until the exporter restarts.",
            kind="table",
            columns=("Xid",),
        ),
        Panel(
            "Health by part",
            "none",
            (Query(f"{_UNWELL} > 0"),),
            "Parts that are not well: 10 is a warning, 20 a failure.",
            kind="table",
            columns=("Status",),
        ),
        graph(
            "Uncorrectable memory errors",
            "none",
            gauge("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
            "Double-bit errors since the driver was loaded.",
            steps=NONE_IS_GOOD,
        ),
        graph(
            "Corrected memory errors",
            "none",
            increase("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
            "Single-bit errors within 5 minutes.",
        ),
        Panel(
            "Remapped rows",
            "none",
            (
                Query(gauge("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"), f"{BOARD_NAME} uncorrectable"),
                Query(gauge("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"), f"{BOARD_NAME} correctable"),
            ),
            "Memory rows that were replaced.",
        ),
        Panel(
            "Repair of memory",
            "bool_yes_no",
            (
                Query(f"{gauge('DCGM_FI_DEV_ROW_REMAP_FAILURE')} > 0", f"{BOARD_NAME} has failed"),
                Query(f"{gauge('DCGM_FI_DEV_ROW_REMAP_PENDING')} > 0", f"{BOARD_NAME} waits for a reset"),
                Query(f"{gauge('DCGM_FI_DEV_RETIRED_PENDING')} > 0", f"{BOARD_NAME} waits for a restart"),
            ),
            "GPUs whose memory is to be repaired; empty is good.",
        ),
        graph(
            "What holds clocks down",
            "none",
            board(
                of("DCGM_EXP_CLOCK_EVENTS_COUNT", 'clock_event!="",clock_event!="gpu_idle"'), f"{_BOARD}, clock_event"
            ),
            "Samples within the exporter's window of 5 minutes, by reason.",
            f"{BOARD_NAME} {{{{clock_event}}}}",
        ),
        Panel(
            "Time slowed down",
            "percentunit",
            (
                Query(f"{rate('DCGM_FI_DEV_POWER_VIOLATION')} / 1e9", f"{BOARD_NAME} by power"),
                Query(f"{rate('DCGM_FI_DEV_THERMAL_VIOLATION')} / 1e9", f"{BOARD_NAME} by heat"),
            ),
            "Part of the time.",
            limit=1,
        ),
        Panel(
            "NVLink errors",
            "none",
            tuple(
                Query(increase(f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL"), f"{BOARD_NAME} {word}")
                for kind, word in (
                    ("CRC_FLIT", "flow control"),
                    ("CRC_DATA", "data"),
                    ("REPLAY", "retries"),
                    ("RECOVERY", "recoveries"),
                )
            ),
            "Within 5 minutes.",
            width=12,
        ),
        graph("PCIe retries", "none", increase("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), "Within 5 minutes.", width=12),
    ),
)

PODS: Final = Row(
    "Pods",
    (
        graph(
            "Engines active",
            "percentunit",
            by_pod("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
            "Of the GPU or instance that a container has.",
            f"{POD_NAME} GPU {{{{gpu}}}} {{{{GPU_I_ID}}}}",
            width=12,
            limit=1,
        ),
        graph(
            "GPU utilisation",
            "percent",
            by_pod("DCGM_FI_DEV_GPU_UTIL", _BOARD),
            "Of the GPU that a container has.",
            f"{POD_NAME} GPU {{{{gpu}}}}",
            width=12,
            limit=100,
        ),
        graph(
            "Memory in use",
            "mbytes",
            by_pod("DCGM_FI_DEV_FB_USED"),
            "Of the GPU or instance that a container has.",
            f"{POD_NAME} GPU {{{{gpu}}}} {{{{GPU_I_ID}}}}",
            width=12,
        ),
        Panel(
            "Pods with GPUs",
            "mbytes",
            (Query(by_pod("DCGM_FI_DEV_FB_USED")),),
            "Which container has which GPU, and the memory that is in use there.",
            width=12,
            kind="table",
            columns=("Memory used",),
        ),
    ),
)


def _layer(name: str) -> str:
    return f"max by (node) (gpu_operator_node_{name}{{{NODE}}})"


NODES: Final = Row(
    "Layers on nodes",
    (
        *(
            Panel(title, "none", (Query(_layer(name), NODE_NAME),), about, width=6, kind="state-timeline", words=YES_NO)
            for title, name, about in (
                ("Driver works", "driver_validation", "What the node-status exporter found last."),
                ("Toolkit ready", "toolkit_ready", "Whether the container toolkit was validated."),
                ("CUDA ready", "cuda_ready", "Whether a CUDA program ran."),
                ("Device plugin ready", "plugin_ready", "Whether the device plugin was validated."),
            )
        ),
        graph(
            "Devices on offer",
            "none",
            _layer("device_plugin_devices_total"),
            "GPUs and MIG devices that the node offers to pods.",
            NODE_NAME,
        ),
        graph(
            "NVIDIA devices on the bus",
            "none",
            f"max by (node) (gpu_operator_nvidia_pci_devices_total{{{NODE}}})",
            "All kinds, as lspci lists them.",
            NODE_NAME,
        ),
        graph(
            "Age of the last driver validation",
            "s",
            f"time() - {_layer('driver_validation_last_success_ts_seconds')}",
            "Since when the driver is not known to work.",
            NODE_NAME,
        ),
        Panel(
            "Failing layer and its cause",
            "none",
            (Query(f"max by (node, layer, cause, severity, title) (groundplane_node_cause{{{NODE}}})"),),
            "Of sick nodes, by the operator's diagnosis (operator.diagnosis.enabled).",
            width=24,
            kind="table",
            columns=("Fails",),
        ),
    ),
    collapsed=True,
)


def _operator(name: str) -> str:
    return f"max(gpu_operator_{name}{{{CLUSTER}}})"


OPERATOR: Final = Row(
    "Operator",
    (
        stat(
            "State",
            "none",
            _operator("reconciliation_status"),
            "Of the last pass.",
            words=(
                ("1", "ready", "green"),
                ("0", "operands not ready", "orange"),
                ("-1", "no policy", "red"),
                ("-2", "error", "red"),
            ),
        ),
        stat("Nodes with GPUs", "none", _operator("gpu_nodes_total"), "As node features tell."),
        stat(
            "Node features found",
            "none",
            _operator("reconciliation_has_nfd_labels"),
            "Labels by which GPU nodes are found.",
            words=YES_NO,
        ),
        stat(
            "Last complete pass",
            "s",
            f"time() - {_operator('reconciliation_last_success_ts_seconds')}",
            "How long ago all was ready.",
        ),
        stat(
            "Missing permissions",
            "none",
            _operator("missing_permissions"),
            "What it asked for in vain; /readyz of the operator names them.",
            steps=NONE_IS_GOOD,
        ),
        stat(
            "Automatic driver upgrade",
            "none",
            _operator("driver_auto_upgrade_enabled"),
            "As the policy says.",
            words=(("0", "off", "blue"), ("1", "on", "green")),
        ),
        Panel(
            "Passes",
            "ops",
            (
                Query(f"sum(rate(gpu_operator_reconciliation_total{{{CLUSTER}}}[$__rate_interval]))", "all"),
                Query(
                    f"sum(rate(gpu_operator_reconciliation_failed_total{{{CLUSTER}}}[$__rate_interval]))", "not ready"
                ),
            ),
            "Of the operator over its policy.",
            width=12,
        ),
        Panel(
            "Driver upgrades",
            "none",
            tuple(
                Query(_operator(f"nodes_upgrades_{state}"), state.replace("_", " "))
                for state in ("in_progress", "pending", "available", "failed", "done")
            ),
            "Nodes by how far they are.",
            width=12,
        ),
    ),
    collapsed=True,
)

ROWS: Final = (FLEET, UTILISATION, MEMORY, POWER, MIG, HEALTH, PODS, NODES, OPERATOR)

# --- the document -----------------------------------------------------------------------------------------------------

_HEIGHTS: Final = {"stat": 4, "timeseries": 8, "table": 8, "state-timeline": 6}
_WIDTH: Final = 24


def document() -> Json:
    """The dashboard, as Grafana imports it."""
    return {
        "uid": UID,
        "title": TITLE,
        "description": "GPUs of Kubernetes nodes by the metrics exporter, and the layers below them.",
        "tags": ["nvidia", "gpu"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def text() -> str:
    """The document as the file has it."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _variables() -> Iterator[Json]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    yield _variable("cluster", "Cluster", f"label_values({LISTED}, cluster)")
    yield {
        **_variable("host", "Label of the node", "label_names()"),
        "regex": "/^[Hh]ostname$/",
        "multi": False,
        "includeAll": False,
        "current": {"text": "hostname", "value": "hostname"},
    }
    yield _variable("node", "Node", f'label_values({LISTED}{{cluster=~"$cluster"}}, $host)')
    yield _variable("gpu", "GPU", f'label_values({LISTED}{{cluster=~"$cluster",$host=~"$node"}}, gpu)')


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[Json]:
    number, top = 1, 0
    for row in ROWS:
        head: Json = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": _place(0, top, _WIDTH, 1),
            "panels": [],
        }
        number, top = number + 1, top + 1
        placed, bottom = _placed(row.panels, number, top)
        number += len(placed)
        if row.collapsed:
            yield head | {"panels": placed}
        else:
            yield head
            yield from placed
            top = bottom


def _placed(panels: Sequence[Panel], number: int, top: int) -> tuple[list[Json], int]:
    """Panels from left to right, on a new line where one does not fit; and where the next line begins."""
    found, left, height = [], 0, 0
    for panel in panels:
        if left + panel.width > _WIDTH:
            left, top, height = 0, top + height, 0
        tall = _HEIGHTS[panel.kind]
        found.append(_panel(panel, number) | {"gridPos": _place(left, top, panel.width, tall)})
        number, left, height = number + 1, left + panel.width, max(height, tall)
    return found, top + height


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, number: int) -> Json:
    table = panel.kind == "table"
    made: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "targets": [_target(query, chr(ord("A") + at), table=table) for at, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }
    if table:
        made["transformations"] = _columns(panel)
    return made


def _target(query: Query, ref: str, *, table: bool) -> Json:
    how = {"instant": True, "format": "table"} if table else {"legendFormat": query.legend}
    return {"refId": ref, "datasource": DATASOURCE, "expr": query.expr, **how}


def _columns(panel: Panel) -> list[Json]:
    """One line for what several queries say of the same labels, and a name for each query's value."""
    several = len(panel.columns) > 1
    values = {f"Value #{chr(ord('A') + at)}": name for at, name in enumerate(panel.columns)}
    renamed = values if several else {"Value": panel.columns[0]}
    merged = [{"id": "merge", "options": {}}] if several else []
    return [*merged, {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": renamed}}]


def _defaults(panel: Panel) -> Json:
    made: Json = {"unit": panel.unit}
    if panel.limit is not None:
        made |= {"min": 0, "max": panel.limit}
    if panel.steps:
        steps = [
            {"value": None if at == 0 else value, "color": colour} for at, (value, colour) in enumerate(panel.steps)
        ]
        made |= {"thresholds": {"mode": "absolute", "steps": steps}}
    if panel.words:
        words = {
            value: {"text": word, "color": colour, "index": at} for at, (value, word, colour) in enumerate(panel.words)
        }
        made |= {"mappings": [{"type": "value", "options": words}]}
    return made


_OPTIONS: Final[dict[str, Json]] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"},
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"showHeader": True, "sortBy": []},
    "state-timeline": {"showValue": "never", "mergeValues": True, "legend": {"displayMode": "hidden"}},
}


def expressions() -> Iterator[str]:
    """Every query of every panel."""
    return (query.expr for row in ROWS for panel in row.panels for query in panel.queries)
