"""NVIDIADriver (``nvidiadrivers.nvidia.com``, v1alpha1): one driver for the nodes that it selects.

Source: contracts/control-plane.md, section 2. Fields are those of release 26.7.0; 26.3.3 lacks ``default`` and
``upgradePolicy`` (``crd.py`` leaves them out there). Sections mean the same as in ClusterPolicy and are its Structs;
some references have another name, and here a section that the user left out is ``None``, because several of them (the
startup probe, the upgrade policy and its parts, licensing) mean something else then. What the operator makes of a
driver is ``operands/nvidiadriver.py``'s, which node is whose ``operands/driver_owners.py``'s.
"""

from typing import Annotated, Final

from msgspec import Meta, field

from . import clusterpolicy as cp
from . import fragments

DEFAULT_IMAGE: Final = "nvcr.io/nvidia/driver"
"""What the API server fills in; without a version it names no image that could be pulled (contract 2.1)."""

GPU: Final = "gpu"
VGPU: Final = "vgpu"
VGPU_HOST_MANAGER: Final = "vgpu-host-manager"
TYPES: Final = (GPU, VGPU, VGPU_HOST_MANAGER)

NodeAffinity = Annotated[cp.JSON, Meta(extra_json_schema=fragments.NODE_AFFINITY)]


def _unchangeable(field_name: str) -> dict[str, list[dict[str, str]]]:
    """The schema's rule that a field, once set, stays as it is."""
    message = f"{field_name} cannot be changed: make another NVIDIADriver in place of this one"
    return {"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": message}]}


DriverType = Annotated[
    str, Meta(extra_json_schema={"enum": list(TYPES), "default": GPU, **_unchangeable("driverType")})
]
UsePrecompiled = Annotated[bool, Meta(extra_json_schema=_unchangeable("usePrecompiled"))]


class DriverLicensing(cp.Spec, frozen=True):
    """vGPU licensing. ``secretName`` beats the deprecated ``name``; an unset ``nlsEnabled`` is on (contract 2)."""

    secretName: str | None = None
    name: str | None = None
    nlsEnabled: bool | None = None


class DriverUpgradePolicy(cp.Spec, frozen=True):
    """How this driver is upgraded, node by node; :func:`upgrade_policy` says what is in force."""

    autoUpgrade: Annotated[bool, Meta(extra_json_schema={"default": True})] | None = None
    maxParallelUpgrades: cp.MaxParallelUpgrades | None = None
    maxUnavailable: cp.MaxUnavailable | None = None
    podDeletion: cp.PodDeletion | None = None
    waitForCompletion: cp.WaitForCompletion | None = None
    drain: cp.Drain | None = None


class NVIDIADriverSpec(cp.Spec, frozen=True):
    """``spec`` of an NVIDIADriver."""

    driverType: DriverType | None = None
    default: cp.Off | None = None
    usePrecompiled: UsePrecompiled | None = None
    kernelModuleType: cp.KernelModuleType | None = None
    useOpenKernelModules: bool | None = None
    repository: str | None = None
    image: Annotated[str, Meta(extra_json_schema={"default": DEFAULT_IMAGE})] | None = None
    version: str | None = None
    imagePullPolicy: str | None = None
    imagePullSecrets: list[str] | None = None
    manager: cp.DriverManager = field(default_factory=cp.DriverManager)
    startupProbe: cp.ContainerProbe | None = None
    livenessProbe: cp.ContainerProbe | None = None
    readinessProbe: cp.ContainerProbe | None = None
    rdma: cp.Rdma | None = None
    gds: cp.Component | None = None
    gdrcopy: cp.Component | None = None
    args: list[str] | None = None
    env: list[cp.EnvVar] | None = None
    resources: cp.Resources | None = None
    secretEnv: str | None = None
    repoConfig: cp.NamedConfig | None = None
    certConfig: cp.NamedConfig | None = None
    kernelModuleConfig: cp.NamedConfig | None = None
    virtualTopologyConfig: cp.NamedConfig | None = None
    licensingConfig: DriverLicensing | None = None
    upgradePolicy: DriverUpgradePolicy | None = None
    nodeSelector: dict[str, str] | None = None
    nodeAffinity: NodeAffinity | None = None
    tolerations: list[cp.Toleration] | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    priorityClassName: str | None = None
    podSecurityContext: cp.PodSecurityContext | None = None
    hostNetwork: bool | None = None


class NVIDIADriverStatus(cp.Spec, frozen=True):
    """``status`` of an NVIDIADriver (contract 2.2). ``state`` is empty before the first pass."""

    state: Annotated[str, Meta(extra_json_schema={"enum": ["ignored", "ready", "notReady", "disabled"]})] = ""
    namespace: str | None = None
    conditions: list[cp.Condition] = field(default_factory=list)


class NVIDIADriver(cp.Spec, frozen=True):
    """An NVIDIADriver as read from a file or from the API server.

    Build it with :func:`groundplane.api.codec.load_nvidia_driver`, which also lists unknown fields.
    """

    apiVersion: str = "nvidia.com/v1alpha1"
    kind: str = "NVIDIADriver"
    metadata: cp.Metadata = field(default_factory=cp.Metadata)
    spec: NVIDIADriverSpec = field(default_factory=NVIDIADriverSpec)
    status: NVIDIADriverStatus = field(default_factory=NVIDIADriverStatus)

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return self.metadata.name

    @property
    def deleting(self) -> bool:
        """Its deletion was asked for: it owns no node and is no default any more (contract 2.3)."""
        return self.metadata.deletionTimestamp is not None


def driver_type(spec: NVIDIADriverSpec) -> str:
    """``driverType``, ``gpu`` where the API server's defaulting did not run."""
    return spec.driverType or GPU


def upgrade_policy(spec: NVIDIADriverSpec) -> cp.UpgradePolicy:
    """The upgrade policy in force, every field set (contracts/driver-lifecycle.md 1.1).

    No policy means the full default, upgrades on. In a given policy a part that is missing, and ``maxUnavailable``, get
    their defaults; any other value is taken as it is, an unset one as false or 0, which is what it means where the API
    server filled no default in. A 0 in ``maxParallelUpgrades`` sets no limit, in a timeout it waits for ever.
    """
    given = spec.upgradePolicy
    if given is None:
        return DEFAULT_UPGRADE_POLICY
    return cp.UpgradePolicy(
        autoUpgrade=bool(given.autoUpgrade),
        maxParallelUpgrades=given.maxParallelUpgrades or 0,
        maxUnavailable=DEFAULT_UPGRADE_POLICY.maxUnavailable if given.maxUnavailable is None else given.maxUnavailable,
        podDeletion=_pod_deletion(given.podDeletion),
        waitForCompletion=_wait(given.waitForCompletion),
        drain=_drain(given.drain),
    )


DEFAULT_UPGRADE_POLICY: Final = cp.UpgradePolicy(
    autoUpgrade=True,
    maxParallelUpgrades=1,
    maxUnavailable="25%",
    podDeletion=cp.PodDeletion(force=False, timeoutSeconds=300, deleteEmptyDir=False),
    waitForCompletion=cp.WaitForCompletion(podSelector="", timeoutSeconds=0),
    drain=cp.Drain(enable=False, force=False, podSelector="", timeoutSeconds=300, deleteEmptyDir=False),
)


def _pod_deletion(given: cp.PodDeletion | None) -> cp.PodDeletion:
    if given is None:
        return DEFAULT_UPGRADE_POLICY.podDeletion
    return cp.PodDeletion(
        force=bool(given.force), timeoutSeconds=given.timeoutSeconds or 0, deleteEmptyDir=bool(given.deleteEmptyDir)
    )


def _wait(given: cp.WaitForCompletion | None) -> cp.WaitForCompletion:
    if given is None:
        return DEFAULT_UPGRADE_POLICY.waitForCompletion
    return cp.WaitForCompletion(podSelector=given.podSelector or "", timeoutSeconds=given.timeoutSeconds or 0)


def _drain(given: cp.Drain | None) -> cp.Drain:
    if given is None:
        return DEFAULT_UPGRADE_POLICY.drain
    return cp.Drain(
        enable=bool(given.enable),
        force=bool(given.force),
        podSelector=given.podSelector or "",
        timeoutSeconds=given.timeoutSeconds or 0,
        deleteEmptyDir=bool(given.deleteEmptyDir),
    )
