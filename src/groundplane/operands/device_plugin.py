"""State ``state-device-plugin``: offer the node's GPUs to the kubelet.

Source: contracts/control-plane.md 4.3, 4.4 and 9.5.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import EnvVar, Volume

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from . import build, plugin_config, rbac, scripts
from .facts import ClusterFacts

STATE: Final = "state-device-plugin"
ACCOUNT: Final = "nvidia-device-plugin"
NAME: Final = "nvidia-device-plugin-daemonset"
ENTRYPOINT: Final = "nvidia-device-plugin-entrypoint"
MPS_ROOT: Final = "/run/nvidia/mps"

ENV: Final = (
    "PASS_DEVICE_SPECS=true",
    "FAIL_ON_INIT_ERROR=true",
    "DEVICE_LIST_STRATEGY=envvar",
    "DEVICE_ID_STRATEGY=uuid",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=all",
    "MPS_ROOT=/run/nvidia/mps",
)
GDS_ENV: Final = ("GDS_ENABLED=true", "MOFED_ENABLED=true")
GDRCOPY_ENV: Final = ("GDRCOPY_ENABLED=true",)
CDI_ENV: Final = (
    "CDI_ENABLED=true",
    "DEVICE_LIST_STRATEGY=cdi-annotations,cdi-cri",
    "CDI_ANNOTATION_PREFIX=cdi.k8s.io/",
)
MOUNTS: Final = (
    "nvidia-device-plugin-entrypoint:/bin/entrypoint.sh:ro sub=entrypoint.sh",
    "device-plugin:/var/lib/kubelet/device-plugins",
    "run-nvidia-validations:/run/nvidia/validations",
    "driver-install-dir:/driver-root:H",
    "host-root:/host:ro:H",
    "cdi-root:/var/run/cdi",
    "mps-shm:/dev/shm",
    "mps-root:/mps",
)
VOLUMES: Final = (
    "device-plugin=/var/lib/kubelet/device-plugins(-)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "driver-install-dir=/run/nvidia/driver(DC)",
    "host-root=/(-)",
    "cdi-root=/var/run/cdi(DC)",
)


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """On unless switched off."""
    return build.on(spec.devicePlugin.enabled, True)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, the entrypoint script and the DaemonSet."""
    script = build.config_map(ENTRYPOINT, {"entrypoint.sh": scripts.DEVICE_PLUGIN_ENTRYPOINT}, {"app": NAME})
    made = [*rbac.objects(ACCOUNT, facts), script, _daemon_set(spec, facts)]
    return [build.finish(each, STATE, facts) for each in made]


def mps_root(spec: ClusterPolicySpec) -> str:
    """Host folder that the MPS control daemon and its clients share."""
    return spec.devicePlugin.mps.root or MPS_ROOT


def mps_volumes(spec: ClusterPolicySpec) -> list[Volume]:
    """The MPS folder and the shared memory in it."""
    root = mps_root(spec)
    return [
        build.host_volume("mps-root", root, "DirectoryOrCreate"),
        build.host_volume("mps-shm", f"{root.rstrip('/')}/shm"),
    ]


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.devicePlugin
    config = plugin_config.config_manager(spec, facts, "nvidia-device-plugin", section.resources)
    main = build.container(
        "nvidia-device-plugin",
        plugin_config.plugin_image(spec, facts),
        pull=section.imagePullPolicy,
        command=("/bin/sh", "-c"),
        args=section.args or ("/bin/entrypoint.sh",),
        env=environment(spec, configured=bool(config)),
        mounts=build.mounts(*MOUNTS, *(plugin_config.CONFIG_MOUNTS if config else ())),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=ACCOUNT,
        annotations={names.OPENSHIFT_SCC: "hostmount-anyuid"},
        template_annotations=build.nri_annotation(spec, main.name),
        node_selector={names.DEPLOY_DEVICE_PLUGIN: "true"},
        init=[
            build.toolkit_wait(spec, facts, "run-nvidia-validations:/run/nvidia/validations:H"),
            *config.init,
        ],
        containers=[main, *config.sidecars],
        volumes=[
            build.config_volume(ENTRYPOINT, mode=0o700),
            *build.host_volumes(*VOLUMES),
            *mps_volumes(spec),
            *config.volumes,
        ],
        pull_secrets=build.secrets_of(section, spec.validator),
        resources=section.resources,
        host_network=build.on(section.hostNetwork),
        runtime_class_name=build.gpu_runtime_class(spec, facts),
        share_processes=bool(config),
    )


def environment(spec: ClusterPolicySpec, *, configured: bool) -> list[EnvVar]:
    """The plugin's variables; the user's come last and win."""
    variables = build.env(*ENV)
    if build.on(spec.gds.enabled):
        build.set_all(variables, *GDS_ENV)
    if build.on(spec.gdrcopy.enabled):
        build.set_all(variables, *GDRCOPY_ENV)
    if configured:
        build.set_env(variables, "CONFIG_FILE", plugin_config.CONFIG_FILE)
    plugin_config.mig_env(variables, spec)
    if build.cdi_on(spec):
        build.set_all(variables, *CDI_ENV)
        build.hook_env(variables, spec)
    build.set_env(variables, "MPS_ROOT", mps_root(spec))
    build.user_env(variables, spec.devicePlugin.env)
    return variables
