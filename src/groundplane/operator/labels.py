"""Which labels and annotations a node should carry, decided from the node and the policy alone.

One call looks at one node and answers with at most one merge patch (contracts/control-plane.md 3.1 to 3.3). Nothing
here talks to a cluster or remembers an earlier node: the default workload and everything else comes from the policy
each time. When a node is looked at is ``triggers.py``'s business; writing the patch is ``nodes.py``'s.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..api import names
from ..api.clusterpolicy import ClusterPolicySpec
from ..api.release import Release
from ..cluster.views import NodeView

CONTAINER: Final = "container"
VM_PASSTHROUGH: Final = "vm-passthrough"
VM_VGPU: Final = "vm-vgpu"
KATA: Final = "kata"
MIG_DISABLED: Final = "all-disabled"
TRUE: Final = "true"
FALSE: Final = "false"
PAUSED_PREFIX: Final = "paused-for-"
"""Values that the driver manager and the MIG manager park on a deploy label while they work on the node."""

DEPLOYED: Final[Mapping[str, tuple[str, ...]]] = {
    CONTAINER: (
        names.DEPLOY_DRIVER,
        names.DEPLOY_GFD,
        names.DEPLOY_TOOLKIT,
        names.DEPLOY_DEVICE_PLUGIN,
        names.DEPLOY_DCGM,
        names.DEPLOY_DCGM_EXPORTER,
        names.DEPLOY_NODE_STATUS_EXPORTER,
        names.DEPLOY_OPERATOR_VALIDATOR,
        names.DEPLOY_CLIENT,
    ),
    VM_PASSTHROUGH: (
        names.DEPLOY_SANDBOX_DEVICE_PLUGIN,
        names.DEPLOY_SANDBOX_VALIDATOR,
        names.DEPLOY_VFIO_MANAGER,
        names.DEPLOY_KATA_MANAGER,
        names.DEPLOY_CC_MANAGER,
        names.DEPLOY_CLIENT,
    ),
    VM_VGPU: (
        names.DEPLOY_SANDBOX_DEVICE_PLUGIN,
        names.DEPLOY_VGPU_MANAGER,
        names.DEPLOY_VGPU_DEVICE_MANAGER,
        names.DEPLOY_SANDBOX_VALIDATOR,
        names.DEPLOY_CC_MANAGER,
        names.DEPLOY_CLIENT,
    ),
}
"""The operands of each workload config (3.2); mode ``kata`` swaps the device plugin of vm-passthrough."""

UNKNOWN_TO: Final[Mapping[Release, frozenset[str]]] = {Release.V26_3: frozenset({names.DEPLOY_CLIENT})}
"""Deploy labels that a release neither sets nor removes."""

_MIG_PRODUCTS: Final = ("h100", "a100", "a30")


class Upgraded(msgspec.Struct, frozen=True):
    """NVIDIADrivers that are upgraded automatically: their nodes' driver managers leave eviction to the operator.

    Of those in ``unknown``, or of all with ``all_unknown``, it cannot be told: their nodes stay as they are marked.
    """

    drivers: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    all_unknown: bool = False

    def marks(self, owner: str, marked: bool) -> bool:
        """Whether a node of ``owner`` is to be marked; ``marked``: it is now."""
        return owner in self.drivers or (marked and (self.all_unknown or owner in self.unknown))


class LabelPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What node labels depend on of a ClusterPolicy and a release."""

    release: Release = Release.DEFAULT
    sandbox: bool = False
    default_workload: str = CONTAINER
    kata: bool = False
    mig_config: str = ""
    """Value to give ``nvidia.com/mig.config`` where it is missing; empty for none."""
    auto_upgrade: bool = False
    upgraded: Upgraded = Upgraded()


class NodeChange(msgspec.Struct, frozen=True):
    """Keys to set on, or with ``None`` to remove from, one node."""

    name: str
    labels: dict[str, str | None]
    annotations: dict[str, str | None]

    def patch(self, resource_version: str = "") -> dict[str, Any]:
        """The JSON merge patch. With ``resource_version`` it only applies to that version of the node (else 409)."""
        metadata: dict[str, Any] = {}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        if self.labels:
            metadata["labels"] = self.labels
        if self.annotations:
            metadata["annotations"] = self.annotations
        return {"metadata": metadata}


def label_policy(
    spec: ClusterPolicySpec,
    release: Release,
    upgraded: Upgraded = Upgraded(),  # noqa: B008 (it is frozen)
) -> LabelPolicy:
    """The part of ``spec`` that decides node labels, with code defaults filled in (1.2, 3.2, 3.3).

    ``upgraded`` tells the NVIDIADrivers whose upgrade policy upgrades by itself; they count where drivers are
    NVIDIADrivers' and upgraded by their own policies, which is from 26.7 on.
    """
    sandbox = bool(spec.sandboxWorkloads.enabled)
    mig_on = spec.migManager.enabled is not False
    return LabelPolicy(
        release=release,
        sandbox=sandbox,
        default_workload=spec.sandboxWorkloads.defaultWorkload or CONTAINER,
        kata=spec.sandboxWorkloads.mode == KATA,
        mig_config=MIG_DISABLED if mig_on and spec.migManager.config.default == MIG_DISABLED else "",
        auto_upgrade=bool(spec.driver.upgradePolicy.autoUpgrade) and not sandbox and _has_drivers(spec, release),
        upgraded=upgraded if _upgraded_by_crd(spec, release) else Upgraded(),
    )


def _upgraded_by_crd(spec: ClusterPolicySpec, release: Release) -> bool:
    return bool(spec.driver.useNvidiaDriverCRD) and release is not Release.V26_3


def _has_drivers(spec: ClusterPolicySpec, release: Release) -> bool:
    """Whether the auto-upgrade annotation is ClusterPolicy's to set (3.3)."""
    enabled = spec.driver.enabled is not False
    by_crd = bool(spec.driver.useNvidiaDriverCRD)
    return enabled or by_crd if release is Release.V26_3 else enabled and not by_crd


def managed_keys(release: Release) -> frozenset[str]:
    """Every deploy label that ``release`` sets and removes."""
    return _MANAGED[release]


def is_gpu_node(labels: Mapping[str, str]) -> bool:
    """Node feature discovery saw an NVIDIA GPU (3.1): one of three labels is exactly ``true``."""
    return any(labels.get(key) == TRUE for key in names.PCI_GPU_LABELS)


def mig_capable(labels: Mapping[str, str]) -> bool:
    """Whether the node's GPUs can be split (3.2): GFD's word where there is one, else the product's name."""
    if labels.get(names.VGPU_HOST_DRIVER_VERSION):
        return False
    said = labels.get(names.MIG_CAPABLE)
    if said is not None:
        return said == TRUE
    product = labels.get(names.GPU_PRODUCT, "").lower()
    return any(name in product for name in _MIG_PRODUCTS)


def workload_config(labels: Mapping[str, str], want: LabelPolicy) -> str:
    """The node's workload config (3.2, rule 2). An unknown default of the policy itself counts as ``container``."""
    if not want.sandbox:
        return CONTAINER
    asked = labels.get(names.WORKLOAD_CONFIG, "")
    if asked in DEPLOYED:
        return asked
    return want.default_workload if want.default_workload in DEPLOYED else CONTAINER


def workload_problem(node: NodeView, want: LabelPolicy) -> str | None:
    """What is wrong with the node's workload label, for a person; ``None`` when it is fine, absent or not looked at."""
    asked = node.labels.get(names.WORKLOAD_CONFIG, "")
    if not want.sandbox or not asked or asked in DEPLOYED:
        return None
    return (
        f"label {names.WORKLOAD_CONFIG} is {asked!r}, not one of {', '.join(DEPLOYED)}: "
        f"the policy's default {workload_config(node.labels, want)!r} is used; correct or remove the label"
    )


def node_changes(node: NodeView, want: LabelPolicy) -> NodeChange | None:
    """What to change on ``node``, or ``None`` when it is right or no business of ours."""
    labels, annotations = node.labels, node.annotations
    change: dict[str, str | None] = {}
    if is_gpu_node(labels):
        if labels.get(names.GPU_PRESENT) != TRUE:
            change[names.GPU_PRESENT] = TRUE
        change |= _deploy_changes(labels, want)
        marked = annotations.get(names.DRIVER_UPGRADE_ENABLED) == TRUE
        annotated = want.auto_upgrade or want.upgraded.marks(labels.get(names.DRIVER_OWNER, ""), marked)
    elif labels.get(names.GPU_PRESENT) == TRUE:
        change[names.GPU_PRESENT] = FALSE
        change |= _blink_changes(labels, want)
        annotated = False
    else:
        return None
    marks = _annotation_changes(annotations, annotated)
    return NodeChange(node.name, change, marks) if change or marks else None


def _deploy_changes(labels: Mapping[str, str], want: LabelPolicy) -> dict[str, str | None]:
    """Rules 1 to 6 of 3.2, for a node with a GPU."""
    managed = managed_keys(want.release)
    if labels.get(names.DEPLOY_OPERANDS) == FALSE:
        return {key: None for key in labels if key in managed}
    config = workload_config(labels, want)
    wanted = _EFFECTIVE[want.release, config, want.kata]
    kept = wanted | {names.DEPLOY_MIG_MANAGER} if config == CONTAINER else wanted
    change: dict[str, str | None] = {key: None for key in labels if key in managed and key not in kept}
    change |= {key: TRUE for key in wanted if not labels.get(key)}
    if config == CONTAINER and mig_capable(labels):
        if not labels.get(names.DEPLOY_MIG_MANAGER):
            change[names.DEPLOY_MIG_MANAGER] = TRUE
        if want.mig_config and not labels.get(names.MIG_CONFIG):
            change[names.MIG_CONFIG] = want.mig_config
    return change


def _blink_changes(labels: Mapping[str, str], want: LabelPolicy) -> dict[str, str | None]:
    """The GPU is gone, perhaps only while NFD restarts: drop deploy labels, but not what others decided (3.1).

    A person's ``false`` must still be there when the GPU labels come back, and so must the mark of a manager that has
    paused an operand: re-adding ``true`` would start that operand in the middle of a driver or MIG change.
    """
    managed = managed_keys(want.release)
    return {
        key: None
        for key, value in labels.items()
        if key in managed and value != FALSE and not value.startswith(PAUSED_PREFIX)
    }


def _annotation_changes(annotations: Mapping[str, str], wanted: bool) -> dict[str, str | None]:
    present = annotations.get(names.DRIVER_UPGRADE_ENABLED)
    if wanted:
        return {} if present == TRUE else {names.DRIVER_UPGRADE_ENABLED: TRUE}
    return {} if present is None else {names.DRIVER_UPGRADE_ENABLED: None}


def _effective(release: Release, config: str, kata: bool) -> frozenset[str]:
    """The deploy labels of one workload config in one release and sandbox mode."""
    keys = set(DEPLOYED[config]) - UNKNOWN_TO.get(release, frozenset())
    if config == VM_PASSTHROUGH and kata:
        keys.remove(names.DEPLOY_SANDBOX_DEVICE_PLUGIN)
        keys.add(names.DEPLOY_KATA_SANDBOX_DEVICE_PLUGIN)
    return frozenset(keys)


_EFFECTIVE: Final = {
    (release, config, kata): _effective(release, config, kata)
    for release in Release
    for config in DEPLOYED
    for kata in (False, True)
}
_MANAGED: Final = {
    release: frozenset({names.DEPLOY_MIG_MANAGER}).union(
        *(keys for (of, _, _), keys in _EFFECTIVE.items() if of is release)
    )
    for release in Release
}
