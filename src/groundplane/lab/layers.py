"""How far the GPU stack has come up on every node, read from the API as a person would read it.

This is the small judge behind the lab's table: each layer is a rule over the node and its pods. It explains nothing;
finding the cause of a broken layer is the doctor's work.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..api import names

Document = Mapping[str, Any]


class State(enum.Enum):
    """What is known of one layer on one node."""

    ABSENT = "-"
    """The layer does not apply: a node without a GPU, or a component that is switched off."""
    WAITING = "waiting"
    HEALTHY = "healthy"
    FAILED = "failed"


class Facts(NamedTuple):
    """One node and the pods bound to it."""

    node: Document
    pods: tuple[Document, ...]

    def label(self, key: str) -> str:
        """Return a node label, or the empty string."""
        labels: Mapping[str, str] = self.node["metadata"].get("labels") or {}
        return labels.get(key, "")

    def allocatable(self, resource: str) -> int:
        """Return how much of an extended resource the node offers."""
        return int(self.node.get("status", {}).get("allocatable", {}).get(resource, 0))


def _pods(facts: Facts, app: str) -> list[Document]:
    return [pod for pod in facts.pods if (pod["metadata"].get("labels") or {}).get("app") == app]


def _ready(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _broken(pod: Document) -> bool:
    status = pod.get("status", {})
    reasons = {
        container.get("state", {}).get("waiting", {}).get("reason")
        for key in ("initContainerStatuses", "containerStatuses")
        for container in status.get(key, [])
    }
    return status.get("phase") == "Failed" or bool(
        reasons & {"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"}
    )


def _pods_state(pods: list[Document]) -> State:
    if not pods:
        return State.WAITING
    if any(map(_broken, pods)):
        return State.FAILED
    return State.HEALTHY if all(map(_ready, pods)) else State.WAITING


def _operand(app: str, deploy: str) -> Callable[[Facts], State]:
    def judge(facts: Facts) -> State:
        if _kept_off(facts, deploy):
            return State.ABSENT
        return _pods_state(_pods(facts, app)) if facts.label(deploy) == "true" else State.WAITING

    return judge


def _kept_off(facts: Facts, deploy: str) -> bool:
    """Whether a person keeps an operand, or all of them, off this node."""
    return "false" in (facts.label(deploy), facts.label(names.DEPLOY_OPERANDS))


def _hardware(facts: Facts) -> State:
    return State.HEALTHY if any(facts.label(key) == "true" for key in names.PCI_GPU_LABELS) else State.ABSENT


def _driver(facts: Facts) -> State:
    if facts.label(names.DEPLOY_DRIVER) == "pre-installed":
        return State.HEALTHY
    return _operand("nvidia-driver-daemonset", names.DEPLOY_DRIVER)(facts)


def _plugin(facts: Facts) -> State:
    state = _operand("nvidia-device-plugin-daemonset", names.DEPLOY_DEVICE_PLUGIN)(facts)
    if state is State.HEALTHY and not facts.allocatable(names.GPU_RESOURCE):
        return State.WAITING
    return state


def _labels(facts: Facts) -> State:
    if _kept_off(facts, names.DEPLOY_GFD):
        return State.ABSENT
    return State.HEALTHY if facts.label(names.GPU_PRODUCT) else State.WAITING


LAYERS: dict[str, Callable[[Facts], State]] = {
    "hardware": _hardware,
    "driver": _driver,
    "runtime": _operand("nvidia-container-toolkit-daemonset", names.DEPLOY_TOOLKIT),
    "device plugin": _plugin,
    "labels": _labels,
    "telemetry": _operand("nvidia-dcgm-exporter", names.DEPLOY_DCGM_EXPORTER),
    "validated": _operand("nvidia-operator-validator", names.DEPLOY_OPERATOR_VALIDATOR),
}
"""The layers from the bottom up, each with the rule that judges it."""


COMPONENTS = {
    "driver": "driver",
    "runtime": "toolkit",
    "device plugin": "devicePlugin",
    "labels": "gfd",
    "telemetry": "dcgmExporter",
}
"""The ClusterPolicy component that makes a layer, for those that can be switched off."""


class NodeRow(NamedTuple):
    """One node's line in the table."""

    name: str
    gpus: int
    product: str
    layers: dict[str, State]

    @property
    def has_gpu(self) -> bool:
        """Whether node feature discovery saw an NVIDIA GPU."""
        return self.layers["hardware"] is State.HEALTHY

    @property
    def healthy(self) -> bool:
        """Whether every layer that applies is healthy."""
        return all(state in (State.HEALTHY, State.ABSENT) for state in self.layers.values())


def judge(nodes: Iterable[Document], pods: Iterable[Document], policies: Iterable[Document] = ()) -> list[NodeRow]:
    """Return a row for every node, ordered by name.

    With the cluster's policies given, a layer that the active one switches off and that nothing else brings is absent.
    """
    by_node: dict[str, list[Document]] = {}
    for pod in pods:
        by_node.setdefault(pod.get("spec", {}).get("nodeName", ""), []).append(pod)
    off = _switched_off(policies)
    return [
        _row(Facts(node, tuple(by_node.get(node["metadata"]["name"], ()))), off)
        for node in sorted(nodes, key=lambda item: str(item["metadata"]["name"]))
    ]


def _switched_off(policies: Iterable[Document]) -> frozenset[str]:
    active = next((policy for policy in policies if policy.get("status", {}).get("state") != "ignored"), {})
    spec = active.get("spec", {})
    return frozenset(layer for layer, field in COMPONENTS.items() if (spec.get(field) or {}).get("enabled") is False)


def _row(facts: Facts, off: frozenset[str]) -> NodeRow:
    has_gpu = _hardware(facts) is State.HEALTHY
    return NodeRow(
        name=facts.node["metadata"]["name"],
        gpus=facts.allocatable(names.GPU_RESOURCE),
        product=facts.label(names.GPU_PRODUCT),
        layers={name: _state(rule(facts), name in off) if has_gpu else State.ABSENT for name, rule in LAYERS.items()},
    )


def _state(judged: State, off: bool) -> State:
    """A layer that is switched off is not waited for; one that is there all the same (a host's driver) counts."""
    return State.ABSENT if off and judged is State.WAITING else judged
