"""A directory as NVIDIA's must-gather leaves it: every name is known, logs and reports belong to their nodes."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundplane.diagnose import archive, doctor

NAMESPACE = "gpu-operator"
HOSTS = ("gpu-1", "gpu-2")
DRIVER_LOG = "Could not resolve Linux kernel version\n"
XID = "[  812.300000] NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
REPORT = f"""____________________________________________

Start of NVIDIA bug report log file.  Please include this file.

nvidia-bug-report.sh Version: 35

____________________________________________

/proc/cmdline
BOOT_IMAGE=/vmlinuz-6.8.0-60-generic root=/dev/sda1 ro

____________________________________________

*** /proc/modules
nvidia_uvm 1900000 0 - Live 0x0
nvidia 62000000 10 nvidia_uvm, Live 0x0
____________________________________________

/usr/bin/dmesg:

[    0.000000] Linux version 6.8.0-60-generic
{XID}
____________________________________________

/usr/bin/nvidia-smi --query

Driver Version                            : 580.95.05
"""


def pod(name: str, app: str, container: str, node: str, reason: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason}} if reason else {"running": {}}
    status = {"name": container, "ready": not reason, "restartCount": 4 if reason else 0, "state": state, "image": "i"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": container, "image": "i"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(not reason)}],
            "containerStatuses": [status],
        },
    }


def listed(*items: dict[str, Any]) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": list(items)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    drivers = [
        pod(
            "nvidia-driver-daemonset-aaaaa", "nvidia-driver-daemonset", "nvidia-driver-ctr", "gpu-1", "CrashLoopBackOff"
        ),
        pod("nvidia-driver-daemonset-bbbbb", "nvidia-driver-daemonset", "nvidia-driver-ctr", "gpu-2"),
    ]
    operator = pod("gpu-operator-6f5b7c9d8-xyz12", "gpu-operator", "gpu-operator", "gpu-2")
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-driver-daemonset", "namespace": NAMESPACE},
    }
    wide = "NAME STATUS ROLES AGE VERSION\n" + "".join(f"{host} Ready <none> 3d v1.33.1\n" for host in HOSTS)
    files = {
        "must-gather.log": "Gathering GPU operator data\n",
        "must-gather.stderr.log": "Error from server (NotFound): x\n",
        "version": "nvidia/gpu-operator-must-gather\n26.7.0\n",
        "openshift_version.yaml": "apiVersion: config.openshift.io/v1\nkind: ClusterVersion\nmetadata: {name: v}\n",
        "all_machines.list": "No machines\n",
        "hyperconverged.yaml": "apiVersion: hco.kubevirt.io/v1beta1\nkind: HyperConverged\nmetadata: {name: h}\n",
        "kubevirt.yaml": "apiVersion: kubevirt.io/v1\nkind: KubeVirt\nmetadata: {name: k}\n",
        "cluster_policy.yaml": listed(policy),
        "nvidiadrivers.missing": "",
        "gpu_nodes.labels": "".join(f"{host} nvidia.com/gpu.present=true\n" for host in HOSTS),
        "gpu_nodes.status": wide,
        "gpu_nodes.descr": "".join(f"Name:   {host}\nRoles:  <none>\nTaints:  <none>\n\n" for host in HOSTS),
        "gpu_operator_pod.status": "NAME READY STATUS RESTARTS AGE\ngpu-operator-6f5b7c9d8-xyz12 1/1 Running 0 1d\n",
        "gpu_operator_pod.yaml": yaml.safe_dump(operator),
        "gpu_operator_pod.log": "reconciling\n",
        "gpu_operator_pod.previous.log": "stopped\n",
        "gpu_operand_pods.status": "NAME READY STATUS RESTARTS AGE\n",
        "gpu_operand_pods.yaml": listed(*drivers),
        "gpu_operand_pod_images.txt": "nvcr.io/nvidia/driver:580.95.05-ubuntu24.04\n",
        "gpu_operand_pod_nvidia-driver-daemonset-aaaaa.log": DRIVER_LOG,
        "gpu_operand_pod_nvidia-driver-daemonset-aaaaa.previous.log": DRIVER_LOG,
        "gpu_operand_pod_nvidia-driver-daemonset-aaaaa.descr": "Name: nvidia-driver-daemonset-aaaaa\n",
        "gpu_operand_pod_nvidia-driver-daemonset-bbbbb.log": "Driver is ready\n",
        "gpu_operand_ds.status": "NAME DESIRED CURRENT READY\n",
        "gpu_operand_ds.yaml": listed(daemon_set),
        "gpu_operand_ds_nvidia-driver-daemonset.descr": "Name: nvidia-driver-daemonset\n",
        "gpu_device_usage_gpu-2.log": "+ nvidia-smi\nNo devices were found\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "nvidia-bug-report_gpu-2.log.gz").write_bytes(gzip.compress(REPORT.encode()))
    return tmp_path


def test_logs_carry_pod_container_namespace_and_node(folder: Path) -> None:
    found = archive.load(folder)
    driver = ("nvidia-driver-daemonset-aaaaa", "nvidia-driver-ctr", NAMESPACE, "gpu-1")
    told = {((log.pod, log.container, log.namespace, log.node), log.previous) for log in found.logs}
    assert {(driver, False), (driver, True)} <= told
    operator = ("gpu-operator-6f5b7c9d8-xyz12", "gpu-operator", NAMESPACE, "gpu-2")
    assert {(operator, False), (operator, True)} <= told


def test_objects_of_every_file_are_there_and_what_lacks_is_told(folder: Path) -> None:
    found = archive.load(folder)
    assert {"clusterpolicies", "pods", "daemonsets", "clusterversions"} <= set(found.survey.objects)
    assert len(found.survey.of_kind("pods")) == 3
    assert found.survey.knows("nvidiadrivers") and not found.survey.of_kind("nvidiadrivers")
    assert "it was not captured" in found.survey.unread["events"]
    assert not any("could not be read" in each for each in found.missing), found.missing


def test_a_bug_report_is_of_its_node_and_in_sections(folder: Path) -> None:
    found = archive.load(folder)
    (kernel,) = found.kernel
    assert kernel.node == "gpu-2" and XID in kernel.text and "Start of NVIDIA" not in kernel.text
    evidence = found.evidence()
    facts = {each.name: each for each in evidence.nodes}
    assert "nvidia_uvm" in facts["gpu-2"].facts["modules"]
    assert facts["gpu-2"].commands["cat /proc/cmdline"].out.startswith("BOOT_IMAGE=")
    assert "580.95.05" in facts["gpu-2"].commands["nvidia-smi -q"].out


def test_two_nodes_have_two_causes(folder: Path) -> None:
    causes = {cause.finding.id: cause.finding for cause in doctor.diagnose(archive.open(folder)).causes}
    by_node = {node: each for each in causes for node in (*causes[each].nodes, causes[each].node) if node}
    assert set(by_node) == set(HOSTS), causes
    assert causes[by_node["gpu-2"]].layer == "L0" and causes[by_node["gpu-1"]].layer in ("L1", "L2")
