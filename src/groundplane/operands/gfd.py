"""State ``gpu-feature-discovery``: labels that say which GPUs a node has.

Source: contracts/control-plane.md 4.3, 4.4 and 9.7.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import EnvVar

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from . import build, images, plugin_config, rbac
from .facts import ClusterFacts

STATE: Final = "gpu-feature-discovery"
ACCOUNT: Final = "nvidia-gpu-feature-discovery"
NAME: Final = "gpu-feature-discovery"

ENV: Final = (
    "GFD_SLEEP_INTERVAL=60s",
    "GFD_FAIL_ON_INIT_ERROR=true",
    "NAMESPACE<-metadata.namespace",
    "NODE_NAME<-spec.nodeName",
    "POD_NAME<-metadata.name",
)
MOUNTS: Final = ("output-dir:/etc/kubernetes/node-feature-discovery/features.d", "host-sys:/sys:ro")
VOLUMES: Final = (
    "output-dir=/etc/kubernetes/node-feature-discovery/features.d(-)",
    "host-sys=/sys(-)",
    "run-nvidia=/run/nvidia(D)",
)


def enabled(spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """On unless switched off."""
    return build.on(spec.gfd.enabled, True)


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(ACCOUNT, facts), _daemon_set(spec, facts))]


def environment(spec: ClusterPolicySpec, facts: ClusterFacts, *, configured: bool) -> list[EnvVar]:
    """GFD's variables; ``mig.strategy`` comes after the user's here, and wins."""
    variables = build.env(*ENV)
    if facts.openshift:
        build.set_env(variables, "USE_NODE_FEATURE_API", "false")
    build.user_env(variables, spec.gfd.env)
    if configured:
        build.set_env(variables, "CONFIG_FILE", plugin_config.CONFIG_FILE)
    plugin_config.mig_env(variables, spec)
    return variables


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.gfd
    config = plugin_config.config_manager(spec, facts, NAME, section.resources)
    labels = {names.PART_OF_LABEL: "nvidia-gpu"}
    main = build.container(
        NAME,
        images.resolve(section, "spec.gfd", "GFD_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        command=(NAME,),
        args=section.args or (),
        env=environment(spec, facts, configured=bool(config)),
        mounts=build.mounts(*MOUNTS, *(plugin_config.CONFIG_MOUNTS if config else ())),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=ACCOUNT,
        labels=labels,
        selector={"app": NAME, **labels},
        template_annotations=build.nri_annotation(spec, NAME),
        node_selector={names.DEPLOY_GFD: "true"},
        init=[build.toolkit_wait(spec, facts, "run-nvidia:/run/nvidia:H"), *config.init],
        containers=[main, *config.sidecars],
        volumes=[*build.host_volumes(*VOLUMES), *config.volumes],
        pull_secrets=build.secrets_of(section, *((spec.devicePlugin,) if config else ()), spec.validator),
        resources=section.resources,
        host_network=build.on(section.hostNetwork),
        runtime_class_name=build.gpu_runtime_class(spec, facts),
        share_processes=bool(config),
    )
