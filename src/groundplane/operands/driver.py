"""State ``state-driver``: the containerised GPU driver.

One DaemonSet, or one for each kernel (precompiled) or RHCOS version (OpenShift's driver toolkit); which ones
is decided in driver_pools.py. :func:`daemon_set` makes those of NVIDIADriver too, in a frame of its own. Tables here
follow contracts/control-plane.md 9.2 row by row; options are those of 1.3, 4.4 and 4.6. When a DaemonSet that is no
longer wanted may go is decided in driver_cleanup.py, when pods are replaced by the upgrade logic: the DaemonSets are
``OnDelete``.
"""

from typing import Final

from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import (
    Affinity,
    ConfigMap,
    Container,
    EnvVar,
    NodeAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    Probe,
    Volume,
)
from lightkube.models.meta_v1 import LabelSelector, LabelSelectorRequirement, ObjectMeta

from ..api import clusterpolicy as cp
from ..api import names
from ..api.release import Release
from . import (
    build,
    driver_config,
    driver_digest,
    driver_extras,
    driver_frame,
    driver_manager,
    driver_pools,
    driver_toolkit,
    images,
    rbac,
    startup_probe,
)
from .build import Manifest, Model
from .driver_config import Attachment
from .driver_frame import Frame
from .driver_pools import Kind, Pool
from .facts import ClusterFacts

STATE: Final = "state-driver"
ACCOUNT: Final = "nvidia-driver"
BASE: Final = build.DRIVER_DAEMON_SET
COMPONENT: Final = names.DRIVER_COMPONENT
CONTAINER: Final = "nvidia-driver-ctr"

_MANAGER_MOUNTS: Final = (*driver_manager.MOUNTS, "run-mellanox-drivers:/run/mellanox/drivers:H")

# Memory hotplug: 26.3.3 mounts the one file, which kernels without hotplug lack; 26.7 the folder around it.
_SYSTEM_MOUNT: Final = {
    Release.V26_3: "sysfs-memory-online:/sys/devices/system/memory/auto_online_blocks",
    Release.V26_7: "host-sys-devices-system:/sys/devices/system",
}
_SYSTEM_VOLUME: Final = {
    Release.V26_3: "sysfs-memory-online=/sys/devices/system/memory/auto_online_blocks(-)",
    Release.V26_7: "host-sys-devices-system=/sys/devices/system(D)",
}

_DRIVER_MOUNTS: Final = (
    "run-nvidia:/run/nvidia:B",
    "run-nvidia-fabricmanager:/run/nvidia-fabricmanager",
    "run-nvidia-topologyd:/run/nvidia-topologyd",
    "var-log:/var/log",
    "dev-log:/dev/log",
    "host-os-release:/host-etc/os-release:ro",
    "mlnx-ofed-usr-src:/run/mellanox/drivers/usr/src:H",
    "run-mellanox-drivers:/run/mellanox/drivers:H",
    "{system}",
    "firmware-search-path:/sys/module/firmware_class/parameters/path",
    "nv-firmware:/lib/firmware",
    f"driver-startup-probe-script:{startup_probe.MOUNT_PATH} sub={startup_probe.SCRIPT}",
)
_VOLUMES: Final = (
    "run-nvidia=/run/nvidia(DC)",
    "var-log=/var/log(-)",
    "dev-log=/dev/log(-)",
    "host-os-release=/etc/os-release(-)",
    "run-nvidia-fabricmanager=/run/nvidia-fabricmanager(DC)",
    "run-nvidia-topologyd=/run/nvidia-topologyd(DC)",
    "mlnx-ofed-usr-src={mofed}(DC)",
    "run-mellanox-drivers=/run/mellanox/drivers(DC)",
    "run-nvidia-validations=/run/nvidia/validations(DC)",
    "host-root=/(-)",
    "host-sys=/sys(D)",
    "firmware-search-path=/sys/module/firmware_class/parameters/path(-)",
    "{system}",
    "nv-firmware=/run/nvidia/driver/lib/firmware(DC)",
)
_HOST_MANAGER_MOUNTS: Final = ("cgroup:/sys/fs/cgroup", "vfio:/dev/vfio")
_HOST_MANAGER_VOLUMES: Final = ("cgroup=/sys/fs/cgroup(-)", "vfio=/dev/vfio(-)")
_TOOLKIT_MOUNTS: Final = (
    "var-log:/var/log",
    "mlnx-ofed-usr-src:/run/mellanox/drivers/usr/src:H",
    "host-os-release:/host-etc/os-release:ro",
)


def enabled(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> bool:
    """On unless switched off or handed to NVIDIADriver objects (contract 4.1)."""
    return build.on(spec.driver.enabled, True) and not build.on(spec.driver.useNvidiaDriverCRD)


def pools(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[Pool]:
    """The wanted DaemonSets; RenderError when the nodes' labels do not allow them."""
    return driver_pools.pools(BASE, driver_pools.driver_kind(spec, facts), facts)


def render(spec: cp.ClusterPolicySpec, facts: ClusterFacts) -> list[Manifest]:
    """The state's objects: account, probe, OpenShift's authorities, and the DaemonSets in order of name."""
    driver_extras.refuse_precompiled(spec)
    objects: list[Model | Manifest] = [
        *rbac.objects(ACCOUNT, facts),
        startup_probe.config_map(facts.release, {"app": BASE, names.COMPONENT_LABEL: COMPONENT}),
    ]
    if driver_config.trusts_own_ca(facts):
        objects.append(authorities())
    objects += [daemon_set(spec, facts, pool) for pool in pools(spec, facts)]
    return [build.finish(each, STATE, facts) for each in objects]


def authorities() -> ConfigMap:
    """An empty ConfigMap that OpenShift fills with the cluster's trusted authorities.

    It has no data of ours, so that applying it again never takes the bundle away.
    """
    return ConfigMap(metadata=ObjectMeta(name=driver_config.TRUSTED_CA, labels=dict(driver_config.TRUSTED_CA_LABELS)))


# --- The DaemonSet ----------------------------------------------------------------------------------------------------
def daemon_set(spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool, frame: Frame | None = None) -> DaemonSet:
    """The driver of one pool of nodes; without a ``frame``, that of a ClusterPolicy."""
    frame = frame or _frame(spec, facts, pool)
    driver = spec.driver
    extras = driver_extras.chosen(spec)
    packages = driver_config.packages(driver, pool, facts, frame.fields)
    modules = driver_config.module_parameters(driver.kernelModuleConfig, frame.fields.modules, facts)
    files = _files(driver, facts, pool, frame, modules, packages)
    made = build.daemon_set(
        spec,
        name=pool.name,
        account=frame.account,
        labels=frame.labels,
        selector={"app": frame.labels["app"]},
        annotations={names.OPENSHIFT_SCC: frame.account},
        template_annotations={"kubectl.kubernetes.io/default-container": CONTAINER},
        node_selector=frame.node_selector,
        affinity=frame.affinity,
        host_pid=True,
        host_network=build.on(driver.hostNetwork),
        grace_period_s=120 if frame.host_manager else None,
        init=[_manager(spec, facts, frame)],
        containers=[
            _driver(spec, facts, pool, frame, files),
            *driver_extras.peermem(driver, frame.image, modules, void=frame.void),
            *driver_extras.containers(spec, facts, pool, packages, frame),
            *driver_toolkit.sidecar(
                pool,
                frame.image,
                env=[extra.flag for extra in extras],
                mounts=(*_TOOLKIT_MOUNTS, *frame.toolkit_mounts),
            ),
        ],
        volumes=_volumes(spec, facts, pool, frame, files),
        pull_secrets=build.secrets_of(driver.manager, driver, *(extra.section(spec) for extra in extras)),
        resources=driver.resources,
        on_delete=True,
    )
    _stamp_digest(made, pool)
    return made


def _frame(spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool) -> Frame:
    return Frame(
        fields=driver_frame.CLUSTER_POLICY,
        account=ACCOUNT,
        labels=_labels(pool),
        node_selector={names.DEPLOY_DRIVER: "true", **pool.node_selector},
        affinity=alone_on_its_node(COMPONENT),
        image=_image(spec, facts, pool),
        images={
            extra.field: driver_extras.built_image(
                extra.section(spec), f"spec.{extra.field}", extra.variable, facts, pool
            )
            for extra in driver_extras.chosen(spec)
        },
        args=spec.driver.args or ("init",),
    )


def _labels(pool: Pool) -> dict[str, str]:
    """``app`` is the base name for every kernel, so that whoever selects driver pods finds all of them (4.6)."""
    return {
        "app": pool.name if pool.kind is Kind.TOOLKIT else BASE,
        names.COMPONENT_LABEL: COMPONENT,
        names.PRECOMPILED: "true" if pool.kind is Kind.PRECOMPILED else "false",
        **pool.labels,
    }


def _files(
    driver: cp.DriverSpec, facts: ClusterFacts, pool: Pool, frame: Frame, modules: Attachment, packages: Attachment
) -> Attachment:
    """Everything that the policy puts into the driver container, in order of mounting."""
    return (
        driver_config.licence(driver.licensingConfig, facts, frame.fields)
        + driver_config.topology(driver.virtualTopology, facts, frame.fields)
        + modules
        + driver_config.host_modules(pool)
        + packages
        + driver_config.subscriptions(driver, pool, facts)
        + driver_config.trusted_ca(driver, pool, facts)
    )


def _image(spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool) -> str:
    if pool.kind is Kind.PRECOMPILED:
        return images.precompiled(spec.driver, "spec.driver", pool.kernel, pool.os_tag)
    return driver_extras.built_image(spec.driver, "spec.driver", "DRIVER_IMAGE", facts, pool)


def alone_on_its_node(*components: str, nodes: NodeAffinity | None = None) -> Affinity:
    """No two pods of these components on a node, whichever DaemonSet they are from; ``nodes`` is a further rule."""
    others = LabelSelectorRequirement(key=names.COMPONENT_LABEL, operator="In", values=list(components))
    term = PodAffinityTerm(labelSelector=LabelSelector(matchExpressions=[others]), topologyKey="kubernetes.io/hostname")
    return Affinity(
        nodeAffinity=nodes, podAntiAffinity=PodAntiAffinity(requiredDuringSchedulingIgnoredDuringExecution=[term])
    )


def _volumes(
    spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool, frame: Frame, files: Attachment
) -> list[Volume]:
    mofed = "/usr/src" if driver_extras.host_mofed(spec.driver) else "/run/mellanox/drivers/usr/src"
    rows = [row.format(mofed=mofed, system=_SYSTEM_VOLUME[facts.release]) for row in _VOLUMES]
    rows += _HOST_MANAGER_VOLUMES if frame.host_manager else ()
    shared = [build.empty_volume(driver_toolkit.VOLUME)] if pool.kind is Kind.TOOLKIT else []
    probe = build.config_volume("driver-startup-probe-script", startup_probe.CONFIG_MAP, mode=0o755)
    return [*build.host_volumes(*rows), probe, *files.volumes, *shared]


def _stamp_digest(made: DaemonSet, pool: Pool) -> None:
    """Tell manager, driver and toolkit which installation this pod stands for (contract 4.4)."""
    pod = made.spec.template.spec if made.spec else None
    assert pod is not None and pod.initContainers is not None
    value = driver_digest.digest(pod, pool.kernel)
    for each in (*pod.initContainers, *pod.containers):
        if each.name in (driver_manager.NAME, CONTAINER, driver_toolkit.NAME):
            each.env = list(each.env or ())
            build.set_env(each.env, driver_digest.VARIABLE, value)


# --- Its containers ---------------------------------------------------------------------------------------------------
def _manager(spec: cp.ClusterPolicySpec, facts: ClusterFacts, frame: Frame) -> Container:
    return driver_manager.container(
        spec.driver.manager,
        frame.fields.manager,
        facts,
        env=(*driver_manager.GPU_DRIVER, *driver_extras.rdma_flags(spec.driver)),
        mounts=_MANAGER_MOUNTS,
        resources=spec.driver.resources,
    )


def _driver(spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool, frame: Frame, files: Attachment) -> Container:
    driver = spec.driver
    rows = [row.format(system=_SYSTEM_MOUNT[facts.release]) for row in _DRIVER_MOUNTS]
    rows += _HOST_MANAGER_MOUNTS if frame.host_manager else ()
    readiness = startup_probe.liveness() if frame.host_manager else startup_probe.readiness()
    made = build.container(
        CONTAINER,
        frame.image,
        pull=driver.imagePullPolicy,
        command=("nvidia-driver",),
        args=frame.args,
        env=_driver_env(spec, facts, pool, frame),
        mounts=(*build.mounts(*rows), *files.mounts),
        security="S0",
        startup=None if frame.host_manager else build.timed(startup_probe.probe(), driver.startupProbe),
        liveness=_on_request(startup_probe.liveness(), driver.livenessProbe),
        readiness=_on_request(readiness, driver.readinessProbe),
        lifecycle=None if frame.host_manager else startup_probe.forget(facts.release),
    )
    made.envFrom = driver_config.secret_env(driver, pool, facts, frame.fields)
    return driver_toolkit.hand_over(made, pool)


def _on_request(probe: Probe, timing: cp.ContainerProbe | None) -> Probe | None:
    """A probe that the driver has only when the policy gives it some timing."""
    return build.timed(probe, timing) if timing is not None and timing != cp.ContainerProbe() else None


def _driver_env(spec: cp.ClusterPolicySpec, facts: ClusterFacts, pool: Pool, frame: Frame) -> list[EnvVar]:
    """Built-in variables, then what options ask for, then OpenShift's, then the user's over all of them."""
    kind = spec.driver.kernelModuleType
    void = (driver_extras.VOID,) if frame.void else ()
    variables = build.env(*void, "NODE_NAME<-spec.nodeName", "NODE_IP<-status.hostIP")
    optional = (
        (f"KERNEL_MODULE_TYPE={kind}", bool(kind)),
        ("OPEN_KERNEL_MODULES_ENABLED=true", kind == "open"),
        (driver_extras.GDRCOPY.flag, build.on(spec.gdrcopy.enabled)),
        (driver_extras.GDS.flag, build.on(spec.gds.enabled)),
    )
    build.set_all(variables, *(row for row, wanted in optional if wanted), *driver_extras.rdma_flags(spec.driver))
    if facts.openshift and pool.kind is not Kind.PRECOMPILED:
        build.set_all(variables, f"OPENSHIFT_VERSION={facts.openshift.version}")
    build.set_all(variables, *driver_config.proxy_env(facts), *driver_toolkit.missing_image_env(pool))
    build.user_env(variables, spec.driver.env)
    return variables
