"""Broken labs of several kinds: an archive of the cluster gives the causes that the cluster itself gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import archive_world
import pytest
import yaml

from groundplane.api import names
from groundplane.lab import driverfaults
from groundplane.lab.cluster import Lab
from groundplane.lab.nodes import GpuSpec, NodeSpec, Taint

POLICY = Path(__file__).parents[1] / "data" / "clusterpolicy" / "26.7.0-default.yaml"
PATIENCE_S = 60.0
TOOLKIT = "nvcr.io/nvidia/k8s/container-toolkit"


def policy() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(POLICY.read_text())
    return document


def gpu(**more: Any) -> list[NodeSpec]:
    return [NodeSpec("gpu-1", (GpuSpec("A100", 2),), **more)]


def pods(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.api.list(lab.api.resource("pods"))["items"]
    return found


def waits(lab: Lab, *reasons: str) -> bool:
    statuses = [
        each
        for pod in pods(lab)
        for part in ("initContainerStatuses", "containerStatuses")
        for each in pod["status"].get(part) or ()
    ]
    return any(each.get("state", {}).get("waiting", {}).get("reason") in reasons for each in statuses)


def label(lab: Lab, key: str) -> str:
    node = lab.api.find(lab.api.resource("nodes"), "gpu-1") or {}
    return str(node["metadata"]["labels"].get(key, ""))


CASES: dict[str, tuple[dict[str, Any], list[NodeSpec], Callable[[Lab], bool]]] = {
    "an image that is not there": (
        policy(),
        gpu(missing_images=(TOOLKIT,)),
        lambda lab: waits(lab, "ImagePullBackOff", "ErrImagePull"),
    ),
    "a MIG layout that nobody knows": (
        policy(),
        gpu(labels={names.MIG_CONFIG: "all-of-it"}),
        lambda lab: label(lab, names.MIG_CONFIG_STATE) == "failed",
    ),
    "a taint that nothing tolerates": (
        policy(),
        gpu(taints=(Taint("team/only", "NoExecute"),)),
        lambda lab: lab.policy_state() != "",
    ),
    "no kernel headers": (
        policy(),
        gpu(kernel="6.8.0-99-generic"),
        lambda lab: waits(lab, "CrashLoopBackOff"),
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_an_archive_gives_the_causes_that_the_cluster_gives(case: str) -> None:
    wanted, nodes, shows = CASES[case]
    async with Lab(nodes) as lab:
        if case == "no kernel headers":
            driverfaults.fault("no-kernel-headers").inject(lab.host("gpu-1"))
        await lab.apply([wanted])
        await lab.wait_until(lambda: shows(lab), timeout_s=PATIENCE_S, what="the fault to show")
        async with lab.client() as client:
            look = archive_world.looker(client)
            for _ in range(5):  # the cluster may change between the two looks
                before = archive_world.causes(await archive_world.live(client, look=look))
                offline = archive_world.causes(await archive_world.offline(client, look=look))
                if before == offline == archive_world.causes(await archive_world.live(client, look=look)):
                    break
    assert offline == before and offline
