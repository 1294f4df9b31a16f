"""What releases of the chart have changed: a table of value changes, and what charts refuse.

contracts/admin-workflow.md 5.1 row by row, and 5.3. A row says when it concerns somebody: if they set the value, if
they do not, or in any case; some ask the cluster besides. Applying rows to the overrides of one cluster, and the
generic rules of 5.2, are left to ``values``.
"""

import enum
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from . import trees
from .hops import Version, component_numbers
from .matrix import Architecture
from .trees import Tree
from .versions import Minor


class Level(enum.IntEnum):
    """How much a change matters, worst first."""

    BREAKS = 0
    """Breaks, or changes what happens without a word."""
    WARN = 1
    INFO = 2

    def __str__(self) -> str:
        return self.name.lower()


class Cluster(msgspec.Struct, frozen=True):
    """What changes ask of a cluster; None where it is not known.

    ``gpus`` are the support matrix's rows of its GPUs' architectures by name, ``master_taints``: a node has the taint
    ``node-role.kubernetes.io/master``, ``device_classes``: it serves DeviceClass of ``resource.k8s.io``.
    """

    gpus: Mapping[str, Architecture] | None = None
    kubernetes: Minor | None = None
    master_taints: bool | None = None
    device_classes: bool | None = None


NOTHING_KNOWN: Final = Cluster()


class Situation(msgspec.Struct, frozen=True):
    """One cluster's upgrade: its overrides, and the values that the old and the new chart make of them."""

    overrides: Tree
    old: Tree
    new: Tree
    cluster: Cluster = Cluster()

    def sets(self, pattern: str) -> tuple[str, ...]:
        """The overrides that a pattern such as ``driver.version`` or ``*.hostNetwork`` names, or that lie below it."""
        written = (trees.dotted(path) for path, _ in trees.leaves(self.overrides))
        return tuple(each for each in written if matches(pattern, each))


Told = bool | None
"""What a predicate says; None if the cluster's side is not known."""
Predicate = Callable[[Situation], Told]
Concerns = Literal["set", "unset", "always"]


class Change(NamedTuple):
    """A row of the table.

    ``concerns``: those who set one of ``paths``, those who do not, or all; ``when`` narrows that, and if it says no,
    ``otherwise`` is the level (None: nothing is said). ``removed``: the new chart has no such value.
    """

    release: Version
    paths: tuple[str, ...]
    change: str
    level: Level
    message: str
    concerns: Concerns = "always"
    when: Predicate | None = None
    otherwise: Level | None = None
    removed: bool = False


class Hit(NamedTuple):
    """A change that concerns a cluster: by which paths, how much; not ``certain`` if the cluster was not known."""

    change: Change
    paths: tuple[str, ...]
    level: Level
    certain: bool = True


class Move(NamedTuple):
    """A value that another has taken the place of; ``becomes`` maps old values, others are dropped."""

    release: Version
    old: str
    new: str
    becomes: tuple[tuple[Any, Any], ...]


class Refusal(NamedTuple):
    """Values that charts from ``since`` on do not accept."""

    since: Version
    paths: tuple[str, ...]
    text: str
    refuses: Predicate


def matches(pattern: str, path: str) -> bool:
    """Whether a path is what a pattern names, or lies below it."""
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, pattern + ".*")


def applies(change: Change, situation: Situation) -> Hit | None:
    """Whether, and by which paths, a change concerns a cluster."""
    paths = _concerned(change, situation)
    if not paths:
        return None
    told = change.when(situation) if change.when is not None else True
    if told is not False:
        return Hit(change, paths, change.level, told is not None)
    return Hit(change, paths, change.otherwise) if change.otherwise is not None else None


def _concerned(change: Change, situation: Situation) -> tuple[str, ...]:
    if change.concerns == "always":
        return change.paths
    found = {pattern: situation.sets(pattern) for pattern in change.paths}
    if change.concerns == "unset":
        return tuple(pattern for pattern, paths in found.items() if not paths)
    return tuple(path for paths in found.values() for path in paths)


def between(source: Version, target: Version) -> tuple[Change, ...]:
    """The changes of an upgrade, oldest first; values that are long gone too, as somebody may still set them."""
    return tuple(each for each in CHANGES if each.release <= target and (each.removed or source < each.release))


def refused(values: Tree, target: Version, cluster: Cluster) -> tuple[Refusal, ...]:
    """Why the chart of ``target`` does not accept these values (defaults merged with overrides)."""
    situation = Situation({}, values, values, cluster)
    return tuple(each for each in REFUSALS if each.since <= target and each.refuses(situation))


# --- What rows ask ----------------------------------------------------------------------------------------------------


def _on(path: str) -> Predicate:
    return lambda situation: bool(trees.get(situation.new, path))


def _is(path: str, value: object) -> Predicate:
    return lambda situation: bool(trees.get(situation.new, path) == value)


def _all(*predicates: Predicate) -> Predicate:
    def told(situation: Situation) -> Told:
        answers = [each(situation) for each in predicates]
        return False if False in answers else None if None in answers else True

    return told


def branch(version: object) -> int | None:
    """The driver branch of a version or a bare branch; None for a digest or nothing."""
    found = component_numbers(str(version or ""))
    return found[0] if found else None


def _old_branch_set(situation: Situation) -> Told:
    return branch(trees.get(situation.overrides, "driver.version")) in (535, 550)


def _needs_closed_modules(situation: Situation) -> Told:
    gpus = situation.cluster.gpus
    return None if gpus is None else any(not each.open for each in gpus.values())


def outlived(gpus: Mapping[str, Architecture], driver: object) -> dict[str, int]:
    """The architectures that a driver no longer runs, each with its last driver branch."""
    wanted = branch(driver)
    ends = {name: row.last_branch for name, row in gpus.items() if row.last_branch is not None}
    return {name: last for name, last in ends.items() if wanted is not None and wanted > last}


def _driver_too_new(situation: Situation) -> Told:
    gpus = situation.cluster.gpus
    return None if gpus is None else bool(outlived(gpus, trees.get(situation.new, "driver.version")))


def _kubernetes_before(limit: Minor) -> Predicate:
    def told(situation: Situation) -> Told:
        found = situation.cluster.kubernetes
        return None if found is None else found < limit

    return told


def _master_not_tolerated(situation: Situation) -> Told:
    lists = (trees.get(situation.new, path) or [] for path in _MASTER_PATHS)
    return False if all(map(_tolerates_master, lists)) else situation.cluster.master_taints


def _tolerates_master(tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(each.get("key") in (None, "", "node-role.kubernetes.io/master") for each in tolerations)


_DRIVER: Final = _on("driver.enabled")
_EXPORTER: Final = _on("dcgmExporter.enabled")
_SANDBOX: Final = _on("sandboxWorkloads.enabled")
_NRI: Final = _on("cdi.nriPluginEnabled")
_CLUSTER: Final = _on("gpuCluster.deployCR")
_MASTER_PATHS: Final = ("operator.tolerations", "node-feature-discovery.worker.tolerations")
_ENVIRONMENTS: Final = (
    "driver.manager.env",
    "devicePlugin.env",
    "gfd.env",
    "dcgmExporter.env",
    "migManager.env",
    "validator.plugin.env",
    "vfioManager.driverManager.env",
    "vgpuManager.driverManager.env",
)
_V24_9_0: Final = Version(24, 9, 0)
_V25_3_0: Final = Version(25, 3, 0)
_V25_3_1: Final = Version(25, 3, 1)
_V25_3_3: Final = Version(25, 3, 3)
_V25_10_0: Final = Version(25, 10, 0)
_V26_3_0: Final = Version(26, 3, 0)
_V26_3_1: Final = Version(26, 3, 1)
_V26_3_2: Final = Version(26, 3, 2)
_V26_7_0: Final = Version(26, 7, 0)

# --- 5.1 --------------------------------------------------------------------------------------------------------------

CHANGES: Final = (
    Change(
        _V24_9_0,
        ("operator.upgradeCRD",),
        "false -> true",
        Level.WARN,
        "a hook brings the CRDs up to date before the upgrade: nodes must be able to pull the operator's image, or the "
        "upgrade hangs and fails",
        "unset",
    ),
    Change(
        _V25_3_0,
        ("driver.useOpenKernelModules",),
        "removed",
        Level.BREAKS,
        "the value is ignored: set driver.kernelModuleType to open instead",
        "set",
        removed=True,
    ),
    Change(
        _V25_3_0,
        ("driver.kernelModuleType",),
        "new, auto",
        Level.BREAKS,
        "auto does not work with the driver branches 535 and 550, one of which is set: set driver.kernelModuleType to "
        "open or proprietary",
        "unset",
        _all(_DRIVER, _old_branch_set),
    ),
    Change(
        _V25_3_0,
        ("driver.version",),
        "branch 550 -> 570, with open kernel modules",
        Level.BREAKS,
        "the driver is a new branch with open kernel modules, and GPUs here need proprietary ones (Maxwell, Pascal, "
        "Volta): leave driver.kernelModuleType at auto, which chooses them",
        "unset",
        _all(_DRIVER, _needs_closed_modules),
        Level.WARN,
    ),
    Change(
        _V25_3_0,
        ("operator.defaultRuntime",),
        "removed (was docker)",
        Level.WARN,
        "the value is ignored: the operator finds the runtime by itself",
        "set",
        removed=True,
    ),
    Change(
        _V25_3_0,
        ("kubeVersion",),
        "Kubernetes 1.29 or newer",
        Level.BREAKS,
        "Kubernetes is too old for this release, and Helm does not refuse it: upgrade the cluster first",
        when=_kubernetes_before((1, 29)),
    ),
    Change(
        _V25_3_1,
        ("dcgmExporter.service.internalTrafficPolicy",),
        "new, Cluster",
        Level.INFO,
        "who reaches the exporter's Service can be kept to its own node",
        "unset",
    ),
    Change(
        _V25_3_1,
        ("node-feature-discovery.enableNodeFeatureApi",),
        "removed",
        Level.WARN,
        "the value is ignored: node-feature-discovery always uses its NodeFeature API",
        "set",
        removed=True,
    ),
    Change(
        _V25_3_3,
        _ENVIRONMENTS,
        "filled lists -> []",
        Level.BREAKS,
        "these defaults have moved into the operator, and from v25.3.4 on what is set here wins over them: a list that "
        "was copied from an older chart freezes its settings; keep only what is yours",
        "set",
    ),
    Change(
        _V25_10_0,
        ("cdi.enabled",),
        "false -> true",
        Level.BREAKS,
        "GPUs come into containers by CDI, and nvidia is no longer made the runtime's default: management containers "
        "that use NVIDIA_VISIBLE_DEVICES need runtimeClassName: nvidia, and Run:ai needs 2.23.35 or 2.24.38",
        "unset",
    ),
    Change(_V25_10_0, ("cdi.default",), "removed", Level.WARN, "the value is ignored", "set", removed=True),
    Change(
        _V25_10_0,
        ("toolkit.env",),
        "runtime configured by a drop-in file instead of edits of its own",
        Level.BREAKS,
        "the runtime is configured in /etc/containerd/conf.d/99-nvidia.toml: the settings for MicroK8s have changed, "
        "and toolkit 1.18.0 drops imports that are there (1.18.1 keeps them)",
        when=_on("toolkit.enabled"),
    ),
    Change(
        _V25_10_0,
        ("driver.licensingConfig.configMapName",),
        "deprecated, secretName is new",
        Level.WARN,
        "move the vGPU licence into a Secret and name it in driver.licensingConfig.secretName; ConfigMaps still work",
        "set",
    ),
    Change(
        _V25_10_0,
        ("validator.repository", "validator.image", "nodeStatusExporter.repository", "nodeStatusExporter.image"),
        "nvcr.io/nvidia/cloud-native, gpu-operator-validator -> nvcr.io/nvidia, gpu-operator",
        Level.BREAKS,
        "the validator is in the operator's image now, and there is no new tag under the old name: change overrides "
        "and mirrors that name the old one",
    ),
    Change(
        _V25_10_0,
        ("dcgmExporter.version",),
        "ubuntu22.04 -> distroless",
        Level.WARN,
        "the exporter's image has no shell any more: kubectl exec into it does not work",
        "unset",
        _EXPORTER,
    ),
    Change(
        _V25_10_0,
        ("driver.secretEnv", "dcgmExporter.hostPID"),
        "new",
        Level.INFO,
        "the driver can take environment from a Secret, and the exporter can see the node's processes",
        "unset",
    ),
    Change(
        _V26_3_0,
        ("ccManager.enabled", "ccManager.defaultMode"),
        "false, off -> true, on",
        Level.WARN,
        "confidential computing is switched on where sandbox workloads run by Kata: check these nodes",
        "unset",
        _SANDBOX,
    ),
    Change(
        _V26_3_0,
        ("kataManager.*",),
        "config and repository removed, deprecated",
        Level.BREAKS,
        "the Kata manager goes: install Kata by kata-deploy, and set sandboxWorkloads.mode to kata",
        "set",
    ),
    Change(
        _V26_3_0,
        ("sandboxWorkloads.mode",),
        "new, kubevirt",
        Level.WARN,
        "virtual machines are taken to be KubeVirt's: set it to kata where Kata runs them",
        "unset",
        _SANDBOX,
    ),
    Change(
        _V26_3_0,
        ("operator.initContainer.*",),
        "removed",
        Level.WARN,
        "the value is ignored: the operator has no init container any more",
        "set",
        removed=True,
    ),
    Change(
        _V26_3_0,
        _MASTER_PATHS,
        "tolerations and affinity for node-role.kubernetes.io/master removed",
        Level.BREAKS,
        "nodes still have the taint node-role.kubernetes.io/master, which the operator and the NFD worker no longer "
        "tolerate: add the toleration to both",
        when=_master_not_tolerated,
    ),
    Change(
        _V26_3_0,
        ("cdi.nriPluginEnabled",),
        "new, false",
        Level.INFO,
        "GPUs can be injected by an NRI plugin, without a runtime class",
        "unset",
    ),
    Change(
        _V26_3_0,
        ("vfioManager.repository",),
        "nvcr.io/nvidia -> nvcr.io/nvidia/cloud-native",
        Level.WARN,
        "mirrors must have the VFIO manager's image under its new repository",
        "unset",
        _SANDBOX,
    ),
    Change(
        _V26_3_0,
        ("migManager.config.name",),
        "a fixed ConfigMap -> layouts made on each node",
        Level.WARN,
        "the ConfigMap default-mig-parted-config is no more: name one of your own, or none for layouts made from the "
        "node's hardware",
        "set",
        _is("migManager.config.name", "default-mig-parted-config"),
    ),
    Change(
        _V26_3_0,
        ("driver.*",),
        "a driver that restarts keeps its kernel modules if its configuration is the same",
        Level.WARN,
        "loaded modules are kept while the driver's configuration digest is unchanged",
        when=_DRIVER,
    ),
    Change(_V26_3_1, ("*.hostNetwork",), "new, false", Level.INFO, "operands can run in the node's network", "unset"),
    Change(
        _V26_3_1,
        ("ccManager.env",),
        "CC_CAPABLE_DEVICE_IDS removed",
        Level.WARN,
        "the manager finds devices that can do confidential computing by itself",
        when=_all(_SANDBOX, _on("ccManager.enabled")),
    ),
    Change(
        _V26_3_2,
        ("dcgmExporter.annotations", "dcgmExporter.enablePodLabels", "dcgmExporter.enablePodUID"),
        "new",
        Level.INFO,
        "metrics can have the labels and uid of pods; that lets the exporter read all pods of the cluster",
        "unset",
    ),
    Change(
        _V26_7_0,
        ("driver.version",),
        "580.126.20 -> 595.91.07",
        Level.BREAKS,
        "580 is the last branch for Maxwell, Pascal and Volta (V100, P100, P40, P4): keep a driver of branch 580 for "
        "these nodes",
        "unset",
        _all(_DRIVER, _driver_too_new),
        Level.WARN,
    ),
    Change(
        _V26_7_0,
        ("dcgmExporter.serviceMonitor.enabled",),
        "false -> true",
        Level.BREAKS,
        "a ServiceMonitor is made, which needs the CRD of the Prometheus operator; where you have one of your own, "
        "metrics are scraped twice: remove yours or set this to false",
        "unset",
        _EXPORTER,
    ),
    Change(
        _V26_7_0,
        ("clusterPolicy.deployCR", "gpuCluster.deployCR", "draDriver.*"),
        "new, true and false",
        Level.WARN,
        "there is a second custom resource, GPUCluster, for Dynamic Resource Allocation: it and ClusterPolicy exclude "
        "each other",
        "unset",
    ),
    Change(
        _V26_7_0,
        ("hostPaths.kubeletRootDir",),
        "new, empty for /var/lib/kubelet",
        Level.INFO,
        "kubelets with another root folder are supported",
        "unset",
    ),
    Change(
        _V26_7_0,
        ("operator.nodeSelector",),
        "new default kubernetes.io/os: linux",
        Level.INFO,
        "the operator runs on Linux nodes only",
        "unset",
    ),
    Change(
        _V26_7_0,
        ("dcgm.version",),
        "ubuntu22.04 -> ubuntu24.04",
        Level.WARN,
        "mirrors must have DCGM's image under its new tag",
        "unset",
        _on("dcgm.enabled"),
    ),
    Change(
        _V26_7_0,
        ("operator.env", "dcgmExporter.serviceMonitor.scrapeTimeout"),
        "new",
        Level.INFO,
        "the operator takes further environment; scrapes end after 10 s",
        "unset",
    ),
)
"""contracts/admin-workflow.md 5.1, oldest first."""

MOVES: Final = (Move(_V25_3_0, "driver.useOpenKernelModules", "driver.kernelModuleType", ((True, "open"),)),)
"""Removed values that have a successor."""

# --- 5.3 --------------------------------------------------------------------------------------------------------------


def _empty(path: str) -> Predicate:
    return lambda situation: not trees.get(situation.new, path)


def _no_device_classes(situation: Situation) -> Told:
    served = situation.cluster.device_classes
    return None if served is None else not served


_PLUGIN_CONFIG: Final = _on("devicePlugin.config.create")

REFUSALS: Final = (
    Refusal(
        _V26_3_0,
        ("cdi.nriPluginEnabled", "cdi.enabled"),
        "cdi.nriPluginEnabled needs CDI: set cdi.enabled to true, or cdi.nriPluginEnabled to false",
        _all(_NRI, _empty("cdi.enabled")),
    ),
    Refusal(
        _V26_7_0,
        ("clusterPolicy.deployCR", "gpuCluster.deployCR"),
        "clusterPolicy.deployCR and gpuCluster.deployCR exclude each other: set one of them to false",
        _all(_CLUSTER, _on("clusterPolicy.deployCR")),
    ),
    Refusal(
        _V26_7_0,
        ("gpuCluster.deployCR", "driver.nvidiaDriverCRD.enabled"),
        "gpuCluster.deployCR needs drivers described by NVIDIADriver objects: set driver.nvidiaDriverCRD.enabled to "
        "true, or driver.enabled to false where nodes have a driver",
        _all(_CLUSTER, _DRIVER, _empty("driver.nvidiaDriverCRD.enabled")),
    ),
    Refusal(
        _V26_7_0,
        ("cdi.nriPluginEnabled", "toolkit.enabled"),
        "cdi.nriPluginEnabled needs the container toolkit, which runs the NRI plugin: set toolkit.enabled to true, or "
        "cdi.nriPluginEnabled to false",
        _all(_NRI, _empty("toolkit.enabled")),
    ),
    Refusal(
        _V26_7_0,
        ("devicePlugin.config.create", "devicePlugin.config.name"),
        "devicePlugin.config.name is empty: name the ConfigMap that devicePlugin.config.create shall make",
        _all(_PLUGIN_CONFIG, _empty("devicePlugin.config.name")),
    ),
    Refusal(
        _V26_7_0,
        ("devicePlugin.config.create", "devicePlugin.config.data"),
        "devicePlugin.config.data is empty: fill it, or set devicePlugin.config.create to false to use a ConfigMap "
        "that is there",
        _all(_PLUGIN_CONFIG, _empty("devicePlugin.config.data")),
    ),
    Refusal(
        _V26_7_0,
        ("gpuCluster.deployCR",),
        "gpuCluster.deployCR needs a cluster with Dynamic Resource Allocation, and this one serves no DeviceClass of "
        "resource.k8s.io (Kubernetes 1.34 does)",
        _all(_CLUSTER, _no_device_classes),
    ),
)
"""contracts/admin-workflow.md 5.3."""
