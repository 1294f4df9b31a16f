"""What a CUDA test's pod says, told in the layer of its fault (A73, A74, A76, A77, A78)."""

from typing import Any

import pytest

from groundplane.admin import cudatest_judge as judge
from groundplane.admin.cudatest_plan import NodeTest
from groundplane.api import names
from groundplane.diagnose.findings import Layer, Outcome

GOOD = "[Vector addition of 50000 elements]\nTest PASSED\nDone\n"
SMI = "NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0\nGPU 0: NVIDIA H100 (UUID: GPU-78ad-1f)\n"
LABELS = {f"{names.CUDA_DRIVER_VERSION}.full": "580.95.05", f"{names.CUDA_RUNTIME_VERSION}.full": "13.0"}
TEST = NodeTest("gpu-1", {"nvidia.com/gpu": "1"}, labels=LABELS)
NOTHING = judge.Times(None, None, None, None)


def pod(code: int | None = 0, phase: str = "Succeeded", **status: Any) -> dict[str, Any]:
    ended = {"exitCode": code, "startedAt": "2026-01-01T00:00:09Z", "finishedAt": "2026-01-01T00:00:11Z"}
    containers = [{"name": "c", "state": {"terminated": ended}}] if code is not None else []
    return {
        "metadata": {"name": "t", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"activeDeadlineSeconds": 30},
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


@pytest.mark.parametrize(
    ("code", "log", "layer", "said"),
    [
        (1, "CUDA driver version is insufficient for CUDA runtime version", Layer.DRIVER, "S08"),
        (1, "Failed to allocate device vector A (error code system not yet initialized)!", Layer.FABRIC, "S29"),
        (1, "no CUDA-capable device is detected", Layer.RUNTIME, "has no GPU"),
        (127, "libcuda.so.1: cannot open shared object file", Layer.RUNTIME, "libraries are not"),
        (1, "Failed to initialize NVML: Driver/library version mismatch", Layer.DRIVER, "another version"),
        (1, "an error that nobody knows", Layer.DRIVER, ""),
        (0, "hello", Layer.WORKLOAD, "not the CUDA sample"),
        (0, "Test PASSED", Layer.WORKLOAD, "not the CUDA sample"),
    ],
)
def test_vector_add_that_fails(code: int, log: str, layer: Layer, said: str) -> None:
    found = judge.vector_add(TEST, pod(code, "Failed" if code else "Succeeded"), log, NOTHING)
    assert (found.id, found.outcome, found.layer) == ("A74", Outcome.FAIL, layer)
    assert said in found.cause and log in str(found.evidence)


def test_vector_add_that_passes_says_how_long_each_part_took() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}
    events = [{"message": 'Successfully pulled image "x" in 6.5s (6.5s including waiting)'}]
    took = judge.times(pod(conditions=[scheduled]), events)
    assert took == judge.Times(1.0, 6.5, 8.0, 2.0)
    assert judge.vector_add(TEST, pod(), GOOD, took).outcome is Outcome.PASS
    assert {each.id for each in judge.began(TEST, pod())} == {"A72", "A73", "A76"}


def test_a_pod_without_a_place_is_the_schedulers() -> None:
    message = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu."
    waiting = pod(None, "Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": message}])
    assert judge.unschedulable(waiting) == message
    found = judge.pending(TEST, waiting, message)
    assert (found.id, found.layer) == ("A73", Layer.WORKLOAD) and "in use" in found.title


@pytest.mark.parametrize(
    ("reason", "number", "layer"),
    [
        ("ImagePullBackOff", "A76", Layer.WORKLOAD),
        ("CreateContainerError", "A73", Layer.RUNTIME),
        ("RunContainerError", "A73", Layer.RUNTIME),
    ],
)
def test_a_container_that_does_not_start(reason: str, number: str, layer: Layer) -> None:
    waiting = pod(None, "Pending", containerStatuses=[{"state": {"waiting": {"reason": reason, "message": "why"}}}])
    stuck = judge.stuck(waiting)
    assert stuck == (reason, "why")
    found = judge.not_started(TEST, waiting, *stuck, ())
    assert (found.id, found.layer, found.outcome) == (number, layer, Outcome.FAIL)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "ErrImagePull"])
def test_a_container_that_may_yet_start_is_waited_for(reason: str) -> None:
    assert judge.stuck(pod(None, "Pending", containerStatuses=[{"state": {"waiting": {"reason": reason}}}])) is None


def test_a_start_error_is_the_runtimes() -> None:
    failed = pod(128, "Failed")
    failed["status"]["containerStatuses"][0]["state"]["terminated"] |= {"reason": "StartError", "message": "OCI hook"}
    found = judge.vector_add(TEST, failed, "", NOTHING)
    assert (found.id, found.layer) == ("A73", Layer.RUNTIME) and "OCI hook" in str(found.evidence)


def test_no_end_in_time() -> None:
    sandbox = [{"type": "Warning", "reason": "FailedCreatePodSandBox", "message": "no runtime for nvidia"}]
    found = judge.timed_out(TEST, pod(None, "Pending"), sandbox, 30.0)
    assert found.layer is Layer.RUNTIME and "FailedCreatePodSandBox" in found.title
    hangs = judge.timed_out(TEST, pod(None, "Running"), (), 30.0)
    assert hangs.layer is Layer.DRIVER and "within 30 s" in hangs.title
    late = judge.vector_add(TEST, pod(None, "Failed", reason="DeadlineExceeded"), "started", NOTHING)
    assert "within 30 s" in late.title


def test_nvidia_smi_against_the_labels() -> None:
    assert [each.outcome for each in judge.smi(TEST, pod(), SMI, NOTHING)] == [Outcome.PASS] * 2
    other = NodeTest("gpu-1", {}, labels={f"{names.CUDA_DRIVER_VERSION}.full": "570.1.1"})
    ran, shows = judge.smi(other, pod(), SMI, NOTHING)
    assert ran.outcome is Outcome.PASS and shows.outcome is Outcome.FAIL and "570.1.1" in shows.cause
    assert shows.id == "A78" and shows.layer is Layer.LABELS
    assert judge.smi(TEST, pod(), "Driver Version: 580.95.05", NOTHING)[1].outcome is Outcome.FAIL
    (failed,) = judge.smi(TEST, pod(9, "Failed"), "couldn't communicate with the NVIDIA driver", NOTHING)
    assert (failed.id, failed.layer) == ("A77", Layer.DRIVER)


def test_secrets_in_a_log_are_masked() -> None:
    found = judge.vector_add(TEST, pod(1, "Failed"), "NGC_API_KEY=hunter2", NOTHING)
    assert "hunter2" not in str(found)
