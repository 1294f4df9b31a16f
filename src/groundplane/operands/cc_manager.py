"""State ``state-cc-manager``: switch GPUs into and out of confidential-computing mode.

Source: contracts/control-plane.md 4.1, 4.3 and 4.4. Its SecurityContextConstraints bear its own name (NVIDIA's
operator gives them the VFIO manager's, so that the two overwrite each other).
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet

from ..api import clusterpolicy as cp
from ..api import names
from . import build, images, rbac, sandbox
from .facts import ClusterFacts

STATE: Final = "state-cc-manager"
NAME: Final = "nvidia-cc-manager"
READY_FILE: Final = f"{names.VALIDATIONS_DIR}/.cc-manager-ctr-ready"

_ENV: Final = ("NODE_NAME<-spec.nodeName", "NVIDIA_VISIBLE_DEVICES=void")


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """Sandbox workloads and the section are on, and virtual machines are Kata's."""
    return sandbox.on(spec, spec.ccManager.enabled) and sandbox.kata(spec)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(NAME, facts), _daemon_set(spec, facts))]


def _daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.ccManager
    variables = build.env(*_ENV)
    if section.defaultMode:
        build.set_all(variables, f"DEFAULT_CC_MODE={section.defaultMode}")
    build.user_env(variables, section.env)
    manager = build.container(
        NAME,
        images.resolve(section, "spec.ccManager", "CC_MANAGER_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        args=section.args or (),
        env=variables,
        mounts=build.mounts("host-sys:/sys", "run-nvidia:/run/nvidia"),
        security="S0",
        lifecycle=sandbox.pre_stop("/bin/rm", "-f", READY_FILE),
        resources=sandbox.SMALL_DAEMON,
    )
    return sandbox.by_name(
        spec,
        name=NAME,
        account=NAME,
        node_selector={names.DEPLOY_CC_MANAGER: "true"},
        host_network=build.on(section.hostNetwork),
        grace_period_s=30,
        containers=[manager],
        volumes=build.host_volumes("host-sys=/sys(D)", "run-nvidia=/run/nvidia(DC)"),
        pull_secrets=build.secrets_of(section),
        resources=section.resources,
    )
