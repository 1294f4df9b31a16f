"""The diagnosis in Prometheus' terms: which layer of which node fails and why, and how the diagnosing itself goes.

Series are there of what is sick only, and of so many nodes at most; a healthy fleet has a handful. Names are our own.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from .picture import Ill

if TYPE_CHECKING:
    from prometheus_client import Metric

NODES_MOST: Final = 500
"""Sick nodes that have series of their own; all are counted."""
_CAUSE: Final = ("cause", "layer", "severity", "title")


class Figures:
    """What the last look has shown, until somebody scrapes it."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.sick: Mapping[str, Ill] = {}
        self.cluster: Sequence[Ill] = ()
        self.unseen = 0
        """Suspected nodes that were not looked at."""
        self.last_success_s = 0.0
        """Unix time of the end of the last look that succeeded; 0 before the first."""
        self.duration_s = 0.0
        self.failures = 0

    def collect(self) -> "Iterator[Metric]":
        """Every metric as it is now, in the library's terms."""
        yield from self._nodes()
        yield self._causes()
        yield from self._plain()

    def _nodes(self) -> "Iterator[Metric]":
        from prometheus_client.core import GaugeMetricFamily

        failing = GaugeMetricFamily(
            "groundplane_node_layer_failing",
            "1 for the lowest failing layer of a node, 0 for its layers that are proven well. Healthy nodes have none.",
            labels=("node", "layer"),
        )
        causes = GaugeMetricFamily("groundplane_node_cause", "1: why a node's layer fails.", labels=("node", *_CAUSE))
        for node in sorted(self.sick)[:NODES_MOST]:
            ill = self.sick[node]
            causes.add_metric((node, ill.cause, ill.layer, ill.severity, ill.title), 1.0)
            for layer, fails in ill.layers:
                failing.add_metric((node, layer), float(fails))
        yield failing
        yield causes

    def _causes(self) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "groundplane_diagnosis_cause_nodes", "Nodes that a cause is on; 0 for one of no node.", labels=_CAUSE
        )
        counted = Counter((each.cause, each.layer, each.severity, each.title) for each in self.sick.values())
        found = {**{(each.cause, each.layer, each.severity, each.title): 0 for each in self.cluster}, **counted}
        for labels, count in sorted(found.items()):
            family.add_metric(labels, count)
        return family

    def _plain(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, text, value in (
            ("sick_nodes", "Nodes of which a layer fails.", len(self.sick)),
            ("unseen_nodes", "Nodes that may be sick too and were not looked at for their number.", self.unseen),
            ("interval_seconds", "Time between two looks.", self.interval_s),
            ("last_success_timestamp_seconds", "Unix time of the last look that succeeded.", self.last_success_s),
            ("duration_seconds", "How long it took.", self.duration_s),
        ):
            yield GaugeMetricFamily(f"groundplane_diagnosis_{name}", text, value=value)
        yield CounterMetricFamily("groundplane_diagnosis_failures", "Looks that failed.", value=self.failures)
