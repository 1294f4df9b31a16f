"""State ``state-operator-metrics``: how Prometheus reaches the operator itself.

Source: contracts/control-plane.md 4.1, 5.5 and 5.6. The ServiceMonitor exists whenever its CRD does:
``operator.metrics.serviceMonitor`` edits it, and ``enabled: false`` there is not honoured.
"""

from typing import Final

from lightkube.models.core_v1 import ServicePort
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, Role, RoleBinding, RoleRef, Subject

from ..api.clusterpolicy import ClusterPolicySpec
from . import build, monitoring
from .facts import ClusterFacts
from .rbac import RBAC_GROUP

STATE: Final = "state-operator-metrics"
NAME: Final = "gpu-operator"
PROMETHEUS: Final = "prometheus-k8s"
RULE: Final = "nvidia-gpu-operator-metrics"

_TOOLKIT: Final = "gpu_operator_openshift_driver_toolkit"
_STATUS: Final = "gpu_operator_reconciliation_status"

ALERTS: Final = (
    monitoring.Alert(
        "GPUOperatorReconciliationFailed",
        f"{_STATUS} != 1",
        60,
        "The GPU operator has not finished a pass for an hour",
        "Operands may be missing on some GPU nodes. The ClusterPolicy's conditions name the states concerned.",
    ),
    monitoring.Alert(
        "GPUOperatorReconciliationFailedNfdLabelsMissing",
        f"{_STATUS} != 1 and gpu_operator_reconciliation_has_nfd_labels == 0",
        30,
        "The GPU operator finds no labels of node feature discovery",
        "Without them no node is known to have a GPU. Check that node feature discovery runs.",
    ),
    monitoring.Alert(
        "GPUOperatorOpenshiftDriverToolkitEnabledNfdTooOld",
        f"{_TOOLKIT}_enabled == -1 and {_TOOLKIT}_nfd_too_old == 1",
        30,
        "The OpenShift driver toolkit cannot be used: node feature discovery is too old",
        "GPU nodes carry no OSTREE_VERSION label. Upgrade node feature discovery.",
    ),
    monitoring.Alert(
        "GPUOperatorOpenshiftDriverToolkitEnabledImageStreamMissing",
        f"{_TOOLKIT}_enabled == -1 and {_TOOLKIT}_imagestream_missing == 1",
        30,
        "The OpenShift driver toolkit cannot be used: its imagestream is missing",
        "This OpenShift version has no imagestream driver-toolkit in namespace openshift.",
    ),
    monitoring.Alert(
        "GPUOperatorOpenshiftDriverToolkitEnabledImageStreamBroken",
        f"{_TOOLKIT}_enabled == 1 and {_TOOLKIT}_imagestream_broken == 1",
        30,
        "The imagestream of the OpenShift driver toolkit is broken",
        "Its tags hold no image, which an OpenShift upgrade can cause. Re-import the imagestream.",
    ),
    monitoring.Alert(
        "GPUOperatorOpenshiftDriverToolkitEnabledImageTagsMissing",
        f"{_TOOLKIT}_enabled == 1 and {_TOOLKIT}_rhcos_tags_missing == 1",
        30,
        "The OpenShift driver toolkit has no image for some RHCOS version",
        "Drivers cannot be built on nodes of that version. Re-import the imagestream or finish the upgrade.",
    ),
    monitoring.Alert(
        "GPUOperatorDriverAutoUpgradeFailures",
        "gpu_operator_driver_auto_upgrade_enabled == 1 and gpu_operator_nodes_upgrades_failed > 0",
        30,
        "A driver upgrade has failed on at least one node",
        "Look for nodes labelled nvidia.com/gpu-driver-upgrade-state=upgrade-failed.",
    ),
)


def enabled(_spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """Always on."""
    return True


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """The metrics Service, its ServiceMonitor, and on OpenShift the monitoring stack's rights and alerts."""
    made: list[build.Model | build.Manifest] = [
        build.service(NAME, ServicePort(name="gpu-operator-metrics", port=8080, targetPort=8080, protocol="TCP"))
    ]
    if facts.service_monitor_crd:
        made.append(
            monitoring.service_monitor(
                NAME,
                port="gpu-operator-metrics",
                job_label="operator",
                namespace=facts.namespace,
                settings=spec.operator.metrics.serviceMonitor,
            )
        )
    if facts.openshift:
        group = monitoring.alert_group("gpu-operator", ALERTS)
        made += [*_prometheus_rights(), monitoring.prometheus_rule(RULE, NAME, [group])]
    return [build.finish(each, STATE, facts) for each in made]


def _prometheus_rights() -> list[build.Model]:
    return [
        Role(
            metadata=ObjectMeta(name=PROMETHEUS, labels={"app": NAME}),
            rules=[
                PolicyRule(apiGroups=[""], resources=["services", "endpoints", "pods"], verbs=["get", "list", "watch"])
            ],
        ),
        RoleBinding(
            metadata=ObjectMeta(name=PROMETHEUS, labels={"app": NAME}),
            roleRef=RoleRef(apiGroup=RBAC_GROUP, kind="Role", name=PROMETHEUS),
            subjects=[Subject(kind="ServiceAccount", name=PROMETHEUS, namespace="openshift-monitoring")],
        ),
    ]
