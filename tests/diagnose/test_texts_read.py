"""Loose text as evidence: every form that people paste, mixed, half, and hostile."""
# ruff: noqa: E501  (tables are as wide as kubectl prints them)

import json

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groundplane.diagnose import doctor, texts, tree
from groundplane.diagnose import evidence as seen

PODS = """\
NAME                                       READY   STATUS             RESTARTS      AGE
gpu-operator-7d9f8b7c6d-abcde              1/1     Running            0             5d
nvidia-driver-daemonset-x7k2p              0/1     CrashLoopBackOff   12 (2m ago)   1h
nvidia-device-plugin-daemonset-9qwer       0/1     Init:0/1           0             1h
"""
WIDE = """\
NAMESPACE      NAME                            READY   STATUS    RESTARTS   AGE   IP           NODE    NOMINATED NODE   READINESS GATES
gpu-operator   nvidia-driver-daemonset-x7k2p   1/1     Running   0          1h    10.0.0.7     gpu-1   <none>           <none>
"""
EVENTS = """\
LAST SEEN   TYPE      REASON    OBJECT                              MESSAGE
3m          Warning   Failed    pod/nvidia-driver-daemonset-x7k2p   Failed to pull image "nvcr.io/nvidia/driver:999-ubuntu24.04": not found
5m          Normal    Pulling   pod/nvidia-driver-daemonset-x7k2p   Pulling image
"""
DESCRIBED = """\
Name:             nvidia-driver-daemonset-x7k2p
Namespace:        gpu-operator
Node:             gpu-1/10.0.0.7
Labels:           app=nvidia-driver-daemonset
                  controller-revision-hash=1
Status:           Running
Init Containers:
  k8s-driver-manager:
    Image:          nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.9
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
    Ready:          True
    Restart Count:  0
Containers:
  nvidia-driver-ctr:
    Image:          nvcr.io/nvidia/driver:580
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       Error
      Exit Code:    1
    Ready:          False
    Restart Count:  7
    Limits:
      nvidia.com/gpu:  1
Conditions:
  Type              Status
  Ready             False
Events:
  Type     Reason   Age                From     Message
  ----     ------   ----               ----     -------
  Warning  BackOff  3m (x7 over 9m)    kubelet  Back-off restarting failed container nvidia-driver-ctr
"""
NODE = """\
Name:               gpu-1
Roles:              <none>
Labels:             kubernetes.io/hostname=gpu-1
                    nvidia.com/gpu.present=true
Taints:             nvidia.com/gpu=present:NoSchedule
Unschedulable:      false
Conditions:
  Type    Status  LastHeartbeatTime   Reason        Message
  Ready   True    Mon, 1 Dec 2025     KubeletReady  kubelet is posting ready status
Capacity:
  cpu:             8
  nvidia.com/gpu:  8
Allocatable:
  cpu:             8
  nvidia.com/gpu:  7
System Info:
  Kernel Version:             6.8.0-60-generic
  Container Runtime Version:  containerd://2.1.4
"""
SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
|-----------------------------------------+------------------------+----------------------+
"""
KERNEL = """\
[  812.331] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.
Dec  1 02:00:00 gpu-1 kernel: NVRM: loading
"""


def objects(evidence: seen.Evidence, kind: str) -> dict[str, seen.Object]:
    return {seen.name(each): each for each in evidence.of_kind(kind)}


def test_a_table_of_pods_becomes_pods() -> None:
    found = objects(texts.read(PODS), "Pod")
    driver = found["nvidia-driver-daemonset-x7k2p"]
    status = driver["status"]["containerStatuses"][0]
    assert seen.labels(driver)["app"] == "nvidia-driver-daemonset"
    assert (status["state"], status["restartCount"]) == (
        {"waiting": {"reason": "CrashLoopBackOff", "message": ""}},
        12,
    )
    assert set(found) == {
        "gpu-operator-7d9f8b7c6d-abcde",
        "nvidia-driver-daemonset-x7k2p",
        "nvidia-device-plugin-daemonset-9qwer",
    }


def test_a_wide_table_tells_namespace_and_node() -> None:
    (pod,) = texts.read(WIDE).of_kind("Pod")
    assert (seen.namespace(pod), seen.node_of(pod)) == ("gpu-operator", "gpu-1")
    assert pod["status"]["phase"] == "Running"


def test_events_tell_what_they_are_about_and_normal_ones_are_left_out() -> None:
    (event,) = texts.read(EVENTS).events
    assert (event.kind, event.name, event.reason) == ("Pod", "nvidia-driver-daemonset-x7k2p", "Failed")
    assert "driver:999" in event.message and event.when == "3m before"


def test_a_described_pod_is_a_pod_with_its_events() -> None:
    found = texts.read(DESCRIBED)
    (pod,) = found.of_kind("Pod")
    assert seen.node_of(pod) == "gpu-1" and seen.labels(pod)["app"] == "nvidia-driver-daemonset"
    (container,) = pod["status"]["containerStatuses"]
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": ""}} or container["state"] == {
        "waiting": {"reason": "CrashLoopBackOff"}
    }
    assert container["lastState"]["terminated"]["exitCode"] == 1 and container["restartCount"] == 7
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert pod["status"]["conditions"] == [{"type": "Ready", "status": "False"}]
    assert [event.reason for event in found.events] == ["BackOff"]


def test_a_described_node_is_a_node() -> None:
    (node,) = texts.read(NODE).of_kind("Node")
    assert seen.labels(node)["nvidia.com/gpu.present"] == "true"
    assert node["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "7"
    assert node["status"]["nodeInfo"]["kernelVersion"] == "6.8.0-60-generic"
    assert "S07" in [cause.finding.id for cause in doctor.diagnose(texts.read(NODE)).causes]


def test_kernel_messages_and_nvidia_smi_are_known() -> None:
    found = texts.read(KERNEL + SMI)
    assert found.kernel[0].text == KERNEL.strip()
    assert found.nodes[0].facts == {"driver_version": "580.95.05", "cuda_version": "13.0"}
    assert [cause.finding.id for cause in doctor.diagnose(found).causes] == ["S25"]


def test_everything_in_one_paste() -> None:
    mixed = (
        f"it does not work!\n{PODS}\nand\n{DESCRIBED}\n{EVENTS}\nlog:\nCould not resolve Linux kernel version\n{KERNEL}"
    )
    found = texts.read(mixed)
    assert len(found.events) == 2 and found.kernel and len(list(found.of_kind("Pod"))) == 3
    verdict = doctor.diagnose(found)
    assert verdict.causes[0].finding.id == "S25"  # the lowest
    assert "S10" in {each.id for each in verdict.causes[0].consequences} | {each.finding.id for each in verdict.causes}


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_kubectl_get_prints(form: str) -> None:
    items = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "gpu-operator"}, "status": {}},
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e"},
            "type": "Warning",
            "message": "had untolerated taint",
        },
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    text = yaml.safe_dump(listed, sort_keys=False) if form == "yaml" else json.dumps(listed, indent=2)
    for pasted in (text, f"$ kubectl get -o {form}\n{text}\nthanks"):
        found = texts.read(pasted)
        assert list(objects(found, "Pod")) == ["a"]
        assert [event.message for event in found.events] == ["had untolerated taint"]


def test_pods_that_have_nothing_to_do_with_gpus_are_left_out() -> None:
    text = (
        WIDE
        + "default        web-5b9c7d8f4-abcde              0/1     CrashLoopBackOff   9   1h    10.0.0.8     gpu-1\n"
    )
    assert list(objects(texts.read(text), "Pod")) == ["nvidia-driver-daemonset-x7k2p"]


def test_a_document_of_evidence_is_read_as_one() -> None:
    assert texts.read("kmsg: 'NVRM: Xid (PCI:0000:3b:00): 79'\n").kernel[0].text.startswith("NVRM")


def test_secrets_are_not_told() -> None:
    text = "Failed to fetch http://user:hunter2secret@mirror/x\nNGC_API_KEY=nvapi-plantedsecretplantedsecret Failed to fetch\n"
    found = texts.read(text)
    told = "\n".join(tree.lines(doctor.diagnose(found), found, everything=True))
    assert "S11" in told and "hunter2secret" not in told and "plantedsecret" not in told


HOSTILE = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(
        st.sampled_from(
            [
                *(
                    PODS,
                    WIDE,
                    EVENTS,
                    DESCRIBED,
                    NODE,
                    SMI,
                    KERNEL,
                    "apiVersion: v1\nkind: Pod\nmetadata: [",
                    "{\n",
                    "}\n",
                ),
                *("items:\n- kind: Pod\n  metadata: 7\n", "Name:   x\n", "kind: Event\nmetadata: {}\n", "a: &a [*a]\n"),
                *(
                    "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nstatus: 5\n",
                    "\x1b[31m",
                    "NAME READY STATUS RESTARTS\nx\n",
                ),
            ]
        ),
        max_size=5,
    ).map(lambda parts: "".join(parts).encode()[:3000]),
)


@settings(max_examples=60, deadline=None)
@given(HOSTILE, st.integers(0, 400))
@example(b"\xff\xfe" + "Xid".encode("utf-16-le"), 0)
@example(b"x" * 100_000, 0)
@example(b"{" * 5000, 0)
@example(b"[" * 5000, 0)
@example(b"kind: Pod\nspec: " + b"[" * 3000, 0)
@example(b"kind: Pod\nmetadata: {name: a}\nspec: [1]\nstatus: {containerStatuses: [1, {state: 5}]}", 0)
def test_hostile_text_is_read_as_far_as_it_can_be(data: bytes, cut: int) -> None:
    found = texts.read(texts.decoded(data[: len(data) - cut]))
    told = tree.lines(doctor.diagnose(found), found)
    assert told and all("\x1b" not in line for line in told)
