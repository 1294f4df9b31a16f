"""The operator's Prometheus metrics, under the names NVIDIA's dashboards know (contracts/control-plane.md 5.6).

Each :class:`Metrics` is its own, so that two operators in one process (the lab, a test) do not share figures. Only the
active ClusterPolicy moves them; ``policy.py`` sees to that. They are plain numbers until somebody scrapes them: the
library that writes the exposition format is imported then, as it would take a tenth of a second of every start.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "gpu_operator"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SUCCESS: Final = 1
NOT_READY: Final = 0
POLICY_UNAVAILABLE: Final = -1
OPERATOR_ERROR: Final = -2

GAUGES: Final = {
    "gpu_nodes_total": "Nodes with a GPU.",
    "reconciliation_status": (
        "1 if the last pass succeeded, 0 if operands are not ready, -1 if the ClusterPolicy is missing or cannot be "
        "used, -2 if the operator itself failed."
    ),
    "reconciliation_last_success_ts_seconds": "Unix time of the last fully successful pass.",
    "reconciliation_has_nfd_labels": "1 if node feature discovery labels were found, else 0.",
    "openshift_driver_toolkit_enabled": "1 if the driver toolkit is used, 0 if not requested, -1 if impossible.",
    "openshift_driver_toolkit_nfd_too_old": "1 if the driver toolkit is wanted but no node has an OSTREE label.",
    "openshift_driver_toolkit_imagestream_missing": "1 if the driver toolkit is wanted but has no imagestream.",
    "openshift_driver_toolkit_rhcos_tags_missing": "1 if the imagestream lacks the tag of an RHCOS version in use.",
    "openshift_driver_toolkit_imagestream_broken": "1 if the imagestream has a tag without a name.",
    "driver_auto_upgrade_enabled": "1 if drivers are upgraded automatically, else 0.",
    "nodes_upgrades_in_progress": "Nodes whose driver is being upgraded.",
    "nodes_upgrades_done": "Nodes whose driver upgrade is done.",
    "nodes_upgrades_failed": "Nodes whose driver upgrade failed.",
    "nodes_upgrades_available": "Nodes whose driver may be upgraded now.",
    "nodes_upgrades_pending": "Nodes that wait for their driver upgrade.",
    "missing_permissions": "Permissions that the operator asked for in vain and still lacks; /readyz names them.",
}
COUNTERS: Final = {
    "reconciliation": "Passes.",
    "reconciliation_failed": "Passes that ended not ready or in an error.",
}
"""Counters, without the ``_total`` that the exposition format adds."""


class Source(Protocol):
    """Has metrics of its own."""

    def collect(self) -> "Iterator[Metric]":
        """Every metric as it is now."""


class Metrics:
    """One operator's figures."""

    def __init__(self) -> None:
        self.more: tuple[Source, ...] = ()
        """Exposed too."""
        self._gauges = dict.fromkeys(GAUGES, 0.0)
        self._counts = dict.fromkeys(COUNTERS, 0)

    def set(self, name: str, value: float) -> None:
        """Set a gauge of :data:`GAUGES`. Raises :class:`KeyError` for another."""
        if name not in self._gauges:
            raise KeyError(f"no gauge {name}")
        self._gauges[name] = float(value)

    def count_pass(self, *, failed: bool) -> None:
        """One pass over the active policy has ended."""
        self._counts["reconciliation"] += 1
        if failed:
            self._counts["reconciliation_failed"] += 1

    def get(self, name: str) -> float:
        """The present value of a metric, by its exposed name without the prefix."""
        if name in self._gauges:
            return self._gauges[name]
        counter = name.removesuffix("_total")
        if counter == name or counter not in self._counts:
            raise KeyError(f"no metric {PREFIX}_{name}")
        return self._counts[counter]

    def expose(self) -> bytes:
        """The exposition text."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> "Iterator[Metric]":
        """Every metric as it is now, in the library's terms."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=self._gauges[name])
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=self._counts[name])
        for source in self.more:
            yield from source.collect()
