"""What people run in a scenario: Deployments and Jobs that hold GPUs, and budgets that protect them."""

from collections.abc import Mapping
from typing import Any, Final

from ...api import names

Document = dict[str, Any]

NAMESPACE: Final = "default"
IMAGE: Final = "nvcr.io/nvidia/cuda:12.5.0-base-ubuntu24.04"
NO_WAIT_S: Final = 1
"""Grace period of pods that have nothing to put in order."""


def _template(labels: Mapping[str, str], gpus: int, node: str, restart: str) -> Document:
    container = {
        "name": "gpu-user",
        "image": IMAGE,
        "command": ["sleep", "infinity"],
        "resources": {"limits": {names.GPU_RESOURCE: str(gpus)}},
    }
    spec: Document = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": NO_WAIT_S,
        "tolerations": [{"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def _named(api_version: str, kind: str, name: str, spec: Document) -> Document:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": spec,
    }


def deployment(name: str, *, replicas: int = 1, gpus: int = 1, node: str = "") -> Document:
    """A Deployment whose pods, labelled ``app: <name>``, hold GPUs; on one node if it is named."""
    labels = {"app": name}
    template = _template(labels, gpus, node, "Always")
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return _named("apps/v1", "Deployment", name, spec)


def job(name: str, *, labels: Mapping[str, str], gpus: int = 1, node: str = "") -> Document:
    """A Job whose pod, with further labels, holds GPUs and never ends."""
    template = _template({"app": name, **labels}, gpus, node, "Never")
    return _named("batch/v1", "Job", name, {"backoffLimit": 6, "template": template})


def budget(name: str) -> Document:
    """A PodDisruptionBudget that lets no pod of a Deployment go."""
    return _named(
        "policy/v1", "PodDisruptionBudget", name, {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}}
    )
