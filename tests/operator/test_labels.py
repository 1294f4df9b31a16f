"""Node labels: every rule of contracts/control-plane.md 3.1 to 3.3 as a row, and what must hold for any node at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.api import names
from groundplane.api.clusterpolicy import (
    ClusterPolicySpec,
    DriverSpec,
    MigManagerConfig,
    MigManagerSpec,
    SandboxWorkloads,
    UpgradePolicy,
)
from groundplane.api.release import Release
from groundplane.cluster.views import NodeMeta, NodeView
from groundplane.operator import labels, triggers
from groundplane.operator.labels import LabelPolicy, NodeChange, Upgraded

GPU = {names.PCI_GPU_LABELS[0]: "true"}
PRESENT = {names.GPU_PRESENT: "true"}
D = names.DEPLOY_PREFIX
CONTAINER = [
    "driver",
    "gpu-feature-discovery",
    "container-toolkit",
    "device-plugin",
    "dcgm",
    "dcgm-exporter",
    "node-status-exporter",
    "operator-validator",
]
PASSTHROUGH = ["sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager", "client"]
VGPU = ["sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator", "cc-manager", "client"]
SANDBOX = LabelPolicy(sandbox=True)
MARK = names.DRIVER_UPGRADE_ENABLED


def node(have: dict[str, str] | None = None, marks: dict[str, str] | None = None) -> NodeView:
    return NodeView(metadata=NodeMeta(name="n1", labels=dict(have or {}), annotations=dict(marks or {})))


def deploy(*operands: str, value: str | None = "true") -> dict[str, str | None]:
    return {D + operand: value for operand in operands}


def changed(have: dict[str, str | None], want: LabelPolicy, marks: dict[str, str] | None = None) -> NodeChange | None:
    return labels.node_changes(node({k: v for k, v in have.items() if v is not None}, marks), want)


def apply(view: NodeView, change: NodeChange | None) -> NodeView:
    if change is None:
        return view
    merge = lambda old, new: {k: v for k, v in (dict(old) | dict(new)).items() if v is not None}  # noqa: E731
    return node(merge(view.labels, change.labels), merge(view.annotations, change.annotations))


FULL = GPU | PRESENT | deploy(*CONTAINER, "client")

ROWS = [
    ("bare GPU node", GPU, LabelPolicy(), PRESENT | deploy(*CONTAINER, "client")),
    ("26.3 knows no client", GPU, LabelPolicy(release=Release.V26_3), PRESENT | deploy(*CONTAINER)),
    ("second PCI class", {names.PCI_GPU_LABELS[1]: "true"}, LabelPolicy(), PRESENT | deploy(*CONTAINER, "client")),
    ("third PCI class", {names.PCI_GPU_LABELS[2]: "true"}, LabelPolicy(), PRESENT | deploy(*CONTAINER, "client")),
    ("only the exact true counts", {names.PCI_GPU_LABELS[0]: "True"}, LabelPolicy(), None),
    ("nothing at all", {}, LabelPolicy(), None),
    ("CPU node with a stray deploy label", deploy("driver"), LabelPolicy(), None),
    ("CPU node, present=false", {names.GPU_PRESENT: "false"}, LabelPolicy(), None),
    ("right already", FULL, LabelPolicy(), None),
    ("present=false comes back", FULL | {names.GPU_PRESENT: "false"}, LabelPolicy(), PRESENT),
    ("empty counts as missing", FULL | deploy("driver", value=""), LabelPolicy(), deploy("driver")),
    ("values of others stay", FULL | {D + "driver": "pre-installed", D + "dcgm": "paused-for-x"}, LabelPolicy(), None),
    ("opt-out stays", FULL | deploy("dcgm", value="false"), LabelPolicy(), None),
    ("unmanaged keys stay", FULL | deploy("nvsm"), LabelPolicy(), None),
    ("operands off", FULL | deploy("mig-manager") | deploy("operands", value="false"), LabelPolicy(),
     deploy(*CONTAINER, "client", "mig-manager", value=None)),
    ("operands off takes opt-outs too", GPU | PRESENT | deploy("operands", "dcgm", value="false"), LabelPolicy(),
     deploy("dcgm", value=None)),
    ("operands off, bare", GPU | deploy("operands", value="false"), LabelPolicy(), PRESENT),
    ("operands=False is not false", FULL | deploy("operands", value="False"), LabelPolicy(), None),
    ("operands off, no MIG config", GPU | PRESENT | {names.MIG_CAPABLE: "true"} | deploy("operands", value="false"),
     LabelPolicy(mig_config="all-disabled"), None),
    ("GPU gone", PRESENT | deploy(*CONTAINER, "mig-manager"), LabelPolicy(),
     {names.GPU_PRESENT: "false"} | deploy(*CONTAINER, "mig-manager", value=None)),
    ("GPU gone, opt-out stays", PRESENT | deploy("driver") | deploy("dcgm", value="false"), LabelPolicy(),
     {names.GPU_PRESENT: "false"} | deploy("driver", value=None)),
    ("GPU gone in mid-reload", PRESENT | {D + "dcgm": "paused-for-driver-upgrade", D + "driver": "pre-installed"},
     LabelPolicy(), {names.GPU_PRESENT: "false"} | deploy("driver", value=None)),
    ("sandbox, default container", GPU | PRESENT, SANDBOX, deploy(*CONTAINER, "client")),
    ("workload label without sandbox", FULL | {names.WORKLOAD_CONFIG: "vm-vgpu"}, LabelPolicy(), None),
    ("passthrough", GPU | PRESENT | {names.WORKLOAD_CONFIG: "vm-passthrough"}, SANDBOX, deploy(*PASSTHROUGH)),
    ("vgpu", GPU | PRESENT | {names.WORKLOAD_CONFIG: "vm-vgpu"}, SANDBOX, deploy(*VGPU)),
    ("default from the policy", GPU | PRESENT, LabelPolicy(sandbox=True, default_workload="vm-vgpu"), deploy(*VGPU)),
    ("invalid label falls back", GPU | PRESENT | {names.WORKLOAD_CONFIG: "vm"},
     LabelPolicy(sandbox=True, default_workload="vm-vgpu"), deploy(*VGPU)),
    ("impossible default is container", GPU | PRESENT, LabelPolicy(sandbox=True, default_workload="x"),
     deploy(*CONTAINER, "client")),
    ("kata swaps the plugin", GPU | PRESENT | {names.WORKLOAD_CONFIG: "vm-passthrough"},
     LabelPolicy(sandbox=True, kata=True), deploy("kata-sandbox-device-plugin", *PASSTHROUGH[1:])),
    ("vgpu never gets the kata key", GPU | PRESENT | {names.WORKLOAD_CONFIG: "vm-vgpu"},
     LabelPolicy(sandbox=True, kata=True), deploy(*VGPU)),
    ("switching config in one patch", FULL | deploy("mig-manager") | {names.WORKLOAD_CONFIG: "vm-vgpu"}, SANDBOX,
     deploy(*CONTAINER, "mig-manager", value=None) | deploy(*VGPU[:-1])),
    ("kata back to kubevirt", GPU | PRESENT | {names.WORKLOAD_CONFIG: "vm-passthrough"}
     | deploy("kata-sandbox-device-plugin", *PASSTHROUGH[1:]), SANDBOX,
     deploy("kata-sandbox-device-plugin", value=None) | deploy("sandbox-device-plugin")),
    ("MIG capable", FULL | {names.MIG_CAPABLE: "true"}, LabelPolicy(mig_config="all-disabled"),
     deploy("mig-manager") | {names.MIG_CONFIG: "all-disabled"}),
    ("MIG config without a default", FULL | {names.MIG_CAPABLE: "true"}, LabelPolicy(), deploy("mig-manager")),
    ("MIG config set by a person", FULL | deploy("mig-manager") | {names.MIG_CAPABLE: "true", names.MIG_CONFIG: "x"},
     LabelPolicy(mig_config="all-disabled"), None),
    ("empty MIG config", FULL | deploy("mig-manager") | {names.MIG_CAPABLE: "true", names.MIG_CONFIG: ""},
     LabelPolicy(mig_config="all-disabled"), {names.MIG_CONFIG: "all-disabled"}),
    ("MIG manager opted out", FULL | deploy("mig-manager", value="false") | {names.MIG_CAPABLE: "true"}, LabelPolicy(),
     None),
    ("MIG manager stays when capability goes", FULL | deploy("mig-manager"), LabelPolicy(), None),
    ("no MIG in a VM config", GPU | PRESENT | deploy(*VGPU) | {names.WORKLOAD_CONFIG: "vm-vgpu",
     names.MIG_CAPABLE: "true"}, LabelPolicy(sandbox=True, mig_config="all-disabled"), None),
]  # fmt: skip


@pytest.mark.parametrize(("have", "want", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_labels(have: dict[str, str | None], want: LabelPolicy, expected: dict[str, str | None] | None) -> None:
    change = changed(have, want)
    assert (change.labels if change else None) == expected
    assert change is None or change.annotations == {}


@pytest.mark.parametrize(
    ("have", "marks", "auto", "expected"),
    [
        (FULL, {}, True, {MARK: "true"}),
        (FULL, {MARK: "true"}, True, {}),
        (FULL, {MARK: "false"}, True, {MARK: "true"}),
        (FULL, {MARK: "true"}, False, {MARK: None}),
        (FULL, {}, False, {}),
        (FULL | deploy("driver", value="false"), {}, True, {MARK: "true"}),
        (GPU | PRESENT | deploy("operands", value="false"), {}, True, {MARK: "true"}),
        (PRESENT, {MARK: "true"}, True, {MARK: None}),
        ({}, {MARK: "true"}, True, {}),
    ],
)
def test_the_auto_upgrade_annotation(have, marks, auto, expected) -> None:
    change = changed(have, LabelPolicy(auto_upgrade=auto), marks)
    assert (change.annotations if change else {}) == expected


@pytest.mark.parametrize(
    ("have", "expected"),
    [
        ({}, False),
        ({names.MIG_CAPABLE: "true"}, True),
        ({names.MIG_CAPABLE: "false", names.GPU_PRODUCT: "NVIDIA-A100"}, False),
        ({names.GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3"}, True),
        ({names.GPU_PRODUCT: "Tesla-T4"}, False),
        ({names.GPU_PRODUCT: "nvidia-a30"}, True),
        ({names.MIG_CAPABLE: "true", names.VGPU_HOST_DRIVER_VERSION: "550"}, False),
        ({names.MIG_CAPABLE: "true", names.VGPU_HOST_DRIVER_VERSION: ""}, True),
    ],
)
def test_mig_capable(have: dict[str, str], expected: bool) -> None:
    assert labels.mig_capable(have) is expected


UPGRADE = UpgradePolicy(autoUpgrade=True)


@pytest.mark.parametrize(
    ("spec", "release", "expected"),
    [
        (ClusterPolicySpec(), Release.V26_7, LabelPolicy()),
        (ClusterPolicySpec(driver=DriverSpec(upgradePolicy=UPGRADE)), Release.V26_7, LabelPolicy(auto_upgrade=True)),
        (ClusterPolicySpec(driver=DriverSpec(enabled=False, upgradePolicy=UPGRADE)), Release.V26_7, LabelPolicy()),
        (
            ClusterPolicySpec(driver=DriverSpec(useNvidiaDriverCRD=True, upgradePolicy=UPGRADE)),
            Release.V26_7,
            LabelPolicy(),
        ),
        (
            ClusterPolicySpec(driver=DriverSpec(enabled=False, useNvidiaDriverCRD=True, upgradePolicy=UPGRADE)),
            Release.V26_3,
            LabelPolicy(release=Release.V26_3, auto_upgrade=True),
        ),
        (
            ClusterPolicySpec(
                driver=DriverSpec(upgradePolicy=UPGRADE),
                sandboxWorkloads=SandboxWorkloads(enabled=True, defaultWorkload="vm-vgpu", mode="kata"),
            ),
            Release.V26_7,
            LabelPolicy(sandbox=True, default_workload="vm-vgpu", kata=True),
        ),
        (
            ClusterPolicySpec(migManager=MigManagerSpec(config=MigManagerConfig(default="all-disabled"))),
            Release.V26_7,
            LabelPolicy(mig_config="all-disabled"),
        ),
        (
            ClusterPolicySpec(
                migManager=MigManagerSpec(enabled=False, config=MigManagerConfig(default="all-disabled"))
            ),
            Release.V26_7,
            LabelPolicy(),
        ),
    ],
)
def test_what_labels_depend_on(spec: ClusterPolicySpec, release: Release, expected: LabelPolicy) -> None:
    assert labels.label_policy(spec, release) == expected


def test_an_invalid_workload_label_is_explained() -> None:
    odd = node(GPU | {names.WORKLOAD_CONFIG: "vm"})
    assert "'vm'" in str(labels.workload_problem(odd, SANDBOX))
    assert labels.workload_problem(odd, LabelPolicy()) is None
    assert labels.workload_problem(node(GPU), SANDBOX) is None
    assert labels.workload_problem(node({names.WORKLOAD_CONFIG: "vm-vgpu"}), SANDBOX) is None


def test_the_patch() -> None:
    change = NodeChange("n", {"a": None}, {"b": "true"})
    assert change.patch() == {"metadata": {"labels": {"a": None}, "annotations": {"b": "true"}}}
    assert NodeChange("n", {}, {"b": "x"}).patch("7") == {
        "metadata": {"resourceVersion": "7", "annotations": {"b": "x"}}
    }


KEYS = sorted(
    {*names.PCI_GPU_LABELS, names.GPU_PRESENT, names.DEPLOY_OPERANDS, names.WORKLOAD_CONFIG, names.MIG_CAPABLE}
    | {names.MIG_CONFIG, names.GPU_PRODUCT, D + "nvsm", "kubernetes.io/arch", *labels.managed_keys(Release.V26_7)}
)
VALUES = st.sampled_from(["true", "false", "", "pre-installed", "paused-for-mig-change", *labels.DEPLOYED, "A100"])
NODES = st.builds(node, st.dictionaries(st.sampled_from(KEYS), VALUES), st.dictionaries(st.just(MARK), VALUES))
POLICIES = st.builds(
    LabelPolicy,
    release=st.sampled_from(Release),
    sandbox=st.booleans(),
    default_workload=st.sampled_from([*labels.DEPLOYED, "nonsense"]),
    kata=st.booleans(),
    mig_config=st.sampled_from(["", "all-disabled"]),
    auto_upgrade=st.booleans(),
)


@given(NODES, POLICIES)
def test_one_patch_is_enough(view: NodeView, want: LabelPolicy) -> None:
    assert labels.node_changes(apply(view, labels.node_changes(view, want)), want) is None


@given(NODES, POLICIES)
def test_a_value_of_others_is_never_overwritten(view: NodeView, want: LabelPolicy) -> None:
    change = labels.node_changes(view, want)
    for key, value in (change.labels if change else {}).items():
        if key.startswith(D) and value is not None:
            assert view.labels.get(key, "") == ""


@given(NODES, POLICIES)
def test_a_patch_says_nothing_twice(view: NodeView, want: LabelPolicy) -> None:
    change = labels.node_changes(view, want)
    if change is not None:
        assert change.labels or change.annotations
        assert all(view.labels.get(key) != value for key, value in change.labels.items())
        assert all(view.annotations.get(key) != value for key, value in change.annotations.items())


@given(NODES, POLICIES)
def test_an_opt_out_survives_a_blink_of_nfd(view: NodeView, want: LabelPolicy) -> None:
    settled = apply(view, labels.node_changes(view, want))
    blinked = node({k: v for k, v in settled.labels.items() if k not in names.PCI_GPU_LABELS}, settled.annotations)
    dark = apply(blinked, labels.node_changes(blinked, want))
    seen = {k: v for k, v in settled.labels.items() if k in names.PCI_GPU_LABELS}
    back = apply(node(dict(dark.labels) | seen, dark.annotations), None)
    final = apply(back, labels.node_changes(back, want))
    for key, value in settled.labels.items():
        if value == "false" and key in labels.managed_keys(want.release):
            assert final.labels[key] == "false"


@given(NODES, POLICIES, POLICIES)
def test_the_way_there_does_not_matter(view: NodeView, first: LabelPolicy, last: LabelPolicy) -> None:
    """Deploy labels that the operator set itself are those of the last policy, whatever came before."""
    bare = node({k: v for k, v in view.labels.items() if k not in labels.managed_keys(Release.V26_7)})
    direct = apply(bare, labels.node_changes(bare, last))
    way = apply(bare, labels.node_changes(bare, first))
    if first.release is last.release and not labels.mig_capable(bare.labels):
        around = apply(way, labels.node_changes(way, last))
        assert around.labels == direct.labels


@given(NODES, NODES, POLICIES)
def test_a_change_that_matters_is_a_trigger(old: NodeView, new: NodeView, want: LabelPolicy) -> None:
    """A node that was right and is not any more has changed in a way that is looked at."""
    if labels.node_changes(old, want) is None and labels.node_changes(new, want) is not None:
        assert triggers.needs_labelling(old, new)


def test_other_changes_are_no_trigger() -> None:
    assert triggers.needs_labelling(None, node(GPU))
    assert not triggers.needs_labelling(node(GPU), node(GPU))
    assert not triggers.needs_labelling(node(GPU), node(GPU | {"nvidia.com/gpu.count": "8"}))
    assert triggers.needs_labelling(node(GPU), node(GPU, {MARK: "true"}))


@pytest.mark.parametrize(
    ("owner", "expected"), [("gpu", {names.DRIVER_UPGRADE_ENABLED: "true"}), ("by-hand", {}), ("", {})]
)
def test_nodes_of_drivers_that_upgrade_themselves_are_marked(owner: str, expected: dict[str, str]) -> None:
    by_crd = ClusterPolicySpec(driver=DriverSpec(useNvidiaDriverCRD=True))
    want = labels.label_policy(by_crd, Release.V26_7, Upgraded(frozenset({"gpu"})))
    change = labels.node_changes(node(GPU | ({names.DRIVER_OWNER: owner} if owner else {})), want)
    assert change is not None
    assert change.annotations == expected


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    "upgraded", [Upgraded(all_unknown=True), Upgraded(unknown=frozenset({"gpu"}))], ids=["all", "this one"]
)
def test_3_3_nodes_of_drivers_that_are_not_known_stay_as_they_are_marked(upgraded: Upgraded, marked: bool) -> None:
    by_crd = ClusterPolicySpec(driver=DriverSpec(useNvidiaDriverCRD=True))
    want = labels.label_policy(by_crd, Release.V26_7, upgraded)
    mark = {names.DRIVER_UPGRADE_ENABLED: "true"} if marked else {}
    change = labels.node_changes(node(GPU | {names.DRIVER_OWNER: "gpu"}, mark), want)
    assert change is None or change.annotations == {}


@pytest.mark.parametrize(
    ("by_crd", "release"), [(False, Release.V26_7), (True, Release.V26_3)], ids=["ClusterPolicy's", "26.3"]
)
def test_elsewhere_the_drivers_policies_do_not_count(by_crd: bool, release: Release) -> None:
    spec = ClusterPolicySpec(driver=DriverSpec(useNvidiaDriverCRD=by_crd))
    assert labels.label_policy(spec, release, Upgraded(frozenset({"gpu"}))) == labels.label_policy(spec, release)
