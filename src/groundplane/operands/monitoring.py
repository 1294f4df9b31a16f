"""ServiceMonitors and PrometheusRules: how Prometheus finds and judges the operands.

Source: contracts/control-plane.md 1.4, 5.5 and 5.6. These kinds are not Kubernetes' own, so they are
plain documents.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..api.clusterpolicy import ServiceMonitor
from .build import Manifest

API_VERSION: Final = "monitoring.coreos.com/v1"


def service_monitor(
    name: str, *, port: str, job_label: str, namespace: str, settings: ServiceMonitor | None = None
) -> Manifest:
    """A ServiceMonitor of Service ``name``; ``settings`` edit its labels and its one endpoint."""
    endpoint: dict[str, Any] = {"port": port, "path": "/metrics"}
    labels = {"app": name}
    if settings is not None:
        labels |= settings.additionalLabels or {}
        endpoint |= {
            "interval": settings.interval or None,
            "scrapeTimeout": settings.scrapeTimeout or None,
            "honorLabels": settings.honorLabels,
            "relabelings": [msgspec.to_builtins(each) for each in settings.relabelings or ()] or None,
        }
    return {
        "apiVersion": API_VERSION,
        "kind": "ServiceMonitor",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "endpoints": [endpoint],
            "jobLabel": job_label,
            "namespaceSelector": {"matchNames": [namespace]},
            "selector": {"matchLabels": {"app": name}},
        },
    }


class Alert(msgspec.Struct, frozen=True):
    """An alert that fires after ``minutes`` of ``when``. The description says what is wrong and what to do."""

    name: str
    when: str
    minutes: int
    summary: str
    description: str
    severity: str = "warning"

    def rule(self) -> Manifest:
        """The alert as PrometheusRule has it."""
        return {
            "alert": self.name,
            "expr": self.when,
            "for": f"{self.minutes // 60}h" if self.minutes and self.minutes % 60 == 0 else f"{self.minutes}m",
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def prometheus_rule(name: str, app: str, groups: Sequence[Manifest]) -> Manifest:
    """A PrometheusRule with label ``app``."""
    return {
        "apiVersion": API_VERSION,
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"groups": list(groups)},
    }


def alert_group(name: str, alerts: Sequence[Alert]) -> Manifest:
    """A group of alerts."""
    return {"name": name, "rules": [alert.rule() for alert in alerts]}
