"""State ``state-node-status-exporter``: metrics of what the validator found on each node.

Source: contracts/control-plane.md 4.1, 4.3, 9.14; alerts 5.6.
"""

from typing import Final

from lightkube.models.core_v1 import ContainerPort, ServicePort

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from . import build, images, monitoring, rbac
from .facts import ClusterFacts

STATE: Final = "state-node-status-exporter"
NAME: Final = "nvidia-node-status-exporter"

ENV: Final = (
    "NVIDIA_VISIBLE_DEVICES=void",
    "COMPONENT=metrics",
    "METRICS_PORT=8000",
    "NODE_NAME<-spec.nodeName",
    "OPERATOR_NAMESPACE<-metadata.namespace",
)
MOUNTS: Final = ("run-nvidia:/run/nvidia:H", "host-root:/host:ro:H")
VOLUMES: Final = ("run-nvidia=/run/nvidia(D)", "host-root=/(-)")

ALERTS: Final = (
    monitoring.Alert(
        "GPUOperatorNodeDeploymentFailed",
        "gpu_operator_node_device_plugin_devices_total == 0",
        30,
        "A GPU node offers no GPU",
        "Node {{ $labels.node }} has had no GPU to offer for 30 minutes. Look at the pods of "
        "nvidia-device-plugin-daemonset and nvidia-operator-validator there: the first that is not ready says why.",
    ),
    monitoring.Alert(
        "GPUOperatorNodeDeploymentDriverFailed",
        "gpu_operator_node_driver_validation == 0",
        30,
        "The driver of a GPU node does not work",
        "On node {{ $labels.node }} the driver has not been valid for 30 minutes. The log of "
        "nvidia-node-status-exporter there says what fails; then look at the driver's pod, or at nvidia-smi and the "
        "kernel's log on the node.",
    ),
    monitoring.Alert(
        "GPUOperatorNodeDeploymentToolkitFailed",
        "gpu_operator_node_toolkit_ready == 0 and gpu_operator_node_driver_validation == 1",
        30,
        "The container toolkit of a GPU node does not work",
        "On node {{ $labels.node }} the driver works but the container toolkit has not for 30 minutes. Look at the "
        "pod of nvidia-container-toolkit-daemonset there, and at the init container toolkit-validation of the "
        "validator.",
    ),
    monitoring.Alert(
        "GPUOperatorNodeDeploymentCudaFailed",
        "gpu_operator_node_cuda_ready == 0 and gpu_operator_node_driver_validation == 1",
        30,
        "CUDA does not work on a GPU node",
        "On node {{ $labels.node }} the driver works but no CUDA program has run for 30 minutes. The log of the pod "
        "nvidia-cuda-validator there names CUDA's error.",
    ),
)


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """Off unless switched on."""
    return build.on(spec.nodeStatusExporter.enabled)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, Service, ServiceMonitor, DaemonSet, and on OpenShift the alerts."""
    port = ServicePort(name="node-status", port=8000, targetPort=8000, protocol="TCP")
    made = rbac.objects(NAME, facts)
    made.append(build.service(NAME, port))
    if facts.service_monitor_crd:
        made.append(
            monitoring.service_monitor(NAME, port="node-status", job_label="node-status", namespace=facts.namespace)
        )
    made.append(_daemon_set(spec, facts))
    if facts.openshift:
        group = monitoring.alert_group("gpu-operator-node-status", ALERTS)
        made.append(monitoring.prometheus_rule(f"{NAME}-alerts", NAME, [group]))
    return [build.finish(each, STATE, facts) for each in made]


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> build.Model:
    section = spec.nodeStatusExporter
    variables = build.env(*ENV)
    build.user_env(variables, section.env)
    main = build.container(
        NAME,
        images.resolve(section, "spec.nodeStatusExporter", "VALIDATOR_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        command=("nvidia-validator",),
        args=section.args or (),
        env=variables,
        mounts=build.mounts(*MOUNTS),
        ports=[ContainerPort(name="node-status", containerPort=8000)],
        security="U0",
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=NAME,
        annotations={names.OPENSHIFT_SCC: NAME},
        node_selector={names.DEPLOY_NODE_STATUS_EXPORTER: "true"},
        containers=[main],
        volumes=build.host_volumes(*VOLUMES),
        pull_secrets=build.secrets_of(section),
        resources=section.resources,
        host_network=build.on(section.hostNetwork),
    )
