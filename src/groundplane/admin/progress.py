"""The layers of nodes while they come up: what each node has reached, what it waits for, and since when.

Pure; which layer stands is the doctor's to say (diagnose/layers.py). What is hopeless by itself, such as an image that
cannot be pulled, is told apart from what only takes its time.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..diagnose import collect, layers, pods
from ..diagnose.evidence import name
from ..diagnose.findings import Layer
from ..diagnose.survey import Survey

KINDS: Final = ("nodes", "pods", "clusterpolicies", "nvidiadrivers")
HOPELESS: Final = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "CrashLoopBackOff"}
)
"""Reasons of waiting containers that do not go by themselves."""


class NodeProgress(NamedTuple):
    """How far a node is."""

    node: str
    states: Mapping[Layer, layers.State]
    waits: str = ""
    """The lowest pod that is not ready and why; empty if there is none."""
    layer: Layer | None = None
    since: str = ""
    hopeless: bool = False


def of(survey: Survey) -> list[NodeProgress]:
    """Every node with GPUs, in order of their names."""
    views = layers.views(collect.of_survey(survey))
    return [_of_node(node, view) for node, view in sorted(views.items())]


def _of_node(node: str, view: layers.View) -> NodeProgress:
    states = {each.layer: each.state for each in layers.of_node(view)}
    lowest = next(layers.waiting(view), None)
    if lowest is None:
        return NodeProgress(node, states)
    layer, pod = lowest
    why, hopeless = _why(pod)
    status = pod.get("status") or {}
    return NodeProgress(node, states, f"{name(pod)}: {why}", layer, str(status.get("startTime") or ""), hopeless)


def _why(pod: Mapping[str, Any]) -> tuple[str, bool]:
    for container, reason in _reasons(pod):
        return f"{container} {reason}", reason in HOPELESS
    return str((pod.get("status") or {}).get("phase") or "not started"), False


def _reasons(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    status = pod.get("status") or {}
    for part in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(part) or ():
            state = each.get("state") or {}
            if reason := (state.get("waiting") or {}).get("reason"):
                yield str(each.get("name")), str(reason)
            elif "running" in state and not each.get("ready"):
                yield str(each.get("name")), "runs, is not ready"


def ready(survey: Survey) -> bool:
    """Whether the operator says that all is up, and no operand of a node waits."""
    policies = survey.of_kind("clusterpolicies")
    told = [(each.get("status") or {}).get("state") == "ready" for each in policies]
    return bool(told) and all(told) and not any(each.waits for each in of(survey))


def operator_waits(survey: Survey) -> str:
    """Why the operator's own pods are not ready; empty if they are."""
    for pod in survey.of_kind("pods"):
        mine = pod["metadata"].get("namespace") == survey.namespace and pods.layer_of(pod) is Layer.OPERATOR
        if mine and not pods.ready(pod):
            return f"{name(pod)}: {_why(pod)[0]}"
    return ""
