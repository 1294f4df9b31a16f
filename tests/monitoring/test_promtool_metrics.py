"""Prometheus' own parser and linter on what the programs serve, on several simulated machines.

The linter knows the conventions of today; the names are DCGM's and NVIDIA's operator's, which dashboards know. What it
says of them is listed here, one by one: anything else fails.
"""

from pathlib import Path

import pytest
from monitoring import exporters, prometheus
from prometheus_client.parser import text_string_to_metric_families

COUNTER_NAMES = (
    *("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
    *("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"),
    *("DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_THERMAL_VIOLATION"),
    *("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    *(f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")),
)
NO_TOTAL = 'counter metrics should have "_total" suffix'
TYPE_IN_NAME = "metric name should not include type 'counter'"
MODEL_NAME = "label names should be written in 'snake_case' not 'camelCase'"
"""Of the label modelName, which every series of the exporter has."""
EXPORTED = [
    name
    for name, kind, _ in (line.split(", ", 2) for line in prometheus.COUNTERS.read_text().splitlines()[1:])
    if kind != "label"
]
KNOWN = {
    **{name: {MODEL_NAME} for name in EXPORTED},
    **{name: {MODEL_NAME, NO_TOTAL} for name in COUNTER_NAMES},
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": {MODEL_NAME, NO_TOTAL, TYPE_IN_NAME},
    "gpu_operator_gpu_nodes_total": {'non-counter metrics should not have "_total" suffix'},
    "gpu_operator_node_device_plugin_devices_total": {'non-counter metrics should not have "_total" suffix'},
    "gpu_operator_nvidia_pci_devices_total": {'non-counter metrics should not have "_total" suffix'},
}


def told(text: str) -> dict[str, set[str]]:
    """What the linter says, by name."""
    _, said = prometheus.run("check", "metrics", given=text)
    found: dict[str, set[str]] = {}
    for line in said.splitlines():
        name, _, about = line.partition(" ")
        found.setdefault(name, set()).add(about)
    return found


async def served(folder: Path) -> dict[str, str]:
    return {
        **await exporters.machines(),
        "node-status": await exporters.node_status(folder, shows=r"_devices_total\{.*\} 2.0$"),
        "operator": exporters.operator_metrics(nodes_upgrades_failed=1),
    }


async def test_the_python_parser_reads_everything(tmp_path: Path) -> None:
    for name, text in (await served(tmp_path)).items():
        families = list(text_string_to_metric_families(text))
        assert families and all(family.documentation for family in families), name
        samples = [(each.name, tuple(sorted(each.labels.items()))) for family in families for each in family.samples]
        assert len(set(samples)) == len(samples), name
        assert text.endswith("\n") and "" not in text.splitlines()


@pytest.mark.real
async def test_promtool_accepts_everything(tmp_path: Path) -> None:
    prometheus.promtool()
    seen: set[str] = set()
    for name, text in (await served(tmp_path)).items():
        found = told(text)
        seen |= found.keys()
        assert {key: about for key, about in found.items() if about != KNOWN.get(key)} == {}, name
    assert seen == KNOWN.keys(), "what is not said any more is not listed"
