"""Clusters for tests of preflight, in the API's JSON: a healthy one, and what can be changed in it."""

from typing import Any

from groundplane.admin.checks import CHECKS
from groundplane.admin.inquiry import Inquiry
from groundplane.admin.lookups import Target
from groundplane.admin.matrix import shipped
from groundplane.admin.preflight import run
from groundplane.admin.snapshot import Snapshot
from groundplane.api import names
from groundplane.diagnose.findings import Finding

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
