"""State ``state-vfio-manager``: bind GPUs to ``vfio-pci`` so that whole GPUs can go to virtual machines.

Source: contracts/control-plane.md 4.1, 4.3. Release 26.3.3 calls the program of its preStop hook without a shell
and always fails there; both releases here use the shell.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet

from ..api import clusterpolicy as cp
from ..api import names
from . import build, driver_manager, images, rbac, sandbox, scripts
from .facts import ClusterFacts

STATE: Final = "state-vfio-manager"
NAME: Final = "nvidia-vfio-manager"

_MOUNTS: Final = ("host-sys:/sys", "host-lib-modules:/lib/modules:ro", "host-root:/host")
_VOLUMES: Final = (
    "host-sys=/sys(D)",
    "host-lib-modules=/lib/modules(D)",
    "run-nvidia=/run/nvidia(DC)",
    "host-root=/(-)",
)


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """Sandbox workloads and the section are on."""
    return sandbox.on(spec, spec.vfioManager.enabled)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSet."""
    return [build.finish(each, STATE, facts) for each in (*rbac.objects(NAME, facts), _daemon_set(spec, facts))]


def _daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> DaemonSet:
    section = spec.vfioManager
    variables = build.env("HOST_ROOT=/host")
    build.user_env(variables, section.env)
    manager = build.container(
        NAME,
        images.resolve(section, "spec.vfioManager", "VFIO_MANAGER_IMAGE", facts.default_images),
        pull=section.imagePullPolicy,
        command=("/bin/sh", "-c"),
        args=section.args or (f"{scripts.DONE_WHEN_ASKED}; vfio-manage bind --all && {scripts.HOLD}",),
        env=variables,
        mounts=build.mounts(*_MOUNTS),
        security="S0",
        lifecycle=sandbox.pre_stop("/bin/sh", "-c", "vfio-manage unbind --all"),
        resources=sandbox.SMALL_DAEMON,
    )
    clear_node = driver_manager.container(
        section.driverManager,
        "spec.vfioManager.driverManager",
        facts,
        env=driver_manager.VM_HOST,
        resources=section.resources,
    )
    return sandbox.by_name(
        spec,
        name=NAME,
        account=NAME,
        node_selector={names.DEPLOY_VFIO_MANAGER: "true"},
        host_network=build.on(section.hostNetwork),
        grace_period_s=30,
        init=[clear_node],
        containers=[manager],
        volumes=build.host_volumes(*_VOLUMES),
        pull_secrets=build.secrets_of(section.driverManager, section),
        resources=section.resources,
    )
