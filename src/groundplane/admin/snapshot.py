"""A cluster as far as the API alone tells it, in plain data: what checks judge, live or from an archive.

Objects come in as the API's JSON; :meth:`Snapshot.of` keeps what checks use and no more. What could not be read is
said (:attr:`Snapshot.unread`), never taken for empty. Nothing here judges.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import msgspec
from msgspec import field

from ..api import names
from ..diagnose.survey import Survey
from .versions import distribution, os_key

NVIDIA_RESOURCES: Final = "nvidia.com/"
DRIVER_APPS: Final = ("nvidia-driver-daemonset",)
TOOLKIT_APP: Final = "nvidia-container-toolkit-daemonset"
PREINSTALLED: Final = "pre-installed"
"""Value of :data:`names.DEPLOY_DRIVER` on a node whose driver is the host's."""
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
PSA_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
NO_ANSWER: Final = "no permission, or no answer"
_WEBHOOKS: Final = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
KINDS: Final = ("nodes", "pods", "namespaces", "clusterpolicies", "nvidiadrivers", "clusterversions", *_WEBHOOKS)
"""The kinds of a survey that :meth:`Snapshot.of_survey` reads, by plural."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    """As ``key=value:Effect``."""
    provider: str = ""
    """Whose machine it is, as ``spec.providerID`` begins: ``aws``, ``gce``, ``azure``; empty for bare metal."""
    unschedulable: bool = False
    ready: bool = True
    os_image: str = ""
    kernel: str = ""
    runtime: str = ""
    """``containerRuntimeVersion``."""
    kubelet: str = ""
    arch: str = ""
    capacity: Mapping[str, str] = field(default_factory=dict)
    """Of NVIDIA's resources only, like :attr:`allocatable`."""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    seen_gpus: int = 0
    """NVIDIA's GPUs that a look on the node itself found on PCI."""

    @property
    def has_features(self) -> bool:
        """Whether node feature discovery has labelled the node."""
        return any(label.startswith(names.NFD_PREFIX) for label in self.labels)

    @property
    def has_gpu(self) -> bool:
        """Whether a label, a resource, or a look on the node says that there is a GPU."""
        labelled = any(self.labels.get(label) == "true" for label in (names.GPU_PRESENT, *names.PCI_GPU_LABELS))
        return labelled or bool(self.capacity) or bool(self.seen_gpus)

    @property
    def distribution(self) -> str:
        """Which distribution of Kubernetes it runs (versions.distribution)."""
        return distribution(self.kubelet, self.labels)

    @property
    def host_driver(self) -> bool:
        """Whether its driver was found to be the host's own."""
        return self.labels.get(names.DEPLOY_DRIVER) == PREINSTALLED

    @property
    def driver_version(self) -> str:
        """The version of its running driver, as GPU feature discovery labelled it; empty when it did not."""
        full = self.labels.get(f"{names.CUDA_DRIVER_VERSION}.full", "")
        if full:
            return full
        parts = [self.labels.get(f"{names.CUDA_DRIVER}.{part}", "") for part in ("major", "minor", "rev")]
        return ".".join(part for part in parts if part)

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Self:
        """Read a Node."""
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        info: Mapping[str, str] = status.get("nodeInfo") or {}
        conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
        return cls(
            name=str(metadata.get("name") or ""),
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
            taints=tuple(
                f"{taint.get('key', '')}={taint.get('value', '')}:{taint.get('effect', '')}"
                for taint in spec.get("taints") or ()
            ),
            provider=str(spec.get("providerID") or "").partition("://")[0],
            unschedulable=bool(spec.get("unschedulable")),
            ready=conditions.get("Ready") == "True",
            os_image=info.get("osImage", ""),
            kernel=info.get("kernelVersion", ""),
            runtime=info.get("containerRuntimeVersion", ""),
            kubelet=info.get("kubeletVersion", ""),
            arch=info.get("architecture", ""),
            capacity=_resources(status.get("capacity")),
            allocatable=_resources(status.get("allocatable")),
        )


def _resources(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (amounts or {}).items() if name.startswith(NVIDIA_RESOURCES)}


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pod."""

    namespace: str
    name: str
    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    phase: str = ""
    runtime_class: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)
    """NVIDIA's resources that its containers are limited to, of each the largest amount."""
    visible_devices: tuple[str, ...] = ()
    """Values of ``NVIDIA_VISIBLE_DEVICES`` that containers without a limit on a GPU set themselves."""

    @property
    def is_driver(self) -> bool:
        """Whether it brings a driver: of the ClusterPolicy, of an NVIDIADriver, or OpenShift's."""
        return self.labels.get("app") in DRIVER_APPS or self.labels.get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT

    @property
    def where(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @classmethod
    def of(cls, pod: Mapping[str, Any]) -> Self:
        """Read a Pod."""
        metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        limits: dict[str, str] = {}
        visible: list[str] = []
        for container in containers:
            own = _resources((container.get("resources") or {}).get("limits"))
            limits |= own
            if not own:
                visible += [env["value"] for env in container.get("env") or () if _sets_devices(env)]
        return cls(
            namespace=metadata.get("namespace") or "",
            name=str(metadata.get("name") or ""),
            node=spec.get("nodeName") or "",
            labels=metadata.get("labels") or {},
            phase=status.get("phase", ""),
            runtime_class=spec.get("runtimeClassName") or "",
            limits=limits,
            visible_devices=tuple(visible),
        )


def _sets_devices(env: Mapping[str, Any]) -> bool:
    """Whether an entry asks for devices; ``void`` and ``none`` ask for none."""
    return env.get("name") == VISIBLE_DEVICES and env.get("value") not in (None, "", "void", "none")


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that a set of nodes gets: the ClusterPolicy's, or an NVIDIADriver's."""

    source: str
    """``ClusterPolicy``, ``NVIDIADriver/name`` or wherever else it was written."""
    version: str = ""
    """Empty: the release's default."""
    precompiled: bool = False
    module_type: str = "auto"
    open_modules: bool = False
    """``useOpenKernelModules``, deprecated."""
    selector: Mapping[str, str] = field(default_factory=dict)
    default: bool = False
    """For the nodes that no other NVIDIADriver selects; releases before 26.7 do not know it."""

    def selects(self, node: NodeFacts) -> bool:
        """Whether a node has every label of the selector; without one, every node is meant."""
        return all(node.labels.get(label) == value for label, value in self.selector.items())

    @classmethod
    def of(cls, driver: Mapping[str, Any]) -> Self:
        """Read an NVIDIADriver."""
        spec = driver.get("spec") or {}
        return cls(
            source=f"NVIDIADriver/{driver['metadata']['name']}",
            version=str(spec.get("version") or ""),
            precompiled=bool(spec.get("usePrecompiled")),
            module_type=spec.get("kernelModuleType") or "auto",
            open_modules=bool(spec.get("useOpenKernelModules")),
            selector=spec.get("nodeSelector") or {},
            default=bool(spec.get("default")),
        )


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator is, or will be, told: from a ClusterPolicy's spec or from the chart's values.

    An empty text or None is not set: the release's default holds.
    """

    driver: bool = True
    driver_version: str = ""
    precompiled: bool = False
    module_type: str = "auto"
    open_modules: bool = False
    """``driver.useOpenKernelModules``, deprecated."""
    driver_resources: bool = False
    """Drivers come from NVIDIADriver objects."""
    toolkit: bool = True
    toolkit_env: Mapping[str, str] = field(default_factory=dict)
    cdi: bool | None = None
    nri: bool = False
    mig_strategy: str = ""
    nfd: bool = True
    """Whether the chart brings node feature discovery; a ClusterPolicy does not say."""
    tree: Mapping[str, Any] = field(default_factory=dict)
    """What all this was read from. May hold secrets: it is never printed."""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self:
        """Read a ClusterPolicy's ``spec`` or chart values, which spell all of this alike but for NVIDIADriver.

        Parts of another shape, which the API server and charts refuse, are taken as not set.
        """
        driver, toolkit, cdi = (_part(spec, name) for name in ("driver", "toolkit", "cdi"))
        crd = _part(driver, "nvidiaDriverCRD").get("enabled", driver.get("useNvidiaDriverCRD"))
        env = toolkit.get("env")
        variables = [each for each in env if isinstance(each, Mapping)] if isinstance(env, list) else []
        return cls(
            driver=_default(driver.get("enabled"), True),
            driver_version=str(driver.get("version") or ""),
            precompiled=bool(driver.get("usePrecompiled")),
            module_type=driver.get("kernelModuleType") or "auto",
            open_modules=bool(driver.get("useOpenKernelModules")),
            driver_resources=bool(crd),
            toolkit=_default(toolkit.get("enabled"), True),
            toolkit_env={str(each.get("name")): str(each.get("value", "")) for each in variables},
            cdi=cdi.get("enabled") if isinstance(cdi.get("enabled"), bool) else None,
            nri=bool(cdi.get("nriPluginEnabled")),
            mig_strategy=str(_part(spec, "mig").get("strategy") or ""),
            nfd=_default(_part(spec, "nfd").get("enabled"), True),
            tree=spec,
        )


def _part(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = spec.get(name)
    return part if isinstance(part, Mapping) else {}


def _default(value: Any, default: bool) -> bool:
    return value if isinstance(value, bool) else default


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The cluster."""

    version: str = ""
    """``gitVersion`` of the API server; empty when it could not be read."""
    nodes: tuple[NodeFacts, ...] = ()
    pods: tuple[PodFacts, ...] = ()
    settings: Settings | None = None
    """Of the ClusterPolicy there is; None without one."""
    drivers: tuple[DriverFacts, ...] = ()
    """Of NVIDIADriver objects."""
    namespace: str = "gpu-operator"
    """The operator's."""
    namespace_labels: Mapping[str, str] | None = None
    """None: there is no such namespace yet."""
    webhooks: tuple[str, ...] = ()
    """Names of validating and mutating webhook configurations."""
    openshift: bool = False
    unread: Mapping[str, str] = field(default_factory=dict)
    """Resources that could not be read, such as ``nodes``, with the reason: of those that :meth:`of` takes."""

    @functools.cached_property
    def gpu_nodes(self) -> tuple[NodeFacts, ...]:
        """Nodes that say they have GPUs."""
        return tuple(node for node in self.nodes if node.has_gpu)

    @functools.cached_property
    def candidates(self) -> tuple[NodeFacts, ...]:
        """GPU nodes, or all nodes as long as none says that it is one."""
        return self.gpu_nodes or self.nodes

    @functools.cached_property
    def by_name(self) -> Mapping[str, NodeFacts]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    def os_key(self, node: NodeFacts) -> str:
        """The support matrix's key of a node's operating system."""
        return os_key(node.labels, node.os_image, openshift=self.openshift)

    def pods_on(self, node: NodeFacts) -> tuple[PodFacts, ...]:
        """Pods that are bound to a node and have not ended."""
        return tuple(self._pods_by_node.get(node.name, ()))

    @functools.cached_property
    def _pods_by_node(self) -> Mapping[str, list[PodFacts]]:
        found: dict[str, list[PodFacts]] = {}
        for pod in self.pods:
            if pod.phase not in ("Succeeded", "Failed"):
                found.setdefault(pod.node, []).append(pod)
        return found

    @classmethod
    def of(
        cls,
        *,
        version: str = "",
        nodes: Iterable[Mapping[str, Any]] = (),
        pods: Iterable[Mapping[str, Any]] = (),
        policies: Iterable[Mapping[str, Any]] = (),
        drivers: Iterable[Mapping[str, Any]] = (),
        namespace: str = "gpu-operator",
        namespaces: Iterable[Mapping[str, Any]] = (),
        webhooks: Iterable[Mapping[str, Any]] = (),
        openshift: bool = False,
        unread: Iterable[str] | Mapping[str, str] = (),
    ) -> Self:
        """Read a cluster's objects as the API gives them; ``unread`` names those that could not be asked for, and why.

        Its words are ``nodes``, ``pods``, ``clusterpolicies``, ``nvidiadrivers``, ``namespaces`` and ``webhooks``.

        Of several ClusterPolicies the oldest counts, as it does for the operator; the others are ignored.
        """
        oldest = min(policies, key=_age, default=None)
        found = next((each for each in namespaces if each["metadata"].get("name") == namespace), None)
        read_nodes = tuple(sorted((NodeFacts.of(node) for node in nodes), key=lambda node: node.name))
        return cls(
            version=version,
            nodes=read_nodes,
            pods=tuple(sorted((PodFacts.of(pod) for pod in pods), key=lambda pod: pod.where)),
            settings=Settings.of(oldest.get("spec") or {}) if oldest is not None else None,
            drivers=tuple(sorted((DriverFacts.of(driver) for driver in drivers), key=lambda each: each.source)),
            namespace=namespace,
            namespace_labels=(found["metadata"].get("labels") or {}) if found is not None else None,
            webhooks=tuple(sorted(str(webhook["metadata"].get("name")) for webhook in webhooks)),
            openshift=openshift or any(node.distribution == "openshift" for node in read_nodes),
            unread=dict(unread) if isinstance(unread, Mapping) else dict.fromkeys(unread, NO_ANSWER),
        )

    @classmethod
    def of_survey(cls, survey: Survey) -> Self:
        """The cluster of a survey of :data:`KINDS`; what it could not read stays unread, with the reason."""
        unread = {plural: _why(survey, plural) for plural in KINDS if not survey.knows(plural)}
        for plural in _WEBHOOKS:
            if plural in unread:
                unread["webhooks"] = unread.pop(plural)
        return cls.of(
            version=survey.version,
            nodes=survey.of_kind("nodes"),
            pods=survey.of_kind("pods"),
            policies=survey.of_kind("clusterpolicies"),
            drivers=survey.of_kind("nvidiadrivers"),
            namespace=survey.namespace,
            namespaces=survey.of_kind("namespaces"),
            webhooks=[each for plural in _WEBHOOKS for each in survey.of_kind(plural)],
            openshift=bool(survey.of_kind("clusterversions")),
            unread=unread,
        )


def _why(survey: Survey, plural: str) -> str:
    """Why a kind is unread, in words that name it."""
    why = survey.unread.get(plural, NO_ANSWER)
    return why if plural in why or " " not in why else f"{plural}: {why}"


def _age(policy: Mapping[str, Any]) -> tuple[str, str]:
    metadata = policy["metadata"]
    return metadata.get("creationTimestamp") or "", metadata["name"]
