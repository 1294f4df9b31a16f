"""What a pod that does not run is said to suffer from, row by row; how several pods are told as one."""

from typing import Any

import msgspec
import pytest

from groundplane.operator import causes
from groundplane.operator.causes import Cause, EventView, Pod


def pod(*, node: str = "gpu-1", **status: Any) -> Pod:
    document = {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": node}, "status": status}
    return msgspec.convert(document, Pod)


def container(name: str = "main", *, ready: bool = False, last: Any = None, **state: Any) -> dict[str, Any]:
    made = {"name": name, "image": f"registry.example/{name}:1", "ready": ready, "state": state}
    return {**made, "lastState": {"terminated": last}} if last else made


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return container(waiting={"reason": reason, "message": message}, **more)


SHA = "0123456789abcdef" * 4
CREATING = waiting("ContainerCreating")
ROWS = [
    ({"phase": "Running", "containerStatuses": [container(ready=True, running={})]}, None),
    ({"phase": "Succeeded"}, None),
    ({"phase": "Pending"}, ("PodStarting", "the pod is being started", "")),
    ({"phase": "Pending", "containerStatuses": [CREATING]}, ("PodStarting", "the pod is being started", "")),
    (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on  memory.\n"},
        ("PodFailed", "the pod failed (Evicted)", "The node was low on memory."),
    ),
    ({"phase": "Failed"}, ("PodFailed", "the pod failed (no reason given)", "")),
    (
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes. preemption: no"}],
        },
        ("PodUnschedulable", "the pod cannot be scheduled", "0/3 nodes."),
    ),
    (
        {"phase": "Pending", "containerStatuses": [waiting("ErrImagePull", "no such host")]},
        ("ImagePullFailed", "image registry.example/main:1 cannot be pulled", "no such host"),
    ),
    (
        {
            "phase": "Pending",
            "containerStatuses": [
                waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/main:1": no such host')
            ],
        },
        ("ImagePullFailed", "image registry.example/main:1 cannot be pulled", "no such host"),
    ),
    (
        {"phase": "Pending", "containerStatuses": [waiting("ImagePullBackOff", 'Back-off pulling image "x"')]},
        ("ImagePullFailed", "image registry.example/main:1 cannot be pulled", ""),
    ),
    (
        {
            "phase": "Pending",
            "initContainerStatuses": [waiting("CreateContainerConfigError", 'configmap "a" not found')],
            "containerStatuses": [waiting("PodInitializing")],
        },
        (
            "ContainerNotStarted",
            "init container main cannot be started (CreateContainerConfigError)",
            'configmap "a" not found',
        ),
    ),
    (
        {
            "phase": "Running",
            "containerStatuses": [
                waiting("CrashLoopBackOff", "back-off 5m0s", last={"exitCode": 137, "reason": "OOMKilled"})
            ],
        },
        ("ContainerCrashing", "container main ends with exit code 137 (OOMKilled)", ""),
    ),
    (
        {"phase": "Running", "containerStatuses": [waiting("CrashLoopBackOff", "back-off")]},
        ("ContainerCrashing", "container main ends with exit code 0", ""),
    ),
    (
        {
            "phase": "Running",
            "containerStatuses": [container(terminated={"exitCode": 1, "reason": "Error", "message": "no GPU"})],
        },
        ("ContainerCrashing", "container main ends with exit code 1", "no GPU"),
    ),
    (
        {"phase": "Running", "containerStatuses": [container(running={}, last={"exitCode": 2, "reason": "Error"})]},
        ("ContainerCrashing", "container main ends with exit code 2", ""),
    ),
    (
        {"phase": "Running", "containerStatuses": [container(running={}, last={"exitCode": 0})]},
        ("PodStarting", "container main is running and not ready yet", ""),
    ),
    (
        {
            "phase": "Pending",
            "initContainerStatuses": [
                container("driver-validation", terminated={"exitCode": 0}),
                container("toolkit-validation", running={}),
            ],
            "containerStatuses": [waiting("PodInitializing")],
        },
        ("PodStarting", "init container toolkit-validation is running", ""),
    ),
    (
        {
            "phase": "Pending",
            "initContainerStatuses": [container("a", running={})],
            "containerStatuses": [waiting("ErrImagePull", "denied")],
        },
        ("ImagePullFailed", "image registry.example/main:1 cannot be pulled", "denied"),
    ),
]


@pytest.mark.parametrize(("status", "expected"), ROWS)
def test_the_cause_of_a_pod(status: dict[str, Any], expected: tuple[str, str, str] | None) -> None:
    assert causes.of_pod(pod(**status), {}) == (Cause(*expected) if expected else None)


def test_a_node_that_is_not_ready_explains_everything_on_it() -> None:
    status = {"phase": "Pending", "containerStatuses": [CREATING]}
    why = "KubeletNotReady: container runtime network not ready: NetworkPluginNotReady"
    assert causes.of_pod(pod(**status), {"gpu-1": why}) == Cause("NodeNotReady", "the node is not Ready", why)
    assert causes.of_pod(pod(node="gpu-2", **status), {"gpu-1": why}) == Cause(
        "PodStarting", "the pod is being started"
    )


def test_a_pod_has_a_sandbox_once_a_container_has_come_further_than_waiting_for_its_turn() -> None:
    assert not pod(phase="Pending", containerStatuses=[CREATING]).sandboxed
    assert not pod(phase="Pending").sandboxed
    assert pod(phase="Pending", initContainerStatuses=[container(running={})], containerStatuses=[CREATING]).sandboxed
    assert pod(phase="Pending", containerStatuses=[waiting("ErrImagePull")]).sandboxed


def test_the_newest_warning_explains_a_missing_sandbox() -> None:
    runtime = f'no runtime for "nvidia" is configured, sandbox "{SHA}"'
    found = causes.of_events(
        [
            EventView("Normal", "Scheduled", "assigned", "2026-01-01T00:00:09Z"),
            EventView("Warning", "FailedMount", "old", "2026-01-01T00:00:01Z"),
            EventView("Warning", "FailedCreatePodSandBox", runtime, None, "2026-01-01T00:00:05.000000Z"),
        ]
    )
    assert found == Cause(
        "PodSandboxFailed",
        "the pod cannot be started (FailedCreatePodSandBox)",
        'no runtime for "nvidia" is configured, sandbox (id)',
    )
    assert causes.of_events([EventView("Normal", "Pulled", "")]) is None


def test_what_explains_most_is_told_with_its_nodes() -> None:
    image = Cause("ImagePullFailed", "image a cannot be pulled", "10.0.0.1: refused")
    again = Cause("ImagePullFailed", "image a cannot be pulled", "10.0.0.2: refused")
    other = Cause("ImagePullFailed", "image b cannot be pulled")
    starting = Cause("PodStarting", "the pod is being started")
    nodes = {starting: ["x"] * 9, other: ["n9"], again: ["n4", "n3"], image: ["n2", "n1"]}
    told = causes.summary(nodes)
    assert told == (image, "image a cannot be pulled on 4 nodes (n1, n2, n3, ...): 10.0.0.1: refused")
    assert causes.summary({other: [""]}) == (other, "image b cannot be pulled")
    assert causes.summary({other: ["n9"]}) == (other, "image b cannot be pulled on 1 node (n9)")
    assert causes.summary({}) is None


def test_messages_are_one_line_without_ids_and_bounded() -> None:
    assert causes.short(f'a\n b "{SHA}" 01234567-0123-0123-0123-0123456789ab') == "a b (id) (id)"
    assert len(causes.short("x" * 1000)) == causes.TEXT_MAX
