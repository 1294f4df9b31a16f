"""What the states for virtual machines (vGPU, VFIO passthrough, Kata) have in common.

They exist only with ``sandboxWorkloads.enabled``. Some of their DaemonSets select their pods by a label
``name`` instead of ``app``; :func:`by_name` makes those.
"""

from typing import Any

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import ExecAction, Lifecycle, LifecycleHandler
from lightkube.models.meta_v1 import ObjectMeta

from ..api import clusterpolicy as cp
from . import build

SMALL_DAEMON: cp.JSON = {"limits": {"memory": "200Mi"}, "requests": {"cpu": "100m", "memory": "200Mi"}}
"""Resources of the VFIO and CC managers while the policy sets none."""


def on(spec: cp.ClusterPolicySpec, switch: bool | None) -> bool:
    """A sandbox operand runs: sandbox workloads are on, and so is its own switch."""
    return build.on(spec.sandboxWorkloads.enabled) and build.on(switch)


def kata(spec: cp.ClusterPolicySpec) -> bool:
    """Virtual machines are made by Kata; anything else, unset included, means KubeVirt."""
    return spec.sandboxWorkloads.mode == "kata"


def default_workload(spec: cp.ClusterPolicySpec) -> str:
    """The workload configuration of nodes without a label of their own."""
    return spec.sandboxWorkloads.defaultWorkload or "container"


def pre_stop(*command: str) -> Lifecycle:
    """A command that runs in the container before it is stopped."""
    return Lifecycle(preStop=LifecycleHandler(exec=ExecAction(command=list(command))))


def by_name(spec: cp.ClusterPolicySpec, *, name: str, **parts: Any) -> DaemonSet:
    """:func:`build.daemon_set` whose pods carry and are selected by ``name: <name>``; the object keeps ``app``."""
    selector = {"name": name}
    made = build.daemon_set(spec, name=name, labels=selector, selector=selector, **parts)
    _drop_label(made.metadata, "name")
    _drop_label(made.spec.template.metadata if made.spec else None, "app")
    return made


def _drop_label(metadata: ObjectMeta | None, key: str) -> None:
    labels = (metadata.labels if metadata else None) or {}
    labels.pop(key, None)
