"""What the kubelet's pod-resources API tells, for tests on the lab's kubelets and on real ones."""

from typing import Any


def by_pod(answer: Any) -> dict[str, dict[str, list[str]]]:
    """The device ids of each pod, by resource, of a List answer; a resource may be told in several parts."""
    found: dict[str, dict[str, list[str]]] = {}
    for pod in answer.pod_resources:
        for each in (devices for container in pod.containers for devices in container.devices):
            found.setdefault(pod.name, {}).setdefault(each.resource_name, []).extend(each.device_ids)
    return found
