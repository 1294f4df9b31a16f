"""What is kept of an object, and how little memory it takes."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from groundplane.api import names
from groundplane.cluster.views import GpuNodeView, NodeView, PodView, parse_time, relevant


def node(number: int) -> dict[str, Any]:
    """A realistic GPU node: 50 labels, 20 images, conditions, managedFields."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(22)}
    labels |= dict.fromkeys(names.PCI_GPU_LABELS[:1], "true")
    labels |= {names.KERNEL_VERSION: "6.8.0-60-generic", names.OS_RELEASE_ID: "ubuntu"}
    labels |= {names.OS_RELEASE_VERSION_ID: "24.04", "kubernetes.io/hostname": f"node-{number}"}
    labels |= {f"nvidia.com/gpu.deploy.component-{i}": "true" for i in range(12)}
    labels |= {f"nvidia.com/gpu.fact-{i}": f"value {i}" for i in range(11)}
    images = [
        {"names": [f"registry/img{i}@sha256:{'a' * 64}", f"registry/img{i}:v1"], "sizeBytes": i} for i in range(20)
    ]
    conditions = [
        {"type": t, "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "message": "kubelet is fine"}
        for t in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready", "NetworkUnavailable")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"node-{number}",
            "uid": f"00000000-0000-0000-0000-{number:012d}",
            "resourceVersion": str(1_000_000 + number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": {names.DRIVER_UPGRADE_ENABLED: "true", "csi.volume.kubernetes.io/nodeid": "x" * 300},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": {}}}}],
        },
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {
            "images": images,
            "conditions": conditions,
            "nodeInfo": {
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.8.0-60-generic",
                "osImage": "Ubuntu 24.04.2 LTS",
                "architecture": "amd64",
                "kubeletVersion": "v1.34.1",
            },
        },
    }


def decode(*documents: dict[str, Any]) -> list[NodeView]:
    decoder = msgspec.json.Decoder(NodeView)
    return [decoder.decode(json.dumps(d)) for d in documents]


def test_a_node_keeps_what_the_operator_reads() -> None:
    (view,) = decode(node(1))
    assert view.name == "node-1"
    assert view.has_nfd
    assert view.container_runtime == "containerd://2.1.4"
    assert len([k for k in view.labels if k.startswith("nvidia.com/")]) == 23
    assert {k for k in view.labels if not k.startswith("nvidia.com/")} == {
        names.PCI_GPU_LABELS[0],
        names.KERNEL_VERSION,
        names.OS_RELEASE_ID,
        names.OS_RELEASE_VERSION_ID,
    }
    assert view.annotations == {names.DRIVER_UPGRADE_ENABLED: "true"}
    assert not view.metadata.deleting


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        ("nvidia.com/gpu.present", True),
        ("resource.nvidia.com/computeDomain", True),
        (names.OSTREE_VERSION, True),
        ("feature.node.kubernetes.io/cpu-model.id", False),
        ("kubernetes.io/hostname", False),
        ("notnvidia.com/x", False),
        ("nvidia.com", False),
    ],
)
def test_relevant_keys(key: str, kept: bool) -> None:
    assert relevant({key: "v"}) == ({key: "v"} if kept else {})


def test_nodes_share_equal_parts() -> None:
    one, two = decode(node(1), node(2))
    assert one.status is two.status
    pairs = zip(sorted(one.labels.items()), sorted(two.labels.items()), strict=True)
    assert all(a[0] is b[0] and a[1] is b[1] for a, b in pairs)


def test_has_nfd_also_by_labels_that_are_not_kept() -> None:
    (view,) = decode({"metadata": {"name": "a", "labels": {"feature.node.kubernetes.io/cpu-model.id": "1"}}})
    assert view.has_nfd
    assert view.labels == {}
    (view,) = decode({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert not view.has_nfd
    assert view.metadata.deleting


def test_a_node_takes_at_most_4_kb() -> None:
    raw = [json.dumps(node(i)).encode() for i in range(500)]
    decoder = msgspec.json.Decoder(NodeView)
    decoder.decode(raw[0])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        views = [decoder.decode(data) for data in raw]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(views) < 4096


def test_a_node_whose_gpus_are_kept() -> None:
    """Beside what every view of a node has: NVIDIA's resources, one copy of what nodes have alike."""
    resources = {"cpu": "128", "nvidia.com/gpu": "8", "memory": "1Ti"}
    documents = [node(number) for number in range(2)]
    for each in documents:
        each["status"] |= {"capacity": resources, "allocatable": {**resources, "nvidia.com/gpu": "7"}}
    one, two = (msgspec.json.decode(json.dumps(each), type=GpuNodeView) for each in documents)
    assert (one.status.capacity, one.status.allocatable) == ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "7"})
    assert one.status.allocatable is two.status.allocatable
    (plain,) = decode(documents[0])
    assert (one.metadata, one.not_ready, one.container_runtime) == (
        plain.metadata,
        plain.not_ready,
        plain.container_runtime,
    )
    assert one.not_ready == ": kubelet is fine"
    renewed = msgspec.structs.replace(one, metadata=two.metadata)
    assert renewed.status == one.status, "a copy keeps them"


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({}, False),
        ({"containerStatuses": []}, False),
        ({"containerStatuses": [{"ready": True}, {"ready": True}]}, True),
        ({"containerStatuses": [{"ready": True}, {"ready": False}]}, False),
    ],
)
def test_pod_readiness(status: dict[str, Any], ready: bool) -> None:
    assert msgspec.convert({"status": status}, PodView).ready is ready


def test_a_pod() -> None:
    pod = msgspec.convert(
        {
            "metadata": {
                "name": "p",
                "namespace": "ns",
                "labels": {"app": "x"},
                "ownerReferences": [{"uid": "one", "kind": "DaemonSet"}, {"uid": "two"}],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"nodeName": "a"},
            "status": {"phase": "Running"},
        },
        PodView,
    )
    assert (pod.name, pod.owner_uid, pod.node_name, pod.phase, pod.deleting) == ("p", "one", "a", "Running", True)
    assert pod.labels == {"app": "x"}
    assert PodView().owner_uid == ""


def test_times() -> None:
    assert parse_time(None) is None
    moment = parse_time("2026-01-01T00:00:05Z")
    assert moment is not None
    assert moment.timestamp() == 1767225605
