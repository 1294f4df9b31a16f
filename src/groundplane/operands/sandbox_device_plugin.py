"""State ``state-sandbox-device-plugin``: offer passed-through GPUs and vGPUs to KubeVirt's virtual machines.

Source: contracts/control-plane.md 4.1, 4.3. Each init container waits for the layer below, and only on nodes whose
workload configuration has that layer (the validator's ``workload-type`` file says which).
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import Container

from ..api import clusterpolicy as cp
from ..api import names
from . import build, images, rbac, sandbox
from .facts import ClusterFacts

STATE: Final = "state-sandbox-device-plugin"
ACCOUNT: Final = "nvidia-sandbox-device-plugin"
NAME: Final = "nvidia-sandbox-device-plugin-daemonset"
CONTAINER: Final = "nvidia-sandbox-device-plugin-ctr"

_ENV: Final = ("NODE_NAME<-spec.nodeName", "POD_NAMESPACE<-metadata.namespace")
_MOUNTS: Final = ("device-plugin:/var/lib/kubelet/device-plugins", "vfio:/dev/vfio", "cdi-root:/var/run/cdi")
_VOLUMES: Final = (
    "device-plugin=/var/lib/kubelet/device-plugins(-)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "vfio=/dev/vfio(-)",
    "cdi-root=/var/run/cdi(DC)",
)


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """Sandbox workloads and the section are on, and virtual machines are KubeVirt's."""
    return sandbox.on(spec, spec.sandboxDevicePlugin.enabled) and not sandbox.kata(spec)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(ACCOUNT, facts), _daemon_set(spec, facts))]


def _daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.sandboxDevicePlugin
    variables = build.env(*_ENV)
    build.user_env(variables, section.env)
    plugin = build.container(
        CONTAINER,
        images.resolve(section, "spec.sandboxDevicePlugin", "SANDBOX_DEVICE_PLUGIN_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        args=section.args or (),
        env=variables,
        mounts=build.mounts(*_MOUNTS),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=ACCOUNT,
        annotations={names.OPENSHIFT_SCC: ACCOUNT},
        node_selector={names.DEPLOY_SANDBOX_DEVICE_PLUGIN: "true"},
        host_network=build.on(section.hostNetwork),
        init=[
            layer_wait(spec, facts, "vfio-pci", workload="vm-passthrough"),
            layer_wait(spec, facts, "vgpu-devices", workload="vm-vgpu"),
        ],
        containers=[plugin],
        volumes=build.host_volumes(*_VOLUMES),
        pull_secrets=build.secrets_of(spec.validator, section),
        resources=section.resources,
    )


def layer_wait(spec: cp.ClusterPolicySpec, facts: ClusterFacts, layer: str, *, workload: str) -> Container:
    """``<layer>-validation``: wait until the layer is validated on a node with that workload configuration."""
    kind = f"{names.VALIDATIONS_DIR}/workload-type"
    script = (
        f"{build.wait_for(kind, what='the workload configuration')}; "
        f'if [ "$(cat {kind})" != "{workload}" ]; then echo \'this node does not need {layer}\'; exit 0; fi; '
        f"{build.wait_for(f'{names.VALIDATIONS_DIR}/{layer}-ready', what=layer)}"
    )
    return build.validation(
        spec,
        facts,
        f"{layer}-validation",
        script=script,
        env=build.env("NVIDIA_VISIBLE_DEVICES=void"),
        mounts=build.mounts("run-nvidia-validations:/run/nvidia/validations:H"),
    )
