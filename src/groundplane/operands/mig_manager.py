"""State ``state-mig-manager``: partition MIG-capable GPUs as a node's label asks.

Source: contracts/control-plane.md 4.1, 4.3, 4.4, 9.9 and 9.10.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import EnvVar, Volume

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from . import build, images, mig_layouts, rbac, scripts
from .facts import ClusterFacts

STATE: Final = "state-mig-manager"
NAME: Final = "nvidia-mig-manager"
ENTRYPOINT: Final = "nvidia-mig-manager-entrypoint"
DEFAULT_LAYOUTS: Final = "default-mig-parted-config"
DEFAULT_CLIENTS: Final = "default-gpu-clients"

ENV: Final = (
    "NODE_NAME<-spec.nodeName",
    "POD_NAME<-metadata.name",
    "POD_NAMESPACE<-metadata.namespace",
    "GPU_CLIENTS_FILE=/gpu-clients/clients.yaml",
    "DEFAULT_GPU_CLIENTS_NAMESPACE<-metadata.namespace",
)
CUSTOM_LAYOUTS_ENV: Final = "CONFIG_FILE=/mig-parted-config/config.yaml"
DEFAULT_LAYOUTS_ENV: Final = "DEFAULT_CONFIG_FILE=/mig-parted-config/config-default.yaml"
MOUNTS: Final = (
    "nvidia-mig-manager-entrypoint:/bin/entrypoint.sh:ro sub=entrypoint.sh",
    "run-nvidia-validations:/run/nvidia/validations",
    "host-sys:/sys",
    "host-root:/host:H",
    "gpu-clients:/gpu-clients",
    "mig-parted-config:/mig-parted-config",
    "driver-install-dir:/driver-root:H",
    "cdi-root:/var/run/cdi",
)
HOST_VOLUMES: Final = (
    "host-sys=/sys(D)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "driver-install-dir=/run/nvidia/driver(DC)",
    "host-root=/(-)",
)
CDI_VOLUME: Final = "cdi-root=/var/run/cdi(DC)"

HOST_CLIENTS: Final = (
    "nvsm",
    "nvsm-mqtt",
    "nvsm-core",
    "nvsm-api-gateway",
    "nvsm-notifier",
    "nv_peer_mem",
    "nvidia-dcgm",
    "dcgm",
    "dcgm-exporter",
)
"""systemd services of the host that hold GPUs open and are stopped while MIG changes."""


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """On unless switched off."""
    return build.on(spec.migManager.enabled, True)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, the default ConfigMaps that the policy does not replace, the entrypoint and the DaemonSet."""
    section = spec.migManager
    made = rbac.objects(NAME, facts)
    if not section.config.name:
        made.append(build.config_map(DEFAULT_LAYOUTS, {"config.yaml": mig_layouts.document()}))
    if not section.gpuClientsConfig.name:
        made.append(build.config_map(DEFAULT_CLIENTS, {"clients.yaml": clients()}))
    made.append(build.config_map(ENTRYPOINT, {"entrypoint.sh": scripts.MIG_MANAGER_ENTRYPOINT}, {"app": NAME}))
    made.append(_daemon_set(spec, facts))
    return [build.finish(each, STATE, facts) for each in made]


def clients() -> str:
    """The default list of GPU clients on the host, as YAML."""
    return "version: v1\nsystemd-services:\n" + "".join(f"  - {name}.service\n" for name in HOST_CLIENTS)


def environment(spec: ClusterPolicySpec) -> list[EnvVar]:
    """The MIG manager's variables; the user's come last and win."""
    variables = build.env(*ENV)
    build.set_all(variables, CUSTOM_LAYOUTS_ENV if spec.migManager.config.name else DEFAULT_LAYOUTS_ENV)
    if build.cdi_on(spec):
        build.set_env(variables, "CDI_ENABLED", "true")
        build.hook_env(variables, spec)
    build.user_env(variables, spec.migManager.env)
    return variables


def _volumes(spec: ClusterPolicySpec) -> list[Volume]:
    section = spec.migManager
    custom = section.config.name
    layouts = None if custom else {"config.yaml": "config-default.yaml"}
    return [
        build.config_volume(ENTRYPOINT, mode=0o700),
        *build.host_volumes(*HOST_VOLUMES),
        build.config_volume("gpu-clients", section.gpuClientsConfig.name or DEFAULT_CLIENTS, mode=0o644),
        build.config_volume("mig-parted-config", custom or DEFAULT_LAYOUTS, mode=0o644, items=layouts),
        *build.host_volumes(CDI_VOLUME),
    ]


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.migManager
    main = build.container(
        NAME,
        images.resolve(section, "spec.migManager", "MIG_MANAGER_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        command=("/bin/sh", "-c"),
        args=section.args or ("/bin/entrypoint.sh",),
        env=environment(spec),
        mounts=build.mounts(*MOUNTS),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=NAME,
        template_annotations=build.nri_annotation(spec, NAME),
        node_selector={names.DEPLOY_MIG_MANAGER: "true"},
        init=[build.toolkit_wait(spec, facts, "run-nvidia-validations:/run/nvidia/validations:H")],
        containers=[main],
        volumes=_volumes(spec),
        pull_secrets=build.secrets_of(section, spec.validator),
        resources=section.resources,
        host_pid=True,
        host_ipc=True,
        host_network=build.on(section.hostNetwork),
        runtime_class_name=build.gpu_runtime_class(spec, facts),
    )
