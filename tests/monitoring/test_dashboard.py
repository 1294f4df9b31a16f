"""The dashboard: a document that Grafana reads, whose queries keep to what is chosen, and give what they should."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring import exporters, prometheus
from monitoring.prometheus import EXPORTER, NODE_STATUS, OPERATOR, Course, Key, filled, stored
from node.metrics.exporterworld import pod

DASHBOARD = prometheus.dashboard()
PANELS = prometheus.panels()
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in SHOWN for target in panel["targets"]]
UNITS = {
    *("none", "percent", "percentunit", "Bps", "KiBs", "mbytes", "celsius", "watt", "watth", "hertz", "s", "ops"),
    "bool_yes_no",
}


def title(panel: dict[str, Any]) -> str:
    return f"{panel['id']} {panel['title']}"


def test_what_grafana_needs_of_a_dashboard() -> None:
    assert DASHBOARD["uid"] and len(DASHBOARD["uid"]) <= 40 and DASHBOARD["title"]
    assert "id" not in DASHBOARD, "Grafana gives it"
    assert isinstance(DASHBOARD["schemaVersion"], int) and DASHBOARD["time"].keys() == {"from", "to"}
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids) and all(isinstance(each, int) and each > 0 for each in ids)
    assert prometheus.DASHBOARD.stat().st_size < 100_000


def test_variables() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "cluster", "host", "node", "gpu"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for each in list(variables.values())[1:]:
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert each["query"]["query"] == each["definition"]
    pattern = variables["host"]["regex"].strip("/")
    assert [name for name in ("Hostname", "hostname", "exported_hostname", "host") if re.search(pattern, name)] == [
        "Hostname",
        "hostname",
    ]


def test_rows() -> None:
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == [
        *("Fleet", "Utilisation", "Memory", "Temperature and power", "MIG instances", "Health", "Pods"),
        *("Layers on nodes", "Operator"),
    ]
    for panel in DASHBOARD["panels"]:
        assert not panel.get("panels") or panel["collapsed"], "only closed rows hold their panels"


@pytest.mark.parametrize("panel", SHOWN, ids=title)
def test_a_panel_is_whole(panel: dict[str, Any]) -> None:
    assert panel["type"] in ("stat", "timeseries", "table", "state-timeline")
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        assert target.get("format") == "table" if panel["type"] == "table" else "legendFormat" in target
    if panel["type"] == "table":
        assert len(panel["transformations"][-1]["options"]["renameByName"]) == len(references)
    if len(references) > 1 and panel["type"] == "timeseries":
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends), "one cannot be told from the other"


def test_panels_lie_side_by_side() -> None:
    for level in (DASHBOARD["panels"], *(panel.get("panels", ()) for panel in DASHBOARD["panels"])):
        for one, other in itertools.combinations((panel["gridPos"] for panel in level), 2):
            beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert beside or below, (one, other)
        assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in (each["gridPos"] for each in level))


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=lambda each: each.get("refId") or title(each))
def test_a_query_keeps_to_what_is_chosen(panel: dict[str, Any], target: dict[str, Any]) -> None:
    matchers = re.findall(r"([A-Za-z_]\w*)\{([^{}]*)\}", target["expr"])
    assert len(matchers) == len(re.findall(r"\b(?:DCGM|gpu_operator|groundplane)_\w+", target["expr"])) > 0
    for name, chosen in matchers:
        assert 'cluster=~"$cluster"' in chosen
        if name.startswith("DCGM"):
            assert '$host=~"$node"' in chosen and 'gpu=~"$gpu"' in chosen
        elif "_node_" in name:
            assert 'node=~"$node"' in chosen


@pytest.mark.real
def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"r:{at}", "expr": filled(target["expr"])} for at, (_, target) in enumerate(TARGETS)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    code, told = prometheus.run("check", "rules", file)
    assert code == 0 and f"{len(rules)} rules found" in told, told


# --- what they give ---------------------------------------------------------------------------------------------------


def query(panel_title: str, row: str, ref: str = "A") -> str:
    """A panel's query, with all chosen."""
    at = next(index for index, panel in enumerate(PANELS) if (panel["title"], panel["type"]) == (row, "row"))
    panel = next(each for each in PANELS[at:] if each["title"] == panel_title and each["type"] != "row")
    return filled(next(target["expr"] for target in panel["targets"] if target["refId"] == ref))


async def kept(tmp_path: Path, *, honor_labels: bool) -> dict[Key, float]:
    """One GPU in MIG mode with two instances, of which a pod has one; one GPU that another pod has; the rest."""
    async with exporters.exporter((exporters.MIG, exporters.BUSY)) as world:
        mig, gpu = world.machine.read().inventory.gpus
        world.kubelet.pods = [
            pod("small", mig.mig_devices[0].uuid, resource="nvidia.com/mig-1g.10gb"),
            pod("large", gpu.uuid),
        ]
        world.machine.set_telemetry(0, instance_loads={each.gi: 100 for each in mig.mig_devices})
        body = await world.scraped(lambda text: 'pod="small"' in text and 'pod="large"' in text, "the pods")
    node = await exporters.node_status(tmp_path, shows=r"_devices_total\{.*\} 2.0$")
    return {
        **stored(body, EXPORTER._replace(honor_labels=honor_labels)),
        **stored(node, NODE_STATUS),
        **stored(exporters.operator_metrics(), OPERATOR),
    }


COUNTS = {
    ("GPUs", "Fleet"): 2,
    ("MIG instances", "Fleet"): 3,
    ("In use", "Fleet"): 2,
    ("Not answering", "Fleet"): 0,
    ("Nodes with GPUs", "Operator"): 2,
    ("State", "Operator"): 1,
}
SERIES = {
    ("Engines active", "Utilisation"): 3,
    ("GPU utilisation", "Utilisation"): 1,
    ("Memory in use", "Memory"): 3,
    ("Part of memory in use", "Memory"): 3,
    ("Temperature of GPUs", "Temperature and power"): 2,
    ("Power", "Temperature and power"): 2,
    ("Instances by profile", "MIG instances"): 2,
    ("Engines active", "MIG instances"): 2,
    ("Engines active", "Pods"): 2,
    ("GPU utilisation", "Pods"): 1,
    ("Memory in use", "Pods"): 2,
    ("Driver works", "Layers on nodes"): 1,
}
"""How many series a panel shows of that machine."""


@pytest.mark.real
@pytest.mark.parametrize("honor_labels", [False, True], ids=["honorLabels: false", "honorLabels: true"])
async def test_queries_give_what_the_panel_says(honor_labels: bool, tmp_path: Path) -> None:
    prometheus.promtool()
    (tmp_path / "node").mkdir()
    now = await kept(tmp_path / "node", honor_labels=honor_labels)
    asked = [
        {"expr": f"sum({query(*place)})", "eval_time": "75m", "exp_samples": [{"labels": "{}", "value": value}]}
        for place, value in COUNTS.items()
    ]
    asked += [
        {"expr": f"count({query(*place)})", "eval_time": "75m", "exp_samples": [{"labels": "{}", "value": value}]}
        for place, value in SERIES.items()
    ]
    names = f"group by (namespace, pod, container) ({query('Memory in use', 'Pods')})"
    pods = [
        {"labels": f'{{namespace="team",pod="{name}",container="main"}}', "value": 1} for name in ("small", "large")
    ]
    asked.append({"expr": names, "eval_time": "75m", "exp_samples": pods})
    prometheus.check(
        tmp_path, [{"interval": "1m", "input_series": Course(now, now).inputs(10), "promql_expr_test": asked}]
    )
