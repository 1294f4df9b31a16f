"""State ``state-kata-manager``: install Kata's runtimes on nodes and offer them as RuntimeClasses (26.3.3 only).

Since 26.7 the section is deprecated and the state is always off; what it left behind is pruned. Source:
contracts/control-plane.md 1.2, 4.1 row 19 and 4.5: the manager gets the container runtime's files as the toolkit
does, except for the drop-in file, which it does not write.
"""

from typing import Final

import msgspec
import yaml
from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import Container, ExecAction, Probe
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import RuntimeClass, Scheduling

from ..api import clusterpolicy as cp
from ..api import names
from ..api.release import Release
from . import build, driver_digest, images, prerequisites, rbac, sandbox, toolkit
from .errors import problem
from .facts import ClusterFacts

STATE: Final = "state-kata-manager"
NAME: Final = "nvidia-kata-manager"
CONFIG: Final = "nvidia-kata-manager-config"
ENTRYPOINT: Final = "nvidia-kata-manager-entrypoint"
RUNTIME_CLASS_LABEL: Final = "nvidia.com/kata-runtime-class"
CONFIG_HASH: Final = "nvidia.com/kata-manager.last-applied-hash"
ARTIFACTS_DIR: Final = "/opt/nvidia-gpu-operator/artifacts/runtimeclasses"

_SCRIPT: Final = f"""\
#!/bin/sh
set -e

# With CDI, GPUs are handed to virtual machines by their VFIO devices, so these must be there first.
if [ "${{CDI_ENABLED:-}}" = true ]; then
    {build.wait_for(f"{names.VALIDATIONS_DIR}/vfio-pci-ready", what="vfio-pci")}
fi
exec k8s-kata-manager
"""
_ENV: Final = (
    "NODE_NAME<-spec.nodeName",
    "CONFIG_FILE=/etc/kata-manager/config.yaml",
    "LOAD_KERNEL_MODULES=true",
    "CDI_ENABLED=true",
)
_MOUNTS: Final = (
    f"{ENTRYPOINT}:/bin/entrypoint.sh:ro sub=entrypoint.sh",
    f"{CONFIG}:/etc/kata-manager/config.yaml sub=config.yaml",
    "host-root:/host:ro:H",
    "cdi-root:/var/run/cdi",
    "run-nvidia-validations:/run/nvidia/validations",
)
_VOLUMES: Final = (
    "host-root=/(-)",
    "cdi-root=/var/run/cdi(DC)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
)
_RUNNING: Final = 'pid="$(cat "$KATA_ARTIFACTS_DIR/k8s-kata-manager.pid")" && [ -d "/proc/$pid" ]'


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """In 26.3.3 with sandbox workloads and the section on; never since 26.7."""
    return facts.release is Release.V26_3 and sandbox.on(spec, spec.kataManager.enabled)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights, configuration, entrypoint, DaemonSet and a RuntimeClass for each configured runtime."""
    labels = {"app": NAME}
    config = config_yaml(spec.kataManager.config)
    made = [
        *rbac.objects(NAME, facts),
        build.config_map(CONFIG, {"config.yaml": config}, labels),
        build.config_map(ENTRYPOINT, {"entrypoint.sh": _SCRIPT}, labels),
        _daemon_set(spec, facts, config),
        *_runtime_classes(spec),
    ]
    return [build.finish(each, STATE, facts) for each in made]


def artifacts_dir(config: cp.KataConfig) -> str:
    """Host folder, and the container's, for the runtimes' kernels and images."""
    return config.artifactsDir or ARTIFACTS_DIR


def config_yaml(config: cp.KataConfig) -> str:
    """The manager's file: the policy's section with its default filled in."""
    document = msgspec.to_builtins(msgspec.structs.replace(config, artifactsDir=artifacts_dir(config)))
    return yaml.safe_dump(build.without_nulls(document))


def _runtime_classes(spec: cp.ClusterPolicySpec) -> list[RuntimeClass]:
    taken = {build.runtime_class(spec), *prerequisites.CDI_CLASSES}
    made: list[RuntimeClass] = []
    for index, each in enumerate(spec.kataManager.config.runtimeClasses or ()):
        if each.name in taken:
            raise problem(
                f"spec.kataManager.config.runtimeClasses[{index}].name: RuntimeClass {each.name!r} is already used by "
                "the GPU stack or by an earlier entry: choose another name"
            )
        taken.add(each.name)
        made.append(_runtime_class(each))
    return made


def _runtime_class(wanted: cp.KataRuntimeClass) -> RuntimeClass:
    labels = {names.COMPONENT_LABEL: "gpu-operator", RUNTIME_CLASS_LABEL: "true"}
    selector = {names.DEPLOY_KATA_MANAGER: "true", **(wanted.nodeSelector or {})}
    return RuntimeClass(
        metadata=ObjectMeta(name=wanted.name, labels=labels),
        handler=wanted.name,
        scheduling=Scheduling(nodeSelector=selector),
    )


def _daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts, config: str) -> DaemonSet:
    section = spec.kataManager
    wiring = _wiring(spec, facts)
    directory = artifacts_dir(section.config)
    return sandbox.by_name(
        spec,
        name=NAME,
        account=NAME,
        template_annotations={CONFIG_HASH: str(driver_digest.fnv1a(config.encode()))},
        node_selector={names.DEPLOY_KATA_MANAGER: "true"},
        host_pid=True,
        host_network=build.on(section.hostNetwork),
        grace_period_s=30,
        containers=[_container(section, facts, wiring, directory)],
        volumes=[
            build.config_volume(ENTRYPOINT, mode=0o700),
            build.config_volume(CONFIG, mode=0o700),
            *build.host_volumes(*_VOLUMES),
            build.host_volume("kata-artifacts", directory, "DirectoryOrCreate"),
            *wiring.volumes,
        ],
        pull_secrets=build.secrets_of(section),
        resources=section.resources,
    )


def _container(section: cp.KataManagerSpec, facts: ClusterFacts, wiring: toolkit.Wiring, directory: str) -> Container:
    return build.container(
        NAME,
        images.resolve(section, "spec.kataManager", "KATA_MANAGER_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        command=("/bin/sh", "-c"),
        args=section.args or ("/bin/entrypoint.sh",),
        env=wiring.env,
        mounts=[*build.mounts(*_MOUNTS, f"kata-artifacts:{directory}"), *wiring.mounts],
        security="S0",
        readiness=Probe(exec=ExecAction(command=["sh", "-c", _RUNNING]), initialDelaySeconds=5, periodSeconds=5),
    )


def _wiring(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> toolkit.Wiring:
    """The runtime's configuration folder and socket as the toolkit gets them, without the drop-in file."""
    variables = build.env(*_ENV)
    build.set_env(variables, "KATA_ARTIFACTS_DIR", artifacts_dir(spec.kataManager.config))
    build.user_env(variables, spec.kataManager.env)
    return toolkit.wire(variables, spec, facts, where="spec.kataManager.env", drop_in=False)
