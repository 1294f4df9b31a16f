"""Alert rules, dashboard and counters in the chart: off by default, and as files/monitoring has them when asked for."""

import json
from typing import Any

import pytest
import yaml
from chart import rendering

FILES = rendering.CHART / "files" / "monitoring"
RULES, DASHBOARD, COUNTERS = "gpu-operator-alerts", "gpu-operator-dashboard", "gpu-operator-metrics"
OPENSHIFTS = {"gpu-operator", "gpu-operator-node-status"}
"""Groups of alerts that the operator installs itself there."""


def monitoring(**parts: dict[str, Any]) -> dict[str, Any]:
    return {"monitoring": {name: {"enabled": True, **values} for name, values in parts.items()}}


def names(values: dict[str, Any]) -> set[str]:
    return {document["metadata"]["name"] for document in rendering.documents(values)} & {RULES, DASHBOARD, COUNTERS}


@pytest.mark.parametrize(
    ("values", "there"),
    [
        ({}, set()),
        (monitoring(alerts={}), {RULES, COUNTERS}),
        (monitoring(dashboard={}), {DASHBOARD, COUNTERS}),
        (monitoring(alerts={}, dashboard={}), {RULES, DASHBOARD, COUNTERS}),
        (monitoring(counters={}), set()),
        (monitoring(alerts={}) | {"dcgmExporter": {"enabled": False}}, {RULES}),
        (monitoring(alerts={}) | {"dcgmExporter": {"enabled": None}}, {RULES, COUNTERS}),
        (monitoring(alerts={}) | {"dcgmExporter": {"config": {"name": "mine"}}}, {RULES}),
        ({"monitoring": {"alerts": {"enabled": True}, "counters": {"enabled": False}}}, {RULES}),
        ({"monitoring": None}, set()),
        ({"monitoring": {"alerts": None, "dashboard": None, "counters": None}}, set()),
        (monitoring(alerts={"labels": None}) | {"dcgmExporter": {"config": None}}, {RULES, COUNTERS}),
    ],
)
def test_what_is_made(values: dict[str, Any], there: set[str]) -> None:
    assert names(values) == there


@pytest.mark.parametrize("release", rendering.RELEASES)
def test_the_exporter_uses_the_counters_that_are_made(release: str) -> None:
    def config(values: dict[str, Any]) -> Any:
        both = rendering.merged(values, {"operator": {"release": release}})
        return rendering.one("ClusterPolicy", both)["spec"]["dcgmExporter"].get("config")

    assert config({}) is None
    assert config(monitoring(dashboard={})) == {"name": COUNTERS}
    assert config(monitoring(alerts={}) | {"dcgmExporter": {"config": {"name": "mine"}}}) == {"name": "mine"}
    assert config({"monitoring": {"alerts": {"enabled": True}, "counters": {"enabled": False}}}) is None


def test_the_counters() -> None:
    data = rendering.one("ConfigMap", monitoring(alerts={}), COUNTERS)["data"]
    assert data == {"dcgm-metrics.csv": (FILES / "counters.csv").read_text(encoding="utf-8").rstrip("\n")}


def test_the_rules() -> None:
    made = rendering.one("PrometheusRule", monitoring(alerts={"labels": {"release": "kube-prometheus-stack"}}))
    assert made["apiVersion"] == "monitoring.coreos.com/v1"
    assert made["metadata"]["namespace"] == rendering.NAMESPACE
    assert made["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert made["metadata"]["labels"]["app.kubernetes.io/name"] == "gpu-operator"
    assert made["spec"] == yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))


def test_the_runbook_can_be_elsewhere() -> None:
    there = "https://wiki.example.com/gpus"
    groups = rendering.one("PrometheusRule", monitoring(alerts={"runbook": there}))["spec"]["groups"]
    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}
    assert urls == {name: f"{there}#{name.lower()}" for name in urls}


def test_on_openshift_no_alert_is_there_twice() -> None:
    values = monitoring(alerts={}) | {"platform": {"openshift": True}}
    groups = {group["name"] for group in rendering.one("PrometheusRule", values)["spec"]["groups"]}
    every = {group["name"] for group in rendering.one("PrometheusRule", monitoring(alerts={}))["spec"]["groups"]}
    assert every - groups == OPENSHIFTS


def test_the_dashboard() -> None:
    made = rendering.one("ConfigMap", monitoring(dashboard={"annotations": {"grafana_folder": "GPUs"}}), DASHBOARD)
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
    (text,) = made["data"].values()
    assert json.loads(text) == json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
    assert len(json.dumps(made)) < 262_144, "what client-side apply can note in an annotation"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("monitoring.alerts.enabled", "yes"),
        ("monitoring.alert.enabled", True),
        ("monitoring.dashboard.labels", {"a": 1}),
        ("monitoring.alerts.runbook", 1),
    ],
)
def test_what_is_wrong_is_refused(path: str, value: object) -> None:
    with pytest.raises(Exception, match=r"got string|not allowed|got number"):
        rendering.documents(rendering.tree(path, value))
