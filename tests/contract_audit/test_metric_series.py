"""The exposed series are those of contract 5.6 and one of our own, no fewer and no more, each of its type."""

from prometheus_client.parser import text_string_to_metric_families

from groundplane.operator.metrics import Metrics

GAUGES = [
    "gpu_nodes_total",
    "reconciliation_status",
    "reconciliation_last_success_ts_seconds",
    "reconciliation_has_nfd_labels",
    "openshift_driver_toolkit_enabled",
    "openshift_driver_toolkit_nfd_too_old",
    "openshift_driver_toolkit_imagestream_missing",
    "openshift_driver_toolkit_rhcos_tags_missing",
    "openshift_driver_toolkit_imagestream_broken",
    "driver_auto_upgrade_enabled",
    "nodes_upgrades_in_progress",
    "nodes_upgrades_done",
    "nodes_upgrades_failed",
    "nodes_upgrades_available",
    "nodes_upgrades_pending",
    "missing_permissions",
]
COUNTERS = ["reconciliation_total", "reconciliation_failed_total"]


def _series(metrics):
    families = text_string_to_metric_families(metrics.expose().decode())
    return {sample.name: (family.type, sample.value) for family in families for sample in family.samples}


def test_the_series_and_their_types():
    found = {name: kind for name, (kind, _) in _series(Metrics()).items()}
    expected = dict.fromkeys(GAUGES, "gauge") | dict.fromkeys(COUNTERS, "counter")
    assert found == {f"gpu_operator_{name}": kind for name, kind in expected.items()}


def test_counters_count():
    metrics, other = Metrics(), Metrics()
    for failed in (True, False, True):
        metrics.count_pass(failed=failed)
    assert (metrics.get("reconciliation_total"), metrics.get("reconciliation_failed_total")) == (3, 2)
    assert _series(metrics)["gpu_operator_reconciliation_failed_total"] == ("counter", 2)
    assert other.get("reconciliation_total") == 0
