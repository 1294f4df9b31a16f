"""What the device plugin, the MPS control daemon and GPU feature discovery have in common.

All three obey the same named configuration, which config-manager picks for the node by its label
(contracts/control-plane.md 4.4, config-manager), and the same MIG strategy.
"""

from typing import Final

import msgspec
from lightkube.models.core_v1 import Container, EnvVar, Volume

from ..api import names
from ..api.clusterpolicy import JSON, ClusterPolicySpec
from . import build, images
from .facts import ClusterFacts

CONFIG_FILE: Final = "/config/config.yaml"
CONFIG_MOUNTS: Final = ("config:/config", "available-configs:/available-configs")


def _environment(*, oneshot: bool, default: str, process: str) -> list[EnvVar]:
    return build.env(
        f"ONESHOT={str(oneshot).lower()}",
        "KUBECONFIG=",
        "NODE_NAME<-spec.nodeName",
        f"NODE_LABEL={names.DEVICE_PLUGIN_CONFIG}",
        "CONFIG_FILE_SRCDIR=/available-configs",
        f"CONFIG_FILE_DST={CONFIG_FILE}",
        f"DEFAULT_CONFIG={default}",
        f"SEND_SIGNAL={str(not oneshot).lower()}",
        f"SIGNAL={'' if oneshot else '1'}",
        f"PROCESS_TO_SIGNAL={'' if oneshot else process}",
        "FALLBACK_STRATEGIES=empty",
    )


def plugin_image(spec: ClusterPolicySpec, facts: ClusterFacts) -> str:
    """The device plugin's image, which config-manager and the MPS control daemon share."""
    return images.resolve(spec.devicePlugin, "spec.devicePlugin", "DEVICE_PLUGIN_IMAGE", facts.default_images)


class ConfigManager(msgspec.Struct, frozen=True):
    """What a pod gains when the policy names a plugin configuration; all empty when it does not."""

    init: tuple[Container, ...] = ()
    sidecars: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.init)


def config_manager(spec: ClusterPolicySpec, facts: ClusterFacts, process: str, resources: JSON | None) -> ConfigManager:
    """config-manager as init container and sidecar; ``process`` is what it signals on a change."""
    config = spec.devicePlugin.config
    if not config.name:
        return ConfigManager()
    image, pull = plugin_image(spec, facts), spec.devicePlugin.imagePullPolicy
    default = config.default or ""
    return ConfigManager(
        init=(
            build.container(
                "config-manager-init",
                image,
                pull=pull,
                command=("config-manager",),
                env=_environment(oneshot=True, default=default, process=process),
                mounts=build.mounts(*CONFIG_MOUNTS),
                security=None,
                resources=build.init_resources(facts, resources),
            ),
        ),
        sidecars=(
            build.container(
                "config-manager",
                image,
                pull=pull,
                command=("config-manager",),
                env=_environment(oneshot=False, default=default, process=process),
                mounts=build.mounts(*CONFIG_MOUNTS),
            ),
        ),
        volumes=(build.config_volume("available-configs", config.name), build.empty_volume("config")),
    )


def mig_env(variables: list[EnvVar], spec: ClusterPolicySpec) -> None:
    """Lay the MIG strategy over ``variables`` (contract 4.4, "MIG vars")."""
    strategy = spec.mig.strategy
    if strategy:
        build.set_env(variables, "MIG_STRATEGY", strategy)
    if strategy != "none":
        build.set_env(variables, "NVIDIA_MIG_MONITOR_DEVICES", "all")
