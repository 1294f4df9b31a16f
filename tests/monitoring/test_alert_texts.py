"""What a person reads of an alert: promtool fills the descriptions in from what the exporter served."""

from pathlib import Path

import pytest
import yaml
from monitoring import exporters, prometheus
from monitoring.prometheus import EXPORTER, RULES, Course, Target, stored
from node.metrics.exporterworld import pod

from groundplane.api.release import Release

pytestmark = pytest.mark.real
HONORED = EXPORTER._replace(honor_labels=True)


@pytest.mark.parametrize("target", [EXPORTER, HONORED], ids=["honorLabels: false", "honorLabels: true"])
@pytest.mark.parametrize("release", Release, ids=str)
async def test_a_description_names_error_gpu_node_and_pods(target: Target, release: Release, tmp_path: Path) -> None:
    prometheus.promtool()
    async with exporters.exporter(release=release) as world:
        gpu, other = world.machine.read().inventory.gpus
        world.kubelet.pods = [pod("training", gpu.uuid), pod("idle", other.uuid)]
        before = await world.scraped(lambda body: 'pod="training"' in body, "the pod")
        world.machine.xid(0, 79)
        after = await world.scraped(lambda body: 'xid="79"' in body and 'err_code="79"' in body, "the error")
    host = "hostname" if release is Release.V26_7 else "Hostname"
    rule = prometheus.rules()["GPUXidRestartNode"]
    board = {"gpu": "0", "UUID": gpu.uuid, "modelName": gpu.name, host: "n1"}
    expected = {
        "exp_labels": {"severity": "critical", "xid": "79", **board},
        "exp_annotations": {
            "summary": "A GPU is gone until its node restarts",
            "description": f"Xid 79 (GPU has fallen off the bus) on GPU 0 ({gpu.name}, {gpu.uuid}) of node n1. Drain "
            "the node and restart it. If it comes back with the same error, reseat or replace the GPU. Pods on it: "
            "team/training.",
            "runbook_url": rule["annotations"]["runbook_url"],
        },
    }
    course = Course(stored(before, target), stored(after, target))
    test = {
        "interval": "1m",
        "input_series": course.inputs(10),
        "alert_rule_test": [
            {"eval_time": "60m", "alertname": "GPUXidRestartNode", "exp_alerts": []},
            {"eval_time": "75m", "alertname": "GPUXidRestartNode", "exp_alerts": [expected]},
        ],
    }
    prometheus.check(tmp_path, [test])


def test_every_description_can_be_filled_in(tmp_path: Path) -> None:
    """Prometheus puts an error into the text where a template is wrong; so each is tried, without figures."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for group in groups:
        for rule in group["rules"]:
            rule |= {"expr": "vector(1)", "for": "0m"}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    asked = [
        {"eval_time": "1m", "alertname": rule["alert"], "exp_alerts": []} for group in groups for rule in group["rules"]
    ]
    test = {"rule_files": ["rules.yaml"], "tests": [{"interval": "1m", "input_series": [], "alert_rule_test": asked}]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(test), encoding="utf-8")
    code, told = prometheus.run("test", "rules", tmp_path / "tests.yaml")
    assert code == 1 and told.count("description=") >= len(asked), "each fires, and is told with its text"
    assert "<error expanding" not in told


def test_promtool_accepts_the_rules() -> None:
    code, told = prometheus.run("check", "rules", RULES)
    assert code == 0 and f"{len(prometheus.rules())} rules found" in told, told
