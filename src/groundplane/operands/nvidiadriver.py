"""An NVIDIADriver's objects: rights and a driver DaemonSet for each of its node pools.

The driver is read as if a ClusterPolicy said the same (:func:`as_policy`), and driver.py makes the DaemonSet in the
frame that contracts/control-plane.md 2.4 describes: its name, labels and node selector, the taints that it bears, what
it keeps away from. Which nodes and pools there are is decided in driver_owners.py and nvidiadriver_pools.py, which
drivers are refused in api/validate_driver.py. Two objects belong to no driver alone (:func:`shared`), so that they stay
until the last one is gone.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from lightkube.models.apps_v1 import DaemonSet
from lightkube.models.core_v1 import Affinity, NodeAffinity
from lightkube.models.meta_v1 import OwnerReference
from msgspec import field

from ..api import clusterpolicy as cp
from ..api import names
from ..api import nvidiadriver as nvd
from . import (
    build,
    driver,
    driver_config,
    driver_digest,
    driver_extras,
    driver_frame,
    driver_manager,
    driver_owners,
    images,
    nvidiadriver_pools,
    rbac,
    startup_probe,
)
from .build import Manifest, Model
from .driver_cleanup import Document, Fate, idle
from .driver_frame import Frame
from .driver_owners import Nodes
from .driver_pools import Kind
from .facts import ClusterFacts, Owner, References
from .nvidiadriver_pools import NodePool

STATE: Final = driver.STATE
RIGHTS: Final = driver.ACCOUNT
MANAGER_IMAGE: Final = "DRIVER_MANAGER_IMAGE"
PRECOMPILED_DELAY_S: Final = 5
"""How long a driver that is not built on the node is left alone before its startup probe asks."""


class Rendered(msgspec.Struct, frozen=True):
    """What a driver comes to. ``skipped`` are nodes of its own that get no driver, each with the reason."""

    objects: list[Manifest] = field(default_factory=list)
    pools: list[NodePool] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def daemon_sets(self) -> list[Manifest]:
        """The DaemonSets among the objects."""
        return [each for each in self.objects if each["kind"] == "DaemonSet"]


def references(specs: Iterable[nvd.NVIDIADriverSpec]) -> References:
    """The ConfigMaps and Secrets that drivers name and whose keys shape their objects."""
    config_maps: set[str | None] = set()
    secrets: set[str | None] = set()
    for spec in specs:
        configs = (spec.repoConfig, spec.certConfig, spec.kernelModuleConfig, spec.virtualTopologyConfig)
        licensing = spec.licensingConfig or nvd.DriverLicensing()
        config_maps |= {*(_name(config) for config in configs), licensing.name}
        secrets |= {spec.secretEnv, licensing.secretName}
    return References(
        config_maps=frozenset(name for name in config_maps if name),
        secrets=frozenset(name for name in secrets if name),
    )


def render(
    asked: nvd.NVIDIADriver,
    nodes: Nodes,
    facts: ClusterFacts,
    *,
    host_root: str = "/",
    live: Iterable[Document] = (),
) -> Rendered:
    """The objects of one driver: of each pool the rights, then the DaemonSets, in order of name.

    ``nodes`` are the cluster's, labels by name; in 26.7 the owner's label decides, so it must have been written. What
    ``facts`` says of nodes and of an owner is not looked at. ``host_root`` is ``hostPaths.rootFS`` of the
    ClusterPolicy, ``live`` are the DaemonSets that the driver has now. The objects of :func:`shared` come besides.

    Raises RenderError naming the field; of a driver that :func:`groundplane.api.validate_driver.problems` finds
    something wrong with, nothing is to be rendered.
    """
    found = nvidiadriver_pools.pools(asked, nodes, facts)
    spec = as_policy(asked, host_root)
    owned = msgspec.structs.replace(facts, owner=_owner(asked))
    present = {each["metadata"]["name"]: each for each in live}
    accounts: dict[tuple[str, str], Manifest] = {}
    daemon_sets = []
    for pool in found.pools:
        for each in rbac.objects(RIGHTS, facts, name=pool.account):
            made = build.finish(each, STATE, owned)
            accounts[made["kind"], made["metadata"]["name"]] = made
        daemon_sets.append(build.finish(_daemon_set(asked, spec, owned, pool, present), STATE, owned))
    daemon_sets.sort(key=lambda each: str(each["metadata"]["name"]))
    return Rendered([*accounts.values(), *daemon_sets], found.pools, found.skipped)


def _owner(asked: nvd.NVIDIADriver) -> Owner | None:
    """The driver as owner of its objects, none before the API server gave it a UID."""
    if not asked.metadata.uid:
        return None
    return Owner(name=asked.name, uid=asked.metadata.uid, api_version=asked.apiVersion, kind=asked.kind)


# --- What all drivers share -------------------------------------------------------------------------------------------
def shared(drivers: Iterable[nvd.NVIDIADriver], facts: ClusterFacts) -> list[Manifest]:
    """The objects that every driver's pods need: the startup probe, and OpenShift's authorities where there are any.

    Each of the drivers that are not being deleted owns them and none controls them, so that garbage collection takes
    them with the last one. None without drivers.
    """
    live = sorted((each for each in drivers if not each.deleting), key=lambda each: each.name)
    if not live:
        return []
    labels = {"app": driver.BASE, names.COMPONENT_LABEL: driver.COMPONENT}
    models: list[Model] = [startup_probe.config_map(facts.release, labels)]
    if driver_config.trusts_own_ca(facts):
        models.append(driver.authorities())
    made = [build.finish(each, STATE, msgspec.structs.replace(facts, owner=None)) for each in models]
    if owners := [_reference(each) for each in live if each.metadata.uid]:
        for each in made:
            each["metadata"]["ownerReferences"] = owners
    return made


def _reference(owner: nvd.NVIDIADriver) -> dict[str, Any]:
    found = OwnerReference(apiVersion=owner.apiVersion, kind=owner.kind, name=owner.name, uid=owner.metadata.uid)
    return dict(build.without_nulls(found.to_dict()))


# --- A driver in the words of a ClusterPolicy -------------------------------------------------------------------------
def as_policy(asked: nvd.NVIDIADriver, host_root: str = "/") -> cp.ClusterPolicySpec:
    """The policy by which driver.py makes this driver; only the sections that driver.py reads are filled."""
    spec = asked.spec
    return cp.ClusterPolicySpec(
        driver=cp.DriverSpec(
            usePrecompiled=spec.usePrecompiled,
            kernelModuleType=spec.kernelModuleType or "auto",
            repository=spec.repository,
            image=spec.image or nvd.DEFAULT_IMAGE,
            version=spec.version,
            imagePullPolicy=spec.imagePullPolicy,
            imagePullSecrets=spec.imagePullSecrets,
            manager=spec.manager,
            startupProbe=_startup(spec),
            livenessProbe=spec.livenessProbe,
            readinessProbe=spec.readinessProbe,
            rdma=spec.rdma or cp.Rdma(),
            env=spec.env,
            resources=spec.resources,
            secretEnv=spec.secretEnv,
            repoConfig=cp.RepoConfig(configMapName=_name(spec.repoConfig)),
            certConfig=cp.NamedConfig(name=_name(spec.certConfig)),
            kernelModuleConfig=cp.NamedConfig(name=_name(spec.kernelModuleConfig)),
            virtualTopology=cp.VirtualTopology(config=_name(spec.virtualTopologyConfig)),
            licensingConfig=_licensing(spec.licensingConfig or nvd.DriverLicensing()),
            hostNetwork=spec.hostNetwork,
        ),
        gds=spec.gds or cp.Component(),
        gdrcopy=spec.gdrcopy or cp.Component(),
        daemonsets=cp.DaemonsetsSpec(
            labels=spec.labels,
            annotations=spec.annotations,
            tolerations=[build.GPU_TOLERATION, *(each for each in spec.tolerations or () if each != _GPU_TOLERATION)],
            priorityClassName=spec.priorityClassName,
            podSecurityContext=spec.podSecurityContext,
        ),
        hostPaths=cp.HostPaths(rootFS=host_root or "/"),
    )


_GPU_TOLERATION: Final[cp.JSON] = dict(build.GPU_TOLERATION)


def _name(config: cp.NamedConfig | None) -> str | None:
    return config.name if config else None


def _licensing(given: nvd.DriverLicensing) -> cp.Licensing:
    return cp.Licensing(
        configMapName=given.name, secretName=given.secretName, nlsEnabled=build.on(given.nlsEnabled, True)
    )


def _startup(spec: nvd.NVIDIADriverSpec) -> cp.ContainerProbe:
    """The startup probe's timing; what is zero or unset keeps the driver's own, which is shorter when precompiled."""
    given = spec.startupProbe or cp.ContainerProbe()
    if build.on(spec.usePrecompiled) and not given.initialDelaySeconds:
        return msgspec.structs.replace(given, initialDelaySeconds=PRECOMPILED_DELAY_S)
    return given


# --- The DaemonSet of a pool ------------------------------------------------------------------------------------------
def _daemon_set(
    asked: nvd.NVIDIADriver,
    spec: cp.ClusterPolicySpec,
    facts: ClusterFacts,
    pool: NodePool,
    live: Mapping[str, Document],
) -> DaemonSet:
    frame = _frame(asked, spec, pool)
    labels = {key: value for key, value in (asked.spec.labels or {}).items() if _allowed(key, frame.labels)}
    theirs = msgspec.structs.replace(spec, daemonsets=msgspec.structs.replace(spec.daemonsets, labels=labels or None))
    made = driver.daemon_set(theirs, facts, pool.pool, frame)
    current = _current_manager(live.get(pool.pool.name))
    if asked.spec.manager.image or not current.image or current.image == _manager(made).image:
        return made
    before = msgspec.structs.replace(facts, default_images={**facts.default_images, MANAGER_IMAGE: current.image})
    kept = driver.daemon_set(theirs, before, pool.pool, frame)
    return kept if _manager(kept).digest == current.digest else made


def _frame(asked: nvd.NVIDIADriver, spec: cp.ClusterPolicySpec, pool: NodePool) -> Frame:
    host_manager = nvd.driver_type(asked.spec) == nvd.VGPU_HOST_MANAGER
    deploy = names.DEPLOY_VGPU_MANAGER if host_manager else names.DEPLOY_DRIVER
    return Frame(
        fields=driver_frame.NVIDIA_DRIVER,
        account=pool.account,
        labels=_labels(pool, names.VGPU_HOST_MANAGER_COMPONENT if host_manager else names.DRIVER_COMPONENT),
        node_selector={deploy: "true", **{key: value for key, value in pool.node_selector.items() if key != deploy}},
        affinity=_affinity(asked.spec),
        image=images.of_driver(spec.driver, driver_frame.NVIDIA_DRIVER.driver, pool.pool.os_tag, pool.pool.kernel),
        images={
            extra.field: images.of_driver(extra.section(spec), f"spec.{extra.field}", pool.pool.os_tag)
            for extra in driver_extras.chosen(spec)
        },
        args=("init", *(asked.spec.args or ())),
        void=True,
        host_manager=host_manager,
        toolkit_mounts=(*_FIRMWARE_MOUNTS, *(_HOST_MANAGER_MOUNTS if host_manager else ())),
    )


# What OpenShift's driver toolkit needs besides: the firmware's folders, and where a host manager's files go, as it
# loads that itself.
_FIRMWARE_MOUNTS: Final = (
    "firmware-search-path:/sys/module/firmware_class/parameters/path",
    "nv-firmware:/lib/firmware",
)
_HOST_MANAGER_MOUNTS: Final = ("run-nvidia:/run/nvidia:B", "dev-log:/dev/log")


def _labels(pool: NodePool, component: str) -> dict[str, str]:
    precompiled = pool.pool.kind is Kind.PRECOMPILED
    kernel = {names.PRECOMPILED_KERNEL: nvidiadriver_pools.kernel_label(pool.pool.kernel)} if precompiled else {}
    return {
        "app": pool.pool.name,
        names.COMPONENT_LABEL: component,
        names.NODE_OS_VERSION: pool.pool.os_tag,
        names.PRECOMPILED: "true" if precompiled else "false",
        **kernel,
        **pool.pool.labels,
    }


def _allowed(key: str, own: Collection[str]) -> bool:
    """Whether a label of the user's goes on DaemonSet and pods: none of our own, nor a standard one of applications."""
    return key not in own and not key.startswith("app.kubernetes.io/")


KEPT_AWAY: Final = (names.DRIVER_COMPONENT, "nvidia-vgpu-manager", names.VGPU_HOST_MANAGER_COMPONENT)
"""Components of pods beside which no driver pod may run. No pod of NVIDIA's has the second, which alone it lists; its
host managers have the third."""


def _affinity(spec: nvd.NVIDIADriverSpec) -> Affinity:
    nodes = build.typed(NodeAffinity, spec.nodeAffinity, "spec.nodeAffinity") if spec.nodeAffinity else None
    return driver.alone_on_its_node(*KEPT_AWAY, nodes=nodes)


# --- The operator's own manager image ---------------------------------------------------------------------------------
class _Manager(msgspec.Struct, frozen=True):
    """The driver manager of a DaemonSet: its image, and the digest of the installation that it stands for."""

    image: str = ""
    digest: str = ""


def _manager(made: DaemonSet) -> _Manager:
    return _current_manager(made.to_dict())


def _current_manager(daemon_set: Document | None) -> _Manager:
    """What a DaemonSet runs now, nothing without one.

    While no image is set in the driver and the installation is the same but for the operator's own default, this image
    stays, so that an upgrade of the operator does not reinstall every driver (contract 2.4).
    """
    template = ((daemon_set or {}).get("spec") or {}).get("template") or {}
    for each in (template.get("spec") or {}).get("initContainers") or ():
        if each.get("name") == driver_manager.NAME:
            variables = {env["name"]: env.get("value") or "" for env in each.get("env") or ()}
            return _Manager(each.get("image") or "", variables.get(driver_digest.VARIABLE, ""))
    return _Manager()


# --- DaemonSets that may go -------------------------------------------------------------------------------------------
def fate(live: Document, wanted: Iterable[Document], nodes: Nodes) -> Fate:
    """What becomes of a live DaemonSet of the driver, given all that are rendered for it and the cluster's nodes (2.4).

    It goes when it is not wanted any more, or when no node fits its selector, none wants a pod and none is left over.
    Without the question for a fitting node, a taint that it does not bear would have it deleted and made for ever.
    """
    if live["metadata"]["name"] not in {each["metadata"]["name"] for each in wanted}:
        return Fate.DELETE
    return Fate.DELETE if idle(live) and not placeable(live, nodes) else Fate.KEEP


def placeable(daemon_set: Document, nodes: Nodes) -> bool:
    """Whether any node fits a DaemonSet's node selector.

    A rendered one that fits none (its nodes opted out by their deploy label) is not created; :func:`fate` would have it
    deleted at once.
    """
    selector = daemon_set["spec"]["template"]["spec"].get("nodeSelector") or {}
    return any(driver_owners.fits(selector, labels) for labels in nodes.values())
