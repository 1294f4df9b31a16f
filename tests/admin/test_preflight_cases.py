"""Preflight, check by check: each on a cluster where it holds and on one where it does not (A1..A50)."""

from typing import Any

import pytest
from msgspec.structs import replace
from preflight_world import (
    B200,
    CR_DRIVER_POD,
    DRIVER_POD,
    HOST,
    K3S,
    KYVERNO,
    NAMESPACE,
    TOOLKIT_POD,
    V100,
    answers,
    driver,
    inquire,
    node,
    pod,
    policy,
)

from groundplane.admin.checks import of_command
from groundplane.api import names
from groundplane.diagnose.evidence import NodeFacts
from groundplane.diagnose.findings import Outcome

RKE2 = node(kubeletVersion="v1.32.6+rke2r1")
CDI_ON = [policy(cdi={"enabled": True})]
CASES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("A1", "pass", {}, "26.7.0", "is listed as A100"),
    ("A1", "warn", {"nodes": [node(labels={names.GPU_PRODUCT: "NVIDIA-RTX-A2000"})]}, "26.7.0", "not validated"),
    (
        "A1",
        "unknown",
        {"nodes": [node(labels={names.GPU_PRODUCT: "", "nvidia.com/gpu.family": ""})]},
        "26.7.0",
        "on PCI",
    ),
    ("A1", "warn", {"nodes": [node(gpu=False)]}, "26.7.0", "no node shows an NVIDIA device"),
    ("A1", "unknown", {"nodes": [{"metadata": {"name": "n"}}]}, "26.7.0", "node feature discovery has not run"),
    ("A2", "pass", {}, "26.7.0", "Kubernetes 1.34 is in 1.32-1.36"),
    ("A2", "warn", {"version": "v1.36.1"}, "26.3.1", "beyond 1.35"),
    ("A2", "warn", {"version": "v1.37.1", "nodes": []}, "26.7.0", "not in 1.33-1.36"),
    ("A2", "unknown", {"version": "", "nodes": [node(kubeletVersion="")]}, "26.7.0", "no version of Kubernetes"),
    ("A2", "pass", {"version": ""}, "26.7.0", "Kubernetes 1.34 is in 1.32-1.36"),
    ("A2", "warn", {"version": "", "nodes": [node(kubeletVersion="v1.31.9+rke2r1")]}, "26.7.0", "not in 1.33-1.36"),
    ("A3", "pass", {}, "26.7.0", "ubuntu24.04 is listed"),
    ("A3", "warn", {"nodes": [node(labels={names.OS_RELEASE_ID: "debian"})]}, "26.7.0", "debian24.04 is not listed"),
    ("A4", "unknown", {}, "26.7.0", "headers of kernel 6.8.0-60-generic"),
    (
        "A4",
        "pass",
        {"policies": driver(usePrecompiled=True, version="580")},
        "26.7.0",
        "580-6.8.0-60-generic-ubuntu24.04",
    ),
    ("A4", "warn", {"policies": driver(usePrecompiled=True, version="570")}, "26.7.0", "branch 570"),
    ("A4", "skip", {"policies": driver(enabled=False)}, "26.7.0", "driver.enabled=false"),
    ("A5", "pass", {}, "26.7.0", "containerd 2.1.4 is listed"),
    ("A5", "fail", {"nodes": [node(containerRuntimeVersion="docker://27.0.1")]}, "26.7.0", "Docker"),
    ("A6", "pass", {}, "26.7.0", "taken for bare metal or passthrough"),
    ("A6", "warn", {"nodes": [node(labels={names.VGPU_PRESENT: "true"})]}, "26.7.0", "was not told so"),
    ("A7", "pass", {}, "26.7.0", "does not exist yet"),
    ("A7", "fail", {"namespaces": [NAMESPACE]}, "26.7.0", "level baseline"),
    ("A7", "unknown", {"unread": ["namespaces"]}, "26.7.0", "namespaces could not be read"),
    ("A9", "pass", {"pods": [DRIVER_POD]}, "26.7.0", "the operator's"),
    ("A9", "pass", {"nodes": [node(labels=HOST)]}, "26.7.0", "the host's"),
    ("A9", "unknown", {}, "26.7.0", "known on the node only"),
    ("A10", "pass", {}, "26.7.0", "1 nodes, 1 with GPUs"),
    ("A11", "pass", {}, "26.7.0", "one operating system: ubuntu24.04"),
    (
        "A11",
        "fail",
        {"nodes": [node(), node("gpu-2", labels={names.OS_RELEASE_VERSION_ID: "22.04"})]},
        "26.7.0",
        "ubuntu22.04, ubuntu24.04",
    ),
    ("A11", "skip", {"policies": driver(useNvidiaDriverCRD=True)}, "26.7.0", "NVIDIADriver"),
    ("A12", "pass", {}, "26.7.0", "on PCI"),
    ("A12", "warn", {"nodes": [node(gpu=False)]}, "26.7.0", "no node shows"),
    ("A12", "unknown", {"nodes": [{"metadata": {"name": "n"}}]}, "26.7.0", "no label tells"),
    ("A13", "pass", {}, "26.7.0", "to go on with"),
    ("A13", "fail", {"nodes": [node(gpu=False)]}, "26.7.0", "stop here"),
    ("A13", "unknown", {"nodes": [{"metadata": {"name": "n"}}]}, "26.7.0", "has not run"),
    ("A34", "pass", {}, "26.7.0", "images of nvcr.io, registry.k8s.io and 1 packages"),
    ("A34", "unknown", {}, "26.7.0", "known on the node only"),
    ("A14", "pass", {}, "26.7.0", "run kernel 6.8.0-60-generic"),
    ("A14", "warn", {"nodes": [node(), node("gpu-2", kernelVersion="6.8.0-64-generic")]}, "26.7.0", "several kernels"),
    ("A19", "warn", {"nodes": [node(reboot="yes")]}, "26.7.0", "a reboot is pending"),
    ("A19", "unknown", {}, "26.7.0", "known on the node only"),
    (
        "A20",
        "pass",
        {"nodes": [node(labels={**HOST, "nvidia.com/cuda.driver-version.full": "580.126.20"})]},
        "26.3.3",
        "the host has a driver module 580.126.20",
    ),
    ("A20", "pass", {"pods": [CR_DRIVER_POD]}, "26.7.0", "the driver module is the operator's"),
    ("A20", "unknown", {}, "26.7.0", "known on the node only"),
    (
        "A21",
        "pass",
        {"nodes": [node(labels={**HOST, "nvidia.com/cuda.driver-version.full": "580.126.20"})]},
        "26.3.3",
        "is what v26.3.3 installs",
    ),
    (
        "A21",
        "warn",
        {"nodes": [node(labels={**HOST, "nvidia.com/cuda.driver-version.full": "470.1.1"})]},
        "26.3.3",
        "not listed",
    ),
    ("A21", "unknown", {}, "26.7.0", "known on the node only"),
    ("A22", "pass", {"pods": [DRIVER_POD]}, "26.7.0", "driver.enabled=true is right"),
    ("A22", "warn", {"nodes": [node(labels=HOST)]}, "26.7.0", "driver.enabled=false is proposed"),
    (
        "A22",
        "pass",
        {
            "nodes": [node(labels=HOST), node("gpu-2")],
            "pods": [pod("d", "gpu-2", labels=DRIVER_POD["metadata"]["labels"])],
        },
        "26.7.0",
        "labelled by themselves",
    ),
    ("A22", "unknown", {}, "26.7.0", "cannot be proposed"),
    ("A22", "skip", {"nodes": []}, "26.7.0", "no node to look at"),
    ("A23", "pass", {"pods": [DRIVER_POD]}, "26.7.0", "one manager"),
    ("A23", "fail", {"nodes": [node(labels=HOST)], "pods": [DRIVER_POD]}, "26.7.0", "two managers"),
    ("A23", "fail", {"pods": [DRIVER_POD, CR_DRIVER_POD]}, "26.7.0", "two managers"),
    ("A24", "pass", {"pods": [TOOLKIT_POD]}, "26.7.0", "the operator's"),
    ("A24", "unknown", {}, "26.7.0", "known on the node only"),
    ("A31", "pass", {}, "26.7.0", "its node is ready"),
    ("A31", "fail", {"nodes": [node() | {"status": {}}]}, "26.7.0", "not ready"),
    ("A42", "pass", {"nodes": [node(labels=V100 | HOST)]}, "26.7.0", ""),
    ("A11", "pass", {"nodes": [node(), node("g", labels=HOST | {names.OS_RELEASE_VERSION_ID: "22.04"})]}, "26.7.0", ""),
    ("A35", "pass", {}, "26.7.0", "driver model: operator-managed driver"),
    ("A36", "pass", {}, "26.7.0", "does not exist yet"),
    ("A36", "warn", {"webhooks": [KYVERNO]}, "26.7.0", "may refuse privileged pods"),
    ("A36", "fail", {"namespaces": [NAMESPACE]}, "26.7.0", "refused"),
    ("A36", "skip", {"policies": driver(enabled=False)}, "26.7.0", "driver.enabled=false"),
    (
        "A37",
        "pass",
        {
            "policies": driver(enabled=False),
            "nodes": [node(labels={"nvidia.com/cuda.driver-version.full": "595.91.07"})],
        },
        "26.7.0",
        "installs",
    ),
    (
        "A37",
        "warn",
        {
            "policies": driver(enabled=False),
            "nodes": [node(labels={"nvidia.com/cuda.driver.major": "470", "nvidia.com/cuda.driver.minor": "82"})],
        },
        "26.7.0",
        "driver 470.82 is not listed",
    ),
    ("A37", "skip", {}, "26.7.0", "driver.enabled=true"),
    ("A38", "skip", {}, "26.7.0", "toolkit.enabled=true"),
    ("A38", "unknown", {"policies": [policy(toolkit={"enabled": False})]}, "26.7.0", "CDI specs"),
    ("A39", "skip", {}, "26.7.0", "driver.enabled=true"),
    ("A39", "pass", {"policies": driver(enabled=False)}, "26.7.0", "node image"),
    ("A40", "pass", {"policies": driver(usePrecompiled=True, version="580")}, "26.7.0", "is listed"),
    (
        "A40",
        "warn",
        {"policies": driver(usePrecompiled=True, version="580"), "nodes": [node(kernelVersion="6.14.0-1-gke")]},
        "26.7.0",
        "not of 6.8",
    ),
    ("A40", "skip", {}, "26.7.0", "no precompiled driver"),
    ("A41", "pass", {}, "26.7.0", "fits"),
    ("A41", "fail", {"policies": driver(usePrecompiled=True, version="580.126.20")}, "26.7.0", "needs a branch"),
    ("A41", "fail", {"policies": driver(version="580")}, "26.7.0", "is a branch"),
    ("A42", "pass", {}, "26.7.0", "auto works"),
    ("A42", "fail", {"policies": driver(version="550.163.01")}, "26.7.0", "auto does not work with driver 550.163.01"),
    ("A42", "fail", {"nodes": [node(labels=V100)]}, "26.7.0", "does not know volta GPUs"),
    ("A42", "pass", {"nodes": [node(labels=V100)]}, "26.3.3", "knows volta GPUs"),
    (
        "A42",
        "fail",
        {"nodes": [node(labels=V100)], "policies": driver(kernelModuleType="open")},
        "26.3.3",
        "open kernel",
    ),
    (
        "A42",
        "fail",
        {"nodes": [node(labels=B200)], "policies": driver(kernelModuleType="proprietary")},
        "26.7.0",
        "proprietary kernel modules do not work",
    ),
    ("A42", "fail", {"nodes": [], "policies": driver(version="535.309.01")}, "26.7.0", "auto does not work"),
    (
        "A42",
        "warn",
        {"nodes": [node(labels=B200)], "policies": driver(version="570.124.06")},
        "26.7.0",
        "older than 570.133.20",
    ),
    ("A43", "pass", {}, "26.7.0", "is not used"),
    ("A43", "warn", {"policies": driver(useOpenKernelModules=True)}, "26.7.0", "deprecated since 25.3.0"),
    ("A44", "pass", {}, "26.7.0", "CDI is on"),
    ("A44", "pass", {}, "25.3.4", "CDI is off"),
    ("A44", "warn", {"policies": [policy(cdi={"enabled": False})]}, "26.7.0", "CDI is off by setting"),
    ("A44", "fail", {"nodes": [RKE2], "policies": CDI_ON}, "25.3.1", "does not work on this distribution with v25.3.1"),
    ("A44", "pass", {"nodes": [RKE2], "policies": CDI_ON}, "25.3.4", "CDI is on"),
    ("A44", "pass", {"policies": CDI_ON}, "25.3.1", "CDI is on"),
    ("A45", "pass", {}, "26.7.0", "no pod with a limit"),
    ("A45", "pass", {"pods": [pod("w", namespace="ml", limit=1, runtimeClassName="nvidia")]}, "26.7.0", "1 pods with"),
    ("A46", "pass", {"pods": [pod("w", namespace="ml", devices="void")]}, "26.7.0", "no pod sets"),
    ("A46", "pass", {"pods": [DRIVER_POD, pod("exporter", devices="all")]}, "26.7.0", "no pod sets"),
    ("A46", "warn", {"pods": [pod("w", namespace="ml", devices="all")]}, "26.7.0", "1 pods set"),
    ("A46", "unknown", {"unread": ["pods"]}, "26.7.0", "pods could not be read"),
    ("A47", "skip", {}, "26.7.0", "nriPluginEnabled=false"),
    (
        "A47",
        "pass",
        {"policies": [policy(cdi={"enabled": True, "nriPluginEnabled": True})]},
        "26.7.0",
        "is listed for NRI",
    ),
    (
        "A47",
        "warn",
        {
            "policies": [policy(cdi={"nriPluginEnabled": True})],
            "nodes": [node(containerRuntimeVersion="containerd://2.0.4")],
        },
        "26.7.0",
        "blocks unless forced",
    ),
    ("A48", "pass", {}, "26.7.0", "NRI is off"),
    ("A48", "pass", {"policies": [policy(cdi={"nriPluginEnabled": True})]}, "26.7.0", "not GA"),
    ("A49", "pass", {}, "26.7.0", "own paths fit"),
    ("A49", "warn", {"nodes": [K3S]}, "26.7.0", "lacks k3s's CONTAINERD_CONFIG, CONTAINERD_SOCKET"),
    ("A49", "skip", {"nodes": [K3S], "policies": [policy(cdi={"nriPluginEnabled": True})]}, "26.7.0", "needs no paths"),
    ("A49", "skip", {"policies": [policy(toolkit={"enabled": False})]}, "26.7.0", "toolkit.enabled=false"),
    ("A50", "pass", {}, "26.7.0", "no service is known"),
    ("A50", "warn", {"nodes": [K3S]}, "26.7.0", "k3s-agent service"),
]


@pytest.mark.parametrize(("number", "outcome", "cluster", "release", "words"), CASES)
def test_check(number: str, outcome: str, cluster: dict[str, Any], release: str, words: str) -> None:
    found = answers(number, inquire(release, **cluster))
    said = [finding for finding in found if words in finding.title]
    assert [finding.outcome for finding in said] == [Outcome(outcome)] * max(1, len(said)), found


VGPU: list[tuple[str, dict[str, Any], str]] = [
    ("fail", {}, "driver.repository and driver.licensingConfig must be set"),
    (
        "pass",
        {"repository": "mirror.example/guests", "licensingConfig": {"secretName": "licence"}},
        "guest driver image and licence are set",
    ),
    ("pass", {"enabled": False}, "the guest driver is the host's"),
]


@pytest.mark.parametrize(("outcome", "fields", "words"), VGPU)
def test_vgpu_needs_a_driver_and_a_licence_of_its_own(outcome: str, fields: dict[str, Any], words: str) -> None:
    (finding,) = answers("A6", replace(inquire(policies=driver(**fields)), vgpu=True))
    assert (finding.outcome, words in finding.title) == (Outcome(outcome), True)


OFF = {"driver": {"enabled": False}}
BARE = {**OFF, "toolkit": {"enabled": False}}
HEALTHY: dict[str, Any] = {
    "os": "ubuntu",
    "os_version": "24.04",
    "kernel": "6.8.0-60-generic",
    "gpus": [{"device": "20b0"}],
    "modules": [],
    "headers": "installed",
    "toolkit": [],
    "host_tool": "",
    "kernel_updates": [],
    "newer_kernel": "",
    "nouveau": False,
    "nouveau_denied": ["/etc/modprobe.d/nouveau.conf"],
    "nouveau_denied_in_initramfs": True,
    "secure_boot": False,
    "containerd": {"version": "2.1.4", "cdi": True, "nri": True, "default_runtime": "nvidia"},
    "services": {"containerd": {"state": "active", "enabled": "enabled"}},
    "sockets": ["/run/containerd/containerd.sock"],
    "kubelet_socket": True,
    "kubelet_root": "/var/lib/kubelet",
    "cdi_specs": [],
    "reach": {"https://mirror": {"status": 200}},
    "pull": {"nvcr.io/nvidia/driver:1": {"status": 200}},
}
RHEL = {"os": "rhel", "os_version": "9.6", "kernel": "5.14.0-570.el9.x86_64"}
CRIO = {"containerd": None, "services": {"crio": {"state": "active"}}, "crio": {"version": "1.34.0"}}
STOPPED = {"state": "failed", "enabled": "enabled"}
NO = {"problem": "the name mirror cannot be resolved"}
HOST_DRIVER = {"modules": ["nvidia"], "driver_version": "580.173.02", "host_tool": "/usr/bin/nvidia-smi"}
ON_NODES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("A4", {}, {}, {"headers": "absent"}),
    ("A8", {}, {}, {"reach": {"https://mirror": NO}}),
    ("A9", {}, {}, {}),
    ("A12", {}, {}, {"gpus": []}),
    ("A13", {}, {}, {"gpus": []}),
    ("A15", {}, {}, {"headers": "absent"}),
    ("A16", {}, RHEL, {**RHEL, "headers": "absent"}),
    ("A17", {}, {}, {"headers": "absent"}),
    ("A18", {}, {}, {"kernel_updates": ["unattended-upgrades"]}),
    ("A19", {}, {}, {"newer_kernel": "6.8.0-64-generic"}),
    ("A20", {}, {}, {}),
    ("A21", {}, {}, {**HOST_DRIVER, "library_version": "580.126.20"}),
    ("A24", {}, {}, {"toolkit": ["/usr/bin/nvidia-ctk"]}),
    ("A25", {}, {}, {"nouveau": True}),
    ("A26", {}, {}, {"nouveau_denied": []}),
    ("A27", {}, {}, {"secure_boot": True}),
    ("A28", {}, {}, {"secure_boot": True}),
    ("A29", {}, {}, {"services": {"containerd": STOPPED}}),
    ("A30", {}, CRIO, {**CRIO, "services": {"crio": STOPPED}}),
    ("A31", {}, {}, {"kubelet_socket": False}),
    ("A32", {}, {}, {"sockets": []}),
    ("A33", {}, {}, {"pull": {"nvcr.io/nvidia/driver:1": NO}}),
    ("A34", {}, {}, {"reach": {"https://mirror": NO}, "pull": {}}),
    ("A37", OFF, HOST_DRIVER, {}),
    ("A38", BARE, {}, {"containerd": {"version": "2.1.4"}}),
    ("A47", {"cdi": {"nriPluginEnabled": True}}, {}, {"containerd": {"version": "2.1.4", "nri": False}}),
]
"""Of a check that nodes answer: the settings, what beside :data:`HEALTHY` makes it hold, and what makes it not."""
TELLS_WHAT_IS: dict[str, str] = {
    "A9": "whose the driver is",
    "A10": "the inventory",
    "A20": "which module is loaded",
    "A35": "which driver model the settings are",
    "A39": "that the host's driver lives with its image",
    "A45": "that pods need no runtime class, for information",
    "A48": "that NRI is on or off, for information",
}
"""Checks that judge nothing: they have no cluster in which they fail."""
WRONG = frozenset({Outcome.WARN, Outcome.FAIL})


@pytest.mark.parametrize(("number", "spec", "good", "bad"), ON_NODES)
def test_check_on_nodes(number: str, spec: dict[str, Any], good: dict[str, Any], bad: dict[str, Any]) -> None:
    def outcomes(more: dict[str, Any]) -> set[Outcome]:
        facts = {fact: value for fact, value in (HEALTHY | more).items() if value is not None}
        cluster = inquire(policies=[policy(**spec)])
        return {
            each.outcome for each in answers(number, replace(cluster, node_facts={"gpu-1": NodeFacts("gpu-1", facts)}))
        }

    assert outcomes(good) == {Outcome.PASS}
    assert bool(outcomes(bad) & WRONG) == (number not in TELLS_WHAT_IS)


def test_every_check_of_preflight_has_a_case_in_which_it_holds_and_one_in_which_it_does_not() -> None:
    on_nodes = {number for number, *_ in ON_NODES}
    asked = {number for number, *_ in CASES} | on_nodes
    assert asked == {check.id for check in of_command("preflight")} == {f"A{number}" for number in range(1, 51)}
    for number in sorted(asked - on_nodes):
        outcomes = {Outcome(outcome) for each, outcome, *_ in CASES if each == number}
        assert Outcome.PASS in outcomes, number
        assert bool(outcomes & WRONG) == (number not in TELLS_WHAT_IS), number
