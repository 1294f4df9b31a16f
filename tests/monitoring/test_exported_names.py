"""Alerts and dashboard read only series and labels that the programs really export, with the chart's counters."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from monitoring import exporters, prometheus
from monitoring.prometheus import EXPORTER, NODE_STATUS, OPERATOR, Used, stored, used

OF_PROMETHEUS = {"ALERTS"}
ADDED = {"cluster"}
"""Labels that whoever runs several Prometheus adds."""


@pytest.mark.parametrize(
    ("expr", "names", "labels"),
    [
        ("a", {"a"}, set()),
        ("a and b unless on (c) d", {"a", "b", "d"}, {"c"}),
        ('max by (x, y) (rate(a{b="c, d",e=~"f|g"}[5m])) / 1e9 > 0.5', {"a"}, {"x", "y", "b", "e"}),
        ('absent(up{job="x"} == 1)', {"up"}, {"job"}),
        ('label_replace(a, "node", "$1", "host", "(.+)") or vector(0)', {"a"}, set()),
        ("time() - a offset 5m", {"a"}, set()),
        ("a:b:c{} >= bool 3", {"a:b:c"}, set()),
    ],
)
def test_names_of_an_expression(expr: str, names: set[str], labels: set[str]) -> None:
    assert used(expr) == Used(frozenset(names), frozenset(labels))


async def test_everything_that_is_read_is_exported(tmp_path: Path) -> None:
    labels: dict[str, set[str]] = {}
    served = [(body, target) for body in (await exporters.machines()).values() for target in (EXPORTER, HONORED)]
    served.append((await exporters.node_status(tmp_path, shows="."), NODE_STATUS))
    diagnosed = exporters.diagnosis(exporters.SICK, (exporters.CLUSTER_CAUSE,))
    served.append((exporters.operator_metrics(diagnosed), OPERATOR))
    for body, target in served:
        for name, own in stored(body, target):
            labels.setdefault(name, set()).update(label for label, _ in own)
    rules = {name: rule["expr"] for name, rule in prometheus.rules().items()}
    rules |= {f"text of {name}": each for name, each in _queries()}
    assert {name: found for name, expr in rules.items() if (found := _unknown(expr, labels))} == {}
    shown = {
        f"{panel['title']} {target['refId']}": prometheus.filled(target["expr"])
        for panel in prometheus.panels()
        for target in panel.get("targets", ())
    }
    assert len(shown) > 60
    assert {name: found for name, expr in shown.items() if (found := _unknown(expr, labels))} == {}


HONORED = EXPORTER._replace(honor_labels=True)


def _queries() -> list[tuple[str, str]]:
    """Queries in the texts of alerts."""
    return [
        (name, query)
        for name, rule in prometheus.rules().items()
        for query in rule["annotations"]["description"].split("`")[1::2]
    ]


def _unknown(expr: str, exported: Mapping[str, set[str]]) -> set[str]:
    """Series that nobody exports, and labels that none of the series in the expression has."""
    read = used(expr)
    found = {name for name in read.names if name not in exported and name not in OF_PROMETHEUS}
    there = set().union(*(exported.get(name, set()) for name in read.names)) | ADDED
    made = {"node", "namespace", "pod", "container"} if "label_replace" in expr else set()
    return found | (read.labels - there - made)


def test_the_counters_are_the_default_list_and_more() -> None:
    from groundplane.node.metrics import counters as counters_file

    folder = Path(counters_file.__file__).parent
    default = (folder / "dcp-metrics-included.csv").read_text(encoding="utf-8")
    wanted = [line for line in default.splitlines() if line and not line.startswith("#")]
    ours = prometheus.COUNTERS.read_text(encoding="utf-8").splitlines()[1:]
    assert ours[: len(wanted)] == wanted
    names = [line.partition(",")[0] for line in ours]
    assert len(set(names)) == len(names)
    assert not [name for name in names if not name.startswith("DCGM_")], "NVIDIA's exporter has to know them all"
