"""Judging evidence: what no signature knows, what was not looked at, order, excerpts (admin-workflow.md 11)."""

from typing import Any

import pytest

from groundplane.diagnose import engine, evidence
from groundplane.diagnose.engine import judge, nearest
from groundplane.diagnose.findings import Layer, Outcome, exit_code
from groundplane.diagnose.signatures import builtin


def verdict(document: dict[str, Any]) -> engine.Verdict:
    return judge(evidence.load(document), builtin())


def test_a_failing_pod_that_nothing_fits_is_told() -> None:
    lines = [f"line {number}" for number in range(1, 41)]
    found = verdict(
        {
            "pods": [{"name": "p", "node": "n", "containers": {"nvidia-device-plugin": "CrashLoopBackOff"}}],
            "logs": [{"pod": "p", "container": "nvidia-device-plugin", "lines": lines}],
        }
    )
    assert not found.healthy and found.causes == ()
    (finding,) = found.unmatched
    assert (finding.layer, finding.node, finding.outcome) == (Layer.DEVICE_PLUGIN, "n", Outcome.FAIL)
    assert finding.evidence[0].excerpt == "nvidia-device-plugin: CrashLoopBackOff"
    assert finding.evidence[1].excerpt.split("\n") == lines[-20:]
    assert "kubectl logs -n gpu-operator p -c nvidia-device-plugin" in finding.confirm


def test_what_fails_below_the_cause_is_told_beside_it() -> None:
    found = verdict(
        {
            "pods": [
                {"name": "t", "node": "n", "containers": {"nvidia-container-toolkit-ctr": "Error:3"}},
                {"name": "x", "node": "n", "containers": {"nvidia-dcgm-exporter": "CrashLoopBackOff"}},
            ],
            "logs": [{"node": "n", "container": "nvidia-device-plugin", "text": "invalid device discovery strategy"}],
        }
    )
    assert [cause.finding.id for cause in found.causes] == ["S37"]
    assert [(each.layer, each.evidence[0].excerpt) for each in found.unmatched] == [
        (Layer.RUNTIME, "nvidia-container-toolkit-ctr: Error, exit code 3")
    ]


def test_a_symptom_leaves_its_pod_to_be_told() -> None:
    pod = {"name": "d", "node": "n", "app": "nvidia-driver-daemonset", "containers": {"nvidia-driver-ctr": "Error:7"}}
    found = verdict({"pods": [pod], "logs": {"d/nvidia-driver-ctr": "make: *** something new"}})
    assert [(cause.finding.id, cause.symptom) for cause in found.causes] == [("S02", True)]
    assert [each.layer for each in found.unmatched] == [Layer.DRIVER]


@pytest.mark.parametrize(
    ("pod", "container", "layer"),
    [
        ("nvidia-driver-daemonset-x", "k8s-driver-manager", Layer.DRIVER),
        ("nvidia-operator-validator-x", "driver-validation", Layer.DRIVER),
        ("nvidia-operator-validator-x", "plugin-validation", Layer.DEVICE_PLUGIN),
        ("nvidia-operator-validator-x", "cuda-validation", Layer.RUNTIME),
        ("nvidia-device-plugin-daemonset-x", "toolkit-validation", Layer.RUNTIME),
        ("gpu-feature-discovery-x", "gpu-feature-discovery", Layer.LABELS),
        ("nvidia-dcgm-exporter-x", "nvidia-dcgm-exporter", Layer.TELEMETRY),
        ("gpu-operator-x", "gpu-operator", Layer.OPERATOR),
        ("train-x", "main", Layer.WORKLOAD),
    ],
)
def test_nearest_layer(pod: str, container: str, layer: Layer) -> None:
    assert nearest(pod, container) is layer


def test_waiting_pods_have_not_failed() -> None:
    found = verdict({"pods": [{"name": "v", "node": "n", "init": {"toolkit-validation": "Running"}}]})
    assert found.healthy


@pytest.mark.parametrize(
    ("pod", "fails"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "phase Failed Evicted"),
        ({"containers": {"main": "Running"}, "ready": False, "restarts": 5}, "main: restarted 5 times, not ready"),
        ({"containers": {"main": "Error:137"}}, "main: Error, exit code 137"),
        ({"status": "ErrImagePull"}, "ErrImagePull"),
    ],
)
def test_how_pods_fail(pod: dict[str, Any], fails: str) -> None:
    (finding,) = verdict({"pods": [{"name": "w", "node": "n", **pod}]}).unmatched
    assert finding.evidence[0].excerpt == fails


def test_what_could_not_be_looked_at_is_unknown() -> None:
    found = verdict(
        {"ctx": {"missing": ["logs of n: forbidden"]}, "pods": [{"name": "v", "node": "n", "status": "Running"}]}
    )
    (finding,) = found.unknown
    assert finding.outcome is Outcome.UNKNOWN and finding.evidence[0].excerpt == "logs of n: forbidden"
    assert not found.healthy and exit_code(found.findings) == 4


@pytest.mark.parametrize("document", [{}, {"logs": "all is well"}, {"labels": {"a": "b"}}])
def test_too_little_evidence_is_no_health(document: dict[str, Any]) -> None:
    found = verdict(document)
    assert not found.healthy and found.unknown[0].confirm.startswith("groundplane ")


def test_a_healthy_node_gives_no_finding() -> None:
    found = verdict(
        {
            "objects": [
                {
                    "kind": "Node",
                    "metadata": {
                        "name": "n",
                        "labels": {
                            "nvidia.com/gpu.present": "true",
                            "nvidia.com/gpu.product": "L4",
                        },
                    },
                    "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}},
                },
                {"kind": "DaemonSet", "metadata": {"name": "nvidia-driver"}, "status": {"desiredNumberScheduled": 1}},
            ],
            "pods": [
                {"name": "d", "node": "n", "app": "nvidia-driver-daemonset", "status": "Running"},
                {"name": "t", "node": "n", "app": "nvidia-container-toolkit-daemonset", "status": "Running"},
                {"name": "c", "node": "n", "app": "nvidia-cuda-validator", "status": "Completed"},
            ],
            "node": {
                "name": "n",
                "expected_gpus": 8,
                "allocatable": 8,
                "pci": ["10de:2330"],
                "fabric_state": "Completed",
                "commands": {"nvidia-smi": {"rc": 0, "out": "NVIDIA-SMI 580.65.06"}},
            },
            "kmsg": "nvidia: loading out-of-tree module taints kernel.",
        }
    )
    assert found.findings == [] and found.healthy


def test_secrets_are_not_quoted() -> None:
    log = "Authorization: Bearer abcdef0123456789 Could not resolve Linux kernel version PASSWORD=hunter2"
    (cause,) = verdict({"logs": log}).causes
    said = str(cause.finding.evidence)
    assert "hunter2" not in said and "abcdef0123456789" not in said


def test_an_excerpt_is_the_line_and_short() -> None:
    log = "first\n" + "x" * 5000 + " Could not resolve Linux kernel version " + "y" * 5000 + "\nlast"
    (cause,) = verdict({"logs": log}).causes
    (quote,) = cause.finding.evidence
    assert "Could not resolve Linux kernel version" in quote.excerpt and len(quote.excerpt) <= 300


def test_a_text_may_go_over_lines() -> None:
    (cause,) = verdict({"logs": "a\nb\nCould not resolve\n   Linux kernel version\nc"}).causes
    assert cause.finding.id == "S10" and cause.finding.evidence[0].excerpt == "Could not resolve"


def test_the_order_of_evidence_does_not_matter() -> None:
    kernel = {"n1": "NVRM: Xid (PCI:0000:17:00): 79", "n2": "NVRM: Xid (PCI:0000:17:00): 48"}
    turned = dict(reversed(kernel.items()))
    assert verdict({"kmsg": kernel}).findings == verdict({"kmsg": turned}).findings
