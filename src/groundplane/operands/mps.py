"""State ``state-mps-control-daemon``: share GPUs by CUDA MPS on nodes that are configured for it.

Source: contracts/control-plane.md 4.3, 4.4 and 9.6. The pod runs under the device plugin's account; an
account of its own exists all the same, as in NVIDIA's operator, for those who bind to its name.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from . import build, device_plugin, plugin_config, rbac
from .facts import ClusterFacts

STATE: Final = "state-mps-control-daemon"
NAME: Final = "nvidia-device-plugin-mps-control-daemon"

ENV: Final = (
    "NODE_NAME<-spec.nodeName",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
)


def enabled(spec: ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """On with the device plugin."""
    return device_plugin.enabled(spec, facts)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(NAME, facts), _daemon_set(spec, facts))]


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.devicePlugin
    image = plugin_config.plugin_image(spec, facts)
    config = plugin_config.config_manager(spec, facts, "/usr/bin/mps-control-daemon", section.resources)
    variables = build.env(*ENV)
    if config:
        build.set_env(variables, "CONFIG_FILE", plugin_config.CONFIG_FILE)
    plugin_config.mig_env(variables, spec)
    main = build.container(
        "mps-control-daemon-ctr",
        image,
        pull=section.imagePullPolicy,
        command=("mps-control-daemon",),
        env=variables,
        mounts=build.mounts("mps-shm:/dev/shm", "mps-root:/mps", *(plugin_config.CONFIG_MOUNTS if config else ())),
    )
    mount_shm = build.container(
        "mps-control-daemon-mounts",
        image,
        pull=section.imagePullPolicy,
        command=("mps-control-daemon", "mount-shm"),
        mounts=build.mounts("mps-root:/mps:B"),
        resources=build.init_resources(facts, section.resources),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=device_plugin.ACCOUNT,
        annotations={names.OPENSHIFT_SCC: "hostmount-anyuid"},
        template_annotations=build.nri_annotation(spec, main.name),
        node_selector={names.DEPLOY_DEVICE_PLUGIN: "true", names.MPS_CAPABLE: "true"},
        init=[build.toolkit_wait(spec, facts, "run-nvidia:/run/nvidia:H"), mount_shm, *config.init],
        containers=[main, *config.sidecars],
        volumes=[
            *build.host_volumes("run-nvidia=/run/nvidia(D)"),
            *device_plugin.mps_volumes(spec),
            *config.volumes,
        ],
        pull_secrets=build.secrets_of(section, spec.validator),
        resources=section.resources,
        host_pid=True,
        host_network=build.on(section.hostNetwork),
        runtime_class_name=build.gpu_runtime_class(spec, facts),
    )
