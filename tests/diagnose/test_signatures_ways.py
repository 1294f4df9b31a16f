"""Signatures that several kinds of evidence prove: each of these ways, and what only looks like it."""

from typing import Any

import pytest

from groundplane.diagnose import evidence
from groundplane.diagnose.match import match, scopes
from groundplane.diagnose.signatures import builtin

BY_ID = {signature.id: signature for signature in builtin()}
SEEN = {"feature.node.kubernetes.io/kernel-version.full": "6.8.0"}
BUS = {"feature.node.kubernetes.io/pci-10de.present": "true"}
GKE = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
KARPENTER = {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"}
OFFERS = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}
MISSING = "openshift.driver-toolkit.rhcos-image-missing"
WORKLOAD = {
    "metadata": {"name": "w"},
    "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    "status": {"phase": "Running"},
}


def mapping(value: str) -> dict[str, Any]:
    env = [{"name": "DCGM_EXPORTER_KUBERNETES", "value": value}]
    return {"kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": {"dcgmExporter": {"env": env}}}


def driver_set(labels: dict[str, str]) -> dict[str, Any]:
    return {"kind": "DaemonSet", "metadata": {"name": "nvidia-driver-daemonset-417", "labels": labels}}


def toolkit(*, ready: bool, restarts: int, more: str = "") -> dict[str, Any]:
    pod = {"name": "t", "node": "n", "app": "nvidia-container-toolkit-daemonset", "ready": ready, "restarts": restarts}
    line = "containerd config dump failed (exit code 127): chroot: failed to run command: No such file or directory"
    return {
        "pods": [{**pod, "containers": {"nvidia-container-toolkit-ctr": "Running"}}],
        "logs": {"t/nvidia-container-toolkit-ctr": line + more},
    }


def plugin(line: str) -> dict[str, Any]:
    return {"logs": {"p/nvidia-device-plugin": line}}


@pytest.mark.parametrize(
    ("signature", "document", "found"),
    [
        ("S01", {"labels": {"n": {**SEEN, **GKE}}}, True),
        ("S01", {"labels": {"n": {**SEEN, **KARPENTER}}}, True),
        ("S01", {"labels": {"n": {**SEEN, **GKE, **BUS}}}, False),
        ("S01", {"labels": {"n": GKE}}, False),
        ("S01", {"labels": {"n": SEEN}}, False),
        ("S01", {"labels": {"n": {**SEEN, **GKE}}, "objects": [OFFERS]}, False),
        ("S24", {"objects": [driver_set({MISSING: "true"})]}, True),
        ("S24", {"objects": [driver_set({"openshift.driver-toolkit": "true"})]}, False),
        ("S33", toolkit(ready=False, restarts=1), True),
        ("S33", toolkit(ready=True, restarts=1), True),
        ("S33", toolkit(ready=True, restarts=0), False),
        ("S33", toolkit(ready=False, restarts=1, more="; trying the next source"), False),
        ("S38", plugin("GPU-1 is Unhealthy until the plugin starts anew: Xid 32 on GPU-1"), True),
        ("S38", plugin("GPU-1 is Unhealthy until the plugin starts anew: GPU-1 is gone: lost"), False),
        ("S38", plugin("Xid 31 on GPU-1 is ignored"), False),
        ("S52", {"objects": [mapping("false")], "pods": [WORKLOAD]}, True),
        ("S52", {"objects": [mapping("true")], "pods": [WORKLOAD]}, False),
        ("S52", {"objects": [mapping("false")]}, False),
        ("D11", {"logs": {"d/nvidia-peermem-ctr": "failed to load nvidia-peermem module"}}, True),
        ("D11", {"logs": {"d/nvidia-peermem-ctr": "successfully loaded nvidia-peermem module"}}, False),
    ],
)
def test_a_way(signature: str, document: Any, found: bool) -> None:
    shares = scopes(evidence.load(document))
    assert any(match(BY_ID[signature], scope) is not None for scope in shares.values()) is found
