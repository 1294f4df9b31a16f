"""ClusterPolicy (``clusterpolicies.nvidia.com``, v1): the one document that says what the GPU stack is.

Source: contracts/control-plane.md, section 1. Fields are the union of releases 26.3.3 and 26.7.0.
Every section is present after decoding (an absent one is empty); a field that the user left out is
``None``, because "unset" and "set to the default" mean different things to NVIDIA's operator.
Constraints (enum, pattern, minimum, CRD default) are carried as metadata for the CRD; decoding itself
checks types only, as the API server already enforces the rest and older stored objects must load.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from . import fragments

JSON = dict[str, Any]
"""A Kubernetes fragment that is passed through to a pod as it is (tolerations, resources, security context)."""

DURATION = "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
IMAGE = r"[a-zA-Z0-9\-]+"
QUALIFIED_NAME = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
REASON = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


def _schema(**keys: object) -> Meta:
    return Meta(extra_json_schema=dict(keys))


def _enum(*values: str, default: str | None = None) -> Meta:
    return _schema(enum=list(values), **({} if default is None else {"default": default}))


Image = Annotated[str, _schema(pattern=IMAGE)]
Int32 = Annotated[int, _schema(format="int32")]
Positive = Annotated[int, _schema(format="int32", minimum=1)]
Off = Annotated[bool, _schema(default=False)]
KernelModuleType = Annotated[str, _enum("auto", "open", "proprietary", default="auto")]
MaxParallelUpgrades = Annotated[int, _schema(default=1, minimum=0)]
MaxUnavailable = Annotated[
    int | str,
    _schema(anyOf=[{"type": "integer"}, {"type": "string"}], default="25%", **{"x-kubernetes-int-or-string": True}),
]
Resources = Annotated[JSON, Meta(extra_json_schema=fragments.RESOURCES)]
Toleration = Annotated[JSON, Meta(extra_json_schema=fragments.TOLERATION)]
PodSecurityContext = Annotated[JSON, Meta(extra_json_schema=fragments.POD_SECURITY_CONTEXT)]


class Spec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Base of every section."""


class EnvVar(Spec, frozen=True):
    """One environment variable of an operand's container."""

    name: str
    value: str | None = None


class ImageSpec(Spec, frozen=True):
    """Where an image comes from (contract 1.6)."""

    repository: str | None = None
    image: Image | None = None
    version: str | None = None
    imagePullPolicy: str | None = None
    imagePullSecrets: list[str] | None = None


class Component(ImageSpec, frozen=True):
    """The fields common to operand sections (contract 1.1)."""

    enabled: bool | None = None
    args: list[str] | None = None
    env: list[EnvVar] | None = None


class Operand(Component, frozen=True):
    """An operand section with pod resources and host network."""

    resources: Resources | None = None
    hostNetwork: bool | None = None


class NamedConfig(Spec, frozen=True):
    """A reference to a ConfigMap by name, in the operator's namespace."""

    name: str | None = None


class Relabeling(Spec, frozen=True):
    """One Prometheus relabelling rule; keys are camelCase only (contract 1.4)."""

    action: (
        Annotated[
            str,
            _enum(
                *("replace", "Replace", "keep", "Keep", "drop", "Drop", "hashmod", "HashMod", "labelmap", "LabelMap"),
                *("labeldrop", "LabelDrop", "labelkeep", "LabelKeep", "lowercase", "Lowercase"),
                *("uppercase", "Uppercase", "keepequal", "KeepEqual", "dropequal", "DropEqual"),
                default="replace",
            ),
        ]
        | None
    ) = None
    modulus: Annotated[int, _schema(format="int64", minimum=0)] | None = None
    regex: str | None = None
    replacement: str | None = None
    separator: str | None = None
    sourceLabels: list[str] | None = None
    targetLabel: str | None = None


class ServiceMonitor(Spec, frozen=True):
    """How Prometheus scrapes an operand (contract 1.4)."""

    enabled: bool | None = None
    interval: Annotated[str, _schema(pattern=DURATION)] | None = None
    scrapeTimeout: Annotated[str, _schema(pattern=DURATION)] | None = None
    honorLabels: bool | None = None
    additionalLabels: dict[str, str] | None = None
    relabelings: list[Relabeling] | None = None


class OperatorMetrics(Spec, frozen=True):
    serviceMonitor: ServiceMonitor = field(default_factory=ServiceMonitor)


class OperatorSpec(Spec, frozen=True):
    """Settings of the operator itself."""

    runtimeClass: Annotated[str, _schema(default="nvidia")] | None = None
    defaultRuntime: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    use_ocp_driver_toolkit: bool | None = None
    initContainer: ImageSpec = field(default_factory=ImageSpec)
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)


class RollingUpdate(Spec, frozen=True):
    maxUnavailable: str | None = None


class DaemonsetsSpec(Spec, frozen=True):
    """What every operand DaemonSet shares."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    priorityClassName: str | None = None
    podSecurityContext: PodSecurityContext | None = None
    updateStrategy: Annotated[str, _enum("RollingUpdate", "OnDelete", default="RollingUpdate")] | None = None
    rollingUpdate: RollingUpdate = field(default_factory=RollingUpdate)


class ContainerProbe(Spec, frozen=True):
    """Timing of a probe; zero or unset keeps the operand's own value."""

    initialDelaySeconds: Int32 | None = None
    timeoutSeconds: Positive | None = None
    periodSeconds: Positive | None = None
    successThreshold: Positive | None = None
    failureThreshold: Positive | None = None


class Rdma(Spec, frozen=True):
    enabled: bool | None = None
    useHostMofed: bool | None = None


class PodDeletion(Spec, frozen=True):
    force: Off | None = None
    timeoutSeconds: Annotated[int, _schema(default=300, minimum=0)] | None = None
    deleteEmptyDir: Off | None = None


class WaitForCompletion(Spec, frozen=True):
    podSelector: str | None = None
    timeoutSeconds: Annotated[int, _schema(default=0, minimum=0)] | None = None


class Drain(Spec, frozen=True):
    enable: Off | None = None
    force: Off | None = None
    podSelector: str | None = None
    timeoutSeconds: Annotated[int, _schema(default=300, minimum=0)] | None = None
    deleteEmptyDir: Off | None = None


class UpgradePolicy(Spec, frozen=True):
    """How drivers are upgraded, node by node."""

    autoUpgrade: Off | None = None
    maxParallelUpgrades: MaxParallelUpgrades | None = None
    maxUnavailable: MaxUnavailable | None = None
    podDeletion: PodDeletion = field(default_factory=PodDeletion)
    waitForCompletion: WaitForCompletion = field(default_factory=WaitForCompletion)
    drain: Drain = field(default_factory=Drain)


class DriverManager(ImageSpec, frozen=True):
    """The init container that clears a node for a driver."""

    env: list[EnvVar] | None = None


class RepoConfig(Spec, frozen=True):
    configMapName: str | None = None


class VirtualTopology(Spec, frozen=True):
    config: str | None = None


class Licensing(Spec, frozen=True):
    """vGPU licensing. ``secretName`` beats the deprecated ``configMapName``."""

    configMapName: str | None = None
    secretName: str | None = None
    nlsEnabled: bool | None = None


class DriverSpec(Operand, frozen=True):
    """The driver container (contract 1.3)."""

    useNvidiaDriverCRD: bool | None = None
    usePrecompiled: bool | None = None
    kernelModuleType: KernelModuleType | None = None
    useOpenKernelModules: bool | None = None
    startupProbe: ContainerProbe = field(default_factory=ContainerProbe)
    livenessProbe: ContainerProbe | None = None
    readinessProbe: ContainerProbe | None = None
    rdma: Rdma = field(default_factory=Rdma)
    upgradePolicy: UpgradePolicy = field(default_factory=UpgradePolicy)
    manager: DriverManager = field(default_factory=DriverManager)
    repoConfig: RepoConfig = field(default_factory=RepoConfig)
    certConfig: NamedConfig = field(default_factory=NamedConfig)
    kernelModuleConfig: NamedConfig = field(default_factory=NamedConfig)
    virtualTopology: VirtualTopology = field(default_factory=VirtualTopology)
    licensingConfig: Licensing = field(default_factory=Licensing)
    secretEnv: str | None = None


class ToolkitSpec(Operand, frozen=True):
    installDir: Annotated[str, _schema(default="/usr/local/nvidia")] | None = None


class PluginConfig(NamedConfig, frozen=True):
    default: str | None = None


class Mps(Spec, frozen=True):
    root: Annotated[str, _schema(default="/run/nvidia/mps")] | None = None


class DevicePluginSpec(Operand, frozen=True):
    config: PluginConfig = field(default_factory=PluginConfig)
    mps: Mps = field(default_factory=Mps)


class DcgmSpec(Operand, frozen=True):
    hostPort: Int32 | None = None


class ExporterService(Spec, frozen=True):
    type: str | None = None
    internalTrafficPolicy: str | None = None


class HpcJobMapping(Spec, frozen=True):
    enabled: bool | None = None
    directory: str | None = None


class DcgmExporterSpec(Operand, frozen=True):
    annotations: dict[str, str] | None = None
    config: NamedConfig = field(default_factory=NamedConfig)
    service: ExporterService = field(default_factory=ExporterService)
    serviceMonitor: ServiceMonitor = field(default_factory=ServiceMonitor)
    hostPID: bool | None = None
    hpcJobMapping: HpcJobMapping = field(default_factory=HpcJobMapping)
    enablePodLabels: bool | None = None
    enablePodUID: bool | None = None
    podLabelAllowlistRegex: list[str] | None = None


class MigSpec(Spec, frozen=True):
    strategy: Annotated[str, _enum("none", "single", "mixed")] | None = None


class MigManagerConfig(NamedConfig, frozen=True):
    default: Annotated[str, _enum("all-disabled", "", default="all-disabled")] | None = None


class MigManagerSpec(Operand, frozen=True):
    config: MigManagerConfig = field(default_factory=MigManagerConfig)
    gpuClientsConfig: NamedConfig = field(default_factory=NamedConfig)


class ComponentEnv(Spec, frozen=True):
    env: list[EnvVar] | None = None


class ValidatorSpec(ImageSpec, frozen=True):
    """The validator; it cannot be disabled."""

    args: list[str] | None = None
    env: list[EnvVar] | None = None
    resources: Resources | None = None
    hostNetwork: bool | None = None
    plugin: ComponentEnv = field(default_factory=ComponentEnv)
    cuda: ComponentEnv = field(default_factory=ComponentEnv)
    driver: ComponentEnv = field(default_factory=ComponentEnv)
    toolkit: ComponentEnv = field(default_factory=ComponentEnv)
    vfioPCI: ComponentEnv = field(default_factory=ComponentEnv)
    vgpuManager: ComponentEnv = field(default_factory=ComponentEnv)
    vgpuDevices: ComponentEnv = field(default_factory=ComponentEnv)


class SandboxWorkloads(Spec, frozen=True):
    enabled: bool | None = None
    defaultWorkload: Annotated[str, _enum("container", "vm-passthrough", "vm-vgpu", default="container")] | None = None
    mode: Annotated[str, _enum("kubevirt", "kata", default="kubevirt")] | None = None


class VfioManagerSpec(Operand, frozen=True):
    driverManager: DriverManager = field(default_factory=DriverManager)


class VgpuManagerSpec(Operand, frozen=True):
    driverManager: DriverManager = field(default_factory=DriverManager)
    kernelModuleConfig: NamedConfig = field(default_factory=NamedConfig)


class VgpuDevicesConfig(NamedConfig, frozen=True):
    default: Annotated[str, _schema(default="default")] | None = None


class VgpuDeviceManagerSpec(Operand, frozen=True):
    config: VgpuDevicesConfig = field(default_factory=VgpuDevicesConfig)


class CcManagerSpec(Operand, frozen=True):
    defaultMode: Annotated[str, _enum("on", "off", "devtools")] | None = None


class KataArtifacts(Spec, frozen=True):
    url: str
    pullSecret: str | None = None


class KataRuntimeClass(Spec, frozen=True):
    name: str
    artifacts: KataArtifacts
    nodeSelector: dict[str, str] | None = None


class KataConfig(Spec, frozen=True):
    artifactsDir: Annotated[str, _schema(default="/opt/nvidia-gpu-operator/artifacts/runtimeclasses")] | None = None
    runtimeClasses: list[KataRuntimeClass] | None = None


class KataManagerSpec(Operand, frozen=True):
    config: KataConfig = field(default_factory=KataConfig)


class CdiSpec(Spec, frozen=True):
    enabled: Annotated[bool, _schema(default=True)] | None = None
    default: Off | None = None
    nriPluginEnabled: Off | None = None


class Switch(Spec, frozen=True):
    enabled: bool | None = None


class HostPaths(Spec, frozen=True):
    rootFS: str | None = None
    driverInstallDir: str | None = None
    kubeletRootDir: Annotated[str, _schema(default="/var/lib/kubelet")] | None = None


class ClusterPolicySpec(Spec, frozen=True):
    """``spec`` of a ClusterPolicy (contract 1.2)."""

    operator: OperatorSpec = field(default_factory=OperatorSpec)
    daemonsets: DaemonsetsSpec = field(default_factory=DaemonsetsSpec)
    driver: DriverSpec = field(default_factory=DriverSpec)
    toolkit: ToolkitSpec = field(default_factory=ToolkitSpec)
    devicePlugin: DevicePluginSpec = field(default_factory=DevicePluginSpec)
    dcgm: DcgmSpec = field(default_factory=DcgmSpec)
    dcgmExporter: DcgmExporterSpec = field(default_factory=DcgmExporterSpec)
    gfd: Operand = field(default_factory=Operand)
    nodeStatusExporter: Operand = field(default_factory=Operand)
    mig: MigSpec = field(default_factory=MigSpec)
    migManager: MigManagerSpec = field(default_factory=MigManagerSpec)
    validator: ValidatorSpec = field(default_factory=ValidatorSpec)
    gds: Component = field(default_factory=Component)
    gdrcopy: Component = field(default_factory=Component)
    sandboxWorkloads: SandboxWorkloads = field(default_factory=SandboxWorkloads)
    vfioManager: VfioManagerSpec = field(default_factory=VfioManagerSpec)
    sandboxDevicePlugin: Operand = field(default_factory=Operand)
    kataSandboxDevicePlugin: Operand = field(default_factory=Operand)
    vgpuManager: VgpuManagerSpec = field(default_factory=VgpuManagerSpec)
    vgpuDeviceManager: VgpuDeviceManagerSpec = field(default_factory=VgpuDeviceManagerSpec)
    ccManager: CcManagerSpec = field(default_factory=CcManagerSpec)
    kataManager: KataManagerSpec = field(default_factory=KataManagerSpec)
    cdi: CdiSpec = field(default_factory=CdiSpec)
    psa: Switch = field(default_factory=Switch)
    psp: Switch = field(default_factory=Switch)
    hostPaths: HostPaths = field(default_factory=HostPaths)


class Condition(Spec, frozen=True):
    """A standard Kubernetes condition."""

    type: Annotated[str, _schema(maxLength=316, pattern=QUALIFIED_NAME)]
    status: Annotated[str, _enum("True", "False", "Unknown")]
    reason: Annotated[str, _schema(minLength=1, maxLength=1024, pattern=REASON)] = ""
    message: Annotated[str, _schema(maxLength=32768)] = ""
    lastTransitionTime: Annotated[str, _schema(format="date-time")] | None = None
    observedGeneration: Annotated[int, _schema(format="int64", minimum=0)] | None = None


class ClusterPolicyStatus(Spec, frozen=True):
    """``status`` of a ClusterPolicy (contract 1.7). ``state`` is empty before the first pass."""

    state: Annotated[str, _enum("ignored", "ready", "notReady")] = ""
    namespace: str | None = None
    conditions: list[Condition] = field(default_factory=list)


class Metadata(Spec, frozen=True):
    """The object metadata that the operator reads."""

    name: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    creationTimestamp: str = ""
    deletionTimestamp: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class ClusterPolicy(Spec, frozen=True):
    """A ClusterPolicy as read from a file or from the API server.

    Build it with :func:`groundplane.api.codec.load_cluster_policy`, which also keeps the document it came
    from: unknown fields survive a round trip through :func:`groundplane.api.codec.dump` and are listed.
    """

    apiVersion: str = "nvidia.com/v1"
    kind: str = "ClusterPolicy"
    metadata: Metadata = field(default_factory=Metadata)
    spec: ClusterPolicySpec = field(default_factory=ClusterPolicySpec)
    status: ClusterPolicyStatus = field(default_factory=ClusterPolicyStatus)
