"""State ``state-vgpu-device-manager``: create the vGPU devices that a node's configuration asks for.

Source: contracts/control-plane.md 4.1, 4.3 and 4.4. The layouts it can choose from are in vgpu_profiles.py, or in the
ConfigMap that the policy names.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import EnvVar

from ..api import clusterpolicy as cp
from ..api import names
from . import build, images, rbac, sandbox, scripts, vgpu_profiles
from .facts import ClusterFacts

STATE: Final = "state-vgpu-device-manager"
NAME: Final = "nvidia-vgpu-device-manager"
DEFAULT_CONFIG: Final = "default-vgpu-devices-config"

_ENV: Final = (
    "NAMESPACE<-metadata.namespace",
    "NODE_NAME<-spec.nodeName",
    "CONFIG_FILE=/vgpu-config/config.yaml",
)
_MOUNTS: Final = (
    "vgpu-config:/vgpu-config",
    "host-sys:/sys",
    "host-root:/host:H",
    "driver-install-dir:/driver-root:H",
)
_VOLUMES: Final = (
    "host-sys=/sys(D)",
    "host-root=/(-)",
    "driver-install-dir=/run/nvidia/driver(DC)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
)

# Written by the validator for a vGPU manager in a container, or for one that was installed on the host.
_MANAGER_FILES: Final = ("vgpu-manager-ready", "host-vgpu-manager-ready")
_MANAGER_THERE: Final = " || ".join(f"[ -f {names.VALIDATIONS_DIR}/{file} ]" for file in _MANAGER_FILES)
_WAIT: Final = (
    f"{scripts.STOP_WHEN_ASKED}; until {_MANAGER_THERE}; do echo 'waiting for the NVIDIA vGPU manager'; sleep 5; done"
)


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """Sandbox workloads and the section are on."""
    return sandbox.on(spec, spec.vgpuDeviceManager.enabled)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, the built-in layouts unless the policy names its own, and the DaemonSet."""
    made = [*rbac.objects(NAME, facts)]
    if not spec.vgpuDeviceManager.config.name:
        made.append(build.config_map(DEFAULT_CONFIG, {"config.yaml": vgpu_profiles.config_yaml(facts.release)}))
    made.append(_daemon_set(spec, facts))
    return [build.finish(each, STATE, facts) for each in made]


def _daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.vgpuDeviceManager
    wait = build.validation(
        spec,
        facts,
        "vgpu-manager-validation",
        script=_WAIT,
        mounts=build.mounts("run-nvidia-validations:/run/nvidia/validations:B"),
    )
    manager = build.container(
        NAME,
        images.resolve(section, "spec.vgpuDeviceManager", "VGPU_DEVICE_MANAGER_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        args=section.args or (),
        env=_env(section),
        mounts=build.mounts(*_MOUNTS),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=NAME,
        annotations={names.OPENSHIFT_SCC: NAME},
        node_selector={names.DEPLOY_VGPU_DEVICE_MANAGER: "true"},
        host_network=build.on(section.hostNetwork),
        init=[wait],
        containers=[manager],
        volumes=[
            build.config_volume("vgpu-config", section.config.name or DEFAULT_CONFIG),
            *build.host_volumes(*_VOLUMES),
        ],
        pull_secrets=build.secrets_of(spec.validator, section),
        resources=section.resources,
    )


def _env(section: cp.VgpuDeviceManagerSpec) -> list[EnvVar]:
    """The user's variables, then the default layout, which only the section's own field can set."""
    variables = build.env(*_ENV)
    build.user_env(variables, section.env)
    build.set_all(variables, f"DEFAULT_VGPU_CONFIG={section.config.default or 'default'}")
    return variables
