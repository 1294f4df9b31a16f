"""State ``state-vgpu-manager``: the host driver that cuts GPUs into vGPUs for virtual machines.

Source: contracts/control-plane.md 4.1 to 4.4 and 1.6, contracts/driver-lifecycle.md 6.9. With OpenShift's driver
toolkit there is one DaemonSet for each RHCOS version; driver_cleanup.py says when one may go.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import Container, Volume

from ..api import clusterpolicy as cp
from ..api import names
from . import build, driver_config, driver_extras, driver_manager, driver_pools, driver_toolkit, rbac, sandbox
from .driver_config import Attachment
from .driver_pools import Kind, Pool
from .facts import ClusterFacts

STATE: Final = "state-vgpu-manager"
ACCOUNT: Final = "nvidia-vgpu-manager"
BASE: Final = "nvidia-vgpu-manager-daemonset"
CONTAINER: Final = "nvidia-vgpu-manager-ctr"

_MOUNTS: Final = (
    "run-nvidia:/run/nvidia:B",
    "host-os-release:/host-etc/os-release",
    "vfio:/dev/vfio",
    "cgroup:/sys/fs/cgroup",
    "var-log:/var/log",
    "dev-log:/dev/log",
    "firmware-search-path:/sys/module/firmware_class/parameters/path",
    "nv-firmware:/lib/firmware",
)
# The toolkit's sidecar itself loads this driver and mounts its files, so it needs the folders for that.
_TOOLKIT_MOUNTS: Final = (
    "run-nvidia:/run/nvidia:B",
    "var-log:/var/log",
    "dev-log:/dev/log",
    "firmware-search-path:/sys/module/firmware_class/parameters/path",
    "nv-firmware:/lib/firmware",
)
_VOLUMES: Final = (
    "run-nvidia=/run/nvidia(DC)",
    "host-os-release=/etc/os-release(-)",
    "cgroup=/sys/fs/cgroup(D)",
    "vfio=/dev/vfio(D)",
    "host-root=/(-)",
    "host-sys=/sys(D)",
    "var-log=/var/log(D)",
    "dev-log=/dev/log(-)",
    "firmware-search-path=/sys/module/firmware_class/parameters/path(-)",
    "nv-firmware=/run/nvidia/driver/lib/firmware(DC)",
)


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """Sandbox workloads and the section are on, and NVIDIADriver objects do not take over."""
    return sandbox.on(spec, spec.vgpuManager.enabled) and not build.on(spec.driver.useNvidiaDriverCRD)


def pools(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[Pool]:
    """The wanted DaemonSets; RenderError when the nodes' labels do not allow them."""
    return driver_pools.pools(BASE, driver_pools.vgpu_manager_kind(spec, facts), facts)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[build.Manifest]:
    """Rights and the DaemonSets in order of name."""
    made = [*rbac.objects(ACCOUNT, facts), *(daemon_set(spec, facts, pool) for pool in pools(spec, facts))]
    return [build.finish(each, STATE, facts) for each in made]


def daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool) -> DaemonSet:
    """The vGPU manager of one pool of nodes."""
    section = spec.vgpuManager
    image = driver_extras.built_image(section, "spec.vgpuManager", "VGPU_MANAGER_IMAGE", facts, pool)
    parameters = driver_config.module_parameters(
        section.kernelModuleConfig, "spec.vgpuManager.kernelModuleConfig", facts
    )
    manager = driver_manager.container(
        section.driverManager,
        "spec.vgpuManager.driverManager",
        facts,
        env=driver_manager.VM_HOST,
        resources=section.resources,
    )
    return build.daemon_set(
        spec,
        name=pool.name,
        account=ACCOUNT,
        labels=pool.labels,
        annotations={names.OPENSHIFT_SCC: ACCOUNT},
        template_annotations={"kubectl.kubernetes.io/default-container": CONTAINER},
        node_selector={names.DEPLOY_VGPU_MANAGER: "true", **pool.node_selector},
        host_pid=True,
        host_ipc=True,
        host_network=build.on(section.hostNetwork),
        grace_period_s=120,
        init=[manager],
        containers=[
            _manager(section, facts, pool, image, parameters),
            *driver_toolkit.sidecar(pool, image, env=(), mounts=_TOOLKIT_MOUNTS),
        ],
        volumes=[*build.host_volumes(*_VOLUMES), *parameters.volumes, *_shared(pool)],
        pull_secrets=build.secrets_of(section.driverManager, section),
        resources=section.resources,
    )


def _shared(pool: Pool) -> list[Volume]:
    return [build.empty_volume(driver_toolkit.VOLUME)] if pool.kind is Kind.TOOLKIT else []


def _manager(
    section: cp.VgpuManagerSpec, facts: ClusterFacts, pool: Pool, image: str, parameters: Attachment
) -> Container:
    variables = build.env()
    if facts.openshift:
        build.set_all(variables, f"OPENSHIFT_VERSION={facts.openshift.version}")
    build.set_all(variables, *driver_toolkit.missing_image_env(pool))
    build.user_env(variables, section.env)
    made = build.container(
        CONTAINER,
        image,
        pull=section.imagePullPolicy,
        command=("nvidia-driver",),
        args=section.args or ("init",),
        env=variables,
        mounts=(*build.mounts(*_MOUNTS), *parameters.mounts),
        security="S0",
    )
    return driver_toolkit.hand_over(made, pool)
