"""The values that preflight proposes: what fits a cluster, why, and that preflight and the chart accept them."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from preflight_world import DRIVER_POD, HOST, V100, driver, inquire, node, pod, policy

from groundplane.admin import chart, pci_gpus, preflight, propose, trees, values_file
from groundplane.admin.hops import Version
from groundplane.admin.inquiry import Inquiry
from groundplane.admin.snapshot import Settings
from groundplane.api import names
from groundplane.diagnose.evidence import NodeFacts
from groundplane.diagnose.findings import Outcome
from groundplane.node.devices import models

OWN_DRIVER = {"driver_version": "595.91.07", "host_library_version": "595.91.07", "host_tool": "/usr/bin/nvidia-smi"}
OWN_TOOLKIT = {"toolkit": ["/usr/bin/nvidia-ctk"], "containerd": {"default_runtime": "nvidia"}}
RKE2 = {"nodes": [node(kubeletVersion="v1.34.1+rke2r1")]}
TAINTED = node()
TAINTED["spec"] = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
UNLABELLED = node(labels={names.GPU_PRODUCT: "", "nvidia.com/gpu.family": ""})
MIXED = node(labels={names.MIG_CONFIG: "all-balanced"})
NFD_POD = pod(
    "nfd-worker-x", namespace="node-feature-discovery", labels={"app.kubernetes.io/name": "node-feature-discovery"}
)


def seen(inquiry: Inquiry, **facts: Any) -> Inquiry:
    """The same cluster, every node of which was looked at and has these facts."""
    found = {each.name: NodeFacts(name=each.name, facts=facts) for each in inquiry.snapshot.nodes}
    return replace(inquiry, node_facts=found)


def planned(inquiry: Inquiry, **values: Any) -> Inquiry:
    return replace(inquiry, planned=Settings.of(values), planned_source="values.yaml")


CASES: list[tuple[str, Inquiry, dict[str, Any]]] = [
    ("the guide's six", inquire(), {}),
    ("host driver", inquire(nodes=[node(labels=HOST)]), {"driver.enabled": False}),
    ("host driver on the node", seen(inquire(), **OWN_DRIVER), {"driver.enabled": False}),
    ("a driver container's", seen(inquire(), **OWN_DRIVER, driver_container=True), {"driver.enabled": True}),
    ("some hosts", inquire(nodes=[node(labels=HOST), node("gpu-2")]), {"driver.enabled": True}),
    (
        "host driver and toolkit",
        seen(inquire(), **OWN_DRIVER, **OWN_TOOLKIT),
        {"driver.enabled": False, "toolkit.enabled": False},
    ),
    ("toolkit alone", seen(inquire(), **OWN_TOOLKIT), {"driver.enabled": True, "toolkit.enabled": False}),
    ("old GPUs", inquire(nodes=[node(labels=V100)]), {"driver.version": "580.173.02"}),
    ("old GPUs, old release", inquire("26.3.3", nodes=[node(labels=V100)]), {}),
    (
        "old GPUs by PCI id",
        seen(inquire(nodes=[UNLABELLED]), gpus=[{"device": "1db1"}]),
        {"driver.version": "580.173.02"},
    ),
    ("no headers", seen(inquire(), headers="absent"), {"driver.usePrecompiled": True, "driver.version": "595"}),
    ("secure boot", seen(inquire(), secure_boot=True), {"driver.usePrecompiled": True, "driver.version": "595"}),
    (
        "no headers, old GPUs",
        seen(inquire(nodes=[node(labels=V100)]), headers="absent"),
        {"driver.usePrecompiled": True, "driver.version": "580"},
    ),
    ("no headers, no images", seen(inquire(nodes=[node(kernelVersion="6.14.0-1-gke")]), headers="absent"), {}),
    ("a full version, precompiled", planned(inquire(), driver={"usePrecompiled": True, "version": "580.126.20"}),
     {"driver.usePrecompiled": True, "driver.version": "580"}),
    ("auto with an old branch", planned(inquire(), driver={"version": "535.309.01"}),
     {"driver.version": "535.309.01", "driver.kernelModuleType": "open"}),
    ("the deprecated switch", planned(inquire(), driver={"useOpenKernelModules": True}),
     {"driver.kernelModuleType": "open"}),
    ("rke2", inquire(**RKE2), {"toolkit.env": [
        {"name": "CONTAINERD_CONFIG", "value": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"},
        {"name": "CONTAINERD_SOCKET", "value": "/run/k3s/containerd/containerd.sock"},
    ]}),
    ("k0s", inquire(nodes=[node(kubeletVersion="v1.34.1+k0s")]), {"toolkit.env": [
        {"name": "CONTAINERD_CONFIG", "value": "/etc/k0s/containerd.d/nvidia.toml"},
        {"name": "CONTAINERD_SOCKET", "value": "/run/k0s/containerd.sock"},
    ]}),
    ("taints", inquire(nodes=[TAINTED]), {
        "daemonsets.tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "team", "operator": "Exists", "effect": "NoSchedule"},
        ],
        "node-feature-discovery.worker.tolerations": [
            {"key": "node-role.kubernetes.io/control-plane", "operator": "Equal", "value": "", "effect": "NoSchedule"},
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "team", "operator": "Exists", "effect": "NoSchedule"},
        ],
    }),
    ("mixed MIG", inquire(nodes=[MIXED]), {"mig.strategy": "mixed"}),
    ("features labelled already", inquire(pods=[NFD_POD]), {"nfd.enabled": False}),
    ("NRI", planned(inquire(), cdi={"nriPluginEnabled": True}), {"cdi.nriPluginEnabled": True}),
    ("NRI on an old runtime", planned(inquire(nodes=[node(containerRuntimeVersion="containerd://2.0.4")]),
                                      cdi={"nriPluginEnabled": True}), {"cdi.nriPluginEnabled": False}),
    ("CDI switched off", planned(inquire(), cdi={"enabled": False}), {}),
    ("CDI before it was usual", inquire("25.3.4"), {"cdi.enabled": False}),
    ("kubelet elsewhere", seen(inquire(), kubelet_root="/var/lib/k0s/kubelet"),
     {"hostPaths.kubeletRootDir": "/var/lib/k0s/kubelet"}),
    ("OpenShift", inquire(openshift=True), {"platform.openshift": True, "operator.use_ocp_driver_toolkit": True}),
]  # fmt: skip
SIX = {
    "nfd.enabled": True,
    "driver.enabled": True,
    "driver.kernelModuleType": "auto",
    "toolkit.enabled": True,
    "cdi.enabled": True,
    "mig.strategy": "single",
}


@pytest.mark.parametrize(("inquiry", "beyond"), [each[1:] for each in CASES], ids=[each[0] for each in CASES])
def test_what_is_proposed(inquiry: Inquiry, beyond: dict[str, Any]) -> None:
    proposal = propose.propose(inquiry)
    assert {setting.path: setting.value for setting in proposal.settings} == SIX | beyond


SETTLED = ("A22", "A40", "A41", "A42", "A43", "A44", "A47", "A49")
"""Checks that are about values: a proposal leaves nothing to them."""


@pytest.mark.parametrize("inquiry", [each[1] for each in CASES], ids=[each[0] for each in CASES])
def test_proposals_pass_preflight_and_the_charts_refusals(inquiry: Inquiry) -> None:
    proposal = propose.propose(inquiry)
    file = values_file.read(proposal.text, "proposed.yaml")
    assert file.tree == proposal.tree
    judged = values_file.judge(file, Version.parse(inquiry.target.version))
    assert [each.outcome for each in judged] == [Outcome.PASS], judged
    found = preflight.preflight(propose.with_proposal(inquiry, proposal))
    bad = [each for each in found if each.id in SETTLED and each.outcome in (Outcome.FAIL, Outcome.WARN)]
    assert not bad


def test_every_value_has_its_reason_above_it() -> None:
    proposal = propose.propose(seen(inquire(nodes=[node(labels=V100)]), headers="absent"))
    lines = proposal.text.splitlines()
    for setting in proposal.settings:
        name = trees.parse(setting.path)[-1]
        at = next(number for number, line in enumerate(lines) if line.strip().startswith(f"{name}:") and line[0] == " ")
        assert lines[at - 1].strip().startswith("#"), lines[at]
        assert f"({setting.check})" in proposal.text
    assert "(A17)" in proposal.text


def test_secrets_are_left_out_and_named() -> None:
    env = [{"name": "REGISTRY_TOKEN", "value": "hunter2-secret"}, {"name": "DEBUG", "value": "1"}]
    inquiry = planned(inquire(**RKE2), toolkit={"env": env}, driver={"licensingConfig": {"secretName": "x"}})
    text = propose.propose(inquiry).text
    assert "hunter2" not in text
    assert "REGISTRY_TOKEN may hold a secret and is left out" in text
    assert {"name": "DEBUG", "value": "1"} in yaml.safe_load(text)["toolkit"]["env"]


def test_what_nobody_knows_is_said() -> None:
    notes = propose.propose(inquire(unread={"pods": "lacks list on pods"})).notes
    assert any("lacks list on pods" in note for note in notes)
    assert any("known on the nodes only" in note for note in notes)
    mixed = propose.propose(inquire(nodes=[node(), node("gpu-2", kubeletVersion="v1.34.1+rke2r1")]))
    assert any("k8s, rke2" in note for note in mixed.notes)
    assert not any("own are known" in note for note in propose.propose(inquire(pods=[DRIVER_POD])).notes)


def test_a_policys_default_driver_is_not_pinned() -> None:
    """A ClusterPolicy always says a version, so what it says was nobody's wish."""
    proposal = propose.propose(inquire(policies=[policy(driver={"version": "580.126.20"})]))
    assert "version" not in proposal.tree["driver"]
    assert propose.propose(inquire(policies=driver(enabled=False))).tree["driver"]["enabled"] is False


def test_chips_by_pci_id_are_those_of_the_models() -> None:
    """Every simulated GPU's id is in a block of its compute capability's architecture."""
    usual = {5: {"maxwell"}, 6: {"pascal"}, 7: {"volta", "turing"}, 8: {"ampere", "ada"}, 9: {"hopper", "grace_hopper"}}
    for name, model in models.MODELS.items():
        found = pci_gpus.architecture(model.pci_id)
        if not 5 <= model.compute[0] <= 12 or name == "VR200":  # of architectures that the matrix has not
            assert found == "", name
            continue
        assert found in usual.get(model.compute[0], {"blackwell"}), (name, model.pci_id, found)
    assert pci_gpus.architecture("zzzz") == pci_gpus.architecture("0001") == ""


KUBELETS = ("v1.34.2", "v1.34.1+k3s1", "v1.34.1+rke2r1", "v1.33.4-gke.1172000", "v1.34.1+k0s")
RUNTIMES = ("containerd://2.1.4", "containerd://1.7.28", "cri-o://1.34.1", "containerd://2.0.4")


@st.composite
def clusters(draw: st.DrawFn) -> Inquiry:
    kubelet = draw(st.sampled_from(KUBELETS))
    nodes = [
        node(
            f"gpu-{number}",
            labels=draw(st.sampled_from([{}, HOST, V100])),
            kubeletVersion=kubelet,
            containerRuntimeVersion=draw(st.sampled_from(RUNTIMES)),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    inquiry = inquire(draw(st.sampled_from(["26.3.3", "26.7.0", "25.10.1"])), nodes=nodes)
    facts = draw(st.sampled_from([{}, {"headers": "absent"}, OWN_DRIVER, OWN_DRIVER | OWN_TOOLKIT]))
    values = draw(
        st.sampled_from(
            [
                {},
                {"driver": {"usePrecompiled": True, "version": "580.1.1"}},
                {"driver": {"version": "550.163.01"}},
                {"cdi": {"enabled": False, "nriPluginEnabled": True}},
                {"toolkit": {"enabled": False}, "cdi": {"nriPluginEnabled": True}},
            ]
        )
    )
    return planned(seen(inquiry, **facts) if facts else inquiry, **values)


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_no_proposal_is_refused(inquiry: Inquiry) -> None:
    proposal = propose.propose(inquiry)
    found = preflight.preflight(propose.with_proposal(inquiry, proposal))
    assert not [each for each in found if each.id in SETTLED and each.outcome is Outcome.FAIL]
    release = Version.parse(inquiry.target.version)
    judged = values_file.judge(values_file.read(proposal.text, "p"), release, chart.defaults(release))
    assert not list(_bad(judged))


def _bad(findings: Any) -> Iterator[Any]:
    return (each for each in findings if each.outcome is not Outcome.PASS)
