"""Every alert's trouble, made on a simulated machine, is shown by what the exporters really serve; and, where promtool
is, fires just that alert when Prometheus keeps what they serve."""

from pathlib import Path

import pytest
from monitoring import exporters, prometheus
from monitoring.exporters import FAULTS
from monitoring.prometheus import EXPORTER, NODE_STATUS, OPERATOR, Course, Key, stored

MINUTES = 35
"""Longer than an alert of GPUs takes to fire."""


def healthy_rest() -> dict[Key, float]:
    return stored(exporters.operator_metrics(), OPERATOR)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_shown(name: str) -> None:
    await FAULTS[name].scrapes()


@pytest.mark.real
@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_fires_its_alerts_and_no_others(name: str, tmp_path: Path) -> None:
    prometheus.promtool()
    fault = FAULTS[name]
    before, after = await fault.scrapes()
    rest = healthy_rest()
    course = Course({**stored(before, EXPORTER), **rest}, {**stored(after, EXPORTER), **rest}, fault.grows)
    prometheus.check(tmp_path, [prometheus.fires(course, MINUTES, fault.fires)])


NODE_FAULTS = {
    "GPUOperatorNodeDeploymentFailed": ({"devices": 0}, r"^gpu_operator_node_device_plugin_devices_total\{.*\} 0.0$"),
    "GPUOperatorNodeDeploymentDriverFailed": ({"smi_code": 9}, r"^gpu_operator_node_driver_validation\{.*\} 0.0$"),
    "GPUOperatorNodeDeploymentToolkitFailed": (
        {"ready": exporters.READY - {"toolkit"}},
        r"^gpu_operator_node_toolkit_ready\{.*\} 0.0$",
    ),
    "GPUOperatorNodeDeploymentCudaFailed": (
        {"ready": exporters.READY - {"cuda"}},
        r"^gpu_operator_node_cuda_ready\{.*\} 0.0$",
    ),
}
"""Trouble of a node's layers, and what shows that it has been found."""
WELL = (
    r"(?=[\s\S]*^gpu_operator_node_driver_validation\{.*\} 1.0$)(?=[\s\S]*_devices_total\{.*\} 2.0$)"
    r"(?=[\s\S]*^gpu_operator_node_cuda_ready\{.*\} 1.0$)"
)


@pytest.mark.real
async def test_6_7_alerts_of_a_nodes_layers(tmp_path: Path) -> None:
    prometheus.promtool()
    (tmp_path / "well").mkdir()
    well = stored(await exporters.node_status(tmp_path / "well", shows=WELL), NODE_STATUS)
    tests = []
    for name, (trouble, shows) in NODE_FAULTS.items():
        folder = tmp_path / name
        folder.mkdir()
        ill = stored(await exporters.node_status(folder, shows=_also_rest(shows), **trouble), NODE_STATUS)
        tests.append(prometheus.fires(Course({**well, **healthy_rest()}, {**ill, **healthy_rest()}), 35, {name}))
    prometheus.check(tmp_path, tests)


def _also_rest(shows: str) -> str:
    """What shows the trouble, once all else has been looked at, too."""
    looked = r"(?=[\s\S]*^gpu_operator_node_driver_validation\{.*\} 1.0$)" if "driver_validation" not in shows else ""
    counted = r"(?=[\s\S]*_devices_total\{.*\} 2.0$)" if "devices_total" not in shows else ""
    return rf"{looked}{counted}(?=[\s\S]*{shows})"


def _operator(name: str, **values: float) -> tuple[dict[Key, float], str]:
    return stored(exporters.operator_metrics(**values), OPERATOR), name


OPERATOR_FAULTS = [
    ({"reconciliation_status": 0}, 65, ["GPUOperatorReconciliationFailed"]),
    ({"reconciliation_status": 0}, 55, []),
    (
        {"reconciliation_status": 0, "reconciliation_has_nfd_labels": 0},
        35,
        ["GPUOperatorReconciliationFailedNfdLabelsMissing"],
    ),
    ({"reconciliation_status": -1}, 20, ["GPUOperatorPolicyUnavailable"]),
    ({"missing_permissions": 3}, 20, ["GPUOperatorMissingPermissions"]),
    ({"nodes_upgrades_failed": 1}, 35, ["GPUOperatorDriverAutoUpgradeFailures"]),
    ({"nodes_upgrades_failed": 1, "driver_auto_upgrade_enabled": 0}, 35, []),
    ({"nodes_upgrades_pending": 2}, 125, ["GPUOperatorDriverUpgradesPending"]),
    ({"nodes_upgrades_pending": 2}, 110, []),
    ({"nodes_upgrades_in_progress": 1}, 250, ["GPUOperatorDriverUpgradesStuck"]),
    ({"nodes_upgrades_in_progress": 1, "nodes_upgrades_pending": 5}, 100, []),
    ({}, 300, []),
]


@pytest.mark.real
def test_alerts_of_the_operator(tmp_path: Path) -> None:
    tests = []
    for values, minutes, expected in OPERATOR_FAULTS:
        ill = stored(exporters.operator_metrics(**values), OPERATOR)
        tests.append(prometheus.fires(Course(healthy_rest(), ill), minutes, expected))
    gone = {key: value for key, value in healthy_rest().items() if key[0] != "up"}
    tests.append(prometheus.fires(Course(healthy_rest(), {}), 30, ["GPUOperatorDown"]))
    down = dict.fromkeys((key for key in healthy_rest() if key not in gone), 0.0)
    tests.append(prometheus.fires(Course(healthy_rest(), down), 30, ["GPUOperatorDown"]))
    prometheus.check(tmp_path, tests)


DIAGNOSED = {
    "GPUNodeLayerFailing": exporters.diagnosis(exporters.SICK),
    "GPUOperatorClusterCause": exporters.diagnosis(cluster=(exporters.CLUSTER_CAUSE,)),
    "GPUOperatorDiagnosisStale": exporters.diagnosis(last=0.0),
}
"""What the operator's diagnosis says, by the alert that follows."""


@pytest.mark.real
def test_alerts_of_the_diagnosis(tmp_path: Path) -> None:
    courses = [
        (stored(exporters.operator_metrics(diagnosed), OPERATOR), minutes, expected)
        for name, diagnosed in DIAGNOSED.items()
        for minutes, expected in ((15, [name]), (8, []))
    ]
    prometheus.check(tmp_path, [prometheus.fires(Course(healthy_rest(), ill), *rest) for ill, *rest in courses])


@pytest.mark.real
async def test_alerts_of_the_exporters_themselves(tmp_path: Path) -> None:
    prometheus.promtool()
    (tmp_path / "node").mkdir()
    node = stored(await exporters.node_status(tmp_path / "node", shows=WELL), NODE_STATUS)
    async with exporters.exporter() as world:
        gpus = stored(await world.scraped(lambda body: "DCGM_FI_DEV_FB_USED" in body, "figures"), EXPORTER)
    well = {**healthy_rest(), **node, **gpus}
    other = {"hostname": "n2", "instance": "10.244.1.7:9400"}
    others = {
        (
            name,
            tuple((label, other.get(label, f"{value}-2" if label == "UUID" else value)) for label, value in labels),
        ): 1.0
        for name, labels in gpus
        if name in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_FB_USED", "up")
    }

    def down(job: str) -> dict[Key, float]:
        """Only that the job cannot be scraped is left of it."""
        kept = {key: value for key, value in well.items() if ("job", job) not in key[1]}
        return kept | {key: 0.0 for key in well if key[0] == "up" and ("job", job) in key[1]}

    missing = {key: value for key, value in well.items() if key not in gpus} | others
    prometheus.check(
        tmp_path,
        [
            prometheus.fires(Course(well, down("nvidia-dcgm-exporter")), 35, {"GPUExporterDown"}),
            prometheus.fires(Course(well, down("nvidia-node-status-exporter")), 35, {"GPUNodeStatusExporterDown"}),
            prometheus.fires(Course(well, missing), 35, {"GPUExporterMissing"}),
        ],
    )


@pytest.mark.real
async def test_9_7_a_board_with_mig_instances_alerts_once(tmp_path: Path) -> None:
    prometheus.promtool()
    before, after = await FAULTS["hot"]._replace(gpu=exporters.MIG).scrapes()
    assert len([key for key in prometheus.parse(after) if key[0] == "DCGM_FI_DEV_GPU_TEMP"]) == 4, "a row an instance"
    course = Course(stored(before, EXPORTER), stored(after, EXPORTER))
    once = {
        "expr": 'count(ALERTS{alertname="GPUTemperatureHigh",alertstate="firing"})',
        "eval_time": f"{prometheus.MINUTES_BEFORE + MINUTES}m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    prometheus.check(
        tmp_path, [{"interval": "1m", "input_series": course.inputs(MINUTES + 5), "promql_expr_test": [once]}]
    )


def test_there_is_a_fault_for_every_alert() -> None:
    shown = {alert for fault in FAULTS.values() for alert in fault.fires}
    shown |= NODE_FAULTS.keys() | {name for _, _, expected in OPERATOR_FAULTS for name in expected}
    shown |= DIAGNOSED.keys() | {
        "GPUOperatorDown",
        "GPUExporterDown",
        "GPUNodeStatusExporterDown",
        "GPUExporterMissing",
    }
    assert shown == prometheus.rules().keys()
