"""GPU nodes, and nothing that brings the stack up on them: said first, and never of a cluster that has its own way."""

from typing import Any

import pytest

from groundplane.diagnose import collect, doctor
from groundplane.diagnose.engine import Verdict
from groundplane.diagnose.survey import Survey
from groundplane.lab.kubelet import hollow

THEN = "2026-01-01T00:00:00Z"


def nodes(gpus: int) -> list[dict[str, Any]]:
    made = [hollow.node(f"gpu-{number}", THEN, 8) for number in (1, 2)]
    for node in made:
        for part in ("capacity", "allocatable"):
            node["status"][part].pop("nvidia.com/gpu", None)
            node["status"][part] |= {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return made


def present(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for node in made:
        node["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
    return made


POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {}}
OPERATOR = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "gpu-operator", "namespace": "gpu-operator", "labels": {"app": "gpu-operator"}},
}
PENDING = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {"containers": [{"name": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    "status": {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
            }
        ],
    },
}
OPERAND = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "driver", "namespace": "x", "labels": {"app": "nvidia-driver-daemonset"}},
    "spec": {"nodeName": "gpu-1", "containers": [{"name": "c"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def judged(*things: dict[str, Any], unread: str = "") -> Verdict:
    plurals = {"Node": "nodes", "Pod": "pods", "Deployment": "deployments", "ClusterPolicy": "clusterpolicies"}
    objects = {
        plural: tuple(each for each in things if each["kind"] == kind)
        for kind, plural in plurals.items()
        if plural != unread
    }
    lacking = {unread: f"{unread} may not be listed"} if unread else {}
    return doctor.diagnose(
        collect.of_survey(Survey(objects=objects, absent=frozenset({"gpuclusters"}), unread=lacking))
    )


def told(verdict: Verdict) -> list[tuple[str, list[str]]]:
    return [(cause.finding.id, [each.id for each in cause.consequences]) for cause in verdict.causes]


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        ([*nodes(0)], [("O01", [])]),
        ([*nodes(0), PENDING], [("O01", ["S06"])]),
        ([*nodes(0), OPERATOR, PENDING], [("O02", ["S06"])]),
        ([*present(nodes(0)), PENDING], [("O01", ["S05", "S06"])]),
        ([*nodes(8)], []),
        ([], []),
    ],
    ids=[
        "nothing",
        "nothing, and a pod waits",
        "no policy",
        "labels of before are left",
        "a device plugin of their own",
        "no nodes",
    ],
)
def test_what_lacks_is_the_cause(things: list[dict[str, Any]], expected: list[tuple[str, list[str]]]) -> None:
    assert told(judged(*things)) == expected


def test_with_a_policy_or_operands_it_is_something_else() -> None:
    assert told(judged(*nodes(0), POLICY)) == []
    one = nodes(0)[:1]
    assert told(judged(*one, OPERAND)) == []


def test_what_may_not_be_looked_at_is_not_taken_for_lacking() -> None:
    verdict = judged(*nodes(0), unread="clusterpolicies")
    assert told(verdict) == []
    assert [each.id for each in verdict.unknown] == ["unknown"]
