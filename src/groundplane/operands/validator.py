"""State ``state-operator-validation``: prove, layer by layer, that a node can run CUDA programs.

Source: contracts/control-plane.md 4.3, 4.4 and 9.4. The init containers are the checks, in order; the
main container only holds the pod, so that its readiness says "this node is validated".
"""

from typing import Final

import msgspec
from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import Container, EnvVar, ExecAction, Lifecycle, LifecycleHandler

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec, ComponentEnv
from . import build, images, rbac, scripts
from .facts import ClusterFacts

STATE: Final = "state-operator-validation"
NAME: Final = "nvidia-operator-validator"

VALIDATIONS_MOUNT: Final = "run-nvidia-validations:/run/nvidia/validations:B"


class Check(msgspec.Struct, frozen=True):
    """One init container: which component it proves, its variables, mounts and security flags."""

    component: str
    env: tuple[str, ...]
    mounts: tuple[str, ...] = (VALIDATIONS_MOUNT,)
    security: str = "U0"


CHECKS: Final = (
    Check(
        "driver",
        env=("WITH_WAIT=true", "COMPONENT=driver", "OPERATOR_NAMESPACE<-metadata.namespace"),
        mounts=(
            "host-root:/host:ro:H",
            "driver-install-dir:/run/nvidia/driver:H",
            VALIDATIONS_MOUNT,
            "host-dev-char:/host-dev-char",
        ),
        security="U0 S0",
    ),
    Check("toolkit", env=("NVIDIA_VISIBLE_DEVICES=all", "WITH_WAIT=false", "COMPONENT=toolkit")),
    Check(
        "cuda",
        env=(
            "WITH_WAIT=false",
            "COMPONENT=cuda",
            "NODE_NAME<-spec.nodeName",
            "OPERATOR_NAMESPACE<-metadata.namespace",
        ),
    ),
    Check(
        "plugin",
        env=(
            "COMPONENT=plugin",
            "WITH_WAIT=false",
            "WITH_WORKLOAD=false",
            "MIG_STRATEGY=",
            "NODE_NAME<-spec.nodeName",
            "OPERATOR_NAMESPACE<-metadata.namespace",
        ),
    ),
)

VOLUMES: Final = (
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "driver-install-dir=/run/nvidia/driver(-)",
    "host-root=/(-)",
    "host-dev-char=/dev/char(-)",
)


def enabled(_spec: ClusterPolicySpec, _facts: ClusterFacts) -> bool:
    """Always on."""
    return True


def render(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(NAME, facts), _daemon_set(spec, facts))]


def _daemon_set(spec: ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.validator
    labels = {names.PART_OF_LABEL: "gpu-operator"}
    variables: list[EnvVar] = []
    build.user_env(variables, section.env)
    main = build.container(
        NAME,
        build.validator_image(spec, facts),
        pull=section.imagePullPolicy,
        command=("sh", "-c"),
        args=section.args or (scripts.VALIDATED,),
        env=variables,
        mounts=build.mounts(VALIDATIONS_MOUNT),
        security="U0",
        lifecycle=Lifecycle(
            preStop=LifecycleHandler(exec=ExecAction(command=["sh", "-c", scripts.FORGET_VALIDATIONS]))
        ),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=NAME,
        labels=labels,
        selector={"app": NAME, **labels},
        template_annotations=build.nri_annotation(spec, "toolkit-validation"),
        node_selector={names.DEPLOY_OPERATOR_VALIDATOR: "true"},
        init=_checks(spec, facts),
        containers=[main],
        volumes=build.host_volumes(*VOLUMES),
        pull_secrets=build.secrets_of(section),
        resources=section.resources,
        host_network=build.on(section.hostNetwork),
        runtime_class_name=build.gpu_runtime_class(spec, facts),
    )


def _checks(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[Container]:
    section = spec.validator
    workload = build.env(*_workload_env(spec, facts))
    settings: dict[str, tuple[ComponentEnv, list[EnvVar]]] = {
        "driver": (section.driver, []),
        "toolkit": (section.toolkit, []),
        "cuda": (section.cuda, workload),
        "plugin": (section.plugin, workload),
    }
    if not build.on(spec.devicePlugin.enabled, True):
        del settings["plugin"]
    checks = []
    for check in CHECKS:
        if check.component in settings:
            user, further = settings[check.component]
            variables = build.env(*check.env)
            if check.component == "plugin":
                build.set_env(variables, "MIG_STRATEGY", spec.mig.strategy or "")
            checks.append(
                build.validation(
                    spec,
                    facts,
                    f"{check.component}-validation",
                    env=[*variables, *further],
                    component=user,
                    mounts=build.mounts(*check.mounts),
                    security=check.security,
                )
            )
    return checks


def _workload_env(spec: ClusterPolicySpec, facts: ClusterFacts) -> list[str]:
    """How the pods that a check starts are to run."""
    section = spec.validator
    rows = [
        f"VALIDATOR_IMAGE={build.validator_image(spec, facts)}",
        f"VALIDATOR_IMAGE_PULL_POLICY={images.pull_policy(section.imagePullPolicy)}",
    ]
    if section.imagePullSecrets:
        rows.append(f"VALIDATOR_IMAGE_PULL_SECRETS={','.join(section.imagePullSecrets)}")
    if runtime_class := build.gpu_runtime_class(spec, facts):
        rows.append(f"VALIDATOR_RUNTIME_CLASS={runtime_class}")
    return rows
