"""The alert rules as a document: each says what is wrong, where, and what to do; Xid errors by section 8."""

import re
from typing import Any

import pytest
from monitoring import prometheus
from operands.rendering import objects as operand_objects

from groundplane.api.xids import XIDS, Action
from groundplane.operands import node_status_exporter, operator_metrics

RULES = prometheus.rules()
DURATION = re.compile(r"[0-9]+[mh]")


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_whole(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"].keys() == {"severity"} and rule["labels"]["severity"] in ("critical", "warning", "info")
    assert DURATION.fullmatch(rule["for"])
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url"}
    assert notes["summary"] and not notes["summary"].endswith(".") and "{{" not in notes["summary"]
    assert notes["description"].rstrip("} ").endswith((".", "end"))
    assert notes["runbook_url"] == f"docs/monitoring.md#{name.lower()}"


@pytest.mark.parametrize("name", [each for each in RULES if not re.match("GPUOperator(?!Node)", each)])
def test_an_alert_says_where(name: str) -> None:
    assert re.search(r"\$labels\.(UUID|instance|node)\b", RULES[name]["annotations"]["description"])


@pytest.mark.parametrize("name", RULES)
def test_every_alert_has_a_heading_that_says_what_to_do(name: str) -> None:
    text = prometheus.RUNBOOK.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^### {name}$\n+((?:.+\n)+)", text, re.MULTILINE)
    assert "First:" in section


def test_headings_are_of_alerts() -> None:
    text = prometheus.RUNBOOK.read_text(encoding="utf-8")
    assert set(re.findall(r"^### (GPU\w+)$", text, re.MULTILINE)) == RULES.keys()


def boards() -> list[Any]:
    return [name for name, rule in RULES.items() if "DCGM_" in rule["expr"] and name != "GPUExporterMissing"]


@pytest.mark.parametrize("name", boards())
def test_9_7_rows_of_mig_instances_count_once_a_board(name: str) -> None:
    expr = RULES[name]["expr"]
    grouped = re.findall(r"max by \(([^)]*)\)", expr)
    assert grouped and all("UUID" in each and "gpu" in each and "hostname" in each for each in grouped)
    assert ("GPU_I_ID" in expr) == (name == "GPUMemoryFull"), "only memory is an instance's own"


# --- Xid errors, section 8 --------------------------------------------------------------------------------------------


def alerting() -> dict[int, tuple[str, str]]:
    """The alert of each Xid, and how bad it is."""
    found: dict[int, tuple[str, str]] = {}
    for name, rule in RULES.items():
        for codes in re.findall(r'xid=~"([0-9|]+)"', rule["expr"]):
            for code in map(int, codes.split("|")):
                assert code not in found, "one alert for an error"
                found[code] = name, rule["labels"]["severity"]
    return found


SILENT = (Action.IGNORE, Action.RESTART_APPLICATION, Action.NONE)


@pytest.mark.parametrize("code", XIDS)
def test_8_every_xid_alerts_by_its_action(code: int) -> None:
    action, found = XIDS[code].action, alerting().get(code)
    if action in SILENT or code == 45:
        assert found is None
        return
    assert found is not None
    assert (found[1] == "critical") == (
        action in (Action.RESET_GPU, Action.RESTART_NODE, Action.RESTART_VM) or code == 48
    )


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_8_errors_of_programs_never_alert(code: int) -> None:
    assert code not in alerting()


@pytest.mark.parametrize("code", [46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158])
def test_8_errors_that_take_a_gpu_away_are_critical(code: int) -> None:
    assert alerting()[code][1] == "critical"


def test_8_nothing_but_the_catalogue_alerts() -> None:
    assert alerting().keys() <= XIDS.keys()


# --- jobs -------------------------------------------------------------------------------------------------------------


def jobs() -> set[str]:
    """The operands' jobs: the Service's label that the ServiceMonitor names, else the Service's name."""
    on = {"enabled": True}
    changes = {"nodeStatusExporter": on, "dcgmExporter": {"serviceMonitor": on}}
    rendered = operand_objects(changes=changes, service_monitor_crd=True)
    found = set()
    for (kind, name), monitor in rendered.items():
        if kind == "ServiceMonitor":
            labels = rendered["Service", name]["metadata"]["labels"]
            found.add(labels.get(monitor["spec"]["jobLabel"], name))
    return found


def test_jobs_are_called_as_service_monitors_call_them() -> None:
    named = {job for rule in RULES.values() for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert named == jobs() == {"nvidia-dcgm-exporter", "nvidia-node-status-exporter", "gpu-operator"}


# --- one source -------------------------------------------------------------------------------------------------------

SHIPPED = (*node_status_exporter.ALERTS, *operator_metrics.ALERTS)


@pytest.mark.parametrize("alert", SHIPPED, ids=lambda alert: alert.name)
def test_what_the_operator_installs_on_openshift_is_the_same_rule(alert: Any) -> None:
    if alert.name.startswith("GPUOperatorOpenshift"):
        assert alert.name not in RULES
        return
    ours = dict(RULES[alert.name])
    ours["annotations"] = {key: value for key, value in ours["annotations"].items() if key != "runbook_url"}
    assert ours == alert.rule()
