"""State ``state-sandbox-validation``: prove that a node can hand GPUs to virtual machines.

Source: contracts/control-plane.md 4.3 and 4.4. The init containers are the checks, in order; each skips itself when
the node's workload configuration does not need it. The CC manager is waited for only where it runs: with its
section on in mode ``kata`` (NVIDIA's operator waits for it in mode ``kubevirt`` too, where nothing deploys it).
"""

from collections.abc import Callable
from typing import Final

import msgspec
from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import Container

from ..api import clusterpolicy as cp
from ..api import names
from . import build, cc_manager, rbac, sandbox, scripts
from .facts import ClusterFacts

STATE: Final = "state-sandbox-validation"
NAME: Final = "nvidia-sandbox-validator"

_VALIDATIONS: Final = "run-nvidia-validations:/run/nvidia/validations:B"
_HOST: Final = "host-root:/host:ro:H"


class Check(msgspec.Struct, frozen=True):
    """One init container: its component, what it mounts, its security flags, and its section of the policy."""

    component: str
    mounts: tuple[str, ...]
    security: str = "U0 S0"
    section: Callable[[cp.ValidatorSpec], cp.ComponentEnv | None] = lambda _: None
    by_workload: bool = True


_CHECKS: Final = (
    Check("cc-manager", (_VALIDATIONS,), by_workload=False),
    Check("vfio-pci", (_HOST, _VALIDATIONS), section=lambda validator: validator.vfioPCI),
    Check(
        "vgpu-manager",
        (_HOST, "driver-install-path:/run/nvidia/driver:H", _VALIDATIONS),
        section=lambda validator: validator.vgpuManager,
    ),
    Check("vgpu-devices", (_VALIDATIONS,), security="U0", section=lambda validator: validator.vgpuDevices),
)
_VOLUMES: Final = (
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "driver-install-path=/run/nvidia/driver(-)",
    "host-root=/(-)",
)


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """On with sandbox workloads; there is no switch of its own."""
    return build.on(spec.sandboxWorkloads.enabled)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(NAME, facts), _daemon_set(spec, facts))]


def _daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    validator = spec.validator
    labels = {names.PART_OF_LABEL: "gpu-operator"}
    variables = build.env()
    build.user_env(variables, validator.env)
    holder = build.container(
        NAME,
        build.validator_image(spec, facts),
        pull=validator.imagePullPolicy,
        command=("sh", "-c"),
        args=validator.args or (f"{scripts.DONE_WHEN_ASKED}; echo 'all validations passed'; {scripts.HOLD}",),
        env=variables,
        mounts=build.mounts(_VALIDATIONS),
        security="U0",
        lifecycle=sandbox.pre_stop("sh", "-c", f"rm -f {names.VALIDATIONS_DIR}/*"),
    )
    return build.daemon_set(
        spec,
        name=NAME,
        account=NAME,
        labels=labels,
        selector={"app": NAME, **labels},
        node_selector={names.DEPLOY_SANDBOX_VALIDATOR: "true"},
        host_network=build.on(validator.hostNetwork),
        init=[
            _check(check, spec, facts)
            for check in _CHECKS
            if check.component != "cc-manager" or cc_manager.enabled(spec, facts)
        ],
        containers=[holder],
        volumes=build.host_volumes(*_VOLUMES),
        pull_secrets=build.secrets_of(validator),
        resources=validator.resources,
    )


def _check(check: Check, spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> Container:
    rows = ["WITH_WAIT=true", f"COMPONENT={check.component}", "NODE_NAME<-spec.nodeName"]
    if check.by_workload:
        rows.append(f"DEFAULT_GPU_WORKLOAD_CONFIG={sandbox.default_workload(spec)}")
    return build.validation(
        spec,
        facts,
        f"{check.component}-validation",
        env=build.env(*rows),
        component=check.section(spec.validator),
        mounts=build.mounts(*check.mounts),
        security=check.security,
    )
