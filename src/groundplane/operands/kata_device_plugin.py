"""State ``state-kata-device-plugin``: offer passed-through GPUs to Kata's virtual machines.

Source: contracts/control-plane.md 4.1, 4.3; the counterpart of sandbox_device_plugin.py for mode ``kata``.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet

from ..api import clusterpolicy as cp
from ..api import names
from . import build, images, rbac, sandbox, sandbox_device_plugin
from .facts import ClusterFacts

STATE: Final = "state-kata-device-plugin"
ACCOUNT: Final = "nvidia-kata-sandbox-device-plugin"
NAME: Final = "nvidia-kata-sandbox-device-plugin-daemonset"
CONTAINER: Final = "nvidia-kata-sandbox-device-plugin-ctr"

_ENV: Final = (
    "NODE_NAME<-spec.nodeName",
    "POD_NAMESPACE<-metadata.namespace",
    "POD_SERVICE_ACCOUNT<-spec.serviceAccountName",
)
_MOUNTS: Final = ("device-plugin:/var/lib/kubelet/device-plugins", "cdi-root:/var/run/cdi")
_VOLUMES: Final = (
    "device-plugin=/var/lib/kubelet/device-plugins(-)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "cdi-root=/var/run/cdi(DC)",
)


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """Sandbox workloads and the section are on, and virtual machines are Kata's."""
    return sandbox.on(spec, spec.kataSandboxDevicePlugin.enabled) and sandbox.kata(spec)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(ACCOUNT, facts), _daemon_set(spec, facts))]


def _daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.kataSandboxDevicePlugin
    variables = build.env(*_ENV)
    build.user_env(variables, section.env)
    plugin = build.container(
        CONTAINER,
        images.resolve(
            section, "spec.kataSandboxDevicePlugin", "KATA_SANDBOX_DEVICE_PLUGIN_IMAGE", facts.default_images
        ),
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
        node_selector={names.DEPLOY_KATA_SANDBOX_DEVICE_PLUGIN: "true"},
        host_network=build.on(section.hostNetwork),
        init=[sandbox_device_plugin.layer_wait(spec, facts, "vfio-pci", workload="vm-passthrough")],
        containers=[plugin],
        volumes=build.host_volumes(*_VOLUMES),
        pull_secrets=build.secrets_of(spec.validator, section),
        resources=section.resources,
    )
