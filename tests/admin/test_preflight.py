"""Preflight from the API: each check on a cluster where it holds and on one where it does not."""

from typing import Any

import pytest

from groundplane.admin.checks import CHECKS, Access
from groundplane.admin.inquiry import Inquiry
from groundplane.admin.lookups import Target
from groundplane.admin.matrix import shipped
from groundplane.admin.preflight import preflight, run
from groundplane.admin.preflight_driver import driver_model
from groundplane.admin.preflight_platform import inventory
from groundplane.admin.preflight_runtime import REGENERATED_BY
from groundplane.admin.snapshot import NodeFacts, PodFacts, Settings, Snapshot
from groundplane.api import names
from groundplane.diagnose.findings import ExitCode, Finding, Outcome, exit_code, worst

HOST = {names.DEPLOY_DRIVER: "pre-installed"}
V100 = {names.GPU_PRODUCT: "Tesla-V100-SXM2-16GB", "nvidia.com/gpu.family": "volta"}
B200 = {names.GPU_PRODUCT: "NVIDIA-B200", "nvidia.com/gpu.family": "blackwell"}
NO_GPU = {"feature.node.kubernetes.io/pci-10de.present": "", "nvidia.com/gpu.present": "false"}


def node(name: str = "gpu-1", *, gpu: bool = True, labels: dict[str, str] | None = None, **info: str) -> dict[str, Any]:
    """A node of a healthy cluster, an A100 on Ubuntu 24.04 with containerd."""
    ours = {
        names.OS_RELEASE_ID: "ubuntu",
        names.OS_RELEASE_VERSION_ID: "24.04",
        "feature.node.kubernetes.io/kernel-selinux.enabled": "false",
    }
    if gpu:
        ours |= {names.PCI_GPU_LABELS[0]: "true", names.GPU_PRESENT: "true"}
        ours |= {names.GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.family": "ampere"}
    base = {
        "osImage": "Ubuntu 24.04.3 LTS",
        "kernelVersion": "6.8.0-60-generic",
        "containerRuntimeVersion": "containerd://2.1.4",
        "kubeletVersion": "v1.34.2",
        "architecture": "amd64",
    }
    annotations = {"weave.works/kured-reboot-in-progress": "now"} if info.pop("reboot", "") else {}
    return {
        "metadata": {"name": name, "labels": ours | (labels or {}), "annotations": annotations},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "nodeInfo": base | info,
            "capacity": {"cpu": "64"} | ({"nvidia.com/gpu": "8"} if gpu else {}),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(
    name: str,
    node: str = "gpu-1",
    namespace: str = "gpu-operator",
    labels: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "c"}
    if "limit" in more:
        container["resources"] = {"limits": {"nvidia.com/gpu": more.pop("limit")}}
    if "devices" in more:
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": more.pop("devices")}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"nodeName": node, "containers": [container], **more},
        "status": {"phase": "Running"},
    }


DRIVER_POD = pod("driver-x", labels={"app": "nvidia-driver-daemonset"})
CR_DRIVER_POD = pod("driver-y", labels={"app": "nvidia-gpu-driver-a", "app.kubernetes.io/component": "nvidia-driver"})
TOOLKIT_POD = pod("toolkit-x", labels={"app": "nvidia-container-toolkit-daemonset"})


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "cluster-policy"}, "spec": spec}


def driver(**fields: Any) -> list[dict[str, Any]]:
    return [policy(driver=fields)]


def inquire(release: str = "26.7.0", **cluster: Any) -> Inquiry:
    cluster = {"version": "v1.34.2", "nodes": [node()]} | cluster
    return Inquiry(target=Target.of(shipped(), release), snapshot=Snapshot.of(**cluster))


def answers(number: str, inquiry: Inquiry) -> list[Finding]:
    found = run(CHECKS[number], inquiry)
    assert {(finding.id, finding.layer) for finding in found} == {(number, CHECKS[number].layer)}
    return found


NAMESPACE = {"metadata": {"name": "gpu-operator", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
KYVERNO = {"metadata": {"name": "kyverno-resource-validating-webhook-cfg"}}
K3S = node(kubeletVersion="v1.34.1+k3s1")

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
    ("A2", "unknown", {"version": ""}, "26.7.0", "no version of Kubernetes"),
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


def test_every_check_of_the_api_has_cases_for_both_ways() -> None:
    """All that preflight answers here is held by a case in which it holds and by one in which it does not."""
    asked = {number for number, *_ in CASES}
    assert asked == {f"A{n}" for n in (*range(1, 8), *range(9, 15), *range(19, 25), 31, *range(34, 51))}
    for number in asked - {"A10", "A35", "A39", "A45", "A48"}:
        outcomes = {outcome for each, outcome, *_ in CASES if each == number}
        assert len(outcomes) > 1, number


def test_healthy_cluster_has_no_failure() -> None:
    found = preflight(inquire(pods=[DRIVER_POD, TOOLKIT_POD]))
    assert not [finding for finding in found if finding.outcome in (Outcome.FAIL, Outcome.WARN)]
    assert exit_code(found) is ExitCode.WARN  # what only a node knows is unknown
    assert {finding.id for finding in found} == {f"A{number}" for number in range(1, 51)}


def test_what_needs_a_node_says_so() -> None:
    (finding,) = answers("A27", inquire())
    assert (finding.outcome, finding.node) == (Outcome.UNKNOWN, "gpu-1")
    assert finding.cause == "nobody looked on the node: give --node-pods, or run preflight --on-node there"


def test_archives_answer_like_the_api() -> None:
    inquiry = inquire()
    archive = run(CHECKS["A2"], inquiry, frozenset({Access.ARCHIVE}))
    assert archive == run(CHECKS["A2"], inquiry)
    assert run(CHECKS["A2"], inquiry, frozenset())[0].outcome is Outcome.UNKNOWN


def test_nodes_that_say_the_same_are_one_finding() -> None:
    found = preflight(inquire(nodes=[node(f"gpu-{n}") for n in range(20)]))
    systems = [finding for finding in found if finding.id == "A3"]
    assert [len(finding.nodes) for finding in systems] == [20]


def test_the_driver_to_pin_for_old_gpus_is_named() -> None:
    failed = [each for each in answers("A42", inquire(nodes=[node(labels=V100)])) if each.outcome is Outcome.FAIL]
    assert [each.fix for each in failed] == [("pin driver.version=580.173.02 for these nodes",)]


def nvidia_driver(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


OLD_POOL = node("gpu-2", labels=V100 | {"pool": "old"})


@pytest.mark.parametrize(
    ("drivers", "outcomes"),
    [
        (
            [nvidia_driver("old", version="580.173.02", nodeSelector={"pool": "old"})],
            {"gpu-1": "warn", "gpu-2": "pass"},
        ),
        (
            [
                nvidia_driver("all", default=True),
                nvidia_driver("old", version="580.173.02", nodeSelector={"pool": "old"}),
            ],
            {"gpu-1": "pass", "gpu-2": "pass"},
        ),
        ([nvidia_driver("all", version="595.91.07")], {"gpu-1": "pass", "gpu-2": "fail"}),
        ([], {"gpu-1": "warn", "gpu-2": "warn"}),
    ],
)
def test_drivers_of_pools_are_judged_by_pool(drivers: list[dict[str, Any]], outcomes: dict[str, str]) -> None:
    inquiry = inquire(nodes=[node(), OLD_POOL], policies=driver(useNvidiaDriverCRD=True), drivers=drivers)
    found = answers("A42", inquiry)
    worst_of = {name: worst(each for each in found if each.node == name).value for name in outcomes}
    assert worst_of == outcomes


def test_default_drivers_are_not_known_before_26_7() -> None:
    drivers = [nvidia_driver("all", default=True), nvidia_driver("old", nodeSelector={"pool": "old"})]
    cluster = {"nodes": [OLD_POOL], "policies": driver(useNvidiaDriverCRD=True), "drivers": drivers}
    for release, source in (("26.3.3", "NVIDIADriver/all"), ("26.7.0", "NVIDIADriver/old")):
        inquiry = inquire(release, **cluster)
        chosen = inquiry.driver_of(inquiry.snapshot.nodes[0])
        assert chosen is not None
        assert chosen.source == source


def test_each_drivers_version_is_judged() -> None:
    drivers = [nvidia_driver("a", version="580"), nvidia_driver("b", version="580", usePrecompiled=True)]
    found = answers("A41", inquire(policies=driver(useNvidiaDriverCRD=True), drivers=drivers))
    assert [(each.evidence[0].source, each.outcome) for each in found] == [
        ("NVIDIADriver/a", Outcome.FAIL),
        ("NVIDIADriver/b", Outcome.PASS),
    ]


def test_drivers_that_cannot_be_read_are_unknown() -> None:
    inquiry = inquire(policies=driver(useNvidiaDriverCRD=True), unread=["nvidiadrivers"])
    assert answers("A42", inquiry)[0].outcome is Outcome.UNKNOWN
    assert answers("A42", inquire(unread=["nvidiadrivers"]))[0].outcome is Outcome.PASS


def test_faults_of_a_pinned_driver_are_told() -> None:
    found = answers("A41", inquire("25.3.1", policies=driver(version="570.148.08")))
    assert [each.outcome for each in found] == [Outcome.PASS, Outcome.PASS, Outcome.WARN]
    assert "GPU pods stay Pending" in found[2].title


def test_findings_name_the_row_and_the_date_of_the_matrix() -> None:
    (finding,) = answers("A3", inquire())
    assert [(item.source, item.excerpt) for item in finding.evidence] == [
        ("node/gpu-1 status.nodeInfo.osImage", "Ubuntu 24.04.3 LTS"),
        ("support matrix 2026-08-21", "platforms.26.7.os.ubuntu24.04"),
    ]


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (Settings(), "operator-managed driver"),
        (Settings(precompiled=True, driver_version="580"), "precompiled driver"),
        (Settings(driver_resources=True), "NVIDIADriver objects"),
        (Settings(driver=False), "preinstalled driver"),
        (Settings(driver=False, toolkit=False), "preinstalled driver and toolkit"),
    ],
)
def test_driver_models(settings: Settings, model: str) -> None:
    assert driver_model(settings)[0] == model


def test_settings_that_cannot_be_read_are_not_taken_for_defaults() -> None:
    inquiry = inquire(unread=["clusterpolicies"])
    assert answers("A42", inquiry)[0].outcome is Outcome.UNKNOWN
    assert answers("A5", inquiry)[0].outcome is Outcome.PASS
    planned = Inquiry(target=inquiry.target, snapshot=inquiry.snapshot, planned=Settings())
    assert answers("A42", planned)[0].outcome is Outcome.PASS


def test_planned_values_count_before_the_cluster_policy() -> None:
    inquiry = Inquiry(
        target=Target.of(shipped(), "26.7.0"),
        snapshot=Snapshot.of(nodes=[node()], policies=driver(enabled=False)),
        planned=Settings.of({"driver": {"nvidiaDriverCRD": {"enabled": True}}}),
    )
    assert inquiry.settings.driver
    assert answers("A35", inquiry)[0].title == "driver model: NVIDIADriver objects"
    assert inquiry.settings_source == "planned values"


@pytest.mark.parametrize("name", sorted(REGENERATED_BY))
def test_services_that_write_the_runtime_configuration(name: str) -> None:
    versions = {"k3s": "v1.34.1+k3s1", "rke2": "v1.34.1+rke2r1", "k0s": "v1.34.1+k0s", "gke": "v1.34.1-gke.100"}
    labels = {"microk8s": {"microk8s.io/cluster": "true"}, "aks": {"kubernetes.azure.com/cluster": "c"}}
    there = node(labels=labels.get(name, {}), kubeletVersion=versions.get(name, "v1.34.1"))
    (finding,) = answers("A50", inquire(nodes=[there]))
    assert (finding.outcome, REGENERATED_BY[name] in finding.title) == (Outcome.WARN, True)


# --- The snapshot ----------------------------------------------------------------------------------------------------


def test_inventory() -> None:
    assert inventory(inquire().snapshot) == [
        ("gpu-1", "Ubuntu 24.04.3 LTS", "6.8.0-60-generic", "containerd://2.1.4", "amd64", "v1.34.2", "8",
         "nvidia.com/gpu=present:NoSchedule"),
    ]  # fmt: skip


def test_a_bare_node() -> None:
    bare = NodeFacts.of({"metadata": {"name": "n"}})
    assert (bare.has_gpu, bare.has_features, bare.ready, bare.distribution) == (False, False, False, "k8s")


def test_ended_pods_are_not_on_their_node() -> None:
    ended = pod("driver", labels={"app": "nvidia-driver-daemonset"}) | {"status": {"phase": "Succeeded"}}
    snapshot = Snapshot.of(nodes=[node()], pods=[ended])
    assert snapshot.pods_on(snapshot.nodes[0]) == ()


def test_pod_facts() -> None:
    facts = PodFacts.of(pod("w", namespace="ml", limit=2, devices="all"))
    assert (facts.where, facts.limits, facts.visible_devices) == ("ml/w", {"nvidia.com/gpu": "2"}, ())


def test_openshift_is_told_by_its_nodes() -> None:
    there = node(
        labels={"node.openshift.io/os_id": "rhel", names.OS_RELEASE_ID: "rhel", names.OS_RELEASE_VERSION_ID: "9.6"}
    )
    snapshot = Snapshot.of(nodes=[there])
    assert snapshot.openshift
    assert snapshot.os_key(snapshot.nodes[0]) == "rhcos"


def test_the_oldest_policy_counts() -> None:
    old = policy(driver={"enabled": False})
    old["metadata"] |= {"name": "z", "creationTimestamp": "2025-01-01T00:00:00Z"}
    new = policy()
    new["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
    settings = Snapshot.of(policies=[new, old]).settings
    assert settings is not None
    assert not settings.driver


def test_settings_of_chart_values() -> None:
    values = {
        "driver": {"enabled": True, "version": "580", "usePrecompiled": True, "kernelModuleType": "open"},
        "toolkit": {"env": [{"name": "CONTAINERD_CONFIG", "value": "/x"}]},
        "cdi": {"enabled": False, "nriPluginEnabled": None},
    }
    assert Settings.of(values) == Settings(
        driver_version="580",
        precompiled=True,
        module_type="open",
        toolkit_env={"CONTAINERD_CONFIG": "/x"},
        cdi=False,
        tree=values,
    )
    assert Settings.of({}) == Settings()
