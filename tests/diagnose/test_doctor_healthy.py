"""Healthy nodes of every kind give the doctor nothing to say, under NVIDIA's own operator too; starting ones wait."""

from collections.abc import Callable
from typing import Any

import pytest
from verify_world import World

from groundplane.diagnose import collect, doctor
from groundplane.diagnose.engine import Verdict
from groundplane.diagnose.findings import Outcome
from groundplane.diagnose.survey import Survey


def offer(node: dict[str, Any], resources: dict[str, str], **labels: str) -> None:
    status = node.setdefault("status", {})
    for part in ("capacity", "allocatable"):
        kept = {name: amount for name, amount in status.get(part, {}).items() if not name.startswith("nvidia.com/")}
        status[part] = kept | resources
    node["metadata"]["labels"] |= {f"nvidia.com/{name.replace('__', '.')}": value for name, value in labels.items()}


KINDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "whole GPUs": lambda node: None,
    "NVSwitch system": lambda node: offer(
        node, {"nvidia.com/gpu": "8"}, gpu__product="NVIDIA-H100-80GB-HBM3", gpu__count="8", gpu__machine="DGXH100"
    ),
    "time-slicing": lambda node: offer(
        node, {"nvidia.com/gpu": "32"}, gpu__replicas="4", **{"gpu__sharing-strategy": "time-slicing"}
    ),
    "time-slicing, renamed": lambda node: offer(
        node,
        {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "32"},
        gpu__replicas="4",
        **{"gpu__sharing-strategy": "time-slicing"},
    ),
    "MPS": lambda node: offer(
        node, {"nvidia.com/gpu": "16"}, gpu__replicas="2", mps__capable="true", **{"gpu__sharing-strategy": "mps"}
    ),
    "MIG single": lambda node: offer(
        node,
        {"nvidia.com/gpu": "56"},
        mig__capable="true",
        mig__strategy="single",
        mig__config="all-1g.10gb",
        mig__config__state="success",
    ),
    "MIG mixed": lambda node: offer(
        node,
        {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "14", "nvidia.com/mig-3g.40gb": "4"},
        mig__capable="true",
        mig__strategy="mixed",
        mig__config="all-balanced",
        mig__config__state="success",
    ),
    "devices for VMs": lambda node: offer(
        node,
        {"nvidia.com/gpu": "0", "nvidia.com/GH100_H100_SXM5_80GB": "8"},
        gpu__workload__config="vm-passthrough",
    ),
}


def nodes_of(survey: Survey) -> list[dict[str, Any]]:
    return list(survey.of_kind("nodes"))


def judged(survey: Survey) -> Verdict:
    return doctor.diagnose(collect.of_survey(survey))


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_healthy_node_gives_no_finding(kind: str) -> None:
    survey = World().survey()
    KINDS[kind](nodes_of(survey)[0])
    verdict = judged(survey)
    said = [*(each.finding for each in verdict.causes), *verdict.unmatched]
    assert [(each.id, each.title, each.nodes) for each in said] == []
    assert [each.id for each in verdict.notes if each.outcome in (Outcome.FAIL, Outcome.WARN)] == []


def test_what_was_seen_of_a_node_is_told_when_it_breaks() -> None:
    """The table above is no proof if nothing could be found in this world."""
    world = World()
    survey = world.survey()
    pods = [each for each in survey.of_kind("pods") if each["spec"].get("nodeName") == "gpu-1"]
    driver = next(each for each in pods if each["metadata"]["labels"].get("app") == "nvidia-driver-daemonset")
    for status in driver["status"]["containerStatuses"]:
        status |= {"ready": False, "restartCount": 9, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    for each in driver["status"].get("conditions", ()):
        each["status"] = "False" if each["type"] in ("Ready", "ContainersReady") else each["status"]
    verdict = judged(survey)
    found = [*(each.finding for each in verdict.causes), *verdict.unmatched]
    assert [(each.layer.value, each.nodes) for each in found] == [("L2", ("gpu-1",))]


@pytest.mark.parametrize("app", ["nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter"])
def test_an_operand_that_starts_waits_and_is_no_cause(app: str) -> None:
    survey = World().survey()
    pod = next(
        each
        for each in survey.of_kind("pods")
        if each["spec"].get("nodeName") == "gpu-1" and each["metadata"]["labels"].get("app") == app
    )
    pod["status"]["phase"] = "Pending"
    for status in pod["status"]["containerStatuses"]:
        status |= {"ready": False, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    for each in pod["status"].get("conditions", ()):
        each["status"] = "False" if each["type"] in ("Ready", "ContainersReady") else each["status"]
    verdict = judged(survey)
    assert verdict.causes == ()
    assert [(each.id, each.outcome, each.nodes) for each in verdict.unmatched] == [
        ("waiting", Outcome.WARN, ("gpu-1",))
    ]
